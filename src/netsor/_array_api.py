"""Array libraries: the namespace of an array, eigenvalues of many matrices, and the
threads of BLAS.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

Array = Any  # of any library
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
C = TypeVar("C", bound=type)

STREAMS = 4  # matrices at a time whose eigenvalues a GPU finds: eight are no faster
MIN_THREADED_ROWS = 256  # rows of a matrix from which threads pay


def array_namespace(*arrays: Array) -> Any:
    """The array library of these arrays, with the functions of the array API."""
    # numpy has them itself, and `array_api_compat` would load numpy's tests and its
    # Fortran compiler
    if all(isinstance(array, np.ndarray | np.generic) for array in arrays):
        return np
    from array_api_compat import array_namespace

    return array_namespace(*arrays)


def eigenvalues(a: Array) -> Array:
    """The eigenvalues of symmetric matrices (…, s, s)."""
    xp = array_namespace(a)
    return xp.astype(_of_many(a, xp.linalg.eigvalsh), a.dtype, copy=False)


def eigenvectors(a: Array) -> tuple[Array, Array]:
    """The eigenvalues of symmetric matrices, and the vectors as columns."""
    xp = array_namespace(a)
    values, vectors = _of_many(a, xp.linalg.eigh)
    values = xp.astype(values, a.dtype, copy=False)
    vectors = xp.astype(vectors, a.dtype, copy=False)
    return values, vectors


def symmetric_root(gram: Array) -> Array:
    """The symmetric square root of positive semidefinite arrays (…, k, k).

    Eigenvalues at the level of rounding count as 0.
    """
    xp = array_namespace(gram)
    values, vectors = eigenvectors(gram)
    largest = xp.max(xp.abs(values), axis=-1, keepdims=True)
    rounding = 4e-16 * gram.shape[-1] * largest
    roots = xp.sqrt(xp.where(values > rounding, values, 0.0))
    return (vectors * roots[..., None, :]) @ xp.matrix_transpose(vectors)


def _of_many(a: Array, f: Callable[[Array], Any]) -> Any:
    """f of matrices; on a GPU in double precision, and several at a time in streams
    because one does not fill a GPU.

    PyTorch finds eigenvalues of up to 512 rows by a Jacobi iteration that stops early
    in single precision: variances were 6e-5 too large, and it took twice the time.
    """
    if isinstance(a, np.ndarray) or getattr(a, "is_cuda", None) is not True:
        return f(a)
    a = a.double()
    if a.ndim < 3 or a.shape[-1] < MIN_THREADED_ROWS:
        return f(a)
    import torch

    # PyTorch loads its solver, which only one thread can do
    f(torch.ones((1, 1), device=a.device))

    def on_stream(matrices: Array, stream: Any) -> Any:
        """f of some matrices, on one stream of the device."""
        with torch.no_grad(), torch.cuda.stream(stream):
            return f(matrices)  # waits for its end

    chunks = a.reshape(-1, *a.shape[-2:]).chunk(STREAMS)
    torch.cuda.current_stream(a.device).synchronize()
    streams = [torch.cuda.Stream(a.device) for _ in chunks]
    with ThreadPoolExecutor(STREAMS) as pool:
        results = list(pool.map(on_stream, chunks, streams))
    if isinstance(results[0], torch.Tensor):
        return torch.cat(results).reshape(a.shape[:-1])
    values = torch.cat([values for values, _ in results])
    vectors = torch.cat([vectors for _, vectors in results])
    return values.reshape(a.shape[:-1]), vectors.reshape(a.shape)


class _Limits:
    """How many blocks of code need one thread, and the libraries that were limited,
    with the threads they had.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self.before: list[tuple[Any, int]] = []


class _LimitsOfThread(_Limits, threading.local):
    """The limits of the current thread: an OpenBLAS with OpenMP has a number of threads
    for each caller.
    """


_lock = threading.Lock()
_process_limits, _thread_limits = _Limits(), _LimitsOfThread()


@lru_cache(maxsize=1)
def _blas_libraries(modules: int) -> list[Any]:
    """The libraries in memory, searched again (1 to 3 ms) after Python has loaded more
    modules: SciPy has its own.
    """
    libraries = ThreadpoolController().lib_controllers
    return [library for library in libraries if library.user_api == "blas"]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit every BLAS library to one thread while any block of code, in any thread of
    the process, needs it.

    Workers run in parallel already, and threads of BLAS would compete with them for the
    cores. And the last digits of a matrix product depend on the number of threads.
    Blocks are counted because the limit holds for the whole process: the last block
    that ends restores the numbers of threads that the first one found.
    """
    with _lock:
        for limits in (_process_limits, _thread_limits):
            limits.blocks += 1
        for library in _blas_libraries(len(sys.modules)):
            threads = library.get_num_threads()
            if threads is not None and threads > 1:
                _limits_of(library).before.append((library, threads))
                _set_threads(library, 1)
    try:
        yield
    finally:
        with _lock:
            for limits in (_process_limits, _thread_limits):
                limits.blocks -= 1
                while limits.before and not limits.blocks:
                    _set_threads(*limits.before.pop())


def _limits_of(library: Any) -> _Limits:
    """The limits that hold a library: those of the thread if it uses OpenMP."""
    if getattr(library, "threading_layer", None) == "openmp":
        return _thread_limits
    return _process_limits


def _set_threads(library: Any, threads: int) -> None:
    """Set the number from any thread: until it is cleared, threadpoolctl 3.8 obeys only
    the first thread.
    """
    clear = getattr(library, "clear_controlling_thread", lambda force: None)
    clear(force=True)
    library.set_num_threads(threads)
    clear(force=True)


def single_threaded(cls: C) -> C:
    """A class whose public methods and properties compute on one BLAS thread.

    They are those that the class itself defines: a base class has its own decorator.
    Names that begin with an underscore are left out. Public methods call these, and are
    limited already.
    """
    for name, value in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, FunctionType):
            setattr(cls, name, one_blas_thread()(value))
        elif isinstance(value, property) and value.fget is not None:
            limited = one_blas_thread()(value.fget)
            setattr(cls, name, property(limited, value.fset, value.fdel, value.__doc__))
    return cls
