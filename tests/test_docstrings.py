"""Every public name has a docstring in numpy's form, whose examples run and print what
they say.

Public are the names of `ns`, `ns.nn` and `ns.models`, what docs/api.md has a page for,
and the methods and properties of public classes. A function lists its parameters and
has an example; a class lists the parameters of its constructor, or its attributes, and
has the examples for all its methods. Parameters that two functions share are described
once: "the parameters are those of `law`". A class that only the library makes needs no
example: the function that returns it has one. A property needs one line, and so does a
method with at most one parameter. A function or method whose result is not a law, a
value, a number or text by its annotation says under "Returns" what the result holds.
Modules have an example too.
"""

import dataclasses
import doctest
import functools
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import netsor as ns
from tests.internals import _process_pool
from tests.internals import studies_study as _study

from .inline import Inline
from .keep import keep

API = Path(__file__).parent.parent / "docs" / "api.md"
# what the regressor needs
HAS_SKLEARN = importlib.util.find_spec("sklearn") is not None
PAGES = [
    pkgutil.resolve_name(page)
    for page in re.findall(r"^::: (netsor\S+)", API.read_text(), re.MULTILINE)
    # tests/peers has those of PyTorch and JAX
    if (HAS_SKLEARN or ".sklearn" not in page)
    and ".torch." not in page
    and ".jax." not in page
]
EXPORTED = [
    getattr(module, name)
    for module in (ns, ns.nn, ns.models, ns.paper)
    for name in module.__all__
]
FINDER = doctest.DocTestFinder(exclude_empty=True, recurse=False)
ITEM = re.compile(r"^\*{0,2}(\w+(?:, \w+)*)(?: :.*)?$", re.MULTILINE)
SHARED = re.compile(r"parameters\s+are\s+those\s+of\s+`([\w.]+)`")
RESULT = re.compile(r"The result of `\w+`|A point of a `Report`")
PROPERTIES = (property, functools.cached_property)
# Results that an annotation explains: nothing, numbers and text; values of the language
# and the type variables that stand for them; laws; and the objects whose methods are
# the library.
EXPLAINED = {
    *("None", "bool", "int", "float", "str", "Estimate", "Self", "Path"),
    *("Value", "Vector", "Scalar", "Weight", "V", "X", "Stopped"),
    *("Law", "Mixture", "HeadSum", "Joint"),
    *("Program", "Traced", "P", "Transformer", "Plan", "Probes", "Report"),
    "AttentionRegressor",
}
# A task of a study tells all that its numbers depend on, and many examples have one in
# common.
COMPUTED, COMPUTE = {}, _study.compute
RATE, RATES = ns.rate, {}


def members(kind):
    """The public methods and properties of a class that are ours, by the names of the
    classes that define them.
    """
    fields = (
        {field.name for field in dataclasses.fields(kind)}
        if dataclasses.is_dataclass(kind)
        else set()
    )
    for base in kind.__mro__:
        if base.__module__.startswith("netsor"):
            for name, found in vars(base).items():
                function = getattr(found, "__func__", found)
                ours = inspect.isfunction(function) or isinstance(found, PROPERTIES)
                if ours and name not in fields and not name.startswith("_"):
                    yield f"{base.__name__}.{name}", function


def public():
    """Every public name, once."""
    modules = {"": ns, "nn.": ns.nn, "models.": ns.models, "paper.": ns.paper}
    found = {module.__name__: module for module in modules.values()}
    things = {
        f"{of}{name}": getattr(module, name)
        for of, module in modules.items()
        for name in module.__all__
    }
    things |= {page.__name__: page for page in PAGES if page not in things.values()}
    for name, thing in things.items():
        # numbers, tables and modules say what they are in docs/
        if callable(thing) and thing not in found.values():
            found[name] = thing
            if inspect.isclass(thing):
                found |= dict(members(thing))
    return found


PUBLIC = public()


def test_every_public_name_has_a_page():
    modules = (ns, ns.nn, ns.models, ns.paper)
    things = [getattr(module, name) for module in modules for name in module.__all__]
    assert [thing for thing in things if callable(thing) and thing not in PAGES] == []


def sections(thing):
    """The parts of a docstring by their headings."""
    parts = re.split(r"^(\w+)\n-{3,}$", inspect.getdoc(thing) or "", flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def parameters(thing):
    """The names of what a function or a constructor takes."""
    if inspect.isclass(thing) and issubclass(thing, ns.Value):
        # values are made by the functions of the language, not by their constructors
        return set()
    return set(inspect.signature(thing).parameters) - {"self", "cls"}


def described(thing):
    """The names of the parameters that a docstring describes, itself or by the name of
    another function.
    """
    found = sections(thing)
    rows = ITEM.findall(found.get("Parameters", "") + found.get("Attributes", ""))
    names = {name for row in rows for name in row.split(", ")}
    for other in SHARED.findall(found[""]):
        owner = thing.__qualname__.rpartition(".")[0]
        paths = (f"{owner}.{other}", other, f"nn.{other}")
        names |= described(next(PUBLIC[path] for path in paths if path in PUBLIC))
    return names


def defaults(thing, row):
    """The defaults of parameters that are described together: the page shows the first
    of them for all.
    """
    takes = inspect.signature(thing).parameters if ", " in row else {}
    return {repr(takes[name].default) for name in row.split(", ") if name in takes}


def is_method(thing):
    """Whether a function is defined in a class."""
    return (
        inspect.isfunction(thing)
        and thing.__qualname__.rpartition("<locals>.")[2].count(".") > 0
    )


def explains_result(function):
    """Whether the annotation of a function says what it returns."""
    annotation = inspect.signature(function).return_annotation
    if not isinstance(annotation, str):
        annotation = inspect.formatannotation(annotation)
    # the name of a class without its module
    return set(re.findall(r"\w+\b(?!\.)", annotation)) <= EXPLAINED


def missing(thing):
    """What the docstring of a public name lacks."""
    found = sections(thing)
    lacks = [] if found[""].strip() else ["a first line"]
    if isinstance(thing, PROPERTIES) or (
        is_method(thing) and "Parameters" not in found and len(parameters(thing)) < 2
    ):
        return lacks
    returned = inspect.isclass(thing) and (
        thing not in EXPORTED or RESULT.match(found[""])
    )
    lacks += (
        []
        if is_method(thing) or returned or ">>>" in found.get("Examples", "")
        else ["Examples"]
    )
    if inspect.ismodule(thing):
        return lacks
    if not (inspect.isclass(thing) or "Returns" in found or explains_result(thing)):
        lacks.append("Returns")
    lacks += [
        f"parameter {name}" for name in sorted(parameters(thing) - described(thing))
    ]
    rows = ITEM.findall(found.get("Parameters", "") + found.get("Attributes", ""))
    return lacks + [
        f"one default for {row}" for row in rows if len(defaults(thing, row)) > 1
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_has_all_sections(name):
    assert missing(PUBLIC[name]) == []


def test_missing_sections_are_reported():
    def bare(x, *rest, **more) -> int:
        """A line alone."""
        return x

    def together(x=1, y=2, z=2) -> None:
        """A line.

        Parameters
        ----------
        x, y : int
            Two that differ.
        z : int
            One.

        Examples
        --------
        >>> together()
        """

    def unexplained(x) -> dict[str, float]:
        """A line.

        Parameters
        ----------
        x : int
            A number.

        Examples
        --------
        >>> unexplained(1)
        """

    def explained(x) -> ns.Mixture | ns.Joint:
        """A line.

        Parameters
        ----------
        x : int
            A number.

        Examples
        --------
        >>> explained(1)
        """

    def referring(names, dtype) -> None:
        """A line. Other parameters are those of `total_variation`.

        Parameters
        ----------
        names : list
            Some.

        Examples
        --------
        >>> referring([], float)
        """

    assert missing(bare) == [
        "Examples",
        "parameter more",
        "parameter rest",
        "parameter x",
    ]
    assert missing(together) == ["one default for x, y"]
    assert missing(referring) == ["parameter dtype"]
    assert missing(unexplained) == ["Returns"]
    assert missing(explained) == []
    assert missing(property(bare)) == []

    class Kind:
        def one(self, x) -> dict:
            """A line alone."""

        def two(self, x, y) -> float:
            """A line alone."""

        def none(self):
            pass

    assert missing(Kind.one) == []
    assert missing(Kind.two) == ["parameter x", "parameter y"]
    assert missing(Kind.none) == ["a first line"]


def examples():
    found = {}
    for name, thing in PUBLIC.items():
        function = getattr(thing, "fget", None) or getattr(thing, "func", None) or thing
        for test in FINDER.find(
            inspect.unwrap(function), name, module=False, globs={"ns": ns, "np": np}
        ):
            found[name] = test
    return found


EXAMPLES = examples()
STUDIES = {"transfer", "width_needed", "literature"}  # which take seconds


def rated(net, widths, **how):
    """Examples of rates have one in common too."""
    asked = str(net), *widths, *how.items()
    if asked not in RATES:
        RATES[asked] = RATE(net, widths, **how)
    return RATES[asked]


def computed(task, folder=None):
    """What a task computes, once, unless it is kept in a folder."""
    if folder is not None:
        return COMPUTE(task, folder)
    if task not in COMPUTED:
        COMPUTED[task] = COMPUTE(task)
    return COMPUTED[task]


@pytest.mark.parametrize("name", keep(EXAMPLES, *(set(EXAMPLES) - STUDIES)))
def test_examples_print_what_they_say(name, monkeypatch):
    matplotlib.use("Agg")
    # the same bits, and no process to begin
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    monkeypatch.setattr(_study, "compute", computed)
    monkeypatch.setattr(ns, "rate", rated)
    said = []
    runner = doctest.DocTestRunner(
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    runner.run(EXAMPLES[name], out=said.append)
    assert runner.failures == 0, "".join(said)


# Classes and functions that only this package uses, and that a reader begins with
INTERNAL = [
    "netsor.engine.lower",
    "netsor.engine.lower._state",
    "netsor.engine.plan._plan_query",
    "netsor.language.values._array",
]


@pytest.mark.parametrize("module", INTERNAL)
def test_examples_of_internal_modules_run(module):
    results = doctest.testmod(
        importlib.import_module(module), extraglobs={"ns": ns, "np": np}
    )
    assert results.attempted > 0
    assert results.failed == 0
