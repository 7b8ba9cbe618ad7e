"""Backends: the same law on each, the same bits from one seed, and clear words where
there is no device.
"""

import pickle
import time
from functools import partial

import array_api_strict
import numpy as np
import pytest
from scipy import special, stats

import netsor as ns
from tests.internals import (
    ACCELERATOR,
    CPU,
    NUMPY,
    LinalgBackend,
    NoDeviceError,
    StepwiseBackend,
    _base,
    _chi,
    _ops,
    _psd_cholesky,
    choose,
    compute,
    make_plan,
    prices,
)

from ..keep import keep
from . import factor_cases
from . import test_small_parts as small_parts
from .backend_cases import (
    CASES,
    DRAWS,
    LEVEL,
    assert_same,
    layer,
    random_plans,
    replicas,
    smallest_p,
)
from .compare import conditional
from .test_curves import assert_circles_of_random_size_have_the_kernel_of_erf
from .test_precision import (
    assert_a_matrix_sees_small_differences,
    assert_compared_where_it_runs,
    assert_refused_before_it_draws,
)

JAX = {"backend": "jax", "device": "cpu"}
QUICK = ("transformer",)


@pytest.fixture
def jax_program():
    """The module, which imports JAX: not before a test needs it, for every process of
    the suite reads this file.
    """
    from tests.internals import _jax_program

    return _jax_program


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        # single precision is the harder one
        *keep(
            [(case, "float32") for case in CASES],
            *((case, "float32") for case in QUICK),
        ),
        *(pytest.param(case, "float64", marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_jax_has_the_law_of_numpy(case, precision):
    assert smallest_p(case, **JAX, precision=precision) > LEVEL


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.slow)]
)
def test_jax_computes_what_numpy_computes(jax_program, seeds):
    """Random programs, on the same random numbers."""
    import jax
    import jax.numpy as jnp

    compared = 0
    for plan, drawn, found in random_plans(seeds):
        with choose(**JAX)._within():
            arrays = {}
            for piece in jax_program.pieces(plan, "float64"):

                def traced(given, piece=piece, drawn=drawn):
                    here = dict(zip(piece.reads, given, strict=True)) | {
                        s.out: jnp.asarray(drawn[s]) for s in piece.draws
                    }
                    for step in piece.steps:
                        if step not in drawn:
                            args = [
                                here[r] if r.value is None else jnp.asarray(r.value)
                                for r in step.args
                            ]
                            here[step.out] = compute(
                                jax_program.LIBRARY, step.kind, args, step.params
                            )
                    return [here[register] for register in piece.writes]

                if piece.host:
                    arrays |= jax_program.block([piece], [None], 0, 0, 16, arrays)
                else:
                    arrays |= dict(
                        zip(
                            piece.writes,
                            jax.jit(traced)([arrays[r] for r in piece.reads]),
                            strict=True,
                        )
                    )
            assert_same(
                found,
                [
                    np.asarray(arrays[r] if r.value is None else r.value)
                    for r in (plan.mean, plan.columns)
                ],
            )
        compared += 1
    assert compared >= len(seeds)


@pytest.mark.parametrize("case", ["layer", "transformer"])
def test_single_precision_has_the_same_law_in_numpy(case):
    assert smallest_p(case, backend="numpy", precision="float32") > LEVEL


@pytest.mark.slow
def test_jax_sees_inputs_on_a_circle():
    assert_circles_of_random_size_have_the_kernel_of_erf(50, **JAX)


@pytest.mark.slow
def test_jax_matrix_keeps_small_differences_of_vectors():
    assert_a_matrix_sees_small_differences("jax")


def test_differences_that_cancel_are_refused_before_jax_draws(monkeypatch):
    assert_refused_before_it_draws("jax", monkeypatch)


@pytest.mark.slow
def test_jax_compares_where_it_runs(monkeypatch):
    assert_compared_where_it_runs("jax", monkeypatch)


@pytest.mark.slow
def test_jax_sees_small_parts(jax_program):
    """Directions of rows that are nearly equal, well apart, and equal, side by side, as
    numpy has them.
    """
    import jax

    rows = np.concatenate(
        [small_parts.nearly_equal(5, 20, delta) for delta in (1e-9, 1.0, 0.0)]
    )
    products = _ops.gram(np, rows, rows)
    with choose(**JAX)._within():
        c = np.asarray(jax.jit(jax_program.LIBRARY.reduced)(products, rows))
        q = np.asarray(jax.jit(jax_program.LIBRARY.span)(rows))
    ours = NUMPY.reduced(products, rows)
    np.testing.assert_allclose(c, ours, atol=1e-13)
    d, e = np.diff(c, axis=-2), np.diff(ours, axis=-2)
    np.testing.assert_allclose(d[:20] / 1e-9, e[:20] / 1e-9, atol=1e-4)
    np.testing.assert_allclose(q, NUMPY.span(rows), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("max_looped_rows", [4, 32])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_jax_factors_singular_matrices(jax_program, precision, max_looped_rows):
    """By the library's own factors, and by loops: the directions of numpy in double
    precision.
    """
    import jax
    import jax.numpy as jnp

    linalg = jax_program.JaxLibrary(jnp)
    linalg.max_looped_rows = max_looped_rows
    compiled = {}

    def compute(kind, *arrays):
        if kind not in compiled:
            compiled[kind] = jax.jit(getattr(linalg, kind))
        return np.asarray(compiled[kind](*arrays))

    for case in factor_cases.CASES:
        with choose(**JAX, precision=precision)._within():
            factor_cases.assert_factors(case, precision, compute)


def test_comparison_sees_a_law_that_is_off(jax_program, monkeypatch):
    monkeypatch.setattr(jax_program, "_programs", {})
    monkeypatch.setattr(
        _chi.Chi,
        "of",
        lambda self, xp, z: (
            1.05 + 0.0 * z[..., : self.scale.size + self.squares.shape[1]]
        ),
    )
    assert smallest_p("few degrees of freedom", **JAX, precision="float32") < LEVEL


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_numpy_computes_in_the_precision_that_is_asked_for(precision):
    """Its law is held above."""
    plan = make_plan(layer()[0].outputs, {"n": 64})
    found = [
        columns
        for _, columns in choose("numpy", precision=precision).sample(
            plan, 1, range(100), 8192, int
        )
    ]
    assert {columns.dtype for columns in found} == {np.dtype(precision)}


@pytest.mark.parametrize("case", factor_cases.CASES)
def test_numpy_factors_singular_matrices_in_single_precision(case):
    """The directions of numpy in double precision."""
    factor_cases.assert_factors(
        case, "float32", lambda kind, *arrays: getattr(NUMPY, kind)(*arrays)
    )


@pytest.mark.parametrize("delta", [1e-2, 1e-3, 1e-4])
def test_numpy_sees_small_differences_in_single_precision(delta, monkeypatch):
    """Rows that differ by little: their own factor, and others along the directions
    that it has.
    """
    rng = np.random.default_rng(0)
    rows, others = (
        rng.standard_normal((50, k, 200)).astype(np.float32) for k in (6, 2)
    )
    rows = rows[:, :1] + np.float32(delta) * rows

    def made(rows, others):
        c = NUMPY.reduced(_ops.gram(np, rows, rows), rows)
        return np.diagonal(c, axis1=-2, axis2=-1)[:, 1:], NUMPY.oriented(
            c, rows, others
        )

    def error():
        single, exact = (
            made(rows, others),
            made(rows.astype(np.float64), others.astype(np.float64)),
        )
        assert {a.dtype for a in single} == {np.dtype(np.float32)}
        return max(
            np.abs(a - b).max() / np.abs(b).max()
            for a, b in zip(single, exact, strict=True)
        )

    assert error() < 2e-6
    # by products of single precision alone
    monkeypatch.setattr(_psd_cholesky, "SINGLE_SURE", 0.0)
    if delta > 1e-4:  # of less, no pivot is left
        assert error() > 1e-3


def test_same_seed_gives_the_same_bits():
    net, widths = CASES["few degrees of freedom"]
    run = partial(
        conditional,
        net.outputs,
        widths,
        seed=5,
        progress=False,
        backend=choose(**JAX, precision="float32"),
    )
    one, two, few = run(draws=DRAWS), run(draws=DRAWS), run(draws=300)
    assert one.cov.tobytes() == two.cov.tobytes()
    # blocks of other sizes may add in another order
    np.testing.assert_allclose(one.cov[:300], few.cov, rtol=1e-12)


@pytest.mark.slow
def test_blocks_and_workers_change_nothing(monkeypatch):
    net, widths = CASES["layer"]
    whole = replicas(net, widths, **JAX, draws=1000)[1]
    monkeypatch.setattr(_base, "MAX_BLOCK_REPLICAS", 128)
    np.testing.assert_allclose(
        replicas(net, widths, **JAX, draws=1000)[1], whole, rtol=1e-12
    )


@pytest.mark.slow
def test_one_seed_couples_two_widths_in_jax():
    one, two = (
        layer()[0].law(n=width, draws=2000, seed=4, progress=False, **JAX)
        for width in (1024, 4096)
    )
    assert np.corrcoef(one.component_var, two.component_var)[0, 1] > 0.95
    other = layer()[0].law(n=1024, draws=2000, seed=5, progress=False, **JAX)
    assert abs(np.corrcoef(one.component_var, other.component_var)[0, 1]) < 0.1


def test_jax_draws_what_is_not_random():
    """Nothing is left to compute: it was refused with an error of Python's own."""
    x = ns.data(np.arange(6.0).reshape(2, 3))
    found = ns.Program(ns.mean_dot(x, x)).draw(
        draws=3, progress=False, backend="jax", device="cpu"
    )
    np.testing.assert_allclose(
        found, np.broadcast_to([[5 / 3, 14 / 3], [14 / 3, 50 / 3]], (3, 2, 2))
    )


@pytest.mark.slow
def test_laws_of_one_structure_share_a_compiled_program(jax_program, monkeypatch):
    # none of other tests: the cache may be full of them
    monkeypatch.setattr(jax_program, "_programs", {})
    net = layer()[0]
    net.law(n=1024, draws=100, progress=False, **JAX)
    first = set(jax_program._programs)
    net.law(n=1000, draws=100, seed=3, progress=False, **JAX)
    assert set(jax_program._programs) == first
    layer(tokens=1)[0].law(n=1024, draws=100, progress=False, **JAX)
    assert len(set(jax_program._programs) - first) == 1


def test_equal_pieces_are_compiled_once(jax_program, monkeypatch):
    """A program that two pieces share was compiled again for every block of
    replicas.
    """
    plan = make_plan(layer()[0].outputs, {"n": 64})
    made = []
    monkeypatch.setattr(jax_program, "_programs", {})
    monkeypatch.setattr(
        jax_program.Piece,
        "compiled",
        lambda piece, replicas: made.append(replicas) or len(made),
    )
    equal = [jax_program.pieces(plan, "float64")[0] for _ in range(3)]
    for count in (8, 8, 16):
        assert len(set(jax_program.programs(equal, count, choose(**JAX)._within))) == 1
    assert made == [8, 16]


def test_threefry_is_jaxs(jax_program):
    import jax
    import jax.numpy as jnp
    from jax.extend.random import threefry2x32_p

    words = np.random.default_rng(1).integers(0, 2**32, size=(4, 1000), dtype=np.uint32)
    words[:, :2] = [0, 2**32 - 1]
    ours = jax.jit(jax_program.threefry)(*words)
    np.testing.assert_array_equal(ours, threefry2x32_p.bind(*map(jnp.asarray, words)))


def test_draws_beyond_the_counters_of_the_generator_differ():
    plan = make_plan(layer()[0].outputs, {"n": 64})
    backend = choose(**JAX)
    starts = [0, 2**32, 2**33]
    found = [
        next(iter(backend.sample(plan, 1, range(s, s + 64), 64, lambda draws: None)))[1]
        for s in starts
    ]
    assert len({np.asarray(columns).tobytes() for columns in found}) == 3


# χ from a normal


@pytest.mark.parametrize("freedom", [16, 17, 40, 333, 1024])
def test_chi_is_the_quantile(freedom):
    """Its probability is that of the normal, to 1e-11 of a standard deviation, as far
    out as a generator goes.
    """
    z = np.array([-8.3, -4.0, -1.0, 0.0, 0.3, 2.0, 8.3])
    made = _chi.chi([freedom], "float64")
    found = made.of(np, z[:, None])[:, 0]
    tail = np.where(
        z < 0,
        special.gammainc(freedom / 2, found**2 / 2),
        special.gammaincc(freedom / 2, found**2 / 2),
    )
    off = (tail - special.ndtr(-np.abs(z))) / stats.norm.pdf(z)
    assert np.abs(off).max() < 1e-11


@pytest.mark.parametrize("freedom", [2**14 + 1, 10**5, 10**9, 2**60])
def test_chi_of_many_degrees_of_freedom(freedom):
    """Against the series of Cornish and Fisher for χ², whose next term is of order
    ν^(−3) relative to the first.
    """
    z = np.linspace(-5, 5, 41)
    made = _chi.chi([freedom], "float64")
    x = made.of(np, z[:, None])[:, 0]
    e = np.sqrt(2 / freedom)
    square = (
        z
        + e * (z**2 - 1) / 3
        + e**2 * (z**3 - 7 * z) / 36
        - e**3 * (6 * z**4 + 14 * z**2 - 32) / 1620
    )
    square += e**4 * (9 * z**5 + 256 * z**3 - 433 * z) / 38880
    expected = (square * e + 1) ** 0.5
    np.testing.assert_allclose(
        x / np.sqrt(freedom), expected, rtol=2 * e**6 + 1e-12 * e + 4e-16
    )


@pytest.mark.parametrize("freedom", [[3, 2, 1], [20, 18, 2, 1], [16, 15]])
def test_rows_of_chi(freedom):
    rng = np.random.default_rng(3)
    made = _chi.chi(freedom, "float64")
    x = made.of(np, rng.standard_normal((20_000, made.normals)))
    assert x.shape == (20_000, len(freedom))
    for j, f in enumerate(freedom):
        assert stats.kstest(x[:, j], stats.chi(f).cdf).pvalue > 1e-5
    assert np.abs(np.corrcoef(x.T) - np.eye(len(freedom))).max() < 5 / np.sqrt(20_000)


# A backend of one's own


class StrictNumpy(StepwiseBackend):
    """numpy behind the array API of 2024, without a function more."""

    library = LinalgBackend(array_api_strict)

    def array(self, numbers, precision):
        return array_api_strict.asarray(np.array(numbers, dtype=precision))

    def numpy(self, array):
        return np.asarray(array, dtype=np.float64)

    def normals(self, stream, shape, precision):
        generator = np.random.Generator(np.random.Philox(key=stream.words(2)))
        numbers = generator.standard_normal((stream.replicas, *shape))
        return self.array(numbers, precision)


@pytest.mark.parametrize(
    "case", keep(list(CASES), "few degrees of freedom", "limit, by the host")
)
def test_backend_of_array_api_strict_has_the_law_of_numpy(case):
    assert smallest_p(case, backend=StrictNumpy()) > LEVEL


def test_stepwise_backend_computes_the_random_programs_of_numpy():
    compared = 0
    for plan, drawn, found in random_plans(range(3)):
        # dead arrays are not overwritten: each register is computed once
        outputs = StrictNumpy().evaluate(
            plan,
            lambda step, drawn=drawn: array_api_strict.asarray(drawn[step]),
            constants={},
        )
        assert_same(found, [np.asarray(array) for array in outputs], atol=1e-10)
        compared += 1
    assert compared >= 3


def test_stepwise_backend_without_a_method_names_it():
    class Unfinished(StepwiseBackend):
        library = NUMPY

        def array(self, numbers, precision):
            return np.asarray(numbers, dtype=precision)

        def numpy(self, array):
            return array

    with pytest.raises(TypeError, match=r"abstract method.*normals"):
        Unfinished()


def test_stepwise_backend_rejects_other_devices_than_the_cpu():
    with pytest.raises(NoDeviceError, match="device='cuda' must be 'cpu' for strict"):
        StrictNumpy("cuda")


def test_prices_of_a_backend_follow_its_device():
    assert StrictNumpy().prices == prices("jax", "cpu") == CPU
    assert prices("torch", "cuda:1") == ACCELERATOR
    assert prices("numpy", "cpu").ragged


# Words


def test_unknown_backend_device_or_precision_is_rejected():
    net = layer()[0]
    for wrong in (
        {"backend": "cupy"},
        {"backend": 3},
        {"precision": "float16"},
        {"device": "tpu"},
        {"device": 0},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            net.law(n=4, draws=2, **wrong)
    with pytest.raises(NoDeviceError, match=r"device='cuda' must be 'cpu' for numpy"):
        net.law(n=4, draws=2, device="cuda")
    with pytest.raises(
        NoDeviceError, match=r"device='cuda:77' must be one that JAX sees here"
    ):
        net.law(n=4, draws=2, backend="jax", device="cuda:77")


def test_device_that_is_too_small_is_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.setattr(_base, "memory", lambda: 1000.0)
    with pytest.raises(
        NoDeviceError,
        match=r"one with .* MiB for a replica, and has 0.000954 MiB: take fewer",
    ):
        layer()[0].law(n=64, draws=100, **JAX)


def test_blocks_are_halved_until_they_fit(monkeypatch):
    net, backend = layer()[0], choose(**JAX)
    plan = net.plan(n=64)
    whole = backend.chunk(plan, 2**30)
    need = 8 * plan.bytes * whole  # as much as is planned for
    monkeypatch.setattr(_base, "memory", lambda: 0.3 * need)
    assert backend.chunk(plan, 2**30) == whole // 4


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(NoDeviceError, match=r"must be installed: pip install jax$"):
        choose("jax")


def test_backend_can_be_sent():
    backend, (net, widths) = (
        choose(**JAX, precision="float32"),
        CASES["few degrees of freedom"],
    )
    assert pickle.loads(pickle.dumps(backend)) == backend
    # as compiled above
    law = net.law(draws=DRAWS, progress=False, **widths, **JAX, precision="float32")
    assert "jax on cpu in float32" in law.method


def test_errors_of_a_function_are_not_swallowed():
    def broken(x):
        if len(x) > 10:  # not while it is traced
            raise ZeroDivisionError("of its own")
        return x

    x = ns.weight(4, 4) @ ns.gaussian(4)
    net = ns.Program(ns.weight(4, 4) @ (ns.apply(broken, ns.mean_dot(x, x)) * x))
    with pytest.raises(ZeroDivisionError, match="of its own"):
        net.law(draws=10, progress=False, **JAX)


def test_blocks_on_a_cpu_are_computed_one_after_the_other(monkeypatch):
    """Two at once can share so few threads of XLA that both wait forever."""
    from tests.internals import _jax

    active, most = [], []
    compute = _jax.block

    def block(*arguments, **named_arguments):
        active.append(1)
        most.append(len(active))
        time.sleep(0.01)  # long enough for another thread to come in
        draws = compute(*arguments, **named_arguments)
        active.pop()
        return draws

    monkeypatch.setattr(_jax, "block", block)
    monkeypatch.setattr(_jax.Jax, "chunk", lambda *_: 8)
    x = ns.weight(4, 4) @ ns.gaussian(4)
    ns.Program(ns.mean_dot(x, x)).draw(draws=64, backend="jax", progress=False)
    assert len(most) >= 8
    assert max(most) == 1
