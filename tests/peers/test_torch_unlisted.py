"""Modules that combine what papers of the last years propose, against themselves.

With the weights of one module, its program returns what the module returns, and the
gradients of every parameter. With random weights, loss, logits and gradients have the
law of real initialisations (two samples, Kolmogorov–Smirnov, level 1e-4 for all modules
together; seeds are fixed).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional

import netsor as ns
from tests.internals import UnsupportedError, _program, captured

from ..engine.differences import drawn
from . import literal
from .everyday_modules import EVERYDAY_MODULES
from .odd_modules import ODD_MODULES
from .squared_gradients import cross_entropy, squared_gradients
from .unlisted_modules import MODULES as FIRST_MODULES

MODULES = FIRST_MODULES | ODD_MODULES | EVERYDAY_MODULES
LEVEL = 1e-4
REAL, OURS = 300, 1200
ROUNDING = 1e-12  # squared gradients below it are rounding
# others run in `make test-all`
FAST_LAWS = ("experts with a capacity", "window with sinks", "time mixing")


class Law(NamedTuple):
    """The numbers of a module as values of its program."""

    draws: Any
    logits: Any  # scalars (rows, words)
    words: list[int]  # the targets
    loss: Any
    squares: dict[str, Any]  # the squared gradients of parameters, by name


def law_of(name, laws=None):
    """The law of a module.

    Its tables are trained, unless they have rows of zeros.
    """
    build, inputs = MODULES[name]
    graph = captured(build, inputs, {}, laws)
    try:
        reader = _program.TorchReader(graph, trained=True, whole_matrices=True)
        reader.program()
    except UnsupportedError:
        reader = _program.TorchReader(graph, whole_matrices=True)
        reader.program()
    logits = reader.value(reader.env[graph.outputs[0]])
    if isinstance(logits, ns.Vector):
        size = logits.width.factor
        units = ns.data(np.eye(size))[None, :]
        logits = size * ns.mean_dot(logits.reshape(-1)[:, None], units)
    logits = logits.reshape(-1, logits.shape[-1])
    words = [(5 * row + 1) % logits.shape[1] for row in range(len(logits))]
    loss = cross_entropy(logits, words)
    squares = squared_gradients(loss, reader.draws)
    return Law(reader.draws, logits, words, loss, squares)


def real_numbers(name, law):
    """A new module, its logits, its loss and its squared gradients."""
    build, inputs = MODULES[name]
    module = build().eval().double()
    logits = module(*(x.double() if x.is_floating_point() else x for x in inputs))
    logits = logits.reshape(-1, logits.shape[-1])
    loss = functional.cross_entropy(logits, torch.tensor(law.words))
    loss.backward()
    squares = {
        parameter: 0.0 if p.grad is None else p.grad.square().sum().item()
        for parameter, p in module.named_parameters()
        if parameter in law.squares
    }
    return module, logits.detach().numpy(), loss.item(), squares


def statistics(logits, loss, squares):
    """What is compared, by name, of many initialisations."""
    return {
        "loss": loss,
        "first logit": logits[:, 0, 0],
        "last logit": logits[:, -1, -1],
        "mean square": np.square(logits).mean((1, 2)),
        "covariance": (logits[:, 0] * logits[:, -1]).mean(-1),
        **{f"gradient of {name}": numbers for name, numbers in squares.items()},
    }


def p_values(name, law, count=REAL, draws=OURS):
    """The p-value of each statistic."""
    torch.manual_seed(4)
    real = [real_numbers(name, law)[1:] for _ in range(count)]
    logits, loss, squares = zip(*real, strict=True)
    columns = {x: np.array([each[x] for each in squares]) for x in squares[0]}
    theirs = statistics(np.stack(logits), np.array(loss), columns)
    program = ns.Program((law.logits, law.loss, *(law.squares[x] for x in columns)))
    drawn_logits, drawn_loss, *drawn_squares = program.draw(
        draws=draws, rng=3, progress=False
    )
    of_law = dict(zip(columns, drawn_squares, strict=True))
    ours = statistics(drawn_logits, drawn_loss, of_law)
    return {
        key: float(stats.ks_2samp(ours[key], theirs[key], method="asymp").pvalue)
        for key in ours
        if max(abs(ours[key]).max(), abs(theirs[key]).max()) > ROUNDING
    }


@pytest.mark.parametrize("name", MODULES)
def test_program_and_gradients_match_module(name):
    law = law_of(name)
    torch.manual_seed(5)
    module, logits, loss, squares = real_numbers(name, law)
    values = [law.logits, law.loss, *law.squares.values()]
    ours = drawn(values, {}, literal.given_numbers(law.draws, module)).drawn
    assert np.abs(ours[law.logits][0] - logits).max() < 1e-6 * np.abs(logits).max()
    np.testing.assert_allclose(ours[law.loss][0], loss, rtol=1e-6)
    for parameter, square in squares.items():
        gradient = ours[law.squares[parameter]][0]
        np.testing.assert_allclose(
            gradient, square, rtol=1e-5, atol=1e-24, err_msg=parameter
        )


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST_LAWS else pytest.param(name, marks=pytest.mark.slow)
        for name in MODULES
    ],
)
def test_law_matches_real_initialisations(name):
    found = p_values(name, law_of(name))
    level = LEVEL / (len(MODULES) * len(found))
    assert min(found.values()) > level, found


def test_wrong_law_is_found():
    name = "window with sinks"
    laws = ns.torch.parameters(MODULES[name][0])
    wrong = {"v.weight": 1.5 * laws["v.weight"].std}
    laws = ns.torch.parameters(MODULES[name][0], declared=wrong)
    found = p_values(name, law_of(name, laws))
    assert min(found.values()) < LEVEL / (len(MODULES) * len(found))
