"""What a user passes: models of Flax, Equinox and Haiku, and plain functions.

Each is two functions: one draws the parameters with a key, the other computes the
outputs of parameters and inputs. `Model` holds their jaxprs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from .._validate import ArgumentError

# names of the collections of Flax and of wrappers of variables, which paths leave out
OUTER = ("params",)
INNER = ("value", "raw_value")


class Functions(NamedTuple):
    """A model as two functions."""

    name: str
    # of a key; None if the parameters are given
    init: Callable[[Any], Any] | None
    apply: Callable[..., Any]  # of parameters and inputs
    given: Any = None  # the parameters, if they are given
    weight_first: bool = False  # matrices have the shape (outputs, inputs)


class Leaves(NamedTuple):
    """Parameters as a list of arrays, and how to put them together again."""

    names: list[str]
    arrays: list[Any]
    structure: Any

    @classmethod
    def of(cls, tree: Any) -> Leaves:
        """The leaves of a pytree, named by their paths."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        return cls(
            names=_unique([name_of_path(path) for path, _ in leaves]),
            arrays=[leaf for _, leaf in leaves],
            structure=structure,
        )


def name_of_path(path: Sequence[Any]) -> str:
    """The path of a leaf, as in "layers.0.query.kernel"."""
    parts = [
        str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))
        for key in path
    ]
    if len(parts) > 1 and parts[0] in OUTER:
        parts = parts[1:]
    if len(parts) > 1 and parts[-1] in INNER:
        parts = parts[:-1]
    # Haiku's names have slashes, and Linen's numbers follow an underscore
    return ".".join(parts).replace("/~/", ".").replace("/", ".")


def _unique(names: list[str]) -> list[str]:
    """The names; those that occur twice get a number."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        counts[name] = counts.get(name, -1) + 1
        result.append(f"{name}#{counts[name]}" if counts[name] else name)
    return result


def functions_of(
    model: Any, inputs: tuple[Any, ...]
) -> tuple[Functions, tuple[Any, ...]]:
    """A model as two functions, and its inputs without the parameters."""
    of_pair = _of_pair(model, inputs)
    if of_pair is not None:
        return of_pair, inputs
    if not callable(model):
        raise ArgumentError("model", model, EXPECTED)
    if _is_instance(model):
        raise ArgumentError(
            "model",
            type(model).__name__,
            "a function of a key that makes it, lambda key: …: its weights do not show"
            " the law that they were drawn with",
        )
    made = _made(model) if _takes_one_argument(model) else None
    if made is not None:
        return _of_constructor(model, made, inputs), inputs
    if not inputs:
        raise ArgumentError("model", model, EXPECTED)
    return _of_apply(model, inputs[0]), inputs[1:]


EXPECTED = (
    "a function of a key that makes a model of Flax or Equinox, a module of Linen, a"
    " pair (init, apply), or a function of parameters and inputs"
)


def _of_apply(apply: Callable[..., Any], parameters: Any) -> Functions:
    """A function of parameters and inputs; the parameters may be drawn by a key."""
    name = getattr(apply, "__name__", type(apply).__name__)
    if callable(parameters):
        return Functions(name, parameters, apply)
    return Functions(name=name, init=None, apply=apply, given=parameters)


def _of_pair(model: Any, inputs: tuple[Any, ...]) -> Functions | None:
    """A pair of functions init and apply, or a model that has both."""
    init, apply = getattr(model, "init", None), getattr(model, "apply", None)
    if isinstance(model, tuple) and len(model) == 2 and all(map(callable, model)):
        init, apply = model
    if not callable(init) or not callable(apply):
        return None
    name = type(model).__name__
    if isinstance(model, tuple):
        name = getattr(apply, "__name__", "apply")
    takes_key_only = _takes_one_argument(init)

    def draw(key: Any) -> Any:
        """The parameters."""
        return init(key) if takes_key_only else init(key, *inputs)

    names = _names_of_arguments(apply)
    if names[1:2] == ["rng"]:  # of Haiku

        def with_generator(parameters: Any, *args: Any, **options: Any) -> Any:
            """The outputs, without random numbers."""
            return apply(parameters, None, *args, **options)

        return Functions(name, draw, with_generator)
    return Functions(name, draw, apply)


def _names_of_arguments(f: Callable[..., Any]) -> list[str]:
    """The names of the arguments of a function; none if they are not known."""
    try:
        return list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        return []


def _takes_one_argument(f: Callable[..., Any]) -> bool:
    """Whether a function can be called with a key only."""
    try:
        parameters = [*inspect.signature(f).parameters.values()]
    except (TypeError, ValueError):
        return False
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    required = [
        p
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1


def _loaded(name: str) -> Any:
    """A library, if it is loaded: without it, there are no models of it."""
    return sys.modules.get(name)


def _is_instance(model: Any) -> bool:
    """Whether a model has its weights already."""
    nnx, equinox = _loaded("flax.nnx"), _loaded("equinox")
    return (nnx is not None and isinstance(model, nnx.Module)) or (
        equinox is not None and isinstance(model, equinox.Module)
    )


class Made(NamedTuple):
    """A model that a constructor returned; its weights are abstract arrays."""

    kind: str  # "nnx", "equinox" or "linen"
    name: str


def _made(build: Callable[[Any], Any]) -> Made | None:
    """What a constructor makes; None if it makes no model."""
    results: list[Any] = []

    def record(key: Any) -> int:
        """Make the model, and return nothing of it."""
        results.append(build(key))
        return 0

    try:
        jax.eval_shape(record, jax.random.key(0))
    except Exception:
        if not results:
            raise
    kind = _kind(results[0])
    return None if kind is None else Made(kind, type(results[0]).__name__)


def _kind(model: Any) -> str | None:
    """The library of a model."""
    nnx, equinox, linen = (
        _loaded(name) for name in ("flax.nnx", "equinox", "flax.linen")
    )
    if nnx is not None and isinstance(model, nnx.Module):
        return "nnx"
    if equinox is not None and isinstance(model, equinox.Module):
        return "equinox"
    if linen is not None and isinstance(model, linen.Module):
        return "linen"
    return None


def is_constructor(model: Any) -> bool:
    """Whether a function of a key makes a model of Flax or Equinox."""
    if not callable(model) or is_pair(model) or _kind(model) is not None:
        return False
    if not _takes_one_argument(model):
        return False
    try:
        return _made(model) is not None
    except Exception:  # errors of other functions are reported where they are called
        return False


def takes_one_sequence(model: Any) -> bool:
    """Whether a function of a key makes a model of Equinox, which takes no batch."""
    if not is_constructor(model):
        return False
    made = _made(model)
    return made is not None and made.kind == "equinox"


def batched(model: Any, functions: Functions) -> Functions:
    """The functions of a model for a batch: models of Equinox take one sequence."""
    if not takes_one_sequence(model):
        return functions

    def apply(numbers: Any, *inputs: Any, **options: Any) -> Any:
        """The outputs of every sequence of a batch."""
        call = partial(functions.apply, numbers, **options)
        return jax.vmap(call)(*inputs)

    return functions._replace(apply=apply)


def is_pair(model: Any) -> bool:
    """Whether a model has functions init and apply, or is a pair of them."""
    if isinstance(model, tuple) and len(model) == 2 and all(map(callable, model)):
        return True
    return callable(getattr(model, "init", None)) and callable(
        getattr(model, "apply", None)
    )


def is_model(model: Any) -> bool:
    """Whether a study reads this as a JAX model."""
    return is_pair(model) or _kind(model) is not None or is_constructor(model)


def _of_constructor(
    build: Callable[[Any], Any], made: Made, inputs: tuple[Any, ...]
) -> Functions:
    """A function of a key that makes a model."""
    if made.kind == "linen":
        module = build(jax.random.key(0))
        functions = _of_pair(module, inputs)
        assert functions is not None
        return functions
    return _of_nnx(build, made) if made.kind == "nnx" else _of_equinox(build, made)


def _of_nnx(build: Callable[[Any], Any], made: Made) -> Functions:
    """A model of Flax NNX, in evaluation mode."""
    from flax import nnx

    graphs: list[Any] = []

    def draw(key: Any) -> Any:
        """The numbers of a new model."""
        model = build(key)
        model.eval()
        graph, state = nnx.split(model)
        graphs.append(graph)
        return state

    def apply(state: Any, *inputs: Any, **options: Any) -> Any:
        """The outputs of a model with these numbers."""
        return nnx.merge(graphs[-1], state)(*inputs, **options)

    return Functions(made.name, draw, apply)


def _of_equinox(build: Callable[[Any], Any], made: Made) -> Functions:
    """A model of Equinox, in inference mode."""
    import equinox

    rest: list[Any] = []

    def draw(key: Any) -> Any:
        """The numbers of a new model."""
        model = equinox.nn.inference_mode(build(key))
        numbers, others = equinox.partition(model, equinox.is_array)
        rest.append(others)
        return numbers

    def apply(numbers: Any, *inputs: Any, **options: Any) -> Any:
        """The outputs of a model with these numbers."""
        return equinox.combine(numbers, rest[-1])(*inputs, **options)

    return Functions(name=made.name, init=draw, apply=apply, weight_first=True)


def functions_of_instance(model: Any) -> Functions | None:
    """A model that has its weights already, in evaluation mode; None for others."""
    kind, name = _kind(model), type(model).__name__
    if kind == "nnx":
        from flax import nnx

        model.eval()
        graph, state = nnx.split(model)

        def apply(numbers: Any, *inputs: Any, **options: Any) -> Any:
            """The outputs of the model with these numbers."""
            return nnx.merge(graph, numbers)(*inputs, **options)

        return Functions(name=name, init=None, apply=apply, given=state)
    if kind == "equinox":
        import equinox

        numbers, rest = equinox.partition(
            equinox.nn.inference_mode(model), equinox.is_array
        )

        def apply_rest(numbers: Any, *inputs: Any, **options: Any) -> Any:
            """The outputs of the model with these numbers."""
            return equinox.combine(numbers, rest)(*inputs, **options)

        return Functions(
            name=name, init=None, apply=apply_rest, given=numbers, weight_first=True
        )
    return None


def arrays_of(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs, with sequences of numbers as arrays."""
    return tuple(
        np.asarray(x) if isinstance(x, list | np.ndarray | jax.Array) else x
        for x in inputs
    )
