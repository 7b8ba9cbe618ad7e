"""Recurrences that transformers computes in chunks, on short sequences.

Its delta rules pad a sequence to a multiple of 64 tokens and solve a triangular system
row by row. The result does not depend on the length of a chunk, so that a chunk as long
as a short sequence gives the same numbers from fewer operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

FUNCTIONS = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
CHUNK = 64  # their default
ARGUMENTS_BEFORE_CHUNK = 5  # query, key, value, decay, beta


@contextmanager
def short_chunks(module: Any) -> Iterator[None]:
    """Have the delta rules in the code of a module use chunks of short sequences."""
    files = {sys.modules.get(type(part).__module__) for part in module.modules()}
    originals = [
        (file, name, getattr(file, name))
        for file in files
        for name in FUNCTIONS
        if hasattr(file, name)
    ]
    for file, name, original in originals:
        setattr(file, name, partial(_in_short_chunks, original))
    try:
        yield
    finally:
        for file, name, original in originals:
            setattr(file, name, original)


def _in_short_chunks(
    original: Callable[..., Any], /, *args: Any, **options: Any
) -> Any:
    """The delta rule of keys (batch, tokens, heads, width)."""
    key = options["key"] if "key" in options else args[1]
    tokens = key.shape[1]
    has_chunk_size = "chunk_size" in options or len(args) > ARGUMENTS_BEFORE_CHUNK
    if not has_chunk_size and tokens < CHUNK:
        options["chunk_size"] = max(tokens, 1)
    return original(*args, **options)
