"""The paper's model and experiments."""

from ._layer import ACTIVATIONS, layer

__all__ = ["ACTIVATIONS", "layer"]
