"""One model: what a transformer does at initialisation, block by block, and a second one beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..models import Transformer, read, recipe, settings
from ._audit_view import AuditViewRequest, Tell
from ._view import View

UNCHANGED = "as it is"


@dataclass(frozen=True)
class Variant:
    """What is None, or "as it is", is left to the model, or to the recipe."""

    source: str = "gpt2"
    recipe: str = UNCHANGED  # a name of ns.models.RECIPES
    std: float | None = None  # of all matrices, embeddings and positions
    depth: str = UNCHANGED  # the last matrices of both branches over √(2·blocks): "on", "off"
    qk_norm: str = UNCHANGED
    fields: str = ""  # others, as a command line has them: "heads=8, norm=rms"

    @property
    def _base(self) -> Transformer:
        model = read(self.source)
        return model if self.recipe == UNCHANGED else recipe(model, self.recipe)

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
        if self.qk_norm != UNCHANGED:
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
        words += [] if self.depth == UNCHANGED else [f"depth scaling {self.depth}"]
        words += [] if self.qk_norm == UNCHANGED else [f"QK-norm {self.qk_norm}"]
        words += self._fields
        return {**changes, "name": ", ".join([self._base.name, *words])} if words else changes

    @property
    def code(self) -> str:
        """Python that makes it."""
        made = f"ns.models.read({self.source!r})"
        made = made if self.recipe == UNCHANGED else f"ns.models.recipe({made}, {self.recipe!r})"
        given = ", ".join(f"{name}={value!r}" for name, value in self._replaced.items())
        return made + (f".replace({given})" if given else "")


@dataclass(frozen=True)
class Model:
    """The settings."""

    first: Variant = Variant()
    second: Variant | None = None
    tokens: tuple[int, ...] | None = None  # as many as are quick, if None
    limit: bool = False
    gradients: bool = False  # the backward half too
    sharp: bool = False

    def views(self, tell: Tell | None = None) -> Iterator[View]:
        """A panel for each quantity against depth, findings and numbers of the output; `tell` is told the progress.

        The first view is of the first model at the first length alone; the last has all that was asked for.
        """
        models = tuple(each.model for each in (self.first, self.second) if each is not None)
        asked = AuditViewRequest(models, self.tokens, self.limit, self.gradients, self.sharp)
        yield from asked.views(self._code(asked.lengths), tell)

    def _code(self, lengths: tuple[int, ...] | None) -> str:
        assert lengths is not None
        given = ["model", *(["compare=other"] if self.second is not None else [])]
        given += [f"tokens={lengths[0] if len(lengths) == 1 else list(lengths)}"]
        given += ["quick=True"] if not self.sharp else []
        if self.limit == (not self.sharp):  # what is not the default
            given += [f"widths={'both' if self.limit else 'actual'!r}"]
        given += ["gradients=True"] if self.gradients else []
        return "\n".join(
            [
                "import netsor as ns",
                "",
                f"model = {self.first.code}",
                *([f"other = {self.second.code}"] if self.second is not None else []),
                f"found = ns.audit({', '.join(given)})",
                "print(found)",
                "# found.save('audit') writes a report",
            ]
        )


def lengths(text: str) -> tuple[int, ...] | None:
    """Numbers of tokens as they are typed, "16, 128"; None if there are none."""
    try:
        return tuple(int(word) for word in text.split(",") if word.strip()) or None
    except ValueError:
        raise ValueError(f"tokens {text!r} must be a whole number, or several with commas, as 16, 128") from None
