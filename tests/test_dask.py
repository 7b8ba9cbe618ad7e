"""A cluster of Dask, of two real worker processes: the same bits as on one machine,
also when one of them dies.
"""

import os
import signal
import subprocess
import sys
import threading
import warnings
from importlib.util import find_spec

import numpy as np
import pytest

import netsor as ns
from tests.internals import _sampler

from .command import netsor

pytestmark = [
    pytest.mark.skipif(find_spec("distributed") is None, reason="needs Dask"),
    # the library warns about itself and its ports
    pytest.mark.filterwarnings("default"),
]
DRAWS = 150_000


@pytest.fixture(scope="module")
def cluster():
    import distributed  # slow to import

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        made = distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # any free port
            host="127.0.0.1",
        )
        with made, distributed.Client(made) as client:
            yield client


def test_cluster_gives_the_bits_of_one_machine(cluster):
    net, seen = ns.paper.layer(), []
    here = net.law(n=64, draws=DRAWS, seed=3, progress=False)
    there = net.law(
        n=64,
        draws=DRAWS,
        seed=3,
        executor=cluster.get_executor(),
        progress=lambda done, of: seen.append((done, of)),
    )
    assert here.component_var.tobytes() == there.component_var.tobytes()
    assert seen[-1] == (DRAWS, DRAWS)
    assert len(seen) > 2
    assert seen == sorted(seen)


def test_many_draws_are_gathered_on_a_cluster(cluster, monkeypatch):
    monkeypatch.setattr(_sampler, "MAX_STORED_REPLICAS", 10_000)
    net = ns.paper.layer()
    here = net.law(n=64, draws=DRAWS, seed=3, progress=False)
    there = net.law(
        n=64, draws=DRAWS, seed=3, executor=cluster.get_executor(), progress=False
    )
    assert here.count.tobytes() == there.count.tobytes()
    assert here.component_var.tobytes() == there.component_var.tobytes()


def test_plan_is_sent_once(cluster, monkeypatch):
    """What a task carries must not grow with the plan."""
    import distributed

    sizes = []
    pool = cluster.get_executor()
    submit = pool.submit

    def weighed(work, *args):
        sizes.append(len(distributed.protocol.pickle.dumps(args[1:])))
        assert isinstance(args[0], distributed.Future)
        return submit(work, *args)

    monkeypatch.setattr(pool, "submit", weighed)
    monkeypatch.setattr(_sampler, "TASK_SECONDS", 0.0)
    ns.paper.layer().law(n=64, draws=DRAWS, executor=pool, progress=False)
    assert len(sizes) > 10
    assert max(sizes) < 2000


def test_reference_interpreter_on_cluster_gives_same_bits(cluster):
    net = ns.paper.layer()
    here = net.simulate(n=8, draws=300, progress=False)
    assert (
        here.tobytes()
        == net.simulate(
            n=8, draws=300, executor=cluster.get_executor(), progress=False
        ).tobytes()
    )


@pytest.mark.slow
def test_worker_that_dies_costs_nothing_but_time(cluster, monkeypatch):
    """Its chunks are done again by the other: same bits. Last, for its successor has
    yet to come up.
    """
    monkeypatch.setattr(_sampler, "TASK_SECONDS", 0.0)
    net = ns.paper.layer(tokens=8)
    here = net.law(n=64, draws=DRAWS, seed=3, progress=False)
    victim = next(iter(cluster.run(os.getpid).values()))
    killed = threading.Event()

    def watch(done, of):
        if done > of / 8 and not killed.is_set():
            os.kill(victim, signal.SIGKILL)
            killed.set()

    there = net.law(
        n=64, draws=DRAWS, seed=3, executor=cluster.get_executor(), progress=watch
    )
    assert killed.is_set()
    np.testing.assert_array_equal(here.component_var, there.component_var)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_paper_on_cluster_writes_same_files(cluster, folder):
    for out, executor in (("here", None), ("there", cluster.get_executor())):
        ns.paper.reproduce(
            "2a", out=out, samples=600, trials=2, workers=1, executor=executor
        )
    for name in ("2a.csv", "2a.png"):
        assert (folder / "here" / name).read_bytes() == (
            folder / "there" / name
        ).read_bytes()
    parts = [
        sorted(path.name for path in (folder / out / "parts").iterdir())
        for out in ("here", "there")
    ]
    assert parts[0] == parts[1]


@pytest.mark.slow
def test_audit_goes_on_without_a_worker_that_dies(cluster, tmp_path):
    """Its parts are done again by the other worker, with the bits of one process; and
    another run finds all parts in the folder, but for one that was lost.
    """
    model = ns.models.read("gpt2").replace(
        layers=2, width=16, heads=2, hidden=64, vocabulary=30
    )
    options = {"tokens": 4, "draws": 1600, "widths": "actual", "gradients": False}
    here = ns.audit(model, **options, progress=False, workers=1)
    victim = next(iter(cluster.run(os.getpid).values()))
    killed = threading.Event()

    def watch(done, of):
        if not killed.is_set():
            os.kill(victim, signal.SIGKILL)
            killed.set()

    out = tmp_path / "audit"
    pool = cluster.get_executor()
    there = ns.audit(model, **options, progress=watch, executor=pool, out=out)
    assert killed.is_set()
    parts = sorted((out / "parts").iterdir())
    assert len(parts) > 2
    times = {part: part.stat().st_mtime_ns for part in parts}
    parts[0].unlink()
    again = ns.audit(model, **options, progress=False, executor=pool, out=out)
    for name, numbers in here.actual.items():
        assert numbers.tobytes() == there.actual[name].tobytes(), name
        assert numbers.tobytes() == again.actual[name].tobytes(), name
    assert [part.stat().st_mtime_ns == times[part] for part in parts[1:]] == [True] * (
        len(parts) - 1
    )


COMMAND = ["law", "--width", "16", "--draws", "20000", "--json"]


@pytest.mark.slow
def test_dask_option_without_address_starts_a_cluster():
    # of its own: it begins further ones
    process = [sys.executable, "-m", "netsor", *COMMAND, "--dask", "local"]
    there = subprocess.run(process, capture_output=True, text=True, check=False)
    assert there.returncode == 0, there.stderr
    assert there.stdout == netsor(*COMMAND).stdout


@pytest.mark.slow
def test_dask_option_runs_on_the_cluster(cluster, folder):
    """A cluster by its address, and one that is not there."""
    there = netsor(*COMMAND, "--dask", cluster.scheduler.address)
    assert there.returncode == 0, there.stderr
    assert there.stdout == netsor(*COMMAND).stdout
    lost = netsor(*COMMAND, "--dask", "nowhere")
    assert lost.returncode == 2
    assert lost.stderr.count("\n") == 1
    assert "--dask 'nowhere' must be local or the address of a scheduler" in lost.stderr
