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
# columns of a finding: its status, and its name with a space
STATUS_COLUMNS, NAME_COLUMNS = 10, 12


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
    texts = []
    for status in STATUSES:
        count = statuses.count(status)
        if status == FLAG:
            texts.append(f"{count} flagged")
        elif count:
            texts.append(f"{count} {status}")
    return ", ".join(texts)


def to_text(document: Document, verbose: bool = False) -> str:
    """The document for a terminal of 80 columns: the verdict first, details only if
    `verbose`.
    """
    shown = ["always", "text"]
    if verbose:
        shown.append("verbose")
    texts = [wrap(document.verdict), wrap(document.subject)]
    for section in document.sections:
        if section.show in shown:
            texts.append(_section_text(section))
    return "\n\n".join(text for text in texts if text)


def _section_text(section: Section) -> str:
    """A section for a terminal: its title above its blocks; empty if these are."""
    blocks = [_block_text(block) for block in section.blocks]
    content = "\n\n".join(text for text in blocks if text)
    if section.title and content:
        return f"{wrap(section.title)}\n{content}"
    return content


def _block_text(block: Block) -> str:
    """A block for a terminal; empty for figures and HTML."""
    match block:
        case Paragraph():
            label = "warning: " if block.kind == "warning" else ""
            texts = [block.text, block.code, *block.links]
            return wrap(label + " ".join(text for text in texts if text))
        case Items():
            return "\n".join(_item_text(item) for item in block.items)
        case Table():
            return _prose_text(block) if block.prose else _table_text(block)
    return ""


def wrap(text: str, first: str = "", rest: str = "", width: int = WIDTH) -> str:
    """The text in lines of `width` columns; a no-break space becomes a space at which
    no line breaks, and no line breaks before a per cent sign. `first` comes before the
    first line, and `rest` before the others.
    """
    filled = textwrap.fill(
        text.replace(" %", "\N{NO-BREAK SPACE}%"),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def _item_text(item: Item) -> str:
    """A finding: its status and name, and its texts in a column beside them."""
    if len(item.name) < NAME_COLUMNS:
        name = f"{item.name:<{NAME_COLUMNS}}"
        indent = " " * (STATUS_COLUMNS + NAME_COLUMNS)
    else:  # several names at once
        name = f"{item.name}: "
        indent = " " * STATUS_COLUMNS
    status_and_name = f"{item.status:<{STATUS_COLUMNS}}{name}"
    if item.text:
        paragraphs = [wrap(item.text, status_and_name, indent)]
    else:  # `wrap` of no text is empty
        paragraphs = [status_and_name.rstrip()]
    for text in item.more:
        paragraphs.append(wrap(text, indent, indent))
    return "\n".join(paragraphs)


def _cell_text(cell: str | Cell) -> str:
    """The text of a cell, or its links, for a terminal."""
    if isinstance(cell, str):
        return cell
    return cell.text or ", ".join(cell.links)


def _prose_text(table: Table) -> str:
    """Rows of sentences: each cell has its own lines below the first."""
    lines = []
    for name, *cells in table.rows:
        lines.append(wrap(_cell_text(name)))
        for heading, cell in zip(table.head[1:], cells, strict=True):
            text = _cell_text(cell)
            if isinstance(cell, Cell) and cell.note:
                text += f" ({cell.note})"
            lines.append(wrap(f"{heading}: {text}", "  ", "    "))
    return "\n".join(lines)


def _table_text(table: Table) -> str:
    """Aligned columns, numbers to the right; columns that do not fit follow below, with
    the names again.
    """
    lines = _table_lines(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for columns in _columns_that_fit(widths):
        text_lines = []
        for line in lines:
            cells = [line[0].ljust(widths[0])]
            cells += [line[k].rjust(widths[k]) for k in columns]
            text_lines.append((" " * GAP).join(cells).rstrip())
        texts.append("\n".join(text_lines))
    return "\n\n".join(texts)


def _table_lines(table: Table) -> list[list[str]]:
    """The texts of the cells of a table, line by line: a long name takes several lines,
    and the numbers stand in the last.
    """
    lines: list[list[str]] = []
    for row in (table.head, *table.rows):
        name, *numbers = [_cell_text(cell) for cell in row]
        name_lines = wrap(name, rest="  ", width=FIRST).splitlines() or [""]
        no_numbers = [""] * len(numbers)
        for line in name_lines[:-1]:
            lines.append([line, *no_numbers])
        lines.append([name_lines[-1], *numbers])
    return lines


def _columns_that_fit(widths: Sequence[int]) -> list[list[int]]:
    """Groups of columns that fit side by side in WIDTH, next to the first column, from
    the widths of all columns.

    For example, columns of widths 34, 30, 10 and 10 give the groups [1, 2] and [3],
    because 34 + 30 + 10 and two gaps fit, and the last column does not.
    """
    groups: list[list[int]] = [[]]
    total = widths[0]  # of the first column and the last group, with gaps
    for k in range(1, len(widths)):
        total += GAP + widths[k]
        if groups[-1] and total > WIDTH:
            groups.append([])
            total = widths[0] + GAP + widths[k]
        groups[-1].append(k)
    return groups
