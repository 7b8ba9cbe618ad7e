"""Check every formula of the documentation: with a strict parser, and with LaTeX where
it is installed.

`make docs` runs this file. Without `pdflatex` it says that nothing was compiled; with
`--latex` that is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$]+?)(?<!\s)\$(?![\d$])", re.DOTALL
)

# Commands that the documentation and `net.latex()` may use, with their number of
# arguments in braces. MathJax, KaTeX and LaTeX with amsmath know all of them.
NO_ARGUMENT = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi varphi chi psi
    omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell hbar partial nabla infty sum prod int max min log exp sin cos
    tanh arcsin arccos arctan lim sup inf det dim Pr cdot cdots dots ldots vdots ddots times odot otimes oplus pm mp le
    leq ge geq ne neq approx sim simeq equiv propto ll gg in notin subset cup cap to mapsto rightarrow leftarrow
    Rightarrow Leftrightarrow longrightarrow mid parallel perp top bot forall exists langle rangle lVert rVert lvert
    rvert lfloor rfloor lceil rceil Vert vert star ast circ bullet dagger prime setminus quad qquad displaystyle
    textstyle limits big Big bigl Bigl bigr Bigr biggl biggr left right bigm colon iff implies land lor neg
"""
ONE_ARGUMENT = """
    text textbf textit texttt mathrm mathbf mathbb mathcal mathit mathsf mathring operatorname sqrt hat bar tilde vec
    widehat widetilde overline underline boxed dot ddot tag label begin end
"""
WORD = re.compile(r"\w+")
ARGUMENTS = {
    **dict.fromkeys(WORD.findall(NO_ARGUMENT), 0),
    **dict.fromkeys(WORD.findall(ONE_ARGUMENT), 1),
}
ARGUMENTS |= dict.fromkeys(
    ("frac", "tfrac", "dfrac", "binom", "stackrel", "overset", "underset"), 2
)
ARGUMENTS |= dict.fromkeys(",;:!> {}|%&#_$", 0)
TABLES = {
    "gathered",
    "aligned",
    "matrix",
    "pmatrix",
    "bmatrix",
    "cases",
    "array",
    "gather*",
    "align*",
}
WITHOUT_COLUMNS = {"gathered", "gather*"}
TEXT = {
    "text",
    "textbf",
    "textit",
    "texttt",
    "operatorname",
    "mathrm",
    "begin",
    "end",
    "tag",
    "label",
}
TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|.", re.DOTALL)


class Formula(NamedTuple):
    """A formula and where it is."""

    where: str
    tex: str
    displayed: bool


class TexError(ValueError):
    """A formula that LaTeX would not accept."""


def parse(tex: str) -> None:
    """Raise a TexError if the formula has an error of LaTeX's math mode."""
    parser = _Parser(tex)
    parser.sequence(end=None)


class _Parser:
    r"""A recursive-descent parser of math mode; each method reads what its name says.

    `environments` are those that are open, and `lefts` counts open \left.
    """

    def __init__(self, tex: str) -> None:
        self.tokens = list(TOKEN.findall(tex))
        self.position = 0
        self.environments: list[str] = []
        self.lefts = 0

    def peek(self) -> str | None:
        if self.position < len(self.tokens):
            return self.tokens[self.position]
        return None

    def next(self) -> str | None:
        token = self.peek()
        self.position += 1
        return token

    def skip_spaces(self) -> None:
        while (token := self.peek()) is not None and token.isspace():
            self.position += 1

    def sequence(self, end: str | None) -> None:
        """Everything up to the closing token, or to the end of the formula."""
        scripts: set[str] = set()  # of the last atom
        depth, lefts = len(self.environments), self.lefts
        while (token := self.next()) is not None and token != end:
            if token in "^_":
                if token in scripts:
                    raise TexError(f"double {token}")
                scripts.add(token)
                self.argument(token)
            elif token == "'":
                if "^" in scripts:
                    raise TexError("a prime after a superscript")
            elif not token.isspace():
                scripts = set()
                self.atom(token)
        if token is None:
            self.check_closed(end)
        elif len(self.environments) != depth or self.lefts != lefts:
            raise TexError("an environment or a delimiter crosses braces")

    def check_closed(self, end: str | None) -> None:
        """At the end of a formula nothing may be open."""
        if end is not None or self.environments or self.lefts:
            raise TexError(f"{end or self.environments or 'left'} is not closed")

    def atom(self, token: str) -> None:
        """One token that begins something."""
        if token == "{":
            self.sequence(end="}")
        elif token == "}":
            raise TexError("} closes nothing")
        elif token == "&":
            if not self.environments or self.environments[-1] in WITHOUT_COLUMNS:
                raise TexError("& outside a table")
        elif token == r"\\":
            if not self.environments:
                raise TexError(r"\\ outside an environment")
        elif token in "#$%~":
            raise TexError(f"{token} in a formula")
        elif token.startswith("\\"):
            self.command(token[1:])
        elif not token.isascii():
            raise TexError(f"{token!r} is not ASCII")

    def command(self, name: str) -> None:
        if name.rstrip("*") not in ARGUMENTS:
            raise TexError(f"unknown command \\{name}")
        name = name.rstrip("*")
        if name == "left":
            self.delimiter()
            self.lefts += 1
        elif name == "right":
            self.delimiter()
            self.lefts -= 1
            if self.lefts < 0:
                raise TexError(r"\right without \left")
        elif name in ("begin", "end"):
            self.environment(name, self.text())
        elif name in TEXT:
            self.text()
        else:
            if name == "sqrt":
                self.option()
            for _ in range(ARGUMENTS[name]):
                self.argument(f"\\{name}")

    def delimiter(self) -> None:
        self.skip_spaces()
        token = self.next()
        known = {
            r"\{",
            r"\}",
            r"\|",
            r"\langle",
            r"\rangle",
            r"\lVert",
            r"\rVert",
            r"\lfloor",
            r"\rfloor",
        }
        if token is None or (token not in "()[]|./" and token not in known):
            raise TexError(f"{token} is no delimiter")

    def environment(self, name: str, kind: str) -> None:
        if kind not in TABLES:
            raise TexError(f"unknown environment {kind}")
        if name == "begin":
            self.environments.append(kind)
        elif not self.environments or self.environments.pop() != kind:
            raise TexError(f"\\end{{{kind}}} without \\begin")

    def option(self) -> None:
        if self.peek() == "[":
            while self.next() not in ("]", None):
                pass

    def argument(self, of: str) -> None:
        """One token, or a group in braces."""
        self.skip_spaces()
        token = self.next()
        if token is None or token in "}^_&" or token == r"\\":
            raise TexError(f"{of} needs an argument")
        self.atom(token)

    def text(self) -> str:
        """A group in text mode."""
        self.skip_spaces()
        if self.next() != "{":
            raise TexError("a group of text begins with a brace")
        text, depth = "", 1
        while depth:
            token = self.next()
            if token is None:
                raise TexError("a group of text is not closed")
            if token in "_^&#%$":
                raise TexError(f"{token} in text")
            if not token.isascii():
                raise TexError(f"{token!r} in text is not ASCII")
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
            text += token
        return text.removesuffix("}")


def formulas_of(page: str, where: str) -> list[Formula]:
    """The formulas of a Markdown page, outside code."""
    prose = CODE.sub(lambda code: "\n" * code[0].count("\n"), page)
    formulas = []
    for match in FORMULA.finditer(prose):
        displayed, inline = match.groups()
        line = prose.count("\n", 0, match.start()) + 1
        formulas.append(
            Formula(
                f"{where}:{line}", displayed or inline, displayed=displayed is not None
            )
        )
    return formulas


def of_the_docs() -> list[Formula]:
    """All formulas of the README, the documentation and the notebooks."""
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    pages += sorted((ROOT / "examples" / "notebooks").glob("*.py"))
    formulas: list[Formula] = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if page.suffix == ".py":
            text = _prose_of_notebook(text)
        formulas += formulas_of(text, page.relative_to(ROOT).as_posix())
    return formulas


def _prose_of_notebook(source: str) -> str:
    """The comments of a notebook, which are its prose; lines keep their numbers."""
    lines = []
    for line in source.splitlines():
        lines.append(line.removeprefix("# ") if line.startswith("# ") else "")
    return "\n".join(lines)


def problems(formulas: list[Formula]) -> list[str]:
    """One line for each formula that does not parse."""
    messages = []
    for formula in formulas:
        try:
            parse(formula.tex)
        except TexError as error:
            messages.append(f"{formula.where}: {error}: {formula.tex.strip()}")
    return messages


def compile_all(formulas: list[Formula]) -> str | None:
    """What LaTeX says of a document of these formulas; None if it accepts all."""
    head = [
        r"\documentclass{article}",
        r"\usepackage{amsmath,amssymb}",
        r"\begin{document}",
    ]
    lines = []
    for formula in formulas:
        tex = " ".join(formula.tex.split())
        lines.append(rf"\[{tex}\]" if formula.displayed else rf"\({tex}\)")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "all.tex").write_text(
            "\n".join([*head, *lines, r"\end{document}"]), encoding="utf-8"
        )
        command = [
            "pdflatex",
            "-interaction=nonstopmode",
            "-halt-on-error",
            "-file-line-error",
            "all.tex",
        ]
        result = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if result.returncode == 0:
        return None
    message = re.search(r"all\.tex:(\d+): (.*)", result.stdout)
    if message is not None:
        number = int(message[1]) - len(head) - 1
        if 0 <= number < len(formulas):
            return f"{formulas[number].where}: {message[2]}: {lines[number]}"
    return result.stdout[-2000:]


def main(arguments: list[str]) -> int:
    """Check all formulas, and say what was done."""
    formulas = of_the_docs()
    if not formulas:
        print("formulas: none was found, so nothing was checked", file=sys.stderr)
        return 1
    messages = problems(formulas)
    if messages:
        print("\n".join(messages), file=sys.stderr)
        return 1
    if shutil.which("pdflatex") is None:
        print(
            f"formulas: {len(formulas)} parsed, none compiled, because pdflatex is not"
            " installed"
        )
        return 1 if "--latex" in arguments else 0
    message = compile_all(formulas)
    if message is not None:
        print(message, file=sys.stderr)
        return 1
    print(f"formulas: {len(formulas)} compiled by pdflatex")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
