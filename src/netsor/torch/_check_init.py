"""A check of real weights at step 0 against the laws that are declared for them.

Two things are compared with a `Reference`: each parameter, by the tests of
`_init_tests`, and one forward and backward pass, by its quantities (mean squares,
attention entropy, loss, gradients) among draws of their exact law. What cannot be
compared is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._array_api import Bools, Floats
from .._validate import ArgumentError, as_number, counted, seed_number, whole
from ..checks._findings import InitFinding, holm
from ..checks._init_check import (
    DECLARED,
    OF_PARAMETERS,
    OWN,
    InitCheck,
    depths_differ,
    first_of,
)
from ..checks._parameter_tests import (
    PREFIX,
    Entries,
    NumberType,
    correlation_tests,
    parameter_tests,
)
from ..checks._pass import (
    FEWEST_DRAWS,
    Found,
    Pass,
    PassFindings,
    pass_findings,
    quantities_of,
    watched,
)
from ..checks._reference import Reference
from ..models import read
from ..reader._declared_laws import Declaration, check_declared, with_declared
from ..reader._graph import Node, name_of, refused
from ..reader._laws import Parameter, Parameters
from ..reader._network import Targets
from ..reader._structure import Structure, structure
from ._capture import captured, inputs_by_name
from ._fresh_modules import ModuleOrFactory, new_module, torch_seed
from ._network import inputs_of
from ._reference import (
    PARAMETERS_ONLY,
    aliases_of,
    has_batch,
    reference_of,
    reference_of_parameters,
)
from ._shard_tests import adapter_tests, shard_tests
from ._weights import ALLOWED as ALLOWED_WEIGHTS
from ._weights import Numbers, numbers_of

NO_REFERENCE = (
    "no reference was given: the module is compared with fresh ones that its own code"
    " makes"
)


def check_init(
    module: ModuleOrFactory,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    reference: Any = None,
    declared: Mapping[str, Declaration] | None = None,
    weights: str | Path | Sequence[str | Path] | None = None,
    parameters_only: bool = False,
    draws: int = 300,
    level: float = 1e-3,
    seed: int = 0,
) -> InitCheck:
    """Check the real weights of a module, before training, against their declaration.

    Every parameter is tested for its mean, standard deviation, shape of distribution,
    rows and columns, ties and correlations. Then the module runs forward and backward
    once, and its activations, attention entropy, logits, loss and gradient norms are
    compared with draws of their exact law under the declared initialisation. Attention
    masks are compared entry by entry. If the forward pass cannot be read, only the
    parameters are checked, and the result says so.

    Parameters
    ----------
    module : torch.nn.Module or callable
        The module, or a function that makes it. Parameters that are DTensors are
        gathered: call the function on all ranks.
    args : torch.Tensor, sequence of int or tuple, optional
        The inputs that the module is called with: one sequence of ids, or a tuple of
        inputs. 16 ids, if None.
    kwargs : mapping, optional
        Inputs by name.
    reference : optional
        The declared initialisation: anything that `ns.models.read` takes, a
        `Transformer`, or another module or a function that makes one. None: the
        module's own `config`, if netsor knows its family; else the module's own
        initialisation, which you pass as a function.
    declared : mapping of str to float, scipy.stats distribution, Parameter or list
        Laws of parameters by name or pattern; they replace those of the reference. A
        number is the standard deviation of a Gaussian, `constant(1.0)` a constant, and
        ``scipy.stats.loguniform(1e-3, 0.1)`` a law with its shape. A list gives the
        laws of equal parts of the first axis, such as heads.
    weights : str, pathlib.Path or a list of them, optional
        Files of step 0, whose numbers replace those of the module: a .safetensors file,
        its .index.json, a folder of such files, a folder of
        torch.distributed.checkpoint, or a list with a file for each rank.
    parameters_only : bool
        Leave out the forward and backward pass. The module's forward is not read, and
        parameters are matched by name.
    draws : int
        The number of draws of the law of a pass, 100 or more.
    level : float
        The probability of a false alarm in all tests together.
    seed : int
        The seed of the draws, and of torch's generator while the module is made.

    Examples
    --------
    >>> ids, config = [3, 7, 1, 4], "config.json"
    >>> check = ns.torch.check_init(build, ids, reference=config)  # doctest: +SKIP
    >>> print(check)  # doctest: +SKIP
    """
    level = _probability(level)
    seed = seed_number(seed)
    draws = whole(draws, "draws", least=FEWEST_DRAWS, why=": fewer show no tail")
    _check_types(kwargs, weights, declared)
    with torch.random.fork_rng(devices=[]):
        torch_seed(seed)
        real = new_module(module)
    _refuse_without_numbers(real, weights)
    numbers = numbers_of(real, weights)
    inputs = _inputs(real, args, kwargs, parameters_only)
    subject = _subject(module, real, inputs, reference)
    laws = _declared_laws(numbers, subject.known, subject.net, declared)
    # half of the level is for the pass, if it is checked
    level_of_pass = 0.0 if subject.problem else level / 2
    of_parameters = _parameter_findings(
        real, numbers, laws, subject, level=level - level_of_pass
    )
    of_pass = PassFindings([], tests=0, checked="", problem=subject.problem)
    if subject.net is not None and not subject.problem:
        of_pass = pass_findings(
            subject.net,
            run=partial(forward_backward, subject.net, numbers.tensors),
            known=subject.known,
            draws=draws,
            seed=seed,
            level=level_of_pass,
        )
    findings = of_parameters.findings + of_pass.findings
    names = list(numbers.tensors)
    notes = []
    if of_pass.problem and not parameters_only:
        notes.append(
            f"the forward and backward pass was not checked: {of_pass.problem}"
        )
    reference_name = subject.known.name
    if subject.is_own:
        reference_name = DECLARED if declared else OWN
        notes += _notes_without_reference(names, declared or {})
    unchecked = [name for name in names if name not in of_parameters.tested]
    return InitCheck(
        name=type(real).__name__,
        reference=reference_name,
        findings=findings,
        first=min(findings, key=_position(real), default=None),
        tests=of_parameters.tests + of_pass.tests,
        parameters=len(names),
        unchecked=unchecked,
        undeclared=[name for name in unchecked if name not in laws],
        checked_pass=of_pass.checked,
        draws=draws if of_pass.checked else 0,
        notes=notes,
        parameters_only=parameters_only,
        other_depth=subject.other_depth,
    )


def _check_types(kwargs: Any, weights: Any, declared: Any) -> None:
    """Reject inputs by name, paths, or laws of a wrong type."""
    inputs_by_name(kwargs)
    check_declared(declared)
    if weights is None:
        return
    files = weights if isinstance(weights, list | tuple) else [weights]
    if not all(isinstance(file, str | Path) for file in files):
        raise ArgumentError("weights", weights, ALLOWED_WEIGHTS)


def _probability(level: Any) -> float:
    """The level of all tests, a number between 0 and 1."""
    number = as_number(level)
    if number is None or not 0 < number < 1:
        raise ArgumentError("level", level, "a number between 0 and 1")
    return number


class Inputs(NamedTuple):
    """What a module is called with, or why it is not called."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    problem: str = ""


def _inputs(
    real: Any, args: Any, kwargs: Mapping[str, Any] | None, parameters_only: bool
) -> Inputs:
    """The inputs of a module; of a module without words, none if none are given."""
    named = inputs_by_name(kwargs)
    if parameters_only:
        return Inputs((), named, PARAMETERS_ONLY)
    try:
        return Inputs(inputs_of(real, args), named)
    except ValueError as error:
        if args is not None or isinstance(error, ArgumentError):
            raise
        return Inputs((), named, str(error))


class Subject(NamedTuple):
    """What a module is compared with."""

    known: Reference
    is_own: bool  # the module's own initialisation
    net: Structure | None  # the parts of the module; None if its pass is not read
    problem: str  # why the pass is not compared; "": it is

    @property
    def other_depth(self) -> str:
        """That the reference has another number of blocks; "" if it has as many."""
        if self.net is None or self.known.probes is None:
            return ""
        blocks = len(self.net.blocks)
        remedy = f", such as a config.json with n_layer={blocks}"
        return depths_differ(blocks, expected=len(self.known.masks), remedy=remedy)


def _subject(module: Any, real: Any, inputs: Inputs, reference: Any) -> Subject:
    """The reference, and the parts of the module that are compared with it."""
    is_batch = has_batch(inputs.args, inputs.kwargs)
    if reference is None:
        reference = _own_reference(
            module, real, is_batch, parameters_only=bool(inputs.problem)
        )
    is_own = reference is module
    if inputs.problem:
        known = reference
        if not isinstance(known, Reference):
            known = reference_of_parameters(reference, inputs.problem)
        return Subject(known=known, is_own=is_own, net=None, problem=inputs.problem)
    known = reference
    if not isinstance(known, Reference):
        known = reference_of(reference, inputs.args, inputs.kwargs)
    net, problem = _comparable_structure(real, inputs, known)
    if net is None and known.laws is None:
        # parameters by their names, since their places are not known
        with suppress(ValueError, ImportError):
            known = reference_of_parameters(reference, problem)
    return Subject(known, is_own, net, problem)


def _comparable_structure(
    real: Any, inputs: Inputs, known: Reference
) -> tuple[Structure | None, str]:
    """The parts of the real network, and why its pass cannot be compared ("": it can).

    The parts are None if they are not recognised.
    """
    try:
        # no parameter is a constant
        graph = captured(real, inputs.args, inputs.kwargs, laws=Parameters({}, 0))
        net = structure(graph)
    except ArgumentError:
        raise
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return None, " ".join(str(error).split())
    if known.probes is None:
        return net, known.why_no_probes
    if len(net.blocks) != len(known.masks):
        blocks = counted(len(net.blocks), "block")
        return net, f"it has {blocks}, and the reference has {len(known.masks)}"
    return net, ""


def _notes_without_reference(
    names: Sequence[str], declared: Mapping[str, Declaration]
) -> list[str]:
    """What a module is compared with if no reference was given."""
    if not declared:
        return [NO_REFERENCE]
    rest = [
        name
        for name in names
        if not any(fnmatchcase(name, pattern) for pattern in declared)
    ]
    if not rest:
        return []
    return [
        f"{counted(len(rest), 'parameter')} without a declaration compared with fresh"
        f" modules that the module's own code makes: {first_of(rest)}"
    ]


def _declared_laws(
    numbers: Numbers,
    known: Reference,
    net: Structure | None,
    declared: Mapping[str, Declaration] | None,
) -> dict[str, Parameter]:
    """The laws of the parameters that have one in the reference or in `declared`."""
    uses = known.uses_in(net)
    laws = {
        name: known.law_of(name, tuple(p.shape), net, uses)
        for name, p in numbers.tensors.items()
    }
    laws = with_declared(laws, declared or {})
    return {
        name: law
        for name, law in laws.items()
        if law.law != "unknown" or isinstance(law.value, tuple)
    }


class ParameterFindings(NamedTuple):
    """Departures of parameters from their laws."""

    findings: list[InitFinding]
    tests: int
    tested: set[str]  # the parameters that a test looked at by itself


def _parameter_findings(
    real: Any,
    numbers: Numbers,
    laws: Mapping[str, Parameter],
    subject: Subject,
    level: float,
) -> ParameterFindings:
    """The departures of parameters, at a level for all of them together."""
    samples = 1 if subject.known.laws is None else subject.known.laws.samples
    tests = [*numbers.findings, *adapter_tests(numbers.tensors)]
    for name, p in numbers.tensors.items():
        law = laws.get(name)
        if law is None:
            tests += _tests_without_law(name, p)
            continue
        if name in numbers.shards:
            tests += shard_tests(name, p, law, shards=numbers.shards[name])
        entries = entries_of(p, numbers.types.get(name))
        tests += parameter_tests(name, entries, law, samples)
    tests += _ties(real, subject.known, subject.net)
    tested = {_parameter_name(test) for test in tests}
    tests += correlation_tests(_first_entries(numbers.tensors, laws), laws)
    adjusted = holm([test.p for test in tests])
    findings = [
        replace(test, p=float(p))
        for test, p in zip(tests, adjusted, strict=True)
        if p < level
    ]
    order = {name: k for k, name in enumerate(numbers.tensors)}
    findings.sort(key=lambda test: order.get(_parameter_name(test), len(order)))
    return ParameterFindings(findings, tests=len(tests), tested=tested)


def _parameter_name(test: InitFinding) -> str:
    """The parameter that a test is about: "weight" of "weight[0:64]"."""
    return test.where.partition("[")[0]


def _tests_without_law(name: str, p: Any) -> Iterator[InitFinding]:
    """What is wrong with the entries of a parameter under every law."""
    if p.is_floating_point() and not bool(torch.isfinite(p).all()):
        unknown = Parameter(name, (), "unknown")
        yield from parameter_tests(
            name, entries=entries_of(p), parameter=unknown, samples=1
        )


def entries_of(p: Any, dtype: Any = None) -> Entries:
    """The entries of a tensor, which may come from a file of another type."""
    numbers: Floats = p.detach().double().cpu().numpy()
    return Entries(numbers, _number_type(p.dtype), _number_type(dtype or p.dtype))


def _number_type(dtype: Any) -> NumberType:
    """A type of PyTorch."""
    about = torch.finfo(dtype)
    return NumberType(
        str(dtype).removeprefix("torch."),
        eps=about.eps,
        least=about.smallest_normal * about.eps,
        largest=about.max,
    )


def _first_entries(
    tensors: Mapping[str, Any], laws: Mapping[str, Parameter]
) -> dict[str, Floats]:
    """The first entries of the parameters that have a law and are finite."""
    return {
        name: p.detach().reshape(-1)[:PREFIX].double().cpu().numpy()
        for name, p in tensors.items()
        if name in laws and bool(torch.isfinite(p).all())
    }


def _refuse_without_numbers(module: Any, weights: Any) -> None:
    """Reject parameters on the meta device, unless files have their numbers."""
    for name, p in module.named_parameters():
        if p.is_meta and weights is None:
            raise ValueError(
                f"{name} is on the meta device and has no numbers to check: make the"
                " module on the CPU"
            )


def _own_reference(
    module: Any, real: Any, is_batch: bool = False, parameters_only: bool = False
) -> Any:
    """The reference of a module for which none is given.

    It is the configuration of the module, or a function that makes the module again:
    for batches, which configurations do not describe, and for parameters only.
    """
    if hasattr(real, "config"):
        described = None
        with suppress(ValueError, TypeError):
            described = read(real.config)
        if described is not None and not is_batch and not parameters_only:
            return described
        if isinstance(module, torch.nn.Module):
            return lambda: type(real)(real.config)
    if isinstance(module, torch.nn.Module):
        raise ArgumentError(
            "reference",
            None,
            "given: a configuration, or a function that makes a module as declared",
        )
    return module


def _ties(
    module: Any, known: Reference, net: Structure | None
) -> Iterator[InitFinding]:
    """Parameters that are one and are declared to be two, and the other way round."""
    aliases = aliases_of(module)
    for name, _ in module.named_parameters(remove_duplicate=False):
        if name in aliases and name in (known.laws or {}):
            text = (
                "expected a parameter of its own, found the same tensor as"
                f" {aliases[name]}"
            )
            yield InitFinding(where=name, what="tie", p=0.0, text=text)
        elif name not in aliases and name in known.aliases:
            text = (
                f"expected the same tensor as {known.aliases[name]}, found a parameter"
                " of its own"
            )
            yield InitFinding(where=name, what="tie", p=0.0, text=text)
    if known.laws is not None or net is None or not net.head or not net.words:
        return
    is_tied = net.head == net.words.table
    if is_tied != known.tied:
        expected, actual = "a matrix of its own", "the embedding"
        if known.tied:
            expected, actual = actual, expected
        text = f"expected {expected}, found {actual}"
        yield InitFinding(where=net.head, what="tie", p=0.0, text=text)


def _position(module: Any) -> Callable[[InitFinding], tuple[int, int]]:
    """A function that says where a finding is along the network.

    A parameter is at its module (k, 0), a quantity at the end of its module (k, 1),
    where k counts modules in the order of the network.
    """
    positions: dict[str, tuple[int, int]] = {}
    for k, (path, submodule) in enumerate(module.named_modules()):
        names = path.split(".") if path else []
        for depth in range(1, len(names) + 1):  # of those that it is inside of, too
            positions[".".join(names[:depth])] = (k, 1)
        for name, _ in submodule.named_parameters(recurse=False):
            positions[".".join([*names, name])] = (k, 0)
    end = len(positions)
    parameters = {name for name, _ in module.named_parameters()}

    def position(finding: InitFinding) -> tuple[int, int]:
        if finding.what.startswith("grad_"):  # the backward pass comes last
            return end, 2
        if finding.where in parameters and finding.what not in OF_PARAMETERS:
            return end, 1  # logits, at their matrix, which may be the embedding too
        return positions.get(_parameter_name(finding), (end, 1))

    return position


def forward_backward(
    net: Structure,
    numbers: Mapping[str, Any],
    targets: Targets | None,
    masks: Sequence[Bools | None],
) -> Found:
    """The quantities of one pass of a module with these numbers."""
    return quantities_of(
        net, done=_run(net, numbers, targets), targets=targets, masks=masks
    )


def _run(net: Structure, numbers: Mapping[str, Any], targets: Targets | None) -> Pass:
    """One pass of a module with these numbers."""
    parameters = {}
    for name, p in numbers.items():
        moves = p.is_floating_point() and name not in net.graph.frozen
        parameters[name] = p.detach().cpu().requires_grad_(moves)
    values = _values(net, parameters)
    arrays = {node: _as_array(values[node]) for node in watched(net)}
    if net.logits is None:
        return Pass(arrays, {}, {})
    _loss(values[net.logits], targets).backward()
    gradients = {
        node: _as_array(values[node].grad)
        for node in net.streams
        if values[node].grad is not None
    }
    squares = {name: _square_of_gradient(p) for name, p in parameters.items()}
    return Pass(arrays, gradients, squares)


def _as_array(x: Any) -> Floats:
    """A tensor in double precision."""
    array: Floats = x.detach().double().numpy()
    return array


def _loss(logits: Any, targets: Targets | None) -> Any:
    """The cross-entropy of the right words; without targets, the mean over all words.

    The logits have the shape (…, words).
    """
    logits = logits.double().reshape(-1, logits.shape[-1])
    if targets is None:
        right_logits = logits.mean(-1)
    else:
        logits = logits[list(targets.rows)]
        rows = range(len(targets.rows))
        words = list(targets.words)
        right_logits = logits[rows, words]
    return (torch.logsumexp(logits, -1) - right_logits).mean()


def _values(net: Structure, parameters: Mapping[str, Any]) -> dict[Node, Any]:
    """The values of all nodes; those of the streams will have gradients."""
    graph = net.graph
    env: dict[Node, Any] = dict(graph.constants)
    for node, name in graph.parameters.items():
        env[node] = parameters[name]
    for node in graph.nodes:
        if node.op != "call_function" or node in env:
            continue
        arguments = (node.args, node.kwargs)
        args, kwargs = torch.fx.node.map_arg(arguments, env.__getitem__)
        # strides may differ under gradients
        target = torch.reshape if name_of(node) == "view" else node.target
        try:
            env[node] = target(*args, **kwargs)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise refused(node, reason + _remedy_of_types(parameters)) from error
        if node in net.streams and env[node].requires_grad:
            env[node].retain_grad()
    return env


def _remedy_of_types(parameters: Mapping[str, Any]) -> str:
    """What to do if parameters are not in single precision; "" if they are."""
    types = {str(p.dtype).removeprefix("torch.") for p in parameters.values()}
    if types == {"float32"}:
        return ""
    return f": its parameters are {' and '.join(sorted(types))}; make it with .float()"


def _square_of_gradient(x: Any) -> float:
    """|∂L/∂x|²."""
    return 0.0 if x.grad is None else float(x.grad.double().square().sum())
