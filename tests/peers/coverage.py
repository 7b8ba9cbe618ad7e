"""Which classes of transformers netsor reads: the table of docs/coverage.md.

`python -m tests.peers.coverage` tries every class of four mappings of transformers, each
in a process of its own, with a small random model: import, forward pass on the same
weights, and the probes of an audit with gradients. It writes docs/coverage.csv row by
row, so that it can be interrupted, and then the tables of docs/coverage.md. Classes that
have a row of the same versions are skipped, unless `--again` is given. Names of classes,
model types or mappings try only these.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import re
import sys
import textwrap
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

DOCS = Path(__file__).parents[2] / "docs"
TABLE, PAGE = DOCS / "coverage.csv", DOCS / "coverage.md"
BEGIN, END = "<!-- the tables: make coverage -->", "<!-- the end of the tables -->"
SECONDS = 180  # for one class
PAGE_COLUMNS = 100
LARGEST = 4_000_000  # parameters of a small model, at most
NAMES = "classes, model types or mappings (causal, masked, …); default: all"
TOLERANCE = 1e-5  # of outputs, relative to the largest one

# the mappings of transformers, and what their models do
KINDS = {
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "Causal language models"),
    "masked": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "Masked language models"),
    "seq2seq": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "Sequence to sequence"),
    "image": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "Image classification"),
}
# what became of a class
READ = "read"  # its program reproduces the forward pass
WRONG = "wrong"  # its program does not: a fault of netsor
REFUSED = "refused"  # an operation is not read
NOT_EXPORTED = "not exported"  # torch.export does not capture the module
NOT_BUILT = (
    "not built"  # there is no small model of it here, or it needs other libraries
)
TOO_SLOW = "too slow"
FAILED = "failed"  # an error that is no refusal: a fault of netsor
STATUSES = (READ, REFUSED, NOT_EXPORTED, NOT_BUILT, TOO_SLOW, WRONG, FAILED)


class Row(NamedTuple):
    """What became of one class."""

    kind: str
    name: str  # of the class
    model_type: str
    status: str
    reason: str = ""  # the operation that is not read, or the error
    error: str = ""  # of the outputs, relative to the largest one
    audit: str = ""  # "yes", or why the module cannot be audited
    seconds: str = ""
    torch: str = ""  # the versions
    transformers: str = ""

    @property
    def versions(self) -> tuple[str, str]:
        """The versions of torch and transformers."""
        return self.torch, self.transformers


# One class


def model_classes() -> list[tuple[str, str, str]]:
    """All classes to try: kind, model type, name of the class; each class once."""
    from transformers.models.auto import modeling_auto

    classes = {}
    for kind, (mapping, _) in KINDS.items():
        for model_type, names in getattr(modeling_auto, mapping).items():
            name = names if isinstance(names, str) else names[0]
            has_its_name = name.lower().startswith(model_type.replace("_", ""))
            if has_its_name or (kind, name) not in classes:
                classes[kind, name] = model_type
    return [(kind, model_type, name) for (kind, name), model_type in classes.items()]


def builder(kind: str, model_type: str, name: str) -> tuple[Any, Mapping[str, Any]]:
    """A function that makes a small random model, and inputs for it."""
    import torch
    import transformers

    from .small_configs import inputs_for, small_config

    model_class = getattr(transformers, name)
    config = small_config(kind, model_type, model_class)
    inputs = inputs_for(kind, config)

    class Logits(torch.nn.Module):
        """A model of transformers that returns its logits alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model_class(config)

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(inputs, values, strict=True))).logits

    return Logits, inputs


def tried(kind: str, model_type: str, name: str) -> Row:
    """The row of one class: its import, its forward pass, and its audit."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    start = time.perf_counter()
    row = Row(
        kind, name, model_type, NOT_BUILT,
        torch=torch.__version__, transformers=transformers.__version__,
    )  # fmt: skip
    try:
        build, inputs = builder(kind, model_type, name)
        with torch.device("meta"):
            size = sum(p.numel() for p in build().parameters())
        if size > LARGEST:
            return row._replace(reason=f"{size:,} parameters: too large for a test")
        values = tuple(inputs.values())
        with torch.no_grad():
            build().eval()(*values)
    except Exception as error:
        return row._replace(reason=_one_line(error))
    row = _read(row, build, values)
    return row._replace(seconds=f"{time.perf_counter() - start:.1f}")


def _read(row: Row, build: Any, values: tuple[Any, ...]) -> Row:
    """The row of a class whose module can be built."""
    import numpy as np

    import netsor as ns
    from tests.internals import _program, captured, torch_network

    from . import literal

    looked_up = _program.TorchReader._looked_up

    def all_rows(reader: Any) -> dict[str, Any]:
        """All rows of each table, so that the logits of all words are its own."""
        laws = reader.graph.laws
        return {name: np.arange(laws[name].shape[0]) for name in looked_up(reader)}

    try:
        laws = ns.torch.parameters(build)
        graph = captured(build, values, {}, laws)
    except Exception as error:
        captures = str(error).startswith("torch.export cannot capture")
        is_refusal = isinstance(error, ns.torch.UnsupportedError)
        status = NOT_EXPORTED if captures else REFUSED if is_refusal else FAILED
        return row._replace(status=status, reason=_one_line(error))

    def same_graph(*arguments: Any) -> Any:
        return graph

    with (
        mock.patch.object(_program.TorchReader, "_looked_up", all_rows),
        mock.patch.object(_program, "captured", same_graph),
        mock.patch.object(torch_network, "captured", same_graph),
    ):
        try:
            ((real, ours),) = literal.outputs(build, values)
        except ns.torch.UnsupportedError as error:
            return row._replace(status=REFUSED, reason=_one_line(error))
        except Exception as error:
            traceback.print_exc()
            return row._replace(status=FAILED, reason=_one_line(error))
        difference = np.abs(real - ours).max() / np.abs(real).max()
        status = READ if difference <= TOLERANCE else WRONG
        row = row._replace(status=status, error=f"{difference:.0e}")
        return row._replace(audit=_audited(build, values, laws))


def _audited(build: Any, values: tuple[Any, ...], laws: Any) -> str:
    """ "yes", or why the module cannot be audited with gradients."""
    import numpy as np

    import netsor as ns
    from tests.internals import ProgramModel

    try:
        net = ns.torch.network(build, values, laws=laws)
        probes = ProgramModel(net, {}).probes(gradients=True)
        drawn = probes.measure(2, workers=1, progress=False)
    except Exception as error:
        return _one_line(error)
    finite = all(np.isfinite(x).all() for x in drawn.values())
    return "yes" if finite else "a quantity is not finite"


def _one_line(error: Exception) -> str:
    """An error in one line, without the folders of this machine."""
    text = str(error).splitlines()[0] if str(error).strip() else ""
    text = re.sub(r"\S*site-packages/", "", text)
    if type(error).__name__ != "UnsupportedError":
        text = f"{type(error).__name__}: {text}"
    return text[:300]


# All classes


def _send(connection: Any, arguments: tuple[str, str, str]) -> None:
    connection.send(tried(*arguments))
    connection.close()


def in_process(context: Any, arguments: tuple[str, str, str]) -> Row:
    """The row of one class, which is tried in a process of its own."""
    kind, model_type, name = arguments
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, arguments))
    process.start()
    sender.close()
    row = Row(kind, name, model_type, TOO_SLOW, f"more than {SECONDS} s")
    if receiver.poll(SECONDS):
        try:
            row = receiver.recv()
        except EOFError:
            row = row._replace(status=FAILED, reason="the process ended")
    process.kill()
    process.join()
    return row


def read_table() -> dict[tuple[str, str], Row]:
    """The rows of the table, by kind and class."""
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="") as file:
        rows = [Row(**fields) for fields in csv.DictReader(file)]
    return {(row.kind, row.name): row for row in rows}


def write_table(rows: Iterable[Row]) -> None:
    """Write the table, in the order of the mappings and of the names."""
    order = [*KINDS]
    rows = sorted(rows, key=lambda row: (order.index(row.kind), row.name))
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


def main(arguments: list[str]) -> None:
    """Try the classes that have no row yet, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=NAMES)
    parser.add_argument("--again", action="store_true", help="also those with a row")
    parser.add_argument("--tables", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    if not options.tables:
        try_classes(options.names, options.again)
    write_page(read_table().values())


def try_classes(names: list[str], again: bool) -> None:
    """Try classes one after the other, and write each row as it comes."""
    import torch
    import transformers

    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context(
        "forkserver" if "forkserver" in methods else "spawn"
    )
    if "forkserver" in methods:
        context.set_forkserver_preload(["tests.peers.preloaded"])
    versions = torch.__version__, transformers.__version__
    rows = read_table()
    wanted = [
        (kind, model_type, name)
        for kind, model_type, name in model_classes()
        if not names or {kind, model_type, name} & {*names}
    ]
    if not again:
        wanted = [
            (kind, model_type, name)
            for kind, model_type, name in wanted
            if (kind, name) not in rows or rows[kind, name].versions != versions
        ]
    start = time.monotonic()
    for number, (kind, model_type, name) in enumerate(wanted, 1):
        row = in_process(context, (kind, model_type, name))
        row = row._replace(torch=versions[0], transformers=versions[1])
        rows[kind, name] = row
        write_table(rows.values())
        left = (time.monotonic() - start) / number * (len(wanted) - number)
        print(
            f"[{number}/{len(wanted)}, {left / 60:.0f} min left] {name}: {row.status}"
            f" {row.reason[:120]}",
            flush=True,
        )


# The page


def write_page(rows: Iterable[Row]) -> None:
    """Replace the tables of docs/coverage.md."""
    rows = [*rows]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = [BEGIN, "", _versions(rows), "", *_summary(rows), "", *_causes(rows)]
    for kind, (_, title) in KINDS.items():
        if not any(row.kind == kind for row in rows):
            continue
        parts += ["", f"## {title}", "", *_details(rows, kind)]
    PAGE.write_text(before + "\n".join([*parts, "", END]) + after)


def _versions(rows: list[Row]) -> str:
    versions = Counter(row.versions for row in rows)
    (torch_version, transformers_version), _ = versions.most_common(1)[0]
    return (
        f"PyTorch {torch_version.split('+')[0]}, transformers {transformers_version}."
    )


def _summary(rows: list[Row]) -> list[str]:
    """A table of numbers of classes, by kind and status."""
    lines = [
        "| mapping | classes | built and exported | read | audited with gradients |",
        "|---|---|---|---|---|",
    ]
    for kind, (_, title) in KINDS.items():
        of_kind = [row for row in rows if row.kind == kind]
        if not of_kind:
            continue
        exported = [
            row for row in of_kind if row.status not in (NOT_BUILT, NOT_EXPORTED)
        ]
        read = [row for row in exported if row.status == READ]
        audited = [row for row in read if row.audit == "yes"]
        share = f" ({100 * len(read) / len(exported):.0f} %)" if exported else ""
        share_audited = (
            f" ({100 * len(audited) / len(exported):.0f} %)" if exported else ""
        )
        lines.append(
            f"| {title} | {len(of_kind)} | {len(exported)} | {len(read)}{share} |"
            f" {len(audited)}{share_audited} |"
        )
    return lines


def _wrapped(prose: str) -> str:
    """Prose in lines of the length of all pages."""
    return textwrap.fill(
        prose, PAGE_COLUMNS, break_long_words=False, break_on_hyphens=False
    )


def operation_of(row: Row) -> str:
    """The operation, or the kind of parameter, that a class was refused for."""
    if match := re.match(r"([\w.]+\.[\w]+) in ", row.reason):
        return f"`{match[1].removeprefix('aten.').rpartition('.')[0] or match[1]}`"
    if match := re.match(r"the parameter \S+ is (\w+)", row.reason):
        return f"parameters that are {match[1]}"
    return "other reasons"


def _causes(rows: list[Row]) -> list[str]:
    """How many classes are refused for each operation."""
    refused = [row for row in rows if row.status in (REFUSED, FAILED, WRONG)]
    counts = Counter(operation_of(row) for row in refused)
    if not counts:
        return []
    causes = ", ".join(f"{cause} {count}" for cause, count in counts.most_common())
    return [
        _wrapped(
            "Classes that are refused, by the first operation that is not read:"
            f" {causes}."
        )
    ]


def _details(rows: list[Row], kind: str) -> list[str]:
    """The classes of one kind, by status."""
    lines = []
    for status in STATUSES:
        chosen = [row for row in rows if (row.kind, row.status) == (kind, status)]
        if not chosen:
            continue
        if status == READ:
            names = ", ".join(_shown(row) for row in chosen)
            lines += [_wrapped(f"**Read** ({len(chosen)}): {names}."), ""]
            continue
        lines += [f"**{status.capitalize()}** ({len(chosen)}):", ""]
        lines += ["| class | reason |", "|---|---|"]
        lines += [f"| `{row.name}` | {_cell(row.reason)} |" for row in chosen]
        lines.append("")
    not_audited = [
        row
        for row in rows
        if row.kind == kind and row.status == READ and row.audit != "yes"
    ]
    if not_audited:
        lines += [f"**Read, but not audited** ({len(not_audited)}):", ""]
        lines += ["| class | reason |", "|---|---|"]
        lines += [f"| `{row.name}` | {_cell(row.audit)} |" for row in not_audited]
    return lines


def _shown(row: Row) -> str:
    return f"`{row.name}`"


def _cell(text: str) -> str:
    """Text in a cell of a table, without the line of code."""
    text = re.sub(r" \(at [^)]*:\d+: .*$", "", text)
    for old, new in (("|", "\\|"), ("<", "&lt;"), ("*", "\\*"), ("_", "\\_")):
        text = text.replace(old, new)
    return text[:200]


if __name__ == "__main__":
    main(sys.argv[1:])
