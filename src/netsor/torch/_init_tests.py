"""The declared initialisation, and tests of real parameters and of a real pass against
it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from .._array_api import Bools, Floats
from ..models import Transformer, read
from ..models.measure._loss_gradient import ModelEnd
from ..models.measure._metric_program import Probes, ProgramModel
from ..models.measure._probed_program import ProbedProgram, mask_of
from ..runtime._parallel import cores
from ..runtime._units import in_time
from ._laws import GAUSSIAN, Parameter, Parameters
from ._network import read_network
from ._parameters import parameters
from ._structure import Place, Structure

ATTENTION = ("query", "key", "value")
LOG = logging.getLogger("netsor")
LONG = 10.0  # seconds: draws that take longer are announced
MOST = 2**20  # entries of a parameter that are tested for their shape
PREFIX = 4096  # entries of a parameter that are compared with those of others
# for errors; of the last an upper bound
KURTOSIS = {"normal": 3.0, "uniform": 1.8, "truncated normal": 3.0}


@dataclass(frozen=True, eq=False)
class Reference:
    """A declared initialisation."""

    name: str
    probes: Probes
    targets: tuple[int, ...] | None
    laws: Parameters | None  # by the names of parameters
    stds: dict[Place, float]  # of the entries of matrices, by their places
    tied: bool
    padding: int | None = None

    @property
    def masks(self) -> list[Bools]:
        """Of each block, which pairs of tokens attend."""
        return [mask_of(block) for block in self.probes.source.net.blocks]

    @cache  # noqa: B019 (a reference lives as long as it is checked against)
    def measure(self, draws: int, seed: int) -> dict[str, Any]:
        """Draws of the quantities of a pass."""
        seconds = self.probes.plan().seconds(draws) / cores()
        if seconds > LONG:
            LOG.info(
                "%d draws of the declared law take about %s", draws, in_time(seconds)
            )
        found = self.probes.measure(draws, seed=seed, progress=False)
        if all(f"grad_{kind}" in found for kind in ATTENTION):
            found["grad_qkv"] = np.sum(
                [found[f"grad_{kind}"] for kind in ATTENTION], axis=0
            )
        return found

    def law_of(
        self, name: str, shape: tuple[int, ...], net: Structure | None
    ) -> Parameter:
        """The declared law of a parameter, by its name or by its place in the network;
        "unknown" without one.
        """
        if (
            self.laws is not None
            and name in self.laws
            and self.laws[name].shape == shape
        ):
            return self.laws[name]
        place = Place(None, "")
        if net is not None:
            place = net.places.get(name, place)
        std = self.stds.get(place)
        law = "unknown" if std is None else "normal" if std else "constant"
        padded = place == (None, "embedding") and self.padding is not None
        zero: Any = (self.padding,) if padded else ()
        return Parameter(
            name, shape, law, std=std or 0.0, zero_rows=zero, note="declared", value=0.0
        )


def reference_of(
    declared: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Reference:
    """A reference: a module or a function that makes one, or what `ns.models.read`
    takes.
    """
    if isinstance(declared, torch.nn.Module) or (
        callable(declared) and not hasattr(declared, "to_dict")
    ):
        return _reference_module(declared, args, kwargs)
    model = declared if isinstance(declared, Transformer) else read(declared)
    tensors = [
        x
        for x in (*args, *kwargs.values())
        if isinstance(x, torch.Tensor) and not x.is_floating_point()
    ]
    given: dict[str, Any] = {"ids": tensors[0].reshape(-1).tolist()}
    if model.decoder_layers and len(tensors) > 1:
        given["decoder_ids"] = tensors[-1].reshape(-1).tolist()
    probes = model.probes(**given, gradients=not model.experts)
    assert isinstance(probes.source, ModelEnd)
    net = probes.source.net
    stds = _stds(net, model.widths())
    stds[Place(None, "embedding")] = model.std_embedding
    if not model.tied:
        stds[Place(None, "head")] = model.std_logits
    targets = probes.source.targets if model.vocabulary else None
    return Reference(model.name, probes, targets, None, stds, model.tied, model.padding)


def _reference_module(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Reference:
    laws = parameters(module)
    net = read_network(module, args, kwargs, laws)
    model = ProgramModel(net.program, {})
    try:
        probes = model.probes(gradients=True)
        probes.names  # noqa: B018 (gradients are refused here)
    except ValueError:
        probes = model.probes()
    words = net.structure.words
    ends: dict[str, Any] = {
        "embedding": words.table if words else None,
        "head": net.structure.head,
    }
    stds = _stds(model.net, {})
    stds |= {
        Place(None, kind): laws[name].std
        for kind, name in ends.items()
        if name in laws and laws[name].random
    }
    tied = ends["head"] is not None and ends["head"] == ends["embedding"]
    return Reference(net.program.name, probes, net.targets, laws, stds, tied)


def _stds(net: ProbedProgram, widths: Mapping[str, float]) -> dict[Place, float]:
    """The standard deviation of the entries of the matrices of each block, where they
    have one.
    """
    stds: dict[Place, float] = {}
    for k, kinds in enumerate(net.matrices):
        for kind, values in kinds.items():
            weights = [value.op.weight for value in values]  # type: ignore[attr-defined]
            every = {round(w.std / math.sqrt(w.fan.bind(widths)), 12) for w in weights}
            stds |= {Place(k, kind): every.pop()} if len(every) == 1 else {}
        fused = {stds.get(Place(k, kind)) for kind in ATTENTION}
        if len(fused) == 1 and None not in fused:
            stds.setdefault(Place(k, "qkv"), fused.pop() or 0.0)
    return stds


@dataclass(frozen=True)
class InitFinding:
    """A departure from the declared initialisation.

    Attributes
    ----------
    where : str
        The path of the parameter or module.
    what : str
        "std", "mean", "shape", "tails", "rows", "columns", "value", "tie",
        "independence", "mask", "finite", or a quantity of a pass, such as "entropy" or
        "grad_query".
    p : float
        Its p-value, adjusted for the number of tests.
    text : str
        What was found, in words.

    Examples
    --------
    >>> check = ns.torch.check_init(build, ids)  # doctest: +SKIP
    >>> check.findings[0].where  # doctest: +SKIP
    'model.layers.3.self_attn.o_proj.weight'
    """

    where: str
    what: str
    p: float
    text: str


def holm(p: Sequence[float]) -> Floats:
    """p-values adjusted for their number by Holm's method."""
    order = np.argsort(p)
    steps = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def parameter_tests(
    name: str, p: Any, law: Parameter, samples: int
) -> Iterator[InitFinding]:
    """Mean, standard deviation, shape and rows of one parameter; `samples`
    initialisations gave its law.
    """
    from scipy import stats

    if not law.random:
        want = (
            p.new_tensor(law.value).expand(p.shape)
            if law.law == "constant"
            else law.value.to(p)
        )
        same = bool((p.detach() == want).all())
        numbers = p.detach().double()
        said = (
            f"{law.value:g} in every entry"
            if law.law == "constant"
            else "the same numbers in every sample"
        )
        mean, std = float(numbers.mean()), float(numbers.std(correction=0))
        text = f"expected {said}, found mean {mean:.3g} and std {std:.3g}"
        yield InitFinding(name, "value", 1.0 if same else 0.0, text)
        return
    if law.law not in GAUSSIAN:
        return
    x = p.detach().double().cpu().numpy()
    x = np.delete(x, law.zero_rows, axis=0) if law.zero_rows else x
    n, drawn = x.size, max(samples, 1) * x.size
    if not np.isfinite(x).all():
        yield InitFinding(
            name, "value", 0.0, "expected finite entries, found NaN or infinity"
        )
        return
    mean, std = float(x.mean()), float(np.sqrt(np.mean((x - x.mean()) ** 2)))
    # a law that was measured has an error too
    known = 1 / n + (1 / drawn if law.std_error else 0.0)
    # of the χ² that each squared entry counts for
    freedom, ratio = 2 / (KURTOSIS[law.law] - 1), std / law.std
    p = _two_sided(_normal_score(ratio**2, freedom * n) / math.sqrt(known * n))
    text = f"expected {law.std:.4g}, found {std:.4g}, {ratio:.3g} times as large"
    yield InitFinding(name, "std", p, text)
    p = _two_sided((mean - law.mean) / (law.std * math.sqrt(known)))
    yield InitFinding(name, "mean", p, f"expected {law.mean:.3g}, found {mean:.3g}")
    if std == 0:
        return
    standard = (x - mean) / std
    if law.note != "declared" and n >= 64:
        some = standard.ravel()[:: max(1, n // MOST)]
        fourth = float(np.mean(some**4))
        text = (
            f"expected {law.law} entries, of kurtosis {law.kurtosis:.3g}, found"
            f" kurtosis {fourth:.3g}"
        )
        yield InitFinding(
            name,
            "shape",
            float(stats.kstest(some, _distribution(law), method="asymp").pvalue),
            text,
        )
        if law.law == "normal":
            tails = float(stats.kurtosistest(some).pvalue)
        else:  # of bounded entries 24/n is more than the variance
            tails = _two_sided(
                (fourth - law.kurtosis) / math.sqrt(24 / some.size * (1 + 1 / samples))
            )
        yield InitFinding(name, "tails", tails, text)
    if x.ndim == 2 and min(x.shape) >= 16:
        for axis, of in ((1, "rows"), (0, "columns")):
            each = freedom * x.shape[axis]
            w = _normal_score(np.mean(standard**2, axis=axis), each)
            spread = float(np.std(w)) * math.sqrt(2 / each) / 2
            text = (
                f"expected {of} of one std, found stds that vary by"
                f" {100 * spread:.2g} %"
            )
            yield InitFinding(
                name,
                of,
                float(stats.chi2.sf(float(np.sum((w - w.mean()) ** 2)), w.size - 1)),
                text,
            )


def _two_sided(z: float) -> float:
    """The p-value of a standard normal."""
    return math.erfc(abs(z) / math.sqrt(2))


def _normal_score(mean_square: Any, freedom: float) -> Any:
    """A χ² over its degrees of freedom, as a nearly standard normal number: its cube
    root (Wilson and Hilferty).
    """
    return (mean_square ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(
        2 / (9 * freedom)
    )


def _distribution(law: Parameter) -> Any:
    """The distribution function of standardised entries; the kurtosis of a truncated
    normal determines its cut.
    """
    from scipy import optimize, stats

    if law.law == "uniform":
        return stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)).cdf
    if law.law == "normal" or not 1.85 < law.kurtosis < 2.99:
        return stats.norm.cdf
    cut = optimize.brentq(
        lambda c: float(stats.truncnorm(-c, c).stats(moments="k")) + 3 - law.kurtosis,
        0.3,
        5.0,
    )
    return stats.truncnorm(-cut, cut, scale=1 / stats.truncnorm.std(-cut, cut)).cdf


def correlation_tests(
    numbers: Mapping[str, Any], expected: Mapping[str, Parameter]
) -> Iterator[InitFinding]:
    """Correlations of parameters that are independent by their laws: one test of all
    pairs for each parameter.
    """
    names = [
        name for name in numbers if name in expected and expected[name].law in GAUSSIAN
    ]
    # others are found by themselves
    names = [name for name in names if bool(torch.isfinite(numbers[name]).all())]
    if len(names) < 2:
        return
    rows, counts = np.zeros((len(names), PREFIX)), np.zeros(len(names))
    for k, name in enumerate(names):
        x = numbers[name].detach().reshape(-1)[:PREFIX].double().cpu().numpy()
        x = x - expected[name].mean
        rows[k, : x.size], counts[k] = (
            x / max(math.sqrt(float(np.mean(x**2))), 1e-300),
            x.size,
        )
    products = rows @ rows.T
    z = products / np.sqrt(np.minimum.outer(counts, counts))
    # too few entries for a normal law of the product
    z[counts[:, None] * counts < 64 * 64] = 0.0
    for k in range(1, len(names)):
        other = int(np.argmax(np.abs(z[k, :k])))
        r = float(products[k, other] / min(counts[k], counts[other]))
        p = min(1.0, k * _two_sided(z[k, other]))  # of k pairs
        same = "the same numbers" if abs(r) > 0.999 else f"correlation {r:.2f}"
        yield InitFinding(
            names[k],
            "independence",
            p,
            f"expected draws independent of {names[other]}, found {same}",
        )


def pass_tests(
    real: Mapping[tuple[str, int], float], law: Mapping[tuple[str, int], Floats]
) -> list[float]:
    """Adjusted p-values of quantities of one pass among draws of their joint law, in
    the order of `real`.
    """
    # All quantities are standardised by mean and standard deviation of draws and pass
    # together, those above 0 by logarithms. The largest deviation of a draw then has a
    # law that knows how quantities depend on each other, and the p-value of a quantity
    # is how often that exceeds its deviation (Westfall and Young 1993): its rank among
    # the draws, and beyond their largest tenth an exponential tail. (quantities, draws
    # and pass)
    x = np.array([[*law[key], value] for key, value in real.items()])
    positive = x > 0
    x = np.where(
        positive.all(axis=1, keepdims=True), np.log(np.where(positive, x, 1.0)), x
    )
    centre, spread = (
        x[:, :-1].mean(axis=1, keepdims=True),
        x[:, :-1].std(axis=1, keepdims=True),
    )
    size = np.where(
        positive[:, :-1].all(axis=1, keepdims=True) | (centre == 0), 1.0, np.abs(centre)
    )
    z = np.abs(x - centre) / np.hypot(spread, 1e-3 * size)  # of rounding
    z = np.where(np.isfinite(x), z, np.inf)
    largest, own = np.sort(z[:, :-1].max(axis=0)), z[:, -1]
    start = float(np.quantile(largest, 0.9))
    slope = (
        float(np.mean(largest[largest > start] - start))
        if (largest > start).any()
        else 1e-3
    )
    rank = (np.sum(largest >= own[:, None], axis=1) + 1) / (len(largest) + 1)
    tail = 0.1 * np.exp(-(own - start) / max(slope, 1e-3))
    return [float(p) for p in np.where(own <= start, rank, np.minimum(rank, tail))]
