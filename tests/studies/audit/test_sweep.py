"""A sweep of a standard deviation: one plan for all values, and the law of models that
are planned one by one.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import AuditCase, AuditStudy, Sampling, _plan_query, sweep
from tests.internals import AuditRequest as Request

from ...keep import keep

SIZES = {"layers": 2, "width": 32, "hidden": 48, "vocabulary": 40}
MODELS = {
    "gpt2": ns.models.read("gpt2").replace(heads=2, length=16, **SIZES),
    "llama-3-8b": ns.models.read("llama-3-8b").replace(
        heads=4, groups=2, head_dim=8, **SIZES
    ),
    "bert-base": ns.models.read("bert-base").replace(heads=2, length=16, **SIZES),
}
CASES = [
    (name, field, infinite)
    for name, fields in (
        ("gpt2", ("std", "std_q", "std_o", "std_embedding", "std_position", "std_out")),
        ("llama-3-8b", ("std", "std_k", "std_v", "std_in", "std_gate", "std_logits")),
        ("bert-base", ("std", "std_logits", "std_embedding")),
    )
    for field in fields
    for infinite in (False, True)
]
LEVEL = 1e-4


def requested(model, field, values=(0.1, 0.3), **how):
    models, swept = sweep(model, field, values)
    return Request(models, swept=swept, **{"tokens": [4], **how})


def drawn(case, seed, draws=300):
    found = case.shared.probes().named(
        case.at().unchecked(Sampling(draws, seed, workers=1, progress=False))
    )
    return {
        (name, k): x
        for name, a in found.items()
        for k, x in enumerate(a.reshape(draws, -1).T)
    }


@pytest.mark.parametrize(
    ("name", "field", "infinite"), keep(CASES, ("gpt2", "std", False))
)
def test_law_is_that_of_a_model_with_the_number(name, field, infinite):
    """Every quantity of an audit, gradients and their ratios included: two samples,
    Kolmogorov–Smirnov.
    """
    request = requested(MODELS[name], field, gradients=not infinite)
    case = request.subject(request.models[1], 4, infinite)
    assert case.swept == field
    ours, alone = drawn(case, 5), drawn(replace(case, swept=None), 6)
    assert ours.keys() == alone.keys()
    # less is rounding
    moving = [key for key, x in alone.items() if x.std() > 1e-13 * np.abs(x).max()]
    p = min(
        stats.ks_2samp(ours[key], alone[key], method="asymp").pvalue for key in moving
    )
    assert p > LEVEL / len(moving)
    for key in alone.keys() - set(moving):
        np.testing.assert_allclose(ours[key], alone[key], rtol=1e-12)


def test_swept_std_changes_scores_and_gradients():
    request = requested(MODELS["gpt2"], "std_q", gradients=True)
    one, other = (
        drawn(request.subject(model, 4, False), seed)
        for seed, model in enumerate(request.models)
    )
    for key in ("score_std", 0), ("grad_key", 0), ("grad_query_ratio", 0):
        assert stats.ks_2samp(one[key], other[key]).pvalue < 1e-20


def test_sweep_is_planned_once(monkeypatch):
    made, new = [], _plan_query.PlanQuery.made
    monkeypatch.setattr(
        _plan_query.PlanQuery,
        "made",
        lambda *args, **options: made.append(args) or new(*args, **options),
    )
    for cache in (_plan_query._kept, AuditCase.planned, AuditCase.probes):
        cache.cache_clear()
    study = AuditStudy(
        requested(
            MODELS["gpt2"],
            "std",
            np.linspace(0.1, 0.5, 8).tolist(),
            widths="actual",
            draws=16,
        )
    )
    study.estimate()
    for task in study.tasks():
        task.run()
    with_gradients, without = 1, 1  # planned to compare their costs
    assert len(made) == with_gradients + without


@pytest.mark.parametrize(
    ("model", "field", "values", "how"),
    [
        # matrices of zeros leave out what acts on them
        ("gpt2", "std_q", (0.0, 0.1), {}),
        ("gpt2", "std", (0.1, 0.2), {"ranges": True}),
        ("gpt2", "eps", (1e-5, 1e-3), {}),
        ("t5-base", "std_q", (0.1, 0.2), {}),
    ],
)
def test_other_sweeps_have_a_plan_for_each_value(model, field, values, how):
    known = MODELS.get(model) or ns.models.read(model)
    request = requested(known, field, values, gradients=False, **how)
    assert all(request.subject(each, 4, False).swept is None for each in request.models)
