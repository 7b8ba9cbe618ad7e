"""GPT-2's verdicts at several lengths against those of real initialisations, by hooks
and numpy.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from netsor import models
from tests.internals import AUDIT_RULES as RULES
from tests.internals import DOCUMENT_UNDECIDED as UNDECIDED
from tests.internals import FLAG, OK, RuleInput, all_findings

from .test_audit import real

GPT2 = {"model_type": "gpt2"}  # as transformers makes it: 12 blocks of width 768
FORWARD = ("growth", "branches", "rank", "entropy", "loss")
LEVEL = 1e-4
LOOKED_AT = (
    ("mean_square", 11),
    ("attention_share", 0),
    ("mlp_share", 0),
    ("effective_rank", 11),
    ("entropy", 0),
)


def facts(draws: dict[str, np.ndarray], tokens: int) -> RuleInput:
    return RuleInput(draws, "not computed", tokens, math.log(50257), ((0, 11),), tokens)


def of_blocks(found: dict) -> dict[str, np.ndarray]:
    """Arrays (draws, blocks) of those by quantity and block."""
    names = dict.fromkeys(key[0] for key in found if isinstance(key, tuple))
    made = {
        name: np.stack([found[name, i] for i in range(12)], axis=1) for name in names
    }
    return made | {key: value for key, value in found.items() if isinstance(key, str)}


def sides(draws: dict[str, np.ndarray], tokens: int) -> dict[str, tuple[str, float]]:
    """Of each rule, on which side of its threshold the median is, and the median."""
    found = {f.name: f for f in all_findings(facts(draws, tokens)) if f.name in FORWARD}
    return {
        name: (FLAG if (f.value > f.threshold) == f.above else OK, f.value)
        for name, f in found.items()
    }


@pytest.mark.parametrize(("tokens", "count"), [(16, 16), (128, 16), (1024, 2)])
def test_audit_verdicts_at_several_lengths_match_real_initialisations(tokens, count):
    """Medians of real models are on the side of each threshold that ours say.

    16 draws decide by intervals of level 1e-4, or leave open what is near its
    threshold, as the rank of 128 tokens; and what the rules look at has one law in 16
    of ours and 8 real ones (Kolmogorov–Smirnov, level 1e-4 each). Of the longest, which
    take minutes, there are 2.
    """
    ours = (
        models.read("gpt2").probes(tokens=tokens).measure(count, seed=2, progress=False)
    )
    theirs = of_blocks(real("gpt2", GPT2, range(tokens), max(2, count // 2)))
    here, there = sides(ours, tokens), sides(theirs, tokens)
    print(
        tokens,
        {name: (round(here[name][1], 4), round(there[name][1], 4)) for name in FORWARD},
    )
    assert list(here) == [rule.name for rule in RULES if rule.name in FORWARD]
    assert {name: side for name, (side, _) in here.items()} == {
        name: side for name, (side, _) in there.items()
    }
    assert here["branches"][0] == (OK if tokens == 16 else FLAG)
    if count > 2:
        decided = {
            f.name: f.verdict
            for f in all_findings(facts(ours, tokens))
            if f.name in FORWARD
        }
        assert all(
            decided[name] in (side, UNDECIDED) for name, (side, _) in here.items()
        )
        assert decided["branches"] == here["branches"][0]
        p = {
            name: float(stats.ks_2samp(ours[name][:, i], theirs[name][:, i]).pvalue)
            for name, i in LOOKED_AT
        }
        print({name: round(value, 4) for name, value in p.items()})
        assert min(p.values()) > LEVEL, p
