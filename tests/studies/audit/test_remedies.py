"""Advice is tested by applying it: where a rule is flagged, the model with the changes
of its advice is not.

A case is a model that the rule flags, of every order of norms and kind of model in
which it can be flagged.
"""

from typing import NamedTuple

import pytest

import netsor as ns
from tests.internals import AUDIT_RULES as RULES
from tests.internals import BACKWARD_RULES, FLAG, NOT_APPLICABLE, OK, LengthResult
from tests.internals import AuditDraws as Draws
from tests.internals import AuditRequest as Request

from ...keep import keep

DRAWS, SEED = 40, 3
# in which one may follow the advice again: far from a threshold quantities are not
# powers of the std
ROUNDS = 3


class Case(NamedTuple):
    """A model that a rule flags."""

    config: dict
    changes: dict
    tokens: int = 6
    rounds: int = 1


GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 40,
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "vocab_size": 40,
}
OLMO2 = {"model_type": "olmo2", **SIZES}
GEMMA2 = {"model_type": "gemma2", **SIZES, "num_key_value_heads": 2, "head_dim": 16}
QWEN3 = {"model_type": "qwen3", **SIZES, "num_key_value_heads": 2, "head_dim": 16}
T5 = {
    "model_type": "t5",
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 16,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": 40,
}
MIXTRAL = {
    "model_type": "mixtral",
    **SIZES,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
}
SMALL = {"std_embedding": 0.002, "std_position": 0.002, "eps": 1e-12}
ORDERS = ("pre", "parallel", "post", "sandwich", "after")
BEHIND = ("sandwich", "after")
COLLAPSED = {
    "std_v": 1.0,
    "std_o": 1.0,
    "std_q": 0.0,
    "causal": False,
    "std_in": 0.01,
    "std_out": 0.01,
}


def orders(changes, names=ORDERS, **how):
    return {order: Case(GPT2, {"order": order, **changes}, **how) for order in names}


CASES = {
    "growth": {
        **orders({"std": 0.4, **SMALL}),
        "pre, normalised embeddings": Case(GPT2, {"input_norm": True, "std": 3.0}),
        "pre, with biases": Case(GPT2, {"std": 0.4, "bias_out": 0.4, **SMALL}),
        "OLMo 2": Case(OLMO2, {"std_embedding": 0.005, "eps": 1e-12}),
        "Gemma 2": Case(GEMMA2, {"embedding_scale": 0.1, "eps": 1e-12}),
        "T5": Case(T5, {"std_embedding": 0.01}),
        "Mixtral": Case(MIXTRAL, {"std": 0.4, "std_embedding": 0.002}),
    },
    "branches": {
        **orders({"std_o": 0.001}),
        "post, weak MLP": Case(GPT2, {"order": "post", "std_o": 0.5, "std_out": 0.001}),
        "pre, weak MLP": Case(GPT2, {"std_o": 0.5, "std_out": 0.001}),
        "pre, no attention": Case(GPT2, {"std_o": 0.0}),
        "after, no MLP": Case(GPT2, {"order": "after", "std_out": 0.0}),
        "T5": Case(T5, {"std_out": 1e-4}),
    },
    "rank": {
        **orders({**COLLAPSED, "layers": 6}),
        "pre, normalised embeddings": Case(GPT2, {**COLLAPSED, "input_norm": True}),
        "post, normalised embeddings": Case(
            GPT2, {**COLLAPSED, "order": "post", "input_norm": True}
        ),
        "after, normalised embeddings": Case(
            GPT2,
            {**COLLAPSED, "order": "after", "input_norm": True, "layers": 16},
            tokens=16,
        ),
        "OLMo 2": Case(
            OLMO2, {**COLLAPSED, "std_q": 1e-3, "std_embedding": 0.01, "qk_norm": False}
        ),
    },
    "entropy": {
        **orders({"std_q": 1.0, "std_k": 1.0, "std_embedding": 1.0}),
        **{
            f"{order}, QK-norm": Case(
                GPT2, {"order": order, "qk_norm": True, "score_scale": 2.0}
            )
            for order in ORDERS
        },
        "Qwen 3": Case(QWEN3, {"score_scale": 2.0}),
        "T5": Case(T5, {"std_q": 2.0, "std_k": 2.0}),
        "T5, by its biases": Case(
            T5, {"std_relative": 20.0, "std_q": 0.01, "std_k": 0.01}
        ),
    },
    "loss": {
        **orders({"tied": False, "std_logits": 0.8}),
        **{
            f"{order}, tied": Case(GPT2, {"order": order, "std_embedding": 1.0})
            for order in ORDERS
        },
        "pre, tied, no last norm": Case(
            GPT2, {"std_embedding": 1.0, "final_norm": False}
        ),
        "T5": Case(T5, {"std_embedding": 40.0}),
        "Gemma 2": Case(GEMMA2, {"std_embedding": 1.0, "logit_cap": None}),
        "OLMo 2": Case(OLMO2, {"std_logits": 0.8}),
    },
    "limit": {
        "pre": Case(
            GPT2,
            {
                "width": 4,
                "heads": 1,
                "groups": 1,
                "head_dim": 2,
                "hidden": 2,
                "std": 0.5,
            },
        )
    },
    "vanishing": {
        "post": Case(GPT2, {"order": "post", "eps": 10.0, "std": 0.1}, tokens=4)
    },
    "exploding": {
        **orders({"std": 1.0, **SMALL}, tokens=4),
        "OLMo 2": Case(
            OLMO2, {"std": 1.0, "std_embedding": 0.002, "eps": 1e-12}, tokens=4
        ),
    },
    "scores": {
        **orders({"std_embedding": 0.2, "std_position": 0.2}, tokens=4, rounds=ROUNDS),
        **{
            f"{order}, QK-norm": Case(
                GPT2,
                {"order": order, "qk_norm": True, "std_q": 5.0, "std_k": 5.0},
                4,
                ROUNDS,
            )
            for order in ORDERS
        },
    },
    "dominance": {
        **orders({"std_out": 1.0, "std_in": 1e-3}, ("pre", *BEHIND), tokens=4),
        **{
            f"{order}, logits": Case(
                GPT2, {"order": order, "tied": False, "std_logits": 0.001}, 4, ROUNDS
            )
            for order in ("pre", "post")
        },
        **{
            f"{order}, embeddings": Case(
                GPT2,
                {"order": order, "std_embedding": 0.001, "std_position": 0.5},
                4,
                ROUNDS,
            )
            for order in ORDERS
        },
    },
    "load": {
        "Mixtral": Case(MIXTRAL, {"std": 0.2, "std_embedding": 0.002}, tokens=8),
        "Mixtral, one expert": Case(
            MIXTRAL,
            {"std": 0.2, "std_embedding": 0.002, "experts_per_token": 1},
            tokens=8,
        ),
    },
}
EVERY = [(rule, name) for rule, cases in CASES.items() for name in cases]
QUICK = [
    *(
        ("growth", "OLMo 2"),
        ("branches", "pre"),
        ("rank", "after"),
    ),
    *(
        ("entropy", "pre, QK-norm"),
        ("loss", "pre, tied"),
        ("limit", "pre"),
        ("vanishing", "post"),
    ),
    *(
        ("exploding", "after"),
        ("scores", "pre, QK-norm"),
        ("dominance", "pre"),
        ("load", "Mixtral"),
    ),
]


def finding(rule, model, tokens):
    gradients = rule in BACKWARD_RULES
    draws = 200 if rule == "limit" else DRAWS
    request = Request(
        (model,),
        tokens=tokens,
        draws=draws,
        widths="both" if rule == "limit" else "actual",
        gradients=gradients,
    )
    every = [
        request.subject(model, tokens, infinite)
        for infinite in ((False, True) if rule == "limit" else (False,))
    ]
    actual, *limit = (
        Draws(
            each,
            each.probes().measure(
                draws, seed=SEED, workers=1, progress=False, **each.widths
            ),
            0.0,
        )
        for each in every
    )
    return LengthResult(
        request, model, tokens, actual, limit[0] if limit else None
    ).finding(rule)


@pytest.mark.parametrize(("rule", "name"), keep(EVERY, *QUICK))
def test_advice_turns_the_flag_off(rule, name):
    case = CASES[rule][name]
    model = ns.models.read(case.config).replace(**case.changes)
    found = finding(rule, model, case.tokens)
    assert found.verdict == FLAG, found.measured
    if rule == "limit":  # there is nothing to change in the model
        request = Request(
            (model,), tokens=case.tokens, draws=DRAWS, widths="actual", gradients=False
        )
        subject = request.subject(model, case.tokens, False)
        arrays = subject.probes().measure(DRAWS, seed=SEED, workers=1, progress=False)
        read = LengthResult(
            request, model, case.tokens, Draws(subject, arrays, 0.0), None
        ).finding(rule)
        assert (read.verdict, found.changes) == (NOT_APPLICABLE, {})
        return
    measured = []
    for _ in range(case.rounds):
        assert found.changes, found.advice
        assert all(f"--set {name}=" in found.advice for name in found.changes)
        model = model.replace(**found.changes)
        found = finding(rule, model, case.tokens)
        measured.append((found.changes, found.value))
        if found.verdict != FLAG:
            break
    assert found.verdict == OK, measured


def test_every_rule_has_advice_that_is_tested():
    names = [rule.name for rule in RULES]
    assert list(CASES) == names
    assert all(rule.advice and callable(rule.remedy) for rule in RULES)
    assert {rule for rule, _ in QUICK} == set(names)


def test_rule_that_is_ok_advises_no_changes():
    found = finding("growth", ns.models.read(GPT2), 6)
    assert (found.verdict, found.changes) == (OK, {})
    assert "--set" not in found.advice
