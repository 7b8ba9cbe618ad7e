"""The shortcut `positive`: Gram matrices of ReLU vectors from the number of coordinates
with each sign pattern.

Identity (docs/theory.md, "Nonlinear sections"): ⟨relu(x), relu(y)⟩ is a sum over
coordinates, so only the number of coordinates with each sign pattern matters, which is
multinomial. A number that multiplies all vectors multiplies their factor, since relu(c
x) = c relu(x) for c > 0, and for c < 0 the law is the same. The conditions are
structural: only these products use the coordinates; there is one frame, few vectors,
and enough coordinates for every pattern; and the backend allows replicas to draw
different amounts of random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ...functions.activations import RELU
from ...language.theorem._check_function import content
from ..plan._ir import Register, Step
from ..plan._plan import Plan

MAX_VECTORS = 4  # k vectors have 2^k patterns
# Mean number of coordinates per pattern: with fewer, a sum per pattern costs more than
# the normals
MIN_COORDINATES_PER_PATTERN = 16


def _may_be_replaced(step: Step) -> bool:
    """Whether a step computes inner products of few vectors: a quick test."""
    if step.kind not in ("reduced", "squares"):
        return False
    *_, rows = step.args
    vectors = rows.shape[-2] if len(rows.shape) > 1 else 1
    return vectors <= MAX_VECTORS


def with_sign_patterns(plan: Plan) -> Plan:
    """The plan with products of ReLU vectors sampled from sign patterns, if any."""
    if not any(map(_may_be_replaced, plan.steps)):
        return plan
    step_of = {step.out: step for step in plan.steps}
    reads = Counter([plan.mean, plan.columns])  # how often each array is read
    for step in plan.steps:
        reads.update(step.args)
    steps: list[Step] = []
    for step in plan.steps:
        replacement = _from_patterns(step, step_of, reads)
        if replacement is None:
            steps.append(step)
        else:
            steps += replacement
    if len(steps) == len(plan.steps):
        return plan
    return replace(plan, steps=steps)


def _from_patterns(
    step: Step, step_of: dict[Register, Step], reads: Counter[Register]
) -> list[Step] | None:
    """The steps that replace a step; None if it is to be kept.

    They replace a factorisation of the Gram matrix of ReLU vectors, or a squared norm
    of one, by the same function of products drawn from sign patterns. The steps that
    made the vectors are then unused, and the plan drops them.
    """
    if not _asks_for_few_products(step, step_of, reads):
        return None
    rows = step.args[-1]
    # a factorisation reads the rows itself, and its Gram matrix reads them twice
    row_reads = 3 if step.kind == "reduced" else 1
    relu = _source_of(rows, step_of, reads, allowed_reads=row_reads)
    if relu is None or relu.step.kind != "apply":
        return None
    if content(relu.step.params["f"]) != content(RELU):
        return None
    normals = _source_of(relu.step.args[0], step_of, reads)
    if normals is None or normals.step.kind != "normals":
        return None
    if normals.step.out.size != rows.size:
        return None
    scales = [*normals.factors, *relu.factors]
    return _steps_of_patterns(step, rows, normals=normals.step, scales=scales)


def _steps_of_patterns(
    step: Step, rows: Register, normals: Step, scales: Sequence[Step]
) -> list[Step]:
    """The steps from products drawn from sign patterns to the result of `step`.

    The step factors the Gram matrix of the rows (frames, vectors, width), or takes
    their squared norms. The rows are the positive parts of `normals`, times numbers by
    the steps `scales`.
    """
    products = _products_step(normals, rows)
    triangular = Step(
        kind="factor",
        out=Register(products.out.shape),
        args=(products.out,),
        params={},
        label=step.label,
        operations=step.operations,
    )
    steps = [products, triangular]
    # numbers that multiply all vectors multiply the factor
    for scale in scales:
        scalars = [arg for arg in scale.args if arg.size == 1]
        steps.append(
            Step(
                kind=scale.kind,
                out=Register(products.out.shape),
                args=(*scalars, steps[-1].out),
                params=scale.params,
                label=scale.label,
                operations=products.out.size,
            )
        )
    if step.kind == "squares":
        # the factor of one vector is its norm
        return [*steps, replace(step, args=(steps[-1].out,), operations=1)]
    return [*steps[:-1], replace(steps[-1], out=step.out)]


def _products_step(normals: Step, rows: Register) -> Step:
    """The step that draws the products of the positive parts of normals.

    `rows` (frames, vectors, width) is the array of these parts.
    """
    frames, vectors, width = rows.shape
    patterns = 2**vectors
    # Coordinates positive in two vectors or more need the size of each of these: half
    # of all coordinates in each vector, without those positive in it alone.
    sizes = round(width * (vectors / 2 - vectors / patterns))
    counts = patterns - 1
    chi_squares = vectors  # of the coordinates positive in one vector
    return Step(
        kind="positive",
        out=Register((frames, vectors, vectors)),
        args=(),
        params={
            "key": normals.params["key"],
            "width": width,
            "numbers": sizes + counts + chi_squares,
        },
        label=normals.label.replace("all coordinates", "products of positive parts"),
        operations=0,
    )


def _asks_for_few_products(
    step: Step, step_of: dict[Register, Step], reads: Counter[Register]
) -> bool:
    """Whether a step needs only the products of a few long vectors of one frame.

    It is a factorisation of their Gram matrix, which nothing else reads, or the squared
    norm of one vector.
    """
    if step.kind not in ("reduced", "squares"):
        return False
    rows = step.args[-1]
    if len(rows.shape) != 3:
        return False
    frames, vectors, width = rows.shape
    if frames != 1 or vectors > MAX_VECTORS:
        return False
    if width < MIN_COORDINATES_PER_PATTERN * 2**vectors:
        return False
    if step.kind == "squares":
        return vectors <= 1
    gram = step_of.get(step.args[0])
    is_gram = gram is not None and gram.kind == "gram" and gram.args == (rows, rows)
    return is_gram and reads[step.args[0]] <= 1


class FactoredSource(NamedTuple):
    """The step that made an array, up to scalar factors."""

    step: Step
    factors: list[Step]  # the steps that multiply its result, last one first


def _source_of(
    register: Register,
    step_of: dict[Register, Step],
    reads: Counter[Register],
    allowed_reads: int = 1,
) -> FactoredSource | None:
    """The step that made an array, up to reshapes and scalar factors.

    The array may be read `allowed_reads` times, as by the steps that are to be
    replaced. None if it is read more often, if an array in between is read twice, if a
    step in between combines arrays or has a factor that is not a single number, or if
    no step makes the array.
    """
    size = register.size
    factors: list[Step] = []
    while register in step_of and reads[register] <= allowed_reads:
        step = step_of[register]
        if step.kind not in ("reshape", "multiply", "scale"):
            return FactoredSource(step, factors)
        arrays = [arg for arg in step.args if arg.size == size]
        if len(arrays) != 1:
            return None
        (array,) = arrays
        if any(arg.shape != (1, 1, 1) for arg in step.args if arg is not array):
            return None
        if step.kind != "reshape":
            factors.append(step)
        register = array
        allowed_reads = 1  # only the array itself may be read more often
    return None
