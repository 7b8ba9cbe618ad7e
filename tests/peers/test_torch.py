"""PyTorch as a backend: the law of numpy, the same bits from one seed."""

from functools import partial

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    NUMPY,
    Function,
    NoDeviceError,
    _ops,
    _torch,
    activations,
    choose,
    derivatives,
)

from ..bayes import device_cases
from ..engine import factor_cases
from ..engine.backend_cases import (
    CASES,
    LEVEL,
    assert_same,
    assert_same_steps,
    random_plans,
    smallest_p,
)
from ..engine.compare import conditional
from ..engine.test_curves import assert_circles_of_random_size_have_the_kernel_of_erf
from ..engine.test_precision import (
    assert_compared_where_it_runs,
    assert_refused_before_it_draws,
)
from ..engine.test_small_parts import nearly_equal

torch = pytest.importorskip("torch")
xp = pytest.importorskip("array_api_compat.torch")
pytestmark = pytest.mark.peers
TORCH = {"backend": "torch", "device": "cpu"}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_torch_has_the_law_of_numpy(case, precision):
    assert smallest_p(case, **TORCH, precision=precision) > LEVEL


def test_rounding_errors_of_factors_do_not_grow():
    assert_circles_of_random_size_have_the_kernel_of_erf(50, **TORCH)


def test_steps_of_torch_match_numpy():
    """Random programs, step by step, on the same arrays."""
    backend, compared = choose(**TORCH), 0

    def compute(step, inputs):
        # one that is given twice is one
        tensors = {id(a): torch.tensor(np.ascontiguousarray(a)) for a in inputs}
        return backend.compute(step, [tensors[id(a)] for a in inputs], None).numpy()

    for plan, drawn, _ in random_plans(range(40)):
        with torch.no_grad():
            assert_same_steps(plan, drawn, compute)
        compared += 1
    assert compared > 40


def test_plans_of_torch_match_numpy():
    """Random programs as a whole, on the same random numbers: some of these use
    matrices again, in full frames.
    """
    for plan, drawn, found in random_plans([0, 1, 2, 7, 63, 80]):
        outputs = choose(**TORCH).evaluate(
            plan, lambda step, drawn=drawn: torch.tensor(drawn[step]), constants={}
        )
        assert_same(found, [array.numpy() for array in outputs], atol=1e-10)


@pytest.mark.parametrize("module", [activations, derivatives])
def test_functions_of_small_numbers_keep_single_precision(module):
    """To the last digits: PyTorch's own erf of 1e-8 is 0 on a CPU."""
    x = (np.logspace(-20, -0.1, 200) * np.array([[1], [-1]])).astype(np.float32)
    named = [f for f in vars(module).values() if isinstance(f, Function)]
    assert len(named) > 5
    for f in named:
        np.testing.assert_allclose(
            f(torch.tensor(x)).numpy(),
            f(x.astype(np.float64)),
            rtol=1e-5,
            err_msg=f.name,
        )


def spread(p):
    return p.std(axis=-1)  # of a tensor, with one less in the denominator


def test_function_with_another_meaning_in_torch_is_computed_by_numpy():
    x = ns.gaussian(6, 4)
    net = ns.Program(
        (ns.apply(spread, ns.mean_dot(x, x), axes=1)[0], ns.mean_dot(x, x)[0])
    )
    std, rows = net.draw(draws=20, progress=False, **TORCH)
    np.testing.assert_allclose(std, rows.std(axis=-1))


def test_torch_sees_small_parts():
    """Rows that are nearly equal, well apart, and equal, side by side, as numpy has
    them.
    """
    rows = np.concatenate([nearly_equal(5, 20, delta) for delta in (1e-9, 1.0, 0.0)])
    products = _ops.gram(np, rows, rows)
    linalg = _torch.library("cpu")
    c = linalg.reduced(torch.tensor(products), torch.tensor(rows)).numpy()
    q = linalg.span(torch.tensor(rows)).numpy()
    ours = NUMPY.reduced(products, rows)
    np.testing.assert_allclose(c, ours, atol=1e-13)
    d, e = np.diff(c, axis=-2), np.diff(ours, axis=-2)
    np.testing.assert_allclose(d[:20] / 1e-9, e[:20] / 1e-9, atol=1e-4)
    np.testing.assert_allclose(q, NUMPY.span(rows), atol=1e-5)


def test_same_seed_gives_the_same_bits():
    net, widths = CASES["transformer"]
    run = partial(
        conditional,
        net.outputs,
        widths,
        seed=5,
        progress=False,
        backend=choose(**TORCH),
    )
    one, two, more = run(draws=300), run(draws=300), run(draws=1000)
    assert one.cov.tobytes() == two.cov.tobytes() == more.cov[:300].tobytes()


def test_missing_device_is_refused():
    with pytest.raises(
        NoDeviceError,
        match=(
            r"device='cuda:77' must be 'cpu', or one of the \d+ CUDA devices that"
            r" PyTorch sees"
        ),
    ):
        choose("torch", "cuda:77")


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("case", factor_cases.CASES)
def test_torch_factors_singular_matrices(case, precision):
    """The directions of numpy in double precision, and no loop over columns or
    vectors.
    """
    slow = []

    def counted(rule):
        return lambda *arrays: slow.append(arrays[0].shape) or rule(*arrays)

    linalg = _torch.TorchLibrary("cpu")
    linalg.columns, linalg.singly = counted(linalg.columns), counted(linalg.singly)

    def compute(kind, *arrays):
        return getattr(linalg, kind)(
            *(torch.tensor(np.array(a)) for a in arrays)
        ).numpy()

    factor_cases.assert_factors(case, precision, compute)
    assert not slow


def test_single_precision_is_compared_before_it_draws(monkeypatch):
    assert_refused_before_it_draws("torch", monkeypatch)


def test_long_plan_is_compared_where_it_runs(monkeypatch):
    assert_compared_where_it_runs("torch", monkeypatch)


def test_nearly_equal_vectors_in_single_precision():
    """Their products are those of the vectors to its rounding, whatever is left
    undecided; equal ones stay equal.
    """
    rng = np.random.default_rng(0)
    u, x = (rng.standard_normal((5, 1, 100)) for _ in range(2))
    lengths = np.exp(0.1 * rng.standard_normal((5, 40, 1)))
    some = rng.standard_normal((5, 40, 100))
    cases = {
        f"apart by {d:g}": lengths * (x + d * some) for d in (1e-4, 1e-6, 1e-7, 1e-9)
    }
    cases |= {
        f"hidden {d:g}": np.concatenate([x, x + d * u, u, x, x + u, 0 * x], axis=-2)
        for d in (1e-5, 3e-7, 1e-8)
    }
    cases["few directions"] = some[..., :7]
    # a factor's rounding is more than vectors differ by
    cases["many"] = x + 1e-8 * rng.standard_normal((5, 256, 100))
    cases["copies"] = np.concatenate([some[:, :20], some[:, :20]], axis=-2)
    library = _torch.library("cpu")
    for scale in (1e-8, 1.0, 1e8):
        for name, given in cases.items():
            rows = torch.tensor(scale * given, dtype=torch.float32)
            c = library.reduced(rows @ rows.mT, rows).double().numpy()
            wide = rows.double().numpy()
            expected, size = (
                wide @ np.swapaxes(wide, -1, -2),
                np.linalg.norm(wide, axis=-1),
            )
            size = np.where(size > 0, size, 1.0)
            error = (
                np.abs(c @ np.swapaxes(c, -1, -2) - expected)
                / size[..., None]
                / size[..., None, :]
            )
            assert error.max() < 1e-6, name
            assert not np.triu(c, 1).any()
            if name == "copies":
                np.testing.assert_allclose(
                    c[:, 20:] / scale, c[:, :20] / scale, atol=1e-12
                )


@pytest.mark.parametrize("rows", [3, 64, 256])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-6])
def test_differences_within_single_precision_are_kept(rows, delta):
    """How rows differ, in lengths and along other vectors; the last row is equal to
    another.
    """
    rng = np.random.default_rng(1)
    given = rng.standard_normal((3, 1, 300)) + delta * rng.standard_normal(
        (3, rows, 300)
    )
    given[:, -1] = given[:, 1]
    x, others = (
        torch.tensor(a, dtype=torch.float32)
        for a in (given, rng.standard_normal((3, 5, 300)))
    )
    library = _torch.library("cpu")
    c = library.reduced(x @ x.mT, x)
    along = library.oriented(c, x, others).double().numpy()
    c, x, others = (a.double().numpy() for a in (c, x, others))
    found, expected = np.diff(c, axis=-2), np.diff(x, axis=-2)
    np.testing.assert_allclose(
        (found**2).sum(axis=-1), (expected**2).sum(axis=-1), rtol=0.1
    )
    np.testing.assert_allclose(c[:, -1], c[:, 1], atol=1e-5)
    found, expected = (
        np.diff(along @ np.swapaxes(c, -1, -2)),
        np.diff(others @ np.swapaxes(x, -1, -2)),
    )
    assert np.sqrt(np.mean((found - expected) ** 2)) < 2e-7 * np.sqrt(
        np.mean((others @ np.swapaxes(x, -1, -2)) ** 2)
    )


@pytest.mark.parametrize("delta", [1e-4, 1e-7, 1e-10])
def test_nearly_equal_rows_in_double_precision(delta, monkeypatch):
    """Without their part along the first, their products tell how they differ: no basis
    is made.
    """
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 1, 40)) + delta * rng.standard_normal((6, 12, 40))
    library, x = _torch.library("cpu"), torch.tensor(rows)
    monkeypatch.setattr(library, "gram_schmidt", None)
    found = library.reduced(x @ x.mT, x).numpy()
    ours, exact = (a - a[:, :1] for a in (found, rows))
    np.testing.assert_allclose(
        ours @ np.swapaxes(ours, 1, 2),
        exact @ np.swapaxes(exact, 1, 2),
        rtol=0,
        atol=1e-13 * delta,
    )
    assert not np.triu(found, 1).any()


@pytest.mark.parametrize("noise", [1e-5, 0.3, 100.0])
@pytest.mark.parametrize("case", device_cases.CASES)
def test_likelihoods_of_torch_match_numpy(case, noise):
    device_cases.assert_same_heights(case, noise, **TORCH)


def test_uncertain_likelihoods_of_torch_are_computed_by_numpy():
    device_cases.assert_same_heights("many columns, inf", 1e-8, **TORCH)


def test_chains_of_torch_have_the_posterior():
    device_cases.assert_same_posterior(**TORCH)
