"""Recurrent token mixers, convolutions of sequences and recurrent layers of torch.

On the weights of a module its program returns what the module returns, and gradients
too. Its law is that of real initialisations (two samples, Kolmogorov–Smirnov, level
1e-4 for all quantities of a module together; seeds are fixed).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from torch import nn
from torch.nn import functional

import netsor as ns
from tests.internals import ProgramModel, read_network

from . import literal

LEVEL = 1e-4
REAL, OURS = 300, 1200
WIDTH, WORDS = 32, 20
IDS = torch.tensor([[3, 7, 7, 1, 9, 4]])

# Modules of transformers

SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "vocab_size": WORDS,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
ATTENTION = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
SELECTIVE = {"state_size": 4, "intermediate_size": 64, "time_step_rank": 3}
DELTA = {
    **ATTENTION,
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
}
# the chunks are shorter than the sequence
STATE_SPACE = {
    **ATTENTION,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
}
FAMILIES = {
    "mamba": SELECTIVE,
    "falcon_mamba": SELECTIVE,
    "mamba2": {
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 8,
        "n_groups": 2,
        "chunk_size": 4,
    },
    "qwen3_next": {
        **DELTA,
        **EXPERTS,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "qwen3_5_text": DELTA,
    "olmo_hybrid": {**DELTA, "linear_num_key_heads": 4},
    "bamba": {**STATE_SPACE, "attn_layer_indices": [1]},
    "falcon_h1": {**STATE_SPACE, "head_dim": 8, "mamba_d_ssm": 64},
    "nemotron_h": {
        **ATTENTION,
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 8,
        "chunk_size": 4,
        "layers_block_type": ["mamba", "attention"],
    },
    "zamba2": {
        **ATTENTION,
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "chunk_size": 4,
        "attention_hidden_size": 64,
        "layers_block_type": ["mamba", "hybrid"],
        "adapter_rank": 8,
    },
    "jamba": {
        **ATTENTION,
        **EXPERTS,
        "mamba_d_state": 4,
        "mamba_dt_rank": 3,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "granitemoehybrid": {
        **STATE_SPACE,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 24,
    },
    "recurrent_gemma": {
        **ATTENTION,
        "lru_width": WIDTH,
        "attention_window_size": 64,
        "block_types": ["recurrent", "attention"],
    },
    "lfm2": {**ATTENTION, "layer_types": ["conv", "full_attention"]},
    "minimax": {
        **ATTENTION,
        "head_dim": 8,
        "num_local_experts": 4,
        "block_size": 4,
        "layer_types": ["linear_attention", "full_attention"],
    },
}


class Logits(nn.Module):
    """The logits of a language model of transformers, with larger matrices."""

    def __init__(self, family):
        super().__init__()
        sizes = {**SIZES, **FAMILIES[family]}
        config = transformers.AutoConfig.for_model(family, **sizes)
        config._attn_implementation = "eager"
        self.model = transformers.AutoModelForCausalLM.from_config(config)
        for name, p in self.model.named_parameters():
            if p.ndim == 2 and "A_log" not in name:
                nn.init.normal_(p, std=0.2)

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


# Modules of their own


class Network(nn.Module):
    """A token mixer in a residual branch."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.normal_(self.head.weight, std=0.2)

    def linear(self, outputs):
        """A matrix of Gaussian entries."""
        matrix = nn.Linear(WIDTH, outputs, bias=False)
        nn.init.normal_(matrix.weight, std=0.2)
        return matrix

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.mix(self.norm(x)))


class Recurrent(Network):
    """A recurrent layer of torch."""

    def __init__(self, layer, **options):
        super().__init__()
        self.layer = layer(WIDTH, batch_first=True, **options)
        for name, p in self.layer.named_parameters():
            if "weight" in name:
                nn.init.normal_(p, std=0.2)

    def mix(self, x):
        return self.layer(x)[0]


class Cell(Network):
    """A recurrent cell of torch in a loop."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell(WIDTH, WIDTH)

    def mix(self, x):
        state = None
        outputs = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


class Convolution(Network):
    """A convolution of the sequence, padded by its own option."""

    def __init__(self, **options):
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, **options)

    def mix(self, x):
        return functional.gelu(self.convolution(x.mT)).mT


class CausalConvolution(Network):
    """A dilated convolution after zeros."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, dilation=2, groups=WIDTH)

    def mix(self, x):
        return torch.tanh(self.convolution(functional.pad(x.mT, (4, 0)))).mT


class DeltaRule(Network):
    """A matrix of states in a loop; rates and biases that are not Gaussian."""

    def __init__(self):
        super().__init__()
        self.qkv, self.write = self.linear(3 * WIDTH), self.linear(4)
        self.forget, self.out = self.linear(4), self.linear(WIDTH)
        self.A_log = nn.Parameter(torch.empty(4).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.rand(4))

    def mix(self, x):
        tokens = x.shape[1]
        q, k, v = (
            y.view(1, tokens, 4, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
        )
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        write = self.write(x).sigmoid().transpose(1, 2)
        steps = functional.softplus(self.forget(x) + self.dt_bias)
        decay = (-self.A_log.exp() * steps).exp().transpose(1, 2)
        state = x.new_zeros(1, 4, q.shape[-1], v.shape[-1])
        outputs = []
        for t in range(tokens):
            state = state * decay[:, :, t, None, None]
            known = (state * k[:, :, t, :, None]).sum(-2)
            new = (v[:, :, t] - known) * write[:, :, t, None]
            state = state + k[:, :, t, :, None] * new[:, :, None, :]
            outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
        return self.out(torch.stack(outputs, 1).reshape(1, tokens, WIDTH))


class TriangularSystem(Network):
    """The delta rule of one chunk, by a triangular system."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(self.linear(WIDTH) for _ in range(3))
        self.write = self.linear(4)

    def mix(self, x):
        q, k, v = (f(x).view(1, -1, 4, WIDTH // 4).transpose(1, 2) for f in self.maps)
        k = functional.normalize(k, dim=-1)
        write = self.write(x).sigmoid().mT[..., None]
        new = torch.linalg.solve_triangular(
            (write * k) @ k.mT, write * v, upper=False, unitriangular=True
        )
        y = (q @ k.mT).tril() @ new
        return y.transpose(1, 2).reshape(1, -1, WIDTH)


class GatedLinearAttention(Network):
    """A decay for each coordinate of the keys."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(self.linear(WIDTH) for _ in range(4))

    def mix(self, x):
        q, k, v, f = (f(x).view(1, -1, 4, WIDTH // 4) for f in self.maps)
        decay = torch.sigmoid(f) ** (1 / 16)
        state = x.new_zeros(1, 4, WIDTH // 4, WIDTH // 4)
        outputs = []
        for t in range(x.shape[1]):
            write = k[:, t][..., None] * v[:, t][..., None, :]
            state = decay[:, t][..., None] * state + write
            outputs.append((q[:, t][..., None, :] @ state)[..., 0, :])
        return torch.stack(outputs, 1).reshape(1, -1, WIDTH)


class CumulativeStates(Network):
    """Linear attention with a positive feature map, by cumulative sums."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(self.linear(WIDTH) for _ in range(3))

    def mix(self, x):
        q, k, v = (f(x).view(1, -1, 4, WIDTH // 4) for f in self.maps)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        states = torch.einsum("bthd,bthe->bthde", k, v).cumsum(1)
        sums = torch.einsum("bthd,bthd->bth", q, k.cumsum(1)) + 1e-6
        y = torch.einsum("bthd,bthde->bthe", q, states) / sums[..., None]
        return y.reshape(1, -1, WIDTH)


class MinimalGate(Network):
    """minGRU: a scan in logarithms, with a choice by the sign of coordinates."""

    def __init__(self):
        super().__init__()
        self.gate, self.new = self.linear(WIDTH), self.linear(WIDTH)

    def mix(self, x):
        gate, new = self.gate(x), self.new(x)
        positive = torch.relu(new) + 0.5
        log_new = torch.where(new >= 0, positive.log(), -functional.softplus(-new))
        log_keep = (-functional.softplus(gate)).cumsum(1)
        log_terms = log_new - functional.softplus(-gate) - log_keep
        return (log_keep + log_terms.logcumsumexp(1)).exp()


class BlockGates(Network):
    """A decay for each channel, with one matrix for each block of channels."""

    def __init__(self):
        super().__init__()
        self.input = self.linear(WIDTH)
        self.blocks = nn.Parameter(0.3 * torch.randn(4, WIDTH // 4, WIDTH // 4))
        self.rate = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def mix(self, x):
        u = self.input(x)
        blocks = u.reshape(-1, 4, WIDTH // 4).permute(1, 0, 2)
        gate = torch.sigmoid(torch.bmm(blocks, self.blocks))
        gate = gate.permute(1, 0, 2).reshape(u.shape)
        log_decay = -functional.softplus(self.rate) * gate
        scale = torch.sqrt(1 - (2 * log_decay).exp())
        state = x.new_zeros(1, WIDTH)
        outputs = []
        for t in range(x.shape[1]):
            state = log_decay[:, t].exp() * state + scale[:, t] * u[:, t]
            outputs.append(state)
        return torch.stack(outputs, 1)


class Channels(Network):
    """The average of each channel, of which the decay is a parameter."""

    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(WIDTH))

    def mix(self, x):
        decay = torch.sigmoid(self.decay)
        state = torch.full((1, WIDTH), math.log(2.0))
        outputs = []
        for t in range(x.shape[1]):
            state = torch.maximum(decay * state, x[:, t]) / (1 + decay)
            outputs.append(state)
        return torch.stack(outputs, 1)


class ClippedRoot(torch.autograd.Function):
    """A root whose derivative is bounded, as in RecurrentGemma."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sqrt(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / torch.sqrt(torch.clip(4.0 * x, min=0.5))


class Rooted(Network):
    def mix(self, x):
        return ClippedRoot.apply(x**2)


MODULES = {
    "RNN": partial(Recurrent, nn.RNN, hidden_size=WIDTH),
    "LSTM": partial(Recurrent, nn.LSTM, hidden_size=WIDTH),
    "GRU": partial(Recurrent, nn.GRU, hidden_size=WIDTH),
    "bidirectional LSTM": partial(
        Recurrent,
        nn.LSTM,
        hidden_size=WIDTH // 2,
        num_layers=2,
        bidirectional=True,
        bias=False,
    ),
    "projected LSTM": partial(
        Recurrent, nn.LSTM, hidden_size=2 * WIDTH, proj_size=WIDTH
    ),
    "LSTMCell": partial(Cell, nn.LSTMCell),
    "GRUCell": partial(Cell, nn.GRUCell),
    "full convolution": partial(Convolution, kernel_size=3, padding=1),
    "convolution of groups": partial(
        Convolution, kernel_size=4, padding="same", groups=4
    ),
    "depthwise convolution": CausalConvolution,
    "delta rule": DeltaRule,
    "triangular system": TriangularSystem,
    "gated linear attention": GatedLinearAttention,
    "cumulative states": CumulativeStates,
    "minGRU": MinimalGate,
    "gates of blocks": BlockGates,
    "channels": Channels,
    "a slope of its own": Rooted,
}
BUILDS = {**MODULES, **{family: partial(Logits, family) for family in FAMILIES}}
# others run in `make test-all`
FAST = ("GRUCell", "depthwise convolution", "delta rule", "minGRU")
FAST_LAWS = ("gates of blocks",)


def _others_are_slow(names, fast):
    """Parameters of a test: names that are not in `fast` are slow."""
    return [
        name if name in fast else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


# The same weights


@pytest.mark.parametrize("name", _others_are_slow(BUILDS, FAST))
def test_program_of_recurrence_matches_module(name):
    ((real, ours),) = literal.outputs(BUILDS[name], (IDS,))
    assert np.abs(real - ours).max() < 1e-6 * np.abs(real).max()


# Laws


def _real_quantities(build, network):
    """Loss, logits, mean squares of streams and squared gradients, by initialisation.

    Gradients are sums over the parameters of each kind and block.
    """
    torch.manual_seed(5)
    paths = [block.path for block in network.structure.blocks if block.path]
    rows: dict[tuple[str, int], list[float]] = {}
    for _ in range(REAL):
        module = build().double().eval()
        streams = {}
        for path in paths:
            record = partial(_record, streams, path)
            module.get_submodule(path).register_forward_hook(record)
        logits = module(IDS)
        loss = functional.cross_entropy(logits[0, :-1], IDS[0, 1:])
        loss.backward()
        row = {("loss", -1): loss.item(), ("logit", 0): logits[0, 2, 3].item()}
        row["logit", 1] = logits[0, 4, 5].item()
        for number, path in enumerate(paths):
            row["stream", number] = streams[path].square().mean().item()
        gradients = {name: p.grad for name, p in module.named_parameters()}
        for name, place in network.structure.places.items():
            if place.kind == "head" or gradients[name] is None:
                continue
            block = -1 if place.block is None else place.block
            key = (f"grad_{place.kind}", block)
            row[key] = row.get(key, 0.0) + gradients[name].square().sum().item()
        for key, number in row.items():
            rows.setdefault(key, []).append(number)
    return {key: np.array(numbers) for key, numbers in rows.items()}


def _record(streams, path, module, args, output):
    stream = output[0] if isinstance(output, tuple) else output
    streams[path] = stream.detach()


def _law_quantities(network, keys):
    """Draws of the same quantities from their law."""
    probes = ProgramModel(network.program, {}).probes(gradients=True)
    measured = probes.measure(OURS, workers=1, progress=False)
    values = {probe.name: probe.value for probe in network.program.probes}
    streams = [probe for probe in network.program.probes if probe.name == "stream"]
    columns = [probe.value.reshape(-1, 1) for probe in streams]
    squares = [ns.mean_dot(x, x).mean() for x in columns]
    drawn = ns.Program((values["logits"], *squares)).draw(draws=OURS)
    law = {}
    for name, block in keys:
        if name == "logit":
            token, word = ((2, 3), (4, 5))[block]
            law[name, block] = drawn[0][:, token, word]
        elif name == "stream":
            law[name, block] = drawn[1 + block]
        else:
            quantity = measured[name]
            law[name, block] = quantity if block < 0 else quantity[:, block]
    return law


@pytest.mark.parametrize("name", _others_are_slow(BUILDS, FAST_LAWS))
def test_law_of_recurrence_matches_real_initialisations(name):
    if name in ("bidirectional LSTM", "full convolution", "convolution of groups"):
        pytest.skip("not causal: the loss of an audit is another one")
    network = read_network(BUILDS[name], (IDS,))
    real = _real_quantities(BUILDS[name], network)
    law = _law_quantities(network, real)
    levels = {}
    for key, numbers in real.items():
        if numbers.std() > 0:
            levels[key] = stats.ks_2samp(law[key], numbers, method="asymp").pvalue
        else:
            assert not law[key].any(), key
    print(f"{name}: smallest p {min(levels.values()):.2g} of {len(levels)}")
    assert min(levels.values()) > LEVEL / len(levels), levels


def test_recurrence_without_stand_ins_is_exact():
    """Taps, biases and rates that are not Gaussian have their own law."""
    net = ns.torch.program(DeltaRule, IDS)
    assert net.law(draws=10).status == "exact"
    net = ns.torch.program(CausalConvolution, IDS)
    assert net.law(draws=10).status == "exact"


# Audits


@pytest.mark.parametrize(
    "name", [pytest.param("mamba2", marks=pytest.mark.slow), "delta rule"]
)
def test_audit_of_recurrence_predicts_the_next_token(name):
    network = read_network(BUILDS[name], (IDS,))
    assert network.targets.words == tuple(IDS[0, 1:].tolist())
    report = ns.audit(network.program, quick=True, gradients=True, progress=False)
    assert report.finding("loss").verdict in ("ok", "undecided")


def test_batch_of_causal_convolutions_matches_module_and_predicts_next_tokens():
    batch = torch.cat([IDS, IDS.flip(1)])
    ((real, ours),) = literal.outputs(CausalConvolution, (batch,))
    assert np.abs(real - ours).max() < 1e-6 * np.abs(real).max()
    network = read_network(CausalConvolution, (batch,))
    assert network.targets.rows == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
    assert network.targets.words == tuple(batch[:, 1:].flatten().tolist())


def test_network_that_sees_later_tokens_predicts_the_token_itself():
    build = partial(Convolution, kernel_size=3, padding=1)
    network = read_network(build, (IDS,))
    assert network.targets.words == tuple(IDS[0].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_recurrent_family_is_audited_with_gradients(family):
    report = ns.audit(
        partial(Logits, family),
        ids=IDS[0].tolist(),
        quick=True,
        gradients=True,
        progress=False,
    )
    assert report.finding("vanishing").verdict != "n/a"


class Block(nn.Module):
    """A recurrence and a perceptron, which are two branches."""

    def __init__(self):
        super().__init__()
        self.mixer = DeltaRule()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, x):
        x = x + self.mixer.mix(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Blocks(Network):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_recurrence_counts_as_attention_of_its_block():
    blocks = read_network(Blocks, (IDS,)).structure.blocks
    assert [[*block.branches] for block in blocks] == [["attention", "mlp"]] * 2


# Refusals


class Packed(Network):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def mix(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6]), True)
        y, _ = self.layer(packed)
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Packed, "torch.export cannot capture Packed"),
        (
            partial(Convolution, kernel_size=3, padding_mode="reflect", padding=1),
            "mode",
        ),
    ],
)
def test_recurrence_that_is_not_read_is_refused(build, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(build, IDS)


@pytest.mark.slow
def test_orthogonal_matrices_of_rwkv_are_refused_by_name():
    config = transformers.RwkvConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, context_length=64
    )
    with pytest.raises(ns.torch.UnsupportedError, match="is orthogonal, not i"):
        ns.torch.program(partial(transformers.RwkvModel, config), IDS)
