"""What decides which mistakes a loop can have: a module, its optimiser and a batch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..checks._run_check import Departures, Hypothesis
from ._run_batches import Batch
from ._run_functions import observed
from ._run_loop import Loop, loss_of
from ._run_setup import Setup, groups_of

MOST_FAMILIES = 16  # of parameters, such as all query matrices


@dataclass(frozen=True)
class Probe:
    """A module with its optimiser and a batch, and how far the log departs.

    Attributes
    ----------
    loop : Loop
        The healthy loop.
    module, setup, batch : torch.nn.Module, Setup, Batch
        A new module, what steps, and the batch of the first pass.
    departures : Departures
        The logged numbers over the expected ones.
    """

    loop: Loop
    module: Any
    setup: Setup
    batch: Batch
    departures: Departures

    def groups(self) -> list[str]:
        """The names of the parameter groups; empty if there is one."""
        return list(groups_of(self.setup.param_groups))

    def tables(self) -> list[str]:
        """The paths of embeddings."""
        return [
            path
            for path, part in self.module.named_modules()
            if isinstance(part, torch.nn.Embedding)
        ]

    def blocks(self) -> list[str]:
        """The paths of numbered parts, such as layers.0."""
        return [
            path
            for path, _ in self.module.named_modules()
            if re.fullmatch(r"\D+\.\d+", path)
        ]

    def norms(self) -> dict[str, list[str]]:
        """The paths of norms, by their name with stars for numbers."""
        families: dict[str, list[str]] = {}
        for path, part in self.module.named_modules():
            if "norm" in type(part).__name__.lower() and not list(part.children()):
                families.setdefault(starred(path), []).append(path)
        return families

    def families(self) -> dict[str, list[str]]:
        """The names of parameters that belong together, by what they are.

        They are those of one part in all blocks, such as layers.*.attention.wq, and
        biases and other vectors, unless they are all parameters.
        """
        parameters = dict(self.module.named_parameters())
        families: dict[str, list[str]] = {}
        for name in parameters:
            for title in _titles(name):
                families.setdefault(title, []).append(name)
        families["all biases"] = [name for name in parameters if name.endswith("bias")]
        families["all vectors"] = [name for name, p in parameters.items() if p.ndim < 2]
        titles: dict[tuple[str, ...], str] = {}  # the first one of the same members
        for title, members in families.items():
            titles.setdefault(tuple(members), title)
        kept = {
            title: list(members)
            for members, title in titles.items()
            if 0 < len(members) < len(parameters)
        }
        return dict(itertools.islice(kept.items(), MOST_FAMILIES))

    def tied(self) -> list[tuple[str, str]]:
        """Pairs of names of one parameter."""
        names: dict[int, str] = {}
        pairs = []
        for name, p in self.module.named_parameters(remove_duplicate=False):
            if id(p) in names:
                pairs.append((names[id(p)], name))
            names.setdefault(id(p), name)
        return pairs

    def could_tie(self) -> list[tuple[str, str]]:
        """Pairs of an embedding and a matrix of the same shape at the output."""
        pairs = []
        tables = {f"{path}.weight" for path in self.tables()}
        named = dict(self.module.named_parameters())
        for table, (name, p) in itertools.product(sorted(tables), named.items()):
            same_shape = table in named and p.shape == named[table].shape
            if same_shape and name not in tables:
                pairs.append((table, name))
        return pairs

    def dropout(self) -> list[Any]:
        """The modules of dropout."""
        return [
            part
            for part in self.module.modules()
            if isinstance(part, torch.nn.modules.dropout._DropoutNd)
        ]

    @cached_property
    def functions(self) -> set[str]:
        """The names of the functions of PyTorch that building and a pass call."""
        batch = self.batch.mapped(lambda x: x.to(self.loop.device))

        def build_and_run() -> None:
            """Both, with the gradient, on which functions may depend."""
            self.loop.build()
            with torch.enable_grad():
                loss_of(self.module, batch, self.loop.loss)

        return observed(build_and_run)

    @cached_property
    def position_tables(self) -> list[str]:
        """The paths of embeddings that look up 0, 1, 2, …"""
        inputs: dict[str, Any] = {}

        def noting(path: str) -> Callable[[Any, Any], None]:
            def hook(_: Any, args: Any) -> None:
                inputs[path] = args[0]

            return hook

        parts = {path: self.module.get_submodule(path) for path in self.tables()}
        hooks = [
            part.register_forward_pre_hook(noting(path)) for path, part in parts.items()
        ]
        batch = self.batch.mapped(lambda x: x.to(self.loop.device))
        with torch.no_grad(), suppress(Exception):  # of the user's code
            loss_of(self.module, batch, self.loop.loss)
        for hook in hooks:
            hook.remove()
        return [path for path, ids in inputs.items() if _is_range(ids)]


def _titles(name: str) -> list[str]:
    """The families of a parameter of a block, with stars for numbers.

    Those of layers.3.attention.wq are layers.*.attention and layers.*.attention.wq.
    Parameters outside of blocks have none.
    """
    parts = starred(name).split(".")
    if "*" not in parts:
        return []
    shortest = parts.index("*") + 2
    return [".".join(parts[:end]) for end in range(shortest, len(parts) + 1)]


Rule = Callable[[Loop, Probe], Iterator[Hypothesis]]


def left_out(
    probe: Probe,
    name: str,
    question: str,
    of_optimiser: Callable[[Any, Setup], None],
    cost: float = 0.0,
) -> Iterator[Hypothesis]:
    """A mistake of an optimiser that does not hold some parameters.

    The groups of a log are as they should be, or as a `Recorder` sees them.
    """
    wrong_loop = replace(probe.loop, of_optimiser=of_optimiser, zero="held")
    yield Hypothesis(name, question, wrong_loop, cost)
    if probe.departures.has_groups():
        recorded = replace(wrong_loop, groups="held")
        yield Hypothesis(f"{name}, as recorded", question, recorded, cost)


def _is_range(ids: Any) -> bool:
    """Whether each row of ids counts from 0, or from another number."""
    if not isinstance(ids, torch.Tensor) or ids.shape[-1:].numel() < 2:
        return False
    return bool((ids.diff(dim=-1) == 1).all())


def starred(name: str) -> str:
    """A dotted name with stars for numbers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def owner(module: Any, name: str) -> tuple[Any, str]:
    """The part that holds a parameter, and the parameter's name in it."""
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last
