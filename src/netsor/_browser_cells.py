"""Runs the code blocks of a page in the browser, for docs/assets/live.js: Python, and
shell commands that call netsor.

Blocks of a page share their names, as cells of a notebook do. This file imports little,
because the first answer waits for it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import linecache
import shlex
import sys
import traceback
from collections.abc import Callable
from typing import Any

# the kind ("text", "html", "image", "error") and the content
Emit = Callable[[str, str], None]

# of the blocks of a page, which follow each other
_names: dict[str, Any] = {"__name__": "__main__"}
_blocks: list[str] = []  # the names of their code in tracebacks


def answer(kind: str, content: str, emit: Emit) -> None:
    """Run a block of the kind "python", or the lines of a shell ("sh") that call
    netsor, and emit what it prints, shows or raises.
    """
    out = _Printed(emit)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        if kind == "python":
            _run(content, emit)
            return
        from . import cli

        for line in content.splitlines():
            arguments = shlex.split(line, comments=True)
            if arguments[:1] == ["netsor"]:
                sys.argv = arguments
                with contextlib.suppress(SystemExit):
                    cli.main()


def _run(code: str, emit: Emit) -> None:
    """Run a block; its last expression is shown as in a notebook, and so are figures
    that it leaves open.
    """
    # A later block may call functions of this one: its lines are found by its own name.
    block = f"<block {len(_blocks) + 1}>"
    _blocks.append(block)
    linecache.cache[block] = (len(code), None, code.splitlines(keepends=True), block)
    try:
        tree = ast.parse(code, block)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        exec(compile(tree, block, "exec"), _names)
        if last is not None:
            _show(eval(compile(last, block, "eval"), _names), emit)
    except (Exception, SystemExit) as error:
        emit("error", _error_text(error))
    _show_figures(emit)


def _show(value: Any, emit: Emit) -> None:
    """Show the value of the last expression of a block."""
    if hasattr(value, "_repr_html_"):
        emit("html", value._repr_html_())
    elif value is not None:
        emit("text", f"{value!r}\n")


def _error_text(error: BaseException) -> str:
    """The last line of a block in the traceback, and the message."""
    message = "".join(traceback.format_exception_only(error)).rstrip()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in _blocks:
            is_earlier = frame.filename != _blocks[-1]
            place = "earlier block, line" if is_earlier else "line"
            return f"{place} {frame.lineno}: {frame.line}\n{message}"
    return message


def _show_figures(emit: Emit) -> None:
    """Show the open figures, and close them."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return
    for number in plt.get_fignums():
        image = io.BytesIO()
        plt.figure(number).savefig(image, dpi=144, bbox_inches="tight")
        emit("image", base64.b64encode(image.getvalue()).decode())
    plt.close("all")


class _Printed(io.TextIOBase):
    """A stream that emits printed text at once."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def write(self, text: str) -> int:
        """Show text in the cell, and return its length as files do."""
        if not isinstance(text, str):
            # click recognises text files by this error
            raise TypeError("text is written here, not bytes")
        self.emit("text", text)
        return len(text)
