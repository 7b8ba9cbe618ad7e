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


def pytorch_encoder(
    d_model: int,
    nhead: int,
    dim_feedforward: int = 2048,
    *,
    num_layers: int = 1,
    activation: str = "relu",
    layer_norm_eps: float = 1e-5,
    norm_first: bool = False,
    bias: bool = True,
    norm: bool = False,
    causal: bool = False,
) -> Transformer:
    """The encoder that these arguments of PyTorch make.

    Its inputs are tokens with unit Gaussian embeddings, which is what `torch.nn.Embedding` draws; `replace` changes
    that.

    Parameters
    ----------
    d_model, nhead : int
        Width and heads, as of `torch.nn.TransformerEncoderLayer`.
    dim_feedforward : int
        Width between the two matrices of the perceptron.
    num_layers : int
        As of `torch.nn.TransformerEncoder`.
    activation : str
        "relu" or "gelu".
    layer_norm_eps : float
        Of all norms.
    norm_first : bool
        Whether norms come before the branches.
    bias : bool
        Whether linear layers have biases.
    norm : bool
        Whether a LayerNorm follows the last block.
    causal : bool
        For masked attention, which PyTorch is told when it is called.

    Returns
    -------
    Transformer
        As PyTorch draws it: uniform weights, and layers that begin as copies of one.

    Examples
    --------
    >>> model = ns.models.pytorch_encoder(512, 8, num_layers=6)
    >>> model.shared, model.distribution
    (True, 'uniform')
    """
    if activation not in ("relu", "gelu"):
        raise ValueError(f"activation={activation!r} must be 'relu' or 'gelu'")
    for name, value in (("d_model", d_model), ("nhead", nhead), ("dim_feedforward", dim_feedforward)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a positive integer")
    if d_model % nhead:
        raise ValueError(f"d_model={d_model} must be a multiple of nhead={nhead}")
    packed, plain, last = (2 * d_model) ** -0.5, (3 * d_model) ** -0.5, (3 * dim_feedforward) ** -0.5
    return Transformer(
        name="pytorch-encoder",
        family="pytorch",
        layers=num_layers,
        width=d_model,
        heads=nhead,
        hidden=dim_feedforward,
        positions="none",
        order="pre" if norm_first else "post",
        eps=layer_norm_eps,
        final_norm=norm,
        activation=activation,
        causal=causal,
        shared=num_layers > 1,
        std_q=packed,
        std_k=packed,
        std_v=packed,
        std_o=plain,
        std_in=plain,
        std_out=last,
        std_embedding=1.0,
        std_position=0.0,
        bias_in=plain if bias else 0.0,
        bias_out=last if bias else 0.0,
        distribution="uniform",
    )
