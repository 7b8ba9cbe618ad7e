"""Blocks of Python and commands of a shell on a page, run in the browser for
docs/assets/live.js.

This file imports little, because the first answer waits for it.
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
BLOCK = "<block>"  # the name of the code in error messages

# of the blocks of a page, which follow each other
_names: dict[str, Any] = {"__name__": "__main__"}


def answer(kind: str, content: str, emit: Emit) -> None:
    """Run a block of "python", or the lines of a shell ("sh") that call netsor; an
    error is emitted too.
    """
    out = _Printed(emit)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        if kind == "python":
            _run(content, emit)
            return
        from . import cli

        for words in (
            shlex.split(line, comments=True) for line in content.splitlines()
        ):
            if words[:1] == ["netsor"]:
                sys.argv = words
                with contextlib.suppress(SystemExit):
                    cli.main()


def _run(code: str, emit: Emit) -> None:
    """Run a block; its last expression is shown as in a notebook, and so are figures
    that it leaves open.
    """
    linecache.cache[BLOCK] = (len(code), None, code.splitlines(keepends=True), BLOCK)
    try:
        tree = ast.parse(code, BLOCK)
        last = (
            tree.body.pop()
            if tree.body and isinstance(tree.body[-1], ast.Expr)
            else None
        )
        exec(compile(tree, BLOCK, "exec"), _names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), BLOCK, "eval"), _names)
            if hasattr(value, "_repr_html_"):
                emit("html", value._repr_html_())
            elif value is not None:
                emit("text", f"{value!r}\n")
    except (Exception, SystemExit) as error:
        own = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == BLOCK
        ]
        where = f"line {own[-1].lineno}: {own[-1].line}\n" if own else ""
        emit("error", where + "".join(traceback.format_exception_only(error)).rstrip())
    if plt := sys.modules.get("matplotlib.pyplot"):
        for number in plt.get_fignums():
            drawn = io.BytesIO()
            plt.figure(number).savefig(drawn, dpi=144, bbox_inches="tight")
            emit("image", base64.b64encode(drawn.getvalue()).decode())
        plt.close("all")


class _Printed(io.TextIOBase):
    """A stream that emits printed text at once."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            # click recognises text files by this error
            raise TypeError("text is written here, not bytes")
        self.emit("text", text)
        return len(text)
