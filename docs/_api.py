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
    """As a user writes it: ns.kl, ns.nn.attention; what has no public name, by its
    own.
    """
    public = not any(part.startswith("_") for part in path.split("."))
    return path.replace("netsor.", "ns.", 1) if public else path.rsplit(".", 1)[1]


def _file(path: str) -> str:
    """A class says so: `Audit` and `audit` would be one file where file names ignore
    case.
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
        found = _object(match[1]).docstring
        words = "" if found is None else found.value.split("\n\n")[0]
        return (
            f"- [`{_name(match[1])}`]({_file(match[1])}): {' '.join(words.split())}\n"
        )

    return re.sub(r"\n\n(?=- \[)", "\n", ENTRY.sub(line, markdown))
