"""Configurations of Hugging Face's hub, by the id of a model, from their cache on this machine: nothing is downloaded.

The cache is a folder a model, models--owner--name, in which refs/main says which of its snapshots is meant.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from .._files import content

ID = re.compile(r"[\w.-]+/[\w.-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")


def cached(model: str) -> Path | None:
    """The config.json of a model in the cache, if it is there."""
    if ID.fullmatch(model) is None:
        return None
    folder = _cache() / f"models--{model.replace('/', '--')}"
    with suppress(OSError, ValueError):
        commit = content(folder / "refs" / "main", 64).decode().strip()
        path = folder / "snapshots" / commit / "config.json"
        if COMMIT.fullmatch(commit) is not None and path.is_file():
            return path
    return None


def advice(model: str) -> str:
    """What to do about an id that is not in the cache."""
    if ID.fullmatch(model) is None or model.startswith("."):
        return ""
    return (
        f"; as an id of Hugging Face's hub it is not in the cache of this machine: `hf download {model} config.json` "
        "puts it there, and prints a path that can be given too"
    )


def _cache() -> Path:
    """As huggingface_hub finds it."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(given)))
