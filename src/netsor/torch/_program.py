"""A PyTorch module, read as a program.

`captured` (in `_capture`) records the graph of a module, and torch computes all nodes
that depend only on constants. `Reader` computes the others as values of the language,
node by node, by the table of operations in `_aten_ops`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from .._array_api import Ints
from .._validate import Shape
from ..language import Scalar, TraceError, Value, data, join
from ..language.values._array import Take
from ..language.values._graph import topological_order
from ..language.values._probe import Probe
from ..programs._program import Program
from ._arithmetic import VALUES, Call, vectors_of_scalars
from ._aten_ops import CONVOLUTIONS, MATRICES, REARRANGEMENTS, SOFTMAX, apply_op
from ._axes import Linear, Refusal, Scalars, Vectors, refuse_if, settled
from ._capture import captured
from ._convolution import Convolution
from ._deferred import Deferred, can_be_deferred
from ._fresh_modules import ModuleOrFactory
from ._graph import (
    Graph,
    Node,
    UnsupportedError,
    name_of,
    outputs_of_modules,
    path_of,
    refused,
    schema_of,
    shape_of,
)
from ._laws import INDEPENDENT, Parameters
from ._interleaved import Interleaved
from ._layout import Permute
from ._pointwise import COMPARISONS, is_pointwise, pointwise
from ._random_parameters import MAX_COLUMNS, Draws, Random, has_few_coordinates
from ._rearrangement import Patchwork


class DataDependentError(Exception):
    """A tensor whose shape depends on random numbers."""


# operations that take a `Patchwork` as it is; `copy` reads its shape
KEEPS_PATCHES = ("slice_scatter", "select_scatter", "copy", "slice")


def program(
    module: ModuleOrFactory,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    laws: Parameters | None = None,
) -> Program:
    """The program that a PyTorch module computes at initialisation, on given inputs.

    The module is captured by `torch.export` in evaluation mode. Its random parameters
    become matrices and vectors, with the laws of its own initialisation (`law.notes`
    says where Gaussian numbers stand for others); what it computes only from its inputs
    and buffers (positions, masks, rotary tables) is computed by torch. Widths are
    those of the module.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A function that returns a new module each time, or a module.
    args : torch.Tensor or tuple
        The inputs that the module is called with, as in `torch.export.export`. Inputs
        are given, not random.
    kwargs : mapping, optional
        Inputs by name.
    laws : Parameters, optional
        The laws of the parameters; `ns.torch.parameters(module)` by default.

    Returns
    -------
    Program
        It returns the outputs of the module: a tensor whose last axis holds coordinates
        becomes vectors without this axis. Probes are named by the paths of the modules
        that return them; the scores and weights of a softmax are `path.scores` and
        `path.weights`.

    Examples
    --------
    >>> import transformers  # doctest: +SKIP
    >>> config = transformers.GPT2Config(n_layer=2)  # doctest: +SKIP
    >>> ids = torch.tensor([[5, 7, 1]])  # doctest: +SKIP
    >>> def build():
    ...     return transformers.GPT2Model(config)
    >>> net = ns.torch.program(build, ids)  # doctest: +SKIP
    >>> net.law(draws=1000).std()  # doctest: +SKIP
    """
    return Reader(captured(module, args, kwargs, laws)).program()


class Reader:
    """Computes the values of the nodes of a graph, one after the other.

    `streams` are nodes that become values of their own, so that they have a gradient;
    for each, the rows of it that are tokens and no padding. Their values are `tokens`.
    With `whole_matrices` every matrix is one random object: those that multiply given
    numbers are not drawn column by column. The other options are those of `Draws`.
    """

    def __init__(
        self,
        graph: Graph,
        streams: Mapping[Node, Ints] | None = None,
        *,
        names: Mapping[str, str] | None = None,
        head: str | None = None,
        trained: bool = False,
        whole_matrices: bool = False,
    ) -> None:
        self.graph = graph
        self.streams = streams or {}
        self.tokens: dict[Node, Value] = {}  # of each stream, one axis of tokens
        self.trained = trained
        # the values that are known so far
        self.env: dict[Node, Any] = dict(graph.constants)
        self.probes: list[Probe] = []
        for node in graph.nodes:
            if node in graph.parameters and node not in self.env:
                self.env[node] = self._parameter(graph.parameters[node])
        self.draws = Draws(
            graph.laws,
            self._looked_up(),
            names=names or {},
            head=head,
            trained=trained,
            of_given_numbers=() if whole_matrices else self._of_given_numbers(),
        )

    def _parameter(self, name: str) -> Random:
        """A parameter that is random: its law, or that of what it is a copy of."""
        laws = self.graph.laws
        if name not in laws:
            raise UnsupportedError(
                f"the parameter {name} has no law in laws; there are"
                f" {', '.join([*laws][:4])}, …"
            )
        law = laws[name]
        frozen = name in self.graph.frozen
        if law.law == "copy":
            if self.trained:
                raise UnsupportedError(
                    f"{name} starts as a copy of {law.of}, and then takes its own steps"
                )
            original = self._parameter(str(law.of))
            copied = replace(original, owner=name, frozen=frozen)
            if law.transposed:
                copied = copied.viewed(Permute((1, 0)))
            return copied
        if law.law not in INDEPENDENT:
            note = f" ({law.note})" if law.note else ""
            lacks = "i.i.d."
            if law.note.startswith("excess kurtosis"):  # the only test that it failed
                lacks = "Gaussian"
            raise UnsupportedError(
                f"the parameter {name} is {law.law}{note}, not {lacks}: {law.remedy}"
            )
        return Random.of(name, law.shape, frozen=frozen)

    def _looked_up(self) -> dict[str, Any]:
        """The known ids that are looked up in each table, sorted."""
        ids: dict[str, Any] = {}
        for node in self.graph.nodes:
            if name_of(node) != "embedding" or node in self.env:
                continue
            table = self.env.get(node.args[0])
            if isinstance(table, Random) and node.args[1] in self.env:
                new = self.env[node.args[1]].numpy().ravel()
                ids[table.name] = np.union1d(ids.get(table.name, new), new)
        return ids

    def _of_given_numbers(self) -> set[str]:
        """Matrices with entries that are not Gaussian, which act on given numbers only.

        At most `MAX_COLUMNS` of their columns are multiplied by a number that is not 0.
        """
        inputs: dict[str, list[Any]] = {}
        for node in self.graph.nodes:
            parameter = self.env.get(node)
            if isinstance(parameter, Random):
                inputs.setdefault(parameter.name, []).extend(self._factors(node))
        names = set()
        for name, factors in inputs.items():
            distribution = self.graph.laws[name].distribution
            if distribution is None or distribution.is_normal or not factors:
                continue
            if any(x is None for x in factors):
                continue
            columns = [x.reshape(-1, x.shape[-1]).any(dim=0) for x in factors]
            if sum(int(used.sum()) for used in columns) <= MAX_COLUMNS:
                names.add(name)
        return names

    def _factors(self, matrix: Node) -> Iterator[Any]:
        """What a parameter, or a view of it, multiplies in each of its uses.

        A tensor if that is given, and otherwise None.
        """
        for user in matrix.users:
            name = name_of(user)
            if name in REARRANGEMENTS and user.op == "call_function":
                yield from self._factors(user)
                continue
            if name in CONVOLUTIONS:
                yield self._windows_of_pixels(user)
                continue
            position = MATRICES.get(name)
            factor = None
            if position is not None and user.args[position] is matrix:
                factor = self.env.get(user.args[position - 1])
            yield factor if isinstance(factor, torch.Tensor) else None

    def _windows_of_pixels(self, node: Node) -> Any:
        """The windows of given pixels that a kernel multiplies; None if not given.

        Groups have kernels of their own, which are not drawn column by column.
        """
        pixels = self.env.get(node.args[0])
        if not isinstance(pixels, torch.Tensor):
            return None
        names = [argument.name for argument in schema_of(node).arguments]
        options = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        convolution = Convolution.of(
            kernel=shape_of(options["weight"])[2:],
            result=shape_of(node),
            stride=options.get("stride", 1),
            padding=options.get("padding", 0),
            dilation=options.get("dilation", 1),
            groups=options.get("groups", 1),
        )
        if convolution.groups > 1:
            return None
        return torch.from_numpy(convolution.of_pixels(as_arrays(pixels)))

    def program(self) -> Program:
        """The whole program."""
        returned = outputs_of_modules(self.graph.nodes)
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in self.env:
                self.env[node] = self._result(node)
                self._add_probes(node, returned.get(node, []))
        outputs = [
            self.env[node]
            for node in self.graph.outputs
            if isinstance(node, torch.fx.Node)
        ]
        random = [x for x in outputs if isinstance(x, (*VALUES, Deferred, Patchwork))]
        values = [self.value(x) for x in random]
        if not values:
            raise UnsupportedError(
                f"{self.graph.name} returns nothing random: {self._why_constant()}"
            )
        # rows that became scalars: as vectors they would be other draws
        twins = self.draws.twins.keys()
        if twins and not twins.isdisjoint(topological_order(values)):
            raise UnsupportedError(
                "rows of a parameter are used both as vectors and as scalars"
            )
        output = values[0] if len(values) == 1 else tuple(values)
        return self.draws.label(Program(output, self.graph.name, self.probes))

    def _add_probes(self, node: Node, returned_by: list[str]) -> None:
        """Probe a softmax, and a node that modules (their paths) return."""
        of_scores = name_of(node) in SOFTMAX and isinstance(
            self.env[node.args[0]], Scalars
        )
        if of_scores and isinstance(self.env[node], Scalars):
            path = path_of(node)
            for probe in self.attention(node):
                name = f"{path}.{probe.name}" if path else probe.name
                self.probes.append(probe._replace(name=name))
        if node in self.streams:
            self._make_stream(node, self.streams[node])
        result = self.env[node]
        has_value = isinstance(result, Vectors | Scalars) or (
            isinstance(result, Deferred) and result.is_tensor
        )
        if returned_by and has_value:
            value = self.value(self.env[node])
            self.probes += [Probe(path, value) for path in returned_by]

    def _make_stream(self, node: Node, rows: Ints) -> None:
        """Make the tokens of a stream a value of their own, which has a gradient."""
        stream = self.vectors(node)
        read = self.env[node]
        axis = read.axis if isinstance(read, Vectors) else -1
        if len(rows) == stream.size:
            is_part = isinstance(stream.op, Take)  # entries of another value
            if is_part:
                stream = 1.0 * stream
            if is_part or isinstance(read, Scalars | Deferred):
                self.env[node] = Vectors.of(stream, axis)
            self.tokens[node] = stream.reshape(-1)
            return
        flat = stream.reshape(-1)
        others = np.setdiff1d(np.arange(stream.size), rows)
        tokens = 1.0 * flat[rows]
        order = np.argsort(np.concatenate([rows, others]))
        whole = join([tokens, flat[others]])[order]
        self.env[node] = Vectors.of(whole.reshape(*stream.shape), axis)
        self.tokens[node] = tokens

    def _why_constant(self) -> str:
        """Why no output depends on a random parameter."""
        if any(law.random for law in self.graph.laws.values()):
            return "no output depends on a random parameter"
        remedy = "draw them at random, without a seed in the constructor"
        return f"its parameters are the same in every initialisation; {remedy}"

    def is_given(self, node: Node) -> bool:
        """Whether a node has the same numbers in every initialisation.

        Its parameters start as constants, and the reader computed it from them.
        """
        return isinstance(self.env[node], torch.Tensor)

    def attention(self, softmax: Node) -> list[Probe]:
        """The scores and the weights of a softmax that is not given."""
        scores, weights = self.env[softmax.args[0]], self.env[softmax]
        if isinstance(scores, Deferred):
            scores = scores.scalars
        if isinstance(weights, Deferred):
            weights = weights.scalars
        return [
            Probe("scores", scores.unmasked, scores.shown),
            Probe("weights", weights.value, scores.shown),
        ]

    def _result(self, node: Node) -> Any:
        """The value of an operation: by its rule, or deferred to torch."""
        try:
            return self._computed(node)
        except Exception as error:
            if isinstance(error, Refusal | DataDependentError):
                reason = str(error)
            elif type(error) is TraceError:
                reason = getattr(error, "plain", "")
            else:
                reason = f"{type(error).__name__}: {error}"
            raise refused(node, reason) from error

    def _computed(self, node: Node) -> Any:
        """The value of an operation.

        Operations on scalars that are deferred already are deferred too. Others follow
        their rule in the table of ATen operations, or, if it does not apply and all
        arguments are scalars or a few coordinates, torch computes them later.
        """
        random = self._random_inputs(node)
        if all(_is_given(self.env[x]) for x in node.all_input_nodes):
            return self._of_constants(node)
        shapes, eps = _shapes_and_eps(node.meta.get("val"))
        of_array = partial(self._of_array, node) if len(random) == 1 else None
        call = Call(self.draws, shapes, eps, of_array)
        is_deferred = any(isinstance(x, Deferred) for x in random)
        if is_deferred and can_be_deferred(node, random):
            return self._deferred(node, call)
        try:
            result = apply_op(name_of(node), call, self._arguments(node, call))
            self._check_kind(node, result)
            return as_tensor(result, node)
        except (Refusal, TraceError) as reason:
            for other_way in (self._computed_from_scalars, self._computed_pointwise):
                with suppress(Refusal):
                    return other_way(node, call, random)
            raise reason from None

    def _of_constants(self, node: Node) -> Any:
        """The value of an operation on tensors that turned out not to be random."""
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), self.env.__getitem__
        )
        with torch.no_grad():
            return node.target(*args, **kwargs)

    def _computed_from_scalars(self, node: Node, call: Call, random: list[Any]) -> Any:
        """The value of an operation whose random arguments can all be scalars.

        torch computes it later if it can. It cannot, for example, if an argument has
        masked scores and the operation would not respect the mask. Such operations
        follow their rule in the table of ATen operations, with scalars as arguments.
        """
        # `draws` keeps these scalars, so converting the same arguments again is cheap
        scalars = [self._as_scalars(x) for x in random]
        can_be_scalars = all(isinstance(x, Deferred | Scalars) for x in scalars)
        refuse_if(not random or not can_be_scalars, "not of scalars")
        if can_be_deferred(node, scalars):
            return self._deferred(node, call)
        arguments = self._arguments(node, call, scalar=True)
        result = apply_op(name_of(node), call, arguments)
        self._check_kind(node, result)
        return result

    def _computed_pointwise(self, node: Node, call: Call, random: list[Any]) -> Any:
        """The value of an operation that acts on each coordinate in the same way."""
        refuse_if(not is_pointwise(node), "not pointwise")
        args, kwargs = self._values_of_arguments(node, call)
        result = pointwise(call, node, args, kwargs)
        self._check_kind(node, result)
        return result

    def _of_array(self, node: Node, x: Any) -> Any:
        """What torch computes from an array in place of the first argument."""

        def value_of(argument: Node) -> Any:
            return self.env[argument]

        _, *others = torch.fx.node.map_arg(node.args, value_of)
        kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
        return as_arrays(node.target(torch.from_numpy(x.copy()), *others, **kwargs))

    def _random_inputs(self, node: Node) -> list[Any]:
        """The random arguments of an operation."""
        values = [self.env[x] for x in node.all_input_nodes]
        return [x for x in values if isinstance(x, (*VALUES, Deferred, list, tuple))]

    def _as_scalars(self, x: Any) -> Any:
        """An argument as scalars, if it may be used one number at a time."""
        if isinstance(x, Linear):
            try:
                x = settled(x)
            except Refusal:
                return x
        if isinstance(x, Vectors) and x.is_interleaved:
            x = Interleaved.of_view(x)
        if isinstance(x, Vectors) and has_few_coordinates(x):
            return self.draws.entries(x)
        if isinstance(x, Random):
            return self.draws.entries_of_parameter(x)
        if isinstance(x, Interleaved) and has_few_coordinates(Vectors.of(x.value)):
            return self.draws.single_entries(x)
        return x

    def _deferred(self, node: Node, call: Call) -> Deferred:
        """An operation that torch computes later."""
        sizes = [size for shape in call.shapes for size in shape]
        if not all(isinstance(size, int) for size in sizes):
            raise DataDependentError(
                "the shape of the result depends on random numbers: compute all experts"
                " for all tokens, with gates that are 0 where an expert is not chosen"
            )

        def value_of(x: Node) -> Any:
            return self._as_scalars(self.env[x])

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
        return Deferred(node, tuple(args), dict(kwargs), call)

    def _arguments(
        self, node: Node, call: Call, scalar: bool = False
    ) -> dict[str, Any]:
        """The arguments of an operation, by name; given tensors are arrays.

        `scalar`: the random ones are scalars.
        """
        args, kwargs = self._values_of_arguments(node, call, scalar)
        names = ["self", "index"]  # of `getitem`, which has no schema
        schema = schema_of(node)
        if schema is not None:
            names = [argument.name for argument in schema.arguments]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _values_of_arguments(
        self, node: Node, call: Call, scalar: bool = False
    ) -> tuple[Any, Any]:
        """The arguments of an operation by position, and those by name."""

        def value_of(x: Node) -> Any:
            value = self._as_scalars(self.env[x]) if scalar else self.env[x]
            if isinstance(value, Deferred) and value.is_tensor:
                return value.scalars
            if isinstance(value, Patchwork) and name_of(node) not in KEEPS_PATCHES:
                return value.joined(call)
            return as_arrays(value)

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
        return args, kwargs

    @staticmethod
    def _check_kind(node: Node, result: Any) -> None:
        """Reject operations that round, and results of another shape than torch's."""
        expected = node.meta.get("val")
        if not isinstance(result, VALUES) or not isinstance(expected, torch.Tensor):
            return
        is_comparison = name_of(node) in COMPARISONS
        refuse_if(
            not expected.dtype.is_floating_point and not is_comparison,
            f"makes {expected.dtype} of random numbers: only floating point is read",
        )
        shape, torch_shape = tuple(result.shape), tuple(expected.shape)
        refuse_if(
            shape != torch_shape,
            f"a result of shape {torch_shape} is read in shape {shape}",
        )

    def vectors(self, node: Node) -> Any:
        """The result of a node as vectors, also where it was read as single numbers."""
        value = self.value(self.env[node])
        if isinstance(value, Scalar):
            value = vectors_of_scalars(Scalars(value)).plain
        return value

    def value(self, x: Any) -> Value:
        """Vectors or scalars in the language."""
        if isinstance(x, Random):
            x = self.draws.vectors(x)
        elif isinstance(x, Deferred):
            x = x.scalars
        elif isinstance(x, Patchwork):
            x = x.joined(Call(self.draws, [x.shape], 0.0))
        elif isinstance(x, torch.Tensor):
            x = Vectors.of(data(np.asarray(as_arrays(x), dtype=float)))
        elif isinstance(x, Linear):
            x = settled(x)
        return x.plain if isinstance(x, Vectors) else x.value


def _is_given(x: Any) -> bool:
    """Whether a value is a tensor, or several, of given numbers."""
    leaves = x if isinstance(x, list | tuple) else [x]
    return all(isinstance(leaf, torch.Tensor) for leaf in leaves)


def as_tensor(result: Any, node: Node) -> Any:
    """A result that turned out to be given as a tensor of torch, like other constants.

    Values stay as they are.
    """
    if not isinstance(result, np.ndarray):
        return result
    return torch.from_numpy(result).to(node.meta["val"].dtype)


def as_arrays(x: Any) -> Any:
    """A torch tensor as an array, floating point in double precision.

    Other values stay as they are.
    """
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def _shapes_and_eps(result: Any) -> tuple[list[Shape], float]:
    """The shapes of the tensors that a node returns, and the eps of the first one."""
    tensors = result if isinstance(result, list | tuple) else [result]
    tensors = [x for x in tensors if isinstance(x, torch.Tensor)]
    eps = 0.0
    if tensors and tensors[0].is_floating_point():
        eps = torch.finfo(tensors[0].dtype).eps
    return [tuple(x.shape) for x in tensors], eps
