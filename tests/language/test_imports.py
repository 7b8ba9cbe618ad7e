"""No two files of the language import each other, neither at run time nor for the type checker."""

import ast
from pathlib import Path

import netsor.language

FOLDER = Path(netsor.language.__file__).parent


def imports(text, files):
    """The files of the folder that a file imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return found & files


def circle(graph):
    """A file from which following imports leads back to it, if there is one."""
    for start in graph:
        seen, pending = set(), list(graph[start])
        while pending:
            file = pending.pop()
            if file == start:
                return start
            if file not in seen:
                seen.add(file)
                pending += graph[file]
    return None


def test_no_circle():
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    graph = {name: imports((FOLDER / f"{name}.py").read_text(), files) for name in files}
    assert sum(map(len, graph.values())) > 30  # the imports were found
    assert circle(graph) is None


def test_a_circle_is_found():
    """Also through a third file, and where only the type checker looks."""
    hidden = "if TYPE_CHECKING:\n    from ._a import f"
    graph = {"_a": imports("from ._b import g", {"_a", "_b", "_c"}), "_b": {"_c"}, "_c": imports(hidden, {"_a"})}
    assert circle(graph) is not None


def test_files_are_short():
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 360, path.name
