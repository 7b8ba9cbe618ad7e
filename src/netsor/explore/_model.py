"""One model: what a transformer does at initialisation, block by block, and a second one beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._audited import Asked, Tell
from ._variant import Variant
from ._view import View


@dataclass(frozen=True)
class Model:
    """The settings."""

    first: Variant = Variant()  # noqa: RUF009 (it is frozen)
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
        asked = Asked(models, self.tokens, self.limit, self.gradients, self.sharp)
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
