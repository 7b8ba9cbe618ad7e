"""A hook of mkdocs: each notebook of examples/notebooks is run and becomes a page, with
what it prints and draws.
"""

import contextlib
import functools
import io
from pathlib import Path

import jupytext
import matplotlib
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs when it has found the pages in docs/."""
    index = [INTRODUCTION]
    for path in sorted(FOLDER.glob("*.py")):
        page, pictures = _run(path.stem, path.read_text())
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
        index.append(_entry(path.stem, page, list(pictures)))
    files.append(
        File.generated(config, "notebooks/index.md", content="\n\n".join(index))
    )
    return files


INTRODUCTION = """---
description: Six notebooks that run in seconds, with a thumbnail each.
---

# Notebooks

Each page is a notebook of `examples/notebooks`, run when these docs were built.
To change one, open it in JupyterLab (`pip install '.[notebooks]'` in a clone)."""


def _entry(stem: str, page: str, pictures: list[str]) -> str:
    """The title of a notebook, the docstring of its code, and its last figure as a
    thumbnail.
    """
    title = page.split("\n\n")[0].lstrip("# ")
    docstring = page.split('"""')[1]
    summary = " ".join(docstring.split())
    thumbnail = f'![{title}]({pictures[-1]}){{ width="320" }}'
    return f"## [{title}]({stem}.md)\n\n{summary}\n\n[{thumbnail}]({stem}.md)"


# a notebook that has not changed is not run again while the docs are watched
@functools.cache
def _run(stem: str, source: str) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook, and the pictures on it by their names."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    page: list[str] = []
    pictures: dict[str, bytes] = {}
    names: dict[str, object] = {"__name__": "__main__"}

    def show() -> None:
        for number in plt.get_fignums():
            name = f"{stem}-{len(pictures) + 1}.png"
            image = io.BytesIO()
            plt.figure(number).savefig(image, dpi=144, bbox_inches="tight")
            pictures[name] = image.getvalue()
            page.append(f"![A figure of this notebook]({name})")
        plt.close("all")

    original_show = plt.show
    plt.show = show
    try:
        for cell in jupytext.reads(source, fmt="py:percent").cells:
            if cell.cell_type == "markdown":
                page.append(cell.source)
                continue
            page.append(f"```python\n{cell.source}\n```")
            printed = io.StringIO()
            after_code = len(page)  # before the figures of this block
            with contextlib.redirect_stdout(printed):
                exec(compile(cell.source, f"{stem}.py", "exec"), names)
            if printed.getvalue().strip():
                page.insert(after_code, f"```text\n{printed.getvalue().rstrip()}\n```")
    finally:
        plt.show = original_show
        plt.close("all")
    page.append(
        f"This page is the notebook `examples/notebooks/{stem}.py`, as it ran when the"
        " docs were built. *Run* runs a block in your browser, after those before it;"
        " you can edit the code."
    )
    return "\n\n".join(page), pictures
