"""Folders that torch.distributed.checkpoint wrote, read without executing anything.

The file `.metadata` is a pickle, whose classes are those of PyTorch's metadata and no
others here. It says in which file, and where, each chunk of a tensor is.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._validate import ArgumentError

METADATA = ".metadata"
# modules and names that the pickle may use
ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "device"},
    "collections": {"OrderedDict", "defaultdict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    # where Python 3.13 defines them
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
    "builtins": {"set", "frozenset", "list", "dict", "int", "str"},
}


class Chunk(NamedTuple):
    """A part of a tensor, and where it begins; None for the part of a rank."""

    tensor: Any
    offsets: tuple[int, ...] | None = None


class _Metadata(pickle.Unpickler):
    """Reads the metadata of a checkpoint: other classes and functions are refused."""

    def find_class(self, module: str, name: str) -> Any:
        """A class or type of PyTorch's metadata."""
        is_type = module == "torch" and isinstance(
            getattr(torch, name, None), torch.dtype
        )
        if name in ALLOWED.get(module, ()) or is_type:
            if module == "pathlib._local":  # other versions have only pathlib
                module = "pathlib"
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not a part of metadata")


def chunks_of(folder: Path) -> dict[str, list[Chunk]]:
    """The chunks of all tensors of a checkpoint, by name."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        with open(folder / METADATA, "rb") as file:
            metadata = _Metadata(file).load()
        pieces: dict[str, list[Chunk]] = {}
        for index, place in metadata.storage_data.items():
            about = metadata.state_dict_metadata[index.fqn]
            if not isinstance(about, TensorStorageMetadata):
                continue  # numbers and texts, such as the step
            offsets = tuple(index.offset or (0,) * len(about.size))
            chunk = Chunk(_tensor(folder, place), offsets)
            pieces.setdefault(index.fqn, []).append(chunk)
    except OSError as error:
        raise ArgumentError(
            "weights",
            str(folder),
            f"a readable folder: {error.strerror or error}",
        ) from None
    except (
        pickle.UnpicklingError,
        AttributeError,
        LookupError,
        EOFError,
        RuntimeError,  # of torch.load, for a file that was cut
    ) as error:
        raise ValueError(
            f"weights={str(folder)!r} is not a checkpoint of"
            f" torch.distributed.checkpoint: {error}"
        ) from None
    return pieces


def _tensor(folder: Path, place: Any) -> Any:
    """The tensor that is stored at a place of a file."""
    if getattr(place, "transform_descriptors", None):  # since PyTorch 2.7
        raise ValueError(
            f"weights={str(folder)!r} has compressed shards: save it without extensions"
        )
    name = Path(str(place.relative_path)).name  # inside the folder
    with open(folder / name, "rb") as file:
        file.seek(place.offset)
        content = io.BytesIO(file.read(place.length))
    return torch.load(content, map_location="cpu", weights_only=True)
