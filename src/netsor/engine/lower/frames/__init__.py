"""Frames: which coordinates the vectors of a cluster have. The kind is chosen here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..._ir_builder import Builder
from .._components import FrameBatch
from ._finite_width import BartlettFrame, StandardBasis
from ._frame import Application, Frame
from ._infinite_width import NO_VALUE, Directions, InfiniteWidthFrame, NestedNonlinearity, QmcFrame

__all__ = [
    "NO_VALUE",
    "Application",
    "BartlettFrame",
    "Directions",
    "Frame",
    "InfiniteWidthFrame",
    "NestedNonlinearity",
    "QmcFrame",
    "StandardBasis",
    "frame_for",
]


def frame_for(
    group: FrameBatch, build: Builder, picked: Sequence[int], virtual: bool, nested: bool, scored: bool, whole: bool
) -> Frame:
    """The frames of a group of clusters.

    `picked` are the coordinates α of a block that outputs ask for. `virtual`: its sources are replaced by a Fuse, which
    wants means apart; they have a direction each, whatever the width. `nested`: at infinite width, a nonlinearity acts
    on another's outputs. `scored`: scores are asked for. `whole`: at finite width, all coordinates cost less.
    """
    if virtual:
        return InfiniteWidthFrame(group, build, ones=True, scored=True)
    if group.width == math.inf:
        return QmcFrame(group, build) if nested else InfiniteWidthFrame(group, build, group.constant, scored)
    chosen = StandardBasis if group.nonlinear or group.given or whole else BartlettFrame
    return chosen(group, build, picked)
