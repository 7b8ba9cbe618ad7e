"""The command, run in this process."""

import contextlib
import io
import sys
from types import SimpleNamespace

import pytest

from netsor import cli
from tests.internals import _subject


def netsor(*arguments, cwd=None):
    """What it printed, and its exit code. What it imported is forgotten."""
    out, err = io.StringIO(), io.StringIO()
    known = set(sys.modules)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["netsor", *arguments])
        patch.setattr(sys, "path", list(sys.path))
        # on a busy machine planning takes long
        patch.setattr(_subject, "SILENT", 600.0)
        if cwd is not None:
            patch.chdir(cwd)
        with pytest.raises(SystemExit) as stop:
            cli.main()
    for name in set(sys.modules) - known:  # each test has its own folder
        if name in ("mine", "bad", "ends") or name.startswith("netsor_program_"):
            del sys.modules[name]
    return SimpleNamespace(
        returncode=stop.value.code or 0, stdout=out.getvalue(), stderr=err.getvalue()
    )
