"""A view on the page, beside its controls, that is filled in as its numbers come.

marimo keeps only the newest of several waiting slider positions, so only that is computed. Distances take longer than a
picture: a thread computes them once the sliders have not moved for a moment, and its result is dropped if they moved
since.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import marimo as mo

from ._audit_view import Tell
from ._components import fold, message, notes, table
from ._plots import as_csv, as_file, as_svg
from ._view import Rows, View, error_text

REST = 0.12  # seconds without a move of the sliders before distances are computed
OFTEN = 0.3  # seconds between two updates of a progress bar
ONE = threading.Lock()  # held by the one thread that does long work


def show(controls: str, make: Callable[[], View], name: str) -> None:
    """The controls, and beside them the view; a wrong value is a message in its place."""
    try:
        view = make()
    except (Exception, SystemExit) as error:  # a user's program may raise anything
        mo.output.replace(_beside(controls, message(error_text(error))))
        return
    saved = _saved(view, name)
    more = view.more
    waiting = "KL …" if more is not None else ""
    mo.output.replace(_beside(controls, _view(view, view.rows, waiting, saved)))
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
            mo.output.replace(_beside(controls, _view(view, {**view.rows, **rows}, wrong, saved)))

    mo.Thread(target=fill, daemon=True).start()


def show_slowly(controls: str, make: Callable[[Tell], Iterator[View]], name: str) -> None:
    """The controls at once, then views as they are drawn, with a bar for the next. Moving a control begins anew."""
    mo.output.replace(_beside(controls, _bar(0.0, 0.0)))

    def fill() -> None:
        thread = mo.current_thread()
        time.sleep(REST)
        told, before = 0.0, ""

        def tell(done: float, total: float) -> None:
            nonlocal told
            if thread.should_exit:
                raise Overtaken
            if time.monotonic() > told + OFTEN:
                told = time.monotonic()
                mo.output.replace(_beside(controls, _bar(done, total) + before))

        with ONE:  # of several that wait here only the newest goes on
            if thread.should_exit:
                return
            shown = ""
            try:
                for view in make(tell):
                    shown = before = _view(view, view.rows, "", _saved(view, name))
            except Overtaken:
                return
            except Exception as error:
                shown = message(error_text(error)) + before
            if not thread.should_exit:
                mo.output.replace(_beside(controls, f'<div class="netsor-done">{shown}</div>'))

    mo.Thread(target=fill, daemon=True).start()


class Overtaken(Exception):
    """Raised in a thread whose result is no longer wanted, because a control moved."""


def _bar(done: float, total: float) -> str:
    """How far it is, and how long it takes, in seconds."""
    about = f", about {total:.0f} s" if total >= 1 else ""
    bar = f'<progress value="{done:.2f}" max="{total or 1.0:.2f}"></progress>'
    return f'<div class="netsor-bar"><p class="netsor-note">drawing initialisations{about} …</p>{bar}</div>'


def _beside(controls: str, view: str) -> Any:
    return mo.Html(f'<div class="netsor-two"><div>{controls}</div><div class="netsor-view">{view}</div></div>')


def _view(view: View, rows: Rows, waiting: str, saved: str) -> str:
    many = " netsor-many" if view.columns > 1 else ""
    code = mo.md(f"```python\n{view.code}\n```").text
    plan = fold("What is drawn (the plan)", f"<pre>{html.escape(view.plan)}</pre>") if view.plan else ""
    told = "" if view.result is None else view.result._repr_html_()
    return (
        f'{told}<div class="netsor-panels{many}">{as_svg(view.panels)}</div>{table(rows, waiting)}{notes(view.notes)}'
        f'{saved}{plan}<p>The same in Python:</p><div class="netsor-code">{code}</div>'
    )


def _saved(view: View, name: str) -> str:
    """Buttons for files, which are made when they are asked for."""
    buttons = [
        mo.download(lambda kind=kind: as_file(view.panels, kind, view.columns), f"{name}.{kind}", label=kind.upper())
        for kind in ("png", "pdf")
    ]
    buttons.append(mo.download(lambda: as_csv(view.panels), f"{name}.csv", label="CSV"))
    return f'<div class="netsor-files">{mo.hstack(buttons, justify="start", wrap=True)}</div>'
