"""Frames: which coordinates the vectors of a cluster have. The kind is chosen here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..._builder import Builder
from .._clusters import Group
from ._frame import Application, Frame
from ._growing import Growing
from ._limit import NO_VALUE, Directions, Limit, NestedError
from ._nodes import Nodes
from ._whole import Whole

__all__ = [
    "NO_VALUE",
    "Application",
    "Directions",
    "Frame",
    "Growing",
    "Limit",
    "NestedError",
    "Nodes",
    "Whole",
    "frame_for",
]


def frame_for(
    group: Group, build: Builder, picked: Sequence[int], virtual: bool, nested: bool, scored: bool, whole: bool
) -> Frame:
    """The frames of a group of clusters.

    `picked` are the coordinates α of a block that outputs ask for. `virtual`: its sources are replaced by a Fuse, which
    wants means apart; they have a direction each, whatever the width. `nested`: at infinite width, a nonlinearity acts
    on another's outputs. `scored`: scores are asked for. `whole`: at finite width, all coordinates cost less.
    """
    if virtual:
        return Limit(group, build, ones=True, scored=True)
    if group.width == math.inf:
        return Nodes(group, build) if nested else Limit(group, build, group.constant, scored)
    chosen = Whole if group.nonlinear or group.given or whole else Growing
    return chosen(group, build, picked)
