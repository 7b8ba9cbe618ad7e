"""Derivatives of the literal network by differences: the same matrices, one thing
moved.
"""

import numpy as np

from tests.internals import Gaussian, Normal, _Literal, source_order, topological_order

STEP = 1e-5


def drawn(outputs, widths, given=None):
    """One literal draw of all values of a program; the order of the outputs numbers the
    sources, so it counts.

    `given` are arrays that replace random numbers: of initial vectors and random
    scalars by value, and the N(0, 1) variables of matrices by source and member.
    """
    values, given = topological_order(outputs), given or {}
    literal = _Literal(source_order(values), widths, 3, 0, replicas=1)
    for key, array in given.items():
        (literal.matrices if isinstance(key, tuple) else literal.drawn)[key] = (
            np.asarray(array)[None]
        )
    for value in values:
        if value not in given:
            literal.evaluate(value)
    return literal


def evaluated(outputs, widths):
    """The outputs of that draw."""
    literal = drawn(outputs, widths)
    return [literal.drawn[output][0] for output in outputs]


def slopes(outputs, widths, count, moved):
    """d/dt of the first outputs when values, or matrices by source and member, move by
    t times arrays (ways, …).

    An array (outputs, ways).
    """
    one, (ways, *_) = drawn(outputs, widths), next(iter(moved.values())).shape
    found = []
    for step in (STEP, -STEP):
        literal = _Literal(one.sources, widths, 3, 0, replicas=ways)
        literal.matrices = {
            key: array + step * moved.get(key, np.zeros((ways, 1, 1)))
            for key, array in one.matrices.items()
        }
        for value in topological_order(outputs[:count]):
            if isinstance(value.op, Gaussian | Normal):
                literal.drawn[value] = np.broadcast_to(
                    one.drawn[value], (ways, *one.drawn[value].shape[1:])
                )
            else:
                literal.evaluate(value)
            if value in moved:
                literal.drawn[value] = literal.drawn[value] + step * moved[value]
        found.append(np.array([literal.drawn[output] for output in outputs[:count]]))
    return (found[0] - found[1]) / (2 * STEP)
