"""Modules with routed experts, and with other functions of scalars, against PyTorch.

On the weights of a module its program returns what the module returns, and its law is
that of real initialisations (two samples, Kolmogorov–Smirnov, level 1e-4 for all
quantities of a module together; seeds are fixed).
"""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from torch.nn import functional

import netsor as ns
from tests.internals import Argument, ProgramModel, TorchFunction, captured
from tests.internals import DeferredResult as Result
from tests.internals import DeferredStep as Step

from . import literal
from .test_torch_gradients import IDS, WIDTH, Layer, Network

LEVEL = 1e-4
REAL, OURS = 400, 1600
EXPERTS, CHOSEN, HIDDEN = 4, 2, 12

# Modules of transformers

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 20,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
LATENT = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
FAMILIES = {
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "head_dim": 8,
    },
    "mixtral": {"num_local_experts": 4},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}


class Logits(torch.nn.Module):
    """The logits of a language model of transformers."""

    def __init__(self, family):
        super().__init__()
        config = transformers.AutoConfig.for_model(
            family, **{**SIZES, **FAMILIES[family]}
        )
        config._attn_implementation = "eager"
        self.model = transformers.AutoModelForCausalLM.from_config(config)
        self.model.set_experts_implementation("eager")

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def test_graph_and_random_numbers_do_not_grow_with_the_number_of_experts(monkeypatch):
    nodes, numbers = [], []
    for experts in (4, 24):
        sizes = {**FAMILIES["qwen3_moe"], "num_experts": experts}
        monkeypatch.setitem(FAMILIES, "qwen3_moe", sizes)
        graph = captured(partial(Logits, "qwen3_moe"), (IDS,), {}, None)
        nodes.append(len(graph.nodes))
        plan = ns.torch.program(partial(Logits, "qwen3_moe"), IDS).plan()
        assert "chosen experts" in str(plan)
        of_experts = [x for x in plan.steps if "chosen experts" in (x.label or "")]
        numbers.append(sum(step.random_numbers for step in of_experts))
    assert nodes[0] == nodes[1]
    assert numbers[0] == numbers[1] == 2 * CHOSEN * IDS.numel() * 2 * 24


@pytest.mark.parametrize("family", FAMILIES)
def test_program_of_transformers_experts_matches_module(family):
    ((real, ours),) = literal.outputs(lambda: Logits(family), (IDS,))
    assert np.abs(real - ours).max() < 1e-6 * np.abs(real).max() + 1e-6


# Layers with experts of their own


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Routed(Layer):
    """Softmax, top-k, renormalised gates; subclasses have other routers."""

    def __init__(self):
        super().__init__()
        del self.up, self.down
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList(Expert() for _ in range(EXPERTS))

    def gates(self, x):
        shares, chosen = self.router(x).softmax(-1).topk(CHOSEN, -1)
        shares = shares / shares.sum(-1, keepdim=True)
        return torch.zeros(*x.shape[:-1], EXPERTS, dtype=x.dtype).scatter(
            -1, chosen, shares
        )

    def forward(self, x):
        x = x + self.attend(x)
        h = self.norm2(x)
        gates = self.gates(h)
        return x + sum(
            gates[..., e, None] * expert(h) for e, expert in enumerate(self.experts)
        )


class Sigmoid(Routed):
    """Groups, and a bias that only chooses, as in DeepSeek V3."""

    def __init__(self):
        super().__init__()
        self.register_buffer("correction", torch.tensor([0.1, -0.1, 0.05, 0.0]))

    def gates(self, x):
        scores = self.router(x).sigmoid()
        for_choice = scores + self.correction
        groups = for_choice.unflatten(-1, (2, 2)).topk(2, -1)[0].sum(-1)
        best = functional.one_hot(groups.argmax(-1), 2).repeat_interleave(2, -1)
        chosen = for_choice.masked_fill(best == 0, -torch.inf).argsort(-1)[..., -2:]
        shares = scores.gather(-1, chosen)
        shares = 2.5 * shares / (shares.sum(-1, keepdim=True) + 1e-20)
        return torch.zeros_like(scores).scatter(-1, chosen, shares)


class OneHot(Routed):
    """A mask for each expert, from the indices of the chosen ones."""

    def gates(self, x):
        shares, chosen = self.router(x).topk(CHOSEN, -1)
        shares = shares.softmax(-1)
        return torch.stack(
            [(shares * (chosen == e)).sum(-1) for e in range(EXPERTS)], -1
        )


class Threshold(Routed):
    """All experts above a share, of a router of two layers with a bias."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 8), torch.nn.Tanh(), torch.nn.Linear(8, EXPERTS)
        )

    def gates(self, x):
        shares = self.router(x).softmax(-1)
        ordered, order = shares.sort(-1, descending=True)
        kept = torch.where(ordered.cumsum(-1) - ordered < 0.5, ordered, 0.0)
        return kept.gather(-1, order.argsort(-1))


class Capacity(Routed):
    """At most two tokens for each expert, the first ones."""

    def gates(self, x):
        gates = super().gates(x)
        places = (gates > 0).long().cumsum(-2)
        return gates * (places <= 2)


class Idle(Routed):
    """Nobody chooses the last expert."""

    def gates(self, x):
        logits = self.router(x) - torch.tensor([0.0, 0.0, 0.0, 50.0])
        top = logits.topk(CHOSEN, -1).values[..., -1:]
        return torch.where(logits >= top, logits.softmax(-1), 0.0)


class GivenGates(Routed):
    """Gates without gradients."""

    def gates(self, x):
        return super().gates(x).detach()


class EqualLogits(Routed):
    """A router that starts at 0: torch's own choice among equal logits."""

    def __init__(self):
        super().__init__()
        self.start = True

    def gates(self, x):
        return super().gates(0.0 * x)


class AlsoVector(Routed):
    """The logits of the router also go on, as a vector."""

    def __init__(self):
        super().__init__()
        self.back = torch.nn.Linear(EXPERTS, WIDTH, bias=False)

    def forward(self, x):
        return super().forward(x) + self.back(torch.tanh(self.router(self.norm(x))))


class ScatteredTokens(Routed):
    """The sum over tokens of a quantity of each expert, by `index_add`."""

    def gates(self, x):
        gates = super().gates(x)
        chosen = gates.argmax(-1)[0]
        load = torch.zeros(EXPERTS, dtype=x.dtype).index_add(
            0, chosen, gates[0].amax(-1)
        )
        return gates / (1.0 + load)


class Einsum(Routed):
    """The matrices of all experts in one parameter; they keep their width inside."""

    def __init__(self):
        super().__init__()
        del self.experts
        up = torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5
        down = torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5
        self.up = torch.nn.Parameter(up)
        self.down = torch.nn.Parameter(down)

    def forward(self, x):
        x = x + self.attend(x)
        h = self.norm2(x)
        inside = functional.gelu(torch.einsum("btd,edh->bteh", h, self.up))
        outputs = torch.einsum("bteh,ehc->btec", inside, self.down)
        return x + torch.einsum("btec,bte->btc", outputs, self.gates(h))


class Infinite(Routed):
    """The sigmoid of logits that are −∞ where an expert is not chosen."""

    def gates(self, x):
        logits = self.router(x)
        top, chosen = logits.topk(CHOSEN, -1)
        nothing = torch.full_like(logits, -torch.inf)
        return nothing.scatter(-1, chosen, top).sigmoid()


class Separate(Routed):
    """A weight for each expert, that no tensor has for all of them."""

    def forward(self, x):
        x = x + self.attend(x)
        h = self.norm2(x)
        shares, chosen = self.router(h).topk(CHOSEN, -1)
        shares = shares.softmax(-1)
        for e, expert in enumerate(self.experts):
            x = x + (shares * (chosen == e)).sum(-1, keepdim=True) * expert(h)
        return x


class Sinkhorn(Routed):
    """Gates of a doubly normalised matrix, and the solution of a triangular system."""

    def gates(self, x):
        gates = self.router(x).exp()
        for _ in range(5):
            gates = gates / gates.sum(-1, keepdim=True)
            gates = gates / gates.sum(-2, keepdim=True)
        lower = torch.eye(gates.shape[-2], dtype=x.dtype) + (gates @ gates.mT).tril(-1)
        return torch.linalg.solve_triangular(lower, gates, upper=False)


class LearnedSink(Routed):
    """Attention with a learned number for each query beside the scores."""

    def __init__(self):
        super().__init__()
        self.sink = torch.nn.Parameter(torch.randn(1))

    def weights(self, scores):
        sink = self.sink.reshape(1, 1, 1).expand(*scores.shape[:-1], 1)
        both = torch.cat([scores, sink], -1)
        both = both - both.max(-1, keepdim=True).values
        return both.softmax(-1)[..., :-1]


LAYERS = (
    Routed,
    Sigmoid,
    OneHot,
    Threshold,
    Capacity,
    Idle,
    GivenGates,
    EqualLogits,
    AlsoVector,
    ScatteredTokens,
    Einsum,
    Infinite,
    Separate,
    Sinkhorn,
    LearnedSink,
)


class Tied(Network):
    """One router for both layers."""

    def __init__(self):
        super().__init__(Routed)
        self.layers[1].router = self.layers[0].router


BUILDS = {layer.__name__: partial(Network, layer) for layer in LAYERS} | {"Tied": Tied}


@pytest.mark.parametrize("name", BUILDS)
def test_program_of_experts_matches_module(name):
    ((real, ours),) = literal.outputs(BUILDS[name], (IDS,))
    assert np.abs(real - ours).max() < 1e-6 * np.abs(real).max()


# Gradients


def _squares(build):
    """Squared gradients of all parameters of each kind and block, by initialisation."""
    torch.manual_seed(5)
    kinds = {"router": "router", "up": "in", "down": "out", "q": "query", "v": "value"}
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(REAL):
        network = build().double().eval()
        functional.cross_entropy(network(IDS)[0, :-1], IDS[0, 1:]).backward()
        for k, layer in enumerate(network.layers):
            sums = dict.fromkeys(kinds.values(), 0.0)
            for path, p in layer.named_parameters():
                kind = kinds.get(path.split(".")[-2] if "." in path else path)
                if kind is not None and p.grad is not None:
                    sums[kind] += float(p.grad.square().sum())
            for kind, square in sums.items():
                found.setdefault((f"grad_{kind}", k), []).append(square)
        gradient = network.embed.weight.grad.square().sum()
        found.setdefault(("grad_embedding", -1), []).append(float(gradient))
    return {place: np.array(squares) for place, squares in found.items()}


WITH_GRADIENTS = ("Routed", "Sigmoid", "OneHot", "Idle", "GivenGates", "Einsum")


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_of_experts_match_autograd(name):
    build = BUILDS[name]
    probes = ProgramModel(ns.torch.network(build, IDS), {}).probes(gradients=True)
    ours = probes.measure(OURS, workers=1, progress=False)
    found = {}
    for (quantity, block), right in _squares(build).items():
        here = ours.get(quantity, np.zeros((OURS, 2)))
        here = here if block < 0 else here[:, block]
        if right.any():
            found[quantity, block] = stats.ks_2samp(here, right, method="asymp").pvalue
        else:
            assert not here.any(), (quantity, block)
    print(f"{name}: smallest p {min(found.values()):.2g} of {len(found)}")
    assert min(found.values()) > LEVEL / len(found), found


@pytest.mark.parametrize("name", ["Routed", "Sigmoid", "Einsum"])
def test_audit_has_the_load_of_experts(name):
    probes = ProgramModel(ns.torch.network(BUILDS[name], IDS), {}).probes()
    draws = probes.measure(15, workers=1, progress=False)
    largest, least = draws["largest_load"], draws["least_load"]
    assert (largest >= 1).all()
    assert (least <= 1).all()
    assert largest.max() <= EXPERTS / CHOSEN


def _largest_loads(build):
    """The largest load in each layer, relative to an even one, by initialisation."""
    torch.manual_seed(6)
    loads = []
    for _ in range(REAL):
        network = build().double().eval()
        gates = []
        for layer in network.layers:
            layer.gates = partial(_kept, gates, layer.gates)
        network(IDS)
        chosen = np.array([(x[0] != 0).sum(0).double().numpy() for x in gates])
        loads.append(chosen.max(-1) / chosen.mean(-1))
    return np.array(loads)


def _kept(results, function, *args):
    """Call a function, and keep its result."""
    results.append(function(*args).detach())
    return results[-1]


@pytest.mark.parametrize(
    "name", ["OneHot", "Threshold", "Capacity", "Idle", "Infinite", "ScatteredTokens"]
)
def test_load_is_that_of_real_initialisations(name):
    probes = ProgramModel(ns.torch.network(BUILDS[name], IDS), {}).probes()
    ours = probes.measure(OURS, workers=1, progress=False)["largest_load"]
    right = _largest_loads(BUILDS[name])
    p = [stats.ks_2samp(ours[:, k], right[:, k]).pvalue for k in range(2)]
    print(f"{name}: smallest p {min(p):.2g}")
    assert min(p) > LEVEL / len(p), p


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Separate", "there is a router, but the gates of its experts"),
        ("Sinkhorn", "no block chooses among experts"),
    ],
)
def test_audit_says_why_there_is_no_load(name, reason):
    audit = ns.audit(ns.torch.network(BUILDS[name], IDS), draws=15, progress=False)
    assert f"load        {reason}" in str(audit)


# Law


def _initialised(family):
    """A model with larger matrices, so that its routers and experts differ."""
    model = Logits(family)
    for name, p in model.named_parameters():
        if p.ndim > 1 and not name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.2)
    return model


def _quantities(logits, gates, square):
    """Numbers of one draw: logits, the loss, gates of experts, the mean square."""
    ids = IDS[0].numpy()
    top = logits - logits.max(-1, keepdims=True)
    log_p = top - np.log(np.exp(top).sum(-1, keepdims=True))
    loss = -log_p[np.arange(len(ids) - 1), ids[1:]].mean()
    return [logits[2, 3], logits[4, 5], loss, gates[0].max(), gates[3, 1], square]


def _program_draws(family):
    net = ns.torch.network(partial(_initialised, family), IDS)
    last = {probe.name: probe.value for probe in net.probes}
    stream = last["stream"].reshape(-1, 1)
    square = ns.mean_dot(stream, stream).mean()
    program = ns.Program((last["logits"], last["experts"], square), family)
    draws = program.draw(draws=OURS)
    return np.array([_quantities(*draw) for draw in zip(*draws, strict=True)])


def _record(seen, name, module, args, output):
    seen[name] = output


@torch.no_grad()
def _real_draws(family):
    torch.manual_seed(3)
    rows = []
    for _ in range(REAL):
        seen = {}
        model = _initialised(family).double().eval()
        layer = model.model.model.layers[1]
        router = getattr(layer.mlp, "gate", None) or layer.mlp.router
        for name, part in (("stream", layer), ("router", router)):
            part.register_forward_hook(partial(_record, seen, name))
        logits = model(IDS)[0].numpy()
        _, shares, chosen = seen["router"]
        gates = torch.zeros(len(shares), 4, dtype=shares.dtype)
        gates = gates.scatter(1, chosen, shares).numpy()
        square = float(seen["stream"].square().mean())
        rows.append(_quantities(logits, gates, square))
    return np.array(rows)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_law_of_experts_matches_real_initialisations(family):
    ours, real = _program_draws(family), _real_draws(family)
    found = [
        stats.ks_2samp(a, b, method="asymp").pvalue
        for a, b in zip(ours.T, real.T, strict=True)
    ]
    print(f"{family}: smallest p {min(found):.2g} of {len(found)}")
    assert min(found) > LEVEL / len(found), found


# Precision, processes


def test_function_of_torch_keeps_the_precision_of_its_arguments():
    function = TorchFunction(
        arguments=(Argument((2, 2), "float"), Argument((2, 1), "int")),
        steps=(
            Step("aten.softmax.int", (Result(0), -1, torch.float32), {}),
            Step("aten.gather.default", (Result(2), 1, Result(1)), {}),
        ),
        shape=(2, 1),
    )
    for dtype in (np.float32, np.float64):
        p = np.array([[1.0, 2.0, 3.0, 5.0]] * 3, dtype)
        result = function(p, np.array([[1.0, 0.0]], dtype))
        assert result.dtype == dtype
        assert result.shape == (3, 2, 1)
        expected = [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(2))]
        np.testing.assert_allclose(result[2].ravel(), expected, rtol=1e-6)


def test_single_precision_has_the_law_of_double_precision():
    net = ns.torch.program(BUILDS["Threshold"], IDS)
    single = net.draw(draws=400, precision="float32", rng=1)
    double = net.draw(draws=400, rng=2)
    p = stats.ks_2samp(single[:, 0, 3], double[:, 0, 3]).pvalue
    assert p > LEVEL


def test_program_with_deferred_operations_can_be_pickled():
    net = ns.torch.program(BUILDS["Sigmoid"], IDS)
    copy = pickle.loads(pickle.dumps(net))
    assert np.array_equal(copy.draw(draws=3), net.draw(draws=3))


# Refusals


class Softmax(Layer):
    """Linear attention: a softmax over the coordinates of queries."""

    def attend(self, x):
        h = self.norm(x)
        return self.o(self.q(h).softmax(-1) * self.v(h))


class Gathered(Routed):
    """The tokens of each expert are gathered: the shapes are random."""

    def forward(self, x):
        x = x + self.attend(x)
        h = self.norm2(x)[0]
        shares, chosen = self.router(h).softmax(-1).topk(CHOSEN, -1)
        added = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            tokens, places = torch.where(chosen == e)
            added = added.index_add(
                0, tokens, shares[tokens, places, None] * expert(h[tokens])
            )
        return x + added


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Softmax, "softmax.* of vectors: only scores"),
        (Gathered, "depends on random numbers: compute all experts for all tokens"),
    ],
)
def test_layer_that_is_not_read_is_refused(layer, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(partial(Network, layer), IDS)
