"""A check of real numbers at step 0 against the laws that are declared for them.

The numbers are those of a model, of a pytree, or of a fresh initialisation. Each
parameter is compared with its law, and one forward and backward pass with draws of the
exact law of its quantities, by the tests of `netsor.checks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from .._array_api import Floats
from .._validate import ArgumentError, counted, real, seed_number, whole
from ..checks._findings import InitFinding, holm
from ..checks._init_check import DECLARED, OWN, InitCheck, depths_differ
from ..checks._parameter_tests import (
    PREFIX,
    Entries,
    NumberType,
    correlation_tests,
    parameter_tests,
)
from ..checks._pass import FEWEST_DRAWS, PassFindings, pass_findings
from ..checks._reference import Reference, reference_of_network
from ..reader._declared_laws import Declaration, check_declared, with_declared
from ..reader._laws import Parameter, Parameters
from ..reader._structure import Structure
from ._initialisers import SAMPLES
from ._models import Leaves, functions_of_instance, is_constructor
from ._network import read_network, token_ids
from ._parameters import Drawn, drawn
from ._passes import forward_backward, real_structure

EXACT = 10**9  # initialisations that an exact law stands for
PARAMETERS_ONLY = "parameters_only=True"
NO_REFERENCE = (
    "no reference was given: the numbers are compared with the initialisation of the"
    " model's own code"
)


def check_init(
    model: Any,
    *inputs: Any,
    numbers: Any = None,
    reference: Any = None,
    declared: Mapping[str, Declaration] | None = None,
    parameters_only: bool = False,
    draws: int = 300,
    level: float = 1e-3,
    seed: int = 0,
    **options: Any,
) -> InitCheck:
    """Check the real numbers of a JAX model, before training, against their law.

    Every parameter is tested for its mean, standard deviation, shape of distribution,
    rows and columns and correlations. Then the model runs forward and backward once,
    and its activations, attention entropy, logits, loss and gradient norms are compared
    with draws of their exact law. If the forward pass cannot be read, only the
    parameters are checked, and the result says so.

    Parameters
    ----------
    model : callable, flax.linen.Module or tuple
        As in `ns.jax.program`.
    *inputs : array
        As in `ns.jax.program`. For a function of a key that makes a model of Flax NNX
        or Equinox with a table of words, 16 ids by default.
    numbers : pytree, optional
        The numbers of step 0: the parameters as the model takes them, a model of Flax
        NNX or Equinox, or a mapping of paths to arrays. By default those that the
        model draws with `jax.random.key(seed)`.
    reference : optional
        The declared initialisation: a model in the same form, whose parameters have the
        same paths. None: that of the model itself.
    declared : mapping of str to float, scipy.stats distribution, Parameter or list
        Laws of parameters by name or pattern; they replace those of the reference.
    parameters_only : bool
        Leave out the forward and backward pass.
    draws : int
        The number of draws of the law of a pass, 100 or more.
    level : float
        The probability of a false alarm in all tests together.
    seed : int
        The seed of the draws, and of the numbers if none are given.
    **options
        Options of the call, such as `deterministic=True`.

    Examples
    --------
    >>> def build(key):
    ...     return GPT(Config(), rngs=nnx.Rngs(key))
    >>> print(ns.jax.check_init(build, ids))  # doctest: +SKIP
    >>> ns.jax.check_init(build, ids, numbers=model).ok  # doctest: +SKIP
    True
    """
    level = real(level, "level", above=0, most=0.5)
    seed = seed_number(seed)
    draws = whole(draws, "draws", least=FEWEST_DRAWS, why=": fewer show no tail")
    check_declared(declared)
    if not inputs and not parameters_only and is_constructor(model):
        inputs = (token_ids(model, None),)
    subject = _subject(model, inputs, reference, declared, parameters_only, options)
    arrays = _numbers(subject.parts, numbers, seed)
    # half of the level is for the pass, if it is checked
    level_of_pass = 0.0 if subject.problem else level / 2
    of_parameters = _parameter_findings(arrays, subject.laws, level - level_of_pass)
    of_pass = PassFindings([], tests=0, checked="", problem=subject.problem)
    if subject.net is not None:
        run = partial(forward_backward, subject.net, arrays)
        of_pass = pass_findings(
            subject.net, run, subject.known, draws, seed, level=level_of_pass
        )
    findings = [*of_parameters.findings, *of_pass.findings]
    has_reference = reference is not None or bool(declared)
    return InitCheck(
        name=subject.parts.functions.name,
        reference=_reference_name(subject, reference, declared),
        findings=findings,
        first=findings[0] if findings else None,
        tests=of_parameters.tests + of_pass.tests,
        parameters=len(arrays),
        unchecked=[name for name in arrays if name not in of_parameters.tested],
        undeclared=[name for name in arrays if name not in subject.laws],
        checked_pass=of_pass.checked,
        draws=draws if of_pass.checked else 0,
        notes=_notes(of_pass, has_reference, parameters_only),
        parameters_only=parameters_only,
        other_depth=subject.other_depth,
    )


def _reference_name(
    subject: Subject, reference: Any, declared: Mapping[str, Declaration] | None
) -> str:
    """What the numbers are compared with, as the report calls it."""
    if reference is not None:
        return subject.known.name
    return DECLARED if declared else OWN


def _notes(
    of_pass: PassFindings, has_reference: bool, parameters_only: bool
) -> list[str]:
    """What the report says besides its findings."""
    notes = []
    if of_pass.problem and not parameters_only:
        notes.append(
            f"the forward and backward pass was not checked: {of_pass.problem}"
        )
    if not has_reference:
        notes.append(NO_REFERENCE)
    return notes


class Subject(NamedTuple):
    """A model, and what it is compared with."""

    parts: Drawn
    laws: Parameters  # declared ones of the parameters
    known: Reference
    net: Structure | None  # the parts of the model; None if its pass is not compared
    problem: str  # why the pass is not compared; "": it is
    other_depth: str = ""  # that the reference has another number of blocks


def _subject(
    model: Any,
    inputs: Sequence[Any],
    reference: Any,
    declared: Mapping[str, Declaration] | None,
    parameters_only: bool,
    options: Mapping[str, Any],
) -> Subject:
    """The laws of a model and of one pass of it.

    The pass is not compared if it cannot be read, or has other blocks than that of the
    reference; `problem` says which.
    """
    parts = drawn(model, tuple(inputs))
    laws = parts.laws
    if reference is not None:
        laws = drawn(reference, tuple(inputs)).laws
    rows = {name: _law_of(name, laws, own) for name, own in parts.laws.items()}
    every = Parameters(with_declared(rows, declared or {}), laws.samples)
    without_pass = Subject(
        parts=parts,
        laws=Parameters(_comparable(every), 0),
        known=Reference(
            name=parts.functions.name,
            probes=None,
            targets=None,
            laws=every,
            stds={},
            tied=False,
        ),
        net=None,
        problem=PARAMETERS_ONLY,
    )
    if parameters_only:
        return without_pass
    reference_model = model if reference is None else reference
    try:
        # a reference may have more parameters, of more blocks
        of_both = Parameters({**laws, **every}, laws.samples)
        net = read_network(reference_model, inputs, laws=of_both, **options)
        structure = real_structure(model, inputs, parts.laws, options)
    except ArgumentError:
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        return without_pass._replace(problem=" ".join(str(error).split()))
    pass_law = reference_of_network(net, every)
    count = len(structure.blocks)
    expected = len(pass_law.masks)
    if count != expected:
        problem = f"it has {counted(count, 'block')}, and the reference has {expected}"
        other_depth = depths_differ(count, expected)
        return without_pass._replace(problem=problem, other_depth=other_depth)
    return without_pass._replace(known=pass_law, net=structure, problem="")


def _comparable(laws: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The laws that numbers can be compared with: known ones, and those of samples."""
    return {
        name: law
        for name, law in laws.items()
        if law.law != "unknown" or isinstance(law.value, tuple)
    }


def _law_of(name: str, laws: Parameters, own: Parameter) -> Parameter:
    """The declared law of a parameter; "unknown" if the reference has none."""
    law = laws.get(name)
    if law is not None and law.shape == own.shape:
        return law
    return replace(own, law="unknown", entries=None, value=None)


def _numbers(parts: Drawn, numbers: Any, seed: int) -> dict[str, Any]:
    """The arrays of the parameters that are floating point, by their paths."""
    arrays = _leaves_of_numbers(parts, numbers, seed)
    by_name = {}
    leaves = parts.leaves
    for name, expected, x in zip(leaves.names, leaves.arrays, arrays, strict=True):
        if tuple(x.shape) != tuple(expected.shape):
            raise ArgumentError(
                "numbers",
                tuple(x.shape),
                f"of shape {tuple(expected.shape)} for {name}",
            )
        if jax.numpy.issubdtype(x.dtype, np.floating):
            by_name[name] = jax.numpy.asarray(x)
    return by_name


def _leaves_of_numbers(parts: Drawn, numbers: Any, seed: int) -> list[Any]:
    """All arrays of the parameters: those of the user, of the model, or new draws."""
    if numbers is not None:
        return _leaves_of_user(numbers, parts.leaves.names, parts.leaves.structure)
    init = parts.functions.init
    if init is None:
        return parts.leaves.arrays
    return list(jax.tree.leaves(init(jax.random.key(seed))))


def _leaves_of_user(numbers: Any, names: Sequence[str], structure: Any) -> list[Any]:
    """The leaves of the numbers that a user passes, in the order of the model's.

    They are found by name, or else by order if the trees have the same structure.
    """
    instance = functions_of_instance(numbers)
    tree = numbers if instance is None else instance.parameters
    leaves = Leaves.of(tree)
    by_name = dict(zip(leaves.names, leaves.arrays, strict=True))
    if isinstance(numbers, Mapping):
        by_name |= {name: x for name, x in numbers.items() if hasattr(x, "shape")}
    missing = [name for name in names if name not in by_name]
    if not missing:
        return [by_name[name] for name in names]
    if leaves.structure == structure:
        return leaves.arrays
    raise ArgumentError(
        "numbers",
        type(numbers).__name__,
        f"the parameters of the model; they lack {missing[0]}",
    )


class ParameterFindings(NamedTuple):
    """Departures of parameters from their laws."""

    findings: list[InitFinding]
    tests: int
    tested: set[str]  # the parameters that a test looked at by itself


def _parameter_findings(
    numbers: Mapping[str, Any], laws: Mapping[str, Parameter], level: float
) -> ParameterFindings:
    """The departures of parameters, at a level for all of them together."""
    tests: list[InitFinding] = []
    first_entries: dict[str, Floats] = {}  # of each parameter, to test correlations
    for name, x in numbers.items():
        entries = _entries(x)
        law = laws.get(name)
        if law is None:
            continue
        tests += _tests_of(name, entries, law, numbers)
        if np.isfinite(entries.numbers).all():
            first_entries[name] = entries.numbers.ravel()[:PREFIX]
    tested = {_parameter_name(test) for test in tests}
    tests += correlation_tests(first_entries, laws)
    adjusted = holm([test.p for test in tests])
    findings = [
        replace(test, p=float(p))
        for test, p in zip(tests, adjusted, strict=True)
        if p < level
    ]
    order = {name: k for k, name in enumerate(numbers)}
    findings.sort(key=lambda test: order[_parameter_name(test)])
    return ParameterFindings(findings, tests=len(tests), tested=tested)


def _parameter_name(test: InitFinding) -> str:
    """The parameter that a test is about: "weight" of "weight[0:64]"."""
    return test.where.partition("[")[0]


def _tests_of(
    name: str, entries: Entries, law: Parameter, numbers: Mapping[str, Any]
) -> Iterator[InitFinding]:
    """The tests of one parameter by itself."""
    if law.law == "copy" and law.of is not None and law.of in numbers:
        original = np.asarray(numbers[law.of], dtype=float)
        is_same = np.array_equal(entries.numbers, original)
        text = f"expected the numbers of {law.of}, found others"
        yield InitFinding(where=name, what="tie", p=1.0 if is_same else 0.0, text=text)
        return
    # a measured law has the errors of its samples
    samples = SAMPLES if law.std_error else EXACT
    yield from parameter_tests(name, entries, law, samples)


def _entries(x: Any) -> Entries:
    """The entries of an array."""
    about = jax.numpy.finfo(x.dtype)
    kind = NumberType(
        str(x.dtype),
        eps=float(about.eps),
        least=float(about.smallest_normal) * float(about.eps),
        largest=float(about.max),
    )
    return Entries(np.asarray(x, dtype=float), kind, kind)
