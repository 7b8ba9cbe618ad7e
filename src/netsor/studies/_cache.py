"""Finished trials on disk: one file each, named by all that its numbers depend on, checked when it is read.

Files are written next to their place and moved into it, so that a file is whole or absent, however a run ends and
however many runs share the folder. A checksum stands at its end; a file that was damaged counts as absent.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from .._files import opened, write
from ..engine.backends import Backend, Numpy

FORMAT = 8  # to be raised when the engine draws otherwise, or a part holds other numbers

Arrays = dict[str, np.ndarray[Any, Any]]


def sweep(folder: Path) -> None:
    """Remove what killed runs left half-written, more than an hour ago."""
    for path in folder.glob(".netsor-*.part"):
        try:
            if time.time() - path.stat().st_mtime > 3600:
                path.unlink()
        except FileNotFoundError:  # another run was quicker
            pass


class Store:
    """A folder of finished parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _text(self, key: Mapping[str, Any]) -> str:
        # draws may change with the versions of what draws them
        return json.dumps({**key, "format": FORMAT, "netsor": __version__, "numpy": np.__version__}, sort_keys=True)

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where a part is."""
        return self.folder / f"{hashlib.sha256(self._text(key).encode()).hexdigest()[:24]}.npz"

    def save(self, key: Mapping[str, Any], arrays: Arrays) -> None:
        """Keep a finished part."""
        buffer = io.BytesIO()
        named: dict[str, Any] = {"key": np.array(self._text(key)), **arrays}
        np.savez(buffer, **named)
        content = buffer.getvalue()
        write(self.path(key), content + hashlib.sha256(content).digest())

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether a part is there, if it is not damaged."""
        return os.path.isfile(self.path(key))

    def any(self) -> bool:
        """Whether there are parts at all, of whatever."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            return any(entry.name.endswith(".npz") for entry in entries)
        return False

    def load(self, key: Mapping[str, Any]) -> Arrays | None:
        """A part, or None if it is absent or damaged."""
        try:
            with opened(self.path(key)) as file:
                content = file.read()
            if hashlib.sha256(content[:-32]).digest() != content[-32:]:
                return None
            with np.load(io.BytesIO(content[:-32]), allow_pickle=False) as arrays:
                loaded = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, zipfile.BadZipFile):
            return None
        return loaded if str(loaded.pop("key", "")) == self._text(key) else None


def cache_key(key: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """A key, with the backend unless it is the default."""
    return key if backend == Numpy() else {**key, "backend": str(backend)}


def derive_seed(*numbers: int) -> int:
    """One seed from several numbers: parts that differ in one of them are independent."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
