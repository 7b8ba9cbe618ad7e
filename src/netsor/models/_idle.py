"""Fields that say nothing of a model, given its others: to change one of them would be to change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._description import Description


def idle(model: Description) -> dict[str, str]:
    """The fields that nothing in this model reads, each with what would make it count."""
    rules = (
        (model.positions == "rotary", "positions='rotary'", ("rotary_base", "rotary_fraction", "rotary_stretch")),
        (model.positions == "relative", "positions='relative'", ("buckets", "distance", "std_relative")),
        (model.positions == "learned", "positions='learned'", ("std_position",)),
        (model.positions == "learned" or model.inputs == "patches", "positions='learned'", ("length",)),
        (model.gated, "gated=True", ("std_gate",)),
        (model.window is not None, "window", ("window_every",)),
        (model.inputs == "patches", "inputs='patches'", ("patch",)),
        (model.inputs == "tokens", "inputs='tokens'", ("padding", "embedding_scale")),
        (not model.tied or model.readout == "transform", "tied=False", ("std_logits",)),
        (model.vocabulary is not None, "vocabulary", ("tied", "readout", "logit_scale", "logit_cap", "std_logits")),
    )
    return {name: needs for counts, needs, names in rules if not counts for name in names}
