"""No two files of the package import each other: at run time, for the type checker, or
inside a function.
"""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import netsor

ROOT = Path(netsor.__file__).parent


@cache
def from_imports(text):
    """All statements `from … import …` of a file, wherever they stand."""
    statements = []
    pending = [ast.parse(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ImportFrom):
            statements.append(node)
        for field in BLOCKS:
            pending += getattr(node, field, [])
    return statements


# fields that hold statements: those of expressions, which are many, hold none
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


FILES = {path.relative_to(ROOT).with_suffix("").parts for path in ROOT.rglob("*.py")}


def imports(text, here, files):
    """The files that a file imports, wherever in it the import stands; of a folder, the
    file that is run for it.
    """
    found = set()
    for node in from_imports(text):
        if node.level:
            folder = (
                *here[: -node.level],
                *(node.module.split(".") if node.module else ()),
            )
            for alias in node.names:
                named = [
                    (*folder, alias.name),
                    (*folder, alias.name, "__init__"),
                    folder,
                    (*folder, "__init__"),
                ]
                found |= set([name for name in named if name in files][:1])
    return found - {here}


def circle(graph):
    """Files that import each other in a circle, if there are any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_packages_have_no_import_cycle():
    """The package's own `__init__` imports everything, and a few files ask it for the
    version.
    """
    files = FILES - {("__init__",)}
    graph = {
        here: imports(ROOT.joinpath(*here).with_suffix(".py").read_text(), here, files)
        for here in files
    }
    assert sum(map(len, graph.values())) > 1000  # the imports were found
    assert circle(graph) is None


def test_import_cycle_is_found():
    """Also through a third file, another folder, where only the type checker looks, and
    inside a function.
    """
    files = {("x", "_a"), ("x", "_b"), ("x", "y", "_c"), ("x", "y", "__init__")}
    hidden = "if TYPE_CHECKING:\n    from .._a import f"
    inside = "def f():\n    from ._b import g"
    b, c = ("x", "_b"), ("x", "y", "_c")
    whole = {
        b: imports("from .y import h", b, files),
        ("x", "y", "__init__"): imports(
            "from ._c import h", (*c[:2], "__init__"), files
        ),
    }
    for last in (imports(hidden, c, files), imports("from .. import _a", c, files)):
        assert (
            circle({("x", "_a"): imports(inside, ("x", "_a"), files), **whole, c: last})
            is not None
        )


def test_laws_know_no_network():
    """Networks ask laws, and never the other way round: what is above them, `nn` and
    `engine`, they do not import.
    """
    found = set()
    for path in (ROOT / "laws").rglob("*.py"):
        found |= rooms_of(path)
    assert found <= {
        "language",
        "functions",
        "report",
        "runtime",
        "_array_api",
        "_sobol",
        "_validate",
    }


# Each may import those after it. A room is a folder or a file of the package.
ROOMS = (
    "__main__",
    "_browser_cells",
    "cli",
    "explore",
    "pytest_plugin",
    "paper",
    "papers",
    "studies",
    "torch",
    "jax",
    "maximal_update",
    "checks",
    "reader",
    "models",
    "sklearn",
    "programs",
    "posterior",
    "nn",
    "engine",
    "laws",
    "language",
    "optim",
    "functions",
    "report",
    "runtime",
    "_array_api",
    "_sobol",
    "_validate",
    "_familiar_names",
)


def rooms_of(path):
    """The other rooms that a file imports."""
    inside = path.relative_to(ROOT).parts
    found = set()
    for node in from_imports(path.read_text()):
        # from the package itself
        if node.level == len(inside):
            names = (
                [node.module] if node.module else [alias.name for alias in node.names]
            )
            found |= {name.split(".")[0] for name in names}
    return {"programs" if name == "Program" else name for name in found}


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
    assert {
        ("programs", "engine"),
        ("nn", "laws"),
        ("models", "nn"),
        ("studies", "models"),
    } <= seen


def test_slow_libraries_are_imported_when_needed():
    """A command that ends at once, or that needs no plan, should not wait for it; a
    plan needs nothing of scipy.
    """
    modules = ("programs._program", "cli._subject", "cli._run_study")
    slow = (
        "scipy.special",
        "scipy.sparse",
        "scipy.linalg",
        "scipy.stats",
        "scipy.signal",
        "scipy.optimize",
        "netsor.engine.expect",
        "matplotlib",
        "sklearn",
        "jax",
        "torch",
    )
    loaded = ", ".join(f"netsor.{module}" for module in modules)
    code = (
        f"import sys, {loaded}; print([name for name in {slow} if name in sys.modules])"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert made.stdout.strip() == "[]"


def test_numpy_computation_needs_no_other_namespace():
    """That of array_api_compat for numpy loads numpy's tests and its compiler of
    Fortran.
    """
    code = (
        "import sys, netsor as ns; ns.paper.layer(tokens=4, heads=2).law(n=16,"
        " draws=10, progress=False); print([name for name in ('array_api_compat.numpy',"
        " 'numpy.testing', 'numpy.f2py') if name in sys.modules])"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert made.stdout.strip() == "[]"


def is_private(module, name):
    """Whether a test that imports this name knows the inside of the package."""
    folders = [
        "nn",
        "models",
        "optim",
        "paper",
        "papers",
        "studies",
        "torch",
        "sklearn",
        "cli",
    ]
    public = {"netsor", *(f"netsor.{folder}" for folder in folders)}
    return module not in public or name.startswith("_")


def test_tests_import_private_names_from_one_file():
    """After a move only tests/internals.py changes."""
    folder = Path(__file__).parent.parent
    private = set()
    for path in folder.rglob("*.py"):
        text = path.read_text()
        # to parse every file takes seconds
        if path.name == "internals.py" or "from netsor" not in text:
            continue
        for node in from_imports(text):
            if node.level or not node.module:
                continue
            if node.module.split(".")[0] == "netsor":
                private |= {
                    f"{path.relative_to(folder)}: {node.module}.{alias.name}"
                    for alias in node.names
                    if is_private(node.module, alias.name)
                }
    assert private == set()
