"""The backends that run a plan: numpy, JAX and PyTorch, each a class with its
generators and devices.

`StepwiseBackend` is the base class for other array libraries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Executor
from importlib import import_module
from pkgutil import resolve_name

from ..._validate import ArgumentError, shown
from ..plan._cost_model import NUMPY, Prices, prices_on
from ._base import AUTO, PRECISIONS, Backend, Device, NoDeviceError
from ._devices import DeviceThreads, several
from ._numpy import Numpy
from ._stepwise import StepwiseBackend, Stream

__all__ = [
    "AUTO",
    "NAMES",
    "PRECISIONS",
    "Backend",
    "Device",
    "NoDeviceError",
    "Numpy",
    "StepwiseBackend",
    "Stream",
    "choose",
    "choose_several",
    "prices",
]

# The class of each backend; modules of optional libraries are loaded when needed.
CLASSES = {"numpy": "_numpy:Numpy", "jax": "_jax:Jax", "torch": "_torch:Torch"}
NAMES = tuple(CLASSES)


def choose(
    backend: object = "numpy",
    device: object = None,
    precision: object = "float64",
    precisions: Sequence[str] = PRECISIONS,
) -> Backend:
    """The backend of this name on a device, with a precision of its arrays.

    `backend` may also be a `Backend`, which is returned if it agrees with the other
    arguments. The default device, None, is a CUDA device if there is one, else the CPU.
    `precisions` are the allowed ones; AUTO means double precision except for numpy.
    """
    if isinstance(backend, Backend):  # already chosen, with its device and precision
        is_device = device in (None, backend.device)
        is_precision = precision in ("float64", AUTO, backend.precision)
        if is_device and is_precision:
            return backend
        problem = (
            f"device={shown(device)}, precision={shown(precision)}: backend is"
            f" {backend} already"
        )
        raise ValueError(f"{problem}; leave them out")
    if not isinstance(precision, str) or precision not in precisions:
        raise ArgumentError("precision", precision, f"one of {', '.join(precisions)}")
    name, device = _checked_names(backend, device)
    if name == "numpy":
        return Numpy("cpu", precision)
    try:
        import_module(name)
    except ImportError:
        raise NoDeviceError("backend", name, f"installed: pip install {name}") from None
    backend_class: type[Backend] = resolve_name(f"{__name__}.{CLASSES[name]}")
    precision = "float64" if precision == AUTO else precision
    if device is not None:
        return backend_class(device, precision)
    try:
        return backend_class("cuda", precision)
    except NoDeviceError:
        return backend_class("cpu", precision)


def choose_several(
    backend: object = "numpy",
    device: object = None,
    precision: object = "float64",
    precisions: Sequence[str] = PRECISIONS,
    executor: Executor | None = None,
) -> tuple[Backend, Executor | None]:
    """The backend as in `choose`, and an executor with all devices if there are
    several.

    `executor` is the one that the user gave, if any, which does the tasks on one
    device.
    """
    devices = several(device)
    if not devices:
        return choose(backend, device, precision, precisions), executor
    if executor is not None:
        raise ArgumentError(
            "device", device, "one device with an executor, which has its own workers"
        )
    backends = [choose(backend, name, precision, precisions) for name in devices]
    return backends[0], DeviceThreads(devices)


def prices(backend: object = "numpy", device: object = None) -> Prices:
    """The prices of a backend on a device, which need not be present; the default
    device is the same as in `choose`.
    """
    device = next(iter(several(device)), device)
    if device is None or isinstance(backend, Backend):
        return choose(backend, device).prices
    name, device = _checked_names(backend, device)
    if name == "numpy":
        return NUMPY
    return prices_on(str(device).partition(":")[0])


def _checked_names(backend: object, device: object) -> tuple[str, str | None]:
    """The names of a backend and a device; an error is raised if one is not known.

    numpy has only the device cpu. None stands for the default device.
    """
    if not isinstance(backend, str) or backend not in NAMES:
        raise ArgumentError("backend", backend, f"one of {', '.join(NAMES)}")
    if device is not None and not (
        isinstance(device, str) and re.fullmatch(r"cpu|cuda(:\d+)?", device)
    ):
        raise ArgumentError("device", device, "'cpu', 'cuda' or 'cuda:N'")
    if backend == "numpy" and device not in (None, "cpu"):
        raise NoDeviceError(
            "device",
            device,
            "'cpu' for numpy; the backends jax and torch support other devices",
        )
    return backend, device
