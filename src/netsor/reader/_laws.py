"""The law of a parameter at initialisation: what it is, and how samples show it.

A parameter of a module is a constant, or a random tensor. Programs can have random
tensors with i.i.d. entries of finite variance. `law_of_entries` decides from the
entries of several initialisations whether a parameter is one, by tests that fail for
none of millions of parameters by chance: of the distribution of an entry, of sums and
sizes of rows and columns, of the angles of rows. Nothing here depends on PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Floats
from .._validate import Shape
from ..functions.quantiles import Distribution

MOVED = "a move to the meta device"  # a problem: it drops the numbers
NOT_FINITE = "some of its entries are NaN or infinite"
MAKES_DISCRETE = "makes discrete numbers"  # a note; what does so comes before it
DECLARED = "declared"  # the note of a law that the user gives as a number
# laws of i.i.d. entries that are recognised from samples alone
RECOGNISED = ("normal", "uniform", "truncated normal")
# all laws of i.i.d. entries; the others are known only from the code that draws them
INDEPENDENT = (*RECOGNISED, "exponential", "log-uniform", "i.i.d.")
# how a user makes the table of laws, by the framework of the module
TABLES = {"torch": "ns.torch.parameters(module", "jax": "ns.jax.parameters(model"}
# the first axis has equal parts, such as heads, each with its own law
PARTS = "parts"
LAWS = ("constant", "fixed", *INDEPENDENT, PARTS, "copy", "orthogonal", "unknown")


@dataclass(frozen=True)
class Parameter:
    """The law of a parameter at initialisation.

    Attributes
    ----------
    name : str
        Its path in the module.
    shape : tuple of int
        The shape of the tensor.
    law : str
        "constant" (one number), "fixed" (other numbers, the same in every sample),
        "normal", "uniform", "truncated normal", "exponential", "log-uniform" or
        "i.i.d." (independent entries; the last is any other law), "parts" (equal parts
        of the first axis, whose laws are in `value`), "copy" (of another parameter,
        sample by sample), "orthogonal", or "unknown".
    mean, std, std_error : float
        The mean of the entries (0 if it differs from 0 by less than its error), their
        standard deviation, and its standard error: 0 if torch drew them with this
        standard deviation.
    fan_in : int or None
        The number of entries of the input that an entry of the output sums over; None
        for vectors and tables.
    of : str, optional
        The parameter that it copies.
    transposed : bool
        Whether it is a copy of the transpose.
    zero_rows : tuple of int
        Rows that are 0 in every sample: the padding of an embedding.
    note : str
        A remark on the law.
    kurtosis : float
        E x⁴/(E x²)² of the centred entries: 3 if they are normal.
    entries : Distribution or None
        The law of an entry, if the code of the module shows it.
    framework : {"torch", "jax"}
        What made the module.

    Examples
    --------
    >>> laws = ns.torch.parameters(lambda: torch.nn.Linear(64, 32))  # doctest: +SKIP
    >>> laws["weight"].law  # doctest: +SKIP
    'uniform'
    """

    name: str
    shape: tuple[int, ...]
    law: str
    mean: float = 0.0
    std: float = 0.0
    std_error: float = 0.0
    fan_in: int | None = None
    of: str | None = None
    transposed: bool = False
    zero_rows: tuple[int, ...] = ()
    note: str = ""
    kurtosis: float = 3.0
    # of a constant, a number; of what is fixed, a tensor; of parts, their laws; of what
    # is not i.i.d., samples
    value: Any = None
    entries: Distribution | None = None
    framework: str = "torch"

    @property
    def distribution(self) -> Distribution | None:
        """The law of an i.i.d. entry; None if it is not known exactly.

        If a truncated normal was recognised only from samples, its cut is unknown.
        """
        if self.entries is None and self.law in ("normal", "uniform"):
            return Distribution(self.law, (self.mean, self.std))
        return self.entries

    @property
    def random(self) -> bool:
        """Whether it varies between samples."""
        return self.law not in ("constant", "fixed")

    @property
    def shape_is_declared(self) -> bool:
        """Whether the law says more than the mean and the standard deviation."""
        return self.note != DECLARED or self.entries is not None

    @property
    def remedy(self) -> str:
        """What to do if its law cannot be modelled."""
        if self.note == NOT_FINITE:
            return "correct its initialisation"
        if MOVED in self.note:
            return "make the module on the CPU, or under torch.device('meta')"
        std = f"{self.std:.2g}" if self.std > 0 else "STD"
        table = TABLES[self.framework]
        return f"declare its law, laws={table}, declared={{{self.name!r}: {std}}})"


class Parameters(dict[str, Parameter]):
    """The laws of the parameters of a module, by their names; `print` shows the table.

    Examples
    --------
    >>> print(ns.torch.parameters(build))  # doctest: +SKIP
    """

    def __init__(self, rows: Mapping[str, Parameter], samples: int) -> None:
        super().__init__(rows)
        self.samples = samples

    def __str__(self) -> str:
        heads = ("parameter", "shape", "law", "std", "fan-in", "std·√fan-in")
        rows: list[tuple[str, ...]] = [heads]
        rows += [_row(parameter) for parameter in self.values()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            line = "  ".join(map(str.ljust, row, widths))
            lines.append(line.rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Parameters: {len(self)}, from {self.samples} samples>"


def _row(p: Parameter) -> tuple[str, ...]:
    """The row of a parameter in the table that `print` shows."""
    std = gain = ""
    if p.std_error:
        std = f"{p.std:.4g} ± {p.std_error:.1g}"
    elif p.std:
        std = f"{p.std:.4g}"
    if p.fan_in and p.std:
        gain = f"{p.std * math.sqrt(p.fan_in):.3g}"
    shape = "×".join(map(str, p.shape))
    return p.name, shape, _law_text(p), std, str(p.fan_in or ""), gain


def _law_text(p: Parameter) -> str:
    """The law of a parameter in words."""
    text = p.law
    if p.law == "copy":
        text = f"{'transpose' if p.transposed else 'copy'} of {p.of}"
    elif p.law == "constant":
        text = f"constant {p.value:g}"
    if p.mean:
        text += f", mean {p.mean:g}"
    if p.zero_rows:
        text += f", rows of zeros: {', '.join(map(str, p.zero_rows))}"
    if p.note:
        text += f" ({p.note})"
    return text


# The law of one parameter


class LawName(NamedTuple):
    """One of `LAWS`, and a note that explains it."""

    law: str
    note: str = ""


def law_of_entries(
    name: str,
    shape: Shape,
    samples: list[Floats],
    *,
    zero_rows: tuple[int, ...] = (),
    in_one_step: bool = False,
    drawn: Distribution | None = None,
) -> Parameter:
    """The law of one parameter, from the entries of samples.

    The samples have its shape, or are one axis of some of its entries; for the latter
    `zero_rows` are its rows of zeros. If the code draws it `in_one_step`, its standard
    deviation is known without an error: that of `drawn`, if the samples agree with it.
    """
    if not all(np.isfinite(sample).all() for sample in samples):
        return Parameter(name=name, shape=shape, law="unknown", note=NOT_FINITE)
    if all(np.array_equal(sample, samples[0]) for sample in samples[1:]):
        return _law_without_randomness(name, shape, samples[0])
    if len(shape) == 2 and samples[0].shape == shape:
        zero_rows = _rows_of_zeros(samples)
        samples = [np.delete(sample, zero_rows, axis=0) for sample in samples]
    pooled = np.concatenate([sample.ravel() for sample in samples])
    mean = float(pooled.mean())
    std = float(pooled.std())
    measured = _measured(name, shape, samples, pooled)
    measured = replace(measured, zero_rows=zero_rows)
    if not in_one_step:
        return measured
    if drawn is None:
        if measured.law in RECOGNISED:
            return replace(measured, std_error=0.0, note="")
        return measured
    if not _can_have_law(measured, samples, mean, drawn):
        return measured
    return _with_drawn_law(measured, drawn, moments=(mean, std), entries=pooled.size)


def _can_have_law(
    measured: Parameter, samples: list[Floats], mean: float, drawn: Distribution
) -> bool:
    """Whether samples can have the law that the code draws in one step.

    Then the law of each entry is known, even if it was not recognised; but the entries
    may still depend on each other.
    """
    if measured.law in RECOGNISED:
        return True
    joint = _joint_law(samples, mean, LawName(drawn.name))
    return joint.law == drawn.name


def _measured(
    name: str, shape: Shape, samples: list[Floats], pooled: Floats
) -> Parameter:
    """The law that samples show; `pooled` are the entries of all of them."""
    mean = float(pooled.mean())
    std = float(pooled.std())
    standard = (pooled - mean) / std
    kurtosis = float(np.mean(np.square(standard) ** 2))
    law, note = _joint_law(samples, mean, _marginal_law(standard, kurtosis))
    # a mean within five standard errors of 0 is 0
    if abs(mean) < 5 * std / math.sqrt(pooled.size):
        mean, std = 0.0, math.hypot(mean, std)
    # the error of the standard deviation of n entries is std √((κ − 1)/4n)
    relative_error = math.sqrt(max(kurtosis - 1, 0.0) / (4 * pooled.size))
    return Parameter(
        name=name,
        shape=shape,
        law=law,
        mean=mean,
        std=std,
        std_error=std * relative_error,
        note=note,
        kurtosis=kurtosis,
    )


def _with_drawn_law(
    measured: Parameter,
    drawn: Distribution,
    moments: tuple[float, float],
    entries: int,
) -> Parameter:
    """The law that a parameter was drawn with, if what was measured agrees with it.

    `moments` are the mean and the standard deviation of the entries. Those of
    `measured` are others if the mean may be 0.
    """
    mean, std = moments
    # six errors of the mean, or of the standard deviation
    tolerance = 6 * max(drawn.std / math.sqrt(entries), measured.std_error)
    mean_agrees = abs(mean - drawn.mean) < tolerance
    std_agrees = abs(std - drawn.std) < tolerance
    if not (mean_agrees and std_agrees):
        return measured
    return replace(
        measured,
        law=drawn.name,
        mean=drawn.mean,
        std=drawn.std,
        std_error=0.0,
        note="",
        entries=drawn,
    )


def _law_without_randomness(name: str, shape: Shape, sample: Floats) -> Parameter:
    """The law of a parameter that is the same in every sample."""
    if not sample.size:
        return Parameter(name=name, shape=shape, law="constant", value=0.0)
    if np.ptp(sample) == 0:
        return Parameter(
            name=name, shape=shape, law="constant", value=float(sample.flat[0])
        )
    if sample.shape != shape:
        note = "the same in every sample, and too large to keep"
        return Parameter(name=name, shape=shape, law="unknown", note=note)
    return Parameter(name=name, shape=shape, law="fixed", value=sample)


def _rows_of_zeros(matrices: list[Floats]) -> tuple[int, ...]:
    """The rows that are 0 in every sample."""
    is_zero = np.all([(matrix == 0).all(axis=1) for matrix in matrices], axis=0)
    return tuple(int(row) for row in np.flatnonzero(is_zero))


def _marginal_law(standard: Floats, kurtosis: float) -> LawName:
    """Normal, uniform or truncated normal, from standardised entries.

    Their fourth moment and their largest absolute value decide.
    """
    count = standard.size
    if count < 64:
        return LawName("normal", "too few entries to test")
    largest = float(np.abs(standard).max())
    # the probability that the largest of so many normals is as small
    probability = math.erf(largest / math.sqrt(2)) ** count
    if probability < 1e-6 and kurtosis < 3 and largest < 4.5:
        return _bounded_law(count, largest, kurtosis)
    five_errors = 5 * math.sqrt(24 / count)
    if abs(kurtosis - 3) < five_errors:
        return LawName("normal")
    return _unknown_by(kurtosis)


def _bounded_law(count: int, largest: float, kurtosis: float) -> LawName:
    """Uniform or truncated normal, from standardised entries whose largest absolute
    value is too small for normal ones.
    """
    # of uniform entries the largest is √3 (1 ± 0.73/√n), the kurtosis 1.8 ± 1.15/√n
    five_over_root = 5 / math.sqrt(count)
    error_of_kurtosis = 1.15 * five_over_root
    most = math.sqrt(3) * (1 + 0.73 * five_over_root)
    # the largest of n uniform entries is smaller than this with probability 2e-9,
    # and those of other truncated normals are larger still
    least = math.sqrt(3) * (1 - 20 / count)
    if kurtosis < 1.8 - error_of_kurtosis or largest < least:
        return _unknown_by(kurtosis)
    if largest < most and kurtosis < 1.8 + error_of_kurtosis:
        return LawName("uniform")
    return LawName("truncated normal")


def _unknown_by(kurtosis: float) -> LawName:
    """An unknown law of this kurtosis."""
    return LawName("unknown", f"excess kurtosis {kurtosis - 3:.2g}")


def _joint_law(tensors: list[Floats], mean: float, marginal: LawName) -> LawName:
    """The law of all entries together: `marginal`, if they may be i.i.d."""
    law = marginal
    if not np.any(tensors, axis=0).all():
        law = LawName("unknown", "some of its entries are always 0")
    size = tensors[0].size
    shape = tensors[0].shape
    # as a matrix whose rows are along the first axis, or along all but the last
    numbers_of_columns = {math.prod(shape[1:]), *shape[-1:]}
    for columns in numbers_of_columns - {1, size}:
        centred = [tensor.reshape(-1, columns) - mean for tensor in tensors]
        law = _dependence(centred) or law
    return law


def _dependence(matrices: list[Floats]) -> LawName | None:
    """What samples of a matrix have and i.i.d. entries do not have; None: nothing."""
    rows, columns = matrices[0].shape
    dependence = _sizes_and_sums(matrices, 1, "rows")
    dependence = dependence or _sizes_and_sums(matrices, 0, "columns")
    if dependence is None and rows == columns and rows * len(matrices) >= 64:
        dependence = _relation_to_transpose(matrices)
    dependence = dependence or _angles_of_rows(matrices)
    dependence = dependence or _equal_sizes(matrices, 1, "rows")
    return dependence or _equal_sizes(matrices, 0, "columns")


def _mean_squares(matrices: list[Floats], axis: int) -> Floats:
    """The mean squares along an axis, over all samples."""
    return np.asarray(np.mean([(w**2).mean(axis=axis) for w in matrices], axis=0))


def _kurtosis(matrices: list[Floats], mean_square: float) -> float:
    """E x⁴/(E x²)² of all entries."""
    fourth_moments = []
    for matrix in matrices:
        # matrix**4 would take forty times as long as two squares
        squares = np.square(matrix)
        fourth_moments.append(np.square(squares).mean())
    return float(np.mean(fourth_moments)) / mean_square**2


def _sizes_and_sums(matrices: list[Floats], axis: int, lines: str) -> LawName | None:
    """Rows (axis 1) or columns (0) of different sizes, or with too large sums."""
    squares = _mean_squares(matrices, axis)
    length = matrices[0].shape[axis]
    kurtosis = _kurtosis(matrices, squares.mean())
    error = math.sqrt(max(kurtosis - 1, 1e-9) / (length * len(matrices)))
    z = (squares / squares.mean() - 1) / error
    # z² has mean 1 and variance 2; 0.2 for the error of its scale
    most = 1 + 8 * math.sqrt(2 / z.size) + 0.2
    if float((z**2).mean()) > most:
        return LawName("unknown", f"{lines} have different standard deviations")
    sums = np.array([matrix.sum(axis=axis) for matrix in matrices])
    mean_square_if_independent = squares.mean() * length
    excess = float((sums**2).mean()) / mean_square_if_independent - 1
    seven_errors = 7 / math.sqrt(sums.size / 2)
    if abs(excess) > seven_errors and sums.size >= 64:
        ratio = f"{math.sqrt(1 + excess):.2g}"
        return LawName(
            "unknown", f"sums of {lines} are {ratio} times those of i.i.d. entries"
        )
    return None


def _equal_sizes(matrices: list[Floats], axis: int, lines: str) -> LawName | None:
    """Rows (axis 1) or columns (0) of sizes that differ less than if i.i.d.

    Weights that are divided by the norms of their rows are such.
    """
    squares = np.concatenate([(w**2).mean(axis=axis) for w in matrices])
    mean_square = float(squares.mean())
    kurtosis = _kurtosis(matrices, mean_square)
    # the sizes of entries ±1 do not differ at all; and of fewer than 256 lines, the
    # ratio below has an error of more than 0.09
    if kurtosis < 1.1 or squares.size < 256:
        return None
    variance_of_independent = (kurtosis - 1) / matrices[0].shape[axis]
    ratio = float((squares / mean_square).var()) / variance_of_independent
    if ratio < 0.5:
        return LawName("unknown", f"{lines} have almost the same norm")
    return None


def _relation_to_transpose(matrices: list[Floats]) -> LawName | None:
    """A correlation of square matrices with their transposes, or another diagonal."""
    rows = len(matrices[0])
    count = len(matrices)
    products = np.mean([w * w.T for w in matrices], axis=0)  # of w_ij and w_ji
    mean_square = float(np.mean([(w**2).mean() for w in matrices]))
    pairs = rows * (rows - 1) / 2
    sum_over_pairs = float(np.triu(products, 1).sum())
    correlation = sum_over_pairs / (pairs * mean_square)
    standard_error = 1 / math.sqrt(pairs * count)
    if abs(correlation) > 7 * standard_error:
        note = f"its correlation with its transpose is {correlation:.2f}"
        return LawName("unknown", note)
    kurtosis = _kurtosis(matrices, _mean_squares(matrices, 0).mean())
    relative_diagonal = np.trace(products) / (rows * mean_square)
    error = math.sqrt(max(kurtosis - 1, 1e-9) / (rows * count))
    if abs(relative_diagonal - 1) > 7 * error:
        return LawName("unknown", "the diagonal has another size")
    return None


def _angles_of_rows(matrices: list[Floats]) -> LawName | None:
    """Orthogonal or correlated rows, or columns if these are shorter in number.

    About 256 of them are compared.
    """
    rows, columns = matrices[0].shape
    if rows <= columns:
        step = max(1, rows // 256)
        lines = np.array([matrix[::step] for matrix in matrices])
    else:
        step = max(1, columns // 256)
        lines = np.array([matrix[:, ::step].T for matrix in matrices])
    lines /= np.linalg.norm(lines, axis=-1, keepdims=True)
    cosines = lines @ np.swapaxes(lines, -1, -2)  # (samples, lines, lines)
    first, second = np.triu_indices(lines.shape[1], 1)
    cosines = cosines[:, first, second]  # of different lines, each pair once
    length = lines.shape[-1]
    count = cosines.size
    spread = math.sqrt(float(np.mean(cosines**2)) * length)  # 1 for i.i.d. entries
    if count >= 3 and spread < _largest_spread(count):
        return LawName("orthogonal")
    six_errors = 6 * math.sqrt(2 / count) + 6 / math.sqrt(length * count)
    if abs(spread**2 - 1) > six_errors:
        note = (
            f"rows are correlated: their cosines are {spread:.2g} times those of i.i.d."
            " entries"
        )
        return LawName("unknown", note)
    return None


def _largest_spread(cosines: int) -> float:
    """The spread of so many cosines below which lines are orthogonal.

    Few cosines of i.i.d. entries may all be small: below this with probability 3e-6.
    """
    if cosines >= 64:
        return 0.5
    return 0.15 if cosines >= 8 else 0.01
