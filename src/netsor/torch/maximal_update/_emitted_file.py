"""A derived rule as a file of plain PyTorch."""

from __future__ import annotations

from ...maximal_update._file_content import (
    FileContent,
    rule_lines,
    scale_lines,
    tuple_lines,
    wrapped,
)
from ...maximal_update._power import Power
from ...maximal_update._rules import OutputScale, layer_pattern_of

HELPERS = '''

class Rule(NamedTuple):
    """Exponents of width / base_width{and_depth}."""

    std: tuple[float, float] = (0.0, 0.0)
    lr: tuple[float, float] = (0.0, 0.0)
    eps: tuple[float, float] = (0.0, 0.0)
    weight_decay: tuple[float, float] = (0.0, 0.0)


class Scale(NamedTuple):
    """{scaled}"""

    path: str
    power: tuple[float, float]
    start: float = 0.0
    stop: float = 1.0

'''

SCALED = (
    "A factor of the output of a submodule, or of a part of its last axis.",
    "A factor of the output of a submodule, or of rows of a parameter.",
)

FUNCTIONS = '''

def width_of(model):
    """The width of a model."""
    return model.get_parameter({reference!r}).shape[{axis}]{over}


def patterns_of(name):
    """A path, and the same with * for the number of a layer, and for all numbers."""
    number = r"(?<=\\.)\\d+(?=\\.|$)"
    return name, re.sub(number, "*", name, count=1), re.sub(number, "*", name)

{original_name}{depth_of}
def factor(power, model, base_width{base_depth_argument}):
    """A power of the width{and_the_depth}, relative to the base."""
    width, depth = power
    scale = (width_of(model) / base_width) ** width
{depth_factor}    return scale


def rule_of(name):
    """The exponents of a parameter, by its name or its pattern."""
    for pattern in patterns_of({name}):
        if pattern in RULES:
            return RULES[pattern]
    raise KeyError(f"no rule for the parameter {{name}}: derive the rules again")


def initialise(model, base_width{base_depth_argument}):
    """Rescale the initial numbers of a new model, in place. Call it once, directly
    after the model is constructed, and not after loading a checkpoint.
    """
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(factor(rule_of(name).std, model, base_width{base_depth}))


def scale_outputs(model, base_width{base_depth_argument}):
    """Multiply {what_is_scaled}. Call it for every model, also
    before a checkpoint is loaded.
    """
    for scale in SCALES:
        number = factor(scale.power, model, base_width{base_depth})
        for path, submodule in model.named_modules():
            if scale.path in patterns_of(path):
                hook = _times(number, scale.start, scale.stop)
                submodule.register_forward_hook(hook)
{scaled_parameters}

def _times(number, start, stop):
    """A hook that multiplies entries of the last axis of an output."""

    def hook(module, args, output):
        first = output[0] if isinstance(output, tuple) else output
        if (start, stop) == (0.0, 1.0):
            scaled = first * number
        else:
            count = first.shape[-1]
            numbers = torch.ones(count, dtype=first.dtype, device=first.device)
            numbers[round(start * count) : round(stop * count)] = number
            scaled = first * numbers
        return (scaled, *output[1:]) if isinstance(output, tuple) else scaled

    return hook


def param_groups(
    model,
    lr,
    base_width{base_depth_line},
    weight_decay=0.0{eps_argument}{matrix_argument},
):
    """The parameter groups of the optimiser; all numbers are those at base_width.
    Weight decay is for parameters with two axes or more.{of_matrices}
    """
    groups = {{}}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        rule, decay = rule_of(name), weight_decay if p.ndim >= 2 else 0.0
{key}        group["params"].append(p)
        group["lr"] = {lr} * factor(rule.lr, model, base_width{base_depth})
{eps_line}        decay *= factor(rule.weight_decay, model, base_width{base_depth})
        group["weight_decay"] = decay
    return list(groups.values())
'''

DEPTH_FIELDS = (
    "depth_of",
    "base_depth_argument",
    "base_depth_line",
    "base_depth",
    "and_the_depth",
    "depth_factor",
)
DEPTH_OF = '''
def depth_of(model):
    """The number of layers of a model."""
    names = (patterns_of({name}) for name, _ in model.named_parameters())
    return sum({pattern!r} in patterns for patterns in names)

'''

ROWS = '''
class Rows(torch.nn.Module):
    """Multiplies rows of a parameter, from `start` to `stop` as shares of them."""

    def __init__(self, number, start, stop):
        super().__init__()
        self.number, self.start, self.stop = number, start, stop

    def forward(self, p):
        numbers = torch.ones(len(p), dtype=p.dtype, device=p.device)
        rows = slice(round(self.start * len(p)), round(self.stop * len(p)))
        numbers[rows] = self.number
        return p * numbers.reshape(-1, *[1] * (p.ndim - 1))

'''

OF_MATRICES = """
    Groups of matrices have "is_matrix": True, and the learning rate matrix_lr."""
KEY = """\
        group = groups.setdefault((rule, decay), {"params": []})
"""
KEY_OF_MATRICES = """\
        is_matrix = any(x in MATRICES for x in patterns_of(name))
        rate = matrix_lr if is_matrix and matrix_lr is not None else lr
        key = (rule, decay, is_matrix)
        group = groups.setdefault(key, {"params": [], "is_matrix": is_matrix})
"""

SCALED_PARAMETERS = """\
        for name, _ in list(model.named_parameters()):
            if scale.path in patterns_of(name):
                path, _, last = name.rpartition(".")
                rows = Rows(number, scale.start, scale.stop)
                owner = model.get_submodule(path)
                parametrize.register_parametrization(owner, last, rows)
"""
ORIGINAL_NAME = '''
def original_name(name):
    """The name of a parameter that Rows multiplies, and of every other one."""
    if "parametrizations." in name:
        name = name.replace("parametrizations.", "").removesuffix(".original")
    return name

'''


def _fields_of_rows(has_rows: bool) -> dict[str, str]:
    """What FUNCTIONS says about rows of parameters, which are scaled in some files."""
    if not has_rows:
        return {
            "what_is_scaled": "outputs of submodules, by forward hooks",
            "original_name": "",
            "name": "name",
            "scaled_parameters": "",
        }
    return {
        "what_is_scaled": "outputs of submodules and rows of parameters",
        "original_name": ORIGINAL_NAME,
        "name": "original_name(name)",
        "scaled_parameters": SCALED_PARAMETERS,
    }


def _fields_of_depth(
    pattern: str | None, base: int | None, name: str
) -> dict[str, str]:
    """What FUNCTIONS says about the depth, the number of parameters of a pattern.

    `name` is the code of the name of a parameter.
    """
    if pattern is None:
        return dict.fromkeys(DEPTH_FIELDS, "")
    return {
        "depth_of": DEPTH_OF.format(pattern=pattern, name=name),
        "base_depth_argument": f", base_depth={base}",
        "base_depth_line": f",\n    base_depth={base}",
        "base_depth": ", base_depth",
        "and_the_depth": " and the depth",
        "depth_factor": "    scale *= (depth_of(model) / base_depth) ** depth\n",
    }


def _fields_of_eps(
    has_eps: bool, has_depth: bool, has_matrices: bool
) -> dict[str, str]:
    """What FUNCTIONS says about an eps that follows the width, and the depth if any.

    Matrices with an optimiser of their own have no eps of Adam.
    """
    if not has_eps:
        return {"eps_argument": "", "eps_line": ""}
    arguments = "rule.eps, model, base_width"
    if has_depth:
        arguments += ", base_depth"
    line = f'        group["eps"] = eps * factor({arguments})\n'
    if has_matrices:
        line = f"        if not is_matrix:\n    {line}"
    return {"eps_argument": ",\n    eps=1e-8", "eps_line": line}


def _fields_of_matrices(has_matrices: bool) -> dict[str, str]:
    """What FUNCTIONS says about matrices with an optimiser of their own."""
    if not has_matrices:
        return {"matrix_argument": "", "of_matrices": "", "key": KEY, "lr": "lr"}
    return {
        "matrix_argument": ",\n    matrix_lr=None",
        "of_matrices": OF_MATRICES,
        "key": KEY_OF_MATRICES,
        "lr": "rate",
    }


def source_of(content: FileContent) -> str:
    """The text of the file."""
    has_depth = content.depth_pattern is not None
    has_eps = any(rule.eps != Power() for rule in content.parameters.values())
    has_rows = any(scale.parameters for scale in content.scales)
    has_matrices = bool(content.matrices)
    of_rows = _fields_of_rows(has_rows)
    functions = FUNCTIONS.format(
        reference=content.reference.name,
        axis=content.reference.axis,
        over=content.reference.divided,
        **of_rows,
        **_fields_of_depth(content.depth_pattern, content.base_depth, of_rows["name"]),
        **_fields_of_matrices(has_matrices),
        **_fields_of_eps(has_eps, has_depth, has_matrices),
    )
    head = "\n".join(_head(content, has_depth, has_rows))
    rules = "\n".join(_rules(content))
    return f"{head}{_helpers(has_depth, has_rows)}{rules}\n{functions}"


def _head(content: FileContent, has_depth: bool, has_rows: bool) -> list[str]:
    """The docstring of the file and its imports, as lines."""
    arguments = "width, depth" if has_depth else "width"
    imports = ["import torch"]
    if has_rows:
        imports.append("from torch.nn.utils import parametrize")
    return [
        f'"""Maximal updates (µP) of {content.module} with {content.optimiser}, derived'
        " by netsor.",
        "",
        *wrapped(content.verified),
        "",
        "Usage:",
        "",
        f"    model = {content.module}({arguments})",
        f"    initialise(model, base_width={content.base_width})     # new models only",
        f"    scale_outputs(model, base_width={content.base_width})  # always",
        *_usage_of_groups(content),
        '"""',
        "",
        "import re",
        "from typing import NamedTuple",
        "",
        *imports,
        "",
    ]


def _helpers(has_depth: bool, has_rows: bool) -> str:
    """The classes of the file, as code."""
    and_depth = " and of depth / base_depth" if has_depth else ", and 0 of the depth"
    helpers = HELPERS.replace("{and_depth}", and_depth)
    helpers = helpers.replace("{scaled}", SCALED[has_rows])
    return helpers + ROWS if has_rows else helpers


def _rules(content: FileContent) -> list[str]:
    """The rules and factors of the file, as lines of code."""

    def patterns(scale: OutputScale) -> list[str]:
        return [layer_pattern_of(path) for path in scale.parameters or (scale.path,)]

    scales = scale_lines(content.scales, patterns, with_axis=False)
    lines = [
        "",
        f"OPTIMISER = {content.optimiser!r}",
        f"BASE_WIDTH = {content.base_width}  # at which the rule was derived",
        *rule_lines(content.parameters),
        "SCALES = (",
        *scales,
        ")",
    ]
    if content.matrices:
        matrices = [f"    {pattern!r}," for pattern in content.matrices]
        lines += tuple_lines("MATRICES", matrices)
    return lines


def _usage_of_groups(content: FileContent) -> list[str]:
    """How to make the optimiser, as lines of code."""
    groups = f"param_groups(model, lr=…, base_width={content.base_width})"
    optimiser = content.optimiser
    if not content.matrices:
        classes = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}
        if optimiser in classes:
            optimiser = f"torch.optim.{classes[optimiser]}"
        return [f"    optimiser = {optimiser}({groups})"]
    if optimiser == "muon":
        optimiser = "torch.optim.Muon"
    return [
        f"    groups = {groups}",
        f'    matrices = {optimiser}([x for x in groups if x["is_matrix"]])',
        '    others = torch.optim.AdamW([x for x in groups if not x["is_matrix"]])',
    ]
