"""Measurements: the draws of each quantity of a model at one length, at its own widths
and at infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Floats
from ...models import Transformer
from ...models.measure._metric_program import ProgramModel
from ...models.measure._metrics import BLOCK, ENDS, FORMATS
from ...models.measure._probed_program import StreamSizes
from ...programs._bound_program import NEGLIGIBLE
from ._cases import AuditCase, Model
from ._findings import DECIDE, Finding, above, band, within_error
from ._joint_remedy import joint_remedy
from ._quantities import BLOCKS, FINAL, at_embedding
from ._remedies import Advice
from ._request import Request
from ._rules import RuleInput, all_findings, rule_name

# the share of numbers below the smallest of a format above which it is reported
UNDERFLOW_SHARE = 0.01


class Band(NamedTuple):
    """The median of a quantity over initialisations, and its 5–95 % band.

    Parameters
    ----------
    blocks : numpy.ndarray or None
        The blocks of the entries of the other arrays; 0 is the embedding. None at the
        output, where these are numbers.
    median, low, high : numpy.ndarray
        Over initialisations; 5 % are below `low`, and 5 % above `high`.
    error : numpy.ndarray
        The quadrature error of all three at infinite width; 0 at finite widths.
    """

    blocks: Floats | None
    median: Floats
    low: Floats
    high: Floats
    error: Floats


@dataclass(frozen=True, eq=False)
class Draws(Mapping[str, Floats]):
    """The draws of one model at one set of widths: a mapping of quantities to arrays,
    as `measured["entropy"]`.

    Parameters
    ----------
    subject : AuditCase
        The model, its inputs and its widths.
    arrays : mapping of str to numpy.ndarray
        By quantity: (draws, blocks), or (draws,) at the end.
    seconds : float
        Of one core.
    precision : str
        Of its numbers.
    moved : mapping of str to numpy.ndarray
        By quantity, at infinite width: (moves, blocks), how far errors of Gaussian
        expectations move it.
    """

    subject: AuditCase
    arrays: Mapping[str, Floats]
    seconds: float
    precision: str = "float64"
    moved: Mapping[str, Floats] = field(default_factory=dict)

    __eq__, __hash__ = object.__eq__, object.__hash__  # arrays have no truth value

    def __getitem__(self, name: str) -> Floats:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        widths = "infinite widths" if self.subject.infinite else "its own widths"
        return (
            f"<{self.draws} draws of {self.subject.model.name} at {widths}:"
            f" {', '.join(self.arrays)}>"
        )

    @property
    def draws(self) -> int:
        """The number of draws."""
        return int(next(iter(self.arrays.values())).shape[0])

    @property
    def measured(self) -> list[str]:
        """The quantities of the blocks and of the output, in the order of reports;
        without ranges.
        """
        return [q.name for q in (*BLOCKS, *FINAL) if q.name in self.arrays]

    @property
    def random_numbers(self) -> int:
        """The number of random numbers of all draws."""
        return self.subject.plan.random_numbers * self.draws

    def by_block(self, name: str) -> dict[int | None, Floats]:
        """The draws of a quantity by block; 0 is the embedding, None the output."""
        draws = _from_embedding(self.arrays, name)
        if draws.ndim == 1:
            return {None: draws}
        first_block = 0 if at_embedding(name) in self else 1
        return dict(enumerate(draws.T, first_block))

    def band(self, name: str) -> Band:
        """The median and the band of a quantity, with the embedding if it is measured
        there.
        """
        draws = _from_embedding(self.arrays, name)
        blocks = list(self.by_block(name))
        error: Floats = np.zeros(draws.shape[1:])
        if self.moved:
            moved = _from_embedding(self.moved, name)
            error = np.sqrt(np.mean(np.square(moved), axis=0))
        median, low, high = band(draws)
        # quantities of the output belong to no block
        block_numbers = None if blocks == [None] else np.array(blocks)
        return Band(
            blocks=block_numbers, median=median, low=low, high=high, error=error
        )

    @cached_property
    def numbers(self) -> dict[tuple[int | None, str], dict[str, float]]:
        """Every band as numbers: {(block, quantity): {"median", "low", "high",
        "error"}}. Block 0 is the embedding, None the output.
        """
        numbers = {}
        for name in self.measured:
            band = self.band(name)
            blocks = [None] if band.blocks is None else band.blocks.tolist()
            for i, block in enumerate(blocks):
                numbers[block, name] = {
                    "median": float(np.reshape(band.median, -1)[i]),
                    "low": float(np.reshape(band.low, -1)[i]),
                    "high": float(np.reshape(band.high, -1)[i]),
                    "error": float(np.reshape(band.error, -1)[i]),
                }
        return numbers

    @property
    def shifted(self) -> list[Mapping[str, Floats]]:
        """Copies of the draws moved by their quadrature error: up and down, for each of
        the ways in which it moves the quantities together. Empty if the error of no
        quantity shows beside its size.
        """
        if not any(self._has_quadrature_error(name) for name in self.moved):
            return []
        moves = len(next(iter(self.moved.values())))
        shifted: list[Mapping[str, Floats]] = []
        for move in range(moves):
            for sign in (1, -1):
                arrays = {}
                for name, draws in self.arrays.items():
                    arrays[name] = draws + sign * self.moved[name][move]
                shifted.append(arrays)
        return shifted

    def _has_quadrature_error(self, name: str) -> bool:
        """Whether the quadrature error of a quantity shows beside its size."""
        band = self.band(name)
        size = np.abs(band.median) + band.high - band.low
        return bool((band.error > NEGLIGIBLE * size).any())


@dataclass(frozen=True, eq=False)
class LengthResult(Mapping[str, Band]):
    """The measurements of a model at one length: a mapping of quantities to a `Band`,
    as `result["entropy"]`.

    Parameters
    ----------
    request : Request
        The options of the audit.
    model : Transformer or ProgramModel
        The model, or the program.
    tokens : int
        The length.
    actual, limit : Draws or None
        At its own widths, and at infinite ones.
    """

    request: Request
    model: Model
    tokens: int
    actual: Draws | None
    limit: Draws | None

    __eq__, __hash__ = object.__eq__, object.__hash__  # arrays have no truth value

    def __getitem__(self, name: str) -> Band:
        if name not in self.best:
            raise KeyError(
                f"{name!r} was not measured; measured: {', '.join(self.best)}"
            )
        return self.best.band(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.best)

    def __len__(self) -> int:
        return len(self.best)

    @cached_property
    def lengths(self) -> tuple[LengthResult, ...]:
        """The results at all lengths of an audit, the shortest first."""
        return (self,)

    def at(self, tokens: int) -> LengthResult:
        """The measurements at one length, with `findings` and quantities by name."""
        lengths = {result.tokens: result for result in self.lengths}
        if tokens not in lengths:
            measured = ", ".join(map(str, lengths))
            raise ValueError(
                f"tokens={tokens} was not measured for {self.model.name}; measured:"
                f" {measured}"
            )
        return lengths[tokens]

    @property
    def best(self) -> Draws:
        """The draws at the model's own widths, or at infinity if these were not
        requested.
        """
        return self.measured[0]

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return int(self.best.arrays["mean_square"].shape[1])

    @property
    def stacks(self) -> tuple[tuple[int, int], ...]:
        """The first and the last block of each stack of the network, as indices from 0.

        They index `Draws.arrays`, which have no entry for the embedding. A network has
        one stack, or an encoder and a decoder: ((0, 5), (6, 11)) for 6 blocks in both.
        """
        first_stack = self.model.layers  # its blocks; of an encoder, if there is one
        blocks = self.blocks
        if blocks == first_stack:
            return ((0, blocks - 1),)
        return (0, first_stack - 1), (first_stack, blocks - 1)

    @property
    def joint_remedy(self) -> Advice | None:
        """What to change if two or more rules flag the described model; else None."""
        if not isinstance(self.model, Transformer):
            return None
        return joint_remedy(self.model, self.findings)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """A verdict for each rule. If infinite width was measured, a verdict is
        undecided where the quadrature error there could change it.
        """
        uniform = math.log(self.model.vocabulary) if self.model.vocabulary else None
        model = self.model if isinstance(self.model, Transformer) else None
        inputs = RuleInput(
            draws=self.best.arrays,
            limit=self._no_limit(),
            distinct=self.distinct,
            uniform_loss=uniform,
            stacks=self.stacks,
            tokens=self.tokens,
            precision=self.best.precision,
            model=model,
            sizes=self._sizes,
            has_routers=isinstance(self.model, ProgramModel) and self.model.has_routers,
        )
        if self.limit is None:
            return all_findings(inputs)
        # all findings, then all findings with Gaussian expectations shifted by their
        # errors in one way, then in another
        findings_of_shifts = []
        for arrays in (self.limit.arrays, *self.limit.shifted):
            if self.actual:
                shifted_inputs = inputs._replace(limit=arrays)
            else:
                shifted_inputs = inputs._replace(draws=arrays)
            findings_of_shifts.append(all_findings(shifted_inputs))
        findings = []
        for finding, *shifted in zip(*findings_of_shifts, strict=True):  # of one rule
            findings.append(within_error(finding, *shifted))
        return tuple(findings)

    @property
    def _sizes(self) -> StreamSizes | None:
        """The sizes of the streams, if they are several; those of a model are equal."""
        if isinstance(self.model, ProgramModel):
            return self.model.net.sizes(self.model.widths())
        return None

    def _no_limit(self) -> str:
        """Why no limit is compared with the model's own widths."""
        request = self.request
        if request.widths != "both":
            if request.widths == "actual":
                return "infinite width was not requested"
            return "its own widths were not requested"
        if self.tokens > request.lengths[0]:
            return f"infinite width is measured at {request.lengths[0]} tokens only"
        return f"infinite width has no limit: {request.refused.get(self.model, '')}"

    def finding(self, name: str) -> Finding:
        """The verdict of one rule; of an audit, at the length where it is worst."""
        return {finding.name: finding for finding in self.findings}[rule_name(name)]

    @property
    def distinct(self) -> int:
        """How many different vectors the tokens are before the first block. Learned
        positions make all different, otherwise different ids do.
        """
        model = self.model
        ids = self.request.ids
        if isinstance(model, ProgramModel):
            return self.tokens
        if model.positions == "learned" and model.std_position:
            return self.tokens
        if not model.std_embedding:
            return 1  # all tokens begin as the same vector
        return self.tokens if ids is None else len(set(ids))

    @property
    def measured(self) -> list[Draws]:
        """The draws at its own widths, at infinity, or both."""
        return [draws for draws in (self.actual, self.limit) if draws is not None]

    def rows(self) -> list[dict[str, Any]]:
        """The numbers as rows, one for each quantity and block; 0 is the embedding, and
        the output has no block.
        """
        rows = []
        for draws in self.measured:
            for (block, name), numbers in draws.numbers.items():
                row = {
                    "model": self.model.name,
                    "tokens": self.tokens,
                    "widths": "inf" if draws.subject.infinite else "actual",
                    "block": "" if block is None else block,
                    "quantity": name,
                    **numbers,
                }
                rows.append(row)
        return rows


def draws_of_ones(case: AuditCase) -> Draws:
    """Draws of a case with every number 1, of the shapes of real ones: shows which
    quantities and blocks will be measured, before sampling.
    """
    probes = case.shared.probes()
    blocks = case.model.layers + case.model.decoder_layers
    ones: dict[str, Floats] = {}
    for name in probes.names:
        ones[name] = np.ones((DECIDE, blocks))
    for name in (*probes.final, *probes.starts):
        ones[name] = np.ones(DECIDE)
    return Draws(case, ones, seconds=0.0)


def _from_embedding(arrays: Mapping[str, Floats], name: str) -> Floats:
    """A quantity as (draws, 1 + blocks) with the embedding first, if it is measured
    there too; otherwise as it is, (draws, blocks) or (draws,).
    """
    of_embedding = at_embedding(name)
    if of_embedding not in arrays:
        return arrays[name]
    return np.concatenate([arrays[of_embedding][:, None], arrays[name]], axis=1)


class FormatFit(NamedTuple):
    """How a format holds an activation; verdicts are of medians over
    initialisations.
    """

    format: str
    # is the largest number, of all blocks, above the largest of the format?
    overflow: str
    # is the share of numbers below its smallest above SMALL, in some block?
    underflow: str
    below: float  # that share, its median in the worst block
    # 2^scale: the largest power of two with which 95 % of initialisations fit
    scale: int
    scaled: float  # the share below if each tensor is scaled by its largest number


class Range(NamedTuple):
    """The numbers of one activation, over all blocks."""

    activation: str
    block: int | None  # that with the largest number; None outside of blocks
    # median, and 5 to 95 % of initialisations, over all blocks
    largest: dict[str, float]
    formats: list[FormatFit]


def ranges_of(arrays: Mapping[str, Floats]) -> list[Range]:
    """The ranges of each activation; empty if not requested."""
    activations = (*ENDS[:1], *BLOCK, *ENDS[1:])
    return [
        _range_of(activation, arrays)
        for activation in activations
        if f"{activation}_largest" in arrays
    ]


def _range_of(activation: str, arrays: Mapping[str, Floats]) -> Range:
    """The largest numbers of an activation over all blocks, and how each format of
    numbers holds it.
    """
    # (draws, blocks), or (draws,) outside of blocks
    largest_of_blocks = arrays[f"{activation}_largest"]
    block = None
    if largest_of_blocks.ndim > 1:
        block = int(np.argmax(np.median(largest_of_blocks, axis=0))) + 1
    largest = largest_of_blocks.reshape(len(largest_of_blocks), -1).max(axis=1)
    median, low, high = map(float, band(largest))
    fits = []
    for number_format in FORMATS:
        suffix = number_format.name
        below = arrays[f"{activation}_below_{suffix}"].reshape(len(largest), -1)
        scaled = arrays[f"{activation}_scaled_{suffix}"].reshape(len(largest), -1)
        worst_below = below[:, np.argmax(np.median(below, axis=0))]
        fits.append(
            FormatFit(
                format=number_format.title,
                overflow=above(largest, number_format.largest),
                underflow=above(worst_below, UNDERFLOW_SHARE),
                below=float(np.median(worst_below)),
                scale=int(number_format.scale(np.asarray(high))),
                scaled=float(np.median(scaled, axis=0).max()),
            )
        )
    ends = {"median": median, "low": low, "high": high}
    return Range(activation=activation, block=block, largest=ends, formats=fits)
