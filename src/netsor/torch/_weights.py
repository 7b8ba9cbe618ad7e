"""The numbers of a module at step 0: its own, or those of files, whole or in shards.

Files are safetensors, one or a folder of them, or a folder that
torch.distributed.checkpoint wrote. Reading them executes nothing. Parameters that are
DTensors are gathered, which every rank has to do together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._validate import ArgumentError
from ..checks._findings import InitFinding
from ._sharded_checkpoint import METADATA, Chunk, chunks_of

ALLOWED = (
    "the path of a .safetensors file, of a folder of them, or of a folder of"
    " torch.distributed.checkpoint; or a list of files, one for each rank"
)


class Shards(NamedTuple):
    """How a parameter is cut along one axis, one part for each rank."""

    axis: int
    sizes: tuple[int, ...]

    def parts(self, x: Any) -> list[Any]:
        """The parts of a tensor or an array."""
        axes_before: list[Any] = [slice(None)] * self.axis
        parts = []
        start = 0
        for size in self.sizes:
            parts.append(x[(*axes_before, slice(start, start + size))])
            start += size
        return parts


@dataclass(frozen=True)
class Numbers:
    """The numbers of all parameters of a module."""

    tensors: dict[str, Any]  # whole, by name
    # the types that files store, where they differ from those of the module
    types: dict[str, Any] = field(default_factory=dict)
    shards: dict[str, Shards] = field(default_factory=dict)
    # parameters that ranks should share and do not
    findings: list[InitFinding] = field(default_factory=list)


class Whole(NamedTuple):
    """A tensor that was put together, and how it was cut."""

    tensor: Any
    shards: Shards | None = None
    problem: str = ""  # what differs between copies of it


def numbers_of(module: Any, weights: Any = None) -> Numbers:
    """The numbers of a module, after those of files were put into it."""
    wholes: dict[str, Whole] = {}
    if weights is not None:
        wholes = _load(module, weights)
    numbers = Numbers({})
    for name, p in module.named_parameters():
        whole = wholes.get(name)
        numbers.tensors[name] = p
        if whole is None and hasattr(p, "placements"):
            whole = _gathered(p)
            numbers.tensors[name] = whole.tensor
        elif whole is not None:
            numbers.types[name] = whole.tensor.dtype
        if whole is not None and whole.shards is not None:
            numbers.shards[name] = whole.shards
        if whole is not None and whole.problem:
            finding = InitFinding(where=name, what="tie", p=0.0, text=whole.problem)
            numbers.findings.append(finding)
    return numbers


# Parameters that are cut into DTensors


def _gathered(p: Any) -> Whole:
    """A DTensor as a whole, and whether its copies on all ranks agree."""
    from torch import distributed

    tensor = p.detach().full_tensor().cpu()
    # axes that are cut, each with the number of its shards
    cuts = [
        (placement.dim, size)
        for placement, size in zip(p.placements, p.device_mesh.shape, strict=True)
        if placement.is_shard() and size > 1
    ]
    shards = None  # those of one axis
    if len(cuts) == 1:
        ((axis, count),) = cuts
        # torch cuts as `chunk` does
        sizes = tuple(len(part) for part in torch.arange(p.shape[axis]).chunk(count))
        shards = Shards(axis, sizes)
    entries_as_bytes = tensor.reshape(-1).view(torch.uint8).numpy()
    digest = hashlib.sha256(entries_as_bytes).hexdigest()
    digests: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(digests, digest)
    problem = "" if len(set(digests)) == 1 else _of_copies(digests)
    return Whole(tensor, shards, problem)


def _of_copies(digests: Sequence[str]) -> str:
    """What is wrong with copies whose digests differ."""
    distinct = len(set(digests))
    return (
        f"expected the same numbers on all {len(digests)} ranks, found {distinct}"
        " different copies: replicas do not agree"
    )


# Files


def _load(module: Any, weights: Any) -> dict[str, Whole]:
    """Put the numbers of files into all parameters of a module."""
    tensors = _read(weights)
    named = dict(module.named_parameters(remove_duplicate=False))
    prefix = _prefix(named, tensors)
    # one that is tied is in the files once
    by_identity = {
        id(p): tensors[prefix + name]
        for name, p in named.items()
        if prefix + name in tensors
    }
    wholes: dict[str, Whole] = {}
    with torch.no_grad():
        for name, p in module.named_parameters():
            chunks = by_identity.get(id(p))
            if chunks is None:
                raise ArgumentError(
                    "weights", str(weights), f"a file with the parameter {name}"
                )
            whole = _whole(chunks, tuple(p.shape))
            if whole is None:
                shapes = " and ".join(str(tuple(x.tensor.shape)) for x in chunks[:3])
                raise ValueError(
                    f"{name} has shape {shapes} in {weights}, not {tuple(p.shape)}"
                )
            p.copy_(whole.tensor)
            wholes[name] = whole
    return wholes


def _prefix(named: Mapping[str, Any], tensors: Mapping[str, Any]) -> str:
    """What stands before the names of parameters in files, such as "model."."""
    parameter = next(iter(named), "")
    if parameter in tensors:
        return ""
    prefixes = [
        key.removesuffix(parameter) for key in tensors if key.endswith(f".{parameter}")
    ]
    return prefixes[0] if len(prefixes) == 1 else ""


def _whole(pieces: list[Chunk], shape: tuple[int, ...]) -> Whole | None:
    """A tensor of this shape from its pieces; None if they do not fit.

    Pieces without offsets are those of ranks, in order: parts along one axis, or
    copies.
    """
    if pieces[0].offsets is not None:
        return _from_chunks(pieces, shape)
    tensors = [piece.tensor for piece in pieces]
    if all(tuple(x.shape) == shape for x in tensors):
        return _from_copies(tensors)
    for axis in range(len(shape)):
        whole = _from_parts(tensors, shape, axis)
        if whole is not None:
            return whole
    return None


def _from_copies(tensors: list[Any]) -> Whole:
    """A tensor of which each rank has a copy, and whether the copies agree."""
    # what says which copies are like the first one
    labels = [
        "same" if torch.equal(x, tensors[0]) else str(rank)
        for rank, x in enumerate(tensors)
    ]
    problem = "" if len(set(labels)) == 1 else _of_copies(labels)
    return Whole(tensors[0], problem=problem)


def _from_parts(tensors: list[Any], shape: tuple[int, ...], axis: int) -> Whole | None:
    """A tensor that ranks have in parts along one axis; None if they do not fit."""
    sizes = []
    for x in tensors:
        if x.ndim != len(shape):
            return None
        size = int(x.shape[axis])
        if tuple(x.shape) != (*shape[:axis], size, *shape[axis + 1 :]):
            return None
        sizes.append(size)
    if sum(sizes) != shape[axis]:
        return None
    return Whole(torch.cat(tensors, dim=axis), Shards(axis, tuple(sizes)))


def _from_chunks(pieces: list[Chunk], shape: tuple[int, ...]) -> Whole | None:
    """A tensor of this shape from chunks that say where they begin."""
    tensor = pieces[0].tensor.new_empty(shape)
    filled = 0
    for chunk in pieces:
        index = _index_of(chunk, shape)
        if index is None:
            return None
        tensor[index] = chunk.tensor
        filled += chunk.tensor.numel()
    if filled != tensor.numel():
        return None
    cut_axes = [
        axis
        for axis in range(len(shape))
        if any(chunk.tensor.shape[axis] < shape[axis] for chunk in pieces)
    ]
    if len(cut_axes) != 1:
        return Whole(tensor)
    (axis,) = cut_axes
    in_order = sorted(pieces, key=lambda chunk: chunk.offsets or ())
    sizes = tuple(int(chunk.tensor.shape[axis]) for chunk in in_order)
    return Whole(tensor, Shards(axis, sizes))


def _index_of(chunk: Chunk, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Where the entries of a chunk are in a tensor of this shape; None: outside."""
    assert chunk.offsets is not None
    index = tuple(
        slice(start, start + size)
        for start, size in zip(chunk.offsets, chunk.tensor.shape, strict=False)
    )
    if len(index) != len(shape):
        return None
    is_inside = all(part.stop <= size for part, size in zip(index, shape, strict=True))
    return index if is_inside else None


def _read(weights: Any) -> dict[str, list[Chunk]]:
    """The pieces of all tensors in files, by name."""
    if isinstance(weights, list | tuple) and weights:
        return _of_ranks([Path(file) for file in weights])
    if not isinstance(weights, str | Path):
        raise ArgumentError("weights", weights, ALLOWED)
    path = Path(weights)
    if not path.is_dir():
        return _of_ranks([path])
    if (path / METADATA).exists():
        return chunks_of(path)
    indices = sorted(path.glob("*.index.json"))
    files = sorted(path.glob("*.safetensors"))
    if len(indices) == 1:
        return _of_ranks(indices)
    if not files:
        raise ArgumentError("weights", str(path), f"{ALLOWED}: it has no such file")
    return _of_ranks(files)


def _of_ranks(files: Sequence[Path]) -> dict[str, list[Chunk]]:
    """The tensors of files; those of the same name are pieces, in this order."""
    pieces: dict[str, list[Chunk]] = {}
    for file in files:
        for name, tensor in _tensors(file):
            pieces.setdefault(name, []).append(Chunk(tensor))
    return pieces


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """The tensors of a .safetensors file, or of those that an .index.json names."""
    try:
        from safetensors import SafetensorError

        # it executes nothing: a header of JSON, then numbers
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(
            f"weights={str(path)!r} needs safetensors: pip install safetensors"
            f" ({error})"
        ) from error
    try:
        files = {path.name}
        if path.suffix == ".json":
            index = json.loads(path.read_text(encoding="utf-8"))
            files = set(index["weight_map"].values())
        for file in sorted(files):
            yield from load_file(path.parent / file).items()
    except OSError as error:
        raise ArgumentError(
            "weights", str(path), f"a readable file: {error.strerror or error}"
        ) from None
    except (
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        raise ValueError(
            f"weights={str(path)!r} is not a safetensors file: {error}"
        ) from None
