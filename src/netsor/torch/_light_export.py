"""`torch.export` without work that nothing here needs.

It writes each version of a graph as Python code, records strides and memory formats of
every tensor, looks for sizes that depend on numbers in each of them, and walks through
the modules around each operation as through any tree. Together that is a quarter of its
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.export import _trace
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree


@contextmanager
def light_export() -> Iterator[None]:
    """A context in which `torch.export` does less."""
    # other versions of PyTorch may have other private names: nothing reads these then
    of_tensors = mock.patch.object(
        proxy_tensor, "_extract_tensor_metadata", _no_metadata, create=True
    )
    of_trees = mock.patch.object(_trace, "pytree", _Trees(), create=True)
    with (
        _use_lazy_graph_module(should_use=True),
        of_tensors,
        of_trees,
        _bindings_replaced_if_any(),
    ):
        yield


def _no_metadata(tensor: Any) -> None:
    """What is recorded of a tensor besides its value, which has its shape."""


class _Trees:
    """`torch.utils._pytree`, with a short way through the modules of an operation."""

    def __init__(self) -> None:
        self._of_name = getattr(_trace, "_strip_root", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(_pytree, name)

    def tree_map(
        self, function: Callable[[Any], Any], tree: Any, *rest: Any, **options: Any
    ) -> Any:
        """The results of a function for all leaves of a tree."""
        if function is self._of_name and _is_stack(tree):
            return {key: tuple(map(function, pair)) for key, pair in tree.items()}
        return _pytree.tree_map(function, tree, *rest, **options)


def _is_stack(tree: Any) -> bool:
    """Whether a tree is a stack of modules: the path and the class of each, by keys."""
    if not isinstance(tree, Mapping):
        return False
    return all(
        isinstance(pair, tuple) and all(isinstance(x, str | type) for x in pair)
        for pair in tree.values()
    )


@contextmanager
def _bindings_replaced_if_any() -> Iterator[None]:
    """Skip a pass over all tensors for unknown sizes, if no operation makes one."""
    name = "_replace_unbacked_bindings"
    replace: Callable[[torch.fx.GraphModule], None] | None = getattr(_trace, name, None)
    if replace is None:  # of another version of PyTorch
        yield
        return

    def replace_if_any(module: torch.fx.GraphModule) -> None:
        if any("unbacked_bindings" in node.meta for node in module.graph.nodes):
            replace(module)

    with mock.patch.object(_trace, name, replace_if_any):
        yield
