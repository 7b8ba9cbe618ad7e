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
    consts, carried, _ = (len(list(part)) for part in params["ft_in"])
    return LoopCounts(consts, carried)


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
        is_known = not any(_is_random(x) for x in inputs)
        if name in CALLS and not is_known:
            return self._inside(self._call, equation, inputs)
        loops = {
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
            "custom_linear_solve": self._linear_solve,
        }
        if name in loops and not is_known:
            return self._inside(loops[name], equation, inputs)
        if not is_known and name not in SCATTERS and _has_functions(equation):
            reason = "it calls a function in a way that is not supported"
            raise self._refuse(equation, inputs, reason)
        return self._plain(equation, inputs)

    def _inside(
        self,
        read: Callable[[Any, list[Any]], list[Any]],
        equation: Any,
        inputs: list[Any],
    ) -> list[Any]:
        """The results of a call or a loop, whose line is that of what has none."""
        before, self._line = self._line, trace_of(equation) or self._line
        results = read(equation, inputs)
        self._line = before
        return results

    def _plain(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of an equation that calls no other function."""
        name = equation.primitive.name
        if name == "gather" and slices_rows(equation, inputs):
            return [self._row_slices(equation, inputs)]
        compute: Any = PrimitiveCall.of(equation)
        operation, inputs, compute = operands_of(name, inputs, equation, compute)
        avals = [variable.aval for variable in equation.outvars]
        several = equation.primitive.multiple_results
        meta = self._meta(equation, inputs)
        node = self.record(
            OPERATIONS.get(operation, operation),
            inputs,
            equation.params,
            compute=compute,
            val=avals if several else avals[0],
            meta=meta,
            target=operation if operation in RULES else name,
        )
        if not several:
            return [node]
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
        """The results of a loop over an axis, whose steps are unrolled."""
        params = equation.params
        length, (consts, carried) = params["length"], loop_counts(params)
        if length > MOST_STEPS:
            reason = f"a loop of {length} steps: at most {MOST_STEPS} are read"
            raise self._refuse(equation, inputs, reason)
        start = consts + carried
        carry, over = inputs[consts:start], inputs[start:]
        parts = self._parts(over, length)
        steps: list[Any] = [None] * length
        order = range(length)
        for step in reversed(order) if params["reverse"] else order:
            xs = [part[step] for part in parts]
            args = [*inputs[:consts], *carry, *xs]
            results = self.run(*opened(params["jaxpr"]), args)
            carry = results[: len(carry)]
            steps[step] = results[len(carry) :]
        meta = self._meta(equation, inputs)
        stacked = [
            self._stacked([step[number] for step in steps], variable.aval, meta)
            for number, variable in enumerate(equation.outvars[len(carry) :])
        ]
        return [*carry, *stacked]

    def _parts(self, over: list[Any], length: int) -> list[list[Any]]:
        """The parts of arrays along their first axis.

        A parameter of all layers becomes one parameter for each of them: the number of
        the layer follows the path that all of them begin with.
        """
        names = [self.parameters[x] for x in over if _is_random_parameter(self, x)]
        whole = common_path([name.split(".") for name in names])
        if len(names) == 1:
            whole = whole[:-1]
        return [self._parts_of(x, length, ".".join(whole)) for x in over]

    def _parts_of(self, x: Any, length: int, prefix: str) -> list[Any]:
        """The parts of one array."""
        if not _is_random_parameter(self, x):
            return [self._part(x, step) for step in range(length)]
        law = self.laws[self.parameters[x]]
        rest = law.name.removeprefix(prefix).strip(".")
        parts = []
        for step in range(length):
            name = ".".join(part for part in (prefix, str(step), rest) if part)
            if name not in self.laws:
                self.laws[name] = replace(law, name=name, shape=law.shape[1:])
            part = self._parameter(self.laws[name])
            base, index = x.meta.get("part", (law.name, ()))
            part.meta["part"] = base, (*index, step)  # of which numbers it is a part
            parts.append(part)
        return parts

    def _part(self, x: Any, step: int) -> Any:
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
        """The results of a loop whose condition is known."""
        params = equation.params
        first, second = params["cond_nconsts"], params["body_nconsts"]
        conditions, body = params["cond_jaxpr"], params["body_jaxpr"]
        carry = inputs[first + second :]
        for _ in range(MOST_STEPS):
            args = [*inputs[:first], *carry]
            (goes_on,) = self.run(*opened(conditions), args)
            if _is_random(goes_on):
                reason = "a loop whose length depends on random numbers"
                raise self._refuse(equation, inputs, reason)
            if not bool(self.value(goes_on)):
                return carry
            args = [*inputs[first : first + second], *carry]
            carry = self.run(*opened(body), args)
        reason = f"a loop of more than {MOST_STEPS} steps"
        raise self._refuse(equation, inputs, reason)

    def _cond(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The results of the branch that is taken."""
        index, *args = inputs
        if _is_random(index):
            reason = "which branch is taken depends on random numbers: use jnp.where"
            raise self._refuse(equation, inputs, reason)
        branches = equation.params["branches"]
        number = int(np.clip(int(self.value(index)), 0, len(branches) - 1))
        branch = branches[number]
        return self.run(*opened(branch), args)

    def _linear_solve(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """The solution of a linear system, by the function that solves it."""
        params = equation.params
        lengths, solve = params["const_lengths"], params["jaxprs"].solve
        start = lengths.matvec + lengths.vecmat
        consts = inputs[start : start + lengths.solve]
        right = inputs[sum(lengths) :]
        return self.run(*opened(solve), [*consts, *right])

    def _row_slices(self, equation: Any, inputs: list[Any]) -> Node:
        """Rows of a table that are taken as slices of one row each."""
        table, indices = inputs
        ids = np.asarray(self.value(indices))[..., 0]  # a slice starts at column 0
        aval, meta = equation.outvars[0].aval, self._meta(equation, inputs)
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
        graph.parameters.update(
            {
                node: name
                for node, name in self.parameters.items()
                if node in graph.nodes
            }
        )

    def _all_values(self, known: list[Node]) -> list[Any]:
        """The numbers of known nodes, which JAX computes together."""
        unknown = [x for x in known if x not in self._values]
        order = _in_order(unknown, self._values)
        if order:
            leaves = [
                x
                for node in order
                for x in node.args
                if not isinstance(x, Node) or x in self._values
            ]
            keys = {id(x): number for number, x in enumerate(leaves)}

            def results(*numbers: Any) -> list[Any]:
                """The numbers of all unknown nodes."""
                env: dict[Any, Any] = {}

                def value_of(x: Any) -> Any:
                    return numbers[keys[id(x)]] if id(x) in keys else env[x]

                for node in order:
                    assert node.compute is not None
                    env[node] = node.compute(*(value_of(x) for x in node.args))
                return [env[x] for x in unknown]

            numbers = [self.value(x) for x in leaves]
            computed = jax.jit(results)(*numbers)
            self._values.update(zip(unknown, computed, strict=True))
        return [self._values[x] for x in known]

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
