"""A PyTorch module, read as a program."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from .._program import Program
from ..language import TraceError, Value
from ..language._array import Take
from ..language._probe import Probe
from ._aten_arithmetic import VALUES, Call, numbers
from ._aten_ops import apply_op
from ._axes import Coordinates, Refusal, Scalars, Vectors, along_last
from ._draws import Draws, Random
from ._export import (
    Graph,
    Module,
    Node,
    UnsupportedError,
    capture,
    line_of,
    name_of,
    outputs_of_modules,
    path_of,
    read,
)
from ._parameters import GAUSSIAN, Parameter, Parameters, parameters
from ._samples import fresh


def program(
    module: Module | Callable[[], Module],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    laws: Parameters | None = None,
) -> Program:
    """The program that a PyTorch module computes at initialisation, on given inputs.

    The module is captured by `torch.export` in evaluation mode. Its random parameters become matrices and Gaussian
    vectors, with the standard deviations of its own initialisation; what it computes from its inputs and buffers alone
    (positions, masks, rotary tables) is computed by torch. Widths are those of the module.

    Parameters
    ----------
    module : torch.nn.Module or callable
        A function that returns a new module each time, or a module.
    args : torch.Tensor or tuple
        The inputs that the module is called with, as in `torch.export.export`. Inputs are given, not random.
    kwargs : mapping, optional
        Inputs by name.
    laws : Parameters, optional
        What the parameters are; `ns.torch.parameters(module)` unless given.

    Returns
    -------
    Program
        It returns what the module returns: a tensor whose last axis holds coordinates becomes vectors without this
        axis. Probes are named by the paths of the modules that return them; the scores and weights of a softmax are
        `path.scores` and `path.weights`.

    Raises
    ------
    UnsupportedError
        If an operation or the law of a parameter cannot be read.

    Examples
    --------
    >>> import transformers  # doctest: +SKIP
    >>> config = transformers.GPT2Config(n_layer=2)  # doctest: +SKIP
    >>> net = ns.torch.program(lambda: transformers.GPT2Model(config), torch.tensor([[5, 7, 1]]))  # doctest: +SKIP
    >>> net.law(draws=1000).std()  # doctest: +SKIP
    """
    graph, laws, name = captured(module, args, kwargs, laws)
    return Reader(graph, laws).program(name)


def captured(
    module: Module | Callable[[], Module], args: Any, kwargs: Mapping[str, Any] | None, laws: Parameters | None
) -> tuple[Graph, Parameters, str]:
    """The graph of a module, the laws of its parameters, and the name of its class."""
    args = args if isinstance(args, tuple) else (args,)
    given = dict(kwargs or {})
    laws = parameters(module) if laws is None else laws
    whole = isinstance(module, torch.nn.Module) and not any(b.is_meta for b in module.buffers())
    made: Any = module if whole else fresh(module)[0]
    exported = capture(made, args, given)
    order = [name for name in inspect.signature(made.forward).parameters if name in given]
    given = {name: given[name] for name in [*order, *(name for name in given if name not in order)]}
    fixed = {name: _number(law) for name, law in laws.items() if not law.random}
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(p), name) for name, p in made.named_parameters(remove_duplicate=False)}
    return read(exported, args, given, names, fixed), laws, type(made).__name__


def _number(law: Parameter) -> Any:
    return torch.tensor(law.value).expand(law.shape) if law.law == "constant" else law.value


class Reader:
    """Values of the nodes of a graph, one after the other."""

    def __init__(
        self,
        graph: Graph,
        laws: Parameters,
        names: Mapping[str, str] | None = None,
        head: str | None = None,
        streams: Iterable[Node] = (),
        trained: bool = False,
    ) -> None:
        self.graph, self.laws, self.streams = graph, laws, set(streams)
        self.env: dict[Node, Any] = dict(graph.constants)
        self.probes: list[Probe] = []
        self.softmaxes: dict[Node, list[Probe]] = {}
        ids: dict[str, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder" and node in graph.parameters and node not in self.env:
                self.env[node] = self._parameter(graph.parameters[node])
        for node in graph.nodes:
            if name_of(node) == "embedding" and node not in self.env and node.args[1] in self.env:
                table = self.env.get(node.args[0])
                if isinstance(table, Random):
                    known = self.env[node.args[1]].numpy().ravel()
                    ids[table.name] = np.union1d(ids.get(table.name, known), known)
        self.draws = Draws(laws, ids, names, head, trained)

    def _parameter(self, name: str) -> Random:
        if name not in self.laws:
            raise UnsupportedError(
                f"the parameter {name} has no law in laws; there are {', '.join(list(self.laws)[:4])}, …"
            )
        law = self.laws[name]
        if law.law == "copy":
            return self._parameter(str(law.of))
        if law.law not in GAUSSIAN:
            note = f" ({law.note})" if law.note else ""
            raise UnsupportedError(
                f"the parameter {name} is {law.law}{note}, not i.i.d.: declare its law, "
                f"laws=ns.torch.parameters(module, declared={{{name!r}: {law.std:.2g}}})"
            )
        return Random(name, torch.empty(law.shape, device="meta"))

    def program(self, name: str) -> Program:
        """The whole program."""
        asked = outputs_of_modules(self.graph.nodes)
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in self.env:
                self.env[node] = self._made(node)
                if (
                    node in self.streams
                ):  # one value, whose gradient is known, and not entries of what it was taken from
                    x: Any = self.value(self.env[node])
                    self.env[node] = Vectors.of(1.0 * x) if isinstance(x.op, Take) else self.env[node]
                if node in asked:
                    self._probe_module(node, asked[node])
        outputs = [self.env[node] for node in self.graph.outputs if isinstance(node, torch.fx.Node)]
        values = [self.value(x) for x in outputs if isinstance(x, VALUES)]
        if not values:
            raise UnsupportedError(f"{name} returns nothing that depends on a random parameter")
        self._check_twins(values)
        return self.laws.label(Program(values[0] if len(values) == 1 else tuple(values), name, self.probes))

    def _made(self, node: Node) -> Any:
        name = name_of(node)
        target = str(node.target) if name != "getitem" else "getitem"
        try:
            call = Call(self.draws, node.meta.get("val"), self._probe_of(node))
            return apply_op(name, call, self._arguments(node))
        except Exception as error:
            said = {Refusal: str(error), TraceError: getattr(error, "plain", "")}
            reason = said.get(type(error), f"{type(error).__name__}: {error}")
            where, line = path_of(node), line_of(node)
            raise UnsupportedError(
                f"{target} in {where or 'the module itself'}: {reason}" + (f" (at {line})" if line else "")
            ) from error

    def _arguments(self, node: Node) -> dict[str, Any]:
        args = torch.fx.node.map_arg(node.args, self.env.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, self.env.__getitem__)
        if node.target is operator.getitem:
            return {"self": args[0], "index": args[1]}
        names = [argument.name for argument in node.target._schema.arguments]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _probe_of(self, node: Node) -> Callable[..., None]:
        path = path_of(node)

        def probe(what: str, value: Value, allowed: Any) -> None:
            self.probes.append(Probe(f"{path}.{what}" if path else what, value, allowed))
            self.softmaxes.setdefault(node, []).append(Probe(what, value, allowed))

        return probe

    def _probe_module(self, node: Node, paths: list[str]) -> None:
        if isinstance(self.env[node], Vectors | Scalars):
            value = self.value(self.env[node])
            self.probes += [Probe(path, value) for path in paths]

    def value(self, x: Any) -> Value:
        """Vectors or scalars in the language."""
        x = self.draws.vectors(x) if isinstance(x, Random) else x
        x = Vectors.of(along_last(numbers(x), -1)) if isinstance(x, torch.Tensor) else x
        if isinstance(x, Coordinates):
            from ._rotary import settled

            x = settled(x)
        return x.plain() if isinstance(x, Vectors) else x.value

    def _check_twins(self, outputs: list[Value]) -> None:
        """Rows of a parameter that became scalars must not be vectors elsewhere: these would be other draws."""
        if self.draws.twins:
            seen, pending = set(outputs), list(outputs)
            while pending:
                for x in pending.pop().op.inputs:
                    if x not in seen:
                        seen.add(x)
                        pending.append(x)
            if seen & set(self.draws.twins):
                raise UnsupportedError("rows of a parameter are used both as vectors and as scalars")
