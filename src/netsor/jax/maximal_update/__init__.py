"""Maximal-update parametrisations of JAX models, derived by measurement.

`netsor.maximal_update` derives the rule. Here `_graph` is the forward pass of a model,
`_measure` compiles and runs what is measured, `_emitted_file` writes the rule as plain
optax, and `_real_training` checks it by real steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._validate import also_spelled, whole
from ...maximal_update._derive import (
    DRAWS,
    TOO_FEW,
    WIDTHS,
    derive,
    validated_widths,
)
from ...maximal_update._measurement import FEWEST_DRAWS
from ...maximal_update._own_optimiser import OwnOptimiser
from ...maximal_update._results import DerivedRule
from ._measure import subject_of

__all__ = ["parametrise"]


@also_spelled(optimizer="optimiser")
def parametrise(
    build: Callable[..., Any],
    *,
    optimiser: Any = "adamw",
    widths: Sequence[int] = WIDTHS,
    batch: Any = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> DerivedRule:
    """Derive how initialisation and learning rates must follow the width, so that every
    activation and every update is of order 1 (maximal updates, µP).

    The derivation is that of `ns.torch.parametrise`; the file is plain JAX and optax.

    Parameters
    ----------
    build : callable
        A function of the width that returns a model with logits: a function of a key
        that makes a model of Flax NNX or Equinox, a module of Linen, or a pair (init,
        apply). Everything that should grow must grow with it.
    optimiser : str, optax.GradientTransformation or callable
        "adamw", "adam", "sgd", "lion", "sign" or "muon" (with AdamW for all but
        matrices of two axes). Or your own transformation, or a function that returns
        it, whose updates are measured as they are: then `rule.departures` lists what is
        not maximal in it and in the model. You can also write `optimizer`.
    widths : sequence of int
        Widths to measure, at least two. The smallest is the base of the exponents.
    batch : tuple, optional
        (inputs, targets): arrays that the model takes, and the right class for each row
        of its logits. By default two sequences of eight random tokens, each the target
        of the one before.
    draws : int
        Initialisations at each width, at least 3.
    seed : int
        The first key; initialisation k has the key of seed + k.
    progress : callable, optional
        Called with a line of text at each stage.

    Returns
    -------
    rule : DerivedRule
        The same as from `ns.torch.parametrise`: `rule.source()` is a file of plain
        optax, and `rule.check()` tests it by real training.

    Examples
    --------
    >>> def build(n):
    ...     return lambda key: GPT(n, rngs=nnx.Rngs(key))
    >>> rule = ns.jax.parametrise(build, optimiser="adamw")  # doctest: +SKIP
    >>> Path("mup.py").write_text(rule.source(), "utf-8")  # doctest: +SKIP
    """
    sizes = validated_widths(widths)
    whole(draws, "draws", least=FEWEST_DRAWS, why=TOO_FEW)
    subject = subject_of(
        build, optimiser, batch, whole(seed, "seed", least=0), base_width=sizes[0]
    )
    own = OwnOptimiser()
    if subject.make is not None:  # the rates of its updates are not known apart
        own = OwnOptimiser(lr=dict.fromkeys(subject.shapes(sizes[0], None), 0.0))
    return derive(subject, subject.graphs, sizes, draws, own=own, progress=progress)
