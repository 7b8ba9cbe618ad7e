"""The declared initialisation, and the tests of real numbers against it.

A `Reference` has the laws of parameters, and draws of the quantities of a pass. Each
test yields an `InitFinding` with its p-value, whether it departs or not; `check_init`
adjusts the p-values for the number of tests.
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
from ..reader._graph import UnsupportedError
from ..reader._laws import DECLARED, SEEN, Parameter, Parameters
from ..reader._network import Targets
from ..reader._structure import Place, Structure
from ..runtime._parallel import cores
from ..runtime._units import in_time
from ._fresh_modules import new_module
from ._network import read_network
from ._parameters import parameters

ATTENTION = ("query", "key", "value")
LOG = logging.getLogger("netsor")
LONG = 10.0  # seconds: draws that take longer are announced
MOST = 2**20  # entries of a parameter that are tested for their shape
FEWEST = 64  # entries whose shape is tested
FEWEST_LINES = 16  # rows and columns of a matrix that are compared with each other
PREFIX = 4096  # entries of a parameter that are compared with those of others
# for errors; of the last an upper bound
KURTOSIS = {"normal": 3.0, "uniform": 1.8, "truncated normal": 3.0}


@dataclass(frozen=True, eq=False)
class Reference:
    """A declared initialisation."""

    name: str
    probes: Probes | None  # the quantities of a pass; None if they are not known
    targets: Targets | None
    laws: Parameters | None  # by the names of parameters
    stds: dict[Place, float]  # of the entries of matrices, by their places
    tied: bool
    padding: int | None = None
    why_no_probes: str = ""

    @property
    def masks(self) -> list[Bools]:
        """Of each block, which pairs of tokens attend."""
        if self.probes is None:
            return []
        return [mask_of(block) for block in self.probes.source.net.blocks]

    @cache  # noqa: B019 (a reference lives as long as it is checked against)
    def measure(self, draws: int, seed: int) -> dict[str, Any]:
        """Draws of the quantities of a pass."""
        if self.probes is None:
            return {}
        seconds = self.probes.plan().seconds(draws) / cores()
        if seconds > LONG:
            LOG.info(
                "%d draws of the declared law take about %s", draws, in_time(seconds)
            )
        quantities = self.probes.measure(draws, seed=seed, progress=False)
        gradients = [f"grad_{kind}" for kind in ATTENTION]
        if all(name in quantities for name in gradients):
            parts = [quantities[name] for name in gradients]
            quantities["grad_qkv"] = np.sum(parts, axis=0)
        return quantities

    def law_of(
        self, name: str, shape: tuple[int, ...], net: Structure | None
    ) -> Parameter:
        """The declared law of a parameter, by its name or by its place in the network.

        It is "unknown" if there is none.
        """
        if self.laws is not None and name in self.laws:
            law = self.laws[name]
            if law.shape == shape:
                return law
        place = Place(None, "")
        if net is not None:
            place = net.places.get(name, place)
        std = self.stds.get(place)
        if std is None:
            return Parameter(name, shape, "unknown", note=DECLARED, value=0.0)
        zero_rows: tuple[int, ...] = ()
        if place == Place(None, "embedding") and self.padding is not None:
            zero_rows = (self.padding,)
        return Parameter(
            name,
            shape,
            law="normal" if std else "constant",
            std=std,
            zero_rows=zero_rows,
            note=DECLARED,
            value=0.0,
        )


def reference_of(
    declared: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Reference:
    """The reference that a user declares.

    It is a module, a function that makes one, or what `ns.models.read` takes.
    """
    is_factory = callable(declared) and not hasattr(declared, "to_dict")
    if isinstance(declared, torch.nn.Module) or is_factory:
        return _reference_module(declared, args, kwargs)
    model = declared if isinstance(declared, Transformer) else read(declared)
    sequences = [
        x.reshape(-1).tolist()
        for x in (*args, *kwargs.values())
        if isinstance(x, torch.Tensor) and not x.is_floating_point()
    ]
    inputs: dict[str, Any] = {"ids": sequences[0]}
    if model.decoder_layers and len(sequences) > 1:
        inputs["decoder_ids"] = sequences[-1]
    probes = model.probes(**inputs, gradients=not model.experts)
    assert isinstance(probes.source, ModelEnd)
    stds = _stds(probes.source.net, model.widths())
    stds[Place(None, "embedding")] = model.std_embedding
    if not model.tied:
        stds[Place(None, "head")] = model.std_logits
    targets = None
    if model.vocabulary:
        targets = Targets.of_first_rows(probes.source.targets)
    is_batch = has_batch(args, kwargs)
    return Reference(
        model.name,
        None if is_batch else probes,
        targets=targets,
        laws=None,
        stds=stds,
        tied=model.tied,
        padding=model.padding,
        why_no_probes=OF_ONE_SEQUENCE if is_batch else "",
    )


OF_ONE_SEQUENCE = (
    "a configuration describes the pass of one sequence: for a batch, or padding, the"
    " reference is a function that makes a module"
)


def has_batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the inputs are several sequences, or one with padding."""
    for x in (*args, *kwargs.values()):
        if not isinstance(x, torch.Tensor) or x.is_floating_point() or x.ndim < 2:
            continue
        is_mask = bool(((x == 0) | (x == 1)).all()) and bool((x == 0).any())
        if x.shape[0] > 1 or is_mask:
            return True
    return False


def _reference_module(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Reference:
    """The reference of a module; without a pass, if its pass cannot be read."""
    laws = parameters(module)
    try:
        net = read_network(module, args, kwargs, laws)
    except UnsupportedError as error:
        return Reference(
            type(new_module(module)).__name__,
            probes=None,
            targets=None,
            laws=laws,
            stds={},
            tied=False,
            why_no_probes=str(error),
        )
    model = ProgramModel(net.program, {})
    try:
        probes = model.probes(gradients=True)
        probes.names  # noqa: B018 (gradients are refused here)
    except ValueError:
        probes = model.probes()
    head, words = net.structure.head, net.structure.words
    table = words.table if words else None
    stds = _stds(model.net, {})
    for kind, name in (("embedding", table), ("head", head)):
        if name is not None and name in laws and laws[name].random:
            stds[Place(None, kind)] = laws[name].std
    return Reference(
        net.program.name,
        probes,
        targets=net.targets,
        laws=laws,
        stds=stds,
        tied=head is not None and head == table,
    )


def _stds(net: ProbedProgram, widths: Mapping[str, float]) -> dict[Place, float]:
    """The standard deviations of the entries of the matrices of each block.

    Kinds whose matrices have different ones are left out.
    """
    stds: dict[Place, float] = {}
    for k, kinds in enumerate(net.matrices):
        for kind, values in kinds.items():
            weights = [value.op.weight for value in values]  # type: ignore[attr-defined]
            distinct = {
                round(w.std / math.sqrt(w.fan.bind(widths)), 12) for w in weights
            }
            if len(distinct) == 1:
                stds[Place(k, kind)] = distinct.pop()
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
    """Mean, standard deviation, shape and rows of one parameter.

    `samples` is the number of initialisations that its law was read from.
    """
    if not law.random:
        yield _test_of_numbers(name, p, law)
        return
    if law.law not in SEEN:
        return
    x = p.detach().double().cpu().numpy()
    if law.zero_rows:
        x = np.delete(x, law.zero_rows, axis=0)
    if not np.isfinite(x).all():
        text = "expected finite entries, found NaN or infinity"
        yield InitFinding(name, "value", 0.0, text)
        return
    mean, std = float(x.mean()), float(np.sqrt(np.mean((x - x.mean()) ** 2)))
    yield from _tests_of_moments(name, law, mean, std, size=x.size, samples=samples)
    if std == 0:
        return
    standard = (x - mean) / std
    if law.note != DECLARED and x.size >= FEWEST:
        yield from _tests_of_shape(name, law, standard, samples)
    if x.ndim == 2 and min(x.shape) >= FEWEST_LINES:
        yield _test_of_lines(name, law, standard, axis=1, lines="rows")
        yield _test_of_lines(name, law, standard, axis=0, lines="columns")


def _test_of_numbers(name: str, p: Any, law: Parameter) -> InitFinding:
    """The comparison of a parameter with the numbers that it should have."""
    if law.law == "constant":
        expected = p.new_tensor(law.value).expand(p.shape)
        description = f"{law.value:g} in every entry"
    else:
        expected = law.value.to(p)
        description = "the same numbers in every sample"
    is_same = bool((p.detach() == expected).all())
    numbers = p.detach().double()
    mean, std = float(numbers.mean()), float(numbers.std(correction=0))
    text = f"expected {description}, found mean {mean:.3g} and std {std:.3g}"
    return InitFinding(name, "value", 1.0 if is_same else 0.0, text)


def _freedom(law: Parameter) -> float:
    """The degrees of freedom of the χ² that each squared entry counts for."""
    return 2 / (KURTOSIS[law.law] - 1)


def _tests_of_moments(
    name: str, law: Parameter, mean: float, std: float, *, size: int, samples: int
) -> Iterator[InitFinding]:
    """The tests of the standard deviation and of the mean of `size` entries."""
    # the variance of a mean of standardised entries; a measured law has an error too
    variance = 1 / size
    if law.std_error:
        variance += 1 / (max(samples, 1) * size)
    ratio = std / law.std
    score = _normal_score(ratio**2, _freedom(law) * size)
    p = _two_sided(score / math.sqrt(variance * size))
    text = f"expected {law.std:.4g}, found {std:.4g}, {ratio:.3g} times as large"
    yield InitFinding(name, "std", p, text)
    p = _two_sided((mean - law.mean) / (law.std * math.sqrt(variance)))
    yield InitFinding(name, "mean", p, f"expected {law.mean:.3g}, found {mean:.3g}")


def _tests_of_shape(
    name: str, law: Parameter, standard: Floats, samples: int
) -> Iterator[InitFinding]:
    """The tests of the distribution of standardised entries, and of its tails."""
    from scipy import stats

    entries = standard.ravel()[:: max(1, standard.size // MOST)]
    kurtosis = float(np.mean(entries**4))
    text = (
        f"expected {law.law} entries, of kurtosis {law.kurtosis:.3g}, found kurtosis"
        f" {kurtosis:.3g}"
    )
    test = stats.kstest(entries, _distribution(law), method="asymp")
    yield InitFinding(name, "shape", float(test.pvalue), text)
    if law.law == "normal":
        p = float(stats.kurtosistest(entries).pvalue)
    else:  # of bounded entries 24/n is more than the variance
        variance = 24 / entries.size * (1 + 1 / samples)
        p = _two_sided((kurtosis - law.kurtosis) / math.sqrt(variance))
    yield InitFinding(name, "tails", p, text)


def _test_of_lines(
    name: str, law: Parameter, standard: Floats, *, axis: int, lines: str
) -> InitFinding:
    """The test that rows (axis 1), or columns (0), have one standard deviation."""
    from scipy import stats

    freedom = _freedom(law) * standard.shape[axis]
    scores = _normal_score(np.mean(standard**2, axis=axis), freedom)
    spread = float(np.std(scores)) * math.sqrt(2 / freedom) / 2
    chi2 = float(np.sum((scores - scores.mean()) ** 2))
    p = float(stats.chi2.sf(chi2, scores.size - 1))
    text = f"expected {lines} of one std, found stds that vary by {100 * spread:.2g} %"
    return InitFinding(name, lines, p, text)


def _two_sided(z: float) -> float:
    """The p-value of a standard normal."""
    return math.erfc(abs(z) / math.sqrt(2))


def _normal_score(mean_square: Any, freedom: float) -> Any:
    """A χ² over its degrees of freedom, as a nearly standard normal number.

    It is the cube root of Wilson and Hilferty.
    """
    variance = 2 / (9 * freedom)
    return (mean_square ** (1 / 3) - 1 + variance) / math.sqrt(variance)


def _distribution(law: Parameter) -> Any:
    """The distribution function of standardised entries.

    The kurtosis of a truncated normal determines its cut.
    """
    from scipy import optimize, stats

    if law.law == "uniform":
        return stats.uniform(-math.sqrt(3), 2 * math.sqrt(3)).cdf
    if law.law == "normal" or not 1.85 < law.kurtosis < 2.99:
        return stats.norm.cdf

    def excess(cut: float) -> float:
        kurtosis = float(stats.truncnorm(-cut, cut).stats(moments="k")) + 3
        return kurtosis - law.kurtosis

    cut = optimize.brentq(excess, 0.3, 5.0)
    return stats.truncnorm(-cut, cut, scale=1 / stats.truncnorm.std(-cut, cut)).cdf


def correlation_tests(
    numbers: Mapping[str, Any], expected: Mapping[str, Parameter]
) -> Iterator[InitFinding]:
    """Correlations of parameters that are independent by their laws.

    There is one test for each parameter, of all its pairs with earlier ones.
    """
    names = [
        name for name in numbers if name in expected and expected[name].law in SEEN
    ]
    # others are found by themselves
    names = [name for name in names if bool(torch.isfinite(numbers[name]).all())]
    if len(names) < 2:
        return
    rows = np.zeros((len(names), PREFIX))
    counts = np.zeros(len(names))
    for k, name in enumerate(names):
        x = numbers[name].detach().reshape(-1)[:PREFIX].double().cpu().numpy()
        x = x - expected[name].mean
        rows[k, : x.size] = x / max(math.sqrt(float(np.mean(x**2))), 1e-300)
        counts[k] = x.size
    products = rows @ rows.T
    z = products / np.sqrt(np.minimum.outer(counts, counts))
    # too few entries for a normal law of the product
    z[counts[:, None] * counts < 64 * 64] = 0.0
    for k in range(1, len(names)):
        other = int(np.argmax(np.abs(z[k, :k])))
        r = float(products[k, other] / min(counts[k], counts[other]))
        p = min(1.0, k * _two_sided(z[k, other]))  # of k pairs
        relation = "the same numbers" if abs(r) > 0.999 else f"correlation {r:.2f}"
        text = f"expected draws independent of {names[other]}, found {relation}"
        yield InitFinding(names[k], "independence", p, text)


def pass_tests(
    real: Mapping[tuple[str, int], float], law: Mapping[tuple[str, int], Floats]
) -> list[float]:
    """Adjusted p-values of quantities of one pass among draws of their joint law.

    They are in the order of `real`.
    """
    # The largest deviation of a draw has a law that knows how quantities depend on each
    # other, and the p-value of a quantity is how often that exceeds its deviation
    # (Westfall and Young 1993): its rank among the draws, and beyond their largest
    # tenth an exponential tail.
    deviations = _deviations(real, law)
    of_draws = np.sort(deviations[:, :-1].max(axis=0))
    of_pass = deviations[:, -1]
    start = float(np.quantile(of_draws, 0.9))
    beyond = of_draws[of_draws > start]
    slope = float(np.mean(beyond - start)) if beyond.size else 1e-3
    larger = np.sum(of_draws >= of_pass[:, None], axis=1)
    rank = (larger + 1) / (len(of_draws) + 1)
    tail = 0.1 * np.exp(-(of_pass - start) / max(slope, 1e-3))
    p_values = np.where(of_pass <= start, rank, np.minimum(rank, tail))
    return [float(p) for p in p_values]


def _deviations(
    real: Mapping[tuple[str, int], float], law: Mapping[tuple[str, int], Floats]
) -> Floats:
    """The absolute deviations of quantities in standard deviations of their draws.

    The result is (quantities, draws and pass); the pass is the last column. Quantities
    above 0 are compared by their logarithms.
    """
    x = np.array([[*law[key], value] for key, value in real.items()])
    positive = x > 0
    all_positive = positive.all(axis=1, keepdims=True)
    x = np.where(all_positive, np.log(np.where(positive, x, 1.0)), x)
    draws = x[:, :-1]
    centre = draws.mean(axis=1, keepdims=True)
    spread = draws.std(axis=1, keepdims=True)
    draws_positive = positive[:, :-1].all(axis=1, keepdims=True)
    size = np.where(draws_positive | (centre == 0), 1.0, np.abs(centre))
    rounding = 1e-3 * size
    deviations = np.abs(x - centre) / np.hypot(spread, rounding)
    return np.where(np.isfinite(x), deviations, np.inf)
