"""Loads a user's program or PyTorch module, which the command line names as
FILE:PROGRAM, with its arguments (--arg) and widths (--bind).

FILE is executed. Whatever it raises becomes a usage error in one line.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from click import UsageError

from .._validate import SourceLocation, shown
from ..language.values._graph import topological_order, widths_of
from ..language.values._width import bind_widths
from ..programs._named_program import NamedProgram
from ..programs._program import Program
from ._argument_values import literal, value_of
from ._options import INFINITE

# click calls our commands: an error placed there is at no line of the user
OURS = Path(click.__file__).parent
# files of users' programs: an error with one in its traceback may be the user's
LOADED: set[str] = set()
MAX_LISTED = 6  # functions that an error names
NAME = re.compile(r"(?P<name>[^\W\d]\w*)(?:\[(?P<index>[-\d,\s]+)\])?")

# a word of a name in snake case or camel case; GPTConfig has the words GPT and Config
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W_A-Z]+")

# Python's errors about an argument without a value, and those of `inspect`
MISSING = re.compile(r"missing (?:\d+|a) required .*argument[s:]*:? '(?P<name>\w+)'")


@contextmanager
def users_code(
    problem: str, remedy: Callable[[BaseException], str] = lambda _: ""
) -> Iterator[None]:
    """Whatever the user's code raises is a usage error: `problem`, and its message.

    `remedy` is called with the error, and its text is appended.
    """
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except BaseException as error:
        # SystemExit too: a file that ends the process has no verdict
        reason = one_line(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror  # FILE is named already
        raise UsageError(f"{problem}: {reason}{remedy(error)}") from None


def module_factory(named: NamedProgram) -> Callable[[], Any] | None:
    """The function that makes a PyTorch module, or None: it names a program."""
    if not hasattr(_build(named), "named_parameters"):
        return None
    if named.part is not None:
        raise UsageError(
            f"FILE:FUNCTION {shown(str(named))} makes a module, which has no parts:"
            " leave out the index"
        )
    return partial(named.value, **named.arguments)


def jax_model(named: NamedProgram) -> Any:
    """The JAX model that a name stands for, or None.

    It is a function of a key that makes a model of Flax or Equinox, or what a function
    without other arguments returns: a module of Linen, or a pair (init, apply).
    """
    if "jax" not in sys.modules:  # no model without JAX
        return None
    from ..studies._training import makes_jax_model

    model = named.value
    if named.arguments:
        model = partial(named.value, **named.arguments)
    if makes_jax_model(model):
        return model
    if named.is_function and not isinstance(named.value, type):
        with suppress(Exception):  # errors are reported where it is read
            constructor = model()
            return constructor if makes_jax_model(constructor) else None
    return None


def program_of(named: NamedProgram) -> Program:
    """The program, or the named part of it."""
    net = _build(named)
    if not isinstance(net, Program):
        raise UsageError(
            f"PROGRAM {shown(str(named))} must be a program (see ns.program), got"
            f" {type(net).__name__}"
        )
    try:
        # an entry of one of several outputs
        if isinstance(named.part, tuple) and isinstance(net.output, tuple):
            return net[named.part[0]][named.part[1:]]
        return net if named.part is None else net[named.part]
    except IndexError:
        if isinstance(net.output, tuple):
            parts = f"it has {len(net)} outputs"
        else:
            parts = f"its shape is {net.shape}"
        raise UsageError(
            f"PROGRAM {shown(str(named))} has no such part: {parts}"
        ) from None


def _build(named: NamedProgram) -> Any:
    """What the name stands for: the object, or what the function of this name returns
    for the arguments.
    """
    if named.arguments and not named.is_function:
        name = next(iter(named.arguments))
        raise UsageError(
            f"--arg {name} is given, but PROGRAM {shown(str(named))} is not a function"
        )
    is_instance = not isinstance(named.value, type)
    has_parameters = hasattr(named.value, "named_parameters")
    if named.is_function and is_instance and has_parameters:
        raise UsageError(
            f"FILE:FUNCTION {shown(str(named))} is a PyTorch module: name a function"
            " that returns it"
        )
    problem = f"PROGRAM {shown(str(named))} cannot be built"
    with users_code(problem, remedy=partial(_argument_remedy, named)):
        return named.build()


def _argument_remedy(named: NamedProgram, error: BaseException) -> str:
    """Which --arg to write after an error: one that is missing, or a word that is the
    name of a function of the file; "" for other errors.
    """
    module = sys.modules.get(getattr(named.value, "__module__", ""))
    for argument, value in named.arguments.items():
        is_name = isinstance(value, str) and value.isidentifier()
        if is_name and callable(getattr(module, value, None)):
            return (
                f"; {argument} is the word {value!r}: did you mean --arg"
                f' "{argument}={value}()"?'
            )
    missing = MISSING.search(one_line(error)) if isinstance(error, TypeError) else None
    if missing is None:
        return ""
    argument = missing["name"]
    value = _configuration_class(named, module, argument)
    example = f'"{argument}={value}()"' if value else f"{argument}=…"
    return f"; pass it: --arg {example}"


def _configuration_class(named: NamedProgram, module: Any, argument: str) -> str:
    """The class of a file that a missing argument takes, as GPTConfig for `config`.

    The name of such a class ends in the words of the argument: ModelConfig is one for
    `config` and for `model_config`, but Attention is none for `n`. It is "" if there is
    no such class, or several. Of several, the one that is named after the function and
    the argument is chosen.
    """
    if not module:
        return ""
    argument_words = _words_of(argument)
    candidates = []
    for name in _names_defined_in(module):
        value = getattr(module, name)
        # a second name of a class is no second class
        is_class = isinstance(value, type) and value.__name__ == name
        if is_class and _words_of(name)[-len(argument_words) :] == argument_words:
            candidates.append(name)
    full_name = [*_words_of(named.name), *argument_words]
    exact = [name for name in candidates if _words_of(name) == full_name]
    chosen = exact or candidates
    return chosen[0] if len(chosen) == 1 else ""


def _words_of(name: str) -> list[str]:
    """The words of a name: ["gpt", "config"] for GPTConfig and for gpt_config."""
    return [word.lower() for word in WORD.findall(name)]


def is_target(source: str) -> bool:
    """Whether it is a FILE:PROGRAM; a path to a file may have a colon in it."""
    return ":" in source and not Path(source).exists()


def find(target: str, arguments: Sequence[str] = ()) -> NamedProgram:
    """The object that FILE:PROGRAM or FILE:PROGRAM[0] names; FILE is executed."""
    module_name, _, attribute = target.rpartition(":")
    match = NAME.fullmatch(attribute)
    if not module_name or match is None:
        raise UsageError(
            f"FILE:PROGRAM {shown(target)} must be a .py file (or module), a colon and"
            " a name, such as net.py:layer[0]"
        )
    texts = named_values("--arg", arguments)
    if module_name.endswith(".py") and not Path(module_name).exists():
        raise UsageError(f"FILE {shown(module_name)} does not exist")
    with users_code(f"FILE {shown(module_name)} cannot be imported"):
        module = _module(module_name)
    LOADED.add(str(getattr(module, "__file__", "")))
    name = match["name"]
    index = match["index"]
    value: Any = getattr(module, name, None)
    if value is None:
        raise _not_defined(name, module_name, module)
    return NamedProgram(
        module=module_name,
        name=name,
        value=value,
        part=None if index is None else literal(index.strip()),
        arguments={key: _argument(key, text, module) for key, text in texts.items()},
    )


def batch_of(target: str, name: str) -> Any:
    """The batch of --batch NAME, in the file of FILE:FUNCTION."""
    if not name.isidentifier():
        raise UsageError(
            f"--batch {shown(name)} must be a name in FILE, without an index"
        )
    return named_in_file_of(target, name)


def named_in_file_of(target: str, name: str) -> Any:
    """The object of this name in the file of FILE:FUNCTION, which `find` has executed.

    The file is not executed again.
    """
    module_name, _, _ = target.rpartition(":")
    module = sys.modules[_import_name(module_name)]
    value = getattr(module, name, None)
    if value is None:
        raise _not_defined(name, module_name, module)
    return value


def _not_defined(name: str, module_name: str, module: Any) -> UsageError:
    """The error for a name that a module lacks, with the names that it defines."""
    message = f"PROGRAM {name!r} is not in {shown(module_name)}"
    defined = _names_defined_in(module)
    similar = get_close_matches(name, defined, n=1)
    if similar:
        message += f": did you mean {similar[0]}?"
    elif defined:
        more = ", …" if len(defined) > MAX_LISTED else ""
        message += f", which defines {', '.join(defined[:MAX_LISTED])}{more}"
    return UsageError(message)


def _names_defined_in(module: Any) -> list[str]:
    """The names of what a module defines itself, rather than imports."""
    names = []
    for name, value in vars(module).items():
        if getattr(value, "__module__", "") == module.__name__:
            names.append(name)
    return names


def _module(name: str) -> Any:
    """Import a module, or execute a .py file as one."""
    if not name.endswith(".py"):
        with _prepend_sys_path(""):  # as python -m does
            return importlib.import_module(name)
    path = Path(name)
    if path.exists() and not path.is_file():  # reading a pipe would wait
        raise ValueError("it is a folder, a device or a pipe")
    spec = importlib.util.spec_from_file_location(_import_name(name), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    with _prepend_sys_path(str(path.parent.resolve())):  # as python FILE does
        spec.loader.exec_module(module)
    return module


def _import_name(name: str) -> str:
    """The name in `sys.modules` of a module, or of a .py file that was executed."""
    return f"netsor_program_{Path(name).stem}" if name.endswith(".py") else name


@contextmanager
def _prepend_sys_path(folder: str) -> Iterator[None]:
    """A context in which imports look into this folder first. Afterwards they look into
    it last: a csv.py in it must not hide Python's from what netsor loads as it runs.
    """
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(folder)
            sys.path.append(folder)


def one_line(error: BaseException) -> str:
    """The message of an error in one line; the name of its class if it has none."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # the __str__ of a user's error may fail
        text = ""
    line = getattr(error, "where", None)
    if isinstance(line, SourceLocation) and Path(line.file).is_relative_to(OURS):
        text = getattr(error, "plain", text)  # no line of the user's is to blame
    if isinstance(error, SystemExit):
        return f"it ends the process (sys.exit({text}))"
    return text or type(error).__name__


def named_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """The values of --bind n=256 or --arg heads=4, by name."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} {shown(text)} must be a name, =, and a value")
        if name in values:
            raise UsageError(f"{option} {name} is given twice")
        values[name] = value.strip()
    return values


def _argument(name: str, text: str, module: Any) -> Any:
    """The value of --arg name=text, in which names are those of the user's module."""
    with users_code(f"--arg {shown(f'{name}={text}')} cannot be read"):
        return value_of(text, module)


def bound_widths(net: Program, binds: Sequence[str]) -> dict[str, float]:
    """The number of each width of the program, inf for an infinite one, from --bind.

    A width without a number is a usage error, and so is a number for another name.
    """
    values: dict[str, Any] = {}
    for name, text in named_values("--bind", binds).items():
        values[name] = math.inf if text.lower() in INFINITE else literal(text)
    # of the whole program: a name on the command line is no error if the selected
    # outputs do not depend on that width
    widths = widths_of(topological_order(net._whole))
    with usage_errors("--bind"):
        return bind_widths(widths, values, allow_inf=True)


@contextmanager
def usage_errors(about: str = "") -> Iterator[None]:
    """A context in which a ValueError of the library becomes a usage error.

    The message begins with the option that it is `about`. Without one, errors that name
    an argument of a function pass: the command translates them itself.
    """
    try:
        yield
    except ValueError as error:
        if getattr(error, "argument", None) is not None and not about:
            raise
        raise UsageError(_message_about(about, error)) from None


def _message_about(about: str, error: ValueError) -> str:
    """The message of an error about an option, such as "--set width=7", in which the
    option and its value occur once; the error itself may name them, or the argument.
    """
    message = one_line(error)
    if not about:
        return message
    option, _, value = about.partition(" ")
    repeats_value = message.startswith(value)
    argument = getattr(error, "argument", None)
    if argument is not None:
        if option == f"--{argument.name}" or value == shown(argument.value):
            return f"{about} must be {argument.allowed}"
        repeats_value = repeats_value or f"{argument.name}=" in value
    return f"{option} {message}" if repeats_value else f"{about}: {message}"


def module_of(target: str, arguments: tuple[str, ...]) -> Callable[[], Any]:
    """The function that makes a module."""
    if ":" not in target:
        raise UsageError(
            f"MODEL {shown(target)} must be FILE:FUNCTION, such as my_model.py:build"
        )
    build = module_factory(find(target, arguments))
    if build is None:
        raise UsageError(f"FILE:FUNCTION {shown(target)} must return a PyTorch module")
    return build


def jax_or_torch_model(target: str, arguments: tuple[str, ...]) -> ModelOfFile:
    """The model that FILE:FUNCTION names, and the part of netsor that checks it."""
    if ":" in target:
        model = jax_model(find(target, arguments))
        if model is not None:
            from .. import jax

            return ModelOfFile(model, jax)
    return ModelOfFile(module_of(target, arguments), torch_module())


class ModelOfFile(NamedTuple):
    """A model of a file, and `netsor.jax` or `netsor.torch`."""

    model: Any
    library: Any

    @property
    def is_of_jax(self) -> bool:
        """Whether it is a JAX model."""
        return str(self.library.__name__).endswith(".jax")


def torch_module() -> Any:
    """The part of netsor that reads PyTorch modules; an error if PyTorch is not
    installed.
    """
    try:
        from .. import torch
    except ImportError as error:
        raise UsageError(str(error)) from None
    return torch
