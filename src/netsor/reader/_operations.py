"""Names of operations, by which the parts of a network are recognised.

A front end gives its nodes these names, which are those of ATen: PyTorch's nodes have
them, and `jax/_primitives.py` translates the primitives of JAX. What is not in a table
may have any name.
"""

from __future__ import annotations

from ._graph import Node, name_of

# operations that return their first argument
UNCHANGED = (
    "to",
    "contiguous",
    "clone",
    "alias",
    "type_as",
    "lift_fresh_copy",
    "_to_copy",
    "nan_to_num",
)
SOFTMAX = ("softmax", "_softmax")
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
# pooling and interpolation
MAPS_OF_POSITIONS = (
    *(f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)),
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
    *("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
# other shapes, other orders of the axes, and parts
VIEWS = (
    "view",
    "reshape",
    "_unsafe_view",
    "unflatten",
    "flatten",
    "unsqueeze",
    "squeeze",
    "ravel",
    "view_as",
    "reshape_as",
)
TURNS = ("t", "mT", "transpose", "swapaxes", "permute")
PARTS = ("slice", "narrow", "select", "split", "split_with_sizes", "chunk", "unbind")

# products by a matrix, and the position of the matrix among the arguments
MATRICES = {"linear": 1, "linear_from_left": 0, "matmul": 1, "mm": 1, "addmm": 2}
# products of vectors with vectors: scores, and weights times values
SCORE_PRODUCTS = ("matmul", "bmm", "baddbmm")
# operations along one axis, and the position of the axis among the arguments
ALONG_TOKENS = {"cumsum": 1, "flip": 1, "select": 1, "slice": 1, "unbind": 1}
# operations that choose among experts
CHOICES = ("topk", "sort", "argsort", "argmax", "max", "gumbel_softmax")
# operations that put the weights of chosen experts in the places of all
SCATTERS = ("scatter", "scatter_add")
# operations through which a parameter, or ids, can still be recognised
REARRANGEMENTS = (
    *VIEWS,
    *PARTS,
    *TURNS,
    "getitem",
    "expand",
    "contiguous",
    "to",
    "_to_copy",
    "detach",
)


def viewed(node: Node) -> Node:
    """The node that a node is a view of."""
    while node.op == "call_function" and name_of(node) in REARRANGEMENTS:
        node = node.args[0]
    return node


# operations that leave the stream as it is
SAME_STREAM = (
    "to",
    "_to_copy",
    "clone",
    "contiguous",
    "dropout",
    "alias",
    "detach",
    "type_as",
)
# operations that normalise the stream, or are a step of a norm written out
NORMS = ("layer_norm", "rms_norm", "mul", "div", "sub")
ACTIVATIONS = ("silu", "gelu", "relu", "tanh", "sigmoid", "leaky_relu", "erf")
