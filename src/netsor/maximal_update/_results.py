"""A derived rule with its evidence, as a table and as files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .._validate import ArgumentError, counted
from ..laws._power_law import Exponent, Fit
from ._coordinate_check import OK, TOLERANCE, Change, Trained, coordinate_check
from ._depth_rule import WIDEST, DepthRule
from ._file_content import FileContent, Reference
from ._measurement import SMALL_LR, Measurement
from ._own_optimiser import OwnOptimiser
from ._power import Power
from ._responses import Edge
from ._rules import (
    OutputScale,
    ParameterRule,
    ScalingRule,
    collapsed,
    layer_pattern_of,
    patterns_of,
)
from ._solve import Solution
from ._subject import Subject
from ._toml_file import toml_of

POWERS = ("std", "lr", "eps", "weight_decay")  # of a `ParameterRule`
OTHER_SEEDS = 1000  # added to the seed, for initialisations that derived nothing
# By exponents of the standard deviation and of the learning rate: table 3 of Tensor
# Programs V, where biases and gains are input weights; for matrices of Muon the
# spectral condition (Yang, Simon and Bernstein 2023).
OF_ADAM = {
    (0.0, 0.0): "µP, input or vector",
    (-0.5, 0.0): "µP, bias that starts smaller",
    (-0.5, -1.0): "µP, hidden",
    (-1.0, -1.0): "µP, output",
}
OF_SGD = {
    (0.0, 1.0): "µP, input or vector",
    (-0.5, 1.0): "µP, bias that starts smaller",
    (-0.5, 0.0): "µP, hidden",
    (-1.0, -1.0): "µP, output",
}
OF_MUON = {(-0.5, 0.0): "spectral condition, hidden"}
EXPLANATION = (
    "Powers are factors of the initial numbers, the learning rate and eps; weight decay"
    " has the {decay}. Exponents of updates have 99 % intervals: 0 means that a step"
    " changes what a parameter writes as much at every width."
)
STD = "standard deviation"
DECAY = "inverse power of the learning rate"
DECAY_OF_GRADIENT = "power of the gradient over that of the parameter"

UNKNOWN = "?"
EXPLANATION_OF_UNKNOWN = (
    f" {UNKNOWN}: gradients do not determine this eps, and the files keep it constant;"
    " more draws narrow it down."
)


class Evidence(NamedTuple):
    """The exponents of the width that belong to a parameter; None: of a size that is 0.

    Attributes
    ----------
    std : Exponent or None
        Of its initial standard deviation, as the module has it; None for constants.
    written_before, written : Exponent or None
        Of what it writes, as the module is, and under the rule.
    update_before, update : Exponent or None
        Of the change that its own update makes in what it writes, before and under the
        rule.
    """

    std: Exponent | None
    written_before: Exponent | None
    written: Exponent | None
    update_before: Exponent | None
    update: Exponent | None


class Solved(NamedTuple):
    """A measurement, and what follows from it."""

    measurement: Measurement
    solution: Solution


def evidence_of(first: Solved, last: Solved) -> dict[str, Evidence]:
    """The evidence of all parameters: of several uses, those that change most."""
    before = first.measurement
    after = last.measurement
    evidence = {}
    for name in before.operations.graph.parameters:
        std = before.stds.get(name)
        evidence[name] = Evidence(
            std=None if std is None else std.exponent,
            written_before=_largest(first, before.exponents.written, name),
            written=_largest(last, after.exponents.written, name),
            update_before=_largest(first, before.exponents.updates, name),
            update=_largest(last, after.exponents.updates, name),
        )
    return evidence


def _largest(
    solved: Solved, fits: Mapping[Edge, Fit | None], name: str
) -> Exponent | None:
    """The largest exponent over the uses of a parameter, with the constants that
    multiply what it writes.
    """
    exponents = []
    for operation in solved.measurement.operations.operations:
        for k, names in operation.weights.items():
            edge = Edge(operation.index, k)
            fit = fits.get(edge)
            if name in names and fit is not None:
                after = solved.solution.after.get(edge, 0.0)
                exponents.append(_shifted(fit.exponent, after))
    return max(exponents, key=lambda x: x.value, default=None)


def _shifted(exponent: Exponent, shift: float) -> Exponent:
    """An exponent of a size that is multiplied by a known power."""
    return Exponent(
        exponent.value + shift,
        exponent.error,
        low=exponent.low + shift,
        high=exponent.high + shift,
    )


class Departure(NamedTuple):
    """Something in the user's rule that does not follow the width as it must.

    Attributes
    ----------
    path : str
        The name of a parameter, or of rows of it, or the path of the module whose
        output needs a factor.
    what : str
        "standard deviation", "learning rate", "eps", "weight decay", "scores", "logits"
        or "branch".
    power : float
        The power of the width, or of the depth, to multiply it by.
    axis : str
        "width" or "depth".
    """

    path: str
    what: str
    power: float
    axis: str = "width"

    def __str__(self) -> str:
        preposition = "by" if self.what in ("scores", "logits") else "of"
        what = f"the {self.what} {preposition}"
        power = Power(**{self.axis: self.power})
        return f"{what} {self.path}: multiply by {_n(power)}"


def _departures(path: str, what: str, power: Power) -> list[Departure]:
    """The departures that a power is: one of the width, one of the depth."""
    exponents = power._asdict().items()
    return [
        Departure(path, what, exponent, axis)
        for axis, exponent in exponents
        if exponent
    ]


@dataclass(frozen=True, eq=False)
class DerivedRule:
    """A parametrisation that was derived for a module.

    Attributes
    ----------
    rule : ScalingRule
        Exponents of all parameters, and factors of outputs.
    evidence : dict
        What was measured, by name of a parameter.
    growing : tuple of str
        Operations whose change grows, whatever the exponents.
    depth : DepthRule or None
        What was measured at several depths.

    Examples
    --------
    >>> derived = ns.torch.parametrise(build, optimiser="adamw")  # doctest: +SKIP
    >>> rate = derived.parameters["layers.*.down.weight"].lr  # doctest: +SKIP
    """

    subject: Subject
    widths: Sequence[int]
    draws: int
    rule: ScalingRule
    evidence: Mapping[str, Evidence]
    expected: Mapping[str, float]  # exponents of changes of outputs, by path
    reference: Reference
    depth: DepthRule | None = None
    growing: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()  # those with an optimiser of their own
    # patterns of parameters that repeat from layer to layer
    repeated: frozenset[str] = frozenset()
    # the optimiser of the user, which `rule` changes
    own: OwnOptimiser = field(default_factory=OwnOptimiser)

    @property
    def parameters(self) -> dict[str, ParameterRule]:
        """The exponents of each parameter, by patterns of names."""
        rules = {name: self._full(name) for name in self.rule.parameters}
        return collapsed(rules, self.repeated)

    def _full(self, name: str) -> ParameterRule:
        """The exponents of a parameter, for one learning rate of all parameters."""
        rule = self.rule.of(name)
        if name not in self.own.lr:
            return rule
        lr = Power(self.own.lr[name] + rule.lr.width + 0.0, rule.lr.depth)
        return replace(rule, lr=lr)

    @property
    def departures(self) -> tuple[Departure, ...]:
        """What is not maximal in the module and in your own optimiser, if the rule was
        derived for one: what must change, and by which power.
        """
        if not self.subject.make:
            return ()
        departures = [
            Departure(str(rows), STD, rows.exponent)
            for rows in self.subject.unlike_rows
        ]
        for name, rule in self.rule.parameters.items():
            departures += _departures(name, STD, rule.std)
            for what, power in self.own.powers_to_change(name, rule):
                departures += _departures(name, what, power)
        for scale in self.scales:
            departures += _departures(scale.path, scale.what, scale.power)
        return tuple(departures)

    @property
    def scales(self) -> tuple[OutputScale, ...]:
        """The factors of outputs of modules."""
        return self.rule.scales

    def source(
        self,
        changes: Sequence[Change] = (),
        changes_in_depth: Sequence[Change] = (),
    ) -> str:
        """The rule as a file of plain PyTorch or optax, without netsor.

        Parameters
        ----------
        changes, changes_in_depth : sequence of Change
            The results of `check` for widths and for depths, which the docstring of the
            file then reports.

        Returns
        -------
        source : str
            The text of the file.
        """
        framework = self.subject.framework
        sentences = [
            *self._verified(),
            *_trained(changes, framework, "width"),
            *_trained(changes_in_depth, framework, "depth"),
        ]
        return self.subject.source_of(self.content(sentences))

    def toml(self) -> str:
        """The rule as TOML, a parametrisation for `ns.coord_check` and `ns.transfer`.

        Returns
        -------
        toml : str
            The text of a file.
        """
        return toml_of(self.content(self._verified()))

    def content(self, verified: Sequence[str] = ()) -> FileContent:
        """The content of the files; `verified` are sentences."""
        return FileContent(
            module=self.module_name,
            optimiser=self.subject.family.name,
            parameters=self.parameters,
            scales=self.scales,
            reference=self.reference,
            depth_pattern=None if self.depth is None else self.depth.pattern,
            verified=verified,
            base_width=self.subject.base_width,
            base_depth=self.subject.base_depth,
            matrices=tuple(dict.fromkeys(map(layer_pattern_of, self.matrices))),
        )

    def _verified(self) -> list[str]:
        """What the file is known to do, in sentences."""
        widths = ", ".join(map(str, self.widths))
        measured = f"Measured at widths {widths} with {self.draws} initialisations each"
        coarse = self._coarse
        if len(coarse) == len(self.evidence):
            return [f"{measured}: undecided, all exponents have errors above {WIDEST}."]
        sentences = [
            f"MISSING in this file: the initial numbers of {rows} must be multiplied by"
            f" {_n(Power(rows.exponent))}."
            for rows in self.subject.unlike_rows
        ]
        if coarse:
            names = ", ".join(dict.fromkeys(map(layer_pattern_of, coarse)))
            sentences.append(
                f"UNDECIDED, with errors of exponents above {WIDEST}: {names}."
            )
        exponents = [
            abs(evidence.update.value)
            for name, evidence in self.evidence.items()
            if evidence.update is not None and name not in coarse
        ]
        worst = max(exponents, default=0.0)
        which = "the other parameters" if coarse else "every parameter"
        sentences.append(
            f"{measured}: under these exponents the update of {which} changes what it"
            f" writes by order 1 (exponents of the width within ±{worst:.2f} of 0)."
        )
        if self.with_unknown_eps:
            names = ", ".join(self.with_unknown_eps)
            sentences.append(
                f"UNDETERMINED, and constant in this file: eps of {names}."
            )
        if self.depth is not None:
            sentences += self.depth.verified
        return sentences

    def check(
        self,
        *,
        widths: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
        lr: float = 2e-3,
        steps: int = 3,
        draws: int = 16,
    ) -> list[Change]:
        """Train real networks with the emitted file, and measure how much the outputs
        of all submodules change.

        Parameters
        ----------
        widths : sequence of int, optional
            Those of the derivation by default, and twice the largest.
        depths : sequence of int, optional
            Compare these depths at the smallest width instead of widths, for a rule
            with exponents of the depth.
        lr : float
            The learning rate at the smallest width of the derivation.
        steps, draws : int
            Steps of each training run, and initialisations at each width; none of them
            was used to derive the rule.

        Returns
        -------
        changes : list of Change
            `path`, the `exponent` of the width (or the depth), and the `verdict` of
            each output; without an exponent it "does not move" or "is not finite".
        """
        training = self._trained
        options: dict[str, Any] = {"lr": lr, "steps": steps, "draws": draws}
        if depths is not None:
            in_depth = self._checked_in_depth(widths, depths)
            return coordinate_check(
                training,
                [(self.subject.base_width, depth) for depth in depths],
                [*depths],
                expected=in_depth.expected,
                named=in_depth.named,
                **options,
            )
        at = [*(widths or self.widths_of_check)]
        sizes = [self.subject.size(width, self.subject.base_depth) for width in at]
        return coordinate_check(training, sizes, at, expected=self.expected, **options)

    @property
    def widths_of_check(self) -> tuple[int, ...]:
        """The widths of `check`: those of the derivation, and twice the largest."""
        return (*self.widths, 2 * max(self.widths))

    @property
    def depths_of_check(self) -> tuple[int, ...]:
        """The depths of a check: twice those of the derivation, and four times the
        largest; none without exponents of the depth.

        Changes at depth L differ from their limit by a part of order 1/L. With two
        layers that part exceeds the tolerance, because each layer is half of the
        network; doubling the depth halves it.
        """
        if self.depth is None:
            return ()
        depths = self.depth.depths
        return (*(2 * depth for depth in depths), 4 * max(depths))

    def check_seconds(self, steps: int = 3, draws: int = 16) -> float:
        """An estimate of the time that `check` takes for all its widths and depths,
        from one training run at each.
        """
        subject = self.subject
        training = self._trained
        sizes = [subject.size(n, subject.base_depth) for n in self.widths_of_check]
        sizes += [(subject.base_width, depth) for depth in self.depths_of_check]
        training.changes(sizes[0], SMALL_LR, 0, 1)  # the first one loads libraries
        start = time.perf_counter()
        for size in sizes:
            training.changes(size, SMALL_LR, 0, steps)
        return draws * (time.perf_counter() - start)

    @property
    def _trained(self) -> Trained:
        """Networks that are trained with the emitted file."""
        subject = self.subject
        free = [name for name, rule in self.rule.parameters.items() if rule.is_free]
        return subject.trained(
            self.source(),
            scales=self.scales if self.depth is None else self.rule.by_pattern().scales,
            free=[*dict.fromkeys(map(layer_pattern_of, free))],
            seed=subject.seed + OTHER_SEEDS,
        )

    def _checked_in_depth(self, widths: Any, depths: Sequence[int]) -> DepthRule:
        """What is known of the depth, for a check of depths."""
        if widths is not None:
            raise ArgumentError("widths", list(widths), "left out with depths")
        if self.depth is None:
            raise ArgumentError(
                "depths", list(depths), "left out: the rule has no exponents of depth"
            )
        return self.depth

    @staticmethod
    def check_text(changes: Sequence[Change], axis: str = "width") -> str:
        """The result of `check`, the verdict first."""
        counts = Counter(change.verdict for change in changes)
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines = [f"real training with the written file, by {axis}: {words}"]
        for change in changes:
            lines.append(
                f"{change.path:40} {_interval(change.exponent):22} {change.verdict}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The rule as a dictionary, for JSON."""
        return {
            "module": self.module_name,
            "optimiser": self.subject.family.name,
            "widths": list(self.widths),
            "parameters": {name: self._parameter_dict(name) for name in self.evidence},
            "scales": [_scale_dict(scale) for scale in self.scales],
            "depth": None if self.depth is None else self.depth.to_dict(),
            "growing": list(self.growing),
            "departures": [departure._asdict() for departure in self.departures],
        }

    def _parameter_dict(self, name: str) -> dict[str, Any]:
        """The rule and the evidence of a parameter, for JSON."""
        rule = self._full(name)
        measured = {
            field: None if exponent is None else exponent.as_dict()
            for field, exponent in self.evidence[name]._asdict().items()
        }
        return {
            **{field: getattr(rule, field)._asdict() for field in POWERS},
            "may_start_smaller": rule.is_free,
            "has_unknown_eps": rule.has_unknown_eps,
            "rule": self.name_of(name),
            "measured": measured,
        }

    @property
    def module_name(self) -> str:
        """The name of the function that makes the module."""
        return str(getattr(self.subject.build, "__name__", "build"))

    def name_of(self, name: str) -> str:
        """The published rule that gives a parameter the same exponents, or ""."""
        rule = self._full(name)
        std = self.evidence[name].std
        std_exponent = 0.0
        if std is not None:
            std_exponent = round(2 * std.value) / 2 + rule.std.width
        family = self.subject.family.name
        names = OF_SGD if family == "sgd" else OF_ADAM
        if name in self.matrices:
            names = {} if family == "adamh" else OF_MUON
        return names.get((std_exponent, rule.lr.width), "")

    @property
    def verdict(self) -> str:
        """What the rule changes, and which published rules it agrees with, in a
        sentence or two.
        """
        changed = [
            name
            for name, rule in self.rule.parameters.items()
            if rule.std != Power() or rule.lr != Power()
        ]
        named = [name for name in self.rule.parameters if self.name_of(name)]
        count = len(self.rule.parameters)
        if self.subject.make:
            return self._verdict_on_departures
        sizes = "the width" if self.depth is None else "the width or the depth"
        text = (
            f"{self.module_name} with {self.subject.family.words}: {len(changed)} of"
            f" {counted(count, 'parameter')} must follow {sizes}, and"
            f" {counted(len(self.scales), 'output')} must be scaled."
        )
        if self.depth is not None:
            text += f" {self.depth.words}"
        if self.with_unknown_eps:
            count_unknown = len(self.with_unknown_eps)
            text += f" eps is undetermined for {counted(count_unknown, 'parameter')}."
        if self.undecided:
            return (
                "Undecided: exponents of the updates of"
                f" {counted(len(self.undecided), 'parameter')} have errors above"
                f" {WIDEST}, as of {self.undecided[0]}. Use more draws or wider"
                f" widths. {text}"
            )
        if len(named) == count:
            return f"{text} All exponents are those of the literature."
        return f"{text} The exponents of {len(named)} are those of the literature."

    @property
    def undecided(self) -> list[str]:
        """The parameters whose updates were measured too imprecisely for a rule."""
        return [*self._coarse, *(self.depth.undecided if self.depth else ())]

    @property
    def with_unknown_eps(self) -> list[str]:
        """The parameters, by patterns, whose eps the gradients do not determine."""
        return [k for k, rule in self.parameters.items() if rule.has_unknown_eps]

    @property
    def _coarse(self) -> list[str]:
        """Those at several widths."""
        coarse = []
        for name, evidence in self.evidence.items():
            update = evidence.update
            if update is not None and update.high - update.low > 2 * WIDEST:
                coarse.append(name)
        return coarse

    @property
    def _verdict_on_departures(self) -> str:
        """What is not maximal in the module and the optimiser of the user."""
        subject = f"{self.module_name} with its own {self.subject.family.words}"
        departures_in_words = [str(departure) for departure in self.departures]
        coarse = ""
        if self.undecided:
            coarse = (
                f" Undecided for {counted(len(self.undecided), 'parameter')}, as"
                f" {self.undecided[0]}: use more draws or wider widths."
            )
        if departures_in_words:
            count = counted(len(departures_in_words), "number")
            heading = f"{subject} departs from maximal updates: {count} must change."
            return "\n".join(
                [heading + coarse, *(f"  {line}" for line in departures_in_words)]
            )
        if coarse:
            return f"{subject}: no departure from maximal updates.{coarse}"
        return f"{subject}: nothing to change, all updates are maximal."

    def __str__(self) -> str:
        lines = [self.verdict, "", *_table(self._rows())]
        scales = {
            f"{_scaled(scale)}{_part(scale)}: times {_n(scale.power)} ({scale.what})"
            for scale in self.scales
        }
        if scales:
            lines += ["", *sorted(scales)]
        for operation in self.growing:
            lines.append(
                f"{operation}: its change grows with the width, and no exponent removes"
                " that: what it normalises has a size that does not grow"
            )
        if self.depth is not None:
            lines += ["", *_depth_table(self.depth)]
        letters = f"n is the width over {self.subject.base_width}"
        if self.subject.base_depth is not None:
            letters += f", L the depth over {self.subject.base_depth}"
        decay = DECAY_OF_GRADIENT if self.subject.family.decays_gradient else DECAY
        explanation = EXPLANATION.format(decay=decay)
        if self.with_unknown_eps:
            explanation += EXPLANATION_OF_UNKNOWN
        lines += ["", f"{letters}. {explanation}"]
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, ...]]:
        """The table of parameters, by patterns of their names."""
        heads = ("parameter", "std", "lr", "eps", "its update, before → with the rule")
        rows: list[tuple[str, ...]] = [heads]
        for pattern, rule in self.parameters.items():
            names = [
                name
                for name in self.evidence
                if pattern in patterns_of(name) and self._full(name) == rule
            ]
            evidence = self.evidence[names[0]]
            update = (
                f"{_interval(evidence.update_before)} → {_interval(evidence.update)}"
            )
            comment = self.name_of(names[0])
            if rule.is_free:
                comment += ", may start at 0"
            eps = UNKNOWN if rule.has_unknown_eps else _n(rule.eps)
            powers = (_n(rule.std), _n(rule.lr), eps)
            rows.append((pattern, *powers, update, comment))
        return rows


def _scale_dict(scale: OutputScale) -> dict[str, Any]:
    """A factor of an output, for JSON."""
    return {
        "path": scale.path,
        "part": None if scale.part is None else list(scale.part),
        "of": scale.what,
        **scale.power._asdict(),
    }


def _trained(changes: Sequence[Change], framework: str, axis: str) -> list[str]:
    """What real training with a file found, in sentences."""
    if not changes:
        return []
    counts = Counter(change.verdict for change in changes)
    others = [f"{k} {verdict}" for verdict, k in counts.items() if verdict != OK]
    rest = f"; others: {', '.join(others)}" if others else ""
    return [
        f"Trained in {framework} with this file: the changes of {counts[OK]} of"
        f" {len(changes)} outputs follow the {axis} as they should (exponents within"
        f" ±{TOLERANCE}, 99 % intervals){rest}."
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns; short rows end early."""
    columns = max(map(len, rows))
    widths = [0] * columns
    for row in rows:
        for column, text in enumerate(row):
            widths[column] = max(widths[column], len(text))
    lines = []
    for row in rows:
        cells = [f"{text:{width}}" for text, width in zip(row, widths, strict=False)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _n(power: Power) -> str:
    """Powers of the width n and the depth L, such as n^-1/2 or 1/n 1/L."""
    powers = [_power("n", power.width), _power("L", power.depth)]
    return " ".join(text for text in powers if text) or "1"


def _power(letter: str, exponent: float) -> str:
    """A power, such as n^-1/2; "" if it is 1."""
    known = {-0.5: "^-1/2", 0.5: "^1/2", 1.0: ""}
    if exponent == 0:
        return ""
    if exponent == -1:
        return f"1/{letter}"
    return letter + known.get(exponent, f"^{exponent:g}")


def _depth_table(depth: DepthRule) -> list[str]:
    """What was measured at several depths."""
    rows: list[tuple[str, ...]] = [
        ("branch", "its size against the depth, before → with the rule")
    ]
    for path, branch in depth.branches.items():
        before_and_after = f"{_interval(branch.before)} → {_interval(branch.after)}"
        rows.append((path, before_and_after))
    rows.append(("parameter", "the change of the loss by its updates in all layers"))
    for pattern, update in depth.parameters.items():
        before_and_after = f"{_interval(update.before)} → {_interval(update.after)}"
        rows.append((pattern, before_and_after))
    return _table(rows)


def _scaled(scale: OutputScale) -> str:
    """What a factor multiplies, in words."""
    if not scale.parameters:
        return f"output of {layer_pattern_of(scale.path)}"
    return " and ".join(dict.fromkeys(map(layer_pattern_of, scale.parameters)))


def _part(scale: OutputScale) -> str:
    """The entries that are scaled, in words."""
    if scale.part is None:
        return ""
    # of a parameter it is the one that the part names; of an output, the last one
    axis = scale.part.axis if scale.parameters else -1
    name = {0: "the first axis", -1: "the last axis"}.get(axis, f"axis {axis}")
    return f", from {scale.part.start:.3g} to {scale.part.stop:.3g} of {name}"


def _interval(exponent: Exponent | None) -> str:
    """A measured exponent with its interval; "–" without one."""
    if exponent is None:
        return "–"

    def rounded(x: float) -> float:
        """Two decimals; −0 becomes 0."""
        return round(x, 2) + 0.0

    low = rounded(exponent.low)
    high = rounded(exponent.high)
    return f"{rounded(exponent.value):+.2f} ({low:+.2f},{high:+.2f})"
