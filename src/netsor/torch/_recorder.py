"""Records the first steps of a training loop: what `check_run` needs.

Hooks of the optimiser see the parameters before and after each step. Losses and batches
come from the loop, from a callback of Lightning, or from hooks of the module under the
Trainer of transformers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .._validate import ArgumentError, shown, whole
from ..checks._run_check import (
    CLIPPED,
    GRADIENT,
    LOSS,
    PARAMETERS,
    RATE,
    UPDATE,
    RunCheck,
)
from ..runtime._files import named, write
from ._check_run import check_run
from ._run_loop import gradient_norm, norm
from ._run_setup import groups_of

# inputs that the Trainer adds, which change the scale of the loss
COUNTS = ("num_items_in_batch",)
Log = Callable[[dict[str, float], int], Any]


class Recorder:
    """Records batches, losses and norms of the first steps of a training loop.

    Create it after the optimiser, and call `record` after each backward pass. The first
    steps then take a little longer, and memory for a copy of the parameters. After the
    last one the recorder removes its hooks.

    Parameters
    ----------
    module : torch.nn.Module
        The module that is trained.
    optimiser : torch.optim.Optimizer or list of them
        The optimiser of the loop, or several, such as Muon and AdamW.
    steps : int
        The last step that is recorded, counted from 0.

    Attributes
    ----------
    rows : list of dict
        One row for each step, in the form of a log: "step", "loss", "grad_norm", …
    batches : list
        The batches of all passes of these steps.

    Examples
    --------
    >>> recorder = ns.torch.Recorder(model, optimizer, steps=5)  # doctest: +SKIP
    >>> for ids, targets in loader:  # doctest: +SKIP
    ...     loss = model(ids, targets)[1]
    ...     loss.backward()
    ...     recorder.record(loss, (ids, targets))
    ...     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> recorder.save("run")  # doctest: +SKIP
    """

    def __init__(self, module: Any, optimiser: Any, *, steps: int = 5) -> None:
        if not isinstance(module, torch.nn.Module):
            raise ArgumentError("module", module, "the torch.nn.Module that is trained")
        optimisers = _optimisers(optimiser)
        self.steps = whole(steps, "steps", least=0)
        self.rows: list[dict[str, float]] = []
        self.batches: list[Any] = []
        self.accumulation = 1
        self._module = module
        self._groups = groups_of(
            [group for stepped in optimisers for group in stepped.param_groups]
        )
        self._is_recorded = False  # whether `record` was called at all
        self._latest: list[Any] = []  # parameters before the latest update
        self._first_optimiser = optimisers[0]
        self._rate = 0.0  # of its first group, before the latest update
        self._losses: list[float] = []
        self._gradients: dict[str, float] = {}
        self._before: list[Any] = []
        self._waiting = {id(stepped) for stepped in optimisers}  # to step, of this row
        self._all = frozenset(self._waiting)
        self._actions: list[Callable[[], None]] = []
        self._hooks = []
        for stepped in optimisers:
            self._hooks += [
                stepped.register_step_pre_hook(self._before_update),
                stepped.register_step_post_hook(self._after_update),
            ]

    @property
    def complete(self) -> bool:
        """Whether the last step was recorded."""
        return len(self.rows) > self.steps

    def record(self, loss: Any, batch: Any = None) -> None:
        """Record a pass; call it after `backward`, before gradients are clipped.

        Parameters
        ----------
        loss : torch.Tensor or float
            The mean loss of the batch, not divided by the number of accumulated passes.
        batch : optional
            The inputs of the module, in the form that `check_run` takes.
        """
        if self.complete:
            self._before = []  # its last step is over
            return
        self._is_recorded = True
        self._losses.append(_number(loss))
        if batch is not None:
            self.batches.append(_copied(batch))
        self._gradients = {GRADIENT: float(gradient_norm(list(self._parameters())))}
        for name, members in self._groups.items():
            self._gradients[f"{GRADIENT}/{name}"] = float(gradient_norm(members))

    def save(self, folder: str | Path) -> Path:
        """Write run.csv and batch.pt into a new folder, for `netsor check-run`.

        Parameters
        ----------
        folder : str or pathlib.Path
            A folder that does not contain these files yet.
        """
        folder = Path(folder)
        log = folder / "run.csv"
        batch = folder / "batch.pt"
        for path in (log, batch):
            if path.exists():
                raise ArgumentError(
                    "folder", str(folder), f"a folder without {named(path.name)}"
                )
        self._refuse_empty()
        text = io.StringIO(newline="")
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write(log, text.getvalue().encode())
        if self.batches:
            content = io.BytesIO()
            torch.save(self.batches, content)
            write(batch, content.getvalue())
        return folder

    def check(
        self,
        build: Callable[[], Any],
        optimiser: Callable[[Any], Any],
        **options: Any,
    ) -> RunCheck:
        """Check the recorded steps; the parameters are those of `check_run`."""
        self._refuse_empty()
        if not self.batches:
            raise ValueError("no batch was recorded: call record(loss, batch)")
        options = {
            "steps": len(self.rows) - 1,
            "accumulation": self.accumulation,
            **options,
        }
        return check_run(build, optimiser, self.batches, log=self.rows, **options)

    def check_when_complete(
        self,
        build: Callable[[], Any],
        optimiser: Callable[[Any], Any],
        *,
        log: Log | None = None,
        **options: Any,
    ) -> None:
        """Check after the last recorded step, and print the verdict.

        Parameters
        ----------
        build, optimiser : callable
            As for `check_run`, whose other parameters may follow.
        log : callable, optional
            A function of a mapping of bands and the step, such as `wandb.log`.
        """

        def action() -> None:
            """Check, print and log."""
            result = self.check(build, optimiser, **options)
            print(result, flush=True)
            for step, metrics in enumerate(result.metrics()):
                if log is not None:
                    log(metrics, step)

        self._actions.append(action)

    def trainer_callback(self) -> Any:
        """A callback for the Trainer of transformers; set `logging_steps=1`."""
        try:
            from transformers import TrainerCallback
        except ImportError as error:
            raise ImportError(
                f"a callback of the Trainer needs transformers ({error})"
            ) from None
        recorder = self
        hook = self._module.register_forward_hook(self._from_forward, with_kwargs=True)
        self._hooks.append(hook)

        class Callback(TrainerCallback):  # type: ignore[misc]
            """Adds the norm before clipping, which the Trainer logs."""

            def on_log(
                self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any
            ) -> None:
                """Take the logged norm of the last step."""
                number = state.global_step - 1
                if logs and GRADIENT in logs and 0 <= number < len(recorder.rows):
                    recorder.rows[number].setdefault(GRADIENT, float(logs[GRADIENT]))
                    recorder._act_if_complete()

        return Callback()

    def lightning_callback(self) -> Any:
        """A callback for a Trainer of Lightning, with automatic optimisation.

        The bands of `check_when_complete` go to the trainer's logger if no other
        function is named.
        """
        base = _lightning_callback_class()
        recorder = self

        class Callback(base):  # type: ignore[misc, valid-type]
            """Records each pass."""

            def on_train_batch_start(
                self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
            ) -> None:
                """Keep the batch until its backward pass."""
                self.batch = batch

            def on_before_backward(
                self, trainer: Any, pl_module: Any, loss: Any
            ) -> None:
                """Keep the loss, which Lightning divided by the number of passes."""
                self.loss = _number(loss) * trainer.accumulate_grad_batches

            def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
                """Record the pass."""
                batch = self.batch
                if isinstance(batch, list):  # Lightning's loaders make lists of tuples
                    batch = tuple(batch)
                recorder.record(self.loss, batch)

        return Callback()

    def _from_forward(
        self, module: Any, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> None:
        """Record a pass of the Trainer; its gradient does not exist yet."""
        loss = getattr(output, "loss", None)
        if loss is None or not torch.is_grad_enabled():
            return
        if self.complete:
            self._before = []  # its last step is over
            return
        inputs = {name: x for name, x in kwargs.items() if name not in COUNTS}
        value = _number(loss)
        counted = kwargs.get(COUNTS[0])
        labels = inputs.get("labels")
        if counted is not None and labels is not None:
            # the loss is a sum over this batch, divided by all labels of the step
            labels_of_batch = int((labels[..., 1:] >= 0).sum())
            value *= float(counted) / max(labels_of_batch, 1)
        self._is_recorded = True
        self._losses.append(value)
        self.batches.append(_copied(args if args else inputs))

    def _parameters(self) -> Any:
        """The parameters of the module."""
        return self._module.parameters()

    def _before_update(self, *_: Any) -> None:
        """Copy the parameters; the passes of Lightning run inside the update."""
        if not self.complete:
            self._latest = [p.detach().clone() for p in self._parameters()]
            self._rate = float(self._first_optimiser.param_groups[0]["lr"])

    def _begins_step(self, optimiser: Any) -> bool:
        """Whether an update begins a step; else it belongs to that of the last row."""
        if self._is_recorded:
            return bool(self._losses)
        return not self.rows or id(optimiser) not in self._waiting

    def _after_update(self, optimiser: Any, *_: Any) -> None:
        """Add the row of a step, or what another update adds to it."""
        if not self.complete and self._begins_step(optimiser):
            self._before = self._latest
            self._latest = []
            self._waiting = set(self._all)
            self._add_row()
        if not self._before:
            return
        self._waiting.discard(id(optimiser))
        self.rows[-1] |= self._update_norms()
        if GRADIENT in self.rows[-1]:  # else the Trainer logs it soon
            self._act_if_complete()

    def _add_row(self) -> None:
        """Add the row of a step, without the norms of its update."""
        row: dict[str, float] = {"step": len(self.rows)}
        if self._losses:
            row[LOSS] = sum(self._losses) / len(self._losses)
            self.accumulation = len(self._losses)
        row |= self._gradients
        row[CLIPPED] = float(gradient_norm(list(self._parameters())))
        row[PARAMETERS] = float(norm(self._before))
        row[RATE] = self._rate
        self.rows.append(row)
        self._losses = []
        self._gradients = {}

    def _update_norms(self) -> dict[str, float]:
        """The norms of the changes since the step began, of all and of each group."""
        updates = {
            id(p): p.detach() - before
            for p, before in zip(self._parameters(), self._before, strict=True)
        }
        norms = {UPDATE: float(norm(list(updates.values())))}
        for name, members in self._groups.items():
            of_group = [updates[id(p)] for p in members if id(p) in updates]
            norms[f"{UPDATE}/{name}"] = float(norm(of_group))
        return norms

    def _act_if_complete(self) -> None:
        """After the last step, remove the hooks and run what waits for it."""
        if not self.complete or self._waiting:
            return
        self.close()
        self._before = []
        actions = self._actions
        self._actions = []
        for action in actions:
            action()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _refuse_empty(self) -> None:
        """Reject a recorder that saw no step."""
        if not self.rows:
            raise ValueError(
                "no step was recorded: create the Recorder with the optimiser that"
                " steps, before the loop"
            )


def _optimisers(optimiser: Any) -> list[Any]:
    """The optimisers of an argument: one, or a list of them."""
    entries = optimiser if isinstance(optimiser, list | tuple) else [optimiser]
    # accelerate wraps them
    optimisers = [getattr(entry, "optimizer", entry) for entry in entries]
    are_optimisers = all(isinstance(x, torch.optim.Optimizer) for x in optimisers)
    if not optimisers or not are_optimisers:
        raise ArgumentError(
            "optimiser", optimiser, "a torch.optim.Optimizer, or a list of them"
        )
    return optimisers


def _number(loss: Any) -> float:
    """A loss as a number."""
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def _copied(batch: Any) -> Any:
    """A copy of a batch on the CPU."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().cpu().clone()
    if isinstance(batch, Mapping):
        return {name: _copied(x) for name, x in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(map(_copied, batch))
    if batch is None or isinstance(batch, bool | int | float | str):
        return batch
    raise ArgumentError(
        "batch", batch, f"tensors, or tuples or mappings of them, not {shown(batch)}"
    )


def _lightning_callback_class() -> Any:
    """The class of callbacks of Lightning, under either of its names."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise ImportError(
                f"a callback of Lightning needs lightning ({error})"
            ) from None
    return Callback
