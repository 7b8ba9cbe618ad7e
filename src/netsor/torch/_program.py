"""A PyTorch module, read as a program: its graph, captured by torch.export without its
memory, and the reader.

Torch computes everything that depends only on constants. The reader turns the rest into
values of the language.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.nn.modules.utils import _pair
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from .._program import Program
from .._validate import ArgumentError
from ..language import TraceError, Value, data
from ..language._array import Take
from ..language._graph import topological_order
from ..language._probe import Probe
from ._aten_arithmetic import VALUES, Call, numbers
from ._aten_ops import SOFTMAX, apply_op
from ._axes import Linear, Refusal, Scalars, Vectors, refuse_if, settled
from ._fresh_modules import Module, ModuleOrFactory, fresh
from ._parameters import GAUSSIAN, Parameters, parameters
from ._random_parameters import Draws, Random

EINSUM = torch.ops.aten.einsum.default
ATTENTION, CONVOLUTION = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.nn.functional.conv2d,
)
SET_GRAD_ENABLED, APPLY = (
    torch._C._set_grad_enabled,
    torch.autograd.Function.__dict__["apply"],
)
Node = Any  # torch.fx.Node


def program(
    module: ModuleOrFactory,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    laws: Parameters | None = None,
) -> Program:
    """The program that a PyTorch module computes at initialisation, on given inputs.

    The module is captured by `torch.export` in evaluation mode. Its random parameters
    become matrices and Gaussian vectors, with the standard deviations of its own
    initialisation; what it computes only from its inputs and buffers (positions, masks,
    rotary tables) is computed by torch. Widths are those of the module.

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
    >>> net = ns.torch.program(lambda: transformers.GPT2Model(config), torch.tensor([[5, 7, 1]]))  # doctest: +SKIP
    >>> net.law(draws=1000).std()  # doctest: +SKIP
    """
    return Reader(captured(module, args, kwargs, laws)).program()


class UnsupportedError(ValueError):
    """An operation or a parameter of a module cannot be read. The message has its name,
    its path and the line of code.

    Examples
    --------
    >>> ns.torch.program(build, ids)  # doctest: +SKIP
    Traceback (most recent call last):
    netsor.torch._program.UnsupportedError: aten.topk.default in model.layers.0.mlp: … (at modeling.py:80: …)
    """


class Graph(NamedTuple):
    """A captured module."""

    name: str  # of its class
    laws: Parameters
    nodes: list[Node]
    # placeholders of parameters; of those that are tied, the first name
    parameters: dict[Node, str]
    # nodes without a random parameter: inputs, buffers, positions, masks
    constants: dict[Node, Any]
    outputs: list[Any]  # nodes, or other things that are returned
    inputs: set[Node]  # placeholders of the arguments of the call
    frozen: set[str]  # random parameters without requires_grad, and random buffers


def captured(
    module: ModuleOrFactory,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    laws: Parameters | None,
) -> Graph:
    """The graph of a module; torch computes all that does not depend on random
    parameters.
    """
    args, given = args if isinstance(args, tuple) else (args,), dict(kwargs or {})
    laws = parameters(module) if laws is None else laws
    if not isinstance(laws, Parameters):
        raise ArgumentError("laws", laws, "the result of ns.torch.parameters(module)")
    whole = isinstance(module, torch.nn.Module) and not any(
        b.is_meta for b in module.buffers()
    )
    instance: Any = module if whole else fresh(module)[0]
    _refuse_hooks(instance)
    program = _exported(instance, args, given)
    order = {
        name: given[name]
        for name in inspect.signature(instance.forward).parameters
        if name in given
    }
    inputs = iter(pytree.tree_leaves((args, order | given)))
    first: dict[int, str] = {}
    names = {
        name: first.setdefault(id(p), name)
        for name, p in instance.named_parameters(remove_duplicate=False)
    }
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    held = {**program.state_dict, **program.constants}
    moved = {
        name
        for name, p in instance.named_parameters(remove_duplicate=False)
        if p.requires_grad
    }
    graph = Graph(
        type(instance).__name__,
        laws,
        list(program.graph.nodes),
        {},
        {},
        [],
        set(),
        {*laws} - moved,
    )
    constants = graph.constants

    def number(x: Node) -> Any:
        if x in constants:
            return constants[x]
        # only its shape and type matter
        return torch.zeros((), dtype=x.meta["val"].dtype).expand(x.meta["val"].shape)

    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                kind, target = specs[node.name].kind, specs[node.name].target
                # or a random buffer
                if kind is InputKind.PARAMETER or (target in laws and node.users):
                    name = graph.parameters[node] = names.get(target, target)
                    if name in laws and not laws[name].random:
                        constants[node] = torch.as_tensor(laws[name].value).expand(
                            laws[name].shape
                        )
                elif kind is InputKind.USER_INPUT:
                    constants[node] = next(inputs)
                    graph.inputs.add(node)
                else:  # a buffer, or a tensor that the code makes
                    constants[node] = held[target]
            elif node.op == "output":
                graph.outputs.extend(node.args[0])
            elif node.op == "get_attr":
                constants[node] = operator.attrgetter(node.target)(program.graph_module)
            else:
                seeded = torch.Tag.nondeterministic_seeded in getattr(
                    node.target, "tags", ()
                )
                # which are p and training
                if seeded and ("dropout" not in name_of(node) or all(node.args[1:3])):
                    raise refused(
                        node,
                        "random numbers in forward: draw them in the constructor, as a"
                        " buffer",
                    )
                at = LIKE.get(name_of(node))
                shaped = (
                    {node.args[at]} - {*node.args[:at]} if at is not None else set()
                )
                if name_of(node) == "embedding" and node.args[1] in constants:
                    _refuse_missing_rows(graph, node)
                if all(x in constants or x in shaped for x in node.all_input_nodes):
                    args, kwargs = torch.fx.node.map_arg(
                        (node.args, node.kwargs), number
                    )
                    constants[node] = node.target(*args, **kwargs)
    return graph


def _refuse_hooks(module: Module) -> None:
    """Refuse hooks that may change gradients."""
    hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    for what, parts in (
        ("parameter", module.named_parameters()),
        ("module", module.named_modules()),
    ):
        for path, part in parts:
            if any(getattr(part, name, None) for name in hooks):
                raise UnsupportedError(
                    f"the {what} {path or 'itself'} has a hook on its gradient: remove"
                    " the hook"
                )


def _refuse_missing_rows(graph: Graph, node: Node) -> None:
    """Reject indices of an embedding that are no rows of its table: token ids, or
    positions.
    """
    indices, rows = graph.constants[node.args[1]], node.args[0].meta["val"].shape[0]
    if not indices.numel() or 0 <= int(indices.min()) <= int(indices.max()) < rows:
        return
    table = graph.parameters.get(node.args[0], "the table")
    if _from_inputs(graph, node.args[1]):
        raise ArgumentError(
            "ids",
            indices.reshape(-1).tolist(),
            f"from 0 to {rows - 1}, the rows of {table}",
        )
    raise ArgumentError(
        "tokens",
        indices.shape[-1],
        f"at most {rows}, the rows of {table}: give fewer tokens",
    )


def _from_inputs(graph: Graph, node: Node) -> bool:
    """Whether a node depends on the arguments of the call."""
    return node in graph.inputs or any(
        _from_inputs(graph, x) for x in node.all_input_nodes
    )


class PlainFunctions(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Has attention, and convolutions that cut an image into patches, computed by
    products of matrices.

    What a module computes without gradients (`torch.no_grad`, `.data`) is detached.
    """

    def __init__(self) -> None:
        super().__init__()
        # tensors that were made without gradients, by their ids
        self._made: dict[int, Any] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # `x.data`, which torch.export cannot capture
        if getattr(func, "__self__", None) is torch.Tensor.data:
            return args[0].detach()
        made = {ATTENTION: _attention, CONVOLUTION: _patches}.get(func, func)(
            *args, **(kwargs or {})
        )
        return made if torch.is_grad_enabled() else self._detached(func, args, made)

    def _detached(self, func: Any, args: Any, made: Any) -> Any:
        """The result of a function that was called while gradients were off."""
        name = getattr(func, "__name__", "")
        in_place = name == "__setitem__" or (
            name.endswith("_") and not name.endswith("__")
        )
        if in_place and isinstance(args[0], torch.Tensor):
            if id(args[0]) not in self._made:
                remedy = (
                    "torch then differentiates as if it had not changed; assign a new"
                    " tensor instead"
                )
                raise UnsupportedError(
                    f"{name} changes a tensor in place while gradients are off:"
                    f" {remedy}"
                )
            return made
        result = pytree.tree_map_only(torch.Tensor, _without_gradient, made)
        self._made |= {
            id(x): x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)
        }
        return result


def _without_gradient(x: Any) -> Any:
    return x.detach() if x.is_floating_point() else x


def _set_grad_enabled(mode: bool) -> None:
    """Turn gradients on or off without a node in the graph that is captured:
    `PlainFunctions` detaches results.
    """
    with torch._C.DisableTorchFunction():
        SET_GRAD_ENABLED(mode)


def _applied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.Function.apply`: only gradient checkpoints, which change no
    gradient, are read.
    """
    if function is CheckpointFunction:
        run, _preserve, *given = args
        return run(*given)
    name = function.__name__
    raise UnsupportedError(
        f"{name}.apply: the backward pass of a torch.autograd.Function is not read; use"
        " operations of torch"
    )


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    **more: Any,
) -> Any:
    if more.get("enable_gqa"):
        key, value = (
            x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)
            for x in (key, value)
        )
    if dropout_p:
        raise ValueError(
            f"scaled_dot_product_attention has dropout_p={dropout_p} in evaluation mode"
        )
    scale = more.get("scale")
    scores = (
        query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    )
    mask = (
        torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if is_causal
        else attn_mask
    )
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -math.inf)
            if mask.dtype == torch.bool
            else scores + mask
        )
    return torch.softmax(scores, -1) @ value


def _patches(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    kernel, given = tuple(weight.shape[2:]), (stride, padding, dilation, groups)
    # they overlap, or are padded
    if tuple(map(_pair, given)) != (kernel, (0, 0), (1, 1), (1, 1)):
        return CONVOLUTION(x, weight, bias, *given)
    # (batch, patches, numbers)
    patches = torch.nn.functional.unfold(x, kernel, stride=kernel).mT
    embedded = torch.nn.functional.linear(patches, weight.flatten(1), bias)
    return embedded.mT.unflatten(
        -1, (x.shape[-2] // kernel[0], x.shape[-1] // kernel[1])
    )


def _exported(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program of a copy whose parameters have shapes and no memory."""
    memo: dict[int, Any] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        for p in module.parameters():
            memo[id(p)] = torch.nn.Parameter(
                torch.empty(p.shape, dtype=p.dtype, device="cpu"), requires_grad=False
            )
    for path, b in module.named_buffers():
        if b.device.type == "meta":
            raise ValueError(
                f"the buffer {path} is on the meta device, without numbers: pass a"
                " function that makes the module"
            )
        memo[id(b)] = b.detach().cpu()
    shadow = copy.deepcopy(module, memo).eval()
    # by default transformers returns a cache of keys and values
    for part in shadow.modules():
        if getattr(getattr(part, "config", None), "use_cache", False):
            part.config.use_cache = False
    if any(
        isinstance(t, torch.Tensor) and t.device.type == "meta"
        for t in pytree.tree_leaves((args, kwargs))
    ):
        raise ValueError(
            "inputs on the meta device have no numbers: pass ids on the CPU; the module"
            " may be on meta"
        )
    given = pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().cpu().clone(), (args, kwargs)
    )
    fused = torch.backends.mha.get_fastpath_enabled()
    # its fused kernel hides the operations of a TransformerEncoderLayer
    torch.backends.mha.set_fastpath_enabled(False)
    # which torch.nn.MultiheadAttention calls unseen
    torch.nn.functional.scaled_dot_product_attention = _attention
    torch._C._set_grad_enabled = _set_grad_enabled
    torch.autograd.Function.apply = classmethod(_applied)
    try:
        with torch.enable_grad(), PlainFunctions():
            program = torch.export.export(shadow, *given, strict=False)
        in_place = any(
            getattr(schema_of(node), "is_mutable", False)
            for node in program.graph.nodes
        )
        if not in_place and not any(
            node.target is EINSUM for node in program.graph.nodes
        ):
            return program
        # outside `PlainFunctions`, which would detach every result
        with torch.no_grad():
            return program.run_decompositions(
                {EINSUM: torch.export.default_decompositions()[EINSUM]}
            )
    except UnsupportedError:
        raise
    except Exception as error:  # of torch, or of the module itself
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
            ""
        ]
        code = next(
            (
                f" (at {b})"
                for a, b in pairwise(lines)
                if a.startswith("File ") and "/torch/" not in a
            ),
            "",
        )
        reason = f"{type(error).__name__}: {lines[0]}{code}"
        raise UnsupportedError(
            f"torch.export cannot capture {type(module).__name__}: {reason}"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.nn.functional.scaled_dot_product_attention = ATTENTION
        torch._C._set_grad_enabled = SET_GRAD_ENABLED
        torch.autograd.Function.apply = APPLY


# position of the argument that operations read only for its shape and type
LIKE = {
    **dict.fromkeys(("type_as", "expand_as", "view_as"), 1),
    **dict.fromkeys(("zeros_like", "ones_like"), 0),
}
LIKE |= dict.fromkeys(
    ("full_like", "empty_like", "new_zeros", "new_ones", "new_full"), 0
)


def schema_of(node: Node) -> Any:
    """The declaration of an ATen operation; None for other nodes."""
    return getattr(node.target, "_schema", None)


def name_of(node: Node) -> str:
    """The name of an operation, without overload and the underscore of an operation in
    place.
    """
    if node.target is operator.getitem:
        return "getitem"
    schema = schema_of(node)
    return (
        str(node.target)
        if schema is None
        else str(schema.name).split("::")[-1].removesuffix("_")
    )


def paths_of(node: Node) -> list[str]:
    """The paths of the modules around an operation, the outermost first, without the
    root.
    """
    return [
        str(path)
        for path, _ in (node.meta.get("nn_module_stack") or {}).values()
        if path
    ]


def path_of(node: Node) -> str:
    """The path of the module that an operation belongs to; "" for the root."""
    return ["", *paths_of(node)][-1]


def outputs_of_modules(nodes: list[Node]) -> dict[Node, list[str]]:
    """The paths of the modules that return each node: the last one that is used outside
    the module.
    """
    inside = {node: paths_of(node) for node in nodes}
    last = {
        path: node
        for node in nodes
        for path in inside[node]
        if any(path not in inside[x] for x in node.users)
    }
    paths: dict[Node, list[str]] = {}
    for path, node in last.items():
        paths.setdefault(node, []).append(path)
    return paths


def refused(node: Node, reason: str) -> UnsupportedError:
    """An error that names an operation, its module and its line."""
    places = re.findall(
        r'File "(.+)", line (\d+).*\n\s*(.+)', node.meta.get("stack_trace") or ""
    )
    own = [
        place for place in places if "/torch/" not in place[0].replace("\\", "/")
    ] or places
    # the innermost that is not torch's own
    line = " (at {}:{}: {})".format(*own[-1]) if own else ""
    target, where = (
        "getitem" if name_of(node) == "getitem" else node.target,
        path_of(node) or "the module itself",
    )
    return UnsupportedError(f"{target} in {where}: {reason}{line}")


class Reader:
    """Computes the values of the nodes of a graph, one after the other. `how` has the
    other arguments of `Draws`.
    """

    def __init__(self, graph: Graph, streams: Iterable[Node] = (), **how: Any) -> None:
        self.graph, self.streams, self.trained = (
            graph,
            set(streams),
            bool(how.get("trained")),
        )
        self.env: dict[Node, Any] = dict(graph.constants)
        self.probes: list[Probe] = []
        ids: dict[str, Any] = {}
        for node in graph.nodes:  # parameters come first
            if node in graph.parameters and node not in self.env:
                self.env[node] = self._parameter(graph.parameters[node])
            if (
                name_of(node) == "embedding"
                and node not in self.env
                and node.args[1] in self.env
            ):
                table = self.env.get(node.args[0])
                if isinstance(table, Random):
                    known = self.env[node.args[1]].numpy().ravel()
                    ids[table.name] = np.union1d(ids.get(table.name, known), known)
        self.draws = Draws(graph.laws, ids, **how)

    def _parameter(self, name: str) -> Random:
        laws = self.graph.laws
        if name not in laws:
            raise UnsupportedError(
                f"the parameter {name} has no law in laws; there are"
                f" {', '.join([*laws][:4])}, …"
            )
        law = laws[name]
        if law.law == "copy":
            if self.trained:
                raise UnsupportedError(
                    f"{name} starts as a copy of {law.of}, and then takes its own steps"
                )
            same = self._parameter(str(law.of))
            same = replace(same, owner=name, frozen=name in self.graph.frozen)
            return replace(same, entries=same.entries.t()) if law.transposed else same
        if law.law not in GAUSSIAN:
            note = f" ({law.note})" if law.note else ""
            raise UnsupportedError(
                f"the parameter {name} is {law.law}{note}, not i.i.d.: {law.remedy}"
            )
        return Random(
            torch.empty(law.shape, device="meta"),
            name,
            frozen=name in self.graph.frozen,
        )

    def program(self) -> Program:
        """The whole program."""
        returned = outputs_of_modules(self.graph.nodes)
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in self.env:
                self.env[node] = self._result(node)
                if name_of(node) in SOFTMAX:
                    within = [path_of(node)] if path_of(node) else []
                    self.probes += [
                        each._replace(name=".".join([*within, each.name]))
                        for each in self.attention(node)
                    ]
                # a value of its own, which has a gradient, and not entries of another
                if node in self.streams:
                    x: Any = self.value(self.env[node])
                    self.env[node] = (
                        Vectors.of(1.0 * x)
                        if isinstance(x.op, Take)
                        else self.env[node]
                    )
                if node in returned and isinstance(self.env[node], Vectors | Scalars):
                    value = self.value(self.env[node])
                    self.probes += [Probe(path, value) for path in returned[node]]
        outputs = [
            self.env[node]
            for node in self.graph.outputs
            if isinstance(node, torch.fx.Node)
        ]
        values = [self.value(x) for x in outputs if isinstance(x, VALUES)]
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
        return self.graph.laws.label(Program(output, self.graph.name, self.probes))

    def _why_constant(self) -> str:
        """Why no output depends on a random parameter."""
        if any(law.random for law in self.graph.laws.values()):
            return "no output depends on a random parameter"
        remedy = "draw them at random, without a seed in the constructor"
        return f"its parameters are the same in every initialisation; {remedy}"

    def attention(self, softmax: Node) -> list[Probe]:
        """The scores and the weights of a softmax."""
        scores, weights = self.env[softmax.args[0]], self.env[softmax]
        return [
            Probe("scores", scores.unmasked, scores.shown),
            Probe("weights", weights.value, scores.shown),
        ]

    def _result(self, node: Node) -> Any:
        try:
            args, kwargs = torch.fx.node.map_arg(
                (node.args, node.kwargs), self.env.__getitem__
            )
            schema = schema_of(node)
            names = (
                ["self", "index"]
                if schema is None
                else [argument.name for argument in schema.arguments]
            )
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            result = apply_op(
                name_of(node), Call(self.draws, node.meta.get("val")), arguments
            )
            self._check_kind(node, result)
            return result
        except Exception as error:
            said = {Refusal: str(error), TraceError: getattr(error, "plain", "")}
            raise refused(
                node, said.get(type(error), f"{type(error).__name__}: {error}")
            ) from error

    @staticmethod
    def _check_kind(node: Node, result: Any) -> None:
        """Refuse an operation that rounds, and one whose result is read in another
        shape than torch's.
        """
        expected = node.meta.get("val")
        if isinstance(result, VALUES) and isinstance(expected, torch.Tensor):
            rounds = not expected.dtype.is_floating_point
            refuse_if(
                rounds,
                f"makes {expected.dtype} of random numbers: only floating point is"
                " read",
            )
            read, right = tuple(result.shape), tuple(expected.shape)
            refuse_if(
                read != right, f"a result of shape {right} is read in shape {read}"
            )

    def value(self, x: Any) -> Value:
        """Vectors or scalars in the language."""
        x = self.draws.vectors(x) if isinstance(x, Random) else x
        x = Vectors.of(data(numbers(x))) if isinstance(x, torch.Tensor) else x
        x = settled(x) if isinstance(x, Linear) else x
        return x.plain if isinstance(x, Vectors) else x.value
