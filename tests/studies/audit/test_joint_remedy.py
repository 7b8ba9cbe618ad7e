"""Advice of several rules is tested by applying it together: the model is no longer
flagged.
"""

import pytest

import netsor as ns
from tests.internals import BACKWARD_RULES, FLAG

from .test_remedies import GEMMA2, GPT2

DRAWS, SEED, TOKENS = 40, 3, 6


def audited(model, gradients=False):
    return ns.audit(
        model,
        tokens=TOKENS,
        draws=DRAWS,
        seed=SEED,
        widths="actual",
        gradients=gradients,
        workers=1,
    )


def flagged(audit):
    return [finding.name for finding in audit.findings if finding.verdict == FLAG]


@pytest.mark.parametrize("config", [GPT2, GEMMA2], ids=lambda c: c["model_type"])
def test_large_stds_have_one_cause(config):
    model = ns.models.read(config).replace(std=1.0)
    audit = audited(model)
    assert len(flagged(audit)) > 1
    remedy = audit.joint_remedy
    assert list(remedy.changes) == ["std"]
    assert remedy.words.startswith("One common cause of ")
    assert "times 1/√fan-in" in remedy.words
    assert flagged(audited(model.replace(**remedy.changes))) == []


# By name: changes that several forward rules flag, although not all matrices are large
CONTRADICTIONS = {
    # smaller tied embeddings lower logits, and are a smaller part of the stream
    "growth and loss": {
        "std_v": 2.0,
        "std_o": 5.0,
        "std_in": 2.0,
        "std_out": 5.0,
        "std_embedding": 1.0,
    },
    # a smaller stream, and a larger part of the MLP in it
    "growth and branches": {"std_o": 20.0, "std_v": 2.0, "std_out": 0.02},
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_advice_of_several_rules_holds_together(name):
    model = ns.models.read(GPT2).replace(**CONTRADICTIONS[name])
    audit = audited(model)
    assert set(name.split(" and ")) <= set(flagged(audit))
    remedy = audit.joint_remedy
    for field, value in remedy.changes.items():
        assert f"--set {field}={value:.3g}" in remedy.words
    assert flagged(audited(model.replace(**remedy.changes))) == []


def test_forward_rules_come_before_gradients():
    model = ns.models.read(GPT2).replace(**CONTRADICTIONS["growth and branches"])
    audit = audited(model, gradients=True)
    assert set(flagged(audit)) & set(BACKWARD_RULES)
    assert "Then audit again, because gradients (" in audit.joint_remedy.words
    printed = " ".join(str(audit).split())
    assert audit.joint_remedy.words in printed
    assert audit.as_dict()["joint_remedy"]["changes"] == audit.joint_remedy.changes


def test_model_with_few_problems_has_no_joint_remedy():
    audit = audited(ns.models.read(GPT2))
    assert audit.joint_remedy is None
    assert audit.as_dict()["joint_remedy"] is None
