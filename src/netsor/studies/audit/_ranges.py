"""Ranges of activations in words: which short formats hold them at initialisation, and by which scale."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...models._ranges import BLOCK, ENDS, FORMATS, Format
from ._order_statistics import band
from ._rule import FOUND, UNDECIDED, above

Array = npt.NDArray[np.float64]
UNDERFLOW_SHARE = 0.01  # the share of numbers below the smallest of a format from where on it is said
TITLES = {
    "stream": "stream",
    "query": "queries",
    "key": "keys",
    "value": "values",
    "scores": "scores",
    "weights": "attention weights",
    "attention": "attention's output",
    "hidden": "hidden of the MLP",
    "mlp": "MLP's output",
    "embedding": "embeddings",
    "logits": "logits",
}


class FormatFit(NamedTuple):
    """How a format holds an activation; verdicts are of medians over initialisations."""

    format: str
    overflow: str  # is the largest number, of all blocks, above the largest of the format?
    underflow: str  # is the share of numbers below its smallest above SMALL, in some block?
    below: float  # that share, its median in the worst block
    scale: int  # 2^scale: the largest power of two with which 95 % of initialisations fit
    scaled: float  # the share below if each tensor has a scale of its own, from its largest number


class Range(NamedTuple):
    """The numbers of one activation, over all blocks."""

    activation: str
    block: int | None  # that with the largest number; None outside of blocks
    largest: tuple[float, float, float]  # median, and 5 to 95 % of initialisations, over all blocks
    held: tuple[FormatFit, ...]

    @property
    def text(self) -> str:
        """In a line."""
        median, low, high = self.largest
        where = "" if self.block is None else f", in block {self.block}"
        over = [h for h in self.held if h.overflow == FOUND]
        under = [h for h in self.held if h.underflow == FOUND]
        open_ = [h.format for h in self.held if UNDECIDED in (h.overflow, h.underflow) and h not in (*over, *under)]
        said = [f"largest {median:.3g} ({low:.3g}–{high:.3g}){where}"]
        said += [f"overflows in {h.format}; {_scale(h)}" for h in over]
        said += [
            f"underflows in {h.format} ({h.below:.2g} of its numbers are below 2^{_smallest(h)}); {_scale(h)}"
            for h in under
        ]
        said += [f"more draws decide on {', '.join(open_)}"] if open_ else []
        return "; ".join(said if len(said) > 1 else [*said, f"fits {', '.join(h.format for h in self.held)}"])


def _smallest(held: FormatFit) -> int:
    return next(f.smallest for f in FORMATS if f.title == held.format)


def _scale(held: FormatFit) -> str:
    left = f", and leaves {held.scaled:.2g} below" if held.scaled >= UNDERFLOW_SHARE else ""
    return f"a scale of 2^{held.scale} fits{left}"


def ranges_of(arrays: Mapping[str, Array]) -> list[Range]:
    """What was measured of each activation; nothing, if ranges were not asked for."""
    return [_range(name, arrays) for name in (*ENDS[:1], *BLOCK, *ENDS[1:]) if f"{name}_largest" in arrays]


def _range(name: str, arrays: Mapping[str, Array]) -> Range:
    largest = arrays[f"{name}_largest"]
    blocks = largest if largest.ndim == 2 else largest[:, None]
    block = None if largest.ndim == 1 else int(np.argmax(np.median(blocks, axis=0))) + 1
    every = blocks.max(axis=1)
    median, low, high = (float(v) for v in band(every))
    return Range(name, block, (median, low, high), tuple(_held(name, f, arrays, every) for f in FORMATS))


def _held(name: str, f: Format, arrays: Mapping[str, Array], largest: Array) -> FormatFit:
    below, scaled = (arrays[f"{name}_{kind}_{f.name}"].reshape(len(largest), -1) for kind in ("below", "scaled"))
    worst, left = (int(np.argmax(np.median(a, axis=0))) for a in (below, scaled))
    high = np.asarray(band(largest)[2])
    return FormatFit(
        f.title,
        above(largest, f.largest),
        above(below[:, worst], UNDERFLOW_SHARE),
        float(np.median(below[:, worst])),
        int(f.scale(high)),
        float(np.median(scaled[:, left])),
    )


def lines(arrays: Mapping[str, Array]) -> list[str]:
    """For a terminal."""
    found = ranges_of(arrays)
    width = max((len(TITLES[each.activation]) for each in found), default=0) + 1
    head = ["largest absolute values (median, 5–95 % over all blocks), and short formats"] if found else []
    return head + [f"{TITLES[each.activation] + ':':{width}} {each.text}" for each in found]


def section(arrays: Mapping[str, Array], name: str) -> str:
    """For a report."""
    found = ranges_of(arrays)
    if not found:
        return ""
    heads = "".join(f"<th>{html.escape(h.format)}</th>" for h in found[0].held)
    rows = "\n".join(_row(each) for each in found)
    return (
        f'<h2>Short formats: {html.escape(name)}</h2>\n<div class="stack"><table>\n<thead><tr><th>Largest absolute '
        f"value, median and 5 to 95 %</th>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n"
        "<p>The largest value is that of all blocks, over initialisations. An activation "
        "overflows in a format if the median of its largest value is above the largest number of the "
        f"format, and underflows if in some block more than {UNDERFLOW_SHARE:g} of its numbers other than 0 are below "
        "its least (subnormal numbers count). The scale is the largest power of two with which 95 % of "
        "initialisations fit; what it leaves below is told for a scale that each tensor has for itself, from its own "
        "largest value.</p>"
    )


def _row(found: Range) -> str:
    median, low, high = found.largest
    where = "" if found.block is None else f", in block {found.block}"
    title = html.escape(TITLES[found.activation])
    cells = "".join(f'<td data-head="{html.escape(h.format, quote=True)}">{_cell(h)}</td>' for h in found.held)
    return f"<tr><td><strong>{title}</strong><br>{median:.3g} ({low:.3g}–{high:.3g}){where}</td>{cells}</tr>"


def _cell(held: FormatFit) -> str:
    said = [
        word for word, verdict in (("overflows", held.overflow), ("underflows", held.underflow)) if verdict == FOUND
    ]
    kind = "disagrees" if said else "undecided" if UNDECIDED in (held.overflow, held.underflow) else "agrees"
    word = " and ".join(said) or ("fits" if kind == "agrees" else "undecided")
    beside = [f"{held.below:.2g} below"] if held.below else []
    if said:
        left = f" leaves {held.scaled:.2g}" if held.scaled else " fits"
        beside.append(f"a scale of 2<sup>{held.scale}</sup>{left}")
    return f'<span class="{kind}">{word}</span> <small>{"; ".join(beside)}</small>'


def as_list(arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "activation": each.activation,
            "block": each.block,
            "largest": dict(zip(("median", "low", "high"), each.largest, strict=True)),
            "formats": [held._asdict() for held in each.held],
        }
        for each in ranges_of(arrays)
    ]
