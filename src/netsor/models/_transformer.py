"""A transformer at initialisation: its description, and the programs that it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt

from .._program import Program
from ._description import Description
from ._inputs import inputs_of
from ._probes import Probes
from ._trace import Trace, trace


@dataclass(frozen=True, kw_only=True)
class Transformer(Description):
    """A transformer at initialisation.

    Its inputs are `ids` of tokens (repeated ids share their embedding), or `tokens`, a number of different ids. A
    model with a decoder reads `ids` and decodes `decoder_ids`, the same unless given. A model of images reads
    `patches`, an array (patches, numbers in a patch), or `tokens`: a class token, and patches of standard normal
    pixels.
    """

    def program(
        self,
        ids: Sequence[int] | None = None,
        *,
        tokens: int | None = None,
        decoder_ids: Sequence[int] | None = None,
        patches: npt.ArrayLike | None = None,
    ) -> Program:
        """The program of the last vectors, one a token, with widths n (stream), d (head) and m (perceptron).

        `model.program(tokens=8)[0].law(**model.widths())` is the law of one coordinate in the real model; bind widths
        to `inf` for the limit, in which all variances are those of this model.
        """
        traced = self.trace(ids, tokens=tokens, decoder_ids=decoder_ids, patches=patches)
        return Program(traced.output, self.name)

    def trace(
        self,
        ids: Sequence[int] | None = None,
        *,
        tokens: int | None = None,
        decoder_ids: Sequence[int] | None = None,
        patches: npt.ArrayLike | None = None,
    ) -> Trace:
        """Every vector and score of the network as values of the language, to make programs of one's own."""
        return trace(self, inputs_of(self, ids, tokens, decoder_ids, patches))

    def probes(
        self,
        ids: Sequence[int] | None = None,
        *,
        tokens: int | None = None,
        decoder_ids: Sequence[int] | None = None,
        patches: npt.ArrayLike | None = None,
        gradients: bool = False,
        ranges: bool = False,
    ) -> Probes:
        """The quantities of an audit on these inputs: `measure` draws them, layer by layer.

        Gradients too, and the ranges of activations, if asked.
        """
        return Probes(self, inputs_of(self, ids, tokens, decoder_ids, patches), gradients, ranges)
