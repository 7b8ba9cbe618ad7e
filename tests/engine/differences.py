"""Derivatives of the literal network by differences: the same matrices, one thing moved."""

from netsor.engine._literal import _Literal
from netsor.language._graph import numbered, ordered

STEP = 1e-5


def evaluated(outputs, widths, moved=None, seed=3):
    """The outputs, one draw, with arrays added to values (by value) and to matrices (by source and member)."""
    moved = moved or {}
    values = ordered(outputs)
    literal = _Literal(numbered(values), widths, seed, 0, replicas=1)
    for value in values:  # first, so that every matrix is there
        literal.evaluate(value)
    literal.drawn.clear()
    for key, by in moved.items():
        if key in literal.matrices:
            literal.matrices[key] = literal.matrices[key] + by
    for value in values:
        literal.evaluate(value)
        if value in moved:
            literal.drawn[value] = literal.drawn[value] + moved[value]
    return [literal.drawn[output][0] for output in outputs], literal


def slope(p, others, widths, moved, seed=3):
    """d/dt of Σ p when everything in `moved` moves by t times its array; `others` fix the numbering of sources."""
    outputs = [p, *others]
    plus, minus = (
        evaluated(outputs, widths, {key: sign * STEP * by for key, by in moved.items()}, seed)[0][0].sum()
        for sign in (1, -1)
    )
    return (plus - minus) / (2 * STEP)
