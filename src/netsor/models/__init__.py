"""Real transformers at initialisation: descriptions, readers of configurations, and well-known models as data."""

from ._read import names, read
from ._transformer import Stretch, Transformer, settings
from .families.nanogpt import nanogpt
from .families.pytorch import pytorch_encoder

__all__ = ["Stretch", "Transformer", "names", "nanogpt", "pytorch_encoder", "read", "settings"]
