"""No setting is ignored without a word: a change of one changes the program or what it
is held to, or is an error.

The program is compared by its graph (every matrix, constant and parameter of a
function), its learning rates and eps.
"""

import itertools
import re
from functools import lru_cache, partial

import numpy as np
import pytest

import netsor as ns
from netsor.models import read
from netsor.optim import NAMED
from tests.internals import (
    KINDS,
    WORDS,
    Apply,
    Constant,
    MatMul,
    absent_kinds,
    parametrisation,
    topological_order,
)
from tests.internals import CoordCheckRequest as CheckRequest
from tests.internals import TransferRequest as SweepRequest
from tests.internals import model_training as training

from ..keep import keep
from .coord_check.nets import RATES

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 4,
    "vocab_size": 5,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 5,
    "tie_word_embeddings": False,
}
MODELS = {
    "tied, learned positions, no gate": read(GPT2),
    "untied, learned positions, no gate": read(GPT2).replace(tied=False),
    "untied, rotary, gated": read(LLAMA),
    "tied, rotary, gated": read(LLAMA).replace(tied=True),
    "ALiBi": read(GPT2).replace(positions="alibi"),
    "no positions": read(GPT2).replace(positions="none", tied=False),
    "matrices that begin at 0": ns.models.recipe(read(GPT2), "zero"),
    "positions that begin at 0": read(GPT2).replace(std_position=0.0),
}
KINDS_OF_KEYS = [
    *(
        (kind, part, axis)
        for kind in (*KINDS, "matrices")
        for part in ("std", "lr", "eps")
        for axis in ("width", "depth")
    ),
    *((name, axis) for name in ("logits", "scores") for axis in ("width", "depth")),
    ("scores", "head_dim"),
    ("promise", "features"),
    ("promise", "logits"),
]
AXES = {"width": {"widths": (16, 32)}, "depth": {"widths": (16,), "depths": (2, 4)}}


def file_of(key, number, like):
    content = number
    for name in reversed(key):
        content = {name: content}
    return {"name": "mine", "like": like, **content}


def seen(request):
    """All that the numbers of a request depend on."""
    (rule,) = request.rules
    case = request.cases(rule)[-1]
    network = training(case.model, case.ids, case.targets, case.vectors)
    graph = []
    for value in topological_order([network.loss]):
        match value.op:
            case MatMul(weight):
                sizes = (
                    str(weight.in_width),
                    str(weight.out_width),
                    weight.in_width.factor,
                    weight.out_width.factor,
                )
                graph.append(("matrix", weight.std, *sizes, weight.source.name))
            case Constant(numbers):
                graph.append(("constant", numbers.tolist()))
            case Apply(function):
                graph.append(("function", function.name, function.parameters))
            case op:
                graph.append(
                    (type(op).__name__, tuple(value.shape), getattr(op, "power", None))
                )
    kinds = sorted(set(network.kinds().values()))
    rates = dict(case.factors if hasattr(case, "factors") else case.rates)
    moved = [(kind, rates[kind], dict(case.eps).get(kind)) for kind in kinds]
    still = [kind for kind, rate, _ in moved if not rate]
    moved = [(kind, rate, 0.0 if kind in still else eps) for kind, rate, eps in moved]
    axis = getattr(request, "axis", "width")
    promises = (
        [rule.promise(name, axis) for name in ("stream", "logits")]
        if isinstance(request, CheckRequest)
        else []
    )
    return graph, case.model.widths(), moved, promises


def outcome(make):
    """What is seen, or the error."""
    try:
        return seen(make())
    except ValueError as error:
        return str(error)


def acts_or_is_refused(
    study, model, optimiser, eps, grow, number=0.25, like="mup", **lr
):
    """Every key, along the axis that it is about."""
    # a sweep is at the model's own depth, where all parametrisations agree
    axes = ("width",) if study is SweepRequest else ("width", "depth")
    unchanged = parametrisation({"name": "mine", "like": like}, optimiser)
    options, base = {}, {}
    for axis in axes:
        options[axis] = {
            "optimiser": optimiser,
            "eps": eps,
            "ids": (1, 2),
            "targets": (2, 3),
            **AXES[axis],
            **lr,
        }
        if axis == "width":
            options[axis]["grow"] = grow
        base[axis] = seen(study(model, (unchanged,), **options[axis]))
    told = {}
    for key in KINDS_OF_KEYS:
        axis = "depth" if key[-1] == "depth" else "width"
        if axis not in axes:
            continue
        changed = partial(parametrisation, file_of(key, number, like), optimiser)
        found = outcome(
            lambda rule=changed, how=options[axis]: study(model, (rule(),), **how)
        )
        assert found != base[axis], f"{'.'.join(key)} is ignored"
        if isinstance(found, str):
            told[".".join(key)] = found
            assert re.match(
                r"parametrisation='mine' must be without .*, since .*", found
            ), found
            assert ".".join(key) in found
    return told


@pytest.mark.parametrize("name", keep(MODELS, "untied, rotary, gated"))
def test_every_key_acts_or_is_refused(name):
    model = MODELS[name]
    told = acts_or_is_refused(CheckRequest, model, "adam", 1e-8, "heads")
    absent = absent_kinds(model)
    refused = {key.split(".")[0] for key in told}
    zero = {"output", "out"} if "zero" in model.name else set()
    expected = {*absent, *zero, "scores", *(() if model.tied else ("logits",))}
    assert refused == expected
    assert {key for key in told if key.startswith("scores")} == {"scores.head_dim"}


@pytest.mark.parametrize(
    ("study", "optimiser", "eps", "grow"),
    [
        pytest.param(CheckRequest, "adam", 0.0, "head-dim", marks=pytest.mark.slow),
        (CheckRequest, "sgd", 0.0, "heads"),
        pytest.param(SweepRequest, "adam", 1e-8, "heads", marks=pytest.mark.slow),
        (SweepRequest, "muon", 0.0, "head-dim"),
    ],
)
def test_every_key_acts_or_is_refused_in_every_study(study, optimiser, eps, grow):
    told = acts_or_is_refused(
        study, MODELS["tied, learned positions, no gate"], optimiser, eps, grow
    )
    assert ("query.eps.width" in told) == (eps == 0)
    assert ("promise.features" in told) == (study is SweepRequest)
    assert ("scores.head_dim" in told) == (grow == "heads")
    if "query.eps.width" in told:
        assert ("has no eps" in told["query.eps.width"]) == (optimiser != "adam")


def test_kind_that_stands_still_has_no_learning_rate_to_scale():
    told = acts_or_is_refused(
        CheckRequest,
        MODELS["untied, rotary, gated"],
        "sgd",
        0.0,
        "heads",
        lr={"query": 0.0},
    )
    assert "the learning rate of query is 0" in told["query.lr.width"]


@pytest.mark.parametrize(("name", "optimiser"), list(itertools.product(MODELS, NAMED)))
def test_built_in_parametrisations_apply_to_every_model(name, optimiser):
    eps = 1e-8 if optimiser == "adam" else 0.0
    for rule in WORDS:
        for study in (CheckRequest, SweepRequest):
            study(
                MODELS[name],
                (parametrisation(rule, optimiser),),
                widths=(16, 32),
                optimiser=optimiser,
                eps=eps,
            )


@pytest.mark.parametrize("name", MODELS)
def test_report_s_content_is_a_file_for_the_same_numbers(name):
    """It repeats the starting point, also where this cannot act."""
    for like in WORDS:
        rule = parametrisation(
            {"name": "mine", "like": like, "query": {"lr": {"width": 0.25}}}, "sgd"
        )
        how = {"widths": (16, 32), "ids": (1, 2), "targets": (2, 3)}
        once, again = (
            CheckRequest(MODELS[name], (each,), **how)
            for each in (rule, parametrisation(rule.fields(), "sgd"))
        )
        assert seen(once) == seen(again)


@pytest.mark.parametrize("name", MODELS)
def test_absent_kinds_are_those_that_a_network_does_not_have(name):
    network = training(MODELS[name], (1, 2), (2, 3))
    assert set(KINDS) - absent_kinds(MODELS[name]).keys() == {
        act.kind for act in network.acts
    } - ({"head"} if MODELS[name].tied else set())


@pytest.mark.parametrize("grow", ["heads", "head-dim"])
@pytest.mark.parametrize("like", WORDS)
def test_scores_refer_to_the_width_if_a_file_says_so(grow, like):
    model = MODELS["tied, learned positions, no gate"]
    rule = parametrisation({"like": like, "scores": {"width": -0.75}}, "sgd")
    wide = CheckRequest(model, (rule,), widths=(8, 32), grow=grow).cases(rule)[-1].model
    assert wide.score_scale == pytest.approx(4**-0.75 * model.d**-0.5)
    both = parametrisation(
        {"like": like, "scores": {"width": 0.25, "head_dim": -1.0}}, "sgd"
    )
    wide = (
        CheckRequest(model, (both,), widths=(8, 32), grow="head-dim")
        .cases(both)[-1]
        .model
    )
    assert wide.score_scale == pytest.approx(4**-0.75 * model.d**-0.5)


def test_matrices_count_if_one_of_them_does():
    model = MODELS["tied, learned positions, no gate"]
    rates = {
        kind: {"lr": {"width": 0.5}}
        for kind in ("query", "key", "value", "output", "in", "out")
    }
    every = {"name": "mine", "matrices": {"lr": {"width": 0.25}}, **rates}
    with pytest.raises(
        ValueError, match=r"without matrices\.lr\.width, since gpt2 has gated=False"
    ):
        CheckRequest(model, (parametrisation(every, "sgd"),), widths=(16, 32))
    every["gate"] = rates["in"]
    with pytest.raises(
        ValueError,
        match=(
            r"without gate.lr.width|matrices.lr.width, since every matrix has its own number"
        ),
    ):
        CheckRequest(
            MODELS["tied, rotary, gated"],
            (parametrisation(every, "sgd"),),
            widths=(16, 32),
        )


def of_rates(name, **lr):
    """A request with these learning rates."""
    return CheckRequest(
        MODELS[name],
        (parametrisation("mup", "sgd"),),
        widths=(16, 32),
        ids=(1, 2),
        targets=(2, 3),
        **lr,
    )


@lru_cache
def unchanged(name):
    """What is seen without another learning rate."""
    return seen(of_rates(name))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_learning_rate_of_a_kind_acts_or_is_refused(name, kind):
    found = outcome(lambda: of_rates(name, lr={kind: 0.5}))
    assert found != unchanged(name)
    assert isinstance(found, str) == (kind in absent_kinds(MODELS[name]))
    if isinstance(found, str):
        assert f"lr={kind!r} must be for a kind of weight of gpt2" in found.replace(
            "llama", "gpt2"
        )


# of every option of a study that decides numbers: another value than the default
CHANGES = {
    "widths": [16, 64],
    "steps": 2,
    "optimiser": "muon",
    "eps": 1e-3,
    "lr": 0.5,
    "ids": [1, 1],
    "targets": [3, 3],
    "tokens": 3,
    "draws": 5,
    "grow": "head-dim",
    "vectors": ("bias",),
    "seed": 7,
    "depths": [2],
    "parametrisation": "ntk",
    "promise": {"features": 1.0},
    "tolerance": 0.5,
    "schedule": lambda t: 0.5,
    "clip_norm": 1e-3,
    "weights": lambda net: None,
    "rng": 7,
    "batch": ([[1, 2]], [[2, 1]]),
}
# decide no law
RUNNING = (
    "model",
    "workers",
    "out",
    "backend",
    "device",
    "precision",
    "executor",
    "progress",
)


FEW = {
    "widths": [16, 32],
    "draws": 4,
    "parametrisation": "mup",
    "progress": False,
    "workers": 1,
    "steps": 1,
}
STUDIES = {"coord_check": ns.coord_check, "transfer": ns.transfer}
OPTIONS = [
    (study, name)
    for study, function in STUDIES.items()
    for name in function.__wrapped__.__annotations__
    if name not in (*RUNNING, "return")
]


@lru_cache
def numbers(study, optimiser, name=None):
    """Of a model, with one option changed: all that is reported, or the error."""
    few = {
        **FEW,
        "optimiser": optimiser,
        **({"lr": [0.25, 0.5, 1.0]} if study == "transfer" else {}),
    }
    if name is not None:
        few[name] = (
            [0.1, 0.2, 0.4] if (study, name) == ("transfer", "lr") else CHANGES[name]
        )
    few |= {"ids": [1, 2]} if name == "targets" else {}
    try:
        part = STUDIES[study](MODELS["tied, learned positions, no gate"], **few)[0]
    except ValueError as error:
        return str(error)
    if study == "transfer":
        return [
            (curve.lr.tolist(), curve.losses.tolist()) for curve in part.curves.values()
        ]
    held_to = (
        [(verdict.promised, verdict.verdict) for verdict in part.verdicts],
        part.request.tolerance,
    )
    return [[each.tolist() for each in some] for some in part.draws.values()], held_to


@pytest.mark.parametrize("optimiser", keep(["sgd", "adam"], "adam"))
@pytest.mark.parametrize(("study", "name"), keep(OPTIONS, ("transfer", "eps")))
def test_every_option_acts_or_is_refused(study, name, optimiser):
    base = numbers(study, optimiser)
    assert not isinstance(base, str), base
    changed = numbers(study, optimiser, name)
    assert changed != base, f"{name} is ignored"
    if isinstance(changed, str):
        assert f"{name}=" in changed, changed
        assert "must be" in changed, changed


@pytest.mark.parametrize(
    "name", ["grow", "vectors", "tokens", "ids", "targets", "parametrisation", "depths"]
)
def test_options_of_models_are_refused_with_a_program(name):
    program, rates = RATES["mup"]
    given = {name: CHANGES[name]}
    with pytest.raises(ValueError, match=f"{name}=.* must be left out"):
        ns.coord_check(
            program, widths=[16, 32], lr=rates, draws=4, progress=False, **given
        )


def test_eps_of_an_optimiser_object_is_its_own():
    program, _ = RATES["mup"]
    with pytest.raises(
        ValueError, match=r"eps=0\.1 must be left out: an optimiser object has its own"
    ):
        ns.transfer(
            program,
            widths=[16, 32],
            eps=0.1,
            optimiser=ns.optim.Adam(1.0),
            progress=False,
        )


def test_grow_has_no_effect_where_the_width_stays():
    with pytest.raises(
        ValueError,
        match="grow='head-dim' must be left out: the only width is that of gpt2",
    ):
        CheckRequest(
            MODELS["tied, learned positions, no gate"],
            (parametrisation("mup", "sgd"),),
            depths=(1, 2),
            grow="head-dim",
        )


def test_transfer_scales_eps_as_the_parametrisation_says():
    """As a coordinate check does: the loss after one step of each is that of the
    other.
    """
    model = MODELS["untied, rotary, gated"]
    rules = (parametrisation("mup", "adam"),)
    how = {
        "widths": (16, 64),
        "optimiser": "adam",
        "eps": 1e-2,
        "ids": (1, 2),
        "targets": (2, 3),
        "steps": 1,
    }
    sweep, check = (
        SweepRequest(model, rules, **how).cases(rules[0])[-1],
        CheckRequest(model, rules, **how).cases(rules[0])[-1],
    )
    assert sweep.eps == check.eps
    assert dict(sweep.eps)["query"] == pytest.approx(1e-2 / 8)
    assert dict(sweep.eps)["head"] == 1e-2
    rate = check.rates[0][1]
    after = sweep.program.draw(
        draws=50, seed=1, progress=False, **sweep.widths, lr=1e-4
    )
    assert rate == 1e-4
    numbers = dict(
        zip(
            check.entries,
            check.program.draw(draws=50, seed=1, progress=False, **check.widths).T,
            strict=True,
        )
    )
    by_name = {(entry.what, entry.name): each for entry, each in numbers.items()}
    expected = by_name["size", "loss"] + by_name["change", "loss"]
    assert abs(after.mean() - expected.mean()) < 5 * np.hypot(
        after.std(), expected.std()
    ) / np.sqrt(50)
