"""A program of one's own in place of a described transformer: what it names with `ns.probe` is what is measured.

Blocks are told by their order: each ends with a stream, and what was named since the last one belongs to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._program import Program
from ...engine import Plan
from ...engine.backends import Backend
from ...language import Scalar, Value, Vector, apply, join, mean_dot, stack
from ...language._graph import topological_order, widths_of
from ...language._operation import Apply, Constant
from ...language._probe import Probe
from ...language._score import MASKED_SOFTMAX
from ...language._width import bind_widths
from ...models import Transformer
from ...models._metrics import effective_rank, of_attention, of_experts, of_gram, of_logits, of_shares
from ...models._ranges import BLOCK, names_of, row_of

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Block = dict[str, list[Probe]]
Row = dict[str, Scalar]  # quantities of a block, or of the end, by name

ONCE = ("stream", "attention", "mlp")  # in a block
ENDS = ("embedding", "logits")  # outside of the blocks


class ProgramModel:
    """A program with its widths, which has what an audit asks of a model."""

    decoder_layers = 0

    def __init__(self, program: Program, widths: Mapping[str, float], name: str | None = None) -> None:
        self.program, self.name = program, program.name if name is None else name
        bound = bind_widths(widths_of(self.values), widths, allow_inf=False)
        self._widths = {width: int(size) for width, size in bound.items()}
        self.ends, self.blocks = _blocks(program)
        self.layers = len(self.blocks)
        self.tokens = self.ends["embedding"][0].value.shape[0]
        self.vocabulary = self.ends["logits"][0].value.shape[-1] if "logits" in self.ends else None
        if self.tokens < 2:
            raise ValueError(f"{self.name} has one token: quantities of an audit need two or more")

    @cached_property
    def values(self) -> list[Value]:
        """All that its outputs and probes depend on."""
        return topological_order([*self.program.outputs, *(watched.value for watched in self.program.probes)])

    def widths(self) -> dict[str, int]:
        """Its widths, by their names."""
        return dict(self._widths)

    def status(self, **widths: float) -> str:
        """What its law at these widths is."""
        return "conjectured" if any(math.isinf(width) for width in widths.values()) else "exact"

    def replace(self, name: str) -> ProgramModel:
        """The same by another name."""
        made = copy(self)
        made.name = name
        return made

    @property
    def sizes(self) -> str:
        """Its size, in words."""
        count = f"{self.layers} block{'s' * (self.layers > 1)}"
        return ", ".join([count, *(f"{name} = {size:,}" for name, size in self._widths.items())])

    def fields(self) -> dict[str, Any]:
        """What there is to write down of it."""
        return {"name": self.name, "program": str(self.program), "widths": self.widths()}

    def probes(self, ranges: bool = False, **_: Any) -> ProgramMetrics:
        """The quantities of an audit; its tokens are those of the program."""
        return ProgramMetrics(self, ranges)


class ProgramMetrics:
    """The quantities of a program: those of `ns.models.Probes` that its probes allow."""

    def __init__(self, model: ProgramModel, ranges: bool = False) -> None:
        self.model = model
        self.ranged = [name for name in BLOCK if name in model.blocks[0]] if ranges else []
        rows = [_row(before, block) for before, block in zip(self._before, model.blocks, strict=True)]
        ends: Row = {f"input_{name}": made for name, made in _gram(_one(model.ends, "embedding")).items()}
        if "logits" in model.ends:
            ends |= _logits(model.ends["logits"][0].value)
        self.names, self.final = tuple(rows[0]), tuple(ends)
        made = [stack(list(row.values())) for row in (*rows, ends)]
        self.limit = Program(tuple(made), f"probes of {model.name}")
        self.program = Program((*made, *self._ranges()), self.limit.name) if ranges else self.limit

    @property
    def _before(self) -> list[Vector]:
        """The stream before each block."""
        return [_one(self.model.ends, "embedding"), *(_one(block, "stream") for block in self.model.blocks[:-1])]

    def plan(self, backend: str | Backend = "numpy", **widths: float) -> Plan:
        """What `measure` would draw and compute."""
        bound: dict[str, Any] = self.model.widths() | widths
        return self._at(bound).plan(backend=backend, **bound)

    def _at(self, widths: Mapping[str, Any]) -> Program:
        """Numbers have ranges at finite widths."""
        return self.limit if math.inf in [widths[name] for name in self.model.widths()] else self.program

    def _ranges(self) -> list[Scalar]:
        """Of each block, and of the ends."""
        blocks = [
            row_of({name: [watched.value for watched in block[name]] for name in self.ranged}, _mask(block))
            for block in self.model.blocks
        ]
        return [*blocks, row_of({name: [watched.value for watched in each] for name, each in self.model.ends.items()})]

    def measure(self, draws: int, **how: Any) -> dict[str, Floats]:
        """Draws of every quantity: arrays (draws, blocks) by name, (draws,) for those of the whole network."""
        bound = self.model.widths() | how
        found = self._at(bound).draw(draws=draws, **bound)
        assert isinstance(found, tuple)  # there are several outputs
        return self.named(found)

    def named(self, found: Sequence[Floats]) -> dict[str, Floats]:
        """Numbers of the outputs of the program, by the names of the quantities."""
        count = self.model.layers + 1
        measured = _named(found[:count], self.names, self.final)
        if len(found) > count:
            measured |= _named(found[count:], names_of(self.ranged), names_of(tuple(self.model.ends)))
        return measured


def _named(found: Sequence[Floats], names: Sequence[str], final: Sequence[str]) -> dict[str, Floats]:
    """The numbers of each block, and those of the whole network, by their names."""
    rows = np.stack(found[:-1], axis=1)
    measured = {name: np.ascontiguousarray(rows[..., i]) for i, name in enumerate(names)}
    return measured | {name: np.ascontiguousarray(found[-1][:, i]) for i, name in enumerate(final)}


def _blocks(program: Program) -> tuple[Block, list[Block]]:
    """What is watched outside of the blocks, and in each."""
    ends: Block = {}
    blocks: list[Block] = [{}]
    for watched in program.probes:
        place = ends if watched.name in ENDS else blocks[-1]
        if watched.name in place and watched.name in (*ENDS, *ONCE):
            where = "" if place is ends else f" in block {len(blocks)}"
            raise ValueError(f"{program.name} has the probe {watched.name!r} twice{where}: once is allowed")
        place.setdefault(watched.name, []).append(watched)
        if watched.name == "stream":
            blocks.append({})
    if "embedding" not in ends or len(blocks) == 1:
        raise ValueError(
            f"{program.name} must name its streams for an audit: ns.probe('embedding', x) before the first block, "
            "and ns.probe('stream', x) after each"
        )
    if blocks[-1]:
        raise ValueError(
            f"{program.name} has the probe {next(iter(blocks[-1]))!r} after its last stream: no block has it"
        )
    blocks.pop()
    for k, block in enumerate(blocks, 1):
        _alike(program, blocks[0], block, k)
    shapes = {watched.value.shape for watched in (*ends["embedding"], *(each for b in blocks for each in b["stream"]))}
    if len(shapes) > 1:
        raise ValueError(
            f"{program.name} has streams of {' and '.join(map(str, sorted(shapes)))}: tokens must be as many"
        )
    return ends, blocks


def _alike(program: Program, first: Block, block: Block, k: int) -> None:
    missing, more = first.keys() - block.keys(), block.keys() - first.keys()
    if missing or more:
        which, where = (
            (min(missing), f"block 1 but not in block {k}") if missing else (min(more), f"block {k} but not in block 1")
        )
        raise ValueError(f"{program.name} has the probe {which!r} in {where}: every block must have the same")


def _one(block: Block, name: str) -> Any:
    return block[name][0].value


def _row(before: Vector, block: Block) -> Row:
    """The quantities of one block."""
    row = _gram(_one(block, "stream"))
    branches = [name for name in ("attention", "mlp") if name in block]
    if branches:
        squares = stack([_square(u) for u in (before, *(_one(block, name) for name in branches))])
        shares = apply(of_shares, squares, axes=1)
        row |= {f"{name}_share": shares[i] for i, name in enumerate(branches)}
    allowed = _mask(block)
    for name, (first, second) in (("scores", ("score_std", "score_max")), ("weights", ("entropy", "largest_weight"))):
        if name in block:
            every: Any = join([watched.value.reshape(-1, *allowed.shape) for watched in block[name]])
            of = partial(of_attention, allowed=allowed)
            made = apply(of, every, every, axes=3, name="of_attention")[slice(2) if name == "scores" else slice(2, 4)]
            row |= {first: made[0], second: made[1]}
    if "experts" in block:
        given: Any = join([watched.value for watched in block["experts"]], axis=1)
        loads = apply(of_experts, given, axes=2)
        row |= {"largest_load": loads[0], "least_load": loads[1]}
    return row


def _gram(x: Vector) -> Row:
    products = mean_dot(x, x)
    square, cosine = apply(of_gram, products, axes=2)
    return {"mean_square": square, "cosine": cosine, "effective_rank": apply(effective_rank, products, axes=2)[0]}


def _mask(block: Block) -> Bools:
    """The entries of scores and weights that take part: as a probe says, or the softmax that made the weights."""
    found: list[Bools] = []
    for watched in (*block.get("scores", ()), *block.get("weights", ())):
        size = watched.value.shape[-2:]
        match watched.mask, watched.value.op:
            case None, Apply(f, (_, Scalar(op=Constant(numbers)))) if f is MASKED_SOFTMAX:
                masks = np.broadcast_to(numbers > 0, (*numbers.shape[:-2], *size)).reshape(-1, *size)
                found += list(masks)
            case None, _:
                pass
            case mask, _:
                found.append(mask)
        found = found[:1] if all(np.array_equal(found[0], mask) for mask in found) else found
        if len(found) > 1 or (found and found[0].shape != size):
            raise ValueError(f"{watched.name} have masks that differ: an audit knows one for all heads of a block")
    every: Sequence[Probe] = (*block.get("scores", ()), *block.get("weights", ()))
    size = every[0].value.shape[-2:] if every else (1, 1)
    return found[0] if found else np.ones(size, bool)


def _logits(logits: Any) -> Row:
    """Every word is as likely to be right: the loss is the mean over all of them."""
    ends = apply(of_logits, logits, axes=2)
    return {"logit_std": ends[0], "loss": ends[1] - logits.mean(), "max_probability": ends[2]}


def _square(x: Vector) -> Scalar:
    one = x[..., None]
    return mean_dot(one, one)[..., 0, 0].mean()


Model = Transformer | ProgramModel  # what an audit is of


def described(model: Model) -> dict[str, Any]:
    """Every field of a model, for its manifest."""
    return model.fields() if isinstance(model, ProgramModel) else dataclasses.asdict(model)


def sizes(model: Model) -> str:
    """The size of a model, in words."""
    if isinstance(model, ProgramModel):
        return model.sizes
    return (
        f"{model.layers + model.decoder_layers} blocks, width {model.width:,}, {model.heads} heads of {model.d}, "
        f"{model.weights:,} weights in matrices and embeddings"
    )
