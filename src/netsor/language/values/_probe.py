"""Probes: names for values inside a program, for audits to measure. They are not
operations and change no law.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..._validate import TraceError, shown
from ..operations._softmax import checked_mask
from ._array import V, Value
from ._scalar import Scalar
from ._vector import Vector


class _ProbeType(NamedTuple):
    """What a value with a probe of some name must be."""

    value_type: type[Value]
    axes: int  # the number of last axes
    leading_axes: bool  # whether there may be more axes in front
    description: str

    def allows(self, x: object) -> bool:
        """Whether x is such a value."""
        if not isinstance(x, self.value_type) or x.ndim < self.axes:
            return False
        return self.leading_axes or x.ndim == self.axes


TOKENS = _ProbeType(Vector, axes=1, leading_axes=False, description="vectors (tokens,)")
INSIDE = _ProbeType(
    Vector, axes=1, leading_axes=True, description="vectors (…, tokens)"
)
SCORES = _ProbeType(
    Scalar, axes=2, leading_axes=True, description="scalars (…, tokens, tokens)"
)
EXPERTS = _ProbeType(
    Scalar, axes=2, leading_axes=False, description="scalars (tokens, experts)"
)
LOGITS = _ProbeType(
    Scalar, axes=2, leading_axes=False, description="scalars (tokens, words)"
)
LOSS = _ProbeType(
    Scalar, axes=0, leading_axes=False, description="one scalar, which gradients are of"
)
NAMES: dict[str, _ProbeType] = {
    "embedding": TOKENS,
    "before": TOKENS,
    "stream": TOKENS,
    "attention": TOKENS,
    "mlp": TOKENS,
    "cross": TOKENS,
    "middle": TOKENS,
    "query": INSIDE,
    "key": INSIDE,
    "value": INSIDE,
    "hidden": INSIDE,
    "scores": SCORES,
    "weights": SCORES,
    "experts": EXPERTS,
    "logits": LOGITS,
    "loss": LOSS,
}


class Probe(NamedTuple):
    """A named value."""

    name: str
    value: Value
    # scores that take part (None: those of the softmax), or correct words
    mask: npt.NDArray[np.bool_] | None = None


# The list that collects probes, or why none may be set; None outside of a program.
_open: ContextVar[list[Probe] | str | None] = ContextVar("probes", default=None)


def probe(name: str, x: V, mask: npt.ArrayLike | str | None = None) -> V:
    """Name a value of a program for `ns.audit` to measure, and return it unchanged.

    Parameters
    ----------
    name : str
        The role of the value. "embedding" is the stream before the first block. In each
        block, "attention", "cross" (attention to an encoder) and "mlp" are the outputs
        of the branches; "middle" is the stream between them if a norm follows each sum;
        "before" is the stream that the block adds to, if it differs from the stream
        that the previous block returned: a projection to another width, or fewer
        tokens; "query", "key", "value" and "hidden" are vectors, "scores", "weights"
        and "experts" scalars; "stream" ends the block. "logits" or "loss" comes last. A
        second "embedding" begins a decoder.
    x : Vector or Scalar
        The value.
    mask : array_like or str, optional
        The scores or weights that take part, as in `ns.softmax`; by default the mask of
        the softmax.

    Examples
    --------
    >>> @ns.program
    ... def net(tokens=3):
    ...     x = ns.probe("embedding", ns.gaussian(64, tokens))
    ...     return ns.probe("stream", x + ns.nn.attention(ns.rms_norm(x), heads=2))
    ...
    >>> [watched.name for watched in net().probes]
    ['embedding', 'stream']
    """
    probes = _open.get()
    if not isinstance(name, str) or name not in NAMES:
        raise TraceError("probe", "name", name, f"one of {', '.join(NAMES)}")
    probe_type = NAMES[name]
    if not probe_type.allows(x):
        raise TraceError(
            "probe", f"{name} must be {probe_type.description}, got {shown(x)}"
        )
    if not isinstance(probes, list):
        outside = (
            "must be called in a function that @ns.program decorates, while that is"
            " called"
        )
        raise TraceError("probe", f"{name} {probes or outside}")
    if mask is not None and name not in ("scores", "weights"):
        raise TraceError("probe", f"mask is for scores and weights, not for {name}")
    allowed = None
    if mask is not None:
        shape = x.shape[-2:]
        allowed = np.broadcast_to(checked_mask(mask, shape, "probe"), shape)
    probes.append(Probe(name, x, allowed))
    return x


@contextmanager
def watching(probes: list[Probe] | str) -> Iterator[None]:
    """Collect the probes set inside the context in a list, or reject them with the
    given reason.
    """
    before = _open.set(probes)
    try:
        yield
    finally:
        _open.reset(before)
