"""Weights from a safetensors file, read without executing anything: a header of JSON, then numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from .._validate import ArgumentError

LARGEST_HEADER = 100 * 2**20  # bytes, as the format allows
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def read_tensors(path: str | Path) -> dict[str, Any]:
    """The tensors of a .safetensors file, or of all files that a .safetensors.index.json names."""
    path = Path(path)
    if path.suffix == ".json":
        files = sorted(set(json.loads(path.read_text())["weight_map"].values()))
        if any(Path(name).name != name for name in files):
            raise ValueError(f"weights={str(path)!r} names files of other folders")
        return {name: tensor for file in files for name, tensor in read_tensors(path.parent / file).items()}
    try:
        content = bytearray(path.read_bytes())
    except OSError as error:
        raise ArgumentError("weights", str(path), f"a file that can be read: {error.strerror}") from None
    try:
        size = int.from_bytes(content[:8], "little")
        if not 2 <= size <= min(LARGEST_HEADER, len(content) - 8):
            raise ValueError("its header has no size")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        return {name: _tensor(content, 8 + size, about) for name, about in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"weights={str(path)!r} is no safetensors file: {error}") from None


def _tensor(content: bytearray, start: int, about: dict[str, Any]) -> Any:
    kind, shape, (first, last) = TYPES[about["dtype"]], about["shape"], about["data_offsets"]
    count = math.prod(shape)
    if not 0 <= first <= last <= len(content) - start or last - first != count * kind.itemsize:
        raise ValueError("offsets and shapes differ")
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(content, dtype=kind, count=count, offset=start + first).reshape(shape)


def load(module: Any, weights: str | Path) -> None:
    """Put the numbers of a file into a module; every parameter must be there, tied ones once."""
    found = read_tensors(weights)
    names: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    with torch.no_grad():
        for p in module.parameters():
            here = [name for name in names[id(p)] if name in found]
            if not here:
                raise ArgumentError("weights", str(weights), f"a file with the parameter {names[id(p)][0]}")
            if tuple(found[here[0]].shape) != tuple(p.shape):
                raise ValueError(
                    f"{here[0]} has shape {tuple(found[here[0]].shape)} in {weights}, not {tuple(p.shape)}"
                )
            p.copy_(found[here[0]])
