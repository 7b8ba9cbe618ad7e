"""Modules that return their loss, alone or with logits."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import netsor as ns  # noqa: E402

from .broken_modules import IDS, Decoder  # noqa: E402

TOKENS = torch.tensor([IDS])


def _loss(logits, targets, **options):
    return F.cross_entropy(
        logits.view(-1, logits.shape[-1]), targets.view(-1), **options
    )


class Both(Decoder):
    def forward(self, ids, targets):
        logits = super().forward(ids)
        return logits, _loss(logits, targets) * 2


class LossFirst(Both):
    def forward(self, ids, targets):
        return super().forward(ids, targets)[::-1]


class Loss(Decoder):
    options = {}  # noqa: RUF012

    def forward(self, ids, targets):
        return _loss(super().forward(ids), targets, **self.options)


class Sum(Loss):
    options = {"reduction": "sum", "ignore_index": IDS[2]}  # noqa: RUF012


class Shifted(Decoder):
    def forward(self, ids, labels):
        logits = super().forward(ids)
        return _loss(logits[:, :-1].contiguous(), labels[:, 1:]) / 4 + 1.0


class Smoothed(Loss):
    options = {"label_smoothing": 0.1}  # noqa: RUF012


@pytest.mark.parametrize("build", [Both, LossFirst])
def test_module_that_returns_logits_and_loss_is_read_as_its_logits(build):
    net = ns.torch.program(build, (TOKENS, TOKENS))
    plain = ns.torch.program(Decoder, TOKENS)
    np.testing.assert_array_equal(net.draw(draws=2, rng=0), plain.draw(draws=2, rng=0))


@pytest.mark.parametrize("build", [Loss, Sum, Shifted, Smoothed])
def test_law_of_a_loss_is_that_of_the_module(build):
    """Quantiles of 300 initialisations and 3,000 draws, at level 1e-5."""
    from scipy import stats

    net = ns.torch.program(build, (TOKENS, TOKENS))
    torch.manual_seed(1)
    with torch.no_grad():
        real = [float(build()(TOKENS, TOKENS)) for _ in range(300)]
    drawn = np.ravel(net.draw(draws=3_000, rng=2))
    assert stats.ks_2samp(real, drawn).pvalue > 1e-5
    doubled = np.median(drawn) + 2 * (drawn - np.median(drawn))
    assert stats.ks_2samp(real, doubled).pvalue < 1e-5


@pytest.mark.parametrize("build", [Loss, Shifted, Both])
def test_audits_measure_the_logits_that_a_loss_is_computed_from(build):
    net = ns.torch.network(build, (TOKENS, TOKENS))
    plain = ns.torch.network(Decoder, TOKENS)
    names = [probe.name for probe in net.probes]
    assert names == [probe.name for probe in plain.probes]
    assert "logits" in names


def test_inputs_by_position_are_a_tuple():
    with pytest.raises(ValueError, match=r"give several inputs as a tuple, as program"):
        ns.torch.program(Loss, TOKENS, TOKENS)
