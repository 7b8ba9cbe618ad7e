"""Advice that no threshold decides: AdamW's first update, formulas of recipes, drawbacks, cheaper ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...engine._parallel import cores
from ...engine._plan import in_time
from ...models import RECIPES, Transformer
from ...models._description import idle
from .._cost import Cost
from ._cases import Model
from ._findings import join_words, number
from ._measurements import LengthResult
from ._quantities import EVERY
from ._request import Request

ADAM_LR = 3e-4  # a common peak learning rate of AdamW; the ratios below are proportional to it
MATRICES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "attention output",
    "in": "MLP in",
    "gate": "MLP gate",
    "out": "MLP out",
    "router": "router",
    "embedding": "embedding",
    "position": "position",
    "logits": "logits",
}
WORSE_ABOVE = {"max_probability": True, "logit_std": True, "score_max": True, "cosine": True, "effective_rank": False}
LONG = 120.0  # seconds of an audit beyond which cheaper ways are named
FEW_BLOCKS, FEWER_TOKENS = 4, 8  # of cheaper ways: blocks, and by which factor fewer tokens
H200 = 150.0  # cores that one such GPU is worth, at least: 157 to 1,440 in bench/results/gpu.md and ratios.md
PLANNING = 5.0  # seconds that loading PyTorch and planning take before a GPU has work
CHEAPER = "Cheaper, and exact for what they report"
WORSE_BY = 2.0  # a factor between medians below which a quantity is not worth a word


def adam_updates(model: Transformer, lr: float = ADAM_LR) -> dict[str, float]:
    """The size of AdamW's first update over the std of the entries, by matrix: lr/std, for any gradient above eps.

    The first bias-corrected step is lr · g/(|g| + eps), so every entry moves by lr. Matrices that start at 0 are left
    out.
    """
    unread = idle(model)
    stds = {words: getattr(model, f"std_{name}") for name, words in MATRICES.items() if f"std_{name}" not in unread}
    return {words: lr / std for words, std in stds.items() if std > 0}


def adam_note(model: Model) -> str:
    """AdamW's first update relative to the weights, in words; matrices with the same ratio are named together."""
    if not isinstance(model, Transformer):
        return ""
    alike: dict[float, list[str]] = {}
    for words, ratio in adam_updates(model).items():
        alike.setdefault(ratio, []).append(words)
    if not alike:
        return ""
    parts = [f"{100 * ratio:.2g} % of the std of {', '.join(names)}" for ratio, names in sorted(alike.items())]
    where = " in the encoder" if model.decoder_gain != 1 else ""
    return (
        f"AdamW moves every entry by the learning rate in its first step, however large its gradient is. At lr "
        f"{ADAM_LR:g} that is {join_words(parts)}{where}."
    )


def recipe_notes(models: Sequence[Model]) -> list[str]:
    """The formula and the source of every recipe that the models are drawn by."""
    parts = [part for model in models for part in model.name.split(", ") if part.startswith("recipe=")]
    names = dict.fromkeys(part.removeprefix("recipe=") for part in parts)
    return [f"{name}: {RECIPES[name].words} ({RECIPES[name].source})." for name in names if name in RECIPES]


def drawbacks(results: Sequence[LengthResult], preferred: str | None) -> list[str]:
    """Where the preferred model is worse than all others: bands do not overlap, and medians are a factor of 2 apart."""
    best = next((each for each in results if each.model.name == preferred), None)
    others = [each for each in results if each is not best]
    if best is None or not others:
        return []
    said = []
    for name, above in WORSE_ABOVE.items():
        if not all(name in each.best for each in results):
            continue
        # after the last block, or at the output
        bands = ((band.low, band.median, band.high) for band in (each[name] for each in (best, *others)))
        (low, median, high), *rest = ([float(values.reshape(-1)[-1]) for values in band] for band in bands)
        medians = sorted(band[1] for band in rest)
        if above:
            worse = low > max(band[2] for band in rest) and median > WORSE_BY * max(0.0, medians[-1])
        else:
            worse = high < min(band[0] for band in rest) and WORSE_BY * median < medians[0]
        if worse:
            ends = dict.fromkeys((number(medians[0]), number(medians[-1])))
            said.append(f"{EVERY[name].title} {number(median)} ({' to '.join(ends)} in the others)")
    return said


def cheaper(request: Request, cost: Cost) -> str:
    """What fewer blocks, fewer tokens or finite widths would take, by shallow plans; "" if it does not take long.

    Each is exact for what it reports: the first blocks of a model have the same law whatever comes after them.
    """
    models = [model for model in request.models if isinstance(model, Transformer)]
    if not models or cost.clock <= LONG:
        return ""
    tries: dict[str, dict[str, Any]] = {}
    if max(model.layers for model in models) > FEW_BLOCKS:
        fewer = tuple(model.replace(layers=min(FEW_BLOCKS, model.layers)) for model in models)
        tries[f"--set layers={FEW_BLOCKS}"] = {"models": fewer}
    if request.ids is None and request.lengths[-1] // FEWER_TOKENS >= 2:
        tokens = request.lengths[-1] // FEWER_TOKENS
        tries[f"--tokens {tokens}"] = {"tokens": (tokens,)}
    if request.widths != "actual":
        tries["--widths actual"] = {"widths": "actual"}
    ways = []
    for option, changes in tries.items():
        cases = dataclasses.replace(request, **changes).subjects
        seconds = sum(case.draw_at_depth.seconds * request.draws_of(case.tokens) for case in cases)
        ways.append(f"{option}: about {in_time(cost.first + seconds / min(cost.workers, cores()))}")
    if request.widths == "actual":  # limits are mostly planned and integrated on the host
        ways.append(f"a GPU (--backend torch): less than {in_time(PLANNING + cost.seconds / H200)} on an H200")
    return f"{CHEAPER}: {'; '.join(ways)}."
