"""What a network is given: ids of tokens, or patches of an image."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..language._given import shown
from ._description import Description


@dataclass(frozen=True)
class Inputs:
    """Checked inputs of one model."""

    tokens: int
    ids: tuple[int, ...] = ()  # none, if the inputs are patches
    decoder_ids: tuple[int, ...] = ()
    patches: npt.NDArray[np.float64] | None = None  # (tokens − 1, numbers in a patch); None: standard normal ones


def inputs_of(
    model: Description,
    ids: Sequence[int] | None,
    tokens: int | None,
    decoder_ids: Sequence[int] | None,
    patches: npt.ArrayLike | None,
) -> Inputs:
    """The inputs that a user gave, or `tokens` different ids."""
    if decoder_ids is not None and not model.decoder_layers:
        raise ValueError(f"decoder_ids={shown(decoder_ids)}: {model.name} has no decoder")
    if model.inputs == "patches":
        return _patches(model, ids, tokens, patches)
    if patches is not None:
        raise ValueError(f"patches are for models of images, and {model.name} reads ids")
    if (ids is None) == (tokens is None):
        raise ValueError(
            f"give ids or tokens (a number of different ids), one of them; got ids={shown(ids)}, tokens={shown(tokens)}"
        )
    if ids is None:
        count = _whole(tokens, "tokens", 1, model.length or 2**20)
        words = (model.vocabulary or math.inf) - (model.padding is not None)
        if count > words:
            raise ValueError(
                f"tokens={count} must be at most {words}: so many different ids {model.name} has; give ids"
            )
        ids = [i for i in range(count + 1) if i != model.padding][:count]
    found = _ids(model, ids, "ids")
    after = (
        () if not model.decoder_layers else found if decoder_ids is None else _ids(model, decoder_ids, "decoder_ids")
    )
    return Inputs(len(found), found, after)


def _ids(model: Description, ids: Sequence[int], name: str) -> tuple[int, ...]:
    found = tuple(_whole(i, name, 0, (model.vocabulary or 2**53) - 1) for i in ids)
    if not found:
        raise ValueError(f"{name}={shown(ids)} must be one id or more")
    if model.positions == "learned" and len(found) > (model.length or 0):
        raise ValueError(f"{name}={shown(ids)} are {len(found)} tokens, and {model.name} has {model.length} positions")
    return found


def _patches(
    model: Description, ids: Sequence[int] | None, tokens: int | None, patches: npt.ArrayLike | None
) -> Inputs:
    if ids is not None or (patches is None) == (tokens is None):
        raise ValueError(
            f"{model.name} reads images: give patches, or tokens (a class token and patches of standard normal pixels)"
        )
    if patches is None:
        return Inputs(_whole(tokens, "tokens", 2, model.length or 2))
    given = np.array(patches, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != model.patch or not 1 <= len(given) < (model.length or 0):
        raise ValueError(
            f"patches of shape {given.shape} must be (patches, {model.patch}), at most {(model.length or 0) - 1}"
        )
    return Inputs(len(given) + 1, patches=given)


def _whole(value: object, name: str, least: int, most: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{name}={shown(value)} must be an integer from {least} to {most}")
    return number
