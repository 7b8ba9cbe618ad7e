"""nanoGPT: GPT-2 with the exact GELU, and the number of its layers under other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._transformer import Transformer
from .gpt2 import gpt2


def nanogpt(config: Mapping[str, Any] | Any) -> Transformer:
    """The model of a nanoGPT GPTConfig.

    Parameters
    ----------
    config : GPTConfig or mapping
        The object, or its fields; nanoGPT's defaults for those that are missing.

    Returns
    -------
    Transformer
        As nanoGPT draws it.

    Examples
    --------
    >>> model = ns.models.nanogpt({"n_layer": 6, "n_head": 6, "n_embd": 384})
    >>> model.layers, round(model.std_o, 5)
    (6, 0.00577)
    """
    given = dict(config) if isinstance(config, Mapping) else dict(vars(config))
    known = {"n_layer", "n_head", "n_embd", "vocab_size"}
    extra = set(given) - known - {"block_size", "dropout", "bias"}
    if extra:
        raise ValueError(
            f"{', '.join(sorted(extra))}: no field of nanoGPT's GPTConfig; remove it if it does not matter"
        )
    fields = {key: given[key] for key in known & set(given)}
    fields |= {"n_positions": given.get("block_size", 1024), "vocab_size": given.get("vocab_size", 50304)}
    return Transformer(name="nanogpt", family="nanogpt", **{**gpt2(fields), "activation": "gelu"})
