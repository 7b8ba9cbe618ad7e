"""`torch.export` without records that nothing reads here.

It writes each version of a graph as Python code, notes strides and memory formats of
every tensor, and looks for sizes that depend on numbers in each of them. Together that
is a quarter of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.export import _trace
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor


@contextmanager
def light_export() -> Iterator[None]:
    """A context in which `torch.export` keeps fewer records."""
    with (
        _use_lazy_graph_module(should_use=True),
        mock.patch.object(proxy_tensor, "_extract_tensor_metadata", _no_metadata),
        _bindings_replaced_if_any(),
    ):
        yield


def _no_metadata(tensor: Any) -> None:
    """What is recorded of a tensor besides its value, which has its shape."""


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
