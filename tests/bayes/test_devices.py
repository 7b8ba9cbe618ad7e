"""Likelihoods of chains by JAX: what numpy finds. Those by PyTorch are among the tests
of peers.
"""

import pytest

import netsor as ns
from tests.internals import NoDeviceError, choose

from .device_cases import CASES, assert_same_heights, assert_same_posterior
from .priors import prior, tokens

JAX = {"backend": "jax", "device": "cpu"}


@pytest.mark.parametrize(
    ("case", "noise"),
    [
        ("many columns, inf", 0.3),
        pytest.param("many columns, inf", 1e-7, marks=pytest.mark.slow),
        *(
            pytest.param(case, 0.3, marks=pytest.mark.slow)
            for case in CASES
            if case != "many columns, inf"
        ),
    ],
)
@pytest.mark.slow
def test_likelihoods_by_jax_match_numpy(case, noise):
    assert_same_heights(case, noise, **JAX)


@pytest.mark.slow
def test_chains_by_jax_match_the_posterior():
    assert_same_posterior(**JAX)


def test_unavailable_devices_raise():
    net = prior(tokens(3))
    with pytest.raises(
        ValueError, match=r"precision='float32' must be 'float64': chains need double"
    ):
        net.posterior({0: 1.0}, 0.1, n=ns.inf, backend=choose("jax", "cpu", "float32"))
    with pytest.raises(
        ValueError, match=r"backend='blackjax' must be one of numpy, jax, torch"
    ):
        net.log_evidence({0: 1.0}, 0.1, n=ns.inf, backend="blackjax")
    with pytest.raises(
        NoDeviceError, match=r"device='cuda:77' must be one that JAX sees here"
    ):
        net.posterior_cost({0: 1.0}, 0.1, n=ns.inf, backend="jax", device="cuda:77")
