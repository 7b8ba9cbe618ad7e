"""An audit of a transformer at initialisation: laws of its activations and gradients,
block by block.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._validate import ArgumentError, Rng, counted
from ...engine.backends import AUTO
from ...engine.plan._draw_cost import BASE
from ...engine.run._precision import DIGITS, resolve_precision
from ...engine.run._quadrature_error import FEW
from ...models import Transformer, read
from ...models import recipe as by_recipe
from ...models._families import READERS
from ...models._transformer import UnknownFamilyError
from ...models.measure._metric_program import ProgramModel
from ...programs._program import Program
from ...runtime._memory import check_memory, memory
from ...runtime._parallel import Progress, cores
from ...runtime._units import in_bytes, in_time
from .._cost import Cost, forward_bytes, overhead_seconds, worker_count
from .._output_dir import Arrays
from .._study import Run, Study
from .._training import is_function, makes_jax_model
from ._cases import MOVED, AuditCase, AuditTask, Model
from ._measurements import Draws, LengthResult, draws_of_ones
from ._request import Request
from ._request import sweep as sweep_models
from ._results import Audit, Comparison

__all__ = ["audit"]

DOUBLE_BYTES = 8.0
COPIES = 4  # of the draws, at most, while they are joined and sorted
SHORT_TOKENS = 256  # of the plans from which the least time of longer inputs follows
LONG = 120.0  # seconds; of longer audits cheaper ways are named
# of cheaper ways: the blocks, and the factor by which tokens are fewer
FEW_BLOCKS, FEWER_TOKENS = 4, 8
# a study takes at most so many times the lower bound of its time, mostly
MARGIN = 2.0
# cores that one such GPU is worth, at least: 157 to 1,440 in bench/results/gpu.md and
# ratios.md
H200 = 150.0
PLANNING = 5.0  # seconds to load PyTorch and to plan, before a GPU has work
CHEAPER = "Cheaper, and exact for what they report"


def audit(
    model: str | Path | Mapping[str, Any] | Transformer | Program | Any,
    *,
    recipe: str | None = None,
    compare: str | Path | Mapping[str, Any] | Transformer | Sequence[Any] | Any = None,
    sweep: Mapping[str, Sequence[float | str]] | None = None,
    tokens: int | Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    draws: int | None = None,
    widths: str | None = None,
    seed: int = 0,
    rng: Rng = None,
    workers: int | None = None,
    out: str | Path | None = None,
    backend: str = "numpy",
    device: str | None = None,
    precision: str = AUTO,
    executor: Executor | None = None,
    progress: Progress = True,
    gradients: bool | None = None,
    quick: bool = False,
    ranges: bool = False,
    **sizes: int,
) -> Audit | Comparison:
    """Measure a transformer at initialisation, block by block; or compare several.

    Other parameters are those of `Program.law`. The draws do not depend on the number
    of workers.

    Parameters
    ----------
    model : str, pathlib.Path, mapping, Transformer, Program, module or callable
        Anything that `ns.models.read` takes, or a `Transformer`; or a `Program` that
        contains its tokens and names what to measure with `ns.probe`; or a PyTorch
        module that takes ids, or a function that makes one, or a JAX model, at its own
        widths and 16 tokens by default. `ns.torch.network` and `ns.jax.network` read
        those with other inputs.
    recipe : str, optional
        An initialisation for the model, a name of `ns.models.RECIPES`.
    compare : a model, or a list of them, optional
        Models to compare it with.
    sweep : mapping, optional
        One field and its values, such as `{"std": [0.005, 0.01, 0.02]}`, to compare the
        model with each of them.
    tokens : int or sequence of int, optional
        The number of different tokens, or several lengths; by default 16 and 128, as
        far as the model has positions.
    ids : sequence of int, optional
        The token ids, instead of `tokens`.
    draws : int, optional
        Initialisations, 15 or more. By default 200 for 16 tokens, and fewer for longer
        inputs (in proportion to 1/n²), but at least 16, which decide every rule that is
        not near its threshold.
    widths : str, optional
        The model's own ("actual"), "inf", or "both" (the default): infinite widths at
        the first length.
    workers : int, optional
        Worker processes; by default one on each core.
    out : str or pathlib.Path, optional
        A folder for the report. It also keeps finished parts: an interrupted audit
        resumes where it stopped.
    precision : str
        "float64", "float32", or "auto": single precision where a few draws agree with
        double precision to five digits or a hundredth of their spread, and double
        precision for a `Program`. Both have the same draws, up to rounding.
    executor : concurrent.futures.Executor, optional
        Runs the parts instead of local processes; for example Dask's.
    progress : bool or callable
        True for a bar on a terminal, False for none, or a function of (parts done,
        parts in all).
    gradients : bool, optional
        Also measure gradients of the first loss (of a random readout, without logits):
        of the stream after each block, and of each kind of weight. By default for the
        shortest inputs, if the audit then takes at most twice as long.
    quick : bool
        Other defaults, for a test in seconds: 16 draws of 16 tokens at the model's own
        widths, without gradients.
    ranges : bool
        Also measure the largest numbers of each activation, at the model's own widths,
        and the share that underflows in bf16, fp16 and both formats of fp8, with the
        scale that would fit.
    **sizes : int
        The widths of a program, by their names: `ns.audit(net(), n=256)`.

    Returns
    -------
    audit : Audit or Comparison
        An `Audit` of one model maps each quantity to its `median`, `low` and `high`
        over draws (the 5 % and 95 % quantiles), with an entry for each block.
        `finding(rule)` gives the verdict of a rule, and `actual` and `limit` hold the
        draws. With `compare` or `sweep` the result is a `Comparison`:
        `comparison[name]` is the audit of one model, and `preferred` the name that the
        rules prefer, or None. Print either for the tables; `save(folder)` writes the
        report.

    Examples
    --------
    >>> sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    >>> tiny = {"model_type": "gpt2", "vocab_size": 30, **sizes}
    >>> audit = ns.audit(tiny, quick=True)
    >>> audit.finding("entropy").verdict
    'ok'
    >>> audit["entropy"].median.shape
    (2,)
    >>> ns.audit(tiny, sweep={"std": [0.02, 1.0]}, quick=True).preferred
    'gpt2, std=0.02'
    """
    if model is None:
        raise ValueError(
            "model=None must be a model: a name, a path, a configuration, a Transformer"
            " or a Program"
        )
    if sizes and not isinstance(model, Program):
        name, size = next(iter(sizes.items()))
        raise ValueError(f"{name}={size!r} is not an argument of an audit of a model")

    models = [_subject(model, argument="model", sizes=sizes, ids=ids, tokens=tokens)]
    for other in _as_list(compare):
        # the widths are those of the model; another program may lack some of them
        widths_of_other = _widths_of(other, model, sizes)
        models.append(
            _subject(
                other, argument="compare", sizes=widths_of_other, ids=ids, tokens=tokens
            )
        )
    if isinstance(models[0], ProgramModel) and not isinstance(model, Program):
        ids, tokens = None, None  # the program has them
    if isinstance(models[0], ProgramModel):
        _reject_for_programs(models[0], recipe=recipe, sweep=sweep)
    if recipe is not None:
        models[0] = by_recipe(models[0], recipe)
    swept = None
    if sweep is not None:
        field, values = _swept_field(sweep, is_alone=len(models) == 1)
        swept_models, swept = sweep_models(models[0], field, values)
        models = list(swept_models)
    request = Request.of(
        models=tuple(models),
        tokens=tokens,
        ids=ids,
        draws=draws,
        widths=widths,
        gradients=gradients,
        quick=quick,
        swept=swept,
        ranges=ranges,
        seed=seed,
        rng=rng,
        workers=workers,
        out=out,
        progress=progress,
        backend=backend,
        device=device,
        precision=precision,
    )
    return AuditStudy(request).run(executor)


def _as_list(compare: Any) -> list[Any]:
    """The models to compare with: none, one, or those of a list."""
    if compare is None:
        return []
    return list(compare) if isinstance(compare, list | tuple) else [compare]


def _swept_field(sweep: Any, is_alone: bool) -> tuple[str, Any]:
    """The field of a sweep and its values. `is_alone` says that its model is compared
    with no other.
    """
    if not is_alone:
        raise ValueError(
            "sweep and compare cannot be combined: a sweep compares a model with itself"
        )
    if not isinstance(sweep, Mapping) or len(sweep) != 1:
        raise ArgumentError(
            "sweep", sweep, "one field and its values, such as {'std': [0.01, 0.02]}"
        )
    ((field, values),) = sweep.items()
    return field, values


def _widths_of(other: Any, model: Any, sizes: Mapping[str, int]) -> dict[str, int]:
    """Those of the sizes that `other`, which is compared with the model, has: programs
    that lack a width ignore it.
    """
    if other is model or not isinstance(other, Program):
        return dict(sizes)
    return {name: size for name, size in sizes.items() if name in other.widths}


def _subject(
    model: Any, argument: str, sizes: Mapping[str, int], ids: Any, tokens: Any
) -> Any:
    """What is audited, as a `Transformer` or a `ProgramModel`, from an argument of
    `ns.audit`; errors name that argument, "model" or "compare".
    """
    try:
        if isinstance(model, Program):
            return ProgramModel(model, dict(sizes))
        if is_function(model) or makes_jax_model(model):
            program, *longer = _programs_of_model(model, ids, tokens)
            return ProgramModel(program, widths={}, longer=longer, ids=ids)
        if isinstance(model, Transformer | ProgramModel):
            return model
        return _described(model, ids, tokens)
    except ArgumentError as error:
        if error.name in ("model", "module"):
            error.name = argument
        raise


def _programs_of_model(model: Any, ids: Any, tokens: Any) -> list[Program]:
    """A model of PyTorch or JAX as a program for each number of tokens."""
    if makes_jax_model(model):
        from ...jax import _network as network_of_jax
        from ...reader._network import lengths_of

        return network_of_jax.networks(model, ids, lengths_of(ids, tokens))
    from ...torch import _network as network_of_torch

    return network_of_torch.networks(model, ids, tokens)


def _described(model: Any, ids: Any, tokens: Any) -> Transformer | ProgramModel:
    """The model of a name, a path or a configuration."""
    try:
        return read(model)
    except UnknownFamilyError as unknown:
        return read_from_module(unknown, ids, tokens)


def read_from_module(
    unknown: UnknownFamilyError, ids: Any = None, tokens: Any = None
) -> ProgramModel:
    """A model of a type that netsor does not describe, read from its module."""
    model_type = unknown.config.get("model_type")
    if not isinstance(model_type, str):
        raise unknown
    try:
        from ...torch._from_config import model_from_config
    except ImportError:
        raise ArgumentError(
            "model_type",
            model_type,
            f"one of {', '.join(sorted(READERS))}; to read others from their modules,"
            " install PyTorch and transformers: pip install torch transformers",
        ) from None
    return model_from_config(unknown.config, unknown.name, ids, tokens)


def _reject_for_programs(program: ProgramModel, **options: Any) -> None:
    """Reject options that are about the weights of a described model."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(
                name,
                value,
                f"left out: {program.name} is a program, which defines its weights",
            )


@dataclass(frozen=True)
class AuditStudy(Study[Audit | Comparison]):
    """An audit, or a comparison of several."""

    request: Request

    def tasks(self) -> list[AuditTask]:
        """The draws of all cases."""
        tasks: list[AuditTask] = []
        for subject in self.request.subjects:
            tasks += self.request.tasks(subject)
        return tasks

    def cheaper(self, cost: Cost) -> str:
        """A sentence with cheaper options and their costs: fewer blocks, fewer tokens,
        finite widths, a GPU. "" if this audit does not take long.

        Each is exact for its quantities: the law of the first blocks does not depend on
        the others.
        """
        request = self.request
        models = [model for model in request.models if isinstance(model, Transformer)]
        if not models or cost.clock <= LONG:
            return ""
        alternatives = []
        for option, changes in self._cheaper_options(models).items():
            seconds = 0.0
            for case in dataclasses.replace(request, **changes).subjects:
                draws = request.draws_of(case.tokens)
                seconds += case.draw_at_depth.seconds * draws
            clock = cost.first + seconds / min(cost.workers, cores())
            alternatives.append(f"{option}: about {in_time(clock)}")
        # limits are mostly planned and integrated on the host
        if request.widths == "actual":
            clock = PLANNING + cost.seconds / H200
            alternatives.append(
                f"a GPU (--backend torch): less than {in_time(clock)} on an H200"
            )
        return f"{CHEAPER}: {'; '.join(alternatives)}."

    def _cheaper_options(
        self, models: Sequence[Transformer]
    ) -> dict[str, dict[str, Any]]:
        """The options of cheaper audits, each with the fields of the request that it
        changes.
        """
        request = self.request
        options: dict[str, dict[str, Any]] = {}
        if max(model.layers for model in models) > FEW_BLOCKS:
            shallow = [
                model.replace(layers=min(FEW_BLOCKS, model.layers)) for model in models
            ]
            options[f"--set layers={FEW_BLOCKS}"] = {"models": tuple(shallow)}
        tokens = request.lengths[-1] // FEWER_TOKENS
        if request.ids is None and tokens >= 2:
            options[f"--tokens {tokens}"] = {"tokens": (tokens,)}
        if request.widths != "actual":
            options["--widths actual"] = {"widths": "actual"}
        return options

    def saved_memory(self) -> str:
        """The memory of a draw on a device; and how much a draw of gradients takes,
        with and without computing blocks again, if they would not fit otherwise.
        """
        plans = [case.plan for case in self.request.subjects]
        backend = self.request.backend
        sentences = []
        if backend.kind != "cpu":
            sizes = [backend.replica_bytes(p) + backend.shared_bytes(p) for p in plans]
            sentences.append(
                f"A draw takes {in_bytes(max(sizes))} on {backend.device}, and many are"
                " computed together where they fit."
            )
        largest = max(plans, key=lambda plan: plan.bytes_kept)
        if largest.bytes_kept:
            sentences.append(
                "Blocks are computed again for their gradients, so that a draw takes"
                f" {in_bytes(largest.bytes)}; it would take"
                f" {in_bytes(largest.bytes_kept)}."
            )
        return " ".join(sentences)

    def shorter_than(self, seconds: float) -> str:
        """A sentence with the most tokens, by halving, that are likely to take less
        than this time, and with the time on a GPU.

        The law of fewer tokens is exact for these positions.
        """
        request = self.request
        tokens = request.lengths[-1]
        least = self._least_seconds((tokens,))
        while tokens > SHORT_TOKENS and least > seconds / MARGIN:
            tokens //= 2
            least = self._least_seconds((tokens,))
        if tokens <= SHORT_TOKENS:
            return ""
        shorter = f"--tokens {tokens}: {in_time(least)} or more"
        on_device = PLANNING + self.least_seconds() / H200
        device = f"a GPU (--backend torch): {in_time(on_device)} or more on an H200"
        return f"{CHEAPER}: {shorter}; {device}."

    def least_seconds(self) -> float:
        """A lower bound on the running time in seconds, from plans of short inputs; 0
        if no input is long.
        """
        if self.request.ids is not None:
            return 0.0
        return self._least_seconds(self.request.lengths)

    def _least_seconds(self, lengths: Sequence[int]) -> float:
        """The same for inputs of these lengths."""
        request = self.request
        seconds = 0.0
        worker_bytes = BASE
        for model, tokens in itertools.product(request.models, lengths):
            if isinstance(model, ProgramModel) or tokens <= SHORT_TOKENS:
                continue
            draws = request.draws_of(tokens)
            seconds += self._least_seconds_of_draw(model, tokens) * draws
            worker_bytes = max(worker_bytes, forward_bytes(model, tokens))
        workers_in_memory = max(1, int(memory() // worker_bytes))
        workers = min(request.workers or cores(), cores(), workers_in_memory)
        return seconds / workers

    def _least_seconds_of_draw(self, model: Transformer, tokens: int) -> float:
        """A lower bound on the seconds of a draw: the time at SHORT_TOKENS,
        extrapolated by the power of the tokens that it grows like up to there.

        The time is a sum of powers of the tokens. The largest power comes to dominate,
        so the time grows at least so fast beyond. At most the square counts, and only
        up to the width: vectors of more tokens have no more directions.
        """

        def seconds_of(length: int) -> float:
            """The time of a draw for this many tokens."""
            backend = self.request.backend
            case = AuditCase(
                model=model, tokens=length, ids=None, infinite=False, backend=backend
            )
            return case.draw_at_depth.seconds

        at_half = seconds_of(SHORT_TOKENS // 2)
        at_short = seconds_of(SHORT_TOKENS)
        power = min(2.0, math.log2(at_short / at_half))
        # up to this length as a power, linearly beyond
        end = min(tokens, max(model.width, SHORT_TOKENS))
        return float(at_short * (end / SHORT_TOKENS) ** power * (tokens / end))

    def estimate(self) -> Cost:
        """The cost, from the plans; raises an error if memory is too small."""
        request = self.request
        seconds = numbers = 0.0
        result_bytes = worker_bytes = 0.0
        parts = Counter[AuditCase]()  # the number of tasks that make each plan
        for case in request.subjects:
            draw = case.draw
            draws = request.draws_of(case.tokens)
            quantities = case.plan.mean.shape[0]
            result_bytes += COPIES * DOUBLE_BYTES * draws * quantities
            numbers += draw.numbers * draws
            seconds += draw.seconds * draws + draw.compiling
            # The quadrature error takes a few draws of this plan, and of two plans with
            # expectations that are larger and smaller by their errors.
            if case.infinite:
                seconds += 3 * FEW * draw.seconds + 2 * draw.planning
            part_bytes = draw.in_worker(min(draws, case.part_draws), request.backend)
            worker_bytes = max(worker_bytes, part_bytes)
            planned = case if case.infinite else case.shared
            parts[planned] += math.ceil(draws / case.part_draws)
        most = max(request.draws_of(tokens) for tokens in request.lengths)
        check_memory(result_bytes, f"{most:,} draws", "take fewer draws")
        workers = worker_count(
            request.workers, parts.total(), worker_bytes, request.backend, result_bytes
        )
        tokens = counted(request.lengths[-1], "token")
        check_memory(
            workers * worker_bytes + result_bytes,
            f"{tokens} on {counted(workers, 'worker')}",
            "take fewer tokens or workers, or a smaller model",
        )
        # every worker plans what it draws
        if request.backend.threads and not request.is_user_program:
            for case, count in parts.items():
                seconds += case.draw.planning * min(workers, count)
        return Cost(
            seconds=seconds,
            first=overhead_seconds(workers, report=request.out is not None),
            bytes=worker_bytes,
            random_numbers=int(numbers),
            workers=workers,
        )

    def check(self) -> None:
        """Reject single precision where it is not accurate enough."""
        if self.request.backend.precision == "float32":
            for subject in self.request.subjects:
                resolve_precision(
                    subject.plan,
                    self.request.backend,
                    draws=self.request.draws_of(subject.tokens),
                    digits=DIGITS,
                )

    def refuse_unmeasured(self, rules: Sequence[str]) -> None:
        """Reject rules on quantities that will not be measured, before anything is
        drawn.
        """
        request = self.request
        ones: list[Draws] = []
        for case in request.asked:
            # only the rule on the limit needs to know whether there is one, for which
            # the limit is planned
            is_read = not case.infinite or request.widths == "inf" or "limit" in rules
            if is_read and not (case.infinite and case.model in request.refused):
                ones.append(draws_of_ones(case))
        # each rule says whether it has something to judge
        result_of(request, ones).failed(rules)

    def result(self, run: Run) -> Audit | Comparison:
        """The audit of each model."""
        run.wait()
        tasks: dict[AuditCase, list[AuditTask]] = {}
        for task in run.tasks:
            tasks.setdefault(task.case, []).append(task)
        measured = []
        for case, case_tasks in tasks.items():
            parts = [run[task] for task in case_tasks]
            measured.append(joined(case, parts, case_tasks[0].backend.precision))
        return result_of(self.request, measured)


def result_of(request: Request, measured: Iterable[Draws]) -> Audit | Comparison:
    """The result of all draws: an audit, or a comparison of several models."""
    by_case: dict[tuple[Model, int, bool], Draws] = {}
    for draws in measured:
        case = draws.subject
        by_case[case.model, case.tokens, case.infinite] = draws
    audits = []
    for model in request.models:
        lengths = []
        for tokens in request.lengths:
            actual = by_case.get((model, tokens, False))
            limit = by_case.get((model, tokens, True))
            result = LengthResult(
                request=request,
                model=model,
                tokens=tokens,
                actual=actual,
                limit=limit,
            )
            lengths.append(result)
        audits.append(Audit(lengths))
    return audits[0] if len(audits) == 1 else Comparison(audits)


def joined(subject: AuditCase, parts: list[Arrays], precision: str) -> Draws:
    """The draws of all tasks of a case as one; `parts` are the arrays of each task. The
    first has the quadrature errors.
    """
    arrays: Arrays = {}
    quadrature_errors: Arrays = {}
    for name, array in parts[0].items():
        if name.startswith(MOVED):
            quadrature_errors[name.removeprefix(MOVED)] = array
        elif name != "seconds":
            arrays[name] = np.concatenate([part[name] for part in parts])
    seconds = float(sum(part.get("seconds", 0.0) for part in parts))
    return Draws(
        subject=subject,
        arrays=arrays,
        seconds=seconds,
        precision=precision,
        moved=quadrature_errors,
    )
