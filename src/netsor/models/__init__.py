"""Real transformers at initialisation: descriptions, readers of configurations, and
well-known models as data.

Examples
--------
>>> gpt2 = ns.models.read("gpt2")
>>> gpt2.layers, gpt2.width, gpt2.heads
(12, 768, 12)
"""

from ..language.operations._rotary import Stretch
from ._build import Layer, Trace
from ._description import settings
from ._init_schemes import RECIPES, recipe
from ._transformer import Transformer, names, nanogpt, pytorch_encoder, read
from .measure._metric_program import Probes

__all__ = [
    "RECIPES",
    "Layer",
    "Probes",
    "Stretch",
    "Trace",
    "Transformer",
    "names",
    "nanogpt",
    "pytorch_encoder",
    "read",
    "recipe",
    "settings",
]
