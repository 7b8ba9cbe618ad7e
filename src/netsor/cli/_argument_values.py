"""Values of --arg NAME=VALUE: literals, words, and calls of names in the user's file.

`value_of("GPTConfig(n_layer=4)", module)` calls `module.GPTConfig`. Nothing else of
Python is evaluated: no operators, no built-in functions, no attributes of modules.
"""

from __future__ import annotations

import ast
import difflib
from types import ModuleType, SimpleNamespace
from typing import Any

from .._validate import shown

# what is raised by texts that are no literals
NO_LITERAL = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
HOW_TO_QUOTE = "put quotes around it if it is a text"
OPENING, CLOSING, QUOTES = "([{", ")]}", "'\""


def literal(text: str) -> Any:
    """A value from a Python literal; any other text is a string."""
    try:
        return ast.literal_eval(text)
    except NO_LITERAL:
        return text


def value_of(text: str, module: ModuleType | SimpleNamespace) -> Any:
    """The value that a text stands for, such as one after --arg.

    A text with a call in it is evaluated, with names of the user's module. Without one,
    it is a Python literal, or else the text itself: "3" is the number 3, "relu" a word.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except NO_LITERAL:
        return text
    if not any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        return literal(text)
    return _Calls(module).value(tree)


def parts_of(text: str) -> list[str]:
    """The parts of a text between its commas; not those inside brackets or quotes."""
    parts = [""]
    depth = 0  # how many brackets are open
    quote = ""  # the quotation mark that is open
    for character in text:
        if character == "," and depth == 0 and not quote:
            parts.append("")
            continue
        parts[-1] += character
        if quote:
            if character == quote:
                quote = ""
        elif character in QUOTES:
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
    return [part.strip() for part in parts]


class _Calls:
    """Evaluates literals, containers of them, and calls of names of a module."""

    def __init__(self, module: ModuleType | SimpleNamespace) -> None:
        self._names = vars(module)

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, or an error that says what is not read."""
        match node:
            case ast.Call(func, arguments, keywords):
                return self._called(func, arguments, keywords)
            case ast.Name(name):
                return self._named(name)
            case ast.Attribute(ast.Name(owner), name):
                return self._attribute(owner, name)
            case ast.List(entries):
                return [self.value(entry) for entry in entries]
            case ast.Tuple(entries):
                return tuple(self.value(entry) for entry in entries)
            case ast.Dict(keys, entries) if None not in keys:
                pairs = zip(keys, entries, strict=True)
                return {self.value(key): self.value(x) for key, x in pairs if key}
        try:
            return ast.literal_eval(node)
        except NO_LITERAL:
            raise ValueError(
                f"{shown(ast.unparse(node))} is neither a literal nor a call of a name"
                f" in FILE; {HOW_TO_QUOTE}"
            ) from None

    def _called(
        self, func: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> Any:
        """What a function or class of the module returns."""
        if not isinstance(func, ast.Name | ast.Attribute):
            raise ValueError(f"{shown(ast.unparse(func))} is not a name in FILE")
        function = self.value(func)
        if not callable(function):
            raise ValueError(f"{ast.unparse(func)} is not a function or class")
        by_position = [self.value(x) for x in arguments]
        by_name: dict[str, Any] = {}
        for keyword in keywords:
            if keyword.arg is None:
                raise ValueError("** is not supported: write each argument")
            by_name[keyword.arg] = self.value(keyword.value)
        return function(*by_position, **by_name)

    def _named(self, name: str) -> Any:
        """The object of this name in the module."""
        if name in self._names and not name.startswith("__"):
            return self._names[name]
        message = f"{name} is not in FILE"
        public = [known for known in self._names if not known.startswith("_")]
        similar = difflib.get_close_matches(name, public, n=1)
        if similar:
            raise ValueError(f"{message}: did you mean {similar[0]}?")
        raise ValueError(f"{message}; {HOW_TO_QUOTE}")

    def _attribute(self, owner: str, name: str) -> Any:
        """An attribute of a class of the module, such as its own constructor."""
        value = self._named(owner)
        if not isinstance(value, type) or name.startswith("_"):
            raise ValueError(
                f"{owner}.{name} cannot be used: only names of FILE and"
                " attributes of its classes can"
            )
        return getattr(value, name)
