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
    """A model as two functions: one draws its parameters, one computes its outputs."""

    name: str
    # of a key; None if the user passed the parameters themselves
    init: Callable[[Any], Any] | None
    apply: Callable[..., Any]  # of parameters and inputs
    parameters: Any = None  # those that the user passed
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
    parts = [_text_of_key(key) for key in path]
    if len(parts) > 1 and parts[0] in OUTER:
        parts = parts[1:]
    if len(parts) > 1 and parts[-1] in INNER:
        parts = parts[:-1]
    # Haiku's names have slashes, and Linen's numbers follow an underscore
    return ".".join(parts).replace("/~/", ".").replace("/", ".")


def _text_of_key(key: Any) -> str:
    """One step of a path: a key of a dictionary, an attribute, or an index."""
    for field in ("key", "name", "idx"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def _unique(names: list[str]) -> list[str]:
    """The names; those that occur again get a number, as "w", "w#1", "w#2"."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        earlier = counts.get(name, 0)
        counts[name] = earlier + 1
        result.append(f"{name}#{earlier}" if earlier else name)
    return result


def functions_of(
    model: Any, inputs: tuple[Any, ...]
) -> tuple[Functions, tuple[Any, ...]]:
    """A model as two functions, and its inputs without the parameters."""
    init_and_apply = _of_pair(model, inputs)
    if init_and_apply is not None:
        return init_and_apply, inputs
    if not callable(model):
        raise ArgumentError("model", model, EXPECTED)
    reject_instance(model)
    if _takes_one_argument(model):
        result = _result_of_constructor(model)
        if result is not None:
            return _of_constructor(model, result, inputs), inputs
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
    return Functions(name=name, init=None, apply=apply, parameters=parameters)


def _of_pair(model: Any, inputs: tuple[Any, ...]) -> Functions | None:
    """A pair of functions init and apply, or a model that has both."""
    if not is_pair(model):
        return None
    if isinstance(model, tuple):
        init, apply = model
        name = getattr(apply, "__name__", "apply")
    else:
        init = model.init
        apply = model.apply
        name = type(model).__name__
    takes_key_only = _takes_one_argument(init)

    def draw(key: Any) -> Any:
        """The parameters."""
        return init(key) if takes_key_only else init(key, *inputs)

    def without_generator(parameters: Any, *args: Any, **options: Any) -> Any:
        """The outputs of a function of Haiku, without random numbers."""
        return apply(parameters, None, *args, **options)

    is_of_haiku = _names_of_arguments(apply)[1:2] == ["rng"]
    return Functions(name, draw, without_generator if is_of_haiku else apply)


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
    """Whether a model has its weights already: modules of Linen have none."""
    return _library_of(model) in ("nnx", "equinox")


def reject_instance(model: Any) -> None:
    """Reject a model that has its weights already."""
    if not _is_instance(model):
        return
    raise ArgumentError(
        "model",
        type(model).__name__,
        "a function of a key that makes it, lambda key: …: its weights do not show the"
        " law that they were drawn with. Where a function of the width is expected, it"
        " returns such a function: lambda n: lambda key: …",
    )


class ConstructorResult(NamedTuple):
    """A model that a constructor returned; its weights are abstract arrays."""

    library: str  # "nnx", "equinox" or "linen"
    name: str


def _result_of_constructor(build: Callable[[Any], Any]) -> ConstructorResult | None:
    """The model that a function of a key returns; None if it returns no model."""
    models: list[Any] = []

    def record(key: Any) -> int:
        """Make the model. It is no array, so it leaves through the list."""
        models.append(build(key))
        return 0

    try:
        jax.eval_shape(record, jax.random.key(0))
    except Exception:
        if not models:
            raise
    library = _library_of(models[0])
    if library is None:
        return None
    return ConstructorResult(library, type(models[0]).__name__)


def _library_of(model: Any) -> str | None:
    """The library of a model: "nnx", "equinox" or "linen"; None for others."""
    libraries = (
        ("nnx", "flax.nnx"),
        ("equinox", "equinox"),
        ("linen", "flax.linen"),
    )
    for library, package in libraries:
        imported = _loaded(package)
        if imported is not None and isinstance(model, imported.Module):
            return library
    return None


def is_constructor(model: Any) -> bool:
    """Whether a function of a key makes a model of Flax or Equinox."""
    if not callable(model) or is_pair(model) or _library_of(model) is not None:
        return False
    if not _takes_one_argument(model):
        return False
    try:
        return _result_of_constructor(model) is not None
    except Exception:  # errors of other functions are reported where they are called
        return False


def takes_one_sequence(model: Any) -> bool:
    """Whether a function of a key makes a model of Equinox, which takes no batch."""
    if not is_constructor(model):
        return False
    result = _result_of_constructor(model)
    return result is not None and result.library == "equinox"


def batched(model: Any, functions: Functions) -> Functions:
    """The functions of a model for a batch: models of Equinox take one sequence."""
    if not takes_one_sequence(model):
        return functions

    def apply(parameters: Any, *inputs: Any, **options: Any) -> Any:
        """The outputs of every sequence of a batch."""
        call = partial(functions.apply, parameters, **options)
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
    return is_pair(model) or _library_of(model) is not None or is_constructor(model)


def _of_constructor(
    build: Callable[[Any], Any], result: ConstructorResult, inputs: tuple[Any, ...]
) -> Functions:
    """A function of a key that makes a model."""
    if result.library == "linen":
        module = build(jax.random.key(0))
        functions = _of_pair(module, inputs)
        assert functions is not None
        return functions
    if result.library == "nnx":
        return _of_nnx(build, result.name)
    return _of_equinox(build, result.name)


def _of_nnx(build: Callable[[Any], Any], name: str) -> Functions:
    """A model of Flax NNX, in evaluation mode."""
    from flax import nnx

    graphs: list[Any] = []  # of the models that were drawn: all are equal

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

    return Functions(name, draw, apply)


def _of_equinox(build: Callable[[Any], Any], name: str) -> Functions:
    """A model of Equinox, in inference mode."""
    import equinox

    static_parts: list[Any] = []  # of the models that were drawn: all are equal

    def draw(key: Any) -> Any:
        """The numbers of a new model."""
        model = equinox.nn.inference_mode(build(key))
        arrays, static_part = equinox.partition(model, equinox.is_array)
        static_parts.append(static_part)
        return arrays

    def apply(arrays: Any, *inputs: Any, **options: Any) -> Any:
        """The outputs of a model with these numbers."""
        return equinox.combine(arrays, static_parts[-1])(*inputs, **options)

    return Functions(name=name, init=draw, apply=apply, weight_first=True)


def functions_of_instance(model: Any) -> Functions | None:
    """A model that has its weights already, in evaluation mode; None for others."""
    library = _library_of(model)
    if library == "nnx":
        return _of_nnx_instance(model)
    if library == "equinox":
        return _of_equinox_instance(model)
    return None


def _of_nnx_instance(model: Any) -> Functions:
    """A model of Flax NNX with its weights."""
    from flax import nnx

    model.eval()
    graph, state = nnx.split(model)

    def apply(state: Any, *inputs: Any, **options: Any) -> Any:
        """The outputs of the model with these numbers."""
        return nnx.merge(graph, state)(*inputs, **options)

    name = type(model).__name__
    return Functions(name=name, init=None, apply=apply, parameters=state)


def _of_equinox_instance(model: Any) -> Functions:
    """A model of Equinox with its weights."""
    import equinox

    in_evaluation = equinox.nn.inference_mode(model)
    arrays, static_part = equinox.partition(in_evaluation, equinox.is_array)

    def apply(arrays: Any, *inputs: Any, **options: Any) -> Any:
        """The outputs of the model with these numbers."""
        return equinox.combine(arrays, static_part)(*inputs, **options)

    return Functions(
        name=type(model).__name__,
        init=None,
        apply=apply,
        parameters=arrays,
        weight_first=True,
    )


def arrays_of(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs, with sequences of numbers as arrays."""
    return tuple(
        np.asarray(x) if isinstance(x, list | np.ndarray | jax.Array) else x
        for x in inputs
    )
