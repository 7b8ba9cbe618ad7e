"""What the parameters of a module are at initialisation, read from fresh samples of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]
Module = Any  # torch.nn.Module
GAUSSIAN = ("normal", "uniform", "truncated normal")  # what is treated as Gaussian, of the same variance
SEEN = 2**20  # entries of a parameter that a sample is judged by


@dataclass(frozen=True)
class Parameter:
    """The law of a parameter at initialisation.

    Attributes
    ----------
    name : str
        Its path in the module.
    shape : tuple of int
        Of the tensor.
    law : str
        "constant" (one number), "fixed" (other numbers, the same in every sample), "normal", "uniform" or "truncated
        normal" (i.i.d. entries; the last two are treated as Gaussian with the same variance), "copy" (of another
        parameter, sample by sample), "orthogonal", or "unknown".
    mean : float
        Of the entries; 0 if it does not differ from 0 within its error.
    std : float
        Of the entries.
    std_error : float
        The standard error of `std`.
    fan_in : int or None
        How many entries of the input one entry of the output sums over; None for vectors and tables.
    of : str, optional
        What it is a copy of.
    zero_rows : tuple of int
        Rows that are 0 in every sample: the padding of an embedding.
    note : str
        What is remarkable about it.

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
    value: Any = None  # of a constant, a number; of what is fixed, a tensor

    @property
    def random(self) -> bool:
        """Whether it differs from sample to sample."""
        return self.law not in ("constant", "fixed")


class Parameters(Mapping[str, Parameter]):
    """The laws of the parameters of a module, by their names; `print` shows the table.

    Examples
    --------
    >>> print(ns.torch.parameters(build))  # doctest: +SKIP
    """

    def __init__(self, rows: Mapping[str, Parameter], samples: int) -> None:
        self._rows, self.samples = dict(rows), samples

    def __getitem__(self, name: str) -> Parameter:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        head = ("parameter", "shape", "law", "std", "fan-in", "std·√fan-in")
        rows = [head, *(_row(each) for each in self.values())]
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def __repr__(self) -> str:
        return f"<Parameters: {len(self)}, from {self.samples} samples>"


def _row(p: Parameter) -> tuple[str, ...]:
    said = {
        "uniform": "uniform, as normal",
        "truncated normal": "truncated normal, as normal",
        "copy": f"copy of {p.of}",
    }
    law = said.get(p.law, p.law) + (f" {p.value:g}" if p.law == "constant" else "")
    law += f", mean {p.mean:g}" if p.mean else ""
    law += f", rows of zeros: {', '.join(map(str, p.zero_rows))}" if p.zero_rows else ""
    law += f" ({p.note})" if p.note else ""
    std = f"{p.std:.4g} ± {p.std_error:.1g}" if p.std_error else f"{p.std:.4g}" if p.std else ""
    gain = f"{p.std * math.sqrt(p.fan_in):.3g}" if p.fan_in and p.std else ""
    return p.name, "×".join(map(str, p.shape)), law, std, str(p.fan_in or ""), gain


def parameters(
    module: Module | Callable[[], Module],
    *,
    samples: int = 8,
    seed: int = 0,
    declared: Mapping[str, float | Parameter] | None = None,
) -> Parameters:
    """The law of every parameter of a module at initialisation.

    It is read from fresh samples of the module's own initialisation: a factory is called again and again; of a module,
    a copy is initialised anew by the methods that it has for that. No gradient and no forward pass is computed.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A factory that returns a new module each time, or a module.
    samples : int
        How many initialisations; two or more.
    seed : int
        Of torch's generator, which is left as it was.
    declared : mapping of str to float or Parameter, optional
        What you say of parameters, by name or pattern such as ``"*.bias"``: a standard deviation makes a Gaussian. It
        takes the place of what the samples say.

    Returns
    -------
    Parameters
        By name, in the order of the module; tied parameters are one.

    Raises
    ------
    ValueError
        If a module cannot be initialised anew: pass a factory.

    Examples
    --------
    >>> def build():
    ...     return torch.nn.Linear(64, 32)
    >>> ns.torch.parameters(build)["weight"].fan_in  # doctest: +SKIP
    64
    """
    from ._samples import drawn

    if samples < 2:
        raise ValueError(f"samples={samples} must be 2 or more: one does not tell what is random")
    made, found = drawn(module, samples, seed)
    fans = {name: fan for name, fan in _fans(made)}
    rows: dict[str, Parameter] = {}
    first: dict[str, str] = {}  # what was seen, by all samples of it
    for name, tensors in found.items():
        law = replace(law_of(name, tensors), fan_in=fans.get(name))
        if law.random:
            seen = "".join(hashlib.sha1(np.ascontiguousarray(t.numpy()).tobytes()).hexdigest() for t in tensors)
            if seen in first:
                law = replace(law, law="copy", of=first[seen])
            first.setdefault(seen, name)
        rows[name] = law
    return Parameters(_declared(rows, declared or {}), samples)


def _declared(rows: dict[str, Parameter], declared: Mapping[str, float | Parameter]) -> dict[str, Parameter]:
    from fnmatch import fnmatchcase

    for pattern, law in declared.items():
        names = [name for name in rows if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(f"declared={pattern!r} names no parameter; there are {', '.join(list(rows)[:4])}, …")
        for name in names:
            if isinstance(law, Parameter):
                rows[name] = replace(law, name=name, shape=rows[name].shape, fan_in=rows[name].fan_in)
            else:
                plain = {"mean": 0.0, "std_error": 0.0, "of": None, "zero_rows": (), "value": None}
                rows[name] = replace(rows[name], law="normal", std=float(law), note="declared", **plain)
    return rows


def law_of(name: str, tensors: list[Any]) -> Parameter:
    """What samples of one parameter say."""
    shape = tuple(tensors[0].shape)
    x = np.stack([_entries(t) for t in tensors])  # (samples, entries seen)
    if (x == x[0]).all():
        if np.ptp(x[0]) == 0 and _constant(tensors[0]):
            return Parameter(name, shape, "constant", value=float(x[0, 0]))
        return Parameter(name, shape, "fixed", value=tensors[0])
    zero = _zero_rows(tensors)
    pooled = (
        x.ravel()
        if not zero
        else np.concatenate([np.delete(t.double().numpy(), zero, axis=0).ravel() for t in tensors])
    )
    size, mean, std = pooled.size, float(pooled.mean()), float(pooled.std())
    z = (pooled - mean) / std
    kurtosis = float((z**4).mean())
    error = std * math.sqrt(max(kurtosis - 1, 1e-9) / (4 * size))
    law, note = _shape_of(z, kurtosis)
    if len(shape) == 2 and min(shape) > 1:
        problem = _dependence([t.double().numpy() for t in tensors], zero)
        law, note = problem or (law, note)
    center = mean if abs(mean) > 5 * std / math.sqrt(size) else 0.0
    return Parameter(
        name,
        shape,
        law,
        center,
        std if center else float(np.sqrt((pooled**2).mean())),
        error,
        zero_rows=zero,
        note=note,
    )


def _constant(t: Any) -> bool:
    return bool((t == t.reshape(-1)[0]).all())


def _entries(t: Any) -> Floats:
    """Some entries of a sample, spread over it."""
    flat = t.reshape(-1)
    step = max(1, flat.numel() // SEEN)
    return np.asarray(flat[::step].double().numpy())


def _zero_rows(tensors: list[Any]) -> tuple[int, ...]:
    if tensors[0].ndim != 2:
        return ()
    zero = torch.stack([(t == 0).all(dim=1) for t in tensors]).all(dim=0)
    return tuple(int(k) for k in torch.nonzero(zero).ravel())


def _shape_of(z: Floats, kurtosis: float) -> tuple[str, str]:
    """Normal, uniform or truncated, by the fourth moment and the largest entry of standardised numbers."""
    if z.size < 64:
        return "normal", "too few entries to tell"
    off = (kurtosis - 3) / math.sqrt(24 / z.size)
    largest = float(np.abs(z).max())
    if abs(off) < 5:
        return "normal", ""
    if kurtosis < 1.9 and largest < math.sqrt(3) * 1.05:
        return "uniform", ""
    if kurtosis < 3 and largest < 4.5:
        return "truncated normal", ""
    return "unknown", f"excess kurtosis {kurtosis - 3:.2g}"


def _dependence(samples: list[Floats], zero: tuple[int, ...]) -> tuple[str, str] | None:
    """Orthogonal rows, or rows and columns of different sizes: what i.i.d. entries do not have."""
    kept = [np.delete(w, zero, axis=0) if zero else w for w in samples]
    rows, columns = kept[0].shape
    some = [w[:: max(1, rows // 256)] if rows <= columns else w[:, :: max(1, columns // 256)].T for w in kept]
    long = some[0].shape[1]
    cosines = []
    for w in some:
        gram = w @ w.T
        norms = np.sqrt(np.diagonal(gram))
        cosines.append((gram / norms / norms[:, None])[np.triu_indices(len(gram), 1)])
    spread = math.sqrt(float(np.mean(np.concatenate(cosines) ** 2)) * long)  # 1 for i.i.d. entries
    count = sum(c.size for c in cosines)
    if spread < 0.5 and count >= 3:
        return "orthogonal", ""
    if abs(spread**2 - 1) > 6 * math.sqrt(2 / count) + 6 / math.sqrt(long * count):
        return "unknown", f"rows are correlated: their cosines are {spread:.2g} times those of i.i.d. entries"
    for axis, of in ((1, "rows"), (0, "columns")):
        square = np.mean([(w**2).mean(axis=axis) for w in kept], axis=0)
        each = kept[0].shape[axis] * len(kept)
        fourth = float(np.mean([(w**4).mean() for w in kept])) / square.mean() ** 2
        z = (square / square.mean() - 1) / math.sqrt(max(fourth - 1, 1e-9) / each)
        if float((z**2).mean()) > 1 + 8 * math.sqrt(2 / z.size) + 0.2:
            return "unknown", f"{of} have different standard deviations"
    return None


def _fans(module: Module) -> Iterator[tuple[str, int | None]]:
    seen = set()
    for path, each in module.named_modules():
        for name, p in each.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            if p.ndim < 2 or "Embedding" in type(each).__name__ or id(p) in seen:
                yield full, None
            else:
                turned = type(each).__name__ == "Conv1D"  # of transformers: (in, out)
                yield full, p.shape[0] if turned else math.prod(p.shape[1:])
            seen.add(id(p))
