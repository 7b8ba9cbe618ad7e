"""Regression: an unchanged model stays in its bands whatever the seed, and a changed
one leaves them.
"""

import copy
import itertools
import json

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import AuditRequest as Request
from tests.internals import (
    Baseline,
    Departure,
    EarlierLength,
    Figure,
    _below_band,
    _number_keys,
    _process_pool,
    _rank,
)
from tests.internals import audit_plots as _plots

from ...inline import Inline

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": 40,
}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(_process_pool, "Workers", Inline)


def audited(seed=0, changes=(), **how):
    return ns.audit(
        {**GPT2, **dict(changes)},
        quick=True,
        seed=seed,
        workers=1,
        progress=False,
        **how,
    )


@pytest.mark.parametrize(("draws", "before"), [(5, 6), (7, 7), (4, 21)])
def test_probability_below_band_equals_enumeration(draws, before):
    """By all orders of both samples; 21 earlier draws have the end of their band
    between the second and the third.
    """
    total, r = draws + before, 3 if before == 21 else 2
    # the places of the new draws
    orders = np.array(list(itertools.combinations(range(total), draws)))
    for k in range(1, draws + 1):
        # draws of the earlier sample below the k-th new one
        earlier = orders[:, k - 1] - (k - 1)
        assert _below_band(k, draws, before) == pytest.approx(
            np.mean(earlier < r), rel=1e-9
        )


def test_rule_has_its_level_and_is_the_median_where_draws_are_many():
    """At a level that can be seen: how often one number leaves its band, of a skewed
    law, and of one that moved.
    """
    level, rng = 0.01, np.random.default_rng(0)
    for draws, before in ((16, 16), (16, 200), (60, 16)):
        k = _rank(draws, before, level / 2)
        old, new = (
            np.sort(rng.standard_exponential((10_000, count)), axis=1)
            for count in (before, draws)
        )
        low, high = np.quantile(old, [0.05, 0.95], axis=1)

        def rate(x, k=k, low=low, high=high):
            return np.mean((x[:, k - 1] < low) | (x[:, -k] > high))

        assert rate(new) <= level + stats.norm.isf(1e-4) * np.sqrt(level / 10_000)
        assert rate(3 * new + 3) > 0.9
    assert _rank(200, 200, 1e-7) == 101
    assert _rank(16, 16, 1e-7) == 16


@pytest.mark.slow
def test_no_alarm_for_twenty_other_seeds():
    """One alarm or more has a probability of at most 20 times 1e-4."""
    old = audited().as_dict()
    assert [audited(seed).departures(old) for seed in range(1, 21)] == [[]] * 20


def test_alarm_for_another_std_and_none_for_another_seed():
    old = audited().as_dict()
    assert audited(1).departures(old) == []
    for std in (0.022, 0.018):
        left = audited(1, {"initializer_range": std}).departures(old)
        assert {"mean_square", "score_std"} <= {each.quantity for each in left}
        assert all(
            (each.median > each.high) == (std > 0.02)
            for each in left
            if each.quantity == "mean_square"
        )
    first, *_ = audited(1, {"initializer_range": 0.2}).departures(old)
    assert str(first).startswith(
        "mean square of the stream in block 2 at 16 tokens has a median of 1."
    )


@pytest.mark.slow
def test_baseline_with_other_draws_and_lengths_is_comparable():
    few, many = audited().as_dict(), audited(3, draws=120)
    assert many.departures(few) == []
    assert audited(1).departures(many.as_dict()) == []
    more = ns.audit(
        GPT2, tokens=[4, 8, 16], draws=30, widths="both", gradients=True, progress=False
    ).as_dict()
    assert (
        ns.audit(
            GPT2, tokens=[4, 8], draws=20, widths="actual", seed=1, progress=False
        ).departures(more)
        == []
    )


def test_baseline_file_equals_baseline_object(tmp_path, monkeypatch):
    # which is slow
    monkeypatch.setattr(
        _plots, "svg_figure", lambda name, *_: Figure(name, "", lambda: b"<svg/>")
    )
    audit = audited(out=tmp_path)
    path = tmp_path / "audit.json"
    old = json.loads(path.read_text())
    assert old == json.loads(json.dumps(audit.as_dict()))
    other = audited(1, {"initializer_range": 0.03})
    assert (
        other.departures(path) == other.departures(str(path)) == other.departures(old)
    )
    assert len(other.departures(old)) > 5


def test_number_that_was_constant_leaves_its_band_beyond_rounding():
    old = audited(recipe="zero").as_dict()
    assert old["layers"][0]["mlp_share"] == {"median": 0.0, "low": 0.0, "high": 0.0}
    assert audited(1, recipe="zero").departures(old) == []
    assert "mlp_share" in {each.quantity for each in audited(1).departures(old)}


def test_departures_are_printed_with_digits_that_distinguish_them():
    said = str(Departure("entropy", 16, 3, 0.99951, 0.99964, 0.99968))
    assert said.startswith(
        "entropy of attention in block 3 at 16 tokens has a median of 0.9995, 0.00013"
        " below its ba"
    )
    assert said.endswith("nd of 0.9996 to 0.9997")
    said = str(Departure("loss", 128, None, 10.824901, 10.8240, 10.824899))
    assert (
        "has a median of 10.824901, 2e-06 above its band of 10.824 to 10.824899" in said
    )
    assert str(Departure("cosine", 16, 0, 0.5, 0.0, 0.1)).startswith(
        "cosine of tokens at the embedding at 16 tokens"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda old: old.pop("layers"),
            "must be an audit: it has no 'layers'; write it with",
        ),
        (lambda old: old.pop("sizes"), "must be an audit: it has no 'sizes'"),
        (
            lambda old: old["layers"].pop(),
            "with mean_square in block 2 at 16 tokens, which this audit measures",
        ),
        (
            lambda old: old["layers"][0].pop("entropy"),
            "an audit with entropy in block 1 at 16 tokens",
        ),
        (lambda old: old["layers"][0]["entropy"].pop("low"), "it has no 'low'"),
        (
            lambda old: old["layers"][0]["entropy"].update(low=float("nan")),
            "it is damaged .entropy has no band",
        ),
        (lambda old: old["layers"][0]["entropy"].update(low=10**400), "it is damaged"),
        (lambda old: old["layers"][0]["entropy"].update(low=[]), "it is damaged"),
        (lambda old: old.update(layers=3), "it is damaged"),
        (lambda old: old.update(lengths=[]), "it is damaged .no length"),
        (lambda old: old.update(sizes=7), "it is damaged .sizes=7 must be text"),
        (lambda old: old.update(draws=3), "it is damaged .draws=3 must be"),
        (lambda old: old.update(tokens="16"), "it is damaged .tokens='16' must be"),
        (lambda old: old.update(widths=7), "it is damaged .no widths"),
        (
            lambda old: old.update(sizes="1 block"),
            "must be of the same model: it has 1 block, and gpt2 2",
        ),
    ],
)
def test_invalid_baseline_raises(change, said):
    audit = audited()
    old = copy.deepcopy(audit.as_dict())
    change(old)
    with pytest.raises(ValueError, match=said):
        audit.departures(old)
    with pytest.raises(
        ValueError,
        match="baseline=3 must be the path of a JSON file, or the result of as_dict",
    ):
        audit.departures(3)


def test_too_few_draws_for_so_many_numbers_are_refused_beforehand():
    """Of 200 blocks no rule on 16 draws and 16 others has a level of 1e-4 in all."""
    model = ns.models.read({**GPT2, "n_layer": 200})
    for draws, said in (
        (
            16,
            (
                "must be comparable with 16 draws of 16 tokens, but has 16: give 17 or"
                " more"
            ),
        ),
        (17, None),
    ):
        request = Request((model,), quick=True, draws=draws)
        bands = dict.fromkeys(_number_keys(request, model, 16), (0.0, 1.0))
        old = Baseline(
            "old.json", model.sizes, {16: EarlierLength(16, "actual", None, bands)}
        )
        if said is None:
            old.check(request, model)
        else:
            with pytest.raises(ValueError, match=said):
                old.check(request, model)


def test_baseline_is_of_the_same_token_ids():
    """The laws differ: two of four tokens are equal."""
    equal = audited(ids=[3, 7, 7, 1])
    assert equal.as_dict()["ids"] == [3, 7, 7, 1]
    assert not equal.departures(equal.as_dict())
    different = audited(tokens=4)
    with pytest.raises(
        ValueError, match=r"it has \[3, 7, 7, 1\], and this audit different ones"
    ):
        different.departures(equal.as_dict())
    with pytest.raises(
        ValueError, match=r"it has different ones, and this audit \[3, 7, 7, 1\]"
    ):
        equal.departures(different.as_dict())
