"""The networks of an audit: a model with its input at its own or infinite widths, and
the tasks that draw it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ...engine import ExactError, Plan
from ...engine.backends import Backend, Numpy
from ...engine.plan._draw_cost import Draw, planning_bytes
from ...engine.run._sampler import split
from ...language import TraceError, hyperparameter
from ...language.values._graph import topological_order
from ...models import Probes, Transformer
from ...models._description import with_scalar_std
from ...models.measure._metric_program import ProgramModel
from ...programs._bound_program import AtWidths
from ...runtime._parallel import Progress
from .._cost import BACKWARD, at_depth
from .._output_dir import Arrays
from .._study import DrawTask, as_json, part_draws

Model = Transformer | ProgramModel
# of one core, at most, unless one draw takes longer: what an interrupted run loses
PART_SECONDS = 2.0
PART_DRAWS = 256  # at most
MAX_TOKENS_PER_DIMENSION = 2  # tokens for each dimension of a head, at d = ∞
STD = "std"  # the hyperparameter of a sweep of standard deviations
# before the name of a quantity: how far its Gaussian expectations move it
MOVED = "moved "


@dataclass(frozen=True)
class AuditCase:
    """A model with its input, at its own widths or at infinite ones."""

    model: Model
    tokens: int
    ids: tuple[int, ...] | None
    infinite: bool
    gradients: bool = False
    ranges: bool = False
    backend: Backend = field(default_factory=Numpy)  # of the plan
    swept: str | None = None  # a standard deviation that is an input of the plan

    # all have the same seeds, because they are compared
    place: ClassVar[tuple[int, ...]] = ()

    @property
    def shared(self) -> AuditCase:
        """The case whose program all values of a sweep share; at finite widths they
        share its plan too.
        """
        if self.swept is None or isinstance(self.model, ProgramModel):
            return self
        return dataclasses.replace(
            self, model=self.model.replace(name=self.model.family, **{self.swept: 1.0})
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The inputs of the plan by name: the value of the swept standard deviation;
        empty without a sweep.
        """
        name = "std_q" if self.swept == STD else self.swept  # STD sets std_q too
        return {} if name is None else {STD: getattr(self.model, name)}

    @property
    def widths(self) -> dict[str, float]:
        """The widths by their names."""
        widths: dict[str, float] = dict(self.model.widths())
        if self.infinite:
            for name in widths:
                if name != "d" or not self.keeps_heads:
                    widths[name] = math.inf
        return widths

    @property
    def keeps_heads(self) -> bool:
        """Whether heads keep their dimension at infinite width.

        Gradients through rotary positions have no law at d = ∞, and the limit of long
        inputs would cost more than the model.
        """
        if not self.infinite or isinstance(self.model, ProgramModel):
            return False
        is_long = self.tokens > MAX_TOKENS_PER_DIMENSION * self.model.d
        return self.model.positions == "rotary" or is_long

    @property
    def status(self) -> str:
        """How its law relates to the model."""
        return self.model.status(**self.widths)

    @lru_cache(maxsize=4)  # noqa: B019 (draws use the plan of the same object)
    def probes(self) -> Probes:
        """The program of everything that is measured."""
        inputs: dict[str, Any] = {"ids": self.ids}
        if self.ids is None:
            inputs = {"tokens": self.tokens}
        model = self.model
        if self.swept is not None and isinstance(model, Transformer):
            model = with_scalar_std(model, self.swept, hyperparameter(STD))
        return model.probes(**inputs, gradients=self.gradients, ranges=self.ranges)

    def at(self) -> AtWidths:
        """The program at its widths."""
        program = self.shared.probes()._at(self.widths)
        return program._at({**self.widths, **self.numbers})

    @lru_cache(maxsize=64)  # noqa: B019 (a plan of a hundred blocks takes seconds to make)
    def planned(self) -> tuple[Plan, Draw]:
        """Its plan, and the cost of a draw and of planning, which every worker
        repeats. At finite widths all values of a sweep share a plan, with the value as
        an input.
        """
        # at infinity Gaussian expectations depend on the swept value
        case = self if self.infinite else self.shared
        if case != self:
            plan, draw = case.planned()
            return plan.bind(self.numbers), draw
        start = time.process_time()
        try:
            widths: dict[str, Any] = {**self.widths, **self.numbers}
            plan = self.shared.probes().plan(backend=self.backend, **widths)
            plan = self.backend.within_memory(plan)
        except TraceError as error:
            raise ValueError(f"{self.model.name}: {error.plain}") from None
        seconds = time.process_time() - start
        many_scores = self.infinite and not self.keeps_heads
        size = planning_bytes(topological_order(self.at().outputs), many_scores)
        return plan, Draw.of(plan, self.backend, seconds, size)

    @property
    def plan(self) -> Plan:
        """Its plan."""
        return self.planned()[0]

    @property
    def draw(self) -> Draw:
        """The cost of a draw."""
        return self.planned()[1]

    @property
    def refused(self) -> str:
        """Why the engine has no law for it; "" if it has one."""
        try:
            self.planned()
        except ExactError as error:
            return error.plain
        return ""

    @property
    def draw_at_depth(self) -> Draw:
        """About the cost of a draw, without the plan of a deep model."""
        if isinstance(self.model, ProgramModel):
            return self.draw
        return at_depth(
            self.model, lambda shallow: dataclasses.replace(self, model=shallow).draw
        )

    @property
    def part_draws(self) -> int:
        """The draws of a part. They depend only on the cost of a draw at the model's
        own widths.

        So other options do not change the draws of a model, and the draws of its limit
        are coupled to them.
        """
        if not self.backend.threads:  # a device draws many at once
            return PART_DRAWS
        at_model_width = dataclasses.replace(self, infinite=False, backend=Numpy())
        seconds = PART_SECONDS * (BACKWARD if self.gradients else 1)
        return part_draws(PART_DRAWS, seconds, at_model_width.plan.seconds(1))

    @property
    def key(self) -> dict[str, Any]:
        """Everything that its draws depend on, as JSON; the name of the model is not
        part of that.
        """
        fields = dict(self.model.fields())
        fields.pop("name", None)
        values = {
            "model": fields,
            "tokens": self.tokens,
            "ids": self.ids,
            "infinite": self.infinite,
        }
        # the program of a sweep numbers its draws in another order
        options = {
            "gradients": self.gradients,
            "ranges": self.ranges,
            "swept": self.swept,
        }
        values |= {name: value for name, value in options.items() if value}
        key: dict[str, Any] = as_json(values)
        return key


@dataclass(frozen=True)
class AuditTask(DrawTask):
    """Some draws of a case: parts of a model and of its limit have the same seed,
    because they are compared.
    """

    case: AuditCase

    def run(self, progress: Progress = False) -> Arrays:
        """The draws of each quantity by name, (draws, blocks) or (draws,).

        The first task at infinite width adds the quadrature errors, under the name of
        the quantity after MOVED: (moves, blocks), how far each move of the Gaussian
        expectations shifts the quantity.
        """
        probes = self.case.shared.probes()
        program = self.case.at()
        sampling = self.sampling(workers=1, progress=progress)
        arrays: Arrays = dict(probes.named(program.unchecked(sampling)))
        if self.case.infinite and self.index == 0:
            moves = program.moves(self.backend)
            if moves is None:
                signed = np.zeros((1, self.case.plan.mean.shape[0]))
            else:
                signed = moves.signed
            for name, moved in probes.named(split(signed, program.outputs)).items():
                arrays[MOVED + name] = moved
        return arrays
