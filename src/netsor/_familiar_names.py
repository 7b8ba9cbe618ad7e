"""Names that people know from other libraries, and what to write with netsor.

`ns.batch_norm`, `x.max()` or `net.ntk()` do not exist. The error that says so also says
what to write. Each table maps a name to the end of that sentence.
"""

from collections.abc import Iterable, Mapping

SOFTPLUS = (
    "write ns.nonlin(lambda u: np.logaddexp(0, u), x) for coordinates,"
    " or ns.apply for scalars"
)
MAXIMUM = (
    "for scalars write ns.apply(lambda p: p.max(axis=-1), p, axes=1); for coordinates"
    " of several vectors write ns.nonlin(np.maximum, x, y)"
)
BATCH_NORM = (
    "subtract x.mean(), and divide by the root of (x * x).mean() with ns.nonlin:"
    " the page 'Architectures in ten lines' shows it"
)
CONVOLUTION = (
    "a convolution is a matrix that acts on windows, ns.weight(n, k * n) @"
    " ns.concat(x[windows], axis=-1): the page 'Architectures in ten lines' shows it"
)
DROPOUT = (
    "dropout acts only in training, and a law at initialisation does not need it;"
    " leave it out"
)
LINEAR = "a linear layer is a matrix, ns.weight(n, n) @ x"
RECURRENT = (
    "apply the same ns.weight at each step of a Python loop: the page 'Architectures"
    " in ten lines' shows it"
)
EXPERTS = (
    "route with ns.apply on the scalars of a router: the page 'Architectures in ten"
    " lines' shows it"
)
TRANSFORMER = "build one from ns.nn.block, or audit a ready model: ns.audit('gpt2')"
MEAN_POOLING = "write x.mean(), the mean over the last axis"
NTK = "write ns.ntk(p) inside the program, for an output p that is a scalar"
NNGP = (
    "the NNGP kernel is the covariance of the outputs at infinite width,"
    " net.law(n=ns.inf).cov()"
)
SAMPLES = (
    "write net.law(n=256).rvs(1000) for samples of the outputs, net.draw(n=256,"
    " draws=1000) for exact draws, or net.simulate for draws of every matrix"
)
ATTENTION = "write ns.nn.attention(x, heads=8)"
MLP = "write ns.nn.mlp(x, hidden=4 * n)"
PLOT = "laws are plotted: net[0].law(n=256).plot()"

# what people look for in `ns` and `ns.nn`
FUNCTIONS = {
    "batch_norm": BATCH_NORM,
    "batchnorm": BATCH_NORM,
    "BatchNorm": BATCH_NORM,
    "conv": CONVOLUTION,
    "conv1d": CONVOLUTION,
    "conv2d": CONVOLUTION,
    "convolution": CONVOLUTION,
    "Conv1d": CONVOLUTION,
    "Conv2d": CONVOLUTION,
    "dropout": DROPOUT,
    "Dropout": DROPOUT,
    "softplus": SOFTPLUS,
    "swish": "its name here is ns.silu",
    "relu6": "write ns.nonlin(lambda u: np.clip(u, 0, 6), x)",
    "mish": "write ns.nonlin(lambda u: u * np.tanh(np.logaddexp(0, u)), x)",
    "elu": "write ns.nonlin(lambda u: np.where(u > 0, u, np.expm1(u)), x)",
    "max": MAXIMUM,
    "maximum": MAXIMUM,
    "min": MAXIMUM.replace("max", "min"),
    "minimum": MAXIMUM.replace("max", "min"),
    "max_pool": MAXIMUM,
    "where": "write ns.nonlin(lambda u: np.where(u > 0, u, 0), x), or ns.apply",
    "mean": MEAN_POOLING,
    "mean_pool": MEAN_POOLING,
    "avg_pool": MEAN_POOLING,
    "pool": MEAN_POOLING,
    "sum": "write x.sum(), or np.ones((1, tokens)) @ x",
    "matmul": "write W @ x for a weight, or a @ x for an array or scalars",
    "einsum": "write a @ x, ns.dot(q, k) or w.each(x)",
    "cat": "write ns.join(values) along the shape, or ns.concat(x, axis) along the"
    " width",
    "linear": LINEAR,
    "Linear": LINEAR,
    "dense": LINEAR,
    "Dense": LINEAR,
    "param": LINEAR,
    "randn": "write ns.gaussian(n, shape) for vectors or ns.normal(shape) for scalars",
    "rnn": RECURRENT,
    "RNN": RECURRENT,
    "lstm": RECURRENT,
    "LSTM": RECURRENT,
    "gru": RECURRENT,
    "GRU": RECURRENT,
    "moe": EXPERTS,
    "experts": EXPERTS,
    "transformer": TRANSFORMER,
    "Transformer": TRANSFORMER,
    "nngp": NNGP,
    "NNGP": NNGP,
    "kernel": NNGP,
    "NTK": NTK,
    "kl_divergence": "its name here is ns.kl",
    "wasserstein": "its name here is ns.wasserstein1",
    "var": "laws have moments: net[0].law(n=256).var()",
    "std": "laws have moments: net[0].law(n=256).std()",
    "LayerNorm": "its name here is ns.layer_norm",
    "RMSNorm": "its name here is ns.rms_norm",
    "rmsnorm": "its name here is ns.rms_norm",
    "rope": "its name here is ns.rotary, or the option rotary=ns.nn.Rotary() of"
    " ns.nn.attention",
    "mha": ATTENTION,
    "MultiheadAttention": ATTENTION,
    "self_attention": ATTENTION,
    "multi_head_attention": ATTENTION,
    "MLP": MLP,
    "feed_forward": MLP,
    "mamba": "its name here is ns.nn.mamba2",
    "ssm": "see ns.nn.mamba2",
    "deltanet": "its name here is ns.nn.gated_delta",
    "retnet": "its name here is ns.nn.retention",
}

# what people look for in a Vector or a Scalar
VALUES = {
    "max": MAXIMUM,
    "min": MAXIMUM.replace("max", "min"),
    "dot": "write ns.dot(x, y) for n^(-1/2) <x, y>, or ns.mean_dot(x, y) for <x, y>/n",
    "norm": "write ns.mean_dot(x, x), the mean square of the coordinates",
    "var": "write (x * x).mean() - x.mean() * x.mean(), or take law.var()",
    "std": "take the law of the value: ns.Program(x).law(n=256).std()",
    "law": "a value is part of a program: ns.Program(x).law(n=256)",
    "grad": "write ns.grad(p, x), the gradient of the scalar p",
    "backward": "write ns.grad(p, x), the gradient of the scalar p",
    "detach": "write ns.stop_gradient(x)",
    "view": "write x.reshape(shape)",
    "permute": "write x.transpose(axes)",
    "squeeze": "write x.reshape(shape), or an index such as x[0]",
    "unsqueeze": "write x[None], or x.reshape(shape)",
    "expand": "write x.broadcast_to(shape)",
    "repeat": "write x.broadcast_to(shape), or x[[0, 0, 1, 1]]",
    "cumsum": "write np.tril(np.ones((tokens, tokens))) @ x",
    "relu": "write ns.relu(x)",
    "tanh": "write ns.tanh(x)",
    "sigmoid": "write ns.sigmoid(x)",
    "softmax": "write ns.softmax(p), over the last axis",
    "exp": "write ns.nonlin(np.exp, x) for coordinates, or ns.apply(np.exp, p)",
    "numpy": "a value holds no numbers: ns.Program(x).draw(n=256) draws some",
    "item": "a value holds no numbers: ns.Program(x).draw(n=256) draws some",
    "sample": "a value holds no numbers: ns.Program(x).draw(n=256) draws some",
}

# what people look for in a Program
PROGRAMS = {
    "ntk": NTK,
    "nngp": NNGP,
    "kernel": NNGP,
    "cov": "laws have moments: net.law(n=256).cov()",
    "mean": "laws have moments: net.law(n=256).mean()",
    "var": "laws have moments: net[0].law(n=256).var()",
    "variance": "laws have moments: net[0].law(n=256).var()",
    "std": "laws have moments: net[0].law(n=256).std()",
    "pdf": "laws have densities: net[0].law(n=256).pdf(0.5)",
    "sample": SAMPLES,
    "samples": SAMPLES,
    "rvs": SAMPLES,
    "forward": SAMPLES,
    "plot": PLOT,
    "grad": "write ns.grad(p, x) inside the program, and return it as an output",
    "backward": "write ns.grad(p, x) inside the program, and return it as an output",
    "limit": "write net.law(n=ns.inf)",
    "summary": "print(net) lists the operations, net.check() the theorem's conditions",
    "parameters": "print(net) lists the matrices and other initial values",
    "fit": "netsor does not train; net.posterior conditions on data, ns.step and"
    " ns.train take optimiser steps in law",
    "train": "write ns.step or ns.train inside the program",
}


def hint(
    name: str,
    remedies: Mapping[str, str],
    available: Iterable[str] = (),
    prefix: str = "",
) -> str:
    """The end of an error about a missing name, or nothing if no name is near it."""
    if name in remedies:
        return f"; {remedies[name]}"
    if name.startswith("_"):  # Python itself looks these up
        return ""
    import difflib  # slow to import, and seldom needed

    near = difflib.get_close_matches(name, list(available), n=1, cutoff=0.75)
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return ""
