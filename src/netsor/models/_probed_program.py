"""A program with probes, read as a network: its embeddings, its blocks, and the
matrices of each.

The order of the probes defines the blocks: each ends with a stream, and contains the
probes since the last one. An embedding after a stream begins the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .._array_api import Bools
from .._program import Program
from ..language import Scalar, Value, Vector, Width
from ..language._graph import topological_order
from ..language._operation import Apply, Constant, MatMul
from ..language._probe import Probe
from ..language._softmax import MASKED_SOFTMAX
from ..language._stop_gradient import computed_by

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
KINDS = ("query", "key", "value", "qkv", "output", "in", "gate", "out")


class ProbedProgram:
    """The probes of a program by block, checked."""

    def __init__(self, program: Program) -> None:
        self.program, self.name = program, program.name
        # the embeddings (of the encoder), and of the decoder
        self.starts: list[Vector] = []
        self.blocks: list[Block] = []
        self.ends: Block = {}
        self.layers = 0  # blocks before the decoder
        self._read(program.probes)
        self.tokens, self.width = self.starts[0].shape[0], self.starts[0].width
        self.streams: list[Vector] = [
            value_of(block, "stream") for block in self.blocks
        ]
        # the stream before each block
        self.before = [self.starts[0], *self.streams[:-1]]
        # the decoder starts from its own embeddings
        self.before[self.layers : self.layers + 1] = self.starts[1:]
        first = self.blocks[0].keys() - {"cross"}
        for k, block in enumerate(self.blocks, 1):
            for one, other, names in (
                (1, k, first - block.keys()),
                (k, 1, block.keys() - first - {"cross"}),
            ):
                if names:
                    where = (
                        f"the probe {min(names)!r} in block {one} but not in block"
                        f" {other}"
                    )
                    raise ValueError(
                        f"{self.name} has {where}: every block must have the same"
                    )
        stacks = (self.streams[: self.layers], self.streams[self.layers :])
        for start, streams in zip(self.starts, stacks, strict=False):
            shapes = sorted({start.shape, *(x.shape for x in streams)})
            if len(shapes) > 1:
                raise ValueError(
                    f"{self.name} has streams of {' and '.join(map(str, shapes))}:"
                    " token counts differ"
                )

    def _read(self, probes: Sequence[Probe]) -> None:
        block: Block = {}
        for watched in probes:
            name = watched.name
            if name == "embedding":
                if len(self.starts) == 2 or (self.starts and not self.blocks) or block:
                    allowed = (
                        "once is allowed, and again between two blocks, where a decoder"
                        " begins"
                    )
                    raise ValueError(
                        f"{self.name} has the probe 'embedding' twice: {allowed}"
                    )
                self.layers = len(self.blocks)
                self.starts.append(watched.value)  # type: ignore[arg-type]  # `probe` checks it
                continue
            place = self.ends if name in ENDS else block
            if name in place and name in (*ENDS, *ONCE):
                where = (
                    "" if place is self.ends else f" in block {len(self.blocks) + 1}"
                )
                raise ValueError(
                    f"{self.name} has the probe {name!r} twice{where}: once is allowed"
                )
            place.setdefault(name, []).append(watched)
            if name == "stream":
                self.blocks.append(block)
                block = {}
        if (
            not self.starts
            or not self.blocks
            or (self.layers and len(self.starts) == 1)
        ):
            needed = (
                "ns.probe('embedding', x) before the first block, and"
                " ns.probe('stream', x) after each"
            )
            raise ValueError(
                f"{self.name} must name its streams for an audit: {needed}"
            )
        if block or self.layers == len(self.blocks):
            last = next(iter(block), "embedding")
            raise ValueError(
                f"{self.name} has the probe {last!r} after its last stream, outside any"
                " block"
            )
        self.layers = self.layers or len(self.blocks)

    @cached_property
    def values(self) -> tuple[list[Value], list[list[Value]]]:
        """The values of the embeddings and of each block, in topological order."""
        return values_by_block(self.starts, self.streams, self.layers)

    @cached_property
    def matrices(self) -> list[dict[str, list[Vector]]]:
        """The matrix products in each block, by the kind of matrix."""
        named = {
            "query": "query",
            "key": "key",
            "value": "value",
            "attention": "output",
            "mlp": "out",
        }
        by_block: list[dict[str, list[Vector]]] = []
        for block, values in zip(self.blocks, self.values[1], strict=True):
            probed = {
                watched.value: kind
                for name, kind in named.items()
                for watched in block.get(name, ())
            }
            by_block.append({})
            for value in values:
                if isinstance(value, Vector) and isinstance(value.op, MatMul):
                    by_block[-1].setdefault(
                        matrix_kind(value.op, self.width, probed.get(value)), []
                    ).append(value)
        return by_block


def value_of(block: Block, name: str) -> Any:
    """The value of a probe that occurs once per block."""
    return block[name][0].value


def values_by_block(
    starts: Sequence[Vector], streams: Sequence[Vector], layers: int
) -> tuple[list[Value], list[list[Value]]]:
    """The values of the embeddings, and those that each block computes, in topological
    order.
    """
    roots = [starts[0], *streams[:layers], *starts[1:], *streams[layers:]]
    values = topological_order(roots)
    place = {value: k for k, value in enumerate(values, 1)}
    by_root: dict[Value, list[Value]] = {}
    first = 0
    for root in roots:
        # encoder and decoder may start from the same value
        by_root.setdefault(root, values[first : place[root]])
        first = max(first, place[root])
    embedding = [value for start in dict.fromkeys(starts) for value in by_root[start]]
    return embedding, [by_root[stream] for stream in streams]


def matrix_kind(op: MatMul, stream: Width, probed: str | None = None) -> str:
    """The kind of a matrix of a block: from its name, the probe of its product, or its
    widths (perceptron).
    """
    name = op.weight.source.name or ""
    known = MATRIX_NAMES.get(name) or (name if name in KINDS else probed)
    return known or ("in" if op.weight.in_width == stream else "out")


def mask_of(block: Block) -> Bools:
    """The entries of scores and weights that take part: the mask of a probe, or that of
    the softmax.
    """
    masks: list[Bools] = []
    every = (*block.get("scores", ()), *block.get("weights", ()))
    for watched in every:
        size = watched.value.shape[-2:]
        match watched.mask, computed_by(watched.value).op:
            case None, Apply(f, (_, Scalar(op=Constant(numbers)))) if (
                f is MASKED_SOFTMAX
            ):
                masks += list(
                    np.broadcast_to(numbers > 0, (*numbers.shape[:-2], *size)).reshape(
                        -1, *size
                    )
                )
            case None, _:
                pass
            case mask, _:
                masks.append(mask)
        masks = (
            masks[:1]
            if all(np.array_equal(masks[0], mask) for mask in masks)
            else masks
        )
        if len(masks) > 1 or (masks and masks[0].shape != size):
            raise ValueError(
                f"{watched.name} have different masks: an audit needs one mask for all"
                " heads of a block"
            )
    return (
        masks[0]
        if masks
        else np.ones(every[0].value.shape[-2:] if every else (1, 1), bool)
    )
