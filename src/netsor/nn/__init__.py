"""Transformer layers, written in the language, and the laws of one attention layer at
infinite width.

Matrices have entries N(0, σ²/fan-in), where σ is a `sigma_…` argument. For code that
samples N(0, std²), set σ = std·√fan-in with the fan-in of the real model, even if a
width goes to infinity.

Examples
--------
>>> x = ns.gaussian(64, 3)
>>> x = x + ns.nn.attention(ns.rms_norm(x), heads=4, head_dim=16, mask="causal")
>>> ns.nn.mlp(ns.rms_norm(x), hidden=256).shape
(3,)
"""

from typing import NoReturn

from .._familiar_names import FUNCTIONS as _FUNCTIONS
from .._familiar_names import hint as _hint
from ..language.operations._softmax import causal
from ..laws.attention._attention_law import Attention, attention_std
from ._attention import Attended, alibi, attend, attention, relative_bias
from ._block import Block, block, mlp, shared
from ._embedding import Embedding, embedding, logits
from ._heads import Rotary
from ._recurrent import (
    depthwise_conv,
    gated_delta,
    linear_attention,
    mamba2,
    retention,
)

# all imports above
__all__ = [name for name in dir() if name != "NoReturn" and not name.startswith("_")]


def __getattr__(name: str) -> NoReturn:
    """Raise an error for a name that is not here, which says what to write."""
    suggestion = _hint(name, _FUNCTIONS, __all__, prefix="ns.nn.")
    raise AttributeError(f"netsor.nn has no {name!r}{suggestion}")
