"""What an audit says of short formats, both ways, and where it says it."""

import json

import numpy as np
import pytest

import netsor as ns
from tests.internals import COLUMNS, FLAG, FORMATS, OK, _format_cell, ranges_of
from tests.internals import DOCUMENT_UNDECIDED as UNDECIDED

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 30,
}
DRAWS = 200


def arrays(largest, below, blocks=2):
    """Draws of one activation, with a little noise: shares below are those of E4M3, and
    0 for all others.
    """
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((DRAWS, blocks))
    made = {f"stream_{column}": np.zeros((DRAWS, blocks)) for column in COLUMNS}
    return made | {
        "stream_largest": largest * noise,
        "stream_below_e4m3": below * noise,
    }


@pytest.mark.parametrize(
    ("largest", "below", "overflow", "underflow", "scale", "words"),
    [
        (3.0, 0.001, OK, OK, 7, "fits"),
        (1e4, 0.001, FLAG, OK, -5, "overflows, 2^-5"),
        (3.0, 0.2, OK, FLAG, 7, "underflows, 2^7"),
        (446.0, 0.01, UNDECIDED, UNDECIDED, -1, "undecided"),
    ],
)
def test_verdicts_come_out_both_ways(largest, below, overflow, underflow, scale, words):
    (found,) = ranges_of(arrays(largest, below))
    held = {each.format: each for each in found.formats}["fp8 E4M3"]
    assert (held.overflow, held.underflow, held.scale) == (overflow, underflow, scale)
    assert _format_cell(held).text == words
    # it fits, and twice as much would not
    assert 448 / 2 < 2.0**held.scale * found.largest["high"] <= 448


@pytest.mark.slow
def test_ranges_are_in_text_json_and_report(tmp_path, capsys):
    model = ns.models.read(GPT2).replace(
        std_v=1e3, std_o=1e3, std_embedding=1e-7, std_position=1e-7
    )
    audit = ns.audit(
        model, tokens=3, draws=40, widths="both", ranges=True, out=tmp_path, workers=1
    )
    lines = {line.split("  ")[0]: line for line in str(audit).splitlines()}
    assert "overflows, 2^" in lines["attention's output"]
    assert "underflows, 2^" in lines["embeddings"]
    found = {
        each["activation"]: each
        for each in json.loads(json.dumps(audit.as_dict()))["ranges"]
    }
    assert found["attention"]["formats"][1]["overflow"] == FLAG
    assert found["embedding"]["block"] is None
    assert [f.title for f in FORMATS] == [
        each["format"] for each in found["logits"]["formats"]
    ]
    page = (tmp_path / "report.html").read_text()
    assert "Activation ranges and short formats" in page
    assert '<span class="bad">overflows, 2^' in page
    # on a narrow screen cells are below each other, with their format
    assert '<td data-head="fp8 E4M3">' in page
    assert json.loads((tmp_path / "manifest.json").read_text())["options"]["ranges"]
    plain = ns.audit(model, tokens=3, draws=40, widths="actual", workers=1)
    assert "ranges" not in plain.as_dict()
    with pytest.raises(
        ValueError, match="ranges=True must be left out where all widths are infinite"
    ):
        ns.audit(model, widths="inf", ranges=True)
    with pytest.raises(ValueError, match="ranges=3 must be True or False"):
        ns.audit(model, ranges=3)


def test_ranges_of_a_program():
    @ns.program
    def net(scale):
        x = ns.probe("embedding", ns.gaussian(16, 3))
        q = ns.probe("query", ns.weight(8, 16, batch=2) @ x)
        ns.probe("scores", ns.dot(q, ns.weight(8, 16, batch=2) @ x), mask=np.tri(3) > 0)
        return ns.probe("stream", x + scale * ns.probe("mlp", ns.nn.mlp(x, 32)))

    loud, calm = (
        ns.audit(net(scale), draws=40, widths="actual", ranges=True, progress=False)
        for scale in (1e3, 1.0)
    )
    assert [each["activation"] for each in calm.as_dict()["ranges"]] == [
        "embedding",
        "stream",
        "query",
        "scores",
        "mlp",
    ]
    assert ["overflows, 2^" in str(each) for each in (loud, calm)] == [True, False]
