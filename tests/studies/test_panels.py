"""The figures of several parametrisations: labels of axes in an incomplete last row."""

from types import SimpleNamespace

import pytest

from tests.internals import _training_report


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
