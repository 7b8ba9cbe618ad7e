"""The package loads a name when it is asked for, and a command what it computes with when it runs."""

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import netsor as ns
from netsor.cli import _options, _where
from netsor.engine import backends

SOURCE = Path(ns.__file__).read_text()
API = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
COMPUTING = ("numpy", "scipy", "matplotlib", "tqdm", "threadpoolctl", "array_api_compat", "netsor.language")


def fresh(code):
    """What a new process prints."""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return made.stdout.splitlines()[-1]


def seen_by_type_checkers():
    """The names that `if TYPE_CHECKING` imports, each with its module; modules with themselves."""
    (block,) = (node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f".{node.module or ''}" for node in found for alias in node.names}


def test_the_tables_have_every_public_name_and_agree_with_type_checkers():
    parents = {name: module.rpartition(".")[0] or "." for name, module in ns._MODULES.items()}
    assert ns._WHERE | parents == seen_by_type_checkers()
    assert sorted([*ns._WHERE, *ns._MODULES]) == sorted(ns.__all__)
    assert len(ns._WHERE) == sum(len(names.split()) for names in ns._NAMES.values())  # none stands twice


def test_the_documentation_lists_public_names():
    """That none is missing there is tested with the docstrings."""
    listed = set(re.findall(r"^::: netsor\.([a-zA-Z]\w*)", API, re.MULTILINE)) - {"studies"}
    assert listed <= set(ns.__all__)
    assert {"Program", "kl", "audit", "nn", "models", "paper"} <= listed


def test_names_are_there_for_all_who_look():
    """`dir` before anything is loaded, `import *`, and pickle by module and name."""
    assert fresh("import netsor; print(set(netsor.__all__) <= set(dir(netsor)))") == "True"
    assert fresh("from netsor import *; print(Width, nn.mlp, paper.layer, inf)").endswith("inf")
    assert all(getattr(ns, name) is not None for name in ns.__all__)
    assert pickle.loads(b"cnetsor\nProgram\n.") is ns.Program


def test_a_name_is_looked_up_once():
    assert fresh("import netsor; netsor.kl; print('kl' in vars(netsor), 'Program' in vars(netsor))") == "True False"


@pytest.mark.parametrize(
    "words", ["", "--version", "--help", *(f"{name} --help" for name in ("law", "audit", "coord-check", "reproduce"))]
)
def test_what_computes_is_not_loaded_to_print_help(words):
    code = (
        f"import sys, netsor.cli; sys.argv = ['netsor', *{words.split()}]\n"
        "try:\n    netsor.cli.main()\n"
        f"except SystemExit:\n    print([name for name in {COMPUTING} if name in sys.modules])"
    )
    assert fresh(code) == "[]"


def test_a_value_loads_no_more_than_the_language():
    code = "import sys, netsor as ns; ns.gaussian(ns.Width('n')); print([name for name in {} if name in sys.modules])"
    assert fresh(code.format(("netsor.engine", "netsor.laws", "netsor.studies", "netsor.models"))) == "[]"


def test_options_list_what_the_library_has():
    """They are written down in the command line, or its help would load the library."""
    assert list(_options.ACTIVATIONS) == sorted(ns.paper.ACTIVATIONS)
    assert list(_where.BACKENDS) == list(backends.NAMES)
    assert _where.PRECISIONS == backends.PRECISIONS
