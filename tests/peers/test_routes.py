"""Every family that the config reader knows has one law: through its configuration, and
through its module.

Two samples, Kolmogorov–Smirnov; level 1e-4 for all quantities of all families together.
Seeds are fixed.
"""

import pytest
from scipy import stats

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import netsor as ns  # noqa: E402
from tests.internals import READERS, ProgramModel  # noqa: E402

from ..models.small import CONFIGS as SMALL  # noqa: E402
from ..models.small import DECODER_IDS, IDS, PIXELS, inputs  # noqa: E402
from .networks import columns  # noqa: E402
from .real import CLASSES, configuration  # noqa: E402

DRAWS = 1000
# of 2, rotary positions are not recognised
CONFIGS = {**SMALL, "mistral": {**SMALL["mistral"], "head_dim": 4}}
LEVEL = 1e-4 / (len(CONFIGS) * 100)


def _factory(given):
    config = configuration(given)
    config._attn_implementation = "eager"
    return lambda: CLASSES[given["model_type"]](config)


def _given(model):
    if model.inputs == "patches":
        return {"pixel_values": torch.tensor(PIXELS[None], dtype=torch.float32)}
    decoder = (
        {"decoder_input_ids": torch.tensor([DECODER_IDS])}
        if model.decoder_layers
        else {}
    )
    return {"input_ids": torch.tensor([IDS]), **decoder}


def test_every_family_has_a_comparison():
    assert {given["model_type"] for given in CONFIGS.values()} == set(READERS)


@pytest.mark.parametrize("family", CONFIGS)
def test_module_has_the_law_of_its_configuration(family):
    build, model = _factory(CONFIGS[family]), ns.models.read(CONFIGS[family])
    net = ns.torch.network(
        build, (), _given(model), laws=ns.torch.parameters(build, samples=64)
    )
    ours = ProgramModel(net, {}).probes(gradients=True).measure(DRAWS, progress=False)
    # the router of a description has no gradient
    gradients = not model.experts
    theirs = model.probes(**inputs(model), gradients=gradients).measure(
        DRAWS, seed=1, progress=False
    )
    if gradients:
        theirs["grad_qkv"] = sum(
            theirs[f"grad_{kind}"] for kind in ("query", "key", "value")
        )
    a, fixed = columns(theirs)
    b, _ = columns(ours)
    shared = [
        key
        for key in a
        if key in b and key not in fixed and not key[0].endswith("_ratio")
    ]
    names = {name for name, _ in shared}
    assert {"cosine", "effective_rank", "entropy", "loss"} <= names
    if gradients:
        assert {"grad_mean_square", "grad_output", "grad_in"} <= names
    else:
        assert {"largest_load", "least_load"} <= names
    found = {key: float(stats.ks_2samp(a[key], b[key]).pvalue) for key in shared}
    print(family, len(found), min(found.values()))
    assert min(found.values()) > LEVEL, {key: p for key, p in found.items() if p < 1e-4}
