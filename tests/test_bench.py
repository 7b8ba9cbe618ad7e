"""What the benchmarks count is what is drawn."""

import csv

from bench import bench

from tests.internals import Case


def test_numbers_are_counted_by_kind():
    case = Case(heads=3, width=64)
    counted = bench.Counted(case.program, case.widths)
    s, heads = 4, 3
    assert counted.all == s * (s + 1) // 2 + 1 + heads * (s + 2)
    # |h|, the tokens, a query and a value a head
    assert sum(counted.gammas.values()) == 1 + s + 2 * heads
    assert counted.normals + sum(counted.gammas.values()) == counted.all


def test_numbers_of_a_literal_draw():
    assert bench.weights(Case(width=8)) == 8 + 4 * 64 + 2 * 4 * 64
    assert (
        bench.weights(Case(heads=4, width=32, head_dim=8))
        == 32 + 4 * 32 * 32 + 4 * 4 * 32 * 8
    )


def test_tables():
    rows = [{"a": 1.5, "b": "x, y"}, {"a": 2.0, "b": "z"}]
    assert list(csv.DictReader(bench.as_csv(rows).splitlines())) == [
        {"a": "1.5", "b": "x, y"},
        {"a": "2", "b": "z"},
    ]
    assert bench.as_markdown(rows).count("|") == 4 * 3


def test_plans_of_deep_models_are_timed():
    (row,) = bench.depths("gpt2", blocks=(2,), tokens=3, repeats=1)
    assert row["blocks"] == 2
    assert min(row.values()) > 0
