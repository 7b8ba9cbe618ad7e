"""The numbers and figures of the long paper: `make paper` runs this, then Typst.

It runs the results of `netsor literature` that the paper reports, into results/paper,
where an interrupted run resumes, and one attention layer; and reads tables that other
targets have committed: bench/results and docs. Everything that the paper prints is in
numbers.json, as text with its error.
"""

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import netsor as ns
from netsor.laws import Estimate

HERE = Path(__file__).parent
ROOT = HERE.parent
RUN = ROOT / "results" / "paper"
RESULTS = (
    "words",
    "positions",
    "recurrent",
    "hypersphere",
    "shapes",
    "streams",
    "ngpt",
)
FIGURES = ("words", "words-models", "positions", "recurrent", "recurrent-rate")
WIDTHS = (16, 64, 256, 1024)
DRAWS = 200_000


def shown(value: float, error: float = 0.0) -> str:
    """A number with its error in the last digits that it decides."""
    return str(Estimate(value, error)) if error else f"{value:.4g}"


def table(name: str) -> list[dict[str, str]]:
    """The rows of a figure's data."""
    with open(RUN / f"{name}.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def literature() -> dict[str, Any]:
    """All statements with their rules, numbers and verdicts, by result."""
    run = ns.literature(*RESULTS, out=RUN, progress=False)
    (HERE / "figures").mkdir(exist_ok=True)
    for name in FIGURES:
        content = (RUN / f"{name}.png").read_bytes()
        (HERE / "figures" / f"{name}.png").write_bytes(content)
    statements: dict[str, Any] = {}
    for name, claims in run.claims.items():
        statements[name] = [
            {
                "published": claim.published,
                "ours": claim.ours,
                "verdict": claim.verdict,
            }
            for claim in claims
        ]
    return {"statements": statements, "summary": run.summary}


def words() -> dict[str, Any]:
    """Cosines after the last block, by activation and length; and built-in models."""
    cosines = {}
    for row in table("words"):
        if row["block"] == "32":
            name = f"{row['activation']} {row['tokens']}"
            cosines[name] = shown(float(row["cosine"]), float(row["error"]))
    models = []
    for row in table("words-models"):
        resolved = abs(float(row["cosine"])) > 4 * float(row["error"])
        models.append(
            [
                row["model"],
                row["activation"].replace("_tanh", ""),
                row["positions"],
                shown(float(row["cosine"]), float(row["error"])),
                f"{float(row['cosine_without_positions']):.2f}",
                f"{float(row['preference']):.2g}" if resolved else "–",
            ]
        )
    return {"cosine": cosines, "models": models}


def positions() -> dict[str, Any]:
    """Shares of the first token, the middle half and the last, by case."""
    shares: dict[str, list[float]] = {}
    for row in table("positions"):
        shares.setdefault(row["case"], []).append(float(row["share"]))
    found = {}
    for case, values in shares.items():
        tokens = len(values)
        middle = sum(values[tokens // 4 : 3 * tokens // 4])
        parts = (values[0], middle, values[-1])
        found[case] = [f"{100 * part:.2g}" for part in parts]
    return found


def recurrent() -> dict[str, Any]:
    """Divergences and variances by layer and width."""
    rows = []
    for row in table("recurrent-rate"):
        rows.append(
            [
                row["layer"],
                row["width"],
                shown(float(row["kl"]), float(row["kl_error"])),
                shown(float(row["variance"]), float(row["variance_error"])),
            ]
        )
    return {"rows": rows}


def layer() -> dict[str, Any]:
    """The attention layer of Sakai et al.: its limit, and distances from it."""
    net = ns.paper.layer(tokens=4, heads=2)
    limit = net.law(n=math.inf)
    rows = []
    for width in WIDTHS:
        law = net.law(n=width, draws=DRAWS, seed=0)
        variance = law.with_error.var()
        rows.append([str(width), str(ns.kl(law, limit)), str(variance)])
    literal = (4 + 4 * 2) * 1024**2 + 1024
    return {
        "variance": f"{limit.var():.6f}",
        "kurtosis": f"{limit.kurtosis():.5f}",
        "rows": rows,
        "numbers": str(net.law(n=1024, draws=10, seed=0).random_numbers),
        "literal": f"{literal:,}",
    }


def committed() -> dict[str, Any]:
    """Tables that other targets make: times, classes that are read, real models."""
    bench = (ROOT / "bench" / "results" / "table.md").read_text(encoding="utf-8")
    total = re.search(r"literal ([\d.]+) h .*?exact ([\d.]+) s", bench)
    assert total is not None, "bench/results/table.md has no total of the paper's draws"
    with open(ROOT / "docs" / "coverage.csv", encoding="utf-8") as file:
        classes = list(csv.DictReader(file))
    read = [row for row in classes if row["status"] == "read"]
    errors = [float(row["error"]) for row in read if row["error"]]
    accuracy = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    made = accuracy.split("<!-- the table")[1].split("<!-- the end")[0]
    real = []
    for line in made.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) >= 6:
            real.append([cells[0].strip("`"), *cells[2:6]])
    return {
        "literal_hours": total.group(1),
        "exact_seconds": total.group(2),
        "classes": str(len(classes)),
        "read": str(len(read)),
        "largest_error": f"{max(errors):.0e}",
        "real": real,
    }


def main() -> None:
    """Write numbers.json."""
    numbers = {
        "literature": literature(),
        "words": words(),
        "positions": positions(),
        "recurrent": recurrent(),
        "layer": layer(),
        "committed": committed(),
        "version": ns.__version__,
    }
    text = json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
    (HERE / "numbers.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
