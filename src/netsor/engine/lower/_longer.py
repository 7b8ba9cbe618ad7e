"""The steps of a plan without some blocks, made into those of the plan with them: see `_shorter`.

The steps of equal blocks repeat, each time with random streams of their own, whose numbers grow by the same amount from
one time to the next; where blocks were left out they jump by as much as these had. So the steps of all times are those
of the first, with other streams and other arrays. What is not as regular is refused: the program is planned as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

from .._builder import Builder
from .._equal_steps import key_of, kind_of
from .._loops import Loop, loops
from .._steps import Register, Step

LATEST = 2  # times before the last that steps after a loop may read
NUMBER = re.compile(r"(\d+)")


class IrregularError(ValueError):
    """Steps that do not repeat as the blocks of the program do."""


class Longer:
    """Puts `left` blocks into the steps of a plan; streams of a block are `stride` after those of the block before."""

    def __init__(self, build: Builder, left: int, stride: int) -> None:
        self.build = build
        self.made = {step.out: k for k, step in enumerate(build.steps)}
        kinds = [kind_of(step, k, self.made) for k, step in enumerate(build.steps)]
        self.loop = max(loops(kinds), key=lambda loop: loop.period * loop.times, default=Loop(0, 1, 0))
        start, period, times = self.loop
        if times <= LATEST:
            raise IrregularError
        self.steps = [build.steps[start + k : self.loop.stop : period] for k in range(period)]  # each, at all times
        places = next((_places(many) for many in self.steps if "key" in many[0].params), [0])
        apart = min((b - a for a, b in pairwise(places)), default=0)
        self.blocks = apart // stride  # that are repeated at once
        if self.blocks < 1 or apart % stride or left % self.blocks:
            raise IrregularError
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
                raise IrregularError

    def of(self, first: Sequence[Register], block: int) -> Register:
        """What a block makes, given what the first ones make."""
        like = block if block < len(first) else len(first) - self.blocks + (block - len(first)) % self.blocks
        (at,) = self._inside([first[like]])
        t, k = divmod(at, self.loop.period)
        t += (block - like) // self.blocks
        if at < 0 and (block == like or len(set(first)) == 1):
            return first[like]
        if at < 0 or like < 0 or t >= len(self.out[k]):
            raise IrregularError
        return self.out[k][t]

    def _inside(self, args: Sequence[Register]) -> Iterator[int]:
        """The place of each array in the loop; negative for those made before it, or never."""
        for arg in args:
            at = self.made.get(arg, -1)
            yield at - self.loop.start if self.loop.start <= at < self.loop.stop else -1

    def _rule(self, many: Sequence[Step]) -> tuple[list[tuple[int, int] | None], list[tuple[int, int]]]:
        """Of a step at all times: the arrays that it reads, by step and times back; how its numbers begin and grow."""
        if len({(step.params.get("by"), NUMBER.sub("", step.words)) for step in many}) > 1:
            raise IrregularError
        reads: list[tuple[int, int] | None] = []
        for args in zip(*(step.args for step in many), strict=True):
            at = list(self._inside(args))
            if at[-1] < 0:
                reads.append(None)
                if any(arg is not args[0] for arg in args):
                    raise IrregularError
            else:
                t, k = divmod(at[-1], self.loop.period)
                back = len(many) - 1 - t
                reads.append((k, back))
                if any(place != (t - back) * self.loop.period + k for t, place in enumerate(at) if t >= back):
                    raise IrregularError
        numbers = zip(*map(_numbers, many), strict=True)
        return reads, [self._growth(found) for found in numbers]

    def _growth(self, numbers: Sequence[int]) -> tuple[int, int]:
        """How numbers begin and grow, apart from one jump over the blocks left out."""
        apart = [b - a for a, b in pairwise(numbers)]
        each = min(apart, key=abs)
        if sorted(d for d in apart if d != each) != ([each * (1 + self.more)] if each else []):
            raise IrregularError
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
