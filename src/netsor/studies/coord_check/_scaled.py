"""A model at another width and depth, drawn and trained as a parametrisation says."""

from __future__ import annotations

from typing import Any

from ...models import Transformer
from ...models._description import idle
from ...models._training import KINDS
from ._parametrisation import Parametrisation

GROW = ("heads", "head-dim")  # what grows with the width, while the other stays
STDS = {"query": "q", "key": "k", "value": "v", "output": "o", "head": "logits"}


def scaled(model: Transformer, width: int, depth: int, rule: Parametrisation, grow: str) -> Transformer:
    """The model with another width and depth.

    The perceptron keeps its ratio to the stream. The dimension of a head stays and the number of heads grows with the
    width, as in families of real models, or the other way round.
    """
    ratio, deeper = width / model.width, depth / model.layers
    heads, groups, d = model.heads, model.key_heads, model.d
    if grow == "heads":
        heads, groups = _times(heads, width, model, "heads"), _times(groups, width, model, "groups")
    else:
        d = _times(d, width, model, "the dimension of a head")
    changes: dict[str, Any] = {
        "name": f"{model.name}, {rule.name}, n = {width:,}" + (f", L = {depth}" if depth != model.layers else ""),
        "layers": depth,
        "width": width,
        "heads": heads,
        "groups": None if model.groups is None else groups,
        "head_dim": d,
        "hidden": max(1, round(model.hidden * ratio)),
    }
    unread = idle(model)
    for kind in KINDS:
        name = f"std_{STDS.get(kind, kind)}"
        if name not in unread:
            changes[name] = getattr(model, name) * rule.scaling(kind).std.of(ratio, deeper)
    if model.tied:
        changes["logit_scale"] = model.logit_scale * rule.logits.of(ratio, deeper)
    own = d**-0.5 if model.score_scale is None else model.score_scale
    before = model.d**-0.5 if model.score_scale is None else model.score_scale
    wanted = before * rule.scores.of(d / model.d, deeper)
    if wanted != own:
        changes["score_scale"] = wanted
    return model.replace(**changes)


def _times(count: int, width: int, model: Transformer, what: str) -> int:
    if count * width % model.width:
        unit = model.width // _common(count, model.width)
        raise ValueError(
            f"widths={width} of {model.name} must be a multiple of {unit}: {what} ({count} at {model.width}) grows "
            "with the width"
        )
    return count * width // model.width


def _common(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a
