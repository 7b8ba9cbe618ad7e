"""The quantities of an audit, block by block, sampled from their law."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import numpy as np

from ..._array_api import Floats
from ..._validate import counted, flag
from ...engine import Plan
from ...engine.passes.score_pieces import is_large
from ...engine.plan._plan_query import no_garbage_collection
from ...language import Scalar, Value, Vector, apply, join, mean_dot, softmax, stack
from ...language.values._graph import topological_order, widths_of
from ...language.values._scalar import constant
from ...language.values._width import bind_widths
from ...programs._program import Program
from ._gradients import Gradients
from ._loss_gradient import End, ModelEnd, program_loss
from ._metrics import (
    effective_rank,
    of_all_heads,
    of_attention,
    of_attention_by_head,
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
# of attention to one token
TO_ONE_TOKEN = {"scores": (0.0, 0.0), "weights": (1.0, 1.0)}
BRANCHES = ("attention", "cross", "mlp")
ROUTED = ("largest_load", "least_load")  # if there are experts


def _forward_row(
    before: Vector, block: Block, branches: Sequence[str], probed: Collection[str]
) -> Scalar:
    """The forward quantities of a block, (numbers,), from its probes and the stream
    before it.

    `branches` are the branches of any block, and `probed` the names of the probes of
    all blocks. A block without experts counts as one expert, with even loads, and one
    without scores as attention to one token. The parts of a row have the order of the
    names in `Probes._blocks`: stream, attention, shares, experts.
    """
    row = [of_stream(value_of(block, "stream"))]
    if "scores" in block or "weights" in block:
        # a block with attention has every attention probe of the model
        row.append(_attention_numbers(block))
    else:
        for name in ATTENTION:
            if name in probed:
                row.append(constant(np.array(TO_ONE_TOKEN[name])))
    if branches:
        row.append(_shares(before, block, branches))
    if "experts" in block:
        experts = _joined([probe.value for probe in block["experts"]], axis=1)
        row.append(apply(of_experts, experts, axes=2))
    elif "experts" in probed:
        row.append(constant(np.ones(len(ROUTED))))
    return join(row)


def _attention_numbers(block: Block) -> Scalar:
    """The numbers of `ATTENTION` for scores and weights, or for the one that is probed.

    All heads of the block count together.
    """
    allowed = mask_of(block)
    # "scores" or "weights" → scalars (heads, queries, keys)
    arrays: dict[str, Any] = {}
    for name in ATTENTION:
        if name in block:
            pairs = allowed.shape[-2:]
            heads = [probe.value.reshape(-1, *pairs) for probe in block[name]]
            arrays[name] = _joined(heads)
    # If only one of them is probed, it replaces the other, whose half of the numbers is
    # dropped.
    scores: Any = arrays.get("scores", arrays.get("weights"))
    weights: Any = arrays.get("weights", scores)
    if allowed.ndim == 2 and is_large(scores):
        # by head, so that scores and weights need not be in memory together
        by_head = apply(
            partial(of_attention_by_head, allowed=allowed),
            scores,
            weights,
            axes=2,
            name="of_attention_by_head",
        )
        numbers = apply(of_all_heads, by_head, axes=2)
    else:
        numbers = apply(
            partial(of_attention, allowed=allowed),
            scores,
            weights,
            axes=3,
            name="of_attention",
        )
    if "weights" not in arrays:
        return numbers[:2]
    if "scores" not in arrays:
        return numbers[2:]
    return numbers


def _shares(before: Vector, block: Block, branches: Sequence[str]) -> Scalar:
    """The share of each branch in the stream after the block, (branches,).

    It is 0 for those that the block lacks, for example attention to an encoder.
    """
    in_block = [name for name in branches if name in block]
    if not in_block:
        return constant(np.zeros(len(branches)))
    vectors = [before, *(value_of(block, name) for name in in_block)]
    arguments = [stack([_square(x) for x in vectors])]
    if "middle" in block:
        arguments.append(stack([_square(value_of(block, "middle"))]))
    shares = apply(of_shares, *arguments, axes=1)
    if len(in_block) == len(branches):
        return shares
    padded = []
    for name in branches:
        if name in in_block:
            padded.append(shares[in_block.index(name)])
        else:
            padded.append(0.0 * shares[0])
    return stack(padded)


def _joined(values: Sequence[Value], axis: int = 0) -> Any:
    """Values joined along an axis; a single one as it is."""
    return values[0] if len(values) == 1 else join(values, axis=axis)


def of_stream(x: Vector) -> Scalar:
    """The numbers of `STREAM`."""
    gram = mean_dot(x, x)
    return join([apply(of_gram, gram, axes=2), apply(effective_rank, gram, axes=2)])


def _square(x: Vector) -> Scalar:
    """The mean square of vectors."""
    each_vector = x[..., None]
    return mean_dot(each_vector, each_vector)[..., 0, 0].mean()


class Section(NamedTuple):
    """Some outputs of the metric program: rows of named numbers."""

    part: str  # "block", "input", "end" or "ranges"
    names: tuple[str, ...]  # of the numbers in a row
    rows: list[Scalar]  # one for each block, or one for the network
    whole: bool  # whether it is one for the network


class Probes:
    """Quantities of a model on given inputs, or of a program with probes.

    Create it with `Transformer.probes`. It has two programs that compute all
    quantities, one for finite widths and one for n = ∞. Their outputs are the rows of
    `Section`s, in the same order.

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
    >>> gpt2 = ns.models.read("gpt2")
    >>> model = gpt2.replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
    >>> measured = model.probes(tokens=4).measure(5, progress=False)
    >>> measured["cosine"].shape  # draws, blocks
    (5, 2)
    """

    def __init__(
        self,
        source: ModelEnd | ProgramModel,
        gradients: bool = False,
        ranges: bool = False,
    ) -> None:
        self.source = source
        self.gradients = flag(gradients, "gradients")
        self.ranges = flag(ranges, "ranges")
        self.model = source.model if isinstance(source, ModelEnd) else source
        if gradients and isinstance(source, ModelEnd) and self.model.experts:
            raise ValueError(
                f"gradients=True of {self.model.name}, with"
                f" experts={self.model.experts}: the choice of a router has no gradient"
            )

    @cached_property
    def program(self) -> Program:
        """The program for finite n, with one output for each row of each section."""
        return self._program(self._sections)

    @cached_property
    def limit(self) -> Program:
        """The program for n = ∞.

        Tied logits keep the fluctuation that they have at the width of the model.
        """
        return self._program(self._build(limit=True))

    @cached_property
    def _sections(self) -> list[Section]:
        """The sections of the program at finite width."""
        return self._build(limit=False)

    def _program(self, sections: Sequence[Section]) -> Program:
        """A program whose outputs are the rows of all sections, in this order."""
        rows = tuple(row for section in sections for row in section.rows)
        program = Program(rows, f"probes of {self.model.name}")
        program._gaussian = self._gaussian
        if isinstance(self.source, ProgramModel):
            program._notes = self.source.program._notes
            program._counts_draws = self.source.program._counts_draws
        return program

    @property
    def _gaussian(self) -> bool:
        """Whether the weights that the model stands for are Gaussian."""
        if isinstance(self.source, ModelEnd):
            return self.source.model.distribution == "gaussian"
        return self.source.program._gaussian

    def _names(self, part: str) -> tuple[str, ...]:
        """The names of the quantities in sections of this part."""
        names: list[str] = []
        for section in self._sections:
            if section.part == part:
                names += section.names
        return tuple(names)

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
    def plan(self, **options: Any) -> Plan:
        """The plan of `measure`, without sampling.

        The arguments are as in `Program.plan`, and widths.
        """
        options = self.model.widths() | options
        return self._at(options).plan(**options)

    def measure(self, draws: int, **options: Any) -> dict[str, Floats]:
        """Draws of every quantity by name.

        They are (draws, layers), or (draws,) for quantities of the whole network.

        Parameters
        ----------
        draws : int
            The number of initialisations.
        **options
            Arguments of `Program.draw`, such as `seed` and `workers`, and widths that
            override those of the model: `measure(100, n=inf, d=inf, m=inf)` is the
            limit.

        Returns
        -------
        draws : dict of str to numpy.ndarray
            (draws, layers) for quantities of blocks, and (draws,) for those of the
            whole network.
        """
        options = self.model.widths() | options
        draws_of_rows: Any = self._at(options).draw(draws=draws, **options)
        return self.named(draws_of_rows)

    def named(self, outputs: Sequence[Floats]) -> dict[str, Floats]:
        """Name the outputs of `program.draw` or `limit.draw`, as `measure` does.

        The outputs are rows (draws, numbers), in the order of the sections.
        """
        measured: dict[str, Floats] = {}
        remaining = list(outputs)
        for section in self._sections:
            if not remaining:  # ranges come last, and only at finite widths
                break
            rows = remaining[: len(section.rows)]
            remaining = remaining[len(section.rows) :]
            # (draws, numbers) of the network, or (draws, blocks, numbers)
            numbers = rows[0] if section.whole else np.stack(rows, axis=1)
            for i, name in enumerate(section.names):
                measured[name] = np.ascontiguousarray(numbers[..., i])
        return measured

    @no_garbage_collection()
    def _at(self, widths: Mapping[str, Any]) -> Program:
        """The program for these widths."""
        infinite = math.isinf(self.source.net.width.bind(widths))
        return self.limit if infinite else self.program

    def _build(self, limit: bool) -> list[Section]:
        """The sections of the program for finite n, or for n = ∞."""
        net = self.source.net
        with_ranges = self.ranges and not limit
        end = self.source.end(limit, self.gradients, with_ranges)
        sections = [self._blocks()]
        prefixes = ("input_", "decoder_input_")
        # without a decoder there is only one start
        for prefix, start in zip(prefixes, net.starts, strict=False):
            names = tuple(prefix + name for name in STREAM)
            sections.append(
                Section(part="input", names=names, rows=[of_stream(start)], whole=True)
            )
        if end.row:
            row = stack(list(end.row.values()))
            sections.append(
                Section(part="end", names=tuple(end.row), rows=[row], whole=True)
            )
        if end.loss is not None:
            gradients = Gradients(
                net,
                end.loss,
                widths=self.model.widths(),
                vocabulary=self.model.vocabulary,
                copies=isinstance(self.source, ModelEnd) and self.source.model.shared,
            )
            of_blocks = Section(
                part="block", names=gradients.names, rows=gradients.rows, whole=False
            )
            final = [gradients.final]
            of_ends = Section(
                part="end", names=gradients.final_names, rows=final, whole=True
            )
            sections += [of_blocks, of_ends]
        if with_ranges:
            block_ranges, end_ranges = ranges(net, end.logits)
            names, rows = block_ranges
            sections.append(Section(part="ranges", names=names, rows=rows, whole=False))
            names, rows = end_ranges
            sections.append(Section(part="ranges", names=names, rows=rows, whole=True))
        return sections

    def _blocks(self) -> Section:
        """The forward quantities of each block."""
        net = self.source.net
        probed = {name for block in net.blocks for name in block}
        branches = [name for name in BRANCHES if name in probed]
        # the order of the parts that `_forward_row` joins
        names = [*STREAM]
        for probe, attention_names in ATTENTION.items():
            if probe in probed:
                names += attention_names
        names += [f"{branch}_share" for branch in branches]
        if "experts" in probed:
            names += ROUTED
        rows = []
        for before, block in zip(net.before, net.blocks, strict=True):
            rows.append(_forward_row(before, block, branches, probed))
        return Section(part="block", names=tuple(names), rows=rows, whole=False)


def _experts(block: Block) -> int:
    """The number of experts in a block, whose gates are probes (tokens, experts)."""
    return sum(probe.value.shape[-1] for probe in block.get("experts", ()))


def _row_of_logits(logits: Scalar, target: Any) -> dict[str, Scalar]:
    """The quantities of logits (tokens, words), by name.

    `target` (tokens, words) has the shares of the correct words, which add up to 1 for
    each token.
    """
    tokens = logits.shape[0]
    numbers = apply(of_logits, logits, axes=2)
    # in the order of `of_logits`
    std = numbers[0]
    mean_log_normaliser = numbers[1]
    max_probability = numbers[2]
    # the cross-entropy of a token is log Σ e^logit minus the logit of its target
    mean_target_logit = (target * logits).sum() / tokens
    return {
        "logit_std": std,
        "loss": mean_log_normaliser - mean_target_logit,
        "max_probability": max_probability,
    }


class ProgramModel:
    """A program with its widths, as a model for an audit of its probes.

    `longer` are the same network on more tokens, and `ids` are the token ids that a
    user gave for a module.
    """

    def __init__(
        self,
        program: Program,
        widths: Mapping[str, float],
        longer: Sequence[Program] = (),
        ids: Sequence[int] | None = None,
    ) -> None:
        """`widths` are the sizes of the program's widths, by name."""
        self.program = program
        self.name = program.name
        self.origin = ""  # what it was read from, in a sentence
        self.factory = ""  # FILE:FUNCTION of the PyTorch module that it is
        self.ids = None if ids is None else tuple(map(int, ids))
        probed = [probe.value for probe in program.probes]
        self.values = topological_order([*program.outputs, *probed])
        bound = bind_widths(widths_of(self.values), widths, allow_inf=False)
        self._widths = {width: int(size) for width, size in bound.items()}
        self.net = net = ProbedProgram(program)
        self.layers = net.layers
        self.decoder_layers = len(net.blocks) - net.layers
        self.tokens = net.tokens
        self.vocabulary = None
        if "logits" in net.ends:
            self.vocabulary = value_of(net.ends, "logits").shape[-1]
        # the largest number of experts in a block; None if no block has any
        self.experts: int | None = None
        largest = max(map(_experts, net.blocks), default=0)
        if largest:
            self.experts = largest
        if self.tokens < 2:
            raise ValueError(
                f"{self.name} has one token: quantities of an audit need two or more"
            )
        longer_models = [ProgramModel(program, widths) for program in longer]
        # number of tokens → the network on so many
        self._lengths = {model.tokens: model for model in (self, *longer_models)}

    @property
    def lengths(self) -> tuple[int, ...]:
        """The available numbers of tokens."""
        return tuple(self._lengths)

    @property
    def has_routers(self) -> bool:
        """Whether a block has a matrix that chooses experts."""
        return any("router" in matrices for matrices in self.net.matrices)

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
        sizes = [counted(len(self.net.blocks), "block")]
        sizes += [f"{name} = {size:,}" for name, size in self._widths.items()]
        return ", ".join(sizes)

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
        """The probed loss, or else that of the probed logits.

        The loss of the logits is that of the targets, or averaged over all words.
        `limit` and `ranges` make no difference: `Transformer.probes` uses them.
        """
        row: dict[str, Scalar] = {}
        seeds: list[tuple[Value, Value]] = []  # values and their cotangents
        logits: tuple[Any, ...] = ()
        if "logits" in self.net.ends:
            (probe,) = self.net.ends["logits"]
            p = cast(Scalar, probe.value)  # (tokens, words)
            target: Any = probe.mask  # the correct words, or shares of them
            if target is None:
                words = p.shape[-1]
                target = np.full(p.shape, 1 / words)
            logits = (p,)
            row = _row_of_logits(p, target)
            tokens = p.shape[0]
            seeds = [(p, (softmax(p) - target) / tokens)]
        if "loss" in self.net.ends:
            row["loss"] = value_of(self.net.ends, "loss")
            seeds = [(row["loss"], constant(np.ones(())))]
        loss = None
        if gradients:
            loss = program_loss(self.net, seeds, self._widths)
        return End(row, logits=logits, loss=loss)
