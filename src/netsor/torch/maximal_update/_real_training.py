"""Real training of the first steps, with an emitted file and the optimisers of torch.

A coordinate check measures how much some steps change the output of every submodule, at
several widths. Nothing here uses the measurements that a rule was derived from.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...maximal_update._rules import OutputScale, Part, matches
from ...maximal_update._subject import TrainingRun
from ._arrays import rms
from ._batch import Batch, batch_of, logits_in
from ._optimisers import Family
from ._parameter_names import parameters_of

LOGITS = "logits"  # of the words in the batch


class Functions(NamedTuple):
    """The functions of an emitted file."""

    initialise: Callable[..., None]
    scale_outputs: Callable[..., None]
    param_groups: Callable[..., list[dict[str, Any]]]


def functions_of(source: str) -> Functions:
    """The functions of the text of an emitted file, which is executed."""
    return functions_in(executed(source))


def executed(source: str) -> types.ModuleType:
    """The text of an emitted file as a module."""
    module = types.ModuleType("emitted")
    exec(compile(source, "emitted", "exec"), module.__dict__)
    return module


def functions_in(module: types.ModuleType) -> Functions:
    """The functions of an emitted file; a KeyError if one is missing."""
    return Functions(
        initialise=module.__dict__["initialise"],
        scale_outputs=module.__dict__["scale_outputs"],
        param_groups=module.__dict__["param_groups"],
    )


@dataclass(frozen=True, eq=False)
class Training:
    """Modules of several widths, and how they are trained.

    Without `functions` all parameters have the same learning rate, and the modules are
    left as they are (the standard parametrisation).
    """

    build: Callable[..., Any]
    family: Family
    batch: Any
    seed: int
    base: tuple[int, ...]  # the width, and the depth if there is one
    functions: Functions | None
    scales: Sequence[OutputScale] = ()
    # what makes the optimiser of a module, instead of the family; its learning rates
    # are then factors
    make: Callable[[Any], Any] | None = None
    # by sizes: the parameters with an optimiser for matrices, and their parts
    matrices: Callable[..., Mapping[str, Any]] = lambda *size: {}
    # Parameters that may start at 0. What their start makes of changed inputs falls
    # with the width, so their modules are judged by what the update writes.
    free: Sequence[str] = ()

    def start(self, size: tuple[int, ...], lr: float, draw: int) -> Started:
        """A new module with its optimiser."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + draw)
            module = self.build(*size).eval()
        batch = batch_of(module, self.batch, self.seed)
        groups: list[dict[str, Any]] = [{"params": [*module.parameters()], "lr": lr}]
        if self.functions is not None:
            self.functions.initialise(module, *self.base)
            self.functions.scale_outputs(module, *self.base)
            groups = self.functions.param_groups(module, lr, *self.base)
        matrices = self.matrices(*size)
        if matrices:
            groups = _with_matrices(groups, matrices, module)
        if self.make is None:
            optimiser = self.family.make_real(groups)
        else:
            optimiser = self.make(module)
            for group in optimiser.param_groups:
                group["lr"] = lr * group["lr"]
        return Started(module, batch, optimiser, self.scales, self._starts(module))

    def _starts(self, module: Any) -> dict[str, Any]:
        """Copies of the submodules whose parameters may start at 0, by path."""
        names: list[str] = []
        for pattern in self.free:
            names += matches(pattern, parameters_of(module))
        paths = [name.rpartition(".")[0] for name in names]
        return {
            path: copy.deepcopy(module.get_submodule(path)) for path in paths if path
        }

    def loss_after(self, run: TrainingRun) -> float:
        """The loss after the steps of a run."""
        started = self.start((run.width,), run.lr, run.draw)
        groups = started.optimiser.param_groups
        rates = [group["lr"] for group in groups]
        for factor in run.factors:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = factor * rate
            started.step(run.clip_norm)
        return started.loss()

    def changes(
        self, size: tuple[int, ...], lr: float, draw: int, steps: int
    ) -> dict[str, float]:
        """How much some steps change the outputs of all submodules."""
        started = self.start(size, lr, draw)
        before = started.outputs()
        for _ in range(steps):
            started.step()
        return {
            path: rms(value - before[path])
            for path, value in started.outputs().items()
            if before[path].shape == value.shape
        }


def _with_matrices(
    groups: list[dict[str, Any]], matrices: Mapping[str, Any], module: Any
) -> list[dict[str, Any]]:
    """A group for each parameter, which says whether it is a matrix, and its parts."""
    names = {id(p): name for name, p in parameters_of(module).items()}
    single_groups = []
    for group in groups:
        for p in group["params"]:
            name = names[id(p)]
            single_group = dict(group)
            single_group["params"] = [p]
            single_group["is_matrix"] = name in matrices
            single_group["split"] = matrices.get(name)
            single_groups.append(single_group)
    return single_groups


class Started(NamedTuple):
    """A module, the batch and the optimiser."""

    module: Any
    batch: Batch
    optimiser: Any
    scales: Sequence[OutputScale]
    starts: Mapping[str, Any]  # submodules as they were, by path

    def step(self, clip_norm: float | None = None) -> None:
        """One step, with gradients of at most this norm."""
        self.optimiser.zero_grad()
        self.batch.loss(logits_in(self.module(*self.batch.inputs))).backward()
        if clip_norm is not None:
            parameters = self.module.parameters()
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        self.optimiser.step()

    def loss(self) -> float:
        """The loss of the batch."""
        with torch.no_grad():
            return float(self.batch.loss(logits_in(self.module(*self.batch.inputs))))

    def outputs(self) -> dict[str, Any]:
        """The outputs of all submodules, by path, and the logits that count."""
        with torch.no_grad(), recorded(self.module, self.starts) as outputs:
            logits = logits_in(self.module(*self.batch.inputs))
        words = list(self.batch.words)
        for path, value in outputs.items():
            if value.shape == logits.shape:
                outputs[path] = value[..., words]
        for scale in self.scales:
            if scale.part is None:
                continue
            for path in matches(scale.path, [*outputs]):
                outputs[path] = without_part(outputs[path], scale.part)
        outputs[LOGITS] = logits[..., words]
        return outputs


def without_part(value: Any, part: Part) -> Any:
    """The entries of the last axis outside of a part, which has its own factor."""
    count = value.shape[-1]
    start = round(part.start * count)
    stop = round(part.stop * count)
    return torch.cat([value[..., :start], value[..., stop:]], dim=-1)


@contextmanager
def recorded(module: Any, starts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A dict that gets the outputs of all submodules while the context lasts; of those
    in `starts`, what they return more than they would have at the start.
    """
    outputs: dict[str, Any] = {}
    handles = []

    def recorder(path: str) -> Callable[..., None]:
        """A hook that records the output of a submodule."""

        def record(submodule: Any, args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(first, torch.Tensor) or not first.is_floating_point():
                return
            outputs[path] = first.detach().clone()
            if path in starts:
                outputs[path] -= starts[path](*args).detach()

        return record

    for path, part in module.named_modules():
        if path and "parametrizations" not in path:
            handles.append(part.register_forward_hook(recorder(path)))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
