"""An audit, or a comparison of several models, as a document: see
`netsor.report._document`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._validate import counted
from ...models import RECIPES, Transformer
from ...models._description import idle
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
from ._cases import Model
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
from ._quantities import BLOCKS, EVERY, FINAL, Quantity, join_words, number
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
Column = tuple[
    Draws, int | None
]  # of a table: draws, and their block; None: the output
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
BLOCK_NOTE = (
    "Block 0 is the embedding. Bands hold 5 to 95 % of the initialisations at the"
    " model's own widths; solid lines are medians. Dashed lines are medians at infinite"
    " width, at the shortest length."
)


def document(
    audits: Sequence[LengthResult],
    compared: Differences | None = None,
    manifest: dict[str, Any] | None = None,
) -> doc.Document:
    """The document of an audit of one model, or of the comparison of several; with its
    manifest, for a folder.
    """
    first = audits[0]
    names = [audit.model.name for audit in audits]
    what, subject = " and ".join(names), headline(first)
    if compared is None:
        statuses = [finding.verdict for finding in first.findings]
        verdict = f"{what}: {doc.count_statuses(statuses)}"
        sections = _audit_sections(first)
    else:
        if first.request.swept:
            field, _ = first.request.swept
            what = f"{names[0].partition(', ')[0]}, {field} swept"
        verdict = f"{compared.verdict[0].upper()}{compared.verdict[1:]}."
        subject = f"{join_words(names)}. {subject}"
        sections = _comparison_sections(audits, compared)
    if manifest is not None:
        how = [Paragraph(RULE_NOTE), _provenance(audits, manifest)]
        sections.append(Section("How", how, "html"))
    if first.request.unchecked:  # the reader must not miss it
        sections.insert(0, Section("", [Paragraph(subject)]))
        subject = first.request.unchecked
    return doc.Document(
        f"Audit of {what}",
        verdict,
        subject,
        [section for section in sections if section.blocks],
    )


def headline(audit: LengthResult) -> str:
    """The sizes of the model and how many draws were made at which lengths."""
    drawn = join_words(
        [
            f"{counted(result.best.draws, 'draw')} of {counted(result.tokens, 'token')}"
            for result in audit.lengths
        ]
    )
    missing = "".join(f"; {what} (--verbose says why)" for what in unavailable(audit))
    status = audit.best.subject.status
    if status == "same limit":
        status += (
            " (weights are not Gaussian, or their standard deviations are measured)"
        )
    return f"{audit.model.sizes}; {drawn}; {status}{missing}"


def unavailable(result: LengthResult) -> dict[str, str]:
    """Missing results with the reason: the limit, or its gradients."""
    model, request = result.model, result.request
    if model in request.refused:
        return {"no limit": request.refused[model]}
    if model in request.no_gradients:
        return {"no gradients at n = ∞": request.no_gradients[model]}
    return {}


def _reasons(result: LengthResult) -> list[Paragraph]:
    return [
        Paragraph(f"N{what[1:]}: {why}.") for what, why in unavailable(result).items()
    ]


def _audit_sections(audit: LengthResult) -> list[Section]:
    """The sections of one model; those without blocks are left out.

    The main figure comes before the rules that are ok, so that it is on the first
    screen.
    """
    items = _finding_items(audit)
    urgent = [item for item in items if item.status in (FLAG, UNDECIDED)]
    other_items = items[len(urgent) :]
    advice = [
        Paragraph(text)
        for text in (*recipe_notes([audit.model]), adam_note(audit.model))
        if text
    ]
    summary = _block_table(audit, [EVERY[name] for name in SUMMARY], bands=False)
    tokens = counted(audit.tokens, "token")
    by_length = {counted(result.tokens, "token"): result for result in audit.lengths}
    statuses = [_status_table("status", by_length)] if len(by_length) > 1 else []
    rules: list[doc.Row] = [
        [
            Cell(finding.name, finding.rule),
            Cell(finding.verdict, finding.measured, COLOUR_CLASSES[finding.verdict]),
            finding.reason,
        ]
        for finding in audit.findings
    ]
    rules_table = Table(["rule", "status", "why it matters"], rules, prose=True)
    return [
        Section("", [doc.Items(urgent)] if urgent else []),
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
        Section("All rules", [rules_table], "html", folded=True),
    ]


def _block_by_block(results: Sequence[LengthResult]) -> Section:
    """Figures of all quantities against depth."""
    return Section(
        "Block by block",
        [Paragraph(BLOCK_NOTE), doc.Figures(figures(results))],
        "html",
    )


def adam_updates(model: Transformer, lr: float = ADAM_LR) -> dict[str, float]:
    """The size of AdamW's first update over the std of the entries, by matrix: lr/std,
    for any gradient above eps.

    The first bias-corrected step is lr · g/(|g| + eps), so every entry moves by lr.
    Matrices that start at 0 are left out.
    """
    unread = idle(model)
    stds = {
        words: getattr(model, f"std_{name}")
        for name, words in MATRICES.items()
        if f"std_{name}" not in unread
    }
    return {words: lr / std for words, std in stds.items() if std > 0}


def adam_note(model: Model) -> str:
    """AdamW's first update relative to the weights, in words; matrices with the same
    ratio are named together.
    """
    if not isinstance(model, Transformer):
        return ""
    alike: dict[float, list[str]] = {}
    for words, ratio in adam_updates(model).items():
        alike.setdefault(ratio, []).append(words)
    if not alike:
        return ""
    parts = [
        f"{100 * ratio:.2g} % of the std of {', '.join(names)}"
        for ratio, names in sorted(alike.items())
    ]
    where = " in the encoder" if model.decoder_gain != 1 else ""
    return (
        "AdamW moves every entry by the learning rate in its first step, however large"
        f" its gradient is. At lr {ADAM_LR:g} that is {join_words(parts)}{where}."
    )


def recipe_notes(models: Sequence[Model]) -> list[str]:
    """The formula and the source of every recipe that the models are drawn by."""
    parts = [
        part
        for model in models
        for part in model.name.split(", ")
        if part.startswith("recipe=")
    ]
    names = dict.fromkeys(part.removeprefix("recipe=") for part in parts)
    return [
        f"{name}: {RECIPES[name].words} ({RECIPES[name].source})."
        for name in names
        if name in RECIPES
    ]


def _finding_items(audit: LengthResult) -> list[doc.Item]:
    """Flagged rules with advice first, then undecided ones, then a line for each
    other.
    """
    items = []
    names_by_reason = dict[str, list[str]]()  # of rules that do not apply
    for finding in sorted(
        audit.findings, key=lambda finding: STATUSES.index(finding.verdict)
    ):
        if finding.verdict == NOT_APPLICABLE:
            names_by_reason.setdefault(finding.measured, []).append(finding.name)
        else:
            items.append(_finding_item(audit, finding))
    for reason, names in names_by_reason.items():
        items.append(doc.Item(NOT_APPLICABLE, ", ".join(names), reason))
    return items


def _finding_item(audit: LengthResult, finding: Finding) -> doc.Item:
    """The line of a rule; if it flags the model, with its advice."""
    if finding.verdict == OK:
        text = f"{finding.brief} ({finding.limit_text})"
        return doc.Item(finding.verdict, finding.name, text, [])
    where = f"{finding.lengths_text}: " if len(audit.lengths) > 1 else ""
    text = f"{where}{finding.measured} ({finding.limit_text})"
    details = []
    if finding.verdict == FLAG:
        if finding.advice:
            details.append(finding.advice)
        ok_lengths = [
            f"{result.tokens:,}"
            for result in audit.lengths
            if result.finding(finding.name).verdict == OK
        ]
        if ok_lengths:
            details.append(
                f"It is ok at {join_words(ok_lengths)} tokens: audit the length you"
                " train on."
            )
    return doc.Item(finding.verdict, finding.name, text, details)


def _block_table(
    result: LengthResult, quantities: Sequence[Quantity], bands: bool = True
) -> Table:
    """Medians, and bands if requested, at the embedding and after three blocks; with
    the limit of the last.
    """
    chosen = sorted({1, (result.blocks + 1) // 2, result.blocks})
    head = [
        f"{counted(result.tokens, 'token')}, median",
        "embedding",
        *(f"block {i}" for i in chosen),
    ]
    columns: list[Column] = [(result.best, i) for i in (0, *chosen)]
    if result.actual is not None and result.limit is not None:
        head.append(f"block {chosen[-1]}, n = ∞" if bands else "n = ∞")
        columns.append((result.limit, chosen[-1]))
    return Table(head, _quantity_rows(quantities, columns, bands))


def _quantity_rows(
    quantities: Sequence[Quantity], columns: Sequence[Column], bands: bool = True
) -> list[doc.Row]:
    """A row for each quantity that some column has: a median with its band, after a
    block or at the output.
    """

    def text(draws: Draws, quantity: Quantity, block: int | None) -> str:
        if (block, quantity.name) not in draws.numbers:
            return "–"
        median, low, high, error = draws.numbers[block, quantity.name].values()
        digits = quantity.digits
        quadrature = f" ± {error:.1g}" if error > NEGLIGIBLE * abs(median) else ""
        interval = f" ({low:.{digits}g}–{high:.{digits}g})" if bands else ""
        return f"{median:.{digits}g}{quadrature}{interval}"

    rows: list[doc.Row] = []
    for quantity in quantities:
        if any(quantity.name in draws for draws, _ in columns):
            tooltip = quantity.meaning if quantity in FINAL else ""
            texts = [text(draws, quantity, block) for draws, block in columns]
            rows.append([Cell(quantity.title, tooltip), *texts])
    return rows


def _output_table(firsts: Sequence[LengthResult]) -> Table:
    """Quantities of the output, with gradients at both ends, at each set of widths."""
    measured = [draws for result in firsts for draws in result.measured]
    names = strip_common_prefix([draws.subject.model.name for draws in measured])
    head = ["median and 5–95 % band"]
    for draws, name in zip(measured, names, strict=True):
        if len(firsts) > 1:
            head.append(f"{name}, n = ∞" if draws.subject.infinite else name)
        else:
            head.append("n = ∞" if draws.subject.infinite else "its widths")
    rows = _quantity_rows(FINAL, [(draws, None) for draws in measured])
    return Table(head, rows or [["no logits", *("–" for _ in measured)]])


def _status_table(corner: str, columns: Mapping[str, LengthResult]) -> Table:
    """A row for each rule that was measured somewhere, with its status in each
    column.
    """
    rows: list[doc.Row] = []
    for findings in zip(*(result.findings for result in columns.values()), strict=True):
        verdicts = [finding.verdict for finding in findings]
        if set(verdicts) != {NOT_APPLICABLE}:
            cells = [
                Cell(verdict, status=COLOUR_CLASSES[verdict]) for verdict in verdicts
            ]
            rows.append([findings[0].name, *cells])
    return Table([corner, *columns], rows)


def _comparison_sections(
    audits: Sequence[LengthResult], compared: Differences
) -> list[Section]:
    """The sections of several models, with their differences first; empty sections are
    left out.
    """
    names = [audit.model.name for audit in audits]
    short_names = dict(zip(names, strip_common_prefix(names), strict=True))

    def table(corner: str, rows: Sequence[doc.Row], *more: str) -> list[doc.Block]:
        """A table with a column for each model; nothing if it has no rows."""
        return [Table([corner, *short_names.values(), *more], rows)] if rows else []

    findings = [finding for rule in compared.rules for finding in rule.findings]
    rules = [
        *table("rule", [_rule_row(rule) for rule in compared.rules]),
        *_preferences(compared, short_names),
    ]
    advice = _comparison_advice(audits, compared, short_names)
    quantities = [_quantity_row(row, names) for row in compared.quantities]
    by_name = dict(zip(short_names.values(), audits, strict=True))
    last = _quantity_rows(
        BLOCKS, [(audit.best, audit.blocks) for audit in audits], bands=False
    )
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
    cells = []
    for finding in rule.findings:
        value = "" if finding.value is None else f" {number(finding.value)}"
        cells.append(
            Cell(finding.verdict + value, status=COLOUR_CLASSES[finding.verdict])
        )
    return [f"{rule.rule} ({rule.findings[0].limit_text})", *cells]


def _preferences(
    compared: Differences, short_names: Mapping[str, str]
) -> list[Paragraph]:
    """Which models each rule prefers, and why."""
    paragraphs = []
    for rule in compared.rules:
        if rule.why:
            preferred = join_words(
                [f"“{short_names[name]}”" for name in rule.preferred]
            )
            text = f"{rule.rule} prefers {preferred}: {rule.why}."
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
    deciding = {
        rule.rule for rule in compared.rules if preferred in rule.preferred and rule.why
    }
    if preferred and deciding <= set(BACKWARD_RULES):
        advice.append(GRADIENT_NOTE)
    return advice + recipe_notes([audit.model for audit in audits])


def _quantity_row(row: SeparatedMetric, names: Sequence[str]) -> doc.Row:
    """A quantity with its median for each model, and how far apart the bands are."""
    quantity = EVERY[row.quantity]
    if row.block is None:
        where = "output"
    elif row.block == 0:
        where = "embedding"
    else:
        where = f"block {row.block}"
    medians = dict(zip(row.models, row.medians, strict=True))
    texts = [
        f"{medians[name]:.{quantity.digits}g}" if name in medians else ""
        for name in names
    ]
    distance = f"{row.distance:.2g} ± {row.error:.1g}"
    return [f"{quantity.title}, {where}", *texts, distance]


def _field_rows(compared: Differences) -> list[doc.Row]:
    """The fields in which the models differ; those with the same values share a row."""
    names_by_values: dict[tuple[str, ...], list[str]] = {}
    for name, values in compared.fields.items():
        texts = [
            f"{value:.4g}" if isinstance(value, float) else str(value)
            for value in values
        ]
        names_by_values.setdefault(tuple(texts), []).append(name)
    return [[", ".join(names), *texts] for texts, names in names_by_values.items()]


def _sweep_section(audits: Sequence[LengthResult]) -> Section:
    """Figures of all quantities against the swept field; empty without a sweep."""
    field, values = audits[0].request.swept or ("", ())
    if not field:
        return Section(f"Against {field}", [], "html")
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
        median, low, high = (f"{value:.3g}" for value in activation.largest.values())
        band = f"{median} ({low}–{high})"
        if activation.block is not None:
            band += f", in block {activation.block}"
        title = ACTIVATIONS.get(activation.activation, activation.activation)
        formats = [_format_cell(fit) for fit in activation.formats]
        rows.append([Cell(title, band), median, *formats])
    head = ["activation", "largest", *(f.title for f in FORMATS)]
    return [Table(head, rows), Paragraph(RANGE_NOTE)]


def _format_cell(fit: FormatFit) -> Cell:
    """Whether an activation fits in a format; if not, the scale with which it does."""
    faults = []
    if fit.overflow == FLAG:
        faults.append("overflows")
    if fit.underflow == FLAG:
        faults.append("underflows")
    if faults:
        smallest = next(f.smallest for f in FORMATS if f.title == fit.format)
        tooltip = f"a scale of 2^{fit.scale} fits"
        if fit.below:
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
    """The quantity of the first flagged rule, or the mean square of the stream."""
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
    cases = [
        draws.subject
        for audit in audits
        for result in audit.lengths
        for draws in result.measured
    ]
    statuses = {case.status for case in cases}
    descriptions = {
        "exact": "exact in law at finite width",
        "same limit": (
            "drawn with Gaussian weights where the model's are not Gaussian (the limit"
            " is the same)"
        ),
        "conjectured": "drawn from the conjectured limit where widths are infinite",
    }
    exactness = ", ".join(
        text for status, text in descriptions.items() if status in statuses
    )
    parts = manifest["parts"]
    single = [part for part in parts if part["precision"] == "float32"]
    if not single:
        precision = "double precision"
    elif len(single) == len(parts):
        precision = "single precision"
    elif any(part["infinite"] for part in single):
        precision = "single precision where that is enough, else double"
    else:
        precision = (
            "single precision at finite widths where that is enough, else double"
        )
    seconds = f"{manifest['seconds']['sampling']:.1f} core-seconds"
    first = (
        f"Every draw is {exactness}. {manifest['random_numbers']:,} random numbers,"
        f" {precision}, {seconds}."
    )
    if any(case.keeps_heads for case in cases):
        first += " At infinite width, heads keep their dimension."
    files = {
        "audit.csv": "all numbers",
        "audit.json": "",
        "manifest.json": "every field of the models",
    }
    return provenance(manifest, first, files)
