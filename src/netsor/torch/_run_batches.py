"""Batches of a training run: what the module is called with, and its labels.

A batch is a tensor of ids, a tuple of inputs, or a mapping of inputs by name. Where the
module returns logits, the labels are what it does not take itself, or the next token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .._validate import ArgumentError
from ..checks._run_arguments import (
    malformed_file,
    rows_of_each_pass,
    unreadable_file,
)

LABELS = ("labels", "targets", "target", "label", "y")
MASKS = ("attention_mask",)
IDS = ("input_ids", "ids", "idx", "inputs", "x")
IGNORED = -100  # the label that cross-entropy leaves out
ALLOWED = (
    "a tensor of ids, a tuple of inputs, a mapping of inputs by name, or a list of such"
    " batches"
)


@dataclass(frozen=True)
class Batch:
    """The inputs of one forward pass.

    Attributes
    ----------
    args, kwargs : tuple, dict
        What the module is called with.
    target : torch.Tensor or None
        Labels that the module does not take.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any = None

    @property
    def ids(self) -> Any:
        """The token ids, or None.

        They are the integers under one of the names IDS, else the first positional
        input if it holds integers.
        """
        for name in IDS:
            if _is_ids(self.kwargs.get(name)):
                return self.kwargs[name]
        if self.args and _is_ids(self.args[0]):
            return self.args[0]
        return None

    @property
    def labels(self) -> Any:
        """The labels, or None.

        They are the target, else the tensor under one of the names LABELS, else the
        second positional input if it holds integers.
        """
        if self.target is not None:
            return self.target
        for name in LABELS:
            if isinstance(self.kwargs.get(name), torch.Tensor):
                return self.kwargs[name]
        if len(self.args) > 1 and _is_ids(self.args[1]):
            return self.args[1]
        return None

    @property
    def rows(self) -> int:
        """The number of sequences."""
        for x in (self.ids, self.labels):
            if x is not None and x.ndim > 1:
                return int(x.shape[0])
        return 1

    @property
    def label_count(self) -> int:
        """How many labels count; without labels, every token but the last has one."""
        if self.labels is not None:
            return int((self.labels >= 0).sum())
        return 0 if self.ids is None else int(self.ids[..., 1:].numel())

    def with_labels(self, labels: Any) -> Batch:
        """The same batch with other labels in their place (see `labels`); a batch that
        has none gets them as its target.
        """
        if self.target is not None:
            return replace(self, target=labels)
        for name in LABELS:
            if isinstance(self.kwargs.get(name), torch.Tensor):
                return replace(self, kwargs={**self.kwargs, name: labels})
        if self.labels is None:
            return replace(self, target=labels)
        ids, _, *others = self.args
        return replace(self, args=(ids, labels, *others))

    def mapped(self, function: Callable[[Any], Any]) -> Batch:
        """The same batch with a function of every tensor."""

        def mapped(x: Any) -> Any:
            return function(x) if isinstance(x, torch.Tensor) else x

        args = tuple(mapped(x) for x in self.args)
        kwargs = {name: mapped(x) for name, x in self.kwargs.items()}
        return Batch(args, kwargs, mapped(self.target))

    def cut(self, sequences: int | None, tokens: int | None) -> Batch:
        """The first sequences, and the first tokens of each.

        Tensors with the second axis of the ids are cut along it.
        """
        ids = self.ids
        has_length = ids is not None and ids.ndim == 2
        if tokens is not None and not has_length:
            raise ArgumentError("tokens", tokens, "left out: the batch has no ids")

        def shortened(x: Any) -> Any:
            if x.ndim == 0:
                return x
            x = x[:sequences]
            has_tokens = has_length and x.ndim > 1 and x.shape[1] == ids.shape[1]
            return x[:, :tokens] if has_tokens else x

        return self.mapped(shortened)


def _is_ids(x: Any) -> bool:
    """Whether it is a tensor of integers."""
    if not isinstance(x, torch.Tensor) or x.dtype == torch.bool:
        return False
    return not x.is_floating_point() and not x.is_complex()


def as_batches(batches: Any, module: Any) -> list[Batch]:
    """The batches of an argument, for a module."""
    entries = batches if isinstance(batches, list) else [batches]
    if not entries:
        raise ArgumentError("batches", batches, ALLOWED)
    return [_as_batch(entry, module) for entry in entries]


def _as_batch(entry: Any, module: Any) -> Batch:
    """One batch; labels that the module's `forward` does not take become its target."""
    if isinstance(entry, Batch):
        return entry
    if isinstance(entry, torch.Tensor):
        return Batch((entry,), {})
    if isinstance(entry, Mapping) and entry:
        return _from_mapping(dict(entry), module)
    if isinstance(entry, tuple) and entry and isinstance(entry[0], torch.Tensor):
        if len(entry) == 2 and _most_positional(module) == 1:
            return Batch(entry[:1], {}, entry[1])
        return Batch(entry, {})
    raise ArgumentError("batches", entry, ALLOWED)


def _from_mapping(inputs: dict[str, Any], module: Any) -> Batch:
    """A batch of inputs by name."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return Batch((), inputs)
    accepted = {parameter.name for parameter in parameters}
    rest = [name for name in inputs if name not in accepted]
    if not rest:
        return Batch((), inputs)
    if len(rest) == 1 and rest[0] in LABELS:
        target = inputs.pop(rest[0])
        return Batch((), inputs, target)
    raise ArgumentError(
        "batches",
        inputs,
        f"a mapping whose names {type(module).__name__}.forward takes, which does not"
        f" take {rest[0]}",
    )


def _most_positional(module: Any) -> int | None:
    """How many positional inputs a module takes; None if there is no bound."""
    count = 0
    for each in inspect.signature(module.forward).parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            return None
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            count += 1
    return count


def micro_batches(batches: Sequence[Batch], accumulation: int) -> list[Batch]:
    """The batches of single passes: one batch is divided into `accumulation` parts."""
    if len(batches) > 1 or accumulation == 1:
        return list(batches)
    (batch,) = batches
    tensors = [x for x in (*batch.args, *batch.kwargs.values()) if _has_rows(x)]
    sequences = tensors[0].shape[0] if tensors else 0

    def of_rows(rows: slice) -> Batch:
        """The batch of these sequences; tensors without axes belong to every part."""
        return batch.mapped(lambda x: x[rows] if x.ndim else x)

    return [of_rows(rows) for rows in rows_of_each_pass(sequences, accumulation)]


def _has_rows(x: Any) -> bool:
    """Whether it is a tensor with sequences."""
    return isinstance(x, torch.Tensor) and x.ndim > 0


def read_batches(paths: Sequence[str | Path]) -> list[Any]:
    """The batches in .pt, .npy and .safetensors files; reading them executes nothing.

    A .pt file holds a tensor, a tuple, a mapping, or a list of these, one for each
    step.

    Examples
    --------
    >>> batches = ns.torch.read_batches(["first.pt", "second.pt"])  # doctest: +SKIP
    >>> law = ns.torch.run_law(build, adamw, batches)  # doctest: +SKIP
    """
    batches: list[Any] = []
    for path in map(Path, paths):
        content = _read(path)
        batches += content if isinstance(content, list) else [content]
    return batches


def _read(path: Path) -> Any:
    """The content of one file."""
    try:
        if path.suffix == ".npy":
            import numpy as np

            return torch.from_numpy(np.load(path, allow_pickle=False))
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if path.suffix in (".pt", ".pth"):
            return torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise unreadable_file(path, error) from None
    except Exception as error:  # of three formats
        raise malformed_file(path, "tensors", error) from None
    raise ArgumentError("batch", str(path), "a .pt, .npy or .safetensors file")
