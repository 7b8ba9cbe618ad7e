"""The package loads a name when it is asked for, and a command what it computes with
when it runs.
"""

import ast
import inspect
import pickle
import re
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest

import netsor as ns
from tests.internals import FAMILIAR_FUNCTIONS as FUNCTIONS
from tests.internals import FAMILIAR_METHODS_OF_PROGRAMS as PROGRAMS
from tests.internals import FAMILIAR_METHODS_OF_VALUES as VALUES
from tests.internals import _options, backends, language

API = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
COMPUTING = (
    "numpy",
    "scipy",
    "matplotlib",
    "tqdm",
    "threadpoolctl",
    "array_api_compat",
    "netsor.language",
)


def fresh(code):
    """What a new process prints."""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return process.stdout.splitlines()[-1]


def test_stub_lists_every_public_name_once():
    """Type checkers and the package read the same file; what the language exports is
    there too.
    """
    stub = Path(ns.__file__).with_suffix(".pyi").read_text().splitlines()
    imports = [line.split() for line in stub if line.startswith("from ")]
    names = [line[3] for line in imports]
    assert sorted(names) == ns.__all__
    # `import x`, so that type checkers export it
    assert all(line[4:] == ["as", line[3]] for line in imports)
    tree = ast.parse(Path(language.__file__).read_text())
    assert {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } <= set(names)


def test_api_page_lists_only_public_names():
    """That none is missing there is tested with the docstrings."""
    listed = set(re.findall(r"^::: netsor\.([a-zA-Z]\w*)", API, re.MULTILINE)) - {
        "jax",
        "sklearn",
        "studies",
        "torch",
    }
    assert listed <= set(ns.__all__)
    assert {"Program", "kl", "audit", "nn", "models", "paper"} <= listed


@pytest.mark.slow
def test_public_names_are_in_dir_in_star_imports_and_in_pickles():
    """`dir` before anything is loaded, `import *`, and pickle by module and name."""
    assert (
        fresh("import netsor; print(set(netsor.__all__) <= set(dir(netsor)))") == "True"
    )
    assert fresh(
        "from netsor import *; print(Width, nn.mlp, paper.layer, inf)"
    ).endswith("inf")
    assert all(getattr(ns, name) is not None for name in ns.__all__)
    assert pickle.loads(b"cnetsor\nProgram\n.") is ns.Program


def test_dir_lists_public_names_only_and_misspelt_names_get_a_hint():
    assert [
        name
        for name in fresh("import netsor; print(*dir(netsor))").split()
        if name[0] != "_"
    ] == ns.__all__
    with pytest.raises(AttributeError, match=r"did you mean ns\.AttentionRegressor"):
        _ = ns.AttentionRegresor


@pytest.mark.parametrize(
    ("owner", "name", "remedy"),
    [
        (ns, "batch_norm", r"Architectures in ten lines"),
        (ns, "softplus", r"np\.logaddexp"),
        (ns.nn, "conv", r"ns\.concat\(x\[windows\]"),
        (ns.nn, "atention", r"did you mean ns\.nn\.attention\?"),
        (ns.gaussian(8, 3), "max", r"p\.max\(axis=-1\)"),
        (ns.Program(ns.gaussian(8)), "ntk", r"ns\.ntk\(p\)"),
        (ns, "attention", r"ns\.nn\.attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_names_of_other_libraries_get_a_remedy(owner, name, remedy):
    with pytest.raises(AttributeError, match=remedy):
        getattr(owner, name)


def test_every_name_in_a_remedy_exists():
    owners = {"x": ns.gaussian(8, 3), "net": ns.Program(ns.gaussian(8)), "ns": ns}
    owners |= {"p": ns.normal(3), "np": np, "law": ns.Program(ns.gaussian(8)).law()}
    remedies = [*FUNCTIONS.values(), *VALUES.values(), *PROGRAMS.values()]
    chains = {
        chain
        for remedy in remedies
        for chain in re.findall(r"\b(?:ns|x|net|np|law)(?:\.[a-zA-Z_]\w*)+", remedy)
    }
    assert len(chains) > 40
    for chain in sorted(chains):
        first, *attributes = chain.split(".")
        value = owners[first]
        for attribute in attributes:
            value = getattr(value, attribute)


def test_no_hint_is_for_a_name_that_exists():
    assert not set(FUNCTIONS) & set(ns.__all__)
    assert not [name for name in FUNCTIONS if hasattr(ns.nn, name)]
    assert not [name for name in VALUES if hasattr(ns.gaussian(8, 3), name)]
    assert not [name for name in PROGRAMS if hasattr(ns.Program(ns.normal()), name)]


@pytest.mark.slow
def test_eight_threads_load_all_names_one_at_a_time():
    """Python's own locks fail where one thread imports a package and another, directly,
    a part of it.
    """
    code = """
import sys, threading, netsor as ns
load, together = ns.import_module, threading.Barrier(8)
inside, most, errors = [], [0], []
def counted(*names):
    inside.append(names)
    most[0] = max(most[0], len(inside))
    try:
        return load(*names)
    finally:
        inside.remove(names)
ns.import_module = counted
def touch(names):
    together.wait()
    try:
        for name in names: getattr(ns, name)
    except BaseException as error: errors.append(error)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=touch, args=(ns.__all__[k:] + ns.__all__[:k],)) for k in range(0, 64, 8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(most[0], errors)
"""
    assert fresh(code) == "1 []"


def test_no_file_of_the_package_imports_public_names_from_it():
    """It would wait for the thread that loads a name while that one may wait for this
    file.
    """
    for path in Path(ns.__file__).parent.rglob("*.py"):
        depth = len(path.relative_to(Path(ns.__file__).parent).parts)
        text = path.read_text()
        for node in (
            ast.walk(ast.parse(text)) if f"from {'.' * depth} import" in text else ()
        ):
            if (
                isinstance(node, ast.ImportFrom)
                and node.level == depth
                and node.module is None
            ):
                public_names = {alias.name for alias in node.names} & set(ns.__all__)
                assert not public_names or path.name == "__init__.py", (
                    f"{path}: import from their own modules: {public_names}"
                )


def test_interrupt_handler_is_installed_before_slow_imports():
    code = """
import signal, sys
class Log:
    def find_spec(name, *_):
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler: early.append(name)
early, sys.argv = [], ["netsor"]
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("typing", "pathlib", "threading", "contextlib"): sys.modules.pop(name, None)
sys.meta_path.insert(0, Log)
import netsor
print(early)
"""
    assert fresh(code) == "['netsor', 'netsor.runtime', 'netsor.runtime._early_sigint']"


def test_type_hints_of_public_functions_resolve():
    public = [getattr(ns, name) for name in ns.__all__]
    assert all(typing.get_type_hints(f) for f in public if inspect.isfunction(f))
    assert "Audit" in str(typing.get_type_hints(ns.audit)["return"])


def test_public_name_is_looked_up_once():
    assert (
        fresh(
            "import netsor; netsor.kl; print('kl' in vars(netsor), 'Program' in"
            " vars(netsor))"
        )
        == "True False"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--version",
        "--help",
        *(f"{name} --help" for name in ("law", "audit", "coord-check", "reproduce")),
    ],
)
def test_help_loads_no_numerical_library(arguments):
    code = (
        f"import sys, netsor.cli; sys.argv = ['netsor', *{arguments.split()}]\ntry:\n   "
        " netsor.cli.main()\nexcept SystemExit:\n    print([name for name in"
        f" {COMPUTING} if name in sys.modules])"
    )
    assert fresh(code) == "[]"


def test_making_a_value_loads_only_the_language():
    code = (
        "import sys, netsor as ns; ns.gaussian(ns.Width('n')); print([name for name in"
        " {} if name in sys.modules])"
    )
    assert (
        fresh(
            code.format(
                ("netsor.engine", "netsor.laws", "netsor.studies", "netsor.models")
            )
        )
        == "[]"
    )


def test_command_line_choices_equal_those_of_the_library():
    """They are written down in the command line, or its help would load the library."""
    assert list(_options.ACTIVATIONS) == sorted(ns.paper.ACTIVATIONS)
    assert list(_options.BACKENDS) == list(backends.NAMES)
    assert _options.PRECISIONS == backends.PRECISIONS


@pytest.mark.slow
def test_late_imports_ignore_files_next_to_the_program(tmp_path):
    """The file itself may import its neighbours, also later; netsor and its libraries
    do not.
    """
    for name in ("csv", "email", "socket", "calendar", "pprint", "scipy", "matplotlib"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py was run')")
    (tmp_path / "neighbour.py").write_text("import netsor as ns\nn = ns.Width('n')")
    (tmp_path / "mine.py").write_text(
        "from neighbour import n\ndef net():\n    import neighbour\n    return"
        " neighbour.ns.Program(neighbour.ns.relu(neighbour.ns.gaussian(n)))"
    )
    mine, plot = str(tmp_path / "mine.py:net"), tmp_path / "a.png"
    code = "import sys, netsor.cli; sys.argv = {}; netsor.cli.main()"
    last_line = fresh(code.format(["netsor", "check", mine]))
    assert last_line == "  holds  every width goes to infinity"
    fresh(
        code.format(
            [
                "netsor",
                "law",
                mine,
                "--bind",
                "n=4",
                "--draws",
                "100",
                "--plot",
                str(plot),
            ]
        )
    )
    assert plot.exists()
