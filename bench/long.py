"""Long inputs and large gradients on a GPU: `python bench/long.py`, about four minutes,
into bench/results/long.md.

Each row has the time of one draw, after a first one, and the peak of the memory that
PyTorch allocated for it, beside that of the arrays of the plan. `--device cpu --small`
goes through the same motions where there is no GPU.
"""

from __future__ import annotations

import argparse
import time

import gpu
import torch

import netsor as ns
from netsor.engine.backends import choose
from netsor.engine.plan._recompute import recomputing

FORWARD = ((4, 1024), (4, 4096), (8, 8192))  # blocks of Llama 3 8B, and tokens
TINY = {"width": 64, "heads": 4, "groups": 2, "hidden": 128, "vocabulary": 300}
HEADER = ("what", "planning s", "steps", "arrays GiB", "peak GiB", "s a draw")
GIB = 2.0**30


def planned(name, layers, tokens, gradients, backend, small):
    """The plan of an audit, and the seconds that it took."""
    model = ns.models.read(name).replace(layers=layers)
    if small:
        model, tokens = model.replace(layers=2, **TINY), 12
    start = time.process_time()
    plan = model.probes(tokens=tokens, gradients=gradients).plan(backend=backend)
    return plan, time.process_time() - start


def drawn(plan, backend):
    """Seconds and peak GiB of a draw, after a first one; no peak on a CPU."""
    on_gpu = backend.kind == "cuda"
    for _ in range(2):
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        ((mean, _),) = list(backend.sample(plan, 0, range(1), 1, lambda draws: None))
        backend.numpy(mean)
        seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0
    return seconds, peak


def row(what, plan, planning, backend):
    """A row of the table, printed."""
    seconds, peak = drawn(plan, backend)
    arrays = plan.bytes * backend.itemsize / 8 / GIB
    numbers = (f"{number:.3g}" for number in (arrays, peak, seconds))
    cells = (what, f"{planning:.1f}", str(len(plan.steps)), *numbers)
    print(*cells, sep="; ", flush=True)
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    backend = choose("torch", options.device, "float32")
    rows = []
    for layers, tokens in FORWARD:
        plan, planning = planned(
            "llama-3-8b", layers, tokens, False, backend, options.small
        )
        what = f"Llama 3 8B, {layers} blocks, {tokens:,} tokens"
        rows.append(row(what, plan, planning, backend))
    for name, title, layers in (
        ("llama-3-8b", "Llama 3 8B, 8 blocks", 8),
        ("llama-3-405b", "Llama 3.1 405B", 126),
    ):
        plan, planning = planned(name, layers, 128, True, backend, options.small)
        what = f"{title}, gradients, 128 tokens"
        rows.append(row(what, plan, planning, backend))
        start = time.process_time()
        again = recomputing(plan)
        planning = time.process_time() - start
        rows.append(row(f"{what}, blocks recomputed", again, planning, backend))
    if not options.small:
        table = [HEADER, ("---",) * len(HEADER), *rows]
        lines = [f"| {' | '.join(cells)} |" for cells in table]
        lines = ["# Long inputs and large gradients", "", *lines]
        machine = gpu.described(options.device)
        text = "\n".join([*lines[:2], f"{machine}.", "", *lines[2:]])
        (gpu.RESULTS / "long.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
