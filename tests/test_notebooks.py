"""The notebooks run as scripts and draw a figure, and jupytext reads them as
notebooks.
"""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.py"))


def test_notebook_list_is_complete():
    assert NOTEBOOKS == [
        "bayesian_prior",
        "layer_from_scratch",
        "low_rank_heads",
        "own_activation",
        "recurrent_net",
        "why_heads_matter",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(name, capsys, monkeypatch, tmp_path):
    # slow to import, as jupytext is: by the one process that needs it
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    plt.close("all")  # what earlier tests of this process left open
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(plt.get_fignums()))
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        assert shown
        for number in shown:
            axes = plt.figure(number).axes
            assert axes
            assert all(a.get_xlabel() and a.get_ylabel() for a in axes)
    finally:
        plt.close("all")
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir())  # a notebook writes no files


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_has_title_and_no_outputs(name):
    import jupytext  # takes four seconds

    notebook = jupytext.read(FOLDER / f"{name}.py")
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    cells = notebook.cells
    assert {cell.cell_type for cell in cells} == {"markdown", "code"}
    assert cells[0].source.startswith("# ")  # a title
    assert "**Try next:**" in cells[-1].source
    assert all(cell.outputs == [] for cell in cells if cell.cell_type == "code")
    assert all(cell.source.strip() for cell in cells)
