"""The reader: computes the nodes of a graph as values of the language.

A front end records the graph of a network (`_graph`) and derives its reader from
`Reader`. What is the same for all frameworks is here: what parameters and outputs
become, probes, streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from .._array_api import Ints
from ..language import Scalar, TraceError, Value, data, join
from ..language.values._array import Take
from ..language.values._graph import topological_order
from ..language.values._probe import Probe
from ..language.values._scalar import constant
from ..programs._program import Program
from ._arithmetic import MASKED, VALUES, Call, vectors_of_scalars
from ._axes import Linear, Refusal, Scalars, Vectors, refuse_if, settled
from ._deferred import Deferred
from ._graph import (
    Graph,
    Node,
    UnsupportedError,
    name_of,
    outputs_of_modules,
    path_of,
    refused,
)
from ._interleaved import Interleaved
from ._laws import INDEPENDENT, MAKES_DISCRETE
from ._layout import Permute
from ._losses import left_out
from ._operations import CONVOLUTIONS, MATRICES, REARRANGEMENTS, SOFTMAX
from ._random_parameters import MAX_COLUMNS, Draws, Random, has_few_coordinates
from ._rearrangement import Patchwork


class DataDependentError(Exception):
    """A tensor whose shape depends on random numbers."""


# why the outputs of a module are no random numbers
SAME_PARAMETERS = (
    "its parameters are the same in every initialisation; draw them at random, without"
    " a seed in the constructor"
)


class Reader(ABC):
    """Computes the values of the nodes of a graph, one after the other.

    A front end derives from it: it says what its numbers are, and computes operations.

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
            laws=graph.laws,
            ids=self._looked_up(),
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
            if law.note.endswith(MAKES_DISCRETE):
                lacks = "continuous"
            raise UnsupportedError(
                f"the parameter {name} is {law.law}{note}, not {lacks}: {law.remedy}"
            )
        return Random.of(name, law.shape, frozen=frozen)

    @abstractmethod
    def is_given(self, x: Any) -> bool:
        """Whether a value is a tensor of given numbers."""

    @abstractmethod
    def as_array(self, x: Any) -> Any:
        """Given numbers as an array, floating point in double precision."""

    @abstractmethod
    def of_constants(self, node: Node) -> Any:
        """The value of an operation on tensors that turned out not to be random."""

    @abstractmethod
    def call_of(self, node: Node, random: list[Any]) -> Call:
        """What an operation needs besides its arguments, of which some are random."""

    @abstractmethod
    def can_be_deferred(self, node: Node, random: list[Any]) -> bool:
        """Whether the framework can compute an operation from these scalars later."""

    @abstractmethod
    def deferred(self, node: Node, call: Call) -> Deferred:
        """An operation that the framework computes later."""

    @abstractmethod
    def applied(self, node: Node, call: Call, *, scalar: bool = False) -> Any:
        """The result of an operation by its rule; `scalar`: of scalars."""

    @abstractmethod
    def computed_pointwise(self, node: Node, call: Call) -> Any:
        """The value of an operation that acts on each coordinate in the same way."""

    @abstractmethod
    def windows_of_pixels(self, node: Node) -> Any:
        """The windows of given pixels that a kernel multiplies; None if not given.

        Groups have their own kernels, which are not drawn column by column.
        """

    def _looked_up(self) -> dict[str, Any]:
        """The known ids that are looked up in each table, sorted."""
        ids_by_table: dict[str, Any] = {}
        for node in self.graph.nodes:
            if name_of(node) != "embedding" or node in self.env:
                continue
            table_node, ids_node = node.args[:2]
            table = self.env.get(table_node)
            if isinstance(table, Random) and ids_node in self.env:
                new_ids = self.as_array(self.env[ids_node]).ravel()
                earlier_ids = ids_by_table.get(table.name, new_ids)
                ids_by_table[table.name] = np.union1d(earlier_ids, new_ids)
        return ids_by_table

    def _of_given_numbers(self) -> set[str]:
        """Matrices with entries that are not Gaussian, which act on given numbers only.

        At most `MAX_COLUMNS` of their columns are multiplied by a number that is not 0.
        """
        factors_of: dict[str, list[Any]] = {}
        for node in self.graph.nodes:
            parameter = self.env.get(node)
            if isinstance(parameter, Random):
                factors = factors_of.setdefault(parameter.name, [])
                factors.extend(self._factors(node))
        names = set()
        for name, factors in factors_of.items():
            distribution = self.graph.laws[name].distribution
            if distribution is None or distribution.is_normal or not factors:
                continue
            if any(x is None for x in factors):
                continue
            used_columns = [
                np.count_nonzero(x.reshape(-1, x.shape[-1]).any(axis=0))
                for x in factors
            ]
            if sum(used_columns) <= MAX_COLUMNS:
                names.add(name)
        return names

    def _factors(self, matrix: Node) -> Iterator[Any]:
        """What a parameter, or a view of it, multiplies in each of its uses.

        An array if that is given, and otherwise None.
        """
        for user in matrix.users:
            name = name_of(user)
            if name in REARRANGEMENTS and user.op == "call_function":
                yield from self._factors(user)
                continue
            if name in CONVOLUTIONS:
                yield self.windows_of_pixels(user)
                continue
            position = MATRICES.get(name)
            factor = None
            if position is not None and user.args[position] is matrix:
                factor = self.env.get(user.args[position - 1])
            yield self.as_array(factor) if self.is_given(factor) else None

    def program(self) -> Program:
        """The whole program."""
        returned = outputs_of_modules(self.graph.nodes)
        self.env |= dict.fromkeys(left_out(self.graph))
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in self.env:
                self.env[node] = self._result(node)
                self._add_probes(node, returned.get(node, []))
        random_nodes = [
            node
            for node in self.graph.outputs
            if hasattr(node, "op")
            and isinstance(self.env[node], (*VALUES, Deferred, Patchwork))
        ]
        values = [self._output(node) for node in random_nodes]
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

    def _output(self, node: Node) -> Value:
        """The value of a node that the network returns."""
        try:
            return self.value(self.env[node])
        except Refusal as error:
            raise refused(node, str(error)) from error

    def _add_probes(self, node: Node, returned_by: list[str]) -> None:
        """Probe a softmax, and a node that modules (their paths) return."""
        if self._is_softmax_of_scores(node):
            path = path_of(node)
            for probe in self.attention(node):
                name = f"{path}.{probe.name}" if path else probe.name
                self.probes.append(probe._replace(name=name))
        if node in self.streams:
            self._make_stream(node, self.streams[node])
        result = self.env[node]
        is_deferred_tensor = isinstance(result, Deferred) and result.is_tensor
        has_value = isinstance(result, Vectors | Scalars) or is_deferred_tensor
        if returned_by and has_value:
            with suppress(Refusal):  # it may still be used as something else
                value = self.value(result)
                self.probes += [Probe(path, value) for path in returned_by]

    def _is_softmax_of_scores(self, node: Node) -> bool:
        """Whether a node is a softmax whose scores and weights are scalars."""
        if name_of(node) not in SOFTMAX:
            return False
        scores = self.env[node.args[0]]
        weights = self.env[node]
        return isinstance(scores, Scalars) and isinstance(weights, Scalars)

    def _make_stream(self, node: Node, rows: Ints) -> None:
        """Make the tokens of a stream a value of their own, which has a gradient.

        `rows` are the rows of the stream that are tokens; others are padding.
        """
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
        padding = np.setdiff1d(np.arange(stream.size), rows)
        tokens = 1.0 * flat[rows]
        tokens_then_padding = join([tokens, flat[padding]])
        original_order = np.argsort(np.concatenate([rows, padding]))
        whole = tokens_then_padding[original_order].reshape(*stream.shape)
        self.env[node] = Vectors.of(whole, axis)
        self.tokens[node] = tokens

    def _why_constant(self) -> str:
        """Why no output depends on a random parameter."""
        if any(law.random for law in self.graph.laws.values()):
            return "no output depends on a random parameter"
        return SAME_PARAMETERS

    def attention(self, softmax: Node) -> list[Probe]:
        """The scores and the weights of a softmax."""
        scores = self.env[softmax.args[0]]
        weights = self.env[softmax]
        if self.is_given(weights):
            return self._given_attention(softmax)
        if isinstance(scores, Deferred):
            scores = scores.scalars
        if isinstance(weights, Deferred):
            weights = weights.scalars
        return [
            Probe("scores", scores.unmasked, scores.shown),
            Probe("weights", weights.value, scores.shown),
        ]

    def _given_attention(self, softmax: Node) -> list[Probe]:
        """The scores and the weights of a softmax that no parameter changes.

        So they are where the matrix of queries starts at 0.
        """
        given_scores = self.as_array(self.env[softmax.args[0]])
        given_weights = self.as_array(self.env[softmax])
        scores = np.asarray(given_scores, dtype=float)
        weights = np.asarray(given_weights, dtype=float)
        is_shown = scores > MASKED
        shown_scores = np.where(is_shown, scores, 0.0)
        return [
            Probe("scores", constant(shown_scores), mask=is_shown),
            Probe("weights", constant(weights), mask=is_shown),
        ]

    def _result(self, node: Node) -> Any:
        """The value of an operation: by its rule, or deferred to torch."""
        try:
            return self.computed(node)
        except Exception as error:
            if isinstance(error, Refusal | DataDependentError):
                reason = str(error)
            elif type(error) is TraceError:
                reason = getattr(error, "plain", "")
            else:
                reason = f"{type(error).__name__}: {error}"
            raise refused(node, reason) from error

    def computed(self, node: Node) -> Any:
        """The value of an operation.

        Operations on scalars that are deferred already are deferred too. Others follow
        their rule in the table of the front end, or, if it does not apply and all
        arguments are scalars or a few coordinates, the framework computes them later.
        """
        random = self._random_inputs(node)
        if all(self._all_given(self.env[x]) for x in node.all_input_nodes):
            return self.of_constants(node)
        call = self.call_of(node, random)
        is_deferred = any(isinstance(x, Deferred) for x in random)
        if is_deferred and self.can_be_deferred(node, random):
            return self.deferred(node, call)
        try:
            return self.applied(node, call)
        except (Refusal, TraceError) as reason:
            with suppress(Refusal):
                return self._computed_from_scalars(node, call, random)
            with suppress(Refusal):
                return self.computed_pointwise(node, call)
            raise reason from None

    def _all_given(self, x: Any) -> bool:
        """Whether a value is a tensor, or several, of given numbers."""
        leaves = x if isinstance(x, list | tuple) else [x]
        return all(self.is_given(leaf) for leaf in leaves)

    def _computed_from_scalars(self, node: Node, call: Call, random: list[Any]) -> Any:
        """The value of an operation whose random arguments can all be scalars.

        The framework computes it later if it can. It cannot, for example, if an
        argument has masked scores and the operation would not respect the mask. Such
        operations follow their rule, with scalars as arguments.
        """
        # `draws` keeps these scalars, so converting the same arguments again is cheap
        scalars = [self.as_scalars(x) for x in random]
        can_be_scalars = all(isinstance(x, Deferred | Scalars) for x in scalars)
        refuse_if(not random or not can_be_scalars, "not of scalars")
        if self.can_be_deferred(node, scalars):
            return self.deferred(node, call)
        return self.applied(node, call, scalar=True)

    def _random_inputs(self, node: Node) -> list[Any]:
        """The random arguments of an operation."""
        values = [self.env[x] for x in node.all_input_nodes]
        return [x for x in values if isinstance(x, (*VALUES, Deferred, list, tuple))]

    def as_scalars(self, x: Any) -> Any:
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
        elif self.is_given(x):
            given_numbers = np.asarray(self.as_array(x), dtype=float)
            x = Vectors.of(data(given_numbers))
        elif isinstance(x, Linear):
            x = settled(x)
        elif isinstance(x, Interleaved):
            x = self.draws.single_entries(x)
        if isinstance(x, Vectors) and x.is_interleaved:
            x = self.draws.entries(x)
        return x.plain if isinstance(x, Vectors) else x.value
