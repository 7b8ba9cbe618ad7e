"""The text of a document for a terminal."""

from tests.internals import OK, Document, Item, Items, Section, to_text


def text_of(*items):
    """The text of a document that lists these findings."""
    section = Section("", [Items(items)])
    return to_text(Document("audit", "", "", [section]))


def test_item_without_text_keeps_its_status_and_name():
    text = text_of(Item(OK, "growth", "", ["an explanation"]))
    first_line, *_ = text.splitlines()
    assert first_line.split() == [OK, "growth"]
    assert "an explanation" in text


def test_item_with_text_has_it_beside_its_name():
    assert text_of(Item(OK, "growth", "sizes stay")).split() == [
        OK,
        "growth",
        "sizes",
        "stay",
    ]
