"""The mixers of Mamba-2 and Qwen3-Next in transformers, initialised often, have the laws
of `ns.nn.mamba2` and `ns.nn.gated_delta`: outputs and gradients.
"""

import numpy as np
import pytest
import torch
from scipy import special, stats
from transformers import Mamba2Config, Qwen3NextConfig
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

import netsor as ns
from netsor import nn

from ..engine.compare import exact_draws

TOKENS, WIDTH, STD, DRAWS = 6, 32, 0.2, 1000
TAPS = {"sigma": 3**-0.5, "entries": "uniform", "head_axes": 1}
SIGMA = STD * WIDTH**0.5
SIGMAS = dict.fromkeys(
    ("sigma_q", "sigma_k", "sigma_v", "sigma_dt", "sigma_gate"), SIGMA
)


def mamba_module():
    config = Mamba2Config(
        hidden_size=WIDTH,
        num_heads=4,
        head_dim=16,
        expand=2,
        state_size=8,
        n_groups=2,
        conv_kernel=4,
        chunk_size=4,
    )
    return Mamba2Mixer(config, 0).eval()


def initialise_mamba(module):
    torch.nn.init.normal_(module.in_proj.weight, std=STD)
    torch.nn.init.normal_(module.out_proj.weight, std=STD)
    module.conv1d.reset_parameters()
    module.init_mamba2_weights()


def mamba_layer(x):
    config = Mamba2Config()
    low, high = np.log(config.time_step_min), np.log(config.time_step_max)

    def dt_bias(z):
        step = np.exp(low + (high - low) * special.ndtr(z))
        step = np.maximum(step, config.time_step_floor)
        return step + np.log(-np.expm1(-step))

    def conv(u):
        return ns.silu(nn.depthwise_conv(u, 4, sigma_b=12**-0.5, **TAPS))

    return nn.mamba2(
        x,
        heads=4,
        head_dim=16,
        state_dim=8,
        groups=2,
        dt_bias=ns.apply(dt_bias, ns.normal(4)),
        skip=1.0,
        conv=conv,
        gate=ns.silu,
        norm=lambda u: ns.rms_norm(u, config.layer_norm_epsilon),
        sigma_o=STD * 64**0.5,
        **SIGMAS,
    )


def delta_module():
    config = Qwen3NextConfig(
        hidden_size=WIDTH,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        linear_conv_kernel_dim=4,
        num_hidden_layers=4,
    )
    return Qwen3NextGatedDeltaNet(config, 0).eval()


def initialise_delta(module):
    for linear in (module.in_proj_qkvz, module.in_proj_ba, module.out_proj):
        torch.nn.init.normal_(linear.weight, std=STD)
    module.conv1d.reset_parameters()
    torch.nn.init.ones_(module.dt_bias)
    with torch.no_grad():
        module.A_log.copy_(torch.empty(4).uniform_(0.01, 16).log())


def delta_layer(x):
    def conv(u):
        return ns.silu(nn.depthwise_conv(u, 4, **TAPS))

    return nn.gated_delta(
        x,
        heads=4,
        head_dim=8,
        value_dim=12,
        groups=2,
        rates=0.01 + 15.99 * ns.apply(special.ndtr, ns.normal(4)),
        dt_bias=1.0,
        qk_norm=lambda u: ns.rms_norm(u, 1e-6 / 8),
        conv=conv,
        gate=ns.silu,
        norm=lambda u: ns.rms_norm(u, 1e-6),
        sigma_beta=SIGMA,
        sigma_o=STD * 48**0.5,
        **SIGMAS,
    )


MIXERS = {
    "mamba2": (mamba_module, initialise_mamba, mamba_layer),
    "gated delta": (delta_module, initialise_delta, delta_layer),
}


@pytest.mark.parametrize("name", MIXERS)
def test_laws_of_outputs_and_gradients_are_those_of_modules(name):
    """A coordinate of each output, mean squares of outputs and gradients, and a product
    of two outputs: level 1e-4 in all.
    """
    make_module, initialise, layer = MIXERS[name]
    torch.manual_seed(3)
    rng = np.random.default_rng(0)
    inputs, readout = rng.standard_normal((TOKENS, WIDTH)), rng.standard_normal(WIDTH)
    module = make_module()
    tokens = torch.tensor(inputs[None], dtype=torch.float32, requires_grad=True)
    direction = torch.tensor(readout, dtype=torch.float32)
    rows = []
    for _ in range(DRAWS):
        initialise(module)
        outputs = module(tokens)[0]
        (slopes,) = torch.autograd.grad(outputs[-1] @ direction, tokens)
        y, g = outputs.detach().numpy(), slopes[0].numpy()
        rows.append(
            [*y[:, 0], *(y**2).mean(-1), (y[0] * y[-1]).mean(), *(g**2).mean(-1)]
        )
    x = ns.data(inputs)
    y = layer(x)
    # √n ∂p/∂x of p = n^(−1/2) ⟨r, y⟩ is the gradient of ⟨r, y⟩
    g = ns.grad(ns.dot(ns.data(readout), y[-1]), x)

    def squares(vectors):
        return tuple(ns.mean_dot(vectors[t], vectors[t]) for t in range(TOKENS))

    net = ns.Program((y, *squares(y), ns.mean_dot(y[0], y[-1]), *squares(g)))
    real, exact = np.array(rows, dtype=np.float64), exact_draws(net, DRAWS)
    # single precision does not resolve gradients that decays make tiny
    size = np.abs(real).max(axis=0)
    real, exact = np.round(real / size, 6), np.round(exact / size, 6)
    levels = [stats.ks_2samp(a, b).pvalue for a, b in zip(real.T, exact.T, strict=True)]
    assert min(levels) > 1e-4 / len(levels)
