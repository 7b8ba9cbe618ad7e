"""The declared initialisation: laws of parameters, and draws of the quantities of a
pass.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from .._array_api import Bools
from ..models._transformer import Transformer
from ..models.measure._metric_program import Probes, ProgramModel
from ..models.measure._probed_program import ProbedProgram, mask_of
from ..reader._laws import DECLARED, Parameter, Parameters
from ..reader._network import Network, Targets
from ..reader._structure import Place, Structure
from ..reader._vectors import BIAS, GAIN, OFFSET, POSITION, TYPE, Use, uses
from ..runtime._parallel import cores
from ..runtime._units import in_time
from ._familiar_names import NORMS, Role, by_role, role_of

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
    # standard deviations of what is no matrix, by its role or that of its matrix
    of_vectors: Mapping[str, float] = field(default_factory=dict)

    @property
    def masks(self) -> list[Bools]:
        """Which pairs of tokens attend, for each block."""
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

    def uses_in(self, net: Structure | None) -> dict[str, Use]:
        """The uses of gains, biases and positions, if the reference has their laws."""
        return uses(net) if net is not None and self.of_vectors else {}

    def law_of(
        self,
        name: str,
        shape: tuple[int, ...],
        net: Structure | None,
        uses: Mapping[str, Use],
    ) -> Parameter:
        """The declared law of a parameter, by its name, place or use in the network.

        It is "unknown" if there is none.
        """
        law = self._law_of_name(name, shape) or self._law_of_role(name, shape)
        if law is not None:
            return law
        place = None if net is None else net.places.get(name)
        if place is None or place not in self.stds:
            return self._law_of_vector(name, shape, net, uses.get(name))
        std = self.stds[place]
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

    def _law_of_name(self, name: str, shape: tuple[int, ...]) -> Parameter | None:
        """The law of the parameter of this name, with or without names of wrappers."""
        if self.laws is None:
            return None
        for known_name in (name, without_wrappers(name)):
            law = self.laws.get(known_name)
            if law is not None and law.shape == shape:
                return law
        return None

    def _law_of_role(self, name: str, shape: tuple[int, ...]) -> Parameter | None:
        """The law of the parameter with the same role under another familiar name.

        A matrix may be stored transposed. Gains are matched if they are 1: where a norm
        adds 1 to its gain, another code base may not.
        """
        role = role_of(without_wrappers(name))
        if self.laws is None or role is None:
            return None
        law = self.laws.get(self._names_by_role.get(role, ""))
        if law is None or shape not in (law.shape, law.shape[::-1]):
            return None
        is_gain = role.kind in NORMS and role.suffix == "weight"
        if is_gain and not (law.law == "constant" and law.value == 1):
            return None
        if law.law == "copy" or law.zero_rows:
            return None
        return replace(law, name=name, shape=shape)

    @cached_property
    def _names_by_role(self) -> dict[Role, str]:
        """The names of the parameters with a law, by their roles."""
        return by_role(self.laws or ())

    def _law_of_vector(
        self, name: str, shape: tuple[int, ...], net: Structure | None, use: Use | None
    ) -> Parameter:
        """The declared law of a gain, a bias or a table of positions.

        It is "unknown" for other parameters.
        """
        unknown = Parameter(name, shape, "unknown", note=DECLARED, value=0.0)
        if use is None:
            return unknown
        if use.role in (GAIN, OFFSET):
            value = 1.0 if use.role == GAIN else 0.0
            return replace(unknown, law="constant", value=value)
        std = self.of_vectors.get(use.role)
        if net is not None and use.matrix is not None and use.matrix in net.places:
            std = self.of_vectors.get(f"{BIAS} of {net.places[use.matrix].kind}", std)
        if std is None:
            return unknown
        return replace(unknown, law="normal" if std else "constant", std=std)


def without_wrappers(name: str) -> str:
    """The name of a parameter, without those of wrappers around its module."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    for wrapper in WRAPPED:
        name = name.removeprefix(wrapper)
    return name


def reference_of_network(
    net: Network, laws: Parameters, aliases: Mapping[str, str] | None = None
) -> Reference:
    """The reference that a network with these laws is."""
    model = ProgramModel(net.program, {})
    try:
        probes = model.probes(gradients=True)
        probes.names  # noqa: B018 (gradients are refused here)
    except ValueError:
        probes = model.probes()
    head = net.structure.head
    words = net.structure.words
    table = words.table if words else None
    stds = stds_of(model.net, {})
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
        aliases=aliases or {},
    )


def stds_of_vectors(model: Transformer) -> dict[str, float]:
    """The standard deviations that a configuration declares beside those of matrices.

    Its law of a pass has biases of 0, except for those of the perceptron, and gains
    of 1.
    """
    stds = {BIAS: 0.0, TYPE: model.std_type}
    for kind, std in (
        ("in", model.bias_in),
        ("gate", model.bias_in),
        ("out", model.bias_out),
    ):
        stds[f"{BIAS} of {kind}"] = std
    if model.positions == "learned":
        stds[POSITION] = model.std_position
    return stds


def stds_of(net: ProbedProgram, widths: Mapping[str, float]) -> dict[Place, float]:
    """The standard deviations of the entries of the matrices of each block.

    Kinds whose matrices have different ones are left out.
    """
    stds: dict[Place, float] = {}
    for k, matrices_by_kind in enumerate(net.matrices):
        for kind, values in matrices_by_kind.items():
            distinct = set()
            for value in values:
                weight = value.op.weight  # type: ignore[attr-defined]
                std_of_entry = weight.std / math.sqrt(weight.fan.bind(widths))
                distinct.add(round(std_of_entry, 12))
            if len(distinct) == 1:
                stds[Place(k, kind)] = distinct.pop()
        # queries, keys and values with one std may be one matrix
        of_attention = {stds.get(Place(k, kind)) for kind in ATTENTION}
        if len(of_attention) == 1 and None not in of_attention:
            stds.setdefault(Place(k, "qkv"), of_attention.pop() or 0.0)
    return stds
