"""Recipes: initialisation schemes, each a choice of standard deviations and multipliers
with its source.

A recipe keeps orders and norms. n is the width, and L the number of blocks (encoder and
decoder, unless stated).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._validate import ArgumentError
from ._description import BRANCHES, STDS, D, Description, idle

Changes = dict[str, Any]
# µP: width and head dimension at which it equals the plain recipe
BASE, BASE_HEAD = 256, 64
PLAIN_STD = 0.02  # of every matrix in the plain recipe
LAST = ("std_o", "std_out")  # the last matrices of both branches


class Recipe(NamedTuple):
    """A recipe: its description, and its changes to a model."""

    words: str
    source: str
    changes: Callable[[Description], Changes]


def recipe(model: D, name: str) -> D:
    """Apply a recipe to a model: it sets standard deviations and multipliers, and adds
    the recipe to the name.

    Parameters
    ----------
    model : Transformer
        A model.
    name : str
        One of `ns.models.RECIPES`, which gives the description and source of each.

    Returns
    -------
    model : Transformer
        A new description of the same kind; the model itself is unchanged.

    Examples
    --------
    >>> model = ns.models.recipe(ns.models.read("llama-3-8b"), "gpt2")
    >>> model.name, model.std_q, model.std_o
    ('llama-3-8b, recipe=gpt2', 0.02, 0.0025)
    """
    if not isinstance(name, str) or name not in RECIPES:
        raise ArgumentError("recipe", name, f"one of {', '.join(RECIPES)}")
    changes = RECIPES[name].changes(model)
    for field in idle(model):
        changes.pop(field, None)
    return model.replace(name=f"{model.name}, recipe={name}", **changes)


def _alike(std: float) -> Changes:
    """The same standard deviation for all matrices."""
    return dict.fromkeys((*STDS, "std_router"), std)


def _depth(model: Description) -> int:
    """The number of blocks of encoder and decoder."""
    return model.layers + model.decoder_layers


def _scaled(changes: Changes, names: tuple[str, ...], factor: float) -> Changes:
    """The changes with those of these names multiplied by a factor."""
    return changes | {name: changes[name] * factor for name in names}


class Fans(NamedTuple):
    """The shape of a matrix."""

    fan_in: int
    fan_out: int


def matrix_fans(model: Description) -> dict[str, Fans]:
    """The shape of each matrix of a block by its name ("q" for `std_q`), with all heads
    and groups in one matrix.
    """
    n = model.width
    m = model.hidden
    queries = model.heads * model.d
    keys = model.key_heads * model.d
    return {
        "q": Fans(n, queries),
        "k": Fans(n, keys),
        "v": Fans(n, keys),
        "o": Fans(queries, n),
        "in": Fans(n, m),
        "gate": Fans(n, m),
        "out": Fans(m, n),
    }


def _small(model: Description) -> Changes:
    """All matrices of std √(2/(5n))."""
    return _alike(math.sqrt(2 / (5 * model.width)))


def _xavier(model: Description) -> Changes:
    """Matrices of std √(2/(fan-in + fan-out)), and embeddings of std 1/√n."""
    changes = _alike(model.width**-0.5)
    for name, fans in matrix_fans(model).items():
        changes[f"std_{name}"] = math.sqrt(2 / (fans.fan_in + fans.fan_out))
    return changes


# of T-Fixup's blocks of an encoder, at depth 1
T_FIXUP_ENCODER = 0.67


def _t_fixup(model: Description) -> Changes:
    """T-Fixup: scale encoder blocks by 0.67 L^(−1/4), and blocks of a decoder with
    cross-attention by (9L)^(−1/4).
    """
    # L is the depth of each stack, and of the encoder for shared embeddings, as in the
    # authors' code. A decoder-only model has the two branches of an encoder block, for
    # which their bound gives the first factor.
    factor = T_FIXUP_ENCODER * model.layers**-0.25
    changes = _scaled(_xavier(model), BRANCHES, factor)
    changes["std_embedding"] *= (9 * model.layers) ** -0.25
    if model.decoder_layers:
        changes["decoder_gain"] = (9 * model.decoder_layers) ** -0.25 / factor
    return changes


def _deepnorm(model: Description) -> Changes:
    """norm(αx + f(x)) = norm(x + f(x)/α) up to eps: scaling the stream by α is scaling
    the last matrices by 1/α.
    """
    if model.order != "post":
        raise ValueError(
            f"recipe='deepnorm' is for a norm after each sum: {model.name} has"
            f" order={model.order!r}"
        )
    # α = (2L)^(1/4) and β = (8L)^(−1/4) for L blocks
    depth = _depth(model)
    alpha = (2 * depth) ** 0.25
    beta = (8 * depth) ** -0.25
    changes = _scaled(_xavier(model), BRANCHES, beta)
    return _scaled(changes, LAST, 1 / alpha)


def _ntk(model: Description) -> Changes:
    """Matrices of std 1/√fan-in, and embeddings of std 1."""
    changes: Changes = {}
    for name, fans in matrix_fans(model).items():
        changes[f"std_{name}"] = fans.fan_in**-0.5
    changes["std_router"] = model.width**-0.5
    changes["std_embedding"] = 1.0
    changes["std_position"] = 1.0
    changes["logit_scale" if model.tied else "std_logits"] = model.width**-0.5
    return changes


def _mup(model: Description) -> Changes:
    """µP: as the plain recipe at the width BASE, and scaled from there."""
    ratio = BASE / model.width
    changes = _alike(PLAIN_STD * math.sqrt(ratio))
    changes["std_embedding"] = PLAIN_STD
    changes["std_position"] = PLAIN_STD
    changes["score_scale"] = BASE_HEAD**0.5 / model.d
    if model.tied:
        changes["logit_scale"] = ratio
    else:
        changes["std_logits"] = PLAIN_STD * ratio
    return changes


RECIPES = {
    "plain": Recipe(
        "every matrix of std 0.02",
        "BERT (Devlin et al. 2018), which cuts off at two of them; the default of"
        " Hugging Face's code",
        lambda model: _alike(PLAIN_STD),
    ),
    "gpt2": Recipe(
        "std 0.02, the last matrices of both branches 0.02/√(2L)",
        "GPT-2 (Radford et al. 2019, section 2.3); Megatron-LM (Shoeybi et al. 2019)"
        " scales its output layers so too",
        lambda model: _scaled(_alike(0.02), LAST, (2 * _depth(model)) ** -0.5),
    ),
    "small": Recipe(
        "every matrix of std √(2/(5n))", "SmallInit (Nguyen and Salazar 2019)", _small
    ),
    "neox": Recipe(
        "std √(2/(5n)), the last matrices of both branches 2/(L√n)",
        "GPT-NeoX-20B (Black et al. 2022, section 2.3.1), Pythia",
        lambda model: (
            _small(model)
            | dict.fromkeys(LAST, 2 / (_depth(model) * math.sqrt(model.width)))
        ),
    ),
    "xavier": Recipe(
        "std √(2/(fan-in + fan-out)), embeddings 1/√n",
        "Glorot and Bengio 2010; embeddings as in fairseq",
        _xavier,
    ),
    "t-fixup": Recipe(
        "xavier with values, output and MLP times 0.67 L^(−1/4), embeddings times"
        " (9L)^(−1/4); times (9M)^(−1/4) in a decoder of M blocks with cross-attention;"
        " norms, which T-Fixup removes, are kept",
        "T-Fixup (Huang et al. 2020), a decoder alone as its encoder",
        _t_fixup,
    ),
    "deepnorm": Recipe(
        "xavier with values, output and MLP times (8L)^(−1/4), and branches over"
        " (2L)^(1/4), for a norm after each sum",
        "DeepNorm (Wang et al. 2022), as for an encoder or a decoder alone",
        _deepnorm,
    ),
    "ntk": Recipe(
        "std 1/√fan-in, embeddings of std 1, logits over √n",
        "Jacot et al. 2018; PaLM is similar",
        _ntk,
    ),
    "mup": Recipe(
        f"std 0.02 √({BASE}/n), logits 0.02 · {BASE}/n, scores over d rather than √d;"
        f" plain if n = {BASE}, d = {BASE_HEAD}",
        "µP (Yang et al. 2022, Tensor Programs V, table 3)",
        _mup,
    ),
    "depth-mup": Recipe(
        "mup with the last matrices of both branches over √L",
        "Bordelon et al. 2023; Yang et al. 2023, Tensor Programs VI, for blocks of one"
        " layer",
        lambda model: _scaled(_mup(model), LAST, _depth(model) ** -0.5),
    ),
    "zero": Recipe(
        "std 0.02, the last matrices of both branches 0: every block begins as the"
        " identity",
        "Fixup (Zhang et al. 2019; the head is 0 there too) and, by gains, Goyal et al."
        " 2017, for residual networks",
        lambda model: _scaled(_alike(0.02), LAST, 0.0),
    ),
}
