"""Rules on mixtures of experts: whether the router uses all of them."""

from __future__ import annotations

import numpy as np

from ._judge import ABSENT, Facts, Rule, Said, above, compared


def _load(facts: Facts, threshold: float) -> Said:
    if "largest_load" not in facts.draws:
        return Said("there are no experts", ABSENT)
    load = facts.draws["largest_load"]
    medians = np.median(load, axis=0)
    worst = int(np.argmax(medians))
    text = (
        f"in block {worst + 1} the busiest expert has {medians[worst]:.3g} times its even share of the tokens, the "
        f"idlest {np.median(facts.draws['least_load'][:, worst]):.3g} times"
    )
    return compared(text, above, load[:, worst], threshold, float(medians[worst]))


ROUTING_RULES = (
    Rule(
        "load",
        "in some block the busiest expert has more than 2 times its even share of the tokens",
        2.0,
        "The capacity of an expert is mostly one or two even shares: what is beyond is dropped, or waited for by all.",
        _load,
    ),
)
