"""One model: what a transformer does at initialisation, block by block; the curves of an audit, with few draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..language import inf
from ..models import Transformer, read
from ..studies.audit._large import ahead, refuse_large
from ..studies.audit._quantities import BLOCKS, FINAL, Quantity
from ._picture import Array, Curve, Panel
from ._view import LONG, Band, Rows, View

Draws = dict[str, Array]
LIVE, SHARP = 12, 200  # draws: while controls are moved, and on request
VARIES = 20.0  # ratio of largest to smallest value above which a quantity has a logarithmic axis
LEVELS = (0.5, 0.05, 0.95)
AT, LIMIT = "at its widths", "all widths ∞"


@dataclass(frozen=True)
class Model:
    """The settings. What is None, or "as it is", is left to the model."""

    source: str = "gpt2"
    std: float | None = None  # of all matrices, embeddings and positions
    depth: str = "as it is"  # the last matrices of both branches over √(2·blocks): "on", "off"
    qk_norm: str = "as it is"
    tokens: int = 4
    limit: bool = False
    gradients: bool = False  # the backward half too, at the model's own widths
    draws: int = LIVE

    @property
    def changes(self) -> dict[str, Any]:
        """What is changed in the model, as `Transformer.replace` takes it.

        Another std leaves depth scaling as it is: the last matrices keep their ratio to the others of their branch.
        """
        model = read(self.source)
        changes: dict[str, Any] = {} if self.std is None else {"std": self.std}
        blocks = model.layers + model.decoder_layers
        for last, first in (("o", "v"), ("out", "in")):
            base, own = getattr(model, f"std_{first}"), getattr(model, f"std_{last}")
            ratio = {"on": 1 / math.sqrt(2 * blocks), "off": 1.0}.get(self.depth, own / base if base else 1.0)
            wanted = (base if self.std is None else self.std) * ratio
            if wanted != (own if self.std is None else self.std):
                changes[f"std_{last}"] = wanted
        if self.qk_norm != "as it is":
            changes["qk_norm"] = self.qk_norm == "on"
        return changes

    @property
    def model(self) -> Transformer:
        """The model with its changes."""
        return read(self.source).replace(**self.changes)

    def view(self, progress: Callable[[int, int], None] | bool = False) -> View:
        """A panel for each quantity against depth, and numbers of the output; `progress` is as in `Program.draw`."""
        model = self.model
        refuse_large(model, self.tokens, self.limit, self.gradients)
        kinds = (False, True) if self.limit else (False,)
        seconds = sum(ahead(model, self.tokens, limit, self.gradients and not limit).seconds for limit in kinds)
        if seconds > LONG:
            raise ValueError(
                f"{model.name} would take about {seconds:.0f} s to plan, too long for a page: "
                "netsor audit has no such bound"
            )
        probes = model.probes(tokens=self.tokens, gradients=self.gradients)
        beside = model.probes(tokens=self.tokens) if self.gradients else probes  # few limits of gradients are known
        sides: list[tuple[str, str, dict[str, float]]] = [(AT, "band", {})] + (
            [(LIMIT, "limit", dict.fromkeys(model.widths(), inf))] if self.limit else []
        )
        found: dict[str, tuple[str, Draws]] = {}
        rows: Rows = {"status": {}}
        for k, (name, look, widths) in enumerate(sides):
            tell: Any = progress
            if callable(progress):
                tell = _shifted(progress, k, len(sides))
            chosen = beside if widths else probes
            found[name] = look, chosen.measure(draws=self.draws, progress=tell, workers=1, **widths)  # type: ignore[arg-type]
            rows["status"][name] = model.status(**(widths or model.widths()))
        quantities = [q for q in BLOCKS if q.name in probes.names]
        panels = tuple(_panel(q, found) for q in quantities)
        for q in (q for q in FINAL if q.name in probes.final):
            here = {name: draws[q.name] for name, (_, draws) in found.items() if q.name in draws}
            rows[q.title] = {name: Band(*_quantiles(draws)) for name, draws in here.items()}
        note = f"{self.draws} initialisations; bands from 5 % to 95 %, lines are medians"
        uniform = (
            [] if probes.uniform_loss is None else [f"a uniform prediction has loss ln V = {probes.uniform_loss:.4f}"]
        )
        return View(panels, rows, self._code(), (note, *uniform), columns=2)

    def _code(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        lines = [
            "import numpy as np",
            "",
            "import netsor as ns",
            "",
            f"model = ns.models.read({self.source!r})" + (f".replace({given})" if given else ""),
            f"probes = model.probes(tokens={self.tokens}{', gradients=True' * self.gradients})",
            f"found = probes.measure(draws={self.draws})  # arrays (draws, blocks) by name",
        ]
        if self.limit:
            of = f"model.probes(tokens={self.tokens})" if self.gradients else "probes"
            lines.append(f"limit = {of}.measure(draws={self.draws}, n=ns.inf, d=ns.inf, m=ns.inf)")
        lines += [
            "for name in probes.names:",
            "    print(name, np.median(found[name], axis=0))",
            "# with findings and a report: "
            f"ns.audit(model, tokens={self.tokens}{', gradients=True' * self.gradients}).save('audit')",
        ]
        return "\n".join(lines)


def _shifted(progress: Callable[[int, int], None], k: int, sides: int) -> Callable[[int, int], None]:
    """The progress of one of several runs, as that of all."""
    return lambda done, total: progress(k * total + done, sides * total)


def _quantiles(draws: Array) -> tuple[Any, ...]:
    found = np.quantile(draws, LEVELS, axis=0)
    return tuple(found.tolist()) if found.ndim == 1 else tuple(found)


def _panel(quantity: Quantity, found: dict[str, tuple[str, Draws]]) -> Panel:
    curves = []
    for name, (look, draws) in found.items():
        if quantity.name not in draws:
            continue
        middle, low, high = _quantiles(draws[quantity.name])
        if not np.isfinite(middle).all():
            raise ValueError(f"the {quantity.title} leaves double precision: less extreme values are needed")
        band: Any = (low, high) if look == "band" else (None, None)
        curves.append(Curve(name, look, np.arange(1.0, len(middle) + 1), middle, *band))
    every = np.concatenate([c.y for c in curves])
    log = quantity.log and every.min() > 0 and every.max() > VARIES * every.min()
    floor = None if log or every.min() < 0 else 0.0
    return Panel(quantity.title, "block", "", tuple(curves), floor=floor, legend=len(curves) > 1, log=bool(log))
