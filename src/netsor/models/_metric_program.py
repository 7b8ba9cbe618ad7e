"""The quantities of an audit: statistics of a network at initialisation, block by
block, sampled from their law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import numpy as np

from .._array_api import Floats
from .._program import Program
from .._validate import flag
from ..engine import Plan
from ..engine._plan_query import no_garbage_collection
from ..language import Scalar, Value, Vector, apply, join, mean_dot, softmax, stack
from ..language._graph import topological_order, widths_of
from ..language._scalar import constant
from ..language._width import bind_widths
from ._gradients import Gradients
from ._loss_gradient import End, ModelEnd, program_loss
from ._metrics import (
    effective_rank,
    of_attention,
    of_experts,
    of_gram,
    of_logits,
    of_shares,
    ranges,
)
from ._probed_program import Block, ProbedProgram, mask_of, value_of

STREAM = ("mean_square", "cosine", "effective_rank")  # also of the embeddings
ATTENTION = {
    "scores": ("score_std", "score_max"),
    "weights": ("entropy", "largest_weight"),
}
BRANCHES = ("attention", "cross", "mlp")
ROUTED = ("largest_load", "least_load")  # if there are experts


def _forward_row(before: Vector, block: Block, branches: Sequence[str]) -> Scalar:
    """The row of a block; `branches` has the branches of all blocks."""
    row = [of_stream(value_of(block, "stream"))]
    if names := [name for name in ATTENTION if name in block]:
        allowed = mask_of(block)
        # if only one of scores and weights is probed, it replaces the other, and its
        # half of the numbers is dropped
        each = [
            _joined([p.value.reshape(-1, *allowed.shape) for p in block[name]])
            for name in (names[0], names[-1])
        ]
        numbers = apply(
            partial(of_attention, allowed=allowed), *each, axes=3, name="of_attention"
        )
        row.append(
            numbers
            if len(names) == 2
            else numbers[:2]
            if names == ["scores"]
            else numbers[2:]
        )
    shares = constant(np.zeros(len(branches)))
    if own := [name for name in branches if name in block]:
        squares = stack(
            [_square(u) for u in (before, *(value_of(block, name) for name in own))]
        )
        middle = (
            [stack([_square(value_of(block, "middle"))])] if "middle" in block else []
        )
        shares = apply(of_shares, squares, *middle, axes=1)
        if len(own) < len(branches):  # no attention to an encoder
            shares = stack(
                [
                    shares[own.index(name)] if name in own else 0.0 * shares[0]
                    for name in branches
                ]
            )
    row += [shares] if branches else []
    if "experts" in block:
        row.append(
            apply(
                of_experts,
                _joined([each.value for each in block["experts"]], axis=1),
                axes=2,
            )
        )
    return join(row)


def _joined(values: Sequence[Value], axis: int = 0) -> Any:
    return values[0] if len(values) == 1 else join(values, axis=axis)


def of_stream(x: Vector) -> Scalar:
    """The numbers of `STREAM`."""
    products = mean_dot(x, x)
    return join(
        [apply(of_gram, products, axes=2), apply(effective_rank, products, axes=2)]
    )


def _square(x: Vector) -> Scalar:
    one = x[..., None]
    return mean_dot(one, one)[..., 0, 0].mean()


class Section(NamedTuple):
    """Some outputs of the metric program: a row of numbers per block, or one for the
    network.
    """

    part: str  # "block", "input", "end" or "ranges"
    names: tuple[str, ...]
    rows: list[Scalar]
    whole: bool


class Probes:
    """Quantities of a model on given inputs, or of a program with probes. Create it
    with `Transformer.probes`.

    The audit reference in the documentation explains each quantity. Names such as
    `mean_square` or `entropy` are for every block, `input_cosine` or
    `decoder_input_cosine` for the embeddings, and `logit_std`, `loss` and
    `max_probability` for the tokens that have a target.

    Parameters
    ----------
    source : ModelEnd
        The network of a model on its inputs, with its logits, or a program with its
        widths.
    gradients : bool
        Whether to include gradients of the loss, or of a random readout of every token
        if there are no logits: `grad_mean_square` for the stream, `grad_query` and
        `grad_query_ratio` for the matrices, and so on.
    ranges : bool
        Whether to include, at finite widths, the range of every activation:
        `query_largest` is the largest absolute value, `query_below_fp16` the share of
        nonzero numbers below the smallest number of a format, and `query_scaled_fp16`
        that share after scaling the largest value to the end of the format by a power
        of two.

    Examples
    --------
    >>> model = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
    >>> found = model.probes(tokens=4).measure(5, progress=False)
    >>> found["cosine"].shape  # draws, blocks
    (5, 2)
    """

    def __init__(
        self,
        source: ModelEnd | ProgramModel,
        gradients: bool = False,
        ranges: bool = False,
    ) -> None:
        self.source = source
        self.gradients, self.ranges = (
            flag(gradients, "gradients"),
            flag(ranges, "ranges"),
        )
        self.model = source.model if isinstance(source, ModelEnd) else source
        if gradients and self.model.experts:
            experts = (
                f"gradients=True of {self.model.name}, with"
                f" experts={self.model.experts}"
            )
            raise ValueError(f"{experts}: the choice of a router has no gradient")

    @cached_property
    def program(self) -> Program:
        """The program for finite n: a row of numbers per block, one for the input, one
        for the logits.
        """
        return self._program(self._sections)

    @cached_property
    def limit(self) -> Program:
        """The program for n = ∞. Tied logits keep their fluctuation at the width of the
        model.
        """
        return self._program(self._build(limit=True))

    @cached_property
    def _sections(self) -> list[Section]:
        return self._build(limit=False)

    def _program(self, sections: Sequence[Section]) -> Program:
        rows = tuple(row for section in sections for row in section.rows)
        program = Program(rows, f"probes of {self.model.name}")
        program._gaussian = self._gaussian
        return program

    @property
    def _gaussian(self) -> bool:
        """Whether the weights that the model stands for are Gaussian."""
        if isinstance(self.source, ModelEnd):
            return self.source.model.distribution == "gaussian"
        return self.source.program._gaussian

    def _names(self, part: str) -> tuple[str, ...]:
        return tuple(
            name
            for section in self._sections
            if section.part == part
            for name in section.names
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The quantities of a block, except ranges."""
        return self._names("block")

    @property
    def final(self) -> tuple[str, ...]:
        """The quantities of the logits, and the gradients outside the blocks."""
        return self._names("end")

    @property
    def starts(self) -> tuple[str, ...]:
        """The quantities of the embeddings."""
        return self._names("input")

    @property
    def uniform_loss(self) -> float | None:
        """ln V, the loss of uniform probabilities; None without logits."""
        return math.log(self.model.vocabulary) if self.model.vocabulary else None

    @no_garbage_collection()
    def plan(self, **how: Any) -> Plan:
        """The plan of `measure`, without sampling. The arguments are as in
        `Program.plan`, and widths.
        """
        how = self.model.widths() | how
        return self._at(how).plan(**how)

    def measure(self, draws: int, **how: Any) -> dict[str, Floats]:
        """Draws of every quantity by name: (draws, layers), or (draws,) for quantities
        of the whole network.

        Parameters
        ----------
        draws : int
            The number of initialisations.
        **how
            Arguments of `Program.draw`, such as `seed` and `workers`, and widths that
            override those of the model: `measure(100, n=inf, d=inf, m=inf)` is the
            limit.
        """
        how = self.model.widths() | how
        return self.named(self._at(how).draw(draws=draws, **how))  # type: ignore[arg-type]

    def named(self, found: Sequence[Floats]) -> dict[str, Floats]:
        """Name the outputs of `program.draw` or `limit.draw`, as `measure` returns
        them.
        """
        rest, measured = list(found), dict[str, Floats]()
        for section in self._sections:
            if rest:  # ranges come last, and only at finite widths
                rows, rest = rest[: len(section.rows)], rest[len(section.rows) :]
                columns = rows[0] if section.whole else np.stack(rows, axis=1)
                measured |= {
                    name: np.ascontiguousarray(columns[..., i])
                    for i, name in enumerate(section.names)
                }
        return measured

    @no_garbage_collection()
    def _at(self, widths: Mapping[str, Any]) -> Program:
        return (
            self.limit
            if math.isinf(self.source.net.width.bind(widths))
            else self.program
        )

    def _build(self, limit: bool) -> list[Section]:
        net, ranged = self.source.net, self.ranges and not limit
        end = self.source.end(limit, self.gradients, ranged)
        has = {name for block in net.blocks for name in block}
        attention = [
            name for probe, names in ATTENTION.items() if probe in has for name in names
        ]
        branches = [name for name in BRANCHES if name in has]
        shares = [f"{name}_share" for name in branches]
        names = (*STREAM, *attention, *shares, *(ROUTED if "experts" in has else ()))
        rows = [
            _forward_row(*each, branches)
            for each in zip(net.before, net.blocks, strict=True)
        ]
        sections = [Section("block", names, rows, False)]
        for prefix, start in zip(
            ("input_", "decoder_input_"), net.starts, strict=False
        ):
            sections.append(
                Section(
                    "input",
                    tuple(prefix + name for name in STREAM),
                    [of_stream(start)],
                    True,
                )
            )
        if end.row:
            sections.append(
                Section("end", tuple(end.row), [stack(list(end.row.values()))], True)
            )
        if end.loss is not None:
            copies = isinstance(self.source, ModelEnd) and self.source.model.shared
            gradients = Gradients(
                net, end.loss, self.model.widths(), self.model.vocabulary, copies
            )
            sections.append(Section("block", gradients.names, gradients.rows, False))
            sections.append(
                Section("end", gradients.final_names, [gradients.final], True)
            )
        if ranged:
            blocks, ends = ranges(net, end.logits)
            sections += [
                Section("ranges", *blocks, False),
                Section("ranges", *ends, True),
            ]
        return sections


class ProgramModel:
    """A program with its widths, as a model for an audit of its probes; `longer`
    programs have more tokens.

    `ids` are the token ids that a user gave for a module.
    """

    def __init__(
        self,
        program: Program,
        widths: Mapping[str, float],
        longer: Sequence[Program] = (),
        ids: Sequence[int] | None = None,
    ) -> None:
        self.program, self.name = program, program.name
        self.ids = None if ids is None else tuple(map(int, ids))
        self.values = topological_order(
            [*program.outputs, *(watched.value for watched in program.probes)]
        )
        bound = bind_widths(widths_of(self.values), widths, allow_inf=False)
        self._widths = {width: int(size) for width, size in bound.items()}
        self.net = net = ProbedProgram(program)
        self.layers, self.decoder_layers, self.tokens = (
            net.layers,
            len(net.blocks) - net.layers,
            net.tokens,
        )
        self.vocabulary = (
            value_of(net.ends, "logits").shape[-1] if "logits" in net.ends else None
        )
        self.experts = (
            sum(each.value.shape[-1] for each in net.blocks[0].get("experts", ()))
            or None
        )
        if self.tokens < 2:
            raise ValueError(
                f"{self.name} has one token: quantities of an audit need two or more"
            )
        others = [ProgramModel(each, widths) for each in longer]
        self._lengths = {model.tokens: model for model in (self, *others)}

    @property
    def lengths(self) -> tuple[int, ...]:
        """The available numbers of tokens."""
        return tuple(self._lengths)

    def on(self, tokens: int) -> ProgramModel:
        """The same network on this many tokens."""
        return self._lengths[tokens]

    def widths(self) -> dict[str, int]:
        """Its widths, by name."""
        return dict(self._widths)

    def status(self, **widths: float) -> str:
        """How its law at these widths relates to that of the network."""
        if any(math.isinf(width) for width in widths.values()):
            return "conjectured"
        return "exact" if self.program._gaussian else "same limit"

    def replace(self, name: str) -> ProgramModel:
        """The same model with another name."""
        renamed = copy(self)
        renamed.name = name
        return renamed

    @property
    def sizes(self) -> str:
        """Its size as text."""
        blocks = len(self.net.blocks)
        widths = (f", {name} = {size:,}" for name, size in self._widths.items())
        return f"{blocks} block{'s' * (blocks > 1)}" + "".join(widths)

    def fields(self) -> dict[str, Any]:
        """Its name, text and widths, for the data of a report."""
        return {
            "name": self.name,
            "program": str(self.program),
            "widths": self.widths(),
        }

    def probes(
        self,
        tokens: int | None = None,
        gradients: bool = False,
        ranges: bool = False,
        **_: Any,
    ) -> Probes:
        """The quantities of an audit, for the tokens of the program."""
        return Probes(self if tokens is None else self.on(tokens), gradients, ranges)

    def end(self, limit: bool, gradients: bool, ranges: bool) -> End:
        """The probed loss, or that of the logits: of the targets, or averaged over all
        words.
        """
        row: dict[str, Scalar] = {}
        seeds: list[tuple[Value, Value]] = []
        logits: tuple[Any, ...] = ()
        for _, p, right in cast(Any, self.net.ends.get("logits", ())):
            logits = (p,)
            share = np.full(p.shape, 1 / p.shape[1]) if right is None else right
            ends = apply(of_logits, p, axes=2)
            row = {
                "logit_std": ends[0],
                "loss": ends[1] - (share * p).sum() / p.shape[0],
                "max_probability": ends[2],
            }
            seeds = [(p, (softmax(p) - share) / p.shape[0])]
        if "loss" in self.net.ends:
            row["loss"] = value_of(self.net.ends, "loss")
            seeds = [(row["loss"], constant(np.ones(())))]
        return End(
            row,
            logits,
            program_loss(self.net, seeds, self._widths) if gradients else None,
        )
