"""An audit, and a comparison, as one JSON object."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from . import _ranges
from ._differences import Differences
from ._measurements import Draws, LengthResult, Lengths, changing, merged
from ._quantities import BLOCKS, FINAL


def of_model(lengths: Lengths) -> dict[str, Any]:
    """The numbers of the first length and the verdicts of all; the numbers of each, if there are more."""
    made = {**_of(lengths[0]), "findings": [dataclasses.asdict(finding) for finding in merged(lengths)]}
    if len(lengths) > 1:
        made["lengths"] = [_of(found) for found in lengths]
        made["changing"] = list(changing(lengths))
    return made


def of_comparison(models: Sequence[Lengths], found: Differences) -> dict[str, Any]:
    """The first model, the others under `compare`, and `differences`."""
    request = models[0][0].request
    made = {**of_model(models[0]), "compare": [of_model(lengths) for lengths in models[1:]]}
    if request.swept is not None:
        made["sweep"] = {"field": request.swept[0], "values": list(request.swept[1])}
    made["differences"] = {
        "fields": {name: list(values) for name, values in found.fields.items()},
        "preferred": found.preferred,
        "verdict": found.verdict,
        "rules": [
            {
                "rule": rule.rule,
                "preferred": list(rule.preferred),
                "changes": rule.changes,
                "why": rule.why,
                "verdicts": [finding.verdict for finding in rule.findings],
                "values": [finding.value for finding in rule.findings],
                "tokens": rule.findings[0].tokens[0],
            }
            for rule in found.rules
        ],
        "quantities": [parting._asdict() for parting in found.quantities],
    }
    return made


def _of(found: LengthResult) -> dict[str, Any]:
    model, request = found.model, found.request
    made: dict[str, Any] = {
        "model": model.name,
        "sizes": model.sizes,
        "status": found.best.subject.status,
        "widths": "inf" if found.best.subject.infinite else "actual",
        "tokens": found.tokens,
        "draws": found.best.draws,
        **_summaries(found.best),
        "findings": [dataclasses.asdict(finding) for finding in found.findings],
    }
    if request.ranges:
        made["ranges"] = _ranges.as_list(found.best.arrays)
    if model in request.refused:
        made["limit"] = None
        made["no_limit"] = request.refused[model]
    elif found.limit is not None and found.limit is not found.best:
        made["limit"] = {"status": found.limit.subject.status, **_summaries(found.limit)}
    if model in request.no_gradients:
        made["no_gradients"] = request.no_gradients[model]
    return made


def _summaries(found: Draws) -> dict[str, Any]:
    """`embedding`, `layers` (a list of objects, one a block), and `final`, whose entries are null without logits."""
    bands = {q.name: found.band(q.name) for q in (*BLOCKS, *FINAL) if q.name in found}
    blocks = {name: band for name, band in bands.items() if band.blocks is not None}
    count = max(int(band.blocks[-1]) for band in blocks.values() if band.blocks is not None)
    infinite = found.subject.infinite
    layers = [
        {name: _numbers(infinite, *(v[i - count - 1] for v in band[1:])) for name, band in blocks.items()}
        for i in range(1, count + 1)
    ]
    starts = {name: band for name, band in blocks.items() if len(band.median) > count}
    embedding = {name: _numbers(infinite, *(v[0] for v in band[1:])) for name, band in starts.items()}
    shown = [q.name for q in FINAL if q.name in bands or not q.name.startswith("grad")]
    final = {name: _numbers(infinite, *bands[name][1:]) if name in bands else None for name in shown}
    return {"embedding": embedding, "layers": layers, "final": final}


def _numbers(infinite: bool, *values: Any) -> dict[str, float]:
    """Median and band; at infinite width with the quadrature error."""
    if not all(map(math.isfinite, values)):
        raise ValueError("what was measured is not finite: the numbers leave double precision")
    names = ("median", "low", "high", "error") if infinite else ("median", "low", "high")
    return dict(zip(names, map(float, values), strict=False))
