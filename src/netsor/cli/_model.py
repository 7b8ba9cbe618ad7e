"""MODEL on the command line: a name or a config.json, with fields that are changed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..models import Transformer, read, settings
from ._numbers import shown
from ._output import check_name, reason


def model_of(option: str, source: str) -> Transformer:
    """The model that an option names."""
    check_name(option, source)
    try:
        return read(source)
    except (ValueError, OSError) as error:
        said = reason(error) if isinstance(error, OSError) else error
        raise click.UsageError(f"{option} {shown(source)}: {said}") from None


def changed(model: Transformer, option: str, texts: Sequence[str]) -> Transformer:
    """The model with some fields changed, and what was changed in its name."""
    if not texts:
        return model
    try:
        changes = settings(texts)
        changes.setdefault("name", f"{model.name}, {', '.join(text.strip() for text in texts)}")
        return model.replace(**changes)
    except ValueError as error:
        raise click.UsageError(f"{option} {shown(', '.join(texts))}: {error}") from None
