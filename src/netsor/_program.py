"""A program: what a function written in the language returned, and every reading of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _bayes
from ._array_api import one_blas_thread
from ._bound_program import AtWidths
from ._repr_html import note, scrolled, table, title
from .engine import NoLimitError, Plan, Sampling, _reference
from .engine._diverging_scores import correlated
from .engine._parallel import Progress
from .engine.backends import Backend, choose, prices
from .language._array import Value
from .language._check_report import NO_LIMIT, Report, verdict_of
from .language._given import as_whole, picked, shown
from .language._graph import source_order, topological_order, widths_of
from .language._latex import latex
from .language._latex_paper import display, paper
from .language._print import parts, text
from .language._probe import Probe
from .language._source_location import TraceError, TraceIndexError
from .language._width import bind_widths, inf
from .laws import Estimate, HeadSum, Joint, Mixture
from .laws._likelihood import checked_data

Draws = npt.NDArray[np.float64]


class Program:
    """A traced program: what a function decorated with `ns.program` returns, or one made from values.

    `net[i]` is the program of one output of a tuple, or of an index into the only output.

    Parameters
    ----------
    output : Value, or tuple of Value
        The outputs; the law of several is their joint law.
    name : str
        The name that is printed.
    probes : sequence of Watched
        The values that `ns.probe` named while the program was traced.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> net = ns.Program(ns.nn.attention(ns.gaussian(n, 4), heads=2))
    >>> net[0].shape, net.widths
    ((), ('n',))
    >>> print(f"{net[0].law(n=ns.inf).var():.6f} {net[0].law(n=16, draws=2_000).with_error.var():.2f}")
    0.391971 0.41 ± 0.01
    >>> net.check().verdict, net.plan(n=256).random_numbers, net.simulate(n=5, draws=2).shape
    ('conjectured', 82, (2, 4, 5))
    >>> r"\\boxed" in net[0].latex(style="paper")
    True
    """

    def __init__(
        self,
        output: Value | tuple[Value, ...] | list[Value],
        name: str = "program",
        probes: Sequence[Probe] = (),
    ) -> None:
        if not isinstance(name, str):
            raise TraceError("Program", f"name={shown(name)} must be a string")
        if isinstance(output, list):
            output = tuple(output)
        outputs = output if isinstance(output, tuple) else (output,)
        if not outputs or not all(isinstance(value, Value) for value in outputs):
            raise TraceError(
                f"program {name}", f"must return a vector, a scalar or a tuple of them, returned {shown(output)}"
            )
        self.output = output
        self.name = name
        self.probes = tuple(probes)  # what `ns.probe` named, in order; a part of a program has none
        self._whole = outputs  # a part of a program has the seeds and the widths of the whole

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs as a tuple, also when there is one."""
        return self.output if isinstance(self.output, tuple) else (self.output,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the one output: how many vectors or scalars, by axes."""
        if isinstance(self.output, tuple):
            raise ValueError(f"{self.name} returns {len(self.output)} values: ask for the shape of net[i]")
        return self.output.shape

    @property
    def widths(self) -> tuple[str, ...]:
        """The names of the widths that must be bound to evaluate the program."""
        return tuple(dict.fromkeys(w.name for w in widths_of(topological_order(self._whole)) if w.name is not None))

    def __len__(self) -> int:
        return len(self.output)

    def __getitem__(self, key: Any) -> Program:
        if isinstance(self.output, tuple):
            if not isinstance(key, slice) and as_whole(key) is None:
                raise TraceIndexError(f"program {self.name}", f"index {shown(key)} must be an integer or a slice")
            places = picked(np.arange(len(self.output)), key, f"program {self.name}")
            chosen: Any = tuple(self.output[i] for i in places) if places.ndim else self.output[int(places)]
        else:
            chosen = self.output[key]
        at = ", ".join(map(key_text, key if isinstance(key, tuple) else (key,)))
        part = Program(chosen, f"{self.name}[{at}]")
        part._whole = self._whole
        return part

    def __iter__(self) -> Iterator[Program]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        parts = ", ".join(repr(value) for value in self.outputs)
        return f"<Program {self.name}: {parts}>"

    def __str__(self) -> str:
        return text(self.name, self.outputs, self.probes)

    def _repr_latex_(self) -> str:
        return display(self.outputs, self.check())

    def _repr_html_(self) -> str:
        return self._listed() + scrolled(self._repr_latex_())

    def _listed(self) -> str:
        head, rows, last = parts(self.name, self.outputs, self.probes)
        said = verdict_of(self.check())
        return f"{title(head)}{table(rows, code=True)}{note(last)}<div>{said}</div>"

    def _ipython_display_(self) -> None:
        """The formula by itself, since VS Code sets none that is within HTML."""
        from IPython.display import publish_display_data  # what calls this has it

        publish: Callable[[dict[str, str]], None] = publish_display_data  # which has no types
        publish({"text/html": self._listed(), "text/plain": repr(self)})
        publish({"text/latex": self._repr_latex_()})

    def latex(self, document: bool = True, style: str = "full") -> str:
        """The program and its limit law (Definition 3.1 of the paper) as LaTeX.

        Parameters
        ----------
        document
            Whether to return a whole document, which compiles as it is, or its body alone.
        style
            `"full"` has a line for the limit of every value. `"paper"` has those that the law of the outputs needs,
            linear steps carried out, and that law in a box at the end.
        """
        if style not in ("full", "paper"):
            raise ValueError(f"style={shown(style)} must be 'full' or 'paper'")
        if style == "paper":
            return paper(self.name, self.outputs, self.check(), document)
        return latex(self.name, self.outputs, self.check(), document, self.probes)

    def check(self) -> Report:
        """Assumption 3.1 of the paper, point by point, and the verdict: proved, conjectured, or no limit."""
        return self._report

    @functools.cached_property
    def _report(self) -> Report:
        from .language._check import check  # needs scipy.sparse, which is slow to import

        return check(self.name, self.outputs, correlated)

    def simulate(
        self,
        *,
        draws: int,
        seed: int = 0,
        coordinates: int | slice | list[int] | None = None,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Progress = True,
        **widths: int,
    ) -> Draws | tuple[Draws, ...]:
        """Draws of the output, literally: every weight matrix is drawn and multiplied. Slow, and the ground truth.

        Parameters
        ----------
        draws
            How many; more draws begin with the same ones.
        seed
            An integer, which the draws depend on alone.
        coordinates
            Which coordinates of the vectors, as numpy's indexing picks them (`0`, `[0, 5]`, `slice(8)`); all if None.
        workers
            Threads; all cores if None.
        executor
            Any `concurrent.futures.Executor`, in place of threads.
        progress
            True for a bar on a terminal, False for none, or a function of (draws done, draws in all).
        widths
            Every width by its name, `simulate(n=64, draws=1000)`.
        """
        values = topological_order(self._whole)
        bound = bind_widths(widths_of(values), widths, allow_inf=False)
        how = Sampling(draws, seed, workers, executor, progress)
        found = _reference.simulate(self.outputs, source_order(values), bound, how, coordinates)
        return tuple(found) if isinstance(self.output, tuple) else found[0]

    def plan(
        self,
        *,
        coordinates: int | list[int] | None = None,
        backend: str | Backend = "numpy",
        device: str | None = None,
        **widths: float,
    ) -> Plan:
        """What `law` would draw and compute at these widths, step by step, and what it costs: `print(net.plan(n=256))`.

        Nothing is drawn. A program that cannot be done is refused here already, with the reason.

        Parameters
        ----------
        coordinates : int or list of int, optional
            As in `law`.
        backend
            The array library for which it is made, as in `law`.
        device : str, optional
            Where that computes: an accelerator has other prices, and may have another plan. A device that is named
            need not be here, nor the library: a plan depends on "cpu" or "cuda" alone. In either precision it is one.
        **widths : float
            Every width by its name.
        """
        return self._at(widths).plan(self.name, coordinates, prices(backend, device))

    def law(
        self,
        *,
        draws: int = 50_000,
        seed: int = 0,
        coordinates: int | list[int] | None = None,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        precision: str = "float64",
        **widths: float,
    ) -> Mixture | HeadSum | Joint:
        """The law of a coordinate of the output, exactly, at any widths, finite or `inf`; no weight has to be drawn.

        `plan` says what will be drawn and computed, and what that costs. A matrix that acts on hundreds of vectors can
        cost less than what they ask of it: then it is drawn.

        Parameters
        ----------
        draws
            The number of replicas. Of more than 4 million of one output the components of a `Mixture` stand for many
            replicas each, so that memory does not grow with them.
        seed
            An integer. The same seed at two widths gives coupled laws; it gives the same bits on one backend, and the
            same law on all.
        coordinates
            Which coordinates of each vector, `5` or `[0, 5]`, as in `simulate`; of several it is their joint law,
            entries (*shape, coordinates) in numpy's order. Without it the law is that of coordinate 0: of any, unless
            data or rotary positions make coordinates differ, and then `law.notes` says so.
        workers
            Threads; all cores if None.
        executor
            Any `concurrent.futures.Executor`, in place of threads.
        progress
            As in `simulate`.
        backend
            "numpy", "jax" or "torch".
        device
            "cpu" or "cuda"; if None, a CUDA device if there is one and the backend sees it.
        precision
            "float64", or "float32", which is an error where it is not accurate enough.
        widths
            Every width by its name, `law(n=256)`, `law(n=inf, d=64)`.
        """
        at = self._at(widths)
        how = Sampling(draws, seed, workers, executor, progress, choose(backend, device, precision), least=2)
        return at.law(coordinates, how)

    def draw(
        self,
        *,
        draws: int,
        seed: int = 0,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        precision: str = "float64",
        **widths: float,
    ) -> Draws | tuple[Draws, ...]:
        """Draws of the outputs, exactly, at any widths, finite or `inf`, as in `law`.

        Nothing is formed between pairs of outputs, so that a program may return thousands of scalars. At infinite width
        the quadrature error of Gaussian expectations is checked as in `law`: if it is more than 0.001 of the spread of
        an output, a `QuadratureWarning` states it.

        Parameters
        ----------
        draws : int
            How many.
        seed : int
            As in `simulate`; the same seed at two widths gives coupled draws.
        workers : int, optional
            Threads; all cores if None.
        executor : concurrent.futures.Executor, optional
            In place of threads.
        progress : bool or callable
            As in `simulate`.
        backend : str
            The array library, as in `Program.law`.
        device : str, optional
            Where it computes.
        precision : str
            Of numbers, "float64", or "float32", which is an error where it is not accurate enough.
        **widths : float
            Every width by its name.
        """
        at = self._at(widths)
        how = Sampling(draws, seed, workers, executor, progress, choose(backend, device, precision))
        found = at.draw(how)
        return tuple(found) if isinstance(self.output, tuple) else found[0]

    @one_blas_thread()
    def posterior(
        self,
        observed: Mapping[int, float],
        noise: npt.ArrayLike = 0.0,
        *,
        draws: int = 800,
        chains: int = 16,
        thin: int = 8,
        particles: int = 512,
        moves: int = 3,
        seed: int = 0,
        workers: int | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        **widths: float,
    ) -> _bayes.Posterior:
        """The law of all outputs given that some entries were observed, by Markov chains.

        What `law(…).condition(…)` finds by weighting replicas of the prior, for data that leave too few of them: chains
        move what the engine draws to where the data are. Given the chains' states all is exact. A warning says when
        chains do not agree or are too short. Works where the outputs are Gaussian given what is drawn.

        Parameters
        ----------
        observed : mapping of int to float
            The values, by entry, as in `Joint.condition`.
        noise : float or array_like
            The standard deviation of the noise of all values, or of each.
        draws : int
            How many states are kept in all.
        chains : int
            How many chains start, from some of the particles.
        thin : int
            How many moves apart the kept states are.
        particles : int
            How many go from the prior to the posterior, as in `log_evidence`.
        moves : int
            Of each particle, at each step of the way.
        seed : int
            What the chains depend on.
        workers : int, optional
            Threads; all cores if None.
        progress : bool or callable
            As in `simulate`.
        backend : str
            The array library that finds the likelihoods, "numpy", "jax" or "torch", in double precision.
        device : str, optional
            Where it does, as in `law`.
        **widths : float
            Every width by its name.
        """
        latent, origin = self._at(widths).latent(workers, choose(backend, device), seed)
        data = checked_data(latent.entries, observed, noise)
        how = _bayes.Schedule(draws, chains, thin, particles, moves)
        return _bayes.posterior(latent, data, how, seed, progress, origin)

    def posterior_cost(
        self,
        observed: Mapping[int, float],
        noise: npt.ArrayLike = 0.0,
        *,
        draws: int = 800,
        chains: int = 16,
        thin: int = 8,
        particles: int = 512,
        moves: int = 3,
        workers: int | None = None,
        backend: str | Backend = "numpy",
        device: str | None = None,
        **widths: float,
    ) -> _bayes.Cost:
        """About what `posterior` with the same arguments would take: `seconds`, `bytes` and `likelihoods`.

        The program is planned, and the likelihood is timed at a few draws of the prior. How many steps and tries the
        chains need is as measured elsewhere, so that this is right within a factor of two or three.

        Parameters
        ----------
        observed : mapping of int to float
            The values, by entry; this and all others as in `posterior`.
        noise : float or array_like
            Of the values.
        draws : int
            States.
        chains : int
            Of states.
        thin : int
            Moves between two states.
        particles : int
            On the way from the prior.
        moves : int
            Of each particle, at each step of the way.
        workers : int, optional
            Threads.
        backend : str
            The array library that finds the likelihoods, "numpy", "jax" or "torch", in double precision.
        device : str, optional
            Where it does, as in `law`.
        **widths : float
            Every width by its name.
        """
        latent, _ = self._at(widths).latent(workers, choose(backend, device))
        data = checked_data(latent.entries, observed, noise)
        found = _bayes.cost(latent, data, _bayes.Schedule(draws, chains, thin, particles, moves).checked())
        law = 16.0 * draws * latent.entries**2
        return _bayes.Cost(found.seconds, found.bytes + law, found.likelihoods)

    @one_blas_thread()
    def log_evidence(
        self,
        observed: Mapping[int, float],
        noise: npt.ArrayLike = 0.0,
        *,
        runs: int = 8,
        particles: int = 128,
        moves: int = 3,
        seed: int = 0,
        workers: int | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        **widths: float,
    ) -> Estimate:
        """The logarithm of the density of data under the program's law, by tempering, with its error.

        Particles, draws of what the engine draws, go from the prior to the posterior in small steps. For few data
        `law(…).condition(…)` has the same number in `log_evidence`, by weights; with many, weights leave a few replicas
        and this does not.

        Parameters
        ----------
        observed : mapping of int to float
            The values, by entry, as in `Joint.condition`.
        noise : float or array_like
            The standard deviation of the noise of all values, or of each.
        runs : int
            How many independent runs; their spread gives the error.
        particles : int
            The number of particles in each run; a first run with twice as many chooses the steps.
        moves : int
            Of the chains of `posterior`, at each step.
        seed : int
            What the runs depend on.
        workers : int, optional
            Threads; all cores if None.
        progress : bool or callable
            As in `simulate`.
        backend : str
            The array library that finds the likelihoods, "numpy", "jax" or "torch", in double precision.
        device : str, optional
            Where it does, as in `law`.
        **widths : float
            Every width by its name.
        """
        at = self._at(widths)
        latent, origin = at.latent(workers, choose(backend, device), seed)
        data = checked_data(latent.entries, observed, noise)
        shifted = at.shifted(workers) if origin.quadrature_error else []
        return _bayes.evidence(latent, data, runs, particles, moves, seed, progress, shifted)

    def _at(self, widths: dict[str, float]) -> AtWidths:
        bound = bind_widths(widths_of(topological_order(self._whole)), widths, allow_inf=True)
        return AtWidths(self.outputs, self._whole, bound, self._status(bound))

    def _status(self, widths: dict[str, float]) -> str:
        """Finite widths are exact; the theorem is about all widths at infinity; what has no limit has no law there."""
        if all(width < inf for width in widths.values()):
            return "exact"
        if any(width < inf for width in widths.values()):
            return "conjectured"
        report = self.check()
        if report.verdict == NO_LIMIT:
            raise NoLimitError(f"{self.name} has no limit: {'; '.join(report.reasons)}; finite widths have a law")
        return report.verdict


def key_text(key: object) -> str:
    """An index as it is written: `2`, `1:3`, `...`."""
    if isinstance(key, slice):
        start, stop, step = ("" if k is None else str(k) for k in (key.start, key.stop, key.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    number = as_whole(key)
    return "..." if key is Ellipsis else shown(key) if number is None else str(number)
