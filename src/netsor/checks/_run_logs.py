"""Logs of training runs: CSV, JSON lines, trainer_state.json and TensorBoard.

A log is a table of numbers by step. How far a number was rounded is read from its
digits: "10.8" stands for 10.75 to 10.85.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .._validate import ArgumentError, as_number, shown
from ..runtime._files import content, named, parsed

# names of a column in the logs of common trainers, in small letters
STEP = ("step", "iter", "iteration", "global_step", "_step", "trainer/global_step")
ALIASES = {
    "loss": (
        "loss",
        "train_loss",
        "train/loss",
        "training_loss",
        "lm loss",
        "lm_loss",
        "loss_metrics/global_avg_loss",
        "reduced_train_loss",
        "train/ce loss",
    ),
    "grad_norm": (
        "grad_norm",
        "train/grad_norm",
        "gradient_norm",
        "gradient norm",
        "grad norm",
        "total_norm",
        "gnorm",
        "grad_2.0_norm_total",
        "grad/norm/total",
        "optim/total grad norm",
    ),
    "param_norm": ("param_norm", "params_norm", "params norm", "weight_norm"),
    "lr": ("lr", "learning_rate", "train/lr", "train/learning_rate", "learning rate"),
    "update_norm": ("update_norm", "train/update_norm"),
}
WANDB = (
    "a CSV file: wandb has no reader for its local files, so export the history, as"
    " wandb.Api().run(PATH).history().to_csv('run.csv') does"
)
LARGEST = 2**28  # bytes of a log that is read
RATE = "lr"
RATE_ROUNDING = 0.05  # the largest relative rounding of numbers with two digits
HALF_TENTH = 0.05  # the rounding of numbers with one digit after the point
MOST_NAMED = 12  # columns of a log that an error names


class Logged(NamedTuple):
    """A number of a log; it was rounded by at most `rounding`."""

    value: float
    rounding: float = 0.0


@dataclass(frozen=True)
class RunLog:
    """The numbers of a run by name and step.

    Attributes
    ----------
    name : str
        Where it comes from.
    numbers : dict
        By name, such as "grad_norm", and by step, counted from 0.
    first : int
        The number that the log gives its first step.
    """

    name: str
    numbers: dict[str, dict[int, Logged]]
    first: int


Row = Mapping[str, Any]


def read_log(
    source: Any,
    known: Iterable[str],
    columns: Mapping[str, str] | None = None,
    first: int | None = None,
) -> RunLog:
    """Read a log.

    `source` is a path, or a sequence of mappings. `known` are the names of the
    quantities, and `columns` are the columns of some of them, by quantity. The first
    step is the log's lowest number, which is 0 or 1, unless `first` says it.
    """
    name, rows = rows_of(source)
    known = list(known)
    columns = dict(columns or {})
    _refuse_unknown(columns, known)
    steps = _steps_of(rows, _names("step", columns))
    start = _first_step(steps, first, name)
    numbers: dict[str, dict[int, Logged]] = {}
    for quantity in known:
        by_step = _numbers_of(rows, steps, _names(quantity, columns))
        counted = {step - start: x for step, x in by_step.items() if step >= start}
        if quantity == RATE:
            counted = _with_roundings_of_rates(counted)
        if counted:
            numbers[quantity] = counted
    _refuse_missing(columns, numbers, rows)
    if not numbers:
        present = sorted({str(column) for row in rows for column in row})
        raise ValueError(
            f"the log {name} has none of the columns {', '.join(known)}; it has"
            f" {', '.join(present[:MOST_NAMED]) or 'none'}: name them with columns"
            " (--column grad_norm=NAME)"
        )
    return RunLog(name, numbers, start)


def _with_roundings_of_rates(rates: Mapping[int, Logged]) -> dict[int, Logged]:
    """Learning rates, which people set: 0.001 alone does not stand for 0.0005.

    A rate has two digits or more. Rates that differ, or that end with zeros as 0.0000
    and 0.0010 do, may have less: they are rounded to the last digit of their column.
    """
    last_digit = 0.0
    distinct = {rate.value for rate in rates.values()} - {0.0}
    if len(distinct) > 1 or _end_with_zeros(rates):
        last_digit = min(rate.rounding for rate in rates.values())
    result = {}
    for step, rate in rates.items():
        of_two_digits = min(rate.rounding, RATE_ROUNDING * abs(rate.value))
        result[step] = rate._replace(rounding=max(of_two_digits, last_digit))
    return result


def _end_with_zeros(numbers: Mapping[int, Logged]) -> bool:
    """Whether a number was written with more digits than it needs."""
    return any(0 < x.rounding < _rounding(repr(x.value)) for x in numbers.values())


def _refuse_unknown(columns: Mapping[str, str], known: Sequence[str]) -> None:
    """Reject a column for a quantity that has no law."""
    for quantity in columns:
        if quantity not in (*known, "step"):
            raise ArgumentError(
                "columns", quantity, f"QUANTITY=COLUMN, with one of {', '.join(known)}"
            )


def _steps_of(rows: Sequence[Row], names: Iterable[str]) -> list[int | None]:
    """The step of each row; rows are counted if the log has no steps."""
    steps = [_step_of(row, names) for row in rows]
    if all(step is None for step in steps):
        return list(range(len(rows)))
    return steps


def _numbers_of(
    rows: Sequence[Row], steps: Sequence[int | None], names: Iterable[str]
) -> dict[int, Logged]:
    """The first number of each step in a column; rows without a step are left out."""
    numbers: dict[int, Logged] = {}
    for row, step in zip(rows, steps, strict=True):
        logged = _number_of(row, names)
        if logged is not None and step is not None:
            numbers.setdefault(step, logged)
    return _with_roundings_of_column(numbers)


def _with_roundings_of_column(numbers: Mapping[int, Logged]) -> dict[int, Logged]:
    """The numbers of a column, with the roundings of those that are whole.

    "3.0" may be rounded to one digit, or be 3: the other numbers show which. A column
    of zeros is one of zeros.
    """
    roundings = [x.rounding for x in numbers.values() if not _is_whole(x)]
    result = {}
    for step, number in numbers.items():
        if _is_whole(number):
            default = number.rounding if number.value else 0.0
            number = number._replace(rounding=min(roundings, default=default))
        result[step] = number
    return result


def _is_whole(number: Logged) -> bool:
    """Whether a number has one digit after the point, and it is 0."""
    return number.rounding == HALF_TENTH and number.value == round(number.value)


def _names(quantity: str, columns: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that a quantity may have, in small letters."""
    if quantity in columns:
        return (columns[quantity].lower(),)
    aliases = STEP if quantity == "step" else ALIASES.get(quantity, ())
    names = dict.fromkeys((quantity.lower(), *aliases))  # each once, in order
    return tuple(names)


def _refuse_missing(
    columns: Mapping[str, str], numbers: Mapping[str, Any], rows: Sequence[Row]
) -> None:
    """Reject a named column that the log does not have, or that has no numbers."""
    present = {str(column).strip().lower() for row in rows for column in row}
    for quantity, column in columns.items():
        is_there = column.lower() in present
        if not is_there or (quantity != "step" and quantity not in numbers):
            raise ArgumentError(
                "columns", f"{quantity}={column}", "a column of numbers in the log"
            )


def _first_step(steps: Sequence[int | None], first: int | None, name: str) -> int:
    """The number of the first step."""
    if first is not None:
        return first
    lowest = min(step for step in steps if step is not None)
    if lowest not in (0, 1):
        raise ValueError(
            f"the log {name} begins at step {lowest}, but the law describes the"
            " first steps: log every step from the first on, or set first_step"
            " (--first-step) to the number of the first one"
        )
    return lowest


def _step_of(row: Row, names: Iterable[str]) -> int | None:
    """The number of the step of a row."""
    logged = _number_of(row, names)
    if logged is None or not math.isfinite(logged.value):
        return None
    return int(logged.value)


def _number_of(row: Row, names: Iterable[str]) -> Logged | None:
    """The number of a row under the first of these names that it has."""
    lowered = {str(column).strip().lower(): value for column, value in row.items()}
    for name in names:
        value = lowered.get(name)
        if value is None or value == "":
            continue
        logged = _logged(value)
        if logged is not None:
            return logged
    return None


def _logged(value: Any) -> Logged | None:
    """A number and its rounding; None for other text."""
    if isinstance(value, str):
        try:
            return Logged(float(value), _rounding(value))
        except ValueError:
            return None
    number = as_number(value)
    if number is None:
        return None
    return Logged(number, _rounding(repr(number)))


def _rounding(text: str) -> float:
    """Half a unit of the last digit of a number: "10.8" is rounded by at most 0.05.

    Numbers of 7 digits or more are not rounded: they show all of a single.
    """
    mantissa, _, exponent = text.strip().lower().partition("e")
    digits = mantissa.lstrip("+-").replace(".", "")
    if not digits.isdigit() or len(digits.lstrip("0")) >= 7:
        return 0.0
    decimals = len(mantissa.partition(".")[2])
    if not decimals:
        return 0.0
    power = int(exponent) if exponent else 0
    return float(f"5e{power - decimals - 1}")


def rows_of(source: Any) -> tuple[str, list[Row]]:
    """The name of a log and its rows."""
    if isinstance(source, str | Path):
        rows = _read(Path(source))
        if not rows:
            raise ValueError(f"the log {named(source)} has no rows")
        return named(source), rows
    to_dict = getattr(source, "to_dict", None)
    if callable(to_dict) and hasattr(source, "columns"):  # a table of pandas
        source = to_dict("records")
    if isinstance(source, Mapping):
        source = _rows_of_columns(source)
    has_rows = isinstance(source, list | tuple) and len(source) > 0
    if not has_rows or not all(isinstance(row, Mapping) for row in source):
        raise ArgumentError(
            "log", source, "a file, a list of mappings, or a mapping of lists"
        )
    return "of rows", list(source)


def _rows_of_columns(source: Mapping[str, Any]) -> Any:
    """The rows of lists by column; the mapping itself if their lengths differ."""
    columns = {name: list(values) for name, values in source.items()}
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        return source
    return [
        dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]


def _read(path: Path) -> list[Row]:
    """The rows of a file or folder."""
    try:
        if path.is_dir():
            return _of_folder(path)
        if "tfevents" in path.name:
            return _of_tensorboard(path)
        if path.suffix == ".wandb":
            raise ArgumentError("log", str(path), WANDB)
        text = content(path, LARGEST)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArgumentError("log", str(path), f"a readable file: {reason}") from None
    if path.suffix == ".json":
        return _of_trainer_state(text, path)
    if path.suffix in (".jsonl", ".ndjson"):
        return list(_of_json_lines(text, path))
    if path.suffix in (".csv", ".tsv", ".txt"):
        return _of_csv(text, path)
    raise ArgumentError(
        "log",
        str(path),
        "a .csv, .tsv or .jsonl file, a trainer_state.json, or events of TensorBoard",
    )


def _of_folder(path: Path) -> list[Row]:
    """The log in a folder: of a trainer, TensorBoard or Lightning."""
    for pattern in (
        "trainer_state.json",
        "metrics.csv",
        "run.csv",
        "*tfevents*",
        "run-*.wandb",
        "checkpoint-*/trainer_state.json",
    ):
        files = sorted(path.glob(pattern))
        if len(files) == 1 or ("checkpoint" in pattern and files):
            # the last checkpoint holds the whole log
            return _read(max(files, key=lambda file: file.stat().st_mtime))
        if files:
            raise ArgumentError(
                "log", str(path), f"one file: this folder has {len(files)} {pattern}"
            )
    raise ArgumentError(
        "log",
        str(path),
        "a folder with a trainer_state.json, a metrics.csv, a run.csv or events of"
        " TensorBoard",
    )


def _of_csv(text: bytes, path: Path) -> list[Row]:
    """The rows of a table with a head; separated by commas, semicolons or tabs."""
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"the log {named(path)} is not text in UTF-8") from None
    head = decoded.partition("\n")[0]
    separator = max(",;\t", key=head.count)
    rows = list(csv.DictReader(io.StringIO(decoded), delimiter=separator))
    if not rows:
        raise ValueError(f"the log {named(path)} has no rows below its header")
    return [_without_extra_cells(row) for row in rows]


def _without_extra_cells(row: Mapping[Any, Any]) -> Row:
    """A row without the cells that no column of the head has: their key is None."""
    return {column: cell for column, cell in row.items() if isinstance(column, str)}


def _of_json_lines(text: bytes, path: Path) -> Iterator[Row]:
    """The objects of a file with one in each line."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield parsed(line, f"line {number} of {named(path)}")


def _of_trainer_state(text: bytes, path: Path) -> list[Row]:
    """The history of a trainer_state.json, or a list of objects."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{named(path)} is not valid JSON: {error}") from None
    rows = document.get("log_history") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f"{named(path)} has no log_history, a list of objects:"
            f" {shown(document)} was read"
        )
    return rows


def _of_tensorboard(path: Path) -> list[Row]:
    """The scalars of a file of events."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            f"reading {named(path)} needs TensorBoard: pip install tensorboard, or"
            " export the scalars as CSV"
        )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    rows: list[Row] = []
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            rows.append({"step": event.step, tag: event.value})
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            array = tensor_util.make_ndarray(event.tensor_proto)
            if array.ndim == 0 and array.dtype.kind == "f":
                rows.append({"step": event.step, tag: float(array)})
    return rows
