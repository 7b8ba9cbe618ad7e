"""The quantities of an audit against the same numbers of real initialisations, worked
out by hand from what hooks see.

Two samples, Kolmogorov–Smirnov, level 1e-4 for each of about 30 quantities a model;
seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from netsor import models

from ..models.small import CONFIGS, IDS
from .real import CLASSES, configuration

LEVEL = 1e-4
REAL, OURS = 1000, 8000
# where the blocks of a model are, and in a block the modules whose output is added to
# the stream
PLACES = {
    "gpt2": ("transformer.h", "attn", "mlp"),
    "llama": ("model.layers", "self_attn", "mlp"),
    "gemma2": (
        "model.layers",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
    ),
}


def rows(x: np.ndarray) -> list[float]:
    """Mean square, mean cosine of two tokens, exp of the entropy of the spectrum."""
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    cosines = (unit @ unit.T)[np.triu_indices(len(x), 1)]
    p = np.linalg.svd(x, compute_uv=False) ** 2
    p = p[p > 1e-12 * p.sum()] / p.sum()
    return [
        float((x**2).mean()),
        float(cosines.mean()),
        float(np.exp(-(p * np.log(p)).sum())),
    ]


def attention(weights: np.ndarray, windows: list[int]) -> list[float]:
    """Of (heads, tokens, tokens): entropy over ln of how many a token sees, and the
    largest weight, if it sees two.
    """
    shares, top = [], []
    for i, seen in enumerate(windows):
        if seen > 1:
            w = weights[:, i, i + 1 - seen : i + 1]
            shares.append(
                -(w * np.log(np.maximum(w, 1e-37))).sum(axis=1) / np.log(seen)
            )
            top.append(w.max())
    return [float(np.mean(shares)), float(max(top))]


def scores(qkv: np.ndarray, heads: int) -> np.ndarray:
    """Of queries, keys and values side by side: (heads, pairs that see each other)."""
    q, k = (
        u.reshape(len(qkv), heads, -1).transpose(1, 0, 2)
        for u in np.split(qkv, 3, axis=1)[:2]
    )
    return (q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]))[
        :, *np.tril_indices(len(qkv))
    ]


@torch.no_grad()
def real(
    family: str, given: dict[str, Any], ids: Sequence[int], count: int
) -> dict[Any, np.ndarray]:
    """So many initialisations: arrays by quantity, and by quantity and block."""
    config = configuration(given)
    config._attn_implementation = "eager"
    blocks, *branches = PLACES[family]
    torch.manual_seed(1)
    found: list[dict[str, float]] = []
    for _ in range(count):
        network, seen = CLASSES[family](config).eval(), {}
        for i, block in enumerate(network.get_submodule(blocks)):
            for name, module in (
                ("out", block),
                *((b, block.get_submodule(b)) for b in branches),
            ):
                module.register_forward_hook(_keep(seen, (i, name)))
            if family == "gpt2":
                block.attn.c_attn.register_forward_hook(_keep(seen, (i, "qkv")))
            block.register_forward_pre_hook(
                lambda _, given, i=i, seen=seen: seen.__setitem__((i, "in"), given[0])
            )
        out = network(input_ids=torch.tensor([ids]), output_attentions=True)
        at = {key: value[0].double().numpy() for key, value in seen.items()}
        numbers = {}
        for i, weights in enumerate(out.attentions):
            window = 2 if family == "gemma2" and i % 2 == 0 else len(ids)
            windows = [min(j + 1, window) for j in range(len(ids))]
            squares = [float((at[i, name] ** 2).mean()) for name in ("in", *branches)]
            whole = [
                *rows(at[i, "out"]),
                *attention(weights[0].double().numpy(), windows),
            ]
            whole += [squares[1] / sum(squares), squares[2] / sum(squares)]
            numbers |= {
                (name, i): value for name, value in zip(BLOCK, whole, strict=True)
            }
            if family == "gpt2":
                p = scores(at[i, "qkv"], config.n_head)
                numbers |= {
                    ("score_std", i): float(p.std()),
                    ("score_max", i): float(p.max()),
                }
        logits = out.logits[0, :-1].double()
        p = torch.softmax(logits, dim=-1)
        right = p[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        numbers |= {
            "logit_std": float(logits.std(correction=0)),
            "loss": float(-right.log().mean()),
        }
        numbers |= {"max_probability": float(p.max())}
        numbers |= dict(zip(INPUT, rows(at[0, "in"]), strict=True))
        found.append(numbers)
    return {key: np.array([each[key] for each in found]) for key in found[0]}


BLOCK = (
    "mean_square",
    "cosine",
    "effective_rank",
    "entropy",
    "largest_weight",
    "attention_share",
    "mlp_share",
)

INPUT = ("input_mean_square", "input_cosine", "input_effective_rank")


def _keep(seen, key):
    def hook(_, __, output):
        seen[key] = output[0] if isinstance(output, tuple) else output

    return hook


@pytest.mark.parametrize("family", PLACES)
def test_audit_quantities_match_real_initialisations(family):
    ours = (
        models.read(CONFIGS[family]).probes(IDS).measure(OURS, seed=5, progress=False)
    )
    found = {}
    for key, numbers in real(family, CONFIGS[family], IDS, REAL).items():
        own = ours[key] if isinstance(key, str) else ours[key[0]][:, key[1]]
        found[key] = float(stats.ks_2samp(numbers, own).pvalue)
    print(
        family,
        {
            str(key): round(p, 4)
            for key, p in sorted(found.items(), key=lambda pair: pair[1])[:6]
        },
    )
    assert (
        len(found)
        == (9 if family == "gpt2" else 7) * models.read(CONFIGS[family]).layers + 6
    )
    assert min(found.values()) > LEVEL, found
