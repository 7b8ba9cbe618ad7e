"""The lines of code of recorded operations.

For every operation that `torch.export` records, it looks up the source of a hundred
frames, most of them its own. That is a fifth of its time. `UserFrames` looks at the
frames of modules alone, and reads no source until an error shows it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

TORCH = Path(torch.__file__).parent
MODULES = TORCH / "nn" / "modules"


class UserFrames:
    """The frames of modules around an operation, outermost first.

    It stands for `torch.utils._traceback.CapturedTraceback`.
    """

    def __init__(self, frames: list[Any]) -> None:
        self._frames = frames

    @classmethod
    def extract(cls, **options: Any) -> UserFrames:
        """The frames of the code that runs now."""
        frames = []
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if _may_define_module(code.co_filename):
                frames.append((code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        return cls(frames[::-1])

    def summary(self) -> traceback.StackSummary:
        """The same frames as those of a traceback."""
        return traceback.StackSummary.from_list(
            [
                traceback.FrameSummary(file, line, name, lookup_line=False)
                for file, line, name in self._frames
            ]
        )


@cache
def _may_define_module(file: str) -> bool:
    """Whether a file can define a module.

    Such files are those of `torch.nn.modules`, and all that are not part of PyTorch:
    yours, and those of packages next to it, such as torchvision.
    """
    path = Path(file)
    return path.is_relative_to(MODULES) or not path.is_relative_to(TORCH)


@contextmanager
def lines_of_modules() -> Iterator[None]:
    """Have torch record the lines of code of modules alone."""
    recorder: Any = torch.fx.proxy
    original = recorder.CapturedTraceback
    recorder.CapturedTraceback = UserFrames
    try:
        yield
    finally:
        recorder.CapturedTraceback = original
