"""One real step of PyTorch's SGD and Adam on Hugging Face's GPT-2, against the law that
a coordinate check has.

Two samples, Kolmogorov–Smirnov, level 1e-4 for all quantities of a case together; seeds
are fixed. Biases and gains of norms are held still where the check holds them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from netsor.models import read
from tests.internals import CHANGE, SIZE, UPDATE, Entry, named_parametrisation
from tests.internals import TRAINING_VECTORS as VECTORS
from tests.internals import CoordCheckRequest as Request

from .real import CLASSES, configuration

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 8,
    "vocab_size": 11,
    "initializer_range": 0.15,
}
IDS, TARGETS = (3, 7, 7, 1), (7, 7, 1, 5)
LEVEL, REAL, OURS = 1e-4, 400, 2000
NAMES = [
    *(
        Entry(CHANGE, "embedding"),
        Entry(CHANGE, "stream", 1),
        Entry(CHANGE, "final"),
        Entry(CHANGE, "vocabulary"),
    ),
    *(
        Entry(CHANGE, "loss"),
        Entry(SIZE, "vocabulary"),
        Entry(UPDATE, "query", 1),
        Entry(UPDATE, "head"),
    ),
]


def forward(network):
    out = network(input_ids=torch.tensor([IDS]), output_hidden_states=True)
    loss = torch.nn.functional.cross_entropy(out.logits[0], torch.tensor(TARGETS))
    embedded, stream, output = (
        out.hidden_states[0][0],
        out.hidden_states[1][0],
        out.hidden_states[-1][0],
    )
    return loss, {
        "embedding": embedded,
        "stream": stream,
        "output": output,
        "vocabulary": out.logits[0],
    }


def real(optimiser: str, lr: float, config: dict, vectors: bool) -> list[float]:
    """One initialisation, and one step; of biases and gains too, with `vectors`."""
    network = CLASSES["gpt2"](configuration(config)).double().eval()
    moved = [p for p in network.parameters() if p.ndim > 1 or vectors]
    by = (
        torch.optim.SGD(moved, lr)
        if optimiser == "sgd"
        else torch.optim.Adam(moved, lr, eps=1e-30)
    )
    given = {}
    query = network.transformer.h[0].attn.c_attn
    query.register_forward_pre_hook(
        lambda _, x: given.update({"query": x[0].detach()} if not given else {})
    )
    loss, before = forward(network)
    old = query.weight.detach().clone(), network.lm_head.weight.detach().clone()
    loss.backward()
    by.step()
    with torch.no_grad():
        after_loss, after = forward(network)
        width = network.config.n_embd
        changes = [
            float(((after[n] - before[n]) ** 2).mean())
            for n in ("embedding", "stream", "output", "vocabulary")
        ]
        update = given["query"] @ (query.weight - old[0])[:, :width]
        head = before["output"] @ (network.lm_head.weight - old[1]).T
        return [
            *changes,
            float(after_loss - loss),
            float((before["vocabulary"] ** 2).mean()),
            float((update**2).mean()),
            float((head**2).mean()),
        ]


@pytest.mark.parametrize(("optimiser", "lr"), [("sgd", 0.3), ("adam", 0.02)])
@pytest.mark.parametrize(
    ("tied", "vectors"), [(True, ()), (False, ()), (True, VECTORS)]
)
def test_coordinate_check_of_one_step_matches_pytorch(optimiser, lr, tied, vectors):
    config = {**CONFIG, "tie_word_embeddings": tied}
    rule = named_parametrisation("sp", optimiser)
    how = {
        "optimiser": optimiser,
        "lr": lr,
        "ids": IDS,
        "targets": TARGETS,
        "workers": 1,
        "vectors": vectors,
    }
    request = Request(read(config), (rule,), (16, 32), **how)
    subject = request.cases(rule)[0]
    ours = subject.program.draw(draws=OURS, seed=1, progress=False, **subject.widths)
    torch.manual_seed(0)
    theirs = np.array([real(optimiser, lr, config, bool(vectors)) for _ in range(REAL)])
    places = [subject.entries.index(entry) for entry in NAMES]
    p = {
        e: stats.ks_2samp(ours[:, k], theirs[:, i]).pvalue
        for i, (e, k) in enumerate(zip(NAMES, places, strict=True))
    }
    assert min(p.values()) > LEVEL / len(p), p
    # a step 1.3 times as long is caught
    wrong = stats.ks_2samp(1.3**2 * ours[:, places[3]], theirs[:, 3]).pvalue
    assert wrong < LEVEL / len(p)
