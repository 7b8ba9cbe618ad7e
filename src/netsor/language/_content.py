"""Arrays by their numbers: equal ones have one key, and may be one array.

The layers of a deep network have masks and constants that are equal, and as large as what a layer draws. To compare
each of them with all others takes longer than to plan the network.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Content = tuple[tuple[int, ...], str, bytes]

_known: dict[int, tuple[ref[Array], Content]] = {}  # of arrays that cannot be written to, by their identity
_shared: WeakValueDictionary[Content, npt.NDArray[np.float64]] = WeakValueDictionary()


def content_of(array: Array) -> Content:
    """A key that is equal for arrays of one shape and type with the same numbers."""
    found = _known.get(id(array))
    if found is not None and found[0]() is array:
        return found[1]
    key = array.shape, array.dtype.str, hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()
    if not array.flags.writeable and array.base is None:
        place = id(array)
        _known[place] = ref(array, lambda _: _known.pop(place, None)), key
    return key


def shared(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The numbers 1 and 0 of a mask: one array for equal masks, which nobody can write to."""
    key = content_of(mask)
    kept = _shared.get(key)
    if kept is None:
        kept = mask.astype(np.float64)
        kept.setflags(write=False)
        _shared[key] = kept
    return kept
