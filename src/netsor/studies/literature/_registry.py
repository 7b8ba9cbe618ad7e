"""All results, in the order of the report; each has a file of its own."""

from __future__ import annotations

from ...language._given import shown
from . import _deepscale, _dong, _giorlandino, _hron, _noci, _tensor_programs, _unit_scaling
from ._result import Result

MODULES = (_giorlandino, _deepscale, _unit_scaling, _tensor_programs, _noci, _hron, _dong)
RESULTS: dict[str, Result] = {module.RESULT.name: module.RESULT for module in MODULES}


def chosen(names: tuple[str, ...]) -> list[Result]:
    """The results of these names, all of them if there is none, in the order of the report."""
    for name in names:
        if not isinstance(name, str) or name not in RESULTS:
            raise ValueError(f"RESULT {shown(name)} must be one of {' '.join(RESULTS)}")
    return [result for name, result in RESULTS.items() if not names or name in names]
