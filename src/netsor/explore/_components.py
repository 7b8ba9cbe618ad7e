"""Views as HTML: pictures, a table of numbers, messages, and what is hidden at first."""

from __future__ import annotations

import html

from ..laws import Estimate
from ._view import Band, Rows, View, as_svg


def view_html(view: View, rows: Rows, waiting: str = "", saved: str = "", code: str = "") -> str:
    """What a page shows of a view: `saved` are buttons for files, `code` is its Python as HTML."""
    many = " netsor-many" if view.columns > 1 else ""
    plan = fold("What is drawn (the plan)", f"<pre>{html.escape(view.plan)}</pre>") if view.plan else ""
    told = "" if view.result is None else view.result._repr_html_()
    return (
        f'{told}<div class="netsor-panels{many}">{as_svg(view.panels)}</div>{table(rows, waiting)}{notes(view.notes)}'
        f'{saved}{plan}<p>The same in Python:</p><div class="netsor-code">{code}</div>'
    )


def table(rows: Rows, waiting: str = "") -> str:
    """The numbers, a column for each law; pointing at one shows all of its digits. `waiting` ends the table."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in columns)
    body = ""
    for name, row in rows.items():
        cells = "".join(_cell(row.get(column, "")) for column in columns)
        body += f'<tr data-row="{html.escape(name, quote=True)}"><th scope="row">{html.escape(name)}</th>{cells}</tr>'
    if waiting:
        body += f'<tr><td colspan="{len(columns) + 1}">{html.escape(waiting)}</td></tr>'
    return (
        f'<div class="netsor-wide"><table class="netsor-numbers"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Estimate | Band | str) -> str:
    if isinstance(value, str):
        return f"<td>{html.escape(value)}</td>"
    if isinstance(value, Band):
        text = f"{value.value:.4g} ({value.low:.4g} to {value.high:.4g})"
        return f'<td title="median (5 % to 95 %)" data-value="{value.value!r}">{text}</td>'
    digits = f"{float(value.value)!r} ± {float(value.error)!r}"
    return f'<td title="{digits}" data-value="{float(value.value)!r}">{html.escape(value.brief())}</td>'


def message(text: str) -> str:
    """What is wrong, and where on the page it is said."""
    return f'<div class="netsor-message" role="alert">{html.escape(text)}</div>'


def notes(lines: tuple[str, ...]) -> str:
    """Remarks below the numbers."""
    return "".join(f'<p class="netsor-note">{html.escape(line)}</p>' for line in lines)


def fold(title: str, inside: str) -> str:
    """Content that is hidden until its title is clicked."""
    return f'<details class="netsor-fold"><summary>{html.escape(title)}</summary>{inside}</details>'
