"""Exact laws against literal PyTorch on one device, in one process: `python
bench/ratios.py`, ten minutes on a GPU.

A ratio above 1 says that the exact law is faster. `--only blocks,encoder,audits,steps`
picks parts; `--device cpu --small` goes through the same motions where there is no GPU.
It also writes bench/results/ratios.md.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import gpu
import literal
import torch

import netsor as ns
from netsor.engine.backends import _torch, choose
from netsor.engine.plan._plan import run

ENCODER = {"tokens": 192, "width": 720, "hidden": 2880, "layers": 50}
SMALL_ENCODER = {"tokens": 6, "width": 12, "hidden": 16, "layers": 3}


def elapsed(work):
    """Seconds of a call, with all that it left to do on the device."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def blocks(table, device, small):
    """Draws a second after the first call."""
    size, least = (gpu.TINY, 0.02) if small else (gpu.GPT2, 1.0)
    for tokens in (4,) if small else (16, 128, 1024):
        label = (
            f"{size['blocks']} blocks, width {size['width']}, s = {tokens}, ms a draw"
            " after the first call"
        )
        theirs = gpu.drawn(tokens, size, device, least)["ms a draw"]
        for backend in ("torch", "jax"):
            found = gpu.sampled(
                gpu.stack(tokens, **size), {}, choose(backend, device, "float32"), least
            )
            table.add(
                label,
                backend,
                theirs,
                found["ms a draw"],
                f"first call {found['first call s']:.1f} s",
            )


def encoder(table, device, small):
    """Everything, from writing the program down to the last draw."""
    size, draws = (SMALL_ENCODER, 10) if small else (ENCODER, 200)
    net = (
        f"{size['layers']} post-norm layers, width {size['width']}, s ="
        f" {size['tokens']}"
    )
    label = f"{net}, {draws} draws, s in all"

    def exact(seed):
        net = gpu.encoder(**size)
        return net.law(
            draws=draws,
            seed=seed,
            backend="torch",
            device=device,
            precision="float32",
            progress=False,
        )

    with torch.no_grad():
        literal.encoder(2, device, **size)  # starts the device's libraries
        theirs = elapsed(lambda: literal.encoder(draws, device, **size).cpu())
        modules = elapsed(
            lambda: [literal.module(device, **size).cpu() for _ in range(draws)]
        )
    gpu.encoder(**(size | {"layers": 1})).law(
        draws=8, backend="torch", device=device, precision="float32"
    )
    planning = elapsed(lambda: gpu.encoder(**size).plan())
    ours = elapsed(lambda: exact(0))
    again = elapsed(lambda: exact(1))
    note = f"planning alone {planning:.1f} s, once more in all {again:.1f} s"
    table.add(f"{label}, literal in batches", "torch", theirs, ours, note)
    table.add(
        f"{label}, literal one by one, of PyTorch's modules",
        "torch",
        modules,
        ours,
        note,
    )
    found = gpu.sampled(
        gpu.encoder(**size),
        {},
        choose("torch", device, "float32"),
        0.02 if small else 1.0,
    )
    note = f"{found['replicas in one go']} in one go, literal {draws}"
    table.add(
        f"{net}, ms a draw after the first call",
        "torch",
        1e3 * theirs / draws,
        found["ms a draw"],
        note,
    )


def audits(table, device, small):
    """Everything, from the name of a model to its table, forward quantities alone."""
    tokens, draws = (12, 16) if small else (1024, 16)
    models = {"gpt2": literal.GPT2}
    if not small:
        models["llama-3-8b"] = literal.LLAMA
    for name, size in models.items():
        label = f"audit of {name}, {tokens} tokens, {draws} draws, s in all"

        def drawn(size=size, name=name):
            ids = list(range(tokens))
            with torch.no_grad():
                for _ in range(draws):
                    literal.model(device, ids, rotary=name != "gpt2", **size).cpu()

        def audited(name=name):
            ns.audit(
                name,
                tokens=tokens,
                draws=draws,
                widths="actual",
                gradients=False,
                backend="torch",
                device=device,
                precision="float32",
                progress=False,
            )

        theirs = elapsed(drawn)
        ours = elapsed(audited)
        table.add(
            label, "torch", theirs, ours, f"once more in all {elapsed(audited):.1f} s"
        )


def steps(table, device, small):
    """Where the time of PyTorch goes, by kind of step, after a first run; the device is
    waited for after each step.
    """
    if small:
        tokens, size, encoder_size = 4, gpu.TINY, SMALL_ENCODER
        replicas_of_stack = replicas_of_encoder = 4
    else:
        tokens, size, encoder_size = 128, gpu.GPT2, ENCODER
        replicas_of_stack, replicas_of_encoder = 256, 64
    stack_label = f"{size['blocks']} blocks, s = {tokens}"
    nets = {
        stack_label: (gpu.stack(tokens, **size), replicas_of_stack),
        "encoder": (gpu.encoder(**encoder_size), replicas_of_encoder),
    }
    for label, (net, replicas) in nets.items():
        backend = choose("torch", device, "float32")
        plan = net.plan(backend=backend)
        for seed in range(2):
            spent = defaultdict(float)
            with torch.no_grad():
                work = _torch._Block(backend, seed, 0, replicas, replicas)

                def kept(rule, spent=spent):
                    def call(step, *rest):
                        made = []
                        spent[step.kind] += elapsed(
                            lambda: made.append(rule(step, *rest))
                        )
                        return made[0]

                    return call

                run(plan, kept(work.draw), work.constant, kept(work.compute))
        order = sorted(spent.items(), key=lambda pair: -pair[1])[:9]
        times = ", ".join(f"{kind} {1e3 * seconds:.0f}" for kind, seconds in order)
        table.say(
            f"{label}, {replicas} replicas, ms by kind of step: {times}; in all"
            f" {1e3 * sum(spent.values()):.0f}"
        )


PARTS = {"blocks": blocks, "encoder": encoder, "audits": audits, "steps": steps}


class Lines:
    """Comparisons, printed as they come and kept."""

    def __init__(self):
        self.lines, self.begun = [], time.perf_counter()

    def add(self, what, backend, theirs, ours, note):
        """A comparison."""
        self.say(
            f"{what}: {backend} {ours:.4g}, literal {theirs:.4g}, ratio"
            f" {theirs / ours:.2f} ({note})"
        )

    def say(self, line):
        """A line."""
        self.lines.append(line)
        print(f"{time.perf_counter() - self.begun:6.1f} s  {line}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    table = Lines()
    for part in options.only.split(","):
        try:
            PARTS[part](table, options.device, options.small)
        except (RuntimeError, MemoryError, ValueError, ImportError) as error:
            table.say(
                f"{part}: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
            )
    if not options.small:
        lines = [
            "# Exact laws against literal PyTorch",
            "",
            f"{gpu.described(options.device)}.",
            "",
        ]
        (gpu.RESULTS / "ratios.md").write_text(
            "\n".join([*lines, *(f"- {line}" for line in table.lines)]) + "\n"
        )


if __name__ == "__main__":
    main()
