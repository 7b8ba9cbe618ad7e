"""A PyTorch module as the network of a study.

`network` is the program with the probes of an audit, and `training` the loss and the
learning rates of a coordinate check. Both recognise blocks and branches by
`_structure`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from .._validate import ArgumentError, Shape, listed, whole
from ..language import TraceError, data, dot, grad, mean_dot
from ..language.operations._operation import MatMul
from ..language.values._graph import topological_order
from ..language.values._probe import Probe
from ..models._training import cross_entropy_of, unit_vectors
from ..programs._program import Program
from ._capture import captured
from ._fresh_modules import Module, ModuleOrFactory, fresh
from ._graph import Graph, UnsupportedError, name_of, shape_of
from ._laws import Parameters
from ._parameters import parameters
from ._program import Reader
from ._structure import Block, Structure, structure

TOKENS = 16  # of different ids, if none are given
# of the batch of a training step, if no ids are given; the cost of a draw grows with
# their square
TRAINING_TOKENS = 4
# names of a second argument of `forward` that are the right words
TARGETS = {"targets", "target", "labels"}
SMALL_EPS = 1e-8  # of torch.optim.Adam by default: ignored
WATCHED = ("embedding", "scores", "attention", "cross", "mlp", "stream")
# classes of torch.optim by their first step
KINDS = {"SGD": "sgd", "Muon": "muon", "Adam": "adam", "AdamW": "adam"}


def network(
    module: ModuleOrFactory,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    laws: Parameters | None = None,
) -> Program:
    """The program of a module with the probes of an audit, which `ns.audit` takes.

    Blocks are recognised by numbered paths, such as `model.layers.0`, and branches as
    terms of the stream. If the module returns logits, the loss predicts the next token
    (the token itself if later tokens have an effect; a class for one row of logits).
    The parameters are those of `program`; the inputs are sequences of one length, or
    one image. Tokens that an input `attention_mask` (1 for tokens) or
    `key_padding_mask` (True for padding) takes out are left out of all quantities.

    Examples
    --------
    >>> ns.audit(ns.torch.network(build, ids), gradients=True)  # doctest: +SKIP
    """
    return read_network(module, args, kwargs, laws).program


def inputs_of(
    module: ModuleOrFactory,
    args: Any,
    tokens: int | None = None,
    most_by_default: int = TOKENS,
) -> tuple[Any, ...]:
    """The inputs that a module is called with.

    They are a tuple of tensors, which is left as it is, one sequence of ids, or (None)
    as many different ids as `tokens` says.
    """
    # The ids are also passed as a second argument for targets: without it, some modules
    # return logits of one token.
    if isinstance(args, tuple) and all(isinstance(x, torch.Tensor) for x in args):
        return args
    instance: Any = module if isinstance(module, torch.nn.Module) else fresh(module)[0]
    ids = token_ids(instance, args, tokens, most_by_default)
    names = list(inspect.signature(instance.forward).parameters)
    return (ids, ids) if {*names[1:2]} & TARGETS else (ids,)


def token_ids(
    module: Module, ids: Any, tokens: int | None, most_by_default: int = TOKENS
) -> Any:
    """The tensor of one sequence of ids: those given, or different ones."""
    if ids is None:
        ids = torch.tensor([*_different_ids(module, tokens, most_by_default)])
    elif not isinstance(ids, torch.Tensor):
        ids = torch.tensor(_sequence(ids))
    if ids.ndim == 1 and not ids.is_floating_point():
        return ids[None]
    return ids


def _different_ids(module: Module, tokens: int | None, most_by_default: int) -> range:
    """Ids 1, 2, … of rows of the module's table of words, or of its first embedding."""
    name = type(module).__name__
    table = _table_of_words(module)
    if table is None:
        raise ValueError(
            f"{name} has no torch.nn.Embedding for token ids: give its inputs in"
            " Python, args="
        )
    most = table.num_embeddings - 1  # without 0, which often is the padding
    if tokens is not None and tokens > most:
        rows = (
            f"its embedding has {table.num_embeddings} rows, and id 0 is left out; or"
            " give ids"
        )
        raise ArgumentError("tokens", tokens, f"at most {most} for {name}: {rows}")
    return range(1, min(tokens or most_by_default, most) + 1)


def _table_of_words(module: Module) -> Any:
    """The embedding that a module of transformers names, or the first one; or None."""
    if hasattr(module, "get_input_embeddings"):
        table = module.get_input_embeddings()
        if isinstance(table, torch.nn.Embedding):
            return table
    tables = (x for x in module.modules() if isinstance(x, torch.nn.Embedding))
    return next(tables, None)


def networks(
    module: ModuleOrFactory,
    ids: Sequence[int] | None,
    tokens: int | Sequence[int] | None,
) -> list[Program]:
    """`network` on ids, or at one or several numbers of tokens, the smallest first."""
    lengths = lengths_of(ids, tokens)
    laws = parameters(module)
    return [
        network(module, inputs_of(module, ids, length), laws=laws) for length in lengths
    ]


def lengths_of(
    ids: Sequence[int] | None, tokens: int | Sequence[int] | None
) -> Sequence[int | None]:
    """Numbers of tokens, sorted, each once; None for the default, or for given ids."""
    if tokens is None:
        return [None]
    if ids is not None:
        raise ArgumentError(
            "tokens", tokens, "left out: the ids say how many tokens there are"
        )
    counts = tokens if isinstance(tokens, list | tuple) else [tokens]
    lengths = sorted(
        whole(count, "tokens", least=2, why=": an audit compares tokens")
        for count in counts
    )
    if not lengths or len(set(lengths)) < len(lengths):
        raise ArgumentError("tokens", tokens, "one length or more, each once")
    return lengths


def _sequence(sequence: Any) -> list[int]:
    """One sequence of two or more token ids."""
    entries = listed(sequence, "ids", "a sequence of token ids, as [3, 7, 7, 1]")
    ids = [whole(entry, "ids", least=0) for entry in entries]
    if len(ids) < 2:
        raise ArgumentError("ids", ids, "two or more: tokens are compared")
    return ids


class Targets(NamedTuple):
    """The right words of some rows of the logits, whose other axes are flattened."""

    rows: tuple[int, ...]
    words: tuple[int, ...]

    @classmethod
    def of_first_rows(cls, words: Sequence[int]) -> Self:
        """The targets of the first rows."""
        return cls(tuple(range(len(words))), tuple(words))


class Network(NamedTuple):
    """A program with the probes of an audit, and the graph that it was read from."""

    program: Program
    structure: Structure
    targets: Targets | None
    # of each block, which pairs of tokens attend: of all heads, or of each
    masks: list[Any]
    # all that the module returns, scalars (…, words); of a network to train, vectors;
    # None: none
    logits: Any


def read_network(
    module: ModuleOrFactory,
    args: Any,
    kwargs: Any = None,
    laws: Parameters | None = None,
    trained: bool = False,
) -> Network:
    """`network` and its structure.

    If it is to be trained, every table and matrix is a weight that an optimiser moves.
    """
    graph = captured(module, args, kwargs, laws)
    try:
        parts = structure(graph)
    except UnsupportedError:
        Reader(graph).program()  # an operation that cannot be read is a better reason
        raise
    streams = _streams(parts)
    if trained:
        reader = Reader(graph, streams, trained=True, whole_matrices=True)
    else:
        names = _names_of_kinds(parts)
        head = None if parts.head in _tables(graph) else parts.head
        reader = Reader(graph, streams, names=names, head=head, whole_matrices=True)
    program = reader.program()
    probes, masks = _probes(reader, parts)
    targets = _targets(parts, _is_causal(reader, parts, masks))
    logits: Any = None
    if parts.logits is not None:
        logits = reader.value(reader.env[parts.logits])
        if not trained:
            probes.append(_probe_of_logits(logits, targets))
    labelled = reader.draws.label(Program(program.output, graph.name, probes))
    return Network(labelled, parts, targets=targets, masks=masks, logits=logits)


def _streams(parts: Structure) -> dict[Any, Any]:
    """The rows of each stream that are tokens."""
    streams: dict[Any, Any] = {}
    for block in parts.blocks:
        streams[block.before] = parts.tokens_before(block)
        streams[block.stream] = parts.tokens_of(block)
    return streams


def _tables(graph: Graph) -> set[str]:
    """The parameters whose rows are looked up."""
    used = {node.args[0] for node in graph.nodes if name_of(node) == "embedding"}
    return {graph.parameters[node] for node in used if node in graph.parameters}


def _names_of_kinds(parts: Structure) -> dict[str, str]:
    """Names of parameters in the program of an audit.

    Matrices of blocks have the names of their kinds, such as "query". Tables of other
    things than words keep their own names.
    """
    names = {
        name: place.kind
        for name, place in parts.places.items()
        if place.block is not None
    }
    if parts.words is not None:
        for table in _tables(parts.graph) - {parts.words.table}:
            names[table] = table
    return names


def _probe_of_logits(logits: Any, targets: Targets | None) -> Probe:
    """The logits of the tokens that have a target, which is marked."""
    rows = logits.reshape(-1, logits.shape[-1])
    if targets is None:
        return Probe("logits", rows, None)
    words = rows.shape[1]
    if max(targets.words, default=0) >= words:
        raise ValueError(
            f"the id {max(targets.words)} of a token has no logit: the head has {words}"
        )
    is_target = np.equal.outer(targets.words, np.arange(words))
    if targets.rows == tuple(range(len(targets.rows))):
        return Probe("logits", rows[: len(targets.rows)], is_target)
    return Probe("logits", rows[np.array(targets.rows)], is_target)


def _probes(reader: Reader, parts: Structure) -> tuple[list[Probe], list[Any]]:
    """The probes of all blocks: streams, branches and attention; and their masks.

    The mask of a block is one for all heads, or one for each.
    """
    first_blocks = [stack[0] for stack in parts.stacks]
    of_blocks: list[list[Probe]] = []
    masks: list[Any] = []
    for block in parts.blocks:
        rows = parts.tokens_of(block)
        probes, mask = _probes_of_attention(reader, parts, block)
        masks.append(mask)
        for gates in block.gates:
            shares = reader.value(reader.env[gates])
            probes.append(Probe("experts", _of_rows(shares, rows)))
        for name, nodes in _probed_nodes(parts, block).items():
            vectors = sum(reader.vectors(node) for node in nodes).reshape(-1)
            probes.append(Probe(name, _of_rows(vectors, rows)))
        probes.append(Probe("stream", reader.tokens[block.stream]))
        of_blocks.append(probes)
    # An audit has the same quantities for every block: those of attention are left out
    # where some blocks have a recurrence instead, and those of branches where some
    # blocks have others.
    names = [{probe.name for probe in probes} for probes in of_blocks]
    reported = set.intersection(*names) | {"before", "cross", "experts"}
    every: list[Probe] = []
    for block, probes in zip(parts.blocks, of_blocks, strict=True):
        if any(block is first for first in first_blocks):
            every.append(Probe("embedding", reader.tokens[block.before]))
        every += [probe for probe in probes if probe.name in reported]
    return every, masks


def _probed_nodes(parts: Structure, block: Block) -> dict[str, tuple[Any, ...]]:
    """The nodes whose sum each probe of vectors in a block is."""
    nodes = dict(block.branches)
    if not parts.follows(block):
        nodes["before"] = (block.start,)
    if block.middle is not None:
        nodes["middle"] = (block.middle,)
    return nodes


def _of_rows(value: Any, rows: Any) -> Any:
    """The entries at these indices of the first axis."""
    return value if len(rows) == value.shape[0] else value[rows]


def _probes_of_attention(
    reader: Reader, parts: Structure, block: Block
) -> tuple[list[Probe], Any]:
    """The scores and weights of a block, and the masks of its heads.

    They are those of all sequences, one after the other. Rows of padding are masked.
    """
    probes: list[Probe] = []
    all_pairs: list[Any] = []
    for softmax in block.softmaxes:
        for name, value, allowed in reader.attention(softmax):
            size: Any = value.shape[-2:]
            pairs = np.ones(value.shape, dtype=bool)
            if allowed is not None:
                pairs = np.broadcast_to(allowed, value.shape)
            pairs = _without_padding(pairs.reshape(-1, *size), parts, block)
            all_pairs.append(pairs)
            probes.append(Probe(name, value.reshape(-1, *size), pairs))
    if not probes:
        return probes, None
    if len({pairs.shape[-2:] for pairs in all_pairs}) > 1:
        raise UnsupportedError(
            f"the heads of {block.path} have scores of different shapes: an audit takes"
            " one per block"
        )
    first = all_pairs[0][0]
    if all((pairs == first).all() for pairs in all_pairs):
        return [probe._replace(mask=first) for probe in probes], first
    return probes, np.concatenate(all_pairs[::2])  # those of scores


def _without_padding(pairs: Any, parts: Structure, block: Block) -> Any:
    """Masks (heads, tokens, tokens) without the rows of padding."""
    batch, length = shape_of(block.stream)[:2]
    rows = parts.tokens_of(block)
    if len(rows) == batch * length or pairs.shape[1] != length:
        return pairs
    is_token = np.isin(np.arange(batch * length), rows).reshape(batch, length)
    heads = len(pairs) // batch
    return pairs & np.repeat(is_token, heads, axis=0)[:, :, None]


def _is_causal(reader: Reader, parts: Structure, masks: list[Any]) -> bool:
    """Whether later tokens have no effect on earlier ones, by masks if there are any.

    In a network without masks: in one draw, the gradient of the last stream of the
    first token with respect to the first stream is 0 at all other tokens.
    """
    if any(mask is not None for mask in masks):
        return any(_hides_tokens(mask) for mask in masks)
    first: Any = reader.tokens[parts.blocks[0].before]
    last: Any = reader.tokens[parts.blocks[-1].stream]
    if first.size < 2 or first.size != last.size:
        return False
    direction = np.random.default_rng(0).standard_normal(last.width.factor)
    try:
        gradient = grad(dot(data(direction), last[0]), first)
    except TraceError:  # of a function without a known derivative
        return False
    column = gradient[:, None]
    squares = Program(mean_dot(column, column).reshape(-1)).draw(draws=1, rng=0)[0]
    return bool(squares[0] > 0 and (squares[1:] <= 1e-20 * squares[0]).all())


def _targets(parts: Structure, is_causal: bool) -> Targets | None:
    """The right words, by the convention of audits.

    Each token predicts the next one of its sequence; in a network that is not causal,
    itself.
    """
    if parts.logits is None:
        return None
    shape = shape_of(parts.logits)[:-1]
    if math.prod(shape) == 1:
        return Targets((0,), (0,))  # of a class: all are equal
    ids = () if parts.words is None else tuple(parts.words.ids.tolist())
    if not ids or len(ids) != math.prod(shape):
        return None
    rows = parts.tokens_of(parts.blocks[-1])
    if len(rows) > len(ids):
        return None
    if len(parts.stacks) == 1 and not is_causal:
        return Targets(tuple(rows.tolist()), tuple(ids[row] for row in rows))
    length = shape[-1]
    tokens = {*rows.tolist()}
    predicting = [
        row for row in rows.tolist() if row + 1 in tokens and (row + 1) % length
    ]
    return Targets(tuple(predicting), tuple(ids[row + 1] for row in predicting))


def _hides_tokens(mask: Any) -> bool:
    """Whether a token does not attend to another one that some token attends to."""
    if mask is None:
        return False
    for pairs in mask if mask.ndim == 3 else mask[None]:
        tokens = pairs.any(axis=1)
        of_tokens = pairs[tokens]
        if (of_tokens.any(axis=0) & ~of_tokens.all(axis=0)).any():
            return True
    return False


def training(
    build: Callable[[int], Module],
    width: int,
    optimiser: str | Callable[[Module], Any],
    lr: Any,
    ids: Sequence[int] | None,
) -> tuple[Callable[[int], tuple[Program, Any]], str]:
    """The training step of a module at each width, and the name of the step.

    The step is a function of the width that returns the program of the loss and its
    learning rates.
    """
    kind: Any = optimiser
    if not isinstance(optimiser, str):
        kind = _kind_of_step(optimiser(build(width)))

    def step_at(width: int) -> tuple[Program, Any]:
        factory = partial(build, width)
        net = _loss(factory, inputs_of(factory, ids, most_by_default=TRAINING_TOKENS))
        names = {
            value.op.weight.source.name
            for value in topological_order(net.outputs)
            if isinstance(value.op, MatMul)
        }
        if not isinstance(optimiser, str):
            rates = _rates(factory(), optimiser)
            return net, {name: rates.get(str(name), 0.0) for name in names}
        instance = fresh(factory)[0]
        moved = {name for name, p in instance.named_parameters() if p.requires_grad}
        if names <= moved:
            return net, lr
        declared = lr if isinstance(lr, Mapping) else dict.fromkeys(names, lr)
        return net, {**declared, **dict.fromkeys(names - moved, 0.0)}

    step_at.__name__ = getattr(build, "__name__", "module")
    return step_at, kind


def _kind_of_step(optimiser: Any) -> str:
    """The name of the first step of an optimiser of torch.optim."""
    name = type(optimiser).__name__
    if name not in KINDS or not hasattr(optimiser, "param_groups"):
        raise ArgumentError(
            "optimiser", name, f"an optimiser of torch.optim: {', '.join(KINDS)}"
        )
    return KINDS[name]


def _loss(factory: Callable[[], Module], args: tuple[Any, ...]) -> Program:
    """The loss of the first step."""
    net = read_network(factory, args, trained=True)
    parts, targets, name = net.structure, net.targets, net.program.name
    if parts.words is None or targets is None or len(targets.rows) < 2:
        raise UnsupportedError(
            f"{name} returns no logits for the tokens of one sequence: training needs"
            " them"
        )
    rows = np.array(targets.rows)
    logits = net.logits.reshape(-1)[rows]
    size, ids = logits.width.factor, parts.words.ids[rows].tolist()
    words = unit_vectors(ids, size) if parts.head == parts.words.table else None
    loss = cross_entropy_of(logits, unit_vectors(targets.words, size), words)
    watched = [probe for probe in net.program.probes if probe.name in WATCHED]
    # of the words that a step moves by order 1
    batch = unit_vectors(sorted({*ids, *targets.words}), size)
    of_batch = size * mean_dot(logits[:, None], batch[None, :])
    ends = [Probe("logits", of_batch.reshape(-1)), Probe("vocabulary", logits)]
    step = Program(loss, name, [*watched, *ends])
    step._gaussian, step._notes = net.program._gaussian, net.program._notes
    return step


def _rates(module: Any, optimiser: Callable[[Module], Any]) -> dict[str, float]:
    """The learning rates of parameters, times the factors of the first step."""
    step = optimiser(module)
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    rates: dict[str, float] = {}
    for group in step.param_groups:
        _check_group(type(step).__name__, group)
        for p in group["params"]:
            factor = _factor_of_first_step(type(step).__name__, group, p.shape)
            rates[names.get(id(p), "")] = float(group["lr"]) * factor
    return rates


def _check_group(optimiser: str, group: Mapping[str, Any]) -> None:
    """Reject options of a group of parameters that change the first step."""
    decoupled = optimiser in ("AdamW", "Muon") or group.get("decoupled_weight_decay")
    if group["weight_decay"] and not decoupled:
        raise ArgumentError(
            "weight_decay",
            group["weight_decay"],
            "0: it is a part of the gradient of SGD and Adam",
        )
    if KINDS[optimiser] == "adam" and group["eps"] > SMALL_EPS:
        raise ArgumentError(
            "eps",
            group["eps"],
            f"{SMALL_EPS:g} or less in the optimiser: set coord_check(eps=)",
        )
    if group.get("maximize"):
        raise ArgumentError(
            "maximize",
            True,
            "False: a coordinate check takes steps that reduce the loss",
        )


def _factor_of_first_step(
    optimiser: str, group: Mapping[str, Any], shape: Shape
) -> float:
    """The factor by which the first step differs from the plain one of its kind."""
    if optimiser == "SGD" and group["nesterov"]:
        # of the buffer, which begins as the gradient
        return 1 + float(group["momentum"])
    if optimiser == "Muon":
        rows, columns = shape
        if group.get("adjust_lr_fn") == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))
    return 1.0


def makes_module(build: Any, width: int) -> bool:
    """Whether a function of the width returns a PyTorch module."""
    try:
        return isinstance(build(width), torch.nn.Module)
    except Exception:  # errors of a program are reported where it is made
        return False
