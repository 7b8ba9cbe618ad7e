"""A program with probes, read as a network: embeddings, blocks, and their matrices.

The order of the probes defines the blocks: each ends with a stream, and contains the
probes since the last one. An embedding after a stream begins the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Bools
from ...language import Scalar, Value, Vector, Width
from ...language.operations._operation import Apply, Constant, MatMul
from ...language.operations._softmax import MASKED_SOFTMAX
from ...language.operations._stop_gradient import computed_by
from ...language.values._graph import topological_order
from ...language.values._probe import Probe
from ...programs._program import Program

Block = dict[str, list[Probe]]  # name → the probes of this name, in order
ONCE = (
    "before",
    "stream",
    "attention",
    "cross",
    "middle",
    "mlp",
)  # at most once per block
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


class StreamSizes(NamedTuple):
    """The sizes of the streams of a network in stages."""

    tokens: tuple[int, ...]  # after each block
    numbers: tuple[int, ...]  # tokens · width, after each block
    numbers_before: int  # those of the embeddings


class ProbedProgram:
    """The probes of a program by block, checked.

    `starts` are the embeddings, those of a decoder second; `streams` the stream after
    each block, and `before` what the block adds to: the stream before it, unless the
    block has a probe of this name. `layers` is the number of blocks before the decoder,
    and `ends` are the probes outside the blocks.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.name = program.name
        self.starts: list[Vector] = []
        self.blocks: list[Block] = []
        self.ends: Block = {}
        self.layers = 0
        self._read(program.probes)
        self.tokens = self.starts[0].shape[0]
        self.width = self.starts[0].width
        self.streams: list[Vector] = [
            value_of(block, "stream") for block in self.blocks
        ]
        self.before = [self.starts[0], *self.streams[:-1]]
        if len(self.starts) == 2:  # the decoder starts from its own embeddings
            self.before[self.layers] = self.starts[1]
        for number, block in enumerate(self.blocks):
            if "before" in block:
                self.before[number] = value_of(block, "before")
        self._check_blocks_alike()
        self._check_tokens()

    def _read(self, probes: Sequence[Probe]) -> None:
        """Sort the probes into embeddings, blocks and ends.

        For example, the probes embedding, query, stream, query, stream and logits are
        two blocks with a query and a stream each.
        """
        block: Block = {}  # the probes since the last stream
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
        # a first embedding after a stream
        block_before_embedding = self.layers and len(self.starts) == 1
        if not self.starts or not self.blocks or block_before_embedding:
            raise ValueError(
                f"{self.name} must name its streams for an audit:"
                " ns.probe('embedding', x) before the first block, and"
                " ns.probe('stream', x) after each"
            )
        decoder_has_no_block = self.layers == len(self.blocks)
        if block or decoder_has_no_block:
            name = next(iter(block)) if block else "embedding"
            raise ValueError(
                f"{self.name} has the probe {name!r} after its last stream, outside any"
                " block"
            )
        if not self.layers:
            self.layers = len(self.blocks)

    def _read_embedding(self, probe: Probe, block: Block) -> None:
        """Begin the encoder or, between two blocks, the decoder.

        `block` are the probes since the last stream.
        """
        within_first_block = bool(self.starts) and not self.blocks
        within_block = bool(block) or within_first_block
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
            of_block = "" if name in ENDS else f" in block {len(self.blocks) + 1}"
            raise ValueError(
                f"{self.name} has the probe {name!r} twice{of_block}: once is allowed"
            )
        group.setdefault(name, []).append(probe)

    def _check_blocks_alike(self) -> None:
        """Every block must have the same probes.

        Some may lack cross-attention, experts, or scores and weights of attention.
        """
        optional = {"before", "cross", "experts", "scores", "weights"}
        names_of_first = self.blocks[0].keys() - optional
        for number, block in enumerate(self.blocks, 1):
            missing = names_of_first - block.keys()
            self._refuse_missing(missing, present=1, absent=number)
            additional = block.keys() - names_of_first - optional
            self._refuse_missing(additional, present=number, absent=1)
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
        """Raise an error if there are probes that only one of two blocks has."""
        if names:
            raise ValueError(
                f"{self.name} has the probe {min(names)!r} in block {present} but not"
                f" in block {absent}: every block must have the same"
            )

    def _check_tokens(self) -> None:
        """A block must return as many tokens as it adds to."""
        for before, stream in zip(self.before, self.streams, strict=True):
            if before.shape != stream.shape:
                shapes = f"{before.shape} and {stream.shape}"
                raise ValueError(
                    f"{self.name} has streams of {shapes}: token counts differ. If a"
                    " block does not begin with the tokens that the previous one"
                    " returned, name its input: ns.probe('before', x)"
                )

    def sizes(self, widths: Mapping[str, float]) -> StreamSizes | None:
        """The sizes of the streams; None if all streams have the same."""
        tokens = []
        numbers = []
        for x in (self.starts[0], *self.streams):
            tokens.append(x.size)
            numbers.append(x.size * int(x.width.bind(widths)))
        have_same_size = len({*zip(tokens, numbers, strict=True)}) == 1
        if have_same_size or len(self.starts) > 1:
            return None
        # the first is the stream before the first block
        return StreamSizes(
            tokens=tuple(tokens[1:]),
            numbers=tuple(numbers[1:]),
            numbers_before=numbers[0],
        )

    @cached_property
    def values(self) -> tuple[list[Value], list[list[Value]]]:
        """The values of the embeddings, and a list of those of each block, all in
        topological order.
        """
        return values_by_block(self.starts, self.streams, self.layers, self.before)

    @cached_property
    def matrices(self) -> list[dict[str, list[Vector]]]:
        """For each block, the matrix products by the kind of matrix, as in KINDS."""
        _, values_of_blocks = self.values
        return [
            self._matrices_of(block, values)
            for block, values in zip(self.blocks, values_of_blocks, strict=True)
        ]

    def _matrices_of(
        self, block: Block, values: Sequence[Value]
    ) -> dict[str, list[Vector]]:
        """The matrix products among the values of a block, by the kind of matrix."""
        kind_by_probe: dict[Value, str] = {}
        for name, kind in KINDS_OF_PROBES.items():
            for probe in block.get(name, ()):
                kind_by_probe[probe.value] = kind
        products: dict[str, list[Vector]] = {}
        for value in values:
            if isinstance(value, Vector) and isinstance(value.op, MatMul):
                kind = matrix_kind(value.op, self.width, kind_by_probe.get(value))
                products.setdefault(kind, []).append(value)
        return products


def value_of(block: Block, name: str) -> Any:
    """The value of a probe that occurs once per block."""
    return block[name][0].value


def values_by_block(
    starts: Sequence[Vector],
    streams: Sequence[Vector],
    layers: int,
    before: Sequence[Vector] = (),
) -> tuple[list[Value], list[list[Value]]]:
    """The values of the embeddings, and a list of those of each block.

    A block has the values that its stream needs and that no earlier block or embedding
    has, in topological order. `layers` is the number of blocks before the decoder. The
    values of what blocks begin with, `before`, belong to no block.
    """
    # in the order of the network, so that the values of a root follow those of the
    # roots before
    inputs_and_streams: list[Vector] = []
    for start, stream in zip(before or streams, streams, strict=True):
        inputs_and_streams += [start, stream]
    of_encoder = inputs_and_streams[: 2 * layers]
    of_decoder = inputs_and_streams[2 * layers :]
    roots = [starts[0], *of_encoder, *starts[1:], *of_decoder]

    values = topological_order(roots)
    stop_of = {value: position for position, value in enumerate(values, 1)}
    values_of_root: dict[Value, list[Value]] = {}
    start_of_next = 0
    for root in roots:
        stop = stop_of[root]
        # encoder and decoder may start from the same value: the first has it
        if root not in values_of_root:
            values_of_root[root] = values[start_of_next:stop]
        start_of_next = max(start_of_next, stop)
    embedding: list[Value] = []
    for root in dict.fromkeys(starts):
        embedding += values_of_root[root]
    return embedding, [values_of_root[stream] for stream in streams]


def matrix_kind(op: MatMul, stream: Width, probed: str | None = None) -> str:
    """The kind of the matrix of a product in a block, as in KINDS.

    It is known from the name of the matrix; else it is `probed`, the kind by the probe
    of the product; else a matrix of the perceptron, "in" if it acts on the width of the
    stream, and "out" if it does not.
    """
    name = op.weight.source.name or ""
    if name in MATRIX_NAMES:
        return MATRIX_NAMES[name]
    if name in KINDS:
        return name
    if probed is not None:
        return probed
    return "in" if op.weight.in_width == stream else "out"


def mask_of(block: Block) -> Bools:
    """The entries of scores and weights of a block that take part, (queries, keys).

    They are those of the mask of a probe, or of the softmax; without a mask they are
    all, and without scores and weights a single one. If a probe has a mask for each
    head, they are (heads, queries, keys).
    """
    probes = (*block.get("scores", ()), *block.get("weights", ()))
    masks = [probe.mask for probe in probes if probe.mask is not None]
    have_mask_by_head = any(mask.ndim == 3 for mask in masks)
    if have_mask_by_head:
        name = "scores" if "scores" in block else "weights"
        return np.concatenate([_mask_by_head(probe) for probe in block[name]])
    mask = _common_mask(probes)
    if mask is not None:
        return mask
    shape = probes[0].value.shape[-2:] if probes else (1, 1)
    return np.ones(shape, bool)


def _common_mask(probes: Sequence[Probe]) -> Bools | None:
    """The mask (queries, keys) of all heads of some probes; None if none is known.

    Raises an error if two heads have different masks.
    """
    common: Bools | None = None
    for probe in probes:
        for mask in _masks_of(probe):
            if common is None:
                common = mask
            if not np.array_equal(common, mask):
                raise _different_masks(probe)
        if common is not None and common.shape != probe.value.shape[-2:]:
            raise _different_masks(probe)
    return common


def _mask_by_head(probe: Probe) -> Bools:
    """The mask of each head of scores or weights."""
    shape = probe.value.shape[-2:]
    heads = math.prod(probe.value.shape[:-2])
    mask = np.ones(shape, bool) if probe.mask is None else probe.mask
    return np.broadcast_to(mask, (heads, *shape))


def _masks_of(probe: Probe) -> list[Bools]:
    """The masks (queries, keys) of the heads of scores or weights.

    The list is empty if no mask is known.
    """
    if probe.mask is not None:
        return [probe.mask]
    shape = probe.value.shape[-2:]
    match computed_by(probe.value).op:
        # weights that are a masked softmax of scores, whose mask is a constant
        case Apply(f, (_, Scalar(op=Constant(numbers)))) if f is MASKED_SOFTMAX:
            visible = np.broadcast_to(numbers > 0, (*numbers.shape[:-2], *shape))
            return list(visible.reshape(-1, *shape))
    return []


def _different_masks(probe: Probe) -> ValueError:
    """The error for scores or weights of a block with several masks."""
    return ValueError(
        f"{probe.name} have different masks: an audit needs one mask for all heads of a"
        " block"
    )
