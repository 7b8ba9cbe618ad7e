"""Models of any type that transformers has, by their configuration.

`netsor.models` describes some families without PyTorch. All other types are read from
the module that transformers makes of a configuration. Large parameters take no memory
(see `_fresh_modules`), so that full sizes are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import transformers

from .._validate import ArgumentError
from ..models.measure._metric_program import ProgramModel
from ..programs._program import Program
from ..reader._graph import UnsupportedError
from ..reader._network import lengths_of
from ._fresh_modules import Module, fresh
from ._network import network, token_ids
from ._parameters import parameters

# mappings of transformers from configurations to classes, in the order of preference
SEQ_TO_SEQ = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"
MAPPINGS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    SEQ_TO_SEQ,
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_MAPPING",
)


def model_from_config(
    config: Mapping[str, Any],
    name: str | None = None,
    ids: Sequence[int] | None = None,
    tokens: int | Sequence[int] | None = None,
) -> ProgramModel:
    """A model for an audit, read from the module that transformers makes.

    `config` are the fields of a config.json. Its inputs are token ids (of an encoder
    and a decoder the same), or an image of standard normal numbers.
    """
    build = module_of_config(config)
    first, *longer = networks_of(build, ids, tokens)
    model = ProgramModel(first, widths={}, longer=longer, ids=ids)
    model.origin = (
        f"Read from {build.func.__name__} of transformers:"
        f" {config['model_type']} has no description of netsor's own."
    )
    return model.replace(name or str(config["model_type"]))


def module_of_config(config: Mapping[str, Any]) -> partial[Module]:
    """The function that makes the module of a configuration, with random weights."""
    model_type = config["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        raise ArgumentError(
            "model_type",
            model_type,
            f"a type that transformers {transformers.__version__} has",
        )
    fields = {key: x for key, x in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(model_type, **fields)
    settings._attn_implementation = "eager"
    return partial(_class_of(settings), settings)


def _class_of(settings: Any) -> Any:
    """The class of the model: the one that the configuration names, or with a head."""
    for name in settings.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    mappings: tuple[str, ...] = MAPPINGS
    if settings.is_encoder_decoder:  # its decoder alone is a causal model too
        mappings = (SEQ_TO_SEQ, *MAPPINGS)
    for name in mappings:
        mapping = getattr(transformers, name)
        if type(settings) in mapping:
            model_class = mapping[type(settings)]
            return model_class[0] if isinstance(model_class, tuple) else model_class
    raise UnsupportedError(
        f"transformers has no model with a head for {type(settings).__name__}"
    )


def networks_of(
    build: partial[Module],
    ids: Sequence[int] | None,
    tokens: int | Sequence[int] | None,
) -> list[Program]:
    """The networks at one or several numbers of tokens, the smallest first."""
    lengths = lengths_of(ids, tokens)
    instance = fresh(build)[0]
    laws = parameters(build)
    networks = []
    for length in lengths:
        inputs = _inputs(instance, ids, length)
        networks.append(network(build, args=(), kwargs=inputs, laws=laws))
    return networks


def _inputs(
    model: Any, ids: Sequence[int] | None, tokens: int | None
) -> dict[str, Any]:
    """The inputs of a model of transformers, by name."""
    name = type(model).__name__
    if model.main_input_name == "pixel_values":
        if ids is not None or tokens is not None:
            argument, value = ("ids", ids) if tokens is None else ("tokens", tokens)
            raise ArgumentError(
                argument, value, f"left out: the input of {name} is an image"
            )
        return {"pixel_values": _image(model.config)}
    if model.main_input_name != "input_ids":
        raise UnsupportedError(
            f"the input of {name} is {model.main_input_name}: give it in Python,"
            " ns.audit(ns.torch.network(build, inputs))"
        )
    sequence = token_ids(model, ids, tokens)
    if model.config.is_encoder_decoder:
        return {"input_ids": sequence, "decoder_input_ids": sequence.clone()}
    return {"input_ids": sequence}


def _image(config: Any) -> Any:
    """An image of standard normal numbers, the same at each call."""
    size = getattr(config, "image_size", None) or 224
    rows, columns = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, channels, rows, columns, generator=generator)
