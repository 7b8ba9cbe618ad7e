"""Fresh samples of a module's initialisation, without memory for large parameters.

A tensor of more than `LARGE` entries is made on the meta device. Operations that
initialise it entry by entry (`normal_`, `uniform_`, `mul_`, …) act on `SAMPLE` entries
instead, which show its law.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .._validate import ArgumentError, shown
from ..functions.quantiles import (
    Distribution,
    reflects,
    transformed,
    truncated_normal,
)
from ..reader._laws import MOVED

Module = Any  # a torch.nn.Module
# a torch.nn.Module, or a function that returns a new one each time
ModuleOrFactory = Any
LARGE = 2**20  # entries above which a tensor is not made
SAMPLE = 2**14  # entries that stand for those of a large tensor


class Sample(NamedTuple):
    """A sample of a parameter: some or all of its entries."""

    entries: Any  # a tensor on the CPU; of a large parameter one axis of SAMPLE entries
    zero_rows: tuple[int, ...] = ()  # rows of a large parameter that were set to 0
    problem: str = ""  # the operation that made it, if that was not entry by entry
    # the law that torch drew it with, as far as code shows
    drawn: Distribution | None = None


def fresh(module: ModuleOrFactory) -> tuple[Module, Replay]:
    """A module with new parameters, and what stands for the large ones."""
    if isinstance(module, torch.nn.Module):
        instance = copied(module)
        with Replay() as replay, _truncations(replay), _Thin(replay):
            _initialise_again(instance)
        return instance, replay
    try:
        with Replay() as replay, _truncations(replay), _Thin(replay):
            return new_module(module), replay
    except (NotImplementedError, RuntimeError):
        # the initialisation reads numbers that do not exist
        with Replay() as replay, _truncations(replay):
            return new_module(module), replay


def copied(module: Module, copies: dict[int, Any] | None = None) -> Module:
    """A deep copy of a module; `copies` has those of some of its objects, by the id."""
    try:
        return copy.deepcopy(module, copies)
    except Exception as error:  # of any object that the module holds, such as a lock
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ArgumentError(
            "module",
            type(module).__name__,
            f"a module that copy.deepcopy can copy ({reason})",
        ) from error


def new_module(module: ModuleOrFactory) -> Module:
    """The module, or the module that a function returns."""
    if not callable(module):
        raise ArgumentError(
            "module", module, "a torch.nn.Module, or a function that returns one"
        )
    instance = module if isinstance(module, torch.nn.Module) else module()
    if not isinstance(instance, torch.nn.Module):
        raise ArgumentError(
            "module",
            module,
            f"a torch.nn.Module, or a function that returns one, not {shown(instance)}",
        )
    return instance


def torch_seed(seed: int) -> None:
    """Seed torch's generator, which takes 64 bits; seeds of netsor may have 128."""
    torch.manual_seed(seed % 2**63)


def _initialise_again(module: Module) -> None:
    """Initialise every parameter again, with the methods that modules have for it."""
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    awaited = _mark_empty_buffers(module)
    for submodule in module.modules():
        # transformers marks initialised modules and parameters with it
        submodule.__dict__.pop("_is_hf_initialized", None)
        for p in submodule.parameters(recurse=False):
            p.__dict__.pop("_is_hf_initialized", None)
    with torch.no_grad():
        _call_initialisers(module)
        if _unchanged(module, before):
            # its numbers may come from the same seed: the next ones are others
            _call_initialisers(module)
    for buffer in awaited:
        buffer.check_filled()
    name = _unchanged(module, before)
    if name is not None:
        raise ValueError(
            f"{name} was not initialised again: pass a function that makes the"
            " module, not the module"
        )


def _unchanged(module: Module, before: dict[str, Any]) -> str | None:
    """The name of a parameter with the same numbers as before, if there is one."""
    for name, p in module.named_parameters():
        if _empty(p) or not torch.equal(p, before[name]):
            continue
        if bool((p != p.reshape(-1)[0]).any()):  # constants may stay the same
            return str(name)
    return None


class _AwaitedBuffer(NamedTuple):
    """A buffer without numbers, which initialisation is to fill."""

    owner: Module
    name: str
    mark: Any  # the number that stands there until then

    def check_filled(self) -> None:
        """Raise an error if the buffer still has no numbers."""
        if self.owner._buffers[self.name].reshape(-1)[0].item() == self.mark:
            raise ValueError(
                f"the buffer {self.name} of {type(self.owner).__name__} is on the meta"
                " device and has no numbers: pass a function that makes the module"
            )


def _mark_empty_buffers(module: Module) -> list[_AwaitedBuffer]:
    """Fill buffers on the meta device with a mark, and list them.

    The mark is the least number of the buffer's type. Initialisation does not write it,
    so a buffer that still begins with it afterwards was not initialised.
    """
    awaited: list[_AwaitedBuffer] = []
    for submodule in module.modules():
        for name, buffer in submodule.named_buffers(recurse=False):
            if not _empty(buffer) or not buffer.numel():
                continue
            mark: Any
            if buffer.dtype == torch.bool:
                mark = False
            elif buffer.is_floating_point():
                mark = torch.finfo(buffer.dtype).min
            else:
                mark = torch.iinfo(buffer.dtype).min
            submodule._buffers[name] = torch.full(
                buffer.shape, mark, dtype=buffer.dtype
            )
            awaited.append(_AwaitedBuffer(submodule, name, mark))
    return awaited


def _call_initialisers(module: Module) -> None:
    """Call the methods by which PyTorch and transformers initialise modules."""
    for submodule in module.modules():
        for method in ("reset_parameters", "_reset_parameters"):
            if callable(getattr(submodule, method, None)):
                getattr(submodule, method)()
    if callable(getattr(module, "init_weights", None)):
        module.init_weights()
        # the head of a tied embedding came after it, and filled the row of padding
        for submodule in module.modules():
            if isinstance(submodule, torch.nn.Embedding):
                submodule._fill_padding_idx_with_zero()
    elif callable(getattr(module, "_init_weights", None)):
        module.apply(module._init_weights)


@contextmanager
def _truncations(replay: Replay) -> Iterator[None]:
    """Record the law of what `torch.nn.init.trunc_normal_` draws.

    It draws until all numbers are between the bounds, which no single operation shows.
    """
    draw = getattr(torch.nn.init, "_no_grad_trunc_normal_", None)
    if draw is None:  # of another version of PyTorch: the law is measured
        yield
        return

    def draw_and_record(
        tensor: Any, mean: float, std: float, a: float, b: float, **options: Any
    ) -> Any:
        result = draw(tensor, mean, std, a, b, **options)
        law = truncated_normal(float(mean), float(std), float(a), float(b))
        replay.record(tensor, law)
        return result

    with mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_", draw_and_record):
        yield


class _Thin(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Makes large tensors on the meta device.

    `trunc_normal_`, which reads its own numbers, sees their samples.
    """

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self._replay = replay

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == IS_META:  # the getter is a new object each time
            return False
        if func in ASKED and _empty(args[0]):
            sample = self._replay.samples.get(_storage(args[0]))
            if sample is not None:
                return func(sample, *args[1:], **kwargs)
        on_cpu = str(kwargs.get("device") or "cpu") == "cpu"
        if func in CREATORS and on_cpu and _is_large(func, args, kwargs):
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


IS_META = torch.Tensor.is_meta.__get__
# functions by which a module reads the numbers of a tensor
ASKED = {
    torch.Tensor.any,
    torch.Tensor.all,
    torch.Tensor.item,
    torch.Tensor.__bool__,
    torch.any,
    torch.all,
}
# functions that make parameters; masks start from given numbers
UNWRITTEN = {torch.empty, torch.rand, torch.randn}
CREATORS = {*UNWRITTEN, torch.zeros, torch.ones, torch.full}
# operations that overwrite all entries of their first argument
FILLS = {"aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_", "aten::copy_"}
# entrywise operations that torch does not tag as pointwise
ENTRYWISE = {*FILLS, "aten::clone", "aten::_to_copy", "aten::constant_pad_nd"}
COPIES = {"aten::copy", "aten::copy_", "aten::clone", "aten::_to_copy"}
# keyword arguments that change the numbers of an entrywise function, as in
# x.add(y, alpha=2) and x.div(2, rounding_mode="floor")
CHANGING_OPTIONS = {"alpha", "rounding_mode"}
# operations that make a tensor from numbers
FRESH = {
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::rand",
    "aten::randn",
    "aten::normal",
    "aten::uniform",
}


def _is_large(creator: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function would make a tensor that is too large to keep."""
    shape = args  # as in torch.empty(2, 3)
    if args and isinstance(args[0], list | tuple):
        shape = args[0]
    shape = kwargs.get("size", shape)
    sizes = [size for size in shape if isinstance(size, int)]
    # of tensors of known numbers, such as masks, only those that are far larger
    largest = LARGE if creator in UNWRITTEN else 64 * LARGE
    return bool(sizes) and math.prod(sizes) > largest


class _Recorded(NamedTuple):
    """The law that a tensor is drawn from, and which draw it is."""

    law: Distribution
    draw: int  # functions of one draw have the same number here
    is_reflected: bool = False  # whether a part was multiplied by a negative number


class Replay(TorchDispatchMode):  # type: ignore[misc]
    """Repeats on a sample the operations on tensors without numbers."""

    def __init__(self) -> None:
        super().__init__()
        # all by storage: entries that stand for those of a large tensor
        self.samples: dict[int, Any] = {}
        # the law that torch drew a tensor with
        self._drawn: dict[int, _Recorded] = {}
        self._draws = 0  # that were recorded so far
        # the operation that made a tensor, if it was not entry by entry
        self._problems: dict[int, str] = {}
        # rows that were set to 0
        self._zero_rows: dict[int, set[int]] = {}
        # tensors that are kept alive, so that no other one has their storage
        self._held: list[Any] = []

    def sample(self, name: str, p: Any) -> Sample:
        """A parameter and what is known about it."""
        key = _storage(p)
        recorded = self._drawn.get(key)
        drawn = None if recorded is None else recorded.law
        if not _empty(p):
            return Sample(
                p.detach().to("cpu", torch.float32, copy=True),
                drawn=drawn,
            )
        if key not in self.samples and key not in self._problems:
            raise ValueError(
                f"{name} is on the meta device and was never initialised: pass a"
                " function that makes the module, or declare its law"
            )
        problem = self._problems.get(key, "")
        if not p.is_contiguous():
            problem = "a transpose"  # its sample has lost the order
        return Sample(
            self.samples.get(key, torch.zeros(1)),
            zero_rows=tuple(sorted(self._zero_rows.get(key, ()))),
            problem=problem,
            drawn=drawn,
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        changed = args if result is None else result  # _foreach_mul_ returns nothing
        for tensor in pytree.tree_leaves(changed):
            if isinstance(tensor, torch.Tensor):
                self._record(func, args, kwargs, tensor)
                if _empty(tensor):
                    self._follow(func, args, kwargs, tensor)
        return result

    def record(self, tensor: Any, law: Distribution) -> None:
        """Record that a whole tensor was just drawn from a law."""
        if _part(tensor):
            return
        self._draws += 1
        self._drawn[_storage(tensor)] = _Recorded(law, self._draws)
        self._held.append(tensor)

    def _record(self, func: Any, args: Any, kwargs: Any, tensor: Any) -> None:
        """Record the law that a tensor is drawn from.

        It is forgotten if something follows that is no function of its entries.
        """
        key = _storage(tensor)
        inputs = [x for x in args if isinstance(x, torch.Tensor)]
        numbers = [float(x) for x in args if isinstance(x, int | float)]
        if _is_view(func, tensor, inputs):
            return
        if _part(tensor):
            # rows of zeros are found later
            is_zero = _writes_zero(func, inputs, numbers) and tensor.is_contiguous()
            if not is_zero:
                self._drawn.pop(key, None)
            return
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        drawn_law = _basic_law(name, inputs, numbers, in_place=func._schema.is_mutable)
        result_law = None
        if drawn_law is None:
            result_law = self._law_of_result(func, args, kwargs, tensor)
        self._drawn.pop(key, None)
        if not tensor.is_floating_point():
            return
        if drawn_law is not None:
            self.record(tensor, drawn_law)
        elif result_law is not None:
            self._drawn[key] = result_law
            self._held.append(tensor)

    def _law_of_result(
        self, func: Any, args: Any, kwargs: Any, tensor: Any
    ) -> _Recorded | None:
        """The law of what an operation computes from earlier draws; None if unknown."""
        operation = func._schema.name  # for example "aten::mul_"
        if operation in COPIES:
            inputs = [x for x in args if isinstance(x, torch.Tensor)]
            return self._law_of_copy(inputs[-1], tensor)
        if CHANGING_OPTIONS & kwargs.keys():
            return None
        name = operation.removeprefix("aten::").removesuffix("_")
        return self._law_of_function(name, args, tensor)

    def _law_of_copy(self, source: Any, result: Any) -> _Recorded | None:
        """The law of a copy; None if it is not known or numbers are repeated.

        For example, a vector copied into every row of a matrix has no law: equal
        entries are not independent.
        """
        is_repeated = source.numel() != result.numel() or 0 in source.stride()
        if is_repeated:
            return None
        return self._drawn.get(_storage(source))

    def _law_of_function(self, name: str, args: Any, result: Any) -> _Recorded | None:
        """The law of a function of the entries of one draw; None if it is not known.

        For example, x * x + 1 has a law if x was drawn. These have none: x + y of two
        draws; x + x.T, which combines different entries of a draw; x + v, where v has
        no recorded law; and matrix + row, where the row is drawn and is repeated. Only
        positional arguments are read: there must be none of the `CHANGING_OPTIONS`.
        """
        operands: list[Distribution | float | None] = []
        recorded_operands: list[_Recorded] = []
        entries: set[Any] = set()  # which entries of which draw the result reads
        for x in args:
            recorded = self._law_of_operand(x, result)
            if recorded is not None:
                if x.numel() != result.numel():
                    return None
                layout = (x.shape, x.stride(), x.storage_offset())
                entries.add((recorded.draw, layout))
                recorded_operands.append(recorded)
                operands.append(recorded.law)
            elif x is None:
                operands.append(None)
            elif _is_number(x):
                operands.append(float(x))
            else:
                return None
        if len(entries) != 1:
            return None  # entry i must depend on entry i of a single draw
        is_reflected = any(x.is_reflected for x in recorded_operands)
        is_reflected |= reflects(name, *operands)
        if len(recorded_operands) > 1 and is_reflected:
            return None  # the laws do not show how the two numbers depend on each other
        law = transformed(name, *operands)
        if law is None:
            return None
        return _Recorded(law, recorded_operands[0].draw, is_reflected)

    def _law_of_operand(self, x: Any, result: Any) -> _Recorded | None:
        """The recorded law of the entries of an operand; None if it has none.

        A tensor of one entry has none either if the result has several: all entries of
        the result depend on this one number.
        """
        if not isinstance(x, torch.Tensor):
            return None
        if x.numel() <= 1 and result.numel() != 1:
            return None
        return self._drawn.get(_storage(x))

    def _follow(self, func: Any, args: Any, kwargs: Any, tensor: Any) -> None:
        """Repeat an operation, whose result has no numbers, on samples."""
        name = func._schema.name
        self._held.append(tensor)
        leaves = pytree.tree_leaves((args, kwargs))
        inputs = [x for x in leaves if isinstance(x, torch.Tensor)]
        if not inputs:
            if name in FRESH:
                size = min(tensor.numel(), SAMPLE)
                sample = func([size], *args[1:], dtype=kwargs.get("dtype"))
                self.samples[_storage(tensor)] = sample
        elif _is_view(func, tensor, inputs):
            pass  # its samples are those of its storage
        elif func._schema.is_mutable and _part(tensor):
            self._follow_part(name, args, tensor)
        else:
            self._follow_function(func, args, kwargs, tensor, inputs)

    def _follow_function(
        self, func: Any, args: Any, kwargs: Any, tensor: Any, inputs: list[Any]
    ) -> None:
        """Apply an operation on tensors to samples of all of them.

        It must be entrywise; of other operations, or without samples, the problem is
        kept for the error message.
        """
        name = func._schema.name
        key = _storage(tensor)
        overwritten = args[0] if name in FILLS else None
        stand_ins = {id(x): self._stand_in(x, tensor, overwritten) for x in inputs}
        is_entrywise = torch.Tag.pointwise in func.tags or name in ENTRYWISE
        has_samples = all(x is not None for x in stand_ins.values())
        if not is_entrywise or not has_samples:
            self._problems[key] = self._problem(name, inputs)
            self.samples.pop(key, None)
            return
        self.samples[key] = _on_samples(func, args, kwargs, stand_ins)
        self._problems.pop(key, None)
        if name in FILLS:
            self._zero_rows.pop(key, None)

    def _stand_in(self, x: Any, result: Any, overwritten: Any) -> Any:
        """What stands for an input in an operation on samples; None if nothing does.

        `overwritten` is the input whose numbers are lost in the operation, if any.
        """
        if not _empty(x) or not x.is_contiguous():
            return x if x.numel() == 1 else None
        if x is overwritten:
            return torch.empty(min(result.numel(), SAMPLE), dtype=x.dtype)
        if x.numel() == result.numel():
            return self.samples.get(_storage(x))
        return None

    def _problem(self, name: str, inputs: list[Any]) -> str:
        """Why a result has no sample: the operation, or an earlier one."""
        for x in inputs:
            earlier = self._problems.get(_storage(x))
            if earlier:
                return earlier
        is_move = name == "aten::_to_copy" and not any(_empty(x) for x in inputs)
        return MOVED if is_move else name

    def _follow_part(self, name: str, args: Any, tensor: Any) -> None:
        """Follow an operation that changes a part of a tensor: rows that become 0."""
        key = _storage(tensor)
        start = tensor.storage_offset()
        length = tensor.shape[-1] if tensor.ndim else 0
        fills_zero = name == "aten::fill_" and float(args[1]) == 0
        is_zero = name == "aten::zero_" or fills_zero
        has_whole_rows = length and tensor.is_contiguous() and start % length == 0
        if not is_zero or not has_whole_rows:
            self._problems[key] = f"{name} of a part"
            return
        first_row = start // length
        row_count = tensor.numel() // length
        rows = range(first_row, first_row + row_count)
        self._zero_rows.setdefault(key, set()).update(rows)


def _on_samples(func: Any, args: Any, kwargs: Any, stand_ins: Mapping[int, Any]) -> Any:
    """The result of an operation on samples, which `stand_ins` has by tensors' ids."""
    options = {name: x for name, x in kwargs.items() if name != "device"}
    args, options = pytree.tree_map_only(
        torch.Tensor, lambda x: stand_ins[id(x)], (args, options)
    )
    return func(*args, **options)


def _basic_law(
    name: str, inputs: list[Any], numbers: list[float], *, in_place: bool
) -> Distribution | None:
    """The law that an operation draws from; None if it draws nothing."""
    if inputs and not in_place and name not in ("randn_like", "rand_like"):
        return None
    match name:
        case "normal":
            mean, std = _with_defaults(numbers, (0.0, 1.0))
            return Distribution("normal", (mean, std))
        case "randn" | "randn_like":
            return Distribution("normal", (0.0, 1.0))
        case "uniform":
            low, high = _with_defaults(numbers, (0.0, 1.0))
            mean = (low + high) / 2
            std = (high - low) / math.sqrt(12)
            return Distribution("uniform", (mean, std))
        case "rand" | "rand_like":
            return Distribution("uniform", (0.5, 1 / math.sqrt(12)))
        case "exponential":
            (rate,) = _with_defaults(numbers, (1.0,))
            return Distribution("exponential", (rate,))
        case "log_normal":
            mean, std = _with_defaults(numbers, (1.0, 2.0))
            return transformed("exp", Distribution("normal", (mean, std)))
    return None


def _with_defaults(
    numbers: Sequence[float], defaults: tuple[float, ...]
) -> tuple[float, ...]:
    """The arguments of a draw, with torch's defaults for those that are missing."""
    count = len(defaults)
    return (*numbers, *defaults[len(numbers) :])[:count]


def _is_number(x: Any) -> bool:
    """Whether an operand is one given number."""
    if isinstance(x, torch.Tensor):
        return x.numel() == 1 and not _empty(x)
    return isinstance(x, int | float)


def _is_view(func: Any, result: Any, inputs: list[Any]) -> bool:
    """Whether a function returned a view of one of its inputs, and changed nothing."""
    of_input = any(_storage(result) == _storage(x) for x in inputs)
    return of_input and not func._schema.is_mutable


def _writes_zero(func: Any, inputs: list[Any], numbers: list[float]) -> bool:
    """Whether an operation in place sets its first argument to 0."""
    if func._schema.name not in ("aten::zero_", "aten::fill_", "aten::copy_"):
        return False
    if any(numbers):
        return False
    sources = inputs[1:]
    return all(x.numel() == 1 and not _empty(x) and float(x) == 0 for x in sources)


def _empty(t: Any) -> bool:
    """Whether a tensor has no numbers; `is_meta` is patched in this context."""
    return bool(t.device.type == "meta")


def _part(t: Any) -> bool:
    """Whether a tensor is a part of another one."""
    return bool(t.numel() * t.element_size() < t.untyped_storage().nbytes())


def _storage(t: Any) -> int:
    """The identity of the memory that a tensor is a view of."""
    return int(t.untyped_storage()._cdata)
