"""A plan: a list of small steps on arrays of known shapes, without branches; its cost,
and how to run it.

Lowering (see `lower`) makes the plan and takes every decision. Running it is a loop
over the steps. The backend chooses the array library and draws the random numbers (see
`backends`).
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..._array_api import Array
from ..._validate import counted
from ...report._html import note, table, title
from ...runtime._units import in_time
from .._exceptions import UnplacedError
from ..linalg import _gram_schmidt
from ..run._rng_keys import CHUNK, NODE_SHIFTS
from ._cost_model import CPU
from ._expectation_cost import MAX_SECONDS
from ._instructions import DRAWS, INSTRUCTIONS, VIEWS, Integral, instruction_named
from ._ir import Loop, Register, Step, hyperparameter_register, loop_key, loops

# A law without other random numbers is averaged over node sets. One set costs as much
# as a few hundred ordinary draws
DRAWS_PER_NODE_SET = 256
MIN_NODE_SETS = 16  # fewer node sets give no standard error
# of the arrays of replicas computed together: little Python overhead, and they fit in a
# cache
BLOCK_BYTES = 2**21
# replicas that measure the effect of errors of Gaussian expectations
QUADRATURE_PROBE_REPLICAS = 32
FEWEST_DRAWS = 100  # an error suggests no fewer draws: they would show little of a law
PROBED_PLANS = 3  # the plan, and two whose expectations are shifted by their errors
# entries: numpy loops efficiently over rows of this length, so replicas need not be
# innermost
MIN_INNERMOST_ROW = 32


class Liveness(NamedTuple):
    """What happens to the arguments of a step."""

    # registers that no later step reads; their memory may live on in a view
    dead: set[Register]
    # the position of the argument whose array the result may be written into
    overwritten: int | None


def liveness(
    steps: Sequence[Step], results: Sequence[Register]
) -> Iterator[tuple[Step, Liveness]]:
    """Yield the steps that the results depend on, last step first.

    Other steps are left out. Each step comes with what happens to its arguments. A
    register is dead once no later step reads it by name. Its memory may be reused only
    if no later step reads it by any name: a view shares the memory of its array.
    """
    owner: dict[Register, Register] = {}  # view → the array whose memory it shares
    for step in steps:
        if step.kind in VIEWS:
            viewed = step.args[0]
            owner[step.out] = owner.get(viewed, viewed)
        else:
            owner[step.out] = step.out
    # what later steps read: registers, and the arrays behind views
    read = set(results)
    read_memory = {owner.get(result, result) for result in results}
    for step in reversed(steps):
        if step.out not in read:
            continue
        dead = {arg for arg in step.args if arg.value is None and arg not in read}
        yield step, Liveness(dead, _reusable_argument(step, owner, read_memory))
        read.update(step.args)
        read_memory.update([owner.get(arg, arg) for arg in step.args])


def _reusable_argument(
    step: Step, owner: Mapping[Register, Register], read_memory: Collection[Register]
) -> int | None:
    """The position of the first argument that the result may be written over.

    `owner` gives the array whose memory a view shares, and `read_memory` the arrays
    that later steps read. None if the instruction never overwrites an argument, or if
    no argument has the shape of the result and memory that no later step reads.
    """
    may_overwrite = INSTRUCTIONS[step.kind].overwrites
    if may_overwrite is None or not may_overwrite(step.params):
        return None
    for i, arg in enumerate(step.args):
        is_read_later = owner.get(arg, arg) in read_memory
        if arg.varies and arg.shape == step.out.shape and not is_read_later:
            return i
    return None


@dataclass(eq=False)
class Plan:
    """The steps that sample each replica of a program at given widths.

    A plan is a straight line: no step branches, each reads only constants and results
    of earlier steps, and every shape is known. So its cost is known before it runs, and
    every backend runs it with the same loop, `run`. All decisions were made by
    lowering.

    Create it with `Program.plan`; `print(plan)` shows the steps. The attribute `bytes`
    is the memory of one replica.

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
        Functions that are known only by their values at points. Their expectations are
        computed from these values.
    place : str
        The device that the plan is for. Which of two exact methods is cheaper depends
        on it.
    independent : dict
        The linearly independent directions of inputs at infinite width, shared with the
        plans whose expectations are shifted.
    on_nodes : frozenset of int
        The numbers of the groups whose expectations are means over nodes, shared with
        these plans too.
    small_parts : bool
        Whether the parts of scores that vanish like n^(−1/2) are followed, here and in
        these plans.
    bytes_kept : int
        If results are dropped and computed again to save memory (see `_recompute`), the
        memory of one replica without that; 0 otherwise.

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
    on_nodes: frozenset[int] = frozenset()
    small_parts: bool = False
    bytes_kept: int = 0

    def __post_init__(self) -> None:
        used_steps = list(liveness(self.steps, (self.mean, self.columns)))[::-1]
        self.steps = [step for step, _ in used_steps]
        self.live = [live for _, live in used_steps]
        stored = 0  # numbers of a replica
        peak = 0  # bytes of a replica
        for step, live in used_steps:
            stored += step.out.size
            peak = max(peak, 8 * (stored + step.temporary_numbers))
            stored -= sum(register.size for register in live.dead)
        self.bytes = peak

    @cached_property
    def loops(self) -> list[Loop]:
        """Repeated blocks of equal steps.

        Each is described by its first step, the steps per block, and the number of
        blocks.
        """
        positions = {step.out: k for k, step in enumerate(self.steps)}
        keys = [loop_key(step, k, positions) for k, step in enumerate(self.steps)]
        return loops(keys)

    @property
    def random_numbers(self) -> int:
        """The average number of random numbers per replica."""
        return sum(step.random_numbers for step in self.steps)

    @property
    def long_numbers(self) -> int:
        """The random numbers in rows of 32 or more.

        These are coordinates of vectors rather than entries of Gram matrices.
        """
        return sum(
            step.random_numbers
            for step in self.steps
            if step.out.shape and step.out.shape[-1] >= MIN_INNERMOST_ROW
        )

    @property
    def operations(self) -> int:
        """An estimate of the entries and products computed per replica."""
        return sum(step.operations for step in self.steps)

    @property
    def constant(self) -> bool:
        """Whether the law depends on no random number: one replica is then the law."""
        return not any(step.kind in DRAWS for step in self.steps)

    def bind(self, numbers: Mapping[str, float]) -> Plan:
        """The plan with values for its hyperparameters, by name.

        Each register of a hyperparameter is replaced by one that holds its value.
        """
        registers = {
            name: hyperparameter_register(name, number)
            for name, number in numbers.items()
        }

        def bound(register: Register) -> Register:
            """The register of a hyperparameter's number; other registers stay."""
            if register.hyperparameter is None:
                return register
            return registers.get(register.hyperparameter, register)

        plan = copy.copy(self)
        plan.mean = bound(self.mean)
        plan.columns = bound(self.columns)
        plan.steps = []
        for step in self.steps:
            if any(arg.hyperparameter for arg in step.args):
                step = replace(step, args=tuple(map(bound, step.args)))
            plan.steps.append(step)
        return plan

    @property
    def averaged(self) -> bool:
        """Whether random numbers only shift quadrature nodes.

        The mean over replicas is then the law.
        """
        drawn = [step for step in self.steps if step.kind in DRAWS]
        return bool(drawn) and all(
            step.params["key"][-2] == NODE_SHIFTS for step in drawn
        )

    def replicas(self, draws: int) -> int:
        """The number of replicas of a law with this many draws."""
        if self.constant:
            return 1
        if self.averaged:
            return max(MIN_NODE_SETS, draws // DRAWS_PER_NODE_SET)
        return draws

    def seconds(self, draws: int) -> float:
        """The estimated seconds for this many draws on one core of a current CPU."""
        if self.constant:
            return 0.0
        sampling = self.replicas(draws) * self._replica_seconds
        return sampling + self.integration_seconds(draws)

    def integration_seconds(self, draws: int) -> float:
        """The part of `seconds` for expectations of functions of several vectors.

        It is 0 at finite widths.
        """
        every_integral = self._first_integrals + self._later_integrals
        return self._seconds_of(every_integral, self.replicas(draws))

    def _seconds_of(self, integrals: Sequence[Integral], replicas: int) -> float:
        """The estimated seconds of some of the expectations, in blocks of replicas."""
        replicas_that_fit = BLOCK_BYTES // max(self.bytes, 1)
        block = max(1, min(replicas, CHUNK, replicas_that_fit))
        block_seconds = sum(integral.seconds(block) for integral in integrals)
        return replicas / block * block_seconds

    @property
    def _first_integrals(self) -> list[Integral]:
        """The expectations whose arguments depend on no expectations."""
        return self._integrals_by_depth[0]

    @property
    def _later_integrals(self) -> list[Integral]:
        """The expectations whose arguments depend on others."""
        return self._integrals_by_depth[1]

    @cached_property
    def _integrals_by_depth(self) -> tuple[list[Integral], list[Integral]]:
        """The first and the later expectations."""
        first: list[Integral] = []
        later: list[Integral] = []
        shifting: set[Register] = set()  # results that depend on expectations
        for step in self.steps:
            depends = any(arg.shifts or arg in shifting for arg in step.args)
            if depends or step.instruction.shifted:
                shifting.add(step.out)
            if step.integral is not None:
                found = later if depends else first
                found.append(step.integral)
        return first, later

    @property
    def probing_seconds(self) -> float:
        """The estimated seconds to measure how errors of Gaussian expectations affect a
        law.

        Every law measures this first. The shifted plans remember the first
        expectations, which have equal arguments in all of them.
        """
        if not self.expects:
            return 0.0
        replicas = 1 if self.constant else QUADRATURE_PROBE_REPLICAS
        once = self._seconds_of(self._first_integrals, replicas)
        return once + PROBED_PLANS * self._seconds_of(self._later_integrals, replicas)

    def check_integration(self, draws: int) -> None:
        """Raise an error if the expectations of these draws would take too long.

        Only functions of several vectors take long. The error suggests fewer draws,
        unless even FEWEST_DRAWS would take too long.
        """

        def seconds(draws: int) -> float:
            """The time of this many draws."""
            return self.probing_seconds + self.integration_seconds(draws)

        if seconds(draws) <= MAX_SECONDS:
            return
        fewer = draws
        while fewer >= FEWEST_DRAWS and seconds(fewer) > MAX_SECONDS:
            fewer //= 2
        if fewer < FEWEST_DRAWS:
            fewer = 0
        raise UnplacedError(
            slow_expectations(counted(draws, "draw"), seconds(draws), fewer_draws=fewer)
        )

    @cached_property
    def _replica_seconds(self) -> float:
        """The estimated seconds per replica."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        lines = []
        for line in (self.title, *self._summary()):
            lines.append(textwrap.fill(line, 80, subsequent_indent=4 * " "))
        rows = printed_rows(self.steps, self.loops)
        width = max((len(row.step) for row in rows), default=0)
        for row in rows:
            lines.append(f"{row.step:{width}}  {row.random_numbers:>12}  {row.shape}")
        return "\n  ".join(lines)

    def _summary(self) -> list[str]:
        """The lines under the title of a printed plan: its cost, and notes."""
        if self.constant:
            time = (
                "the law does not depend on random numbers: it is known without a draw"
            )
        elif self.averaged:
            time = (
                f"random numbers only shift quadrature nodes, {self.replicas(50_000)}"
                " times for 50,000 draws"
            )
        else:
            time = (
                f"50,000 draws take about {in_time(self.seconds(50_000))} on one core"
            )
        integration = self.integration_seconds(50_000)
        if integration > 1.0:
            time += (
                f", of which {in_time(integration)} for expectations of functions of"
                " several vectors"
            )
        numbers = (
            f"{self.random_numbers:,} random numbers, {self.operations:,} operations"
        )
        lines = [f"{numbers} and {self.bytes:,} bytes per replica", time]
        if self.bytes_kept:
            lines.append(
                "blocks are computed again in the backward pass: without that,"
                f" {self.bytes_kept:,} bytes per replica"
            )
        if self.place != CPU.place:
            lines.append(f"made for {self.place}")
        return lines + [f"note: {remark}" for remark in self.notes]

    def _repr_html_(self) -> str:
        """The plan as a table, for a notebook."""
        steps = table(
            printed_rows(self.steps, self.loops),
            ("step", "random numbers", "shape"),
            code=True,
        )
        return title(self.title) + "".join(map(note, self._summary())) + steps

    def __repr__(self) -> str:
        return (
            f"<Plan: {len(self.steps)} steps, {self.random_numbers} random numbers per"
            " replica>"
        )


class PrintedRow(NamedTuple):
    """One row of a printed plan."""

    step: str  # the instruction and its description
    random_numbers: str = ""
    shape: str = ""


def printed_rows(
    steps: Sequence[Step], repeated: Sequence[Loop] = ()
) -> list[PrintedRow]:
    """The rows of a printed plan: its steps with a description.

    Of a loop among `repeated` only the first block is printed, indented.
    """
    rows: list[PrintedRow] = []
    start = 0  # the first step after the last loop
    for loop in repeated:
        rows += printed_rows(steps[start : loop.start])
        rows.append(
            PrintedRow(f"block × {loop.times}, with new random numbers each time:")
        )
        block = printed_rows(steps[loop.start : loop.start + loop.period])
        rows += [row._replace(step=f"  {row.step}") for row in block]
        start = loop.stop
        if start < len(steps):
            rows.append(PrintedRow("then:"))
    rows += [_printed_row(step) for step in steps[start:] if step.label]
    return rows


def _printed_row(step: Step) -> PrintedRow:
    """The row of one step."""
    numbers = step.random_numbers
    return PrintedRow(
        step=f"{step.kind:8} {step.label}",
        random_numbers=f"{numbers:,}" if numbers else "",
        shape=" × ".join(map(str, step.out.shape)) or "one number",
    )


def slow_expectations(task: str, seconds: float, fewer_draws: int = 0) -> str:
    """The message of an error: a task, such as `50000 draws`, would take too long.

    It suggests `fewer_draws`, unless 0.
    """
    less = f"at most {fewer_draws:,} draws, " if fewer_draws else ""
    return (
        f"expectations of functions of several vectors: {task} at width inf would take"
        f" about {in_time(seconds)} of one core (allowed: {in_time(MAX_SECONDS)}); take"
        f" {less}finite widths, which need no expectations, or net.law(…,"
        " method='extrapolate'), which estimates the limit from exact laws at finite"
        " widths"
    )


def run(
    plan: Plan,
    draw: Callable[[Step], Array],
    constant: Callable[[Register], Array],
    compute: Callable[[Step, Sequence[Array], int | None], Array],
) -> tuple[Array, Array]:
    """Mean and coefficients of one coordinate of the outputs, of a block of replicas.

    Given all random numbers, a coordinate is mean + coefficients · N(0, I). The arrays
    are (replicas or 1, entries) and (replicas or 1, entries, ·).

    Parameters
    ----------
    plan : Plan
        The steps to run.
    draw : callable
        `draw(step)` returns the random numbers (replicas, *shape) of a step.
    constant : callable
        `constant(register)` returns the array of a register with a value.
    compute : callable
        `compute(step, arrays, overwritten)` executes any other step; it may write the
        result over the array with the index `overwritten`, unless that is None.
    """
    arrays: dict[Register, Array] = {}  # the results that a later step reads

    for step, (dead, overwritten) in zip(plan.steps, plan.live, strict=True):
        if step.kind in DRAWS:
            arrays[step.out] = draw(step)
        else:
            inputs = [
                arrays[arg] if arg.value is None else constant(arg) for arg in step.args
            ]
            arrays[step.out] = compute(step, inputs, overwritten)
            del inputs  # so that dead arrays are freed now
        for register in dead:
            del arrays[register]

    def array_of(result: Register) -> Array:
        """The array of a register: a result so far, or a constant."""
        return arrays[result] if result.value is None else constant(result)

    return array_of(plan.mean), array_of(plan.columns)


def compute(
    linalg: _gram_schmidt.LinalgBackend,
    kind: str,
    inputs: Sequence[Array],
    params: Mapping[str, Any],
) -> Array:
    """Execute one instruction in the array library of `linalg`."""
    return instruction_named(kind).compute(linalg, inputs, params)


def in_numpy(step: Step, inputs: Sequence[Array], overwritten: int | None) -> Array:
    """Execute one step with numpy.

    The result is written over an argument that no later step reads, unless that is not
    writeable or broadcast over replicas.
    """
    instruction = INSTRUCTIONS[step.kind]
    if overwritten is not None:
        out = inputs[overwritten]
        replicas = max(map(len, inputs))
        if out.flags.writeable and len(out) == replicas:
            return instruction.overwrite(out, inputs, step.params)
    return instruction.compute(_gram_schmidt.NUMPY, inputs, step.params)
