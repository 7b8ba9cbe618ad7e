"""The best learning rate at each width: found in the right place, with an interval, and
judged by the stated rule.
"""

import math

import numpy as np
import pytest

import netsor as ns
from tests.internals import (
    Numpy,
    Sweep,
    SweepTask,
    TransferStudy,
    _cost,
    _plan_query,
    _process_pool,
    parametrisation,
)
from tests.internals import TransferCurve as Curve
from tests.internals import TransferRequest as Request
from tests.internals import model_training as training

from ...inline import Inline
from ...keep import keep

X, T = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([1.0, -1.0])
LR = 2.0 ** np.arange(-4, 5)


def sweep(power, noise=0.01, draws=16):
    """Losses whose best learning rate is n^power."""
    return bent({n: n**power for n in (1, 2, 8)}, noise, draws)


def bent(best, noise=0.01, draws=16):
    """Losses with a best learning rate for each width."""
    rng = np.random.default_rng(0)
    noises = {n: noise * rng.standard_normal((len(LR), draws)) for n in best}
    losses = {
        n: np.exp(np.log(LR / lr)[:, None] ** 2 + noises[n]) for n, lr in best.items()
    }
    return Sweep("mine", {n: Curve(LR, each, n) for n, each in losses.items()}, {})


@pytest.mark.parametrize("power", [0.0, -1.0, 0.5])
def test_best_rate_follows_power_of_width(power):
    found = sweep(power)
    for n in found.widths:
        best = found.best(n)
        assert best.low < n**power < best.high
        assert best.lr == pytest.approx(n**power, rel=0.03)
    value, low, high = found.exponent
    assert low < power < high
    assert value == pytest.approx(power, abs=0.02)
    assert found.verdict == (
        "transfers" if power == 0 else f"shifts like n^{power:.1f}"
    )


def test_noisy_sweep_is_undecided_and_best_rate_at_edge_is_reported():
    assert sweep(0.0, noise=8.0, draws=4).verdict == "undecided"
    edge = Sweep(
        "mine",
        {
            1: Curve(LR, np.linspace(1, 2, 9)[:, None] + np.zeros(8)),
            2: sweep(0).curves[1],
        },
        {},
    )
    assert edge.best(1).low == 0.0
    assert edge.verdict == "not within the grid"


def test_verdict_is_about_large_widths():
    """Best rates at widths 1, 4, 16, 64: what small widths do does not count, what
    large ones do does.
    """
    widths = (1, 4, 16, 64)
    rates = {
        "transfers": (1, 1, 1, 1),
        "transfers from n = 4 on": (2, 1, 1, 1),
        "transfers from n = 16 on": (4, 2, 1, 1),
        "shifts like n^-0.5": (4, 2, 1, 0.5),
        "shifts like n^-0.7": (4, 3, 1, 0.25),
        # a slope of 0 over all, but it moves between the largest
        "undecided": (1, 2, 2, 1),
    }
    for verdict, best in rates.items():
        found = bent(dict(zip(widths, best, strict=True)))
        assert found.verdict == verdict, found.exponents
        assert found.start == (int(verdict.split()[4]) if " on" in verdict else 1)
        assert found.exponent == found.exponents[found.start]


def test_curve_asks_for_more_rates_until_the_best_is_well_inside():
    lr = 2.0 ** np.arange(-3, 4)
    for best, more in {
        0: (),
        -2: np.arange(-7, -3),
        3: np.arange(4, 8),
        -9: np.arange(-7, -3),
    }.items():
        curve = Curve(lr, np.exp(np.abs(np.log2(lr) - best))[:, None] + np.zeros(4))
        np.testing.assert_allclose(curve.beyond, 2.0 ** np.asarray(more, float))
    wide = 2.0 ** np.arange(-15.0, 16.0)
    assert Curve(wide, wide[:, None] + np.zeros(4)).beyond == ()  # it ends somewhere


def test_without_learning_rates_every_width_finds_its_own():
    """The best rates are far from each other and from where the sweep begins."""
    how = {
        "widths": [16, 256],
        "steps": 2,
        "optimiser": ns.optim.SGD(100.0),
        "draws": 8,
        "progress": False,
    }
    found = ns.transfer(mlp(ns.dot), **how)
    small, large = found[0].curves.values()
    for curve in (small, large):
        assert 2 <= np.argmin(curve.loss) < len(curve.lr) - 2
        np.testing.assert_allclose(curve.lr[1:] / curve.lr[:-1], 2.0)
    assert len(small.lr) < len(large.lr)
    assert found[0].verdict.startswith("shifts like n^-")
    again = ns.transfer(mlp(ns.dot), **how, lr=large.lr)
    # rounds change no number
    np.testing.assert_array_equal(again[0].curves[256].losses, large.losses)


def mlp(read):
    @ns.program
    def network(n):
        r = ns.gaussian(n, name="out")
        h = ns.relu(
            ns.weight(n, n, name="hidden")
            @ ns.relu(ns.weight(n, 2, name="in") @ ns.data(X))
        )
        return ((read(r, h) - T) ** 2).mean()

    return network


def test_perceptron_in_the_standard_parametrisation_shifts():
    found = ns.transfer(
        mlp(ns.dot),
        widths=[32, 128, 512],
        steps=2,
        lr=2.0 ** np.arange(-9, 1),
        optimiser=ns.optim.SGD(1.0),
        draws=12,
    )
    value, low, high = found[0].exponent
    assert found[0].verdict.startswith("shifts like n^-")
    assert low < value < high < -0.5
    assert len(found.plot().axes) == 1
    assert found.as_dict()["sweeps"][0]["widths"][0]["width"] == 32
    assert "shifts" in str(found)


def test_diverging_loss_is_no_error():
    found = ns.transfer(
        mlp(ns.dot),
        widths=[8, 16],
        steps=3,
        lr=[1, 2, 4],
        optimiser=ns.optim.SGD(1e100),
        draws=4,
        progress=False,
    )
    assert (found[0].curves[8].loss > 1e200).all()
    assert np.isfinite([row["loss"] for row in found.rows()]).all()


@pytest.mark.slow
def test_maximal_updates_transfer_to_infinite_width():
    by = {
        "hidden": ns.optim.SGD(1.0),
        "in": ns.optim.SGD(lambda fan_in, fan_out: fan_out),
    }
    found = ns.transfer(
        mlp(ns.mean_dot),
        widths=[256, 1024, math.inf],
        steps=2,
        lr=2.0 ** np.arange(-3, 5),
        optimiser=by,
        draws=16,
    )
    assert not found[0].refused
    assert found[0].best(256).low < found[0].best(math.inf).lr < found[0].best(256).high


TINY = ns.models.read("gpt2").replace(
    layers=1, width=16, heads=2, hidden=32, vocabulary=7
)
FEW = {
    "widths": [16, 32],
    "steps": 1,
    "lr": [0.01, 0.03, 0.09],
    "draws": 4,
    "tokens": 2,
    "progress": False,
}


def study(**given):
    rules = tuple(parametrisation(name, "sgd") for name in ("sp", "mup"))
    return TransferStudy(Request(TINY, rules, **{**FEW, **given}))


def test_model_is_swept_in_both_parametrisations(monkeypatch):
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    told = []
    found = ns.transfer(TINY, **{**FEW, "progress": lambda *now: told.append(now)})
    assert told[-1] == (4, 4)  # two widths of two parametrisations
    assert [each.name for each in found] == ["sp", "mup"]
    sp, mup = (each.curves for each in found)
    assert mup[32].losses.shape == (3, 4)
    np.testing.assert_allclose(sp[16].losses, mup[16].losses)  # the model as it is
    assert (sp[32].losses != mup[32].losses).all()
    with pytest.raises(KeyError, match="sp, mup were"):
        found["ntk"]


@pytest.mark.slow
def test_losses_are_those_of_training():
    """Every rate sees the draws that a program with this rate has, and the schedule
    multiplies it.
    """
    case = study(steps=2, schedule=lambda t: (t + 1) / 2, clip_norm=0.5).request.cases(
        parametrisation("mup", "sgd")
    )[1]
    made = training(case.model, case.ids, case.targets)
    by = {
        weight: ns.optim.SGD(0.03 * dict(case.factors)[kind])
        for weight, kind in made.kinds().items()
    }
    logits = ns.train(
        made.logits, made.loss, by, 2, schedule=lambda t: (t + 1) / 2, clip_norm=0.5
    )[-1]
    wanted = ns.Program(made.loss_of(logits)).draw(
        **case.widths, draws=400, seed=1, progress=False
    )
    _, found, other = SweepTask(case, 0, 400, 5, Numpy(), (0.01, 0.03, 0.09)).run()[
        "losses"
    ]
    error = np.sqrt(wanted.var() / 400 + found.var() / 400)
    assert abs(wanted.mean() - found.mean()) < 4 * error  # level 6e-5
    assert abs(wanted.mean() - other.mean()) > 6 * error  # three times the rate


def test_cost_counts_every_rate_and_draw():
    request = study().request
    cases = [case for rule in request.checks for case in request.cases(rule)]
    assert study().estimate().random_numbers == 3 * 4 * sum(
        case.plan.random_numbers for case in cases
    )


@pytest.mark.parametrize("infinite", [False, True])
def test_cost_leaves_out_widths_without_a_law(infinite, monkeypatch):
    """They have no tasks, so no worker starts for them, and they need no memory."""
    monkeypatch.setattr(_cost, "cores", lambda: 64)
    monkeypatch.setattr(_cost, "memory", lambda: 1e12)
    widths = [8, 32, *[math.inf] * infinite]
    request = Request(
        mlp(ns.dot), (), widths=widths, steps=1, lr=[0.1, 0.2, 0.4], draws=64
    )
    sweep = TransferStudy(request)
    assert any(case.empty for case in sweep.cases) == infinite
    assert sweep.estimate().workers == len(sweep.tasks())


def test_generator_gives_the_seed():
    given = {"widths": [8, 16], "steps": 1, "lr": [0.01, 0.02, 0.04], "draws": 4}
    seeds = ({}, {"rng": 0}, {"rng": np.random.default_rng(0)})
    one, same, other = (ns.transfer(mlp(ns.dot), **given, **seed) for seed in seeds)
    np.testing.assert_array_equal(one[0].curves[8].losses, same[0].curves[8].losses)
    assert (one[0].curves[8].losses != other[0].curves[8].losses).all()


def test_width_without_law_is_reported():
    found = ns.transfer(
        mlp(ns.dot),
        widths=[8, 32, math.inf],
        steps=1,
        lr=2.0 ** np.arange(-8, 0),
        draws=8,
    )
    assert list(found[0].refused) == [math.inf]
    assert "No law at width ∞" in " ".join(found.table().split())
    assert found.as_dict()["sweeps"][0]["refused"].keys() == {"inf"}


@ns.program
def attention(n):
    x = ns.probe("stream", ns.tanh(ns.weight(n, 2, name="in") @ ns.data(X)))
    y = x + ns.nn.attend(x, heads=1, scaling="linear").output
    f = ns.mean_dot(ns.weight(n, 1, name="head") @ ns.data([1.0]), y)
    return ((f - T) ** 2).mean()


OUTER = {
    "in": lambda fan_in, fan_out: fan_out,
    "head": lambda fan_in, fan_out: fan_out,
    None: 4.0,
}


def test_models_have_no_infinite_width_and_the_remedy_has():
    for study in (ns.transfer, ns.coord_check):
        with pytest.raises(
            ValueError,
            match=r"finite for gpt2: .*with ns.nn.attend\(…, scaling='linear'\)",
        ):
            study(TINY, widths=[16, 32, math.inf])
    by = {name: ns.optim.SGD(lr) for name, lr in OUTER.items()}
    how = {
        "widths": [64, 256, math.inf],
        "steps": 1,
        "lr": [0.125, 0.25, 0.5],
        "draws": 4,
        "progress": False,
    }
    large, infinite = list(
        ns.transfer(attention, optimiser=by, **how)[0].curves.values()
    )[1:]
    np.testing.assert_allclose(infinite.loss, large.loss, rtol=0.2)


@pytest.mark.slow
def test_coordinate_check_has_limit_of_attention():
    check = ns.coord_check(
        attention, widths=[64, 256, math.inf], lr=OUTER, draws=8, progress=False
    )[0]
    entry = check["loss"].entry
    assert not check.refused
    assert check.limit[entry].mean() == pytest.approx(
        check.draws[entry][-1].mean(), rel=0.2
    )


def test_best_rate_at_an_end_says_which_rates_to_add():
    found = ns.transfer(
        mlp(ns.dot), widths=[32, 128], steps=1, lr=[1e-5, 2e-5, 4e-5], draws=4
    )
    assert found[0].verdict == "not within the grid"
    said = " ".join(found.table().split())
    assert (
        "At widths 32, 128 the best rate is at the end of the grid: add rates larger"
        " than 4e-05." in said
    )
    assert found.as_dict()["sweeps"][0]["widths"][0]["best"]["high"] is None


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_best_rate_of_other_optimisers_is_inside_the_default_sweep(optimiser):
    found = ns.transfer(TINY, **{**FEW, "lr": None}, optimiser=optimiser)
    loss = found["mup"].curves[32].loss
    assert (loss > 0).all()
    assert 2 <= np.argmin(loss) < len(loss) - 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widths": [64]}, "widths=.64. must be two or more that are finite"),
        ({"widths": [8, 16], "lr": [0.1]}, "three or more positive numbers"),
        ({"widths": [8, 16], "lr": [0.1, 0.1, 0.2]}, "a sequence of different numbers"),
        (
            {"widths": [8, 16], "parametrisation": "mup", "optimiser": "sgd"},
            "parametrisation='mup' must be left out",
        ),
        ({"widths": [8, 16], "tokens": 3}, "tokens=3 must be left out"),
        ({"widths": [8, 16], "clip_norm": 0.0}, "clip_norm=0.0 must be"),
        ({"widths": [8, 16], "draws": 3}, "draws=3 must be"),
        (
            {"widths": [8, 16], "optimiser": "lamb"},
            "optimiser='lamb' must be 'sgd', 'muon', 'adam' or 'lion'",
        ),
    ],
)
def test_transfer_with_invalid_arguments_raises(options, words):
    with pytest.raises(ValueError, match=words):
        ns.transfer(mlp(ns.dot), **{"optimiser": ns.optim.SGD(), **options})


@pytest.mark.parametrize("optimiser", keep(["sgd", "adam"], "adam"))
def test_grid_of_rates_is_planned_once(monkeypatch, optimiser):
    """20 rates at each of two widths: two plans, for the estimate and for all draws."""
    made, new = [], _plan_query.PlanQuery.made
    monkeypatch.setattr(
        _plan_query.PlanQuery,
        "made",
        lambda *args, **options: made.append(args) or new(*args, **options),
    )
    _plan_query._kept.cache_clear()
    net = mlp(ns.mean_dot)
    ns.transfer(
        net,
        widths=[16, 32],
        steps=2,
        lr=2.0 ** np.arange(-10, 10),
        optimiser=optimiser,
        draws=4,
    )
    assert len(made) == 2
