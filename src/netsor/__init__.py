"""netsor: the laws of wide neural networks with attention.

Write a network once, the way the paper writes it, and read it at any width.

Examples
--------
>>> n = ns.Width("n")
>>> x = ns.weight(n, n, batch=4) @ ns.gaussian(n)
>>> net = ns.Program(ns.nn.attention(ns.clip(x, 100), heads=2))
>>> net.check().verdict
'proved'
>>> print(f"{net[0].law(n=ns.inf).var():.4f}")
0.3920
"""

# first: an interrupt may come while the rest is loaded
from .runtime import _early_sigint as _early_sigint

# isort: split
from importlib import import_module
from threading import RLock
from typing import Any

__version__ = "0.3.0"
__citation__ = f"""\
@software{{netsor,
  title = {{netsor: exact distributions of wide neural networks with attention}},
  author = {{{{The netsor developers}}}},
  version = {{{__version__}}},
  year = {{2026}},
  license = {{MIT}}
}}"""


def _read_stub() -> dict[str, str]:
    """The module of each public name, "." for a submodule, from `__init__.pyi`.

    Its lines are `from MODULE import NAME as NAME`.
    """
    path = __file__.rpartition(".")[0] + ".pyi"
    modules = {}
    with open(path, encoding="utf-8") as stub:
        for line in stub:
            if line.startswith("from "):
                _, module, _, name, *_ = line.split()
                modules[name] = module
    return modules


_MODULE_OF = _read_stub()
__all__ = sorted(_MODULE_OF)
# not in `import *`: they need scikit-learn, JAX and PyTorch
_OPTIONAL = ("AttentionRegressor", "jax", "torch")
# one thread imports at a time: see `__getattr__`
_LOADING = RLock()


def __dir__() -> list[str]:
    private = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *private})


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, or raise an error that suggests one.

    So a command loads only what it needs. `lazy_loader.attach_stub` reads the same stub
    but has no lock. When eight threads load different names at once, Python's locks of
    single modules then fail: one thread imports a package while another imports a part
    of it, and both end in a deadlock error or with half a module
    (`test_eight_threads_load_all_names_one_at_a_time`). With a lock of ours around it,
    little would be left for the library to do, and its parser takes 12 ms of the start
    instead of 0.1 ms.
    """
    with _LOADING:
        if name in ("jax", "torch") or _MODULE_OF.get(name) == ".":
            return import_module(f".{name}", __name__)
        if name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name], __name__), name)
            globals()[name] = value  # from now on Python finds it without asking here
            return value
        if name == "AttentionRegressor":
            try:
                return import_module(".sklearn", __name__).AttentionRegressor
            except ImportError as error:
                raise ImportError(
                    "ns.AttentionRegressor needs scikit-learn, pip install"
                    f" scikit-learn: {error}"
                ) from error
    raise AttributeError(f"netsor has no {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    """What the user of a name that does not exist may have meant, or nothing."""
    if name.startswith("_"):  # Python itself looks these up
        return ""
    import numpy as np

    from . import nn
    from ._familiar_names import FUNCTIONS, hint

    if name in nn.__all__:
        return f"; its name here is ns.nn.{name}"
    suggestion = hint(name, FUNCTIONS, [*__all__, *_OPTIONAL], prefix="ns.")
    if name not in FUNCTIONS and isinstance(getattr(np, name, None), np.ufunc):
        suggestion += (
            f"; of coordinates write ns.nonlin(np.{name}, x), of scalars"
            f" ns.apply(np.{name}, p)"
        )
    return suggestion
