"""A configuration from a file of any kind: no more bytes are read than a configuration can have."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from ..language._given import shown

LARGEST = 2**24  # bytes; configurations have some thousand, and a million if they name every class of images


def fields_of(path: Path) -> dict[str, Any]:
    """The fields that a JSON file holds; OSError if there is no such file."""
    name = shown(str(path))
    try:
        text = _content(path, name).decode()
        found = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, name))
    except RecursionError:
        raise ValueError(f"{name} is no configuration: its brackets are nested too deeply") from None
    except _Refused:
        raise
    except ValueError as error:  # of JSON, or of its encoding
        raise ValueError(f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold an object with the fields of a configuration")
    return found


class _Refused(ValueError):
    """A file that could be JSON, and is refused all the same."""


def _content(path: Path, name: str) -> bytes:
    # reading a pipe without a writer would wait for ever, and a device has no end
    with open(path, "rb", buffering=0, opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _Refused(f"{name} must be a file: it is a folder, a device or a pipe")
        content = b""
        while len(content) <= LARGEST and (more := file.read(LARGEST + 1)):
            content += more
    if len(content) > LARGEST:
        raise _Refused(f"{name} is no configuration: it has more than {LARGEST >> 20} MiB")
    return content


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _once(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"{name} has the field {shown(twice)} twice: remove the one that is not meant")
    return found
