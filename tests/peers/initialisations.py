"""Classes of transformers against their own initialisations: a table in
docs/accuracy.md.

`python -m tests.peers.initialisations --jobs 8` compares each class of `CASES` with
real initialisations, several at a time, and writes the table; names of classes compare
only these, and `--missing` those of which the table has no row with as many. Set
OMP_NUM_THREADS=1 for it. For each class, 1,000 modules are built by transformers. Loss,
logits, mean squares and cosines of the stream after each block, entropies of attention,
loads of experts and the squared gradient of every random parameter are compared with
draws of their law (two samples, Kolmogorov–Smirnov). Then one parameter of the law gets
larger standard deviations, until the comparison notices.
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import transformers
from scipy import stats
from torch.nn import functional

import netsor as ns
from tests.internals import (
    SOFTMAX,
    Parameters,
    _program,
    captured,
    name_of,
    shape_of,
    structure,
    with_declared,
)

from .coverage import model_classes
from .small_configs import inputs_for, small_config
from .squared_gradients import cross_entropy, squared_gradients

REAL = 1000
LEVEL = 1e-4  # of all statistics of all classes together
# factors of a standard deviation, of which the first that is noticed counts
FAULTS = (1.05, 1.2, 1.5, 2.0, 4.0)
ROUNDING = 1e-12  # squared gradients below it are rounding
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
BEGIN = "<!-- the table: python -m tests.peers.initialisations -->"
END = "<!-- the end of the table -->"


@dataclass(frozen=True)
class Case:
    """A class of transformers, and the parameter that gets a wrong law."""

    name: str  # of the class
    unusual: str  # what it has, for the table
    faulty: str  # a pattern of the names of parameters, the last of which is changed
    kind: str = "causal"
    # fields of its small configuration
    fields: Mapping[str, Any] = field(default_factory=dict)
    # the modules that return a stream, where the audit finds no blocks
    paths: tuple[str, ...] = ()
    channels_first: bool = False
    # a pattern of the modules that return gates, where experts get no indices
    routers: str = ""
    draws: int = 3  # of the law, for each initialisation

    @cached_property
    def config(self) -> Any:
        """The small configuration of the class."""
        model_type = next(
            model_type
            for kind, model_type, name in model_classes()
            if (kind, name) == (self.kind, self.name)
        )
        config = small_config(self.kind, model_type, getattr(transformers, self.name))
        # a row of zeros would not be a part of a matrix that is trained
        for name, value in {"pad_token_id": None, **self.fields}.items():
            setattr(config, name, value)
        return config

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of a model, by name."""
        return inputs_for(self.kind, self.config)


CASES = {
    case.name: case
    for case in (
        Case(
            "DeepseekV3ForCausalLM",
            "latent attention; experts in groups, chosen by a sigmoid",
            "*.experts.down_proj",
        ),
        Case("GptOssForCausalLM", "attention sinks, experts", "*.experts.down_proj"),
        Case(
            "Llama4ForCausalLM",
            "experts whose inputs are scaled, chunks of attention",
            "*.experts.down_proj",
            routers="*.router",
        ),
        Case(
            "DiffLlamaForCausalLM",
            "differential attention",
            "*.self_attn.o_proj.weight",
        ),
        Case(
            "HYV4ForCausalLM",
            "hyper-connections",
            "*.experts.down_proj",
            paths=("model.model.layers.0", "model.model.layers.1"),
        ),
        Case("HrmTextForCausalLM", "recurrent use of blocks", "*.H_*.o_proj.weight"),
        Case("MambaForCausalLM", "selective state spaces", "*.out_proj.weight"),
        Case("Mamba2ForCausalLM", "state-space duality", "*.out_proj.weight"),
        Case(
            "Qwen3_5MoeForCausalLM",
            "gated delta rule, attention, experts",
            "*.linear_attn.out_proj.weight",
            draws=1,
        ),
        Case(
            "KimiLinearForCausalLM",
            "delta rule with a decay of each channel, latent attention, experts",
            "*.experts.down_proj",
            draws=1,
        ),
        Case(
            "NemotronHForCausalLM",
            "Mamba-2, attention and experts in turn",
            "*.layers.0.mixer.out_proj.weight",
        ),
        Case(
            "JambaForCausalLM",
            "Mamba, attention, experts",
            "*.mamba.out_proj.weight",
        ),
        Case(
            "FalconH1ForCausalLM",
            "attention and Mamba-2 side by side",
            "*.mamba.out_proj.weight",
        ),
        Case(
            "Zamba2ForCausalLM",
            "one block of attention with adapters, Mamba-2",
            "*.mamba.out_proj.weight",
        ),
        Case(
            "RecurrentGemmaForCausalLM",
            "gated linear recurrence, local attention",
            "*.linear_out.weight",
        ),
        Case(
            "MiniMaxForCausalLM",
            "lightning attention, experts",
            "*.experts.down_proj",
        ),
        Case(
            "Lfm2MoeForCausalLM",
            "gated short convolutions, experts",
            "*.conv.out_proj.weight",
        ),
        Case(
            "BartForConditionalGeneration",
            "encoder and decoder",
            "*.encoder_attn.out_proj.weight",
            kind="seq2seq",
        ),
        Case(
            "DebertaV2ForMaskedLM",
            "disentangled relative positions",
            "*.attention.output.dense.weight",
            kind="masked",
        ),
        Case(
            "ConvNextV2ForImageClassification",
            "convolutions, response norm",
            "*.pwconv2.weight",
            kind="image",
            channels_first=True,
        ),
    )
}


# Modules


class Logits(torch.nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.names = [*case.inputs]
        self.model = getattr(transformers, case.name)(copy.deepcopy(case.config))

    def forward(self, *values: Any) -> Any:
        return self.model(**dict(zip(self.names, values, strict=True))).logits


# The numbers of one initialisation


class Observed(NamedTuple):
    """Numbers of initialisations, each an array whose first axis are these."""

    logits: Any  # (…, rows with a target, words)
    grams: list[Any]  # of the tokens after each block
    weights: list[Any]  # of each softmax of attention, (…, heads, queries, keys)
    # of each layer with experts, (…, tokens, experts), not 0 where they are chosen
    gates: list[Any]
    gradients: dict[str, Any]  # squared, of each parameter


def statistics(observed: Observed, words: Any) -> dict[str, Any]:
    """The numbers that are compared, by name."""
    logits = observed.logits
    log_sum = np.log(np.exp(logits).sum(-1))
    right = logits[:, np.arange(len(words)), words]
    numbers = {
        "loss": (log_sum - right).mean(-1),
        "first logit": logits[:, 0, 0],
        "last logit": logits[:, -1, 1],
    }
    for block, gram in enumerate(observed.grams, 1):
        squares = np.diagonal(gram, axis1=1, axis2=2)
        numbers[f"mean square {block}"] = squares.mean(-1)
        if squares.shape[1] > 1:
            products = np.sqrt(squares[:, :, None] * squares[:, None, :])
            pairs = np.triu_indices(squares.shape[1], 1)
            numbers[f"cosine {block}"] = (gram / products)[:, *pairs].mean(-1)
    for layer, weights in enumerate(observed.weights, 1):
        logs = np.log(np.where(weights > 0, weights, 1.0))
        entropy = -(weights * logs).sum(-1)
        numbers[f"entropy {layer}"] = entropy.reshape(len(entropy), -1).mean(-1)
    for layer, gates in enumerate(observed.gates, 1):
        loads = (gates != 0).sum(-2)
        numbers[f"load {layer}"] = loads[:, 0]
        numbers[f"largest load {layer}"] = loads.max(-1)
    for name, squares in observed.gradients.items():
        numbers[f"gradient {name}"] = squares
    return numbers


# Their law


class Law:
    """The program of a class, from which its numbers are drawn."""

    def __init__(self, case: Case, graph: Any) -> None:
        inputs = tuple(case.inputs.values())
        self.case = case
        self.reader = _program.TorchReader(graph, trained=True, whole_matrices=True)
        of_paths = {x.name: x.value for x in self.reader.program().probes}
        self.rows, self.words = _targets(case, inputs)
        self.paths = case.paths
        self.streams = [of_paths[path] for path in case.paths]
        self.gates: list[Any] = []
        if not case.paths:
            order = {node: place for place, node in enumerate(graph.nodes)}
            blocks = sorted(structure(graph).blocks, key=lambda x: order[x.stream])
            self.paths = tuple(dict.fromkeys(block.path for block in blocks))
            self.streams = [self.reader.vectors(block.stream) for block in blocks]
            gates = [self.reader.env[node] for x in blocks for node in x.gates]
            self.gates = [self.reader.value(node) for node in gates]

    def outputs(self, *, gradients: bool) -> Observed:
        """The values of the program that are drawn."""
        logits = self.logits()
        streams = [x.reshape(-1) for x in self.streams]
        return Observed(
            logits,
            [ns.mean_dot(x, x) for x in streams],
            [x.reshape(-1, *x.shape[-2:]) for x in self._weights()],
            self.gates,
            self._gradients(logits) if gradients else {},
        )

    def _weights(self) -> list[Any]:
        """The weights of attention: every softmax of four axes."""
        is_softmax = [
            node
            for node in self.reader.graph.nodes
            if name_of(node) in SOFTMAX and len(shape_of(node)) > 3
        ]
        return [self.reader.value(self.reader.env[node]) for node in is_softmax]

    def logits(self) -> Any:
        """The logits of the rows that have a target, as scalars."""
        logits = self.reader.value(self.reader.env[self.reader.graph.outputs[0]])
        if isinstance(logits, ns.Vector):
            logits = logits.reshape(-1)[np.array(self.rows)]
            words = logits.width.factor
            return words * ns.mean_dot(logits, ns.data(np.eye(words)))
        return logits.reshape(-1, logits.shape[-1])[np.array(self.rows)]

    def _gradients(self, logits: Any) -> dict[str, Any]:
        loss = cross_entropy(logits, self.words)
        return squared_gradients(loss, self.reader.draws)

    def draw(self, count: int, *, gradients: bool, seed: int = 3) -> dict[str, Any]:
        """Draws of the statistics."""
        outputs = self.outputs(gradients=gradients)
        flat = [*_flat(outputs)]
        drawn = ns.Program(tuple(flat)).draw(draws=count, rng=seed, progress=False)
        return statistics(_like(outputs, iter(drawn)), self.words)


def _targets(case: Case, inputs: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    """The rows of the logits that are compared, and a word for each.

    They are the next words of the last sequence of ids, or a class.
    """
    if case.kind == "image":
        return [0], [0]
    ids = inputs[-1][0].tolist()
    return [*range(len(ids) - 1)], ids[1:]


def _flat(observed: Observed) -> Iterator[Any]:
    """All values, in order."""
    yield observed.logits
    yield from (*observed.grams, *observed.weights, *observed.gates)
    yield from observed.gradients.values()


def _like(observed: Observed, values: Iterator[Any]) -> Observed:
    """Other values in the places of these, in order."""
    return Observed(
        next(values),
        *([next(values) for _ in each] for each in observed[1:4]),
        {name: next(values) for name in observed.gradients},
    )


# Real initialisations


class Recorder:
    """What a module computes on its way."""

    def __init__(self, module: Any, law: Law) -> None:
        self.streams: list[Any] = []
        self.weights: list[Any] = []
        self.gates: list[Any] = []
        self.channels_first = law.case.channels_first
        for path in law.paths:
            module.get_submodule(path).register_forward_hook(self._stream)
        routers = [
            part
            for path, part in module.named_modules()
            if path and fnmatchcase(path, law.case.routers)
        ]
        for router in routers:
            router.register_forward_hook(self._router)
        if law.gates and not routers:
            for part in module.modules():
                part.register_forward_pre_hook(self._experts, with_kwargs=True)

    def _stream(self, module: Any, args: Any, output: Any) -> None:
        x = (output[0] if isinstance(output, tuple) else output).detach()
        self.streams.append(x.movedim(1, -1) if self.channels_first else x)

    def _router(self, module: Any, args: Any, output: Any) -> None:
        self.gates.append(output[0].detach())

    def _experts(self, module: Any, args: Any, kwargs: Any) -> None:
        """Experts are given vectors and the indices of the chosen experts."""
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        chosen = [x for x in given if x.dtype == torch.int64 and x.ndim == 2]
        if len(chosen) < len(given) and chosen and hasattr(module, "num_experts"):
            gates = torch.zeros(len(chosen[0]), module.num_experts)
            self.gates.append(gates.scatter(1, chosen[0], 1.0))

    def softmax(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A softmax that is recorded if it is one of attention."""
        weights = original(*args, **options)
        if weights.ndim > 3:
            self.weights.append(weights.detach())
        return weights


def real(case: Case, law: Law, names: list[str], count: int) -> dict[str, Any]:
    """The statistics of real initialisations, with the gradients of these parameters."""
    torch.manual_seed(4)
    every = [_initialised(case, law, names) for _ in range(count)]
    columns = [np.stack(column) for column in zip(*map(_flat, every), strict=True)]
    return statistics(_like(every[0], iter(columns)), law.words)


def _initialised(case: Case, law: Law, names: list[str]) -> Observed:
    """The numbers of one new module."""
    module = Logits(case).double().eval()
    inputs = [x.double() if x.is_floating_point() else x for x in case.inputs.values()]
    record = Recorder(module, law)
    softmax = partial(record.softmax, functional.softmax)
    with mock.patch.object(functional, "softmax", softmax):
        logits = module(*inputs)
    logits = logits.reshape(-1, logits.shape[-1])[law.rows]
    functional.cross_entropy(logits, torch.tensor(law.words)).backward()
    parameters = dict(module.named_parameters())
    return Observed(
        logits.detach().numpy(),
        [_gram(x.reshape(-1, x.shape[-1])) for x in record.streams],
        [x.reshape(-1, *x.shape[-2:]).double().numpy() for x in record.weights],
        [x.double().numpy() for x in record.gates],
        {name: _squared(parameters[name].grad) for name in names},
    )


def _gram(x: Any) -> Any:
    """Products of tokens, divided by the width."""
    return (x @ x.mT / x.shape[-1]).double().numpy()


def _squared(gradient: Any) -> float:
    return 0.0 if gradient is None else float(gradient.double().square().sum())


# Comparisons


class Row(NamedTuple):
    """What a comparison found: a row of the table."""

    case: Case
    count: int  # of initialisations
    p: dict[str, float]  # of each statistic
    parameter: str  # the one with another standard deviation
    factor: float  # of its standard deviation
    p_of_fault: dict[str, float]  # of each statistic of the forward pass

    @property
    def level(self) -> float:
        """The level of each statistic (Bonferroni)."""
        return LEVEL / (len(CASES) * len(self.p))

    @property
    def smallest(self) -> str:
        """The statistic with the smallest p-value."""
        return min(self.p, key=self.p.__getitem__)

    @property
    def agrees(self) -> bool:
        """Whether no statistic differs."""
        return self.p[self.smallest] > self.level

    @property
    def most_wrong(self) -> str:
        """The statistic by which the wrong law is most noticeable."""
        return min(self.p_of_fault, key=self.p_of_fault.__getitem__)

    @property
    def finds_fault(self) -> bool:
        """Whether a statistic shows that the wrong law is wrong."""
        return self.p_of_fault[self.most_wrong] < self.level

    def __str__(self) -> str:
        p, wrong = self.p[self.smallest], self.p_of_fault[self.most_wrong]
        return (
            f"{self.case.name}: {'agrees' if self.agrees else 'DIFFERS'},"
            f" {len(self.p)} statistics, smallest p {p:.2g} ({self.smallest});"
            f" {self.factor:g} times {self.parameter}: {wrong:.1g} ({self.most_wrong})"
        )


def p_values(law: Mapping[str, Any], real: Mapping[str, Any]) -> dict[str, float]:
    """The p-value of each statistic; those that are the same number are compared."""
    p = {}
    others = real.keys() ^ law.keys()
    assert all(name.startswith("gradient") for name in others), others
    for name, ours in law.items():
        theirs = real[name]
        if name.startswith("gradient") and max(ours.max(), theirs.max()) < ROUNDING:
            continue  # of a parameter without effect
        if np.ptp(ours) < 1e-6 * abs(ours).max():
            np.testing.assert_allclose(theirs, ours[: len(theirs)], rtol=1e-5)
            continue
        p[name] = float(stats.ks_2samp(ours, theirs, method="asymp").pvalue)
    return p


def compared(case: Case, count: int = REAL) -> Row:
    """Compare the law of a class with real initialisations, and then wrong laws."""
    graph = captured(partial(Logits, case), tuple(case.inputs.values()), {}, None)
    law = Law(case, graph)
    ours = law.draw(case.draws * count, gradients=True)
    prefix = "gradient "
    names = [name.removeprefix(prefix) for name in ours if name.startswith(prefix)]
    theirs = real(case, law, names, count)
    parameter = [name for name in graph.laws if fnmatchcase(name, case.faulty)][-1]
    p = p_values(ours, theirs)
    row = Row(case, count, p, parameter, factor=1.0, p_of_fault={})
    for factor in FAULTS:
        wrong = {parameter: factor * graph.laws[parameter].std}
        laws = Parameters(with_declared(graph.laws, wrong), graph.laws.samples)
        faulty = Law(case, graph._replace(laws=laws))
        drawn = faulty.draw(case.draws * count, gradients=False, seed=5)
        row = row._replace(factor=factor, p_of_fault=p_values(drawn, theirs))
        if row.finds_fault:
            break
    return row


def main(arguments: list[str]) -> int:
    """Compare classes, write the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.peers.initialisations")
    parser.add_argument("names", nargs="*", metavar="CLASS", help="all by default")
    parser.add_argument("--count", type=int, default=REAL, help="of initialisations")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--missing", action="store_true", help="only classes without such a row"
    )
    given = parser.parse_args(arguments)
    missing = [name for name in CASES if not hasattr(transformers, name)]
    if missing:
        print(f"transformers {transformers.__version__} has no {', '.join(missing)}")
    names = [name for name in given.names or CASES if name not in missing]
    lines = _read_table()
    if given.missing:
        cell = f"| {given.count:,} |"
        names = [name for name in names if cell not in lines.get(name, "")]
    has_failed = False
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        found = {pool.submit(_compared, name, given.count): name for name in names}
        for future in as_completed(found):
            error = future.exception()
            if error is not None:
                print(f"{found[future]}: {type(error).__name__}: {error}", flush=True)
                has_failed = True
                continue
            row = future.result()
            print(row, flush=True)
            has_failed |= not (row.agrees and row.finds_fault)
            lines[row.case.name] = _line(row)
            write_table(lines)
    return int(has_failed)


def _compared(name: str, count: int) -> Row:
    """`compared` in a process of its own."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    return compared(CASES[name], count)


def _read_table() -> dict[str, str]:
    """The lines of the table, by class."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def _line(row: Row) -> str:
    """The line of a class."""
    cells = [
        f"`{row.case.name}`",
        row.case.unusual,
        f"{row.count:,}",
        str(len(row.p)),
        f"{row.p[row.smallest]:.2g}",
        "agrees" if row.agrees else "differs",
        f"{row.factor:g} × `{row.parameter}`",
        _power_of_ten(row.p_of_fault[row.most_wrong]),
    ]
    return "| " + " | ".join(cells) + " |"


def _power_of_ten(p: float) -> str:
    """The order of a small p-value."""
    return f"1e-{math.floor(-math.log10(max(p, 1e-300)))}"


def write_table(rows: Mapping[str, str]) -> None:
    """Replace the table of docs/accuracy.md."""
    head = [
        "| class | has | modules | statistics | smallest p | verdict | planted fault"
        " | its p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines = [rows[name] for name in CASES if name in rows]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + "\n".join([BEGIN, "", *head, *lines, "", END]) + after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
