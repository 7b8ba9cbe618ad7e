"""The paper's attention layer and its experiments: the public names of
`netsor.papers.sakai2025`.

Examples
--------
>>> net = ns.paper.layer(tokens=4, heads=2)
>>> print(f"{ns.kl(net.law(n=64), net.law(n=ns.inf)).value:.1e}")
2.2e-03
"""

from .papers.sakai2025 import reproduce
from .papers.sakai2025._layer import ACTIVATIONS, layer

__all__ = ["ACTIVATIONS", "layer", "reproduce"]
