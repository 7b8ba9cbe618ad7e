"""The declared initialisation: laws of parameters, and draws of the quantities of a
pass.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._array_api import Bools
from .._validate import ArgumentError
from ..models import Transformer, read
from ..models._transformer import UnknownFamilyError
from ..models.measure._loss_gradient import ModelEnd
from ..models.measure._metric_program import Probes, ProgramModel
from ..models.measure._probed_program import ProbedProgram, mask_of
from ..reader._laws import DECLARED, Parameter, Parameters
from ..reader._network import Targets
from ..reader._structure import Place, Structure
from ..runtime._parallel import cores
from ..runtime._units import in_time
from ._fresh_modules import fresh
from ._network import read_network
from ._parameters import parameters

ATTENTION = ("query", "key", "value")
LOG = logging.getLogger("netsor")
# what wrappers of modules and adapters put into names
WRAPPERS = (
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "base_layer.",
)
WRAPPED = ("base_model.model.", "module.")  # at the start of names
PARAMETERS_ONLY = "parameters_only=True"
LONG = 10.0  # seconds: draws that take longer are announced


@dataclass(frozen=True, eq=False)
class Reference:
    """A declared initialisation."""

    name: str
    probes: Probes | None  # the quantities of a pass; None if they are not known
    targets: Targets | None
    laws: Parameters | None  # by the names of parameters
    stds: dict[Place, float]  # of the entries of matrices, by their places
    tied: bool
    padding: int | None = None
    # further names of parameters, by which a module reaches them, and their first names
    aliases: Mapping[str, str] = field(default_factory=dict)
    why_no_probes: str = ""

    @property
    def masks(self) -> list[Bools]:
        """Of each block, which pairs of tokens attend."""
        if self.probes is None:
            return []
        return [mask_of(block) for block in self.probes.source.net.blocks]

    @cache  # noqa: B019 (a reference lives as long as it is checked against)
    def measure(self, draws: int, seed: int) -> dict[str, Any]:
        """Draws of the quantities of a pass."""
        if self.probes is None:
            return {}
        seconds = self.probes.plan().seconds(draws) / cores()
        if seconds > LONG:
            LOG.info(
                "%d draws of the declared law take about %s", draws, in_time(seconds)
            )
        quantities = self.probes.measure(draws, seed=seed, progress=False)
        gradients = [f"grad_{kind}" for kind in ATTENTION]
        if all(name in quantities for name in gradients):
            parts = [quantities[name] for name in gradients]
            quantities["grad_qkv"] = np.sum(parts, axis=0)
        return quantities

    def law_of(
        self, name: str, shape: tuple[int, ...], net: Structure | None
    ) -> Parameter:
        """The declared law of a parameter, by its name or by its place in the network.

        It is "unknown" if there is none.
        """
        for known_name in (name, without_wrappers(name)):
            law = None if self.laws is None else self.laws.get(known_name)
            if law is not None and law.shape == shape:
                return law
        place = Place(None, "")
        if net is not None:
            place = net.places.get(name, place)
        std = self.stds.get(place)
        if std is None:
            return Parameter(name, shape, "unknown", note=DECLARED, value=0.0)
        zero_rows: tuple[int, ...] = ()
        if place == Place(None, "embedding") and self.padding is not None:
            zero_rows = (self.padding,)
        return Parameter(
            name,
            shape,
            law="normal" if std else "constant",
            std=std,
            zero_rows=zero_rows,
            note=DECLARED,
            value=0.0,
        )


def without_wrappers(name: str) -> str:
    """The name of a parameter, without those of wrappers around its module."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    for wrapper in WRAPPED:
        name = name.removeprefix(wrapper)
    return name


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
    sequences = [
        x.reshape(-1).tolist()
        for x in (*args, *kwargs.values())
        if isinstance(x, torch.Tensor) and not x.is_floating_point()
    ]
    inputs: dict[str, Any] = {"ids": sequences[0]}
    if model.decoder_layers and len(sequences) > 1:
        inputs["decoder_ids"] = sequences[-1]
    probes = model.probes(**inputs, gradients=not model.experts)
    assert isinstance(probes.source, ModelEnd)
    stds = _stds(probes.source.net, model.widths())
    stds[Place(None, "embedding")] = model.std_embedding
    if not model.tied:
        stds[Place(None, "head")] = model.std_logits
    targets = None
    if model.vocabulary:
        targets = Targets.of_first_rows(probes.source.targets)
    is_batch = has_batch(args, kwargs)
    return Reference(
        model.name,
        None if is_batch else probes,
        targets=targets,
        laws=None,
        stds=stds,
        tied=model.tied,
        padding=model.padding,
        why_no_probes=OF_ONE_SEQUENCE if is_batch else "",
    )


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
        aliases=_aliases(instance),
        why_no_probes=why_no_pass,
    )


def _aliases(module: Any) -> dict[str, str]:
    """The further names of parameters that a module has under several."""
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
    try:
        net = read_network(module, args, kwargs, laws)
    except ArgumentError:
        raise
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return _without_pass(module, laws, " ".join(str(error).split()))
    model = ProgramModel(net.program, {})
    try:
        probes = model.probes(gradients=True)
        probes.names  # noqa: B018 (gradients are refused here)
    except ValueError:
        probes = model.probes()
    head, words = net.structure.head, net.structure.words
    table = words.table if words else None
    stds = _stds(model.net, {})
    for kind, name in (("embedding", table), ("head", head)):
        if name is not None and name in laws and laws[name].random:
            stds[Place(None, kind)] = laws[name].std
    return Reference(
        net.program.name,
        probes,
        targets=net.targets,
        laws=laws,
        stds=stds,
        tied=head is not None and head == table,
        aliases=_aliases(fresh(module)[0]),
    )


def _stds(net: ProbedProgram, widths: Mapping[str, float]) -> dict[Place, float]:
    """The standard deviations of the entries of the matrices of each block.

    Kinds whose matrices have different ones are left out.
    """
    stds: dict[Place, float] = {}
    for k, matrices_by_kind in enumerate(net.matrices):
        for kind, values in matrices_by_kind.items():
            weights = [value.op.weight for value in values]  # type: ignore[attr-defined]
            distinct = {
                round(w.std / math.sqrt(w.fan.bind(widths)), 12) for w in weights
            }
            if len(distinct) == 1:
                stds[Place(k, kind)] = distinct.pop()
        fused = {stds.get(Place(k, kind)) for kind in ATTENTION}
        if len(fused) == 1 and None not in fused:
            stds.setdefault(Place(k, "qkv"), fused.pop() or 0.0)
    return stds
