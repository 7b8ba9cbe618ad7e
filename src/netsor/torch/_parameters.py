"""The laws of the parameters of a module at initialisation, read from fresh samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import torch

from .._array_api import Floats
from .._validate import ArgumentError, Rng, chosen_seed, scale, whole
from ..programs._program import Program
from ._fresh_modules import MOVED, ModuleOrFactory, Sample, fresh, torch_seed

# initialisations that are sampled at least
MIN_SAMPLES = 8
# and at most, if what is measured has few entries
MAX_SAMPLES = 512
# tensors that are sampled in all initialisations together, at most: it takes a second
MAX_TENSORS = 2048
# entries that measure a law well enough, in all samples of a parameter together
ENOUGH_ENTRIES = 2**20
# entries of each sample that are compared with those of other parameters
COMPARED_ENTRIES = 128
NOT_FINITE = "some of its entries are NaN or infinite"
DECLARED = "declared"  # the note of a law that the user gives as a number
LAWS = (
    "constant",
    "fixed",
    "normal",
    "uniform",
    "truncated normal",
    "copy",
    "orthogonal",
    "unknown",
)
# i.i.d. entries, which are treated as Gaussian of their variance
GAUSSIAN = ("normal", "uniform", "truncated normal")


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
        "normal", "uniform" or "truncated normal" (i.i.d. entries; the last two are
        treated as Gaussian with the same variance), "copy" (of another parameter,
        sample by sample), "orthogonal", or "unknown".
    mean, std, std_error : float
        The mean of the entries (0 if it differs from 0 by less than its error), their
        standard deviation, and its standard error: 0 if torch drew them with this
        standard deviation.
    fan_in : int or None
        The number of entries of the input that an entry of the output sums over; None
        for vectors and tables.
    of : str, optional
        The parameter that it is a copy of.
    transposed : bool
        Whether it is a copy of the transpose.
    zero_rows : tuple of int
        Rows that are 0 in every sample: the padding of an embedding.
    note : str
        Its peculiarities.
    kurtosis : float
        E x⁴/(E x²)² of the centred entries: 3 if they are normal.

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
    value: Any = None  # of a constant, a number; of what is fixed, a tensor

    @property
    def random(self) -> bool:
        """Whether it differs from sample to sample."""
        return self.law not in ("constant", "fixed")

    @property
    def remedy(self) -> str:
        """What to do if its law cannot be modelled."""
        if self.note == NOT_FINITE:
            return "correct its initialisation"
        if MOVED in self.note:
            return "make the module on the CPU, or under torch.device('meta')"
        std = f"{self.std:.2g}" if self.std > 0 else "STD"
        return (
            "declare its law, laws=ns.torch.parameters(module,"
            f" declared={{{self.name!r}: {std}}})"
        )


class Parameters(dict[str, Parameter]):
    """The laws of the parameters of a module, by their names; `print` shows the table.

    Examples
    --------
    >>> print(ns.torch.parameters(build))  # doctest: +SKIP
    """

    def __init__(self, rows: Mapping[str, Parameter], samples: int) -> None:
        super().__init__(rows)
        self.samples = samples

    def label(self, program: Program) -> Program:
        """The program, marked as Gaussian if all random parameters are known to be."""
        program._gaussian = all(
            p.law not in GAUSSIAN or (p.law == "normal" and not p.std_error)
            for p in self.values()
        )
        return program

    def __str__(self) -> str:
        rows = [
            ("parameter", "shape", "law", "std", "fan-in", "std·√fan-in"),
            *map(_row, self.values()),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
        )

    def __repr__(self) -> str:
        return f"<Parameters: {len(self)}, from {self.samples} samples>"


def _row(p: Parameter) -> tuple[str, ...]:
    """The row of a parameter in the table that `print` shows."""
    law = p.law
    if p.law in GAUSSIAN and p.law != "normal":
        law = f"{p.law}, as normal"
    elif p.law == "copy":
        law = f"{'transpose' if p.transposed else 'copy'} of {p.of}"
    elif p.law == "constant":
        law = f"constant {p.value:g}"
    if p.mean:
        law += f", mean {p.mean:g}"
    if p.zero_rows:
        law += f", rows of zeros: {', '.join(map(str, p.zero_rows))}"
    if p.note:
        law += f" ({p.note})"

    std = gain = ""
    if p.std_error:
        std = f"{p.std:.4g} ± {p.std_error:.1g}"
    elif p.std:
        std = f"{p.std:.4g}"
    if p.fan_in and p.std:
        gain = f"{p.std * math.sqrt(p.fan_in):.3g}"
    return p.name, "×".join(map(str, p.shape)), law, std, str(p.fan_in or ""), gain


def parameters(
    module: ModuleOrFactory,
    *,
    samples: int | None = None,
    seed: int = 0,
    rng: Rng = None,
    declared: Mapping[str, float | Parameter] | None = None,
) -> Parameters:
    """The law of every parameter of a module at initialisation, by name; tied
    parameters are one.

    The laws are read from fresh samples of the module's own initialisation. A factory
    is called several times; a module is copied, and the methods that it has for that
    initialise it again. Nothing is computed with the parameters. Standard deviations
    are those that the code gives torch (`normal_`, `uniform_`, `randn`, and multiples
    of them) if the samples agree with them; others are measured. Buffers that differ
    between the samples are parameters too.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A factory that returns a new module each time, or a module that can initialise
        itself again.
    samples : int, optional
        The number of initialisations, two or more; by default 8, and up to 512 if what
        is measured has few entries.
    seed : int
        The seed of torch's generator, whose state is restored afterwards.
    rng : numpy.random.Generator or int, optional
        A generator, from which a seed is drawn, or an integer, instead of `seed`.
    declared : mapping of str to float or Parameter, optional
        Laws of parameters, by name or pattern such as ``"*.bias"``; a number is the
        standard deviation of a Gaussian. They override the samples. A copy of a
        parameter for which you declare the same number stays a copy.

    Examples
    --------
    >>> def build():
    ...     return torch.nn.Linear(64, 32)
    >>> ns.torch.parameters(build)["weight"].fan_in  # doctest: +SKIP
    64
    """
    if samples is not None:
        samples = whole(
            samples,
            "samples",
            least=2,
            why=": one does not show which entries are random",
        )
    _check_declared(declared)
    sampled = _initialisations(module, samples, chosen_seed(seed, rng))
    present = {}
    if isinstance(module, torch.nn.Module):
        present = dict(module.named_parameters())
    laws: dict[str, Parameter] = {}
    for name, entries in sampled.samples.items():
        p = present.get(name)
        if p is not None and not p.is_meta and not entries[0].problem:
            _check_initialised(name, p, entries)
        tensor = sampled.tensors[name]
        law = law_of(name, tuple(tensor.shape), entries)
        laws[name] = replace(law, fan_in=_fan_in(sampled.module, name, tensor))
    laws = _with_ties(laws, sampled.samples)
    return Parameters(with_declared(laws, declared or {}), sampled.number)


def _fan_in(module: Any, name: str, tensor: Any) -> int | None:
    """The entries of the input that an entry of the output sums over."""
    owner = type(module.get_submodule(name.rpartition(".")[0])).__name__
    if tensor.ndim < 2 or "Embedding" in owner:
        return None
    if owner == "Conv1D":  # of transformers, whose matrices are (in, out)
        return int(tensor.shape[0])
    return int(math.prod(tensor.shape[1:]))


# Samples


class Initialisations(NamedTuple):
    """Samples of the initialisation of a module."""

    samples: dict[str, list[Sample]]  # of each parameter
    module: Any  # the last initialisation
    tensors: dict[str, Any]  # its parameters and buffers
    number: int  # of initialisations


def _initialisations(
    module: ModuleOrFactory, samples: int | None, seed: int
) -> Initialisations:
    """Initialise a module so many times, or as often as measurements need."""
    by_name: dict[str, list[Sample]] = {}
    count = 0
    with torch.random.fork_rng(devices=[]):
        while count < (samples or MIN_SAMPLES) or (
            samples is None and _too_few(by_name, count)
        ):
            torch_seed(seed + count)
            instance, replay = fresh(module)
            tensors = dict(instance.named_parameters()) | _buffers(instance)
            for name in tensors if count == 0 else by_name:
                sample = replay.sample(name, tensors[name])
                by_name.setdefault(name, []).append(sample)
            count += 1
            if count == 2:  # buffers that do not differ are no parameters
                for name in _buffers(instance).keys() & by_name:
                    earlier, later = by_name[name]
                    if torch.equal(earlier.entries, later.entries):
                        del by_name[name]
    return Initialisations(by_name, module=instance, tensors=tensors, number=count)


def _buffers(module: Any) -> dict[str, Any]:
    """The real tensors that a module keeps in buffers and other attributes, by path."""
    tensors = dict(module.named_buffers())
    for path, part in module.named_modules():
        for name, x in vars(part).items():
            if type(x) is torch.Tensor:
                tensors[f"{path}.{name}".lstrip(".")] = x
    return {
        name: x
        for name, x in tensors.items()
        if x.is_floating_point() and x.device.type != "meta" and x.numel()
    }


def _too_few(by_name: Mapping[str, list[Sample]], count: int) -> bool:
    """Whether more samples of a small module are needed to measure a parameter."""
    sizes = {name: samples[0].entries.numel() for name, samples in by_name.items()}
    if count >= MAX_SAMPLES or count * len(sizes) >= MAX_TENSORS:
        return False
    if count * sum(sizes.values()) >= 4 * ENOUGH_ENTRIES:
        return False
    measured_sizes = (
        sizes[name]
        for name, samples in by_name.items()
        if _measured(samples[:MIN_SAMPLES])
    )
    return count * min(measured_sizes, default=ENOUGH_ENTRIES) < ENOUGH_ENTRIES


def _measured(samples: list[Sample]) -> bool:
    """Whether a parameter is random and nothing but its samples shows its law."""
    if samples[0].drawn and len({sample.drawn for sample in samples}) == 1:
        return False
    return any(
        not torch.equal(sample.entries, samples[0].entries) for sample in samples[1:]
    )


def _check_initialised(name: str, p: Any, samples: list[Sample]) -> None:
    """Reject a module whose numbers are not those that its methods initialise.

    Only their root mean squares are compared.
    """
    own = p.detach().float().cpu().numpy().ravel()
    new = np.concatenate([sample.entries.numpy().ravel() for sample in samples])

    def root_mean_square(x: Floats) -> float:
        return float(np.sqrt(np.mean(np.square(x, dtype=float))))

    own_size, new_size = root_mean_square(own), root_mean_square(new)
    # The relative error of the root mean square of n normals is √(1/2n). Eight of them
    # are exceeded by chance in none of millions of parameters.
    error = math.sqrt(1 / (2 * own.size) + 1 / (2 * new.size))
    if abs(own_size - new_size) > 8 * max([own_size, new_size]) * error:
        raise ValueError(
            f"{name} has entries of root mean square {own_size:.4g}, and"
            f" {new_size:.4g} if it is initialised again: it was trained, or its"
            " constructor does more: pass a function that makes the module"
        )


# Parameters that depend on each other


class Fingerprints(NamedTuple):
    """Numbers that show which parameters depend on each other, one row for each."""

    # one correlation for each pair, in standard errors
    correlations: Floats
    # the numbers of entries that it is computed from
    counts: Floats
    # what does not change with the order, the signs or a factor of the entries
    invariants: Floats


def _fingerprints(
    laws: Mapping[str, Parameter], by_name: Mapping[str, list[Sample]], names: list[str]
) -> Fingerprints:
    """The fingerprints of these parameters."""
    standard = np.zeros((len(names), MIN_SAMPLES, COMPARED_ENTRIES))
    counts = np.zeros(len(names))
    invariants = []
    for k, name in enumerate(names):
        samples = [sample.entries.reshape(-1) for sample in by_name[name][:MIN_SAMPLES]]
        starts = np.array([x[:COMPARED_ENTRIES].double().numpy() for x in samples])
        centred = starts - laws[name].mean
        standard[k, : len(samples), : centred.shape[1]] = centred / max(
            centred.std(), 1e-300
        )
        counts[k] = centred.size
        norms = np.array([_norms(x) for x in samples])
        invariants.append(
            [math.prod(laws[name].shape), *norms.ravel() / norms[:, 0].sum()]
        )
    products = np.einsum("iab,jab->ij", standard, standard, optimize=True)
    return Fingerprints(
        correlations=products / np.sqrt(np.minimum.outer(counts, counts)),
        counts=counts,
        invariants=np.array(invariants),
    )


def _norms(x: Any) -> list[float]:
    """The Euclidean norm and the largest absolute value of a tensor."""
    norm = torch.linalg.vector_norm
    return [float(norm(x, order, dtype=torch.float64)) for order in (2, math.inf)]


def _with_ties(
    laws: Mapping[str, Parameter], by_name: Mapping[str, list[Sample]]
) -> dict[str, Parameter]:
    """The laws, where some parameters depend on an earlier one.

    Copies and transposes become "copy"; parameters that are made from the numbers of
    another one, or correlated with it, "unknown".
    """
    names = [
        name
        for name, law in laws.items()
        if law.random and law.note != NOT_FINITE and not by_name[name][0].problem
    ]
    correlations, counts, invariants = _fingerprints(laws, by_name, names)
    result = dict(laws)
    for k, name in enumerate(names[1:], 1):
        differences = np.abs(invariants[:k] - invariants[k])
        same = (differences < 1e-5 * invariants[k]).all(axis=1)
        if same.any():
            j = int(np.argmax(same))
            result[name] = _same_numbers(laws[name], laws[names[j]], by_name)
            continue
        j = int(np.argmax(np.abs(correlations[k, :k])))
        # of millions of independent pairs, none has so many standard errors
        if abs(correlations[k, j]) > 7:
            r = correlations[k, j] / math.sqrt(min(counts[k], counts[j]))
            note = f"its correlation with {names[j]} is {np.clip(r, -1, 1):.2f}"
            result[name] = replace(laws[name], law="unknown", note=note)
    return result


def _same_numbers(
    law: Parameter, earlier: Parameter, by_name: Mapping[str, list[Sample]]
) -> Parameter:
    """The law of a parameter that has the numbers of an earlier one, in some order."""
    pairs = [
        (sample.entries, original.entries)
        for sample, original in zip(
            by_name[law.name], by_name[earlier.name], strict=True
        )
    ]
    if law.shape == earlier.shape and all(torch.equal(a, b) for a, b in pairs):
        return replace(law, law="copy", of=earlier.name)
    if all(a.ndim == 2 and torch.equal(a, b.T) for a, b in pairs):
        return replace(law, law="copy", of=earlier.name, transposed=True)
    note = f"its numbers are those of {earlier.name} in another order or times a factor"
    return replace(law, law="unknown", note=note)


# Declared laws


def _check_declared(declared: Any) -> None:
    """Reject all but a mapping of names or patterns to numbers or laws."""
    if declared is None:
        return
    if not isinstance(declared, Mapping) or not all(
        isinstance(name, str) for name in declared
    ):
        allowed = (
            "a mapping of names or patterns of parameters to standard deviations, as"
            " {'*.bias': 0.02}"
        )
        raise ArgumentError("declared", declared, allowed)
    for pattern, law in declared.items():
        name = f"declared[{pattern!r}]"
        if not isinstance(law, Parameter):
            scale(law, name)
        elif law.law not in LAWS:
            raise ArgumentError(f"{name}.law", law.law, f"one of {', '.join(LAWS)}")
        else:
            scale(law.std, f"{name}.std")


def _declared_law(name: str, std: float) -> Parameter:
    """Gaussian entries with this standard deviation; zeros, if it is 0."""
    if std == 0:
        return Parameter(name, (), "constant", value=0.0, note=DECLARED)
    return Parameter(name, (), "normal", std=float(std), note=DECLARED)


def with_declared(
    rows: Mapping[str, Parameter], declared: Mapping[str, float | Parameter]
) -> dict[str, Parameter]:
    """The laws, replaced by those that a user declares, by name or pattern."""
    _check_declared(declared)
    laws = dict(rows)
    for pattern, law in declared.items():
        names = [name for name in laws if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(
                f"declared={pattern!r} names no parameter; there are"
                f" {', '.join(list(laws)[:4])}, …"
            )
        for name in names:
            new = law if isinstance(law, Parameter) else _declared_law(name, law)
            laws[name] = replace(
                new, name=name, shape=laws[name].shape, fan_in=laws[name].fan_in
            )
    for name, sampled in rows.items():
        if sampled.law != "copy":
            continue
        declared_law, original = laws[name], laws[str(sampled.of)]
        as_numbers = declared_law.note == original.note == DECLARED
        if as_numbers and declared_law.std == original.std:  # it stays a copy
            laws[name] = replace(sampled, std=declared_law.std)
    return laws


# The law of one parameter


class LawName(NamedTuple):
    """One of `LAWS`, and a note that explains it."""

    law: str
    note: str = ""


def law_of(name: str, shape: tuple[int, ...], samples: list[Sample]) -> Parameter:
    """The law of one parameter, from samples."""
    problem = next((sample.problem for sample in samples if sample.problem), "")
    if problem:
        law = "orthogonal" if "qr" in problem else "unknown"
        return Parameter(name, shape, law, note=f"made by {problem.replace('::', '.')}")
    tensors = [sample.entries.double().numpy() for sample in samples]
    if not all(np.isfinite(t).all() for t in tensors):
        return Parameter(name, shape, "unknown", note=NOT_FINITE)
    if all(np.array_equal(t, tensors[0]) for t in tensors[1:]):
        return _law_without_randomness(name, shape, samples[0])
    zero_rows = samples[0].zero_rows
    if len(shape) == 2 and tensors[0].shape == shape:
        zero_rows = _rows_of_zeros(tensors)
        if zero_rows:
            tensors = [np.delete(t, zero_rows, axis=0) for t in tensors]

    pooled = np.concatenate([t.ravel() for t in tensors])
    mean, std = float(pooled.mean()), float(pooled.std())
    standard = (pooled - mean) / std
    kurtosis = float(np.mean(np.square(standard) ** 2))
    law, note = _joint_law(tensors, mean, _marginal_law(standard, kurtosis))
    if abs(mean) < 5 * std / math.sqrt(pooled.size):
        mean, std = 0.0, math.hypot(mean, std)
    std_error = std * math.sqrt(max(kurtosis - 1, 0.0) / (4 * pooled.size))
    if law in GAUSSIAN and not _measured(samples):
        drawn_law, drawn_mean, drawn_std = samples[0].drawn or (law, mean, std)
        # six errors of the mean; the error of the std is at most 1/√2 of it
        tolerance = 6 * drawn_std / math.sqrt(pooled.size)
        if abs(mean - drawn_mean) < tolerance and abs(std - drawn_std) < tolerance:
            law, note = drawn_law, ""
            mean, std, std_error = drawn_mean, drawn_std, 0.0
    return Parameter(
        name=name,
        shape=shape,
        law=law,
        mean=mean,
        std=std,
        std_error=std_error,
        zero_rows=zero_rows,
        note=note,
        kurtosis=kurtosis,
    )


def _law_without_randomness(
    name: str, shape: tuple[int, ...], sample: Sample
) -> Parameter:
    """The law of a parameter that is the same in every sample."""
    entries = sample.entries.double().numpy()
    if np.ptp(entries) == 0:
        return Parameter(name, shape, "constant", value=float(entries.flat[0]))
    if entries.shape != shape:
        note = "the same in every sample, and too large to keep"
        return Parameter(name, shape, "unknown", note=note)
    return Parameter(name, shape, "fixed", value=sample.entries)


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
        # of uniform entries the largest is √3 (1 ± 0.73/√n), the kurtosis 1.8 ± 1.15/√n
        errors = 5 / math.sqrt(count)
        if (
            largest < math.sqrt(3) * (1 + 0.73 * errors)
            and kurtosis < 1.8 + 1.15 * errors
        ):
            return LawName("uniform")
        return LawName("truncated normal")
    if abs(kurtosis - 3) < 5 * math.sqrt(24 / count):
        return LawName("normal")
    return LawName("unknown", f"excess kurtosis {kurtosis - 3:.2g}")


def _joint_law(tensors: list[Floats], mean: float, marginal: LawName) -> LawName:
    """The law of all entries together: `marginal`, if they may be i.i.d."""
    law = marginal
    if not np.any(tensors, axis=0).all():
        law = LawName("unknown", "some of its entries are always 0")
    size, shape = tensors[0].size, tensors[0].shape
    # as a matrix whose rows are along the first axis, or along all but the last
    for columns in {math.prod(shape[1:]), *shape[-1:]} - {1, size}:
        centred = [t.reshape(-1, columns) - mean for t in tensors]
        law = _dependence(centred) or law
    return law


def _dependence(matrices: list[Floats]) -> LawName | None:
    """What samples of a matrix have and i.i.d. entries do not have; None: nothing."""
    rows, columns = matrices[0].shape
    dependence = _sizes_and_sums(matrices, 1, "rows")
    dependence = dependence or _sizes_and_sums(matrices, 0, "columns")
    if dependence is None and rows == columns and rows * len(matrices) >= 64:
        dependence = _relation_to_transpose(matrices)
    return dependence or _angles_of_rows(matrices)


def _mean_squares(matrices: list[Floats], axis: int) -> Floats:
    """The mean squares along an axis, over all samples."""
    return np.asarray(np.mean([(w**2).mean(axis=axis) for w in matrices], axis=0))


def _kurtosis(matrices: list[Floats], mean_square: float) -> float:
    """E x⁴/(E x²)² of all entries."""
    return float(np.mean([(w**4).mean() for w in matrices])) / mean_square**2


def _sizes_and_sums(matrices: list[Floats], axis: int, lines: str) -> LawName | None:
    """Rows (axis 1) or columns (0) of different sizes, or with too large sums."""
    squares = _mean_squares(matrices, axis)
    length = matrices[0].shape[axis]
    kurtosis = _kurtosis(matrices, squares.mean())
    error = math.sqrt(max(kurtosis - 1, 1e-9) / (length * len(matrices)))
    z = (squares / squares.mean() - 1) / error
    # z² has mean 1 and variance 2; 0.2 for the error of its scale
    if float((z**2).mean()) > 1 + 8 * math.sqrt(2 / z.size) + 0.2:
        return LawName("unknown", f"{lines} have different standard deviations")
    sums = np.array([w.sum(axis=axis) for w in matrices])
    excess = float((sums**2).mean()) / (squares.mean() * length) - 1
    if abs(excess) > 7 / math.sqrt(sums.size / 2) and sums.size >= 64:
        ratio = f"{math.sqrt(1 + excess):.2g}"
        return LawName(
            "unknown", f"sums of {lines} are {ratio} times those of i.i.d. entries"
        )
    return None


def _relation_to_transpose(matrices: list[Floats]) -> LawName | None:
    """A correlation of square matrices with their transposes, or another diagonal."""
    rows, count = len(matrices[0]), len(matrices)
    products = np.mean([w * w.T for w in matrices], axis=0)
    mean_square = float(np.mean([(w**2).mean() for w in matrices]))
    pairs = rows * (rows - 1) / 2
    correlation = float(np.triu(products, 1).sum()) / (pairs * mean_square)
    if abs(correlation) > 7 / math.sqrt(pairs * count):
        note = f"its correlation with its transpose is {correlation:.2f}"
        return LawName("unknown", note)
    kurtosis = _kurtosis(matrices, _mean_squares(matrices, 0).mean())
    error = math.sqrt(max(kurtosis - 1, 1e-9) / (rows * count))
    if abs(np.trace(products) / (rows * mean_square) - 1) > 7 * error:
        return LawName("unknown", "the diagonal has another size")
    return None


def _angles_of_rows(matrices: list[Floats]) -> LawName | None:
    """Orthogonal or correlated rows, or columns if these are shorter in number.

    About 256 of them are compared.
    """
    rows, columns = matrices[0].shape
    if rows <= columns:
        lines = np.array([w[:: max(1, rows // 256)] for w in matrices])
    else:
        lines = np.array([w[:, :: max(1, columns // 256)].T for w in matrices])
    lines /= np.linalg.norm(lines, axis=-1, keepdims=True)
    above = np.triu_indices(lines.shape[1], 1)
    cosines = (lines @ np.swapaxes(lines, -1, -2))[:, above[0], above[1]]
    length, count = lines.shape[-1], cosines.size
    spread = math.sqrt(float(np.mean(cosines**2)) * length)  # 1 for i.i.d. entries
    if spread < 0.5 and count >= 3:
        return LawName("orthogonal")
    error = 6 * math.sqrt(2 / count) + 6 / math.sqrt(length * count)
    if abs(spread**2 - 1) > error:
        note = (
            f"rows are correlated: their cosines are {spread:.2g} times those of i.i.d."
            " entries"
        )
        return LawName("unknown", note)
    return None
