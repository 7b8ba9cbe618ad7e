"""What the checker, the printers and the errors say of layers."""

import re

import numpy as np
import pytest

import netsor as ns
from netsor import nn

n, d = ns.Width("n"), ns.Width("d")


def tokens(count=3):
    return ns.tanh(ns.gaussian(n, count))


def attention(**options):
    return nn.attention(tokens(), 2, 2 * d, **options)


VERDICTS = {
    "groups": (lambda: attention(groups=1), "proved", ""),
    "biases": (lambda: attention(sigma_b=0.5), "proved", ""),
    "softcap": (lambda: attention(softcap=2.0), "proved", ""),
    "alibi": (lambda: attention(bias=nn.alibi(2, 3), window=2), "proved", ""),
    "relative bias": (lambda: attention(bias=nn.relative_bias(2, 3)), "proved", ""),
    "multiplied": (lambda: attention(scaling=2.0), "proved", ""),
    "rotary": (
        lambda: attention(rotary=nn.Rotary()),
        "conjectured",
        "rotates pairs of coordinates",
    ),
    "norm of queries": (
        lambda: attention(qk_norm=lambda u: ns.rms_norm(u, 0.1)),
        "conjectured",
        "a mean used",
    ),
    "gate": (lambda: nn.mlp(tokens(), d, activation=ns.silu, gate=True), "proved", ""),
    "embedding": (
        lambda: nn.mlp(nn.embedding([1, 2, 1], n, position_std=0.5), d),
        "proved",
        "",
    ),
    "logits": (
        lambda: nn.logits(tokens(), 5),
        "conjectured",
        "root is not pseudo-Lipschitz",
    ),
    "shared": (
        lambda: nn.shared(lambda u: nn.attention(u, 1, d))(tokens()),
        "proved",
        "",
    ),
    "block": (
        lambda: nn.block(tokens(), ns.tanh, ns.relu).output,
        "conjectured",
        "rsqrt is not pseudo-Lipschitz",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_check_gives_the_verdict_of_a_layer(name):
    make, verdict, reason = VERDICTS[name]
    report = ns.Program(make()).check()
    assert report.verdict == verdict
    assert reason in str(report)


@pytest.mark.parametrize("name", VERDICTS)
def test_layers_are_printed(name):
    net = ns.Program(VERDICTS[name][0]())
    assert str(net).startswith("program")
    body = net.latex()
    assert body.count("{") == body.count("}")


def test_printed_programs_use_the_names_of_layers():
    text = str(
        ns.Program(nn.mlp(tokens(), d, activation=ns.silu, gate=True, sigma_gate=2.0))
    )
    assert "matrix d×n, entries N(0, 4/n)" in text
    assert "W^G" in text
    assert "z1 = N(0, 0.25)" in str(
        ns.Program(attention(bias=nn.relative_bias(2, 3, std=0.5)))
    )
    assert r"\operatorname{root}" in ns.Program(nn.logits(tokens(), 5)).latex()


ERRORS = {
    "groups": (lambda: attention(groups=3), "attention: groups=3 must divide heads=2"),
    "rotary": (
        lambda: attention(rotary=10_000.0),
        r"attention: rotary=10000.0 must be an ns\.nn\.Rotary",
    ),
    "norm": (
        lambda: attention(qk_norm=0.1),
        "attention: qk_norm=0.1 must be a function of vectors",
    ),
    "norm of scalars": (
        lambda: attention(qk_norm=lambda u: ns.mean_dot(u, u)),
        "attention: qk_norm=.* must return vectors of shape .*, got <Scalar",
    ),
    "norm of fewer": (
        lambda: attention(qk_norm=lambda u: u[0]),
        r"must return vectors of shape \(2, 3\), got <Vector of shape \(3,\)",
    ),
    "softcap": (
        lambda: attention(softcap=0),
        "attention: softcap=0 must be a finite number from 1e-50",
    ),
    "bias": (
        lambda: attention(bias=np.zeros((4, 3, 3))),
        r"attention: bias of shape \(4, 3, 3\) must broadcast",
    ),
    "bias that adds axes": (
        lambda: attention(bias=np.zeros((5, 2, 3, 3))),
        r"bias of shape \(5, 2, 3, 3\) must",
    ),
    "bias of vectors": (
        lambda: attention(bias=tokens()),
        "attention: bias=<Vector .*> must be a real number",
    ),
    "window": (
        lambda: attention(window=0),
        "attention: window=0 must be a positive integer",
    ),
    "window and mask": (
        lambda: attention(window=2, mask=np.ones(3, bool)),
        r"mask & ns\.nn\.causal\(tokens, window\)",
    ),
    "window across": (
        lambda: attention(window=2, context=tokens(4)),
        r"window=2 needs square scores",
    ),
    "option": (lambda: attention(group=2), "unexpected keyword argument 'group'"),
    "gate": (
        lambda: nn.mlp(tokens(), d, gate=ns.silu),
        "mlp: gate=.* must be True or False",
    ),
    "order": (
        lambda: nn.block(tokens(), ns.tanh, ns.relu, order="both"),
        "block: order='both' must be 'pre', 'post'",
    ),
    "branch": (
        lambda: nn.block(tokens(), 3, ns.relu),
        "block: attend=3 must be a function of vectors",
    ),
    "ids": (
        lambda: nn.embedding([1.5], n),
        r"embedding: ids=\[1.5\] must be integers, 0 or more",
    ),
    "ids below 0": (
        lambda: nn.embedding([-1], n),
        r"embedding: ids=\[-1\] must be integers, 0 or more",
    ),
    "unknown ids": (
        lambda: nn.Embedding([1, 2], n)([3]),
        r"embedding: ids=\[3\] must be among the ids",
    ),
    "positions": (
        lambda: nn.embedding([1, 2], n, positions=[0, 1]),
        "positions need position_std",
    ),
    "positions of others": (
        lambda: nn.embedding([1, 2], n, position_std=1.0, positions=[0, 1, 2]),
        r"positions of shape \(3,\) must be one for each id, of \(2,\)",
    ),
    "vocabulary": (
        lambda: nn.Embedding([1, 7], n).logits(tokens(), 7, fan_in=3),
        "logits: vocabulary=7 must be above the largest id, 7",
    ),
    "fan-in": (
        lambda: nn.Embedding([1], n).logits(tokens(), 7),
        r"fan_in=None needs a width that is a number, got R\^n",
    ),
    "buckets": (
        lambda: nn.relative_bias(2, 3, buckets=5),
        "relative_bias: buckets=5 must be 2 or more, or, if bid",
    ),
    "distance": (
        lambda: nn.relative_bias(2, 3, max_distance=8),
        "relative_bias: max_distance=8 must be an integer, 9 or more",
    ),
    "shared shape": (
        lambda: twice(nn.shared(ns.tanh)),
        r"must match the vectors of the first call, of shape \(3,\)",
    ),
    "shared number": (
        lambda: nn.shared(lambda u: 3)(tokens()),
        "layer must return a value or a tuple of values",
    ),
    "both deviations": (
        lambda: ns.weight(n, 3, std=2.0, entry_std=1.0),
        "std=2.0 and entry_std=1 say the same thing",
    ),
    "entries in the limit": (
        lambda: ns.weight(n, n, entry_std=0.02),
        r"entry_std=0.02 needs a number as in_width",
    ),
    "gain": (
        lambda: ns.rms_norm(tokens(), gain=-1),
        "rms_norm: gain=-1 must be a finite number, 0 or from",
    ),
}


def twice(layer):
    return layer(tokens()), layer(tokens(2))


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_argument(name):
    make, message = ERRORS[name]
    with pytest.raises((ns.TraceError, TypeError)) as caught:
        make()
    assert re.search(message, getattr(caught.value, "plain", str(caught.value)))
