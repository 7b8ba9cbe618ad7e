"""What a rule is derived for: a function of the width, and how it is trained."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from .._validate import ArgumentError, Shape
from ._coordinate_check import Trained
from ._file_content import FileContent
from ._measurement import Matrices
from ._rules import OutputScale
from ._unlike_rows import UnlikeRows


class Family(Protocol):
    """An optimiser, by what a derived rule has to know about it."""

    @property
    def name(self) -> str:
        """Its name, as "adamw"."""

    @property
    def words(self) -> str:
        """Its name in reports."""

    @property
    def has_eps(self) -> bool:
        """Whether it has an eps that follows the size of gradients."""

    @property
    def is_mixed(self) -> bool:
        """Whether matrices have an optimiser of their own: parameters both of whose
        axes grow with the width.
        """

    @property
    def is_sphere(self) -> bool:
        """Whether matrices keep their norm."""

    @property
    def decays_gradient(self) -> bool:
        """Whether weight decay is added to a gradient that is then divided by its
        size, as in Adam.
        """

    @property
    def is_orthogonal(self) -> bool:
        """Whether updates of matrices are orthogonal, as those of Muon are."""


class TrainingRun(NamedTuple):
    """One real training of a few steps, whose last loss a sweep looks at."""

    width: int
    lr: float
    draw: int  # the number of its initialisation
    factors: Sequence[float]  # of the learning rate, at each step
    clip_norm: float | None  # the norm that gradients have at most


@dataclass(frozen=True)
class Subject(ABC):
    """A function that makes networks of a width, and how they are trained."""

    build: Callable[..., Any]
    family: Family
    batch: Any
    seed: int
    base_width: int
    base_depth: int | None
    # by patterns of names: into how many equal parts a fused matrix falls, or a
    # function of the width that returns their sizes
    split_sizes: Mapping[str, int | Callable[[int], Sequence[int]]] = field(
        default_factory=dict
    )

    # rows of fused matrices that start unlike the others, which the rule changes
    unlike_rows: Sequence[UnlikeRows] = ()
    # what makes the optimiser of the user
    make: Any = None

    framework = ""  # its name, in written files
    python = ""  # the names of what is derived in the language of the framework

    @abstractmethod
    def shapes(self, width: int, depth: int | None) -> dict[str, Shape]:
        """The shapes of the parameters of a network of this size."""

    @abstractmethod
    def source_of(self, content: FileContent) -> str:
        """A rule as a file of plain code of the framework."""

    @abstractmethod
    def trained(
        self,
        source: str,
        scales: Sequence[OutputScale],
        free: Sequence[str],
        seed: int,
    ) -> Trained:
        """Networks that are trained with a written file."""

    def matrices(self, width: int, depth: int | None) -> Matrices:
        """The parameters with an optimiser for matrices, and the sizes of their parts.

        Both axes of a matrix grow with the width.
        """
        if not self.family.is_mixed:
            return {}
        shapes = self.shapes(width, depth)
        wider_shapes = self.shapes(2 * width, depth)
        matrices: Matrices = {}
        for name, shape in shapes.items():
            sizes = zip(shape, wider_shapes[name], strict=True)
            both_grow = all(wider > size for size, wider in sizes)
            if len(shape) == 2 and both_grow:
                matrices[name] = self._split(name, shape[0], width)
        return matrices

    def matrices_of_size(self, width: int, depth: int | None = None) -> Matrices:
        """The same, by default for the smallest depth."""
        return self.matrices(width, depth or self.base_depth)

    @property
    def base(self) -> tuple[int, ...]:
        """The smallest width, and the smallest depth if there is one."""
        return self.size(self.base_width, self.base_depth)

    @staticmethod
    def size(width: int, depth: int | None) -> tuple[int, ...]:
        """What the function is called with."""
        return (width,) if depth is None else (width, depth)

    def _split(self, name: str, rows: int, width: int) -> Sequence[int] | None:
        """The sizes of the parts of a matrix; None: it is one."""
        for pattern, parts in self.split_sizes.items():
            if not fnmatchcase(name, pattern):
                continue
            sizes = [rows // parts] * parts if isinstance(parts, int) else parts(width)
            if sum(sizes) != rows:
                raise ArgumentError(
                    "split_sizes",
                    f"{list(sizes)} of {name}",
                    f"sizes that add up to its {rows} rows",
                )
            return list(sizes)
        return None

    def check_takes(self, sizes: tuple[int, ...]) -> None:
        """Reject a function that does not take the width, and the depth if there is
        one.
        """
        try:
            inspect.signature(self.build).bind(*sizes)
        except TypeError as error:
            name = getattr(self.build, "__name__", "build")
            arguments = "width" if len(sizes) == 1 else "width, depth"
            raise ArgumentError(
                "build", f"{name} ({error})", f"a function such as {name}({arguments})"
            ) from None
        except ValueError:  # it has no signature that Python knows
            return

    def ratios(self, width: int, depth: int | None) -> tuple[float, float]:
        """The width and the depth, relative to the base."""
        deeper = 1.0 if depth is None else depth / (self.base_depth or depth)
        return width / self.base_width, deeper
