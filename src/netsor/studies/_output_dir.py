"""The folder of a run: its files, which replace those of earlier runs, and its finished
parts.

A file is of an earlier run if the manifest has its name and its hash. Others are never
overwritten or removed. Files are written elsewhere and moved into place: a file is
whole or absent, however a run ends.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from .. import __version__
from .._validate import ArgumentError
from ..engine.backends import Backend, Numpy
from ..runtime._files import fields, opened, write

MANIFEST = "manifest.json"
DIGEST_BYTES = 32  # of SHA-256, at the end of the file of a part
FORMAT = 11  # raise it when draws of a seed change, or the numbers of a part
LOG = logging.getLogger("netsor")

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Folder:
    """Where a run puts its files."""

    path: Path
    command: str  # the beginning of the command in every manifest of this study
    # runs that differ only in these options may share the folder
    side_by_side: Sequence[str] = ()

    def prepare(self, names: Iterable[str]) -> None:
        """Reject a folder where these files would overwrite others, or that cannot be
        written to; make it if needed.
        """
        self._refuse_foreign(names, self._manifest())
        parts = self.path / "parts"
        parts.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, parts):
            # permissions alone do not show whether writing works
            with tempfile.TemporaryFile(dir=folder):
                pass

    def put(self, files: Mapping[str, bytes], manifest: dict[str, Any]) -> None:
        """Write the files, and the manifest with their hashes.

        Files of an earlier run with the same options stay in the manifest. Unchanged
        files of a run with other options are removed. A lock keeps the files of two
        runs apart. The manifest is written first, with the hashes of the files that it
        replaces: if the run is killed here, the next run still knows all files.
        """
        lock = FileLock(self.path / ".netsor.lock")
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            LOG.warning("waiting for another run to leave %s", self.path)
            held = lock.acquire()
        with held:
            earlier = self._manifest()
            self._refuse_foreign(files, earlier)
            earlier_hashes = _hashes(earlier)
            # those that nothing but a run has written
            unchanged = [
                name
                for name, digests in earlier_hashes.items()
                if self._digest(name) in digests
            ]
            manifest["files"] = {}
            if earlier is not None:
                has_same_options = self._options(earlier) == self._options(manifest)
                if has_same_options:
                    manifest["files"] |= earlier["files"]
            for name, content in files.items():
                manifest["files"][name] = hashlib.sha256(content).hexdigest()
            manifest["replaced"] = {name: self._digest(name) for name in unchanged}
            write(self.path / MANIFEST, json.dumps(manifest, indent=1).encode())
            for name, content in files.items():
                write(self.path / name, content)
            for name in unchanged:
                if name not in manifest["files"]:
                    (self.path / name).unlink()

    def _manifest(self) -> dict[str, Any] | None:
        """The manifest of an earlier run; None if it is missing or from another
        program.
        """
        try:
            manifest = fields(self.path / MANIFEST)
        except (OSError, ValueError):
            return None
        is_ours = str(manifest.get("command", "")).startswith(self.command)
        has_options = isinstance(manifest.get("options"), dict)
        if is_ours and has_options and _hashes(manifest):
            return manifest
        return None

    def _refuse_foreign(
        self, names: Iterable[str], manifest: dict[str, Any] | None
    ) -> None:
        """Raise an error if one of these files, or the manifest, is in the folder and
        is not what an earlier run wrote; `manifest` is that of the earlier run.
        """
        hashes = _hashes(manifest)
        for name in (MANIFEST, *names):
            if name == MANIFEST:
                is_ours = manifest is not None
            else:
                is_ours = self._digest(name) in hashes.get(name, ())
            if is_ours or not os.path.lexists(self.path / name):
                continue
            article = "an" if name[0] in "aeiou" else "a"
            allowed = (
                f"another folder: it holds {article} {name} that is not of an earlier"
                " run, or was changed since, and would be overwritten; or move that"
                " file"
            )
            raise ArgumentError("out", str(self.path), allowed)

    def _options(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The options, the seed and the versions in a manifest: runs whose files may be
        in one folder together agree in them.
        """
        options = dict(manifest["options"])
        for name in self.side_by_side:
            options.pop(name, None)
        return {
            **options,
            "seed": manifest.get("seed"),
            "versions": manifest.get("versions"),
        }

    def _digest(self, name: str) -> str:
        """The hash of a file in the folder; "" if it cannot be read."""
        try:
            with opened(self.path / name) as file:
                return hashlib.sha256(file.read()).hexdigest()
        except (OSError, ValueError):
            return ""


def _hashes(manifest: Mapping[str, Any] | None) -> dict[str, set[str]]:
    """The hashes that each file of a manifest may have: that of its run and, if the run
    was killed while it wrote, that of the file it replaced. Empty without a manifest,
    or if it has another format.
    """
    hashes: dict[str, set[str]] = {}
    try:
        for key in ("files", "replaced"):
            for name, digest in (manifest or {})[key].items():
                if not isinstance(digest, str) or Path(name).name != name:
                    return {}
                hashes.setdefault(name, set()).add(digest)
    except (KeyError, TypeError, AttributeError):
        return {}
    return hashes


def environment() -> dict[str, Any]:
    """The versions and the machine, for a manifest."""
    versions = {"netsor": __version__, "python": platform.python_version()}
    for name in ("numpy", "scipy", "matplotlib"):
        versions[name] = metadata.version(name)
    machine = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
    }
    return {"versions": versions, "machine": machine}


def to_dataframe(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise ImportError(
            "to_dataframe() needs pandas, which is not installed: pip install pandas"
        ) from None
    return pandas.DataFrame(list(rows))


def to_csv(rows: Iterable[dict[str, Any]]) -> bytes:
    """Rows as CSV, with ten digits."""
    table = list(rows)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    for row in table:
        texts = dict(row)
        for name, value in row.items():
            if isinstance(value, float):
                texts[name] = f"{value:.10g}"
        writer.writerow(texts)
    return buffer.getvalue().encode()


@dataclass(frozen=True)
class Store:
    """A folder of finished parts: a file each, named by everything that its numbers
    depend on, with a checksum.
    """

    folder: Path

    def _text(self, key: Mapping[str, Any]) -> str:
        """The key as text, with everything else that numbers may depend on."""
        # draws may change with versions
        return json.dumps(
            {**key, "format": FORMAT, "netsor": __version__, "numpy": np.__version__},
            sort_keys=True,
        )

    def path(self, key: Mapping[str, Any]) -> Path:
        """The file of a part."""
        digest = hashlib.sha256(self._text(key).encode()).hexdigest()
        return self.folder / f"{digest[:24]}.npz"

    def save(self, key: Mapping[str, Any], arrays: Arrays) -> None:
        """Keep a finished part: an .npz file, followed by its checksum."""
        buffer = io.BytesIO()
        named: dict[str, Any] = {"key": np.array(self._text(key)), **arrays}
        np.savez(buffer, **named)
        content = buffer.getvalue()
        write(self.path(key), content + hashlib.sha256(content).digest())

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether a part has a file, which may be damaged."""
        return os.path.isfile(self.path(key))

    def any(self) -> bool:
        """Whether there are any parts."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            return any(entry.name.endswith(".npz") for entry in entries)
        return False

    def load(self, key: Mapping[str, Any]) -> Arrays | None:
        """A part, or None if it is absent or damaged."""
        try:
            with opened(self.path(key)) as file:
                content = file.read()
            if (
                hashlib.sha256(content[:-DIGEST_BYTES]).digest()
                != content[-DIGEST_BYTES:]
            ):
                return None
            with np.load(
                io.BytesIO(content[:-DIGEST_BYTES]), allow_pickle=False
            ) as arrays:
                loaded = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, zipfile.BadZipFile):
            return None
        return loaded if str(loaded.pop("key", "")) == self._text(key) else None


def cache_key(key: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """A key, with the backend unless it is the default."""
    return key if backend == Numpy() else {**key, "backend": str(backend)}


def derive_seed(*numbers: int) -> int:
    """One seed from several numbers: parts that differ in one of them are
    independent.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
