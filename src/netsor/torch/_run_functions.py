"""Functions of PyTorch that compute something else: the mistakes inside a module.

A context replaces functions by name while a module runs, so that a mistake needs no
change of the user's code. `observed` says which functions a module calls at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ATTENTION = "scaled_dot_product_attention"
MATMULS = ("matmul", "__matmul__", "bmm")
SUMS = ("add", "add_", "__add__", "__iadd__")
# what computes an entry's activation, by the name of the function
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": torch.nn.functional.gelu,
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}
Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Replaced(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """A context in which rules replace functions.

    Parameters
    ----------
    rules : mapping of str to callable
        By the name of a function, a function of it and its arguments.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        super().__init__()
        self.rules = rules

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        rule = self.rules.get(getattr(func, "__name__", ""))
        if rule is None:
            return func(*args, **(kwargs or {}))
        return rule(func, args, dict(kwargs or {}))


def replaced(**rules: Rule) -> Callable[[], Replaced]:
    """A function that returns a context in which these rules hold."""
    return lambda: Replaced(rules)


class _Observed(TorchFunctionMode):  # type: ignore[misc]
    """A context that notes the names of all functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def observed(run: Callable[[], Any]) -> set[str]:
    """The names of the functions of PyTorch that a function calls."""
    context = _Observed()
    with torch.no_grad(), context, suppress(Exception):  # of the user's code
        run()
    return context.names


def of_first(change: Callable[[Any], Any]) -> Rule:
    """A rule that changes the first argument."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return func(change(args[0]), *args[1:], **kwargs)
        kwargs["input"] = change(kwargs["input"])
        return func(**kwargs)

    return rule


def with_option(name: str, value: Any) -> Rule:
    """A rule that sets a keyword argument."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **{**kwargs, name: value})

    return rule


def as_other(function: Callable[[Any], Any]) -> Rule:
    """A rule that calls another function of the first argument."""

    def rule(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(args[0] if args else kwargs["input"])

    return rule


def probabilities(logits: Any) -> Any:
    """The softmax over words, whose axis is the second one."""
    return logits.softmax(1 if logits.ndim > 1 else 0)


def dropping(rate: float) -> Callable[[], Replaced]:
    """A context in which dropout that is off has a rate."""

    def dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 1:
            args = (args[0], args[1] or rate, *args[2:])
        else:
            kwargs["p"] = kwargs.get("p", 0.5) or rate
        return func(*args, **kwargs)

    def attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 4:
            args = (*args[:4], args[4] or rate, *args[5:])
        elif "dropout_p" in kwargs:
            kwargs["dropout_p"] = kwargs["dropout_p"] or rate
        return func(*args, **kwargs)

    return replaced(dropout=dropout, **{ATTENTION: attention})


def scaled_attention(power: float) -> Callable[[], Replaced]:
    """A context in which scores are multiplied by a power of the heads' dimension.

    For a softmax that is written out, the dimension is that of the product before it.
    """

    def make() -> Replaced:
        dimensions: dict[tuple[int, ...], int] = {}

        def attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            query = args[0] if args else kwargs["query"]
            size = query.shape[-1]
            scale = kwargs.get("scale") or 1 / math.sqrt(size)
            kwargs = {**kwargs, "scale": scale * size**power}
            return func(*args, **kwargs)

        def product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = func(*args, **kwargs)
            dimensions[tuple(result.shape)] = args[0].shape[-1]
            return result

        def softmax(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not args:
                return func(*args, **kwargs)
            scores, *others = args
            size = dimensions.get(tuple(scores.shape), 1)
            if size > 1 and scores.ndim > 2:
                scores = scores * size**power
            return func(scores, *others, **kwargs)

        products = dict.fromkeys(MATMULS, product)
        return Replaced({**products, ATTENTION: attention, "softmax": softmax})

    return make


def without_residuals(which: int | None) -> Callable[[], Replaced]:
    """A context in which sums of the stream and a term are the term only.

    The stream is what embeddings return, and such sums. `which`: every second of these
    sums, from 0 or 1 on; None: all of them.
    """

    def make() -> Replaced:
        stream: dict[int, Any] = {}  # tensors by their ids, which so stay theirs
        count = 0

        def embedding(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = func(*args, **kwargs)
            stream[id(result)] = result
            return result

        def same(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = func(*args, **kwargs)
            if args and id(args[0]) in stream:
                stream[id(result)] = result
            return result

        def add(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal count
            operands = args[:2]
            terms = [x for x in operands if id(x) not in stream]
            if len(terms) == len(operands):
                return func(*args, **kwargs)
            is_residual = len(terms) == 1 and _is_of_shape(terms[0], operands)
            without_stream = is_residual and which in (None, count % 2)
            count += is_residual
            if without_stream:
                result = terms[0] + 0.0  # a new tensor, with an id of its own
            else:
                result = func(*args, **kwargs)
            stream[id(result)] = result
            return result

        kept = dict.fromkeys(("dropout", "layer_norm", "rms_norm"), same)
        return Replaced({**kept, **dict.fromkeys(SUMS, add), "embedding": embedding})

    return make


def _is_of_shape(term: Any, both: tuple[Any, ...]) -> bool:
    """Whether a term is a tensor of both shapes, with axes of texts and tokens."""
    if not isinstance(term, torch.Tensor) or term.ndim < 3:
        return False
    return all(isinstance(x, torch.Tensor) and x.shape == term.shape for x in both)


def not_rotated() -> Replaced:
    """A context in which cosines are 1 and sines 0: positions turn nothing."""

    def polar(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(args[0], 0 * args[1], **kwargs)

    return Replaced(
        {
            "cos": lambda func, args, kwargs: torch.ones_like(func(*args, **kwargs)),
            "sin": lambda func, args, kwargs: torch.zeros_like(func(*args, **kwargs)),
            "polar": polar,
        }
    )


class NotCausal(TorchFunctionMode):  # type: ignore[misc]
    """A context in which attention is not causal."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention_to_all(func, args, kwargs)
        if func in (torch.tril, torch.Tensor.tril):
            return args[0].clone()
        if func in (torch.triu, torch.Tensor.triu):
            positional = args[1] if len(args) > 1 else 0
            masks_later_tokens = kwargs.get("diagonal", positional) > 0
            return torch.zeros_like(args[0]) if masks_later_tokens else args[0].clone()
        return func(*args, **kwargs)


def _attention_to_all(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Attention without its causal mask, which may be its fourth argument."""
    queries_keys_values = args[:3]
    masks = args[3:4]
    without_causal = [None if is_causal(mask) else mask for mask in masks]
    options = {**kwargs, "is_causal": False}
    if is_causal(options.get("attn_mask")):
        options["attn_mask"] = None
    return func(*queries_keys_values, *without_causal, **options)


def is_causal(mask: Any) -> bool:
    """Whether a mask takes out what comes later, and nothing else."""
    if not isinstance(mask, torch.Tensor) or mask.ndim < 2:
        return False
    rows, columns = mask.shape[-2:]
    if rows != columns or rows < 2:
        return False
    kept = mask if mask.dtype == torch.bool else mask == 0
    lower = torch.ones_like(kept).tril()
    return bool((kept == lower).all())


def fill_causal_buffers(module: Any) -> None:
    """Let the masks that a module keeps take out nothing."""
    for buffer in module.buffers():
        forms = (buffer, buffer == 0, buffer != 0)
        if any(is_causal(form) for form in forms):
            first_with_itself = buffer.reshape(-1)[0].clone()
            buffer.copy_(first_with_itself.expand_as(buffer))
