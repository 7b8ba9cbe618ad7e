"""Models that are too large for an audit, refused before one is begun; and what their plan takes, told before."""

from __future__ import annotations

from ...engine._montecarlo import check_memory
from .._planning import Planning, planning
from ._own import Model, Own

MOST_LAYERS = 2000
OPERATIONS = 40  # of one block, and its quantities
BACKWARD = 4  # times as many, with gradients
TRIED = 4e-8, 75.0  # seconds and bytes of a number, when a reduction of weights or logits is tried out


def ahead(model: Model, tokens: int, infinite: bool, gradients: bool = False) -> Planning:
    """What it takes to write down the quantities of a model on so many tokens, and to plan them."""
    if isinstance(model, Own):
        return model.planning(infinite)
    blocks, heads = model.layers + 2.0 * model.decoder_layers, float(model.heads)
    vectors = blocks * tokens * (4 * heads + 8)
    found = planning(OPERATIONS * blocks, vectors, 2 * blocks * heads * tokens**2, infinite)
    tried = tokens * (heads * tokens + (model.vocabulary or 0))
    times = BACKWARD if gradients else 1
    return Planning(times * found.seconds + TRIED[0] * tried, times * found.bytes + TRIED[1] * tried)


def refuse_large(model: Model, tokens: int, infinite: bool, gradients: bool = False) -> None:
    """Refuse what could not even be written down as a program, before it is tried."""
    if isinstance(model, Own):
        check_memory(ahead(model, tokens, infinite).bytes, model.name, "take fewer tokens, or smaller widths")
        return
    if model.layers + model.decoder_layers > MOST_LAYERS:
        raise ValueError(f"layers={model.layers} of {model.name} must be at most {MOST_LAYERS} for an audit")
    size = 24.0 * tokens * (model.heads * tokens + model.hidden + model.width + (model.vocabulary or 0))
    words = "" if model.vocabulary is None else f", vocabulary {model.vocabulary:,}"
    sizes = f"width {model.width:,}, {model.heads:,} heads, hidden {model.hidden:,}{words}"
    what = f"tokens={tokens} of {model.name} ({sizes})"
    check_memory(max(size, ahead(model, tokens, False, gradients).bytes), what, "take fewer tokens, or a smaller model")
    if infinite:
        check_memory(
            ahead(model, tokens, True, gradients).bytes,
            f"{what} at infinite width",
            "take fewer tokens, or widths='actual'",
        )
