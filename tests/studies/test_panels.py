"""The figures of several parametrisations: labels of axes in an incomplete last row, and
names at the ends of lines.
"""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from tests.internals import _training_report, label_ends, new


@pytest.mark.parametrize(("count", "labelled"), [(2, [0, 1]), (4, [1, 2, 3])])
def test_lowest_panel_of_each_column_has_numbers_and_label(count, labelled):
    parts = [SimpleNamespace(name=f"rule {index}") for index in range(count)]

    def draw(axes, part):
        return {"line": axes.plot([1, 2], [3, 4])[0]}

    figure = _training_report.panels(
        parts, draw, ("width", "size"), panel_width=0.7, legend_width=0.9, share_x=True
    )
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == count
    with_label = [k for k, axes in enumerate(shown) if axes.get_xlabel() == "width"]
    with_numbers = []
    for index, axes in enumerate(shown):
        if any(label.get_visible() for label in axes.get_xticklabels()):
            with_numbers.append(index)
    assert with_label == with_numbers == labelled


@pytest.mark.parametrize("ends", [(1.0, 1.01, 1.02), (1.0, 9.0, 9.9), (5.0, 5.0, 1.0)])
def test_names_at_the_ends_of_lines_do_not_overlap(ends):
    figure = new()
    axes = figure.subplots()
    axes.set_ylim(1, 10)
    lines = {
        f"line {end} {k}": axes.plot([0, 1], [2, end])[0] for k, end in enumerate(ends)
    }
    label_ends(axes, lines)
    figure.draw_without_rendering()
    boxes = sorted(
        (text.get_window_extent() for text in axes.texts), key=lambda b: b.y0
    )
    assert len(boxes) == len(ends)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert [t.get_color() for t in axes.texts] == [
        lines[t.get_text()].get_color() for t in axes.texts
    ]
