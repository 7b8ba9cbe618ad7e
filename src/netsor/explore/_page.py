"""The page: the controls of each view with the settings that their values are, and the view next to them.

marimo keeps only the newest of several waiting slider positions, so only that is computed. Distances take longer than a
picture: a thread computes them once the sliders have not moved for a moment, and its result is dropped if they moved
since.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import marimo as mo

from ..models import RECIPES, names
from ..paper import ACTIVATIONS
from ._audit_view import STDS, UNCHANGED, Model, Tell, Variant, lengths
from ._law_views import CLIPS, HEAD_DIMS, WIDTHS, Layer, text
from ._program_view import ProgramSettings, Slider, Target
from ._view import Rows, View, as_csv, as_file, error_text, fold, message, view_html

REST = 0.12  # seconds without a move of the sliders before distances are computed
OFTEN = 0.3  # seconds between two updates of a progress bar
ONE = threading.Lock()  # held by the one thread that does long work


def show(controls: str, make: Callable[[], View], name: str) -> None:
    """The controls, and next to them the view; a wrong value is a message in its place."""
    try:
        view = make()
    except (Exception, SystemExit) as error:  # a user's program may raise anything
        mo.output.replace(_side_by_side(controls, message(error_text(error))))
        return
    saved = _saved(view, name)
    more = view.more
    waiting = "KL …" if more is not None else ""
    mo.output.replace(_side_by_side(controls, _view(view, view.rows, waiting, saved)))
    if more is None:
        return

    def fill() -> None:
        thread = mo.current_thread()
        time.sleep(REST)
        if thread.should_exit:
            return
        try:
            rows, wrong = more(), ""
        except Exception as error:
            rows, wrong = {}, f"KL: {error_text(error)}"
        if not thread.should_exit:
            mo.output.replace(_side_by_side(controls, _view(view, {**view.rows, **rows}, wrong, saved)))

    mo.Thread(target=fill, daemon=True).start()


def show_slowly(controls: str, make: Callable[[Tell], Iterator[View]], name: str) -> None:
    """The controls at once, then views as they are drawn, with a bar for the next. Moving a control begins anew."""
    mo.output.replace(_side_by_side(controls, _bar(0.0, 0.0)))

    def fill() -> None:
        thread = mo.current_thread()
        time.sleep(REST)
        last, before = 0.0, ""

        def tell(done: float, total: float) -> None:
            nonlocal last
            if thread.should_exit:
                raise Superseded
            if time.monotonic() > last + OFTEN:
                last = time.monotonic()
                mo.output.replace(_side_by_side(controls, _bar(done, total) + before))

        with ONE:  # of several that wait here only the newest goes on
            if thread.should_exit:
                return
            shown = ""
            try:
                for view in make(tell):
                    shown = before = _view(view, view.rows, "", _saved(view, name))
            except Superseded:
                return
            except Exception as error:
                shown = message(error_text(error)) + before
            if not thread.should_exit:
                mo.output.replace(_side_by_side(controls, f'<div class="netsor-done">{shown}</div>'))

    mo.Thread(target=fill, daemon=True).start()


class Superseded(Exception):
    """Raised in a thread whose result is no longer wanted, because a control moved."""


def _bar(done: float, total: float) -> str:
    """How far it is, and how long it takes, in seconds."""
    about = f", about {total:.0f} s" if total >= 1 else ""
    bar = f'<progress value="{done:.2f}" max="{total or 1.0:.2f}"></progress>'
    return f'<div class="netsor-bar"><p class="netsor-note">drawing initialisations{about} …</p>{bar}</div>'


def _side_by_side(controls: str, view: str) -> Any:
    return mo.Html(f'<div class="netsor-two"><div>{controls}</div><div class="netsor-view">{view}</div></div>')


def _view(view: View, rows: Rows, waiting: str, saved: str) -> str:
    return view_html(view, rows, waiting, saved, mo.md(f"```python\n{view.code}\n```").text)


def _saved(view: View, name: str) -> str:
    """Buttons for files, which are made when they are asked for."""
    buttons = [
        mo.download(lambda kind=kind: as_file(view.panels, kind, view.columns), f"{name}.{kind}", label=kind.upper())
        for kind in ("png", "pdf")
    ]
    buttons.append(mo.download(lambda: as_csv(view.panels), f"{name}.csv", label="CSV"))
    return f'<div class="netsor-files">{mo.hstack(buttons, justify="start", wrap=True)}</div>'


LIVE, MANY = "as many as are quick", 50_000
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
            "heads": whole("Heads H", 64, 1),
            "tokens": whole("Tokens s", 32, 4),
            "width": width_slider("Width n", 16),  # one head, narrow: far from a Gaussian
            "head_dim": mo.ui.slider(0, len(HEAD_DIMS) - 1, 1, label="Head dimension d", full_width=True),
            "activation": mo.ui.dropdown(list(ACTIVATIONS), value="clip", label="Activation φ", full_width=True),
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


def program_controls(target: Target, sliders: tuple[Slider, ...]) -> Any:
    """What may be changed in a custom program; its arguments and widths may have any names."""
    controls: dict[str, Any] = {f"width {name}": width_slider(f"Width {name}") for name in target.widths}
    for slider in sliders:
        controls[f"argument {slider.name}"] = mo.ui.slider(
            slider.low, slider.high, slider.step, slider.start, label=slider.name, show_value=True, full_width=True
        )
    controls["output"] = mo.ui.number(0, 999, 1, value=0, label="Output")
    controls["draws"] = draws_choice()
    return mo.ui.dictionary(controls)


def program_settings(target: Target, sliders: tuple[Slider, ...], values: Mapping[str, Any]) -> ProgramSettings:
    """What the controls of a program say."""
    return ProgramSettings(
        target,
        {slider.name: _plain(values[f"argument {slider.name}"]) for slider in sliders},
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
    """What may be changed in one model, and in a second next to it, whose names begin with "second"."""

    def choice(label: str, options: list[str]) -> Any:
        return mo.ui.dropdown([UNCHANGED, *options], value=UNCHANGED, label=label, full_width=True)

    def variant(before: str, which: Any) -> dict[str, Any]:
        controls = {
            "name": which,
            "path": mo.ui.text(label="or a config.json", placeholder="path/to/config.json", full_width=True),
            "recipe": choice("Recipe", list(RECIPES)),
            "std": mo.ui.slider(0, len(STDS) - 1, 1, label="Std of all matrices", full_width=True),
            "depth": choice("Depth scaling 1/√(2·blocks)", ["on", "off"]),
            "qk_norm": choice("QK-norm", ["on", "off"]),
            "fields": mo.ui.text(label="Other fields", placeholder="heads=8, norm=rms", full_width=True),
        }
        return {f"{before}{name}": control for name, control in controls.items()}

    known = list(names())
    return mo.ui.dictionary(
        {
            **variant("", mo.ui.dropdown(known, value="gpt2", label="Model", full_width=True)),
            "tokens": mo.ui.text(label="Tokens, one length or several", placeholder="16, 128", full_width=True),
            "limit": mo.ui.checkbox(label="Add the limit"),
            "gradients": mo.ui.checkbox(label="Gradients"),
            **variant(SECOND, mo.ui.dropdown([NONE, SAME, *known], value=NONE, label="Compare with", full_width=True)),
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
