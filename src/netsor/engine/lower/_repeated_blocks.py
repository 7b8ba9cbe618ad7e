"""The shortcut `repeated`: equal blocks of a deep network are lowered a few times, and
their steps are repeated.

`shortened` finds a chain of equal blocks among the values of a program, and leaves most
of them out. The short program is lowered as any other. If its steps repeat as its
blocks do, `unrolled_results` adds the steps of the blocks that were left out: those of
their neighbours, with other registers and other random streams. The plan is then that
of the whole program, step by step. If the steps do not repeat, it raises
NotPeriodicError, and the whole program is lowered.

Blocks are found among the values, so a loop, a model or an importer may have made them.
At infinite width every block has numbers of its own, and all are lowered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...language.operations._operation import Acting, Constant, Gaussian, Normal, Source
from ...language.theorem._check_function import content, content_of
from ...language.values._array import Value
from ...language.values._graph import transposed
from ...language.values._parameters import Weight
from ...language.values._scalar import Scalar
from ...language.values._vector import Vector
from ..plan._ir import Loop, Register, Step, loop_key, loops
from ..plan._ir_builder import Builder
from ..run._rng_keys import FRAME
from ._finite_frames import BartlettFrame
from ._outputs import Output, results
from ._state import State

# Blocks that stay before those that are left out: in the first ones frames grow, until
# they are full or rebased.
FIRST_BLOCKS = 8
# Blocks that stay after them: not all that the last blocks make is needed.
LAST_BLOCKS = 5
# The steps of a plan may repeat every 1, 2 or 3 blocks.
MAX_BLOCKS_PER_LOOP = 3
MULTIPLE = 6  # as many blocks are left out, or a multiple: whole periods of such steps
# A block may read values of so many blocks before it.
MAX_BLOCKS_BACK = 2
# Steps after a loop may read what its last times made.
LAST_TIMES_READ = 2


class NotPeriodicError(ValueError):
    """The steps of a plan do not repeat as the blocks of its program do."""


# Short programs


class BlockOutput(NamedTuple):
    """A scalar output of one of the first blocks, or of a block that is left out."""

    block: int
    in_first_blocks: tuple[Value, ...]  # the same scalar of each of the first blocks


class MatrixInBlock(NamedTuple):
    """A matrix of a block, and the names of its equals in all blocks."""

    block: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class ShortProgram:
    """A program without most of its equal blocks.

    Attributes
    ----------
    outputs : list of Value
        Its outputs.
    origin : dict
        For each of its values, the position in the whole program as written.
    copies : dict
        For each value of the whole program that stays, its copy in the short one.
    whole_outputs : tuple of Value
        The outputs of the whole program.
    block_outputs : dict
        Those among them that are outputs of blocks up to the last one left out.
    left_out : int
        The number of blocks that are left out.
    stride : int
        The distance from a block to the next in the whole program as written.
    matrices : dict
        The matrices of the blocks by their names.
    """

    outputs: list[Value]
    origin: dict[Value, int]
    copies: dict[Value, Value]
    whole_outputs: tuple[Value, ...]
    block_outputs: dict[Value, BlockOutput]
    left_out: int
    stride: int
    matrices: dict[str, MatrixInBlock]


def shortened(
    values: Sequence[Value],
    outputs: Sequence[Value],
    origin: Mapping[Value, int],
    names: Mapping[Any, str],
) -> ShortProgram | None:
    """The program without most of its equal blocks; None if they are few or no chain.

    `values` are all values in topological order, `origin` their positions in the
    program as written, and `names` those of the sources of matrices.
    """
    # a backward pass reads every block
    if len(set(outputs)) < len(outputs) or transposed(values):
        return None
    chain = _Chain.longest(values, outputs)
    if chain is None:
        return None
    stride = chain.stride(origin)
    copies = chain.copies_without_blocks()
    if stride is None or copies is None:
        return None
    block_outputs: dict[Value, BlockOutput] = {}
    for output in outputs:
        block = chain.block_of(output)
        if block is None:
            continue
        if not isinstance(output, Scalar):
            return None
        if block < FIRST_BLOCKS + chain.left_out:
            block_outputs[output] = BlockOutput(block, chain.in_first_blocks(output))
    return ShortProgram(
        outputs=[copies[output] for output in outputs if output in copies],
        origin={copy: origin[value] for value, copy in copies.items()},
        copies=copies,
        whole_outputs=tuple(outputs),
        block_outputs=block_outputs,
        left_out=chain.left_out,
        stride=stride,
        matrices=chain.matrices(names),
    )


class _Chain:
    """Equal blocks among the values of a program, one after the other."""

    def __init__(self, values: Sequence[Value], loop: Loop, left_out: int) -> None:
        """Of the blocks in `loop`, `left_out` are left out after the first ones."""
        self.values = values
        self.position = {value: k for k, value in enumerate(values)}
        self.loop = loop
        self.left_out = left_out
        self._cut_start = loop.start + FIRST_BLOCKS * loop.period
        self._cut_size = left_out * loop.period
        self._cut_stop = self._cut_start + self._cut_size

    @classmethod
    def longest(
        cls, values: Sequence[Value], outputs: Sequence[Value]
    ) -> _Chain | None:
        """The chain with most values; None if less than half of it can be left out."""
        found = loops(_keys_of_values(values, frozenset(outputs)))
        if not found:
            return None
        loop = max(found, key=lambda loop: loop.saved)
        spare = loop.times - FIRST_BLOCKS - LAST_BLOCKS
        left_out = spare // MULTIPLE * MULTIPLE
        if 2 * left_out < loop.times:
            return None
        return cls(values, loop, left_out)

    def block_of(self, value: Value) -> int | None:
        """The number of the block that a value is in; None outside of the chain."""
        offset = self.position[value] - self.loop.start
        if 0 <= offset < self.loop.times * self.loop.period:
            return offset // self.loop.period
        return None

    def in_first_blocks(self, value: Value) -> tuple[Value, ...]:
        """The values in the first blocks that are equal to a value of the chain."""
        start, period, _ = self.loop
        offset = (self.position[value] - start) % period
        return tuple(self.values[start + offset : self._cut_start : period])

    def stride(self, origin: Mapping[Value, int]) -> int | None:
        """The distance between blocks in the program as written; None if it varies.

        Only values that draw count: these distances are those of random streams.
        """
        start, period, _ = self.loop
        distances: set[int] = set()
        for k in range(start, self.loop.stop - period):
            value = self.values[k]
            in_next_block = self.values[k + period]
            if isinstance(value.op, Acting | Gaussian | Normal):
                distances.add(origin[in_next_block] - origin[value])
        return distances.pop() if len(distances) == 1 else None

    def matrices(self, names: Mapping[Any, str]) -> dict[str, MatrixInBlock]:
        """The matrices of the blocks by their names, except those of all blocks."""
        start, period, _ = self.loop
        matrices: dict[str, MatrixInBlock] = {}
        for k in range(start, start + period):
            in_all_blocks: list[str] = []
            for value in self.values[k : self.loop.stop : period]:
                if isinstance(value.op, Acting):
                    in_all_blocks.append(names[value.op.weight.source])
            if len(set(in_all_blocks)) > 1:
                for block, name in enumerate(in_all_blocks):
                    matrices[name] = MatrixInBlock(block, tuple(in_all_blocks))
        return matrices

    def copies_without_blocks(self) -> dict[Value, Value] | None:
        """For each value that stays, its copy in a program without the other blocks.

        None if a value reads another one that has no equal in the short program.
        """
        copies = {value: value for value in self.values[: self._cut_start]}
        for value in self.values[self._cut_stop :]:
            inputs: list[Value] = []
            for x in value.op.inputs:
                equal_input = self._input_of(value, x)
                if equal_input is None:
                    return None
                inputs.append(copies[equal_input])
            copies[value] = value.with_inputs(*inputs)
        return copies

    def _input_of(self, reader: Value, x: Value) -> Value | None:
        """The value that stays and replaces the input x of a later value.

        The first block after the cut reads the block before the cut as it reads its
        neighbour in the whole program.
        """
        at = self.position[x]
        if at < self.loop.start or at >= self._cut_stop:
            is_after_chain = self.position[reader] >= self.loop.stop
            same_blocks = at >= self._cut_stop
            stays = same_blocks or is_after_chain or isinstance(x.op, Constant)
            return x if stays else None
        if isinstance(x.op, Constant):  # equal in all blocks
            return self.in_first_blocks(x)[0]
        blocks_back = (self._cut_stop - at) / self.loop.period
        if self.position[reader] >= self.loop.stop or blocks_back > MAX_BLOCKS_BACK:
            return None
        return self.values[at - self._cut_size]


def _keys_of_values(
    values: Sequence[Value], outputs: frozenset[Value]
) -> list[Hashable]:
    """For each value a key, equal for values of one operation on equal inputs.

    Inputs are equal if they are as far before the value, or equal constants.
    """
    position = {value: k for k, value in enumerate(values)}
    last_use: dict[Source, int] = {}
    constants: dict[Value, Hashable] = {}

    def key_of(entry: Any, at: int) -> Hashable:
        """The key of a field of the operation of value number `at`."""
        match entry:
            case Value():
                return constants.get(entry, at - position[entry])
            case Source():  # told apart by how long ago it was used
                distance = at - last_use.get(entry, at)
                last_use[entry] = at
                return distance
            case np.ndarray():
                return content_of(entry)
            case Weight():
                names = Weight.__match_args__
                return tuple(key_of(getattr(entry, name), at) for name in names)
            case tuple():
                return tuple(key_of(item, at) for item in entry)
        key: Hashable = content(entry)
        return key

    keys: list[Hashable] = []
    for at, value in enumerate(values):
        names = value.op.__match_args__
        fields = tuple(key_of(getattr(value.op, name), at) for name in names)
        width = value.width if isinstance(value, Vector) else None
        key: Hashable = type(value.op), value.shape, width, value in outputs, fields
        try:
            hash(key)
        except TypeError:
            key = at  # equal to no other
        if isinstance(value.op, Constant):
            constants[value] = key
        keys.append(key)
    return keys


# Long plans


def unrolled_results(state: State, short: ShortProgram) -> tuple[Register, Register]:
    """Add the steps of the blocks that are left out; the results of the whole program.

    The state is that of the short program, of which all values are lowered. The results
    are those of `results`. Raises NotPeriodicError if the steps do not repeat.
    """
    analysis = state.analysis
    for group in analysis.groups:
        is_of_many_blocks = len(group.slots) > MAX_BLOCKS_PER_LOOP
        if is_of_many_blocks and analysis.choice_needs_all_sources(group):
            raise NotPeriodicError
    lowered = dict(zip(short.outputs, analysis.outputs, strict=True))
    unroller = _Unroller(state.builder, short)
    for group, frame in state.frames.items():
        if isinstance(frame, BartlettFrame):
            frame.orientations += unroller.added_orientations[group.number]
    outputs: list[Output] = []
    registers: dict[Value, Register] = {}
    for output in short.whole_outputs:
        block_output = short.block_outputs.get(output)
        if block_output is None:
            copy = short.copies[output]
            outputs.append(Output(copy, lowered[copy]))
            continue
        first = [lowered[scalar] for scalar in block_output.in_first_blocks]
        if not all(scalar in state.scalars for scalar in first):
            raise NotPeriodicError
        registers[output] = unroller.register_of_block(
            [state.scalars[scalar] for scalar in first], block_output.block
        )
        outputs.append(Output(output, output))
    state.scalars |= registers
    last_step = len(state.builder.steps)
    mean, columns = results(state, outputs)
    added = state.builder.steps[last_step:]
    unroller.check_later_steps(added, scalars=_scalars_of(state, outputs))
    return mean, columns


def _scalars_of(state: State, outputs: Iterable[Output]) -> frozenset[Register]:
    """The registers of the scalars among the outputs, and what they are reshaped from.

    Unlike coordinates of vectors, scalars never change when a frame does.
    """
    registers: set[Register] = set()
    for output in outputs:
        register = state.scalars.get(output.lowered)
        if register is not None:
            registers |= {register, state.builder.shaped.get(register, register)}
    return frozenset(registers)


class _Argument(NamedTuple):
    """What a step in a loop reads: the result of a step of the loop."""

    step: int  # its number in the loop
    times_back: int


class _Unroller:
    """Repeats the loop in the steps of a short program for the blocks left out.

    The loop of the short plan runs `times` times, and that of the whole plan `more`
    times more. The first time stays, and all others become the last ones, so that steps
    after the loop read the registers that they read before.
    """

    def __init__(self, builder: Builder, short: ShortProgram) -> None:
        """Replace the steps of the builder by those of the whole program."""
        steps = builder.steps
        self._matrices = short.matrices
        self._position = {step.out: k for k, step in enumerate(steps)}
        self.loop = self._longest_loop(steps)
        start, period, times = self.loop
        if times <= LAST_TIMES_READ:
            raise NotPeriodicError
        # the steps of the loop, each at all times
        self._at_times = [
            steps[start + k : self.loop.stop : period] for k in range(period)
        ]
        self.blocks_per_time = self._blocks_per_time(short)
        self.more = short.left_out // self.blocks_per_time
        # of each group, how often its frame is oriented in the blocks left out
        self.added_orientations = self._added_orientations()
        later_steps = [
            self._with_later_stream(step) for step in steps[self.loop.stop :]
        ]
        self.check_later_steps(later_steps)
        self._outs = [self._all_registers(at_times) for at_times in self._at_times]
        repeated: list[Step] = []
        by_number = [self._repeated(number) for number in range(period)]
        for same_time in zip(*by_number, strict=True):
            repeated += same_time
        first_time = steps[: start + period]
        builder.replace_steps(first_time + repeated + later_steps)

    def register_of_block(
        self, in_first_blocks: Sequence[Register], block: int
    ) -> Register:
        """The register of a scalar in a block, given those of the first blocks."""
        first = block
        if block >= FIRST_BLOCKS:  # the last of the first blocks at the same step
            after_first = (block - FIRST_BLOCKS) % self.blocks_per_time
            first = FIRST_BLOCKS - self.blocks_per_time + after_first
        register = in_first_blocks[first]
        position = self._in_loop(register)
        if position is None:
            if block == first:
                return register
            raise NotPeriodicError
        time, number = divmod(position, self.loop.period)
        later = (block - first) // self.blocks_per_time
        return self._outs[number][time + later]

    def check_later_steps(
        self, steps: Iterable[Step], scalars: frozenset[Register] = frozenset()
    ) -> None:
        """Raise NotPeriodicError if steps read what has moved to another time.

        Those after the loop may read its first time, which stays, its last times, and
        these scalars.
        """
        last_times = (self.loop.times - LAST_TIMES_READ) * self.loop.period
        for step in steps:
            for register in step.args:
                position = self._in_loop(register)
                if position is None or register in scalars:
                    continue
                if self.loop.period <= position < last_times:
                    raise NotPeriodicError

    def _longest_loop(self, steps: Sequence[Step]) -> Loop:
        """The loop that has most steps."""
        keys = [loop_key(step, k, self._position) for k, step in enumerate(steps)]
        found = loops(keys)
        if not found:
            raise NotPeriodicError
        return max(found, key=lambda loop: loop.saved)

    def _blocks_per_time(self, short: ShortProgram) -> int:
        """The blocks of the program in one period of the loop of the plan.

        Random streams are numbered by the positions of values, which tell how far apart
        two periods are in the program.
        """
        for at_times in self._at_times:
            if "key" not in at_times[0].params or _is_of_frame(at_times[0]):
                continue
            positions = [step.params["key"][0] for step in at_times]
            distance = min(later - earlier for earlier, later in pairwise(positions))
            blocks: int = distance // short.stride
            rest = distance % short.stride
            if blocks < 1 or rest or blocks > MAX_BLOCKS_PER_LOOP:
                break
            return blocks
        raise NotPeriodicError

    def _added_orientations(self) -> Counter[int]:
        """For each group, how often its frame is oriented in the blocks left out.

        Streams of orientations are numbered, so those after the loop have the number
        that they have with all blocks.
        """
        each_time: dict[int, int] = {}  # how often in one time of the loop
        for at_times in self._at_times:
            first_step = at_times[0]
            second_step = at_times[1]
            if not _is_of_frame(first_step):
                continue
            _, first_number, group, *_ = first_step.params["key"]
            _, second_number, *_ = second_step.params["key"]
            orientations = second_number - first_number
            if each_time.setdefault(group, orientations) != orientations:
                raise NotPeriodicError
        added = Counter[int]()
        for group, orientations in each_time.items():
            added[group] = self.more * orientations
        return added

    def _with_later_stream(self, step: Step) -> Step:
        """A step after the loop, with the random stream that it has with all blocks."""
        if not _is_of_frame(step):
            return step
        position, count, group, *others = step.params["key"]
        key = position, count + self.added_orientations[group], group, *others
        return replace(step, params={**step.params, "key": key})

    def _in_loop(self, register: Register) -> int | None:
        """The position in the short loop of the step that makes a register, if any."""
        position = self._position.get(register, -1)
        if self.loop.start <= position < self.loop.stop:
            return position - self.loop.start
        return None

    def _all_registers(self, at_times: Sequence[Step]) -> list[Register]:
        """The results of a step at all times of the whole plan."""
        first, *last = [step.out for step in at_times]
        return [first, *(Register(first.shape) for _ in range(self.more)), *last]

    def _repeated(self, number: int) -> list[Step]:
        """Step `number` of the loop at all times of the whole plan but the first."""
        at_times = self._at_times[number]
        first = at_times[0]
        for step in at_times:
            if content(step.params.get("by")) != content(first.params.get("by")):
                raise NotPeriodicError
        read = [self._registers_read(at_times, k) for k in range(len(first.args))]
        arguments = list(zip(*read, strict=True))
        keys = self._random_streams(at_times)
        labels = self._labels(at_times)
        repeated: list[Step] = []
        for time in range(1, self.loop.times + self.more):
            params = first.params
            if keys is not None:
                params = {**params, "key": keys[time]}
            repeated.append(
                Step(
                    kind=first.kind,
                    out=self._outs[number][time],
                    args=arguments[time] if arguments else (),
                    params=params,
                    label=labels[time],
                    operations=first.operations,
                )
            )
        return repeated

    def _registers_read(self, at_times: Sequence[Step], k: int) -> list[Register]:
        """What a step reads as argument k, at all times of the whole plan."""
        argument = self._argument(at_times, k)
        times = self.loop.times + self.more
        if argument is None:  # made before the loop
            return [at_times[0].args[k]] * times
        # at first, the loop has not run so often
        times_back = argument.times_back
        first_times = [step.args[k] for step in at_times[:times_back]]
        later_times = self._outs[argument.step][: times - times_back]
        return [*first_times, *later_times]

    def _labels(self, at_times: Sequence[Step]) -> list[str]:
        """The labels of a step at all times: names are those of later matrices.

        For example, the label "W1 x" becomes "W1 x", "W2 x", "W3 x", … if W1, W2, W3, …
        are a matrix of consecutive blocks.
        """
        # the label to change is that of the first time, unless this time begins before
        # the equal blocks and names no matrix of theirs
        model_time = 0
        if self._matrices.keys().isdisjoint(at_times[0].label.split(" ")):
            model_time = 1
        model = at_times[model_time].label
        words = model.split(" ")
        positions = [k for k, word in enumerate(words) if word in self._matrices]
        matrices = [self._matrices[words[k]] for k in positions]
        times = self.loop.times + self.more
        if not matrices:
            return [model] * times

        blocks = min(len(matrix.names) for matrix in matrices)
        block_of_model = max(matrix.block for matrix in matrices)
        labels: list[str] = []
        for time in range(times):
            later_blocks = (time - model_time) * self.blocks_per_time
            if block_of_model + later_blocks >= blocks:  # after the equal blocks
                labels.append(at_times[time - self.more].label)
                continue
            for k, matrix in zip(positions, matrices, strict=True):
                words[k] = matrix.names[matrix.block + later_blocks]
            labels.append(" ".join(words))
        return labels

    def _argument(self, at_times: Sequence[Step], k: int) -> _Argument | None:
        """What a step reads as argument k at all times; None if from before the loop.

        Raises NotPeriodicError if it is not the same step of the loop as often before,
        or not one register from before the loop.
        """
        registers = [step.args[k] for step in at_times]
        last = self._in_loop(registers[-1])
        if last is None:
            if any(register is not registers[0] for register in registers):
                raise NotPeriodicError
            return None
        time, number = divmod(last, self.loop.period)
        times_back = len(at_times) - 1 - time
        for t, register in enumerate(registers[times_back:]):
            if self._in_loop(register) != t * self.loop.period + number:
                raise NotPeriodicError
        return _Argument(number, times_back)

    def _random_streams(self, at_times: Sequence[Step]) -> list[tuple[int, ...]] | None:
        """The keys of a step that draws, at all times of the whole plan."""
        if "key" not in at_times[0].params:
            return None
        keys = np.array([step.params["key"] for step in at_times])
        distances = np.diff(keys, axis=0)
        times = np.arange(self.loop.times + self.more)
        if _is_of_frame(at_times[0]):  # numbered in the short program
            if (distances != distances[0]).any():
                raise NotPeriodicError
            all_keys = keys[0] + times[:, None] * distances[0]
            return [tuple(key) for key in all_keys.tolist()]
        # one distance is longer: that over the blocks that are left out
        least = np.argmin(np.abs(distances).sum(axis=1))
        distance = distances[least]
        over_cut = (1 + self.more) * distance
        is_regular = (distances == distance).all(axis=1)
        if distance.any():
            is_cut = (distances == over_cut).all(axis=1)
            if is_cut.sum() != 1 or not (is_regular | is_cut).all():
                raise NotPeriodicError
        elif not is_regular.all():
            raise NotPeriodicError
        all_keys = keys[0] + times[:, None] * distance
        return [tuple(key) for key in all_keys.tolist()]


def _is_of_frame(step: Step) -> bool:
    """Whether a step draws from a stream of a frame, which no value determines."""
    key = step.params.get("key")
    return key is not None and key[0] == FRAME
