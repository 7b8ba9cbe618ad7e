"""The capture of a PyTorch module: `torch.export` records its graph.

The module is copied, in evaluation mode, with parameters that have shapes and no
memory. While it runs, fused functions are replaced by products and a softmax. Torch
computes all nodes that depend only on constants: inputs, buffers, positions, masks.
"""

from __future__ import annotations

import inspect
import math
import operator
import sys
import warnings
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from .._validate import ArgumentError
from ..reader._axes import Refusal
from ..reader._einsum import Equation
from ..reader._graph import (
    Graph,
    Node,
    UnsupportedError,
    name_of,
    refused,
    shape_of,
)
from ..reader._laws import Parameters
from ..reader._operations import MATRICES, REARRANGEMENTS, viewed
from ._complex_pairs import COMPLEX_FUNCTIONS
from ._einsum_of_parameter import split_of_parameter
from ._experts import dense_experts
from ._fresh_modules import Module, ModuleOrFactory, copied, fresh
from ._in_place import is_in_place, replace_in_place
from ._light_export import light_export
from ._lines_of_code import lines_of_modules
from ._own_slopes import with_own_slope
from ._parameters import parameters
from ._plain_functions import PLAIN_FUNCTIONS
from ._recurrent_cells import PLAIN_RECURRENCES
from ._short_chunks import short_chunks

EINSUM = torch.ops.aten.einsum.default
SOFTMAX_OF_AXIS = torch.ops.aten.softmax.int
# functions of torch that are replaced while a module is captured
ATTENTION = torch.nn.functional.scaled_dot_product_attention
SET_GRAD_ENABLED = torch._C._set_grad_enabled
APPLY = torch.autograd.Function.__dict__["apply"]
# functions that register a hook on the gradient of a tensor
REGISTER_HOOK = (
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
)
# position of the argument that operations read only for its shape and type
LIKE = {
    **dict.fromkeys(("type_as", "expand_as", "view_as", "reshape_as"), 1),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), 0),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty", "copy"), 0),
    **dict.fromkeys(("fill", "zero"), 0),
}
# operations that return tensors whose numbers are not initialised
EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


def captured(
    module: ModuleOrFactory,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    laws: Parameters | None,
) -> Graph:
    """The graph of a module, with the values of all nodes that are not random."""
    args = args if isinstance(args, tuple) else (args,)
    kwargs = inputs_by_name(kwargs)
    laws = parameters(module) if laws is None else laws
    if not isinstance(laws, Parameters):
        raise ArgumentError("laws", laws, "the result of ns.torch.parameters(module)")
    instance = _instance(module)
    _refuse_hooks(instance)
    exported = _exported(instance, args, kwargs)
    trainable = {
        name
        for name, p in instance.named_parameters(remove_duplicate=False)
        if p.requires_grad
    }
    placeholders = _Placeholders(exported, instance, args, kwargs)
    nodes = list(exported.graph.nodes)
    graph = Graph(
        name=type(instance).__name__,
        laws=_with_zero_matrices(laws, placeholders, nodes),
        nodes=nodes,
        parameters={},
        constants={},
        outputs=[],
        inputs=set(),
        frozen={*laws} - trainable,
    )
    _read_nodes(graph, exported, placeholders)
    return graph


def _instance(module: ModuleOrFactory) -> Module:
    """The module itself, or a fresh one if it is a function or has empty buffers."""
    is_factory = not isinstance(module, torch.nn.Module)
    if is_factory or any(buffer.is_meta for buffer in module.buffers()):
        instance, _ = fresh(module)
        return instance
    return module


def _read_nodes(graph: Graph, exported: Any, placeholders: _Placeholders) -> None:
    """Enter parameters, inputs, outputs and constants of an exported program."""
    sizes: dict[Any, int] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                placeholders.read(graph, node)
            elif node.op == "output":
                graph.outputs.extend(node.args[0])
            elif node.op == "get_attr":
                attribute = operator.attrgetter(node.target)
                graph.constants[node] = attribute(exported.graph_module)
            else:
                _find_sizes(graph, node, sizes)
                _compute_if_constant(graph, node)


def inputs_by_name(kwargs: Any) -> dict[str, Any]:
    """The inputs by name; an error shows how to give several inputs by position."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise ArgumentError(
            "kwargs",
            kwargs,
            "a mapping of names to inputs; give several inputs as a tuple, as"
            " program(module, (ids, targets))",
        )
    return dict(kwargs)


class _Placeholders:
    """What the placeholders of an exported program stand for."""

    def __init__(
        self,
        exported: Any,
        module: Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        # torch.export takes keyword arguments in the order of the signature
        ordered = {
            name: kwargs[name]
            for name in inspect.signature(module.forward).parameters
            if name in kwargs
        }
        self._inputs = iter(pytree.tree_leaves((args, ordered | kwargs)))
        first_names: dict[int, str] = {}
        # of parameters that are tied, the first name
        self._names = {
            name: first_names.setdefault(id(p), name)
            for name, p in module.named_parameters(remove_duplicate=False)
        }
        self._specs = {
            spec.arg.name: spec for spec in exported.graph_signature.input_specs
        }
        self._tensors = {**exported.state_dict, **exported.constants}

    def parameter(self, node: Node) -> str:
        """The name of the parameter, or of the input, that a placeholder stands for."""
        target = str(self._specs[node.name].target)
        return self._names.get(target, target)

    def read(self, graph: Graph, node: Node) -> None:
        """Enter a placeholder in the graph, as a parameter, an input or a constant."""
        spec = self._specs[node.name]
        is_random_buffer = spec.target in graph.laws and node.users
        if spec.kind is InputKind.PARAMETER or is_random_buffer:
            name = self.parameter(node)
            graph.parameters[node] = name
            law = graph.laws.get(name)
            if law is not None and not law.random:
                graph.constants[node] = torch.as_tensor(law.value).expand(law.shape)
        elif spec.kind is InputKind.USER_INPUT:
            graph.constants[node] = next(self._inputs)
            graph.inputs.add(node)
        else:  # a buffer, or a tensor that the code makes
            graph.constants[node] = self._tensors[spec.target]


def _with_zero_matrices(
    laws: Parameters, placeholders: _Placeholders, nodes: list[Node]
) -> Parameters:
    """The laws, with matrices that start at 0 as random ones of standard deviation 0.

    Unlike given numbers, they have a gradient.
    """
    with_zeros = Parameters(laws, laws.samples)
    for node in nodes:
        if node.op != "placeholder":
            continue
        name = placeholders.parameter(node)
        law = laws.get(name)
        starts_at_0 = law is not None and law.law == "constant" and law.value == 0
        if (
            law is not None
            and starts_at_0
            and len(law.shape) == 2
            and _multiplies(node)
        ):
            with_zeros[name] = replace(law, law="normal", std=0.0, value=None)
    return with_zeros


def _multiplies(parameter: Node) -> bool:
    """Whether a parameter, or a view of it, is the matrix of all operations on it."""
    for user in parameter.users:
        name = name_of(user)
        if name in REARRANGEMENTS and user.op == "call_function":
            if not _multiplies(user):
                return False
        elif name not in MATRICES or user.args[MATRICES[name]] is not parameter:
            return False
    return bool(parameter.users)


def _find_sizes(graph: Graph, node: Node, sizes: dict[Any, int]) -> None:
    """Find the numbers for sizes that torch.export does not know.

    They are the numbers of entries that given masks choose; `sizes` are those found so
    far, by their symbols.
    """
    _learn_from_constants(graph, node, sizes)
    if not sizes:
        return
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymBool):
        expression = value.node.expr.subs(sizes)
        if not expression.free_symbols:
            number_type = int if isinstance(value, torch.SymInt) else bool
            graph.constants[node] = number_type(expression)
    elif isinstance(value, torch.Tensor):
        shape = [_size(size, sizes) for size in value.shape]
        if all(isinstance(size, int) for size in shape):
            node.meta["val"] = torch.empty(shape, dtype=value.dtype, device="meta")


def _learn_from_constants(graph: Graph, node: Node, sizes: dict[Any, int]) -> None:
    """Record the sizes of a node's constant inputs, and of what a given mask selects.

    They are entered in `sizes`, by their symbols.
    """
    for x in node.all_input_nodes:
        constant = graph.constants.get(x)
        recorded = x.meta.get("val")
        if isinstance(constant, torch.Tensor) and hasattr(recorded, "shape"):
            _learn(sizes, recorded.shape, constant.shape)
    value = node.meta.get("val")
    if name_of(node) != "index" or not isinstance(value, torch.Tensor):
        return
    mask_node, *others = node.args[1]
    mask: Any = graph.constants.get(mask_node)
    is_mask = isinstance(mask, torch.Tensor) and mask.dtype == torch.bool
    if is_mask and not others:
        _learn(sizes, value.shape[:1], [int(mask.sum())])


def _learn(sizes: dict[Any, int], shape: Iterable[Any], known: Iterable[int]) -> None:
    """Record the numbers that symbols of a shape stand for."""
    for size, number in zip(shape, known, strict=True):
        if isinstance(size, torch.SymInt):
            expression = size.node.expr
            if expression.is_Symbol:
                sizes[expression] = int(number)


def _size(size: Any, sizes: Mapping[Any, int]) -> Any:
    """A size of a tensor as a number, if it is known."""
    if not isinstance(size, torch.SymInt):
        return size
    known = size.node.expr.subs(sizes)
    return int(known) if known.is_number else size


def _compute_if_constant(graph: Graph, node: Node) -> None:
    """Have torch compute a node if it depends on no random number.

    The result joins `graph.constants`. A tensor that is read only for its shape and
    type may be random: for example, `x.type_as(y)` is constant if x is.
    """
    _refuse_random_numbers(node)
    constants = graph.constants
    if _is_empty(node):
        value = node.meta["val"]
        constants[node] = torch.zeros(value.shape, dtype=value.dtype)
        return
    if name_of(node) == "embedding" and node.args[1] in constants:
        _refuse_missing_rows(graph, node)
    only_shape: set[Node] = set()
    position = LIKE.get(name_of(node))
    if position is not None:
        only_shape.add(node.args[position])
        # in x.type_as(x), the numbers of x are read too
        only_shape.difference_update(node.args[:position])
    if not all(x in constants or x in only_shape for x in node.all_input_nodes):
        return

    def value_of(x: Node) -> Any:
        if x in constants:
            return constants[x]
        # only its shape and type matter
        return torch.zeros((), dtype=x.meta["val"].dtype).expand(x.meta["val"].shape)

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value_of)
    constants[node] = node.target(*args, **kwargs)
    # code that reads a number before it is set gets NaN, not what lay in memory
    if name_of(node) in EMPTY and constants[node].is_floating_point():
        constants[node].fill_(math.nan)


def _is_empty(node: Node) -> bool:
    """Whether a node is a tensor without entries, such as a part of size 0."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return all(isinstance(size, int) for size in value.shape) and value.numel() == 0


def _refuse_random_numbers(node: Node) -> None:
    """Reject random numbers in the forward pass, except dropout that is off."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return
    # the arguments of dropout: its input, p, and whether the module is in training
    if "dropout" in name_of(node) and not all(node.args[1:3]):
        return
    raise refused(
        node,
        "random numbers in forward: draw them in the constructor, as a buffer",
    )


def _refuse_hooks(module: Module) -> None:
    """Reject hooks that may change gradients."""
    for path, p in module.named_parameters():
        _refuse_hooks_of(p, f"the parameter {path}")
    for path, submodule in module.named_modules():
        _refuse_hooks_of(submodule, f"the module {path or 'itself'}")


def _refuse_hooks_of(owner: Any, name: str) -> None:
    """Reject the hooks of one parameter or module."""
    hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    if any(getattr(owner, attribute, None) for attribute in hooks):
        raise UnsupportedError(f"{name} has a hook on its gradient: remove the hook")


def _refuse_missing_rows(graph: Graph, node: Node) -> None:
    """Reject indices (token ids, or positions) that are no rows of a table."""
    table, index_node = node.args[:2]
    indices = graph.constants[index_node]
    rows = table.meta["val"].shape[0]
    if not indices.numel() or 0 <= int(indices.min()) <= int(indices.max()) < rows:
        return
    name = graph.parameters.get(table, "the table")
    if graph.depends_on_inputs(index_node):
        raise ArgumentError(
            "ids",
            indices.reshape(-1).tolist(),
            f"from 0 to {rows - 1}, the rows of {name}",
        )
    raise ArgumentError(
        "tokens",
        indices.shape[-1],
        f"at most {rows}, the rows of {name}: give fewer tokens",
    )


class PlainFunctions(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Computes attention by products.

    What a module computes without gradients (`torch.no_grad`, `.data`) is detached.
    """

    def __init__(self, replaced: Mapping[Any, Any]) -> None:
        super().__init__()
        self._replaced = replaced
        self.made_pairs = False  # instead of complex numbers
        # tensors that were made without gradients, by their ids
        self._made_without: dict[int, Any] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        attribute = getattr(func, "__self__", None)
        # `x.data`, which torch.export cannot capture
        if attribute is torch.Tensor.data:
            return args[0].detach()
        if func in REGISTER_HOOK:
            raise UnsupportedError(
                f"forward registers a hook on a gradient ({func.__name__}): remove the"
                " hook"
            )
        # parameters have no gradients here, and so code skips the hooks that it guards
        if attribute is torch.Tensor.requires_grad and _registers_hooks(_caller()):
            return True
        if _changes_nothing(func, args):
            return args[0]
        function = self._replaced.get(func, func)
        self.made_pairs |= func in COMPLEX_FUNCTIONS
        result = function(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            return result
        return self._detached(func, args, result)

    def _detached(self, func: Any, args: Any, result: Any) -> Any:
        """The result of a function that was called while gradients were off."""
        name = getattr(func, "__name__", "")
        in_place = name == "__setitem__" or (
            name.endswith("_") and not name.endswith("__")
        )
        if in_place and isinstance(args[0], torch.Tensor):
            if id(args[0]) not in self._made_without:
                remedy = (
                    "torch then differentiates as if it had not changed; assign a new"
                    " tensor instead"
                )
                raise UnsupportedError(
                    f"{name} changes a tensor in place while gradients are off:"
                    f" {remedy}"
                )
            return result
        result = pytree.tree_map_only(torch.Tensor, _without_gradient, result)
        for x in pytree.tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self._made_without[id(x)] = x
        return result


def _changes_nothing(func: Any, args: Any) -> bool:
    """Whether a tensor is multiplied or divided in place by 1."""
    is_scaling = getattr(func, "__name__", "") in ("mul_", "div_")
    return (
        is_scaling and len(args) == 2 and type(args[1]) in (int, float) and args[1] == 1
    )


def _caller() -> Any:
    """The code that calls torch: the innermost that is not torch's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        if module != __name__ and not module.startswith("torch."):
            break
        frame = frame.f_back
    return frame.f_code


def _registers_hooks(code: Any) -> bool:
    """Whether a function can register a hook on a tensor."""
    names = {function.__name__ for function in REGISTER_HOOK}
    return not names.isdisjoint(code.co_names)


def _without_gradient(x: Any) -> Any:
    return x.detach() if x.is_floating_point() else x


def _set_grad_enabled(mode: bool) -> None:
    """Turn gradients on or off without a node in the graph that is captured.

    `PlainFunctions` detaches results instead.
    """
    with torch._C.DisableTorchFunction():
        SET_GRAD_ENABLED(mode)


def _applied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.Function.apply`, for gradient checkpoints and simple functions.

    Checkpoints change no gradient. Functions of each entry may have a slope of their
    own.
    """
    if function is CheckpointFunction:
        run, _preserve, *inputs = args
        return run(*inputs)
    if not kwargs and (result := with_own_slope(function, args)) is not None:
        return result
    name = function.__name__
    raise UnsupportedError(
        f"{name}.apply: the backward pass of a torch.autograd.Function is read if it"
        " multiplies by a slope for each entry; use operations of torch"
    )


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    **options: Any,
) -> Any:
    """`scaled_dot_product_attention` by products and a softmax.

    Tensors have the shape (…, heads, tokens, head dimension).
    """
    if options.get("enable_gqa"):
        heads = query.shape[-3]
        key_heads = key.shape[-3]
        key = key.repeat_interleave(heads // key_heads, -3)
        value = value.repeat_interleave(heads // key_heads, -3)
    if dropout_p:
        raise ValueError(
            f"scaled_dot_product_attention has dropout_p={dropout_p} in evaluation mode"
        )
    scale = options.get("scale")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scores = query @ key.mT * scale
    mask = attn_mask
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None and not is_causal:
        weights = weights.nan_to_num(0.0)  # of rows without any entry
    return weights @ value


# functions of torch that are computed by others while a module is captured
REPLACED_BUT_COMPLEX = {
    ATTENTION: _attention,
    **PLAIN_FUNCTIONS,
    **PLAIN_RECURRENCES,
}
REPLACED = {**REPLACED_BUT_COMPLEX, **COMPLEX_FUNCTIONS}

# operations that torch can write by simpler ones, which the table of operations has
COMPOSITE = frozenset(
    (
        *("numpy_T", "matrix_H", "mH", "adjoint", "swapdims"),
        *("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_to", "tile"),
        *("hstack", "vstack", "dstack", "column_stack", "tensor_split"),
        *("hsplit", "vsplit", "inner", "tensordot", "dot", "vdot", "mv"),
        *("linalg_multi_dot", "chain_matmul", "linalg_norm", "cosine_similarity"),
        *("glu", "var_mean", "std_mean", "special_expit", "pairwise_distance"),
        *("take_along_dim", "dsplit", "kron", "diff", "gradient", "trapezoid"),
    )
)


def _exported(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program of a copy whose parameters have shapes and no memory."""
    shadow = _without_memory(module)
    inputs = _inputs_on_cpu(args, kwargs)
    with _plain_torch(), short_chunks(shadow):
        try:
            exported = _export(shadow, inputs)
            _refuse_hooks(shadow)  # which forward may have registered
            replace_in_place(exported.graph)
            exported = _decomposed(exported)
            exported.graph.eliminate_dead_code()
            return exported
        except UnsupportedError:
            raise
        except Exception as error:  # of torch, or of the module itself
            raise _not_captured(module, error) from error


def _export(module: Module, inputs: tuple[Any, Any]) -> Any:
    """The result of torch.export.

    If code needs more of complex numbers than `ComplexPairs` can do, such as those that
    depend only on positions, torch computes them.
    """
    for replaced in (REPLACED, REPLACED_BUT_COMPLEX):
        functions = PlainFunctions(replaced)
        try:
            with torch.enable_grad(), functions:
                return torch.export.export(module, *inputs, strict=False)
        except Exception:
            if not functions.made_pairs or replaced is REPLACED_BUT_COMPLEX:
                raise
    raise AssertionError


def _without_memory(module: Module) -> Module:
    """A copy in evaluation mode: its parameters are fake, its buffers on the CPU.

    A fake tensor has a shape and no memory. Buffers keep their numbers; those on the
    CPU share memory with the module's. torch.export traces on fake copies of them, so a
    forward pass that changes a buffer in place does not change the module's.
    """
    # `deepcopy` takes the copy of an object from here, by its id, if there is one
    copies: dict[int, Any] = {}
    # the forward pass computes with these parameters and with buffers, which are real
    with FakeTensorMode(allow_non_fake_inputs=True):
        for parameter in module.parameters():
            without_numbers = torch.empty(
                parameter.shape, dtype=parameter.dtype, device="cpu"
            )
            copies[id(parameter)] = torch.nn.Parameter(
                without_numbers, requires_grad=False
            )
    for path, buffer in module.named_buffers():
        if buffer.device.type == "meta":
            raise ValueError(
                f"the buffer {path} is on the meta device, without numbers: pass a"
                " function that makes the module"
            )
        copies[id(buffer)] = buffer.detach().cpu()
    shadow = copied(module, copies).eval()
    # by default transformers returns a cache of keys and values
    for part in shadow.modules():
        if getattr(getattr(part, "config", None), "use_cache", False):
            part.config.use_cache = False
    return shadow


def _inputs_on_cpu(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the inputs, without gradients."""
    for x in pytree.tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor) and x.device.type == "meta":
            raise ValueError(
                "inputs on the meta device have no numbers: pass ids on the CPU; the"
                " module may be on meta"
            )
    copies: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().cpu().clone(), (args, kwargs)
    )
    return copies


@contextmanager
def _plain_torch() -> Iterator[None]:
    """A context in which torch computes by operations that a graph can record.

    It changes seven things in torch, and restores them at the end: the fused kernel of
    encoder layers is off; attention is products and a softmax; no node turns gradients
    on or off; gradient checkpoints run their function, and other functions with a
    backward pass of their own are refused; experts compute all tokens; operations know
    the lines of code of modules only; work that nothing needs is left out.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    # so that a TransformerEncoderLayer runs its operations one by one
    torch.backends.mha.set_fastpath_enabled(False)
    # so that torch.nn.MultiheadAttention, whose call `PlainFunctions` does not see,
    # computes scores and their softmax
    torch.nn.functional.scaled_dot_product_attention = _attention
    # so that `no_grad` and `enable_grad` in a module leave no nodes in the graph
    torch._C._set_grad_enabled = _set_grad_enabled
    # so that the operations inside a checkpoint are in the graph
    torch.autograd.Function.apply = classmethod(_applied)
    try:
        # which expert is run depends on no number
        with dense_experts(), lines_of_modules(), light_export():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.nn.functional.scaled_dot_product_attention = ATTENTION
        torch._C._set_grad_enabled = SET_GRAD_ENABLED
        torch.autograd.Function.apply = APPLY


def _decomposed(exported: Any) -> Any:
    """An exported program without operations in place, with few of `einsum`, and
    without those of `COMPOSITE`.

    An `einsum` stays if it multiplies no parameter and is no product of matrices.
    """
    _split_einsums_of_parameters(exported.graph)
    _take_softmaxes_over_last_axes(exported.graph)
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    equations_kept = _equations_kept(calls)
    # outside `PlainFunctions`, which would detach every result; torch copies what it
    # itself calls deprecated
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if any(is_in_place(node) for node in calls):
            return _decomposed_by_torch(exported, equations_kept)
        for node in calls:
            is_einsum = node.target is EINSUM and node.args[0] not in equations_kept
            if is_einsum or name_of(node) in COMPOSITE:
                _write_out(exported.graph, node)
    return exported


def _split_einsums_of_parameters(graph: Any) -> None:
    """Write out each `einsum` whose parameter torch cannot flatten without a copy."""
    for node in graph.find_nodes(op="call_function", target=EINSUM):
        split = split_of_parameter(node)
        if split is not None:
            _write_out(graph, node, split)
            graph.erase_node(node)


def _take_softmaxes_over_last_axes(graph: Any) -> None:
    """Move the axis of each softmax to the end, where audits look for keys."""
    for node in graph.find_nodes(op="call_function", target=SOFTMAX_OF_AXIS):
        x, axis = node.args[:2]
        if axis % len(shape_of(x)) != len(shape_of(x)) - 1:
            _write_out(graph, node, _softmax_with_axis_last)
            graph.erase_node(node)


def _softmax_with_axis_last(x: Any, axis: int, *options: Any) -> Any:
    """The softmax over any axis by one over the last axis."""
    return x.movedim(axis, -1).softmax(-1, *options).movedim(-1, axis)


def _equations_kept(calls: Sequence[Node]) -> set[str]:
    """The equations of `einsum` all of whose uses stay as they are."""
    is_batched: dict[str, bool] = {}
    for node in calls:
        if node.target is EINSUM:
            equation = node.args[0]
            is_batched[equation] = is_batched.get(equation, True) and _is_batched(node)
    return {equation for equation, stays in is_batched.items() if stays}


@cache
def _decompositions() -> dict[Any, Any]:
    """What the operations in `COMPOSITE` consist of, if torch does not write them out.

    Torch always does so for operations that are not in its table, such as x.T.
    """
    rules = torch.export.default_decompositions()
    table = {}
    for name in COMPOSITE:
        packet = getattr(torch.ops.aten, name)
        for operation in (getattr(packet, overload) for overload in packet.overloads()):
            # to look a rule up without `pop` makes torch collect those of all libraries
            rule = rules.pop(operation, None)
            if rule is not None:
                table[operation] = rule
    return {**table, torch.ops.aten.mv.default: _matrix_vector}


def _decomposed_by_torch(exported: Any, kept: Collection[str]) -> Any:
    """An exported program that torch traces again; the equations in `kept` stay."""
    decompose = torch.export.default_decompositions().pop(EINSUM)

    def decomposed_einsum(equation: str, operands: Any, path: Any = None) -> Any:
        if equation in kept:
            return NotImplemented
        return decompose(equation, operands)

    return exported.run_decompositions({**_decompositions(), EINSUM: decomposed_einsum})


def _write_out(
    graph: Any, node: Node, target: Callable[..., Any] | None = None
) -> None:
    """Replace an operation by the products and rearrangements that it consists of, or
    that another function of the same arguments consists of.
    """
    operands = node.all_input_nodes
    function = target or node.target

    def operation(*tensors: Any) -> Any:
        of_node = dict(zip(operands, tensors, strict=True))
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), of_node.__getitem__
        )
        return function(*args, **kwargs)

    # no other operation consists of these
    decompositions = _decompositions() if name_of(node) in COMPOSITE else {}
    values = [x.meta["val"] for x in operands]
    with values[0].fake_mode:
        traced = make_fx(operation, decompositions)(*values).graph
    known = dict(zip(traced.find_nodes(op="placeholder"), operands, strict=True))
    with graph.inserting_before(node):
        steps = [step for step in traced.nodes if step.op == "call_function"]
        for step in steps:
            known[step] = graph.node_copy(step, known.__getitem__)
            known[step].meta = {**node.meta, "val": step.meta["val"]}
    (result,) = traced.output_node().args
    if not isinstance(result, list | tuple):
        node.replace_all_uses_with(known[result])
        return
    for user in [*node.users]:  # one of several results
        user.replace_all_uses_with(known[result[user.args[1]]])


def _matrix_vector(matrix: Any, vector: Any) -> Any:
    """A matrix times a vector as a product with one row, so that a parameter acts."""
    return (vector[None] @ matrix.mT)[0]


def _is_batched(node: Node) -> bool:
    """Whether an `einsum` is no product of matrices, and multiplies no parameter."""
    text, operands = node.args[:2]
    try:
        equation = Equation.read(text)
    except Refusal:
        return False
    of_parameters = any(viewed(x).op == "placeholder" for x in operands)
    return not equation.is_product_of_matrices and not of_parameters


def _not_captured(module: Module, error: Exception) -> UnsupportedError:
    """An error of torch.export, in one line with the line of code of the module."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    code = ""
    for location, source in pairwise(lines):
        if location.startswith("File ") and "/torch/" not in location:
            code = f" (at {source})"
            break
    reason = f"{type(error).__name__}: {lines[0] if lines else ''}{code}"
    if "data-dependent" in reason:
        reason += (
            ": no size may depend on random numbers; compute all experts for all"
            " tokens, with gates that are 0 where an expert is not chosen"
        )
    return UnsupportedError(
        f"torch.export cannot capture {type(module).__name__}: {reason}"
    )
