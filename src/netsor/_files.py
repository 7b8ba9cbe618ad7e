"""How netsor writes a file: beside its place, and moved into it, so that it is whole or absent however a run ends."""

from __future__ import annotations

import secrets
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Put a whole file in its place, or leave what is there; its folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".netsor-{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
