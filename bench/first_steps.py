"""Whether real runs stay within the bands of `netsor check-run`.

`python bench/first_steps.py run` trains a GPT-2 (`nanogpt.py`) for its first steps in
200 fresh seeds, on a GPU, and checks each log with the law of `ns.torch.run_law`. The
logs go to first_steps.csv in the folder `--out`, and what they show to
first_steps.json. An interrupted run resumes. `--device cpu --layers 2 --width 64
--vocabulary 11100 --seeds 10` goes through the same motions where there is no GPU.

`python bench/first_steps.py check` checks the stored logs again, without training, and
`page` writes what they show into docs/check-run.md. `ids` makes the token ids again.

The criterion, fixed before the run: at most one of the 200 logs leaves its bands with
all columns, and at most one with loss and gradient norm alone. At a level of 0.001, two
or more alarms have a probability of 0.018.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import math
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import nanogpt
import numpy as np
import torch
from scipy import stats

import netsor as ns
from netsor._validate import counted
from netsor.checks._run_bands import band
from netsor.checks._run_check import TOLERANCE, RunLaw
from netsor.runtime._files import write
from netsor.torch._check_run import loop_of

HERE = Path(__file__).parent
RESULTS = HERE / "results"
IDS = HERE / "first_steps_ids.txt"
PAGE = HERE.parent / "docs" / "check-run.md"
BEGIN, END = (
    "<!-- bench/first_steps.py: begin -->",
    "<!-- bench/first_steps.py: end -->",
)

STEPS, ACCUMULATION, LEVEL = 5, 2, 1e-3
FIRST_SEED = 1  # of the trained runs; those of the law have 63 bits
ALLOWED_ALARMS = 1  # of all runs
OFTEN = 5  # runs after which the logs are written
LONGEST_SEARCH = 180.0  # seconds for the name of a mistake, about, on an H200
LAW, ENLARGED, RUN = "law", "law, matrices enlarged", "run"
USUAL = ("step", "loss", "grad_norm")  # the columns that most trainers log
IDS_OF_ROW = 257
VOCABULARY = 50257
WORDS = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "grad_norm/matrices": "gradient norm of matrices",
    "grad_norm/vectors": "gradient norm of vectors",
    "grad_norm_clipped": "gradient norm after clipping",
    "param_norm": "parameter norm",
    "update_norm": "update norm",
    "update_norm/matrices": "update norm of matrices",
    "update_norm/vectors": "update norm of vectors",
}


@dataclass(frozen=True)
class Settings:
    """What is trained; numbers of runs with other settings are not mixed."""

    layers: int
    width: int
    vocabulary: int
    sequences: int
    tokens: int
    initialisations: int | None
    device: str

    @property
    def config(self):
        """The sizes of the model."""
        return nanogpt.GPTConfig(
            vocab_size=self.vocabulary,
            n_layer=self.layers,
            n_head=max(1, self.width // 64),
            n_embd=self.width,
        )

    def model(self):
        """A new model."""
        return nanogpt.GPT(self.config)

    def batches(self):
        """The ids and targets of all passes, on the device."""
        rows = [line.split() for line in IDS.read_text().splitlines()]
        ids = torch.tensor([[int(x) for x in row] for row in rows], device=self.device)
        passes = (STEPS + 1) * ACCUMULATION
        if ids.shape[0] < passes * self.sequences or ids.shape[1] <= self.tokens:
            raise SystemExit(
                f"{IDS.name} has {ids.shape[0]} rows of {ids.shape[1]} ids"
            )
        parts = ids.split(self.sequences)[:passes]
        return [(x[:, : self.tokens], x[:, 1 : self.tokens + 1]) for x in parts]


class Logs:
    """The rows of all runs, in a CSV file that is written whole each time."""

    def __init__(self, path):
        self.path = path
        self.rows = []
        if path.exists():
            self.rows = list(csv.DictReader(io.StringIO(path.read_text())))

    def add(self, kind, seed, rows):
        """Add the log of a run."""
        for row in rows:
            numbers = {name: f"{x:.10g}" for name, x in row.items()}
            self.rows.append({"kind": kind, "seed": str(seed), **numbers})

    def save(self):
        """Write the file."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write(self.path, text.getvalue().encode())

    def of(self, kind):
        """The logs of a kind by seed: rows of numbers."""
        logs = {}
        for row in self.rows:
            if row["kind"] == kind:
                numbers = {name: float(x) for name, x in list(row.items())[2:]}
                logs.setdefault(int(row["seed"]), []).append(numbers)
        return logs

    def values(self, kind):
        """The numbers of a kind by name, (runs, steps), as `RunLaw` holds them."""
        logs = list(self.of(kind).values())
        names = [name for name in logs[0][0] if name != "step"]
        return {
            name: np.array([[row[name] for row in log] for log in logs])
            for name in names
        }


def stored_law(logs, settings, batches=None):
    """The law of the stored runs; with batches, it can try mistakes too."""
    loop = SteppedLoop()
    if batches is not None:
        loop = loop_of(
            settings.model,
            nanogpt.scheduled,
            batches,
            steps=STEPS,
            accumulation=ACCUMULATION,
            clip=nanogpt.CLIP,
            loss=None,
            tokens=None,
            sequences=None,
            device=settings.device,
        )
    return RunLaw(
        name="GPT",
        values=logs.values(LAW),
        level=LEVEL,
        tolerance=TOLERANCE,
        loop=loop,
        seeds=list(logs.of(LAW)),
        scaled=logs.values(ENLARGED),
    )


@dataclass(frozen=True)
class SteppedLoop:
    """What a check without hypotheses asks of a loop."""

    steps: int = STEPS


def train_law(logs, settings, batches):
    """Train the runs of the law, and store their numbers."""
    law = ns.torch.run_law(
        settings.model,
        nanogpt.scheduled,
        batches,
        steps=STEPS,
        accumulation=ACCUMULATION,
        clip=nanogpt.CLIP,
        initialisations=settings.initialisations,
        level=LEVEL,
        device=settings.device,
        progress=False,
    )
    for kind, values in ((LAW, law.values), (ENLARGED, law.scaled)):
        for k, seed in enumerate(law.seeds[: len(values["loss"])]):
            rows = [
                {"step": step, **{name: x[k, step] for name, x in values.items()}}
                for step in range(STEPS + 1)
            ]
            logs.add(kind, seed, rows)
    logs.save()


def train_runs(logs, settings, batches, seeds, ends):
    """Train the seeds that are missing, until a time; those of mistakes after them."""
    done = logs.of(RUN)
    missing = [seed for seed in seeds if seed not in done]
    for k, seed in enumerate(missing):
        if time.monotonic() > ends:
            print(f"no time for {len(missing) - k} of {len(seeds)} runs")
            break
        rows = nanogpt.train(
            settings.config, batches, ACCUMULATION, seed, settings.device
        )
        logs.add(RUN, seed, ordered(rows, logs))
        if (k + 1) % OFTEN == 0:
            logs.save()
            print(f"{k + 1} of {len(missing)} runs", flush=True)
    for mistake in nanogpt.MISTAKES:
        if mistake not in {row["kind"] for row in logs.rows}:
            seed = FIRST_SEED - 1
            rows = nanogpt.train(
                settings.config, batches, ACCUMULATION, seed, settings.device, mistake
            )
            logs.add(mistake, seed, ordered(rows, logs))
    logs.save()


def ordered(rows, logs):
    """Rows with the columns of the stored ones, in their order."""
    columns = list(logs.rows[0])[2:]
    return [{name: row[name] for name in columns} for row in rows]


def summary(logs, law):
    """What the logs show: alarms, and coverage by quantity and step."""
    runs = logs.of(RUN)
    alarms = {"all columns": [], "loss and gradient norm": []}
    for seed, rows in runs.items():
        usual = [{name: row[name] for name in USUAL} for row in rows]
        for title, log in zip(alarms, (rows, usual), strict=True):
            check = law.check(log, hypotheses=False)
            if not check.ok:
                alarms[title].append({"seed": seed, "verdict": check.verdict})
    first = next(iter(runs.values()))
    is_met = all(len(found) <= ALLOWED_ALARMS for found in alarms.values())
    return {
        "runs": len(runs),
        "initialisations": len(law.seeds),
        "level": LEVEL,
        "most alarms allowed": ALLOWED_ALARMS,
        "alarms": alarms,
        "criterion met": is_met,
        "power": law.check(first, hypotheses=False).power.text(
            float(law.values["loss"][:, 0].mean())
        ),
        "coverage": coverage(law, logs.values(RUN)),
        "mistakes": mistakes_found(logs, law),
    }


def coverage(law, values):
    """By quantity and step: the band at the level, and how many runs it holds.

    `p` is that of the test of Kolmogorov and Smirnov that both samples have one law;
    None for numbers that vary by less than the tolerance.
    """
    table = {}
    for name, healthy in law.values.items():
        steps = []
        for of_law, of_runs in zip(healthy.T, values[name].T, strict=True):
            at_level = band(of_law, LEVEL, TOLERANCE)
            at_five_percent = band(of_law, 0.05, TOLERANCE)
            is_constant = at_level.spread < TOLERANCE
            p = None if is_constant else float(stats.ks_2samp(of_law, of_runs).pvalue)
            steps.append(
                {
                    "low": at_level.low,
                    "expected": at_level.middle,
                    "high": at_level.high,
                    "inside": sum(bool(at_level.has(x)) for x in of_runs),
                    "inside at 0.05": sum(
                        bool(at_five_percent.has(x)) for x in of_runs
                    ),
                    "p": p,
                }
            )
        table[name] = steps
    return table


def mistakes_found(logs, law):
    """The verdict on each planted mistake, without its name."""
    verdicts = {}
    for mistake in nanogpt.MISTAKES:
        for rows in logs.of(mistake).values():
            verdicts[mistake] = law.check(rows, hypotheses=False).verdict
    return verdicts


def described(settings, seconds):
    """The settings, the ids, versions and times."""
    is_gpu = settings.device.startswith("cuda")
    with torch.device("meta"):
        module = settings.model()
    return {
        "settings": asdict(settings),
        "parameters": sum(p.numel() for p in module.parameters()),
        "steps": STEPS,
        "accumulation": ACCUMULATION,
        "clip": nanogpt.CLIP,
        "rate": nanogpt.RATE,
        "warm_up": nanogpt.WARM_UP,
        "ids": {
            "file": IDS.name,
            "sha256": hashlib.sha256(IDS.read_bytes()).hexdigest(),
            "made by": "python bench/first_steps.py ids",
        },
        "seconds of the last call": seconds,
        "versions": {
            "netsor": ns.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda if is_gpu else None,
            "numpy": np.__version__,
            "device": torch.cuda.get_device_name() if is_gpu else platform.machine(),
        },
    }


def save_document(folder, document):
    text = json.dumps(document, indent=1) + "\n"
    write(folder / "first_steps.json", text.encode())


def run(options):
    """Train the law and the runs, and store what they show."""
    begun = time.monotonic()
    ends = begun + options.limit
    settings = Settings(
        layers=options.layers,
        width=options.width,
        vocabulary=options.vocabulary,
        sequences=options.sequences,
        tokens=options.tokens,
        initialisations=options.initialisations,
        device=options.device,
    )
    refuse_other_settings(options.out, settings)
    batches = settings.batches()
    logs = Logs(options.out / "first_steps.csv")
    if not logs.rows:
        save_document(options.out, described(settings, seconds=0.0))
        train_law(logs, settings, batches)
        print(f"law: {time.monotonic() - begun:.0f} s", flush=True)
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    train_runs(logs, settings, batches, seeds, ends)
    seconds = time.monotonic() - begun
    print(f"law and runs: {seconds:.0f} s", flush=True)
    law = stored_law(logs, settings, batches)
    document = described(settings, seconds) | summary(logs, law)
    save_document(options.out, document)
    print(sentences(document), flush=True)
    if options.name_mistakes:
        name_mistakes(options.out, document, logs, law, ends)


def refuse_other_settings(folder, settings):
    """Stop if the folder has numbers of other settings."""
    path = folder / "first_steps.json"
    if not path.exists():
        return
    if json.loads(path.read_text())["settings"] != asdict(settings):
        raise SystemExit(f"{path} has other settings: choose another --out")


def name_mistakes(folder, document, logs, law, ends):
    """Look for the names of the planted mistakes, while there is time."""
    for mistake in nanogpt.MISTAKES:
        if time.monotonic() > ends - LONGEST_SEARCH:
            break
        (rows,) = logs.of(mistake).values()
        document["mistakes"][mistake] = law.check(rows).verdict
        save_document(folder, document)
        print(f"{mistake}: {document['mistakes'][mistake]}", flush=True)


def check(options):
    """Check the stored logs again, with the rules of today."""
    path = options.out / "first_steps.json"
    document = json.loads(path.read_text())
    logs = Logs(options.out / "first_steps.csv")
    settings = Settings(**document["settings"])
    named = document.get("mistakes", {})
    document |= summary(logs, stored_law(logs, settings))
    document["mistakes"] |= named
    save_document(options.out, document)
    print(sentences(document))


def page(options):
    """Write what the logs show into the page of check-run."""
    document = json.loads((options.out / "first_steps.json").read_text())
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = [BEGIN, sentences(document), table(document), mistakes(document), END]
    PAGE.write_text(before + "\n\n".join(parts) + after)


def sentences(document):
    """The result in words, after the page's account of an earlier run."""
    settings = document["settings"]
    runs = document["runs"]
    versions = document["versions"]
    alarms = [len(found) for found in document["alarms"].values()]
    numbers = [
        step
        for steps in document["coverage"].values()
        for step in steps
        if step["p"] is not None
    ]
    compared = len(numbers) * runs
    inside = sum(step["inside"] for step in numbers)
    narrow = sum(step["inside at 0.05"] for step in numbers)  # within smaller bands
    millions = document["parameters"] / 1e6
    tokens = document["accumulation"] * settings["sequences"] * settings["tokens"]
    most = document["most alarms allowed"]
    verdict = "met" if document["criterion met"] else "not met"
    smallest_p = min(step["p"] for step in numbers)
    paragraphs = (
        "That comparison was left out after the run had shown it. So"
        " `bench/first_steps.py` repeats the run, with settings and a criterion that"
        f" were fixed before. It trains a GPT-2 of {millions:.1f} million"
        f" parameters in nanoGPT's way (`bench/nanogpt.py`) from {runs} seeds for steps"
        f" 0 to {document['steps']}: AdamW with a warm-up, clipping,"
        f" {document['accumulation']} accumulated passes, {tokens:,} tokens a step from"
        f" the text of these pages, in single precision on {versions['device']}"
        f" (PyTorch {versions['torch']}). The law is that of"
        f" {document['initialisations']} initialisations. The criterion is at most"
        f" {counted(most, 'alarm')} with all columns, and at most {most} with loss and"
        f" gradient norm alone. There are {alarms[0]} and {alarms[1]}: it is"
        f" {verdict}.",
        f"{len(numbers)} numbers of a log depend on the seed. By itself, each is within"
        f" its band of level {document['level']:g} in {inside:,} of {compared:,} cases"
        f" ({100 * inside / compared:.2f} %), and within that of level 0.05 in"
        f" {100 * narrow / compared:.1f} %. Tests of Kolmogorov and Smirnov between the"
        f" runs and the law have p ≥ {smallest_p:.2g}. {document['power']}",
    )
    return "\n\n".join(map(wrapped, paragraphs))


def wrapped(text, width=100):
    """Text in lines, as on the other pages."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def table(document):
    """Coverage by quantity, in Markdown."""
    runs = document["runs"]
    lines = [
        "| quantity | band at step 0 | band at the last step"
        " | runs within, fewest at one step | smallest p |",
        "|---|---|---|---|---|",
    ]
    for name, steps in document["coverage"].items():
        ps = [step["p"] for step in steps if step["p"] is not None]
        if not ps:
            continue
        bands = [range_text(step["low"], step["high"]) for step in steps]
        fewest = min(step["inside"] for step in steps)
        lines.append(
            f"| {WORDS.get(name, name)} | {bands[0]} | {bands[-1]}"
            f" | {fewest} of {runs} | {min(ps):.2g} |"
        )
    return "\n".join(lines)


def range_text(low, high):
    """A band, with digits that tell its ends apart."""
    digits = max(3, 2 + math.ceil(-math.log10((high - low) / high)))
    return f"{low:.{digits}g} to {high:.{digits}g}"


def mistakes(document):
    """What the check says about the planted mistakes."""
    lines = ["| planted on the GPU | the verdict |", "|---|---|"]
    for mistake, verdict in document["mistakes"].items():
        lines.append(f"| {mistake} | {verdict} |")
    return "\n".join(lines)


def make_ids(options):
    """Make the ids: these pages as byte pairs, in rows from all over their text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pages = sorted(PAGE.parent.glob("*.md"))
    text = "\n".join(path.read_text() for path in pages)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    ids = tokenizer.encode(text).ids
    rows = 4 * ACCUMULATION * (STEPS + 1)
    starts = np.linspace(0, len(ids) - IDS_OF_ROW, rows).astype(int)
    lines = [" ".join(map(str, ids[k : k + IDS_OF_ROW])) for k in starts]
    write(IDS, ("\n".join(lines) + "\n").encode())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--sequences", type=int, default=4, help="of a pass")
    parser.add_argument("--tokens", type=int, default=128, help="of a sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--initialisations", type=int, help="of the law")
    parser.add_argument(
        "--limit", type=float, default=400.0, help="seconds, after which no run begins"
    )
    parser.add_argument(
        "--name-mistakes", action="store_true", help="name the planted mistakes too"
    )
    options = parser.parse_args()
    ACTIONS[options.action](options)


ACTIONS = {"run": run, "check": check, "page": page, "ids": make_ids}

if __name__ == "__main__":
    main()
