"""The printer and LaTeX."""

import re
import shutil
import subprocess

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

from ..keep import keep

n = ns.Width("n")


def test_text_of_the_papers_layer():
    lines = str(attention_layer.net()).splitlines()
    assert lines[0] == "program net(tokens=4, heads=2), widths n"
    words = [" ".join(line.split()) for line in lines[1:]]
    assert words == [
        "h1 = N(0, 1) initial 1 in R^n",
        "W_1 4 matrices n×n, entries N(0, 1/n)",
        "g1 = W_1 h1 MatMul 4 in R^n",
        "x1 = clip(g1, 100) Nonlin 4 in R^n",
        "W^Q 2 matrices n×n, entries N(0, 1/n)",
        "g2 = W^Q x1 MatMul 2×4 in R^n",
        "W^K 2 matrices n×n, entries N(0, 1/n)",
        "g3 = W^K x1 MatMul 2×4 in R^n",
        "p1 = n^(-1/2) <g2, g3> dot 2×4×4",
        "a1 = softmax(p1) function of scalars 2×4×4",
        "W^V 2 matrices n×n, entries N(0, 1/n)",
        "g4 = W^V x1 MatMul 2×4 in R^n",
        "u1 = a1 @ g4 combination 2×4 in R^n",
        "u2 = concat(u1, axis=0) concatenation 4 in R^2n",
        "W^O matrix n×2n, entries N(0, 1/(2n))",
        "g5 = W^O u2 MatMul 4 in R^n",
        "return g5",
    ]


def everything():
    """A program with every operation in it."""
    x, y = (
        ns.gaussian(n, (2, 3), mean=1.0),
        ns.gaussian(n, 3, mean=[1.0, 2.0, 3.0], cov=np.eye(3) + 1),
    )
    w = ns.weight(n, n, 2, std=1e-7, name="odd_name & 100%")
    p = ns.dot(w.each(x), ns.weight(n, n, 2).each(x))
    a = ns.softmax(p, "causal") @ p + 2 * p - ns.apply(np.exp, p)
    h = ns.nonlin(lambda u, v, s: u + v * s, x, y, p[:, 0]) * x + ns.layer_norm(y) + 0.5
    z = a @ ns.join([h[:, :1], x[:, [2, 0]]], axis=1) + ns.stack([y, y]) / 3
    data = ns.weight(n, 2) @ ns.data(np.eye(2))
    r = ns.rotary(ns.weight(n, n) @ y, [0, 2, 5], fraction=0.5) + 0.5 * ns.rotary(
        ns.weight(n, n) @ y
    )
    t = (
        ns.dot(ns.rotary(ns.weight(n, n) @ y), ns.rotary(ns.weight(n, n) @ y))
        + ns.normal((3, 3), std=1e-3)
        + ns.dot(r, y)
    )
    z = ns.softmax(t) @ z
    return (
        ns.concat(z, axis=0),
        ns.mean_dot(data, w[0] @ z[0]),
        p.sum(),
        ns.ones(n) * np.arange(1.0, 3.0),
    )


NETS = {
    "layer": attention_layer.net,
    "one token": lambda: attention_layer.net()[0],
    "causal": causal_attention.net,
    "cross": cross_attention.net,
    "perceptron": perceptron.net,
    "recurrent": recurrent.net,
    "block": residual_block.net,
    "tied": lambda: ns.Program(ns.dot(*[ns.weight(n, n) @ ns.gaussian(n)] * 2)),
    "everything": lambda: ns.Program(everything()),
    "long name": lambda: ns.Program(
        ns.weight(ns.Width("d_model"), 4) @ ns.gaussian(4), name="a_b & 50%"
    ),
}


def test_every_operation_prints():
    text = str(NETS["everything"]())
    for part in (
        "N(1, 1)",
        "N(mean, cov)",
        "odd_name & 100%.each(h",
        "masked_softmax",
        "join(",
        "given vectors",
        "rotary(",
        "N(0, 1e-06)",
    ):
        assert part in text


def test_function_of_the_users_is_printed_as_a_function():
    """Whatever its name is: only the library's own product is a product."""

    def multiply(u, v):
        return u + v

    x = ns.gaussian(n, 2)
    own = ns.Program(
        (ns.nonlin(multiply, x, x), ns.apply(multiply, ns.mean_dot(x, x), 2.0))
    )
    assert "multiply(h1, h1)" in str(own)
    assert "multiply(m1, 2)" in str(own)
    assert own.latex().count(r"\operatorname{multiply}") == 4
    assert "h1 · h1" in str(ns.Program(x * x))


@pytest.mark.parametrize("style", ["full", "paper"])
@pytest.mark.parametrize("name", NETS)
def test_latex_is_balanced(name, style):
    text = NETS[name]().latex(style=style)
    assert text.isascii()
    assert text.count("{") == text.count("}")
    for environment in ("document", "gather*"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(
            rf"\end{{{environment}}}"
        )
    assert r"\documentclass" not in NETS[name]().latex(document=False, style=style)


def compiled(text, folder):
    """What pdflatex says of a document."""
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex, which pip cannot install")
    (folder / "net.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "net.tex"]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:]
    return result.stdout


@pytest.mark.parametrize("style", ["full", "paper"])
@pytest.mark.parametrize("name", keep(NETS, "everything"))
def test_latex_compiles(name, style, tmp_path):
    compiled(NETS[name]().latex(style=style), tmp_path)


@pytest.mark.parametrize("style", ["full", "paper"])
def test_papers_layer_fits_a_page(style, tmp_path):
    assert "Overfull" not in compiled(ns.paper.layer().latex(style=style), tmp_path)


def test_latex_names_the_matrices_of_a_batch():
    """Products with different matrices of a batch are independent."""
    W = ns.weight(n, n, batch=2)
    u, v = ns.gaussian(n), ns.gaussian(n)
    net = ns.Program((W[0] @ u, W[1] @ v, ns.tanh(W[[1, 0]] @ v)))
    text = net.latex()
    assert "g^{(1)} = W^{(1)}_{1} h^{(1)}" in text
    assert "g^{(2)} = W^{(1)}_{2} h^{(2)}" in text
    assert r"g^{(3)}_{i} = W^{(1)}_{\pi_{1}(i)} h^{(2)}" in text
    assert r"(\pi_{1}(i))_{i} = (2, 1)" in text
    assert r"\operatorname{Cov}(Z^{g^{(1)}}, Z^{g^{(2)}})" not in text
    same_matrix = r"\mathbf 1_{W^{(1)}_{2} = W^{(1)}_{\pi_{1}(i')}}"
    assert (
        rf"\operatorname{{Cov}}(Z^{{g^{{(2)}}}}, Z^{{g^{{(3)}}_{{i'}}}}) = {same_matrix}"
        in text
    )


def test_latex_of_the_score_of_two_matrices_of_a_batch():
    """E[Z^q Z^k] = 0, so Wick's formula has one term."""
    W = ns.weight(n, n, batch=2)
    u, v = ns.gaussian(n), ns.gaussian(n)
    text = ns.Program(ns.dot(W[0] @ u, W[1] @ v)).latex(style="paper")
    squares = (
        r"\mathbb{E}[Z^{h^{(1)}} Z^{h^{(1)}}] \, \mathbb{E}[Z^{h^{(2)}} Z^{h^{(2)}}]"
    )
    assert (
        rf"\operatorname{{Cov}}(\mathring{{p}}, \mathring{{p}}) = {squares} \\" in text
    )


@pytest.mark.parametrize(
    ("style", "same_matrix"),
    [
        ("full", r"\mathbf 1_{W^{(1)}_{i} = W^{(1)}_{i'}} \,"),
        ("paper", r"\delta_{i i'}"),
    ],
)
def test_latex_of_a_batch_that_acts_both_ways(style, same_matrix):
    """Z^{W_b x} gets a term of W_b^T u only, and none of another matrix."""
    W = ns.weight(n, n, batch=2)
    g = W.T @ ns.gaussian(n)
    text = ns.Program(W @ ns.tanh(g[0] + g[1])).latex(style=style)
    assert rf"\sum_{{i'}} {same_matrix} \mathbb{{E}}\left[\frac{{\partial" in text
    g = W[0].T @ ns.gaussian(n)
    text = ns.Program(W[1] @ ns.tanh(g)).latex(style=style)
    assert r"\partial" not in text


def test_latex_states_the_limit_law():
    text = attention_layer.net().latex()
    scores = (
        r"\operatorname{Cov}(\mathring{p}^{(1)}_{i,j,k},"
        r" \mathring{p}^{(1)}_{i',j',k'}) = "
        r"\mathbb{E}[Z^{g^{(2)}_{i,j}} Z^{g^{(2)}_{i',j'}}] \,"
        r" \mathbb{E}[Z^{g^{(3)}_{i,k}} Z^{g^{(3)}_{i',k'}}]"
    )
    assert scores in text
    assert "(proved, Theorem 3.1.)" in text
    assert "The limit does not exist" in NETS["tied"]().latex()
    assert "(conjectured.)" in residual_block.net().latex()


def test_latex_of_rotary_scores():
    """Their covariance is no product of those of the factors: it is left as an
    expectation.
    """
    x = ns.tanh(ns.gaussian(n, 3))
    q, k = (ns.rotary(ns.weight(n, n) @ x) for _ in range(2))
    text = ns.Program(ns.dot(q, k)).latex()
    pairs = (
        r"\langle u^{(1)}_{i}, u^{(2)}_{j} \rangle \langle u^{(1)}_{i'}, u^{(2)}_{j'}"
        r" \rangle"
    )
    assert rf"= \lim n^{{-1}} \, \mathbb{{E}}[{pairs}]" in text


def test_matrix_used_twice_has_its_covariance_printed():
    text = recurrent.net(steps=3).latex()
    assert (
        r"\operatorname{Cov}(Z^{g^{(2)}}, Z^{g^{(3)}}) = 0.81 \, \mathbb{E}[Z^{x^{(1)}}"
        r" Z^{x^{(2)}}]" in text
    )


def boxed(net):
    """What the box at the end of the paper's style says."""
    (found,) = re.findall(
        r"\\boxed\{\\begin\{gathered\} (.*) \\end\{gathered\}\}",
        net.latex(style="paper"),
    )
    return found


def test_papers_law_is_boxed():
    """Z^y is Gaussian given the scores, with covariance (1/H) Σ_a A^a K A^aT: equations
    (3) and (4) of the theory.
    """
    assert boxed(attention_layer.net()) == (
        r"Z^{g^{(5)}_{i}} \text{ given } \mathring p \text{ Gaussian, mean 0} \\ "
        r"\operatorname{Cov}(Z^{g^{(5)}_{i}}, Z^{g^{(5)}_{i'}} \mid \mathring p) = "
        r"\frac{1}{2} \sum_{j,k,l} \mathring{a}_{j,i,k} \mathring{a}_{j,i',l}"
        r" \mathbb{E}[Z^{x_{k}} Z^{x_{l}}]"
    )
    scores = (
        r"\operatorname{Cov}(\mathring{p}_{i,j,k}, \mathring{p}_{i',j',k'}) = "
        r"\delta_{i i'} \mathbb{E}[Z^{x_{j}} Z^{x_{j'}}] \, \mathbb{E}[Z^{x_{k}}"
        r" Z^{x_{k'}}]"
    )
    text = attention_layer.net().latex(style="paper")
    assert scores in text
    assert "Z^{g^{(4)}" not in text  # what the law does not need is not spoken of


def test_axes_of_one_entry_have_no_index():
    one = attention_layer.net()[0]
    for style in ("full", "paper"):
        text = one.latex(style=style)
        assert r"p^{(1)}_{i,j}" in text if style == "full" else r"p_{i,j}" in text
        assert r"_{1,i}" not in text.replace(r"u^{(1)}_{1,i}", "")
    assert boxed(one).endswith(
        r"\frac{1}{2} \sum_{i,j,k} \mathring{a}_{i,j} \mathring{a}_{i,k}"
        r" \mathbb{E}[Z^{x_{j}} Z^{x_{k}}]"
    )
    assert r"\operatorname{Var}(" in boxed(one)


def test_factors_that_occur_twice_stay():
    """c (W x) has c² in its covariance; signs stay with their numbers."""
    x = ns.tanh(ns.gaussian(n))
    text = ns.Program(ns.weight(n, n) @ (-0.5 * x)).latex(style="paper")
    assert r"= (-0.5) (-0.5) \mathbb{E}[Z^{x} Z^{x}]" in text
    s = ns.normal(())
    text = boxed(ns.Program(ns.weight(n, n, std=2.0) @ (s * x)))
    assert r"\mid \text{scalars}) = 4 \, " in text
    assert text.count(r"\mathring{z}") == 2


def test_names_are_kept():
    x = ns.gaussian(n)
    text = ns.Program(
        ns.weight(n, n, name="V_out") @ (ns.weight(n, n, name="my matrix") @ x)
    ).latex()
    assert r"V^{\mathrm{out}} \in" in text
    assert r"\mathrm{my\ matrix} \in" in text


def test_unknown_latex_style_is_rejected():
    with pytest.raises(ValueError, match="style='short' must be 'full' or 'paper'"):
        attention_layer.net().latex(style="short")


def test_entry_law_divides_by_the_whole_width():
    """N(0, 1/(2n)), which without parentheses could be read as 1/2 · n."""
    matrix = ns.weight(n, 2 * n, std=3.0)
    heads = ns.concat(ns.gaussian(n, (2, 4)))
    net = ns.Program(matrix @ heads)
    assert "entries N(0, 9/(2n))" in str(net)
    assert r"\mathcal N(0, 9/(2n))" in net.latex()
    assert r"\mathcal N(0, 9/(2n))" in net.latex(style="paper")
    score = ns.Program(ns.dot(heads, heads))
    assert "(2n)^(-1/2) <u1, u1>" in str(score)
    assert r"(2n)^{-1/2} \langle" in score.latex()
    small = ns.Program(ns.weight(n, 64) @ ns.gaussian(64))
    assert "entries N(0, 1/64)" in str(small)
    assert r"\mathcal N(0, 1/64)" in small.latex()
