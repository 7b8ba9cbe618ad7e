"""A hook of mkdocs: columns of sentences get a width that can be read on a phone, where
a table scrolls by itself.
"""

import re

LONG_CELL = 40  # characters of text from which a column holds sentences
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CELL = re.compile(r"<(t[hd])((?: [^>]*)?)>(.*?)</t[hd]>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def _columns_of_sentences(table: str) -> set[int]:
    """The positions of the columns with a long cell."""
    columns = set()
    for row in ROW.findall(table):
        for column, (_, _, content) in enumerate(CELL.findall(row)):
            if len(TAG.sub("", content)) >= LONG_CELL:
                columns.add(column)
    return columns


def _with_classes(match: re.Match[str]) -> str:
    """The table, with the class "sentences" on the cells of such columns."""
    table = match[0]
    columns = _columns_of_sentences(table)

    def marked_row(row: re.Match[str]) -> str:
        """The row with its marked cells."""
        position = -1

        def marked(cell: re.Match[str]) -> str:
            """The cell, marked if its column is."""
            nonlocal position
            position += 1
            name, attributes, content = cell.groups()
            if position in columns:
                attributes += ' class="sentences"'
            return f"<{name}{attributes}>{content}</{name}>"

        return CELL.sub(marked, row[0])

    return ROW.sub(marked_row, table)


def on_page_content(content: str, **_: object) -> str:
    """Called by mkdocs for each page."""
    return TABLE.sub(_with_classes, content)
