"""The graph of a JAX function: its jaxpr without calls and loops.

Functions that a jaxpr calls (`jit`, `remat`, rules of differentiation) are put in their
place, and loops over known numbers (`scan` over layers) are unrolled. What depends on
no random parameter is known: JAX computes all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ..reader._graph import Graph, UnsupportedError, refused, shape_of
from ..reader._laws import Parameter, Parameters
from ._blocks import common_path, name_blocks
from ._custom_rules import check_rule
from ._nodes import SCATTERS, Item, Node, PrimitiveCall, Reshape, rows_of, trace_of
from ._patterns import joined, keep_users
from ._primitives import OPERATIONS, RULES, operands_of, slices_rows

# calls of functions: the parameter that has the jaxpr
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
# primitives that return their argument
UNCHANGED = (
    "copy",
    "copy_p",
    "name",
    "optimization_barrier",
    "pvary",
    "reduce_precision",
    "sharding_constraint",
)
MOST_STEPS = 4096  # of a loop that is unrolled


class Opened(NamedTuple):
    """A jaxpr, and the constants that it refers to."""

    jaxpr: Any
    consts: Sequence[Any]


def opened(jaxpr: Any) -> Opened:
    """A jaxpr and its constants, closed or not: since JAX 0.11 both are one type."""
    return Opened(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()))


class LoopCounts(NamedTuple):
    """How many of the inputs of a scan are constants, and how many it carries."""

    consts: int
    carried: int


def loop_counts(params: Mapping[str, Any]) -> LoopCounts:
    """The counts of a scan: since JAX 0.11 the tree of its inputs has them."""
    if "num_consts" in params:
        return LoopCounts(params["num_consts"], params["num_carry"])
    consts, carried, _ = params["ft_in"].unpack()  # iteration would give the leaves
    return LoopCounts(consts=len(consts), carried=len(carried))


def slices_of_unstack(equation: Any) -> Any:
    """A jaxpr that takes the parts of `unstack` one by one, as before JAX 0.11."""
    axis = equation.params["axis"]
    x = equation.invars[0].aval

    def parts(array: Any) -> list[Any]:
        count = x.shape[axis]
        return [
            jax.lax.index_in_dim(array, k, axis, keepdims=False) for k in range(count)
        ]

    return jax.make_jaxpr(parts)(jax.ShapeDtypeStruct(x.shape, x.dtype))


class Variable(NamedTuple):
    """A parameter or an input of the function, in the order of its jaxpr."""

    name: str  # of a parameter or a key; "" for inputs
    value: Any  # of an input
    is_key: bool = False


def captured(
    name: str,
    jaxpr: Any,
    variables: Sequence[Variable],
    laws: Parameters,
    *,
    only_known: bool = False,
) -> Graph:
    """The graph of a closed jaxpr, whose arguments are parameters and inputs.

    `only_known` is that of `joined`.
    """
    recorder = Recorder(laws)
    arguments = [recorder.placeholder(each) for each in variables]
    outputs = recorder.run(jaxpr.jaxpr, jaxpr.consts, arguments)
    nodes, outputs = joined(
        recorder.nodes, outputs, recorder.value, only_known=only_known
    )
    graph = Graph(
        name=name,
        laws=recorder.laws,
        nodes=nodes,
        parameters=recorder.parameters,
        constants={},
        outputs=outputs,
        inputs=set(),
        frozen=set(),
    )
    recorder.finish(graph)
    name_blocks(graph)
    return graph


class Recorder:
    """Records the equations of a jaxpr, and of those that it calls, as nodes."""

    def __init__(self, laws: Parameters) -> None:
        self.laws = Parameters(laws, laws.samples)
        self.nodes: list[Node] = []  # those that are random
        self.parameters: dict[Node, str] = {}
        self.inputs: list[Node] = []
        self._values: dict[Node, Any] = {}  # of known nodes
        self._recent: tuple[str, ...] = ()  # the last two random parameters
        self._line = ""  # of the innermost call or loop that has one

    # Nodes

    def placeholder(self, variable: Variable) -> Node:
        """A parameter, which is random or known, or an input."""
        if not variable.name:
            value = np.asarray(variable.value)
            node = self._placeholder("input", value)
            self.inputs.append(node)
            return node
        if variable.is_key:
            node = Node(
                op="placeholder",
                operation="key",
                target="key",
                args=(),
                kwargs={},
                compute=None,
                meta={"val": variable.value},
            )
            node.name = variable.name
            return node
        return self._parameter(self.laws[variable.name])

    def _placeholder(self, name: str, value: Any) -> Node:
        """A known number, as a node."""
        node = Node(
            op="placeholder",
            operation="input",
            target=name,
            args=(),
            kwargs={},
            compute=None,
            meta={"val": value},
            name=name,
        )
        node.is_random = False
        self._values[node] = value
        return node

    def _parameter(self, law: Parameter) -> Node:
        """The placeholder of a parameter with this law."""
        if not law.random:
            value = np.broadcast_to(np.asarray(law.value), law.shape)
            node = self._placeholder(law.name, value)
        else:
            shape = jax.ShapeDtypeStruct(law.shape, np.float32)
            node = Node(
                op="placeholder",
                operation="parameter",
                target=law.name,
                args=(),
                kwargs={},
                compute=None,
                meta={"val": shape},
            )
            node.name = law.name
            self.nodes.append(node)
        self.parameters[node] = law.name
        return node

    def record(
        self,
        operation: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        compute: Callable[..., Any],
        val: Any,
        meta: Mapping[str, Any] | None = None,
        target: str = "",
    ) -> Node:
        """A new operation, which is known if all of its arguments are."""
        known = [x if isinstance(x, Node) else self._placeholder("", x) for x in args]
        node = Node(
            op="call_function",
            operation=operation,
            target=target or operation,
            args=tuple(known),
            kwargs=kwargs,
            compute=compute,
            meta={**(meta or {}), "val": val},
        )
        node.is_random = any(x.is_random for x in node.all_input_nodes)
        if node.is_random:
            self.nodes.append(node)
        return node

    # Equations

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr, nodes or arrays."""
        env: dict[Any, Any] = {}
        env.update(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def value_of(variable: Any) -> Any:
            """A literal as an array, or what a variable stands for."""
            if hasattr(variable, "val"):
                return np.asarray(variable.val, dtype=variable.aval.dtype)
            return env[variable]

        for equation in jaxpr.eqns:
            inputs = [value_of(variable) for variable in equation.invars]
            results = self._equation(equation, inputs)
            env.update(zip(equation.outvars, results, strict=True))
        return [value_of(variable) for variable in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of an equation."""
        name = equation.primitive.name
        if name in UNCHANGED:
            return inputs
        if not any(_is_random(x) for x in inputs):
            return self._plain(equation, inputs)
        with_functions = {
            **dict.fromkeys(CALLS, self._call),
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
            "custom_linear_solve": self._linear_solve,
            "unstack": self._unstack,
        }
        if name in with_functions:
            return self._inside(with_functions[name], equation, inputs)
        if name not in SCATTERS and _has_functions(equation):
            reason = "it calls a function in a way that is not supported"
            raise self._refuse(equation, inputs, reason)
        return self._plain(equation, inputs)

    def _inside(
        self,
        read: Callable[[Any, list[Any]], list[Any]],
        equation: Any,
        inputs: list[Any],
    ) -> list[Any]:
        """The results of a call or a loop, by the method `read`.

        Equations inside that know no line of the user's code report the line of this
        one.
        """
        outer_line = self._line
        self._line = trace_of(equation) or outer_line
        results = read(equation, inputs)
        self._line = outer_line
        return results

    def _unstack(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The parts of an array along an axis."""
        return self.run(*opened(slices_of_unstack(equation)), inputs)

    def _plain(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of an equation that calls no other function."""
        name = equation.primitive.name
        empty = _empty_results(equation)
        if empty is not None:
            return empty
        if name == "gather" and slices_rows(equation, inputs):
            return [self._row_slices(equation, inputs)]
        compute: Any = PrimitiveCall.of(equation)
        operation, inputs, compute = operands_of(name, inputs, equation, compute)
        avals = [variable.aval for variable in equation.outvars]
        has_several = equation.primitive.multiple_results
        meta = self._meta(equation, inputs)
        if name == "conv_general_dilated":
            images = equation.params["dimension_numbers"].lhs_spec
            meta["channel_axis"] = images[1]
        node = self.record(
            OPERATIONS.get(operation, operation),
            inputs,
            equation.params,
            compute=compute,
            val=avals if has_several else avals[0],
            meta=meta,
            target=operation if operation in RULES else name,
        )
        if not has_several:
            return [node]
        return self._entries(node, avals, meta, name)

    def _entries(
        self, node: Node, avals: Sequence[Any], meta: dict[str, Any], name: str
    ) -> list[Any]:
        """The results of an operation that returns several, each as a node."""
        return [
            self.record(
                "getitem",
                (node,),
                {"index": number},
                compute=Item(number),
                val=aval,
                meta=meta,
                target=name,
            )
            for number, aval in enumerate(avals)
        ]

    def _meta(self, equation: Any, inputs: list[Any]) -> dict[str, Any]:
        """Where an equation is: its line, and the parameters that were used last.

        Only random ones are reported.
        """
        if not any(_is_random(x) for x in inputs):
            return {}
        for x in inputs:
            if isinstance(x, Node) and x in self.parameters and x.is_random:
                self._recent = (*self._recent[-1:], self.parameters[x])
        line = trace_of(equation) or self._line
        return {"parameters": self._recent, "stack_trace": line}

    # Calls and loops

    def _call(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of a call."""
        jaxpr = equation.params[CALLS[equation.primitive.name]]
        if equation.primitive.name.startswith("custom"):
            check_rule(equation, refuse=partial(self._refuse, equation, inputs))
        return self.run(*opened(jaxpr), inputs)

    def _refuse(
        self, equation: Any, inputs: list[Any], reason: str
    ) -> UnsupportedError:
        """The error of an equation that cannot be read."""
        meta = self._meta(equation, inputs)
        name = equation.primitive.name
        return refused(
            Node(
                op="call_function",
                operation=name,
                target=name,
                args=(),
                kwargs={},
                compute=None,
                meta=meta,
            ),
            reason,
        )

    def _scan(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of a loop over an axis, whose steps are unrolled.

        The inputs are constants, what the loop carries from step to step, and arrays
        over whose first axis it runs. The outputs are what it carries in the end, and
        arrays that stack the results of all steps.
        """
        params = equation.params
        length = params["length"]
        if length > MOST_STEPS:
            reason = f"a loop of {length} steps: at most {MOST_STEPS} are read"
            raise self._refuse(equation, inputs, reason)
        counts = loop_counts(params)
        first_array = counts.consts + counts.carried
        consts = inputs[: counts.consts]
        carry = inputs[counts.consts : first_array]
        slices = self._slices_of_arrays(inputs[first_array:], length)
        stacked_results: list[Any] = [None] * length
        steps = range(length)
        if params["reverse"]:
            steps = steps[::-1]
        for step in steps:
            slices_of_step = [of_array[step] for of_array in slices]
            args = [*consts, *carry, *slices_of_step]
            results = self.run(*opened(params["jaxpr"]), args)
            carry = results[: counts.carried]
            stacked_results[step] = results[counts.carried :]
        meta = self._meta(equation, inputs)
        stacked = []
        for number, variable in enumerate(equation.outvars[counts.carried :]):
            of_steps = [results[number] for results in stacked_results]
            stacked.append(self._stacked(of_steps, variable.aval, meta))
        return [*carry, *stacked]

    def _slices_of_arrays(self, arrays: list[Any], length: int) -> list[list[Any]]:
        """The slices of each array along its first axis.

        A parameter of all layers becomes one parameter for each of them: the number of
        the layer follows the path that all of them begin with.
        """
        names = [self.parameters[x] for x in arrays if _is_random_parameter(self, x)]
        common = common_path([name.split(".") for name in names])
        if len(names) == 1:  # then the whole path is common: leave out the last name
            common = common[:-1]
        prefix = ".".join(common)
        return [self._slices(x, length, prefix) for x in arrays]

    def _slices(self, x: Any, length: int, prefix: str) -> list[Any]:
        """The slices of one array along its first axis."""
        if not _is_random_parameter(self, x):
            return [self._slice(x, step) for step in range(length)]
        return [self._parameter_of_layer(x, step, prefix) for step in range(length)]

    def _parameter_of_layer(self, x: Node, layer: int, prefix: str) -> Node:
        """The parameter of one layer, of a parameter with an axis of layers."""
        law = self.laws[self.parameters[x]]
        name_in_layer = law.name.removeprefix(prefix).strip(".")
        parts = (prefix, str(layer), name_in_layer)
        name = ".".join(part for part in parts if part)
        if name not in self.laws:
            self.laws[name] = replace(law, name=name, shape=law.shape[1:])
        node = self._parameter(self.laws[name])
        # the parameter of all layers, and the index of this one in it
        whole, index = x.meta.get("part", (law.name, ()))
        node.meta["part"] = whole, (*index, layer)
        return node

    def _slice(self, x: Any, step: int) -> Any:
        """The entries of an array at an index of its first axis."""
        if not isinstance(x, Node):
            return np.asarray(x)[step]
        val = x.meta["val"]
        shape = jax.ShapeDtypeStruct(val.shape[1:], val.dtype)
        return self.record(
            "select", (x,), {"index": step}, compute=Item(step), val=shape, meta=x.meta
        )

    def _stacked(self, parts: list[Any], aval: Any, meta: Any) -> Node:
        """Results of all steps, along a new first axis."""
        return self.record("stack", parts, {}, compute=_stack, val=aval, meta=meta)

    def _while(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of a loop whose condition is known.

        The inputs are constants of the condition, constants of the body, and what the
        loop carries.
        """
        params = equation.params
        end_of_condition = params["cond_nconsts"]
        end_of_body = end_of_condition + params["body_nconsts"]
        consts_of_condition = inputs[:end_of_condition]
        consts_of_body = inputs[end_of_condition:end_of_body]
        carry = inputs[end_of_body:]
        condition = opened(params["cond_jaxpr"])
        body = opened(params["body_jaxpr"])
        for _ in range(MOST_STEPS):
            (goes_on,) = self.run(*condition, [*consts_of_condition, *carry])
            if _is_random(goes_on):
                reason = "a loop whose length depends on random numbers"
                raise self._refuse(equation, inputs, reason)
            if not bool(self.value(goes_on)):
                return carry
            carry = self.run(*body, [*consts_of_body, *carry])
        reason = f"a loop of more than {MOST_STEPS} steps"
        raise self._refuse(equation, inputs, reason)

    def _cond(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of the branch that is taken."""
        index, *args = inputs
        if _is_random(index):
            reason = "which branch is taken depends on random numbers: use jnp.where"
            raise self._refuse(equation, inputs, reason)
        branches = equation.params["branches"]
        # JAX takes the nearest branch for an index out of range
        number = int(np.clip(int(self.value(index)), 0, len(branches) - 1))
        return self.run(*opened(branches[number]), args)

    def _linear_solve(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The solution of a linear system, by the function that solves it.

        The inputs are the constants of four functions (`matvec`, `vecmat`, `solve`,
        `transpose_solve`), and then the right side.
        """
        params = equation.params
        lengths = params["const_lengths"]
        solve = params["jaxprs"].solve
        start = lengths.matvec + lengths.vecmat
        consts = inputs[start : start + lengths.solve]
        right_side = inputs[sum(lengths) :]
        return self.run(*opened(solve), [*consts, *right_side])

    def _row_slices(self, equation: Any, inputs: list[Any]) -> Node:
        """Rows of a table that are taken as slices of one row each."""
        table, indices = inputs
        ids = np.asarray(self.value(indices))[..., 0]  # a slice starts at column 0
        aval = equation.outvars[0].aval
        meta = self._meta(equation, inputs)
        shape = (*ids.shape, aval.shape[-1])
        rows = self.record(
            "embedding",
            (table, ids),
            {},
            compute=rows_of,
            val=jax.ShapeDtypeStruct(shape, aval.dtype),
            meta=meta,
        )
        return self.record(
            "reshape",
            (rows,),
            {"new_sizes": aval.shape, "dimensions": None},
            compute=Reshape(aval.shape),
            val=aval,
            meta=meta,
        )

    # Known numbers

    def value(self, x: Any) -> Any:
        """A known number."""
        if not isinstance(x, Node):
            return x
        if x not in self._values:
            assert x.compute is not None
            self._values[x] = x.compute(*(self.value(y) for y in x.args))
        return self._values[x]

    def finish(self, graph: Graph) -> None:
        """Compute what random operations need, and enter it in the graph.

        Known nodes become constants of the graph.
        """
        read_nodes = [x for node in graph.nodes for x in node.all_input_nodes]
        read_nodes += [x for x in graph.outputs if isinstance(x, Node)]
        read_nodes += self.inputs
        known = list(dict.fromkeys(x for x in read_nodes if not x.is_random))
        for node, value in zip(known, self._all_values(known), strict=True):
            graph.constants[node] = np.asarray(value)
        graph.nodes[:0] = known
        keep_users(graph.nodes)
        graph.inputs.update(self.inputs)
        self._name_ids(graph)
        for node, name in self.parameters.items():
            if node in graph.nodes:
                graph.parameters[node] = name

    def _all_values(self, known: list[Node]) -> list[Any]:
        """The numbers of known nodes, which JAX computes together."""
        not_computed = [x for x in known if x not in self._values]
        order = _in_order(not_computed, self._values)
        if order:
            results = self._computed(order, not_computed)
            self._values.update(zip(not_computed, results, strict=True))
        return [self._values[x] for x in known]

    def _computed(self, order: Sequence[Node], outputs: Sequence[Node]) -> list[Any]:
        """The values of nodes, by one compiled function of the numbers they start from.

        `order` are all nodes to compute, arguments first.
        """
        leaves = []  # arguments that are numbers, or have been computed
        for node in order:
            leaves += [
                x for x in node.args if not isinstance(x, Node) or x in self._values
            ]
        leaf_numbers = {id(x): number for number, x in enumerate(leaves)}

        def values_of_outputs(*leaf_values: Any) -> list[Any]:
            env: dict[Any, Any] = {}

            def value_of(x: Any) -> Any:
                if id(x) in leaf_numbers:
                    return leaf_values[leaf_numbers[id(x)]]
                return env[x]

            for node in order:
                assert node.compute is not None
                env[node] = node.compute(*(value_of(x) for x in node.args))
            return [env[x] for x in outputs]

        results: list[Any] = jax.jit(values_of_outputs)(*map(self.value, leaves))
        return results

    def _name_ids(self, graph: Graph) -> None:
        """Have a table look up the input itself, if its ids are those of the input.

        Ids may have an axis of one entry more, and jnp.take adds the number of rows to
        negative ones, which changes nothing.
        """
        for node in graph.nodes:
            if node.operation != "embedding":
                continue
            ids = node.args[1]
            numbers = graph.constants[ids]
            if numbers.ndim == len(shape_of(node)) and numbers.shape[-1] == 1:
                numbers = numbers[..., 0]
            for known in self.inputs:
                if ids is not known and np.array_equal(numbers, graph.constants[known]):
                    node.replace_argument(ids, known)
                    node.compute = rows_of
                    break


def _empty_results(equation: Any) -> list[Any] | None:
    """The results of an equation that have no entries, so that they are known.

    None if one of them has entries. An associative scan slices such parts.
    """
    shapes = [variable.aval.shape for variable in equation.outvars]
    if any(0 not in shape for shape in shapes):
        return None
    return [np.zeros(variable.aval.shape) for variable in equation.outvars]


def _has_functions(equation: Any) -> bool:
    """Whether a parameter of a primitive is a function."""
    leaves = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
    )
    return any(hasattr(x, "eqns") for x in leaves)


def _is_random(x: Any) -> bool:
    """Whether a result is random."""
    return isinstance(x, Node) and x.is_random


def _is_random_parameter(recorder: Recorder, x: Any) -> bool:
    """Whether a result is a parameter, and random."""
    return _is_random(x) and x in recorder.parameters


def _stack(*parts: Any) -> Any:
    return jax.numpy.stack(parts)


def _in_order(roots: Sequence[Node], values: Mapping[Node, Any]) -> list[Node]:
    """The nodes that known nodes are computed from, arguments first."""
    order: dict[Node, None] = {}
    pending = [(root, False) for root in reversed(roots)]
    while pending:
        node, is_ready = pending.pop()
        if node in order or node in values:
            continue
        if is_ready:
            order[node] = None
            continue
        pending.append((node, True))
        pending += [(x, False) for x in node.all_input_nodes]
    return list(order)
