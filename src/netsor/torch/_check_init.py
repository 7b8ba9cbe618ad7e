"""A check of real weights at step 0 against the laws that are declared for them.

Two things are compared with a `Reference`: each parameter, by the tests of
`_init_tests`, and one forward and backward pass, by its quantities (mean squares,
attention entropy, loss, gradients) among draws of their exact law. What cannot be
compared is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .._array_api import Bools, Floats
from .._validate import ArgumentError, as_number, counted, seed_number, whole
from ..models import read
from ..models.measure._metric_program import ATTENTION, BRANCHES, STREAM
from ..models.measure._metrics import (
    effective_rank,
    of_attention,
    of_gram,
    of_logits,
    of_shares,
)
from ..reader._declared_laws import Declaration, check_declared, with_declared
from ..reader._graph import (
    Node,
    UnsupportedError,
    name_of,
    outputs_of_modules,
    path_of,
    refused,
    shape_of,
)
from ..reader._laws import Parameter, Parameters
from ..reader._network import Targets
from ..reader._structure import Block, Structure, structure
from ..report._document import (
    FLAG,
    OK,
    Document,
    Item,
    Items,
    Paragraph,
    Section,
    to_text,
)
from ..report._html import to_cell
from ._capture import captured, inputs_by_name
from ._fresh_modules import ModuleOrFactory, new_module, torch_seed
from ._init_tests import InitFinding, holm, pass_tests
from ._network import inputs_of
from ._parameter_tests import correlation_tests, parameter_tests
from ._reference import (
    PARAMETERS_ONLY,
    Reference,
    has_batch,
    reference_of,
    reference_of_parameters,
)
from ._shard_tests import adapter_tests, shard_tests
from ._weights import ALLOWED as ALLOWED_WEIGHTS
from ._weights import Numbers, numbers_of

# prefixes of the quantities of the stream before the first block of each stack
STARTS = ("input_", "decoder_input_")
END = ("logit_std", "loss", "max_probability")  # quantities of the logits
# quantities that a mask changes
SCORES = tuple(name for names in ATTENTION.values() for name in names)
MOST_SHOWN = 10  # departures of parameters that `print` shows, and of the pass
MOST_IMPLIED = 3  # of the pass, if parameters depart
EXACT = ("value", "tie", "mask", "finite", "precision")  # comparisons without a p-value
# what departs, if it is a parameter; everything else is a quantity of the pass
OF_PARAMETERS = (
    "value",
    "std",
    "mean",
    "shape",
    "tails",
    "rows",
    "columns",
    "independence",
    "spectrum",
    "repeats",
    "precision",
    "tie",
)
# of a pass: p-values beyond the largest tenth of them follow an exponential tail
FEWEST_DRAWS = 100
MOST_NAMED = 3  # parameters that a note names
OWN = "its own initialisation"
DECLARED = "its declared laws"
NO_REFERENCE = (
    "no reference was given: the module is compared with fresh ones that its own code"
    " makes"
)
NOT_FOUND = "no reference: mistakes in the module's own code cannot be found"
# the status if nothing departs, but parameters or pass were not checked
INCOMPLETE = "incomplete"
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class InitCheck:
    """The result of `ns.torch.check_init`; `print` shows the verdict first.

    Attributes
    ----------
    findings : list of InitFinding
        All departures: parameters in the order of the module, then the pass in the
        order of the forward pass.
    first : InitFinding or None
        The first finding along the network.
    tests : int
        How many tests there were.
    parameters : int
        How many parameters the module has.
    unchecked : list of str
        Parameters that no test looked at: those without a declared law, or with a law
        that has no test.
    undeclared : list of str
        Parameters without a declared law.
    checked_pass : str
        "forward and backward pass", "forward pass" (the reference has no gradients), or
        "" if no pass was checked.
    draws : int
        How many draws the pass was compared with; 0 if it was not checked.
    notes : list of str
        What was not checked, and why.
    parameters_only : bool
        Whether only parameters were to be checked.

    Examples
    --------
    >>> ns.torch.check_init(build, ids, reference="config.json").ok  # doctest: +SKIP
    True
    """

    name: str
    reference: str
    findings: list[InitFinding]
    first: InitFinding | None
    tests: int
    parameters: int
    unchecked: list[str]
    undeclared: list[str]
    checked_pass: str
    draws: int
    notes: list[str]
    parameters_only: bool = False

    @property
    def status(self) -> str:
        """The result in a word.

        It is "FLAG" if something departs, else "incomplete" if no parameter or no pass
        was checked, else "ok". With `parameters_only` no pass is needed.
        """
        if self.findings:
            return FLAG
        is_complete = len(self.unchecked) < self.parameters
        if not self.parameters_only:
            is_complete = is_complete and bool(self.checked_pass)
        return OK if is_complete else INCOMPLETE

    @property
    def ok(self) -> bool:
        """Whether what was to be checked was checked, and nothing departs."""
        return self.status == OK

    @property
    def coverage(self) -> str:
        """What was checked, in a few words."""
        of_pass = "forward and backward pass not checked"
        if self.checked_pass:
            of_pass = f"{self.checked_pass} checked"
        return f"{self._coverage_of_parameters}; {of_pass}"

    @property
    def _coverage_of_parameters(self) -> str:
        """How many tests there were, and of how many parameters."""
        total = counted(self.parameters, "parameter")
        of_parameters = f"all {total} checked"
        if self.unchecked:
            of_parameters = f"{len(self.unchecked):,} of {total} unchecked"
        return f"{counted(self.tests, 'test')}; {of_parameters}"

    @property
    def verdict(self) -> str:
        """The status, what departs and what was checked, in one line.

        Without a reference it also says what cannot be found.
        """
        status, coverage = self.status, self.coverage
        if not self.checked_pass:
            status += " (forward pass not checked)"
            coverage = self._coverage_of_parameters
        parts = [self._conclusion(), coverage]
        if not self.findings:  # what was checked matters most
            parts.reverse()
        if self.reference == OWN:
            parts.append(NOT_FOUND)
        return f"{status}: {'; '.join(parts)}"

    def _conclusion(self) -> str:
        """Whether the module agrees with the reference, and where to look first."""
        reference = self.reference
        if reference not in (OWN, DECLARED):
            reference = f"the reference {reference}"
        if self.first is None:
            verb = "agrees with" if self.ok else "was not compared in full with"
            return f"{self.name} {verb} {reference}"
        departing = {finding.where for finding in self._of_parameters()}
        subject = f"a {self.checked_pass}"
        if departing:
            subject = counted(len(departing), "parameter")
        return (
            f"{self.name} differs from {reference} in {subject}; look first at"
            f" {self.first.where}"
        )

    def _of_parameters(self) -> list[InitFinding]:
        """The departures of parameters."""
        return [finding for finding in self.findings if finding.what in OF_PARAMETERS]

    def _of_pass(self) -> list[InitFinding]:
        """The departures of the pass."""
        return [
            finding for finding in self.findings if finding.what not in OF_PARAMETERS
        ]

    def to_dict(self) -> dict[str, Any]:
        """All fields, `ok`, `status`, `coverage` and `verdict`, for JSON."""
        return {
            **asdict(self),
            "ok": self.ok,
            "status": self.status,
            "coverage": self.coverage,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        return to_text(self._document())

    def _repr_html_(self) -> str:
        return to_cell(self._document())

    def _document(self) -> Document:
        """The report."""
        subject = ""
        if self.draws:
            subject = (
                f"Expected ranges hold 99 % of {self.draws} draws of the reference. "
            )
        if self.tests:
            subject += "p-values are adjusted for the number of tests."
        else:
            subject = ""
        of_parameters = self._of_parameters()
        because, shown = "", MOST_SHOWN
        if of_parameters:
            because, shown = " (perhaps because of these parameters)", MOST_IMPLIED
        notes = [*self._notes_on_parameters(), *self.notes]
        sections = [
            Section("Parameters that differ", _items(of_parameters, MOST_SHOWN)),
            Section(
                f"Activations and gradients that differ{because}",
                _items(self._of_pass(), shown),
            ),
            Section("", [Paragraph(f"note: {note}") for note in notes]),
        ]
        return Document(
            f"Initialisation of {self.name}",
            self.verdict,
            subject,
            [section for section in sections if section.blocks],
        )

    def _notes_on_parameters(self) -> list[str]:
        """Which parameters were not checked, and why."""
        reasons = {
            "unknown to the reference": self.undeclared,
            "of a law that has no test": [
                name for name in self.unchecked if name not in self.undeclared
            ],
        }
        return [
            f"{counted(len(names), 'parameter')} not checked, {reason}:"
            f" {_first_of(names)}"
            for reason, names in reasons.items()
            if names
        ]


def _first_of(names: Sequence[str]) -> str:
    """The first names of a list, as text."""
    shown = list(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        shown.append("…")
    return ", ".join(shown)


def _items(findings: Sequence[InitFinding], most: int) -> list[Items | Paragraph]:
    """The first `most` findings: expected and found values, with the p-value."""
    # by which a mean is judged
    wrong_std = {finding.where for finding in findings if finding.what == "std"}
    texts: dict[tuple[str, str], str] = {}
    for finding in findings:
        if finding.what == "mean" and finding.where in wrong_std:
            continue
        label = _label(finding)
        text = f"{label}: {finding.text}" if label else finding.text
        if finding.what not in EXACT:
            text += f" {_p_value(finding.p)}"
        texts.setdefault((finding.where, label), text.rstrip())
    items = [Item(FLAG, where, text) for (where, _), text in texts.items()]
    if not items:
        return []
    blocks: list[Items | Paragraph] = [Items(items[:most])]
    if len(items) > most:
        remaining = len(items) - most
        blocks.append(
            Paragraph(
                f"… and {remaining} more: --json, or `findings` in Python, has all"
            )
        )
    return blocks


def _label(finding: InitFinding) -> str:
    """What departs, in words; "" if the text of the finding says it."""
    if finding.what in ("value", "finite"):
        return ""
    if finding.what in ("shape", "tails"):  # two tests of one thing
        return "distribution"
    if finding.what in ("grad_mean_square", "grad_input"):
        return "mean square of the gradient"
    label = finding.what.replace("_", " ")
    if finding.what.startswith("grad_"):
        return f"squared gradient of {label.removeprefix('grad ')}"
    return label


def _p_value(p: float) -> str:
    """A p-value in parentheses, which no line break divides."""
    text = f"(p = {p:.1g})" if p >= 1e-300 else "(p < 1e-300)"
    return text.replace(" ", NO_BREAK)


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
    masks are compared entry by entry. Where the forward pass cannot be read, the
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
        ``scipy.stats.loguniform(1e-3, 0.1)`` a law with its shape. A list has the laws
        of equal parts of the first axis, such as heads.
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
    level_of_pass = 0.0 if subject.problem else level / 2
    of_parameters = _parameter_findings(
        real, numbers, laws, subject, level - level_of_pass
    )
    of_pass = PassFindings([], tests=0, checked="", problem=subject.problem)
    if subject.net is not None and not subject.problem:
        of_pass = _pass_findings(
            subject.net, numbers.tensors, subject.known, draws, seed, level_of_pass
        )
    findings = of_parameters.findings + of_pass.findings
    notes = []
    if of_pass.problem and not parameters_only:
        notes.append(
            f"the forward and backward pass was not checked: {of_pass.problem}"
        )
    names = list(numbers.tensors)
    name_of_reference = subject.known.name
    if subject.is_own:
        name_of_reference = DECLARED if declared else OWN
        notes += _notes_without_reference(names, declared or {})
    return InitCheck(
        name=type(real).__name__,
        reference=name_of_reference,
        findings=findings,
        first=min(findings, key=_position(real), default=None),
        tests=of_parameters.tests + of_pass.tests,
        parameters=len(names),
        unchecked=[name for name in names if name not in of_parameters.tested],
        undeclared=[
            name
            for name in names
            if name not in laws and name not in of_parameters.tested
        ],
        checked_pass=of_pass.checked,
        draws=draws if of_pass.checked else 0,
        notes=notes,
        parameters_only=parameters_only,
    )


def _check_types(kwargs: Any, weights: Any, declared: Any) -> None:
    """Reject inputs by name, paths, or laws of a wrong type."""
    inputs_by_name(kwargs)
    check_declared(declared)
    files = weights if isinstance(weights, list | tuple) else [weights]
    if weights is not None and not all(isinstance(file, str | Path) for file in files):
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


def _subject(module: Any, real: Any, inputs: Inputs, reference: Any) -> Subject:
    """The reference, and the parts of the module that are compared with it."""
    is_batch = has_batch(inputs.args, inputs.kwargs)
    if reference is None:
        reference = _own_reference(module, real, is_batch, bool(inputs.problem))
    is_own = reference is module
    if inputs.problem:
        known = reference
        if not isinstance(known, Reference):
            known = reference_of_parameters(reference, inputs.problem)
        return Subject(known, is_own, None, inputs.problem)
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
        graph = captured(real, inputs.args, inputs.kwargs, Parameters({}, 0))
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
        f" modules that the module's own code makes: {_first_of(rest)}"
    ]


def _declared_laws(
    numbers: Numbers,
    known: Reference,
    net: Structure | None,
    declared: Mapping[str, Declaration] | None,
) -> dict[str, Parameter]:
    """The laws of the parameters that have one in the reference or in `declared`."""
    laws = {
        name: known.law_of(name, tuple(p.shape), net)
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
            tests += shard_tests(name, p, law, numbers.shards[name])
        tests += parameter_tests(name, p, law, samples, numbers.types.get(name))
    tests += _ties(real, subject.known, subject.net)
    tested = {test.where.partition("[")[0] for test in tests}
    tests += correlation_tests(numbers.tensors, laws)
    adjusted = holm([test.p for test in tests])
    findings = [
        replace(test, p=float(p))
        for test, p in zip(tests, adjusted, strict=True)
        if p < level
    ]
    order = {name: k for k, name in enumerate(numbers.tensors)}
    findings.sort(key=lambda test: order.get(test.where.partition("[")[0], len(order)))
    return ParameterFindings(findings, tests=len(tests), tested=tested)


def _tests_without_law(name: str, p: Any) -> Iterator[InitFinding]:
    """What is wrong with the entries of a parameter under every law."""
    if p.is_floating_point() and not bool(torch.isfinite(p).all()):
        yield from parameter_tests(name, p, Parameter(name, (), "unknown"), samples=1)


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
    first_names: dict[int, str] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        first_name = first_names.setdefault(id(p), name)
        if first_name != name and name in (known.laws or {}):
            text = (
                "expected a parameter of its own, found the same tensor as"
                f" {first_name}"
            )
            yield InitFinding(name, "tie", 0.0, text)
        elif first_name == name and name in known.aliases:
            text = (
                f"expected the same tensor as {known.aliases[name]}, found a parameter"
                " of its own"
            )
            yield InitFinding(name, "tie", 0.0, text)
    if known.laws is not None or net is None or not net.head or not net.words:
        return
    is_tied = net.head == net.words.table
    if is_tied != known.tied:
        expected, actual = "a matrix of its own", "the embedding"
        if known.tied:
            expected, actual = actual, expected
        text = f"expected {expected}, found {actual}"
        yield InitFinding(net.head, "tie", 0.0, text)


class PassFindings(NamedTuple):
    """Departures of the real pass."""

    findings: list[InitFinding]  # in the order of the network
    tests: int
    checked: str  # what was compared
    problem: str = ""  # why nothing was compared


def _pass_findings(
    net: Structure,
    numbers: Mapping[str, Any],
    known: Reference,
    draws: int,
    seed: int,
    level: float,
) -> PassFindings:
    """The departures of one pass, at a level for all its quantities together."""
    try:
        law = known.measure(draws, seed)
        quantities, weights = forward_backward(net, numbers, known.targets, known.masks)
    except UnsupportedError as error:
        return PassFindings([], tests=0, checked="", problem=str(error))
    except NotFiniteError as error:
        text = "expected finite activations, found NaN or infinity"
        finding = InitFinding(error.where, "finite", 0.0, text)
        return PassFindings([finding], tests=1, checked="forward pass")
    by_block = {name: x.reshape(draws, -1) for name, x in law.items()}
    laws = {
        (name, k): by_block[name][:, k]
        for name, k in quantities
        if name in by_block and k < by_block[name].shape[1]
    }
    compared = {key: quantities[key] for key in laws}
    masks = _compare_masks(net, weights, known.masks)
    findings = list(masks.wrong.values())
    for (name, k), p in zip(compared, pass_tests(compared, laws), strict=True):
        because_of_mask = k in masks.wrong and name in SCORES
        if p < level and not because_of_mask:
            low, high = np.quantile(laws[name, k], [0.005, 0.995])
            text = f"expected {low:.4g} to {high:.4g}, found {compared[name, k]:.4g}"
            findings.append(InitFinding(_path(net, name, k), name, p, text))
    tests = len(compared) + masks.compared
    checked = _checked(compared)
    problem = "" if checked else "it has no quantity in common with the reference"
    return PassFindings(findings, tests=tests, checked=checked, problem=problem)


class MaskComparison(NamedTuple):
    """The masks of the blocks against those of the reference."""

    wrong: dict[int, InitFinding]  # by the number of the block
    compared: int


def _compare_masks(
    net: Structure, weights: Sequence[Floats | None], masks: Sequence[Bools]
) -> MaskComparison:
    """Compare which tokens attend to which, block by block.

    `weights` are those of attention: a pair of tokens attends if one is above 0.
    """
    wrong: dict[int, InitFinding] = {}
    compared = 0
    blocks = zip(net.blocks, weights, masks, strict=True)
    for k, (block, attention, mask) in enumerate(blocks):
        if attention is None or not _fits(mask, attention):
            continue
        compared += 1
        used = attention > 0
        if mask.ndim == 2:
            used = np.any(used, axis=0)
        else:  # rows of padding attend to nothing that counts
            used = used & mask.any(axis=-1, keepdims=True)
        pairs = np.argwhere(used != mask)
        if not len(pairs):
            continue
        i, j = pairs[0, -2:]
        if used[tuple(pairs[0])]:
            text = f"expected token {i} not to attend to token {j}, found that it does"
        else:
            text = f"expected token {i} to attend to token {j}, found that it does not"
        text += f"; {len(pairs)} pairs of tokens differ"
        wrong[k] = InitFinding(path_of(block.softmaxes[0]), "mask", 0.0, text)
    return MaskComparison(wrong, compared)


def _fits(mask: Bools, attention: Floats) -> bool:
    """Whether a mask is one for these weights (heads, tokens, tokens)."""
    return mask.shape in (attention.shape, attention.shape[-2:])


def _checked(compared: Iterable[tuple[str, int]]) -> str:
    """What the quantities of a pass are of."""
    names = {name for name, _ in compared}
    if any(name.startswith("grad_") for name in names):
        return "forward and backward pass"
    return "forward pass" if names else ""


def _path(net: Structure, name: str, k: int) -> str:
    """The module, or the parameter, that a quantity is of."""
    if name.startswith(STARTS) or name == "grad_input":
        stack = net.stacks[-1 if name.startswith("decoder") else 0]
        return path_of(stack[0].before) or "the input of the first block"
    if name == "grad_embedding" and net.words:
        return net.words.table
    if name in (*END, "grad_head", "grad_embedding"):
        return net.head or "the output"
    block = net.blocks[k]
    if name in SCORES and block.softmaxes:
        return path_of(block.softmaxes[0])
    branches = block.branches.get(name.removesuffix("_share"))
    if branches is None:
        return block.path or "the module"
    branch = branches[0]
    # the outermost module that returns it, such as the whole perceptron and not its
    # dropout
    paths = outputs_of_modules(net.graph.nodes).get(branch, [path_of(branch)])
    return min(paths, key=len)


def _position(module: Any) -> Callable[[InitFinding], tuple[int, int]]:
    """A function that says where a finding is along the network.

    A parameter is at its module, a quantity at the end of its module.
    """
    positions: dict[str, tuple[int, int]] = {}
    for k, (path, submodule) in enumerate(module.named_modules()):
        names = path.split(".") if path else []
        for depth in range(1, len(names) + 1):  # of those that it is inside of, too
            positions[".".join(names[:depth])] = (k, 1)
        for name, _ in submodule.named_parameters(recurse=False):
            positions[".".join([*names, name])] = (k, 0)
    end = len(positions)

    def position(finding: InitFinding) -> tuple[int, int]:
        if finding.what.startswith("grad_"):  # the backward pass comes last
            return end, 2
        return positions.get(finding.where.partition("[")[0], (end, 1))

    return position


def forward_backward(
    net: Structure,
    numbers: Mapping[str, Any],
    targets: Targets | None,
    masks: Sequence[Bools | None],
) -> tuple[dict[tuple[str, int], float], list[Floats | None]]:
    """The quantities of a pass, and the attention weights of each block.

    Quantities are by name and block, in the order of the network, gradients last; those
    of the whole network are at block 0. Weights have the shape (heads, tokens, tokens).
    """
    parameters = {}
    for name, p in numbers.items():
        moves = p.is_floating_point() and name not in net.graph.frozen
        parameters[name] = p.detach().cpu().requires_grad_(moves)
    values = _values(net, parameters)
    _refuse_not_finite(net, values)
    quantities: dict[tuple[str, int], float] = {}
    for prefix, stack in zip(STARTS, net.stacks, strict=False):
        names = [prefix + name for name in STREAM]
        _record(
            quantities,
            0,
            names,
            _stream_quantities(_tokens(net, stack[0], values[stack[0].before])),
        )
    weights = [
        _record_block(quantities, net, number, values, masks)
        for number in range(len(net.blocks))
    ]
    if net.logits is not None:
        _loss(quantities, values[net.logits], targets).backward()
        _record_gradients(quantities, net, values, parameters)
    return quantities, weights


Quantities = dict[tuple[str, int], float]


def _record(quantities: Quantities, k: int, names: Sequence[str], values: Any) -> None:
    """Enter one number for each name, at block k."""
    for name, value in zip(names, np.ravel(values), strict=True):
        quantities[name, k] = float(value)


def _rows(x: Any, axes: int = 1) -> Floats:
    """A torch tensor as an array with one axis before the last `axes`."""
    array = x.detach().double().numpy()
    rows: Floats = array.reshape(-1, *array.shape[-axes:])
    return rows


def _tokens(net: Structure, block: Block, x: Any) -> Floats:
    """The rows of a stream that are tokens and no padding."""
    rows = _rows(x.movedim(block.coordinate_axis, -1))
    if x.shape == shape_of(block.stream):
        return rows[net.tokens_of(block)]
    return rows[net.tokens_before(block)]


def _stream_quantities(tokens: Floats) -> Floats:
    """The quantities `STREAM` of a stream."""
    gram = tokens @ tokens.T / tokens.shape[-1]
    return np.concatenate([of_gram(gram), effective_rank(gram)])


def _record_block(
    quantities: Quantities,
    net: Structure,
    k: int,
    values: Mapping[Node, Any],
    masks: Sequence[Bools | None],
) -> Floats | None:
    """Enter the quantities of a block; the result is its attention weights."""
    block = net.blocks[k]
    weights = None
    if block.softmaxes:
        scores = _of_heads([values[softmax.args[0]] for softmax in block.softmaxes])
        weights = _of_heads([values[softmax] for softmax in block.softmaxes])
        mask = masks[k] if k < len(masks) else None
        if mask is not None and _fits(mask, weights):
            _record(quantities, k, SCORES, of_attention(scores, weights, allowed=mask))
    shares = _shares(net, block, values)
    for name in BRANCHES:
        if any(name in other.branches for other in net.blocks):
            quantities[f"{name}_share", k] = shares.get(name, 0.0)
    tokens = _tokens(net, block, values[block.stream])
    _record(quantities, k, STREAM, _stream_quantities(tokens))
    return weights


def _of_heads(tensors: Sequence[Any]) -> Floats:
    """Scores or weights of one or several softmaxes, (heads, tokens, tokens)."""
    return np.concatenate([_rows(x, 2) for x in tensors])


def _shares(
    net: Structure, block: Block, values: Mapping[Node, Any]
) -> dict[str, float]:
    """The share of each branch of a block in its update of the stream."""

    def mean_square(nodes: Iterable[Node]) -> Any:
        """The mean square of a sum of streams."""
        total = sum(values[node] for node in nodes)
        return np.mean(_tokens(net, block, total) ** 2)

    names = [name for name in BRANCHES if name in block.branches]
    summands = [(block.start,), *(block.branches[name] for name in names)]
    squares = [np.array([mean_square(nodes) for nodes in summands])]
    if block.middle is not None:
        squares.append(np.array([mean_square([block.middle])]))
    shares = of_shares(*squares)
    return {name: float(share) for name, share in zip(names, shares, strict=True)}


def _loss(quantities: Quantities, logits: Any, targets: Targets | None) -> Any:
    """Enter the quantities `END` of the logits; the result is the loss.

    Without targets it is the mean loss over all words.
    """
    logits = logits.double().reshape(-1, logits.shape[-1])
    if targets is None:
        right = logits.mean(-1)
    else:
        logits = logits[list(targets.rows)]
        right = logits[range(len(targets.rows)), list(targets.words)]
    loss = (torch.logsumexp(logits, -1) - right).mean()
    std, _, largest = of_logits(logits.detach().numpy())
    _record(quantities, 0, END, (std, loss.item(), largest))
    return loss


def _record_gradients(
    quantities: Quantities,
    net: Structure,
    values: Mapping[Node, Any],
    parameters: Mapping[str, Any],
) -> None:
    """Enter the squares of the gradients of streams and parameters."""
    for k, block in enumerate(net.blocks):
        stream = values[block.stream]
        quantities["grad_mean_square", k] = _mean_gradient(net, block, stream)
        for kind, names in block.matrices.items():
            square = sum(_gradient(parameters[name]) for name in names)
            quantities[f"grad_{kind}", k] = float(square)
    first = net.stacks[0][0]
    quantities["grad_input", 0] = _mean_gradient(net, first, values[first.before])
    table = net.words.table if net.words else None
    if table is not None:
        quantities["grad_embedding", 0] = _gradient(parameters[table])
    if net.head is not None and net.head != table:
        quantities["grad_head", 0] = _gradient(parameters[net.head])


class NotFiniteError(ValueError):
    """An activation has NaN or infinite entries."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


def _refuse_not_finite(net: Structure, values: Mapping[Node, Any]) -> None:
    """Reject streams and logits that are not finite."""
    watched = {*net.streams, net.logits}
    for node in net.graph.nodes:
        if node in watched and not bool(torch.isfinite(values[node]).all()):
            raise NotFiniteError(path_of(node) or "the module")


def _values(net: Structure, parameters: Mapping[str, Any]) -> dict[Node, Any]:
    """The values of all nodes; those of the streams will have gradients."""
    graph = net.graph
    env: dict[Node, Any] = graph.constants | {
        node: parameters[name] for node, name in graph.parameters.items()
    }
    for node in graph.nodes:
        if node.op == "call_function" and node not in env:
            args, kwargs = torch.fx.node.map_arg(
                (node.args, node.kwargs), env.__getitem__
            )
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


def _mean_gradient(net: Structure, block: Block, x: Any) -> float:
    """The mean square of the gradients of a stream, over its tokens."""
    if x.grad is None:
        return 0.0
    return float(np.mean(_tokens(net, block, x.grad) ** 2))


def _gradient(x: Any) -> float:
    """|∂L/∂x|²."""
    return 0.0 if x.grad is None else float(x.grad.double().square().sum())
