"""The calls of studies, models, training and optimisers with right arguments, for
misuse.
"""

import numpy as np

import netsor as ns

n = ns.Width("n")
TINY = ns.models.read("gpt2").replace(
    layers=1, width=8, heads=2, hidden=16, vocabulary=12, length=8
)
QUIET = {"progress": False, "workers": 1}


@ns.program
def net(n):
    h = ns.probe("hidden", ns.weight(n, 2, name="in") @ ns.data([[1.0, 0.5]]))
    f = ns.mean_dot(h, ns.weight(n, 1, name="head") @ ns.data([1.0]))
    return ((f - 1.0) ** 2).mean()


def readout():
    return ns.mean_dot(ns.gaussian(n), ns.tanh(ns.weight(n, n) @ ns.gaussian(n)))


# the laws of a layer of attention have a limit with a density, near which a few widths
# of these are
ATTENTION = ns.paper.layer(tokens=2, heads=1)


def loss():
    return (
        ns.mean_dot(ns.gaussian(n), ns.tanh(ns.weight(n, n) @ ns.gaussian(n))) - 1.0
    ) ** 2


def trained(**given):
    value = loss()
    return ns.train(
        value, value, **{"optimiser": ns.optim.SGD(0.1), "steps": 2, **given}
    )


def stepped(**given):
    value = loss()
    return ns.step(value, value, **{"lr": 0.1, **given})


PLACE = {"backend": "numpy", "device": None, "precision": "float64", "executor": None}
TRAINING = {
    "widths": [8, 16],
    "steps": 1,
    "parametrisation": "sp",
    "ids": [1, 2],
    "targets": [2, 3],
    "draws": 4,
    "grow": "heads",
    "vectors": (),
    "seed": 0,
    **PLACE,
}

PROBES = {"ids": [1, 2, 2], "gradients": False, "ranges": False}
PROBE = {"name": "stream", "x": ns.gaussian(n, 2)}
VECTOR = ns.gaussian(n)
SCORE = ns.mean_dot(ns.tanh(VECTOR), VECTOR)
GRAD = {"wrt": VECTOR, "weights": 1.0}

# what to call, and right arguments for it: those of a name are given by it
STUDIES = {
    "audit": (
        lambda **a: ns.audit(
            TINY, **QUIET, **{"quick": True, "tokens": 3, "draws": 15, **a}
        ),
        {
            "recipe": "gpt2",
            "compare": "gpt2",
            "sweep": {"std": [0.1, 0.2]},
            "tokens": 3,
            "draws": 15,
            "widths": "actual",
            "seed": 0,
            "gradients": False,
            "quick": True,
            "ranges": False,
            **PLACE,
        },
    ),
    "audit of ids": (
        lambda **a: ns.audit(TINY, quick=True, **QUIET, **a),
        {"ids": [1, 2, 2]},
    ),
    "audit of a model": (
        lambda **a: ns.audit(**{"quick": True, "tokens": 3, **QUIET, **a}),
        {"model": TINY},
    ),
    "baseline": (
        lambda **a: ns.audit(TINY, quick=True, tokens=3, **QUIET).departures(**a),
        {"baseline": {}},
    ),
    "coord_check": (
        lambda **a: ns.coord_check(TINY, **QUIET, **a),
        {**TRAINING, "optimiser": "adam", "eps": 0.0, "lr": 0.1, "tolerance": 0.1},
    ),
    "coord_check of depths": (
        lambda **a: ns.coord_check(TINY, widths=[8], tokens=1, draws=4, **QUIET, **a),
        {"depths": [1, 2]},
    ),
    "coord_check of tokens": (
        lambda **a: ns.coord_check(TINY, widths=[8, 16], draws=4, **QUIET, **a),
        {"tokens": 2},
    ),
    "coord_check of a function": (
        lambda **a: ns.coord_check(
            **{"model": net, "widths": [8, 16], "draws": 4, "lr": 0.1, **QUIET, **a}
        ),
        {"model": net, "optimiser": "sgd", "lr": 0.1},
    ),
    "transfer": (
        lambda **a: ns.transfer(TINY, **QUIET, **a),
        {**TRAINING, "optimiser": "sgd", "lr": [0.1, 0.2, 0.4], "clip_norm": 1.0},
    ),
    "transfer of a function": (
        lambda **a: ns.transfer(
            **{
                "model": net,
                "widths": [8, 16],
                "draws": 4,
                "steps": 1,
                "lr": [0.1, 0.2, 0.4],
                **QUIET,
                **a,
            }
        ),
        {"model": net, "optimiser": ns.optim.SGD(1.0), "schedule": lambda t: 1.0},
    ),
    "width_needed": (
        lambda **a: ns.width_needed(ATTENTION, **{"tolerance": 0.5, "draws": 200, **a}),
        {"tolerance": 0.5, "of": "kl", "width": "n", "seed": 0},
    ),
    "rate": (
        lambda **a: ns.rate(ATTENTION, **{"widths": [4, 8, 16], "draws": 200, **a}),
        {"widths": [4, 8, 16], "width": "n", "seed": 0},
    ),
    "attention_std": (
        lambda **a: ns.attention_std(**{"tokens": 8, "head_dim": 4, **a}),
        {"tokens": 8, "head_dim": 4, "scale": 1.0, "causal": False, "correlation": 0.1},
    ),
    "read": (lambda **a: ns.models.read(**a), {"source": "gpt2"}),
    "recipe of a model": (lambda **a: ns.models.recipe(TINY, **a), {"name": "gpt2"}),
    "settings": (lambda **a: ns.models.settings(**a), {"texts": ["layers=2"]}),
    "probes": (lambda **a: TINY.probes(**{**PROBES, **a}), PROBES),
    "probes of tokens": (lambda **a: TINY.probes(**a), {"tokens": 3}),
    "train": (
        trained,
        {
            "optimiser": ns.optim.SGD(0.1),
            "steps": 2,
            "schedule": lambda t: 1.0,
            "clip_norm": 1.0,
        },
    ),
    "step": (
        stepped,
        {"lr": 0.1, "optimiser": "sgd", "eps": 0.0, "clip_norm": 1.0, "lr_factor": 1.0},
    ),
    "muon step": (
        lambda **a: stepped(optimiser="muon", **a),
        {"newton_schulz": 5, "scale": 1.0, "weight_decay": 0.1},
    ),
    "grad": (lambda **a: ns.grad(SCORE, **{**GRAD, **a}), GRAD),
    "ntk": (lambda **a: ns.ntk(readout(), **a), {"parametrisation": "ntk"}),
    "hyperparameter": (lambda **a: ns.hyperparameter(**a), {"name": "lr"}),
    "probe": (lambda **a: ns.probe(**{**PROBE, **a}), PROBE),
    "SGD": (
        lambda **a: trained(optimiser=ns.optim.SGD(**a)),
        {
            "lr": 0.1,
            "momentum": 0.0,
            "dampening": 0.0,
            "weight_decay": 0.0,
            "nesterov": False,
        },
    ),
    "AdamW": (
        lambda **a: trained(optimiser=ns.optim.AdamW(**a)),
        {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0},
    ),
    "Muon": (
        lambda **a: trained(optimiser=ns.optim.Muon(**a)),
        {
            "lr": 0.1,
            "weight_decay": 0.0,
            "momentum": 0.9,
            "nesterov": True,
            "eps": 1e-7,
            "ns_steps": 5,
            "ns_coefficients": (3.4445, -4.775, 2.0315),
            "adjust_lr_fn": "original",
        },
    ),
    "posterior": (
        lambda **a: ns.Program(readout()).posterior(
            n=4,
            **{
                "observed": {0: 1.0},
                "noise": 0.5,
                "draws": 32,
                "chains": 2,
                "thin": 1,
                **QUIET,
                **a,
            },
        ),
        {
            "observed": {0: 1.0},
            "noise": 0.5,
            "draws": 32,
            "chains": 2,
            "thin": 1,
            "particles": 16,
            "moves": 1,
        },
    ),
    "paper_kl": (
        lambda **a: ns.paper_kl(
            **{"finite": np.linspace(-1, 1, 50), "limit": np.linspace(-1, 1, 50), **a}
        ),
        {
            "finite": np.linspace(-1, 1, 50),
            "limit": np.linspace(-1, 1, 50),
            "grid": np.linspace(-1, 1, 9),
        },
    ),
}
