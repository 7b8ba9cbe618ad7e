"""Every error path: the message names the operation, what was given, what is allowed,
and the line.
"""

import inspect
import math
import pickle
import re

import numpy as np
import pytest

import netsor as ns
from tests.internals import TraceIndexError

n, m = ns.Width("n"), ns.Width("m")


def x(*shape):
    return ns.gaussian(n, shape)


CASES = {
    "width name": (
        lambda: ns.Width("2n"),
        "Width: name='2n' must be a Python identifier",
    ),
    "reserved width": (
        lambda: ns.Width("draws"),
        "Width: name='draws' must be .* other than",
    ),
    "width number": (
        lambda: ns.Width(0),
        "Width: name=0 must be a positive integer for a fixed width, or a string",
    ),
    "width factor": (lambda: 0.5 * n, "Width: factor=0.5 must be a positive integer"),
    "width true": (lambda: True * n, "Width: factor=True must be a positive integer"),
    "gaussian width": (
        lambda: ns.gaussian(-3),
        "gaussian: width=-3 must be a positive integer or a Width",
    ),
    "gaussian shape": (
        lambda: ns.gaussian(n, (2, 0)),
        r"gaussian: shape=\(2, 0\) must be a positive integer",
    ),
    "gaussian mean": (
        lambda: ns.gaussian(n, 2, mean=[1, 2, 3]),
        r"mean of shape \(3,\) does not broadcast to \(2,\)",
    ),
    "gaussian cov": (
        lambda: ns.gaussian(n, 2, cov=np.eye(3)),
        r"cov of shape \(3, 3\) must be a number or \(2, 2\)",
    ),
    "gaussian variance": (
        lambda: ns.gaussian(n, cov=-1.0),
        "gaussian: cov=-1.0 must not be negative",
    ),
    "gaussian indefinite": (
        lambda: ns.gaussian(n, 2, cov=[[1, 2], [2, 1]]),
        "positive semidefinite",
    ),
    "gaussian asymmetric": (
        lambda: ns.gaussian(n, 2, cov=[[1, 0.5], [0, 1]]),
        "symmetric",
    ),
    "gaussian nan among many": (
        lambda: ns.gaussian(n, 2, mean=np.nan),
        "gaussian: mean: numbers must be finite, got nan",
    ),
    "gaussian nan": (
        lambda: ns.gaussian(n, mean=np.nan),
        "gaussian: mean: numbers must be finite, got nan",
    ),
    "data number": (
        lambda: ns.data(1.0),
        "data: vectors=1.0 must be an array whose last axis",
    ),
    "data text": (
        lambda: ns.data("abc"),
        "data: vectors='abc' must be a real number or an array of them",
    ),
    "data empty": (
        lambda: ns.data(np.ones((0, 3))),
        r"data: vectors: an array of shape \(0, 3\) was given",
    ),
    "weight std": (
        lambda: ns.weight(n, n, std=-1),
        "weight: std=-1 must be a finite number, 0 or from 1e-50 to 1e\\+50",
    ),
    "weight batch": (
        lambda: ns.weight(n, n, batch=0),
        "weight: batch=0 must be a positive integer",
    ),
    "weight width": (
        lambda: ns.weight(n, 1.5),
        "weight: in_width=1.5 must be a positive integer or a Width",
    ),
    "weight index": (
        lambda: ns.weight(n, n, 2)[5],
        r"weight: index 5 is outside shape \(2,\)$",
    ),
    "matmul width": (
        lambda: ns.weight(n, m) @ x(2),
        r"W @ x: W maps R\^m to R\^n, but x lives in R\^n",
    ),
    "matmul operand": (
        lambda: ns.weight(n, n) @ np.ones(3),
        "W @ x: needs a vector, got array",
    ),
    "each batch": (
        lambda: ns.weight(n, n, 3).each(x(2)),
        r"the shape \(2,\) of x must begin with the batch \(3,\)",
    ),
    "add shapes": (
        lambda: x(2) + x(3),
        r"\+: shapes \(2,\) and \(3,\) do not broadcast",
    ),
    "add widths": (
        lambda: x() + ns.gaussian(m),
        r"\+: the vectors live in different spaces, R\^n and R\^m",
    ),
    "multiply widths": (
        lambda: x() * ns.gaussian(m),
        r"\*: the vectors live in different spaces",
    ),
    "multiply shapes": (
        lambda: x(2) * np.ones(3),
        r"\*: shapes \(3,\) and \(2,\) do not broadcast",
    ),
    "add text": (
        lambda: x() + "a",
        r"\+: needs a netsor value or real numbers, got 'a'",
    ),
    "divide by vector": (
        lambda: x() / x(),
        "/: a vector can be divided only by numbers or scalars",
    ),
    "power": (lambda: x() ** 2, r"\*\*: is for scalars: write x \* x"),
    "divide by zero": (lambda: x() / 0.0, "/: division by zero"),
    "mix": (
        lambda: np.ones((2, 3)) @ x(2),
        r"@: scalars of shape \(2, 3\) do not combine vectors of shape \(2,\)",
    ),
    "mix one": (
        lambda: np.ones(3) @ x(),
        r"@: scalars of shape \(3,\) do not combine vectors of shape \(\)",
    ),
    "mix batch": (
        lambda: np.ones((2, 3, 3)) @ x(4, 3),
        r"@: scalars of shape \(2, 3, 3\) do not combine",
    ),
    "scalar matmul": (
        lambda: ns.dot(x(2), x(2)) @ np.ones(2),
        r"shapes \(2, 2\) and \(2,\) cannot be multiplied",
    ),
    "index": (lambda: x(2)[4], r"indexing: index 4 is outside shape \(2,\)$"),
    "index nothing": (
        lambda: x(2)[2:],
        r"index slice\(2, None, None\) selects nothing from shape \(2,\)",
    ),
    "reshape": (lambda: x(4).reshape(3), r"reshape: shape \(4,\) cannot become \(3,\)"),
    "transpose": (
        lambda: x(2, 3).transpose(0, 0),
        r"transpose: axes \(0, 0\) do not reorder shape \(2, 3\)",
    ),
    "broadcast": (
        lambda: x(2).broadcast_to((3,)),
        r"broadcast_to: shape \(2,\) does not broadcast to \(3,\)",
    ),
    "sum axis": (
        lambda: x(2).sum(3),
        r"sum: axis=3 must be an integer from -1 to 0, an axis of shape \(2,\)",
    ),
    "mean axis": (
        lambda: ns.dot(x(2), x(2)).mean((0, 0)),
        r"mean: axis=\(0, 0\) must name each axis of shape \(2, 2\) at most once",
    ),
    "join shapes": (
        lambda: ns.join([x(2, 3), x(2, 2)]),
        r"join: shapes \(2, 3\) and \(2, 2\) do not join along axis 0",
    ),
    "join widths": (
        lambda: ns.join([x(2), ns.gaussian(m, 2)]),
        "join: the vectors live in different spaces",
    ),
    "join nothing": (lambda: ns.join([]), "join: needs at least one value"),
    "stack kinds": (
        lambda: ns.stack([x(), ns.mean_dot(x(), x())]),
        "stack: needs only vectors or only scalars",
    ),
    "stack shapes": (
        lambda: ns.stack([x(2), x()]),
        r"stack: shapes \(2,\) and \(\) do not stack along axis 0",
    ),
    "dot width": (
        lambda: ns.dot(x(), ns.gaussian(m)),
        r"dot: the vectors live in different spaces, R\^n and R\^m",
    ),
    "dot batch": (
        lambda: ns.dot(x(2, 3), x(4, 3)),
        r"dot: shapes \(2, 3\) and \(4, 3\) do not align",
    ),
    "dot operand": (lambda: ns.mean_dot(x(), 2.0), "mean_dot: needs a vector, got 2.0"),
    "concat axis": (
        lambda: ns.concat(x(2), axis=1),
        r"concat: axis=1 must be an integer from -1 to 0, an axis of shape \(2,\)",
    ),
    "concat operand": (lambda: ns.concat(3.0), "concat: needs a vector, got 3.0"),
    "softmax one": (
        lambda: ns.softmax(ns.dot(x(), x())),
        "softmax: needs an axis to run over",
    ),
    "softmax vector": (
        lambda: ns.softmax(x(2)),
        "softmax: needs scalars or numbers, got <Vector",
    ),
    "softmax word": (
        lambda: ns.softmax(ns.dot(x(2), x(2)), "casual"),
        "mask='casual' must be 'causal' or a boolean",
    ),
    "softmax causal": (
        lambda: ns.softmax(ns.dot(x(2), x(3)), "causal"),
        r"needs square scores, got shape \(2, 3\)",
    ),
    "softmax type": (
        lambda: ns.softmax(ns.dot(x(2), x(2)), [1.0, 0.0]),
        (
            "mask=\\[1.0, 0.0\\] must be 'causal' or a boolean array, got .* float64:"
            " write mask > 0"
        ),
    ),
    "softmax mask": (
        lambda: ns.softmax(ns.dot(x(2), x(2)), [True] * 3),
        r"mask of shape \(3,\) does not broadcast",
    ),
    "softmax row": (
        lambda: ns.softmax(ns.dot(x(2), x(2)), [False] * 2),
        "mask leaves a row without any entry",
    ),
    "apply nothing": (lambda: ns.apply(np.exp), "apply: exp needs at least one scalar"),
    "apply axes": (
        lambda: ns.apply(np.exp, ns.dot(x(), x()), axes=1),
        r"apply: axes=1 with shapes \(\)",
    ),
    "apply shapes": (
        lambda: ns.apply(np.add, np.ones(2), np.ones(3)),
        r"add: shapes \(2,\) and \(3,\) do not",
    ),
    "apply batch": (
        lambda: ns.apply(np.add, np.ones((2, 1)), np.ones((3, 1)), axes=1),
        r"add: shapes \(2, 1\) and \(3, 1\) do not broadcast before the last 1 axes",
    ),
    "apply vectorised": (
        lambda: ns.apply(np.sum, 1.0),
        r"sum is not vectorised: the leading axes \(2, 3\) became \(\)",
    ),
    "apply failing": (
        lambda: ns.apply(np.linalg.inv, 1.0),
        r"apply: inv fails on arrays of shapes \(2, 3\)",
    ),
    "apply function": (lambda: ns.apply(3, 1.0), "apply: needs a function, got f=3"),
    "nonlin nothing": (
        lambda: ns.nonlin(np.tanh, 1.0),
        "tanh: needs one vector or more, then scalars",
    ),
    "nonlin order": (
        lambda: ns.nonlin(np.add, 1.0, x()),
        "add: needs one vector or more, then scalars",
    ),
    "nonlin widths": (
        lambda: ns.nonlin(np.add, x(), ns.gaussian(m)),
        "add: the vectors live in different spaces",
    ),
    "nonlin shapes": (
        lambda: ns.nonlin(np.add, x(2), x(3)),
        r"add: shapes \(2,\) and \(3,\) do not broadcast: .*equal or 1",
    ),
    "nonlin coordinates": (
        lambda: ns.nonlin(np.sum, x()),
        r"sum is not coordinatewise: .* became \(\)",
    ),
    "relu operand": (lambda: ns.relu(1.0), "relu: needs a vector, got 1.0"),
    "clip bound": (
        lambda: ns.clip(x(), 0),
        "clip: bound=0 must be a finite number from 1e-50 to",
    ),
    "leaky slope": (
        lambda: ns.leaky_relu(x(), np.inf),
        "leaky_relu: slope=inf must be a finite number",
    ),
    "norm eps": (
        lambda: ns.rms_norm(x(), eps=-1),
        "rms_norm: eps=-1 must be a finite number, 0 or more",
    ),
    "attention x": (
        lambda: ns.nn.attention(x(), 2),
        "attention: x=<Vector .*> must be vectors with an axis of tokens",
    ),
    "attention heads": (
        lambda: ns.nn.attention(x(2), 0),
        "attention: heads=0 must be a positive integer",
    ),
    "attention scaling": (
        lambda: ns.nn.attention(x(2), 1, scaling="none"),
        "scaling='none' must be 'sqrt', 'linear' or a number",
    ),
    "array for a vector": (
        lambda: ns.relu(np.ones((5, 3))),
        r"relu: needs a vector, got an array of shape \(5, 3\); ",
    ),
    "array for a vector, remedy": (
        lambda: ns.dot(x(), np.ones(3)),
        r"dot: .* given vectors are written ns\.data",
    ),
    "array for a weight": (
        lambda: ns.weight(n, n) @ np.ones(30),
        r"an array of shape \(30,\); .* ns\.data",
    ),
    "list for a vector": (
        lambda: ns.concat([1.0] * 99),
        r"got \[1\.0, 1\.0, .*\.\.\.\]; given vectors are written",
    ),
    "array for nonlin": (
        lambda: ns.nonlin(np.tanh, np.ones(9)),
        r"array of shape \(9,\); given vectors .* ns\.data",
    ),
    "long numbers": (
        lambda: x() + np.full(1000, np.nan),
        r"\+: numbers must be finite, got an array of shape",
    ),
    "complex": (lambda: 1j * x(), r"\*: needs a netsor value or real numbers, got 1j"),
    "complex numbers": (
        lambda: np.array([1j, 2]) @ x(2),
        r"@: needs a netsor value or real numbers",
    ),
    "digits": (lambda: x() * "3", r"needs a netsor value or real numbers, got '3'"),
    "half a width": (
        lambda: n // 2,
        r'Width: n can only be multiplied .* d = ns\.Width\("d"\), and write 2 \* d',
    ),
    "a width less": (
        lambda: n - 1,
        "Width: n can only be multiplied by positive integers",
    ),
    "a quotient of widths": (
        lambda: 6 / n,
        "Width: n can only be multiplied by positive integers",
    ),
    "a root of a width": (
        lambda: ns.dot(x(), x()) / np.sqrt(n),
        r"np\.sqrt: n is a width, not a number; ns\.dot divides by √n already",
    ),
    "a root of a width by math": (
        lambda: ns.dot(x(), x()) / math.sqrt(n),
        r"float: n is a width, not a number; ns\.dot divides by √n already",
    ),
    "the kernel of a program": (
        lambda: ns.ntk(ns.Program(x())),
        r"ntk: p=<Program .*> is a program: call ns\.ntk inside the program, and return it",
    ),
    "weight nothing": (
        lambda: ns.weight(n, n, 2)[2:],
        r"index .* selects nothing from shape \(2,\)",
    ),
    "exponent": (
        lambda: ns.dot(x(), x()) ** np.ones(2),
        r"\*\*: exponent=array\(\[1., 1.\]\) must be a finite number",
    ),
    "apply axes type": (
        lambda: ns.apply(np.exp, 1.0, axes=0.5),
        "apply: axes=0.5 must be an integer, 0 or more",
    ),
    "scalar matmul batch": (
        lambda: ns.dot(x(2, 2), x(2, 2)) @ ns.dot(x(3, 2), x(3, 2)),
        r"shapes \(2, 2, 2\) and \(3, 2, 2\) cannot be multiplied as matrices",
    ),
    "normal std": (
        lambda: ns.normal(2, std=-1.0),
        r"normal: std=-1\.0 must be a finite number, 0 or from 1e-50",
    ),
    "normal stds": (
        lambda: ns.normal(2, std=[1.0, 2.0]),
        r"normal: std=\[1.0, 2.0\] must be a finite number",
    ),
    "normal shape": (
        lambda: ns.normal((2, 0)),
        r"normal: shape=\(2, 0\) must be a positive integer",
    ),
    "rotary one": (
        lambda: ns.rotary(x()),
        r"rotary: needs an axis of tokens, got one vector: x\[None\]",
    ),
    "rotary positions": (
        lambda: ns.rotary(x(3), [0, 1]),
        r"rotary: positions of shape \(2,\) must have shape \(3,\), one per token",
    ),
    "rotary base": (
        lambda: ns.rotary(x(3), base=0),
        "rotary: base=0 must be a positive number",
    ),
    "rotary fraction": (
        lambda: ns.rotary(x(3), fraction=1.5),
        r"rotary: fraction=1\.5 must be a positive number, at most 1",
    ),
    "rotary width": (
        lambda: ns.rotary(ns.gaussian(7, 3)),
        "rotary rotates pairs of coordinates, but width 7 is not an even",
    ),
    "rotary operand": (
        lambda: ns.rotary(np.ones((3, 4))),
        r"rotary: needs a vector, got .* ns\.data",
    ),
    "numpy of a vector": (
        lambda: np.tanh(x(2)),
        r"np\.tanh: acts on arrays.* ns\.nonlin\(np\.tanh, x\)",
    ),
    "numpy of a scalar": (
        lambda: np.exp(ns.dot(x(), x())),
        r"np\.exp: .* ns\.apply\(np\.exp, p\)",
    ),
    "numpy of two": (
        lambda: np.maximum(x(2), x(2)),
        r"np\.maximum: acts on arrays.* ns\.nonlin\(np\.maximum, x, y\)",
    ),
    "a quotient of an array": (
        lambda: np.ones(2) / x(2),
        r"np\.divide: acts on arrays",
    ),
    "vector on the left": (
        lambda: x(2) @ ns.weight(n, n),
        r"@: vectors stand on the right: W @ x.*got <Weight",
    ),
    "vector by vector": (lambda: x(2) @ x(2), r"@: .* for x @ y write ns\.dot\(x, y\)"),
    "program result": (
        lambda: ns.Program(3.0),
        "program program: must return vectors, scalars or a tuple",
    ),
    "program nothing": (
        lambda: ns.Program(()),
        r"must return vectors, scalars or a tuple of them, got \(\)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_trace_errors(name):
    make, message = CASES[name]
    with pytest.raises(ns.TraceError) as caught:
        make()
    # without the line of code, which holds the words as well
    assert re.search(message, caught.value.plain)
    assert re.search(r"\(at .*test_errors\.py:\d+: ", str(caught.value))


def test_errors_can_be_sent_to_another_process():
    """One that cannot be read there would end the pool of workers, and nobody would
    learn what was wrong.
    """
    rotated = ns.Program(ns.rotary(ns.gaussian(n, 2)))
    for make in (
        lambda: ns.gaussian(-3),
        lambda: rotated.law(n=ns.inf),
        lambda: ns.Empirical([]),
        lambda: rotated.simulate(n=4, draws=0),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (any of ours)
            make()
        copy = pickle.loads(pickle.dumps(caught.value))
        given, made = (
            (type(error), str(error), str(vars(error)))
            for error in (caught.value, copy)
        )
        assert given == made


def test_widths_and_numbers_of_numpy():
    width = ns.Width("n")
    for four in (4, np.int64(4), np.int32(4)):
        assert four * width == width * four == ns.Width("n", 4)
        assert width != four
        assert four != width
    assert np.multiply(4, width) == 4 * width
    assert np.equal(width, ns.Width("n"))
    assert not np.equal(width, 4)


def test_error_in_a_layer_points_at_the_users_line():
    line = r"test_errors\.py:\d+: ns\.nn\.attention\(x\(2\), heads=2"
    with pytest.raises(ns.TraceError, match=line) as caught:
        ns.nn.attention(x(2), heads=2, context=x(3), mask="causal")
    assert caught.value.where.file.endswith("test_errors.py")


def test_unknown_names_list_the_known_ones():
    for name, message in (
        ("exp", r"no 'exp'; of coordinates write ns\.nonlin\(np\.exp, x\)"),
        ("layernorm", r"did you mean ns\.layer_norm"),
    ):
        with pytest.raises(AttributeError, match=message):
            getattr(ns, name)
    with pytest.raises(
        TypeError,
        match=r"attention\(\) got an unexpected keyword argument 'temperature'",
    ):
        ns.nn.attention(x(2), 2, temperature=3)
    assert "softcap" in inspect.signature(ns.nn.attention).parameters
    assert x(2, 3).T.shape == (3, 2)


def test_repr_of_a_function_that_makes_programs():
    @ns.program
    def layer(tokens=4):
        return x(tokens)

    assert (
        repr(layer) == "<layer(tokens=4): makes a program when it is called, layer()>"
    )


def test_index_errors_are_index_errors():
    with pytest.raises(TraceIndexError):
        x(2)[7]
    with pytest.raises(TypeError, match=r"len\(\) of a single value"):
        len(x())


net = ns.Program(ns.weight(n, m) @ ns.gaussian(m))

BINDINGS = {
    "missing": ({"n": 3}, "width m is not bound: give m=…, a positive integer"),
    "unknown": (
        {"n": 3, "m": 2, "k": 1},
        "width k=1 is not used; this program's widths are m, n",
    ),
    "negative": ({"n": -3, "m": 2}, "width n=-3 must be a positive integer"),
    "infinite": ({"n": ns.inf, "m": 2}, "width n=inf must be a positive integer"),
    "fraction": ({"n": 3, "m": 2.5}, "width m=2.5 must be a positive integer"),
    "draws": ({"n": 3, "m": 2, "draws": 0}, "draws=0 must be a positive integer"),
    "seed": ({"n": 3, "m": 2, "seed": -1}, "seed=-1 must be an integer, 0 or more"),
    "workers": ({"n": 3, "m": 2, "workers": 0}, "workers=0 must be a positive integer"),
    "coordinates": (
        {"n": 3, "m": 2, "coordinates": 3},
        "coordinates=3: index 3 is out of bounds",
    ),
}


@pytest.mark.parametrize("name", BINDINGS)
def test_simulate_errors(name):
    given, message = BINDINGS[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        net.simulate(**{"draws": 2, **given})


def test_rotary_needs_an_even_width():
    with pytest.raises(
        ValueError,
        match=(
            "pairs of coordinates, but width 5 is not an even number: bind an even"
            " width"
        ),
    ):
        ns.Program(ns.rotary(x(2))).simulate(n=5, draws=1)
    with pytest.raises(ValueError, match=r"0\.25 of width 4 is not an even number"):
        ns.Program(ns.rotary(x(2), fraction=0.25)).simulate(n=4, draws=1)


def test_binding_a_program_without_widths_is_rejected():
    with pytest.raises(ValueError, match="this program has no width to bind"):
        ns.Program(ns.gaussian(3)).simulate(draws=1, n=3)


def test_shape_of_several_outputs_is_rejected():
    with pytest.raises(ValueError, match="returns 2 values: use the shape of net"):
        _ = ns.Program((x(), x())).shape


def test_messages_are_short():
    """However long the argument is."""
    for make in (
        lambda: ns.weight(n, n) @ np.random.default_rng(0).random((100, 100)),
        lambda: ns.dot(x(), list(range(10_000))),
        lambda: ns.join([x(2)] * 500 + [1.0]),
        lambda: ns.data(["word"] * 1000),
        lambda: ns.gaussian(n, (0,) * 500),
        lambda: ns.nonlin(np.tanh, "a" * 5000),
        lambda: x(4)[list(range(900))],
    ):
        with pytest.raises(ns.TraceError) as caught:
            make()
        assert len(str(caught.value).split(" (at ")[0]) < 250
