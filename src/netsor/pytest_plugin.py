"""The pytest plugin: the fixture `netsor`, whose checks fail a test in one line.

pytest imports this file at every start, so it imports nothing that takes time.

Examples
--------
>>> def test_init(netsor):
...     netsor.check_init(build, reference="config.json")
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .checks._init_check import InitCheck


class Checks:
    """What the fixture `netsor` is: checks of real networks that fail a test.

    Examples
    --------
    >>> def test_init(netsor):
    ...     netsor.check_init(build, reference="config.json")
    """

    def __init__(self, test: pytest.Item) -> None:
        self._test = test

    def check_init(
        self,
        module: Any,
        *args: Any,
        reference: Any = None,
        allow_incomplete: bool = False,
        **options: Any,
    ) -> InitCheck:
        """Check the initialisation of a module or a JAX model; the test fails if it is
        wrong.

        The failure is one line with the first finding and what was checked. The whole
        report is below it.

        Parameters
        ----------
        module, *args
            As in `ns.torch.check_init`, or a model and its inputs as in
            `ns.jax.check_init`.
        reference : optional
            As in these functions. The path of a file may be relative to the file
            of the test.
        allow_incomplete : bool
            Whether the test passes if parameters or the pass could not be checked and
            nothing departs.
        **options
            Further options of `ns.torch.check_init` or `ns.jax.check_init`.

        Returns
        -------
        InitCheck
            The result, for further assertions.
        """
        check_init = _check_of(module, args)
        if isinstance(reference, str | Path):
            reference = self._beside_test(reference)
        with _quiet():
            check: InitCheck = check_init(module, *args, reference=reference, **options)
        is_accepted = allow_incomplete and not check.findings
        if not check.ok and not is_accepted:
            self._test.add_report_section("call", "netsor", str(check))
            pytest.fail(_reason(check), pytrace=False)
        return check

    def _beside_test(self, reference: str | Path) -> str | Path:
        """A path that exists, or else the same path in the folder of the test."""
        beside = self._test.path.parent / reference
        if Path(reference).exists() or not beside.exists():
            return reference
        return str(beside)


def _check_of(module: Any, args: Sequence[Any]) -> Any:
    """The check of the framework of a module; both are slow to import."""
    if "jax" in sys.modules:  # no model without JAX
        import jax

        from .jax import check_init as check_of_jax
        from .jax._models import is_model

        # the first input of a plain function may be the function that draws them
        is_function = any(callable(x) or isinstance(x, jax.Array) for x in args)
        if is_function or is_model(module):
            return check_of_jax
    from .torch import check_init

    return check_init


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without log messages below errors.

    pytest would show those of torch.export and transformers before the report. The
    logger of PyTorch's traces minds its own level only.
    """
    traces = logging.getLogger("torch.__trace")
    level = logging.root.manager.disable
    level_of_traces = traces.level
    logging.disable(max(level, logging.WARNING))
    traces.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(level)
        traces.setLevel(level_of_traces)


def _reason(check: InitCheck) -> str:
    """Why a test fails, in one line."""
    if check.first is None:
        why = check.notes[0] if check.notes else "no parameter was checked"
        return f"{check.verdict}; {why}; allow_incomplete=True accepts that"
    first = check.first
    more = len(check.findings) - 1
    others = f" and {more} more" if more else ""
    depth = f"{check.other_depth}; " if check.other_depth else ""
    return (
        f"{depth}{check.name} differs from {check.reference} in {first.where}:"
        f" {first.what}: {first.text}{others}; {check.coverage}"
    )


@pytest.fixture
def netsor(request: pytest.FixtureRequest) -> Checks:
    """Checks of initialisations, of PyTorch or JAX, that fail a test in one line."""
    return Checks(request.node)
