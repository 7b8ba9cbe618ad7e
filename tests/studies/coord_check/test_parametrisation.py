"""Parametrisations: exponents of the tables, files that change them, and models that
are scaled by them.
"""

import json

import pytest

from netsor.models import read
from tests.internals import WORDS, Power, named_parametrisation, parametrisation, scaled

from .nets import CONFIG


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("optimiser", ["sgd", "muon", "adam", "lion"])
def test_at_its_own_width_a_model_is_what_it_is(name, optimiser):
    model = read(CONFIG)
    made = scaled(model, 64, 2, named_parametrisation(name, optimiser), "heads")
    same = model.replace(name=made.name, head_dim=32)
    assert made == same


def test_maximal_updates_are_as_their_table_has_them():
    """Tensor Programs V, table 3: input, hidden and output weights by SGD, and by
    Adam or another descent along signs.
    """
    by_signs = (0, -1, -1)
    expected = {"sgd": (1, 0, -1), "adam": by_signs, "lion": by_signs}
    for optimiser, rates in expected.items():
        rule = named_parametrisation("mup", optimiser)
        assert (
            tuple(
                rule.scaling(kind).lr.width for kind in ("embedding", "query", "head")
            )
            == rates
        )
        assert tuple(
            rule.scaling(kind).std.width for kind in ("embedding", "query", "head")
        ) == (0, -0.5, -1)
    untied = read({**CONFIG, "tie_word_embeddings": False})
    wide = scaled(untied, 256, 2, named_parametrisation("mup", "sgd"), "heads")
    assert (wide.heads, wide.d, wide.hidden, wide.std_q) == (8, 32, 1024, 0.01)
    assert wide.std_logits == pytest.approx(0.005)
    assert wide.logit_scale == 1
    tied = scaled(read(CONFIG), 256, 2, named_parametrisation("mup", "sgd"), "heads")
    assert tied.logit_scale == 0.25


def test_heads_grow_or_their_dimension():
    model = read(CONFIG)
    wide = scaled(model, 256, 2, named_parametrisation("mup", "sgd"), "head-dim")
    assert (wide.heads, wide.d) == (2, 128)
    # 1/d, and as it was at its own width
    assert wide.score_scale == pytest.approx(32**-0.5 / 4)
    assert (
        scaled(
            model, 256, 2, named_parametrisation("sp", "sgd"), "head-dim"
        ).score_scale
        is None
    )
    with pytest.raises(ValueError, match="widths=80 must be a multiple of 32 for gpt2"):
        scaled(model, 80, 2, named_parametrisation("sp", "sgd"), "heads")
    grouped = read("llama-3-8b")
    small = scaled(grouped, 1024, 2, named_parametrisation("sp", "sgd"), "heads")
    assert (small.heads, small.key_heads, small.d, small.layers) == (8, 2, grouped.d, 2)


def test_file_begins_with_another_one(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'like = "mup"\nmatrices.lr = {width = 0.5, depth = -0.5}\nhead.std = {width ='
        " -0.5}\nscores = {width = -0.75}\npromise = {features = 0.25}\n"
    )
    rule = parametrisation(path, "sgd")
    assert rule.name == "mine"
    assert rule.scaling("query").lr == rule.scaling("out").lr == Power(0.5, -0.5)
    assert rule.scaling("query").std == Power(-0.5)
    assert rule.scaling("head")[:2] == (Power(-0.5), Power(-1.0))
    assert (rule.scores, rule.logits, rule.features, rule.outputs) == (
        Power(-0.75),
        Power(-1.0),
        0.25,
        0.0,
    )
    again = tmp_path / "again.json"
    again.write_text(json.dumps(rule.fields()))
    assert parametrisation(again, "sgd").kinds == rule.kinds
    assert parametrisation(str(again), "sgd").fields() == rule.fields()
    assert (
        parametrisation({"query": {"lr": {"width": 1}}}, "sgd")
        .scaling("query")
        .lr.width
        == 1.0
    )
    assert parametrisation({}, "sgd").scaling("query").lr.width == 0.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"like": "mut"}, "like='mut' of a parametrisation must be one of"),
        ({"heads": {}}, "'heads' is not part of a parametrisation"),
        ({"query": 1}, "query=1 of a parametrisation must be a table"),
        ({"query": {"rate": {}}}, "'rate' is not part of query"),
        ({"query": {"lr": 1}}, "query.lr=1 of a parametrisation must be a table"),
        ({"query": {"lr": {"n": 1}}}, "'n' is not part of query.lr"),
        ({"query": {"lr": {"width": "1"}}}, "must be a number from"),
        ({"query": {"lr": {"width": 99}}}, "must be a number from"),
        ({"query": {"lr": {"width": 10**400}}}, "must be a number from"),
        ({"name": 3}, "name=3"),
        ({"name": "\ud800"}, "must be 1 to 100 printable characters"),
        ({"name": "x" * 101}, "must be 1 to 100 printable characters"),
        (3, "must be one of fixed"),
        ("mine.yaml", "ends in .json or .toml"),
    ],
)
def test_invalid_parametrisation_names_the_field(given, said):
    with pytest.raises(ValueError, match=said):
        parametrisation(given, "sgd")


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", "{"), ("a.toml", "= 3"), ("b.json", "[1]"), ("c.json", "\xff")],
)
def test_invalid_parametrisation_file_raises(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="parametrisation="):
        parametrisation(tmp_path / name, "sgd")
