"""Formulas of the documentation, and those that programs and laws write, are LaTeX.

A strict parser reads them in every run, so that no test needs LaTeX. Where pdflatex is
installed it compiles them too.
"""

import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from examples import (
    attention_layer,
    causal_attention,
    cross_attention,
    perceptron,
    recurrent,
    residual_block,
)

import netsor as ns

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location(
    "_formulas", ROOT / "docs" / "_formulas.py"
)
tex = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tex)

n = ns.Width("n")
needs_latex = pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="needs pdflatex; the parser read the formulas",
)


def cycles():
    x = ns.gaussian(n, 4)
    return (ns.weight(n, n) @ x[[1, 2, 3, 0]]) + x[[3, 0, 1, 2]]


def table():
    x = ns.gaussian(n, (2, 3))
    # of two of the three columns
    return ns.tanh(x.reshape(6)[[5, 0, 3, 2]].reshape(2, 2))


def covariances():
    few = ns.gaussian(n, 2, mean=[0.5, -1e-7], cov=[[1.0, 0.5], [0.5, 2.0]])
    many = ns.gaussian(n, 6, cov=np.eye(6) + 0.5)
    return (
        ns.tanh(few),
        ns.tanh(many),
        few + ns.gaussian(n, 2, mean=[1.0, 2.0], cov=0.0),
    )


def gradient():
    x, w = ns.gaussian(n, 3), ns.weight(n, n, name="W_in")
    p = ns.dot(ns.gaussian(n), ns.rms_norm(w @ x[[0, 1, 0]])).sum()
    return p, ns.grad(p, x), ns.step(w @ x, p**2, lr=0.1)


def rotary():
    q, k = (ns.rotary(ns.weight(4, n) @ ns.gaussian(n, 3)) for _ in range(2))
    return ns.softmax(ns.dot(q, k), "causal") @ ns.gaussian(n, 3)


PROGRAMS = {
    "cycles": lambda: ns.Program(cycles()),
    "table": lambda: ns.Program(table()),
    "covariances": lambda: ns.Program(covariances()),
    "gradient": lambda: ns.Program(gradient()),
    "rotary": lambda: ns.Program(rotary()),
    "names": lambda: ns.Program(
        ns.weight(n, n, name="50% of #1 & co_") @ ns.gaussian(n), "a_b {c} ~ ^"
    ),
    "scalars": lambda: ns.Program(
        ns.normal((2, 3), std=1e-4).sum(0) + ns.hyperparameter("lr_1")
    ),
    "paper": ns.paper.layer,
    "attention": attention_layer.net,
    "causal": causal_attention.net,
    "cross": cross_attention.net,
    "perceptron": perceptron.net,
    "recurrent": recurrent.net,
    "residual": residual_block.net,
}


def formulas_of_program(net):
    """The formulas of a program: those in its LaTeX in both styles, and that of its
    law.
    """
    found = [tex.Formula("law", net._repr_latex_().strip("$"), displayed=True)]
    for style in ("full", "paper"):
        body = net.latex(document=False, style=style)
        stacked = re.findall(r"\\begin{gather\*}(.*?)\\end{gather\*}", body, re.DOTALL)
        prose = re.sub(
            r"\\begin{gather\*}.*?\\end{gather\*}", "", body, flags=re.DOTALL
        )
        found += [
            tex.Formula(style, rf"\begin{{gathered}}{lines}\end{{gathered}}", True)
            for lines in stacked
        ]
        found += [
            tex.Formula(style, inline, False)
            for inline in re.findall(r"(?<!\\)\$(.+?)(?<!\\)\$", prose)
        ]
    return found


def test_formulas_of_the_documentation_parse():
    formulas = tex.of_the_docs()
    assert len(formulas) > 300
    assert tex.problems(formulas) == []


@needs_latex
def test_formulas_of_the_documentation_compile():
    assert tex.compile_all(tex.of_the_docs()) is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_formulas_of_programs_parse(name):
    formulas = formulas_of_program(PROGRAMS[name]())
    assert len(formulas) >= 4
    assert tex.problems(formulas) == []


@needs_latex
def test_formulas_of_programs_compile():
    formulas = [
        formula for make in PROGRAMS.values() for formula in formulas_of_program(make())
    ]
    assert tex.compile_all(formulas) is None


BROKEN = [
    "x^2^3",
    "x_a_b",
    "{x",
    "x}",
    r"\frac{1}",
    r"\unknown",
    "a & b",
    r"\left( x",
    r"x \right)",
    "x^",
    "_}",
    "a # b",
]
BROKEN += [
    r"\begin{pmatrix} 1",
    r"\end{pmatrix}",
    r"\text{a_b}",
    "λ",
    r"{\left( x} \right)",
    "x^{1}'",
]
BROKEN += [
    r"\begin{gathered} a & b \end{gathered}",
    r"\begin{gathered} a \end{aligned}",
]
# LaTeX reads these in another way than one would think, or some renderers refuse them
DOUBTFUL = ["50%", r"\text{50%}", r"a \\ b", r"\text a", r"\text{…}"]


@pytest.mark.parametrize("broken", BROKEN + DOUBTFUL)
def test_parser_rejects_invalid_latex(broken):
    with pytest.raises(tex.TexError):
        tex.parse(broken)


@pytest.mark.slow
@needs_latex
@pytest.mark.parametrize("broken", BROKEN)
def test_latex_rejects_what_parser_rejects(broken):
    assert tex.compile_all([tex.Formula("broken", broken, True)]) is not None


def test_formulas_are_found_as_mkdocs_finds_them():
    page = "Costs \\$5 or 5$.\n`$a$` and $b_1$\n```text\n$c$\n```\n$$\nd\n$$\n"
    assert [
        (f.where, f.tex.strip(), f.displayed) for f in tex.formulas_of(page, "p")
    ] == [
        ("p:2", "b_1", False),
        ("p:6", "d", True),
    ]


# What formulas say


def test_latex_defines_selections():
    """Two cyclic shifts are two selections, each written out."""
    for style in ("full", "paper"):
        written = ns.Program(cycles()).latex(style=style)
        assert r"(\pi_{1}(i))_{i} = (2, 3, 4, 1)" in written
        assert r"(\pi_{2}(i))_{i} = (4, 1, 2, 3)" in written
        assert not re.search(r"\\pi\(", written)
    x = ns.gaussian(n, 4)
    same = ns.Program(ns.tanh(x[[1, 0, 2, 3]]) + x[[1, 0, 2, 3]]).latex()
    assert same.count(r"(i))_{i} =") == 2
    assert r"\pi_{2}" not in same
    assert (
        r"(\pi_{1}(i,j))_{i,j} = ((2,2), (1,1), (2,1), (1,2))"
        in ns.Program(table()).latex()
    )


def test_latex_of_law_defines_boxed_symbols():
    law = ns.Program(ns.weight(n, n) @ ns.tanh(ns.weight(n, n) @ ns.gaussian(n))).law(
        n=ns.inf
    )
    lines = law.latex().splitlines()
    boxed = lines.index(next(line for line in lines if r"\boxed" in line))
    assert any(line.startswith(r"g^{(2)} = W^{(2)} x") for line in lines[:boxed])
    assert any(r"converge to } Z^{v}" in line for line in lines[:boxed])


@pytest.mark.parametrize("name", PROGRAMS)
def test_laws_of_normal_variables_are_formulas(name):
    net = PROGRAMS[name]()
    for written in (net.latex(), net.latex(style="paper"), net._repr_latex_()):
        assert not re.search(r"\\text{[^}]*N\(", written)


def test_latex_writes_out_small_covariances():
    written = ns.Program(covariances()).latex()
    assert r"\begin{pmatrix} 1 & 0.5 \\ 0.5 & 2 \end{pmatrix}" in written
    assert r"\Sigma) \text{ with a given } \Sigma" in written
    assert r"\mu = (1, 2)" in written
