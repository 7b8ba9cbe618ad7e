"""Tests of parameters that ranks drew in parts, and of adapters of low rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._array_api import Floats
from ..checks._findings import InitFinding, normal_score
from ..checks._parameter_tests import FEWEST, KURTOSIS, PREFIX, most_correlated
from ..reader._laws import INDEPENDENT, Parameter
from ._weights import Shards


def shard_tests(
    name: str, p: Any, law: Parameter, shards: Shards
) -> Iterator[InitFinding]:
    """The tests that shards are independent draws of one law."""
    if law.law not in INDEPENDENT or len(shards.sizes) < 2:
        return
    centred_shards = [
        shard.detach().double().cpu().numpy().ravel() - law.mean
        for shard in shards.parts(p)
    ]
    if min(shard.size for shard in centred_shards) < FEWEST:
        return
    yield _correlation_test(name, centred_shards, shards.axis)
    yield _variance_test(name, centred_shards, law)


def _correlation_test(name: str, shards: Sequence[Floats], axis: int) -> InitFinding:
    """The test that no two shards are correlated, by their first entries."""
    count = min(PREFIX, *(shard.size for shard in shards))
    pair = most_correlated(np.array([shard[:count] for shard in shards]), 0)
    relation = f"correlation {pair.correlation:.2f}"
    if abs(pair.correlation) > 0.999:
        relation = "the same numbers"
    text = (
        f"expected independent shards, found {relation} in two of {len(shards)} shards"
        f" along axis {axis}: are the seeds of ranks equal?"
    )
    return InitFinding(where=name, what="independence", p=pair.p, text=text)


def _variance_test(name: str, shards: Sequence[Floats], law: Parameter) -> InitFinding:
    """The test that all shards have one variance.

    The mean square of m entries is as that of ν = 2m/(κ − 1) normal ones, where κ is
    the kurtosis of the law. Its normal scores vary as χ² with one degree of freedom
    less than there are shards.
    """
    from scipy import stats

    mean_squares = np.array([np.mean(shard**2) for shard in shards])
    sizes = np.array([shard.size for shard in shards])
    kurtosis = KURTOSIS.get(law.law, law.kurtosis)
    degrees_of_freedom = 2 / (kurtosis - 1) * sizes
    common = float(mean_squares @ sizes) / float(sizes.sum())
    scores = np.array(
        [
            normal_score(mean_square / common, degrees)
            for mean_square, degrees in zip(
                mean_squares, degrees_of_freedom, strict=True
            )
        ]
    )
    statistic = np.sum((scores - scores.mean()) ** 2)
    stds = np.sqrt(mean_squares)
    text = (
        f"expected one std in all {len(shards)} shards, found {stds.min():.4g} to"
        f" {stds.max():.4g}"
    )
    p_value = float(stats.chi2.sf(statistic, len(shards) - 1))
    return InitFinding(where=name, what="rows", p=p_value, text=text)


# the two matrices of an adapter, by the names that libraries give them
FIRST = re.compile(
    r"(?P<start>.*\b(?:lora|dora|ada)_)(?:A|a|down|embedding_A)\b(?P<end>.*)"
)
SECOND = {"A": "B", "a": "b", "down": "up", "embedding_A": "embedding_B"}


def adapter_tests(numbers: Mapping[str, Any]) -> Iterator[InitFinding]:
    """The tests that adapters of low rank change nothing at step 0, and can learn.

    An adapter adds B A to a matrix: B must be 0, and A random.
    """
    for name_a, name_b in _adapters(numbers):
        a_is_zero = not bool(numbers[name_a].detach().any())
        b_is_zero = not bool(numbers[name_b].detach().any())
        if a_is_zero and b_is_zero:
            text = f"expected random numbers, found 0 here and in {name_b}: no gradient"
            yield InitFinding(where=name_a, what="value", p=0.0, text=text)
        std = float(numbers[name_b].detach().double().std(correction=0))
        text = (
            f"expected 0 in every entry, found std {std:.3g}: the adapter changes the"
            " model at step 0"
        )
        p = 1.0 if a_is_zero or b_is_zero else 0.0
        yield InitFinding(where=name_b, what="value", p=p, text=text)


def _adapters(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The names of both matrices of each adapter."""
    for name in numbers:
        match = FIRST.fullmatch(name)
        if match is None:
            continue
        suffix = name[match.end("start") : match.start("end")]
        partner = f"{match['start']}{SECOND[suffix]}{match['end']}"
        if partner in numbers:
            yield name, partner
