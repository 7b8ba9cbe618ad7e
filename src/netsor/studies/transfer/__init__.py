"""Loss after a few steps against the learning rate, at several widths: does the best learning rate transfer?"""

from ._result import Optimum, Sweep, Transfer
from ._transfer import transfer

__all__ = ["Optimum", "Sweep", "Transfer", "transfer"]
