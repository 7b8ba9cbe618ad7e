"""A JAX function, read as a program.

`captured` (in `_capture`) records its jaxpr as a graph, and JAX computes all that
depends only on constants. `JaxReader` computes the rest as values of the language, by
the table of primitives in `_primitives`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from .._array_api import Floats
from .._validate import Shape
from ..language import nonlin
from ..language.values._vector import Vector
from ..programs._program import Program
from ..reader._arithmetic import VALUES, Call, is_random, values_beside
from ..reader._axes import Refusal, Scalars, Vectors, refuse_if
from ..reader._deferred import Deferred, ScalarFunction, are_scalars
from ..reader._graph import Graph, Node, UnsupportedError, name_of
from ..reader._laws import Parameters
from ..reader._operations import REARRANGEMENTS
from ..reader._reader import Reader
from ._capture import Variable, captured
from ._functions import Composite, Entrywise, Pullback, Result, ScalarsFunction, Step
from ._models import Leaves
from ._parameters import Drawn, drawn
from ._primitives import COMPARISONS, POINTWISE, apply_rule


def program(
    model: Any, *inputs: Any, laws: Parameters | None = None, **options: Any
) -> Program:
    """The program that a JAX model computes at initialisation, on given inputs.

    Its jaxpr is read: calls are inlined, loops over layers are read layer by layer, and
    random parameters become matrices and vectors with the laws of their initialisation.
    JAX computes the values that depend only on the inputs. Widths are those of the
    model.

    Parameters
    ----------
    model : callable, flax.linen.Module or tuple
        A function of a key that makes a model of Flax NNX or Equinox; a module of
        Linen; a pair (init, apply), as of Haiku; or a function of parameters and
        inputs. The first input is then the parameters, or a function of a key that
        draws them.
    *inputs : array
        The inputs that the model is called with. They are given, not random.
    laws : Parameters, optional
        The laws of the parameters; `ns.jax.parameters(model, *inputs)` by default.
    **options
        Options of the call, such as `deterministic=True`.

    Returns
    -------
    Program
        It returns the outputs of the model: an array whose last axis holds coordinates
        becomes vectors without this axis. Probes are the scores and weights of every
        softmax, and what every named scope returns.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def apply(parameters, x):
    ...     return jnp.tanh(x @ parameters["in"]) @ parameters["out"]
    >>> def init(key):
    ...     first, second = jax.random.split(key)
    ...     return {
    ...         "in": jax.random.normal(first, (3, 64)),
    ...         "out": jax.random.normal(second, (64, 2)) / 8,
    ...     }
    >>> net = ns.jax.program(apply, init, jnp.ones((1, 3)))  # doctest: +SKIP
    >>> net.law(draws=1000).std()  # doctest: +SKIP
    """
    return JaxReader(graph_of(model, inputs, laws, options)).program()


def graph_of(
    model: Any,
    inputs: Sequence[Any],
    laws: Parameters | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    as_batch: bool = False,
) -> Graph:
    """The graph of a model; `as_batch`: of a batch of one, by `jax.vmap`."""
    parts = drawn(model, tuple(inputs))
    if laws is not None:
        parts = parts._replace(laws=laws)
    if as_batch:
        parts = parts._replace(inputs=tuple(np.asarray(x)[None] for x in parts.inputs))
    leaves = parts.leaves
    functions = parts.functions

    def apply(numbers: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """The outputs, of the leaves of the parameters and the inputs."""
        tree = jax.tree_util.tree_unflatten(leaves.structure, numbers)
        call = partial(functions.apply, tree, **(options or {}))
        if as_batch:
            call = jax.vmap(call)
        outputs = jax.tree.leaves(call(*arrays))
        return [x for x in outputs if hasattr(x, "dtype")]

    jaxpr = jax.make_jaxpr(apply)(leaves.arrays, parts.inputs)
    variables = _variables(parts, leaves)
    return captured(functions.name, jaxpr, variables=variables, laws=parts.laws)


def is_one_sequence(inputs: Sequence[Any]) -> bool:
    """Whether all inputs are ids of one sequence, without an axis of a batch."""
    arrays = [np.asarray(x) for x in inputs]
    return bool(arrays) and all(
        x.ndim == 1 and np.issubdtype(x.dtype, np.integer) for x in arrays
    )


def _variables(parts: Drawn, leaves: Leaves) -> list[Variable]:
    """The arguments of the jaxpr: parameters, and then inputs."""
    variables = []
    for name, x in zip(leaves.names, leaves.arrays, strict=True):
        if name in parts.laws:
            variables.append(Variable(name, x))
        elif jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            variables.append(Variable(name, x, is_key=True))
        else:
            raise UnsupportedError(
                f"the parameter {name} has no law in laws; there are"
                f" {', '.join([*parts.laws][:4])}, …"
            )
    input_leaves = jax.tree.leaves(parts.inputs)
    return [*variables, *(Variable("", x) for x in input_leaves)]


class JaxDeferred(Deferred):
    """A tensor, or several, that JAX computes from scalars: a recorded operation."""

    def _rearranged(self) -> Scalars | None:
        """The scalars of another deferred tensor, rearranged, if they are no more."""
        name = name_of(self.node)
        if name not in REARRANGEMENTS or name == "getitem":
            return None
        first, *others = self.args
        if not isinstance(first, Deferred) or not first.is_tensor:
            return None
        if first.dtype != self.dtype:
            return None
        arguments = [first.scalars, *others]
        names = (self.node.target, self.node.operation)
        try:
            result = apply_rule(self.node, self.call, args=arguments, names=names)
        except Refusal:
            return None
        return result if isinstance(result, Scalars) else None

    def function_of(
        self, leaves: Sequence[Scalars | Deferred], operations: Sequence[Deferred]
    ) -> ScalarFunction:
        """The function of some leaves that recorded operations compute together.

        Its steps refer to leaves and to earlier operations by their numbers.
        """
        numbers = {id(x): k for k, x in enumerate([*leaves, *operations])}

        def reference_to(x: Any) -> Any:
            if isinstance(x, Deferred | Scalars):
                return Result(numbers[id(x)])
            return np.asarray(x)

        steps = []
        for operation in operations:
            args = tuple(reference_to(x) for x in operation.args)
            steps.append(Step(operation.node.compute, args))
        function = ScalarsFunction(
            of_tensors=Composite(len(leaves), tuple(steps)),
            shapes=tuple(tuple(x.shape) for x in leaves),
            types=tuple(_type_of_entries(x) for x in leaves),
            shape=tuple(self.shape),
        )
        pullbacks = tuple(Pullback(function, k) for k in range(len(leaves)))
        return ScalarFunction(function, pullbacks)


def _type_of_entries(x: Scalars | Deferred) -> str:
    """The type of the entries of an argument: "float", "int" or "bool"."""
    if isinstance(x, Scalars) or jax.numpy.issubdtype(x.dtype, np.floating):
        return "float"
    return "bool" if x.dtype == bool else "int"


class JaxReader(Reader):
    """The reader of the graph of a JAX function."""

    def is_given(self, x: Any) -> bool:
        """Whether a value is a tensor of given numbers."""
        return isinstance(x, np.ndarray | np.generic)

    def as_array(self, x: Any) -> Any:
        """Given numbers as an array, floating point in double precision."""
        if not self.is_given(x):
            return x
        x = np.asarray(x)
        is_floating = jax.numpy.issubdtype(x.dtype, np.floating)
        return x.astype(np.float64) if is_floating else x

    def of_constants(self, node: Node) -> Any:
        """The value of an operation on tensors that turned out not to be random."""
        return self._of_numbers(node, [self._value_of(x) for x in node.args])

    def _value_of(self, x: Any) -> Any:
        """The value of an argument."""
        return self.env[x]

    @staticmethod
    def _of_numbers(node: Node, args: Sequence[Any]) -> Any:
        """What JAX computes from given numbers."""
        with jax.enable_x64(True):
            result = node.compute(*args)
        if isinstance(result, list | tuple):
            return [np.asarray(x) for x in result]
        return np.asarray(result)

    def call_of(self, node: Node, random: list[Any]) -> Call:
        """What an operation needs besides its arguments, of which some are random."""
        val = node.meta["val"]
        results = val if isinstance(val, list | tuple) else [val]
        shapes: list[Shape] = [tuple(x.shape) for x in results]
        dtype = results[0].dtype
        eps = 0.0
        if jax.numpy.issubdtype(dtype, np.floating):
            eps = float(jax.numpy.finfo(dtype).eps)
        # with one random argument, the operation is known as a function of arrays
        of_array = partial(self._of_array, node) if len(random) == 1 else None
        return Call(self.draws, shapes, eps, of_array)

    def _of_array(self, node: Node, x: Floats) -> Floats:
        """The result of JAX for an array that stands for the random argument."""
        args = [x if y in self._random else self._value_of(y) for y in node.args]
        result: Floats = np.asarray(self._of_numbers(node, args), dtype=float)
        return result

    @property
    def _random(self) -> set[Node]:
        """The nodes that are random."""
        return {node for node, value in self.env.items() if not self._all_given(value)}

    def can_be_deferred(self, node: Node, random: list[Any]) -> bool:
        """Whether JAX can compute an operation from these scalars later."""
        is_tensor = not name_of(node).startswith("random")
        return is_tensor and are_scalars(node, random)

    def deferred(self, node: Node, call: Call) -> JaxDeferred:
        """An operation that JAX computes later."""
        args = tuple(self.as_scalars(self.env[x]) for x in node.args)
        return JaxDeferred(node, args, {}, call)

    def _arguments(self, node: Node, as_scalars: bool) -> list[Any]:
        """The arguments of an operation; given ones are arrays."""

        def value_of(x: Node) -> Any:
            value = self.env[x]
            if as_scalars:
                value = self.as_scalars(value)
            if isinstance(value, Deferred) and value.is_tensor:
                return value.scalars
            return self.as_array(value)

        return [value_of(x) for x in node.args]

    def applied(self, node: Node, call: Call, *, scalar: bool = False) -> Any:
        """The result of an operation by its rule in the table of primitives."""
        names = (node.target, node.operation)
        args = self._arguments(node, as_scalars=scalar)
        result = apply_rule(node, call, args=args, names=names)
        _check_kind(node, result)
        return result

    def computed_pointwise(self, node: Node, call: Call) -> Any:
        """The value of an operation that acts on each coordinate in the same way."""
        refuse_if(node.target not in POINTWISE, "not pointwise")
        args = self._arguments(node, as_scalars=False)
        result = _pointwise(call, node, args)
        _check_kind(node, result)
        return result

    def windows_of_pixels(self, node: Node) -> Any:
        """None: kernels are never drawn column by column."""
        return None


def _pointwise(call: Call, node: Node, args: Sequence[Any]) -> Vectors:
    """A function of vectors, and of scalars and numbers beside them.

    The function of the language takes vectors first, so the arguments are reordered;
    the composite puts them back into the order of the primitive.
    """
    settled = [call.settled(x) for x in args if is_random(x)]
    tensors_of_vectors = [x for x in settled if isinstance(x, Vectors)]
    if not tensors_of_vectors:
        raise Refusal("not of vectors")
    like = tensors_of_vectors[0]
    values = []
    for x in args:
        operand = call.beside(x, like) if is_random(x) else np.asarray(x)
        values.append(values_beside(like, operand))
    vectors = [k for k, x in enumerate(values) if isinstance(x, Vector)]
    others = [k for k, x in enumerate(values) if not isinstance(x, Vector)]
    order = [*vectors, *others]
    arguments = tuple(Result(order.index(k)) for k in range(len(values)))
    primitive = _Truth(node.compute, node.target)
    composite = Composite(len(values), (Step(primitive, arguments),))
    function = Entrywise(composite).function(name_of(node), len(values))
    result = nonlin(function, *(values[k] for k in order))
    return Vectors.of(result, like.from_end)


class _Truth:
    """A primitive whose truth values are the numbers 0 and 1, as the language has them.

    `target` is the name of the primitive.
    """

    def __init__(self, compute: Any, target: str) -> None:
        self.compute = compute
        self.target = target

    def __call__(self, *numbers: Any) -> Any:
        """What JAX computes."""
        if self.target == "select_n":
            condition, *cases = numbers
            return self.compute(condition != 0, *cases)
        if self.target in ("and", "or", "not", "xor"):
            return self.compute(*(x != 0 for x in numbers))
        return self.compute(*numbers)


def _check_kind(node: Node, result: Any) -> None:
    """Reject operations that round, and results of another shape than JAX's."""
    expected = node.meta["val"]
    if not isinstance(result, VALUES) or not hasattr(expected, "dtype"):
        return
    is_floating = jax.numpy.issubdtype(expected.dtype, np.floating)
    refuse_if(
        not is_floating and node.target not in COMPARISONS,
        f"makes {expected.dtype} of random numbers: only floating point is read",
    )
    shape = tuple(result.shape)
    jax_shape = tuple(expected.shape)
    refuse_if(
        shape != jax_shape, f"a result of shape {jax_shape} is read in shape {shape}"
    )
