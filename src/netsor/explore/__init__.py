"""The page in a browser: move a slider, see the law.

What is computed (a view: settings in, pictures, numbers and code out) knows nothing of the page, and is used without
it in the tests. The page is a marimo app, `_app.py`, and `serve` shows it on this machine alone.
"""

from ._program_view import Target
from ._server import serve

__all__ = ["Target", "serve"]
