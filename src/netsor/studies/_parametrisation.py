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
    """(n/base width)^width · (L/base depth)^depth."""

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
    part: str
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
        of a kind of weight.
        """
        if name == "vocabulary":  # most of its words are not in the batch
            return None
        if axis == "depth":
            return 0.0
        return self.outputs if name in ("logits", "loss", "head") else self.features

    def fields(self) -> dict[str, Any]:
        """All fields, as in a JSON file."""
        content: dict[str, Any] = {"name": self.name, "like": self.like}
        for kind, scaling in self.kinds.items():
            content[kind] = {
                name: power._asdict() for name, power in scaling._asdict().items()
            }
        content["logits"] = self.logits._asdict()
        content["scores"] = {**self.scores._asdict(), HEAD_DIM: self.head_dim}
        content["promise"] = {"features": self.features, "logits": self.outputs}
        return content


# exponents of n: in the standard deviations of matrices and of the head, in the
# multiplier of tied logits, and in eps of Adam for vectors and matrices, as that of the
# entries of their gradients (the head has 0); that of d in scores
EXPONENTS = {
    "sp": (-0.5, -0.5, 0.0, 0.0, -0.5),
    "ntk": (-0.5, -0.5, -0.5, -0.5, -0.5),
    "mup": (-0.5, -1.0, -1.0, -1.0, -1.0),
    "mean-field": (-1.0, -1.0, -1.0, -1.0, -1.0),
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


def known(name: str, optimiser: str) -> Parametrisation:
    """A parametrisation by its name."""
    if name == "fixed":
        return Parametrisation(name, WORDS[name])
    vectors, matrices, head = NAMED[optimiser].exponents[
        "mup" if name == "mean-field" else name
    ]
    std, last, tied, small, scores = EXPONENTS[name]
    eps = Power(small if "eps" in NAMED[optimiser].takes else 0.0)
    kinds = {kind: Scaling(Power(), Power(vectors), eps) for kind in VECTORS}
    kinds |= {kind: Scaling(Power(std), Power(matrices), eps) for kind in MATRICES}
    kinds["head"] = Scaling(Power(last), Power(head))
    return Parametrisation(
        name,
        WORDS[name],
        kinds,
        logits=Power(tied),
        head_dim=scores,
        features=-0.5 if name == "ntk" else 0.0,
        like=name,
    )


def parametrisation(
    given: str | Path | Mapping[str, Any] | Parametrisation, optimiser: str
) -> Parametrisation:
    """A parametrisation by its name, from a JSON or TOML file, or from the content of
    one.
    """
    if isinstance(given, Parametrisation):
        return given
    if isinstance(given, Mapping):
        return _read(dict(given), optimiser, "parametrisation", "parametrisation")
    if isinstance(given, str) and given in WORDS:
        return known(given, optimiser)
    path = Path(given) if isinstance(given, str | Path) else None
    if path is None or path.suffix not in (".json", ".toml"):
        allowed = (
            f"one of {', '.join(WORDS)}, a file that ends in .json or .toml, or a dict"
        )
        raise ArgumentError(
            "parametrisation", given if path is None else str(given), allowed
        )
    try:
        return _read(fields(path, MAX_FILE_BYTES), optimiser, path.stem, str(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(
            "parametrisation", str(path), f"a valid .json or .toml file: {why}"
        ) from None


def _read(
    given: dict[str, Any], optimiser: str, name: str, source: str
) -> Parametrisation:
    called, start = given.pop("name", name), given.pop("like", "fixed")
    is_name = isinstance(called, str) and called.isprintable()
    if not is_name or not 1 <= len(called) <= LONGEST:
        raise ValueError(
            f"name={shown(called)} of a parametrisation must be 1 to {LONGEST}"
            " printable characters"
        )
    if not isinstance(start, str) or start not in WORDS:
        raise ValueError(
            f"like={shown(start)} of a parametrisation must be one of"
            f" {', '.join(WORDS)}"
        )
    base = known(start, optimiser)
    begin: dict[str, Any] = {kind: base.scaling(kind) for kind in KINDS}
    begin |= {
        "logits": base.logits,
        "scores": {**base.scores._asdict(), HEAD_DIM: base.head_dim},
    }
    begin["promise"] = {"features": base.features, "logits": base.outputs}
    own = {key: value for key, value in given.items() if key != "matrices"}
    # of scores: in place of that of the dimension of a head
    if _gives_width(own.get("scores")):
        begin["scores"][HEAD_DIM] = 0.0
    matrices = given.get("matrices", {})
    merged = begin | {
        kind: _merged(begin[kind], matrices, "matrices") for kind in MATRICES
    }
    parts = _merged(merged, own, "")
    words = (
        f"{called}, from a file"
        if start == "fixed"
        else f"{called}, from a file that begins with {start}"
    )
    logits, scores, promise = (
        parts.pop(name) for name in ("logits", "scores", "promise")
    )
    return Parametrisation(
        called,
        words,
        parts,
        logits=logits,
        scores=Power(scores["width"], scores["depth"]),
        head_dim=scores[HEAD_DIM],
        features=promise["features"],
        outputs=promise["logits"],
        like=start,
        settings=(*_of_matrices(matrices, own, begin), *_settings(own, merged, base)),
        source=source if source.endswith((".json", ".toml")) else called,
    )


def _gives_width(scores: Any) -> bool:
    """Whether a file gives scores an exponent of the width, and none of the dimension
    of a head.
    """
    return isinstance(scores, Mapping) and "width" in scores and HEAD_DIM not in scores


def _of_matrices(
    given: Mapping[str, Any], own: Mapping[str, Any], begin: Mapping[str, Scaling]
) -> list[Setting]:
    """The settings of all matrices of the blocks; a kind with a number of its own is
    not among them.
    """
    found = []
    for part, powers in given.items():
        for axis, value in powers.items():
            kinds = tuple(
                kind for kind in MATRICES if axis not in own.get(kind, {}).get(part, {})
            )
            if any(
                value != getattr(getattr(begin[kind], part), axis) for kind in MATRICES
            ):
                found.append(Setting(f"matrices.{part}.{axis}", part, axis, kinds))
    return found


def _settings(
    own: Mapping[str, Any], merged: Mapping[str, Any], base: Parametrisation
) -> list[Setting]:
    """The other settings that change a number."""
    found = []
    for name, table in own.items():
        if name in KINDS:
            for part, powers in table.items():
                before = getattr(merged[name], part)._asdict()
                changed = [
                    axis for axis, value in powers.items() if value != before[axis]
                ]
                found += [
                    Setting(f"{name}.{part}.{axis}", part, axis, (name,))
                    for axis in changed
                ]
            continue
        before = (
            merged[name] if isinstance(merged[name], dict) else merged[name]._asdict()
        )
        if name == "scores":
            before = {**before, HEAD_DIM: base.head_dim}
        found += [
            Setting(f"{name}.{of}", name, of)
            for of, value in table.items()
            if value != before[of]
        ]
    return found


def _merged(old: Any, given: Any, place: str) -> Any:
    """The exponents of a file over those that it begins with: nested tables of
    numbers.
    """
    if isinstance(old, float):
        if (
            isinstance(given, bool)
            or not isinstance(given, int | float)
            or not abs(given) <= MAX_EXPONENT
        ):
            allowed = f"a number from −{MAX_EXPONENT:g} to {MAX_EXPONENT:g}"
            raise ValueError(
                f"{place}={shown(given)} of a parametrisation must be {allowed}"
            )
        return float(given)
    parts = old if isinstance(old, dict) else old._asdict()
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{place}={shown(given)} of a parametrisation must be a table with"
            f" {', '.join(parts)}"
        )
    for name in given:
        if name not in parts:
            whole = place or "a parametrisation"
            raise ValueError(
                f"{shown(name)} is not part of {whole}; its parts are"
                f" {', '.join(parts)}"
            )
    inside = f"{place}." if place else ""
    new = {
        name: _merged(parts[name], value, f"{inside}{name}")
        for name, value in given.items()
    }
    return {**old, **new} if isinstance(old, dict) else old._replace(**new)


GROW_HEADS, GROW_HEAD_DIM = "heads", "head-dim"
GROW = (GROW_HEADS, GROW_HEAD_DIM)  # one grows with the width; the other stays
STD_FIELDS = {"query": "q", "key": "k", "value": "v", "output": "o", "head": "logits"}


def scaled(
    model: Transformer, width: int, depth: int, rule: Parametrisation, grow: str
) -> Transformer:
    """The model with another width and depth.

    The perceptron keeps its ratio to the stream. The dimension of a head stays and the
    number of heads grows with the width, as in families of real models, or the other
    way round.
    """
    ratio, deeper = width / model.width, depth / model.layers
    heads, groups, d = model.heads, model.key_heads, model.d
    if grow == GROW_HEADS:
        heads = _times(heads, width, model, "heads")
        groups = _times(groups, width, model, "groups")
    else:
        d = _times(d, width, model, "the dimension of a head")
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
        "hidden": max(1, round(model.hidden * ratio)),
    }
    unread = idle(model)
    for kind in KINDS:
        name = f"std_{STD_FIELDS.get(kind, kind)}"
        if name not in unread:
            factor = rule.scaling(kind).std.of(ratio, deeper)
            changes[name] = getattr(model, name) * factor
    if model.tied:
        changes["logit_scale"] = model.logit_scale * rule.logits.of(ratio, deeper)
    if model.score_scale is None:
        default_scale, scale = d**-0.5, model.d**-0.5
    else:
        default_scale = scale = model.score_scale
    scale = scale * rule.scores.of(ratio, deeper) * (d / model.d) ** rule.head_dim
    if scale != default_scale:
        changes["score_scale"] = scale
    return model.replace(**changes)


def _times(count: int, width: int, model: Transformer, what: str) -> int:
    """A number of the model that grows with the width, at this width."""
    if count * width % model.width:
        unit = model.width // math.gcd(count, model.width)
        allowed = (
            f"a multiple of {unit} for {model.name}: {what} ({count} at {model.width})"
            " grows with the width"
        )
        raise ArgumentError("widths", width, allowed)
    return count * width // model.width
