"""Programs: traced networks, with their laws, draws, plans, posteriors and LaTeX."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy.typing as npt

from .._array_api import Floats, one_blas_thread
from .._familiar_names import PROGRAMS, hint
from .._validate import (
    Rng,
    TraceError,
    TraceIndexError,
    as_whole,
    chosen_seed,
    one_of,
    shown,
)
from ..engine import NoLimitError, Plan, Sampling
from ..engine import reference as _reference
from ..engine.backends import Backend, choose, choose_several, prices
from ..engine.closed_form._diverging_scores import correlated
from ..language.printing._latex import formula, latex
from ..language.printing._notation import parts, text
from ..language.theorem._theorem_check import NO_LIMIT, Report, check, verdict_of
from ..language.values._array import Value, index_positions, index_text
from ..language.values._graph import (
    bind_names,
    source_order,
    topological_order,
    widths_of,
)
from ..language.values._probe import Probe
from ..language.values._width import inf
from ..laws import Estimate, HeadSum, Joint, Mixture
from ..laws._likelihood import checked_data
from ..posterior import _bayes
from ..posterior._bayes import ChainCost, Schedule
from ..report._html import note, publish_with_formula, scrolled, table, title
from ..runtime._parallel import Progress
from ._bound_program import AtWidths
from ._extrapolate import extrapolate


class Program:
    """A network as a graph of values, and everything that netsor computes from it.

    A function decorated with `ns.program` returns one; you can also make one from
    values. It holds the outputs, and through their inputs the whole graph. It never
    changes, and it contains no numbers for the widths: methods that need them, such as
    `law`, `draw`, `plan` and `posterior`, take them as arguments. All methods describe
    the same random network, so their results at the same widths agree.

    `net[i]` is the program of one output of a tuple, or of an index into the only
    output. It keeps the seeds and the widths of the whole program.

    Parameters
    ----------
    output : Value, or tuple or list of Value
        The outputs; the law of several is their joint law. A list becomes a tuple.
    name : str
        The name that is printed.
    probes : sequence of Probe
        The values that `ns.probe` named while the program was traced.

    Examples
    --------
    >>> n = ns.Width("n")
    >>> net = ns.Program(ns.nn.attention(ns.gaussian(n, 4), heads=2))
    >>> net[0].shape, net.widths
    ((), ('n',))
    >>> print(f"{net[0].law(n=ns.inf).var():.6f}")  # exact, at infinite width
    0.391971
    >>> print(f"{net[0].law(n=16, draws=2_000).with_error.var():.2f}")
    0.41 ± 0.01
    >>> net.plan(n=256).random_numbers  # what a draw of all four outputs takes
    82
    >>> net.simulate(n=5, draws=2).shape  # draws every weight matrix instead
    (2, 4, 5)
    >>> net.check().verdict
    'conjectured'
    >>> r"\\boxed" in net[0].latex(style="paper")
    True
    """

    # False if it stands for a network whose weights have another law, such as a
    # uniform one.
    _gaussian = True
    # what its law does not take from that network: notes of every law
    _notes: tuple[str, ...] = ()
    # whether its seeds count random objects only: see `PlanQuery`
    _counts_draws = False

    def __init__(
        self,
        output: Value | tuple[Value, ...] | list[Value],
        name: str = "program",
        probes: Sequence[Probe] = (),
    ) -> None:
        """`probes` are the values that `ns.probe` named in the program."""
        if not isinstance(name, str):
            raise TraceError("Program", "name", name, "a string")
        if isinstance(output, list):
            output = tuple(output)
        outputs = output if isinstance(output, tuple) else (output,)
        if not outputs or not all(isinstance(value, Value) for value in outputs):
            raise TraceError(
                f"program {name}",
                f"must return vectors, scalars or a tuple of them, got {shown(output)}",
            )
        self.output = output
        self.name = name
        self.outputs = outputs  # a tuple, also if there is only one
        # values named by `ns.probe`, in order; empty for a part of a program
        self.probes = tuple(probes)
        # The outputs of the program that this one is a part of, which `__getitem__`
        # sets: a part has the seeds and the widths of the whole.
        self._whole = outputs

    if not TYPE_CHECKING:  # so that mypy still finds names that do not exist

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error for a name that is not here, which says what to write."""
            raise AttributeError(f"a Program has no {name!r}{hint(name, PROGRAMS)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output: the number of its vectors or scalars along each
        axis.
        """
        if isinstance(self.output, tuple):
            raise ValueError(
                f"{self.name} returns {len(self.output)} values: use the shape of"
                " net[i]"
            )
        return self.output.shape

    @property
    def widths(self) -> tuple[str, ...]:
        """The names of the widths that must be bound to evaluate the program."""
        widths = widths_of(topological_order(self._whole))
        names = [width.name for width in widths if width.name is not None]
        return tuple(dict.fromkeys(names))

    def __len__(self) -> int:
        return len(self.output)

    def __getitem__(self, key: Any) -> Program:
        """The program of one of several outputs, or of entries of the only one."""
        output = self._output_at(key)
        keys = key if isinstance(key, tuple) else (key,)
        part = Program(output, f"{self.name}[{', '.join(map(index_text, keys))}]")
        part._whole = self._whole
        part._gaussian = self._gaussian
        part._notes = self._notes
        part._counts_draws = self._counts_draws
        return part

    def _output_at(self, key: Any) -> Any:
        """The outputs that an index selects."""
        if not isinstance(self.output, tuple):
            return self.output[key]
        operation = f"program {self.name}"
        if not isinstance(key, slice) and as_whole(key) is None:
            raise TraceIndexError(
                operation, f"index {shown(key)} must be an integer or a slice"
            )
        positions = index_positions((len(self.output),), key, operation)
        if positions.ndim:
            return tuple(self.output[position] for position in positions)
        return self.output[int(positions)]

    def __iter__(self) -> Iterator[Program]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<Program {self.name}: {', '.join(map(repr, self.outputs))}>"

    def __str__(self) -> str:
        return text(self.name, self.outputs, self.probes)

    def _repr_latex_(self) -> str:
        """The formula of the limit law, for a notebook."""
        return f"$${formula(self.outputs, self.check())}$$"

    def _repr_html_(self) -> str:
        """The program as a table and its limit law, for a notebook."""
        return self._html_table() + scrolled(self._repr_latex_())

    def _html_table(self) -> str:
        """The values of the program as a table, and the verdict."""
        head, rows, last = parts(self.name, self.outputs, self.probes)
        verdict = f"<div>{verdict_of(self.check())}</div>"
        return title(head) + table(rows, code=True) + note(last) + verdict

    def _ipython_display_(self) -> None:
        """Show the table and the formula in a notebook."""
        publish_with_formula(self._html_table(), self._repr_latex_(), repr(self))

    def latex(self, document: bool = True, style: str = "full") -> str:
        """The program and its limit law (Definition 3.1 of the paper) as LaTeX.

        Parameters
        ----------
        document
            True for a whole document that compiles, False for its body.
        style
            `"full"` writes a line for the limit of every value. `"paper"` writes only
            the lines that the law of the outputs needs, with linear steps carried out,
            and that law in a box.
        """
        in_paper = one_of(style, "style", "", ("full", "paper")) == "paper"
        probes = () if in_paper else self.probes
        return latex(
            self.name,
            self.outputs,
            report=self.check(),
            document=document,
            probes=probes,
            paper=in_paper,
        )

    def check(self) -> Report:
        """Check Assumption 3.1 of the paper point by point.

        The verdict is proved, conjectured, or no limit.
        """
        return self._report

    @functools.cached_property
    def _report(self) -> Report:
        """The verdict of the theorem, computed once."""
        return check(self.name, self.outputs, correlated)

    def simulate(
        self,
        *,
        draws: int,
        seed: int = 0,
        rng: Rng = None,
        coordinates: int | slice | list[int] | None = None,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Progress = True,
        **widths: int,
    ) -> Floats | tuple[Floats, ...]:
        """Draw every weight matrix and compute the outputs from them.

        It is slow, but it is the ground truth for `law` and `draw`. Other parameters
        are those of `law`.

        Parameters
        ----------
        draws
            The number of draws; the first ones do not depend on it.
        coordinates
            The coordinates of the vectors, as a numpy index (`0`, `[0, 5]`,
            `slice(8)`); all if None.

        Returns
        -------
        draws : numpy.ndarray, or tuple of numpy.ndarray
            (draws, *shape, coordinates) for vectors of that shape, without the last
            axis if `coordinates` is an integer; (draws, *shape) for scalars. A tuple
            with one array for each output if the program returns several.
        """
        values = topological_order(self._whole)
        bound, numbers = bind_names(values, widths, allow_inf=False)
        sampling = Sampling(
            draws=draws,
            seed=chosen_seed(seed, rng),
            workers=workers,
            executor=executor,
            progress=progress,
        )
        outputs = _reference.simulate(
            self.outputs,
            sources=source_order(values),
            widths=bound | numbers,
            sampling=sampling,
            coordinates=coordinates,
        )
        return tuple(outputs) if isinstance(self.output, tuple) else outputs[0]

    def plan(
        self,
        *,
        coordinates: int | list[int] | None = None,
        backend: str | Backend = "numpy",
        device: str | None = None,
        **widths: float,
    ) -> Plan:
        """The steps that `law` would take at these widths, and their cost.

        `print(net.plan(n=256))` shows them; nothing is drawn. It raises the same
        NoLimitError or ExactError as `law`. Operations cost differently on a GPU, so
        the plan may differ; you need neither the GPU nor the library. The parameters
        are those of `law`.
        """
        return self._at(widths).titled_plan(
            self.name, coordinates, prices(backend, device)
        )

    def law(
        self,
        *,
        draws: int = 50_000,
        seed: int = 0,
        rng: Rng = None,
        coordinates: int | list[int] | None = None,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        precision: str = "float64",
        method: str = "exact",
        **widths: float,
    ) -> Mixture | HeadSum | Joint:
        """The exact law of a coordinate of the output at any widths, finite or `inf`.

        It is computed without drawing weights wherever that is possible: `plan` shows
        what would be drawn, and its cost. The result is a `Mixture` of Gaussians over
        replicas, a `Joint` mixture for several entries, or a `HeadSum`, accurate to
        many digits, for one output of an attention layer at infinite width. Raises
        NoLimitError if the program provably has no limit at an infinite width, and
        ExactError if the law cannot be computed.

        Parameters
        ----------
        draws
            The number of replicas. Beyond 4 million, a component of a `Mixture`
            represents many, to limit memory.
        seed
            An integer. The same seed couples the laws at two widths. Bits are
            reproducible on one backend.
        rng
            A `numpy.random.Generator`, from which a seed is drawn, or an integer,
            instead of `seed`.
        coordinates
            The coordinates of each vector, `5` or `[0, 5]`; several give a joint law,
            (*shape, coordinates). None means coordinate 0. If data or rotary positions
            make the coordinates differ, `law.notes` says so.
        workers, executor
            The number of threads (all cores if None), or a
            `concurrent.futures.Executor` instead of threads.
        progress
            True for a progress bar on a terminal, False for none, or a function of
            (draws done, total).
        backend
            "numpy", "jax" or "torch".
        device
            "cpu", "cuda", "cuda:1" or several, "cuda:0,cuda:1", which share the draws
            and give the numbers of one; if None, a CUDA device if the backend finds
            one.
        precision
            "float64" or "float32", which raises an error where it is not accurate
            enough.
        method
            "exact", or "extrapolate" for a limit that the engine cannot compute: exact
            laws at four finite widths are extrapolated to the infinite ones, which
            gives an `ExtrapolatedLaw`.
        widths
            Every width by its name, `law(n=256)`, `law(n=inf, d=64)`.

        Returns
        -------
        law : Mixture, HeadSum or Joint
            A law of one variable for a program with one scalar or vector as its output,
            else the joint law of the entries of all outputs, flattened.
            `law.with_error` returns every number with its standard error, of sampling
            and of Gaussian expectations.
        """
        chosen_backend, executor = choose_several(
            backend, device, precision, executor=executor
        )
        sampling = Sampling(
            draws,
            seed=chosen_seed(seed, rng),
            workers=workers,
            executor=executor,
            progress=progress,
            backend=chosen_backend,
            least=2,
        )
        exact = one_of(method, "method", "law", ("exact", "extrapolate")) == "exact"
        at = self._at(widths, need_limit=exact)
        if not exact:
            # an ExtrapolatedLaw: its methods are those of a law, but return estimates
            return extrapolate(  # type: ignore[return-value]
                self.name, at, coordinates, sampling
            )
        law = at.law(coordinates, sampling)
        all_infinite = at.widths and all(width == inf for _, width in at.widths)
        if all_infinite and not isinstance(coordinates, list):
            law._formula = functools.partial(formula, self.outputs, self.check())
        return law

    def draw(
        self,
        *,
        draws: int,
        seed: int = 0,
        rng: Rng = None,
        workers: int | None = None,
        executor: Executor | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        precision: str = "float64",
        **widths: float,
    ) -> Floats | tuple[Floats, ...]:
        """Exact draws of the outputs at any widths, finite or `inf`.

        The parameters are those of `law`. Programs may return thousands of scalars,
        since no covariance between outputs is formed. At infinite width, means over
        quadrature nodes have independent errors: the standard error of a mean over
        draws includes them.

        Returns
        -------
        draws : numpy.ndarray, or tuple of numpy.ndarray
            (draws, *shape) for an output of that shape, with a last axis if
            `coordinates` is a list; a tuple with one array for each output if the
            program returns several.
        """
        where, executor = choose_several(backend, device, precision, executor=executor)
        sampling = Sampling(
            draws,
            seed=chosen_seed(seed, rng),
            workers=workers,
            executor=executor,
            progress=progress,
            backend=where,
        )
        outputs = self._at(widths).draw(sampling)
        return tuple(outputs) if isinstance(self.output, tuple) else outputs[0]

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
        rng: Rng = None,
        workers: int | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        **widths: float,
    ) -> _bayes.Posterior:
        """The law of all outputs given observed entries, by Markov chains.

        Use it where `law(…).condition(…)` has too few replicas left: chains move the
        random numbers of the engine towards the data. Given their states the law is
        exact. You get a warning if chains disagree or are too short. The outputs must
        be Gaussian given the random numbers. Other parameters are those of `law`.

        Parameters
        ----------
        observed
            The observed values by entry, as in `Joint.condition`.
        noise
            The standard deviation of the noise of all values, or of each.
        draws
            The number of states that are kept.
        chains
            The number of chains; they start from particles.
        thin
            The number of moves between two kept states.
        particles
            The number of particles that are tempered from the prior to the posterior.
        moves
            The moves of each particle at each tempering step.
        backend
            The array library for the likelihoods, in double precision.

        Returns
        -------
        posterior : Posterior
            `law` is the joint law of all entries given the data; `r_hat`, `effective`
            and `acceptance` show how well the chains did.
        """
        seed = chosen_seed(seed, rng)
        schedule = Schedule(
            draws=draws, chains=chains, thin=thin, particles=particles, moves=moves
        ).checked()
        latent, origin = self._at(widths).latent(workers, choose(backend, device), seed)
        observations = checked_data(latent.entries, observed, noise, "posterior")
        return _bayes.posterior(latent, observations, schedule, seed, progress, origin)

    def posterior_cost(
        self, observed: Mapping[int, float], noise: npt.ArrayLike = 0.0, **options: Any
    ) -> ChainCost:
        """The cost of `posterior` with the same arguments: `seconds`, `bytes` and
        `likelihoods`.

        The likelihood is timed at a few draws of the prior; the estimate is accurate to
        within a factor of two. Other parameters are those of `posterior`.

        Parameters
        ----------
        **options
            The keyword arguments of `posterior`.

        Returns
        -------
        cost : ChainCost
            `seconds`, the largest `bytes` of memory, and the number of `likelihoods`.
        """
        in_schedule = [name for name in Schedule._fields if name in options]
        schedule = Schedule(**{name: options.pop(name) for name in in_schedule})
        schedule = schedule.checked()
        where = choose(options.pop("backend", "numpy"), options.pop("device", None))
        workers = options.pop("workers", None)
        for without_cost in ("seed", "rng", "progress"):
            options.pop(without_cost, None)
        widths = options

        start = time.perf_counter()
        latent, _ = self._at(widths).latent(workers, where)
        planning = time.perf_counter() - start
        observations = checked_data(latent.entries, observed, noise, "posterior_cost")
        cost = _bayes.cost(latent, observations, schedule)
        # the means and the covariances of the states: 16 bytes for each pair of entries
        law_bytes = 16.0 * schedule.draws * latent.entries**2
        return replace(
            cost, seconds=cost.seconds + planning, bytes=cost.bytes + law_bytes
        )

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
        rng: Rng = None,
        workers: int | None = None,
        progress: Progress = True,
        backend: str | Backend = "numpy",
        device: str | None = None,
        **widths: float,
    ) -> Estimate:
        """The log density of data under the program's law, by tempering.

        Particles go from the prior to the posterior in small steps. For few data
        `law(…).condition(…).log_evidence` is the same number; for many data only a few
        replicas have weight there, and you need this method. Other parameters are those
        of `posterior`.

        Parameters
        ----------
        runs
            The number of independent runs; their spread gives the error.
        particles
            The number of particles in each run; a first run with twice as many chooses
            the steps.
        """
        at = self._at(widths)
        seed = chosen_seed(seed, rng)
        # there are no chains, but a schedule needs two
        schedule = Schedule(chains=2, particles=particles, moves=moves).checked()
        latent, origin = at.latent(workers, choose(backend, device), seed)
        observations = checked_data(latent.entries, observed, noise, "log_evidence")
        shifted = at.shifted(workers) if origin.quadrature_error else []
        return _bayes.evidence(
            latent, observations, schedule, runs, seed, progress, shifted
        )

    def _at(self, widths: dict[str, float], need_limit: bool = True) -> AtWidths:
        """The program at these widths, with the status of its law.

        It raises an error if the law is a limit that does not exist, unless there is no
        need for one.
        """
        values = topological_order(self._whole)
        bound, numbers = bind_names(values, widths, allow_inf=True)
        return AtWidths(
            self.outputs,
            widths=tuple(bound.items()),
            whole=self._whole,
            numbers=tuple(numbers.items()),
            counts_draws=self._counts_draws,
            status=self._status(bound if need_limit else {}),
            notes=self._notes,
        )

    def _status(self, bound: Mapping[str, float]) -> str:
        """The status of the law at these widths; raises an error without a limit."""
        infinite_widths = [name for name, width in bound.items() if width == inf]
        if not infinite_widths and self._gaussian:
            status = "exact"
        elif not infinite_widths:
            # Weights that are not Gaussian have the same limit, and another law at
            # finite width.
            status = "same limit"
        elif len(infinite_widths) == len(bound):
            status = self.check().verdict
        else:
            status = "conjectured"
        if status == NO_LIMIT:
            reasons = "; ".join(self.check().reasons)
            raise NoLimitError(
                f"{self.name} has no limit: {reasons}; finite widths have a law"
            )
        return status
