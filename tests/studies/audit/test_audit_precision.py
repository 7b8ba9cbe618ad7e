"""Audits in single precision: where it is enough, and where it is not."""

import json

import numpy as np
import pytest

import netsor as ns
from tests.internals import _sampler

from .test_audit import GPT2, bits

# many logits: single precision pays
WIDE = ns.models.read({**GPT2, "vocab_size": 6000})


def test_single_precision_where_it_is_enough(
    inline, unillustrated, monkeypatch, tmp_path
):
    """The same draws, to five digits, and no part is checked again."""
    monkeypatch.setattr(_sampler, "resolve_precision", check := Checked())
    asked = {"tokens": 13, "draws": 32, "widths": "both", "gradients": False}
    auto = ns.audit(WIDE, **asked, out=tmp_path)
    exact = ns.audit(WIDE, **asked, precision="float64")
    assert (auto.actual.precision, auto.limit.precision) == ("float32", "float64")
    assert {backend.precision for backend in check.seen} == {"float32", "float64"}
    assert all(
        backend.settled for backend in check.seen if backend.precision == "float32"
    )
    for name, drawn in exact.actual.arrays.items():
        np.testing.assert_allclose(
            auto.actual[name], drawn, rtol=2e-5, atol=2e-5 * np.abs(drawn).max()
        )
    assert auto.actual["loss"].tobytes() != exact.actual["loss"].tobytes()
    assert auto.limit["loss"].tobytes() == exact.limit["loss"].tobytes()
    assert [
        part["precision"]
        for part in json.loads((tmp_path / "manifest.json").read_text())["parts"]
    ] == [
        "float32",
        "float64",
    ]
    assert (
        "single precision at finite widths where that is enough"
        in (tmp_path / "report.html").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "t5-base", "vit-base"])
def test_gradients_in_single_precision(inline, name):
    """Of models of their own widths, two blocks: nothing is off by more than audits
    show.
    """
    model = ns.models.read(name).replace(
        layers=2, **({"decoder_layers": 2} if name == "t5-base" else {})
    )
    asked = {"tokens": 12, "draws": 16, "gradients": True, "widths": "actual"}
    auto, exact = (
        ns.audit(model, **asked, precision=precision)
        for precision in ("auto", "float64")
    )
    assert auto.actual.precision == "float32"
    for quantity, drawn in exact.actual.arrays.items():
        np.testing.assert_allclose(
            auto.actual[quantity], drawn, rtol=2e-5, atol=2e-5 * np.abs(drawn).max()
        )


class Checked:
    """A check that knows what it was asked about, and refuses nothing."""

    def __init__(self):
        self.seen = []

    def __call__(self, plan, backend, draws):
        self.seen.append(backend)
        return backend, 0.0


@pytest.mark.slow
@pytest.mark.parametrize("std", [1e-26, 1e26])
def test_double_precision_where_single_is_not_enough(inline, std):
    model = WIDE.replace(std_embedding=std, std_position=std, eps=0.0)
    # without planning gradients, to decide whether they are measured
    asked = {"tokens": 13, "draws": 32, "widths": "actual", "gradients": False}
    auto, exact = (
        ns.audit(model, **asked, precision=precision)
        for precision in ("auto", "float64")
    )
    assert auto.actual.precision == "float64"
    assert bits(auto) == bits(exact)
    assert np.isfinite(auto.actual["mean_square"]).all()
    with pytest.raises(ValueError, match="precision='float32' must be 'float64'"):
        ns.audit(model, **asked, precision="float32")
