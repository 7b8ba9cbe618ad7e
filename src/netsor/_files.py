"""Files of users: written whole or not at all, and read only if they are regular, small and unambiguous."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any, BinaryIO

from ._validate import shown

MAX_FILE_BYTES = 2**24  # bytes of a JSON or TOML file: a configuration that names every class of images has a million
LONGEST = 200  # characters of a path in a message
PARTS = 8  # of a dotted TOML key: tomllib takes time quadratic in them
_KEY = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
LONG_KEY = re.compile(rf"(?<![\w-]){_KEY}(?:[ \t]*\.[ \t]*{_KEY}){{{PARTS}}}")


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, or leave the one that is there; create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".netsor-{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def named(path: str | os.PathLike[str]) -> str:
    """A file as messages name it: its whole path, unless that is very long."""
    text = repr(str(path))
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading: a pipe without a writer would block, and a device may never end."""
    try:
        file = open(path, "rb", opener=_at_once)  # noqa: SIM115 (the caller closes it)
    except (IsADirectoryError, ValueError):  # or a name that no file can have
        file = None
    if file is None or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        if file is not None:
            file.close()
        raise ValueError(f"{named(path)} must be a regular file, not a folder, a device or a pipe")
    return file


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def content(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> bytes:
    """What a regular file of at most this many bytes holds."""
    with opened(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        size = f"{most >> 20} MiB" if most >= 2**20 else f"{most:,} bytes"
        raise ValueError(f"{named(path)} has more than {size}")
    return found


def fields(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """The fields of a TOML file, if its name ends in .toml, or else of a JSON file; OSError if it cannot be opened."""
    return parsed(content(path, most), named(path), "TOML" if Path(path).suffix == ".toml" else "JSON")


def parsed(text: bytes, name: str, kind: str = "JSON") -> dict[str, Any]:
    """The fields that a text holds, with a ValueError for whatever could be misread.

    Duplicate keys, integers that no double can hold and text that is not Unicode are refused. `name` is what a message
    calls the text.
    """
    try:
        made = _toml(text.decode()) if kind == "TOML" else json.loads(text.decode(), object_pairs_hook=_once)
        _check(made)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except _RefusedError as error:
        raise ValueError(f"{name} {error}") from None
    except ValueError as error:  # of the format or of its encoding
        raise ValueError(f"{name} is not valid {kind}: {error}") from None
    if not isinstance(made, dict):
        raise ValueError(f"{name} must hold an object with named fields, not {shown(made)}")
    return made


class _RefusedError(ValueError):
    """Valid JSON or TOML that is refused."""


def _toml(text: str) -> dict[str, Any]:
    if (long := LONG_KEY.search(text)) is not None:
        raise _RefusedError(f"has a key of more than {PARTS} parts in line {text.count(chr(10), 0, long.start()) + 1}")
    return tomllib.loads(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedError(f"has the field {shown(twice)} twice: remove the one that is not meant")
    return found


def _check(value: Any) -> None:
    """Refuse numbers that cannot be computed with and text that cannot be written."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check(key)
            _check(inner)
    elif isinstance(value, list):
        for inner in value:
            _check(inner)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _RefusedError(f"has the text {shown(value)}, which is not valid Unicode") from None
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        raise _RefusedError(f"has {shown(value)}: numbers must be at most {sys.float_info.max:.2g} in size")
