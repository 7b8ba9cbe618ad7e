"""No two files of the language or of the laws import each other, neither at run time nor for the type checker."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import netsor

ROOT = Path(netsor.__file__).parent
FOLDERS = (ROOT / "language", ROOT / "laws")


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


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_circle(folder):
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    graph = {name: imports((folder / f"{name}.py").read_text(), files) for name in files}
    assert sum(map(len, graph.values())) > 30  # the imports were found
    assert circle(graph) is None


def test_a_circle_is_found():
    """Also through a third file, and where only the type checker looks."""
    hidden = "if TYPE_CHECKING:\n    from ._a import f"
    graph = {"_a": imports("from ._b import g", {"_a", "_b", "_c"}), "_b": {"_c"}, "_c": imports(hidden, {"_a"})}
    assert circle(graph) is not None


def test_laws_know_no_network():
    """Networks ask laws, and never the other way round: what is above them, `nn` and `engine`, they do not import."""
    found = set()
    for path in (ROOT / "laws").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 2:
                found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    assert found <= {"language", "activations", "_html", "_style", "_files"}


def documentation(source):
    """How many lines of a file are docstrings of classes and functions, which readers of the code pass over."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    documented = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds) and ast.get_docstring(node)]
    return sum(node.body[0].end_lineno - node.body[0].lineno for node in documented)


def test_files_are_short():
    for folder in FOLDERS:
        for path in folder.glob("*.py"):
            source = path.read_text()
            assert len(source.splitlines()) - documentation(source) <= 350, path.name


# Each may import those after it. A room is a folder or a file of the package.
ROOMS = (
    "__main__",
    "cli",
    "explore",
    "studies",
    "models",
    "_regressor",
    "_program",
    "_bayes",
    "nn",
    "engine",
    "laws",
    "language",
    "derivatives",
    "activations",
    "_html",
    "_style",
    "_files",
    "_start",
)


def rooms_of(path):
    """The other rooms that a file imports."""
    inside = path.relative_to(ROOT).parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == len(inside):  # from the package itself
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names}
    return {"studies" if name == "paper" else "_program" if name == "Program" else name for name in found}


def test_imports_go_downward():
    seen = set()
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        allowed = {*ROOMS[ROOMS.index(room) :], "__version__"}
        found = rooms_of(path)
        assert found <= allowed, f"{path.relative_to(ROOT)} imports {found - allowed}"
        seen |= {(room, other) for other in found}
    assert {("_program", "engine"), ("nn", "laws"), ("models", "nn"), ("studies", "models")} <= seen


def test_what_is_slow_to_import_is_imported_when_it_is_needed():
    """A command that ends at once, or that needs no plan, should not wait for it."""
    slow = (
        "scipy.stats",
        "scipy.signal",
        "scipy.optimize",
        "scipy.sparse.csgraph",
        "matplotlib",
        "sklearn",
        "jax",
        "torch",
    )
    code = f"import sys, netsor.cli; print([name for name in {slow} if name in sys.modules])"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
