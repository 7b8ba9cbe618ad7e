"""Fresh samples of the initialisation of a module, without the memory of large
parameters.

A tensor of more than `LARGE` entries is made on the meta device. Operations that
initialise it entry by entry (`normal_`, `uniform_`, `mul_`, …) act on `SAMPLE` entries
instead, which show its law.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .._validate import ArgumentError, shown

Module = Any  # a torch.nn.Module
# a torch.nn.Module, or a function that returns a new one each time
ModuleOrFactory = Any
LARGE = 2**20  # entries above which a tensor is not made
MOVED = "a move to the meta device"  # which drops the numbers
SAMPLE = 2**14  # entries that stand for those of a large tensor


class Sample(NamedTuple):
    """A sample of a parameter: some or all of its entries."""

    entries: Any  # a tensor on the CPU; of a large parameter one axis of SAMPLE entries
    zero_rows: tuple[int, ...] = ()
    problem: str = ""  # the operation that made it, if that was not entry by entry
    # the law, mean and std that torch drew it with, as far as code shows
    drawn: tuple[str, float, float] | None = None


def fresh(module: ModuleOrFactory) -> tuple[Module, Replay]:
    """A module with new parameters, and what stands for the large ones."""
    if isinstance(module, torch.nn.Module):
        instance = copy.deepcopy(module)
        with Replay() as replay, _Thin(replay):
            _initialise_again(instance)
        return instance, replay
    try:
        with Replay() as replay, _Thin(replay):
            return new_module(module), replay
    except (NotImplementedError, RuntimeError):
        # the initialisation reads numbers that do not exist
        with Replay() as replay:
            return new_module(module), replay


def new_module(module: ModuleOrFactory) -> Module:
    """The module, or the module that a function returns."""
    if not callable(module):
        raise ArgumentError(
            "module", module, "a torch.nn.Module, or a function that returns one"
        )
    made = module if isinstance(module, torch.nn.Module) else module()
    if not isinstance(made, torch.nn.Module):
        raise ArgumentError(
            "module",
            module,
            f"a torch.nn.Module, or a function that returns one, not {shown(made)}",
        )
    return made


def torch_seed(seed: int) -> None:
    """Seed torch's generator, which takes 64 bits, with a seed of netsor, which may
    have 128.
    """
    torch.manual_seed(seed % 2**63)


def _initialise_again(module: Module) -> None:
    """Initialise every parameter again, with the methods that modules have for it."""
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    # buffers without numbers, and what stands there until they have some
    awaited: list[tuple[Module, str, Any]] = []
    for part in module.modules():
        for name, b in part.named_buffers(recurse=False):
            if _empty(b) and b.numel():
                kind = (
                    None
                    if b.dtype == torch.bool
                    else torch.finfo
                    if b.is_floating_point()
                    else torch.iinfo
                )
                # which no buffer holds
                least = False if kind is None else kind(b.dtype).min
                part._buffers[name] = torch.full(b.shape, least, dtype=b.dtype)
                awaited.append((part, name, least))
        # transformers marks initialised modules with it
        part.__dict__.pop("_is_hf_initialized", None)
        for p in part.parameters(recurse=False):
            p.__dict__.pop("_is_hf_initialized", None)
    with torch.no_grad():
        for part in module.modules():
            for method in ("reset_parameters", "_reset_parameters"):
                if callable(getattr(part, method, None)):
                    getattr(part, method)()
        if callable(getattr(module, "init_weights", None)):
            module.init_weights()
            # the head of a tied embedding came after it, and filled the row of padding
            for part in module.modules():
                if isinstance(part, torch.nn.Embedding):
                    part._fill_padding_idx_with_zero()
        elif callable(getattr(module, "_init_weights", None)):
            module.apply(module._init_weights)
    for part, name, least in awaited:
        if part._buffers[name].reshape(-1)[0].item() == least:
            where = (
                f"the buffer {name} of {type(part).__name__} is on the meta device and"
                " has no numbers"
            )
            raise ValueError(f"{where}: pass a function that makes the module")
    for name, p in module.named_parameters():
        if (
            not _empty(p)
            and bool((p != p.reshape(-1)[0]).any())
            and torch.equal(p, before[name])
        ):
            raise ValueError(
                f"{name} was not initialised again: pass a function that makes the"
                " module, not the module"
            )


class _Thin(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Makes large tensors on the meta device; `trunc_normal_`, which reads its own
    numbers, sees their samples.
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
        if (
            func in ASKED
            and _empty(args[0])
            and (known := self._replay.samples.get(_storage(args[0]))) is not None
        ):
            return func(known, *args[1:], **kwargs)
        if func in CREATORS and str(kwargs.get("device") or "cpu") == "cpu":
            size = kwargs.get(
                "size", args[0] if args and isinstance(args[0], list | tuple) else args
            )
            sizes = [n for n in size if isinstance(n, int)]
            if sizes and math.prod(sizes) > (
                LARGE if func in UNWRITTEN else 64 * LARGE
            ):
                kwargs["device"] = "meta"
        return func(*args, **kwargs)


IS_META = torch.Tensor.is_meta.__get__
ASKED = {
    torch.Tensor.any,
    torch.Tensor.all,
    torch.Tensor.item,
    torch.Tensor.__bool__,
    torch.any,
    torch.all,
}
# these functions make parameters; masks start from given numbers
UNWRITTEN = {torch.empty, torch.rand, torch.randn}
CREATORS = {*UNWRITTEN, torch.zeros, torch.ones, torch.full}
FILLS = {"aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_", "aten::copy_"}
# though not tagged so
ENTRYWISE = {*FILLS, "aten::clone", "aten::_to_copy", "aten::constant_pad_nd"}
GAUSSIANS, COPIES = (
    {"aten::randn", "aten::normal"},
    {"aten::copy_", "aten::clone", "aten::_to_copy"},
)
SCALED = ("aten::mul", "aten::mul_", "aten::div", "aten::div_")
FRESH = {
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::rand",
    "aten::randn",
    "aten::normal",
    "aten::uniform",
}


class Replay(TorchDispatchMode):  # type: ignore[misc]
    """Repeats on a sample the operations on tensors without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: dict[int, Any] = {}  # by storage
        self._drawn: dict[int, tuple[str, float, float]] = {}
        self._problems: dict[int, str] = {}
        self._zero: dict[int, set[int]] = {}
        self._held: list[Any] = []  # keeps its storage from being reused

    def sample(self, name: str, p: Any) -> Sample:
        """A parameter and what is known about it."""
        key = _storage(p)
        if not _empty(p):
            return Sample(
                p.detach().to("cpu", torch.float32, copy=True),
                drawn=self._drawn.get(key),
            )
        if key not in self.samples and key not in self._problems:
            why = f"{name} is on the meta device and was never initialised"
            raise ValueError(
                f"{why}: pass a function that makes the module, or declare its law"
            )
        rows = tuple(sorted(self._zero.get(key, ())))
        # its sample has lost the order
        problem = self._problems.get(key, "") if p.is_contiguous() else "a transpose"
        return Sample(
            self.samples.get(key, torch.zeros(1)), rows, problem, self._drawn.get(key)
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # _foreach_mul_ returns nothing
        for each in pytree.tree_leaves(args if result is None else result):
            if isinstance(each, torch.Tensor):
                self._record(func, args, each)
                if _empty(each):
                    self._follow(func, args, kwargs, each)
        return result

    def _record(self, func: Any, args: Any, tensor: Any) -> None:
        """Record the law that a tensor is drawn from; forget it if anything but a
        multiplication follows.
        """
        name, key, law = func._schema.name, _storage(tensor), None
        given = [t for t in args if isinstance(t, torch.Tensor)]
        numbers = [float(x) for x in args if isinstance(x, int | float)]
        if not func._schema.is_mutable and key in map(_storage, given):
            return  # a view
        if _part(tensor):
            others = [
                float(t) if t.numel() == 1 and not _empty(t) else 1.0 for t in given[1:]
            ]
            zero = name in ("aten::zero_", "aten::fill_", "aten::copy_") and not any(
                numbers + others
            )
            if not (zero and tensor.is_contiguous()):  # rows of zeros are found later
                self._drawn.pop(key, None)
            return
        # mean and standard deviation, or an interval
        a, b = (*numbers, *(0.0, 1.0)[len(numbers) :])[:2]
        if name == "aten::normal_" or (name in GAUSSIANS and not given):
            law = ("normal", a, b)
        elif name == "aten::uniform_":
            law = ("uniform", (a + b) / 2, (b - a) / math.sqrt(12))
        elif (
            name in COPIES
            and given[-1].numel() == tensor.numel()
            and 0 not in given[-1].stride()
        ):
            law = self._drawn.get(_storage(given[-1]))
        elif name in SCALED and (known := self._drawn.get(_storage(given[0]))):
            numbers += [float(t) for t in given[1:] if t.numel() == 1 and not _empty(t)]
            if len(numbers) == 1 and numbers[0]:
                factor = 1 / numbers[0] if "div" in name else numbers[0]
                law = (known[0], known[1] * factor, known[2] * abs(factor))
        self._drawn.pop(key, None)
        if law and tensor.is_floating_point():
            self._drawn[key] = law
            self._held.append(tensor)

    def _follow(self, func: Any, args: Any, kwargs: Any, tensor: Any) -> None:
        name, key = func._schema.name, _storage(tensor)
        self._held.append(tensor)
        given = [
            t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)
        ]
        size = min(tensor.numel(), SAMPLE)
        if not given:
            if name in FRESH:
                self.samples[key] = func([size], *args[1:], dtype=kwargs.get("dtype"))
            return
        if not func._schema.is_mutable and key in map(_storage, given):
            return  # a view
        if func._schema.is_mutable and _part(tensor):
            zero = name == "aten::zero_" or (
                name == "aten::fill_" and float(args[1]) == 0
            )
            length = tensor.shape[-1] if tensor.ndim else 0
            # rows of zeros
            if (
                zero
                and length
                and tensor.is_contiguous()
                and tensor.storage_offset() % length == 0
            ):
                first = tensor.storage_offset() // length
                self._zero.setdefault(key, set()).update(
                    range(first, first + tensor.numel() // length)
                )
            else:
                self._problems[key] = f"{name} of a part"
            return
        entrywise, fills = (
            torch.Tag.pointwise in func.tags or name in ENTRYWISE,
            name in FILLS,
        )

        def instead(t: Any) -> Any:
            if not _empty(t) or not t.is_contiguous():
                return t if t.numel() == 1 else None
            if fills and t is args[0]:
                return torch.empty(size, dtype=t.dtype)
            return (
                self.samples.get(_storage(t)) if t.numel() == tensor.numel() else None
            )

        if entrywise and all(instead(t) is not None for t in given):
            options = {k: v for k, v in kwargs.items() if k != "device"}
            copies, options = pytree.tree_map_only(
                torch.Tensor, instead, (args, options)
            )
            self.samples[key] = func(*copies, **options)
            self._problems.pop(key, None)
            if fills:
                self._zero.pop(key, None)
        else:
            moved = name == "aten::_to_copy" and not any(map(_empty, given))
            problem = MOVED if moved else name
            self._problems[key] = next(
                filter(None, map(self._problems.get, map(_storage, given))), problem
            )
            self.samples.pop(key, None)


def _empty(t: Any) -> bool:
    """Whether a tensor has no numbers; `is_meta` is patched in this context."""
    return bool(t.device.type == "meta")


def _part(t: Any) -> bool:
    """Whether a tensor is a part of another one."""
    return bool(t.numel() * t.element_size() < t.untyped_storage().nbytes())


def _storage(t: Any) -> int:
    return int(t.untyped_storage()._cdata)
