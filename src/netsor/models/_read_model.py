"""Reads a model from what a user has: a name, a file, a dict, an object, or arguments of nanoGPT or PyTorch."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from .._files import content, fields
from .._validate import ArgumentError, one_of, shown, whole
from ._families import READERS
from ._transformer import Transformer

ID = re.compile(r"[\w.-]+/[\w.-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_cached(model: str) -> Path | None:
    """The config.json of a model in the cache of huggingface_hub, if it is there."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    folder = Path(os.path.expandvars(os.path.expanduser(given))) / f"models--{model.replace('/', '--')}"
    with suppress(OSError, ValueError):
        commit = content(folder / "refs" / "main", 64).decode().strip()
        path = folder / "snapshots" / commit / "config.json"
        if COMMIT.fullmatch(commit) is not None and path.is_file():
            return path
    return None


@cache
def names() -> tuple[str, ...]:
    """The names of the models that ship as data, sorted.

    Examples
    --------
    >>> ns.models.names()[:4]
    ('bert-base', 'gemma-2-9b', 'gpt2', 'gpt2-large')
    """
    files = (entry.name for entry in (resources.files(__package__) / "data").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def read(source: str | Path | Mapping[str, Any] | Any) -> Transformer:
    """The model at initialisation that a name, a path, a dict or a transformers config describes.

    A shipped model may override its configuration with what its authors drew, as Pythia does.

    Parameters
    ----------
    source : str, pathlib.Path, mapping or PretrainedConfig
        A name of `names()`, a config.json or its folder, its fields, the config object of transformers, or the id of a
        model on Hugging Face's hub (`meta-llama/Llama-3.1-8B`), which is read from their cache on this machine, if it
        is there: nothing is downloaded.

    Examples
    --------
    >>> model = ns.models.read("llama-3-8b")
    >>> model.layers, model.width, model.heads, model.key_heads
    (32, 4096, 32, 8)
    """
    if isinstance(source, str) and source in names():
        shipped = json.loads((resources.files(__package__) / "data" / f"{source}.json").read_text("utf-8"))
        return _build(shipped["config"], source).replace(**shipped.get("drawn", {}))
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            path = path / "config.json" if path.is_dir() else path
            given = fields(path)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            on_hub = missing and isinstance(source, str) and ID.fullmatch(source) is not None
            if on_hub and (cached := hub_cached(str(source))) is not None:
                return _build(fields(cached), str(source))
            readable = "" if missing else f" that can be read ({error.strerror})"
            near = difflib.get_close_matches(str(source).lower(), names(), 3, 0.4)
            meant = f": did you mean {' or '.join(near)}?" if near else "."
            allowed = f"the path of a file{readable}, or the name of a model that ships{meant} "
            allowed += "`netsor audit --models` lists all"
            if on_hub and not str(source).startswith(".") and path.suffix != ".json":
                allowed += (
                    ". As an id of Hugging Face's hub it is not in the cache of this machine: "
                    f"`hf download {source} config.json` puts it there, and prints a path that you can also give"
                )
            raise ArgumentError("model", str(source), allowed) from None
        folder = path.absolute().parent.name
        return _build(given, folder if path.name == "config.json" and folder else path.stem)
    if isinstance(source, Mapping):
        return _build(dict(source))
    if hasattr(source, "to_dict"):
        return _build(source.to_dict())
    raise ValueError(
        f"source of type {type(source).__name__} must be the name of a model (ns.models.names() lists them), a path to "
        "a config.json, a dict, or an object with to_dict"
    )


def _build(given: dict[str, Any], name: str | None = None) -> Transformer:
    family = given.get("model_type")
    if not isinstance(family, str) or family not in READERS:
        raise ValueError(f"model_type={shown(family)} of the configuration must be one of {', '.join(sorted(READERS))}")
    called = name or given.get("_name_or_path") or family
    return Transformer(name=called, family=family, **READERS[family](given))


def nanogpt(config: Mapping[str, Any] | Any) -> Transformer:
    """The model of a nanoGPT GPTConfig, as nanoGPT draws it.

    Parameters
    ----------
    config : GPTConfig or mapping
        The object, or its fields; nanoGPT's defaults for those that are missing.

    Examples
    --------
    >>> model = ns.models.nanogpt({"n_layer": 6, "n_head": 6, "n_embd": 384})
    >>> model.layers, round(model.std_o, 5)
    (6, 0.00577)
    """
    given = dict(config) if isinstance(config, Mapping) else dict(vars(config))
    same = {"n_layer", "n_head", "n_embd", "vocab_size"}  # as GPT-2's
    if extra := given.keys() - same - {"block_size", "dropout", "bias"}:
        raise ValueError(
            f"{', '.join(sorted(extra))}: no field of nanoGPT's GPTConfig; remove it if it does not matter"
        )
    fields = {"vocab_size": 50304, **{key: given[key] for key in same & given.keys()}}
    fields = READERS["gpt2"](fields | {"n_positions": given.get("block_size", 1024)})
    return Transformer(name="nanogpt", family="nanogpt", **{**fields, "activation": "gelu"})


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
    """The encoder that these arguments of PyTorch make, as PyTorch draws it.

    Weights are uniform, and layers begin as copies of one. The inputs are tokens with unit Gaussian embeddings, which
    is what `torch.nn.Embedding` draws; `replace` changes that.

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
        Whether attention is masked, which PyTorch takes as an argument of the call.

    Examples
    --------
    >>> model = ns.models.pytorch_encoder(512, 8, num_layers=6)
    >>> model.shared, model.distribution
    (True, 'uniform')
    """
    one_of(activation, "activation", "", ("relu", "gelu"))
    for name, value in (("d_model", d_model), ("nhead", nhead), ("dim_feedforward", dim_feedforward)):
        whole(value, name)
    if d_model % nhead:
        raise ArgumentError("d_model", d_model, f"a multiple of nhead={nhead}")
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
        **dict.fromkeys(("std_q", "std_k", "std_v"), packed),
        **dict.fromkeys(("std_o", "std_in"), plain),
        std_out=last,
        std_embedding=1.0,
        std_position=0.0,
        bias_in=plain if bias else 0.0,
        bias_out=last if bias else 0.0,
        distribution="uniform",
    )
