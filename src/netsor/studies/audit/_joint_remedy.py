"""What to change where several rules flag a model.

The advice of a rule concerns that rule only. Pieces of advice can undo each other:
smaller embeddings lower the logits that are tied to them, but they also become a
smaller part of the stream. So the joint remedy names the common cause, if there is one.
Otherwise it merges the advice of the forward rules, on which gradients depend, and
names the rules that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...models import Transformer
from ...models._description import idle
from ...models._init_schemes import matrix_fans
from ...report._document import FLAG
from ._findings import Finding
from ._quantities import join_words
from ._remedies import Advice, options_of, with_example
from ._rules import BACKWARD_RULES

# A matrix of std c/√fan-in multiplies mean squares by c². Usual initialisations have c
# between 0.5 and 2.
UNUSUAL_FACTOR = 3.0
# The rules whose advice changes the stream relative to the embeddings.
STREAM_RULES = ("growth", "rank")


def joint_remedy(model: Transformer, findings: Sequence[Finding]) -> Advice | None:
    """What to change in a model that two or more rules flag; None for other models.

    Parameters
    ----------
    model : Transformer
        The model.
    findings : sequence of Finding
        The finding of each rule.
    """
    flagged = []
    for finding in findings:
        if finding.verdict == FLAG and finding.changes:
            flagged.append(finding)
    if len(flagged) < 2:
        return None
    cause = _common_cause(model, flagged)
    if cause is not None:
        return with_example(cause)
    forward = [finding for finding in flagged if finding.name not in BACKWARD_RULES]
    return _merged(model, forward or flagged, flagged)


def _common_cause(model: Transformer, flagged: Sequence[Finding]) -> Advice | None:
    """One initialisation for all matrices, if all of them are unusually large."""
    factors = _std_factors(model)
    if not factors or min(factors) < UNUSUAL_FACTOR:
        return None
    names = join_words([finding.name for finding in flagged])
    words = (
        f"One common cause of {names}: every matrix of the blocks has a std of"
        f" {min(factors):.2g} to {max(factors):.2g} times 1/√fan-in, so it enlarges its"
        " input. Lower all of them at once, instead of following each piece of advice"
    )
    return Advice(words, {"std": math.sqrt(2 / (5 * model.width))})


def _std_factors(model: Transformer) -> list[float]:
    """The std of each matrix of a block in units of 1/√fan-in."""
    idle_fields = idle(model)
    factors = []
    for name, fans in matrix_fans(model).items():
        std_field = f"std_{name}"
        if std_field not in idle_fields:
            factors.append(getattr(model, std_field) * math.sqrt(fans.fan_in))
    return factors


def _merged(
    model: Transformer, chosen: Sequence[Finding], flagged: Sequence[Finding]
) -> Advice:
    """The advice of the chosen findings as one set of changes."""
    names = [finding.name for finding in chosen]
    changes: dict[str, Any] = {}
    for finding in chosen:
        added = finding.changes
        if finding.name == "loss" and set(names) & set(STREAM_RULES):
            added = _smaller_logits(model, added)
        for name, value in added.items():
            if name in changes:
                value = _combined(getattr(model, name), changes[name], value)
            changes[name] = value
    if len(names) > 1:
        rules = join_words(names)
        first = f"The advice on {rules} can undo itself: apply it as one set of changes"
    else:
        first = f"Begin with the advice on {names[0]}"
    sentences = [f"{first}, for example {options_of(changes)}."]
    later = [finding.name for finding in flagged if finding not in chosen]
    if later:
        sentences.append(
            f"Then audit again, because gradients ({join_words(later)}) depend on sizes"
            " in the forward pass."
        )
    return Advice(" ".join(sentences), changes)


def _combined(own: Any, first: Any, second: Any) -> Any:
    """One value of a field for two rules that change it from the model's own value.

    Of two changes in one direction the larger does both. Changes in opposite directions
    have different aims, such as a smaller stream and a larger part of one branch in it:
    their factors are multiplied. The first rule chooses what is not a size.
    """
    is_size = isinstance(own, float) and own > 0
    if not is_size:
        return first
    if (first > own) != (second > own):
        return first * second / own
    return max(first, second, key=lambda value: abs(math.log(value / own)))


def _smaller_logits(model: Transformer, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, with a smaller factor of the logits instead of smaller embeddings,
    which would become a smaller part of the stream.
    """
    kept = dict(changes)
    std = kept.pop("std_embedding", None)
    if std is not None:
        kept["logit_scale"] = model.logit_scale * std / model.std_embedding
    return kept
