"""A model as it is chosen on the page: one that ships or a file, drawn by a recipe, with fields changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..models import Transformer, read, recipe, settings

OWN = "as it is"


@dataclass(frozen=True)
class Variant:
    """What is None, or "as it is", is left to the model, or to the recipe."""

    source: str = "gpt2"
    recipe: str = OWN  # a name of ns.models.RECIPES
    std: float | None = None  # of all matrices, embeddings and positions
    depth: str = OWN  # the last matrices of both branches over √(2·blocks): "on", "off"
    qk_norm: str = OWN
    fields: str = ""  # others, as a command line has them: "heads=8, norm=rms"

    @property
    def _base(self) -> Transformer:
        model = read(self.source)
        return model if self.recipe == OWN else recipe(model, self.recipe)

    @property
    def changes(self) -> dict[str, Any]:
        """What is changed in the model, as `Transformer.replace` takes it.

        Another std leaves depth scaling as it is: the last matrices keep their ratio to the others of their branch.
        """
        model = self._base
        changes: dict[str, Any] = {} if self.std is None else {"std": self.std}
        blocks = model.layers + model.decoder_layers
        for last, first in (("o", "v"), ("out", "in")):
            base, own = getattr(model, f"std_{first}"), getattr(model, f"std_{last}")
            ratio = {"on": 1 / math.sqrt(2 * blocks), "off": 1.0}.get(self.depth, own / base if base else 1.0)
            wanted = (base if self.std is None else self.std) * ratio
            if wanted != (own if self.std is None else self.std):
                changes[f"std_{last}"] = wanted
        if self.qk_norm != OWN:
            changes["qk_norm"] = self.qk_norm == "on"
        return changes | settings(self._fields)

    @property
    def _fields(self) -> list[str]:
        return [text.strip() for text in self.fields.split(",") if text.strip()]

    @property
    def model(self) -> Transformer:
        """The model with its changes, which are in its name."""
        return self._base.replace(**self._replaced)

    @property
    def _replaced(self) -> dict[str, Any]:
        changes = self.changes
        words = [] if self.std is None else [f"std={self.std:g}"]
        words += [] if self.depth == OWN else [f"depth scaling {self.depth}"]
        words += [] if self.qk_norm == OWN else [f"QK-norm {self.qk_norm}"]
        words += self._fields
        return {**changes, "name": ", ".join([self._base.name, *words])} if words else changes

    @property
    def code(self) -> str:
        """Python that makes it."""
        made = f"ns.models.read({self.source!r})"
        made = made if self.recipe == OWN else f"ns.models.recipe({made}, {self.recipe!r})"
        given = ", ".join(f"{name}={value!r}" for name, value in self._replaced.items())
        return made + (f".replace({given})" if given else "")
