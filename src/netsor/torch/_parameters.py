"""The laws of the parameters of a module at initialisation, read from fresh samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from .._array_api import Floats
from .._validate import Rng, Shape, chosen_seed, whole
from ..reader._declared_laws import Declaration, check_declared, with_declared
from ..reader._laws import NOT_FINITE, Parameter, Parameters, law_of_entries
from ._fresh_modules import ModuleOrFactory, Sample, fresh, torch_seed

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
# samples that are kept of a law that is not i.i.d., and entries of each at most
KEPT_SAMPLES, KEPT_ENTRIES = 16, 2**18
# level of the test that entries of a module have the law of its initialisation
OTHER_LAW = 1e-9


def parameters(
    module: ModuleOrFactory,
    *,
    samples: int | None = None,
    seed: int = 0,
    rng: Rng = None,
    declared: Mapping[str, Declaration] | None = None,
) -> Parameters:
    """The law of every parameter of a module at initialisation, by name.

    Tied parameters count as one. The laws are read from fresh samples of the module's
    own initialisation. A factory is called several times; a module is copied and
    reinitialised by its own methods. Nothing is computed with the parameters. Standard
    deviations are those that the code gives torch (`normal_`, `uniform_`, `randn`, and
    multiples of them) if the samples agree with them; others are measured. Buffers that
    differ between the samples are parameters too.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A factory that returns a new module each time, or a module that can initialise
        itself again.
    samples : int, optional
        The number of initialisations, two or more; by default 8, and up to 512 if a
        measured parameter has few entries.
    seed : int
        The seed of torch's generator, whose state is restored afterwards.
    rng : numpy.random.Generator or int, optional
        A generator, from which a seed is drawn, or an integer, instead of `seed`.
    declared : mapping of str to float, scipy.stats distribution or Parameter, optional
        Laws of parameters, by name or pattern such as ``"*.bias"``; a number is the
        standard deviation of a Gaussian, and ``scipy.stats.uniform(-1, 2)`` a law with
        its shape. They override the samples. A copy of a parameter for which you
        declare the same number stays a copy.

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
    check_declared(declared)
    sampled = _initialisations(module, samples, chosen_seed(seed, rng))
    existing = {}
    if isinstance(module, torch.nn.Module):
        existing = dict(module.named_parameters())
    laws: dict[str, Parameter] = {}
    for name, of_parameter in sampled.samples.items():
        p = existing.get(name)
        if p is not None and not p.is_meta and not of_parameter[0].problem:
            _check_initialised(name, p, of_parameter)
        tensor = sampled.tensors[name]
        law = law_of_samples(name, tuple(tensor.shape), of_parameter)
        laws[name] = replace(law, fan_in=_fan_in(sampled.module, name, tensor))
    laws = _with_samples(_with_ties(laws, sampled.samples), sampled.samples)
    return Parameters(with_declared(laws, declared or {}), sampled.number)


def _with_samples(
    laws: Mapping[str, Parameter], by_name: Mapping[str, list[Sample]]
) -> dict[str, Parameter]:
    """The laws, in which those that are not i.i.d. keep samples."""
    with_samples = dict(laws)
    for name, law in laws.items():
        entries = [sample.entries for sample in by_name[name][:KEPT_SAMPLES]]
        is_whole = tuple(entries[0].shape) == law.shape
        is_small = entries[0].numel() <= KEPT_ENTRIES
        is_known = law.law not in ("unknown", "orthogonal") or law.note == NOT_FINITE
        if is_whole and is_small and not is_known:
            arrays = tuple(x.double().numpy() for x in entries)
            with_samples[name] = replace(law, value=arrays)
    return with_samples


def _fan_in(module: Any, name: str, tensor: Any) -> int | None:
    """The entries of the input that an entry of the output sums over."""
    owner = type(module.get_submodule(name.rpartition(".")[0])).__name__
    if tensor.ndim < 2 or "Embedding" in owner:
        return None
    if owner == "Conv1D":  # of transformers, whose matrices are (in, out)
        return int(tensor.shape[0])
    return int(math.prod(tensor.shape[1:]))


def law_of_samples(name: str, shape: Shape, samples: list[Sample]) -> Parameter:
    """The law of one parameter, from samples."""
    problem = next((sample.problem for sample in samples if sample.problem), "")
    if problem:
        law = "orthogonal" if "qr" in problem else "unknown"
        return Parameter(name, shape, law, note=f"made by {problem.replace('::', '.')}")
    result = law_of_entries(
        name,
        shape,
        samples=[sample.entries.double().numpy() for sample in samples],
        zero_rows=samples[0].zero_rows,
        in_one_step=not _measured(samples),
        drawn=samples[0].drawn,
    )
    if result.law == "fixed":
        return replace(result, value=samples[0].entries)
    return result


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
        while _too_few(by_name, count, samples):
            torch_seed(seed + count)
            instance, replay = fresh(module)
            tensors = dict(instance.named_parameters()) | _buffers(instance)
            names = list(tensors) if count == 0 else list(by_name)
            for name in names:
                sample = replay.sample(name, tensors[name])
                by_name.setdefault(name, []).append(sample)
            count += 1
            if count == 2:
                _remove_fixed_buffers(by_name, _buffers(instance))
    return Initialisations(by_name, module=instance, tensors=tensors, number=count)


def _remove_fixed_buffers(
    by_name: dict[str, list[Sample]], buffers: Mapping[str, Any]
) -> None:
    """Remove the buffers that two initialisations do not change: no parameters."""
    for name in buffers.keys() & by_name:
        earlier, later = by_name[name]
        if torch.equal(earlier.entries, later.entries):
            del by_name[name]


def _buffers(module: Any) -> dict[str, Any]:
    """The real tensors that a module keeps in buffers and other attributes, by path."""
    tensors = dict(module.named_buffers())
    for path, submodule in module.named_modules():
        for name, x in vars(submodule).items():
            if type(x) is torch.Tensor:
                tensors[f"{path}.{name}".lstrip(".")] = x
    return {
        name: x
        for name, x in tensors.items()
        if x.is_floating_point() and x.device.type != "meta" and x.numel()
    }


def _too_few(
    by_name: Mapping[str, list[Sample]], count: int, samples: int | None
) -> bool:
    """Whether more samples are needed: the number that a user wants, or enough.

    Parameters of a small module that have to be measured need many.
    """
    if samples is not None:
        return count < samples
    if count < MIN_SAMPLES:
        return True
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

    Their root mean squares are compared. If the entries were drawn independently, we
    also count those beyond all new ones, which shows more if they are few.
    """

    def root_mean_square(x: Floats) -> float:
        return float(np.sqrt(np.mean(np.square(x, dtype=float))))

    present = p.detach().float().cpu().numpy().ravel()
    new = np.concatenate([sample.entries.numpy().ravel() for sample in samples])
    present_rms = root_mean_square(present)
    new_rms = root_mean_square(new)
    # The relative error of the root mean square of n normals is √(1/2n). Eight of them
    # are exceeded by chance in none of millions of parameters.
    error = math.sqrt(1 / (2 * present.size) + 1 / (2 * new.size))
    differs = abs(present_rms - new_rms) > 8 * max([present_rms, new_rms]) * error
    if not differs and all(sample.drawn for sample in samples):
        beyond = int(np.count_nonzero(np.abs(present) > np.abs(new).max()))
        differs = _chance_of_largest(beyond, present.size, new.size) < OTHER_LAW
    if differs:
        raise ValueError(
            f"{name} has entries of root mean square {present_rms:.4g}, and"
            f" {new_rms:.4g} if it is initialised again. It was trained, or code"
            " outside its own reset changed it; pass a function that makes the module"
        )


def _chance_of_largest(count: int, present: int, new: int) -> float:
    """The probability that the `count` largest of all entries are present ones.

    There are `present` and `new` entries, in equally likely orders: it is
    Π_k (present − k) / (present + new − k), over k below the count.
    """
    taken = np.arange(count)
    return float(np.prod((present - taken) / (present + new - taken)))


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
    # (parameters, samples, entries), centred and of standard deviation 1
    standard = np.zeros((len(names), MIN_SAMPLES, COMPARED_ENTRIES))
    counts = np.zeros(len(names))
    invariants = []
    for k, name in enumerate(names):
        law = laws[name]
        samples = [sample.entries.reshape(-1) for sample in by_name[name][:MIN_SAMPLES]]
        starts = np.array([x[:COMPARED_ENTRIES].double().numpy() for x in samples])
        centred = starts - law.mean
        rows, columns = centred.shape
        standard[k, :rows, :columns] = centred / max(centred.std(), 1e-300)
        counts[k] = centred.size
        norms = np.array([_norms(x) for x in samples])
        relative_norms = norms.ravel() / norms[:, 0].sum()
        invariants.append([math.prod(law.shape), *relative_norms])
    # sums over samples and entries, for all pairs of parameters
    products = np.einsum("iab,jab->ij", standard, standard, optimize=True)
    common_entries = np.minimum.outer(counts, counts)
    return Fingerprints(
        correlations=products / np.sqrt(common_entries),
        counts=counts,
        invariants=np.array(invariants),
    )


def _norms(x: Any) -> list[float]:
    """The Euclidean norm and the largest absolute value of a tensor."""
    norm = partial(torch.linalg.vector_norm, dtype=torch.float64)
    return [float(norm(x, 2)), float(norm(x, math.inf))]


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
    fingerprints = _fingerprints(laws, by_name, names)
    result = dict(laws)
    for k, name in enumerate(names[1:], 1):
        # compared with the k parameters before it
        own_invariants = fingerprints.invariants[k]
        differences = np.abs(fingerprints.invariants[:k] - own_invariants)
        has_same_norms = (differences < 1e-5 * own_invariants).all(axis=1)
        if has_same_norms.any():
            earlier = names[int(np.argmax(has_same_norms))]
            result[name] = _same_numbers(laws[name], laws[earlier], by_name)
            continue
        closest = int(np.argmax(np.abs(fingerprints.correlations[k, :k])))
        standard_errors = fingerprints.correlations[k, closest]
        # of millions of independent pairs, none has so many standard errors
        if abs(standard_errors) > 7:
            entries = min(fingerprints.counts[k], fingerprints.counts[closest])
            r = np.clip(standard_errors / math.sqrt(entries), -1, 1)
            note = f"its correlation with {names[closest]} is {r:.2f}"
            result[name] = replace(laws[name], law="unknown", note=note)
    return result


def _same_numbers(
    law: Parameter, earlier: Parameter, by_name: Mapping[str, list[Sample]]
) -> Parameter:
    """The law of a parameter that has the numbers of an earlier one, in some order."""
    samples = by_name[law.name]
    originals = by_name[earlier.name]
    pairs = [
        (sample.entries, original.entries)
        for sample, original in zip(samples, originals, strict=True)
    ]
    if law.shape == earlier.shape and all(torch.equal(x, y) for x, y in pairs):
        return replace(law, law="copy", of=earlier.name)
    if all(x.ndim == 2 and torch.equal(x, y.T) for x, y in pairs):
        return replace(law, law="copy", of=earlier.name, transposed=True)
    note = f"its numbers are those of {earlier.name} in another order or times a factor"
    return replace(law, law="unknown", note=note)
