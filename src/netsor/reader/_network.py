"""The network of a study: a program with the probes of an audit, or a loss to train.

It begins with the graph of a network, which a front end recorded. Blocks and branches
are recognised by `_structure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from .._validate import ArgumentError, listed, whole
from ..language import TraceError, data, dot, grad, mean_dot
from ..language.values._probe import Probe
from ..models._training import cross_entropy_of, unit_vectors
from ..programs._program import Program
from ._graph import Graph, UnsupportedError, name_of, shape_of
from ._reader import Reader
from ._structure import Block, Structure, structure

WATCHED = ("embedding", "scores", "attention", "cross", "mlp", "stream")


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


def sequence_of(sequence: Any) -> list[int]:
    """One sequence of two or more token ids."""
    entries = listed(sequence, "ids", "a sequence of token ids, such as [3, 7, 7, 1]")
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


def network_of(
    graph: Graph, read: Callable[..., Reader], *, trained: bool = False
) -> Network:
    """The network that a graph is; `read` makes the reader of its front end.

    If it is to be trained, every table and matrix is a weight that an optimiser moves.
    """
    try:
        parts = structure(graph)
    except UnsupportedError:
        read(graph).program()  # an operation that cannot be read is a better reason
        raise
    streams = _streams(parts)
    if trained:
        reader = read(graph, streams, trained=True, whole_matrices=True)
    else:
        names = _names_of_kinds(parts)
        head = None if parts.head in _tables(graph) else parts.head
        reader = read(graph, streams, names=names, head=head, whole_matrices=True)
    program = reader.program()
    probes, masks = _probes(reader, parts)
    targets = _targets(parts, _is_causal(reader, parts, masks))
    logits: Any = None
    if parts.logits is not None:
        logits = reader.value(reader.env[parts.logits])
        if not trained:
            probes.append(_probe_of_logits(logits, targets))
    labelled = reader.draws.label(Program(program.output, graph.name, probes))
    return Network(
        program=labelled, structure=parts, targets=targets, masks=masks, logits=logits
    )


def _streams(parts: Structure) -> dict[Any, Any]:
    """The rows of each stream that are tokens."""
    streams: dict[Any, Any] = {}
    for block in parts.blocks:
        streams[block.before] = parts.tokens_before(block)
        streams[block.stream] = parts.tokens_of(block)
    return streams


def _tables(graph: Graph) -> set[str]:
    """The parameters whose rows are looked up."""
    tables = {node.args[0] for node in graph.nodes if name_of(node) == "embedding"}
    return {graph.parameters[node] for node in tables if node in graph.parameters}


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
    largest_id = max(targets.words, default=0)
    if largest_id >= words:
        raise ValueError(
            f"the token id {largest_id} has no logit: the head has {words}"
        )
    is_target = np.equal.outer(targets.words, np.arange(words))
    count = len(targets.rows)
    are_first = targets.rows == tuple(range(count))
    rows = rows[:count] if are_first else rows[np.array(targets.rows)]
    return Probe("logits", rows, is_target)


def _probes(reader: Reader, parts: Structure) -> tuple[list[Probe], list[Any]]:
    """The probes of all blocks: streams, branches and attention; and their masks.

    The mask of a block is one for all heads, or one for each.
    """
    probes_of_blocks: list[list[Probe]] = []
    masks: list[Any] = []
    for block in parts.blocks:
        of_attention, mask = _probes_of_attention(reader, parts, block)
        masks.append(mask)
        others = _other_probes(reader, parts, block)
        probes_of_blocks.append([*of_attention, *others])
    # An audit has the same quantities for every block: those of attention are left out
    # where some blocks have a recurrence instead, and those of branches where some
    # blocks have others.
    names_by_block = [{probe.name for probe in probes} for probes in probes_of_blocks]
    reported = set.intersection(*names_by_block) | {"before", "cross", "experts"}
    first_blocks = [stack[0] for stack in parts.stacks]
    every_probe: list[Probe] = []
    for block, probes in zip(parts.blocks, probes_of_blocks, strict=True):
        is_first = any(block is first for first in first_blocks)
        if is_first:
            every_probe.append(Probe("embedding", reader.tokens[block.before]))
        every_probe += [probe for probe in probes if probe.name in reported]
    return every_probe, masks


def _other_probes(reader: Reader, parts: Structure, block: Block) -> list[Probe]:
    """The probes of a block besides attention: experts, branches and the stream."""
    rows = parts.tokens_of(block)
    probes = []
    for gates in block.gates:
        shares = reader.value(reader.env[gates])
        shares = shares.reshape(-1, shares.shape[-1])  # (tokens, experts)
        probes.append(Probe("experts", _of_rows(shares, rows)))
    for name, nodes in _probed_nodes(parts, block).items():
        vectors = sum(reader.vectors(node) for node in nodes).reshape(-1)
        probes.append(Probe(name, _of_rows(vectors, rows)))
    probes.append(Probe("stream", reader.tokens[block.stream]))
    return probes


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
    shared_mask = all_pairs[0][0]
    if all((pairs == shared_mask).all() for pairs in all_pairs):
        return [probe._replace(mask=shared_mask) for probe in probes], shared_mask
    return probes, np.concatenate(all_pairs[::2])  # those of scores


def _without_padding(pairs: Any, parts: Structure, block: Block) -> Any:
    """Masks (heads, tokens, tokens) without the rows of padding."""
    batch, length = shape_of(block.stream)[:2]
    positions = batch * length
    token_positions = parts.tokens_of(block)
    has_padding = len(token_positions) < positions
    if not has_padding or pairs.shape[1] != length:
        return pairs
    is_token = np.isin(np.arange(positions), token_positions).reshape(batch, length)
    heads = len(pairs) // batch
    is_token_of_head = np.repeat(is_token, heads, axis=0)
    return pairs & is_token_of_head[:, :, None]


def _is_causal(reader: Reader, parts: Structure, masks: list[Any]) -> bool:
    """Whether later tokens have no effect on earlier ones, by masks if there are any.

    In a network without masks: in one draw, the gradient of the last stream of the
    first token with respect to the first stream is 0 at all other tokens.
    """
    if any(mask is not None for mask in masks):
        return any(_hides_tokens(mask) for mask in masks)
    input_tokens: Any = reader.tokens[parts.blocks[0].before]
    output_tokens: Any = reader.tokens[parts.blocks[-1].stream]
    if input_tokens.size < 2 or input_tokens.size != output_tokens.size:
        return False
    width = output_tokens.width.factor
    direction = np.random.default_rng(0).standard_normal(width)
    along_direction = dot(data(direction), output_tokens[0])
    try:
        gradient = grad(along_direction, input_tokens)
    except TraceError:  # of a function without a known derivative
        return False
    column = gradient[:, None]
    mean_squares = Program(mean_dot(column, column).reshape(-1))
    of_first_token, *of_others = mean_squares.draw(draws=1, rng=0)[0]
    rounding = 1e-20 * of_first_token
    return bool(of_first_token > 0 and all(x <= rounding for x in of_others))


def _targets(parts: Structure, is_causal: bool) -> Targets | None:
    """The right words, by the convention of audits.

    Each token predicts the next one of its sequence; in a network that is not causal,
    itself.
    """
    if parts.logits is None:
        return None
    shape = shape_of(parts.logits)[:-1]  # (batch, tokens)
    count = math.prod(shape)
    if count == 1:
        return Targets((0,), (0,))  # of a class: all are equal
    if parts.words is None:
        return None
    ids = parts.words.ids.tolist()
    rows = parts.tokens_of(parts.blocks[-1]).tolist()
    if not ids or len(ids) != count or len(rows) > count:
        return None
    if len(parts.stacks) == 1 and not is_causal:
        own_words = tuple(ids[row] for row in rows)
        return Targets(rows=tuple(rows), words=own_words)
    tokens = set(rows)
    length = shape[-1]
    predicting = []
    for row in rows:
        is_last_of_sequence = (row + 1) % length == 0
        if row + 1 in tokens and not is_last_of_sequence:
            predicting.append(row)
    next_words = tuple(ids[row + 1] for row in predicting)
    return Targets(rows=tuple(predicting), words=next_words)


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


def loss_of(net: Network) -> Program:
    """The loss of the first step of a network to train."""
    structure = net.structure
    targets = net.targets
    name = net.program.name
    if structure.words is None or targets is None or len(targets.rows) < 2:
        raise UnsupportedError(
            f"{name} returns no logits for the tokens of one sequence: training needs"
            " them"
        )
    rows = np.array(targets.rows)
    logits = net.logits.reshape(-1)[rows]
    vocabulary = logits.width.factor
    ids = structure.words.ids[rows].tolist()
    is_tied = structure.head == structure.words.table
    inputs = unit_vectors(ids, vocabulary) if is_tied else None
    loss = cross_entropy_of(logits, unit_vectors(targets.words, vocabulary), inputs)
    watched = [probe for probe in net.program.probes if probe.name in WATCHED]
    # the logits of the words that a step moves by order 1
    words_of_batch = sorted({*ids, *targets.words})
    units = unit_vectors(words_of_batch, vocabulary)
    of_batch = vocabulary * mean_dot(logits[:, None], units[None, :])
    ends = [Probe("logits", of_batch.reshape(-1)), Probe("vocabulary", logits)]
    step = Program(loss, name, [*watched, *ends])
    step._gaussian = net.program._gaussian
    step._notes = net.program._notes
    step._counts_draws = net.program._counts_draws
    return step
