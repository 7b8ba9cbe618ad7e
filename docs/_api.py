"""A hook of mkdocs: every object that docs/api.md names with ::: becomes a page, and
docs/api.md the list of them.
"""

import re
from functools import cache
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OPTIONS = (
    "      heading_level: 1\n      show_root_full_path: false\n     "
    " separate_signature: true\n"
)
ENTRY = re.compile(r"^::: (netsor[\w.]*)\n((?: .*\n)*)", re.MULTILINE)


@cache
def _package() -> griffe.Object | griffe.Alias:
    """Read, not imported: PyTorch need not be installed for its pages."""
    root = Path(__file__).parent.parent
    return griffe.load(
        "netsor",
        search_paths=[root / "src"],
        resolve_aliases=True,
        resolve_external=True,
    )


def _object(path: str) -> griffe.Object | griffe.Alias:
    return _package()[path.removeprefix("netsor.")]


def _name(path: str) -> str:
    """The name that a user writes, such as ns.nn.attention; for a private object the
    last part of its path.
    """
    is_private = any(part.startswith("_") for part in path.split("."))
    if is_private:
        return path.rsplit(".", 1)[1]
    return path.replace("netsor.", "ns.", 1)


def _file(path: str) -> str:
    """The file of a page; a class has .class.md, because `Audit` and `audit` are one
    file where file names ignore case.
    """
    kind = ".class" if _object(path).is_class else ""
    return f"api/{_name(path).removeprefix('ns.')}{kind}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs when it has found the pages in docs/."""
    source = files.get_file_from_path("api.md")
    assert source is not None
    for path, options in ENTRY.findall(source.content_string):
        options = (options or "    options:\n") + OPTIONS
        page = (
            f"---\ntitle: {_name(path)}\nsearch:\n  boost: 0.3\n---\n\n:::"
            f" {path}\n{options}\n[All names](../api.md)\n"
        )
        files.append(File.generated(config, _file(path), content=page))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """The list: a line for each object, with the first sentence of its docstring."""
    if page.file.src_uri != "api.md":
        return markdown

    def line(match: re.Match[str]) -> str:
        path = match[1]
        docstring = _object(path).docstring
        summary = "" if docstring is None else docstring.value.split("\n\n")[0]
        return f"- [`{_name(path)}`]({_file(path)}): {' '.join(summary.split())}\n"

    return re.sub(r"\n\n(?=- \[)", "\n", ENTRY.sub(line, markdown))
