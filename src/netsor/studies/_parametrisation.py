"""How standard deviations and learning rates of each kind of weight scale with the
width n and the depth.

All are powers of width and depth, relative to the model's. "Matrices" are the matrices
of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .._validate import ArgumentError, shown
from ..models import Transformer
from ..models._description import idle
from ..models._training import KINDS
from ..optim import NAMED
from ..runtime._files import fields

MATRICES = ("query", "key", "value", "output", "in", "gate", "out")
# fan-in is the vocabulary, or the positions: it does not grow
VECTORS = ("embedding", "position")
HEAD_DIM = "head_dim"  # the third exponent of scores
MAX_FILE_BYTES = 2**14  # of a file: a parametrisation has a few hundred
LONGEST = 100  # characters of a name, for figures and tables
MAX_EXPONENT = 4.0  # of the absolute value of an exponent


class Power(NamedTuple):
    """A power of width and depth: (n/base width)^width · (L/base depth)^depth."""

    width: float = 0.0
    depth: float = 0.0

    def of(self, width: float, depth: float) -> float:
        """Its value at these ratios to the base."""
        return float(width**self.width * depth**self.depth)


CONSTANT = Power()


class Scaling(NamedTuple):
    """The scaling of one kind of weight."""

    std: Power = Power()
    lr: Power = Power()
    eps: Power = Power()  # of Adam


class Setting(NamedTuple):
    """A number of a file that changes the starting point."""

    key: str  # as in the file: "matrices.lr.width"
    # "std", "lr" or "eps" of kinds of weights; "logits", "scores" or "promise"
    quantity: str
    of: str  # "width", "depth" or "head_dim"; "features" or "logits" of a promise
    kinds: tuple[str, ...] = ()  # the kinds of weights that it is about


@dataclass(frozen=True)
class Parametrisation:
    """A parametrisation, with its promise: the exponents of n in the changes of one
    step.
    """

    name: str
    words: str
    kinds: Mapping[str, Scaling] = field(default_factory=dict)  # others do not scale
    # a multiplier of tied logits, which have no separate weights
    logits: Power = CONSTANT
    scores: Power = CONSTANT  # of ⟨q, k⟩
    head_dim: float = -0.5  # of ⟨q, k⟩: the exponent of the dimension of a head
    features: float = 0.0  # the promise for all activations
    outputs: float = 0.0  # the promise for logits and loss
    like: str = "fixed"  # the starting point
    settings: tuple[Setting, ...] = ()  # of a file: its changes to the starting point
    source: str = ""  # the file

    @property
    def is_maximal(self) -> bool:
        """Whether its promise is that of maximal updates: features and outputs change
        by as much at every width.
        """
        return not self.features and not self.outputs

    def scaling(self, kind: str) -> Scaling:
        """The scaling of a kind of weight."""
        return self.kinds.get(kind, Scaling())

    def promise(self, name: str, axis: str) -> float | None:
        """The expected exponent of the change of an activation, or of the update ΔW·x
        of a kind of weight, in the width or the depth; None where nothing is promised.
        """
        if name == "vocabulary":  # most of its words are not in the batch
            return None
        if axis == "depth":
            return 0.0
        if name in ("logits", "loss", "head"):
            return self.outputs
        return self.features

    def fields(self) -> dict[str, Any]:
        """All fields, as in a JSON file."""
        content: dict[str, Any] = {"name": self.name, "like": self.like}
        for kind, scaling in self.kinds.items():
            content[kind] = {
                "std": scaling.std._asdict(),
                "lr": scaling.lr._asdict(),
                "eps": scaling.eps._asdict(),
            }
        content["logits"] = self.logits._asdict()
        content["scores"] = {**self.scores._asdict(), HEAD_DIM: self.head_dim}
        content["promise"] = {"features": self.features, "logits": self.outputs}
        return content


class Exponents(NamedTuple):
    """The exponents of n in a parametrisation, and that of d in scores."""

    matrices: float  # of standard deviations
    head: float
    tied_logits: float  # of a multiplier
    # in Adam's eps for vectors and matrices, as that of the entries of their gradients;
    # the head has 0
    eps: float
    scores: float


EXPONENTS = {
    "sp": Exponents(matrices=-0.5, head=-0.5, tied_logits=0.0, eps=0.0, scores=-0.5),
    "ntk": Exponents(matrices=-0.5, head=-0.5, tied_logits=-0.5, eps=-0.5, scores=-0.5),
    "mup": Exponents(matrices=-0.5, head=-1.0, tied_logits=-1.0, eps=-1.0, scores=-1.0),
    "mean-field": Exponents(
        matrices=-1.0, head=-1.0, tied_logits=-1.0, eps=-1.0, scores=-1.0
    ),
}
WORDS = {
    "fixed": (
        "nothing follows the width: the standard deviations of the configuration, one"
        " learning rate"
    ),
    "sp": (
        "standard: matrices n^(−1/2), one learning rate for all; it makes no"
        " prediction, and is tested against 0"
    ),
    "ntk": (
        "of the neural tangent kernel: matrices n^(−1/2), learning rates as its table"
        " has them for the optimiser: features move like n^(−1/2), outputs do not"
        " shrink"
    ),
    "mup": (
        "maximal updates (Tensor Programs IV and V): matrices n^(−1/2), the head 1/n,"
        " scores over d, learning rates as its table has them for the optimiser"
    ),
    "mean-field": (
        "mean field: matrices and head 1/n, learning rates as those of maximal updates"
    ),
}


def named_parametrisation(name: str, optimiser: str) -> Parametrisation:
    """One of the parametrisations in WORDS; learning rates depend on the optimiser."""
    if name == "fixed":
        return Parametrisation(name, WORDS[name])
    exponents = EXPONENTS[name]
    # of learning rates
    rates = NAMED[optimiser].exponents["mup" if name == "mean-field" else name]
    lr_of_vectors, lr_of_matrices, lr_of_head = rates
    eps = Power(exponents.eps if "eps" in NAMED[optimiser].takes else 0.0)
    kinds = {}
    for kind in VECTORS:
        kinds[kind] = Scaling(lr=Power(lr_of_vectors), eps=eps)
    for kind in MATRICES:
        kinds[kind] = Scaling(
            std=Power(exponents.matrices), lr=Power(lr_of_matrices), eps=eps
        )
    kinds["head"] = Scaling(std=Power(exponents.head), lr=Power(lr_of_head))
    return Parametrisation(
        name=name,
        words=WORDS[name],
        kinds=kinds,
        logits=Power(exponents.tied_logits),
        head_dim=exponents.scores,
        features=-0.5 if name == "ntk" else 0.0,
        like=name,
    )


def parametrisation(
    name: str | Path | Mapping[str, Any] | Parametrisation, optimiser: str
) -> Parametrisation:
    """A parametrisation by its name, from a JSON or TOML file, or from the content of
    one.
    """
    if isinstance(name, Parametrisation):
        return name
    if isinstance(name, Mapping):
        return _read(
            dict(name),
            optimiser,
            default_name="parametrisation",
            source="parametrisation",
        )
    if isinstance(name, str) and name in WORDS:
        return named_parametrisation(name, optimiser)
    path = Path(name) if isinstance(name, str | Path) else None
    if path is None or path.suffix not in (".json", ".toml"):
        allowed = (
            f"one of {', '.join(WORDS)}, a file that ends in .json or .toml, or a dict"
        )
        rejected = name if path is None else str(name)
        raise ArgumentError("parametrisation", rejected, allowed)
    try:
        return _read(
            fields(path, MAX_FILE_BYTES),
            optimiser,
            default_name=path.stem,
            source=str(path),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(
            "parametrisation", str(path), f"a valid .json or .toml file: {reason}"
        ) from None


def _read(
    content: dict[str, Any], optimiser: str, default_name: str, source: str
) -> Parametrisation:
    """A parametrisation from the content of a file: a starting point by its name, and
    exponents that replace those of it.

    `default_name` is its name if the content has none, `source` the path of the file or
    "parametrisation".
    """
    name = content.pop("name", default_name)
    starting_point = content.pop("like", "fixed")
    _check_names(name, starting_point)
    start = _as_tables(named_parametrisation(starting_point, optimiser))
    # "matrices" sets all matrices of the blocks, and each kind may set its own
    matrices = content.get("matrices", {})
    tables = {key: value for key, value in content.items() if key != "matrices"}
    # an exponent of the width replaces that of the dimension of a head
    if _gives_width(tables.get("scores")):
        start["scores"][HEAD_DIM] = 0.0
    with_matrices = dict(start)
    for kind in MATRICES:
        with_matrices[kind] = _merged(start[kind], matrices, "matrices")
    merged = _merged(with_matrices, tables, "")
    words = f"{name}, from a file"
    if starting_point != "fixed":
        words += f" that begins with {starting_point}"
    logits = merged.pop("logits")
    scores = merged.pop("scores")
    promise = merged.pop("promise")
    return Parametrisation(
        name,
        words,
        kinds=merged,
        logits=logits,
        scores=Power(scores["width"], scores["depth"]),
        head_dim=scores[HEAD_DIM],
        features=promise["features"],
        outputs=promise["logits"],
        like=starting_point,
        settings=(
            *_matrix_settings(matrices, tables, start),
            *_settings(tables, with_matrices),
        ),
        source=source if source.endswith((".json", ".toml")) else name,
    )


def _check_names(name: Any, like: Any) -> None:
    """Reject a name that cannot be printed, and a starting point without a meaning."""
    is_name = isinstance(name, str) and name.isprintable()
    if not is_name or not 1 <= len(name) <= LONGEST:
        raise ValueError(
            f"name={shown(name)} of a parametrisation must be 1 to {LONGEST}"
            " printable characters"
        )
    if not isinstance(like, str) or like not in WORDS:
        raise ValueError(
            f"like={shown(like)} of a parametrisation must be one of {', '.join(WORDS)}"
        )


def _as_tables(rule: Parametrisation) -> dict[str, Any]:
    """A parametrisation by the tables of a file: one for each kind of weight, and
    "logits", "scores" and "promise".
    """
    tables: dict[str, Any] = {kind: rule.scaling(kind) for kind in KINDS}
    tables["logits"] = rule.logits
    tables["scores"] = {**rule.scores._asdict(), HEAD_DIM: rule.head_dim}
    tables["promise"] = {"features": rule.features, "logits": rule.outputs}
    return tables


def _gives_width(scores: Any) -> bool:
    """Whether a file gives scores an exponent of the width, and none of the dimension
    of a head.
    """
    return isinstance(scores, Mapping) and "width" in scores and HEAD_DIM not in scores


def _matrix_settings(
    matrices: Mapping[str, Any],
    tables: Mapping[str, Any],
    start: Mapping[str, Scaling],
) -> list[Setting]:
    """The settings in the table "matrices", as {"lr": {"width": -1}}, that change the
    starting point. A kind whose own table sets the same number is not among their
    kinds.
    """
    settings = []
    for quantity, powers in matrices.items():
        for axis, value in powers.items():
            kinds = []
            is_change = False
            for kind in MATRICES:
                set_by_kind = tables.get(kind, {}).get(quantity, {})
                if axis not in set_by_kind:
                    kinds.append(kind)
                power: Power = getattr(start[kind], quantity)
                if value != getattr(power, axis):
                    is_change = True
            if is_change:
                key = f"matrices.{quantity}.{axis}"
                settings.append(
                    Setting(key=key, quantity=quantity, of=axis, kinds=tuple(kinds))
                )
    return settings


def _settings(
    tables: Mapping[str, Any], with_matrices: Mapping[str, Any]
) -> list[Setting]:
    """The settings in the other tables of a file that change a number; `with_matrices`
    is the starting point after the table "matrices".
    """
    settings = []
    for name, table in tables.items():
        if name in KINDS:
            settings += _kind_settings(name, table, with_matrices[name])
            continue
        before = _as_table(with_matrices[name])
        for key, value in table.items():
            if value != before[key]:
                settings.append(Setting(f"{name}.{key}", name, key))
    return settings


def _kind_settings(
    kind: str, table: Mapping[str, Any], start: Scaling
) -> list[Setting]:
    """The settings in the table of one kind of weight that change a number, as
    {"lr": {"width": -1}}.
    """
    settings = []
    for quantity, powers in table.items():
        before: dict[str, float] = getattr(start, quantity)._asdict()
        for axis, value in powers.items():
            if value != before[axis]:
                key = f"{kind}.{quantity}.{axis}"
                settings.append(
                    Setting(key=key, quantity=quantity, of=axis, kinds=(kind,))
                )
    return settings


def _as_table(fields: Any) -> dict[str, Any]:
    """A table, or a NamedTuple as one."""
    table: dict[str, Any] = fields if isinstance(fields, dict) else fields._asdict()
    return table


def _merged(start: Any, changes: Any, path: str) -> Any:
    """The exponents that a file begins with, replaced by those that it has: `start` and
    `changes` are nested tables of numbers, or one number, at this path of the file.

    For example a `Scaling` and {"lr": {"width": -1}} become that scaling with another
    exponent of the width in `lr`.
    """
    if isinstance(start, float):
        return _exponent(changes, path)
    table = _as_table(start)
    if not isinstance(changes, Mapping):
        raise ValueError(
            f"{path}={shown(changes)} of a parametrisation must be a table with"
            f" {', '.join(table)}"
        )
    for name in changes:
        if name not in table:
            parent = path or "a parametrisation"
            raise ValueError(
                f"{shown(name)} is not part of {parent}; its parts are"
                f" {', '.join(table)}"
            )
    prefix = f"{path}." if path else ""
    merged = {}
    for name, value in changes.items():
        merged[name] = _merged(table[name], value, f"{prefix}{name}")
    if isinstance(start, dict):
        return {**start, **merged}
    return start._replace(**merged)


def _exponent(value: Any, path: str) -> float:
    """An exponent of a file, checked."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= MAX_EXPONENT:
        allowed = f"a number from −{MAX_EXPONENT:g} to {MAX_EXPONENT:g}"
        raise ValueError(
            f"{path}={shown(value)} of a parametrisation must be {allowed}"
        )
    return float(value)


GROW_HEADS, GROW_HEAD_DIM = "heads", "head-dim"
GROW = (GROW_HEADS, GROW_HEAD_DIM)  # one grows with the width; the other stays
STD_FIELDS = {"query": "q", "key": "k", "value": "v", "output": "o", "head": "logits"}


def scaled(
    model: Transformer, width: int, depth: int, rule: Parametrisation, grow: str
) -> Transformer:
    """The model with another width and depth, and its standard deviations and factors
    of scores and logits scaled by the parametrisation.

    The perceptron keeps its ratio to the stream. The dimension of a head stays and the
    number of heads grows with the width, as in families of real models, or the other
    way round.
    """
    width_ratio = width / model.width
    depth_ratio = depth / model.layers
    heads = model.heads
    groups = model.key_heads
    d = model.d
    if grow == GROW_HEADS:
        heads = _times(heads, width, model, noun="heads")
        groups = _times(groups, width, model, noun="groups")
    else:
        d = _times(d, width, model, noun="the dimension of a head")
    name = f"{model.name}, {rule.name}, n = {width:,}"
    if depth != model.layers:
        name += f", L = {depth}"
    changes: dict[str, Any] = {
        "name": name,
        "layers": depth,
        "width": width,
        "heads": heads,
        "groups": None if model.groups is None else groups,
        "head_dim": d,
        "hidden": max(1, round(model.hidden * width_ratio)),
    }
    idle_fields = idle(model)
    for kind in KINDS:
        std_field = f"std_{STD_FIELDS.get(kind, kind)}"
        if std_field not in idle_fields:
            factor = rule.scaling(kind).std.of(width_ratio, depth_ratio)
            changes[std_field] = getattr(model, std_field) * factor
    if model.tied:
        factor = rule.logits.of(width_ratio, depth_ratio)
        changes["logit_scale"] = model.logit_scale * factor
    changes |= _score_change(
        model, rule, head_dim=d, factor=rule.scores.of(width_ratio, depth_ratio)
    )
    return model.replace(**changes)


def _score_change(
    model: Transformer, rule: Parametrisation, head_dim: int, factor: float
) -> dict[str, float]:
    """The new `score_scale` of a model whose heads get another dimension; empty if the
    model has it without being told. `factor` is the rule's by width and depth.
    """
    # the factor of scores: of the model, and of the new one if nothing scaled it
    if model.score_scale is None:
        scale = model.d**-0.5
        unscaled = head_dim**-0.5
    else:
        scale = model.score_scale
        unscaled = model.score_scale
    scale = scale * factor
    scale = scale * (head_dim / model.d) ** rule.head_dim
    return {} if scale == unscaled else {"score_scale": scale}


def _times(count: int, width: int, model: Transformer, noun: str) -> int:
    """A number of the model that grows with the width, at this width: `noun` is what it
    counts. Widths at which it is not a whole number are rejected.
    """
    if count * width % model.width:
        unit = model.width // math.gcd(count, model.width)
        allowed = (
            f"a multiple of {unit} for {model.name}: {noun} ({count} at {model.width})"
            " grows with the width"
        )
        raise ArgumentError("widths", width, allowed)
    return count * width // model.width
