"""What a GPU gives: `python bench/gpu.py`, about seven minutes, into
bench/results/gpu.md and gpu.csv.

Times are wall times of this one process, after a first call that compiles (reported
separately). Exact and literal networks are timed on the same device. `--device cpu
--small` goes through the same motions where there is no GPU.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import platform
import time
from pathlib import Path

import numpy as np

import netsor as ns
from netsor.engine.backends import NoDeviceError, choose
from netsor.papers.sakai2025._experiments import Case, figures

RESULTS = Path(__file__).parent / "results"
LIMIT = 440.0  # seconds in all: what is left then is left out, and said so
GPT2 = {"width": 768, "heads": 12, "head_dim": 64, "hidden": 3072, "blocks": 12}
TINY = {"width": 16, "heads": 2, "head_dim": 8, "hidden": 32, "blocks": 2}
BEGUN = time.perf_counter()


@ns.program
def stack(tokens, width, heads, head_dim, hidden, blocks):
    """Pre-norm blocks: RMSNorm, causal attention, a perceptron with GELU; the last
    token.
    """
    x = ns.gaussian(width, tokens)
    for _ in range(blocks):
        x = x + ns.nn.attention(ns.rms_norm(x), heads, head_dim, mask="causal")
        x = x + ns.nn.mlp(ns.rms_norm(x), hidden, activation=ns.gelu)
    return x[tokens - 1]


@ns.program
def encoder(tokens, width, hidden, layers):
    """Post-norm, one head, ReLU: the first token of the last layer."""
    x = ns.gaussian(width, tokens)
    for _ in range(layers):
        x = ns.layer_norm(x + ns.nn.attention(x, 1, width))
        x = ns.layer_norm(x + ns.nn.mlp(x, hidden, activation=ns.relu))
    return x[0]


def timed(work, sync, least):
    """Seconds of the first call, and of one of as many more as take so long."""
    start = time.perf_counter()
    sync(work(0))
    first = time.perf_counter() - start
    count = 1
    while True:
        start = time.perf_counter()
        for k in range(count):
            result = work(1 + k)
        sync(result)
        spent = time.perf_counter() - start
        if spent >= least:
            return first, spent / count
        enough = int(count * 1.2 * least / max(spent, 1e-6))
        count = max(2 * count, min(1000, enough))


def sampled(net, widths, backend, least=1.0):
    """A row: replicas a second of the bare sampler, everything left on the device."""
    plan = net.plan(backend=backend, **widths)
    size = backend.chunk(plan, 2**40)

    def work(k):
        # not the first chunk, which PyTorch makes in smaller blocks
        part = range((k + 1) * size, (k + 2) * size)
        (pair,) = list(backend.sample(plan, 0, part, size, lambda draws: None))
        return backend.cov(pair[1])

    first, each = timed(work, lambda cov: backend.numpy(cov[-1:]), least)
    return {
        "replicas in one go": size,
        "first call s": first,
        "draws a second": size / each,
        "ms a draw": 1e3 * each / size,
    }


def texts(row):
    """A row with its numbers as text."""
    return {
        name: f"{value:.4g}" if isinstance(value, float) else value
        for name, value in row.items()
    }


class Table:
    """Rows, printed and saved as they come."""

    def __init__(self, machine):
        self.machine, self.rows = machine, []

    def add(self, what, how, work):
        """Do the work for a row, if there is time for it."""
        if time.perf_counter() - BEGUN > LIMIT:
            row = {"left out": "no time was left"}
        else:
            try:
                row = work()
            except (NoDeviceError, ImportError, RuntimeError, MemoryError) as error:
                message = str(error).splitlines()[0][:120]
                row = {"left out": f"{type(error).__name__}: {message}"}
        self.rows.append({"what": what, "how": how, **row})
        spent = time.perf_counter() - BEGUN
        print(f"{spent:6.1f} s ", texts(self.rows[-1]), flush=True)
        self.save()

    def save(self):
        """Into bench/results."""
        columns = {}  # in order, without repetitions
        for row in self.rows:
            columns |= dict.fromkeys(row)
        names = list(columns)
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
        writer.writeheader()
        table = [names, ["---"] * len(names)]
        for row in self.rows:
            cells = texts(row)
            writer.writerow(cells)
            table.append([str(cells.get(name, "")) for name in names])
        lines = ["# Measured on an accelerator", "", f"{self.machine}.", ""]
        lines += [f"| {' | '.join(cells)} |" for cells in table]
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "gpu.csv").write_text(buffer.getvalue())
        (RESULTS / "gpu.md").write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    least = 0.02 if options.small else 1.0
    device = options.device
    table = Table(described(device))

    def rate(what, net, widths, backend, precision):
        where = f"{backend} {precision}"
        table.add(
            what,
            where,
            lambda: sampled(net, widths, choose(backend, device, precision), least),
        )

    paper = Case(heads=2, width=1024)
    for backend, precision in (
        ("jax", "float32"),
        ("torch", "float32"),
        ("jax", "float64"),
        ("torch", "float64"),
    ):
        rate(
            "the paper's layer, n = 1024, H = 2",
            paper.program,
            paper.widths,
            backend,
            precision,
        )
    billion(table, paper, device, 10**5 if options.small else 10**9)
    size = TINY if options.small else GPT2
    for tokens in (4,) if options.small else (16, 128):
        name = f"{size['blocks']} blocks, width {size['width']}, s = {tokens}"
        for backend in ("jax", "torch"):
            rate(name, stack(tokens, **size), {}, backend, "float32")
        table.add(
            name,
            "literal, torch float32",
            lambda tokens=tokens: drawn(tokens, size, device, least),
        )
    model = "gpt2" if options.small else "llama-3-405b"
    table.add(
        f"audit of {model}, 16 tokens",
        "torch float32, in all",
        lambda: audited(model, device, options.small),
    )
    cases = {}
    for figure in figures().values():
        cases |= dict.fromkeys(case for case in figure.cases if not case.score)
    total = 0.0
    for case in list(cases)[:2] if options.small else cases:
        label = f"{case.activation} s={case.tokens} H={case.heads} n={case.width:.0f}"
        rate(label, case.program, case.widths, "jax", "float32")
        total += 10 * case.samples / table.rows[-1].get("draws a second", math.nan)
    table.add(
        "all draws of the paper's figures", "jax float32", lambda: {"seconds": total}
    )


def billion(table, case, device, draws):
    """A whole law of so many draws, from the call to its density."""

    def work():
        start = time.perf_counter()
        law = case.program.law(
            draws=draws,
            backend="jax",
            device=device,
            precision="float32",
            progress=False,
            **case.widths,
        )
        spent = time.perf_counter() - start
        value, error = law.with_error.pdf(0.5)
        start = time.perf_counter()
        law.pdf(0.25)
        return {
            "seconds": spent,
            "draws a second": draws / spent,
            "pdf(0.5)": f"{value:.8f} ± {error:.1e}",
            "ms for a pdf": 1e3 * (time.perf_counter() - start),
        }

    table.add(f"law(draws={draws:.0e})", "jax float32, in all", work)


def audited(model, device, small):
    """An audit at the model's own widths, from the call to its table."""
    draws = 10 if small else 128
    start = time.perf_counter()
    result = ns.audit(
        model,
        tokens=16,
        draws=draws,
        widths="actual",
        gradients=False,
        backend="torch",
        device=device,
        precision="float32",
    )
    spent = time.perf_counter() - start
    low, median, high = np.quantile(result.actual["loss"], [0.05, 0.5, 0.95])
    return {
        "replicas in one go": draws,
        "seconds": spent,
        "ms a draw": 1e3 * spent / draws,
        "loss": f"{median:.3f} ({low:.3f} to {high:.3f})",
    }


def drawn(tokens, size, device, least):
    """The literal network in torch, in batches that fit a quarter of the device."""
    import literal
    import torch

    attention = 4 * size["width"] * size["heads"] * size["head_dim"]
    weights_of_block = attention + 2 * size["width"] * size["hidden"]
    replicas = 2
    if device != "cpu":
        free = torch.cuda.mem_get_info()[0]  # bytes
        replicas = max(1, int(free // 4 // (8 * weights_of_block)))
    with torch.no_grad():
        first, each = timed(
            lambda k: literal.stack(replicas, device, tokens, **size),
            lambda y: y[-1:].cpu(),
            least,
        )
    return {
        "replicas in one go": replicas,
        "first call s": first,
        "draws a second": replicas / each,
        "ms a draw": 1e3 * each / replicas,
    }


def described(device):
    """The machine, and what is installed on it."""
    parts = [
        platform.processor() or platform.machine(),
        f"Python {platform.python_version()}",
        f"netsor {ns.__version__}",
    ]
    try:
        import jax

        parts.append(f"jax {jax.__version__} ({jax.devices()[0].device_kind})")
    except ImportError:
        pass
    try:
        import torch

        name = "CPU"
        if device != "cpu" and torch.cuda.is_available():
            name = torch.cuda.get_device_name()
        parts.append(f"torch {torch.__version__} ({name})")
    except ImportError:
        pass
    return ", ".join(parts)


if __name__ == "__main__":
    main()
