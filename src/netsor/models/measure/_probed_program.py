"""A program with probes, read as a network: embeddings, blocks, and their matrices.

The order of the probes defines the blocks: each ends with a stream, and contains the
probes since the last one. An embedding after a stream begins the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..._array_api import Bools
from ...language import Scalar, Value, Vector, Width
from ...language.operations._operation import Apply, Constant, MatMul
from ...language.operations._softmax import MASKED_SOFTMAX
from ...language.operations._stop_gradient import computed_by
from ...language.values._graph import topological_order
from ...language.values._probe import Probe
from ...programs._program import Program

Block = dict[str, list[Probe]]
ONCE = ("stream", "attention", "cross", "middle", "mlp")  # at most once per block
ENDS = ("logits", "loss")  # outside the blocks
MATRIX_NAMES = {
    "W^Q": "query",
    "W^K": "key",
    "W^V": "value",
    "W^O": "output",
    "W^G": "gate",
}
# The kind of the matrix whose product has a probe of this name.
KINDS_OF_PROBES = {
    "query": "query",
    "key": "key",
    "value": "value",
    "attention": "output",
    "mlp": "out",
}
KINDS = ("query", "key", "value", "qkv", "output", "router", "in", "gate", "out")


class ProbedProgram:
    """The probes of a program by block, checked.

    `starts` are the embeddings, those of a decoder second; `streams` the stream after
    each block, and `before` that before it; `layers` the number of blocks before the
    decoder, and `ends` the probes outside the blocks.
    """

    def __init__(self, program: Program) -> None:
        self.program, self.name = program, program.name
        self.starts: list[Vector] = []
        self.blocks: list[Block] = []
        self.ends: Block = {}
        self.layers = 0
        self._read(program.probes)
        self.tokens, self.width = self.starts[0].shape[0], self.starts[0].width
        self.streams: list[Vector] = [
            value_of(block, "stream") for block in self.blocks
        ]
        self.before = [self.starts[0], *self.streams[:-1]]
        # the decoder starts from its own embeddings
        self.before[self.layers : self.layers + 1] = self.starts[1:]
        self._check_blocks_alike()
        self._check_tokens()

    def _read(self, probes: Sequence[Probe]) -> None:
        """Sort the probes into embeddings, blocks and ends."""
        block: Block = {}  # since the last stream
        for probe in probes:
            if probe.name == "embedding":
                self._read_embedding(probe, block)
                continue
            if probe.name in ENDS:
                self._add(probe, self.ends)
                continue
            self._add(probe, block)
            if probe.name == "stream":
                self.blocks.append(block)
                block = {}
        decoder_starts_late = self.layers and len(self.starts) == 1
        if not self.starts or not self.blocks or decoder_starts_late:
            raise ValueError(
                f"{self.name} must name its streams for an audit:"
                " ns.probe('embedding', x) before the first block, and"
                " ns.probe('stream', x) after each"
            )
        if block or self.layers == len(self.blocks):
            last = next(iter(block), "embedding")
            raise ValueError(
                f"{self.name} has the probe {last!r} after its last stream, outside any"
                " block"
            )
        if not self.layers:
            self.layers = len(self.blocks)

    def _read_embedding(self, probe: Probe, block: Block) -> None:
        """Begin the encoder or, between two blocks, the decoder."""
        within_block = bool(block) or bool(self.starts and not self.blocks)
        if len(self.starts) == 2 or within_block:
            raise ValueError(
                f"{self.name} has the probe 'embedding' twice: once is allowed, and"
                " again between two blocks, where a decoder begins"
            )
        self.layers = len(self.blocks)
        self.starts.append(probe.value)  # type: ignore[arg-type]  # `probe` checks it

    def _add(self, probe: Probe, group: Block) -> None:
        """Add a probe to a block, or to the ends."""
        name = probe.name
        if name in group and name in (*ENDS, *ONCE):
            where = "" if name in ENDS else f" in block {len(self.blocks) + 1}"
            raise ValueError(
                f"{self.name} has the probe {name!r} twice{where}: once is allowed"
            )
        group.setdefault(name, []).append(probe)

    def _check_blocks_alike(self) -> None:
        """Every block must have the same probes.

        Some may lack cross-attention, experts, or scores and weights of attention.
        """
        not_in_every_block = {"cross", "experts", "scores", "weights"}
        first = self.blocks[0].keys() - not_in_every_block
        for k, block in enumerate(self.blocks, 1):
            self._refuse_missing(first - block.keys(), present=1, absent=k)
            additional = block.keys() - first - not_in_every_block
            self._refuse_missing(additional, present=k, absent=1)
        self._check_attention_alike()

    def _check_attention_alike(self) -> None:
        """Blocks with scores or weights of attention must have the same of both."""
        attention = {"scores", "weights"}
        present = [
            (number, attention & block.keys())
            for number, block in enumerate(self.blocks, 1)
            if attention & block.keys()
        ]
        for number, names in present[1:]:
            first_number, first = present[0]
            self._refuse_missing(first - names, present=first_number, absent=number)
            self._refuse_missing(names - first, present=number, absent=first_number)

    def _refuse_missing(self, names: set[str], present: int, absent: int) -> None:
        if names:
            raise ValueError(
                f"{self.name} has the probe {min(names)!r} in block {present} but not"
                f" in block {absent}: every block must have the same"
            )

    def _check_tokens(self) -> None:
        """All streams of the encoder, or of the decoder, must have the same tokens."""
        stacks = (self.streams[: self.layers], self.streams[self.layers :])
        for start, streams in zip(self.starts, stacks, strict=False):
            shapes = sorted({start.shape, *(x.shape for x in streams)})
            if len(shapes) > 1:
                raise ValueError(
                    f"{self.name} has streams of {' and '.join(map(str, shapes))}:"
                    " token counts differ"
                )

    @cached_property
    def values(self) -> tuple[list[Value], list[list[Value]]]:
        """The values of the embeddings and of each block, in topological order."""
        return values_by_block(self.starts, self.streams, self.layers)

    @cached_property
    def matrices(self) -> list[dict[str, list[Vector]]]:
        """The matrix products in each block, by the kind of matrix."""
        return [
            self._matrices_of(block, values)
            for block, values in zip(self.blocks, self.values[1], strict=True)
        ]

    def _matrices_of(
        self, block: Block, values: Sequence[Value]
    ) -> dict[str, list[Vector]]:
        """The matrix products among the values of a block, by the kind of matrix."""
        probed: dict[Value, str] = {}
        for name, kind in KINDS_OF_PROBES.items():
            for probe in block.get(name, ()):
                probed[probe.value] = kind
        products: dict[str, list[Vector]] = {}
        for value in values:
            if isinstance(value, Vector) and isinstance(value.op, MatMul):
                kind = matrix_kind(value.op, self.width, probed.get(value))
                products.setdefault(kind, []).append(value)
        return products


def value_of(block: Block, name: str) -> Any:
    """The value of a probe that occurs once per block."""
    return block[name][0].value


def values_by_block(
    starts: Sequence[Vector], streams: Sequence[Vector], layers: int
) -> tuple[list[Value], list[list[Value]]]:
    """The values of the embeddings and of each block, in topological order."""
    roots = [starts[0], *streams[:layers], *starts[1:], *streams[layers:]]
    values = topological_order(roots)
    stop = {value: k for k, value in enumerate(values, 1)}
    by_root: dict[Value, list[Value]] = {}
    start = 0
    for root in roots:
        # encoder and decoder may start from the same value
        by_root.setdefault(root, values[start : stop[root]])
        start = max(start, stop[root])
    embedding = [value for root in dict.fromkeys(starts) for value in by_root[root]]
    return embedding, [by_root[stream] for stream in streams]


def matrix_kind(op: MatMul, stream: Width, probed: str | None = None) -> str:
    """The kind of a matrix of a block.

    It is known from its name, else from the probe of its product, else from its widths,
    which tell the matrices of a perceptron.
    """
    name = op.weight.source.name or ""
    if name in MATRIX_NAMES:
        return MATRIX_NAMES[name]
    if name in KINDS:
        return name
    return probed or ("in" if op.weight.in_width == stream else "out")


def mask_of(block: Block) -> Bools:
    """The entries of scores and weights that take part, in all heads of a block.

    They are those of the mask of a probe, or of the softmax: (tokens, tokens), or
    (heads, tokens, tokens) if a probe has a mask for each head.
    """
    probes = (*block.get("scores", ()), *block.get("weights", ()))
    if any(probe.mask is not None and probe.mask.ndim == 3 for probe in probes):
        name = "scores" if "scores" in block else "weights"
        return np.concatenate([_mask_by_head(probe) for probe in block[name]])
    mask: Bools | None = None
    for probe in probes:
        shape = probe.value.shape[-2:]
        for other in _masks_of(probe):
            mask = other if mask is None else mask
            if not np.array_equal(mask, other):
                raise _different_masks(probe)
        if mask is not None and mask.shape != shape:
            raise _different_masks(probe)
    if mask is not None:
        return mask
    return np.ones(probes[0].value.shape[-2:] if probes else (1, 1), bool)


def _mask_by_head(probe: Probe) -> Bools:
    """The mask of each head of scores or weights."""
    shape = probe.value.shape[-2:]
    heads = math.prod(probe.value.shape[:-2])
    mask = np.ones(shape, bool) if probe.mask is None else probe.mask
    return np.broadcast_to(mask, (heads, *shape))


def _masks_of(probe: Probe) -> list[Bools]:
    """The masks of the heads of scores or weights; none if all entries take part."""
    if probe.mask is not None:
        return [probe.mask]
    shape = probe.value.shape[-2:]
    match computed_by(probe.value).op:
        case Apply(f, (_, Scalar(op=Constant(numbers)))) if f is MASKED_SOFTMAX:
            visible = np.broadcast_to(numbers > 0, (*numbers.shape[:-2], *shape))
            return list(visible.reshape(-1, *shape))
    return []


def _different_masks(probe: Probe) -> ValueError:
    return ValueError(
        f"{probe.name} have different masks: an audit needs one mask for all heads of a"
        " block"
    )
