"""The table of instructions: every one is computed by numpy, priced, and used."""

import doctest
import inspect

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    INSTRUCTIONS,
    Builder,
    Group,
    LinalgBackend,
    Register,
    Step,
    Streams,
    UnknownInstructionError,
    _instructions,
    _ir,
    _ir_builder,
    _plan_query,
    _register,
    activations,
    in_numpy,
)
from tests.internals import engine_reference as _reference

n = ns.Width("n")
T = np.array([1.0, -1.0])


def rate(fan_in, fan_out):
    return 0.5 / fan_in


def attention(width):
    x = ns.gaussian(n, 3)
    x = x + ns.nn.attention(ns.rms_norm(x), 2)
    return ns.Program((ns.weight(n, n) @ x)[0]).plan(n=width)


def rotary_stack():
    """Coordinates of vectors after rotations and several layers of one width."""
    x = ns.rotary(ns.weight(12, n) @ ns.gaussian(n, 3))
    for _ in range(2):
        x = ns.weight(12, 12) @ ns.tanh(ns.weight(12, 12) @ x) + x
    return ns.Program(x[0]).plan(n=5)


def jump(width, mixed):
    """A jump where two arguments are equal, behind random scores."""
    x = ns.nn.embedding([5, 7, 5], n)
    x = x + ns.nn.attention(ns.rms_norm(x), 2)
    if mixed:
        x = np.array([[0.5, 0.5, 0], [0, 1, 0]]) @ ns.tanh(x)
    f = ns.Function("at least", lambda x, y: (x >= y) * 1.0)
    return ns.Program(ns.nonlin(f, x[0], x[1])).plan(n=width)


def patterns():
    x = ns.relu(ns.weight(n, n, batch=2) @ ns.gaussian(n))
    return ns.Program(ns.nn.attention(x, 1)[0]).plan(n=500)


def trained_by_adam(width):
    """The hidden layer of a perceptron, and the output, after Adam's first step."""
    w, r = ns.weight(n, n), ns.gaussian(n)
    hidden = w @ ns.tanh(ns.weight(n, 3) @ ns.data(np.ones((2, 3)) + np.eye(2, 3)))
    f = ns.mean_dot(r, ns.tanh(hidden))
    after = ns.step(f, 0.5 * ((f - T) ** 2).sum(), rate, "adam", weights=w)
    return ns.Program(after).plan(n=width)


def trained_by_sgd():
    """The output, and how far the hidden layer moves, after a step of all weights."""
    first, w, r = ns.weight(n, 3), ns.weight(n, n), ns.gaussian(n)
    hidden = w @ ns.tanh(first @ ns.data(np.ones((2, 3)) + np.eye(2, 3)))
    f = ns.dot(r, ns.tanh(hidden))
    loss = 0.5 * ((f - T) ** 2).sum()
    rates = {first: 0.5, w: rate, r: 0.5}
    outputs, after = ns.step([f, hidden], loss, rates, "sgd", weights=[first, w, r])
    change = (after - hidden)[0]
    return ns.Program((outputs, ns.mean_dot(change, change))).plan(n=ns.inf)


def gradients_with_small_parts():
    x, r = ns.gaussian(n, 2), ns.gaussian(n)
    y = x + ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ x)
    y = ns.rms_norm(y + ns.nn.attention(y, 1), eps=0.0)
    g = ns.grad(ns.dot(r, y.sum(axis=0)), x)
    return ns.Program((ns.dot(g[0], x[1]), ns.dot(g[1], x[1]))).plan(n=ns.inf)


PROGRAMS = {
    "attention": lambda: attention(64),
    "attention of few coordinates": lambda: attention(2),
    "attention at infinite width": lambda: attention(ns.inf),
    "rotary stack": rotary_stack,
    "a jump": lambda: jump(16, mixed=False),
    "a jump at nodes": lambda: jump(ns.inf, mixed=True),
    "signs of coordinates": patterns,
    "SGD at infinite width": trained_by_sgd,
    "Adam": lambda: trained_by_adam(200),
    "Adam at infinite width": lambda: trained_by_adam(ns.inf),
    "gradients": gradients_with_small_parts,
}


@pytest.fixture(scope="module")
def plans():
    return {name: plan() for name, plan in PROGRAMS.items()}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instruction_has_one_way_to_be_computed(name):
    instruction = INSTRUCTIONS[name]
    ways = [instruction.rule, instruction.method]
    assert sum(way is not None for way in ways) == (not instruction.draws)
    if instruction.rule is not None:
        assert next(iter(inspect.signature(instruction.rule).parameters)) == "xp"
    if instruction.method is not None:
        assert vars(LinalgBackend)[instruction.method.__name__] is instruction.method
    if instruction.overwrites is not None:
        assert "out" in inspect.signature(instruction.rule).parameters


def test_every_instruction_is_a_step_of_some_program(plans):
    used = {step.kind for plan in plans.values() for step in plan.steps}
    assert used == set(INSTRUCTIONS)


def test_numpy_computes_every_step_with_the_shape_of_its_register(plans):
    """And a view shares memory with its argument, which the plan relies on."""
    replicas = 3
    for plan in plans.values():
        streams, arrays = Streams(0, 0), {}
        for step in plan.steps:
            if step.instruction.draws:
                result = streams.draw(step, replicas)
            else:
                inputs = [arrays.get(arg, arg.value) for arg in step.args]
                with np.errstate(all="ignore"):
                    result = in_numpy(step, inputs, None)
            assert result.shape[0] in (1, replicas)
            assert result.shape[1:] == step.out.shape
            arrays[step.out] = result
            if step.args and np.may_share_memory(result, inputs[0]):
                assert step.instruction.group is Group.VIEW


def test_every_step_has_a_price(plans):
    for plan in plans.values():
        for step in plan.steps:
            view = step.instruction.group is Group.VIEW
            free = view or step.integral is not None or step.out.size == 0
            assert (step.seconds == 0.0) == free
            assert (step.random_numbers > 0) == step.instruction.draws


def test_unknown_instruction_is_refused_when_a_step_is_added():
    build = Builder()
    a = build.draw("normals", (0, 0, 1, 0), (2, 3), "A")
    with pytest.raises(UnknownInstructionError, match="did you mean 'product'"):
        build.step("prodcut", a, a, result_shape=(2, 2))
    with pytest.raises(UnknownInstructionError, match="'normals'"):
        build.draw("normal", (0, 0, 1, 1), (2, 3), "B")
    with pytest.raises(UnknownInstructionError, match="among normals, chi"):
        Step("zzz", Register(()), (), {}, "", 0)
    assert [step.kind for step in build.steps] == ["normals"]


@pytest.mark.parametrize(
    ("f", "g", "constant", "needs_numpy"),
    [
        ("RELU", "ABS", False, False),
        ("ERF", "ERF", False, False),
        ("SIN", "COS", False, False),
        ("TANH", "TANH", False, True),
        ("ERF", "GELU", False, True),
        ("RELU", "RELU", True, True),  # with means
    ],
)
def test_kernel_needs_numpy_unless_a_formula_is_known(f, g, constant, needs_numpy):
    u = Register((1, 4, 1, 6))
    functions = {"f": getattr(activations, f), "g": getattr(activations, g)}
    params = {**functions, "params_of_f": 0, "constant": constant}
    step = Step("kernel", Register((1, 4, 4)), (u, u), params, "", 16)
    assert step.needs_numpy == needs_numpy


def test_kernel_of_several_vectors_and_of_parameters_needs_numpy():
    single = Register((1, 4, 1, 6))
    several = Register((1, 4, 2, 6))
    relu = activations.RELU
    params = {"f": relu, "g": relu, "params_of_f": 0, "constant": False}
    out = Register((1, 4, 4))
    assert Step("kernel", out, (single, several), params, "", 16).needs_numpy
    scalars = Register((1, 4))
    assert Step("kernel", out, (single, single, scalars), params, "", 16).needs_numpy
    assert not Step("product", out, (single, single), {}, "", 16).needs_numpy


@pytest.mark.parametrize(
    "module", [_register, _instructions, _ir, _ir_builder, _plan_query, _reference]
)
def test_examples_of_internal_classes_run(module):
    globs = vars(module) | {"np": np, "ns": ns}
    results = doctest.testmod(
        module, extraglobs=globs, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert results.failed == 0
