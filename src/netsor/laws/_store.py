"""Laws to and from disk: one npz file of plain arrays and a line of JSON, without pickle.

Each kind of law says what arrays it is made of, and makes itself from them again.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .._files import write
from ._law_error import LawError
from ._origin import Origin

FORMAT = 1
Kind = TypeVar("Kind", bound=type)
KINDS: dict[str, Any] = {}


def storable(kind: Kind) -> Kind:
    """A class of laws that can be stored: it has `_arrays()`, and `_from_arrays(arrays, origin)` to come back."""
    KINDS[kind.__name__] = kind
    return kind


def save(law: Any, path: str | Path) -> None:
    """Write a law to an npz file."""
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in law._arrays().items() if value is not None}
    about = {"format": FORMAT, "kind": type(law).__name__, "origin": asdict(law.origin)}
    file = io.BytesIO()
    np.savez(file, about=np.array(json.dumps(about)), **arrays)
    write(Path(path), file.getvalue())


def load(path: str | Path) -> Any:
    """Read a law from a file that `law.save(path)` wrote.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.

    Returns
    -------
    Law or Joint
        The law that was saved, with its origin.

    Raises
    ------
    LawError
        If the file holds no law.

    Examples
    --------
    >>> import tempfile
    >>> law = ns.paper.layer().law(n=ns.inf)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     law.save(f"{folder}/limit.npz")
    ...     ns.load(f"{folder}/limit.npz")
    ...
    <HeadSum: variance 0.391971, excess kurtosis 0.1217; convolution over heads at infinite width; proved>
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
        kind, made = KINDS[about["kind"]], about["format"]
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, AttributeError):
        raise LawError("load", f"{str(path)!r} is no law: it must be a file that law.save(path) wrote") from None
    if made != FORMAT:
        raise LawError(
            "load", f"{str(path)!r} has format {made}; this version reads {FORMAT}: write it again with law.save"
        )
    origin = Origin(**{**about["origin"], "notes": tuple(about["origin"]["notes"])})
    return kind._from_arrays(arrays, origin)
