"""The lines of code of recorded operations.

For every operation that `torch.export` records, it looks up the source of a hundred
frames, most of them its own. That is a fifth of its time. `UserFrames` looks at the
innermost frames of modules alone, and reads each line of code once.
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

from ..reader._graph import is_outside_torch

TORCH = Path(torch.__file__).parent
MODULES = TORCH / "nn" / "modules"


class UserFrames:
    """The innermost frames of modules around an operation, outermost first.

    They begin with a `forward`, because torch drops what is outside of one. It stands
    for `torch.utils._traceback.CapturedTraceback`.
    """

    def __init__(self, frames: list[traceback.FrameSummary]) -> None:
        self._frames = frames

    @classmethod
    def extract(cls, **options: Any) -> UserFrames:
        """The frames of the code that runs now, up to the line that errors name."""
        frames = []
        has_line = False
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if _may_define_module(code.co_filename):
                user_frame = _frame(code.co_filename, frame.f_lineno, code.co_name)
                frames.append(user_frame)
                is_named = is_outside_torch(user_frame.filename) and user_frame.line
                has_line = has_line or bool(is_named)
                if has_line and user_frame.name == "forward":
                    break
            frame = frame.f_back
        return cls(frames[::-1])

    def summary(self) -> traceback.StackSummary:
        """The same frames as those of a traceback."""
        return traceback.StackSummary.from_list(self._frames)


@cache
def _frame(file: str, line: int, name: str) -> traceback.FrameSummary:
    """A frame, which reads its line of code once."""
    return traceback.FrameSummary(file, line, name, lookup_line=False)


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
