"""--backend and --device on the commands that sample."""

import json
from importlib.util import find_spec

import click
import pytest

import netsor as ns
from tests.internals import (
    ArgumentError,
    Numpy,
    _diverging_scores,
    _process_pool,
    _subject,
)
from tests.internals import _training as training_study
from tests.internals import audit as audit_study

from .command import netsor
from .inline import Inline


@pytest.mark.slow
def test_law_on_other_backend():
    numpy, jax = (
        json.loads(
            netsor(
                "law",
                "--width",
                "32",
                "--draws",
                "20000",
                "--at",
                "0.5",
                "--json",
                *more,
            ).stdout
        )
        for more in (
            (),
            ("--backend", "jax", "--device", "cpu", "--precision", "float32"),
        )
    )
    assert "jax on cpu in float32" in jax["method"]
    one, two = numpy["pdf"][0], jax["pdf"][0]
    assert one["value"] != two["value"]
    assert abs(one["value"] - two["value"]) < 5 * (one["error"] + two["error"])


@pytest.mark.slow
def test_compare_on_other_backend():
    command = (
        "compare",
        "--width",
        "16",
        "--draws",
        "20000",
        "--json",
        "--backend",
        "jax",
        "--device",
        "cpu",
    )
    found = json.loads(netsor(*command).stdout)
    # known from independent scripts
    assert abs(found["kl"]["value"] - 2.218e-2) < 5 * found["kl"]["error"]


@pytest.mark.slow
def test_reproduce_on_other_backend(tmp_path, monkeypatch):
    monkeypatch.setattr(_process_pool, "Workers", Inline)
    out = tmp_path / "results"
    command = (
        "reproduce",
        "2a",
        "--samples",
        "600",
        "--trials",
        "1",
        "--workers",
        "1",
        "--out",
        str(out),
    )
    assert netsor(*command).returncode == 0
    before = (out / "2a.csv").read_bytes()
    done = netsor(*command, "--backend", "jax", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    # trials of another backend are others
    assert (out / "2a.csv").read_bytes() != before
    manifest = json.loads((out / "manifest.json").read_text())
    assert "--backend jax --device cpu" in manifest["command"]


@pytest.mark.parametrize("command", ["law", "compare", "reproduce"])
def test_unavailable_backend_or_device_is_rejected(command, tmp_path):
    for words, said in (
        (("--backend", "cupy"), "cupy"),
        (
            ("--backend", "numpy", "--device", "cuda"),
            "--device 'cuda' must be 'cpu' for numpy; the backends jax and torch",
        ),
        (
            ("--backend", "jax", "--device", "cuda:99"),
            "--device 'cuda:99' must be one that JAX sees here",
        ),
        (("--device", "moon"), "--device 'moon' must be 'cpu', 'cuda' or 'cuda:N'"),
        # which audits alone have
        (("--precision", "auto"), "'auto' is not one of 'float64', 'float32'"),
    ):
        found = netsor(command, *words, cwd=tmp_path)
        assert found.returncode == 2
        assert said in found.stderr
        # JAX adds a line of its own on a machine with a GPU that it cannot use
        lines = [x for x in found.stderr.splitlines() if "jaxlib is not" not in x]
        assert len(lines) == 1
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_plan_for_absent_device(library):
    """It depends on the kind of the device alone, so that neither the device nor the
    library is asked for.
    """
    words = (
        "plan",
        "--activation",
        "relu",
        "--tokens",
        "100",
        "--width",
        "256",
        "--json",
    )
    here = json.loads(netsor(*words).stdout)
    found = json.loads(
        netsor(*words, "--backend", library, "--device", "cuda:9").stdout
    )
    assert (here["place"], found["place"]) == ("one core", "an accelerator")
    plan = ns.paper.layer(tokens=100, activation="relu").plan(
        backend=library, device="cuda", n=256
    )
    assert found["random_numbers"] == plan.random_numbers != here["random_numbers"]
    assert found["plan"] == str(plan)
    assert "made for an accelerator" in found["plan"]


def test_plan_rejects_invalid_devices():
    for words, said in (
        (("--backend", "cupy"), "cupy"),
        (
            ("--device", "cuda"),
            "--device 'cuda' must be 'cpu' for numpy; the backends jax and torch",
        ),
        (
            ("--backend", "torch", "--device", "cuda:"),
            "--device 'cuda:' must be 'cpu', 'cuda' or 'cuda:N'",
        ),
    ):
        found = netsor("plan", *words)
        assert (found.returncode, found.stderr.count("\n")) == (2, 1)
        assert said in found.stderr


class Elsewhere(Numpy):
    """An accelerator, as far as costs go."""

    kind = "cuda"


def test_time_on_device_is_not_estimated():
    """Seconds are those of cores: a day of one is minutes of an accelerator."""
    net = ns.paper.layer(activation="tanh")
    how = net, [{"n": 4096}], 10**11
    with pytest.raises(
        click.UsageError,
        match=r"--draws 10 would take about .* days; choose smaller numbers",
    ):
        _subject.sampling_seconds(*how, Numpy(), "--draws 10")
    assert _subject.sampling_seconds(*how, Elsewhere(), "--draws 10") == 0.0


TINY = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 12,
}


@pytest.mark.skipif(find_spec("distributed") is None, reason="needs Dask")
@pytest.mark.parametrize(
    "command",
    [
        ["reproduce", "2a"],
        ["audit", "tiny.json"],
        ["coord-check", "tiny.json"],
        ["law"],
    ],
)
@pytest.mark.parametrize(
    "address",
    ["", "nowhere", "tcp://localhost", "tcp://localhost:99999", "inproc://1/2/3"],
)
def test_invalid_dask_address_is_rejected_before_work(
    command, address, tmp_path, monkeypatch
):
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    monkeypatch.setattr(_diverging_scores, "make_plan", None)  # nothing is planned
    out = [] if command == ["law"] else ["--out", "out"]
    found = netsor(*command, *out, "--dask", address, cwd=tmp_path)
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert found.stderr.startswith(
        f"netsor: --dask {address!r} must be local or the address of a scheduler that"
        " runs"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(find_spec("distributed") is None, reason="needs Dask")
def test_silent_dask_scheduler_is_rejected_before_work(tmp_path, monkeypatch):
    import distributed

    def nobody(address, timeout):
        raise OSError(f"Timed out trying to connect to {address} after {timeout}")

    monkeypatch.setattr(distributed, "Client", nobody)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    found = netsor(
        "audit",
        "tiny.json",
        "--out",
        "out",
        "--dask",
        "tcp://localhost:1",
        cwd=tmp_path,
    )
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert "--dask 'tcp://localhost:1' must be local or" in found.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["audit", "coord-check"])
def test_float32_is_rejected_before_work(command, tmp_path, monkeypatch):
    """A folder is not made for an audit that its precision does not hold, nor for a
    coordinate check.
    """
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))

    def refuse(plan, backend, draws, digits=0.0):
        raise ArgumentError(
            "precision", backend.precision, "'float64': this is not accurate enough"
        )

    for module in (audit_study, training_study):
        monkeypatch.setattr(module, "resolve_precision", refuse)
    words = [
        "--tokens",
        "2",
        "--draws",
        "15",
        *(["--widths", "16,32"] if command == "coord-check" else []),
    ]
    found = netsor(
        command,
        "tiny.json",
        *words,
        "--precision",
        "float32",
        "--out",
        "out",
        cwd=tmp_path,
    )
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert "--precision 'float32' must be 'float64': this is not" in found.stderr
    assert not (tmp_path / "out").exists()
