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
from dataclasses import replace

from ...functions.activations import RELU
from ...language.theorem._check_function import content
from ..plan._ir import Register, Step
from ..plan._plan import Plan

MAX_VECTORS = 4  # k vectors have 2^k patterns
# Mean number of coordinates per pattern: with fewer, a sum per pattern costs more than
# the normals
MIN_COORDINATES_PER_PATTERN = 16


def with_sign_patterns(plan: Plan) -> Plan:
    """The plan with these products sampled from sign patterns."""
    if not any(
        s.kind in ("reduced", "squares") and s.args[-1].shape[-2:-1] <= (MAX_VECTORS,)
        for s in plan.steps
    ):
        return plan
    made = {step.out: step for step in plan.steps}
    reads = Counter(
        [*(arg for step in plan.steps for arg in step.args), plan.mean, plan.columns]
    )
    steps = [
        new
        for step in plan.steps
        for new in _from_patterns(step, made, reads) or [step]
    ]
    return replace(plan, steps=steps) if len(steps) != len(plan.steps) else plan


def _from_patterns(
    step: Step, made: dict[Register, Step], reads: Counter[Register]
) -> list[Step] | None:
    """The steps that replace a factorisation of products of ReLU vectors, or a square;
    None for any other step.
    """
    if step.kind not in ("reduced", "squares"):
        return None
    rows = step.args[-1]
    frames, vectors, width = rows.shape if len(rows.shape) == 3 else (0, 0, 0)
    if (
        frames != 1
        or vectors > MAX_VECTORS
        or width < MIN_COORDINATES_PER_PATTERN * 2**vectors
    ):
        return None
    times = 1
    if step.kind == "reduced":
        # read twice by the products, and by this step
        gram, times = made.get(step.args[0]), 3
        if (
            gram is None
            or gram.kind != "gram"
            or gram.args != (rows, rows)
            or reads[gram.out] > 1
        ):
            return None
    elif vectors > 1:
        return None
    relu, outer = _behind(rows, made, reads, times)
    if (
        relu is None
        or relu.kind != "apply"
        or content(relu.params["f"]) != content(RELU)
    ):
        return None
    normals, inner = _behind(relu.args[0], made, reads)
    if normals is None or normals.kind != "normals" or normals.out.size != rows.size:
        return None
    shape = (frames, vectors, vectors)
    drawn = (
        round(width * (vectors / 2 - vectors / 2**vectors)) + 2**vectors - 1 + vectors
    )
    params = {"key": normals.params["key"], "width": width, "numbers": drawn}
    words = normals.words.replace("all coordinates", "products of positive parts")
    products = Step(
        kind="positive",
        out=Register(shape),
        args=(),
        params=params,
        words=words,
        operations=0,
    )
    triangular = Step(
        kind="factor",
        out=Register(shape),
        args=(products.out,),
        params={},
        words=step.words,
        operations=step.operations,
    )
    steps = [products, triangular]
    for factor in (*inner, *outer):
        args = (*(arg for arg in factor.args if arg.size == 1), steps[-1].out)
        steps.append(
            Step(
                kind=factor.kind,
                out=Register(shape),
                args=args,
                params=factor.params,
                words=factor.words,
                operations=products.out.size,
            )
        )
    if step.kind == "squares":
        return [*steps, replace(step, args=(steps[-1].out,), operations=1)]
    return [*steps[:-1], replace(steps[-1], out=step.out)]


def _behind(
    register: Register,
    made: dict[Register, Step],
    reads: Counter[Register],
    times: int = 1,
) -> tuple[Step | None, list[Step]]:
    """The step that made an array, up to reshapes and scalar factors, and the steps of
    these factors.

    The first is None if another step reads the array or one in between. The array
    itself may be read `times` times.
    """
    size, factors = register.size, list[Step]()
    while (step := made.get(register)) is not None and reads[register] <= times:
        if step.kind not in ("reshape", "multiply", "scale"):
            return step, factors
        arrays = [arg for arg in step.args if arg.size == size]
        if len(arrays) != 1 or any(
            arg.shape != (1, 1, 1) for arg in step.args if arg is not arrays[0]
        ):
            break
        if step.kind != "reshape":
            factors.append(step)
        register, times = arrays[0], 1
    return None, factors
