"""One forward and backward pass of a real network, compared with draws of its law.

A front end runs the network and returns a `Pass`: arrays of what `watched` names, and
the squares of gradients. The quantities of the pass are those of an audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._array_api import Bools, Floats
from ..models.measure._metric_program import ATTENTION, BRANCHES, STREAM
from ..models.measure._metrics import (
    effective_rank,
    of_attention,
    of_gram,
    of_logits,
    of_shares,
)
from ..reader._graph import (
    Node,
    UnsupportedError,
    outputs_of_modules,
    path_of,
    shape_of,
)
from ..reader._network import Targets
from ..reader._structure import Block, Structure
from ._findings import InitFinding, pass_tests
from ._reference import Reference

Quantities = dict[tuple[str, int], float]
# of a pass: p-values beyond the largest tenth of them follow an exponential tail
FEWEST_DRAWS = 100
# prefixes of the quantities of the stream before the first block of each stack
STARTS = ("input_", "decoder_input_")
END = ("logit_std", "loss", "max_probability")  # quantities of the logits
# quantities that a mask changes
SCORES = tuple(name for names in ATTENTION.values() for name in names)


class Pass(NamedTuple):
    """What one forward and backward pass of a network computed."""

    values: Mapping[Node, Floats]  # of the nodes that `watched` names
    # with respect to streams; empty if nothing was differentiated
    gradients: Mapping[Node, Floats]
    squares: Mapping[str, float]  # |∂L/∂x|² of parameters


# the quantities of a pass and the attention weights of each block, see `quantities_of`
Found = tuple[Quantities, list[Floats | None]]
Run = Callable[[Targets | None, Sequence[Bools | None]], Found]


def watched(net: Structure) -> list[Node]:
    """The nodes whose values are quantities of a pass."""
    nodes: list[Node] = [*net.streams]
    for block in net.blocks:
        nodes += [block.before, block.start, block.stream]
        if block.middle is not None:
            nodes.append(block.middle)
        for branch in block.branches.values():
            nodes += branch
        for softmax in block.softmaxes:
            nodes += [softmax.args[0], softmax]
    if net.logits is not None:
        nodes.append(net.logits)
    return list(dict.fromkeys(nodes))


def quantities_of(
    net: Structure,
    done: Pass,
    targets: Targets | None,
    masks: Sequence[Bools | None],
) -> Found:
    """The quantities of a pass, and the attention weights of each block.

    Quantities are by name and block, in the order of the network, gradients last; those
    of the whole network are at block 0. Weights have the shape (heads, tokens, tokens).
    """
    _refuse_not_finite(net, done.values)
    quantities: Quantities = {}
    for prefix, stack in zip(STARTS, net.stacks, strict=False):
        names = [prefix + name for name in STREAM]
        tokens = _tokens(net, stack[0], done.values[stack[0].before])
        _record(quantities, k=0, names=names, values=_stream_quantities(tokens))
    weights = [
        _record_block(quantities, net, k=number, values=done.values, masks=masks)
        for number in range(len(net.blocks))
    ]
    if net.logits is not None:
        _record_end(quantities, done.values[net.logits], targets)
    if done.gradients or done.squares:
        _record_gradients(quantities, net, done)
    return quantities, weights


def _refuse_not_finite(net: Structure, values: Mapping[Node, Floats]) -> None:
    """Reject streams and logits that are not finite."""
    checked = {*net.streams, net.logits}
    for node in net.graph.nodes:
        if node in checked and not np.isfinite(values[node]).all():
            raise NotFiniteError(path_of(node) or "the module")


def _record_end(
    quantities: Quantities, logits: Floats, targets: Targets | None
) -> None:
    """Enter the quantities `END` of the logits.

    The loss is the mean of log Σ exp(logits) − the logit of the right word. Without
    targets the right logit is the mean over all words.
    """
    logits = _rows(logits)
    if targets is None:
        right_logits = logits.mean(-1)
    else:
        logits = logits[list(targets.rows)]
        rows = range(len(targets.rows))
        right_logits = logits[rows, list(targets.words)]
    largest_logits = logits.max(-1)
    sums = np.exp(logits - largest_logits[:, None]).sum(-1)
    loss = (largest_logits + np.log(sums) - right_logits).mean()
    std, _, largest = of_logits(logits)
    _record(quantities, k=0, names=END, values=(std, loss, largest))


def _record_gradients(quantities: Quantities, net: Structure, done: Pass) -> None:
    """Enter the squares of the gradients of streams and parameters."""
    for k, block in enumerate(net.blocks):
        gradient = done.gradients.get(block.stream)
        quantities["grad_mean_square", k] = _mean_gradient(net, block, gradient)
        for kind, names in block.matrices.items():
            square = sum(done.squares.get(name, 0.0) for name in names)
            quantities[f"grad_{kind}", k] = float(square)
    first_block = net.stacks[0][0]
    gradient = done.gradients.get(first_block.before)
    quantities["grad_input", 0] = _mean_gradient(net, first_block, gradient)
    table = net.words.table if net.words else None
    if table is not None:
        quantities["grad_embedding", 0] = done.squares.get(table, 0.0)
    if net.head is not None and net.head != table:
        quantities["grad_head", 0] = done.squares.get(net.head, 0.0)


def _mean_gradient(net: Structure, block: Block, gradient: Floats | None) -> float:
    """The mean square of the gradients of a stream, over its tokens."""
    if gradient is None:
        return 0.0
    return float(np.mean(_tokens(net, block, gradient) ** 2))


def pass_findings(
    net: Structure, run: Run, known: Reference, draws: int, seed: int, level: float
) -> PassFindings:
    """The departures of one pass; the level holds for all its quantities together."""
    try:
        law = known.measure(draws, seed)
        quantities, weights = run(known.targets, known.masks)
    except UnsupportedError as error:
        return PassFindings([], tests=0, checked="", problem=str(error))
    except NotFiniteError as error:
        text = "expected finite activations, found NaN or infinity"
        finding = InitFinding(where=error.where, what="finite", p=0.0, text=text)
        return PassFindings([finding], tests=1, checked="forward pass")
    laws = _laws_by_block(law, quantities, draws)
    compared = {key: quantities[key] for key in laws}
    masks = _compare_masks(net, weights, known.masks)
    findings = list(masks.wrong.values())
    for (name, k), p in zip(compared, pass_tests(compared, laws), strict=True):
        because_of_mask = k in masks.wrong and name in SCORES
        if p >= level or because_of_mask:
            continue
        low, high = np.quantile(laws[name, k], [0.005, 0.995])
        text = f"expected {low:.4g} to {high:.4g}, found {compared[name, k]:.4g}"
        path = _path(net, name, k)
        findings.append(InitFinding(where=path, what=name, p=p, text=text))
    checked = _checked(compared)
    return PassFindings(
        findings,
        tests=len(compared) + masks.compared,
        checked=checked,
        problem="" if checked else "it has no quantity in common with the reference",
    )


def _laws_by_block(
    law: Mapping[str, Any], quantities: Iterable[tuple[str, int]], draws: int
) -> dict[tuple[str, int], Floats]:
    """The draws of those quantities (name, block) that the law has."""
    laws = {}
    for name, block in quantities:
        if name in law:
            by_block = law[name].reshape(draws, -1)  # (draws, blocks)
            if block < by_block.shape[1]:
                laws[name, block] = by_block[:, block]
    return laws


class PassFindings(NamedTuple):
    """Departures of the real pass."""

    findings: list[InitFinding]  # in the order of the network
    tests: int
    checked: str  # what was compared
    problem: str = ""  # why nothing was compared


class MaskComparison(NamedTuple):
    """The masks of the blocks against those of the reference."""

    wrong: dict[int, InitFinding]  # by the number of the block
    compared: int


def _compare_masks(
    net: Structure, weights: Sequence[Floats | None], masks: Sequence[Bools]
) -> MaskComparison:
    """Compare which tokens attend to which, block by block.

    `weights` are those of attention: a pair of tokens attends if one is above 0.
    """
    wrong: dict[int, InitFinding] = {}
    compared = 0
    blocks = zip(net.blocks, weights, masks, strict=True)
    for k, (block, attention, mask) in enumerate(blocks):
        if attention is None or not _fits(mask, attention):
            continue
        compared += 1
        is_attended = attention > 0
        if mask.ndim == 2:
            is_attended = np.any(is_attended, axis=0)
        else:  # rows of padding attend to nothing that counts
            is_attended = is_attended & mask.any(axis=-1, keepdims=True)
        pairs = np.argwhere(is_attended != mask)
        if not len(pairs):
            continue
        i, j = pairs[0, -2:]
        if is_attended[tuple(pairs[0])]:
            text = f"expected token {i} not to attend to token {j}, found that it does"
        else:
            text = f"expected token {i} to attend to token {j}, found that it does not"
        text += f"; {len(pairs)} pairs of tokens differ"
        wrong[k] = InitFinding(
            where=path_of(block.softmaxes[0]), what="mask", p=0.0, text=text
        )
    return MaskComparison(wrong, compared)


def _fits(mask: Bools, attention: Floats) -> bool:
    """Whether a mask is one for these weights (heads, tokens, tokens)."""
    return mask.shape in (attention.shape, attention.shape[-2:])


def _checked(compared: Iterable[tuple[str, int]]) -> str:
    """What the quantities of a pass are of."""
    names = {name for name, _ in compared}
    if any(name.startswith("grad_") for name in names):
        return "forward and backward pass"
    return "forward pass" if names else ""


def _path(net: Structure, name: str, k: int) -> str:
    """The module, or the parameter, that a quantity of block k is of."""
    if name.startswith(STARTS) or name == "grad_input":
        is_of_decoder = name.startswith("decoder")
        stack = net.stacks[-1] if is_of_decoder else net.stacks[0]
        return path_of(stack[0].before) or "the input of the first block"
    if name == "grad_embedding" and net.words:
        return net.words.table
    if name in (*END, "grad_head", "grad_embedding"):
        return net.head or "the output"
    return _path_in_block(net, net.blocks[k], name)


def _path_in_block(net: Structure, block: Block, name: str) -> str:
    """The module of a block that a quantity is of."""
    if name in SCORES and block.softmaxes:
        return path_of(block.softmaxes[0])
    branches = block.branches.get(name.removesuffix("_share"))
    if branches is None:
        return block.path or "the module"
    branch = branches[0]
    # the outermost module that returns it, such as the whole perceptron and not its
    # dropout
    paths = outputs_of_modules(net.graph.nodes).get(branch, [path_of(branch)])
    return min(paths, key=len)


def _record(quantities: Quantities, k: int, names: Sequence[str], values: Any) -> None:
    """Enter one number for each name, at block k."""
    for name, value in zip(names, np.ravel(values), strict=True):
        quantities[name, k] = float(value)


def _rows(x: Any, axes: int = 1) -> Floats:
    """An array with one axis before the last `axes`."""
    rows: Floats = np.asarray(x, dtype=float).reshape(-1, *x.shape[-axes:])
    return rows


def _tokens(net: Structure, block: Block, x: Any) -> Floats:
    """The rows of a stream that are tokens and no padding."""
    rows = _rows(np.moveaxis(x, block.coordinate_axis, -1))
    if tuple(x.shape) == shape_of(block.stream):
        return rows[net.tokens_of(block)]
    return rows[net.tokens_before(block)]


def _stream_quantities(tokens: Floats) -> Floats:
    """The quantities `STREAM` of a stream."""
    gram = tokens @ tokens.T / tokens.shape[-1]
    return np.concatenate([of_gram(gram), effective_rank(gram)])


def _record_block(
    quantities: Quantities,
    net: Structure,
    k: int,
    values: Mapping[Node, Any],
    masks: Sequence[Bools | None],
) -> Floats | None:
    """Enter the quantities of a block; the result is its attention weights."""
    block = net.blocks[k]
    weights = None
    if block.softmaxes:
        scores = _of_heads([values[softmax.args[0]] for softmax in block.softmaxes])
        weights = _of_heads([values[softmax] for softmax in block.softmaxes])
        mask = masks[k] if k < len(masks) else None
        if mask is not None and _fits(mask, weights):
            _record(
                quantities,
                k,
                names=SCORES,
                values=of_attention(scores, weights, allowed=mask),
            )
    shares = _shares(net, block, values)
    for name in BRANCHES:
        if any(name in other.branches for other in net.blocks):
            quantities[f"{name}_share", k] = shares.get(name, 0.0)
    tokens = _tokens(net, block, values[block.stream])
    _record(quantities, k, names=STREAM, values=_stream_quantities(tokens))
    return weights


def _of_heads(tensors: Sequence[Any]) -> Floats:
    """Scores or weights of one or several softmaxes, (heads, tokens, tokens)."""
    return np.concatenate([_rows(x, 2) for x in tensors])


def _shares(
    net: Structure, block: Block, values: Mapping[Node, Any]
) -> dict[str, float]:
    """The share of each branch of a block in its update of the stream."""

    def mean_square(nodes: Iterable[Node]) -> Any:
        """The mean square of a sum of streams."""
        total = sum(values[node] for node in nodes)
        return np.mean(_tokens(net, block, total) ** 2)

    names = [name for name in BRANCHES if name in block.branches]
    summands = [(block.start,), *(block.branches[name] for name in names)]
    squares = [np.array([mean_square(nodes) for nodes in summands])]
    if block.middle is not None:
        squares.append(np.array([mean_square([block.middle])]))
    shares = of_shares(*squares)
    return {name: float(share) for name, share in zip(names, shares, strict=True)}


class NotFiniteError(ValueError):
    """An activation has NaN or infinite entries."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where
