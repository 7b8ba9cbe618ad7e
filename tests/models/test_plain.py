"""The quantities of an audit against a transformer in plain numpy, which shares nothing
with the library.

Kolmogorov–Smirnov, level 1e-6 for each of about 100 quantities; what is not random is
the same number.
"""

import numpy as np
import pytest
from scipy import stats

from netsor import inf, models

from .plain import drawn

ODD = {
    "name": "odd",
    "family": "own",
    "layers": 2,
    "width": 12,
    "heads": 2,
    "head_dim": 4,
    "hidden": 10,
    "vocabulary": 11,
    "length": 8,
    "std_q": 0.4,
    "std_k": 0.4,
    "std_v": 0.4,
    "std_o": 0.4,
    "std_in": 0.4,
    "std_out": 0.4,
    "std_gate": 0.4,
    "std_embedding": 0.3,
    "std_position": 0.2,
    "std_logits": 0.3,
}
# where eps matters in the norm of the embeddings
SMALL = {"std_embedding": 1e-3, "std_position": 1e-3}
MODELS = {
    "post-norm of small inputs": {
        "order": "post",
        "eps": 1e-5,
        **SMALL,
        "final_norm": False,
        "causal": False,
    },
    "pre-norm of small inputs": {"eps": 1.0, **SMALL, "tied": True, "norm": "rms"},
    "parallel": {
        "order": "parallel",
        "positions": "rotary",
        "groups": 1,
        "score_cap": 1.0,
        "window": 2,
    },
    "post-norm, all copies of one block": {
        "order": "post",
        "shared": True,
        "bias_in": 0.3,
        "eps": 0.1,
    },
    "sandwich, tiny": {
        "order": "sandwich",
        "std_embedding": 1e-8,
        "std_position": 1e-8,
        "qk_norm": True,
    },
    "norms after the branches": {
        "order": "after",
        "norm": "rms",
        "qk_norm": True,
        "qk_norm_whole": True,
        "groups": 1,
    },
    "experts": {
        "experts": 4,
        "experts_per_token": 2,
        "gated": True,
        "std_router": 0.5,
        "norm": "rms",
    },
    "one of three experts": {
        "experts": 3,
        "experts_per_token": 1,
        "order": "after",
        "std_router": 0.5,
    },
    "post-norm, huge": {
        "order": "post",
        "std_embedding": 1e3,
        "gated": True,
        "readout": "transform",
        "padding": 3,
    },
}
DEFAULT = ("post-norm of small inputs",)


@pytest.mark.parametrize(
    "name",
    [
        name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow)
        for name in MODELS
    ],
)
def test_quantities_match_law_of_plain_numpy(name):
    model = models.Transformer(**(ODD | MODELS[name]))
    ids, draws = (3, 7, 7, 1), 400
    ours = model.probes(ids=ids).measure(draws, progress=False, workers=1)
    rng = np.random.default_rng(0)
    plain = [drawn(model, ids, rng) for _ in range(draws)]
    for quantity, found in ours.items():
        right = np.array([each[quantity] for each in plain])
        for a, b in zip(np.atleast_2d(found.T), np.atleast_2d(right.T), strict=True):
            if np.ptp(b) < 1e-7 * np.abs(b).max():
                np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=quantity)
            else:  # rounded, so that what is 1 up to rounding is 1
                size = np.abs(b).max()
                p = stats.ks_2samp(
                    np.round(a / size, 9), np.round(b / size, 9), method="asymp"
                ).pvalue
                assert p > 1e-6, (quantity, p)


def test_mean_square_after_norm_is_measured():
    """The stream has a mean square of 1e-6, and after a norm with eps = 1e-5 one of
    1e-6/1.1e-5 = 0.09, not 1.

    Attention adds nothing here, and the perceptron a bias whose mean square is 0.0117:
    its share is 0.0117/(0.0117 + 0.09) = 0.11, where 1 instead of 0.09 would make it
    0.0116.
    """
    small = {
        "std_embedding": 1e-3,
        "std_position": 0.0,
        "std_o": 0.0,
        "std_out": 0.0,
        "bias_out": 0.108,
    }
    model = models.Transformer(
        **(ODD | small | {"order": "post", "eps": 1e-5, "norm": "rms", "layers": 1})
    )
    found = model.probes(tokens=4).measure(
        20, progress=False, workers=1, n=inf, d=inf, m=inf
    )
    np.testing.assert_allclose(
        found["mlp_share"], 0.108**2 / (0.108**2 + 1 / 11), rtol=1e-9
    )
    np.testing.assert_array_equal(found["attention_share"], 0.0)
