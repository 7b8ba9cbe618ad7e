"""The tables of `bench/learning_rates.py`, whose docstring has the protocol.

`python bench/learning_rates_tables.py DIR` prints them. With `--page` it also stores
the results in bench/results/learning_rates, and writes what they show into
docs/parametrise.md.
"""

from __future__ import annotations

import argparse
import math
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from learning_rates import (
    BY_ITS_UPDATE,
    DERIVED,
    ONE_RATE,
    SEEDS_OF_ROUND,
    STEP,
    Key,
    read,
)
from networks import NETWORKS
from scipy.stats import t as student_t

BOOTSTRAP = 2000  # samples of seeds
TOLERANCE = 0.1  # of exponents of changes
RESULTS = Path(__file__).parent / "results" / "learning_rates"
PAGE = Path(__file__).parents[1] / "docs" / "parametrise.md"
BEGIN = "<!-- bench/learning_rates_tables.py: begin -->"
END = "<!-- bench/learning_rates_tables.py: end -->"
WORDS_OF = {
    "nanogpt": "nanoGPT, tied",
    "vit": "ViT",
    "llama": "Llama",
    "experts": "mixture of experts",
    "mamba2": "Mamba-2",
    "latent_attention": "latent attention",
}


class Best(NamedTuple):
    """Best rates of one width, as log2: of the mean, and of bootstrap samples."""

    vertex: float
    on_grid: float
    is_inside: bool  # whether the smallest loss is within the grid
    samples: np.ndarray
    of_medians: float
    excess: tuple[float, float]  # of the loss at the best rate of the first width


def vertices(rates: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """The vertex of the parabola through the smallest loss and its neighbours, of every
    row of losses. At an end of the grid it is the end.
    """
    best = losses.argmin(axis=1)
    rows = np.arange(len(losses))
    middle = np.clip(best, 1, len(rates) - 2)
    left, centre, right = (losses[rows, middle + k] for k in (-1, 0, 1))
    curvature = left - 2 * centre + right
    is_inside = (best == middle) & (curvature > 0)
    shift = 0.5 * (left - right) / np.where(is_inside, curvature, 1.0)
    return rates[best] + STEP * np.where(is_inside, shift, 0.0)


def best_rates(
    values: dict[Key, float], network: str, rule: str
) -> tuple[dict[int, Best], int]:
    """The best rates of a network by width, and how many seeds all widths have.

    Empty if fewer than two seeds have all rates.
    """
    losses: dict[int, dict[int, dict[float, float]]] = {}
    for (kind, of_network, of_rule, width, seed, rate), value in values.items():
        if (kind, of_network, of_rule) == ("loss", network, rule):
            of_width = losses.setdefault(width, {})
            of_width.setdefault(seed, {})[float(rate)] = value
    if not losses:
        return {}, 0
    seeds = _complete_seeds(list(losses.values()))
    if len(seeds) < 2:
        return {}, 0
    generator = np.random.default_rng(0)
    chosen = generator.integers(0, len(seeds), (BOOTSTRAP, len(seeds)))
    found = {}
    first_best = None
    for width in sorted(losses):
        of_width = losses[width]
        rates = np.array(sorted(of_width[seeds[0]]))
        table = np.array([[of_width[s][r] for r in rates] for s in seeds])
        best = best_of(rates, table, chosen, first_best)
        first_best = best.on_grid if first_best is None else first_best
        found[width] = best
    return found, len(seeds)


def _complete_seeds(losses: Sequence[dict[int, dict[float, float]]]) -> list[int]:
    """The seeds that have all rates at all widths, in whole rounds."""
    complete = []
    for of_width in losses:
        rates = {rate for of_seed in of_width.values() for rate in of_seed}
        complete.append({s for s, x in of_width.items() if len(x) == len(rates)})
    seeds = sorted(set.intersection(*complete))
    whole_rounds = len(seeds) // SEEDS_OF_ROUND * SEEDS_OF_ROUND
    return seeds[: whole_rounds or len(seeds)]


def best_of(
    rates: np.ndarray, table: np.ndarray, chosen: np.ndarray, first_best: float | None
) -> Best:
    """The best rate of one width, from losses by seeds and rates.

    `chosen` has the seeds of bootstrap samples, `first_best` the best rate of the
    first width, or None for that width itself.
    """
    mean = table.mean(axis=0, keepdims=True)
    on_grid = int(mean.argmin())
    transferred = on_grid
    if first_best is not None:
        transferred = int(np.abs(rates - first_best).argmin())
    extra = table[:, transferred] - table[:, on_grid]
    medians = np.median(table, axis=0, keepdims=True)
    return Best(
        vertex=float(vertices(rates, mean)[0]),
        on_grid=float(rates[on_grid]),
        is_inside=0 < on_grid < len(rates) - 1,
        samples=vertices(rates, table[chosen].mean(axis=1)),
        of_medians=float(vertices(rates, medians)[0]),
        excess=(float(extra.mean()), float(extra.std(ddof=1) / math.sqrt(len(extra)))),
    )


class Spread(NamedTuple):
    """The largest difference of two best rates in grid points, and its interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the protocol says."""
        text = "transfers" if self.value <= 1 else "does not transfer"
        is_decided = self.high <= 1 or self.low > 1
        return text if is_decided else f"{text}, not decided"


def spread_of(best: Sequence[Best]) -> Spread:
    """The spread of the best rates of all widths."""
    pairs = list(combinations(best, 2))
    normal = NormalDist().inv_cdf(1 - 0.05 / 2 / len(pairs))
    differences, errors = [], []
    for one, other in pairs:
        differences.append(abs(one.vertex - other.vertex) / STEP)
        errors.append((one.samples - other.samples).std() / STEP)
    sizes, half_widths = np.array(differences), normal * np.array(errors)
    low = max(0.0, float((sizes - half_widths).max()))
    return Spread(float(sizes.max()), low, float((sizes + half_widths).max()))


def exponents(
    values: dict[Key, float], network: str
) -> dict[str, tuple[float, float, float]]:
    """The exponents of the width of all changes, with 99 % intervals."""
    changes: dict[str, dict[int, dict[int, float]]] = defaultdict(dict)
    for (kind, of_network, _, width, seed, path), value in values.items():
        if (kind, of_network) == ("change", network) and value > 0:
            changes[path].setdefault(seed, {})[width] = value
    found = {}
    for path, of_path in changes.items():
        count = max(len(of_seed) for of_seed in of_path.values())
        slopes = []
        for of_seed in of_path.values():
            if len(of_seed) == count > 1:
                widths = np.log2(list(of_seed))
                slopes.append(np.polyfit(widths, np.log2(list(of_seed.values())), 1)[0])
        if len(slopes) < 2:
            continue
        error = np.std(slopes, ddof=1) / math.sqrt(len(slopes))
        half_width = student_t.ppf(0.995, len(slopes) - 1) * error
        mean = float(np.mean(slopes))
        found[path] = (mean, mean - half_width, mean + half_width)
    return found


def verdict_of_change(low: float, high: float) -> str:
    """What the protocol says about the interval of an exponent."""
    if low >= -TOLERANCE and high <= TOLERANCE:
        return "agrees"
    is_outside = low > TOLERANCE or high < -TOLERANCE
    return "disagrees" if is_outside else "undecided"


def report(paths: Sequence[Path]) -> str:
    """All tables, as Markdown."""
    values = read(paths)
    networks = [name for name in NETWORKS if any(name == key[1] for key in values)]
    lines = [*_lines_of_rates(values, networks), ""]
    lines += [*_lines_of_changes(values, networks)]
    return "\n".join(lines) + "\n"


def _lines_of_rates(values: dict[Key, float], networks: Sequence[str]) -> Iterator[str]:
    for rule in (DERIVED, ONE_RATE):
        widths = sorted({x[3] for x in values if x[0] == "loss" and x[2] == rule})
        if len(widths) < 2:
            continue
        columns = [f"{width:,}" for width in widths]
        yield f"### {rule}: log2 of the best rate ± one standard error"
        yield ""
        head = ["network", "seeds", *columns, "spread in grid points", "verdict"]
        head += ["on the grid", "spread of medians", "loss at the first best rate"]
        yield "| " + " | ".join(head) + " |"
        yield "|" + "---|" * len(head)
        for network in networks:
            best, seeds = best_rates(values, network, rule)
            if [*best] == widths:
                cells = [network, str(seeds), *_cells_of_rates(list(best.values()))]
                yield "| " + " | ".join(cells) + " |"
        yield ""


def _cells_of_rates(best: Sequence[Best]) -> list[str]:
    """One row of the table of rates, by widths."""
    spread = spread_of(best)
    verdict = "not within the grid"
    if all(at_width.is_inside for at_width in best):
        verdict = spread.verdict
    medians = [at_width.of_medians for at_width in best]
    extra = [f"{x.excess[0]:+.4f} ± {x.excess[1]:.4f}" for x in best[1:]]
    return [
        *[f"{x.vertex:.2f} ± {x.samples.std():.2f}" for x in best],
        f"{spread.value:.2f} ({spread.low:.2f}, {spread.high:.2f})",
        verdict,
        ", ".join(f"{x.on_grid:g}" for x in best),
        f"{(max(medians) - min(medians)) / STEP:.2f}",
        ", ".join(extra),
    ]


def _lines_of_changes(
    values: dict[Key, float], networks: Sequence[str]
) -> Iterator[str]:
    yield "### changes of three steps: exponents of the width, with 99 % intervals"
    yield ""
    yield "| network | output | exponent | verdict |"
    yield "|---|---|---|---|"
    for network in networks:
        found = exponents(values, network)
        for path, (mean, low, high) in found.items():
            verdict = verdict_of_change(low, high)
            if path + BY_ITS_UPDATE in found:
                verdict = "not judged"
            interval = f"{mean:+.3f} ({low:+.3f}, {high:+.3f})"
            yield f"| {network} | {path} | {interval} | {verdict} |"


def section(values: dict[Key, float]) -> str:
    """What the results show, for the page."""
    networks = [name for name in WORDS_OF if any(name == key[1] for key in values)]
    rows, verdicts = [], {}
    for network in networks:
        best, seeds = best_rates(values, network, DERIVED)
        if len(best) < 2:
            continue
        at_widths = list(best.values())
        cells = _cells_of_rates(at_widths)
        count = len(at_widths)
        verdicts[network] = cells[count + 1]
        row = [WORDS_OF[network], str(seeds), *cells[: count + 2]]
        one_rate, _ = best_rates(values, network, ONE_RATE)
        of_one_rate = "not run"
        if len(one_rate) > 1:
            of_one_rate = _distance_with_one_rate(list(one_rate.values()))
        rows.append("| " + " | ".join([*row, of_one_rate]) + " |")
    widths = sorted({x[3] for x in values if x[0] == "loss"})
    head = ["network", "initialisations", *[f"{width:,}" for width in widths]]
    head += ["largest distance (95 %)", "verdict", "with one rate for all"]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *rows]
    changes = [_line_of_changes(values, network) for network in networks]
    heads = "| network | agree | undecided | disagree | largest exponent (99 %) |"
    table_of_changes = [heads, "|---|---|---|---|---|", *changes]
    transfers = [x for x in verdicts if verdicts[x].startswith("transfers")]
    decided = [x for x in transfers if verdicts[x] == "transfers"]
    text = (
        f"By this rule the best rate of {len(transfers)} of {len(verdicts)} networks"
        f" transfers, and the initialisations decide it for {len(decided)} of them."
        " The columns of widths have the log2 of the best rate ± one standard error,"
        " and distances are in grid points. A best rate at an end of its grid makes"
        ' the verdict "not within the grid".'
    )
    of_changes = (
        "The changes of three steps, at widths 64 to 1,024 with 8 initialisations, by"
        " the exponents of all outputs that the protocol judges:"
    )
    paragraphs = [_filled(text), "\n".join(table), _filled(of_changes)]
    return "\n\n".join([*paragraphs, "\n".join(table_of_changes)])


def _distance_with_one_rate(best: Sequence[Best]) -> str:
    """The distance of the best rates, and whether one is at an end of its grid."""
    distance = f"{spread_of(best).value:.1f}"
    if all(at_width.is_inside for at_width in best):
        return distance
    return f"{distance}, at an end of the grid"


def _line_of_changes(values: dict[Key, float], network: str) -> str:
    """How many outputs agree, and the largest exponent."""
    found = exponents(values, network)
    judged = {path: x for path, x in found.items() if path + BY_ITS_UPDATE not in found}
    verdicts = [verdict_of_change(low, high) for _, low, high in judged.values()]
    counts = [verdicts.count(x) for x in ("agrees", "undecided", "disagrees")]
    if not judged:
        return f"| {WORDS_OF[network]} | not run | | | |"
    path = max(judged, key=lambda name: abs(judged[name][0]))
    mean, low, high = judged[path]
    largest = f"{mean:+.2f} ({low:+.2f}, {high:+.2f}), `{path}`"
    cells = [WORDS_OF[network], *map(str, counts), largest]
    return "| " + " | ".join(cells) + " |"


def _filled(text: str) -> str:
    """Text in lines, as on the page."""
    return textwrap.fill(text, 100, break_on_hyphens=False)


def write_page(text: str) -> None:
    """Put text between the two marks of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, help="the folder, or a file of results")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    paths = [given.results]
    if given.results.is_dir():
        paths = sorted(given.results.glob("*.csv"))
    print(report(paths), end="")
    if given.page:
        values = read(paths)
        for path in paths:
            if path.parent.resolve() != RESULTS.resolve():
                shutil.copy(path, RESULTS / path.name)
        write_page(section(values))


if __name__ == "__main__":
    main()
