"""The table of docs/coverage.md: a fixed sample of its rows is tried again."""

import pytest

from .coverage import READ, TABLE, read_table, tried

ROWS = read_table() if TABLE.exists() else {}
SAMPLE = (
    ("causal", "LlamaForCausalLM"),
    ("causal", "MixtralForCausalLM"),
    ("masked", "AlbertForMaskedLM"),
    ("masked", "BertForMaskedLM"),
    ("masked", "DebertaForMaskedLM"),
    ("masked", "FNetForMaskedLM"),
    ("seq2seq", "MBartForConditionalGeneration"),
    ("image", "ViTForImageClassification"),
)


@pytest.mark.parametrize(("kind", "name"), SAMPLE)
def test_class_is_read_as_the_table_says(kind, name):
    row = ROWS.get((kind, name))
    if row is None:
        pytest.skip("not in the table")
    again = tried(kind, row.model_type, name)
    if row.status == READ:
        assert (again.status, again.audit) == (row.status, row.audit), again
    else:  # it may be read since
        assert again.status in (READ, row.status)


def test_table_has_one_row_for_each_class():
    assert all(row.status for row in ROWS.values())
    assert len({(row.kind, row.name) for row in ROWS.values()}) == len(ROWS)
