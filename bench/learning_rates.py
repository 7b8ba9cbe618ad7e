"""Do learning rates transfer with the derived rules? Six networks, real training.

    python bench/learning_rates.py --out DIR [--networks nanogpt,vit] [--seconds 420]
    python bench/learning_rates_tables.py DIR

trains with the files in `bench/rules`, which `netsor parametrise` has written, and
prints the tables. Training needs PyTorch and numpy only. It uses a GPU if there is one;
`--small` goes through the same motions within two minutes on one core. Results are
written as they come, and the same command continues an interrupted run.

The protocol, which was fixed before any of its results was seen:

- **Training.** Five AdamW steps at a constant rate, weight decay 0.1, in single
  precision without TF32. Every step has a new batch, so nothing can be memorised: 32
  sequences of 64 words from a fixed source, in which a word depends on the last two, or
  512 images, each the mean of its class and noise.
- **Loss.** That of held-out data after the last step: 128 sequences or 2,048 images,
  the same for all runs. A run that diverges counts as a loss of 100. Of a seed, all
  widths and rates have the same batches.
- **Rates.** A grid of factors √2 from 2^-10 to 2^-3, at the widths 128, 256, 512 and
  1,024; rates are those of width 128. If the smallest mean loss of the first eight
  seeds is at an end of the grid, two rates are added there, up to three times.
- **Seeds.** Eight for every network, then eight more for all, and so on up to 32. The
  clock alone decides how many. One learning rate for all parameters (the networks as
  they are) gets eight.
- **Best rate.** The vertex of the parabola through the smallest mean loss and its two
  neighbours, in the logarithm of the rate.
- **Verdict.** The spread is the largest difference of the best rates of two widths, in
  grid points. A rate *transfers* if the spread is at most 1. The spread has a 95 %
  interval that holds for all six pairs of widths jointly (Bonferroni, with standard
  errors from 2,000 bootstrap samples of seeds); where 1 lies within it, the verdict
  adds that the seeds do not decide it.
- **Changes.** Three AdamW steps at 2^-9 (that of width 64), widths 64 to 1,024, eight
  seeds: the root mean square of the change of the output of every submodule, on
  held-out data. Exponents of the width are least-squares slopes with 99 % intervals of
  Student's t over the seeds. An output *agrees* if the interval lies within ±0.1.
  Outputs that a rule multiplies are taken before that, but for logits. Matrices that
  may start at 0 (untied heads, routers) are judged by what their update alone writes:
  what their start makes of changed inputs may fall with the width. Outputs within
  experts are left out, because their rows are other tokens after a step.
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from networks import CLASSES, NETWORKS, PIXELS, WORDS
from torch.nn.attention import SDPBackend, sdpa_kernel

DERIVED, ONE_RATE = "derived", "one rate"
HEADS = ("lm_head", "head", "gate")  # the last names of heads and routers
TIED = "nanogpt"  # its head is the embedding, and so cannot start at 0
BY_ITS_UPDATE = ", by its update"
DIVERGED = 100.0  # the loss of a run that diverges
STEP = 0.5  # of the grid, in log2 of the rate
EXTENSIONS = 3  # how often an end of the grid is moved
SEEDS_OF_ROUND, ROUNDS = 8, 4
COLUMNS = ("kind", "network", "rule", "width", "seed", "what", "value")
BEGUN = time.perf_counter()
Key = tuple[Any, ...]  # kind, network, rule, width, seed, and the rate or the path


@dataclass(frozen=True)
class Protocol:
    """The sizes of all runs."""

    widths: Sequence[int] = (128, 256, 512, 1024)
    rates: Sequence[float] = tuple(np.arange(-10, -3 + STEP, STEP).tolist())
    steps: int = 5
    sequences: int = 32
    held_out_sequences: int = 128
    tokens: int = 64
    images: int = 512
    held_out_images: int = 2048
    weight_decay: float = 0.1
    widths_of_changes: Sequence[int] = (64, 128, 256, 512, 1024)
    steps_of_changes: int = 3
    rate_of_changes: float = -9.0
    seeds: int = SEEDS_OF_ROUND
    rounds: int = ROUNDS


SMALL = Protocol(
    widths=(32, 64),
    rates=(-7.0, -6.5, -6.0),
    sequences=4,
    held_out_sequences=6,
    tokens=16,
    images=16,
    held_out_images=24,
    widths_of_changes=(32, 64),
    seeds=2,
    rounds=1,
)


class Batch(NamedTuple):
    """What a network takes, and the right classes."""

    inputs: torch.Tensor
    targets: torch.Tensor


@cache
def cumulative_odds() -> np.ndarray:
    """Of a fixed source: how likely the words up to each are after the last two."""
    source = np.random.default_rng(64)
    after_last = source.standard_normal((WORDS, 1, WORDS)) * 1.5
    after_last_but_one = source.standard_normal((1, WORDS, WORDS))
    logits = after_last + after_last_but_one - np.log(np.arange(1, WORDS + 1))
    odds = np.exp(logits)
    return np.cumsum(odds / odds.sum(-1, keepdims=True), axis=-1)


def words(generator: np.random.Generator, count: int, tokens: int) -> Batch:
    """Sequences of that source."""
    cumulative = cumulative_odds()
    sequence = list(generator.integers(0, WORDS, (2, count)))
    for _ in range(tokens + 1):
        uniform = generator.random((count, 1))
        below = cumulative[sequence[-1], sequence[-2]] < uniform
        sequence.append(np.minimum(below.sum(-1), WORDS - 1))
    ids = torch.as_tensor(np.stack(sequence[2:], axis=1))
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def pictures(generator: np.random.Generator, count: int) -> Batch:
    """Images that are the mean of their class and noise."""
    means = np.random.default_rng(64).standard_normal((CLASSES, *PIXELS)) * 0.3
    classes = generator.integers(0, CLASSES, count)
    pixels = means[classes] + generator.standard_normal((count, *PIXELS))
    return Batch(torch.as_tensor(pixels, dtype=torch.float32), torch.as_tensor(classes))


class Data:
    """The batches of a network: new ones for every step, and held-out ones."""

    def __init__(self, network: str, protocol: Protocol, device: str):
        self.network, self.protocol, self.device = network, protocol, device
        self.held_out = self._batch(1, 0, is_held_out=True)

    def steps(self, seed: int, count: int) -> list[Batch]:
        """The batches of a training run."""
        return [self._batch(2 + seed, step) for step in range(count)]

    def _batch(self, *key: int, is_held_out: bool = False) -> Batch:
        generator = np.random.default_rng(key)
        protocol = self.protocol
        if self.network == "vit":
            count = protocol.held_out_images if is_held_out else protocol.images
            batch = pictures(generator, count)
        else:
            count = protocol.held_out_sequences if is_held_out else protocol.sequences
            batch = words(generator, count, protocol.tokens)
        return Batch(*(x.to(self.device) for x in batch))


def logits_of(model: Any, batch: Batch) -> torch.Tensor:
    """The logits at all positions; nanoGPT makes them only where it has targets."""
    if hasattr(model, "transformer"):
        return model(*batch)[0]
    return model(batch.inputs)


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    logits = logits_of(model, batch)
    return F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten())


def rule_of(network: str) -> Any:
    """The file that netsor has written for a network."""
    return importlib.import_module(f"rules.mup_{network}")


class Case(NamedTuple):
    """One initialisation of a network."""

    network: str
    rule: str
    width: int
    seed: int


class Trainer:
    """Trains one initialisation of a network, at any rate."""

    def __init__(self, case: Case, base: int, device: str):
        torch.manual_seed(case.seed)
        with torch.device(device):
            self.model = NETWORKS[case.network](case.width)
        self.emitted = rule_of(case.network) if case.rule == DERIVED else None
        self.base = base
        if self.emitted is not None:
            self.emitted.initialise(self.model, base)

    def scale_outputs(self) -> None:
        """Apply the factors of the rule."""
        if self.emitted is not None:
            self.emitted.scale_outputs(self.model, self.base)
        self.start = [p.detach().clone() for p in self.model.parameters()]

    def train(self, log2_rate: float, batches: Sequence[Batch], decay: float) -> None:
        """Train from the start, one step with each batch."""
        with torch.no_grad():
            for p, start in zip(self.model.parameters(), self.start, strict=True):
                p.copy_(start)
        lr = 2.0**log2_rate
        groups: Any = self.model.parameters()
        if self.emitted is not None:
            groups = self.emitted.param_groups(
                self.model, lr, self.base, weight_decay=decay
            )
        is_on_gpu = self.start[0].is_cuda
        optimiser = torch.optim.AdamW(
            groups, lr=lr, weight_decay=decay, fused=is_on_gpu
        )
        for batch in batches:
            optimiser.zero_grad()
            loss_of(self.model, batch).backward()
            optimiser.step()


class Results:
    """Rows of results, by their key, which are written as they come."""

    def __init__(self, path: Path):
        self.values = read([path]) if path.exists() else {}
        self.file = path.open("a", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file)
        if not self.values:
            self.writer.writerow(COLUMNS)

    def add(self, key: Key, value: float) -> None:
        """Write one value."""
        self.values[key] = value
        self.writer.writerow([*key, repr(value)])

    def flush(self) -> None:
        """Have everything on the disk."""
        self.file.flush()


def read(paths: Sequence[Path]) -> dict[Key, float]:
    """The values of result files by (kind, network, rule, width, seed, what)."""
    values = {}
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["value"] is None:  # cut off in the middle of a line
                    continue
                kind, network, rule = row["kind"], row["network"], row["rule"]
                key = (kind, network, rule, int(row["width"]), int(row["seed"]))
                values[(*key, row["what"])] = float(row["value"])
    return values


class OutOfTimeError(Exception):
    """The given time is over."""


@dataclass
class Run:
    """All runs of some networks."""

    protocol: Protocol
    results: Results
    device: str
    seconds: float
    # rates beyond the grid, by network, rule and width
    added: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)

    def of(self, networks: Sequence[str]) -> None:
        """Everything, in the order of the protocol."""
        data = {x: Data(x, self.protocol, self.device) for x in networks}
        count = self.protocol.seeds
        first = range(count)
        for network in networks:
            self.sweep(network, DERIVED, first, data[network])
        for network in networks:
            self.changes(network, first, data[network])
        for network in networks:
            self.sweep(network, ONE_RATE, first, data[network])
        for k in range(1, self.protocol.rounds):
            for network in networks:
                seeds = range(k * count, (k + 1) * count)
                self.sweep(network, DERIVED, seeds, data[network])

    def sweep(self, network: str, rule: str, seeds: range, data: Data) -> None:
        """The losses of some seeds at all widths and rates."""
        for width in self.protocol.widths:
            for _ in range(1 + EXTENSIONS):
                rates = self._rates(network, rule, width)
                for seed in seeds:
                    self._losses(network, rule, width, seed, rates, data)
                if not self._extended(network, rule, width, rates):
                    break
            self._say(f"{network}, {rule}, width {width}, seeds to {seeds[-1]}")

    def _rates(self, network: str, rule: str, width: int) -> list[float]:
        """The grid of a width, with what was added to it."""
        seen = {
            float(key[-1])
            for key in self.results.values
            if key[:4] == ("loss", network, rule, width)
        }
        added = self.added.get((network, rule, width), [])
        return sorted({*seen, *added, *self.protocol.rates})

    def _losses(
        self,
        network: str,
        rule: str,
        width: int,
        seed: int,
        rates: Sequence[float],
        data: Data,
    ) -> None:
        """Train one initialisation at all rates that are not there yet."""
        key = ("loss", network, rule, width, seed)
        missing = [x for x in rates if (*key, str(x)) not in self.results.values]
        if not missing:
            return
        self._check_time()
        case = Case(network, rule, width, seed)
        trainer = Trainer(case, self.protocol.widths[0], self.device)
        trainer.scale_outputs()
        batches = data.steps(seed, self.protocol.steps)
        losses = []
        for rate in missing:
            trainer.train(rate, batches, self.protocol.weight_decay)
            with torch.no_grad():
                losses.append(loss_of(trainer.model, data.held_out))
        for rate, loss in zip(missing, torch.stack(losses).tolist(), strict=True):
            value = loss if math.isfinite(loss) else DIVERGED
            self.results.add((*key, str(rate)), min(value, DIVERGED))
        self.results.flush()

    def _extended(
        self, network: str, rule: str, width: int, rates: Sequence[float]
    ) -> bool:
        """Whether the smallest mean of the first seeds is at an end of the grid, where
        rates are then added: the next look at the grid finds them.
        """
        if len(rates) >= len(self.protocol.rates) + 2 * EXTENSIONS:
            return False
        losses = [
            [
                self.results.values["loss", network, rule, width, seed, str(rate)]
                for rate in rates
            ]
            for seed in range(self.protocol.seeds)
        ]
        best = int(np.mean(losses, axis=0).argmin())
        if 0 < best < len(rates) - 1:
            return False
        end, sign = (rates[0], -1) if best == 0 else (rates[-1], 1)
        added = self.added.setdefault((network, rule, width), [])
        added += [end + sign * STEP * k for k in (1, 2)]
        return True

    def changes(self, network: str, seeds: range, data: Data) -> None:
        """How much some steps change the outputs of all submodules."""
        for width in self.protocol.widths_of_changes:
            for seed in seeds:
                key = ("change", network, DERIVED, width, seed)
                if any(known[:5] == key for known in self.results.values):
                    continue
                self._check_time()
                for path, value in self._changes(network, width, seed, data).items():
                    self.results.add((*key, path), value)
                self.results.flush()
            self._say(f"{network}, changes, width {width}")

    def _changes(
        self, network: str, width: int, seed: int, data: Data
    ) -> dict[str, float]:
        """The changes of one initialisation, by the paths of submodules."""
        base = self.protocol.widths_of_changes[0]
        case = Case(network, DERIVED, width, seed)
        trainer = Trainer(case, base, self.device)
        outputs = Outputs(trainer, is_tied=network == TIED)
        before = outputs.of(data.held_out)
        batches = data.steps(seed, self.protocol.steps_of_changes)
        trainer.train(self.protocol.rate_of_changes, batches, decay=0.0)
        after = outputs.of(data.held_out)
        return {
            path: (value - before[path]).square().mean().sqrt().item()
            for path, value in after.items()
        }

    def _check_time(self) -> None:
        if time.perf_counter() - BEGUN > self.seconds:
            raise OutOfTimeError

    def _say(self, text: str) -> None:
        print(f"{time.perf_counter() - BEGUN:6.0f} s  {text}", flush=True)


class Outputs:
    """The outputs of all submodules of a network."""

    def __init__(self, trainer: Trainer, is_tied: bool):
        self.model = trainer.model
        self.values: dict[str, torch.Tensor] = {}
        self.is_recording = False  # not while the network is trained
        modules = dict(self.model.named_modules())
        heads = [path for path in modules if path.rpartition(".")[2] in HEADS]
        for path, module in modules.items():
            does_nothing = isinstance(module, torch.nn.Dropout | torch.nn.Identity)
            is_left_out = path == "" or path in heads or ".experts." in path
            if not is_left_out and not does_nothing:
                module.register_forward_hook(self._recorder(path))
        trainer.scale_outputs()  # so that hooks above come before its factors
        for path in heads:
            start = copy.deepcopy(modules[path])
            modules[path].register_forward_hook(self._recorder(path))
            if not is_tied:
                hook = self._recorder_of_update(path, start)
                modules[path].register_forward_hook(hook)

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The outputs for a batch, by paths."""
        self.values = {}
        self.is_recording = True
        with torch.no_grad():
            logits_of(self.model, batch)
        self.is_recording = False
        return self.values

    def _recorder(self, path: str) -> Any:
        """A hook that records the output."""

        def record(module: Any, args: Any, output: Any) -> None:
            if not self.is_recording:
                return
            first = output[0] if isinstance(output, tuple) else output
            self.values[path] = first.clone()

        return record

    def _recorder_of_update(self, path: str, start: Any) -> Any:
        """A hook that records what the output is more than at the start."""

        def record(module: Any, args: Any, output: Any) -> None:
            if self.is_recording:
                self.values[path + BY_ITS_UPDATE] = output - start(*args)

        return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.mha.set_fastpath_enabled(False)
    given.out.mkdir(parents=True, exist_ok=True)
    networks = given.networks.split(",")
    results = Results(given.out / f"{networks[0]}.csv")
    protocol = SMALL if given.small else Protocol()
    run = Run(protocol, results, device, given.seconds)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            run.of(networks)
    except OutOfTimeError:
        print(f"stopped after {given.seconds:g} s", flush=True)


if __name__ == "__main__":
    main()
