"""The largest and the smallest numbers of activations: formats, functions of arrays,
and laws against plain numpy.
"""

import math

import numpy as np
import pytest
from scipy import stats

import netsor as ns
from tests.internals import (
    BLOCK,
    COLUMNS,
    ENDS,
    FORMATS,
    _split_root,
    of_range,
    pooled,
    symmetric_root,
)

from ..keep import keep
from . import plain

LEVEL = 1e-4  # of each test: divided by the numbers that are compared
SMALL = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 8,
    "vocab_size": 23,
    "initializer_range": 0.05,
}
MODELS = {
    "gpt2": ns.models.read({"model_type": "gpt2", **SMALL}),
    "llama": ns.models.read(
        {
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 23,
            "initializer_range": 0.3,
        }
    ),
}
IDS = (3, 7, 7, 1)


def numbers(u):
    """Largest, shares below, shares below after a scale, one by one."""
    size = np.abs(np.ravel(u))
    largest = float(size.max())
    made = [largest]
    for scaled in (False, True):
        for f in FORMATS:
            k = 0
            while scaled and largest * 2.0 ** (k + 1) <= f.largest:
                k += 1
            while scaled and largest * 2.0**k > f.largest:
                k -= 1
            made.append(np.mean((size > 0) & (size * 2.0**k < 2.0**f.smallest)))
    return made


def activations(model, rng):
    """One initialisation: arrays of each activation, block by block, and at the
    ends.
    """
    table = rng.normal(0.0, model.std_embedding, (model.vocabulary, model.width))
    x = table[list(IDS)]
    if model.positions == "learned":
        x = (
            x
            + rng.normal(0.0, model.std_position, (model.length, model.width))[
                : len(IDS)
            ]
        )
    made, mask = [{"embedding": x}], plain.allowed(model, 0, len(IDS))
    for _ in range(model.layers):
        w, u = plain.matrices(model, rng), plain.norm(model, x)
        found = {
            name: np.einsum("hdn,sn->hsd", w[name[0]], u)
            for name in ("query", "key", "value")
        }
        added, scores, weights = plain.attention(model, u, w, mask)
        u = plain.norm(model, x + added)
        f, h = plain.ACTIVATIONS[model.activation], u @ w["in"].T
        hidden = f(u @ w["gate"].T) * h if model.gated else f(h)
        fed = hidden @ w["out"].T
        x = x + added + fed
        found |= {
            "scores": scores[:, mask],
            "weights": weights[:, mask],
            "attention": added,
            "hidden": hidden,
        }
        made.append(found | {"mlp": fed, "stream": x})
    words = table if model.tied else rng.normal(0.0, model.std_logits, table.shape)
    return [*made, {"logits": plain.norm(model, x) @ words.T}]


@pytest.mark.parametrize("name", keep(MODELS, "gpt2"))
def test_ranges_match_law_of_plain_numpy(name):
    model, rng = MODELS[name], np.random.default_rng(1)
    drawn = [activations(model, rng) for _ in range(200)]
    found = model.probes(IDS, ranges=True).measure(
        1000, seed=2, workers=1, progress=False
    )
    compared, varied = {}, 0
    places = [(a, block, k + 1) for a in BLOCK for k, block in enumerate([(0,), (1,)])]
    for activation, block, at in (*places, ("embedding", (), 0), ("logits", (), 3)):
        theirs = np.array([numbers(each[at][activation]) for each in drawn])
        for i, column in enumerate(COLUMNS):
            ours = found[f"{activation}_{column}"][:, *block]
            compared[activation, column, *block] = stats.ks_2samp(
                theirs[:, i], ours
            ).pvalue
            varied += bool(ours.std() > 0)
    assert varied > 50
    assert min(compared.values()) > LEVEL / len(compared), min(
        compared, key=compared.get
    )


@pytest.mark.parametrize("dependent", [False, True])
def test_split_root_starts_with_root_of_first_vectors(dependent):
    """Logits of the last token come on top of those that predict, which keep their own
    symmetric root.
    """
    y = np.random.default_rng(0).standard_normal((3, 5, 7))
    y[:, -1] = y[:, 0] + y[:, 1] if dependent else y[:, -1]
    y[1, 1] = y[1, 0]
    gram = y @ y.transpose(0, 2, 1)
    made = _split_root(gram, 4)
    # where the last vector depends on the first, the root of a rounding error is left
    # of it
    np.testing.assert_allclose(
        made @ made.transpose(0, 2, 1), gram, atol=1e-7 if dependent else 1e-12
    )
    np.testing.assert_allclose(
        made[:, :4, :4], symmetric_root(gram[:, :4, :4]), atol=1e-12
    )
    assert not made[:, :4, 4].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_ranges_do_not_change_other_quantities(name):
    model = MODELS[name]
    plain, ranged = (
        model.probes(IDS, gradients=True, ranges=ranges).measure(
            1500, seed=seed, workers=1, progress=False
        )
        for seed, ranges in ((1, False), (2, True))
    )
    compared = {
        (quantity, *at): stats.ks_2samp(
            plain[quantity][:, *at], ranged[quantity][:, *at]
        ).pvalue
        for quantity in plain
        for at in np.ndindex(plain[quantity].shape[1:])
    }
    assert len(compared) > 30
    assert min(compared.values()) > LEVEL / len(compared), min(
        compared, key=compared.get
    )


def test_ranges_include_decoder_embeddings():
    """Given the largest of k independent |N(0, 1)|, P(|z| < largest)^k is uniform."""
    small = {"num_heads": 2, "d_kv": 4, "d_ff": 8, "num_layers": 1, "vocab_size": 20}
    model = ns.models.read({"model_type": "t5", "d_model": 8, **small})
    found = model.probes(ids=(1, 2), decoder_ids=(4, 5, 6), ranges=True).measure(
        400, workers=1, progress=False
    )
    uniform = (2 * stats.norm.cdf(found["embedding_largest"]) - 1) ** (5 * 8)
    assert stats.kstest(uniform, "uniform").pvalue > LEVEL


def test_format_limits_follow_from_bits():
    """Largest and smallest number from exponent and mantissa bits; E4M3 gives one
    mantissa to NaN and no infinity.
    """
    bits = {"bf16": (8, 7), "fp16": (5, 10), "e5m2": (5, 2), "e4m3": (4, 3)}
    for f in FORMATS:
        exponent, mantissa = bits[f.name]
        bias = 2 ** (exponent - 1) - 1
        top, last = (bias + 1, 2) if f.name == "e4m3" else (bias, 1)
        assert f.largest == (2 - last * 2.0**-mantissa) * 2.0**top
        assert f.smallest == 1 - bias - mantissa


def test_of_range_columns():
    u = np.array([[3.0, -1e-3, 0.0, 1e-9], [0.0, 0.0, 0.0, 0.0]])
    found = dict(zip(COLUMNS, of_range(u).T, strict=True))
    assert found["largest"].tolist() == [3.0, 0.0]
    assert found["below_fp16"].tolist() == [0.25, 0.0]
    assert found["below_e4m3"].tolist() == [0.5, 0.0]
    # 3 · 2^7 = 384 fits 448: 1e-3 is 0.128 then, and 1e-9 is still below 2^-9
    assert found["scaled_e4m3"].tolist() == [0.25, 0.0]
    assert found["scaled_bf16"].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(of_range(u[:1])[0], numbers(u[0]))
    assert [float(f.scale(np.array(f.largest))) for f in FORMATS] == [0.0] * 4
    assert [float(f.scale(np.array(f.largest * 1.001))) for f in FORMATS] == [-1.0] * 4


def top(u):
    return np.max(np.abs(u), axis=-1, keepdims=True)


def test_largest_gaussian_coordinate_matches_direct_draws():
    n = ns.Width("n")
    net = ns.Program(pooled(top, ns.weight(n, n) @ ns.gaussian(n), 1))
    found = net.draw(n=50, draws=4000, progress=False)[:, 0]
    # |x|/√n: given it, coordinates are independent
    radius = stats.chi(50).rvs(4000, random_state=1) / math.sqrt(50)
    u = np.random.default_rng(0).random(4000)
    direct = radius * stats.norm.ppf((1 + u ** (1 / 50)) / 2)  # P(|z| < t)^n = u
    assert stats.ks_2samp(found, direct).pvalue > LEVEL
    assert stats.ks_2samp(found, direct * 1.03).pvalue < LEVEL


def test_range_functions_have_no_limit():
    n = ns.Width("n")
    net = ns.Program(pooled(top, ns.gaussian(n, 2), 1))
    with pytest.raises(
        ns.ExactError, match="a function of all coordinates, top, at width inf"
    ):
        net.plan(n=ns.inf)
    assert "top(h1)" in str(net)
    assert r"\operatorname{top}(h^{(1)}_{\cdot})" in net.latex()
    assert net.check().verdict == "conjectured"


def test_ranges_at_infinite_width_raise_error():
    model = MODELS["gpt2"]
    probes = model.probes(IDS, ranges=True)
    found = probes.measure(3, workers=1, progress=False, n=ns.inf, d=ns.inf, m=ns.inf)
    assert "stream_largest" not in found
    with_gradients = model.probes(IDS, gradients=True, ranges=True).measure(
        3, workers=1, progress=False
    )
    assert {f"{a}_largest" for a in (*BLOCK, *ENDS)} | {
        "grad_query",
        "grad_embedding",
    } <= set(with_gradients)
