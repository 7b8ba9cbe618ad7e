"""The base class for array libraries that run a plan step by step.

A new backend is one class here or in your own code: it says how its library makes
normals, how arrays get there and back, and which functions the library has.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..._array_api import Array, Floats
from ..._validate import Shape
from ...language.theorem._check_function import is_builtin
from ..linalg._gram_schmidt import NUMPY, LinalgBackend
from ..plan import _ops
from ..plan._instructions import FUNCTIONS
from ..plan._ir import Register, Step
from ..plan._plan import Plan, compute, run
from ..run._rng_keys import key_words
from ._base import MIN_BLOCK_REPLICAS, Device, NoDeviceError
from ._chi import Chi, chi

PROBE_REPLICAS = 4  # replicas of random numbers to try functions on
MAX_PROBED_FUNCTIONS = 4096  # functions whose result is cached

# by class of backend and function: the function, and whether the library computes the
# same as numpy
_probed: dict[tuple[type[Device], int], tuple[Any, bool]] = {}


class Stream(NamedTuple):
    """Where random numbers come from: the key of a draw and the replicas of a block."""

    seed: int
    key: tuple[int, ...]
    start: int  # the first replica of the block
    replicas: int

    def words(self, count: int, dtype: type = np.uint64) -> list[int]:
        """Integers for the seed of a generator, different for every stream."""
        words = key_words(self.seed, *self.key, self.start, count=count, dtype=dtype)
        return [int(word) for word in words]


class StepwiseBackend(Device):
    """A backend that runs a plan step by step, in an array library of your choice.

    A subclass must define `library`, `array`, `numpy` and `normals`. Everything else
    has a default that you may override: χ are made from normals, functions that the
    library cannot compute run in numpy on the host, and one CPU is the only device.
    Instances are arguments of every method with a `backend`.

    The random numbers of a block of replicas depend only on the seed, the key of the
    draw and the first replica of the block.

    Examples
    --------
    >>> import netsor as ns
    >>> class Philox(StepwiseBackend):
    ...     library = NUMPY
    ...
    ...     def array(self, numbers, precision):
    ...         return np.asarray(numbers, dtype=precision)
    ...
    ...     def numpy(self, array):
    ...         return np.asarray(array, dtype=np.float64)
    ...
    ...     def normals(self, stream, shape, precision):
    ...         generator = np.random.Generator(np.random.Philox(key=stream.words(2)))
    ...         numbers = generator.standard_normal((stream.replicas, *shape))
    ...         return numbers.astype(precision)
    >>> x = ns.weight(64, 64) @ ns.gaussian(64)
    >>> law = ns.Program(ns.weight(64, 64) @ x).law(draws=100, backend=Philox())
    >>> law.method
    'exact engine at fixed widths (philox on cpu in float64)'
    """

    @property
    @abstractmethod
    def library(self) -> LinalgBackend:
        """The functions of the library, on the device of this backend.

        `LinalgBackend(xp)` suits every library `xp` with the functions of the array
        API whose arrays are writeable. A subclass of `Library` that also has the
        library's `cholesky` and `triangular` makes large factorisations faster.
        """

    @abstractmethod
    def array(self, numbers: Array, precision: str) -> Array:
        """A numpy array as one of the library, on the device."""

    @abstractmethod
    def numpy(self, array: Array) -> Floats:
        """An array of the library as a numpy array in double precision."""

    @abstractmethod
    def normals(self, stream: Stream, shape: Shape, precision: str) -> Array:
        """Independent N(0, 1) numbers (replicas, *shape), the same for equal
        streams.
        """

    def __post_init__(self) -> None:
        """Check that the device exists: by default there is only a CPU."""
        if self.device != "cpu":
            raise NoDeviceError("device", self.device, f"'cpu' for {self.name}")

    def chi(
        self, stream: Stream, shape: Shape, freedom: Sequence[int], precision: str
    ) -> Array:
        """Independent χ (replicas, *shape), with these degrees of freedom along the
        last axis.

        By default they are functions of normals.
        """
        recipe = _chi_tables(self, tuple(freedom), precision)
        normals = self.normals(stream, (*shape[:-1], recipe.normals), precision)
        return recipe.of(self.library.xp, normals)

    def native(self, step: Step, inputs: Sequence[Array]) -> Array:
        """A function of the program, applied to arrays of the library.

        If it raises an exception, numpy computes the step on the host.
        """
        return compute(self.library, step.kind, inputs, step.params)

    def compute(
        self, step: Step, inputs: Sequence[Array], overwritten: int | None
    ) -> Array:
        """The result of a step that draws no random numbers.

        Functions that the library cannot compute run in numpy, on the host. Other
        libraries do not use `overwritten`, the input that numpy may write into.
        """
        if step.kind not in FUNCTIONS:
            return compute(self.library, step.kind, inputs, step.params)
        result = None
        if self._can_be_native(step):
            result = self._native_or_none(step, inputs)
        if result is None:
            result = self._on_host(step, inputs)
        if isinstance(result, type(inputs[0])):
            return result
        return self.array(result, self.precision)

    def _can_be_native(self, step: Step) -> bool:
        """Whether to try a function on arrays of the library."""
        if step.needs_numpy:
            return self.library.is_numpy
        return step.kind != "apply" or self._agrees_with_numpy(step)

    def _on_host(self, step: Step, inputs: Sequence[Array]) -> Array:
        """The result of a step as a numpy array, from inputs copied to the host."""
        # an input that occurs twice stays one array: kernels of u and u are symmetric
        copies = {id(array): self.numpy(array) for array in inputs}
        arrays = [copies[id(array)] for array in inputs]
        return compute(NUMPY, step.kind, inputs=arrays, params=step.params)

    def evaluate(
        self,
        plan: Plan,
        draw: Callable[[Step], Array],
        constants: dict[Register, Array],
    ) -> tuple[Array, Array]:
        """Mean and coefficients of the outputs for a block of replicas, by `run`.

        `draw` gives the random numbers of a step. `constants` is filled with the
        constants of the plan on the device, so that a second call need not copy them.
        """

        def constant(register: Register) -> Array:
            """The value of a constant register on the device, copied there once."""
            if register not in constants:
                constants[register] = self.array(register.value, self.precision)
            return constants[register]

        return run(plan, draw, constant, self.compute)

    def chunk(self, plan: Plan, draws: int) -> int:
        """The replicas of the largest block of the plan that fits on this device."""
        least = 1 if self.kind == "cpu" else MIN_BLOCK_REPLICAS
        return self.replicas_that_fit(plan, self.largest_block(plan, least))

    def sample(
        self, plan: Plan, seed: int, part: range, size: int, tick: Callable[[int], None]
    ) -> Iterator[tuple[Array, Array]]:
        """One block, cut to the part; the first chunk in blocks that double.

        Which replicas share a block depends only on the plan and the device, not on the
        number of draws. So a block always draws the numbers of all of its replicas, and
        computes only the first `count`, those that are in the part.
        """
        start = part.start
        while start < part.stop:
            replicas = min(size, max(self.first_block(plan), start))
            count = min(replicas, part.stop - start)
            draw = partial(
                self._drawn, seed=seed, start=start, replicas=replicas, count=count
            )
            mean, columns = self.evaluate(plan, draw, constants={})
            yield mean[:count, ...], columns[:count, ...]
            tick(count)
            start += replicas

    def summary_of_draws(
        self, plan: Plan, summary: Callable[[Any, Array, Array], Array]
    ) -> Callable[[Mapping[Register, Any]], Any]:
        """Evaluate step by step; constants are copied to the device only once."""
        constants: dict[Register, Array] = {}

        def of_draws(numbers: Mapping[Register, Any]) -> Any:
            """The summary for random numbers (replicas, …) by their register."""

            def draw(step: Step) -> Array:
                """The given numbers of a step, on the device."""
                return self.array(numbers[step.out], self.precision)

            mean, columns = self.evaluate(plan, draw, constants)
            return self.numpy(summary(self.library, mean, columns))

        return of_draws

    def cov(self, columns: Array) -> Array:
        """The covariances, computed on the device."""
        return _ops.gram(self.library.xp, columns, columns)

    def _drawn(
        self, step: Step, seed: int, start: int, replicas: int, count: int
    ) -> Array:
        """The random numbers (count, *shape) of a step for the start of a block.

        The block has `replicas` replicas, from number `start` on; the generator makes
        the numbers of all of them.
        """
        stream = Stream(
            seed=seed, key=step.params["key"], start=start, replicas=replicas
        )
        precision = "float32" if self.rounded else self.precision
        shape = step.out.shape
        if step.kind == "normals":
            numbers = self.normals(stream, shape, precision)
        else:
            numbers = self.chi(
                stream, shape, freedom=step.params["freedom"], precision=precision
            )
        xp = self.library.xp
        dtype = getattr(xp, self.precision)
        return xp.astype(numbers[:count, ...], dtype, copy=False)

    def _native_or_none(self, step: Step, inputs: Sequence[Array]) -> Array | None:
        """The function applied to arrays of the library; None if it raises an error."""
        with suppress(Exception):
            return self.native(step, inputs)
        return None

    def _agrees_with_numpy(self, step: Step) -> bool:
        """Whether a function gives numpy's result with arrays of the library.

        `p.std(axis=-1)`, for example, does not in PyTorch. Each function is tried once,
        on a few random numbers.
        """
        f = step.params["f"]
        if is_builtin(f):
            return True
        key = type(self), id(f)
        if key not in _probed:
            if len(_probed) >= MAX_PROBED_FUNCTIONS:
                _probed.clear()
            # with the function, so that no other gets its id
            _probed[key] = f, self._probe(step)
        return _probed[key][1]

    def _probe(self, step: Step) -> bool:
        """Whether to use a function on arrays of the library, by random numbers.

        Yes if it gives the same numbers as in numpy, in the same shape. Also if only
        numpy fails, and the library gives numbers: then it is the only choice.
        """
        rng = np.random.default_rng(0)
        # an argument that occurs twice has two arrays here: the answer holds for all
        # steps with this function
        in_numpy = [rng.standard_normal((PROBE_REPLICAS, *x.shape)) for x in step.args]
        in_library = [self.array(numbers, "float64") for numbers in in_numpy]
        result = self._native_or_none(step, in_library)
        if result is None:
            return False
        if isinstance(result, type(in_library[0])):
            result = self.numpy(result)
        try:
            with np.errstate(all="ignore"):
                expected = compute(
                    NUMPY, kind="apply", inputs=in_numpy, params=step.params
                )
        except Exception:  # of any kind: the function is the user's
            return bool(np.isfinite(result).all())
        if np.shape(result) != np.shape(expected):
            return False
        return bool(np.allclose(result, expected, rtol=1e-6, atol=1e-9, equal_nan=True))


@lru_cache(maxsize=1024)
def _chi_tables(
    backend: StepwiseBackend, freedom: tuple[int, ...], precision: str
) -> Chi:
    """The recipe for a row of χ (see `_chi`), with its tables on the device."""
    recipe = chi(freedom, precision)
    return Chi(
        polynomial=backend.array(recipe.polynomial, precision),
        scale=backend.array(recipe.scale, precision),
        squares=backend.array(recipe.squares, precision),
    )
