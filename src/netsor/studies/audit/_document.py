"""An audit, or a comparison of several models, as a document: see
`netsor.report._document`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._validate import counted
from ...models import RECIPES, Transformer
from ...models._description import idle
from ...models.measure._metric_program import ProgramModel
from ...models.measure._metrics import FORMATS
from ...programs._bound_program import NEGLIGIBLE
from ...report import _document as doc
from ...report._document import (
    FLAG,
    NOT_APPLICABLE,
    OK,
    STATUSES,
    UNDECIDED,
    Cell,
    Paragraph,
    Section,
    Table,
)
from ...report._html import COLOUR_CLASSES, provenance
from ._cases import AuditCase, Model
from ._differences import (
    Differences,
    RulePreference,
    SeparatedMetric,
    drawbacks,
    strip_common_prefix,
)
from ._findings import Finding
from ._measurements import UNDERFLOW_SHARE, Draws, FormatFit, LengthResult, ranges_of
from ._plots import figure, figures, swept_figures
from ._quantities import BLOCKS, EVERY, FINAL, Quantity, join_words
from ._rules import BACKWARD_RULES, RULES

# a common peak learning rate of AdamW; the ratios below are proportional to it
ADAM_LR = 3e-4
# matrices in words, by the ends of the names of their std: std_q, std_k, …
MATRICES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "attention output",
    "in": "MLP in",
    "gate": "MLP gate",
    "out": "MLP out",
    "router": "router",
    "embedding": "embedding",
    "position": "position",
    "logits": "logits",
}
# of a table: draws, and their block; None: the output
Column = tuple[Draws, int | None]
# the quantities in the short table of the terminal
SUMMARY = ("mean_square", "attention_share", "cosine", "effective_rank", "entropy")
RULE_NOTE = (
    "A rule compares a median over initialisations with its threshold, by a confidence"
    " interval of level 1e-4 that assumes nothing about the distribution. If the"
    " interval contains the threshold, the rule is undecided and more draws settle it."
    " A status holds at the lengths that it names."
)
GRADIENT_NOTE = (
    "Only rules about the size of gradients prefer it. They matter to SGD; AdamW's"
    " first update does not depend on it."
)
ACTIVATIONS = {  # that are not called by their names
    "query": "queries",
    "key": "keys",
    "value": "values",
    "weights": "attention weights",
    "embedding": "embeddings",
    "attention": "attention's output",
    "hidden": "hidden of the MLP",
    "mlp": "MLP's output",
}
RANGE_NOTE = (
    "The largest absolute value is taken over all blocks: its median over"
    " initialisations, and the 5–95 % band. An activation overflows in a format if"
    " this median is above the largest number of the format. It underflows if, in some"
    f" block, more than {UNDERFLOW_SHARE:g} of its nonzero numbers are below the"
    " smallest subnormal number. The power of two is the largest scale with which 95 %"
    " of initialisations fit."
)
EXACTNESS = {  # what the status of a law means for draws
    "exact": "exact in law at finite width",
    "same limit": (
        "drawn with Gaussian weights where the model's are not Gaussian (the limit"
        " is the same)"
    ),
    "conjectured": "drawn from the conjectured limit where widths are infinite",
}
BLOCK_NOTE = (
    "Block 0 is the embedding. Lines are medians over initialisations at the model's"
    " own widths; bands hold 5 to 95 % of them."
)
LIMIT_NOTE = " Dashed lines are medians at infinite width, at the shortest length."


def document(
    audits: Sequence[LengthResult],
    compared: Differences | None = None,
    manifest: dict[str, Any] | None = None,
) -> doc.Document:
    """The document of an audit of one model, or of the comparison of several; with its
    manifest, for a folder.
    """
    first_audit = audits[0]
    names = [audit.model.name for audit in audits]
    subject = headline(first_audit)
    title = " and ".join(names)
    if compared is None:
        verdict = _verdict(first_audit)
        sections = _audit_sections(first_audit)
    else:
        if first_audit.request.swept:
            field, _ = first_audit.request.swept
            title = f"{names[0].partition(', ')[0]}, {field} swept"
        verdict = f"{compared.verdict[0].upper()}{compared.verdict[1:]}."
        subject = f"{join_words(names)}. {subject}"
        sections = _comparison_sections(audits, compared)
    if manifest is not None:
        provenance_blocks = [Paragraph(RULE_NOTE), _provenance(audits, manifest)]
        sections.append(Section("How", provenance_blocks, "html"))
    if first_audit.request.unchecked:  # the reader must not miss it
        sections.insert(0, Section("", [Paragraph(subject)]))
        subject = first_audit.request.unchecked
    return doc.Document(
        title=f"Audit of {title}",
        verdict=verdict,
        subject=subject,
        sections=[section for section in sections if section.blocks],
    )


def _verdict(audit: LengthResult) -> str:
    """How many problems were found, as "gpt2: no problem found. 5 rules pass; 6 were
    not checked (quick audit)."
    """
    statuses = [finding.verdict for finding in audit.findings]
    flagged = [finding.name for finding in audit.findings if finding.verdict == FLAG]
    passing = statuses.count(OK)
    undecided = statuses.count(UNDECIDED)
    unchecked = statuses.count(NOT_APPLICABLE)
    problems = "no problem found"
    if flagged:
        problems = f"{counted(len(flagged), 'problem')} found ({join_words(flagged)})"
    verb = "passes" if passing == 1 else "pass"
    counts = [f"{counted(passing, 'rule')} {verb}"]
    if undecided:
        verb = "is" if undecided == 1 else "are"
        counts.append(f"{undecided} {verb} undecided")
    if unchecked:
        verb = "was" if unchecked == 1 else "were"
        reason = " (quick audit)" if audit.request.quick else ""
        counts.append(f"{unchecked} {verb} not checked{reason}")
    return f"{audit.model.name}: {problems}. {'; '.join(counts)}."


def headline(audit: LengthResult) -> str:
    """The sizes of the model and how many draws were made at which lengths."""
    draws = []
    for result in audit.lengths:
        tokens = counted(result.tokens, "token")
        draws.append(f"{counted(result.best.draws, 'draw')} of {tokens}")
    status = audit.best.subject.status
    if status == "same limit":
        status += (
            " (weights are not Gaussian, or their standard deviations are measured)"
        )
    text = f"{audit.model.sizes}; {join_words(draws)}; {status}"
    for missing in unavailable(audit):
        text += f"; {missing} (--verbose says why)"
    if isinstance(audit.model, ProgramModel) and audit.model.origin:
        text += f". {audit.model.origin}"
    return text


def unavailable(result: LengthResult) -> dict[str, str]:
    """Missing results with the reason: the limit, or its gradients."""
    model = result.model
    request = result.request
    if model in request.refused:
        return {"no limit": request.refused[model]}
    reason = request.no_gradients(model, result.tokens)
    if reason:
        return {"no gradients at n = ∞": reason}
    return {}


def _reasons(result: LengthResult) -> list[Paragraph]:
    """A paragraph for each missing result, with the reason."""
    paragraphs = []
    for missing, reason in unavailable(result).items():
        paragraphs.append(Paragraph(f"{missing[0].upper()}{missing[1:]}: {reason}."))
    return paragraphs


def _audit_sections(audit: LengthResult) -> list[Section]:
    """The sections of the report on one model. Sections without blocks are left out
    later.

    The main figure comes before the rules that are ok, so that it is on the first
    screen.
    """
    items = _finding_items(audit)  # flagged and undecided rules come first
    urgent = [item for item in items if item.status in (FLAG, UNDECIDED)]
    other_items = items[len(urgent) :]
    joint = audit.joint_remedy
    together = [] if joint is None else [Paragraph(joint.words)]
    advice = [Paragraph(text) for text in recipe_notes([audit.model])]
    if note := adam_note(audit.model):
        advice.append(Paragraph(note))
    summary = _block_table(audit, [EVERY[name] for name in SUMMARY], bands=False)
    tokens = counted(audit.tokens, "token")
    by_length = {counted(result.tokens, "token"): result for result in audit.lengths}
    statuses = [_status_table("status", by_length)] if len(by_length) > 1 else []
    return [
        Section("", [doc.Items(urgent), *together] if urgent else []),
        Section("", [_main_figure(audit.lengths, audit.findings)], "html"),
        Section("", [doc.Items(other_items), *advice]),
        Section("", [summary], "text"),
        Section(f"Output, {tokens}", [_output_table([audit])], "verbose"),
        Section(
            f"Blocks, {tokens}: median and 5–95 % band",
            [_block_table(audit, BLOCKS)],
            "verbose",
        ),
        Section("Not computed", _reasons(audit), "verbose"),
        Section("Lengths", statuses, "verbose"),
        Section("Activation ranges and short formats", _range_blocks(audit.best)),
        _block_by_block(audit.lengths),
        Section(
            title="All rules", blocks=[_rules_table(audit)], show="html", folded=True
        ),
    ]


def _rules_table(audit: LengthResult) -> Table:
    """Every rule with its status and why it matters."""
    rows: list[doc.Row] = []
    for finding in audit.findings:
        colour_class = COLOUR_CLASSES[finding.verdict]
        status = Cell(finding.verdict, finding.measured, colour_class)
        rows.append([Cell(finding.name, finding.rule), status, finding.reason])
    return Table(["rule", "status", "why it matters"], rows, prose=True)


def _block_by_block(results: Sequence[LengthResult]) -> Section:
    """Figures of all quantities against depth."""
    note = BLOCK_NOTE
    if any(draws.subject.infinite for result in results for draws in result.measured):
        note += LIMIT_NOTE
    return Section(
        "Block by block", [Paragraph(note), doc.Figures(figures(results))], "html"
    )


def adam_updates(model: Transformer, lr: float = ADAM_LR) -> dict[str, float]:
    """The size of AdamW's first update over the std of the entries, by matrix: lr/std,
    for any gradient above eps.

    The first bias-corrected step is lr · g/(|g| + eps), so every entry moves by lr.
    Matrices that start at 0 are left out.
    """
    idle_fields = idle(model)
    ratios = {}
    for name, matrix in MATRICES.items():
        field = f"std_{name}"
        std = getattr(model, field)
        if field not in idle_fields and std > 0:
            ratios[matrix] = lr / std
    return ratios


def adam_note(model: Model) -> str:
    """AdamW's first update relative to the weights, in words; matrices with the same
    ratio are named together. "" for a program, and if all weights start at 0.
    """
    if not isinstance(model, Transformer):
        return ""
    matrices_by_ratio: dict[float, list[str]] = {}
    for matrix, ratio in adam_updates(model).items():
        matrices_by_ratio.setdefault(ratio, []).append(matrix)
    if not matrices_by_ratio:
        return ""
    shares = []
    for ratio, matrices in sorted(matrices_by_ratio.items()):
        shares.append(f"{100 * ratio:.2g} % of the std of {', '.join(matrices)}")
    stack = " in the encoder" if model.decoder_gain != 1 else ""
    return (
        "AdamW moves every entry by the learning rate in its first step, however large"
        f" its gradient is. At lr {ADAM_LR:g} that is {join_words(shares)}{stack}."
    )


def recipe_notes(models: Sequence[Model]) -> list[str]:
    """The formula and the source of every recipe that the models are drawn by."""
    notes: dict[str, str] = {}  # by the name of the recipe
    for model in models:
        for setting in model.name.split(", "):
            name = setting.removeprefix("recipe=")
            if name != setting and name in RECIPES:
                recipe = RECIPES[name]
                notes[name] = f"{name}: {recipe.words} ({recipe.source})."
    return list(notes.values())


def _finding_items(audit: LengthResult) -> list[doc.Item]:
    """A line for each rule: flagged rules with advice first, then undecided ones, then
    those that are ok. Rules that do not apply for the same reason share a line.
    """
    items = []
    names_by_reason: dict[str, list[str]] = {}  # of rules that do not apply
    by_status = sorted(audit.findings, key=lambda f: STATUSES.index(f.verdict))
    for finding in by_status:
        if finding.verdict == NOT_APPLICABLE:
            names_by_reason.setdefault(finding.measured, []).append(finding.name)
        else:
            items.append(_finding_item(audit, finding))
    for reason, names in names_by_reason.items():
        items.append(doc.Item(NOT_APPLICABLE, ", ".join(names), reason))
    return items


def _finding_item(audit: LengthResult, finding: Finding) -> doc.Item:
    """The line of a rule; if it flags the model, with its advice.

    An audit has one result for each number of tokens, in `audit.lengths`; the result of
    a single number of tokens has itself there.
    """
    if finding.verdict == OK:
        text = f"{finding.brief} (flagged\N{NO-BREAK SPACE}{finding.limit_text})"
        return doc.Item(status=finding.verdict, name=finding.name, text=text, more=[])
    text = f"{finding.measured} (flagged\N{NO-BREAK SPACE}{finding.limit_text})"
    if len(audit.lengths) > 1:
        text = f"{finding.lengths_text}: {text}"
    details = []
    if finding.verdict == FLAG:
        if finding.advice:
            details.append(finding.advice)
        tokens_if_ok = [
            f"{result.tokens:,}"
            for result in audit.lengths
            if result.finding(finding.name).verdict == OK
        ]
        if tokens_if_ok:
            details.append(
                f"It is ok at {join_words(tokens_if_ok)} tokens: audit the length you"
                " train on."
            )
    return doc.Item(status=finding.verdict, name=finding.name, text=text, more=details)


def _block_table(
    result: LengthResult, quantities: Sequence[Quantity], bands: bool = True
) -> Table:
    """Medians, with bands if requested, at the embedding and after the first, the
    middle and the last block; with the limit of the last.
    """
    head = [f"{counted(result.tokens, 'token')}, median", "embedding"]
    columns: list[Column] = [(result.best, 0)]
    shown_blocks = {1, (result.blocks + 1) // 2, result.blocks}
    for block in sorted(shown_blocks):
        head.append(f"block {block}")
        columns.append((result.best, block))
    if result.actual is not None and result.limit is not None:
        head.append(f"block {result.blocks}, n = ∞" if bands else "n = ∞")
        columns.append((result.limit, result.blocks))
    return Table(head, _quantity_rows(quantities, columns, bands))


def _quantity_rows(
    quantities: Sequence[Quantity], columns: Sequence[Column], bands: bool = True
) -> list[doc.Row]:
    """A row for each quantity that some column has: a median with its band, after a
    block or at the output.
    """
    rows: list[doc.Row] = []
    for quantity in quantities:
        if any(quantity.name in draws for draws, _ in columns):
            tooltip = quantity.meaning if quantity in FINAL else ""
            row: list[str | Cell] = [Cell(quantity.title, tooltip)]
            for draws, block in columns:
                row.append(_band_text(draws, quantity, block, with_band=bands))
            rows.append(row)
    return rows


def _band_text(
    draws: Draws, quantity: Quantity, block: int | None, with_band: bool
) -> str:
    """A median with its quadrature error, and its band if requested, as "0.51 ± 0.002
    (0.48–0.55)"; a dash if it was not measured.
    """
    if (block, quantity.name) not in draws.numbers:
        return "–"
    numbers = draws.numbers[block, quantity.name]
    median = numbers["median"]
    error = numbers["error"]
    digits = quantity.digits
    text = f"{median:.{digits}g}"
    if error > NEGLIGIBLE * abs(median):
        text += f" ± {error:.1g}"
    if with_band:
        text += f" ({numbers['low']:.{digits}g}–{numbers['high']:.{digits}g})"
    return text


def _output_table(firsts: Sequence[LengthResult]) -> Table:
    """Quantities of the output, with gradients at both ends: a column for each model
    and set of widths. `firsts` are the results of the models at the first length.
    """
    measured: list[Draws] = []
    for result in firsts:
        measured += result.measured
    names = strip_common_prefix([draws.subject.model.name for draws in measured])
    head = ["median and 5–95 % band"]
    for draws, name in zip(measured, names, strict=True):
        infinite = draws.subject.infinite
        if len(firsts) > 1:
            head.append(f"{name}, n = ∞" if infinite else name)
        else:
            head.append("n = ∞" if infinite else "model's own width")
    rows = _quantity_rows(FINAL, [(draws, None) for draws in measured])
    if not rows:
        rows = [["no logits", *["–"] * len(measured)]]
    return Table(head, rows)


def _status_table(corner: str, columns: Mapping[str, LengthResult]) -> Table:
    """A row for each rule that was measured somewhere, with its status in each
    column.
    """
    rows: list[doc.Row] = []
    # all results list the rules in the same order
    for findings in zip(*(result.findings for result in columns.values()), strict=True):
        row: list[str | Cell] = [findings[0].name]
        for finding in findings:
            row.append(Cell(finding.verdict, status=COLOUR_CLASSES[finding.verdict]))
        if any(finding.verdict != NOT_APPLICABLE for finding in findings):
            rows.append(row)
    return Table([corner, *columns], rows)


def _comparison_sections(
    audits: Sequence[LengthResult], compared: Differences
) -> list[Section]:
    """The sections of the comparison of several models, with their differences first.
    Sections without blocks are left out later.
    """
    names = [audit.model.name for audit in audits]
    short_names = dict(zip(names, strip_common_prefix(names), strict=True))

    def table(corner: str, rows: Sequence[doc.Row], *more: str) -> list[doc.Block]:
        """A list of one table, with a column for each model and more columns; an empty
        list without rows.
        """
        if not rows:
            return []
        head = [corner, *short_names.values(), *more]
        return [Table(head, rows)]

    findings: list[Finding] = []
    for rule in compared.rules:
        findings += rule.findings
    rules = [
        *table("rule (flagged if)", [_rule_row(rule) for rule in compared.rules]),
        *_preferences(compared, short_names),
    ]
    advice = _comparison_advice(audits, compared, short_names)
    quantities = [_quantity_row(row, names) for row in compared.quantities]
    by_name = dict(zip(short_names.values(), audits, strict=True))
    last_blocks: list[Column] = [(audit.best, audit.blocks) for audit in audits]
    last = _quantity_rows(BLOCKS, last_blocks, bands=False)
    sections = [
        Section("Rules that separate them", rules),
        Section("", [_main_figure(audits, findings)], "html"),
        Section("", [Paragraph(text) for text in advice]),
        Section("", table("largest differences", quantities, "bands apart")),
        Section("Fields that differ", table("field", _field_rows(compared))),
        _sweep_section(audits),
        Section("Status of every rule", [_status_table("rule", by_name)]),
        Section("Output", [_output_table(audits)], "verbose"),
        Section("After the last block", table("median", last), "verbose"),
        _block_by_block(audits),
    ]
    for audit in audits:
        blocks = [
            Paragraph(headline(audit)),
            doc.Items(_finding_items(audit)),
            *_range_blocks(audit.best),
            *_reasons(audit),
        ]
        sections.append(Section(audit.model.name, blocks, "verbose"))
    return sections


def _rule_row(rule: RulePreference) -> doc.Row:
    """A rule with its threshold, and its verdict on each model with the value."""
    row: list[str | Cell] = [f"{rule.rule} ({rule.findings[0].limit_text})"]
    for finding in rule.findings:
        text = finding.verdict
        if finding.value is not None:
            text += f" {finding.value_text(finding.value)}"
        row.append(Cell(text, status=COLOUR_CLASSES[finding.verdict]))
    return row


def _preferences(
    compared: Differences, short_names: Mapping[str, str]
) -> list[Paragraph]:
    """Which models each rule prefers, and why."""
    paragraphs = []
    for rule in compared.rules:
        if rule.why:
            names = [f"“{short_names[name]}”" for name in rule.preferred]
            text = f"{rule.rule} prefers {join_words(names)}: {rule.why}."
            paragraphs.append(Paragraph(f"{text} {rule.findings[0].reason}"))
    return paragraphs


def _comparison_advice(
    audits: Sequence[LengthResult],
    compared: Differences,
    short_names: Mapping[str, str],
) -> list[str]:
    """What speaks against the preferred model, and notes on the preference and on
    recipes.
    """
    advice = []
    preferred = compared.preferred or ""
    against = drawbacks(audits, preferred)
    if against:
        advice.append(f"Against “{short_names[preferred]}”: {'; '.join(against)}.")
    deciding = []
    for rule in compared.rules:
        if preferred in rule.preferred and rule.why:
            deciding.append(rule.rule)
    if preferred and set(deciding) <= set(BACKWARD_RULES):
        advice.append(GRADIENT_NOTE)
    return advice + recipe_notes([audit.model for audit in audits])


def _quantity_row(row: SeparatedMetric, names: Sequence[str]) -> doc.Row:
    """A quantity with its median for each model, and how far apart the bands are."""
    quantity = EVERY[row.quantity]
    medians = dict.fromkeys(names, "")
    for name, median in zip(row.models, row.medians, strict=True):
        medians[name] = f"{median:.{quantity.digits}g}"
    distance = f"{row.distance:.2g} ± {row.error:.1g}"
    return [f"{quantity.title}, {row.position}", *medians.values(), distance]


def _field_rows(compared: Differences) -> list[doc.Row]:
    """The fields in which the models differ; those with the same values share a row."""

    def text(value: Any) -> str:
        """A cell of the table, with four digits."""
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    names_by_values: dict[tuple[str, ...], list[str]] = {}
    for name, values in compared.fields.items():
        texts = tuple(text(value) for value in values)
        names_by_values.setdefault(texts, []).append(name)
    rows: list[doc.Row] = []
    for texts, names in names_by_values.items():
        rows.append([", ".join(names), *texts])
    return rows


def _sweep_section(audits: Sequence[LengthResult]) -> Section:
    """Figures of all quantities against the swept field; empty without a sweep."""
    swept = audits[0].request.swept
    if swept is None:
        return Section("Against ", [], "html")
    field, values = swept
    pictures = swept_figures(audits, field, values)
    return Section(f"Against {field}", [doc.Figures(pictures)], "html")


def _range_blocks(draws: Draws) -> list[doc.Block]:
    """The table of activations and formats, and how to read it; nothing if ranges were
    not requested.
    """
    ranges = ranges_of(draws.arrays)
    if not ranges:
        return []
    rows: list[doc.Row] = []
    for activation in ranges:
        largest = activation.largest
        median = f"{largest['median']:.3g}"
        band = f"{median} ({largest['low']:.3g}–{largest['high']:.3g})"
        if activation.block is not None:
            band += f", in block {activation.block}"
        title = ACTIVATIONS.get(activation.activation, activation.activation)
        formats = [_format_cell(fit) for fit in activation.formats]
        rows.append([Cell(title, band), median, *formats])
    head = ["activation", "largest", *(f.title for f in FORMATS)]
    return [Table(head, rows), Paragraph(RANGE_NOTE)]


def _format_cell(fit: FormatFit) -> Cell:
    """Whether an activation fits in a format: "fits", "undecided", or as "overflows,
    2^-3" with the scale with which it fits.
    """
    faults = []
    if fit.overflow == FLAG:
        faults.append("overflows")
    if fit.underflow == FLAG:
        faults.append("underflows")
    if faults:
        tooltip = f"a scale of 2^{fit.scale} fits"
        if fit.below:
            smallest_by_format = {f.title: f.smallest for f in FORMATS}
            smallest = smallest_by_format[fit.format]
            tooltip = (
                f"{fit.below:.2g} of its numbers are below 2^{smallest}; {tooltip}"
            )
        if fit.scaled >= UNDERFLOW_SHARE:
            tooltip += f", and leaves {fit.scaled:.2g} below"
        return Cell(f"{' and '.join(faults)}, 2^{fit.scale}", tooltip, "bad")
    if UNDECIDED in (fit.overflow, fit.underflow):
        return Cell("undecided", status="open")
    return Cell("fits", status="good")


def _main_figure(
    results: Sequence[LengthResult], findings: Sequence[Finding]
) -> doc.Figures:
    """The figure on the first screen: of the quantity of the first flagged rule, or of
    the mean square of the stream if no rule with a quantity is flagged.
    """
    quantities = {rule.name: rule.quantity for rule in RULES}
    name = "mean_square"
    for finding in findings:
        quantity = quantities[finding.name]
        if finding.verdict != FLAG or quantity is None:
            continue
        if quantity in results[0].best:
            name = quantity
            break
    return doc.Figures([figure(results, name, "summary-")])


def _provenance(audits: Sequence[LengthResult], manifest: dict[str, Any]) -> Paragraph:
    """How exact the draws are, what they took, and where their numbers are."""
    cases: list[AuditCase] = []
    for audit in audits:
        for result in audit.lengths:
            cases += [draws.subject for draws in result.measured]
    statuses = {case.status for case in cases}
    exactness = [text for status, text in EXACTNESS.items() if status in statuses]
    seconds = f"{manifest['seconds']['sampling']:.1f} core-seconds"
    text = (
        f"Every draw is {', '.join(exactness)}. {manifest['random_numbers']:,} random"
        f" numbers, {_precision(manifest['parts'])}, {seconds}."
    )
    if any(case.keeps_heads for case in cases):
        text += " At infinite width, heads keep their dimension."
    files = {
        "audit.csv": "all numbers",
        "audit.json": "",
        "manifest.json": "every field of the models",
    }
    return provenance(manifest, text, files)


def _precision(cases: Sequence[Mapping[str, Any]]) -> str:
    """The precision in which the cases of a manifest were drawn."""
    single = [case for case in cases if case["precision"] == "float32"]
    if not single:
        return "double precision"
    if len(single) == len(cases):
        return "single precision"
    if any(case["infinite"] for case in single):
        return "single precision where that is enough, else double"
    return "single precision at finite widths where that is enough, else double"
