"""A plan: a list of small steps on arrays of known shapes, without branches; its cost,
and how to run it.

Lowering (see `lower`) makes the plan and takes every decision. Running it is a loop
over the steps. The backend chooses the array library and draws the random numbers (see
`backends`).
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from .._array_api import Array
from .._html import note, table, title
from .._validate import counted
from . import _expectation_ops, _gram_schmidt, _ops
from ._cost_model import CPU
from ._exceptions import UnplacedError
from ._expectation_cost import MAX_SECONDS
from ._ir import (
    DRAWS,
    VIEWS,
    Integral,
    Loop,
    Register,
    Step,
    given_number,
    kind_of,
    loops,
)
from ._rng_keys import CHUNK, NODE_SHIFTS

RULES: dict[str, Callable[..., Any]] = {
    **_ops.ONE_EXPRESSION,
    **{
        name: rule
        for name, rule in vars(_ops).items()
        if getattr(rule, "__module__", "") == _ops.__name__ and not name.startswith("_")
    },
    **{
        name: getattr(_expectation_ops, name) for name in ("kernel", "moments", "nodes")
    },
    "left_over": _gram_schmidt.fluctuation_residual,
    "lost": _gram_schmidt.nan_if_lost,
}

IN_PLACE: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "scale": np.multiply,
}

# A law without other random numbers is averaged over node sets. One set costs as much
# as a few hundred ordinary draws
DRAWS_PER_NODE_SET, MIN_NODE_SETS = 256, 16  # the minimum gives a standard error
# of the arrays of replicas computed together: little Python overhead, and they fit in a
# cache
BLOCK_BYTES = 2**21
# replicas to measure the effect of errors of Gaussian expectations
QUADRATURE_PROBE_REPLICAS = 32
FEWEST_DRAWS = 100  # draws worth a remedy: fewer show little of a law
PROBED_PLANS = 3  # the plan, and two whose expectations are shifted by their errors
# entries: numpy loops efficiently over rows of this length, so replicas need not be
# innermost
MIN_INNERMOST_ROW = 32


def liveness(
    steps: list[Step], results: tuple[Register, ...]
) -> list[tuple[Step, set[Register], int | None]]:
    """The steps that the results depend on, the arrays that none reads later, and the
    index of one to overwrite.
    """
    owner: dict[Register, Register] = {}  # view → the array whose memory it shares
    for step in steps:
        owner[step.out] = (
            owner.get(step.args[0], step.args[0]) if step.kind in VIEWS else step.out
        )
    read, read_memory = set(results), {owner.get(result, result) for result in results}
    found: list[tuple[Step, set[Register], int | None]] = []
    for step in reversed(steps):
        if step.out not in read:
            continue
        entrywise = step.kind in IN_PLACE or (
            step.kind == "apply" and step.params.get("axes") == 0
        )
        place = None
        for i, arg in enumerate(step.args if entrywise else ()):
            if (
                arg.varies
                and arg.shape == step.out.shape
                and owner.get(arg, arg) not in read_memory
            ):
                place = i
                break
        found.append(
            (
                step,
                {arg for arg in step.args if arg.value is None and arg not in read},
                place,
            )
        )
        read.update(step.args)
        read_memory.update([owner.get(arg, arg) for arg in step.args])
    return found[::-1]


@dataclass(eq=False)
class Plan:
    """The steps that sample each replica of a program at given widths; `print(plan)`
    shows them.

    Create it with `Program.plan`. The attribute `bytes` is the memory of one replica.

    Parameters
    ----------
    title : str
        The name of the program and its widths.
    steps : list of Step
        The steps, in order.
    mean : Register
        (entries,): the mean of one coordinate of each output, conditional on all random
        numbers.
    columns : Register
        (entries, ·): its coefficients of independent N(0, 1) variables, which are
        integrated out.
    notes : tuple of str
        Remarks on the law.
    expects : bool
        Whether the steps or constants contain Gaussian expectations.
    nodes : bool
        Whether some of them are means over quasi-random nodes.
    tried : tuple of str
        Functions known only by their values at points, which their expectations use.
    place : str
        The device that the plan is meant for, which decides the cheaper of two exact
        methods.
    independent : dict
        The linearly independent directions of inputs at infinite width, shared with the
        plans whose expectations are shifted.

    Examples
    --------
    >>> plan = ns.paper.layer().plan(n=256)
    >>> plan.random_numbers, plan.constant, plan.seconds(50_000) > 0
    (23, False, True)
    >>> x = ns.gaussian(64, 8)
    >>> for _ in range(12):
    ...     x = ns.rms_norm(x + ns.tanh(ns.weight(64, 64) @ x))
    ...
    >>> [loop.times for loop in ns.Program(x).plan().loops]
    [11]
    """

    title: str
    steps: list[Step]
    mean: Register
    columns: Register
    notes: tuple[str, ...] = ()
    expects: bool = False
    nodes: bool = False
    tried: tuple[str, ...] = ()
    place: str = CPU.place
    # see `_ir_builder`
    independent: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        found = liveness(self.steps, (self.mean, self.columns))
        self.steps, self.live = (
            [step for step, *_ in found],
            [(dead, place) for _, dead, place in found],
        )
        # numbers of a replica stored at a time, and their peak in bytes
        size = self.bytes = 0
        for step, dead, _ in found:
            size += step.out.size
            self.bytes = max(self.bytes, 8 * (size + step.within))
            size -= sum(register.size for register in dead)

    @cached_property
    def loops(self) -> list[Loop]:
        """Repeated blocks of equal steps: the first step, the steps per block, and the
        number of blocks.
        """
        made = {step.out: k for k, step in enumerate(self.steps)}
        return loops([kind_of(step, k, made) for k, step in enumerate(self.steps)])

    @property
    def random_numbers(self) -> int:
        """The random numbers per replica, on average."""
        return sum(step.numbers for step in self.steps)

    @property
    def long_numbers(self) -> int:
        """The random numbers in rows of 32 or more: coordinates rather than Gram
        matrices.
        """
        return sum(
            step.numbers
            for step in self.steps
            if step.out.shape[-1:] >= (MIN_INNERMOST_ROW,)
        )

    @property
    def operations(self) -> int:
        """Roughly the entries and products computed per replica."""
        return sum(step.operations for step in self.steps)

    @property
    def constant(self) -> bool:
        """Whether the law depends on no random number: one replica is then the law."""
        return not any(step.kind in DRAWS for step in self.steps)

    def bind(self, numbers: Mapping[str, float]) -> Plan:
        """The plan with values for its hyperparameters, by name."""
        new = {name: given_number(name, number) for name, number in numbers.items()}

        def given(register: Register) -> Register:
            return new.get(register.hyperparameter or "", register)

        made = copy.copy(self)
        made.mean, made.columns = given(self.mean), given(self.columns)
        made.steps = [
            (
                replace(step, args=tuple(map(given, step.args)))
                if any(a.hyperparameter for a in step.args)
                else step
            )
            for step in self.steps
        ]
        return made

    @property
    def averaged(self) -> bool:
        """Whether random numbers only shift quadrature nodes: the mean over replicas is
        then the law.
        """
        drawn = [step for step in self.steps if step.kind in DRAWS]
        return bool(drawn) and all(
            step.params["key"][-2] == NODE_SHIFTS for step in drawn
        )

    def replicas(self, draws: int) -> int:
        """The replicas of a law with this many draws."""
        return (
            1
            if self.constant
            else (
                max(MIN_NODE_SETS, draws // DRAWS_PER_NODE_SET)
                if self.averaged
                else draws
            )
        )

    def seconds(self, draws: int) -> float:
        """Roughly the seconds for this many draws on one core of a current
        processor.
        """
        if self.constant:
            return 0.0
        return self.replicas(draws) * self._each + self.integration_seconds(draws)

    def integration_seconds(self, draws: int) -> float:
        """The part of `seconds` for expectations of functions of several vectors, at
        infinite width.
        """
        replicas = self.replicas(draws)
        block = max(1, min(replicas, CHUNK, BLOCK_BYTES // max(self.bytes, 1)))
        return (
            replicas
            / block
            * sum(integral.seconds(block) for integral in self._integrals)
        )

    @property
    def _integrals(self) -> list[Integral]:
        return [step.integral for step in self.steps if step.integral is not None]

    @property
    def probing_seconds(self) -> float:
        """Roughly the seconds to measure the effect of errors of Gaussian expectations,
        which every law does first.
        """
        return (
            PROBED_PLANS * self.integration_seconds(QUADRATURE_PROBE_REPLICAS)
            if self.expects
            else 0.0
        )

    def check_integration(self, draws: int) -> None:
        """Reject draws whose expectations of functions of several vectors would take
        too long.
        """
        probing = self.probing_seconds
        seconds = probing + self.integration_seconds(draws)
        if seconds <= MAX_SECONDS:
            return
        fewer = draws
        while (
            fewer >= FEWEST_DRAWS
            and probing + self.integration_seconds(fewer) > MAX_SECONDS
        ):
            fewer //= 2
        raise UnplacedError(
            slow_expectations(
                counted(draws, "draw"), seconds, fewer if fewer >= FEWEST_DRAWS else 0
            )
        )

    @cached_property
    def _each(self) -> float:
        """Roughly the seconds per replica."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        head, *lines = (
            textwrap.fill(line, 80, subsequent_indent=4 * " ")
            for line in (self.title, *self._summary())
        )
        rows = _rows(self.steps, self.loops)
        width = max((len(words) for words, *_ in rows), default=0)
        lines += (
            f"{words:{width}}  {numbers:>12}  {shape}" for words, numbers, shape in rows
        )
        return "\n  ".join([head, *lines])

    def _summary(self) -> list[str]:
        """The lines on its cost."""
        taken = f"50,000 draws take about {in_time(self.seconds(50_000))} on one core"
        if self.constant:
            taken = (
                "the law does not depend on random numbers: it is known without a draw"
            )
        elif self.averaged:
            taken = (
                f"random numbers only shift quadrature nodes, {self.replicas(50_000)}"
                " times for 50,000 draws"
            )
        integration = self.integration_seconds(50_000)
        if integration > 1.0:
            taken += (
                f", of which {in_time(integration)} for expectations of functions of"
                " several vectors"
            )
        notes = [f"note: {note}" for note in self.notes]
        if self.place != CPU.place:
            notes.insert(0, f"made for {self.place}")
        numbers = (
            f"{self.random_numbers:,} random numbers, {self.operations:,} operations"
        )
        return [f"{numbers} and {self.bytes:,} bytes per replica", taken, *notes]

    def _repr_html_(self) -> str:
        steps = table(
            _rows(self.steps, self.loops),
            ("step", "random numbers", "shape"),
            code=True,
        )
        return title(self.title) + "".join(map(note, self._summary())) + steps

    def __repr__(self) -> str:
        return (
            f"<Plan: {len(self.steps)} steps, {self.random_numbers} random numbers per"
            " replica>"
        )


def _rows(steps: Sequence[Step], found: Sequence[Loop] = ()) -> list[tuple[str, ...]]:
    """The printed rows (description, random numbers, shape) of steps with a
    description; loops show one block.
    """
    rows: list[tuple[str, ...]] = []
    done = 0
    for loop in found:
        block = steps[loop.start : loop.start + loop.period]
        rows += _rows(steps[done : loop.start])
        rows.append((f"{loop.times} times, with new random numbers each time:", "", ""))
        rows += [(f"  {words}", *rest) for words, *rest in _rows(block)]
        done = loop.stop
        if done < len(steps):
            rows.append(("then:", "", ""))
    for step in steps[done:]:
        if step.words:
            shape = " × ".join(map(str, step.out.shape)) or "one number"
            rows.append(
                (
                    f"{step.kind:8} {step.words}",
                    f"{step.numbers:,}" if step.numbers else "",
                    shape,
                )
            )
    return rows


def slow_expectations(what: str, seconds: float, fewer_draws: int = 0) -> str:
    """The message of an error: `what` would take too long; `fewer_draws` would not,
    unless 0.
    """
    less = f"at most {fewer_draws:,} draws, " if fewer_draws else ""
    return (
        f"expectations of functions of several vectors: {what} at width inf would take"
        f" about {in_time(seconds)} of one core (allowed: {in_time(MAX_SECONDS)}); take"
        f" {less}finite widths, which need no expectations, or net.law(…,"
        " method='extrapolate'), which estimates the limit from exact laws at finite"
        " widths"
    )


def in_time(seconds: float) -> str:
    """A time as text, with two or more digits, in a suitable unit."""
    units = (
        (31_557_600.0, "years"),
        (86_400.0, "days"),
        (3_600.0, "h"),
        (60.0, "min"),
        (0.0, "s"),
    )
    size, unit = next((size, unit) for size, unit in units if seconds >= 2 * size)
    number = seconds / (size or 1.0)
    return f"{number:.0f} {unit}" if 10 <= number < 1e6 else f"{number:.2g} {unit}"


def run(
    plan: Plan,
    draw: Callable[[Step], Array],
    constant: Callable[[Register], Array],
    compute: Callable[[Step, Sequence[Array], int | None], Array],
) -> tuple[Array, Array]:
    """Mean (replicas or 1, entries) and coefficients (replicas or 1, entries, ·) of one
    coordinate of the outputs.
    """
    # Given all random numbers, a coordinate is mean + coefficients · N(0, I). `draw`
    # returns the random numbers of a step, (replicas, *shape), and `constant` the array
    # of a register with a value. `compute(step, arrays, place)` executes any other
    # step; it may overwrite the array at index `place`, unless that is None.
    arrays: dict[Any, Array] = {}
    for step, (dead, place) in zip(plan.steps, plan.live, strict=True):
        if step.kind in DRAWS:
            arrays[step.out] = draw(step)
        else:
            inputs = [
                arrays[arg] if arg.value is None else constant(arg) for arg in step.args
            ]
            arrays[step.out] = compute(step, inputs, place)
            del inputs
        for register in dead:
            del arrays[register]
    return tuple(
        arrays[r] if r.value is None else constant(r) for r in (plan.mean, plan.columns)
    )


def compute(
    linalg: _gram_schmidt.LinalgBackend,
    kind: str,
    inputs: Sequence[Array],
    params: dict[str, Any],
) -> Array:
    """Execute one instruction in an array library; instructions without a rule are
    methods of its linear algebra.
    """
    rule = RULES.get(kind)
    return (
        getattr(linalg, kind)(*inputs, **params)
        if rule is None
        else rule(linalg.xp, *inputs, **params)
    )


def in_numpy(step: Step, inputs: Sequence[Array], place: int | None) -> Array:
    """Execute one step with numpy, in place if the buffer is dead and not broadcast
    over replicas.
    """
    if (
        place is not None
        and inputs[place].flags.writeable
        and len(inputs[place]) == max(map(len, inputs))
    ):
        if step.kind == "apply":
            return _ops.apply(np, *inputs, **step.params, out=inputs[place])
        return IN_PLACE[step.kind](*inputs, *step.params.values(), out=inputs[place])
    return compute(_gram_schmidt.NUMPY, step.kind, inputs, step.params)
