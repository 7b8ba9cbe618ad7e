"""The forms of the views, and the answers to them.

The script of the page (`_page.js`) sends the values of a form (`_forms.html`) to
`answer`: `netsor explore` runs it in a local server, static pages in a worker of the
browser.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._html import template
from .._named_program import NamedProgram
from ..language import inf
from ..models import RECIPES, names
from ..paper import ACTIVATIONS
from ._audit_view import (
    STDS,
    UNCHANGED,
    AuditViewRequest,
    Variant,
    lengths,
    model_request,
)
from ._law_views import (
    CLIPS,
    HEAD_DIMS,
    WIDTHS,
    layer_view,
    program_audit,
    program_view,
    sliders,
    text,
)
from ._view import View, error_text, markup, view_html

# takes the kind of a message ("html", "error", "progress") and its content
Emit = Callable[[str, str], None]
Links = Callable[[View, str], str]  # makes links to the files of a view from their name
# where a static page keeps a pasted configuration, in its own memory
PASTED = Path("config.json")
SAME, SECOND = "the same model, changed as below", "second_"
START = {"heads": 1, "width": 16}  # a layer whose three densities are far apart
AUDITS = ("model", "audit")  # forms whose answers take long


def answer(
    kind: str,
    content: str,
    emit: Emit,
    target: NamedProgram | None = None,
    links: Links | None = None,
) -> None:
    """Answer a form whose values are JSON: emit HTML, progress or an error."""

    def tell(done: float, total: float) -> None:
        emit("progress", f"{done / total if total else 0.0:.3f}")

    try:
        values = json.loads(content)
        views: Iterable[View]
        if kind == "layer":
            views = [layer_view(**layer_of(values))]
        elif kind == "model":
            views = model_of(values).views(tell)
        else:
            assert target is not None
            arguments = {
                slider.name: values[f"argument {slider.name}"]
                for slider in sliders(target)
            }
            widths = {
                key[6:]: _number(value)
                for key, value in values.items()
                if key.startswith("width ")
            }
            if kind == "audit":
                views = program_audit(target, arguments, widths, values["sharp"]).views(
                    tell
                )
            else:
                views = [
                    program_view(
                        target,
                        arguments,
                        widths,
                        int(values["output"] or 0),
                        values["draws"],
                    )
                ]
        for view in views:
            saved, more, wrong = links(view, kind) if links else "", {}, ""
            # they take longer than a picture
            if view.more is not None and values.get("distances"):
                emit("html", view_html(view, waiting="KL …", saved=saved))
                try:
                    more = view.more()
                except ValueError as error:
                    wrong = f"KL: {error_text(error)}"
            emit("html", view_html(view, more, wrong, saved))
    except ConnectionError:  # the page was closed
        raise
    except (Exception, SystemExit) as error:  # a program of the user may raise anything
        emit("error", error_text(error))


def layer_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `layer_view` that a form describes."""
    given = {
        name: _number(value) for name, value in values.items() if name != "distances"
    }
    return given | ({"token": given["token"] - 1} if "token" in given else {})


def model_of(values: Mapping[str, Any]) -> AuditViewRequest:
    """The audit of the models that a form describes."""
    pasted = values.get("config", "").strip()
    if pasted:
        PASTED.write_text(pasted, encoding="utf-8")

    def variant(before: str, source: str) -> Variant:
        changes = ("recipe", "std", "depth", "qk_norm", "fields")
        return Variant(
            source,
            **{
                name: values[before + name]
                for name in changes
                if before + name in values
            },
        )

    first = variant(
        "",
        values.get("path", "").strip() or (str(PASTED) if pasted else values["name"]),
    )
    other = values.get(f"{SECOND}path", "").strip() or values.get(f"{SECOND}name")
    second = (
        variant(SECOND, first.source if other == SAME else other) if other else None
    )
    switches = {
        name: values.get(name, False) for name in ("limit", "gradients", "sharp")
    }
    return model_request(
        first, second, tokens=lengths(values.get("tokens", "")), **switches
    )


def _number(value: Any) -> Any:
    return inf if value == "inf" else value  # JSON has no infinity


def form(
    kind: str,
    only: Sequence[str] | None = None,
    local: bool = False,
    target: NamedProgram | None = None,
) -> str:
    """The form of a view, or some of its controls; a `local` page begins with distances
    and takes paths of files.
    """
    fixed = {
        "slow": kind in AUDITS,
        "start": START,
        "same": SAME,
        "second": SECOND,
        "unchanged": UNCHANGED,
    }
    values = {
        "widths": WIDTHS,
        "head_dims": HEAD_DIMS,
        "clips": CLIPS,
        "stds": STDS,
        "activations": ACTIVATIONS,
    }
    values |= {
        "sigmas": [round(0.05 * k, 2) for k in range(81)],
        "models": [*names()],
        "recipes": [*RECIPES],
    }

    def choices(values: Sequence[Any], unset: str) -> list[tuple[Any, str]]:
        """The positions of a slider: values for JSON, and their text."""
        return [
            ("inf" if value == inf else value, unset if value is None else text(value))
            for value in values
        ]

    functions = {"json": json.dumps, "choices": choices, "sliders": sliders}
    page = template(Path(__file__).with_name("_forms.html"))
    return str(
        page.render(
            kind=kind,
            only=only,
            local=local,
            target=target,
            **fixed,
            **values,
            **functions,
        )
    )


def local_page(target: NamedProgram | None, nonce: str = "") -> str:
    """The page of `netsor explore`: a form for each view, and one view at a time. Its
    scripts carry the nonce.
    """
    forms = {
        "One layer": form("layer", local=True),
        "One model": form("model", local=True),
    }
    if target is not None:
        forms["Your program"] = form("program", target=target)
        if target.program().probes:
            forms["Its audit"] = form("audit", target=target)
    first = "One layer" if target is None else "Your program"
    style, script = (
        Path(__file__).with_name(f"_page.{kind}").read_text(encoding="utf-8")
        for kind in ("css", "js")
    )
    return str(
        markup().page(
            f"<style>{style}</style>",
            markup().views(forms, first, script, nonce),
            nonce,
        )
    )
