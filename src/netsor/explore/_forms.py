"""The controls of each view as HTML forms, and the answers to them.

The script of the page (`_page.js`) sends the values of a form to `answer`: `netsor explore` runs it in a local server,
static pages in a worker of the browser. The values of sliders and choices are JSON in attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..language import inf
from ..models import RECIPES, names
from ..paper import ACTIVATIONS
from ._audit_view import STDS, UNCHANGED, AuditViewRequest, Variant, lengths, model_request
from ._law_views import CLIPS, HEAD_DIMS, WIDTHS, layer_view, text
from ._program_view import Target
from ._view import View, error_text, markup, view_html

Control = dict[str, Any]  # what the macro `control` of `_page.html` takes
Words = Mapping[Any, str] | None  # what the page calls some of the values
Emit = Callable[[str, str], None]  # what it is ("html", "error", "progress") and its content
PASTED = Path("config.json")  # where a static page keeps a pasted configuration, in its own memory
NONE, SAME, SECOND = "", "the same model, changed as below", "second_"
START = {"heads": 1, "width": 16}  # of one layer: the three densities are far apart
AUDITS = ("model", "audit")  # forms whose answers take long
MANY = 50_000  # draws, where the default is as many as are quick


def answer(
    kind: str,
    content: str,
    emit: Emit,
    target: Target | None = None,
    links: Callable[[View, str], str] = lambda view, name: "",
) -> None:
    """Answer a form, whose values are JSON: emit HTML, progress or an error. `links` are those to files of a view."""

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
            arguments = {slider.name: values[f"argument {slider.name}"] for slider in target.sliders}
            widths = {name: _number(values[f"width {name}"]) for name in target.net.widths}
            if kind == "audit":
                views = target.audit(arguments, widths, values["sharp"]).views(tell)
            else:
                views = [target.view(arguments, widths, int(values["output"] or 0), values["draws"])]
        for view in views:
            saved = links(view, kind)
            if view.more is None or not values.get("distances"):
                emit("html", view_html(view, view.rows, saved=saved))
                continue
            emit("html", view_html(view, view.rows, "KL …", saved))  # distances take longer than a picture
            try:
                rows, wrong = view.more(), ""
            except ValueError as error:
                rows, wrong = {}, f"KL: {error_text(error)}"
            emit("html", view_html(view, {**view.rows, **rows}, wrong, saved))
    except ConnectionError:  # nobody listens
        raise
    except (Exception, SystemExit) as error:  # a program of the user may raise anything
        emit("error", error_text(error))


def layer_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `layer_view` that a form describes."""
    given = {name: _number(value) for name, value in values.items() if name != "distances"}
    return given | ({"token": given["token"] - 1} if "token" in given else {})


def model_of(values: Mapping[str, Any]) -> AuditViewRequest:
    """The audit of the models that a form describes."""
    pasted = values.get("config", "").strip()
    if pasted:
        PASTED.write_text(pasted)

    def variant(before: str, source: str) -> Variant:
        changes = ("recipe", "std", "depth", "qk_norm", "fields")
        return Variant(source, **{name: values[before + name] for name in changes if before + name in values})

    path = values.get("path", "").strip()
    first = variant("", path or (str(PASTED) if pasted else values["name"]))
    other = values.get(f"{SECOND}path", "").strip() or values.get(f"{SECOND}name", NONE)
    second = None if other == NONE else variant(SECOND, first.source if other == SAME else other)
    switches = {name: values.get(name, False) for name in ("limit", "gradients", "sharp")}
    return model_request(first, second, tokens=lengths(values.get("tokens", "")), **switches)


def _number(value: Any) -> Any:
    return inf if value == "inf" else value  # which JSON has not


def layer_form(only: Sequence[str] | None = None, distances: bool = False) -> str:
    """The controls of one layer, or some of them."""
    sigmas = tuple(round(0.05 * k, 2) for k in range(81))
    dims = {dim: "the width" if dim is None else text(dim) for dim in HEAD_DIMS}
    labels = {name: f"W^{name.upper()}" for name in "qkvo"} | {"w": "the tokens' W"}
    first = [
        _slider("heads", "Heads H", range(1, 65), START["heads"]),
        _slider("tokens", "Tokens s", range(1, 33), 4),
        _width("width", "Width n", START["width"]),
        _slider("head_dim", "Head dimension d", HEAD_DIMS, None, dims),
        _choice("activation", "Activation φ", list(ACTIVATIONS), "clip"),
        _choice("scaling", "Scores", ["sqrt", "linear"], "sqrt", {"sqrt": "over √d", "linear": "over d"}),
        _choice("mask", "Mask", [None, "causal"], None, {None: "none"}),
        _check("distances", "KL divergences", distances),
    ]
    sigma = [
        _slider(f"sigma_{name}", f"σ of {label}", sigmas if name in "qk" else sigmas[1:], 1.0)
        for name, label in labels.items()
    ]
    token = _slider("token", "Output of token", range(1, 33), 1)
    rest = [_slider("clip", "Clip at", CLIPS, 100.0), token, *sigma, _draws()]
    if only is not None:
        return _form("layer", [*first, *rest], only)
    return _form("layer", [*first, _folded("More to change", rest)])


def model_form(only: Sequence[str] | None = None, local: bool = False) -> str:
    """The controls of one model and a second next to it, or some of them; a `local` page takes paths of files."""
    known, switch = list(names()), [UNCHANGED, "on", "off"]
    stds = {std: UNCHANGED if std is None else f"{std:g}" for std in STDS}

    def variant(before: str) -> list[Control]:
        path = _text(f"{before}path", "or a config.json", "path/to/config.json")
        return [
            *([path] if local else [] if before else [{"type": "config", "name": "config"}]),
            _choice(f"{before}recipe", "Recipe", [UNCHANGED, *RECIPES], UNCHANGED),
            _slider(f"{before}std", "Std of all matrices", STDS, None, stds),
            _choice(f"{before}depth", "Depth scaling 1/√(2·blocks)", switch, UNCHANGED),
            _choice(f"{before}qk_norm", "QK-norm", switch, UNCHANGED),
            _text(f"{before}fields", "Other fields", "heads=8, norm=rms"),
        ]

    controls = [
        _choice("name", "Model", known, "gpt2"),
        *variant(""),
        _text("tokens", "Tokens, one length or several", "16, 128"),
        _check("limit", "Add the limit"),
        _check("gradients", "Gradients"),
        _check("sharp", "Sharper: more draws"),
        _choice(f"{SECOND}name", "Compare with", [NONE, SAME, *known], NONE, {NONE: "nothing"}),
    ]
    if only is not None:
        return _form("model", [*controls, *variant(SECOND)], only)
    return _form("model", [*controls, _folded("Changes of the second model", variant(SECOND))])


def program_form(target: Target, audit: bool = False) -> str:
    """A control for each width and each number of a program, and which output; for its audit, how many draws."""
    controls = [_width(f"width {name}", f"Width {name}", 256) for name in target.net.widths]
    for name, start, low, high, step in target.sliders:
        given = {"low": low, "high": high, "step": step, "start": start, "shown": f"{start:g}"}
        controls.append({"type": "range", "name": f"argument {name}", "label": name, **given})
    if audit:
        return _form("audit", [*controls, _check("sharp", "Sharper: more draws")])
    output = {"type": "number", "name": "output", "label": "Output"}
    return _form("program", [*controls, output, _draws(), _check("distances", "KL divergences", True)])


def local_page(target: Target | None) -> str:
    """The page of `netsor explore`: a form for each view, and one view at a time."""
    forms = {"One layer": layer_form(distances=True), "One model": model_form(local=True)}
    if target is not None:
        forms["Your program"] = program_form(target)
        if target.net.probes:
            forms["Its audit"] = program_form(target, audit=True)
    first = "One layer" if target is None else "Your program"
    style, script = (Path(__file__).with_name(f"_page.{kind}").read_text() for kind in ("css", "js"))
    return str(markup().page(f"<style>{style}</style>", markup().views(forms, first, script)))


def _form(kind: str, controls: Sequence[Control], only: Sequence[str] | None = None) -> str:
    by_name = {control["name"]: control for control in controls}
    return str(markup().form(kind, kind in AUDITS, controls if only is None else [by_name[name] for name in only]))


def _folded(title: str, controls: Iterable[Control]) -> Control:
    return {"type": "fold", "name": "", "label": title, "controls": controls}


def _width(name: str, label: str, start: float) -> Control:
    return _slider(name, label, WIDTHS, start, {width: text(width) for width in WIDTHS})


def _draws() -> Control:
    return _choice("draws", "Draws", [None, MANY], None, {None: "as many as are quick", MANY: f"{MANY:,}"})


def _slider(name: str, label: str, values: Sequence[Any], start: Any, words: Words = None) -> Control:
    choices = [("inf" if value == inf else value, (words or {}).get(value, str(value))) for value in values]
    at = list(values).index(start)
    given = {"low": 0, "high": len(values) - 1, "step": 1, "start": at, "shown": choices[at][1]}
    return {"type": "range", "name": name, "label": label, "choices": json.dumps(choices), **given}


def _choice(name: str, label: str, options: Sequence[Any], start: Any, words: Words = None) -> Control:
    named = [(json.dumps(option), (words or {}).get(option, str(option))) for option in options]
    return {"type": "select", "name": name, "label": label, "options": named, "start": json.dumps(start)}


def _check(name: str, label: str, checked: bool = False) -> Control:
    return {"type": "checkbox", "name": name, "label": label, "start": checked}


def _text(name: str, label: str, hint: str) -> Control:
    return {"type": "text", "name": name, "label": label, "hint": hint}
