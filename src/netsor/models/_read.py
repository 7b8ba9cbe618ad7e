"""From what a user has (a name, a file, a dict, an object) to the description of a transformer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from .._files import content, fields
from ..language._given import shown
from ._transformer import Transformer
from .families.encoders import bert, vit
from .families.gpt2 import gpt2, gpt_neox
from .families.llama import gemma2, llama, mistral, mixtral, olmo2, qwen2, qwen3
from .families.t5 import t5

ID = re.compile(r"[\w.-]+/[\w.-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_cached(model: str) -> Path | None:
    """The config.json of a model in the cache, if it is there."""
    if ID.fullmatch(model) is None:
        return None
    folder = _cache() / f"models--{model.replace('/', '--')}"
    with suppress(OSError, ValueError):
        commit = content(folder / "refs" / "main", 64).decode().strip()
        path = folder / "snapshots" / commit / "config.json"
        if COMMIT.fullmatch(commit) is not None and path.is_file():
            return path
    return None


def hub_advice(model: str) -> str:
    """What to do about an id that is not in the cache."""
    if ID.fullmatch(model) is None or model.startswith("."):
        return ""
    return (
        f"; as an id of Hugging Face's hub it is not in the cache of this machine: `hf download {model} config.json` "
        "puts it there, and prints a path that can be given too"
    )


def _cache() -> Path:
    """As huggingface_hub finds it."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(given)))


# by model_type, the field with which a configuration says what it is
READERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "bert": bert,
    "gemma2": gemma2,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mixtral,
    "olmo2": olmo2,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "t5": t5,
    "vit": vit,
}


@cache
def names() -> tuple[str, ...]:
    """The models that ship as data.

    Returns
    -------
    tuple of str
        In order.

    Examples
    --------
    >>> ns.models.names()[:4]
    ('bert-base', 'gemma-2-9b', 'gpt2', 'gpt2-large')
    """
    found = (entry.name for entry in (resources.files(__package__) / "data").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


def read(source: str | Path | Mapping[str, Any] | Any) -> Transformer:
    """The model that a name, a path, a dict or a transformers config describes.

    A shipped model may say what its authors drew where that is not what its configuration makes: Pythia does.

    Parameters
    ----------
    source : str, pathlib.Path, mapping or PretrainedConfig
        A name of `names()`, a config.json or its folder, its fields, the config object of transformers, or the id of a
        model on Hugging Face's hub (`meta-llama/Llama-3.1-8B`), which is read from their cache on this machine, if it
        is there: nothing is downloaded.

    Returns
    -------
    Transformer
        The model at initialisation.

    Raises
    ------
    ValueError
        If it is none of these, or has a field that is not understood.

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
            found = hub_cached(source) if isinstance(source, str) and isinstance(error, FileNotFoundError) else None
            if found is not None:
                return _build(fields(found), str(source))
            why = "is no file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            advice = hub_advice(source) if isinstance(source, str) else ""
            raise ValueError(
                f"model {shown(str(source))} {why}, and none of the models that ship: {', '.join(names())}{advice}"
            ) from None
        folder = path.absolute().parent.name
        return _build(given, folder if path.name == "config.json" and folder else path.stem)
    if isinstance(source, Mapping):
        return _build(dict(source))
    if hasattr(source, "to_dict"):
        return _build(source.to_dict())
    raise ValueError(
        f"source of type {type(source).__name__} must be the name of a model ({', '.join(names())}), a path to a "
        "config.json, a dict, or an object with to_dict"
    )


def _build(given: dict[str, Any], name: str | None = None) -> Transformer:
    family = given.get("model_type")
    if not isinstance(family, str) or family not in READERS:
        raise ValueError(f"model_type={shown(family)} of the configuration must be one of {', '.join(READERS)}")
    called = name or given.get("_name_or_path") or family
    return Transformer(name=called, family=family, **READERS[family](given))
