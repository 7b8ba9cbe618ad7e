"""Numbers of laws and studies, printed as JSON: the same in every Python that runs this
file.
"""

import json

import netsor as ns

n = ns.Width("n")


@ns.program
def layer(tokens=4, heads=2):
    """The layer of the README."""
    h = ns.gaussian(n)
    x = ns.clip(ns.weight(n, n, batch=tokens) @ h, 100)
    return ns.nn.attention(x, heads=heads)


net = layer()[0]
limit, wide = net.law(n=ns.inf), net.law(n=256, draws=2_000)
audit = ns.audit("gpt2", quick=True, precision="float64")
config = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 4,
    "vocab_size": 100,
    "n_positions": 8,
}
checks = ns.coord_check(config, widths=[64, 128], draws=4)
print(
    json.dumps(
        {
            "limit": [limit.var(), limit.kurtosis(), limit.std()],
            # and its errors
            "density": [
                part.tolist() for part in limit.with_error.pdf([0.0, 1.0, 2.0])
            ],
            "wide": [wide.var(), wide.kurtosis(), *wide.pdf([0.0, 1.0, 2.0])],
            "audit": {
                name: audit[name].median.tolist() for name in audit.lengths[0].best
            },
            "check": checks.rows(),
        }
    )
)
