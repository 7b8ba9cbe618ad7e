"""The controls of each view, and the settings that their values are."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import marimo as mo

from ..language import inf
from ..models import RECIPES, names
from ..studies import paper
from ._components import fold
from ._layer_view import Layer, text
from ._model_view import UNCHANGED, Model, Variant, lengths
from ._program_view import ProgramSettings, Slider, Target

WIDTHS = (*(2**k for k in range(2, 17)), inf)
HEAD_DIMS = (None, *(2**k for k in range(2, 13)), inf)  # None: the width
CLIPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
LIVE, MANY = "as many as are quick", 50_000
STDS = (None, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)  # None: the model's own
SECOND, NONE, SAME = "second ", "nothing", "the same model, changed as below"


def width_slider(label: str, start: float = 256) -> Any:
    """A slider over widths, with ∞ at its right end; its value is a place in WIDTHS."""
    return mo.ui.slider(0, len(WIDTHS) - 1, 1, value=WIDTHS.index(start), label=label, full_width=True)


def draws_choice() -> Any:
    """How many draws."""
    return mo.ui.dropdown({LIVE: None, f"{MANY:,}": MANY}, value=LIVE, label="Draws", full_width=True)


def layer_controls() -> Any:
    """What may be changed in one layer."""

    def whole(label: str, most: int, start: int) -> Any:
        return mo.ui.slider(1, most, 1, value=start, label=label, show_value=True, full_width=True)

    def sigma(label: str, least: float = 0.05) -> Any:
        return mo.ui.slider(least, 4.0, 0.05, value=1.0, label=label, show_value=True, full_width=True)

    ends = {"over √d": "sqrt", "over d": "linear"}
    return mo.ui.dictionary(
        {
            "heads": whole("Heads H", 64, 2),
            "tokens": whole("Tokens s", 32, 4),
            "width": width_slider("Width n"),
            "head_dim": mo.ui.slider(0, len(HEAD_DIMS) - 1, 1, label="Head dimension d", full_width=True),
            "activation": mo.ui.dropdown(list(paper.ACTIVATIONS), value="clip", label="Activation φ", full_width=True),
            "clip": mo.ui.slider(steps=CLIPS, value=100.0, label="Clip at", show_value=True, full_width=True),
            "scaling": mo.ui.dropdown(ends, value="over √d", label="Scores", full_width=True),
            "mask": mo.ui.checkbox(label="Causal mask"),
            "token": whole("Output of token", 32, 1),
            "sigma_q": sigma("σ of W^Q", 0.0),
            "sigma_k": sigma("σ of W^K", 0.0),
            "sigma_v": sigma("σ of W^V"),
            "sigma_o": sigma("σ of W^O"),
            "sigma_w": sigma("σ of the tokens' W"),
            "draws": draws_choice(),
        }
    )


def layer_settings(values: Mapping[str, Any]) -> Layer:
    """What the controls of one layer say."""
    given = dict(values)
    width, head_dim = WIDTHS[int(given.pop("width"))], HEAD_DIMS[int(given.pop("head_dim"))]
    mask = "causal" if given.pop("mask") else None
    token, tokens = int(given.pop("token")), int(given["tokens"])
    given.update({name: _plain(value) for name, value in given.items() if name.startswith("sigma")})
    if token > tokens:
        raise ValueError(f"the output of token {token} is asked for, and there are {tokens} tokens: add tokens")
    return Layer(width=width, head_dim=head_dim, mask=mask, token=token - 1, **given)


def _plain(value: float) -> float:
    """The value of a slider, rounded to ten digits: its steps add up to 1.1500000000000001."""
    return value if isinstance(value, int) else float(f"{value:.10g}")


def layer_html(controls: Any) -> str:
    """The controls of one layer, those that are changed least in a fold."""
    head_dim = HEAD_DIMS[int(controls.value["head_dim"])]
    words = {
        "width": text(WIDTHS[int(controls.value["width"])]),
        "head_dim": "the width" if head_dim is None else text(head_dim),
    }
    first = ("heads", "tokens", "width", "head_dim", "activation", "scaling", "mask")
    clip = ("clip",) if controls.value["activation"] == "clip" else ()
    rest = (*clip, "token", "sigma_q", "sigma_k", "sigma_v", "sigma_o", "sigma_w", "draws")
    return _column(controls, first, words) + fold("More to change", _column(controls, rest, {}))


def program_controls(target: Target, knobs: tuple[Slider, ...]) -> Any:
    """What may be changed in a program of one's own; its arguments and widths may have any names."""
    made: dict[str, Any] = {f"width {name}": width_slider(f"Width {name}") for name in target.widths}
    for knob in knobs:
        made[f"argument {knob.name}"] = mo.ui.slider(
            knob.low, knob.high, knob.step, knob.start, label=knob.name, show_value=True, full_width=True
        )
    made["output"] = mo.ui.number(0, 999, 1, value=0, label="Output")
    made["draws"] = draws_choice()
    return mo.ui.dictionary(made)


def program_settings(target: Target, knobs: tuple[Slider, ...], values: Mapping[str, Any]) -> ProgramSettings:
    """What the controls of a program say."""
    return ProgramSettings(
        target,
        {knob.name: _plain(values[f"argument {knob.name}"]) for knob in knobs},
        {name: WIDTHS[int(values[f"width {name}"])] for name in target.widths},
        int(values["output"] or 0),
        values["draws"],
    )


def program_html(target: Target, controls: Any) -> str:
    """The controls of a program."""
    return _column(controls, tuple(controls.value), _widths(target, controls))


def audited_html(target: Target, controls: Any, sharper: Any) -> str:
    """Those of them that are for its audit."""
    names = tuple(name for name in controls.value if name not in ("output", "draws"))
    return f"{_column(controls, names, _widths(target, controls))}{sharper}"


def _widths(target: Target, controls: Any) -> dict[str, str]:
    return {f"width {name}": text(WIDTHS[int(controls.value[f"width {name}"])]) for name in target.widths}


def model_controls() -> Any:
    """What may be changed in one model, and in a second beside it; the second's have names that begin with "second"."""

    def choice(label: str, options: list[str]) -> Any:
        return mo.ui.dropdown([UNCHANGED, *options], value=UNCHANGED, label=label, full_width=True)

    def variant(before: str, which: Any) -> dict[str, Any]:
        made = {
            "name": which,
            "path": mo.ui.text(label="or a config.json", placeholder="path/to/config.json", full_width=True),
            "recipe": choice("Recipe", list(RECIPES)),
            "std": mo.ui.slider(0, len(STDS) - 1, 1, label="Std of all matrices", full_width=True),
            "depth": choice("Depth scaling 1/√(2·blocks)", ["on", "off"]),
            "qk_norm": choice("QK-norm", ["on", "off"]),
            "fields": mo.ui.text(label="Other fields", placeholder="heads=8, norm=rms", full_width=True),
        }
        return {f"{before}{name}": control for name, control in made.items()}

    known = list(names())
    return mo.ui.dictionary(
        {
            **variant("", mo.ui.dropdown(known, value="gpt2", label="Model", full_width=True)),
            "tokens": mo.ui.text(label="Tokens, one length or several", placeholder="16, 128", full_width=True),
            "limit": mo.ui.checkbox(label="The limit beside it"),
            "gradients": mo.ui.checkbox(label="Gradients"),
            **variant(SECOND, mo.ui.dropdown([NONE, SAME, *known], value=NONE, label="Beside it", full_width=True)),
        }
    )


def model_settings(values: Mapping[str, Any], sharp: bool) -> Model:
    """What the controls of a model say."""

    def variant(before: str) -> Variant:
        name, path, std = (values[f"{before}{part}"] for part in ("name", "path", "std"))
        others = {part: values[f"{before}{part}"] for part in ("recipe", "depth", "qk_norm", "fields")}
        return Variant(path.strip() or name, std=STDS[int(std)], **others)

    first = variant("")
    second = None if values[f"{SECOND}name"] == NONE else variant(SECOND)
    if second is not None and second.source == SAME:
        second = replace(second, source=first.source)
    return Model(first, second, lengths(values["tokens"]), values["limit"], values["gradients"], sharp)


def model_html(controls: Any, sharper: Any) -> str:
    """The controls of a model, and of the second if there is one."""
    words = {}
    for name in ("std", f"{SECOND}std"):
        std = STDS[int(controls.value[name])]
        words[name] = UNCHANGED if std is None else f"{std:g}"
    first = tuple(name for name in controls.value if not name.startswith(SECOND))
    second = tuple(name for name in controls.value if name.startswith(SECOND))
    if controls.value[f"{SECOND}name"] == NONE:
        second = second[:1]
    return f'{_column(controls, first, words)}{sharper}<hr class="netsor-line">{_column(controls, second, words)}'


def _column(controls: Any, names: tuple[str, ...], words: Mapping[str, str]) -> str:
    """Controls one below the other, with words for values that they do not show themselves."""
    rows = "".join(
        f'<div data-control="{html.escape(name, quote=True)}">'
        + (f'<b class="netsor-value">{html.escape(words[name])}</b>' if name in words else "")
        + f"{controls[name]}</div>"
        for name in names
    )
    return f'<div class="netsor-controls">{rows}</div>'
