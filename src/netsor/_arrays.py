"""What functions ask of array libraries: which one an array is of, and the eigenvalues of many matrices."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Array = Any

STREAMS = 4  # matrices at a time whose eigenvalues a GPU finds: eight are no faster
MANY = 256  # rows of a matrix from which threads pay


def array_namespace(*arrays: Array) -> Any:
    """The array library of arrays, with the functions of the array API; numpy has them itself.

    The first time that it is asked, `array_api_compat` loads numpy's tests and its compiler of Fortran.
    """
    if all(isinstance(array, np.ndarray | np.generic) for array in arrays):
        return np
    from array_api_compat import array_namespace

    return array_namespace(*arrays)


def eigenvalues(a: Array) -> Array:
    """Those of symmetric matrices (…, s, s)."""
    return _of_many(a, array_namespace(a).linalg.eigvalsh)


def eigenvectors(a: Array) -> tuple[Array, Array]:
    """The eigenvalues of symmetric matrices, and the vectors as columns."""
    values, vectors = _of_many(a, array_namespace(a).linalg.eigh)
    return values, vectors


def _of_many(a: Array, f: Callable[[Array], Any]) -> Any:
    """f of matrices. On a GPU one matrix does not fill it: several at a time, each on a stream of its own."""
    if isinstance(a, np.ndarray) or a.ndim < 3 or a.shape[-1] < MANY or getattr(a, "is_cuda", None) is not True:
        return f(a)
    import torch

    f(torch.ones((1, 1), device=a.device))  # PyTorch loads its solver, which one thread alone can do

    def found(some: Array, stream: Any) -> Any:
        with torch.no_grad(), torch.cuda.stream(stream):
            return f(some)  # waits for its end

    parts = a.reshape(-1, *a.shape[-2:]).chunk(STREAMS)
    torch.cuda.current_stream(a.device).synchronize()
    with ThreadPoolExecutor(STREAMS) as pool:
        made = list(pool.map(found, parts, [torch.cuda.Stream(a.device) for _ in parts]))
    if isinstance(made[0], torch.Tensor):
        return torch.cat(made).reshape(a.shape[:-1])
    values, vectors = (torch.cat(each) for each in zip(*made, strict=True))
    return values.reshape(a.shape[:-1]), vectors.reshape(a.shape)
