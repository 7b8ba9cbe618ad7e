"""Layers, written in the language; no numerics here."""

from ._attention import attention
from ._mlp import mlp

__all__ = ["attention", "mlp"]
