"""python -m netsor."""

from .cli import main

main()
