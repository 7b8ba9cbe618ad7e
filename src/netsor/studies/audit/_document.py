"""An audit, or a comparison of several models, as a document: see
`netsor._document`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import _document as doc
from ..._bound_program import NEGLIGIBLE
from ..._document import (
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
from ..._html import COLOUR_CLASSES, provenance
from ..._validate import counted
from ...models import RECIPES, Transformer
from ...models._description import idle
from ...models._metrics import FORMATS
from ._cases import Model
from ._differences import Differences, drawbacks, strip_common_prefix
from ._findings import Finding
from ._measurements import UNDERFLOW_SHARE, Draws, FormatFit, LengthResult, ranges_of
from ._plots import figure, figures, swept_figures
from ._quantities import BLOCKS, EVERY, FINAL, Quantity, join_words, number
from ._rules import BACKWARD_RULES

# a common peak learning rate of AdamW; the ratios below are proportional to it
ADAM_LR = 3e-4
# by the names of their std
MATRICES = {"q": "query", "k": "key", "v": "value", "o": "attention output"}
MATRICES |= {name: f"MLP {name}" for name in ("in", "gate", "out")}
MATRICES |= {name: name for name in ("router", "embedding", "position", "logits")}
Column = tuple[Draws, int | None]  # of a table: draws, and a block or the output
# rows of the short table
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
    names, first = [audit.model.name for audit in audits], audits[0]
    what, subject = " and ".join(names), headline(first)
    if compared is None:
        verdict = (
            f"{what}:"
            f" {doc.count_statuses([finding.verdict for finding in first.findings])}"
        )
        sections = _audit_sections(first)
    else:
        swept = first.request.swept
        what = f"{names[0].partition(', ')[0]}, {swept[0]} swept" if swept else what
        verdict, subject = (
            f"{compared.verdict[0].upper()}{compared.verdict[1:]}.",
            f"{join_words(names)}. {subject}",
        )
        sections = _comparison_sections(audits, compared)
    if manifest is not None:
        sections.append(
            Section(
                "How", [Paragraph(RULE_NOTE), _provenance(audits, manifest)], "html"
            )
        )
    if first.request.unchecked:  # the reader must not miss it
        subject, sections = (
            first.request.unchecked,
            [Section("", [Paragraph(subject)]), *sections],
        )
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
            f"{counted(r.best.draws, 'draw')} of {counted(r.tokens, 'token')}"
            for r in audit.lengths
        ]
    )
    missing = "".join(f"; {what} (--verbose says why)" for what in unavailable(audit))
    status = audit.best.subject.status
    status += (
        " (weights are not Gaussian, or their standard deviations are measured)"
        * (status == "same limit")
    )
    return f"{audit.model.sizes}; {drawn}; {status}{missing}"


def unavailable(result: LengthResult) -> dict[str, str]:
    """Missing results with the reason: the limit, or its gradients."""
    model, request = result.model, result.request
    if model in request.refused:
        return {"no limit": request.refused[model]}
    return (
        {"no gradients at n = ∞": request.no_gradients[model]}
        if model in request.no_gradients
        else {}
    )


def _reasons(result: LengthResult) -> list[Paragraph]:
    return [
        Paragraph(f"N{what[1:]}: {why}.") for what, why in unavailable(result).items()
    ]


def _audit_sections(audit: LengthResult) -> list[Section]:
    """The sections of one model; those without blocks are left out."""
    advice = [
        Paragraph(text)
        for text in (*recipe_notes([audit.model]), adam_note(audit.model))
        if text
    ]
    items, drawn = _finding_items(audit), f", {counted(audit.tokens, 'token')}"
    urgent = [item for item in items if item.status in (FLAG, UNDECIDED)]
    lengths = {counted(result.tokens, "token"): result for result in audit.lengths}
    rules: list[doc.Row] = [
        [
            Cell(f.name, f.rule),
            Cell(f.verdict, f.measured, COLOUR_CLASSES[f.verdict]),
            f.reason,
        ]
        for f in audit.findings
    ]
    return [  # the figure before the rules that are ok: the first screen shows it
        Section("", [doc.Items(urgent)] if urgent else []),
        Section("", [_main_figure(audit.lengths, audit.findings)], "html"),
        Section("", [doc.Items(items[len(urgent) :]), *advice]),
        Section(
            "",
            [_block_table(audit, [EVERY[name] for name in SUMMARY], bands=False)],
            "text",
        ),
        Section(f"Output{drawn}", [_output_table([audit])], "verbose"),
        Section(
            f"Blocks{drawn}: median and 5–95 % band",
            [_block_table(audit, BLOCKS)],
            "verbose",
        ),
        Section("Not computed", _reasons(audit), "verbose"),
        Section(
            "Lengths",
            [_status_table("status", lengths)] if len(lengths) > 1 else [],
            "verbose",
        ),
        Section("Activation ranges and short formats", _range_blocks(audit.best)),
        Section(
            "Block by block",
            [Paragraph(BLOCK_NOTE), doc.Figures(figures(audit.lengths))],
            "html",
        ),
        Section(
            "All rules",
            [Table(["rule", "status", "why it matters"], rules, prose=True)],
            "html",
            folded=True,
        ),
    ]


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
    items, absent = [], dict[str, list[str]]()
    for finding in sorted(
        audit.findings, key=lambda each: STATUSES.index(each.verdict)
    ):
        text, more = f"{finding.brief} ({finding.limit_text})", []
        if finding.verdict == NOT_APPLICABLE:
            absent.setdefault(finding.measured, []).append(finding.name)
            continue
        if finding.verdict != OK:
            where = f"{finding.lengths_text}: " if len(audit.lengths) > 1 else ""
            text = f"{where}{finding.measured} ({finding.limit_text})"
        if finding.verdict == FLAG:
            more = [finding.advice] if finding.advice else []
            fine = [
                f"{each.tokens:,}"
                for each in audit.lengths
                if each.finding(finding.name).verdict == OK
            ]
            more += (
                [
                    f"It is ok at {join_words(fine)} tokens: audit the length you"
                    " train on."
                ]
                if fine
                else []
            )
        items.append(doc.Item(finding.verdict, finding.name, text, more))
    return [
        *items,
        *(
            doc.Item(NOT_APPLICABLE, ", ".join(names), why)
            for why, names in absent.items()
        ),
    ]


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
        quadrature = f" ± {error:.1g}" if error > NEGLIGIBLE * abs(median) else ""
        interval = (
            f" ({low:.{quantity.digits}g}–{high:.{quantity.digits}g})" if bands else ""
        )
        return f"{median:.{quantity.digits}g}{quadrature}{interval}"

    return [
        [
            Cell(q.title, q.meaning * (q in FINAL)),
            *(text(draws, q, block) for draws, block in columns),
        ]
        for q in quantities
        if any(q.name in draws for draws, _ in columns)
    ]


def _output_table(firsts: Sequence[LengthResult]) -> Table:
    """Quantities of the output, with gradients at both ends, at each set of widths."""
    measured = [each for result in firsts for each in result.measured]
    names = strip_common_prefix([each.subject.model.name for each in measured])
    head = ["median and 5–95 % band"]
    for each, name in zip(measured, names, strict=True):
        own, limit = (
            ("its widths", "n = ∞") if len(firsts) == 1 else (name, f"{name}, n = ∞")
        )
        head.append(limit if each.subject.infinite else own)
    rows = _quantity_rows(FINAL, [(each, None) for each in measured])
    return Table(head, rows or [["no logits", *("–" for _ in measured)]])


def _status_table(corner: str, columns: Mapping[str, LengthResult]) -> Table:
    """A row for each rule that was measured somewhere, with its status in each
    column.
    """
    rows: list[doc.Row] = [
        [row[0].name, *(Cell(f.verdict, status=COLOUR_CLASSES[f.verdict]) for f in row)]
        for row in zip(*(result.findings for result in columns.values()), strict=True)
        if {finding.verdict for finding in row} != {NOT_APPLICABLE}
    ]
    return Table([corner, *columns], rows)


def _comparison_sections(
    audits: Sequence[LengthResult], differences: Differences
) -> list[Section]:
    """The sections of several models, with their differences first; empty sections are
    left out.
    """
    names, (field, values) = (
        [audit.model.name for audit in audits],
        audits[0].request.swept or ("", ()),
    )
    short = dict(zip(names, strip_common_prefix(names), strict=True))
    rules: list[doc.Row] = []
    preferences = []
    for rule in differences.rules:
        said = [
            (f.verdict, "" if f.value is None else f" {number(f.value)}")
            for f in rule.findings
        ]
        cells = [
            Cell(verdict + value, status=COLOUR_CLASSES[verdict])
            for verdict, value in said
        ]
        rules.append([f"{rule.rule} ({rule.findings[0].limit_text})", *cells])
        if rule.why:
            chosen = join_words([f"“{short[name]}”" for name in rule.preferred])
            preferences.append(
                Paragraph(
                    f"{rule.rule} prefers {chosen}: {rule.why}."
                    f" {rule.findings[0].reason}"
                )
            )
    preferred = differences.preferred or ""
    against = drawbacks(audits, preferred)
    advice = [f"Against “{short[preferred]}”: {'; '.join(against)}."] if against else []
    deciding = {
        rule.rule
        for rule in differences.rules
        if preferred in rule.preferred and rule.why
    }
    advice += [GRADIENT_NOTE] if preferred and deciding <= set(BACKWARD_RULES) else []
    advice += recipe_notes([audit.model for audit in audits])
    parted: list[doc.Row] = []
    for each in differences.quantities:
        quantity, medians = (
            EVERY[each.quantity],
            dict(zip(each.models, each.medians, strict=True)),
        )
        place = (
            "output"
            if each.block is None
            else "embedding"
            if each.block == 0
            else f"block {each.block}"
        )
        texts = [
            f"{medians[name]:.{quantity.digits}g}" if name in medians else ""
            for name in names
        ]
        parted.append(
            [
                f"{quantity.title}, {place}",
                *texts,
                f"{each.distance:.2g} ± {each.error:.1g}",
            ]
        )
    # fields with the same values share a row
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, row in differences.fields.items():
        alike.setdefault(
            tuple(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row), []
        ).append(name)
    fields = [[", ".join(some), *row] for row, some in alike.items()]
    last = _quantity_rows(
        BLOCKS, [(audit.best, audit.blocks) for audit in audits], bands=False
    )

    def table(corner: str, rows: Sequence[doc.Row], *more: str) -> list[doc.Block]:
        return [Table([corner, *short.values(), *more], rows)] if rows else []

    sections = [
        Section("Rules that separate them", [*table("rule", rules), *preferences]),
        Section(
            "",
            [
                _main_figure(
                    audits, [f for rule in differences.rules for f in rule.findings]
                )
            ],
            "html",
        ),
        Section("", [Paragraph(text) for text in advice]),
        Section("", table("largest differences", parted, "bands apart")),
        Section("Fields that differ", table("field", fields)),
        Section(
            f"Against {field}",
            [doc.Figures(swept_figures(audits, field, values))] if field else [],
            "html",
        ),
        Section(
            "Status of every rule",
            [_status_table("rule", dict(zip(short.values(), audits, strict=True)))],
        ),
        Section("Output", [_output_table(audits)], "verbose"),
        Section("After the last block", table("median", last), "verbose"),
        Section(
            "Block by block",
            [Paragraph(BLOCK_NOTE), doc.Figures(figures(audits))],
            "html",
        ),
    ]
    for audit in audits:
        ranges = _range_blocks(audit.best)
        blocks = [
            Paragraph(headline(audit)),
            doc.Items(_finding_items(audit)),
            *ranges,
            *_reasons(audit),
        ]
        sections.append(Section(audit.model.name, blocks, "verbose"))
    return sections


def _range_blocks(draws: Draws) -> list[doc.Block]:
    """The table of activations and formats, and how to read it; nothing if ranges were
    not requested.
    """
    rows: list[doc.Row] = []
    for each in (ranges := ranges_of(draws.arrays)):
        median, low, high = (f"{value:.3g}" for value in each.largest.values())
        band = f"{median} ({low}–{high})" + (
            "" if each.block is None else f", in block {each.block}"
        )
        title = ACTIVATIONS.get(each.activation, each.activation)
        rows.append([Cell(title, band), median, *map(_format_cell, each.formats)])
    head = ["activation", "largest", *(f.title for f in FORMATS)]
    return [Table(head, rows), Paragraph(RANGE_NOTE)] if ranges else []


def _format_cell(fit: FormatFit) -> Cell:
    bad = [
        word
        for word, verdict in (
            ("overflows", fit.overflow),
            ("underflows", fit.underflow),
        )
        if verdict == FLAG
    ]
    if not bad:
        open_ = UNDECIDED in (fit.overflow, fit.underflow)
        return Cell(
            "undecided" if open_ else "fits", status="open" if open_ else "good"
        )
    smallest = next(f.smallest for f in FORMATS if f.title == fit.format)
    below = (
        f"{fit.below:.2g} of its numbers are below 2^{smallest}; " if fit.below else ""
    )
    left = (
        f", and leaves {fit.scaled:.2g} below" if fit.scaled >= UNDERFLOW_SHARE else ""
    )
    return Cell(
        f"{' and '.join(bad)}, 2^{fit.scale}",
        f"{below}a scale of 2^{fit.scale} fits{left}",
        "bad",
    )


def _main_figure(
    results: Sequence[LengthResult], findings: Sequence[Finding]
) -> doc.Figures:
    """The quantity of the first flagged rule, or the mean square of the stream."""
    quantities = {
        "branches": "attention_share",
        "rank": "effective_rank",
        "entropy": "entropy",
        "load": "largest_load",
        "vanishing": "grad_mean_square",
        "exploding": "grad_mean_square",
    }
    names = [
        quantities.get(finding.name) for finding in findings if finding.verdict == FLAG
    ]
    name = (
        next((name for name in names if name in results[0].best), None) or "mean_square"
    )
    return doc.Figures([figure(results, name, "summary-")])


def _provenance(audits: Sequence[LengthResult], manifest: dict[str, Any]) -> Paragraph:
    cases = [
        each.subject
        for audit in audits
        for result in audit.lengths
        for each in result.measured
    ]
    statuses = {case.status for case in cases}
    words = {
        "exact": "exact in law at finite width",
        "same limit": (
            "drawn with Gaussian weights where the model's are not Gaussian (the limit"
            " is the same)"
        ),
        "conjectured": "drawn from the conjectured limit where widths are infinite",
    }
    exactness = ", ".join(text for status, text in words.items() if status in statuses)
    single = [part for part in manifest["parts"] if part["precision"] == "float32"]
    precision = f"{'single' if single else 'double'} precision"
    if 0 < len(single) < len(manifest["parts"]):
        finite = not any(part["infinite"] for part in single)
        precision += (
            f"{' at finite widths' if finite else ''} where that is enough, else double"
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
