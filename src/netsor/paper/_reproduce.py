"""Running the experiments: trials on a pool of processes, kept as they finish, then figures, data and the report.

Processes and not threads, for the interpreter's lock costs threads up to a third of the time. They die with the process
that began them, and write their own results, so that nothing finished is lost however it ends.
"""

from __future__ import annotations

import csv
import ctypes
import hashlib
import io
import json
import multiprocessing
import os
import platform
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from .. import __version__
from ..engine._montecarlo import cores, one_blas_thread, whole_number
from ._cases import GROUPS, NAMES, Figure, Part, figures
from ._claims import judged
from ._draw import drawn
from ._measure import MEASURES, Plan
from ._report import report, summary
from ._sample import Cost, cost, draw
from ._store import Store, sweep, write

ESTIMATORS = ("paper", "exact", "both")
QUICK = {"samples": 2_500, "trials": 2}


@dataclass(frozen=True)
class Options:
    """What to reproduce, and how; None where the paper's value is meant."""

    names: tuple[str, ...] = ()  # all
    out: Path = Path("results")
    samples: int | None = None
    trials: int | None = None
    seed: int = 0
    workers: int | None = None
    quick: bool = False
    estimator: str = "both"
    tokens: int = 16

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in (*NAMES, *GROUPS):
                raise ValueError(
                    f"FIGURE {name!r} must be one of {' '.join(NAMES)}, or of the groups {' '.join(GROUPS)}"
                )
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator={self.estimator!r} must be one of {', '.join(ESTIMATORS)}")
        for name, least in (("samples", 100), ("trials", 1), ("seed", 0), ("workers", 1), ("tokens", 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value, least))

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
            Store(self.out / "parts"), self.trials or quick.get("trials", 10), samples, self.seed, self.estimator
        )

    @property
    def command(self) -> str:
        """The command that does the same."""
        words = ["netsor", "reproduce", *self.names]
        for name in ("out", "samples", "trials", "seed", "estimator", "tokens"):
            value = getattr(self, name)
            if value != getattr(Options, name):
                words += [f"--{name}", str(value)]
        return shlex.join(words + ["--quick"] * self.quick)


@dataclass(frozen=True)
class Finished:
    """Where the report is, and what it says in three lines."""

    report: Path
    summary: tuple[str, str, str]


def reproduce(options: Options) -> Finished:
    """Run the experiments, going on where an earlier run stopped, and write figures, data, manifest and report."""
    start = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    plan, every = options.plan, figures(options.tokens)
    chosen = [every[name] for name in options.chosen]
    for folder in (options.out, plan.store.folder):
        sweep(folder)
    files: dict[str, bytes] = {}
    data: dict[str, Any] = {}
    svg: dict[str, bytes] = {}
    pictures: dict[str, Future[dict[str, bytes]]] = {}
    seconds: dict[str, float] = {}
    with _Pool(options.workers) as pool:
        pool.submit(plan.store, [part for figure in chosen for part in plan.parts(figure)])
        for figure in chosen:
            _wait(figure, [pool.futures[part] for part in plan.parts(figure)])
            begun = time.perf_counter()
            with one_blas_thread():
                data[figure.name] = MEASURES[figure.kind](plan, figure)
            files[f"{figure.name}.csv"] = _csv(data[figure.name].rows())
            seconds[f"figure {figure.name}"] = round(time.perf_counter() - begun, 3)
            pictures[figure.name] = pool.executor.submit(drawn, data[figure.name])
        for name, picture in pictures.items():
            for kind, content in picture.result().items():
                (svg if kind == "svg" else files)[name if kind == "svg" else f"{name}.{kind}"] = content
    rows = judged(data)
    costs = {part: future.result() for part, future in pool.futures.items()}
    manifest = _manifest(options, plan, costs, seconds, files)
    quick = ""
    if options.quick:
        quick = (
            f"This is a quick look: {plan.trials} trials of {plan.samples:,} draws in place of the paper's "
            "10 of 50,000 (100,000 for ReLU)."
        )
    manifest["seconds"]["all"] = round(time.perf_counter() - start, 3)
    files["report.html"] = report(rows, data, svg, manifest, quick).encode()
    with FileLock(options.out / ".lock"):  # another run's files come all before or all after
        manifest["files"] = {**_kept(options.out, manifest), **manifest["files"]}
        files["manifest.json"] = json.dumps(manifest, indent=1).encode()
        for name, content in files.items():
            write(options.out / name, content)
    spent = f"{manifest['draws']:,} draws from {manifest['random_numbers']:,} random numbers"
    if pool.kept:
        spent += f" ({pool.kept} of {len(costs)} trials were there already)"
    last = f"{quick} {spent}." if quick else f"{spent}, in {manifest['seconds']['all']:.0f} s."
    one, two = summary(rows, data)
    return Finished(options.out / "report.html", (one, two, last))


def _kept(folder: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """The figures that an earlier run with the same options left, with their hashes.

    What one with other options left is removed, unless it was changed since: it could be taken for this run's.
    """
    try:
        old = json.loads((folder / "manifest.json").read_text())
        same = [{**m["options"], "figures": 0, "seed": m["seed"], "versions": m["versions"]} for m in (old, manifest)]
        files: dict[str, str] = old["files"]
        if same[0] == same[1]:
            return files
        for name, digest in files.items():
            path = folder / Path(name).name
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
                path.unlink()
    except (OSError, ValueError, KeyError):  # there is none, or it is not ours
        pass
    return {}


def _csv(rows: Iterable[dict[str, Any]]) -> bytes:
    table = list(rows)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({k: f"{v:.10g}" if isinstance(v, float) else v for k, v in row.items()})
    return buffer.getvalue().encode()


def _manifest(
    options: Options, plan: Plan, costs: dict[Part, Cost], seconds: dict[str, float], files: dict[str, bytes]
) -> dict[str, Any]:
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
        "versions": {
            "netsor": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "scipy", "matplotlib")},
        },
        "machine": {"system": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()},
        "draws": sum(part["samples"] for part in parts),
        "random_numbers": sum(part["random_numbers"] for part in parts),
        "seconds": {"sampling": round(sum(part["seconds"] for part in parts), 3), **seconds},
        "parts": parts,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }


def _wait(figure: Figure, futures: list[Future[Cost]]) -> None:
    """Wait for the trials of a figure, with a bar on a terminal."""
    waiting = [future for future in futures if not future.done() or future.exception()]
    bar = tqdm(
        total=len(futures),
        initial=len(futures) - len(waiting),
        desc=f"figure {figure.name}",
        unit="trial",
        disable=None,
    )
    with bar:
        for future in as_completed(waiting):
            future.result()
            bar.update()


class _Pool:
    """Worker processes, which end when this one does, in whatever way."""

    def __init__(self, workers: int | None) -> None:
        self.others = multiprocessing.active_children()
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(workers or cores(), mp_context=context, initializer=_follow)
        self.futures: dict[Part, Future[Cost]] = {}
        self.kept = 0  # trials that were there already

    def __enter__(self) -> _Pool:
        return self

    def submit(self, store: Store, parts: list[Part]) -> None:
        """Begin all parts that are not there yet."""
        for part in parts:
            if part not in self.futures:
                kept = store.load(part.key)
                if kept is None:
                    self.futures[part] = self.executor.submit(draw, part, store.folder)
                else:
                    self.futures[part] = Future()
                    self.futures[part].set_result(cost(kept))
                    self.kept += 1

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # interrupted, or a trial failed: do not wait for the others
            self.executor.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child not in self.others:
                    child.terminate()
        self.executor.shutdown()


def _follow() -> None:
    """In a worker: leave interrupts to the parent, end when it does, and keep memory rather than give it back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # or its semaphores would outlive a worker that is ended
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # glibc: a tenth of the time went into pages given back and asked for
            mallopt = ctypes.CDLL(None).mallopt
            for option, size in ((-3, 2**25), (-1, 2**30), (-2, 2**28)):  # mmap threshold, trim threshold, top pad
                mallopt(option, size)
