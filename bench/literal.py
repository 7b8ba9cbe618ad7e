"""Literal against exact: seconds and random numbers a draw, for each configuration of the paper, and their ratios.

Both are run in this process, one after the other, with the same number of threads; the floor is the bare time of
drawing as many random numbers with the same generator. Writes bench/results/literal.csv.
"""

from __future__ import annotations

import csv
import os
import platform
import time
from pathlib import Path

import numpy as np

import netsor as ns

n, d = ns.Width("n"), ns.Width("d")
RESULTS = Path(__file__).parent / "results"


@ns.program
def layer(tokens=4, heads=2, relu=False, low_rank=False):
    """The paper's layer."""
    g = ns.weight(n, n, tokens) @ ns.gaussian(n)
    x = ns.relu(g) if relu else ns.clip(g, 100)
    return ns.nn.attention(x, heads, head_dim=d if low_rank else None)


# name, arguments, widths, draws by the paper's figures, exact draws measured here
CONFIGURATIONS = [
    *((f"clip, H = 2, n = {w}", {}, {"n": w}, 500_000, 500_000) for w in (16, 64, 256, 1024)),
    ("clip, H = 1, n = 256", {"heads": 1}, {"n": 256}, 500_000, 500_000),
    ("clip, H = 256, n = 256", {"heads": 256}, {"n": 256}, 500_000, 500_000),
    *(
        (f"low rank, H = {h}, d = 64", {"heads": h, "low_rank": True}, {"n": 64 * h, "d": 64}, 500_000, 500_000)
        for h in (1, 4, 16)
    ),
    *((f"clip, s = 16, n = {w}", {"tokens": 16}, {"n": w}, 500_000, 200_000) for w in (16, 64, 256, 1024)),
    *((f"ReLU, H = 2, n = {w}", {"relu": True}, {"n": w}, 1_000_000, 20_000) for w in (16, 64, 256, 1024)),
]


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def literal_draw(net, widths):
    """Seconds a literal draw: as many draws as take about a second."""
    draws, spent = 1, 0.0
    while spent < 1.0 and draws < 100_000:
        draws *= 4
        spent = seconds(lambda count=draws: net.simulate(draws=count, coordinates=0, progress=False, **widths))
    return spent / draws


def floor(numbers):
    """Seconds to draw so many normals in this process, on one core."""
    rng = np.random.Generator(np.random.SFC64(0))
    return numbers * seconds(lambda: [rng.standard_normal(2**16) for _ in range(100)]) / (100 * 2**16)


def main():
    rows = []
    literal_total = exact_total = 0.0
    for name, arguments, widths, paper, draws in CONFIGURATIONS:
        net = layer(**arguments)[0]
        net.law(draws=10, **widths)
        spent = seconds(lambda net=net, draws=draws, widths=widths: net.law(draws=draws, progress=False, **widths))
        numbers = net.law(draws=10, **widths).random_numbers
        literal = literal_draw(net, widths)
        exact = spent / draws
        literal_total += literal * paper
        exact_total += exact * paper
        row = {
            "configuration": name,
            "literal s/draw": f"{literal:.3e}",
            "exact s/draw": f"{exact:.3e}",
            "ratio": f"{literal / exact:.0f}",
            "random numbers": numbers,
            "exact s": f"{spent:.2f} for {draws}",
            "over the floor": f"{exact * (os.cpu_count() or 1) / floor(numbers):.1f}",
        }
        rows.append(row)
        print("  ".join(f"{value!s:>26}" if k == 0 else f"{value!s:>14}" for k, value in enumerate(row.values())))
    print(f"all draws of the paper's figures: literal {literal_total / 3600:.1f} h, exact {exact_total:.0f} s")
    RESULTS.mkdir(exist_ok=True)
    part = RESULTS / "literal.csv.part"
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    part.replace(RESULTS / "literal.csv")
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"
    )
    (RESULTS / "machine.txt").write_text(machine + "\n")


if __name__ == "__main__":
    main()
