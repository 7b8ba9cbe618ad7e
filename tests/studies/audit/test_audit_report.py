"""The report of an audit: its files, its figures, and names that are markup."""

import csv
import io
import json

import numpy as np
import pytest
from matplotlib.figure import Figure

import netsor as ns
from tests.internals import BACKWARD, BLOCKS, FORWARD, Audit, Comparison, LengthResult
from tests.internals import AuditRequest as Request
from tests.internals import audit_plots as _plots

from .test_audit import SMALL, TINY


@pytest.mark.slow
def test_every_figure_is_drawn(inline, tmp_path):
    ns.audit(TINY, compare=TINY.replace(std=0.3), out=tmp_path, **SMALL)
    assert (tmp_path / "report.html").read_text().count('<svg xmlns:xlink="') == len(
        FORWARD
    )  # without the share of cross-attention, the first one twice


def test_audit_writes_its_files(inline, tmp_path, monkeypatch):
    """With a figure of each kind: a logarithmic axis, a line at 0, and a threshold."""
    real, kinds = _plots.svg_figure, ("mean_square", "cosine", "entropy")

    def drawn(name, *how):
        figure = real(name, *how)
        return figure if name in kinds else figure._replace(svg=lambda: b"<svg/>")

    monkeypatch.setattr(_plots, "svg_figure", drawn)
    audit = ns.audit(
        TINY, compare=TINY.replace(std=0.3), out=tmp_path, gradients=False, **SMALL
    )[0]
    page = (tmp_path / "report.html").read_text()
    # all but cross-attention's share, and the first one of the summary
    assert page.count("<svg") == len(FORWARD)
    assert "http-equiv" not in page
    # nothing is fetched
    assert not any(word in page for word in ("<script", 'src="', "<link", "@import"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "audit.csv").read_text())))
    assert len(rows) == 2 * 2 * (2 * (len(FORWARD) - 1) + 3 + 3)
    start = next(
        r
        for r in rows
        if r["quantity"] == "mean_square"
        and r["block"] == "0"
        and r["widths"] == "actual"
    )
    assert float(start["median"]) == pytest.approx(
        np.median(audit.actual["input_mean_square"]), rel=1e-9
    )
    row = next(
        r
        for r in rows
        if r["quantity"] == "entropy" and r["block"] == "2" and r["widths"] == "actual"
    )
    assert float(row["median"]) == pytest.approx(
        np.median(audit.actual["entropy"][:, 1]), rel=1e-9
    )
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["random_numbers"] > audit.random_numbers > 0
    assert manifest["options"]["models"][1]["std_q"] == 0.3
    assert set(manifest["files"]) == {"report.html", "audit.csv", "audit.json"}


@pytest.mark.slow
def test_report_contains_gradients_or_why_they_are_missing(
    inline, tmp_path, monkeypatch
):
    """In the table, the object, the file and the report; at infinite width, where the
    engine cannot, why not.
    """
    # the other half is in the test above
    monkeypatch.setattr(_plots, "BLOCKS", [BLOCKS[0], *BACKWARD])
    both = ns.audit(
        TINY, compare=TINY.replace(tied=False), out=tmp_path, gradients=True, **SMALL
    )
    audit = both[0]
    names = [q.name for q in BACKWARD if q.kind not in ("gate", "qkv", "router")]
    layer, final = audit.as_dict()["layers"][1], audit.as_dict()["final"]
    assert [name for name in layer if name.startswith("grad")] == names
    assert layer["grad_query"] == dict(
        zip(
            ("median", "low", "high"),
            np.quantile(audit.actual["grad_query"][:, 1], [0.5, 0.05, 0.95]),
            strict=True,
        )
    )
    ends = ["grad_input", "grad_embedding", "grad_embedding_ratio"]
    assert [name for name in final if name.startswith("grad")] == ends
    other = both[1].as_dict()
    assert (
        audit.as_dict()["embedding"]["grad_mean_square"]
        == audit.as_dict()["final"]["grad_input"]
    )
    assert [name for name in other["final"] if name.startswith("grad")] == [
        *ends,
        "grad_head",
        "grad_head_ratio",
    ]
    assert audit.as_dict()["no_gradients"].startswith(
        "the logit of a token's own id grows with the root of the width"
    )
    assert "grad_query" not in audit.as_dict()["limit"]["layers"][0]
    assert "No gradients at n = ∞: the logit of a token's own id" in " ".join(
        audit.table(verbose=True).split()
    )
    assert "gradient², query" in both.table(verbose=True)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "audit.csv").read_text())))
    assert {row["quantity"] for row in rows} >= {*names, *ends, "grad_head"}
    page = (tmp_path / "report.html").read_text()
    # the first one; the stream, its gradient, the kinds of weights, and their ratios
    assert page.count("<svg") == 5
    assert "No gradients at n = ∞: the logit of a token" in page
    assert json.loads((tmp_path / "manifest.json").read_text())["options"][
        "gradients"
    ] == [3]
    # whatever else is asked
    again = ns.audit(TINY, widths="actual", gradients=True, **SMALL)
    assert again.actual["grad_in"].tobytes() == audit.actual["grad_in"].tobytes()
    with pytest.raises(ValueError, match="gradients='yes' must be True or False"):
        ns.audit(TINY, gradients="yes", **SMALL)


def test_figures_have_the_thresholds_of_rules(inline):
    """Of branches a ninth of the other's share; of gradients relative to the last
    block.
    """
    audit = ns.audit(TINY, gradients=True, widths="actual", **SMALL)
    lines = {}
    for name in ("attention_share", "mlp_share", "grad_mean_square", "entropy"):
        axes = audit.plot(name, Figure().subplots())
        lines[name] = [
            np.array(line.get_ydata())
            for line in axes.lines
            if line.get_linestyle() == ":"
        ]
    np.testing.assert_allclose(
        lines["attention_share"], [audit["mlp_share"].median / 9]
    )
    np.testing.assert_allclose(
        lines["mlp_share"], [audit["attention_share"].median / 9]
    )
    last = audit["grad_mean_square"].median[-1]
    np.testing.assert_allclose(
        [line[0] for line in lines["grad_mean_square"]], [0.01 * last, 1e4 * last]
    )
    assert [line[0] for line in lines["entropy"]] == [0.5]


def test_dashed_lines_are_explained_only_where_they_are(
    inline, unillustrated, tmp_path
):
    ns.audit(TINY, quick=True, out=tmp_path / "quick")
    assert "Dashed lines" not in (tmp_path / "quick" / "report.html").read_text()
    ns.audit(TINY, out=tmp_path / "both", gradients=False, **SMALL)
    assert "Dashed lines" in (tmp_path / "both" / "report.html").read_text()


def test_figure_of_one_model_has_the_finding_as_its_title(inline):
    audit = ns.audit(TINY, quick=True)
    axes = Figure().subplots()
    _plots.plot_quantity([audit.lengths[0]], "entropy", axes)
    title = axes.get_title(loc="left").replace("\n", " ")
    assert title.lower() == audit.finding("entropy").brief.lower()


def test_markup_in_names_is_text(inline, tmp_path, monkeypatch):
    monkeypatch.setattr(_plots, "BLOCKS", BLOCKS[:1])
    page = (
        ns.audit(TINY.replace(name="<b>&"), gradients=False, widths="actual", **SMALL)
        .save(tmp_path)
        .read_text()
    )
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page.replace("<b>&amp;", "")


def test_any_name_can_be_drawn(inline, tmp_path, monkeypatch):
    monkeypatch.setattr(_plots, "BLOCKS", BLOCKS[:1])
    names = ("$\\frac{1}$ _", "_hidden", "模型", "x" * 500, "a, b=1", "_")
    request = Request(
        tuple(TINY.replace(name=name) for name in names),
        widths="actual",
        gradients=False,
        **SMALL,
    )
    # a name is nothing to its draws
    drawn = ns.audit(TINY, widths="actual", gradients=False, **SMALL).actual
    audits = [
        Audit([LengthResult(request, model, 3, drawn, None)])
        for model in request.models
    ]
    page = Comparison(audits).save(tmp_path).read_text()
    assert all(name in page for name in names)
    assert page.count("<svg") == 2  # in the summary and in its section
