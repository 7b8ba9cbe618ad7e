"""The result of a study as one document: a verdict, findings, tables and figures; and
its text for a terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

FLAG, OK, UNDECIDED, NOT_APPLICABLE = "FLAG", "ok", "undecided", "n/a"
STATUSES = (FLAG, UNDECIDED, OK, NOT_APPLICABLE)  # the worst first
WIDTH = 80  # columns of a terminal
GAP = 2  # columns between those of a table
FIRST = 34  # columns of the names of rows; longer names take several lines


class Cell(NamedTuple):
    """A cell of a table: its text or links instead, a remark below it in small type,
    and its colour.
    """

    text: str
    note: str = ""
    status: str = ""  # "good", "bad", "open" or "absent"
    links: Mapping[str, str] = {}  # addresses by their text


Row = Sequence[str | Cell]


class Paragraph(NamedTuple):
    """A paragraph; `kind` is "verdict", "warning", "note" or ""."""

    text: str
    kind: str = ""
    files: Sequence[tuple[str, str]] = ()  # (file, what it is), listed after the text
    code: str = ""  # a command, after the text
    links: Sequence[str] = ()


class Table(NamedTuple):
    """Rows below a head. The first column names the rows. `prose` marks a table of
    sentences rather than numbers.
    """

    head: Sequence[str]
    rows: Sequence[Row]
    prose: bool = False


class Item(NamedTuple):
    """One finding: its status, its name, one line, and the advice or the explanations
    that follow.
    """

    status: str
    name: str
    text: str
    more: Sequence[str] = ()


class Items(NamedTuple):
    """Findings, in the order in which they are listed."""

    items: Sequence[Item]


class Figure(NamedTuple):
    """A figure; `svg` draws it when a page needs it."""

    name: str
    caption: str
    svg: Callable[[], bytes]


class Figures(NamedTuple):
    """Figures side by side."""

    figures: Sequence[Figure]


class Raw(NamedTuple):
    """Trusted HTML of our own, such as a typeset formula. Only pages show it."""

    html: str


Block = Paragraph | Table | Items | Figures | Raw


class Section(NamedTuple):
    """A titled part."""

    title: str
    blocks: Sequence[Block]
    # or "verbose" (on pages, and in a terminal with --verbose), "text" or "html" alone
    show: str = "always"
    folded: bool = False  # on a page, behind a click
    anchor: str = ""


class Document(NamedTuple):
    """A result: its title, the conclusion and the subject in one line each, and
    sections.
    """

    title: str
    verdict: str
    subject: str
    sections: Sequence[Section]


def count_statuses(statuses: Sequence[str]) -> str:
    """The number of each status, as in "2 flagged, 1 undecided, 7 ok, 1 n/a"."""
    counts = (
        (statuses.count(status), "flagged" if status == FLAG else status)
        for status in STATUSES
    )
    return ", ".join(
        f"{count} {name}" for count, name in counts if count or name == "flagged"
    )


def to_text(document: Document, verbose: bool = False) -> str:
    """The document for a terminal of 80 columns: the verdict first, details only if
    requested.
    """
    shown = ("always", "text", "verbose") if verbose else ("always", "text")
    parts = [wrap(document.verdict), wrap(document.subject)]
    for section in document.sections:
        if section.show in shown:
            blocks = [text for text in map(_block_text, section.blocks) if text]
            heading = [wrap(section.title)] if section.title and blocks else []
            parts.append("\n".join([*heading, "\n\n".join(blocks)]))
    return "\n\n".join(part for part in parts if part)


def _block_text(block: Block) -> str:
    match block:
        case Paragraph():
            label = "warning: " if block.kind == "warning" else ""
            return wrap(
                label + " ".join(filter(None, (block.text, block.code, *block.links)))
            )
        case Items():
            return "\n".join(map(_item_text, block.items))
        case Table():
            return _prose_text(block) if block.prose else _table_text(block)
    return ""


def wrap(text: str, first: str = "", rest: str = "", width: int = WIDTH) -> str:
    """The text in lines; a no-break space becomes a space at which no line breaks."""
    filled = textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def _item_text(item: Item) -> str:
    head, indent = f"{item.status:<10}{item.name + ' ':<12}", " " * 22
    if len(item.name) > 11:  # several names at once
        head, indent = f"{item.status:<10}{item.name}: ", " " * 10
    return "\n".join(
        [
            wrap(item.text, head, indent),
            *(wrap(more, indent, indent) for more in item.more),
        ]
    )


def _cell_text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text or ", ".join(cell.links)


def _prose_text(table: Table) -> str:
    """Rows of sentences: each cell has its own lines below the first."""
    lines = []
    for first, *rest in table.rows:
        lines.append(wrap(_cell_text(first)))
        for name, cell in zip(table.head[1:], rest, strict=True):
            text = _cell_text(cell) + (
                f" ({cell.note})" if isinstance(cell, Cell) and cell.note else ""
            )
            lines.append(wrap(f"{name}: {text}", "  ", "    "))
    return "\n".join(lines)


def _table_text(table: Table) -> str:
    """Aligned columns, numbers to the right; columns that do not fit follow below, with
    the names again.
    """
    rows: list[list[str]] = []
    for row in (table.head, *table.rows):
        first, *rest = map(_cell_text, row)
        *above, last = wrap(first, rest="  ", width=FIRST).splitlines() or [""]
        rows += [[line, *("" for _ in rest)] for line in above] + [[last, *rest]]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    groups: list[list[int]] = [[]]  # columns that stand side by side
    for k in range(1, len(sizes)):
        if (
            groups[-1]
            and sum(GAP + sizes[j] for j in (0, *groups[-1], k)) > WIDTH + GAP
        ):
            groups.append([])
        groups[-1].append(k)

    def line(row: list[str], group: list[int]) -> str:
        return (
            (" " * GAP)
            .join([f"{row[0]:<{sizes[0]}}", *(f"{row[k]:>{sizes[k]}}" for k in group)])
            .rstrip()
        )

    return "\n\n".join("\n".join(line(row, group) for row in rows) for group in groups)
