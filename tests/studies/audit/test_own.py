"""Audits of programs: what they name is what is measured, with the law of the same
network in plain numpy.
"""

import importlib
import json
from functools import partial

import numpy as np
import pytest
from scipy import special, stats

import netsor as ns
from tests.internals import Finding, ProgramModel, _cases, _precision, within_error

from ...keep import keep
from ...models.backprop import drawn_gradients
from ...models.small import CONFIGS, inputs
from ...models.test_gradients import IDS, TINY
from .own import NETWORKS

LEVEL = 1e-4  # of each test: divided by the numbers that are compared
n = ns.Width("n")


def program(name):
    return importlib.import_module(f"examples.audit_{name}").net()


@pytest.mark.parametrize("name", keep(NETWORKS, "experts"))
def test_example_has_the_law_of_the_same_network_in_numpy(name):
    width, rng = 16, np.random.default_rng(5)
    plain = [NETWORKS[name](rng, width) for _ in range(200)]
    found = (
        ProgramModel(program(name), {"n": width})
        .probes()
        .measure(1000, seed=1, workers=1, progress=False)
    )
    assert set(found) == set(plain[0])
    compared = {}
    for quantity, ours in found.items():
        theirs = np.array([row[quantity] for row in plain])
        for block in np.ndindex(ours.shape[1:]):
            compared[quantity, *block] = stats.ks_2samp(
                theirs[:, *block], ours[:, *block]
            ).pvalue
    assert len(compared) > 15
    assert min(compared.values()) > LEVEL / len(compared), min(
        compared, key=compared.get
    )


def agree(ours, theirs):
    """Kolmogorov–Smirnov of every number, LEVEL for all of them together."""
    found = {
        (name, block): stats.ks_2samp(a, b, method="asymp").pvalue
        for name in theirs
        for block, (a, b) in enumerate(
            zip(
                np.atleast_2d(ours[name].T),
                np.atleast_2d(np.array(theirs[name]).T),
                strict=True,
            )
        )
    }
    assert min(found.values()) > LEVEL / len(found), found


@ns.program
def gpt2(tied):
    """The network of `TINY`, written out; its loss is that of the next token."""
    table, norm = ns.nn.Embedding(IDS, n, 0.5), partial(ns.layer_norm, eps=1e-2)
    position = ns.nn.Embedding(np.arange(len(IDS)), n, 0.3, name="position")
    x, root = ns.probe("embedding", table(IDS) + position()), 8**0.5
    for _ in range(2):
        sigmas = {
            "sigma_q": 0.7 * root,
            "sigma_k": 0.7 * root,
            "sigma_v": 0.5 * root,
            "sigma_o": 0.5 * root,
        }
        made = ns.nn.attend(norm(x), 2, 4, "causal", **sigmas)
        x = x + made.output
        x = x + ns.nn.mlp(
            norm(x), 12, n, ns.gelu_tanh, sigma_w=0.5 * root, sigma_out=0.5 * 12**0.5
        )
        ns.probe("stream", x)
    y = norm(x)
    p = table.logits(y, 11, fan_in=8) if tied else ns.nn.logits(y, 11, sigma=0.6 * root)
    mass = ns.apply(np.exp, p[:-1], derivative=np.exp).sum(axis=1)
    own = p[np.arange(len(IDS) - 1), np.array(IDS[1:])]
    ns.probe("loss", (ns.apply(np.log, mass, derivative=np.reciprocal) - own).mean())
    return ns.probe("logits", p)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.slow
def test_gradients_of_a_program_are_those_of_the_same_network(tied):
    """Drawn literally in numpy, every matrix and every row of the embedding; and by the
    description of the network.
    """
    model = ns.models.Transformer(
        name="gpt2", **(TINY | {"activation": "gelu_tanh", "tied": tied})
    )
    audit = ns.audit(
        gpt2(tied),
        n=8,
        draws=300,
        gradients=True,
        widths="actual",
        workers=1,
        progress=False,
    )
    rng = np.random.default_rng(0)
    plain = [drawn_gradients(model, IDS, rng) for _ in range(300)]
    agree(audit.actual, {name: [row[name] for row in plain] for name in plain[0]})
    described = model.probes(ids=IDS, gradients=True).measure(
        300, seed=4, workers=1, progress=False
    )
    gradients = {
        name: draws for name, draws in described.items() if name.startswith("grad")
    }
    assert gradients.keys() == {
        name for name in audit.actual if name.startswith("grad")
    }
    agree(audit.actual, gradients)
    assert "gradient², query" in audit.table(verbose=True)


def test_gradients_of_the_mean_loss_over_words():
    """Of matrices that are named, and of one that is known by its widths; every matrix
    drawn in numpy.
    """
    tokens, words, size = 3, 5, 6

    @ns.program
    def net():
        x = ns.probe("embedding", ns.gaussian(size, tokens))
        h = ns.tanh(ns.weight(2 * size, size) @ x)
        y = ns.probe("stream", x + ns.weight(size, 2 * size, name="out") @ h)
        rows = ns.weight(size, words, name="head") @ ns.data(np.eye(words))
        return ns.probe("logits", 4 * ns.dot(y, rows))

    def literal(rng):
        x, inner = (
            rng.standard_normal((tokens, size)),
            rng.normal(0, size**-0.5, (2 * size, size)),
        )
        out, head = (
            rng.normal(0, (2 * size) ** -0.5, (size, 2 * size)),
            rng.normal(0, words**-0.5, (size, words)),
        )
        h = np.tanh(x @ inner.T)
        y = x + h @ out.T
        p = 4 * y @ head / size**0.5
        c = 4 * (special.softmax(p, axis=1) - 1 / words) / tokens / size**0.5
        dy = c @ head.T
        dh = (dy @ out) * (1 - h**2)
        return {
            "loss": np.mean(special.logsumexp(p, axis=1)) - p.mean(),
            "grad_mean_square": [np.mean(dy**2)],
            "grad_out": [np.sum((dy.T @ h) ** 2)],
            "grad_in": [np.sum((dh.T @ x) ** 2)],
            "grad_in_ratio": [np.sum((dh.T @ x) ** 2) / (2 * size)],
            "grad_input": np.mean((dy + dh @ inner) ** 2),
            "grad_head": np.sum((y.T @ c) ** 2),
            "grad_head_ratio": np.sum((y.T @ c) ** 2) / size,
        }

    probes = ProgramModel(net(), {}).probes(gradients=True)
    rng = np.random.default_rng(1)
    plain = [literal(rng) for _ in range(600)]
    plain = {name: [row[name] for row in plain] for name in plain[0]}
    agree(probes.measure(600, workers=1, progress=False), plain)
    agree(probes.named(probes.program.simulate(draws=600, progress=False)), plain)


@pytest.mark.parametrize("family", ["bert", "t5", "mixtral"])
def test_program_of_a_model_is_measured_as_the_model(family):
    """A norm after each sum, a decoder, experts; a model has logits besides."""
    model = ns.models.read(CONFIGS[family])
    found, net = (
        model.probes(**inputs(model), ranges=True),
        model.program(**inputs(model)),
    )
    own = ProgramModel(net, model.widths()).probes(ranges=True)
    assert own.names == found.names
    assert own.starts == found.starts
    ours, theirs = (each.measure(4, workers=1, progress=False) for each in (own, found))
    assert {name for name in theirs if name not in ours and "log" not in name} == {
        "loss",
        "max_probability",
    }
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], err_msg=name)


def test_without_logits_gradients_are_of_a_random_readout():
    def net(blocks):
        x = ns.probe("embedding", ns.gaussian(n, 2))
        for _ in range(blocks):
            x = ns.probe("stream", 2.0 * x)
        return x

    found = ns.audit(
        ns.program(net)(3),
        n=500,
        draws=16,
        gradients=True,
        widths="actual",
        progress=False,
    ).actual
    # of a mean over two tokens
    expected = 1 / 2**2 / 500 * np.array([4.0**3, 16.0, 4.0, 1.0])
    np.testing.assert_allclose(
        [x.mean() for x in found.by_block("grad_mean_square").values()],
        expected,
        rtol=0.1,
    )


def test_gradients_that_programs_do_not_have():
    with pytest.raises(ValueError, match="the derivative of top2 is unknown"):
        ns.audit(program("experts"), n=16, gradients=True)


def squares(net, *names):
    """Draws of quantities of the gradients of a program without widths."""
    found = (
        ProgramModel(net, {})
        .probes(gradients=True)
        .measure(2000, workers=1, progress=False)
    )
    return [found[name] for name in names]


def numpy_squares(passed):
    """Squared gradients in plain numpy, from 2,000 sets of normals."""
    rng = np.random.default_rng(5)
    return np.array([passed(rng) for _ in range(2000)])


def test_gradient_of_a_matrix_that_acts_twice_is_that_of_both_products():
    """y = W W x with readouts r: ∂L/∂W = (r (W x)^T + W^T r x^T)/√8, for two tokens
    with the mean over them.
    """

    @ns.program
    def twice():
        w, x = ns.weight(8, 8, name="W^O"), ns.probe("embedding", ns.gaussian(8, 2))
        return ns.probe("stream", w @ (w @ x))

    def passed(rng):
        w = rng.standard_normal((8, 8)) / 8**0.5
        x, r = rng.standard_normal((2, 8, 2))
        gradient = (r @ (w @ x).T + w.T @ r @ x.T) / 8**0.5 / 2
        return (gradient**2).sum()

    (ours,) = squares(twice(), "grad_output")
    assert stats.ks_2samp(ours[:, 0], numpy_squares(passed)).pvalue > 1e-4


def test_blocks_that_share_a_matrix_have_the_gradient_of_both():
    """x → W x → W^T W x, once transposed: both blocks have one number, the
    parameter's.
    """

    @ns.program
    def shared():
        w, x = (
            ns.weight(6, 8, std=0.8, name="W^O"),
            ns.probe("embedding", ns.gaussian(8, 2)),
        )
        y = ns.probe("stream", x + w.T @ (w @ x))
        return ns.probe("stream", y + w.T @ (w @ y))

    def passed(rng):
        w = 0.8 * rng.standard_normal((6, 8)) / 8**0.5
        x, r = rng.standard_normal((2, 8, 2))
        y = x + w.T @ w @ x
        d = r / 8**0.5 / 2
        above = d + w.T @ (w @ d)
        gradient = w @ d @ y.T + (w @ y) @ d.T + w @ above @ x.T + (w @ x) @ above.T
        return (gradient**2).sum()

    (ours,) = squares(shared(), "grad_output")
    assert np.array_equal(ours[:, 0], ours[:, 1])
    assert stats.ks_2samp(ours[:, 0], numpy_squares(passed)).pvalue > 1e-4


def test_heads_that_share_a_matrix():
    """A batch of two matrices in the first block; the second block uses the first of
    them alone.
    """

    @ns.program
    def heads():
        w, x = (
            ns.weight(8, 8, batch=2, name="W^O"),
            ns.probe("embedding", ns.gaussian(8, 2)),
        )
        y = ns.probe("stream", x + (w @ x).sum(0))
        return ns.probe("stream", y + w[0] @ y)

    def passed(rng):
        w, v = rng.standard_normal((2, 8, 8)) / 8**0.5
        x, r = rng.standard_normal((2, 8, 2))
        y = x + w @ x + v @ x
        d = r / 8**0.5 / 2
        above = d + w.T @ d
        first, other = d @ y.T + above @ x.T, above @ x.T
        return (first**2).sum() + (other**2).sum(), (first**2).sum()

    (ours,) = squares(heads(), "grad_output")
    theirs = numpy_squares(passed)
    for block in (0, 1):
        assert stats.ks_2samp(ours[:, block], theirs[:, block]).pvalue > 1e-4


def test_gradient_of_reused_embedding_equals_numpy():
    @ns.program
    def tied():
        w = ns.weight(8, 3, name="W^E")
        x = ns.probe("stream", 2 * ns.probe("embedding", w @ ns.data(np.eye(3)[:2])))
        return ns.probe("logits", ns.dot(x, w @ ns.data(np.eye(3))))

    def passed(rng):
        w = rng.standard_normal((8, 3)) / 3**0.5
        x = 2 * w[:, :2]
        logits = x.T @ w / 8**0.5
        p = np.exp(logits)
        # of the mean over words, without targets
        c = (p / p.sum(1, keepdims=True) - 1 / 3) / 2 / 8**0.5
        gradient = x @ c
        gradient[:, :2] += 2 * w @ c.T
        return (gradient**2).sum()

    (ours,) = squares(tied(), "grad_embedding")
    assert stats.ks_2samp(ours, numpy_squares(passed)).pvalue > 1e-4


def test_matrix_without_gradient_has_no_column():
    @ns.program
    def frozen(every=True):
        x = ns.probe("embedding", ns.gaussian(8, 2))
        for k in range(2):
            w, v = ns.weight(8, 8, name="W^O"), ns.weight(8, 8, name="W^V")
            w = ns.stop_gradient(w) if every or k else w
            x = ns.probe("stream", x + w @ (v @ x))
        return x

    whole, some = (
        ProgramModel(frozen(every), {}).probes(gradients=True)
        for every in (True, False)
    )
    assert "grad_output" not in whole.names
    found = some.measure(8, workers=1, progress=False)["grad_output"]
    assert (found > 0).tolist() == [[True, False]] * 8


def test_audit_of_a_program_is_as_that_of_a_model(unillustrated, tmp_path, monkeypatch):
    net = program("experts")
    monkeypatch.setattr(_precision, "WORTH", 0)
    audit = ns.audit(net, n=16, draws=40, out=tmp_path, progress=False)
    # unless it is asked for: users' functions may not support another
    assert audit.actual.precision == "float64"
    assert str(audit).startswith("net(tokens=8, blocks=2, heads=2, count=4): ")
    assert "\n2 blocks, n = 16; 40 draws of 8 tokens; exact\n" in str(audit)
    made = audit.as_dict()
    assert {"entropy", "largest_load", "mlp_share"} < set(made["layers"][0])
    assert {f["rule"]: f["verdict"] for f in made["findings"]}.keys() == {
        f.rule for f in audit.findings
    }
    assert "limit" in made
    assert (
        "load of the busiest expert" in (tmp_path / "report.html").read_text().lower()
    )
    kept = json.loads((tmp_path / "manifest.json").read_text())["options"]["models"]
    assert kept[0]["widths"] == {"n": 16}
    assert "probe experts" in kept[0]["program"]
    # nobody knows all that the numbers of a program depend on
    assert not list((tmp_path / "parts").iterdir())
    monkeypatch.setattr(_cases, "PART_DRAWS", 16)
    one, two = (
        ns.audit(net, n=16, draws=20, widths="actual", workers=k, progress=False)
        for k in (1, 2)
    )
    np.testing.assert_array_equal(one.actual["entropy"], two.actual["entropy"])


def test_rules_come_out_both_ways_for_programs():
    @ns.program
    def net(sigma, sent):
        x = ns.probe("embedding", ns.gaussian(n, 6))
        a = ns.nn.attend(x, 2, 8, "causal", sigma_q=sigma)
        ns.probe("scores", a.scores), ns.probe("weights", a.weights)
        ns.probe("experts", ns.apply(lambda p: p, ns.nn.logits(x, 3) * np.array(sent)))
        return ns.probe("stream", x + a.output)

    loud, calm = (
        ns.audit(net(*given), n=16, draws=60, widths="actual", progress=False)
        for given in GIVEN
    )
    verdicts = [{f.name: f.verdict for f in each.findings} for each in (loud, calm)]
    assert [each["entropy"] for each in verdicts] == ["FLAG", "ok"]
    assert [each["load"] for each in verdicts] == ["FLAG", "ok"]
    assert [each["branches"] for each in verdicts] == ["n/a"] * 2


GIVEN = (30.0, (1.0, 0.0, 0.0)), (0.1, (1.0, 1.0, 1.0))


@ns.program
def moved(n, size=1.0):
    """Activations after one step of gradient descent: at infinite width they are known
    up to a quadrature error.
    """
    w, v = ns.weight(n, 2, name="in"), ns.weight(n, n, name="hidden")
    g = w @ ns.data([[1.0, 0.5], [0.3, -1.0]])
    k = v @ ns.tanh(g)
    f = ns.mean_dot(ns.weight(n, 1, name="head") @ ns.data([1.0]), ns.tanh(k))
    wide = dict.fromkeys(("in", "head"), lambda fan_in, out: 0.5 * out)
    g1, k1 = ns.step([g, k], ((f - [1.0, -1.0]) ** 2).sum(), wide | {"hidden": 0.5})
    ns.probe("embedding", g1)
    return ns.probe("stream", size * k1)


def test_draws_of_a_limit_have_nodes_of_their_own():
    audit = ns.audit(moved(ns.Width("n")), n=4096, draws=32, progress=False)
    wide, limit = (found["mean_square"][:, 0] for found in (audit.actual, audit.limit))
    assert (
        abs(limit.mean() - wide.mean())
        < 4.5 * np.hypot(limit.std(), wide.std()) / 32**0.5
    )
    assert 0 < limit.std() < 0.01 * limit.mean()


def test_verdict_within_the_quadrature_error_is_undecided():
    """The growth of a stream that is as large as its threshold: the draws lie on both
    sides of it.
    """
    first = ns.audit(moved(ns.Width("n")), n=16, draws=16, widths="inf", progress=False)
    squares = first.limit.band("mean_square").median
    for factor, verdict in ((1.0005, "undecided"), (1.2, "FLAG")):
        net = moved(ns.Width("n"), size=(factor * 1e4 * squares[0] / squares[1]) ** 0.5)
        found = ns.audit(net, n=16, draws=16, widths="inf", progress=False).finding(
            "growth"
        )
        assert found.verdict == verdict


def test_verdict_that_kernels_leave_open_is_undecided():
    flagged, fine = (
        Finding("growth", "rule", "why", "2 times", verdict)
        for verdict in ("FLAG", "ok")
    )
    assert within_error(flagged, flagged) is flagged
    assert within_error(flagged, fine).verdict == "undecided"


def test_two_programs_are_compared():
    first, second = (
        importlib.import_module("examples.audit_experts").net(count=count)
        for count in (3, 5)
    )
    audit = ns.audit(
        first, compare=second, n=16, draws=20, widths="actual", progress=False
    )
    assert audit.audits[1].model.name.endswith("count=5)")
    assert audit.audits[1].actual["largest_load"].shape == (20, 2)
    again = ns.audit(
        first, compare=first, n=16, draws=20, widths="actual", progress=False
    )
    assert again.audits[1].model.name.endswith(", again")


def with_probes(*names, mask=None):
    @ns.program
    def net():
        x = ns.gaussian(8, 3)
        made = ns.nn.attend(x, 2, 4, "causal")
        values = {
            "scores": made.scores,
            "weights": made.weights,
            "logits": made.scores[0],
            "experts": made.scores[0],
        }
        for name in names:
            ns.probe(name, values.get(name, x))
        return x

    return net()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"must name its streams for an audit: ns.probe\('embedding', x\) before"),
        (("embedding",), "must name its streams"),
        (("stream",), "must name its streams"),
        (
            ("embedding", "stream", "scores"),
            "has the probe 'scores' after its last stream",
        ),
        (
            ("embedding", "embedding", "stream"),
            "has the probe 'embedding' twice: once is allowed",
        ),
        (
            ("embedding", "stream", "embedding"),
            "has the probe 'embedding' after its last stream",
        ),
        (("embedding", "mlp", "mlp", "stream"), "has the probe 'mlp' twice in block 1"),
        (
            ("embedding", "mlp", "stream", "stream"),
            "'mlp' in block 1 but not in block 2: every block must have",
        ),
        (
            ("embedding", "stream", "mlp", "stream"),
            "'mlp' in block 2 but not in block 1",
        ),
    ],
)
def test_programs_that_cannot_be_audited(names, message):
    with pytest.raises(ValueError, match=message):
        ns.audit(with_probes(*names))


def test_options_of_models_raise_for_programs():
    net = with_probes("embedding", "stream")
    for given, message in (
        ({"tokens": 3}, "tokens=3 must be left out"),
        ({"ids": [1, 2]}, "must be left out"),
        ({"compare": "gpt2"}, "a program is compared with programs"),
        ({"m": 3}, "m"),
    ):
        with pytest.raises(ValueError, match=message):
            ns.audit(net, **given)
    with pytest.raises(
        ValueError, match="n=3 is not an argument of an audit of a model"
    ):
        ns.audit("gpt2", n=3)


def test_masks_are_those_of_the_softmax_unless_given():
    full = ProgramModel(with_probes("embedding", "scores", "weights", "stream"), {})
    found = full.probes().measure(200, workers=1, progress=False)

    @ns.program
    def net(mask):
        x = ns.probe("embedding", ns.gaussian(8, 3))
        a = ns.nn.attend(x, 2, 4, "causal")
        (
            ns.probe("scores", a.scores[::-1], mask=mask),
            ns.probe("weights", a.weights[::-1], mask=mask),
        )
        return ns.probe("stream", x)

    given = (
        ProgramModel(net(np.tri(3) > 0), {})
        .probes()
        .measure(200, workers=1, progress=False)
    )
    np.testing.assert_allclose(given["entropy"], found["entropy"])
    np.testing.assert_allclose(given["score_std"], found["score_std"])
    every = ProgramModel(net(None), {}).probes().measure(200, workers=1, progress=False)
    # as if masked tokens had been passed over by choice
    assert (every["entropy"] < found["entropy"]).all()
