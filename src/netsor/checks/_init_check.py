"""The result of a check of an initialisation, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._validate import counted
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
from ._findings import InitFinding

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
MOST_NAMED = 3  # parameters that a note names
OWN = "its own initialisation"
DECLARED = "its declared laws"
NOT_FOUND = "no reference, so mistakes in that code cannot be found"
# the status if nothing departs, but parameters or pass were not checked
INCOMPLETE = "incomplete"
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class InitCheck:
    """The result of `check_init`; `print` shows the verdict first.

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
        The omitted checks, with the reasons.
    parameters_only : bool
        Whether the check was limited to parameters.
    other_depth : str
        A note that the reference has another number of blocks, with the remedy; "" if
        the numbers agree.

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
    other_depth: str = ""

    @property
    def status(self) -> str:
        """The result in a word.

        It is "FLAG" if something departs, else "incomplete" if no parameter or no pass
        was checked, else "ok". With `parameters_only`, no pass is needed.
        """
        if self.findings:
            return FLAG
        is_complete = len(self.unchecked) < self.parameters
        if not self.parameters_only:
            is_complete = is_complete and bool(self.checked_pass)
        return OK if is_complete else INCOMPLETE

    @property
    def ok(self) -> bool:
        """Whether the check was complete, and nothing departs."""
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
            of_parameters += f" ({first_of(self.unchecked)}{self._remedy})"
        return f"{counted(self.tests, 'test')}; {of_parameters}"

    @property
    def _remedy(self) -> str:
        """How unchecked parameters are checked, if their laws are not known."""
        return ": declare their laws" if self.undeclared else ""

    @property
    def verdict(self) -> str:
        """The status, the departures and the coverage, in one line.

        Without a reference, it also says what cannot be detected.
        """
        status = self.status
        coverage = self.coverage
        if not self.checked_pass:
            status += " (forward pass not checked)"
            coverage = self._coverage_of_parameters
        conclusion = self._conclusion()
        is_own = self.reference == OWN
        parts = [conclusion, coverage]
        if is_own:
            parts = [conclusion, NOT_FOUND, coverage]
        elif not self.findings:  # what was checked matters most
            parts = [coverage, conclusion]
        parts = [self.other_depth, *parts]
        return f"{status}: {'; '.join(filter(None, parts))}"

    def _conclusion(self) -> str:
        """Whether the module agrees with the reference, and where to look first."""
        reference = self.reference
        if reference not in (OWN, DECLARED):
            reference = f"the reference {reference}"
        if self.first is None and self.reference == OWN:
            verb = "is" if self.ok else "was not compared in full, and is"
            return f"{self.name} {verb} consistent with {reference} code"
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
        because = ""
        shown = MOST_SHOWN
        if of_parameters:
            because = " (perhaps because of these parameters)"
            shown = MOST_IMPLIED
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
            title=f"Initialisation of {self.name}",
            verdict=self.verdict,
            subject=subject,
            sections=[section for section in sections if section.blocks],
        )

    def _notes_on_parameters(self) -> list[str]:
        """Which parameters were not checked, and why."""
        notes = []
        if self.undeclared:
            name = self.undeclared[0]
            notes.append(
                f"{counted(len(self.undeclared), 'parameter')} not checked, unknown to"
                f" the reference: {first_of(self.undeclared)}. Declare their laws:"
                f" --declared '{name}=0.02', or declared={{'{name}': 0.02}} in Python"
            )
        rest = [name for name in self.unchecked if name not in self.undeclared]
        if rest:
            notes.append(
                f"{counted(len(rest), 'parameter')} not checked, of a law that has no"
                f" test: {first_of(rest)}"
            )
        return notes


def depths_differ(blocks: int, expected: int, remedy: str = "") -> str:
    """What to say of a module whose reference has `expected` blocks; "" if it has as
    many.

    `remedy` is an example of a reference, ", such as …".
    """
    if blocks == expected:
        return ""
    return (
        f"the reference has {counted(expected, 'block')} and the module {blocks}, so"
        " standard deviations that depend on the depth are not comparable: give a"
        f" reference of {counted(blocks, 'block')}{remedy}"
    )


def first_of(names: Sequence[str]) -> str:
    """The first names of a list, as text."""
    shown = list(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        shown.append("…")
    return ", ".join(shown)


def _items(findings: Sequence[InitFinding], most: int) -> list[Items | Paragraph]:
    """The first `most` findings: expected and found values, with the p-value.

    A mean is judged by the expected standard deviation. Where that is wrong, findings
    about the mean say nothing more and are left out.
    """
    wrong_std = {finding.where for finding in findings if finding.what == "std"}
    texts: dict[tuple[str, str], str] = {}
    for finding in findings:
        if finding.what == "mean" and finding.where in wrong_std:
            continue
        label = _label(finding)
        text = f"{label}: {finding.text}" if label else finding.text
        if finding.what not in EXACT:
            text += f" {_p_value(finding.p)}"
        # two tests of one thing count once; texts without a label say what they found
        texts.setdefault((finding.where, label or text), text.rstrip())
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
