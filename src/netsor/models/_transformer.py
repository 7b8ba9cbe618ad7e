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

        Bind widths to `inf` for the limit, in which all variances are those of this model.

        Parameters
        ----------
        ids : sequence of int, optional
            Of the tokens.
        tokens : int, optional
            So many different ids, in place of `ids`.
        decoder_ids : sequence of int, optional
            What a decoder decodes, `ids` unless given.
        patches : array_like, optional
            (patches, numbers in a patch), for a model of images.

        Returns
        -------
        Program
            Of shape (tokens,).

        Examples
        --------
        >>> model = ns.models.read("gpt2").replace(layers=2)
        >>> law = model.program(tokens=4)[0].law(draws=200, **model.widths())  # of one coordinate in the real model
        >>> law.status
        'exact'
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
        """Every vector and score of the network as values of the language, to make programs of one's own.

        Parameters
        ----------
        ids : sequence of int, optional
            Of the tokens.
        tokens : int, optional
            So many different ids, in place of `ids`.
        decoder_ids : sequence of int, optional
            What a decoder decodes, `ids` unless given.
        patches : array_like, optional
            (patches, numbers in a patch), for a model of images.

        Returns
        -------
        Trace
            Embeddings, blocks and last vectors.

        Examples
        --------
        >>> traced = ns.models.read("gpt2").trace(tokens=4)
        >>> entropy = ns.apply(lambda a: -(a * np.log(np.maximum(a, 1e-300))).sum(-1), traced.layers[0].weights, axes=1)
        >>> entropy.shape  # heads, tokens
        (12, 4)
        """
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

        Parameters
        ----------
        ids : sequence of int, optional
            Of the tokens.
        tokens : int, optional
            So many different ids, in place of `ids`.
        decoder_ids : sequence of int, optional
            What a decoder decodes, `ids` unless given.
        patches : array_like, optional
            (patches, numbers in a patch), for a model of images.
        gradients : bool
            The backward half too.
        ranges : bool
            The ranges of activations too.

        Returns
        -------
        Probes
            The quantities, as programs.

        Examples
        --------
        >>> model = ns.models.read("gpt2").replace(layers=2, width=16, heads=2, hidden=64, vocabulary=30)
        >>> sorted(model.probes(tokens=4).measure(3, progress=False))[:4]
        ['attention_share', 'cosine', 'effective_rank', 'entropy']
        """
        return Probes(self, inputs_of(self, ids, tokens, decoder_ids, patches), gradients, ranges)
