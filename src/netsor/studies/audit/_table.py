"""An audit as text for a terminal, and as one JSON object."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from . import _ranges
from ._found import Found, Measured
from ._own import Own
from ._quantities import BLOCKS, EVERY, FINAL

NAME = 28  # columns for the words


def table(audit: Found) -> str:
    """Medians and bands at the first, middle and last block, the output, and the findings."""
    lines = []
    for each in audit.every:
        lines += [headline(each), *_no_limit(each), "", *_blocks(each), "", *_output(each), "", *_findings(each), ""]
        lines += [*_ranges.lines(each.best.arrays), ""] if each.request.ranges else []
    return "\n".join(lines[:-1])


def headline(audit: Found) -> str:
    """The model and what was drawn of it, in a line."""
    model, request = audit.model, audit.request
    if isinstance(model, Own):
        sizes = model.sizes
    else:
        sizes = (
            f"{audit.blocks} blocks, width {model.width:,}, {model.heads} heads of {model.d}, "
            f"{model.weights:,} weights in matrices and embeddings"
        )
    drawn = f"{request.tokens} tokens, {request.draws:,} draws; {audit.best.subject.status}"
    return f"{model.name}: {sizes}; {drawn}"


def _no_limit(audit: Found) -> list[str]:
    return [f"{what}: {why}" for what, why in missing(audit).items()]


def missing(audit: Found) -> dict[str, str]:
    """What there is not of a model, each with why, in a line: its limit, or the gradients of that."""
    model, request = audit.model, audit.request
    if model in request.refused:
        return {"no limit": request.refused[model]}
    return {"no gradients at n = ∞": request.no_gradients[model]} if model in request.no_gradients else {}


def _blocks(audit: Found) -> list[str]:
    chosen = sorted({0, (audit.blocks - 1) // 2, audit.blocks - 1})
    beside = audit.limit if audit.limit is not audit.best else None
    heads = [f"block {i + 1}" for i in chosen] + ([] if beside is None else [f"block {chosen[-1] + 1}, n = ∞"])
    rows = [["median, 5–95 %", *heads]]
    for quantity in BLOCKS:
        if quantity.name in audit.best:
            cells = [cell(audit.best, quantity.name, i) for i in chosen]
            there = [] if beside is None else [_there(beside, quantity.name, chosen[-1])]
            rows.append([quantity.title, *cells, *there])
    sizes = [NAME, *(max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])]
    return ["  ".join(f"{word:{size}}" for word, size in zip(row, sizes, strict=True)).rstrip() for row in rows]


def _there(found: Measured, name: str, block: int) -> str:
    return cell(found, name, block) if name in found else "none"


def _output(audit: Found) -> list[str]:
    lines = [] if audit.model.vocabulary else ["no logits"]
    for q in FINAL:
        cells = [cell(found, q.name, None) for found in audit.measured if q.name in found]
        lines += [f"{q.title:{NAME}}  " + "   ∞: ".join(cells)] if cells else []
    return lines


def cell(found: Measured, name: str, block: int | None) -> str:
    """A median and its band, of a block or of the output."""
    median, low, high = (float(v if block is None else v[block]) for v in found.band(name))
    digits = EVERY[name].digits
    return f"{median:.{digits}g} ({low:.{digits}g}–{high:.{digits}g})"


def _findings(audit: Found) -> list[str]:
    return [f"{f.name + ':':10} {f.verdict}. {f.measured}" for f in audit.findings]


def as_dict(audit: Found) -> dict[str, Any]:
    """The object of `netsor audit --json`."""
    found = _object(audit)
    if audit.other is not None:
        found["compare"] = _object(audit.other)
    return {**found, "random_numbers": audit.random_numbers, "seconds": round(audit.seconds, 3)}


def _object(audit: Found) -> dict[str, Any]:
    made: dict[str, Any] = {
        "model": audit.model.name,
        "status": audit.best.subject.status,
        "widths": "inf" if audit.best.subject.infinite else "actual",
        "tokens": audit.request.tokens,
        "draws": audit.request.draws,
        **_summaries(audit.best),
        "findings": [dataclasses.asdict(finding) for finding in audit.findings],
    }
    if audit.request.ranges:
        made["ranges"] = _ranges.as_list(audit.best.arrays)
    if audit.model in audit.request.refused:
        made["limit"] = None
        made["no_limit"] = audit.request.refused[audit.model]
    elif audit.limit is not None and audit.limit is not audit.best:
        made["limit"] = {"status": audit.limit.subject.status, **_summaries(audit.limit)}
    if audit.model in audit.request.no_gradients:
        made["no_gradients"] = audit.request.no_gradients[audit.model]
    return made


def _summaries(found: Measured) -> dict[str, Any]:
    """`layers`, a list of objects, one a block; and `final`, whose entries are null for a model without logits."""
    bands = {q.name: found.band(q.name) for q in (*BLOCKS, *FINAL) if q.name in found}
    names = [q.name for q in BLOCKS if q.name in bands]
    layers = [{name: _three(*(v[i] for v in bands[name])) for name in names} for i in range(len(bands[names[0]][0]))]
    shown = [q.name for q in FINAL if q.name in bands or not q.name.startswith("grad")]
    return {"layers": layers, "final": {name: _three(*bands[name]) if name in bands else None for name in shown}}


def _three(*values: Any) -> dict[str, float]:
    if not all(map(math.isfinite, values)):
        raise ValueError("what was measured is not finite: the numbers leave double precision")
    return dict(zip(("median", "low", "high"), map(float, values), strict=True))
