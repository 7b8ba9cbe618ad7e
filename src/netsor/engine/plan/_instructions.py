"""The instructions of a plan, in one table: how each is computed, and what it costs.

Every step of a plan names one instruction. All that the engine knows about it stands in
its record here, and the builder, the runner, the estimate of time and the backends read
it from `INSTRUCTIONS`. So a new instruction is one function in `_ops` (or one method of
`LinalgBackend`, if it factors matrices) and one record in this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Array
from ..linalg import _gram_schmidt
from ..linalg._gram_schmidt import LinalgBackend
from . import _expectation_ops, _ops
from ._cost_model import CPU
from ._expectation_cost import integration_seconds
from ._register import Register

Params = Mapping[str, Any]

# sizes of vectors in one sign pattern that are drawn together, 512 KiB; smaller batches
# are slower
ORTHANT_SIZES_PER_BATCH = 2**16


class Group(Enum):
    """What kind of work an instruction is, which sets its price."""

    DRAW = auto()  # random numbers of one stream, which the backend draws
    VIEW = auto()  # no work: the result shares memory with the first argument
    ARITHMETIC = auto()  # a few operations for each entry of the result
    FUNCTION = auto()  # functions of the program, which some backends run on the host
    PRODUCT = auto()  # for each entry of the result, a sum of products
    FACTORISATION = auto()  # products, and a loop over the rows of triangular factors
    OUTER = auto()  # a large matrix, made and summed piece by piece


class Integral(NamedTuple):
    """Expectations of functions of several vectors: only points approximate them."""

    expectations: int
    # of the functions that are evaluated for each of them, on average
    arguments: float

    def seconds(self, replicas: int) -> float:
        """The estimated seconds for so many replicas in one call."""
        return integration_seconds(replicas * self.expectations, self.arguments)


def integral_of_kernel(args: Sequence[Register], params: Params) -> Integral | None:
    """The expectations E[f(u_i) g(v_j)] of a step `kernel`, from its arguments.

    None if f and g have one vector each: these are not integrated numerically. If both
    factors are the same, one of (i, j) and (j, i) is computed, and E[f(u_i)²]
    evaluates f once.
    """
    left, right, *scalars = args
    frames, rows, left_vectors, _ = left.shape
    _, columns, right_vectors, _ = right.shape
    if max(left_vectors, right_vectors) <= 1:
        return None
    arguments = left_vectors + right_vectors + len(scalars)
    if is_symmetric_kernel(args, params):
        pairs = rows * (rows + 1) // 2
        evaluated = rows**2 * arguments / 2  # half of the arguments are those of f
        return Integral(frames * pairs, evaluated / pairs)
    return Integral(frames * rows * columns, arguments)


def is_symmetric_kernel(args: Sequence[Register], params: Params) -> bool:
    """Whether f(u) and g(v) are the same function of the same arguments."""
    left, right, *scalars = args
    scalars_of_f = scalars[: params["params_of_f"]]
    scalars_of_g = scalars[params["params_of_f"] :]
    same_function = params["f"] is params["g"]
    # registers are equal only if they are the same object
    return same_function and left is right and scalars_of_f == scalars_of_g


def integral_of_moments(args: Sequence[Register], params: Params) -> Integral | None:
    """The expectations E[f(u_i)] and E[f(u_i) u_i] of a step `moments`.

    None if f has one vector, as above.
    """
    vectors, *scalars = args
    frames, rows, arguments, _ = vectors.shape
    if arguments <= 1:
        return None
    # the moments with the arguments double the number of factors
    return Integral(frames * rows, 2 * (arguments + len(scalars)))


# How many terms each entry of a result sums, from the arguments: `Step.operations` is
# this number times the entries of the result.


def one_term(args: Sequence[Register]) -> int:
    """One: the result has no sums."""
    return 1


def terms_of_product(args: Sequence[Register]) -> int:
    """The length of the rows of the first factor."""
    return args[0].shape[-1]


def terms_of_along(args: Sequence[Register]) -> int:
    """The length of the rows; 1 if the factor of their Gram matrix is given."""
    return 1 if len(args) > 2 else args[0].shape[-1]


def terms_of_basis(args: Sequence[Register]) -> int:
    """Twice the number of rows, each of which is projected on the others."""
    return 2 * args[0].shape[-2]


def terms_of_oriented(args: Sequence[Register]) -> int:
    """The rows of the triangular factor, and the length of the vectors."""
    factor, rows, *_ = args
    return factor.shape[-1] + rows.shape[-1]


def terms_of_spanned(args: Sequence[Register]) -> int:
    """Twice the number of rows."""
    return 2 * args[1].shape[-2]


def terms_of_span(args: Sequence[Register]) -> int:
    """Four times the number of rows and known rows: two passes of two products."""
    return 4 * sum(rows.shape[-2] for rows in args)


def terms_of_outer(args: Sequence[Register]) -> int:
    """The uses of the matrix, and the vectors it acts on, for each entry of it.

    The entries of the result are `count` vectors: fan_in · uses products make a row of
    the matrix, and fan_in · count products use it.
    """
    _, right, vectors = args
    uses, fan_in = right.shape[-2:]
    count = vectors.shape[-2]
    return fan_in * (uses + count) // count


# When an instruction would return an argument unchanged, so that no step is needed.


def if_no_padding(args: Sequence[Register], params: Params) -> Register | None:
    """The array itself if no zeros are added."""
    if params["before"] or params["after"]:
        return None
    return args[0]


def if_whole_range(args: Sequence[Register], params: Params) -> Register | None:
    """The array itself if the part is all of it."""
    if (params["start"], params["stop"]) != (0, args[0].shape[-1]):
        return None
    return args[0]


def if_factor_one(args: Sequence[Register], params: Params) -> Register | None:
    """The array itself if it is multiplied by 1."""
    return args[0] if params["by"] == 1.0 else None


def if_single(args: Sequence[Register], params: Params) -> Register | None:
    """The array itself if it is joined with no other."""
    return args[0] if len(args) == 1 else None


def if_axes_in_order(args: Sequence[Register], params: Params) -> Register | None:
    """The array itself if its axes stay where they are."""
    axes = list(params["axes"])
    return args[0] if axes == sorted(axes) else None


def if_times_identity(args: Sequence[Register], params: Params) -> Register | None:
    """The second factor if the first is the identity, without broadcasting."""
    left, right = args
    if left.identity_start() != 0:
        return None
    return right if left.shape == (*right.shape[:-1], right.shape[-2]) else None


# Whether the result may be written over an argument of the same shape.


def always(params: Params) -> bool:
    """Yes: an entry of the result depends on the same entry of each argument only."""
    return True


def if_entrywise(params: Params) -> bool:
    """Whether a function is applied to each entry by itself."""
    return params.get("axes") == 0


# Whether only numpy computes an instruction: see also `kernel_needs_numpy`.


def on_every_backend(args: Sequence[Register], params: Params) -> bool:
    """Yes: the instruction needs numpy, whatever its arguments are."""
    return True


# Random numbers of the instructions that draw, per replica.


def entries(out: Register, params: Params) -> int:
    """One for each entry of the result."""
    return out.size


def stated_numbers(out: Register, params: Params) -> int:
    """Their mean number, which the pass that makes the step has worked out."""
    return int(params["numbers"])


def sizes_in_one_pattern(out: Register, params: Params) -> int:
    """The sizes of vectors at the coordinates of one sign pattern, and their products.

    0 if these are few.
    """
    vectors = out.shape[-1]
    coordinates = params["width"] // 2**vectors
    if vectors > 1 and coordinates > ORTHANT_SIZES_PER_BATCH:
        return int((vectors + 1) * coordinates)
    return 0


@dataclass(frozen=True)
class Instruction:
    """All that the engine knows about one instruction.

    Exactly one of `rule` and `method` computes it, in every array library; an
    instruction of the group DRAW has neither, because the backend draws the numbers.

    Parameters
    ----------
    name : str
        The name that steps use and that plans print.
    group : Group
        What kind of work it is.
    rule : callable or None
        `rule(xp, *arrays, **params)`, in the array library `xp`.
    method : callable or None
        A method of `LinalgBackend`; each backend may have its own of the same name.
    terms : callable
        The terms summed in each entry of the result.
    overwrites : callable or None
        Whether numpy may write the result over an argument, through a parameter `out`
        of the rule; None if it never may.
    unchanged : callable or None
        The argument that it would return unchanged, if any; no step is then added.
    keeps_entries : bool
        Whether each entry of the result is an entry of an argument, up to a factor, or
        is 0.
    shifted : bool
        Whether it takes the plan's `shift`, which reveals the effect of errors (see
        `_expectation_ops`).
    integral : callable or None
        What it integrates numerically; None if it contains no Gaussian expectation.
    needs_numpy : callable or None
        Whether only numpy computes it, so that other backends copy its arguments to the
        host; None if every array library does.
    random_numbers : callable
        The random numbers that it draws in one replica, on average.
    seconds_per_number : float
        The time for one of them on one core.
    temporary_numbers : callable or None
        The numbers that it stores in one replica while it draws, in addition to its
        result; None if these are few.

    Examples
    --------
    >>> from netsor.engine.plan._instructions import INSTRUCTIONS
    >>> product = INSTRUCTIONS["product"]
    >>> product.group.name, product.rule.__name__, product.draws
    ('PRODUCT', 'product', False)
    >>> a, b = (np.ones((1, 2, 2)), np.eye(2)[None])
    >>> product.compute(LinalgBackend(np), [a, b], {}).shape
    (1, 2, 2)
    """

    name: str
    group: Group
    rule: Callable[..., Array] | None = None
    method: Callable[..., Array] | None = None
    terms: Callable[[Sequence[Register]], int] = one_term
    overwrites: Callable[[Params], bool] | None = None
    unchanged: Callable[[Sequence[Register], Params], Register | None] | None = None
    keeps_entries: bool = False
    shifted: bool = False
    integral: Callable[[Sequence[Register], Params], Integral | None] | None = None
    needs_numpy: Callable[[Sequence[Register], Params], bool] | None = None
    random_numbers: Callable[[Register, Params], int] = entries
    seconds_per_number: float = CPU.normal
    temporary_numbers: Callable[[Register, Params], int] | None = None

    @property
    def draws(self) -> bool:
        """Whether the backend draws its result."""
        return self.group is Group.DRAW

    def compute(
        self, linalg: LinalgBackend, inputs: Sequence[Array], params: Params
    ) -> Array:
        """The result for arrays of the library of `linalg`."""
        if self.rule is not None:
            return self.rule(linalg.xp, *inputs, **params)
        if self.method is None:
            raise TypeError(f"{self.name} is drawn by a backend, not computed")
        computed: Array = getattr(linalg, self.method.__name__)(*inputs, **params)
        return computed

    def overwrite(self, out: Array, inputs: Sequence[Array], params: Params) -> Array:
        """The result for numpy arrays, written into `out`, which may be one of them."""
        if self.rule is None:
            raise TypeError(f"{self.name} has no rule that writes into an array")
        return self.rule(np, *inputs, **params, out=out)

    def seconds(
        self, out: Register, args: Sequence[Register], operations: int
    ) -> float:
        """The estimated seconds per replica on one core, unless it draws or integrates.

        `operations` is the number of entries of the result times the terms of each.
        """
        match self.group:
            case Group.VIEW:
                return 0.0
            case Group.FUNCTION:
                return CPU.function * max(out.size, *(arg.size for arg in args))
            case Group.PRODUCT:
                return CPU.entry * out.size + CPU.product * operations
            case Group.FACTORISATION:
                rows = out.shape[-2] if len(out.shape) > 1 else 1
                factor_entries = math.prod(out.shape[:-1]) * rows
                products = CPU.entry * out.size + CPU.product * operations
                return products + CPU.factor_entry * factor_entries
            case Group.OUTER:
                # four passes over the entries of the matrix, and the products that
                # make and use it
                _, right, vectors = args
                matrix = out.size // vectors.shape[-2] * right.shape[-1]
                return 4 * CPU.entry * matrix + CPU.product * operations
        return CPU.entry * out.size


_TABLE = (
    # Random numbers
    Instruction("normals", Group.DRAW),
    Instruction("chi", Group.DRAW, seconds_per_number=CPU.chi),
    # The Gram matrix of the positive parts of normal vectors; numpy only
    Instruction(
        "positive",
        Group.DRAW,
        random_numbers=stated_numbers,
        temporary_numbers=sizes_in_one_pattern,
    ),
    # Rearrangements of entries
    Instruction("reshape", Group.VIEW, rule=_ops.reshape, keeps_entries=True),
    Instruction(
        "permute",
        Group.VIEW,
        rule=_ops.permute,
        unchanged=if_axes_in_order,
        keeps_entries=True,
    ),
    Instruction(
        "part",
        Group.VIEW,
        rule=_ops.part,
        unchanged=if_whole_range,
        keeps_entries=True,
    ),
    Instruction("spread", Group.VIEW, rule=_ops.spread, keeps_entries=True),
    Instruction("transposed", Group.VIEW, rule=_ops.transposed, keeps_entries=True),
    Instruction("take", Group.ARITHMETIC, rule=_ops.take, keeps_entries=True),
    Instruction(
        "pad",
        Group.ARITHMETIC,
        rule=_ops.pad,
        unchanged=if_no_padding,
        keeps_entries=True,
    ),
    Instruction(
        "join",
        Group.ARITHMETIC,
        rule=_ops.join,
        unchanged=if_single,
        keeps_entries=True,
    ),
    Instruction("triangle", Group.ARITHMETIC, rule=_ops.triangle),
    # Arithmetic
    Instruction("add", Group.ARITHMETIC, rule=_ops.add, overwrites=always),
    Instruction("multiply", Group.ARITHMETIC, rule=_ops.multiply, overwrites=always),
    Instruction(
        "scale",
        Group.ARITHMETIC,
        rule=_ops.scale,
        overwrites=always,
        unchanged=if_factor_one,
        keeps_entries=True,
    ),
    Instruction("root", Group.ARITHMETIC, rule=_ops.root),
    Instruction("squares", Group.ARITHMETIC, rule=_ops.squares),
    Instruction("rotate", Group.ARITHMETIC, rule=_ops.rotate),
    Instruction("alike", Group.ARITHMETIC, rule=_ops.alike),
    Instruction("identified", Group.ARITHMETIC, rule=_ops.identified),
    Instruction("left_over", Group.ARITHMETIC, rule=_gram_schmidt.fluctuation_residual),
    Instruction("lost", Group.ARITHMETIC, rule=_gram_schmidt.nan_if_lost),
    # Products
    Instruction(
        "product",
        Group.PRODUCT,
        rule=_ops.product,
        terms=terms_of_product,
        unchanged=if_times_identity,
    ),
    Instruction("gram", Group.PRODUCT, rule=_ops.gram, terms=terms_of_product),
    Instruction("outer", Group.OUTER, rule=_ops.outer, terms=terms_of_outer),
    # Functions of the program
    Instruction("apply", Group.FUNCTION, rule=_ops.apply, overwrites=if_entrywise),
    Instruction(
        "kernel",
        Group.FUNCTION,
        rule=_expectation_ops.kernel,
        shifted=True,
        integral=integral_of_kernel,
        needs_numpy=_expectation_ops.kernel_needs_numpy,
    ),
    Instruction(
        "moments",
        Group.FUNCTION,
        rule=_expectation_ops.moments,
        shifted=True,
        integral=integral_of_moments,
        needs_numpy=on_every_backend,
    ),
    Instruction(
        "nodes",
        Group.FUNCTION,
        rule=_expectation_ops.nodes,
        needs_numpy=on_every_backend,
    ),
    # Triangular factors and orthonormal bases
    Instruction(
        "factor",
        Group.FACTORISATION,
        method=LinalgBackend.factor,
        terms=terms_of_product,
    ),
    Instruction(
        "residual",
        Group.FACTORISATION,
        method=LinalgBackend.residual,
        terms=terms_of_product,
        shifted=True,
    ),
    Instruction(
        "reduced",
        Group.FACTORISATION,
        method=LinalgBackend.reduced,
        terms=terms_of_product,
    ),
    Instruction(
        "span", Group.FACTORISATION, method=LinalgBackend.span, terms=terms_of_span
    ),
    Instruction(
        "spanned",
        Group.FACTORISATION,
        method=LinalgBackend.spanned,
        terms=terms_of_spanned,
    ),
    Instruction(
        "basis", Group.PRODUCT, method=LinalgBackend.basis, terms=terms_of_basis
    ),
    Instruction(
        "along", Group.PRODUCT, method=LinalgBackend.along, terms=terms_of_along
    ),
    Instruction(
        "oriented",
        Group.PRODUCT,
        method=LinalgBackend.oriented,
        terms=terms_of_oriented,
    ),
    Instruction(
        "solve", Group.PRODUCT, method=LinalgBackend.solve, terms=terms_of_product
    ),
    Instruction("spheres", Group.ARITHMETIC, method=LinalgBackend.spheres),
)

INSTRUCTIONS: dict[str, Instruction] = {entry.name: entry for entry in _TABLE}


def _names(group: Group) -> frozenset[str]:
    """The names of the instructions of a group."""
    return frozenset(entry.name for entry in _TABLE if entry.group is group)


# Names by group, for loops over the steps of large plans.
DRAWS = _names(Group.DRAW)
VIEWS = _names(Group.VIEW)
FUNCTIONS = _names(Group.FUNCTION)


class UnknownInstructionError(KeyError):
    """A step names an instruction that is not in the table."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        nearest = get_close_matches(self.name, INSTRUCTIONS)
        if nearest:
            suggestion = f"did you mean {' or '.join(map(repr, nearest))}?"
        else:
            suggestion = f"it must be among {', '.join(INSTRUCTIONS)}"
        return f"no instruction of a plan is called {self.name!r}: {suggestion}"


def instruction_named(name: str) -> Instruction:
    """The instruction of this name; the error names the nearest ones."""
    instruction = INSTRUCTIONS.get(name)
    if instruction is None:
        raise UnknownInstructionError(name)
    return instruction
