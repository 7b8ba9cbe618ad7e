"""Running the experiments: trials on a pool of processes, kept as they finish, then figures, data and the report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ..._array_api import one_blas_thread
from ..._validate import ArgumentError, Positive, Seed, check_fields, choice, whole
from ...engine._parallel import cores
from ...engine.backends import Backend, Numpy
from .._cache import Store
from .._html_report import to_page
from .._output_dir import Folder, environment, to_csv
from .._process_pool import Workers, submit_remote, wait
from ._claims import Separation, judged, separations, separations_ahead
from ._estimators import MEASURES, limits_ahead
from ._experiments import GROUPS, NAMES, Figure, Part, figures
from ._layer import law as limit_section
from ._plots import drawn
from ._report import document, summary
from ._schedule import Cost, Plan, cost, draw, timed

T = TypeVar("T")

COMMAND = "netsor reproduce"
ESTIMATORS = ("paper", "exact", "both")
QUICK = {"samples": 2_500, "trials": 2}


@dataclass(frozen=True)
class Options:
    """What to reproduce, and how; None where the paper's value is meant."""

    names: tuple[str, ...] = ()  # all
    out: Path = Path("results")
    samples: Annotated[int, partial(whole, least=100)] | None = None
    trials: Positive | None = None
    seed: Seed = 0
    workers: Positive | None = None
    quick: bool = False
    estimator: Annotated[str, choice(*ESTIMATORS)] = "both"
    tokens: Positive = 16
    backend: Backend = Numpy()  # noqa: RUF009 (it is frozen)
    executor: Executor | None = None  # for the trials, in place of processes here

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple):
            raise ArgumentError("names", self.names, "a tuple of the names of figures")
        for name in self.names:
            if not isinstance(name, str) or name not in (*NAMES, *GROUPS):
                allowed = f"one of {' '.join(NAMES)}, or of the groups {' '.join(GROUPS)}"
                raise ArgumentError("names", name, allowed)
        check_fields(self)

    @property
    def chosen(self) -> list[str]:
        """The names of the figures, in the paper's order."""
        wanted = {figure for name in self.names or NAMES for figure in GROUPS.get(name, (name,))}
        return [name for name in NAMES if name in wanted]

    @property
    def plan(self) -> Plan:
        """Which trials that makes."""
        quick = QUICK if self.quick else {}
        samples = self.samples or quick.get("samples")
        return Plan(
            Store(self.out / "parts"),
            self.trials or quick.get("trials", 10),
            samples,
            self.seed,
            self.estimator,
            self.backend,
        )

    @property
    def command(self) -> str:
        """The command that does the same."""
        words = [*COMMAND.split(), *self.names]
        for name in ("out", "samples", "trials", "seed", "estimator", "tokens"):
            value = getattr(self, name)
            if value != getattr(Options, name):
                words += [f"--{name}", str(value)]
        for name in ("backend", "device", "precision"):
            value = self.backend.name if name == "backend" else getattr(self.backend, name)
            if self.backend != Numpy():
                words += [f"--{name}", value]
        return shlex.join(words + ["--quick"] * self.quick)


@dataclass(frozen=True)
class Finished:
    """Where the report is, and what it says in three lines."""

    report: Path
    summary: tuple[str, str, str]


def prepare(options: Options) -> Folder:
    """The folder of a run, after a check that its files overwrite only those of an earlier run."""
    folder = Folder(options.out, COMMAND, beside=["figures"])
    folder.prepare(["report.html", *(f"{name}.{kind}" for name in options.chosen for kind in ("csv", "pdf", "png"))])
    return folder


def reproduce(options: Options) -> Finished:
    """Run the experiments, going on where an earlier run stopped, and write figures, data, manifest and report."""
    start = time.perf_counter()
    plan, every = options.plan, figures(options.tokens)
    chosen = [every[name] for name in options.chosen]
    folder = prepare(options)
    files: dict[str, bytes] = {}
    data: dict[str, Any] = {}
    apart: dict[str, list[Separation]] = {}
    svg: dict[str, bytes] = {}
    pictures: dict[str, Future[dict[str, bytes]]] = {}
    seconds: dict[str, float] = {}
    # The trials of the last figures take longest, and the first ones are soon measured: so all are at work to the end.
    order = chosen[::-1]
    parts = dict.fromkeys(part for figure in order for part in plan.parts(figure))
    count = min(options.workers or cores(), len(parts)) if options.backend.threads else 1  # one process a GPU
    with Workers(count) as workers:
        there = {part: cost(arrays) for part in parts if (arrays := plan.store.load(part.key)) is not None}
        missing = [part for part in parts if part not in there]
        if options.executor is None:
            futures = {part: workers.submit(draw, part, plan.store.folder) for part in missing}
        else:
            futures = {part: submit_remote(options.executor, timed, part, plan.store, cost) for part in missing}
        ahead = _ahead(plan, order)
        for figure in order:
            mine = [futures[part] for part in plan.parts(figure) if part in futures]
            with one_blas_thread():
                wait(mine, f"figure {figure.name}", "trial", meanwhile=ahead)
                begun = time.perf_counter()
                data[figure.name] = MEASURES[figure.kind](plan, figure)
                apart[figure.name] = separations(plan, {figure.name: data[figure.name]})
            files[f"{figure.name}.csv"] = to_csv(data[figure.name].rows())
            seconds[f"figure {figure.name}"] = round(time.perf_counter() - begun, 3)
            if all(future.done() for future in futures.values()):
                pictures[figure.name] = workers.submit(drawn, data[figure.name])
            else:  # the workers have enough to do
                pictures[figure.name] = _done(drawn, data[figure.name])
        data = {name: data[name] for name in options.chosen}
        for name in data:
            for kind, content in pictures[name].result().items():
                (svg if kind == "svg" else files)[name if kind == "svg" else f"{name}.{kind}"] = content
    rows, found = judged(data), [each for name in data for each in apart[name]]
    costs = {part: there[part] if part in there else futures[part].result() for part in parts}
    manifest = _manifest(options, plan, costs, seconds)
    quick = ""
    if options.quick:
        quick = (
            f"This is a quick look: {plan.trials} trials of {plan.samples:,} draws instead of the paper's "
            "10 of 50,000 (100,000 for ReLU)."
        )
    manifest["seconds"]["all"] = round(time.perf_counter() - start, 3)
    files["report.html"] = to_page(document(rows, data, found, svg, manifest, quick)).encode()
    folder.put(files, manifest)
    spent = f"{manifest['draws']:,} draws from {manifest['random_numbers']:,} random numbers"
    if there:
        spent += f" ({len(there)} of {len(costs)} trials were there already)"
    last = f"{quick} {spent}." if quick else f"{spent}, in {manifest['seconds']['all']:.0f} s."
    one, two = summary(rows, data)
    return Finished(options.out / "report.html", (one, two, last))


def _ahead(plan: Plan, order: Sequence[Figure]) -> Iterator[None]:
    """Make what needs no trials, piece by piece, while these are drawn; it is remembered."""
    limit_section()
    yield
    for figure in order:
        yield from limits_ahead(plan, figure)
        yield from separations_ahead(figure)


def _done(work: Callable[..., T], *args: Any) -> Future[T]:
    """Some work, done here and now."""
    future: Future[T] = Future()
    future.set_result(work(*args))
    return future


def _manifest(options: Options, plan: Plan, costs: dict[Part, Cost], seconds: dict[str, float]) -> dict[str, Any]:
    """What was run, with what, and what it took."""
    parts = [{**part.key, "file": plan.store.path(part.key).name, **cost._asdict()} for part, cost in costs.items()]
    return {
        "command": options.command,
        "options": {
            "figures": options.chosen,
            "samples": plan.samples or "50000, and 100000 for relu",
            "trials": plan.trials,
            "estimator": options.estimator,
            "tokens": options.tokens,
            "quick": options.quick,
        },
        "seed": options.seed,
        **environment(),
        "draws": sum(part["samples"] for part in parts),
        "random_numbers": sum(part["random_numbers"] for part in parts),
        "seconds": {"sampling": round(sum(part["seconds"] for part in parts), 3), **seconds},
        "parts": parts,
    }
