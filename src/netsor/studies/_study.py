"""How every study runs: workers do tasks, finished tasks are kept on disk, and the
result is written as a report.

`Study` is the central class; read it first. A study is made of four parts:

- a `Request`, its validated options;
- `Task`s, whose numbers depend on nothing but their `key`;
- a `Result`, which is text, HTML and files, all made from one document;
- the `Study` itself: which tasks a request has, their cost, and the result.

`Run` does the tasks of a study that are not on disk yet.
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
from .._validate import ArgumentError, Positive, Seed, chosen_seed
from ..engine import Sampling
from ..engine.backends import PRECISIONS, Backend, Numpy, choose_several
from ..report._document import Document, Figure, to_text
from ..report._html import to_cell, to_page
from ..report._mpl_style import rendered, styled
from ..runtime import _process_pool
from ..runtime._executors import InlineExecutor, thread_pool
from ..runtime._parallel import Progress, check_executor
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
# Studies that take less than this many seconds run in this process: a worker process
# takes a second to start, and plans again.
SHORT_SECONDS = 2.0
NO_OTHER_WORK: Iterator[None] = iter(())


class Task(Protocol):
    """A unit of work, and of storage on disk.

    Workers receive it by pickle. Tasks are equal if their keys are.
    """

    @property
    def key(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as JSON."""

    def run(self) -> Arrays:
        """Its numbers."""


@dataclass(frozen=True)
class DrawTask:
    """Some draws of a network, for a study that samples."""

    # The network, of the study's own type. Its `key` has everything that its draws
    # depend on, and its `place` makes its random numbers independent of other cases'.
    case: Any
    index: int  # of this task among those of the case
    draws: int
    seed: int
    backend: Backend

    @property
    def key(self) -> dict[str, Any]:
        """Everything that its numbers depend on."""
        key: dict[str, Any] = {type(self).__name__: self.case.key}
        for field in fields(self):
            if field.name not in ("case", "backend"):
                key[field.name] = getattr(self, field.name)
        return cache_key(key, self.backend)

    @classmethod
    def split(cls, case: Any, draws: int, most: int, *other_fields: Any) -> list[Self]:
        """Split `draws` into tasks of at most `most` draws each.

        For example 200 draws, 64 at most, become tasks of 64, 64, 64 and 8. The other
        fields are those after `draws`, in the order of the class.
        """
        tasks = []
        for index, start in enumerate(range(0, draws, most)):
            tasks.append(cls(case, index, min(most, draws - start), *other_fields))
        return tasks

    def sampling(self, **options: Any) -> Sampling:
        """The number of draws, their seed and where they are made."""
        options.setdefault("progress", False)
        seed = derive_seed(self.seed, *self.case.place, self.index)
        return Sampling(self.draws, seed, backend=self.backend, **options)


def part_draws(most: int, seconds: float, seconds_per_draw: float) -> int:
    """The draws of a task: the largest power of two that fits in the seconds and is not
    above `most`.
    """
    fitting = max(1.0, seconds / max(seconds_per_draw, 1e-9))
    return int(2 ** math.floor(math.log2(min(most, fitting))))


@dataclass(frozen=True, kw_only=True)
class Request(ABC):
    """The validated options of a study: those that all studies have; subclasses add
    their own.

    A request is made once, from the arguments of the study's function, and never
    changes. Its options decide every number of the result, so they are written to the
    manifest. `of` reads the arguments that all studies share: seeds, the folder and the
    backend.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Squares(Request):
    ...     numbers: tuple[int, ...]
    ...     command, title = "netsor squares", "squares: of numbers"
    ...     files = ("report.html",)
    >>> request = Squares.of((1, 2, 3), seed=7, rng=None, out=None)
    >>> request.seed, request.options()
    (7, {'numbers': [1, 2, 3]})
    """

    # such as "netsor audit"; a folder whose manifest begins with it may be overwritten
    command: ClassVar[str]
    kept: ClassVar[str] = "draws"  # the content of a finished task
    smaller: ClassVar[str]  # a remedy for long runs, such as "fewer draws"
    # runs that differ only in these options may share a folder
    side_by_side: ClassVar[tuple[str, ...]] = ()
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    out: Path | None = None
    seed: Seed = 0
    workers: Positive | None = None
    backend: Backend = Numpy()  # noqa: RUF009 (it is frozen)
    devices: Executor | None = None  # all devices, if there are several
    progress: Progress = True
    typed: str | None = None  # the command line; None if it was called from Python

    @property
    @abstractmethod
    def title(self) -> str:
        """The work, in a few words."""

    @property
    @abstractmethod
    def files(self) -> Sequence[str]:
        """The names of the files that it writes, except the manifest."""

    @property
    def remark(self) -> str:
        """A sentence that is also printed before the study begins."""
        return ""

    @property
    def is_user_program(self) -> bool:
        """Whether it runs a program of the user: in this process, keeping nothing on
        disk.
        """
        return False

    @classmethod
    def of(
        cls,
        *own_options: Any,
        seed: Any,
        rng: Any,
        out: Any,
        backend: Any = "numpy",
        device: Any = None,
        precision: Any = "float64",
        **named_options: Any,
    ) -> Self:
        """A request from the arguments of the study's function: those that all studies
        have are validated here, and `own_options` and the others are passed on.
        """
        named_options["seed"] = chosen_seed(seed, rng)
        named_options["backend"], named_options["devices"] = choose_several(
            backend, device, precision, cls.precisions
        )
        if out is not None or cls.out is not None:
            if not isinstance(out, str | Path) or not str(out):
                allowed = (
                    "the name of a folder, a string or a Path; for the current one"
                    " give '.'"
                )
                raise ArgumentError("out", out, allowed)
            named_options["out"] = Path(out)
        return cls(*own_options, **named_options)

    def _set(self, name: str, value: Any) -> None:
        """Replace an option by its validated form, which only validation may do."""
        object.__setattr__(self, name, value)

    def options(self) -> dict[str, Any]:
        """The study's own options, for the manifest."""
        shared = {field.name for field in fields(Request)}
        options = {}
        for field in fields(self):
            if field.name not in shared:
                options[field.name] = as_json(getattr(self, field.name))
        return options

    def folder(self, path: Path) -> Folder:
        """A folder for its files."""
        return Folder(path, self.command, self.side_by_side)

    @property
    def store(self) -> Store | None:
        """Where finished tasks are kept; None if they are not."""
        if self.out is None or self.is_user_program:
            return None
        return Store(self.out / "parts")


def as_json(value: Any) -> Any:
    """A value for JSON; functions and optimisers become their names."""
    if hasattr(value, "fields"):  # a model, or a parametrisation
        return as_json(value.fields())
    if isinstance(value, Mapping):
        return {str(name): as_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return getattr(value, "__name__", str(value))


class Result(ABC):
    """The result of a study as text, HTML and files, all made from one document.

    A subclass says what its document, its data files and its cost are. What is printed,
    shown in a notebook and saved then agrees, because all of it is that document.

    Examples
    --------
    >>> class SquaresResult(Result):
    ...     def __init__(self, request, squares):
    ...         self.request, self.squares = request, squares
    ...     def _document(self, manifest=None):
    ...         subject = ", ".join(map(str, self.squares))
    ...         return Document("Squares", "all are positive", subject, [])
    ...     def _files(self):
    ...         return {"squares.json": json.dumps(self.squares).encode()}
    ...     def _spent(self):
    ...         return {"random_numbers": 0}
    >>> print(SquaresResult(None, [1, 4, 9]))
    all are positive
    <BLANKLINE>
    1, 4, 9
    """

    request: Request

    @abstractmethod
    def _document(self, manifest: dict[str, Any] | None = None) -> Document:
        """The result as a document; the one of a folder also shows the manifest."""

    @abstractmethod
    def _files(self) -> Mapping[str, bytes]:
        """The files besides the report and the manifest, by name."""

    @abstractmethod
    def _spent(self) -> dict[str, Any]:
        """The work that it took, for the manifest."""

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The report, for a notebook."""
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
        path = Path(out)
        request = self.request
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
        report = to_page(self._document(manifest)).encode()
        folder.put({"report.html": report, **self._files()}, manifest)
        return path / "report.html"


def svg_figure(name: str, caption: str, draw: Callable[..., Any], *args: Any) -> Figure:
    """A figure of a document; `draw(*args)` makes it when a page needs it."""

    def svg() -> bytes:
        """The figure as SVG."""
        with styled(), warnings.catch_warnings():
            # names may have letters that the font lacks
            warnings.simplefilter("ignore", UserWarning)
            return rendered(draw(*args), "svg")[0]

    return Figure(name, caption, svg)


class TableResult(Result):
    """A result with one table, as CSV and JSON."""

    random_numbers: Any  # how many were drawn: an attribute, or a property
    seconds: Any  # of one core, likewise

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """All numbers, one row each, as in the CSV file."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """The object that the command prints with --json."""

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame."""
        return to_dataframe(self.rows())

    def _files(self) -> dict[str, bytes]:
        """The table and the numbers, by file name."""
        name = self.request.command.split()[1]
        table = to_csv(self.rows())
        content = json.dumps(self.as_dict(), indent=1, allow_nan=False).encode()
        return {f"{name}.csv": table, f"{name}.json": content}

    def _spent(self) -> dict[str, Any]:
        """Random numbers and time, for the manifest."""
        return {
            "random_numbers": self.random_numbers,
            "seconds": {"sampling": round(self.seconds, 3)},
        }


class Several(Generic[T]):
    """Results of several models or parametrisations, by name or by position."""

    _by_name: dict[str, T]

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_name.values())

    def __getitem__(self, key: str | int) -> T:
        """The result of this name, or at this position."""
        if not isinstance(key, str):
            return list(self)[key]
        if key not in self._by_name:
            raise KeyError(
                f"{key!r} was not requested; {', '.join(self._by_name)} were"
            )
        return self._by_name[key]


class Study(ABC, Generic[Found]):
    """A long computation made of tasks, which ends in a result and its report.

    A subclass names the tasks of its request, estimates their cost, and makes the
    result from their numbers. It measures nothing itself: `run` does the tasks on
    worker processes, on an executor or in this process, keeps the finished ones in
    `request.out`, and so resumes an interrupted run.

    The numbers of a task depend on nothing but its `key`: not on the order of the
    tasks, on the worker, or on the other tasks. So a finished task is never done again,
    and any number of workers gives the same result.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Squares(Request):
    ...     numbers: tuple[int, ...]
    ...     command, title = "netsor squares", "squares: of numbers"
    ...     files = ("report.html",)
    >>> @dataclass(frozen=True)
    ... class Square:
    ...     number: int
    ...     @property
    ...     def key(self):
    ...         return {"square": self.number}
    ...     def run(self):
    ...         return {"square": np.array(self.number**2)}
    >>> class SquareStudy(Study):
    ...     def __init__(self, request):
    ...         self.request = request
    ...     def tasks(self):
    ...         return [Square(number) for number in self.request.numbers]
    ...     def estimate(self):
    ...         return Cost(0.1, first=0.0, bytes=1e6, random_numbers=0, workers=1)
    ...     def result(self, run):
    ...         run.wait()
    ...         return sum(int(run[task]["square"]) for task in run.tasks)
    >>> SquareStudy(Squares((1, 2, 3), progress=False)).run()
    14
    """

    request: Any  # of the study's own type

    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """All tasks, in the order in which they begin."""

    @abstractmethod
    def estimate(self) -> Cost:
        """The cost; raises an error if memory is too small."""

    def least_seconds(self) -> float:
        """A rough lower bound on the running time, known before a large model is
        planned.
        """
        return 0.0

    def shorter_than(self, seconds: float) -> str:
        """A sentence with options that are likely to take less than this time, known
        before a large model is planned; "" if there are none.
        """
        return ""

    def saved_memory(self) -> str:
        """A sentence on the memory that recomputing saves, if anything is computed
        again; "" otherwise.
        """
        return ""

    def cheaper(self, cost: Cost) -> str:
        """Cheaper ways with their costs if this takes long, or else ""."""
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
        request = self.request
        executor = executor or request.devices
        cost = self.estimate()
        self.prepare()
        # Tasks on a CPU run side by side, each in one thread.
        blas: AbstractContextManager[Any]
        blas = nullcontext() if self._on_device else one_blas_thread()
        with blas, self._pool(cost, executor) as workers:
            result = self.result(Run(self, workers, executor))
        if request.out is not None:
            result.save(request.out)
        return result

    @property
    def _on_device(self) -> bool:
        """Whether the draws are made by a library that is parallel itself, such as on a
        GPU.
        """
        return not self.request.backend.threads

    def _pool(
        self, cost: Cost, executor: Executor | None
    ) -> AbstractContextManager[Any]:
        """A context of workers on this machine, for the first row that applies:

        ====================================================  ==========================
        no executor, on a device, a program of the user       None: this process
        no executor, one worker, on a device or a short run   None: this process
        a program of the user                                 threads of this process
        otherwise                                             processes
        ====================================================  ==========================

        With an executor, which does the tasks, these workers do only other work, such
        as drawing figures.
        """
        if executor is None and self._runs_here(cost):
            return nullcontext()
        # another process may not know the functions of a user
        if self.request.is_user_program:
            return thread_pool(cost.workers)
        return _process_pool.Workers(cost.workers)

    def _runs_here(self, cost: Cost) -> bool:
        """Whether this process does the tasks itself, if there is no executor."""
        if self._on_device and self.request.is_user_program:
            return True
        # a device serves one process, and short work is done before another one starts
        is_short = cost.seconds < SHORT_SECONDS
        return cost.workers == 1 and (self._on_device or is_short)


class Run:
    """The running tasks of a study, and the numbers of finished ones: `run[task]`.

    A task is begun at most once, and not at all if an earlier run has kept its numbers
    on disk. After `wait`, `run[task]` has the numbers of every task that was waited
    for. `add` begins tasks that depend on these.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Square:
    ...     number: int
    ...     @property
    ...     def key(self):
    ...         return {"square": self.number}
    ...     def run(self):
    ...         return {"square": np.array(self.number**2)}
    >>> from types import SimpleNamespace
    >>> request = SimpleNamespace(store=None, title="squares", progress=False)
    >>> study = SimpleNamespace(request=request, tasks=lambda: [Square(2), Square(3)])
    >>> run = Run(study, workers=None, executor=None)  # in this process
    >>> run.wait()
    >>> int(run[Square(3)]["square"])
    9
    >>> run.add([Square(9)])  # such as one that depends on the first
    >>> run.wait()
    >>> int(run[Square(9)]["square"])
    81
    """

    def __init__(
        self, study: Study[Any], workers: Any, executor: Executor | None
    ) -> None:
        """Begin all tasks of the study: in the executor, if there is one, else in the
        workers. Without either, this process does them when they are waited for.
        """
        self.request = study.request
        self.store: Store | None = study.request.store
        self.workers = workers
        self.pool = executor or workers  # None: this process does the tasks
        # Where workers save their numbers. Those of an executor return them, because
        # other machines may have other disks.
        self.folder: Path | None = None
        if self.store is not None and executor is None:
            self.folder = self.store.folder
        self.tasks: list[Any] = []  # of the study's own type
        self.kept: set[Task] = set()  # those that an earlier run has finished
        # the numbers of finished tasks; None: on disk
        self._finished: dict[Task, Arrays | None] = {}
        self._begun: dict[Future[Arrays | None], Task] = {}
        self.add(study.tasks())

    def add(self, tasks: Sequence[Task]) -> None:
        """Begin more tasks, such as those that depend on the numbers of others."""
        begun = set(self.tasks)
        for task in dict.fromkeys(tasks):
            if task in begun:
                continue
            self.tasks.append(task)
            if self.store is not None and self.store.load(task.key) is not None:
                self.kept.add(task)
                self._finished[task] = None
            elif self.pool is not None:
                self._begun[self.pool.submit(compute, task, self.folder)] = task

    def __getitem__(self, task: Task) -> Arrays:
        """The numbers of a finished task, which may be on disk."""
        arrays = self._finished[task]
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
        all_done = all(future.done() for future in self._begun)
        has_free_worker = self.workers is not None and all_done
        executor = self.workers if has_free_worker else InlineExecutor()
        future: Future[T] = executor.submit(work, *args)
        return future

    def wait(
        self,
        tasks: Sequence[Task] | None = None,
        title: str | None = None,
        meanwhile: Iterator[None] = NO_OTHER_WORK,
    ) -> None:
        """Wait for some tasks, or for all, and show progress.

        `meanwhile` is other work, done here piece by piece after each task.
        """
        awaited = dict.fromkeys(self.tasks if tasks is None else tasks)
        unfinished = [task for task in awaited if task not in self._finished]
        _process_pool.with_progress(
            self._finish(unfinished, meanwhile),
            count=len(unfinished),
            title=title or self.request.title.partition(":")[0],
            progress=self.request.progress,
        )

    def _finish(
        self, tasks: Sequence[Task], meanwhile: Iterator[None]
    ) -> Iterator[None]:
        """Finish one task at a time, and do a piece of the other work after each."""
        if self.workers is None:
            results = self._computed_here(tasks)
        else:
            results = self._computed_by_workers(tasks)
        for task, arrays in results:
            if self.store is not None and arrays is not None:
                self.store.save(task.key, arrays)
                arrays = None  # on disk
            self._finished[task] = arrays
            yield
            next(meanwhile, None)

    def _computed_here(
        self, tasks: Sequence[Task]
    ) -> Iterator[tuple[Task, Arrays | None]]:
        """The tasks with their numbers, done one after another in this process."""
        for task in tasks:
            yield task, compute(task)

    def _computed_by_workers(
        self, tasks: Sequence[Task]
    ) -> Iterator[tuple[Task, Arrays | None]]:
        """The tasks as workers finish them, with their numbers; None: on disk."""
        awaited = set(tasks)
        futures = [future for future, task in self._begun.items() if task in awaited]
        for future in as_completed(futures):
            yield self._begun[future], future.result()


def compute(task: Task, folder: Path | None = None) -> Arrays | None:
    """Do a task, and save its numbers in the folder; without one, return them."""
    # CPU time, because other programs may use the machine too; threads share that of
    # their process, so in a thread it is the time of the clock
    clock = time.perf_counter
    if current_thread() is main_thread():
        clock = time.process_time
    start = clock()
    with one_blas_thread():
        arrays = dict(task.run())
    arrays["seconds"] = np.array(clock() - start)
    if folder is None:
        return arrays
    Store(folder).save(task.key, arrays)
    return None
