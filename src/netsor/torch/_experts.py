"""Routed experts as sums over all experts.

Code that routes tokens gathers the tokens of each expert, so that the shapes of its
tensors depend on random numbers. The same numbers are Σ_e γ_te f_e(x_t) over all
experts, with gates γ_te that are 0 for experts that token t did not choose. All expert
classes of transformers look up their forward pass in one registry. While a module is
captured, the registry answers with this sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

REGISTRY = "transformers.integrations.moe"


@contextmanager
def dense_experts() -> Iterator[None]:
    """Have the experts of transformers compute a sum over all experts."""
    registry: Any = getattr(sys.modules.get(REGISTRY), "ALL_EXPERTS_FUNCTIONS", None)
    if registry is None:  # not loaded, or an earlier version
        yield
        return

    def get_interface(name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return sum_over_experts

    registry.get_interface = get_interface  # it hides the method of its class
    try:
        yield
    finally:
        del registry.get_interface


def sum_over_experts(
    experts: Any, tokens: Any, chosen: Any, gates: Any, *others: Any, **options: Any
) -> Any:
    """The forward pass of an expert module of transformers.

    `tokens` are (tokens, width), `chosen` the indices of the experts of each token, and
    `gates` their weights. All experts are one axis of a product: the graph does not
    grow with their number.
    """
    shape = tokens.shape[0], experts.num_experts
    no_gates = torch.zeros(shape, dtype=tokens.dtype)
    # a table of experts may name one twice for a token
    all_gates = no_gates.scatter_add(1, chosen, gates.to(tokens.dtype)).mT[..., None]
    hidden = _hidden(experts, tokens)
    if getattr(experts, "has_post_expert_norm", False):
        outputs = _product(experts, name="down_proj", x=hidden)
        return (all_gates * experts.post_expert_norm(outputs)).sum(0)
    total = _sum_of_products(experts, all_gates * hidden)
    if experts.has_bias:
        total = total + (all_gates * experts.down_proj_bias[:, None]).sum(0)
    return total


def _sum_of_products(experts: Any, x: Any) -> Any:
    """Σ_e W_e x_e for the last matrices of all experts and x, (experts, tokens, ·).

    It is a convolution with one window, in which the experts are positions: one matrix
    [W_1, W_2, …] acts on concatenated vectors, so that the output of no single expert
    is computed.
    """
    matrices = experts.down_proj
    if experts.is_transposed:
        matrices = matrices.mT
    windows = torch.conv1d(x.permute(1, 2, 0), matrices.permute(1, 2, 0))
    return windows.squeeze(-1)


def _hidden(experts: Any, tokens: Any) -> Any:
    """The hidden vectors of all experts, (experts, tokens, ·)."""
    if not experts.has_gate:
        return experts.act_fn(_product(experts, name="up_proj", x=tokens))
    name = "gate_up_proj"
    if experts.is_concatenated:
        gates_and_values = _product(experts, name=name, x=tokens)
    else:
        gates_and_values = Interleaved(
            even=_product(experts, name=name, x=tokens, outputs=slice(0, None, 2)),
            odd=_product(experts, name=name, x=tokens, outputs=slice(1, None, 2)),
        )
    return experts._apply_gate(gates_and_values)


class Interleaved(NamedTuple):
    """Vectors whose even and odd coordinates were computed separately.

    Code that takes `x[..., ::2]` and `x[..., 1::2]` gets them.
    """

    even: Any
    odd: Any

    def __getitem__(self, index: Any) -> Any:
        """The even or the odd coordinates."""
        if index == (..., slice(None, None, 2)):
            return self.even
        if index == (..., slice(1, None, 2)):
            return self.odd
        raise TypeError(f"coordinates {index} of interleaved gates")


def _product(experts: Any, name: str, x: Any, outputs: Any = slice(None)) -> Any:
    """The matrices of all experts times x, and their biases; only some outputs.

    x is (tokens, ·) or (experts, tokens, ·).
    """
    matrices = getattr(experts, name)
    if not experts.is_transposed:
        matrices = matrices.mT
    y = x @ matrices[..., outputs]
    if experts.has_bias:
        y = y + getattr(experts, f"{name}_bias")[:, None, outputs]
    return y
