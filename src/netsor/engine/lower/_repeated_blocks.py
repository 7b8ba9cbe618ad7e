"""A deep network without most of its equal blocks: it is planned in place of the whole, and its plan made longer.

Blocks are found from the values themselves, so that it does not matter how a program was written. What is left out is
made again by `_repeated_blocks`, from the steps of the blocks that are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...activations import Function
from ...language._array import Value, field_names
from ...language._check_function import content_of
from ...language._graph import source_of
from ...language._operation import Constant, Source
from ...language._parameters import Weight
from ...language._scalar import Scalar
from ...language._vector import Vector
from .._ir import Loop, Register, Step, content, key_of, kind_of, loops
from .._ir_builder import Builder

FRONT, END = 8, 5  # blocks kept before and after those left out: frames may fill, and the last ones are not all needed
MULTIPLE = 12  # as many are left out, or twice as many, …: the steps of a plan may repeat every 1, 2, 3, 4 or 6 blocks
MAX_BLOCK_DISTANCE = 2  # blocks back from which a block may read


class Repeated(NamedTuple):
    """An output of one of the first blocks, or of one left out: those of all first ones, and which block it is."""

    like: tuple[Value, ...]
    block: int


@dataclass(frozen=True)
class TruncatedProgram:
    """A program without some blocks."""

    outputs: list[Value]
    all_outputs: list[Value | Repeated]  # of the whole program
    origin: dict[Value, int]
    left: int  # blocks that are left out, after the first ones
    stride: int  # by what the places of a block, as written, differ from those of the block before
    share: float  # of all values, those that are kept


def shorter(values: Sequence[Value], outputs: Sequence[Value], origin: Mapping[Value, int]) -> TruncatedProgram | None:
    """The program without most of its equal blocks; None if it has few, or if they are no chain."""
    if len(values) < 2 * (FRONT + END) or len(set(outputs)) < len(outputs):
        return None
    place = {value: k for k, value in enumerate(values)}
    loop = max(
        loops(list(_kinds(values, place, set(outputs)))), key=lambda loop: loop.period * loop.times, default=None
    )
    if loop is None:
        return None
    period, left = loop.period, (loop.times - FRONT - END) // MULTIPLE * MULTIPLE
    if 2 * left < loop.times:  # it saves too little, for it may be in vain
        return None
    first, skip = loop.start + FRONT * loop.period, left * loop.period
    drawn = [k for k in range(loop.start, loop.stop - period) if source_of(values[k]) is not None]
    strides = {origin[values[k + period]] - origin[values[k]] for k in drawn}
    if len(strides) != 1:
        return None
    new: dict[Value, Value] = {value: value for value in values[:first]}
    for k, value in enumerate(values[first + skip :], first + skip):
        inputs = []
        for x in value.op.inputs:
            at = place[x]
            if isinstance(x.op, Constant):
                inputs.append(new[x] if x in new else values[loop.start + (at - loop.start) % period])
            elif min(k, loop.stop) - at <= MAX_BLOCK_DISTANCE * period:
                inputs.append(new[x] if at >= first + skip else values[at - skip])
            elif k >= loop.stop and at < loop.start:
                inputs.append(x)
            else:
                return None
        same = all(a is b for a, b in zip(inputs, value.op.inputs, strict=True))
        new[value] = value if same else replace(value, op=value.op.with_inputs(*inputs))
    every: list[Value | Repeated] = []
    for output in outputs:
        at = place[output]
        if loop.start <= at < loop.stop and not isinstance(output, Scalar):
            return None
        if loop.start <= at < first + skip:
            block, offset = divmod(at - loop.start, period)
            every.append(Repeated(tuple(values[loop.start + b * period + offset] for b in range(FRONT)), block))
        else:
            every.append(new[output])
    kept = [new[output] for output in outputs if output in new]
    places = {made: origin[value] for value, made in new.items()}
    return TruncatedProgram(kept, every, places, left, strides.pop(), len(new) / len(values))


def _kinds(values: Sequence[Value], place: Mapping[Value, int], outputs: set[Value]) -> Iterator[Hashable]:
    """Equal for values that are made by the same operation from values at the same distance before them."""
    seen: dict[Source, int] = {}
    constants: dict[Value, Hashable] = {}

    def known(entry: Any, at: int) -> Any:
        match entry:
            case Value():
                return constants.get(entry, at - place[entry])
            case Source():  # its identity: when it was used before
                return at - seen.get(entry, at)
            case np.ndarray():
                return content_of(entry)
            case Weight():
                return tuple(known(getattr(entry, name), at) for name in field_names(Weight))
            case Function():
                return entry.name, entry.parameters, content(entry)
            case tuple():
                return tuple(known(each, at) for each in entry)
        return entry

    for at, value in enumerate(values):
        made = tuple(known(getattr(value.op, name), at) for name in field_names(type(value.op)))
        width = value.width if isinstance(value, Vector) else None
        kind: Hashable = type(value.op), value.shape, width, value in outputs, made
        try:
            hash(kind)
        except TypeError:
            kind = at  # like no other
        source = source_of(value)
        if source is not None:
            seen[source] = at
        if isinstance(value.op, Constant):
            constants[value] = kind
        yield kind


LATEST = 2  # times before the last that steps after a loop may read
NUMBER = re.compile(r"(\d+)")


class NotPeriodicError(ValueError):
    """Steps that do not repeat as the blocks of the program do."""


class PlanUnroller:
    """Puts `left` blocks into the steps of a plan; streams of a block are `stride` after those of the block before."""

    def __init__(self, build: Builder, left: int, stride: int) -> None:
        self.build = build
        self.made = {step.out: k for k, step in enumerate(build.steps)}
        kinds = [kind_of(step, k, self.made) for k, step in enumerate(build.steps)]
        self.loop = max(loops(kinds), key=lambda loop: loop.period * loop.times, default=Loop(0, 1, 0))
        start, period, times = self.loop
        if times <= LATEST:
            raise NotPeriodicError
        self.steps = [build.steps[start + k : self.loop.stop : period] for k in range(period)]  # each, at all times
        places = next((_places(many) for many in self.steps if "key" in many[0].params), [0])
        apart = min((b - a for a, b in pairwise(places)), default=0)
        self.blocks = apart // stride  # that are repeated at once
        if self.blocks < 1 or apart % stride or left % self.blocks:
            raise NotPeriodicError
        self.more = left // self.blocks
        self.check(build.steps[self.loop.stop :])
        # the first time stays, and those after it become the last ones
        self.out = [[many[0].out, *(Register(many[0].out.shape) for _ in range(self.more))] for many in self.steps]
        for outs, many in zip(self.out, self.steps, strict=True):
            outs += [step.out for step in many[1:]]
        rules = [self._rule(many) for many in self.steps]
        again = [self._step(k, rule, t) for t in range(1, times + self.more) for k, rule in enumerate(rules)]
        build.steps = [*build.steps[: start + period], *again, *build.steps[self.loop.stop :]]

    def check(self, after: Sequence[Step], outputs: Collection[Register] = ()) -> None:
        """Refuse steps after the loop that read more of it than its last times, and outputs, one a block."""
        for step in after:
            args = [arg for arg in step.args if arg not in outputs]
            if any(0 <= at < (self.loop.times - LATEST) * self.loop.period for at in self._inside(args)):
                raise NotPeriodicError

    def of(self, first: Sequence[Register], block: int) -> Register:
        """What a block makes, given what the first ones make."""
        like = block if block < len(first) else len(first) - self.blocks + (block - len(first)) % self.blocks
        (at,) = self._inside([first[like]])
        t, k = divmod(at, self.loop.period)
        t += (block - like) // self.blocks
        if at < 0 and (block == like or len(set(first)) == 1):
            return first[like]
        if at < 0 or like < 0 or t >= len(self.out[k]):
            raise NotPeriodicError
        return self.out[k][t]

    def _inside(self, args: Sequence[Register]) -> Iterator[int]:
        """The place of each array in the loop; negative for those made before it, or never."""
        for arg in args:
            at = self.made.get(arg, -1)
            yield at - self.loop.start if self.loop.start <= at < self.loop.stop else -1

    def _rule(self, many: Sequence[Step]) -> tuple[list[tuple[int, int] | None], list[tuple[int, int]]]:
        """Of a step at all times: the arrays that it reads, by step and times back; how its numbers begin and grow."""
        if len({(step.params.get("by"), NUMBER.sub("", step.words)) for step in many}) > 1:
            raise NotPeriodicError
        reads: list[tuple[int, int] | None] = []
        for args in zip(*(step.args for step in many), strict=True):
            at = list(self._inside(args))
            if at[-1] < 0:
                reads.append(None)
                if any(arg is not args[0] for arg in args):
                    raise NotPeriodicError
            else:
                t, k = divmod(at[-1], self.loop.period)
                back = len(many) - 1 - t
                reads.append((k, back))
                if any(place != (t - back) * self.loop.period + k for t, place in enumerate(at) if t >= back):
                    raise NotPeriodicError
        numbers = zip(*map(_numbers, many), strict=True)
        return reads, [self._growth(found) for found in numbers]

    def _growth(self, numbers: Sequence[int]) -> tuple[int, int]:
        """How numbers begin and grow, apart from one jump over the blocks left out."""
        apart = [b - a for a, b in pairwise(numbers)]
        each = min(apart, key=abs)
        if sorted(d for d in apart if d != each) != ([each * (1 + self.more)] if each else []):
            raise NotPeriodicError
        return numbers[0], each

    def _step(self, k: int, rule: Any, t: int) -> Step:
        """Step k of the loop at another time than the first."""
        reads, numbers = rule
        many = self.steps[k]
        old = many[min(t, len(many) - 1)]
        args = tuple(
            self.out[read[0]][t - read[1]] if read is not None and t >= read[1] else arg
            for read, arg in zip(reads, old.args, strict=True)
        )
        params, words = old.params, old.words
        if any(each for _, each in numbers):
            found = [start + each * t for start, each in numbers]
            count = len(params.get("key", ()))
            if count:
                params = {**params, "key": tuple(found[:count])}
            parts = NUMBER.split(words)
            grown = zip(parts[1::2], found[count:], numbers[count:], strict=True)
            parts[1::2] = [str(number) if each else text for text, number, (_, each) in grown]
            words = "".join(parts)
        if old.kind == "reshape":  # a builder knows these, and makes none of them again
            self.build.shaped[self.out[k][t]] = args[0]
            self.build.known[key_of(old.kind, args, params)] = self.out[k][t]
        return Step(old.kind, self.out[k][t], args, params, words, old.operations)


def _places(many: Sequence[Step]) -> list[int]:
    return [step.params["key"][0] for step in many]


def _numbers(step: Step) -> list[int]:
    """The numbers of its stream, and those in its words: matrices are counted."""
    return [*step.params.get("key", ()), *map(int, NUMBER.findall(step.words))]
