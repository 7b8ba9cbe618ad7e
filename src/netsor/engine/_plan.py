"""A plan: a list of small steps over arrays of known shapes, without branches, and what it costs.

Lowering makes it (see `lower`) and takes every decision; running it is a loop over the steps (see `_run`). Arrays that
are the same for all replicas are computed while the plan is made, and are constants of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np

from .._html import note, table, title
from ..activations import Function
from ..language._content import content_of
from . import _alike, _expectation, _instructions, _orthogonal, _triangular
from ._loops import NEAR, Loop, loops
from ._prices import CPU

Array = Any
Shape = tuple[int, ...]

# The random streams of a source. χ have streams of their own: their generator takes a number of random bits that
# depends on the width, and normals drawn after them would not be the same at two widths with one seed.
CROSS, OWN, CHI, COORDINATES, ORIENTATION, ORIENTATION_CHI, SAMPLE = range(7)

LARGEST = 2**33  # bytes of one array of one replica above which a plan is refused: 8 GiB

LONG = 32  # entries of a row from which on numpy's inner loop over it is efficient, and replicas need not be innermost

LATE = 2**18  # numbers of a replica from which on a draw that one function alone reads is made as it reads them

PIECE = 2**16  # sizes of a vector in a pattern that are in hand at once: 512 KiB, and with fewer Python takes more

ROUNDING = 1e-15  # off 1: a number times its inverse

DRAWS = ("normals", "chi", "positive")
PRODUCTS = ("product", "gram", "along", "span", "spanned", "basis", "oriented", "solve")
FACTORS = ("factor", "reduced", "residual", "spanned", "span")
WITH_WAYS = ("factor", "residual", "solve", "basis", "spheres", "span", "spanned", "reduced", "oriented")  # see `Ways`
FUNCTIONS = ("apply", "kernel", "moments", "tilted", "tilted_means")


class TooLargeError(ValueError):
    """An array of one replica that is larger than LARGEST bytes."""


@dataclass(frozen=True, eq=False)
class Register:
    """A named array of a plan: its shape in one replica; its value, if that is the same for all replicas."""

    shape: Shape
    value: Array | None = None  # (1, *shape)

    @property
    def varies(self) -> bool:
        """Whether it differs between replicas."""
        return self.value is None

    @property
    def size(self) -> int:
        """Its entries in one replica."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Step:
    """One line of a plan: an instruction, the arrays it reads, the one it makes, and a description for people."""

    kind: str
    out: Register
    args: tuple[Register, ...]
    params: dict[str, Any]
    words: str
    operations: int

    @property
    def numbers(self) -> int:
        """The random numbers that it draws for a replica, on average."""
        if self.kind == "positive":
            return int(self.params["numbers"])
        return self.out.size if self.kind in DRAWS else 0

    @property
    def within(self) -> int:
        """The numbers that it has in hand while it draws, if they are many: sizes in one pattern of signs."""
        if self.kind != "positive":
            return 0
        vectors = self.out.shape[-1]
        sizes = self.params["width"] // 2**vectors
        return (vectors + 1) * sizes if vectors > 1 and sizes > PIECE else 0

    @property
    def seconds(self) -> float:
        """Roughly what it takes for a replica, on one core."""
        if self.numbers:
            return (CPU.chi if self.kind == "chi" else CPU.normal) * self.numbers
        if self.kind in VIEWS:
            return 0.0
        if self.kind in FUNCTIONS:
            return CPU.function * max(self.out.size, *(arg.size for arg in self.args))
        rows = self.out.shape[-2] if len(self.out.shape) > 1 else 1
        more = CPU.factor_entry * math.prod(self.out.shape[:-1]) * rows if self.kind in FACTORS else 0.0
        products = self.operations if self.kind in (*PRODUCTS, *FACTORS) else 0
        return CPU.entry * self.out.size + CPU.product * products + more


VIEWS = {"reshape", "permute", "part", "spread", "transposed"}  # share memory with what they read


RULES: dict[str, Callable[..., Array]] = {
    **{
        name: rule
        for name, rule in vars(_instructions).items()
        if getattr(rule, "__module__", "") == _instructions.__name__ and not name.startswith("_")
    },
    "factor": _triangular.factor,
    "residual": _triangular.residual,
    "solve": _triangular.solve,
    "basis": _triangular.basis,
    "spheres": _triangular.spheres,
    "span": _orthogonal.span,
    "spanned": _orthogonal.spanned,
    "along": _orthogonal.along,
    "left_over": _orthogonal.left_over,
    "lost": _orthogonal.lost,
    "reduced": _orthogonal.reduced,
    "oriented": _orthogonal.oriented,
    "alike": _alike.alike,
    "identified": _alike.identified,
    "kernel": _expectation.kernel,
    "moments": _expectation.moments,
    "tilted": _expectation.tilted,
    "tilted_means": _expectation.tilted_means,
}


@dataclass(eq=False)
class Builder:
    """A plan while it is made: each call adds a step, or computes a constant.

    `shift` is handed to Gaussian expectations (see `_expectation`).
    """

    shift: int = 0
    steps: list[Step] = field(default_factory=list)
    known: dict[Any, Register] = field(default_factory=dict)  # steps and constants, by content, to reuse
    shaped: dict[Register, Register] = field(default_factory=dict)  # reshaped array → the original
    scaled: dict[Register, tuple[Register, float]] = field(default_factory=dict)  # array · number → the two
    padded: dict[Register, tuple[Register, int]] = field(default_factory=dict)  # padded array → it and the zeros before
    shapes: dict[Any, Shape] = field(default_factory=dict)  # of results, by instruction, parameters and shapes
    expects: bool = False  # whether a Gaussian expectation was taken
    nodes: bool = False  # whether values at quasi-random nodes stand in for coordinates
    tried: dict[str, None] = field(default_factory=dict)  # functions whose expectations use values at points alone

    def constant(self, array: Array) -> Register:
        """Numbers that are the same in every replica; equal arrays share one register.

        So all that is computed from equal constants is shared too. The layers of a deep network have equal constants,
        which can be as large as what a layer draws.
        """
        numbers = np.asarray(array)
        key = "constant", content_of(numbers)
        if key not in self.known:
            self.known[key] = Register(numbers.shape, np.array(numbers, dtype=np.float64)[None])
        return self.known[key]

    def draw(self, kind: str, key: tuple[int, ...], shape: Shape, words: str, **params: Any) -> Register:
        """Random numbers of one stream: `normals`, or `chi` with degrees of freedom along the last axis."""
        if math.prod(shape) == 0:
            return self.constant(np.zeros(shape))
        out = self.room(shape, words)
        self.steps.append(Step(kind, out, (), {"key": key, **params}, words, 0))
        return out

    def step(self, kind: str, *args: Register, words: str = "", made: Shape | None = None, **params: Any) -> Register:
        """The result of an instruction. Its shape is `made`, or is found by running the instruction on 0 replicas."""
        if kind == "residual":
            params["shift"] = self.shift
        if kind == "take":
            params["places"] = _in_a_row(params["places"])
        if kind in ("kernel", "moments"):
            params["shift"], self.expects = self.shift, True
            functions = (params[name] for name in ("f", "g") if name in params)
            self.tried |= {named(f): None for f in functions if f.smoothed is None}
        if (same := _unchanged(kind, args, params)) is not None:
            return same
        if kind == "product" and args[0].shape[-1] == 1:  # a column times a row
            kind = "multiply"
        if kind == "scale" and args[0] in self.scaled:  # one pass over the array, or none
            inner, by = self.scaled[args[0]]
            by *= params["by"]
            if abs(by - 1) <= ROUNDING:
                return inner
            args, params = (inner,), {"by": by}
        if kind == "add" and args[0].shape == args[1].shape and any(arg in self.padded for arg in args):
            whole, wide = args if args[1] in self.padded else args[::-1]
            part, start = self.padded[wide]  # the zeros need not be made
            kind, args, params = "add_at", (whole, part), {"start": start}
        key = self.key(kind, args, params)
        if key in self.known:
            return self.known[key]
        if not any(arg.varies for arg in args):
            value = _of_constants(kind, [np.asarray(arg.value) for arg in args], params)
            out = Register(value.shape[1:], value)
        else:
            if made is None:
                made = self._shape(kind, args, params, key)
            out = self.room(made, words)
            self.steps.append(Step(kind, out, args, params, words, out.size * _terms(kind, args)))
            if kind == "scale":
                self.scaled[out] = args[0], params["by"]
            if kind == "pad":
                self.padded[out] = args[0], params["before"]
        if key is not None:
            self.known[key] = out
        return out

    def fold(self, kind: str, arrays: Iterable[Register]) -> Register:
        """The sum or the product of arrays, `add` or `multiply`, each as soon as it is made."""
        return reduce(partial(self.step, kind), arrays)

    def _shape(self, kind: str, args: tuple[Register, ...], params: dict[str, Any], key: Any) -> Shape:
        """What an instruction makes, found by running it on 0 replicas: once for arguments of these shapes."""
        seen = key and (kind, tuple(arg.shape for arg in args), key[-1])
        if seen not in self.shapes:
            empty = [np.empty((0, *arg.shape)) if arg.varies else arg.value for arg in args]
            made: Shape = RULES[kind](np, *empty, **params).shape[1:]
            if seen is None:
                return made
            self.shapes[seen] = made
        return self.shapes[seen]

    def room(self, shape: Shape, words: str = "") -> Register:
        """A register for an array that varies; refused if it is larger than LARGEST bytes for one replica."""
        if 8 * math.prod(shape) > LARGEST:
            what = f" ({words})" if words else ""
            raise TooLargeError(
                f"an array of shape {shape}{what} needs {8 * math.prod(shape):.1e} bytes for one replica"
            )
        return Register(shape)

    def reshape(self, a: Register, *shape: int) -> Register:
        """The entries in another shape. A reshape of a reshape is made from the first array, which saves a step."""
        whole = self.shaped.get(a, a)
        if whole.shape == shape:
            return whole
        made = self.step("reshape", whole, made=shape, shape=shape)
        self.shaped[made] = whole
        return made

    def fitted(self, a: Register, width: int) -> Register:
        """The last axis cut, or padded with zeros, to a width."""
        have = a.shape[-1]
        if have == width:
            return a
        return (
            self.step("pad", a, before=0, after=width - have)
            if have < width
            else self.step("part", a, start=0, stop=width)
        )

    def taken(self, a: Register, places: Any, axis: int) -> Register:
        """Entries along an axis; the array itself if those are all of them in order."""
        if len(places) == a.shape[axis] and (places == np.arange(len(places))).all():
            return a
        return self.step("take", a, places=places, axis=axis)

    @staticmethod
    def key(kind: str, args: tuple[Hashable, ...], params: dict[str, Any]) -> Any:
        """A key that is equal for two steps that compute the same; None if a parameter cannot be hashed."""
        key = kind, args, tuple((name, content(value)) for name, value in params.items())
        try:
            hash(key)
        except TypeError:
            return None
        return key


@dataclass(eq=False)
class Plan:
    """What will be drawn and computed for each replica of a program at given widths; `print(plan)` shows it.

    `Program.plan` makes it. Beside what is below it has `bytes`, those of a replica.

    Parameters
    ----------
    title : str
        Of the program, with its widths.
    steps : list of Step
        In their order.
    mean : Register
        (entries,): the conditional mean of one coordinate of each output, given all that is drawn.
    columns : Register
        (entries, ·): its coefficients of independent N(0, 1) variables that are never drawn.
    notes : tuple of str
        What is to be known of the law.
    expects : bool
        Whether Gaussian expectations are among its steps or constants.
    nodes : bool
        Whether some of them are means over quasi-random nodes.
    tried : tuple of str
        Functions whose expectations use values at points alone.
    place : str
        Where it is meant to run: which of two exact ways costs less depends on it.

    Examples
    --------
    >>> plan = ns.paper.layer().plan(n=256)
    >>> plan.random_numbers, len(plan.steps) > 0
    (23, True)
    """

    title: str
    steps: list[Step]
    mean: Register  # (entries,): conditional mean of one coordinate of each output, given all that is drawn
    columns: Register  # (entries, ·): its coefficients of independent N(0, 1) variables that are never drawn
    notes: tuple[str, ...] = ()
    expects: bool = False  # whether Gaussian expectations are among its steps or constants
    nodes: bool = False  # whether some of them are means over quasi-random nodes
    tried: tuple[str, ...] = ()  # functions whose expectations use values at points alone
    place: str = CPU.place

    def __post_init__(self) -> None:
        self.steps = needed(self.steps, (self.mean, self.columns))
        self.overwrites = _overwritten(self.steps, (self.mean, self.columns))
        self.last: list[list[int]] = [[] for _ in self.steps]  # for each step, those whose results no later step reads
        self.late = _read_once(self.steps)
        made = {step.out: k for k, step in enumerate(self.steps)}
        seen = {made[r] for r in (self.mean, self.columns) if r in made}
        sizes = [step.out.size for step in self.steps]
        more = [0 if step in self.late else size for step, size in zip(self.steps, sizes, strict=True)]
        live, beside = sum(sizes[k] for k in seen), sum(more[k] for k in seen)
        self.bytes = self.held = 0  # of a replica, and of each more computed beside it
        for k in reversed(range(len(self.steps))):
            for arg in self.steps[k].args:
                source = made.get(arg)
                if source is not None and source not in seen:
                    seen.add(source)
                    self.last[k].append(source)
                    live, beside = live + sizes[source], beside + more[source]
            self.bytes = max(self.bytes, 8 * (live + self.steps[k].within))
            self.held = max(self.held, 8 * beside)
            live, beside = live - sizes[k], beside - more[k]

    @cached_property
    def loops(self) -> list[Loop]:
        """Where equal steps repeat: the first of them, how many a block has, and how many times it comes.

        Examples
        --------
        >>> x = ns.gaussian(64, 8)
        >>> for _ in range(12):
        ...     x = ns.rms_norm(x + ns.tanh(ns.weight(64, 64) @ x))
        ...
        >>> [loop.times for loop in ns.Program(x).plan().loops]
        [11]
        """
        made = {step.out: k for k, step in enumerate(self.steps)}
        return loops([kind_of(step, k, made) for k, step in enumerate(self.steps)])

    @property
    def random_numbers(self) -> int:
        """How many random numbers are drawn for each replica, on average.

        Examples
        --------
        >>> ns.paper.layer().plan(n=256).random_numbers, ns.paper.layer().plan(n=10**6).random_numbers
        (23, 23)
        """
        return sum(step.numbers for step in self.steps)

    @property
    def long_numbers(self) -> int:
        """How many of them are drawn in rows of LONG or more: coordinates, rather than Gram matrices.

        Examples
        --------
        >>> ns.paper.layer().plan(n=256).long_numbers
        0
        """
        return sum(step.numbers for step in self.steps if step.out.shape[-1:] >= (LONG,))

    @property
    def operations(self) -> int:
        """Roughly how many entries and products are computed for each replica.

        Examples
        --------
        >>> ns.paper.layer().plan(n=256).operations > 0
        True
        """
        return sum(step.operations for step in self.steps)

    @property
    def constant(self) -> bool:
        """Whether the law does not depend on any random number: then one replica is the law.

        Examples
        --------
        >>> n = ns.Width("n")
        >>> ns.Program(ns.weight(n, n) @ ns.relu(ns.gaussian(n))).plan(n=ns.inf).constant
        True
        """
        return not (self.mean.varies or self.columns.varies)

    def seconds(self, draws: int) -> float:
        """Roughly the seconds that so many draws take on one core.

        Parameters
        ----------
        draws : int
            How many replicas.

        Returns
        -------
        float
            An estimate for a processor of today.

        Examples
        --------
        >>> ns.paper.layer().plan(n=256).seconds(50_000) > 0
        True
        """
        return draws * self._each if not self.constant else 0.0

    @cached_property
    def _each(self) -> float:
        """Roughly the seconds of a replica."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        lines = [self.title]
        rows = _rows(self.steps, self.loops)
        width = max((len(words) for words, *_ in rows), default=0)
        for words, shape, numbers in rows:
            drawn = f"{numbers:>12,}" if numbers else " " * 12
            lines.append(f"  {words:{width}}  {drawn}  {shape}")
        return "\n".join([*lines, *(f"  {line}" for line in self._summary())])

    def _summary(self) -> list[str]:
        """What it costs, in lines."""
        total = f"{self.random_numbers:,} random numbers"
        known = "the law does not depend on random numbers: it is known without a draw"
        taken = known if self.constant else f"50,000 draws take about {in_time(self.seconds(50_000))} on one core"
        notes = [f"note: {note}" for note in self.notes]
        if self.place != CPU.place:
            notes.insert(0, f"made for {self.place}")
        return [f"{total}, {self.operations:,} operations and {self.bytes:,} bytes a replica", taken, *notes]

    def _repr_html_(self) -> str:
        rows = [
            (words, f"{numbers:,}" if numbers else "", shape) for words, shape, numbers in _rows(self.steps, self.loops)
        ]
        steps = table(rows, ("step", "random numbers", "shape"), code=True)
        return title(self.title) + steps + "".join(map(note, self._summary()))

    def __repr__(self) -> str:
        return f"<Plan: {len(self.steps)} steps, {self.random_numbers} random numbers a replica>"


def kind_of(step: Step, place: int, made: Mapping[Register, int]) -> Any:
    """Equal for steps that do the same, with the same steps before them: all but streams and numbers of constants."""
    back = [place - made[arg] if arg in made else 0 for arg in step.args]
    args = tuple(
        (distance if distance <= NEAR else -1, arg.shape) for distance, arg in zip(back, step.args, strict=True)
    )
    params = {name: value for name, value in step.params.items() if name not in ("key", "by")}
    return Builder.key(step.kind, args, params) or id(step), step.out.shape


def content(value: Any) -> Any:
    """What two parameters of steps are compared by: arrays by their numbers, functions by what they compute."""
    match value:
        case np.ndarray():
            return content_of(value)
        case Function():
            return content(value.f), value.breaks, content(value.smoothed), value.parity
        case partial():
            return value.func, value.args, tuple((name, content(given)) for name, given in value.keywords.items())
    return value


def _in_a_row(places: Any) -> Any:
    """Places that follow each other, as a range: they need not be copied."""
    if np.ndim(places) != 1 or not len(places) or isinstance(places, range):
        return places
    ends = range(int(places[0]), int(places[-1]) + 1)
    return ends if len(ends) == len(places) and (places == np.arange(ends.start, ends.stop)).all() else places


def _unchanged(kind: str, args: tuple[Register, ...], params: dict[str, Any]) -> Register | None:
    """The argument that an instruction would give back as it is."""
    match kind:
        case "pad" if not params["before"] and not params["after"]:
            return args[0]
        case "part" if (params["start"], params["stop"]) == (0, args[0].shape[-1]):
            return args[0]
        case "join" if len(args) == 1:
            return args[0]
        case "permute" if list(params["axes"]) == sorted(params["axes"]):
            return args[0]
        case "product" if _identity(args[0]) and args[0].shape[:-2] == args[1].shape[:-2]:
            return args[1]
    return None


def _terms(kind: str, args: tuple[Register, ...]) -> int:
    """Of how many terms each entry of a result is the sum."""
    match kind:
        case "along" if len(args) > 2:  # the factor of the products is given
            return 1
        case "product" | "gram" | "along" | "factor" | "reduced" | "residual" | "solve":
            return args[0].shape[-1]
        case "basis":
            return 2 * args[0].shape[-2]
        case "oriented":
            return args[0].shape[-1] + args[1].shape[-1]
        case "spanned":
            return 2 * args[1].shape[-2]
        case "span":
            return 4 * sum(arg.shape[-2] for arg in args)
        case "outer":  # each entry of the matrix is a sum over its uses, and is used for every vector
            return args[1].shape[-1] * (args[1].shape[-2] + args[2].shape[-2]) // args[2].shape[-2]
    return 1


def _identity(a: Register) -> bool:
    """Whether it is known to be the identity matrix: what takes orthonormal vectors to themselves."""
    rows, columns = a.shape[-2:]
    return a.value is not None and rows == columns and bool((a.value == np.eye(rows)).all())


def _of_constants(kind: str, values: list[Any], params: dict[str, Any]) -> Any:
    """An instruction on constants: products along the directions that the first factor has.

    Kernels of thousands of similar inputs have a few dozen directions, and zeros for all others.
    """
    if kind in ("product", "gram") and values[0].size:
        some, axis = _triangular.directions(values[0]), -1 if kind == "gram" else -2
        if len(some) < values[0].shape[-1] and values[1].shape[axis] == values[0].shape[-1]:
            values = [values[0][..., some], np.take(values[1], some, axis)]
    return RULES[kind](np, *values, **params)


def needed(steps: list[Step], results: tuple[Register, ...]) -> list[Step]:
    """The steps that the results depend on."""
    wanted, kept = set(results), []
    for step in reversed(steps):
        if step.out in wanted:
            kept.append(step)
            wanted.update(step.args)
    return kept[::-1]


def _read_once(steps: list[Step]) -> set[Step]:
    """Large draws that one function alone reads: the noise of all logits, say."""
    readers = Counter(arg for step in steps for arg in step.args)
    given = {arg for step in steps if step.kind == "apply" for arg in step.args if readers[arg] == 1}
    return {step for step in steps if step.numbers >= LATE and step.out in given}


def _overwritten(steps: list[Step], results: tuple[Register, ...]) -> list[int | None]:
    """For each entrywise step: the index of an argument that no later step reads and the result may overwrite."""
    root: dict[Register, Register] = {}
    last: dict[Register, int] = {}
    for k, step in enumerate(steps):
        root[step.out] = root.get(step.args[0], step.args[0]) if step.kind in VIEWS or step.kind == "take" else step.out
        for arg in step.args:
            last[root.get(arg, arg)] = k
    for result in results:
        last[root.get(result, result)] = len(steps)
    found: list[int | None] = []
    for k, step in enumerate(steps):
        places = [
            i
            for i, arg in enumerate(step.args)
            if (step.kind in ("add", "add_at", "multiply", "scale") or step.params.get("coordinates"))
            and arg.varies
            and arg.shape == step.out.shape
            and last[root.get(arg, arg)] == k
        ]
        found.append(places[0] if places else None)
    return found


def _rows(steps: Sequence[Step], found: Sequence[Loop] = ()) -> list[tuple[str, str, int]]:
    """What is printed of each step that has a description: that, the shape of its result, its random numbers.

    Of a loop, its first block.
    """
    rows: list[tuple[str, str, int]] = []
    done = 0
    for loop in found:
        block = steps[loop.start : loop.start + loop.period]
        rows += _rows(steps[done : loop.start])
        rows.append((f"{loop.times} times, with new random numbers each time:", "", 0))
        rows += [(f"  {words}", shape, numbers) for words, shape, numbers in _rows(block)]
        done = loop.stop
        if done < len(steps):
            rows.append(("then:", "", 0))
    for step in steps[done:]:
        if step.words:
            shape = " × ".join(map(str, step.out.shape)) or "one number"
            rows.append((f"{step.kind:8} {step.words}", shape, step.numbers))
    return rows


def in_time(seconds: float) -> str:
    """So many seconds as text."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds > 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s"


def named(f: Function) -> str:
    """The name of a function with its parameters, as plans print it."""
    return f.name if not f.parameters else f"{f.name}({', '.join(f'{p:g}' for p in f.parameters)})"
