"""The backends that run a plan: numpy, JAX and PyTorch, each a small file with its
generators and devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module

from ..._validate import ArgumentError, shown
from ..plan._cost_model import Prices, prices_on
from ._base import AUTO, PRECISIONS, Backend, Device, NoDeviceError
from ._numpy import Numpy

__all__ = [
    "AUTO",
    "NAMES",
    "PRECISIONS",
    "Backend",
    "Device",
    "NoDeviceError",
    "Numpy",
    "choose",
    "prices",
]

NAMES = ("numpy", "jax", "torch")


def choose(
    backend: object = "numpy",
    device: object = None,
    precision: object = "float64",
    precisions: Sequence[str] = PRECISIONS,
) -> Backend:
    """The backend with this name and device; by default a CUDA device if there is one,
    else the CPU.
    """
    # `precisions` are the allowed ones. AUTO means double precision except for numpy.
    if isinstance(backend, Backend):  # already chosen, with its device and precision
        if device not in (None, backend.device) or precision not in (
            "float64",
            AUTO,
            backend.precision,
        ):
            problem = (
                f"device={shown(device)}, precision={shown(precision)}: backend is"
                f" {backend} already"
            )
            raise ValueError(f"{problem}; leave them out")
        return backend
    if not isinstance(precision, str) or precision not in precisions:
        raise ArgumentError("precision", precision, f"one of {', '.join(precisions)}")
    name, device = _named(backend, device)
    if name == "numpy":
        return Numpy("cpu", precision)
    try:
        import_module(name)
    except ImportError:
        raise NoDeviceError("backend", name, f"installed: pip install {name}") from None
    kind: type[Backend] = getattr(
        import_module(f"{__name__}._{name}"), name.capitalize()
    )
    precision = "float64" if precision == AUTO else precision
    if device is not None:
        return kind(device, precision)
    try:
        return kind("cuda", precision)
    except NoDeviceError:
        return kind("cpu", precision)


def prices(backend: object = "numpy", device: object = None) -> Prices:
    """The prices of a backend on a device, which need not be present; the default
    device is the same as in `choose`.
    """
    if device is None or isinstance(backend, Backend):
        return choose(backend, device).prices
    name, place = _named(backend, device)
    return prices_on(name, str(place).partition(":")[0])


def _named(backend: object, device: object) -> tuple[str, str | None]:
    """Check the names of a backend and a device."""
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
