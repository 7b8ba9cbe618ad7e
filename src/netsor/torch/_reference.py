"""The declared initialisation of a module: a configuration, or another module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .._validate import ArgumentError
from ..checks._reference import (
    Reference,
    reference_of_network,
    stds_of,
    stds_of_vectors,
)
from ..models import Transformer, read
from ..models._transformer import UnknownFamilyError
from ..models.measure._loss_gradient import ModelEnd
from ..reader._laws import Parameters
from ..reader._network import Targets
from ..reader._reader import SAME_PARAMETERS
from ..reader._structure import Place
from ._fresh_modules import fresh
from ._network import read_network
from ._parameters import parameters

PARAMETERS_ONLY = "parameters_only=True"


def reference_of(
    declared: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Reference:
    """The reference that a user declares.

    It is a module, a function that makes one, or what `ns.models.read` takes; a
    configuration that this does not describe is that of a module of transformers.
    """
    if _makes_module(declared):
        return _reference_module(declared, args, kwargs)
    try:
        model = declared if isinstance(declared, Transformer) else read(declared)
    except UnknownFamilyError as unknown:
        return _reference_module(_module_of_config(unknown), args, kwargs)
    inputs = _ids_of_model(model, args, kwargs)
    probes = model.probes(**inputs, gradients=not model.experts)
    assert isinstance(probes.source, ModelEnd)
    stds = stds_of(probes.source.net, model.widths())
    stds[Place(None, "embedding")] = model.std_embedding
    if not model.tied:
        stds[Place(None, "head")] = model.std_logits
    targets = None
    if model.vocabulary:
        targets = Targets.of_first_rows(probes.source.targets)
    is_batch = has_batch(args, kwargs)
    return Reference(
        name=model.name,
        probes=None if is_batch else probes,
        targets=targets,
        laws=None,
        stds=stds,
        tied=model.tied,
        padding=model.padding,
        why_no_probes=OF_ONE_SEQUENCE if is_batch else "",
        of_vectors=stds_of_vectors(model),
    )


def _ids_of_model(
    model: Transformer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The ids among the inputs: the first tensor, and of a decoder the last one."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    sequences = [x.reshape(-1).tolist() for x in tensors if not x.is_floating_point()]
    inputs: dict[str, Any] = {"ids": sequences[0]}
    if model.decoder_layers and len(sequences) > 1:
        inputs["decoder_ids"] = sequences[-1]
    return inputs


def _makes_module(declared: Any) -> bool:
    """Whether a reference is a module, or a function that makes one."""
    is_factory = callable(declared) and not hasattr(declared, "to_dict")
    return isinstance(declared, torch.nn.Module) or is_factory


def _module_of_config(unknown: UnknownFamilyError) -> Any:
    """The function of transformers that makes the module of a configuration."""
    if not isinstance(unknown.config.get("model_type"), str):
        raise unknown
    try:
        from ._from_config import module_of_config
    except ImportError as error:
        raise ImportError(
            f"{unknown.name} is read from its module: pip install transformers"
        ) from error
    return module_of_config(unknown.config)


def reference_of_parameters(declared: Any, why_no_pass: str) -> Reference:
    """The reference of parameters only, which are matched by name.

    A configuration is that of a module of transformers, which has names.
    """
    build = declared
    if not _makes_module(declared):
        build = _build_of(declared)
    return _without_pass(build, parameters(build), why_no_pass)


def _without_pass(build: Any, laws: Parameters, why_no_pass: str) -> Reference:
    """The reference of the parameters of a module."""
    instance = fresh(build)[0]
    return Reference(
        type(instance).__name__,
        probes=None,
        targets=None,
        laws=laws,
        stds={},
        tied=False,
        aliases=aliases_of(instance),
        why_no_probes=why_no_pass,
    )


def aliases_of(module: Any) -> dict[str, str]:
    """The further names of tied parameters, each with the first name of its parameter.

    For example {"lm_head.weight": "transformer.wte.weight"} for GPT-2, whose head is
    its table of words.
    """
    first_names: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        first_name = first_names.setdefault(id(p), name)
        if first_name != name:
            aliases[name] = first_name
    return aliases


def _build_of(declared: Any) -> Any:
    """The function that makes the module of a configuration, or of its path."""
    fields = declared
    if hasattr(declared, "to_dict"):
        fields = declared.to_dict()
    if isinstance(declared, str | Path):
        path = Path(declared)
        path = path / "config.json" if path.is_dir() else path
        if not path.exists():
            raise ArgumentError("reference", _as_text(declared), OF_PARAMETERS)
        fields = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(fields, Mapping) or "model_type" not in fields:
        raise ArgumentError("reference", _as_text(declared), OF_PARAMETERS)
    try:
        from ._from_config import module_of_config
    except ImportError as error:
        raise ImportError(
            "names of parameters are those of transformers: pip install transformers,"
            " or give a function that makes a module as the reference"
        ) from error
    return module_of_config(fields)


def _as_text(declared: Any) -> Any:
    """A path as text; other references as they are."""
    return str(declared) if isinstance(declared, Path) else declared


OF_PARAMETERS = (
    "a function that makes a module, or the config.json of a model of transformers,"
    " where the forward pass is not checked"
)
OF_ONE_SEQUENCE = (
    "a configuration describes the pass of one sequence: for a batch, or padding, the"
    " reference is a function that makes a module"
)


def has_batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the inputs are several sequences, or one with padding."""
    for x in (*args, *kwargs.values()):
        if not isinstance(x, torch.Tensor) or x.is_floating_point() or x.ndim < 2:
            continue
        is_mask = bool(((x == 0) | (x == 1)).all()) and bool((x == 0).any())
        if x.shape[0] > 1 or is_mask:
            return True
    return False


def _reference_module(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Reference:
    """The reference of a module; without a pass, if its pass cannot be read."""
    laws = parameters(module)
    if not any(law.random for law in laws.values()):
        name = type(fresh(module)[0]).__name__
        reason = f"{name} returns nothing random: {SAME_PARAMETERS}"
        return _without_pass(module, laws, reason)
    try:
        net = read_network(module, args, kwargs, laws)
    except ArgumentError:
        raise
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return _without_pass(module, laws, " ".join(str(error).split()))
    return reference_of_network(net, laws, aliases_of(fresh(module)[0]))
