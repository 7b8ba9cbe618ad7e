"""Recipes: what they draw, in numbers that their sources state."""

import math

import pytest

import netsor as ns
from tests.internals import ProbedProgram

GPT2 = ns.models.read("gpt2")
LLAMA = ns.models.read("llama-3-8b")
BERT = ns.models.read("bert-base")


def by(name, model=GPT2):
    return ns.models.recipe(model, name)


@pytest.mark.parametrize("name", ns.models.RECIPES)
def test_recipe_renames_model_and_names_source(name):
    for model in (
        (BERT,)
        if name == "deepnorm"
        else (GPT2, LLAMA, BERT, ns.models.read("t5-base"))
    ):
        made = by(name, model)
        assert made.name == f"{model.name}, recipe={name}"
        assert (made.width, made.layers, made.order) == (
            model.width,
            model.layers,
            model.order,
        )
    assert ns.models.RECIPES[name].source
    assert ns.models.RECIPES[name].words


def test_gpt2_recipe_matches_gpt2():
    assert by("gpt2").replace(name="gpt2") == GPT2
    assert by("gpt2", LLAMA).std_out == 0.02 / math.sqrt(64)
    assert by("plain", LLAMA).replace(name=LLAMA.name) == LLAMA
    assert by("neox", ns.models.read("pythia-410m")).replace(
        name="pythia-410m"
    ) == ns.models.read("pythia-410m")


def test_recipe_numbers_match_sources():
    n, depth, m = 768, 12, 3072
    assert by("small").std_in == pytest.approx(math.sqrt(2 / (5 * n)))
    assert by("xavier").std_in == pytest.approx(math.sqrt(2 / (n + m)))
    assert by("t-fixup").std_in == pytest.approx(
        0.67 * depth**-0.25 * math.sqrt(2 / (n + m))
    )
    assert by("t-fixup").std_q == by("xavier").std_q
    assert by("t-fixup").std_embedding == pytest.approx((9 * depth) ** -0.25 * n**-0.5)
    deep = by("deepnorm", BERT)
    assert deep.std_v == pytest.approx((8 * depth) ** -0.25 * math.sqrt(2 / (n + n)))
    assert deep.std_o == pytest.approx(
        (8 * depth) ** -0.25 * math.sqrt(1 / n) / (2 * depth) ** 0.25
    )
    assert by("ntk").std_out == pytest.approx(m**-0.5)
    assert by("ntk").logit_scale == pytest.approx(n**-0.5)
    assert (by("zero").std_o, by("zero").std_out, by("zero").std_q) == (0.0, 0.0, 0.02)
    base = GPT2.replace(width=256, heads=4, hidden=1024)
    assert by("mup", base).std_q == 0.02
    assert by("mup", base).score_scale == pytest.approx(base.d**-0.5)
    assert by("mup", LLAMA).std_logits == pytest.approx(0.02 * 256 / 4096)
    assert by("depth-mup").std_o == pytest.approx(by("mup").std_o / math.sqrt(depth))


def test_t_fixup_scales_encoder_and_decoder_each_by_its_own_depth():
    """As in the authors' code: 0.67 L^(−1/4) in the encoder, (9M)^(−1/4) in the
    decoder, (9L)^(−1/4) if shared.
    """
    encoder, decoder, n, m, inner = 3, 5, 768, 3072, 768
    made = by(
        "t-fixup",
        ns.models.read("t5-base").replace(layers=encoder, decoder_layers=decoder),
    )
    assert made.std_embedding == pytest.approx((9 * encoder) ** -0.25 * n**-0.5)
    net = ProbedProgram(made.program(tokens=2))
    xavier = {
        (n, inner): math.sqrt(2 / (n + inner)),
        (n, m): math.sqrt(2 / (n + m)),
        (m, n): math.sqrt(2 / (n + m)),
    }
    for block, kinds in enumerate(net.matrices):
        factor = 0.67 * encoder**-0.25 if block < encoder else (9 * decoder) ** -0.25
        weights = [value.op.weight for values in kinds.values() for value in values]
        assert len(weights) == (6 if block < encoder else 10)
        for weight in weights:
            fan_in, fan_out = (
                width.bind(made.widths())
                for width in (weight.in_width, weight.out_width)
            )
            plain = xavier[fan_in, fan_out * weight.members.size]
            scored = weight.source.name in ("W^Q", "W^K")
            assert weight.std / math.sqrt(fan_in) == pytest.approx(
                plain * (1 if scored else factor)
            )
    with pytest.raises(
        ValueError, match=r"decoder_gain=0\.5 must be left unchanged in gpt2"
    ):
        GPT2.replace(decoder_gain=0.5)


def test_mup_has_scores_and_logits_that_fall_with_width_and_a_stream_that_does_not():
    """At std 0.02 scores grow as n; by µP they fall as d^(−1/2) at a fixed number of
    heads, and logits as n^(−1/2).
    """
    tiny = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 8,
        "vocab_size": 50,
    }
    found = {}
    for width in (64, 1024):
        model = ns.models.recipe(
            ns.models.read({**tiny, "n_embd": width, "tie_word_embeddings": False}),
            "mup",
        )
        draws = model.probes(tokens=4).measure(60, workers=1, progress=False)
        found[width] = {
            name: float(abs(draws[name]).mean())
            for name in ("mean_square", "score_std", "logit_std")
        }
    ratio = {name: found[1024][name] / found[64][name] for name in found[64]}
    assert 0.8 < ratio["mean_square"] < 1.25
    assert 0.2 < ratio["score_std"] < 0.3  # 16^(−1/2)
    assert 0.2 < ratio["logit_std"] < 0.3


def test_unknown_recipe_is_rejected():
    with pytest.raises(
        ValueError, match="recipe='gpt3' must be one of plain, gpt2, small"
    ):
        by("gpt3")
    with pytest.raises(
        ValueError,
        match="recipe='deepnorm' is for a norm after each sum: gpt2 has order='pre'",
    ):
        by("deepnorm")
    own = ns.program(
        lambda: ns.probe("stream", ns.probe("embedding", ns.gaussian(8, 2)))
    )()
    with pytest.raises(ValueError, match="recipe='gpt2' must be left out"):
        ns.audit(own, recipe="gpt2")


def test_audit_with_recipe():
    tiny = {
        "model_type": "gpt2",
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 16,
        "vocab_size": 30,
    }
    assert (
        ns.audit(tiny, recipe="zero", quick=True, progress=False).model.name
        == "gpt2, recipe=zero"
    )
