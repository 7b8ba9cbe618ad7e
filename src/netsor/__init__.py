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

__version__ = "0.2.0"

# Names are loaded when first used: a command loads only what it needs. The stub, for
# type checkers, says from where.
with open(__file__.rpartition(".")[0] + ".pyi", encoding="utf-8") as _stub:
    _IMPORTS = [line.split() for line in _stub if line.startswith("from ")]
_MODULES = [name for _, module, _, name, *_ in _IMPORTS if module == "."]
_WHERE = {name: module for _, module, _, name, *_ in _IMPORTS if module != "."}
__all__ = sorted([*_MODULES, *_WHERE])
# not in `import *`: they need scikit-learn and PyTorch
_OPTIONAL = ("AttentionRegressor", "torch")
# Python's own locks fail where one thread loads a package and another a part of it
_LOADING = RLock()


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Load a public name, or raise an error that suggests one."""
    with _LOADING:
        if name in _MODULES or name == "torch":
            return import_module(f".{name}", __name__)
        if name in _WHERE:
            globals()[name] = value = getattr(
                import_module(_WHERE[name], __name__), name
            )
            return value  # and from now on Python finds it without asking here
        if name == "AttentionRegressor":
            try:
                return import_module(".sklearn", __name__).AttentionRegressor
            except ImportError as error:
                needed = (
                    "ns.AttentionRegressor needs scikit-learn, pip install scikit-learn"
                )
                raise ImportError(f"{needed}: {error}") from error
    hint = ""
    if not name.startswith("_"):  # Python itself looks up names with an underscore
        import difflib  # seldom needed

        import numpy as np

        near = difflib.get_close_matches(name, [*__all__, *_OPTIONAL], 1, 0.75)
        hint = f"; did you mean ns.{near[0]}?" if near else ""
        if isinstance(getattr(np, name, None), np.ufunc):
            hint += (
                f"; of coordinates write ns.nonlin(np.{name}, x), of scalars"
                f" ns.apply(np.{name}, p)"
            )
    raise AttributeError(f"netsor has no {name!r}{hint}")
