"""The laws of the parameters of a module at initialisation, read from fresh samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

from .._array_api import Floats
from .._program import Program
from .._validate import ArgumentError, Rng, chosen_seed
from ._fresh_modules import ModuleOrFactory, Sample, fresh

GAUSSIAN = ("normal", "uniform", "truncated normal")  # i.i.d. entries, which are treated as Gaussian of their variance


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
        "constant" (one number), "fixed" (other numbers, the same in every sample), "normal", "uniform" or "truncated
        normal" (i.i.d. entries; the last two are treated as Gaussian with the same variance), "copy" (of another
        parameter, sample by sample), "orthogonal", or "unknown".
    mean, std, std_error : float
        The mean of the entries (0 if it differs from 0 by less than its error), their standard deviation, and its
        standard error.
    fan_in : int or None
        The number of entries of the input that an entry of the output sums over; None for vectors and tables.
    of : str, optional
        The parameter that it is a copy of.
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
    zero_rows: tuple[int, ...] = ()
    note: str = ""
    kurtosis: float = 3.0
    value: Any = None  # of a constant, a number; of what is fixed, a tensor

    @property
    def random(self) -> bool:
        """Whether it differs from sample to sample."""
        return self.law not in ("constant", "fixed")


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
        """The program, with a note of whether the parameters that it stands for are Gaussian."""
        program._gaussian = all(each.law not in GAUSSIAN[1:] for each in self.values())
        return program

    def __str__(self) -> str:
        rows = [("parameter", "shape", "law", "std", "fan-in", "std·√fan-in"), *map(_row, self.values())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def __repr__(self) -> str:
        return f"<Parameters: {len(self)}, from {self.samples} samples>"


def _row(p: Parameter) -> tuple[str, ...]:
    said = {law: f"{law}, as normal" for law in GAUSSIAN[1:]} | {"copy": f"copy of {p.of}"}
    law = said.get(p.law, p.law) + (f" {p.value:g}" if p.law == "constant" else "")
    law += f", mean {p.mean:g}" if p.mean else ""
    law += f", rows of zeros: {', '.join(map(str, p.zero_rows))}" if p.zero_rows else ""
    law += f" ({p.note})" if p.note else ""
    std = f"{p.std:.4g} ± {p.std_error:.1g}" if p.std_error else f"{p.std:.4g}" if p.std else ""
    gain = f"{p.std * math.sqrt(p.fan_in):.3g}" if p.fan_in and p.std else ""
    return p.name, "×".join(map(str, p.shape)), law, std, str(p.fan_in or ""), gain


def parameters(
    module: ModuleOrFactory,
    *,
    samples: int = 8,
    seed: int = 0,
    rng: Rng = None,
    declared: Mapping[str, float | Parameter] | None = None,
) -> Parameters:
    """The law of every parameter of a module at initialisation, by name; tied parameters are one.

    The laws are read from fresh samples of the module's own initialisation. A factory is called several times; a module
    is copied, and the methods that it has for that initialise it again. Nothing is computed with the parameters.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A factory that returns a new module each time, or a module that can initialise itself again.
    samples : int
        The number of initialisations, two or more.
    seed : int
        The seed of torch's generator, whose state is restored afterwards.
    rng : numpy.random.Generator or int, optional
        A generator, from which a seed is drawn, or an integer, instead of `seed`.
    declared : mapping of str to float or Parameter, optional
        Laws of parameters, by name or pattern such as ``"*.bias"``; a number is the standard deviation of a Gaussian.
        They override the samples.

    Examples
    --------
    >>> def build():
    ...     return torch.nn.Linear(64, 32)
    >>> ns.torch.parameters(build)["weight"].fan_in  # doctest: +SKIP
    64
    """
    if samples < 2:
        raise ArgumentError("samples", samples, "2 or more: one sample does not show which entries are random")
    seed, by_name = chosen_seed(seed, rng), dict[str, list[Sample]]()
    with torch.random.fork_rng(devices=[]):
        for k in range(samples):
            torch.manual_seed(seed + k)
            instance, replay = fresh(module)
            for name, p in instance.named_parameters():
                by_name.setdefault(name, []).append(replay.sample(name, p))
    given = dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else {}
    rows: dict[str, Parameter] = {}
    first: dict[Any, str] = {}  # the first parameter with such numbers in all samples
    for name, p in instance.named_parameters():
        if name in given and not given[name].is_meta and not by_name[name][0].problem:
            _compare(name, given[name], by_name[name])
        owner = type(instance.get_submodule(name.rpartition(".")[0])).__name__
        law = law_of(name, tuple(p.shape), by_name[name])
        if p.ndim > 1 and "Embedding" not in owner:  # Conv1D of transformers is (in, out)
            law = replace(law, fan_in=int(p.shape[0] if owner == "Conv1D" else math.prod(p.shape[1:])))
        if law.random:
            beginnings = b"".join(t.entries.reshape(-1)[:4096].numpy().tobytes() for t in by_name[name])
            same = first.setdefault((law.shape, hashlib.sha1(beginnings).digest()), name)
            law = law if same == name else replace(law, law="copy", of=same)
        rows[name] = law
    return Parameters(with_declared(rows, declared or {}), samples)


def _compare(name: str, p: Any, samples: list[Sample]) -> None:
    """Raise an error if the numbers of a module are not those that its methods initialise it with."""
    own = p.detach().float().cpu().numpy().ravel()
    new = np.concatenate([sample.entries.numpy().ravel() for sample in samples])
    sizes = [float(np.sqrt(np.mean(np.square(x, dtype=float)))) for x in (own, new)]
    # of standard normals √(1/2n) is the error of the root mean square; 8 of them, for millions of parameters
    if abs(sizes[0] - sizes[1]) > 8 * max(sizes) * math.sqrt(1 / (2 * own.size) + 1 / (2 * new.size)):
        said = f"{name} has entries of root mean square {sizes[0]:.4g}, and {sizes[1]:.4g} if it is initialised again"
        raise ValueError(f"{said}: it was trained, or its constructor does more: pass a function that makes the module")


def with_declared(rows: Mapping[str, Parameter], declared: Mapping[str, float | Parameter]) -> dict[str, Parameter]:
    """The laws, replaced by those that a user declares, by name or pattern."""
    laws = dict(rows)
    for pattern, law in declared.items():
        names = [name for name in laws if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(f"declared={pattern!r} names no parameter; there are {', '.join(list(laws)[:4])}, …")
        for name in names:
            new = law if isinstance(law, Parameter) else Parameter(name, (), "normal", std=float(law), note="declared")
            laws[name] = replace(new, name=name, shape=laws[name].shape, fan_in=laws[name].fan_in)
    return laws


def law_of(name: str, shape: tuple[int, ...], samples: list[Sample]) -> Parameter:
    """The law of one parameter, from samples."""
    problem = next((sample.problem for sample in samples if sample.problem), "")
    if problem:
        law = "orthogonal" if "qr" in problem else "unknown"
        return Parameter(name, shape, law, note=f"made by {problem.replace('::', '.')}")
    tensors = [sample.entries.double().numpy() for sample in samples]
    if all(np.array_equal(t, tensors[0]) for t in tensors[1:]):
        if np.ptp(tensors[0]) == 0:
            return Parameter(name, shape, "constant", value=float(tensors[0].flat[0]))
        if tensors[0].shape != shape:
            return Parameter(name, shape, "unknown", note="the same in every sample, and too large to keep")
        return Parameter(name, shape, "fixed", value=samples[0].entries)
    zero = samples[0].zero_rows
    if len(shape) == 2 and tensors[0].shape == shape:
        zero = tuple(int(k) for k in np.flatnonzero(np.all([(t == 0).all(axis=1) for t in tensors], axis=0)))
        tensors = [np.delete(t, zero, axis=0) for t in tensors] if zero else tensors
    pooled = np.concatenate([t.ravel() for t in tensors])
    mean, std = float(pooled.mean()), float(pooled.std())
    z = (pooled - mean) / std
    kurtosis = float(np.mean(np.square(z) ** 2))
    law, note = _shape_of(z, kurtosis)
    if tensors[0].ndim == 2 and min(tensors[0].shape) > 1:
        law, note = _dependence([t - mean for t in tensors]) or (law, note)
    if abs(mean) < 5 * std / math.sqrt(pooled.size):
        mean, std = 0.0, math.hypot(mean, std)
    error = std * math.sqrt(max(kurtosis - 1, 0.0) / (4 * pooled.size))
    return Parameter(name, shape, law, mean, std, error, zero_rows=zero, note=note, kurtosis=kurtosis)


def _shape_of(z: Floats, kurtosis: float) -> tuple[str, str]:
    """Normal, uniform or truncated, by the fourth moment and the largest of standardised entries."""
    if z.size < 64:
        return "normal", "too few entries to test"
    largest = float(np.abs(z).max())
    if math.erf(largest / math.sqrt(2)) ** z.size < 1e-6 and kurtosis < 3 and largest < 4.5:  # so few normals have
        off = 5 / math.sqrt(z.size)  # of n uniform entries: largest √3 (1 ± 0.73/√n), kurtosis 1.8 ± 1.15/√n
        uniform = largest < math.sqrt(3) * (1 + 0.73 * off) and kurtosis < 1.8 + 1.15 * off
        return ("uniform" if uniform else "truncated normal"), ""
    if abs(kurtosis - 3) < 5 * math.sqrt(24 / z.size):
        return "normal", ""
    return "unknown", f"excess kurtosis {kurtosis - 3:.2g}"


def _dependence(kept: list[Floats]) -> tuple[str, str] | None:
    """Orthogonal rows, or rows and columns of different sizes: what i.i.d. entries do not have."""
    rows, columns = kept[0].shape
    for axis, of in ((1, "rows"), (0, "columns")):
        square = np.mean([(w**2).mean(axis=axis) for w in kept], axis=0)
        each = kept[0].shape[axis] * len(kept)
        fourth = float(np.mean([(w**4).mean() for w in kept])) / square.mean() ** 2
        z = (square / square.mean() - 1) / math.sqrt(max(fourth - 1, 1e-9) / each)
        if float((z**2).mean()) > 1 + 8 * math.sqrt(2 / z.size) + 0.2:
            return "unknown", f"{of} have different standard deviations"
    some = np.array([w[:: max(1, rows // 256)] if rows <= columns else w[:, :: max(1, columns // 256)].T for w in kept])
    some /= np.linalg.norm(some, axis=-1, keepdims=True)
    above = np.triu_indices(some.shape[1], 1)
    cosines = (some @ np.swapaxes(some, -1, -2))[:, above[0], above[1]]
    long, count = some.shape[-1], cosines.size
    spread = math.sqrt(float(np.mean(cosines**2)) * long)  # 1 for i.i.d. entries
    if spread < 0.5 and count >= 3:
        return "orthogonal", ""
    if abs(spread**2 - 1) > 6 * math.sqrt(2 / count) + 6 / math.sqrt(long * count):
        return "unknown", f"rows are correlated: their cosines are {spread:.2g} times those of i.i.d. entries"
    return None
