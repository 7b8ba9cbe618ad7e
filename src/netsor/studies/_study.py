"""How every study runs: worker processes do tasks, finished ones are kept on disk, and
a report has the result.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from .._array_api import one_blas_thread
from .._document import Figure, to_text
from .._executors import InlineExecutor, thread_pool
from .._html import to_cell, to_page
from .._mpl_style import rendered, styled
from .._validate import ArgumentError, Positive, Seed, chosen_seed
from ..engine import Sampling
from ..engine._parallel import Progress, check_executor
from ..engine.backends import PRECISIONS, Backend, Numpy, choose
from . import _process_pool
from ._cost import Cost
from ._output_dir import (
    Arrays,
    Folder,
    Store,
    cache_key,
    derive_seed,
    environment,
    to_csv,
    to_dataframe,
)

T = TypeVar("T")
Found = TypeVar("Found", bound="Result")
# draws that take less are made in this process: a worker takes a second to start, and
# plans again
SHORT_SECONDS = 2.0
NOTHING: Iterator[None] = iter(())


class Task(Protocol):
    """A unit of work, and of storage on disk. Workers receive it by pickle. Tasks are
    equal if their keys are.
    """

    @property
    def key(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as JSON."""

    def run(self) -> Arrays:
        """Its numbers."""


@dataclass(frozen=True)
class DrawTask:
    """Some draws of a network, for a study that samples."""

    # the network, of the study's own type; its `key` has everything that its draws
    # depend on
    case: Any
    index: int  # of the part
    draws: int
    seed: int
    backend: Backend

    @property
    def key(self) -> dict[str, Any]:
        """Everything that its numbers depend on."""
        own = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("case", "backend")
        }
        return cache_key({type(self).__name__: self.case.key, **own}, self.backend)

    @classmethod
    def split(cls, case: Any, draws: int, most: int, *how: Any) -> list[Self]:
        """Split `draws` into tasks of at most `most`; `how` are the other fields."""
        return [
            cls(case, k, min(most, draws - start), *how)
            for k, start in enumerate(range(0, draws, most))
        ]

    def sampling(self, **how: Any) -> Sampling:
        """How it draws."""
        seed = derive_seed(self.seed, *self.case.place, self.index)
        return Sampling(
            self.draws, seed, backend=self.backend, **{"progress": False, **how}
        )


def part_draws(most: int, seconds: float, one: float) -> int:
    """The draws of a task: the largest power of two up to `most` that fits in the
    seconds, if a draw takes `one`.
    """
    return int(
        2 ** math.floor(math.log2(min(most, max(1.0, seconds / max(one, 1e-9)))))
    )


@dataclass(frozen=True, kw_only=True)
class Request:
    """The validated options that all studies have."""

    # such as "netsor audit"; manifests that begin with it are of earlier runs
    command: ClassVar[str]
    kept: ClassVar[str] = "draws"  # the content of a finished task
    smaller: ClassVar[str]  # a remedy for long runs, such as "fewer draws"
    # runs that differ only in these options may share a folder
    side_by_side: ClassVar[tuple[str, ...]] = ()
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    title: ClassVar[Any]  # the work, in a few words
    files: ClassVar[Any]  # the names of the files that it writes, except the manifest
    remark: ClassVar[Any] = ""  # also printed before the study begins
    # whether it runs programs of the user: in this process, and nothing is kept on disk
    own: ClassVar[Any] = False
    out: Path | None = None
    seed: Seed = 0
    workers: Positive | None = None
    backend: Backend = Numpy()  # noqa: RUF009 (it is frozen)
    progress: Progress = True
    typed: str | None = None  # the command line; None if it was called from Python

    @classmethod
    def of(cls, *own: Any, seed: Any, rng: Any, out: Any, **others: Any) -> Self:
        """A request from the arguments of the study's function."""
        defaults = {"backend": "numpy", "device": None, "precision": "float64"}
        backend, device, precision = (
            others.pop(name, default) for name, default in defaults.items()
        )
        others |= {
            "seed": chosen_seed(seed, rng),
            "backend": choose(backend, device, precision, cls.precisions),
        }
        if out is not None or cls.out is not None:
            if not isinstance(out, str | Path) or not str(out):
                allowed = (
                    "the name of a folder, a string or a Path; for the current one"
                    " give '.'"
                )
                raise ArgumentError("out", out, allowed)
            others["out"] = Path(out)
        return cls(*own, **others)

    def _set(self, name: str, value: Any) -> None:
        # during validation; afterwards it is frozen
        object.__setattr__(self, name, value)

    def options(self) -> dict[str, Any]:
        """The study's own options, for the manifest."""
        shared = {field.name for field in fields(Request)}
        return {
            f.name: as_json(getattr(self, f.name))
            for f in fields(self)
            if f.name not in shared
        }

    def folder(self, path: Path) -> Folder:
        """A folder for its files."""
        return Folder(path, self.command, self.side_by_side)

    @property
    def store(self) -> Store | None:
        """Where finished tasks are kept."""
        return None if self.out is None or self.own else Store(self.out / "parts")


def as_json(value: Any) -> Any:
    """A value for JSON; functions and optimisers become their names."""
    if hasattr(value, "fields"):  # a model, or a parametrisation
        return as_json(value.fields())
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    plain = (
        value is None
        or isinstance(value, int | str)
        or (isinstance(value, float) and math.isfinite(value))
    )
    return value if plain else getattr(value, "__name__", str(value))


class Result:
    """The result of a study as text, HTML and files, all made from one document."""

    request: Request
    # (manifest=None): the result as a document; a folder also has a manifest
    _document: ClassVar[Any]
    _files: ClassVar[Any]  # (): the files besides the report and the manifest, by name
    _spent: ClassVar[Any]  # (): the work, for the manifest

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return to_cell(self._document())

    def table(self, verbose: bool = False) -> str:
        """The result as text of 80 columns, the verdict first; `verbose` adds the
        details.
        """
        return to_text(self._document(), verbose)

    def save(self, out: str | Path) -> Path:
        """Write report.html, the data and manifest.json into a folder, and return the
        path of the report.

        Files in the folder that no earlier run wrote are never overwritten.
        """
        path, request = Path(out), self.request
        folder = request.folder(path)
        folder.prepare(request.files)
        manifest = {
            "command": request.typed or f"{request.command}, called from Python",
            # as it will be read again
            "options": json.loads(json.dumps(request.options())),
            "seed": request.seed,
            **environment(),
            **self._spent(),
        }
        folder.put(
            {
                "report.html": to_page(self._document(manifest)).encode(),
                **self._files(),
            },
            manifest,
        )
        return path / "report.html"


def svg_figure(name: str, caption: str, draw: Callable[..., Any], *args: Any) -> Figure:
    """A figure of a document; `draw(*args)` makes it when a page needs it."""

    def svg() -> bytes:
        with styled(), warnings.catch_warnings():
            # a name may have letters that the font lacks
            warnings.simplefilter("ignore", UserWarning)
            return rendered(draw(*args), "svg")[0]

    return Figure(name, caption, svg)


class TableResult(Result):
    """A result with one table, as CSV and JSON."""

    random_numbers: Any
    seconds: Any  # of one core
    rows: ClassVar[Any]  # (): all numbers, one row each, as in the CSV file
    as_dict: ClassVar[Any]  # (): what the command prints with --json

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame."""
        return to_dataframe(self.rows())

    def _files(self) -> dict[str, bytes]:
        table, name = to_csv(self.rows()), self.request.command.split()[1]
        content = json.dumps(self.as_dict(), indent=1, allow_nan=False).encode()
        return {f"{name}.csv": table, f"{name}.json": content}

    def _spent(self) -> dict[str, Any]:
        return {
            "random_numbers": self.random_numbers,
            "seconds": {"sampling": round(self.seconds, 3)},
        }


class Several(Generic[T]):
    """Results of several models or parametrisations, by name or by place."""

    _by_name: dict[str, T]

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_name.values())

    def __getitem__(self, key: str | int) -> T:
        if isinstance(key, str) and key not in self._by_name:
            raise KeyError(
                f"{key!r} was not requested; {', '.join(self._by_name)} were"
            )
        return self._by_name[key] if isinstance(key, str) else list(self)[key]


class Study(ABC, Generic[Found]):
    """The part that differs between studies: tasks, their cost, and the result from
    their numbers.
    """

    request: Any  # of the study's own type

    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """All tasks, in the order in which they begin."""

    @abstractmethod
    def estimate(self) -> Cost:
        """The cost; raises an error if memory is too small."""

    def least_seconds(self) -> float:
        """About the least seconds of the clock, known before a large model is planned;
        0 if that takes no time.
        """
        return 0.0

    def cheaper(self, cost: Cost) -> str:
        """Cheaper ways with their costs, if this takes long; "" if there are none."""
        return ""

    def check(self) -> None:
        """Reject other impossible requests before anything is drawn."""

    @abstractmethod
    def result(self, run: Run) -> Found:
        """The result of the numbers; `run.wait()` waits for them."""

    def prepare(self) -> None:
        """Reject impossible requests, and a folder with other files."""
        self.check()
        if self.request.out is not None:
            self.request.folder(self.request.out).prepare(self.request.files)

    def run(self, executor: Executor | None = None) -> Found:
        """Run the unfinished tasks, in an executor or in processes here, and write the
        report if there is a folder.
        """
        check_executor(executor, "processes")
        request, cost = self.request, self.estimate()
        self.prepare()
        pool: AbstractContextManager[Any]
        device, alone = not request.backend.threads, cost.workers == 1
        if executor is None and (
            (device and request.own)
            or (alone and (device or cost.seconds < SHORT_SECONDS))
        ):
            # here: a device serves one process, and short work needs no other
            pool = nullcontext()
        else:  # another process may not know the functions of a user
            pool = (thread_pool if request.own else _process_pool.Workers)(cost.workers)
        with (
            one_blas_thread() if request.backend.threads else nullcontext(),
            pool as workers,
        ):
            result = self.result(Run(self, workers, executor))
        if request.out is not None:
            result.save(request.out)
        return result


class Run:
    """The running tasks of a study, and the numbers of finished ones: `run[task]`."""

    def __init__(
        self, study: Study[Any], workers: Any, executor: Executor | None
    ) -> None:
        self.request, self.store, self.workers = (
            study.request,
            study.request.store,
            workers,
        )
        self.pool = executor or workers  # None: tasks are done here
        # other machines may have other disks: their numbers are kept here
        self.folder = (
            None if self.store is None or executor is not None else self.store.folder
        )
        self.tasks: list[Any] = []  # of the study's own type
        self.kept: set[Task] = set()
        self._found: dict[Task, Arrays | None] = {}
        self._begun: dict[Future[Arrays | None], Task] = {}
        self.add(study.tasks())

    def add(self, tasks: Sequence[Task]) -> None:
        """Begin more tasks, such as those that depend on the numbers of others."""
        known = set(self.tasks)
        for task in [task for task in dict.fromkeys(tasks) if task not in known]:
            self.tasks.append(task)
            if self.store is not None and self.store.load(task.key) is not None:
                self.kept.add(task)
                self._found[task] = None
            elif self.pool is not None:
                self._begun[self.pool.submit(compute, task, self.folder)] = task

    def __getitem__(self, task: Task) -> Arrays:
        arrays = self._found[task]
        if arrays is None and self.store is not None:
            arrays = self.store.load(task.key)
        if arrays is None:
            allowed = (
                f"left alone by others: finished {self.request.kept} were removed; run"
                " it again"
            )
            raise ArgumentError("out", str(self.request.out), allowed)
        return arrays

    def file(self, task: Task) -> str:
        """The name of the file that keeps a task."""
        assert self.store is not None
        return str(self.store.path(task.key).name)

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Do other work in a worker, or here if none is free."""
        free = self.workers is not None and all(future.done() for future in self._begun)
        begun: Future[T] = (self.workers if free else InlineExecutor()).submit(
            work, *args
        )
        return begun

    def wait(
        self,
        tasks: Sequence[Task] | None = None,
        title: str | None = None,
        meanwhile: Iterator[None] = NOTHING,
    ) -> None:
        """Wait for some tasks, or for all, and show progress.

        `meanwhile` is other work, done here piece by piece after each task.
        """
        left = [
            task
            for task in dict.fromkeys(self.tasks if tasks is None else tasks)
            if task not in self._found
        ]
        wanted = set(left)

        def done() -> Iterator[None]:
            begun = [future for future, task in self._begun.items() if task in wanted]
            here = ((task, compute(task)) for task in left)
            there = (
                (self._begun[future], future.result()) for future in as_completed(begun)
            )
            for task, arrays in here if self.workers is None else there:
                if self.store is not None and arrays is not None:
                    self.store.save(task.key, arrays)
                    arrays = None
                self._found[task] = arrays
                yield
                next(meanwhile, None)

        what = title or self.request.title.partition(":")[0]
        _process_pool.with_progress(done(), len(left), what, self.request.progress)


def compute(task: Task, folder: Path | None = None) -> Arrays | None:
    """Do a task, and save its numbers in the folder; without one, return them."""
    # CPU time, because others may use the machine too; but tasks in threads share their
    # process
    clock = (
        time.process_time if current_thread() is main_thread() else time.perf_counter
    )
    start = clock()
    with one_blas_thread():
        arrays = {**task.run()}
    arrays["seconds"] = np.array(clock() - start)
    if folder is None:
        return arrays
    Store(folder).save(task.key, arrays)
    return None
