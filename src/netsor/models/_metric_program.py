"""The quantities of an audit: what a transformer at initialisation does, layer by layer, as draws of their law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .._program import Program
from .._validate import ArgumentError
from ..engine import ExactError, Plan
from ..engine.backends import Backend
from ..language import Scalar, Vector, apply, join, mean_dot, stack
from ._build import Inputs, Layer, Trace, trace
from ._description import Description
from ._gradients import final_names, gradients, layer_names
from ._loss import Logits, Loss, cross_entropy, readout, words
from ._metrics import effective_rank, of_attention, of_experts, of_gram, of_shares
from ._ranges import BLOCK, ENDS, names_of, ranges

STREAM = ("mean_square", "cosine", "effective_rank")  # of the embeddings too
ATTENTION = ("score_std", "score_max", "entropy", "largest_weight")
SHARES = ("attention_share", "cross_share", "mlp_share")
ROUTED = ("largest_load", "least_load")  # if there are experts


def forward_names(model: Description) -> tuple[str, ...]:
    """The names of the numbers of a row, in order."""
    shares = tuple(name for name in SHARES if model.decoder_layers or name != "cross_share")
    return (*STREAM, *ATTENTION, *shares, *(ROUTED if model.experts else ()))


def of_layers(model: Description, traced: Trace) -> list[Scalar]:
    """The row of each block."""
    rows: list[Scalar] = []
    before = traced.embedded
    for i, layer in enumerate(traced.layers):
        if i == model.layers and traced.decoded is not None:
            before = traced.decoded  # the decoder begins with embeddings of its own
        mask = traced.masks[i]
        allowed = np.ones(layer.scores.shape[-2:], bool) if mask is None else mask
        rows.append(_of_layer(model, before, layer, allowed))
        before = layer.stream
    return rows


def _of_layer(model: Description, before: Vector, layer: Layer, allowed: npt.NDArray[np.bool_]) -> Scalar:
    added = [layer.attended, *([layer.crossed] if layer.crossed is not None else []), layer.fed]
    squares = stack([_square(u) for u in (before, *added)])
    middle = [stack([_square(layer.given)])] if model.order == "post" else []
    shares = apply(of_shares, squares, *middle, axes=1)
    if model.decoder_layers and layer.crossed is None:
        shares = stack([shares[0], shares[0] * 0.0, shares[1]])
    of_scores = partial(of_attention, allowed=allowed)
    attention = apply(of_scores, layer.scores, layer.weights, axes=3, name="of_attention")
    loads = [] if layer.experts is None else [apply(of_experts, layer.experts, axes=2)]
    return join([of_stream(layer.stream), attention, shares, *loads])


def of_stream(x: Vector) -> Scalar:
    """The numbers of `STREAM`."""
    products = mean_dot(x, x)
    return join([apply(of_gram, products, axes=2), apply(effective_rank, products, axes=2)])


def _square(x: Vector) -> Scalar:
    one = x[..., None]
    return mean_dot(one, one)[..., 0, 0].mean()


Floats = npt.NDArray[np.float64]

FINAL = ("logit_std", "loss", "max_probability")


class Probes:
    """Quantities of one model on given inputs; two tokens or more. `Transformer.probes` makes it.

    Per block: `mean_square` of the stream's coordinates over tokens, mean `cosine` of two tokens, `effective_rank` of
    the tokens' Gram matrix; `score_std` and `score_max` over heads and allowed pairs; `entropy` of attention rows over
    that of uniform rows, the `largest_weight`; `attention_share` and `mlp_share`, the mean squares of what the branches
    add, over the sum of these and that of the stream (`cross_share` too, if there is a decoder, 0 in the encoder). At
    the end: `logit_std`, step-0 `loss` (each token predicts the next id, or its own if nothing is masked;
    `uniform_loss` is ln V), `max_probability`, all three at the tokens that predict something: where the next id is
    predicted that leaves out the last token. At the beginning: `input_mean_square`, `input_cosine` and
    `input_effective_rank` of the embeddings, and `decoder_input_mean_square` and so on, if there is a decoder. If there
    are experts, `largest_load` and `least_load`, a block: how many tokens are sent to the busiest and to the idlest of
    them, over the number of an even load.

    Parameters
    ----------
    model : Transformer
        The model.
    inputs : Inputs
        Its tokens, or patches.
    gradients : bool
        Of that loss too (of a random readout of every token, if there are no logits): `grad_mean_square` of ∂L/∂x, x
        the stream after the block; `grad_query` and so on, |∂L/∂W|² of the block's matrices of a kind; and
        `grad_query_ratio`, that over the mean of |W|². Of the network: `grad_input`, the mean square at the embeddings,
        and `grad_embedding` and `grad_head` with their ratios; tied ones are one matrix, the embedding.
    ranges : bool
        At finite widths, of each activation too (the stream, `query`, `hidden` and so on): `stream_largest`, the
        largest absolute value; `stream_below_fp16` and so on, the share of numbers other than 0 that are below the
        smallest of a format; `stream_scaled_fp16`, that share if the largest is brought to the end of the format by a
        power of two.

    Examples
    --------
    >>> model = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
    >>> found = model.probes(tokens=4).measure(5, progress=False)
    >>> found["cosine"].shape  # draws, blocks
    (5, 2)
    """

    def __init__(self, model: Description, inputs: Inputs, gradients: bool = False, ranges: bool = False) -> None:
        if min(inputs.tokens, len(inputs.decoder_ids) or 2) < 2:
            raise ArgumentError("tokens", inputs.tokens, "2 or more: an audit compares tokens")
        empty = not model.std_embedding or {*inputs.ids, *inputs.decoder_ids} == {model.padding}
        if empty and not model.std_type and not (model.positions == "learned" and model.std_position):
            raise ValueError(
                f"std_embedding={model.std_embedding:g} of {model.name} with these tokens makes all vectors 0, which "
                "have no cosine, rank or shares: an audit needs embeddings above 0, or other ids than padding"
            )
        if gradients and model.experts:
            raise ValueError(
                f"gradients=True of {model.name}, with experts={model.experts}: what a router chooses has no gradient"
            )
        self.model, self.inputs, self.gradients, self.ranges = model, inputs, gradients, ranges
        self.forward = forward_names(model)
        self.backward = layer_names(model) if gradients else ()
        self.names = (*self.forward, *self.backward)
        self.ends = FINAL if model.vocabulary else ()
        self.final = (*self.ends, *(final_names(model) if gradients else ()))
        self.starts = ("input_", "decoder_input_") if model.decoder_layers else ("input_",)

    @cached_property
    def program(self) -> Program:
        """The program for finite n: a row of numbers for each block, one for the input, one for the logits."""
        return self._build(limit=False)

    @cached_property
    def limit(self) -> Program:
        """The program for n = ∞. Tied logits keep the fluctuation that they have at the width of the model."""
        return self._build(limit=True)

    @property
    def layers(self) -> int:
        """The number of blocks of encoder and decoder together."""
        return self.model.layers + self.model.decoder_layers

    @property
    def uniform_loss(self) -> float | None:
        """ln V, the loss of uniform probabilities; None without logits."""
        return math.log(self.model.vocabulary) if self.model.vocabulary else None

    def plan(self, *, backend: str | Backend = "numpy", device: str | None = None, **widths: float) -> Plan:
        """The plan of `measure` at these widths; nothing is drawn.

        Parameters
        ----------
        backend : str
            The array library, as in `Program.plan`.
        device : str, optional
            The device.
        **widths : float
            Widths other than those of the model.
        """
        bound = self.model.widths() | widths
        return self._at(bound).plan(backend=backend, device=device, **bound)  # type: ignore[arg-type]

    def measure(
        self,
        draws: int,
        *,
        seed: int = 0,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Any = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        precision: str = "float64",
        **widths: float,
    ) -> dict[str, Floats]:
        """Draws of every quantity by name: (draws, layers), or (draws,) for those of the whole network.

        Parameters
        ----------
        draws : int
            The number of initialisations.
        seed : int
            The seed.
        workers, executor, device : optional
            As in `Program.draw`.
        progress : bool or callable
            As in `Program.draw`.
        backend : str
            The array library.
        precision : str
            "float64" or "float32".
        **widths : float
            Widths other than those of the model: `measure(100, n=inf, d=inf, m=inf)` is the limit.
        """
        bound: dict[str, Any] = {**self.model.widths(), **widths}
        found = self._at(bound).draw(
            draws=draws,
            seed=seed,
            workers=workers,
            executor=executor,
            progress=progress,
            backend=backend,
            device=device,
            precision=precision,
            **bound,
        )
        assert isinstance(found, tuple)  # there are several outputs
        return self.named(found)

    def named(self, found: Sequence[Floats]) -> dict[str, Floats]:
        """Outputs of `program.draw` or `limit.draw`, by the names of the quantities, as `measure` returns them."""
        rows = list(found)
        measured = _columns(self.forward, np.stack(rows[: self.layers], axis=1))  # (draws, layers, names)
        rest = rows[self.layers :]
        for start in self.starts:
            measured |= _columns([start + name for name in STREAM], rest.pop(0))
        if self.ends:
            measured |= _columns(self.ends, rest.pop(0))
        if self.gradients:
            measured |= _columns(self.backward, np.stack(rest[: self.layers], axis=1))
            measured |= _columns(self.final[len(self.ends) :], rest[self.layers])
            rest = rest[self.layers + 1 :]
        if rest:  # ranges, which there are at finite widths
            measured |= _columns(names_of(BLOCK), np.stack(rest[: self.layers], axis=1))
            measured |= _columns(names_of(ENDS if self.ends else ENDS[:1]), rest[self.layers])
        return measured

    def _at(self, widths: dict[str, float]) -> Program:
        return self.limit if math.isinf(widths["n"]) else self.program

    def _build(self, limit: bool) -> Program:
        traced = trace(self.model, self.inputs)
        ranged = self.ranges and not limit
        every: Logits | None = None
        end: Logits | None = None
        if ranged and self.ends and self._next:  # the last token has logits too, although it predicts nothing
            count = traced.output.size - 1
            every = words(self.model, traced, traced.output, limit, count)
            end = every.first(count)
        elif self.ends:
            every = end = self.logits(traced, limit)
        beside = ranges(traced, every) if ranged else []
        return Program((*self.outputs(traced, end, limit), *beside), f"probes of {self.model.name}")

    def outputs(self, traced: Trace, end: Logits | None, limit: bool = False) -> tuple[Scalar, ...]:
        """The outputs of `program`: a row for each block, one for the input, one for the logits; gradients.

        Parameters
        ----------
        traced : Trace
            A network from `Transformer.trace`.
        end : Logits or None
            Its predicting logits, from `logits`.
        limit : bool
            Whether n = ∞.
        """
        rows = of_layers(self.model, traced)
        rows += [of_stream(start) for start in (traced.embedded, traced.decoded) if start is not None]
        loss = self._loss(traced, end, limit) if self.gradients else None
        if end is not None:
            rows.append(self._end(end, None if loss is None else loss.ends))
        return (*rows, *gradients(self.model, traced, loss)) if loss is not None else tuple(rows)

    def logits(self, traced: Trace, limit: bool) -> Logits:
        """The logits of the tokens that predict something.

        Parameters
        ----------
        traced : Trace
            A network from `Transformer.trace`.
        limit : bool
            Whether n = ∞.
        """
        y = traced.output
        if self.model.readout == "class":
            y = y[:1]
        elif self._next:
            y = y[:-1]
        return words(self.model, traced, y, limit)

    @property
    def _next(self) -> bool:
        """Whether a token predicts the next one."""
        return self.model.readout != "class" and (self.model.causal or self.model.decoder_layers > 0)

    @property
    def _targets(self) -> tuple[int, ...]:
        ids = self.inputs.decoder_ids or self.inputs.ids
        return (0,) if self.model.readout == "class" else ids[1:] if self._next else ids  # all classes are alike

    def _loss(self, traced: Trace, logits: Logits | None, limit: bool) -> Loss:
        if logits is None:
            return readout(traced.output)
        if limit and self.model.tied:
            raise ExactError(
                logits.y,
                "the logit of a token's own id grows with the root of the width if logits are tied, and so do the "
                "cotangents of scores: the gradient has a part along the embeddings, which the stream has too",
                instead="gradients of a model whose logits are not tied have a limit",
            )
        return cross_entropy(self.model, traced, logits, self._targets)

    def _end(self, logits: Logits, ends: Scalar | None) -> Scalar:
        ends = logits.ends() if ends is None else ends
        return stack([ends[0], ends[1] - logits.of(self._targets).mean(), ends[2]])


def _columns(names: Sequence[str], rows: Floats) -> dict[str, Floats]:
    """Columns of the last axis, by their names."""
    return {name: np.ascontiguousarray(rows[..., i]) for i, name in enumerate(names)}
