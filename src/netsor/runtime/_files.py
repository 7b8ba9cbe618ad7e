"""Files of the user.

They are written whole or not at all, and read only if they are regular, small and
without duplicate fields.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from .._validate import shown

# Most bytes of a JSON or TOML file. A configuration that names every class of images
# has a million.
MAX_FILE_BYTES = 2**24
LONGEST = 200  # most characters of a path in a message


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically: on failure the old file stays.

    The folder is created if needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".netsor-{secrets.token_hex(8)}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def named(path: str | os.PathLike[str]) -> str:
    """A file in messages: its whole path in quotes, shortened in the middle if it is
    very long.
    """
    text = repr(str(path))
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}…{text[-half:]}"


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; the caller closes it.

    Raises ValueError for anything else: a pipe without a writer would block, and a
    device may never end.
    """
    non_blocking = getattr(os, "O_NONBLOCK", 0)  # Windows lacks it

    def without_waiting(name: str, flags: int) -> int:
        """Open a file, but do not wait for the other end of a pipe."""
        return os.open(name, flags | non_blocking)

    # ValueError: no file can have this name
    with suppress(IsADirectoryError, ValueError):
        file = open(path, "rb", opener=without_waiting)  # noqa: SIM115
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file  # the caller closes it
        file.close()
    raise ValueError(
        f"{named(path)} must be a regular file, not a folder, a device or a pipe"
    )


def content(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file, which may have at most `most` bytes."""
    with opened(path) as file:
        read = file.read(most + 1)
    if len(read) <= most:
        return read
    size = f"{most:,} bytes"
    if most >= 2**20:
        size = f"{most >> 20} MiB"
    raise ValueError(f"{named(path)} has more than {size}")


def fields(path: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """The fields of a TOML file, if its name ends in .toml, or else of a JSON file.

    It raises OSError if the file cannot be opened.
    """
    language = "TOML" if Path(path).suffix == ".toml" else "JSON"
    return parsed(content(path, most), named(path), language)


def parsed(text: bytes, name: str, language: str = "JSON") -> dict[str, Any]:
    """The fields of a text in JSON or TOML; `name` is its name in messages."""
    try:
        if language == "TOML":
            import tomllib  # slow to import, and few files are TOML

            return tomllib.loads(text.decode())
        parsed = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except ValueError as error:  # of the format or of its encoding
        raise ValueError(f"{name} is not valid {language}: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(
            f"{name} must hold an object with named fields, not {shown(parsed)}"
        )
    return parsed


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields and values of a JSON object as a dict; an error if it has a field
    twice.
    """
    names = Counter(name for name, _ in pairs)
    for name, count in names.items():
        if count > 1:
            raise ValueError(f"it has the field {shown(name)} twice: remove one")
    return dict(pairs)
