"""The laws of the parameters of a module at initialisation, read from fresh samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

from .._array_api import Floats
from .._program import Program
from .._validate import ArgumentError, Rng, chosen_seed, scale, whole
from ._fresh_modules import MOVED, ModuleOrFactory, Sample, fresh, torch_seed

# initialisations, and tensors in all of them; it takes a second
FEWEST, MOST, MOST_TENSORS = 8, 512, 2048
# entries that a law is measured with, if so many initialisations have them
ENOUGH = 2**20
START = 128  # entries of each sample that are compared with those of other parameters
NORM = torch.linalg.vector_norm
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
    >>> ns.torch.parameters(lambda: torch.nn.Linear(64, 32))["weight"].law  # doctest: +SKIP
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


NOT_FINITE = "some of its entries are NaN or infinite"


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
        """The program, with a note of whether the parameters that it stands for are
        known to be Gaussian.
        """
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
    said = {law: f"{law}, as normal" for law in GAUSSIAN[1:]}
    said["copy"] = f"{'transpose' if p.transposed else 'copy'} of {p.of}"
    law = said.get(p.law, p.law) + (f" {p.value:g}" if p.law == "constant" else "")
    law += f", mean {p.mean:g}" if p.mean else ""
    law += f", rows of zeros: {', '.join(map(str, p.zero_rows))}" if p.zero_rows else ""
    law += f" ({p.note})" if p.note else ""
    std = (
        f"{p.std:.4g} ± {p.std_error:.1g}"
        if p.std_error
        else f"{p.std:.4g}"
        if p.std
        else ""
    )
    gain = f"{p.std * math.sqrt(p.fan_in):.3g}" if p.fan_in and p.std else ""
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
    seed, by_name, count = chosen_seed(seed, rng), dict[str, list[Sample]](), 0
    with torch.random.fork_rng(devices=[]):
        while count < (samples or FEWEST) or (
            samples is None and _too_few(by_name, count)
        ):
            torch_seed(seed + count)
            instance, replay = fresh(module)
            held = dict(instance.named_parameters()) | _buffers(instance)
            for name in held if count == 0 else by_name:
                by_name.setdefault(name, []).append(replay.sample(name, held[name]))
            count += 1
            if count == 2:
                for name in _buffers(instance).keys() & by_name:
                    if torch.equal(*(sample.entries for sample in by_name[name])):
                        del by_name[name]
    given = (
        dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else {}
    )
    rows: dict[str, Parameter] = {}
    for name in by_name:
        p = held[name]
        if name in given and not given[name].is_meta and not by_name[name][0].problem:
            _compare(name, given[name], by_name[name])
        owner = type(instance.get_submodule(name.rpartition(".")[0])).__name__
        law = law_of(name, tuple(p.shape), by_name[name])
        # Conv1D of transformers is (in, out)
        if p.ndim > 1 and "Embedding" not in owner:
            law = replace(
                law,
                fan_in=int(p.shape[0] if owner == "Conv1D" else math.prod(p.shape[1:])),
            )
        rows[name] = law
    return Parameters(with_declared(_with_ties(rows, by_name), declared or {}), count)


def _buffers(module: Any) -> dict[str, Any]:
    """The real numbers that a module keeps in buffers and other attributes, by their
    paths.
    """
    found = dict(module.named_buffers())
    for path, part in module.named_modules():
        found |= {
            f"{path}.{name}".lstrip("."): x
            for name, x in vars(part).items()
            if type(x) is torch.Tensor
        }
    return {
        name: x
        for name, x in found.items()
        if x.is_floating_point() and x.device.type != "meta" and x.numel()
    }


def _too_few(by_name: Mapping[str, list[Sample]], count: int) -> bool:
    """Whether more samples of a small module are needed to measure a parameter."""
    sizes = [samples[0].entries.numel() for samples in by_name.values()]
    if (
        count >= MOST
        or count * len(sizes) >= MOST_TENSORS
        or count * sum(sizes) >= 4 * ENOUGH
    ):
        return False
    unknown = (
        size
        for size, samples in zip(sizes, by_name.values(), strict=True)
        if _measured(samples[:FEWEST])
    )
    return count * min(unknown, default=ENOUGH) < ENOUGH


def _measured(samples: list[Sample]) -> bool:
    """Whether a parameter is random and nothing but its samples shows its law."""
    if samples[0].drawn and len({sample.drawn for sample in samples}) == 1:
        return False
    return any(
        not torch.equal(sample.entries, samples[0].entries) for sample in samples[1:]
    )


def _with_ties(
    laws: Mapping[str, Parameter], by_name: Mapping[str, list[Sample]]
) -> dict[str, Parameter]:
    """The laws, with what depends on an earlier parameter: its copies, its transpose,
    and numbers made from its own.
    """
    every = dict(laws)
    names = [
        name
        for name, law in laws.items()
        if law.random and law.note != NOT_FINITE and not by_name[name][0].problem
    ]
    sizes, starts, counts = (
        [],
        np.zeros((len(names), FEWEST, START)),
        np.zeros(len(names)),
    )
    for k, name in enumerate(names):
        samples = [sample.entries.reshape(-1) for sample in by_name[name][:FEWEST]]
        some = np.array([x[:START].double().numpy() for x in samples]) - laws[name].mean
        starts[k, : len(samples), : some.shape[1]], counts[k] = (
            some / max(some.std(), 1e-300),
            some.size,
        )
        norms = np.array(
            [
                [float(NORM(x, p, dtype=torch.float64)) for p in (2, math.inf)]
                for x in samples
            ]
        )
        sizes.append([math.prod(laws[name].shape), *norms.ravel() / norms[:, 0].sum()])
    z = np.einsum("iab,jab->ij", starts, starts, optimize=True) / np.sqrt(
        np.minimum.outer(counts, counts)
    )
    invariant = np.array(sizes)  # in whichever order, with whichever signs and factor
    for k, name in enumerate(names[1:], 1):
        same = (np.abs(invariant[:k] - invariant[k]) < 1e-5 * invariant[k]).all(axis=1)
        j = int(np.argmax(same)) if same.any() else int(np.argmax(np.abs(z[k, :k])))
        pairs = [
            (a.entries, b.entries)
            for a, b in zip(by_name[name], by_name[names[j]], strict=True)
        ]
        law, other = laws[name], names[j]
        if (
            same[j]
            and law.shape == laws[other].shape
            and all(torch.equal(a, b) for a, b in pairs)
        ):
            every[name] = replace(law, law="copy", of=other)
        elif same[j] and all(a.ndim == 2 and torch.equal(a, b.T) for a, b in pairs):
            every[name] = replace(law, law="copy", of=other, transposed=True)
        elif same[j]:
            note = (
                f"its numbers are those of {other} in another order or times a factor"
            )
            every[name] = replace(law, law="unknown", note=note)
        elif abs(z[k, j]) > 7:
            # of millions of pairs that are independent, none has so many standard
            # errors
            r = np.clip(z[k, j] / math.sqrt(min(counts[k], counts[j])), -1, 1)
            every[name] = replace(
                law, law="unknown", note=f"its correlation with {other} is {r:.2f}"
            )
    return every


def _compare(name: str, p: Any, samples: list[Sample]) -> None:
    """Raise an error if the numbers of a module are not those that its methods
    initialise it with.
    """
    own = p.detach().float().cpu().numpy().ravel()
    new = np.concatenate([sample.entries.numpy().ravel() for sample in samples])
    sizes = [float(np.sqrt(np.mean(np.square(x, dtype=float)))) for x in (own, new)]
    # of standard normals √(1/2n) is the error of the root mean square; 8 of them, for
    # millions of parameters
    if abs(sizes[0] - sizes[1]) > 8 * max(sizes) * math.sqrt(
        1 / (2 * own.size) + 1 / (2 * new.size)
    ):
        said = (
            f"{name} has entries of root mean square {sizes[0]:.4g}, and {sizes[1]:.4g}"
            " if it is initialised again"
        )
        raise ValueError(
            f"{said}: it was trained, or its constructor does more: pass a function"
            " that makes the module"
        )


def _check_declared(declared: Any) -> None:
    """Reject what is not a mapping of names or patterns to standard deviations or
    laws.
    """
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
        return Parameter(name, (), "constant", value=0.0, note="declared")
    return Parameter(name, (), "normal", std=float(std), note="declared")


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
    for name, law in rows.items():
        if (
            law.law == "copy"
            and laws[name].note == laws[str(law.of)].note == "declared"
        ):
            laws[name] = (
                replace(law, std=laws[name].std)
                if laws[name].std == laws[str(law.of)].std
                else laws[name]
            )
    return laws


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
        if np.ptp(tensors[0]) == 0:
            return Parameter(name, shape, "constant", value=float(tensors[0].flat[0]))
        if tensors[0].shape != shape:
            return Parameter(
                name,
                shape,
                "unknown",
                note="the same in every sample, and too large to keep",
            )
        return Parameter(name, shape, "fixed", value=samples[0].entries)
    zero = samples[0].zero_rows
    if len(shape) == 2 and tensors[0].shape == shape:
        zero = tuple(
            int(k)
            for k in np.flatnonzero(
                np.all([(t == 0).all(axis=1) for t in tensors], axis=0)
            )
        )
        tensors = [np.delete(t, zero, axis=0) for t in tensors] if zero else tensors
    pooled = np.concatenate([t.ravel() for t in tensors])
    mean, std = float(pooled.mean()), float(pooled.std())
    z = (pooled - mean) / std
    kurtosis = float(np.mean(np.square(z) ** 2))
    law, note = _shape_of(z, kurtosis)
    if not np.any(tensors, axis=0).all():
        law, note = "unknown", "some of its entries are always 0"
    for columns in {math.prod(tensors[0].shape[1:]), *tensors[0].shape[-1:]} - {
        1,
        tensors[0].size,
    }:
        law, note = _dependence([t.reshape(-1, columns) - mean for t in tensors]) or (
            law,
            note,
        )
    if abs(mean) < 5 * std / math.sqrt(pooled.size):
        mean, std = 0.0, math.hypot(mean, std)
    error = std * math.sqrt(max(kurtosis - 1, 0.0) / (4 * pooled.size))
    if law in GAUSSIAN and not _measured(samples):
        drawn, own_mean, own_std = samples[0].drawn or (law, mean, std)
        # of the error of the mean; that of the std is at most 1/√2 of it
        scale = 6 * own_std / math.sqrt(pooled.size)
        if abs(mean - own_mean) < scale and abs(std - own_std) < scale:
            law, note, mean, std, error = drawn, "", own_mean, own_std, 0.0
    return Parameter(
        name, shape, law, mean, std, error, zero_rows=zero, note=note, kurtosis=kurtosis
    )


def _shape_of(z: Floats, kurtosis: float) -> tuple[str, str]:
    """Normal, uniform or truncated, by the fourth moment and the largest of
    standardised entries.
    """
    if z.size < 64:
        return "normal", "too few entries to test"
    largest = float(np.abs(z).max())
    # so few normals have
    if (
        math.erf(largest / math.sqrt(2)) ** z.size < 1e-6
        and kurtosis < 3
        and largest < 4.5
    ):
        # of n uniform entries: largest √3 (1 ± 0.73/√n), kurtosis 1.8 ± 1.15/√n
        off = 5 / math.sqrt(z.size)
        uniform = (
            largest < math.sqrt(3) * (1 + 0.73 * off) and kurtosis < 1.8 + 1.15 * off
        )
        return ("uniform" if uniform else "truncated normal"), ""
    if abs(kurtosis - 3) < 5 * math.sqrt(24 / z.size):
        return "normal", ""
    return "unknown", f"excess kurtosis {kurtosis - 3:.2g}"


def _dependence(kept: list[Floats]) -> tuple[str, str] | None:
    """Orthogonal rows, or rows and columns of different sizes: what i.i.d. entries do
    not have.
    """
    rows, columns = kept[0].shape
    for axis, of in ((1, "rows"), (0, "columns")):
        square = np.mean([(w**2).mean(axis=axis) for w in kept], axis=0)
        each = kept[0].shape[axis] * len(kept)
        fourth = float(np.mean([(w**4).mean() for w in kept])) / square.mean() ** 2
        z = (square / square.mean() - 1) / math.sqrt(max(fourth - 1, 1e-9) / each)
        if float((z**2).mean()) > 1 + 8 * math.sqrt(2 / z.size) + 0.2:
            return "unknown", f"{of} have different standard deviations"
        sums = np.array([w.sum(axis=axis) for w in kept])
        excess = float((sums**2).mean()) / (square.mean() * kept[0].shape[axis]) - 1
        if abs(excess) > 7 / math.sqrt(sums.size / 2) and sums.size >= 64:
            return (
                "unknown",
                (
                    f"sums of {of} are {math.sqrt(1 + excess):.2g} times those of"
                    " i.i.d. entries"
                ),
            )
    if rows == columns and rows * len(kept) >= 64:
        products, total = (
            np.mean([w * w.T for w in kept], axis=0),
            float(np.mean([(w**2).mean() for w in kept])),
        )
        turned = float(np.triu(products, 1).sum()) / (rows * (rows - 1) / 2 * total)
        if abs(turned) > 7 / math.sqrt(rows * (rows - 1) / 2 * len(kept)):
            return "unknown", f"its correlation with its transpose is {turned:.2f}"
        if abs(np.trace(products) / (rows * total) - 1) > 7 * math.sqrt(
            max(fourth - 1, 1e-9) / (rows * len(kept))
        ):
            return "unknown", "the diagonal has another size"
    some = np.array(
        [
            (
                w[:: max(1, rows // 256)]
                if rows <= columns
                else w[:, :: max(1, columns // 256)].T
            )
            for w in kept
        ]
    )
    some /= np.linalg.norm(some, axis=-1, keepdims=True)
    above = np.triu_indices(some.shape[1], 1)
    cosines = (some @ np.swapaxes(some, -1, -2))[:, above[0], above[1]]
    long, count = some.shape[-1], cosines.size
    spread = math.sqrt(float(np.mean(cosines**2)) * long)  # 1 for i.i.d. entries
    if spread < 0.5 and count >= 3:
        return "orthogonal", ""
    if abs(spread**2 - 1) > 6 * math.sqrt(2 / count) + 6 / math.sqrt(long * count):
        return (
            "unknown",
            (
                f"rows are correlated: their cosines are {spread:.2g} times those of"
                " i.i.d. entries"
            ),
        )
    return None
