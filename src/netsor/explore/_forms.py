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

from ..language import inf
from ..models import RECIPES, names
from ..paper import ACTIVATIONS
from ..programs._named_program import NamedProgram
from ..report._html import template
from ._audit_view import (
    STDS,
    UNCHANGED,
    AuditViewRequest,
    Variant,
    lengths_of_text,
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
# makes links to the files of a view; the string is the name of the files
Links = Callable[[View, str], str]
# where a static page keeps a pasted configuration, in its own memory
PASTED = Path("config.json")
SAME = "the same model, changed as below"  # a choice of the second model
SECOND = "second_"  # begins the names of the controls of the second model
START = {"heads": 1, "width": 16}  # a layer whose three densities are far apart
AUDITS = ("model", "audit")  # forms whose answers take long


def answer(
    kind: str,
    content: str,
    emit: Emit,
    target: NamedProgram | None = None,
    links: Links | None = None,
) -> None:
    """Answer a form of this kind, whose values are JSON: emit HTML, progress or an
    error.

    `target` is the user's program, for the forms that are about it.
    """

    def progress(done: float, total: float) -> None:
        """Tell the page which share of the work is done."""
        share = done / total if total else 0.0
        emit("progress", f"{share:.3f}")

    try:
        values = json.loads(content)
        for view in _views(kind, values, target, progress):
            saved = links(view, kind) if links else ""
            distances: Any = {}
            problem = ""
            # distances take longer than a picture, which comes first
            if view.more is not None and values.get("distances"):
                emit("html", view_html(view, waiting="KL …", saved=saved))
                try:
                    distances = view.more()
                except ValueError as error:
                    problem = f"KL: {error_text(error)}"
            emit("html", view_html(view, more=distances, waiting=problem, saved=saved))
    except ConnectionError:  # the page was closed
        raise
    except (Exception, SystemExit) as error:  # a program of the user may raise anything
        emit("error", error_text(error))


def _views(
    kind: str,
    values: Mapping[str, Any],
    target: NamedProgram | None,
    progress: Callable[[float, float], None],
) -> Iterable[View]:
    """The views that a form of this kind asks for, each better than the one before."""
    if kind == "layer":
        return [layer_view(**layer_of(values))]
    if kind == "model":
        return model_of(values).views(progress)
    assert target is not None
    arguments = {}
    for slider in sliders(target):
        arguments[slider.name] = values[f"argument {slider.name}"]
    widths = {}
    for control, value in values.items():
        if control.startswith("width "):
            widths[control.removeprefix("width ")] = _number(value)
    if kind == "audit":
        request = program_audit(target, arguments, widths, sharp=values["sharp"])
        return request.views(progress)
    output = int(values["output"] or 0)
    return [program_view(target, arguments, widths, output, draws=values["draws"])]


def layer_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `layer_view` that a form describes."""
    arguments = {name: _number(value) for name, value in values.items()}
    arguments.pop("distances", None)
    if "token" in arguments:  # the page counts from 1
        arguments["token"] -= 1
    return arguments


def model_of(values: Mapping[str, Any]) -> AuditViewRequest:
    """The audit of the models that a form describes."""
    pasted = values.get("config", "").strip()
    if pasted:
        PASTED.write_text(pasted, encoding="utf-8")

    # a path, else the pasted configuration, else the chosen name
    source = values.get("path", "").strip()
    if not source:
        source = str(PASTED) if pasted else values["name"]
    variant = None
    other_source = values.get(f"{SECOND}path", "").strip()
    if not other_source:
        other_source = values.get(f"{SECOND}name")
    if other_source:
        if other_source == SAME:
            other_source = source
        variant = _variant(values, other_source, SECOND)
    return model_request(
        _variant(values, source),
        variant,
        tokens=lengths_of_text(values.get("tokens", "")),
        limit=values.get("limit", False),
        gradients=values.get("gradients", False),
        sharp=values.get("sharp", False),
    )


def _variant(values: Mapping[str, Any], source: str, prefix: str = "") -> Variant:
    """A model with its changes; the names of its controls begin with the prefix."""
    options = {}
    for name in ("recipe", "std", "depth", "qk_norm", "fields"):
        if prefix + name in values:
            options[name] = values[prefix + name]
    return Variant(source, **options)


def _number(value: Any) -> Any:
    """A value of a form, where ∞ is text."""
    return inf if value == "inf" else value  # JSON has no infinity


def form(
    kind: str,
    only: Sequence[str] | None = None,
    local: bool = False,
    target: NamedProgram | None = None,
) -> str:
    """The form of a view, or some of its controls.

    A `local` page begins with distances and takes paths of files.
    """

    page = template(Path(__file__).with_name("_forms.html"))
    return str(
        page.render(
            kind=kind,
            only=only,
            local=local,
            target=target,
            slow=kind in AUDITS,
            start=START,
            same=SAME,
            second=SECOND,
            unchanged=UNCHANGED,
            widths=WIDTHS,
            head_dims=HEAD_DIMS,
            clips=CLIPS,
            stds=STDS,
            activations=ACTIVATIONS,
            sigmas=[round(0.05 * k, 2) for k in range(81)],
            models=[*names()],
            recipes=[*RECIPES],
            json=json.dumps,
            choices=_choices,
            sliders=sliders,
        )
    )


def _choices(values: Sequence[Any], unset: str) -> list[tuple[Any, str]]:
    """The positions of a slider: values for JSON, and their text, `unset` for None."""
    positions: list[tuple[Any, str]] = []
    for value in values:
        if value is None:
            positions.append((None, unset))
        else:
            positions.append(("inf" if value == inf else value, text(value)))
    return positions


def local_page(target: NamedProgram | None, nonce: str = "") -> str:
    """The page of `netsor explore`: a form for each view, and one view at a time.

    Its scripts carry the nonce.
    """
    forms = {
        "One layer": form("layer", local=True),
        "One model": form("model", local=True),
    }
    if target is not None:
        forms["Your program"] = form("program", target=target)
        if target.program().probes:
            forms["Its audit"] = form("audit", target=target)
    first_tab = "One layer" if target is None else "Your program"
    folder = Path(__file__).parent
    style = (folder / "_page.css").read_text(encoding="utf-8")
    script = (folder / "_page.js").read_text(encoding="utf-8")
    return str(
        markup().page(
            f"<style>{style}</style>",
            markup().views(forms, first_tab, script, nonce),
            nonce,
        )
    )
