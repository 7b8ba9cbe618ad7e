"""Tests of parameters that ranks drew in parts, and of adapters of low rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..checks._findings import InitFinding, normal_score
from ..checks._parameter_tests import FEWEST, KURTOSIS, PREFIX, most_correlated
from ..reader._laws import INDEPENDENT, Parameter
from ._weights import Shards


def shard_tests(
    name: str, p: Any, law: Parameter, shards: Shards
) -> Iterator[InitFinding]:
    """The tests that shards are independent draws of one law."""
    from scipy import stats

    if law.law not in INDEPENDENT or len(shards.sizes) < 2:
        return
    parts = [
        part.detach().double().cpu().numpy().ravel() - law.mean
        for part in shards.parts(p)
    ]
    count = min(part.size for part in parts)
    if count < FEWEST:
        return
    pair = most_correlated(np.array([part[: min(count, PREFIX)] for part in parts]), 0)
    relation = f"correlation {pair.correlation:.2f}"
    if abs(pair.correlation) > 0.999:
        relation = "the same numbers"
    text = (
        f"expected independent shards, found {relation} in two of {len(parts)} shards"
        f" along axis {shards.axis}: are the seeds of ranks equal?"
    )
    yield InitFinding(where=name, what="independence", p=pair.p, text=text)
    squares = np.array([np.mean(part**2) for part in parts])
    sizes = np.array([part.size for part in parts])
    freedom = 2 / (KURTOSIS.get(law.law, law.kurtosis) - 1) * sizes
    common = float(squares @ sizes) / float(sizes.sum())
    scores = np.array(
        [
            normal_score(square / common, degrees)
            for square, degrees in zip(squares, freedom, strict=True)
        ]
    )
    p_value = float(
        stats.chi2.sf(np.sum((scores - scores.mean()) ** 2), len(parts) - 1)
    )
    stds = np.sqrt(squares)
    text = (
        f"expected one std in all {len(parts)} shards, found {stds.min():.4g} to"
        f" {stds.max():.4g}"
    )
    yield InitFinding(where=name, what="rows", p=p_value, text=text)


# the two matrices of an adapter, by the names that libraries give them
FIRST = re.compile(
    r"(?P<start>.*\b(?:lora|dora|ada)_)(?:A|a|down|embedding_A)\b(?P<end>.*)"
)
SECOND = {"A": "B", "a": "b", "down": "up", "embedding_A": "embedding_B"}


def adapter_tests(numbers: Mapping[str, Any]) -> Iterator[InitFinding]:
    """The tests that adapters of low rank change nothing at step 0, and can learn."""
    for first, second in _adapters(numbers):
        is_zero = [not bool(numbers[name].detach().any()) for name in (first, second)]
        if all(is_zero):
            text = f"expected random numbers, found 0 here and in {second}: no gradient"
            yield InitFinding(where=first, what="value", p=0.0, text=text)
        size = float(numbers[second].detach().double().std(correction=0))
        text = (
            f"expected 0 in every entry, found std {size:.3g}: the adapter changes the"
            " model at step 0"
        )
        yield InitFinding(where=second, what="value", p=float(any(is_zero)), text=text)


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
