"""The page without a server: forms as plain HTML, and the answers to them, in Python that runs inside the browser.

The page's script (docs/assets/live.js) sends what a form holds to `answer`, in a worker.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..language import inf
from ..models import RECIPES, names
from ..paper import ACTIVATIONS
from ._audit_view import STDS, UNCHANGED, Model, Variant, lengths
from ._law_views import CLIPS, HEAD_DIMS, WIDTHS, Layer, text
from ._view import View, error_text, view_html

Emit = Callable[[str, str], None]  # what it is ("html", "error", "progress") and its content
PASTED = Path("config.json")  # where a pasted configuration is kept, in the memory of the page
SAME = "the same model"
START = {"heads": 1, "width": 16}  # of one layer: the three densities are far apart


def answer(kind: str, content: str, emit: Emit) -> None:
    """Answer a form whose values are JSON; an error is emitted too."""
    try:
        {"layer": show_layer, "model": show_model}[kind](content, emit)
    except Exception as error:
        emit("error", error_text(error))


def show_layer(content: str, emit: Emit) -> None:
    """The law of one attention layer; distances too, if they are asked for, since they take seconds."""
    values = json.loads(content)
    distances = values.pop("distances", False)
    view = layer_of(values).view()
    more = view.more() if distances and view.more is not None else {}
    emit("html", _page(replace(view, rows={**view.rows, **more})))


def layer_of(values: Mapping[str, Any]) -> Layer:
    """The `Layer` that a form describes; missing fields have their defaults."""
    known = {field.name for field in fields(Layer)}
    given: dict[str, Any] = {name: inf if value == "inf" else value for name, value in values.items() if name in known}
    if "token" in given:
        given["token"] -= 1
    return Layer(**given)


def show_model(content: str, emit: Emit) -> None:
    """The audit of a model, or of two, as it goes on."""
    values = json.loads(content)

    def tell(done: float, total: float) -> None:
        emit("progress", f"{done / total if total else 0.0:.3f}")

    for view in model_of(values).views(tell):
        emit("html", _page(view))


def model_of(values: Mapping[str, Any]) -> Model:
    """What the form of a model says."""
    pasted = values.get("config", "").strip()
    if pasted:
        PASTED.write_text(pasted)
    changes = {name: values[name] for name in ("recipe", "std", "depth", "qk_norm", "fields") if name in values}
    first = Variant(str(PASTED) if pasted else values["name"], **changes)
    other = values.get("second", "")
    others = {name: values[f"second_{name}"] for name in ("recipe", "fields") if f"second_{name}" in values}
    second = Variant(first.source if other == SAME else other, **others) if other else None
    return Model(
        first, second, lengths(values.get("tokens", "")), values.get("limit", False), values.get("gradients", False)
    )


def _page(view: View) -> str:
    return view_html(view, view.rows, code=f"<pre><code>{html.escape(view.code)}</code></pre>")


# Forms. A control's value is JSON in an attribute, so that the script needs to know nothing of what it means.


def layer_form(only: Sequence[str] | None = None) -> str:
    """The controls of one layer, or some of them."""
    sigmas = tuple(round(0.05 * k, 2) for k in range(1, 81))
    dims = {dim: "the width" if dim is None else text(dim) for dim in HEAD_DIMS}
    controls = {
        "heads": _slider("heads", "Heads H", range(1, 65), START["heads"]),
        "tokens": _slider("tokens", "Tokens s", range(1, 33), 4),
        "width": _slider("width", "Width n", WIDTHS, START["width"], {width: text(width) for width in WIDTHS}),
        "head_dim": _slider("head_dim", "Head dimension d", HEAD_DIMS, None, dims),
        "activation": _choice("activation", "Activation φ", list(ACTIVATIONS), "clip"),
        "clip": _slider("clip", "Clip at", CLIPS, 100.0),
        "scaling": _choice("scaling", "Scores", ["sqrt", "linear"], "sqrt", {"sqrt": "over √d", "linear": "over d"}),
        "mask": _choice("mask", "Mask", [None, "causal"], None, {None: "none", "causal": "causal"}),
        "token": _slider("token", "Output of token", range(1, 33), 1),
        **{f"sigma_{name}": _slider(f"sigma_{name}", f"σ of W^{name.upper()}", sigmas, 1.0) for name in "qkvo"},
        "distances": _check("distances", "KL divergences (seconds)"),
    }
    return _form("layer", [controls[name] for name in only or controls])


def model_form(only: Sequence[str] | None = None) -> str:
    """The controls of one model and a second next to it, or some of them."""
    known, recipes = list(names()), [UNCHANGED, *RECIPES]
    switch = [UNCHANGED, "on", "off"]
    own = {std: UNCHANGED if std is None else f"{std:g}" for std in STDS}
    controls = {
        "name": _choice("name", "Model", known, "gpt2"),
        "config": '<label>or paste a config.json<textarea name="config" rows="4" spellcheck="false" '
        'placeholder="{&quot;model_type&quot;: &quot;gpt2&quot;, …}"></textarea></label>'
        '<label>or choose a file<input type="file" data-for="config" accept=".json,application/json"></label>',
        "recipe": _choice("recipe", "Recipe", recipes, UNCHANGED),
        "std": _slider("std", "Std of all matrices", STDS, None, own),
        "depth": _choice("depth", "Depth scaling 1/√(2·blocks)", switch, UNCHANGED),
        "qk_norm": _choice("qk_norm", "QK-norm", switch, UNCHANGED),
        "fields": _text("fields", "Other fields", "heads=8, norm=rms"),
        "tokens": _text("tokens", "Tokens, one length or several", "16, 128"),
        "limit": _check("limit", "Add the limit"),
        "gradients": _check("gradients", "Gradients"),
        "second": _choice("second", "Compare with", ["", SAME, *known], "", {"": "nothing"}),
        "second_recipe": _choice("second_recipe", "Recipe of the other", recipes, UNCHANGED),
        "second_fields": _text("second_fields", "Fields of the other", "qk_norm=true"),
    }
    return _form("model", [controls[name] for name in only or controls])


def _form(kind: str, controls: Sequence[str]) -> str:
    inside = "".join(f"<div>{control}</div>" for control in controls)
    return f'<form class="netsor-controls" data-kind="{kind}"><fieldset>{inside}</fieldset></form>'


def _slider(name: str, label: str, values: Sequence[Any], start: Any, words: Mapping[Any, str] | None = None) -> str:
    shown = [(words or {}).get(value, str(value)) for value in values]
    choices = _attribute([["inf" if value == inf else value, word] for value, word in zip(values, shown, strict=True)])
    at = list(values).index(start)
    return (
        f"<label>{html.escape(label)} <output>{html.escape(shown[at])}</output>"
        f'<input type="range" name="{name}" min="0" max="{len(values) - 1}" value="{at}" '
        f'data-choices="{choices}"></label>'
    )


def _choice(name: str, label: str, options: Sequence[Any], start: Any, words: Mapping[Any, str] | None = None) -> str:
    inside = "".join(
        f'<option value="{_attribute(option)}"{" selected" if option == start else ""}>'
        f"{html.escape((words or {}).get(option, str(option)))}</option>"
        for option in options
    )
    return f'<label>{html.escape(label)}<select name="{name}">{inside}</select></label>'


def _check(name: str, label: str) -> str:
    return f'<label><input type="checkbox" name="{name}"> {html.escape(label)}</label>'


def _text(name: str, label: str, hint: str) -> str:
    return f'<label>{html.escape(label)}<input type="text" name="{name}" placeholder="{html.escape(hint)}"></label>'


def _attribute(value: Any) -> str:
    return html.escape(json.dumps(value), quote=True)
