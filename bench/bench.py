"""Everything that is timed: `make bench`, about five minutes on two cores, into
bench/results.

Times are compared only with times of this same process on this same machine. The floor
of a configuration is the bare time of drawing its random numbers, of the same kinds and
with the same generator, and of doing nothing with them.
"""

from __future__ import annotations

import csv
import io
import math
import os
import platform
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import scipy

import netsor as ns
from netsor.engine.backends._numpy import Streams, block, hold_memory
from netsor.engine.plan._plan_query import make_plan, no_garbage_collection
from netsor.models._training import training
from netsor.papers.sakai2025._experiments import Case, figures
from netsor.report._mpl_style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    STYLE,
    VERMILLION,
    new,
    rendered,
)

RESULTS = Path(__file__).parent / "results"
TRIALS = 10  # in the paper


def seconds(work, least=0.3, repeats=2):
    """The best of a few timings of `work`, in seconds a call; each timing repeats the
    call until it takes at least `least` seconds.
    """
    best = math.inf
    count = 1
    while repeats:
        start = time.perf_counter()
        for _ in range(count):
            work()
        spent = time.perf_counter() - start
        if spent < least and count < 10**6:
            count *= 2 if spent > least / 4 else 4
            continue
        best = min(best, spent / count)
        repeats -= 1
    return best


def sample(net, widths, draws, workers=None):
    return net.law(draws=draws, workers=workers, progress=False, **widths)


def literal(net, widths):
    """Seconds a literal draw, from as many draws as take about a second."""
    draws, spent = 1, 0.0
    while spent < 1.0 and draws < 200_000:
        draws *= 4
        start = time.perf_counter()
        net.simulate(draws=draws, coordinates=0, progress=False, **widths)
        spent = time.perf_counter() - start
    return spent / draws


class Counted:
    """How many normals and gammas a law draws for each replica, with their shape
    parameters, from its plan.
    """

    def __init__(self, net, widths):
        plan = net.plan(**widths)
        self.all = plan.random_numbers
        self.normals, self.gammas = 0, {}
        for step in plan.steps:
            # of ReLU vectors, sizes are most of what is drawn
            if step.kind in ("normals", "positive"):
                self.normals += step.random_numbers
            elif step.kind == "chi":
                degrees = [float(freedom) for freedom in step.params["freedom"]]
                for freedom in degrees:
                    self.gammas.setdefault(freedom, 0)
                    self.gammas[freedom] += step.random_numbers // len(degrees)

    def floor(self):
        """Seconds a replica to draw them on one core, in large arrays."""
        rng = np.random.Generator(np.random.SFC64(0))
        normal = seconds(lambda: rng.standard_normal(2**16), 0.05, 3) / 2**16
        gammas = 0.0
        for freedom, count in self.gammas.items():
            draw = partial(rng.standard_gamma, freedom / 2, 2**14)
            gammas += count * seconds(draw, 0.01, 2) / 2**14
        return self.normals * normal + gammas, self.all * normal


def configurations():
    """The paper's configurations: literal against exact, the floor, memory, one and two
    workers.
    """
    rows = []
    for case in paper_cases():
        net, widths = case.program, case.widths
        counted = Counted(net, widths)
        draws = int(np.clip(4e8 / (counted.all * 8 + 400), 16_384, 131_072))
        one = seconds(partial(sample, net, widths, draws, 1), 0.5) / draws
        two = seconds(partial(sample, net, widths, draws), 0.5) / draws
        floor, normals = counted.floor()
        tracemalloc.start()
        sample(net, widths, 50_000, 1)
        memory = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        slow = literal(net, widths)
        rows.append(
            {
                "configuration": name(case),
                "draws in the paper": TRIALS * case.samples,
                "literal s/draw": slow,
                "exact s/draw": two,
                "literal / exact": slow / two,
                "literal numbers": weights(case),
                "exact numbers": counted.all,
                "over the floor": one / floor,
                "over as many normals": one / normals,
                "1 worker / all": one / two,
                "peak MiB": memory,
            }
        )
        show(rows[-1], first=len(rows) == 1)
    return rows


def paper_cases():
    """The cases of all figures of the paper, each once, without scores."""
    cases = {}
    for figure in figures().values():
        cases |= dict.fromkeys(case for case in figure.cases if not case.score)
    return list(cases)


def name(case):
    """The parameters of a case, in a few words."""
    text = f"{case.activation} s={case.tokens} H={case.heads} n={case.width:.0f}"
    if case.head_dim:
        text += f" d={case.head_dim:.0f}"
    return text


def weights(case):
    """Random numbers of a literal draw: h, a matrix a token, and the four of each
    head.
    """
    n, d = int(case.width), int(case.head_dim or case.width)
    return n + case.tokens * n * n + case.heads * 4 * n * d


# what grows, the case, the parameter, its values, draws, the predicted exponent
GROWTH = [
    ("n", Case(), "width", [16, 256, 4096, 2**16, 2**20, 10**9], 65_536, 0.0),
    (
        "n (ReLU)",
        Case(activation="relu"),
        "width",
        [64, 256, 1024, 4096, 16384],
        4_096,
        1.0,
    ),
    ("s", Case(width=1024), "tokens", [1, 4, 16, 64, 128, 256], 2_048, 2.0),
    ("H", Case(width=256), "heads", [1, 16, 64, 256, 1024, 4096], 2_048, 1.0),
    (
        "replicas",
        Case(width=1024),
        "draws",
        [2**13, 2**15, 2**17, 2**19, 2**20],
        None,
        1.0,
    ),
]


def growth():
    """Seconds and random numbers against each parameter, and the exponent fitted to the
    last three points.
    """
    rows = []
    for grows, case, parameter, values, draws, predicted in GROWTH:
        times, numbers = [], []
        for value in values:
            if parameter == "draws":
                # a law of more replicas: the time of all of them
                spent, count = timed_case(case, value)
            else:
                changed = replace(case, **{parameter: value})
                spent, count = timed_case(changed, draws)
                spent /= draws
            times.append(spent)
            numbers.append(count)
        exponent = last_exponent(values, times)
        exponent_of_numbers = 1.0
        if parameter != "draws":
            exponent_of_numbers = round(last_exponent(values, numbers), 3)
        for value, spent, count in zip(values, times, numbers, strict=True):
            rows.append(
                {
                    "grows": grows,
                    "value": value,
                    "seconds": spent,
                    "random numbers": count,
                    "exponent of time": exponent,
                    "exponent of numbers": exponent_of_numbers,
                    "predicted": predicted,
                }
            )
            show(rows[-1], first=len(rows) == 1)
    return rows


def timed_case(case, draws):
    """Seconds of a law of a case, and the random numbers of one draw."""
    net, widths = case.program, case.widths
    spent = seconds(partial(sample, net, widths, draws), 0.3)
    return spent, sample(net, widths, 2).random_numbers


def last_exponent(x, y):
    """The exponent of x in y, fitted to the last three points."""
    slope, _ = np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)
    return float(slope)


def grids():
    """Seconds until a network that is trained for three steps has a plan for each of
    some learning rates.
    """
    rows = []
    model = ns.models.read("gpt2").replace(layers=2)
    for rates in (1, 20):

        def plan(rates=rates):
            lr = ns.hyperparameter("lr")
            network = training(model, (1, 2, 3, 4), (2, 3, 4, 5))
            optimisers = {weight: ns.optim.SGD(lr) for weight in network.kinds()}
            steps = ns.train(network.logits, network.loss, optimisers, 3)
            net = ns.Program(steps[-1])
            for k in range(rates):
                net.plan(**model.widths(), lr=2.0**-k)

        rows.append({"learning rates": rates, "seconds of planning": seconds(plan)})
        show(rows[-1], first=rates == 1)
    return rows


def contexts(small=False):
    """Processor seconds of one core on long inputs: of the plan, and of a draw of all
    that an audit measures.
    """
    hold_memory()
    rows = []
    model = ns.models.read("gpt2")
    wide = model.replace(layers=2, width=1536, heads=24, hidden=6144)
    cases = {
        "GPT-2, 128 tokens": (model, 128, 5),
        "2 blocks of width 1536, 1,024 tokens": (wide, 1024, 1),
    }
    if small:
        cases = {"GPT-2, 2 blocks, 16 tokens": (model.replace(layers=2), 16, 1)}
    for name, (network, tokens, repeats) in cases.items():
        start = time.process_time()
        plan = network.probes(tokens=tokens).plan()
        row = {"network": name, "plan": time.process_time() - start}
        for precision in ("float32", "float64"):
            spent = []
            for seed in range(repeats):
                start = time.process_time()
                block(plan, Streams(seed, 0, precision), 1)
                spent.append(time.process_time() - start)
            row[precision] = min(spent)
        rows.append(row)
        show(rows[-1], first=len(rows) == 1)
    return rows


DEEP_BLOCKS = (24, 96, 126)


def depths(model="llama-3-405b", blocks=DEEP_BLOCKS, tokens=128, repeats=5):
    """Processor seconds to trace and plan all that an audit measures of a deep model:
    with equal blocks planned once, with every block planned, and with gradients.

    Medians of plans that alternate.
    """
    rows = []
    for layers in blocks:
        deep = ns.models.read(model).replace(layers=layers)
        # whether with gradients, and shortcuts to leave out
        options = {
            "blocks once": (False, ()),
            "every block": (False, ("repeated",)),
            "with gradients": (True, ()),
        }
        spent = {name: [] for name in options}
        for _ in range(repeats):
            for name, (gradients, without) in options.items():
                start = time.process_time()
                with no_garbage_collection():
                    measured = deep.probes(tokens=tokens, gradients=gradients)
                    outputs = measured.program.outputs
                    make_plan(outputs, deep.widths(), without=without)
                spent[name].append(time.process_time() - start)
        row = {"blocks": layers}
        row |= {name: float(np.median(times)) for name, times in spent.items()}
        rows.append(row)
        show(rows[-1], first=len(rows) == 1)
    return rows


def command(*words):
    return (
        f"import sys; sys.argv = ['netsor', *{words}]; from netsor.cli import main;"
        " main()"
    )


STARTS = {
    "python": "pass",
    "import numpy, scipy.special": "import numpy, scipy.special",
    "import scipy.stats": "import scipy.stats",
    "import netsor": "import netsor",
    "first value": "import netsor as ns; ns.gaussian(ns.Width('n'))",
    "first law at width 256": (
        "import netsor as ns; ns.paper.layer().law(n=256).pdf(0.5)"
    ),
    "first limit": "import netsor as ns; ns.paper.layer().law(n=ns.inf).pdf(0.5)",
    "netsor --version": command("--version"),
    "netsor law --help": command("law", "--help"),
    "netsor plan": command("plan"),
    "netsor law --width 256": command("law", "--width", "256"),
    "netsor law": command("law"),
    "an attention law, displayed": (
        "import netsor as ns; ns.paper.layer().law(n=ns.inf)._repr_html_()"
    ),
    "netsor audit gpt2 --quick": command("audit", "gpt2", "--quick", "--workers", "1"),
}


def starts():
    """Wall and processor time of whole processes, from a cold interpreter with warm
    files: the best of four.
    """
    rows = []
    for start, code in STARTS.items():
        wall, processor = math.inf, math.inf
        for _ in range(4):
            processor_before, before = children_seconds(), time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True
            )
            wall = min(wall, time.perf_counter() - before)
            processor = min(processor, children_seconds() - processor_before)
        rows.append({"start": start, "seconds": wall, "processor seconds": processor})
        show(rows[-1], first=len(rows) == 1)
    return rows


def children_seconds():
    """Processor seconds of all processes that were started here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def cell(value, digits=3):
    """A value of a table; numbers with few digits."""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def show(row, first=False):
    """Print a row of a table; with `first` also the names of its columns."""
    texts = [cell(value) for value in row.values()]
    if first:
        print("\n" + "  ".join(f"{k:>20}" for k in row))
    print("  ".join(f"{text:>20}" for text in texts), flush=True)


def picture(table, grown):
    """Literal against exact for each configuration, and how the exact cost grows."""
    with mpl.rc_context(STYLE):
        figure = new(5.6)
        top, bottom = figure.subplots(2, 1, height_ratios=(1.5, 1.0))
        plot_configurations(top, table)
        plot_growth(bottom, grown)
        figure.legend(
            *bottom.get_legend_handles_labels(),
            title="exponent of time (predicted)",
            title_fontsize=7,
            loc="outside lower center",
            ncols=3,
            columnspacing=1.0,
        )
        return dict(zip(("pdf", "png"), rendered(figure, "pdf", "png"), strict=True))


def plot_configurations(axes, table):
    """Seconds a draw of each configuration, literal and exact."""
    positions = np.arange(len(table))[::-1]  # the first one on top
    exact = [row["exact s/draw"] for row in table]
    literal = [row["literal s/draw"] for row in table]
    axes.hlines(positions, exact, literal, color="#cccccc")
    axes.plot(literal, positions, "s", color=VERMILLION, label="literal")
    axes.plot(exact, positions, "o", color=BLUE, label="exact")
    names = [row["configuration"] for row in table]
    axes.set_yticks(positions, names, fontsize=5.5)
    axes.set(xscale="log", xlabel="seconds a draw")
    axes.legend(loc="upper right")


def plot_growth(axes, grown):
    """Time against each parameter that grows, over that of its first value."""
    parameters = list(dict.fromkeys(row["grows"] for row in grown))
    colours = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE)
    for parameter, colour, marker in zip(parameters, colours, "os^Dv", strict=True):
        rows = [row for row in grown if row["grows"] == parameter]
        values = [row["value"] for row in rows]
        times = [row["seconds"] / rows[0]["seconds"] for row in rows]
        fitted, predicted = rows[0]["exponent of time"], rows[0]["predicted"]
        label = f"{parameter}: {fitted:.2f} ({predicted:.0f})"
        axes.plot(values, times, marker=marker, ms=3, lw=0.9, color=colour, label=label)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="value of the parameter",
        ylabel="time, first = 1",
    )


def save(path, content):
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content if isinstance(content, bytes) else content.encode())
    part.replace(path)


def as_csv(rows):
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell(value, 4) for name, value in row.items()})
    return buffer.getvalue()


def as_markdown(rows):
    table = [list(rows[0]), ["---"] * len(rows[0])]
    for row in rows:
        table.append([cell(value) for value in row.values()])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def main():
    RESULTS.mkdir(exist_ok=True)
    tables = {
        "configurations": configurations(),
        "growth": growth(),
        "starts": starts(),
        "grids": grids(),
        "contexts": contexts(),
        "depths": depths(),
    }
    slow, fast = 0.0, 0.0
    for row in tables["configurations"]:
        slow += row["literal s/draw"] * row["draws in the paper"]
        fast += row["exact s/draw"] * row["draws in the paper"]
    machine = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}, numpy {np.__version__}, scipy"
        f" {scipy.__version__}, netsor {ns.__version__}"
    )
    total = (
        f"All draws of the paper's figures: literal {slow / 3600:.1f} h "
        f"({slow / 86400 * (os.cpu_count() or 1):.1f} core-days), "
        f"exact {fast:.0f} s, ratio {slow / fast:.0f}."
    )
    page = "\n\n".join(
        [
            "# Measured",
            (
                f"{machine}. Times are wall times on all cores unless a column says"
                " otherwise."
            ),
            "## The paper's configurations",
            as_markdown(tables["configurations"]),
            total,
            "## Growth",
            as_markdown(tables["growth"]),
            "## Cold starts",
            as_markdown(tables["starts"]),
            "## Grids of learning rates",
            as_markdown(tables["grids"]),
            "## Long contexts, processor seconds",
            as_markdown(tables["contexts"]),
            "## Planning deep models, processor seconds",
            as_markdown(tables["depths"]),
        ]
    )
    for stem, rows in tables.items():
        save(RESULTS / f"{stem}.csv", as_csv(rows))
    for kind, content in picture(tables["configurations"], tables["growth"]).items():
        save(RESULTS / f"bench.{kind}", content)
    save(RESULTS / "machine.txt", machine + "\n")
    save(RESULTS / "table.md", page + "\n")
    print(f"\n{total}\nbench/results/table.md, bench/results/bench.png")


if __name__ == "__main__":
    main()
