"""A derived rule as a file of plain JAX and optax."""

from __future__ import annotations

from collections.abc import Mapping

from ...maximal_update._file_content import (
    FileContent,
    rule_lines,
    scale_lines,
    tuple_lines,
    wrapped,
)
from ...maximal_update._rules import OutputScale, pattern_of
from ._optimisers import OptaxFamily

HELPERS = '''

class Rule(NamedTuple):
    """Exponents of width / base_width and depth / base_depth."""

    std: tuple[float, float] = (0.0, 0.0)
    lr: tuple[float, float] = (0.0, 0.0)
    eps: tuple[float, float] = (0.0, 0.0)
    weight_decay: tuple[float, float] = (0.0, 0.0)


class Scale(NamedTuple):
    """A factor of a parameter, or of a part of one of its axes."""

    path: str
    power: tuple[float, float]
    axis: int = 0
    start: float = 0.0
    stop: float = 1.0

'''

FUNCTIONS = '''

def name_of(path):
    """The name of a parameter, from its path in the tree."""
    keys = (getattr(key, "key", getattr(key, "name", key)) for key in path)
    parts = [str(getattr(key, "idx", key)) for key in keys]
    if len(parts) > 1 and parts[0] == "params":
        parts = parts[1:]
    if len(parts) > 1 and parts[-1] in ("value", "raw_value"):
        parts = parts[:-1]
    return ".".join(parts).replace("/~/", ".").replace("/", ".")


def width_of(params):
    """The width of a model."""
    for path, p in jax.tree_util.tree_leaves_with_path(params):
        if name_of(path) == {reference!r}:
            return p.shape[{axis}]{over}
    raise KeyError("no parameter {reference}: derive the rules again")


def factor(power, params, base_width):
    """A power of the width, relative to the base."""
    return (width_of(params) / base_width) ** power[0]


def rule_of(name):
    """The exponents of a parameter; * stands for the number of a layer."""
    if name in RULES:
        return RULES[name]
    for pattern, rule in RULES.items():
        if fnmatchcase(name, pattern):
            return rule
    raise KeyError(f"no rule for the parameter {{name}}: derive the rules again")


def initialise(params, base_width):
    """New parameters, rescaled. Call it once, directly after they are drawn, and not
    after loading a checkpoint.
    """

    def scaled(path, p):
        number = factor(rule_of(name_of(path)).std, params, base_width)
        return (p * number).astype(p.dtype)

    return jax.tree_util.tree_map_with_path(scaled, params)


def scale_outputs(params, base_width):
    """The parameters that the model is called with, inside the loss{what_scales}.
    """

    def scaled(path, p):
        for scale in SCALES:
            if fnmatchcase(name_of(path), scale.path):
                p = _times(p, factor(scale.power, params, base_width), scale)
        return p

    return jax.tree_util.tree_map_with_path(scaled, params)


def _times(p, number, scale):
    """A parameter, of which a part is multiplied."""
    if (scale.start, scale.stop) == (0.0, 1.0):
        return p * number
    count = p.shape[scale.axis]
    places = jnp.arange(count)
    first, last = round(scale.start * count), round(scale.stop * count)
    numbers = jnp.where((places >= first) & (places < last), number, 1.0)
    shape = [1] * p.ndim
    shape[scale.axis] = count
    return p * numbers.astype(p.dtype).reshape(shape)

{optimiser}'''
OPTIMISER = '''
def optimiser(
    params,
    lr,
    base_width,
    weight_decay=0.0,{eps_argument}{matrix_argument}
):
    """The optimiser of these parameters; all numbers are those at base_width. The
    learning rate may be a schedule of optax. Weight decay is for matrices.{of_matrices}
    """
    transforms = {{}}

    def label(path, p):
        name = name_of(path)
        rule = rule_of(name)
        decay = weight_decay if _decays(name, p) else 0.0
        decay *= factor(rule.weight_decay, params, base_width)
{eps_line}{body}        key = f"{{rule}} {{decay:g}}{key}"
        transforms.setdefault(key, transform)
        return key

    labels = jax.tree_util.tree_map_with_path(label, params)
    return optax.multi_transform(transforms, labels)


def _scaled(lr, number):
    """A learning rate, or a schedule of it, times a number."""
    if callable(lr):
        return lambda step: number * lr(step)
    return number * lr

{decays}'''
OWN_OPTIMISER = '''
def optimiser(params, tx, base_width):
    """Your optimiser, with the updates of each parameter multiplied by its factor."""
    transforms = {}

    def label(path, p):
        number = factor(rule_of(name_of(path)).lr, params, base_width)
        transforms.setdefault(f"{number:g}", optax.scale(number))
        return f"{number:g}"

    labels = jax.tree_util.tree_map_with_path(label, params)
    return optax.chain(tx, optax.multi_transform(transforms, labels))
'''
DECAYS = '''
def _decays(name, p):
    """Whether a parameter is a matrix."""
    return p.ndim >= 2
'''
DECAYS_STACKED = '''
def _decays(name, p):
    """Whether a parameter is a matrix, or a stack of them for all layers."""
    return p.ndim - STACKED.get(name, 0) >= 2
'''
BODY = """\
        rate = _scaled(lr, factor(rule.lr, params, base_width))
        transform = {code}
"""
BODY_OF_MATRICES = """\
        is_matrix = any(fnmatchcase(name, pattern) for pattern in MATRICES)
        rate = matrix_lr if is_matrix and matrix_lr is not None else lr
        rate = _scaled(rate, factor(rule.lr, params, base_width))
        if is_matrix:
            transform = optax.contrib.muon(rate, weight_decay=decay)
        else:
            transform = {code}
"""
EPS_LINE = """\
        eps_of_rule = eps * factor(rule.eps, params, base_width)
"""
OF_MATRICES = """
    MATRICES have Muon, with the learning rate matrix_lr if it is given."""
USAGE = {
    "linen": (
        'params = initialise(model.init(key, x)["params"], base_width={base})',
        "tx = optimiser(params, {argument}, base_width={base})",
        "state = tx.init(params)",
        '# in the loss: model.apply({{"params": scale_outputs(params, base_width='
        "{base})}}, x)",
    ),
    "nnx": (
        "graph, params, rest = nnx.split(model, nnx.Param, ...)",
        "params = initialise(params, base_width={base})",
        "tx = optimiser(params, {argument}, base_width={base})",
        "state = tx.init(params)",
        "# in the loss: nnx.merge(graph, scale_outputs(params, base_width={base}),"
        " rest)(x)",
    ),
    "arrays": (
        "params = initialise(params, base_width={base})  # of Equinox:",
        "#   params, static = eqx.partition(model, eqx.is_inexact_array)",
        "tx = optimiser(params, {argument}, base_width={base})",
        "state = tx.init(params)",
        "# in the loss: apply(scale_outputs(params, base_width={base}), x)",
    ),
}


def source_of(
    content: FileContent, family: OptaxFamily, kind: str, stacked: Mapping[str, int]
) -> str:
    """The text of the file.

    `kind` says how a library holds parameters ("linen", "nnx" or "arrays"), and
    `stacked` has the number of axes of layers of the parameters that have any.
    """
    functions = FUNCTIONS.format(
        reference=content.reference.name,
        axis=content.reference.axis,
        over=content.reference.divided,
        what_scales="" if content.scales else ": they are the same",
        optimiser=_optimiser(family, DECAYS_STACKED if stacked else DECAYS),
    )
    head = "\n".join(_head(content, family, kind))
    rules = "\n".join(_rules(content, family, stacked))
    return f"{head}{HELPERS}{rules}\n{functions}"


def _head(content: FileContent, family: OptaxFamily, kind: str) -> list[str]:
    """The docstring of the file and its imports, as lines."""
    argument = "lr=…" if family.code else "tx=…"
    usage = [
        line.format(base=content.base_width, argument=argument) for line in USAGE[kind]
    ]
    imports = ["import jax", "import jax.numpy as jnp", "import optax"]
    if family.is_mixed:
        imports.append("import optax.contrib")
    return [
        f'"""Maximal updates (µP) of {content.module} with {family.words}, derived by'
        " netsor.",
        "",
        *wrapped(content.verified),
        "",
        "Usage:",
        "",
        *(f"    {line}" for line in usage),
        '"""',
        "",
        "from fnmatch import fnmatchcase",
        "from typing import NamedTuple",
        "",
        *imports,
        "",
    ]


def _rules(
    content: FileContent, family: OptaxFamily, stacked: Mapping[str, int]
) -> list[str]:
    """The rules and factors of the file, as lines of code."""

    def patterns(scale: OutputScale) -> list[str]:
        return [pattern_of(name) for name in scale.parameters]

    scales = scale_lines(content.scales, patterns, with_axis=True)
    lines = ["", *rule_lines(content.parameters), *tuple_lines("SCALES", scales)]
    if family.is_mixed:
        matrices = [f"    {pattern!r}," for pattern in content.matrices]
        lines += tuple_lines("MATRICES", matrices)
    if stacked:
        lines += ["# axes of layers", f"STACKED = {dict(stacked)!r}"]
    return lines


def _optimiser(family: OptaxFamily, decays: str) -> str:
    """The function that makes the optimiser, as code."""
    if not family.code:
        return OWN_OPTIMISER
    fields = dict.fromkeys(
        ("eps_argument", "eps_line", "matrix_argument", "of_matrices", "key"), ""
    )
    body = BODY
    if family.has_eps:
        fields["eps_argument"] = "\n    eps=1e-8,"
        fields["eps_line"] = EPS_LINE
    if family.is_mixed:
        body = BODY_OF_MATRICES
        fields["matrix_argument"] = "\n    matrix_lr=None,"
        fields["of_matrices"] = OF_MATRICES
        fields["key"] = " {is_matrix}"
    return OPTIMISER.format(body=body.format(code=family.code), decays=decays, **fields)
