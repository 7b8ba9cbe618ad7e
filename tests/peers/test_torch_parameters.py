"""What `ns.torch.parameters` says of parameters whose law is known."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import netsor as ns
from tests.internals import _fresh_modules, law_of_entries

from .own_modules import Initialised, Scaled

LAWS = {
    "normal.weight": ("normal", 0.02),
    "uniform.weight": ("uniform", 1 / math.sqrt(3 * 64)),
    # of a standard normal between −2 and 2
    "truncated.weight": ("truncated normal", 0.02 * stats.truncnorm.std(-2, 2)),
    "copy.weight": ("copy", 0.02),
    "zero.weight": ("constant", 0.0),
    "table.weight": ("normal", 1.0),
    "shifted": ("normal", 0.3),
    "fixed": ("fixed", 0.0),
}


# with all numbers, and with samples of large parameters
@pytest.mark.parametrize("large", [2**20, 1000])
def test_laws_are_read_from_the_initialisation(large, monkeypatch):
    monkeypatch.setattr(_fresh_modules, "LARGE", large)
    state = torch.random.get_rng_state()
    found = ns.torch.parameters(Initialised)
    assert torch.equal(state, torch.random.get_rng_state())
    for name, (law, std) in LAWS.items():
        assert found[name].law == law, (name, found[name])
        assert abs(found[name].std - std) <= 5 * found[name].std_error + 1e-12, (
            name,
            found[name],
        )
        # torch drew them with this standard deviation
        assert found[name].std_error == 0, name
    assert (found["orthogonal.weight"].law, found["rows.weight"].law) == (
        "orthogonal",
        "unknown",
    )
    assert found["copy.weight"].of == "normal.weight"
    assert found["table.weight"].zero_rows == (3,)
    assert abs(found["shifted"].mean - 1) < 0.05
    assert found["table.weight"].fan_in is None
    assert found["normal.weight"].fan_in == 64
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found)
    assert found["truncated.weight"].mean == 0
    assert any("truncated normal" in line for line in lines)


class Decays(torch.nn.Module):
    """Logarithms of U(0, 16), as gated delta rules begin with, and Gumbel numbers."""

    def __init__(self):
        super().__init__()
        self.A_log = torch.nn.Parameter(torch.log(torch.empty(8).uniform_(0, 16)))
        self.noise = torch.nn.Parameter(-torch.log(-torch.log(torch.rand(8))))


def test_functions_of_uniform_numbers_with_a_pole_at_an_end_keep_their_law():
    """From their few samples they were taken for normal numbers, or for unknown."""
    laws = ns.torch.parameters(Decays)
    assert laws["A_log"].law == laws["noise"].law == "i.i.d."
    assert laws["A_log"].std_error == laws["noise"].std_error == 0.0
    assert laws["A_log"].mean == pytest.approx(math.log(16) - 1)
    assert laws["A_log"].std == pytest.approx(1.0)
    assert laws["noise"].mean == pytest.approx(np.euler_gamma)
    assert laws["noise"].std == pytest.approx(math.pi / math.sqrt(6))


def test_declared_laws_take_the_place_of_samples():
    found = ns.torch.parameters(
        Initialised, declared={"orthogonal.*": 0.1, "normal.weight": 0.5}
    )
    assert (found["orthogonal.weight"].law, found["orthogonal.weight"].std) == (
        "normal",
        0.1,
    )
    assert found["normal.weight"].std == 0.5
    with pytest.raises(ValueError, match=r"declared='nothing\.\*' names no parameter"):
        ns.torch.parameters(Initialised, declared={"nothing.*": 1.0})


def test_parameters_initialises_a_module_again():
    module = torch.nn.Linear(64, 96)
    before = module.weight.detach().clone()
    found = ns.torch.parameters(module)
    assert torch.equal(module.weight, before)
    assert found["weight"].law == "uniform"


def test_module_with_another_constructor_initialisation_needs_a_factory():
    assert (
        abs(ns.torch.parameters(Scaled)["attention.o.weight"].std - 0.02 / math.sqrt(8))
        < 2e-4
    )
    with pytest.raises(
        ValueError,
        match=r"attention\.o\.weight has .*; pass a function that makes the module",
    ):
        ns.torch.parameters(Scaled())


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_parameters_of_a_module_made_with_any_seed(seed):
    """Also with the seeds that draw it again: then its numbers would be the same."""
    torch.manual_seed(seed)
    module = torch.nn.Linear(5, 8)
    found = ns.torch.parameters(module, seed=0)
    assert (found["weight"].law, found["bias"].law) == ("uniform", "uniform")


class Small(torch.nn.Module):
    """Few entries, which the constructor makes larger than the layer itself does."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 8)
        torch.nn.init.normal_(self.layer.weight, std=0.6)

    def forward(self, x):
        return self.layer(x)


def test_small_module_with_another_constructor_initialisation_needs_a_factory():
    assert ns.torch.parameters(Small)["layer.weight"].law == "normal"
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(ValueError, match="pass a function that makes the module"):
            ns.torch.parameters(Small())


def test_large_parameter_takes_no_memory():
    def build():
        module = torch.nn.Linear(2**20, 2**20, bias=False)  # four terabytes
        torch.nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        return module

    found = ns.torch.parameters(build)["weight"]
    assert found.shape == (2**20, 2**20)
    assert (found.law, found.fan_in) == ("truncated normal", 2**20)


def test_module_on_the_meta_device_has_the_laws_of_a_real_one():
    config = transformers.BertConfig(
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=96,
        vocab_size=50,
        pad_token_id=3,
    )
    with torch.device("meta"):
        empty = transformers.BertForMaskedLM(config)
    found, real = (
        ns.torch.parameters(each)
        for each in (empty, lambda: transformers.BertForMaskedLM(config))
    )
    for name, law in real.items():
        assert (found[name].law, found[name].zero_rows) == (
            law.law,
            law.zero_rows,
        ), name
        assert abs(found[name].std - law.std) <= 6 * law.std_error, name
    ids = torch.tensor([[3, 7, 7]])
    assert ns.torch.program(empty, ids, laws=real).shape == (1, 3, 50)


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import netsor; netsor.torch"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: ns.torch needs PyTorch: pip install torch" in made.stderr


def test_every_public_name_has_a_page_and_an_example():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for name in ns.torch.__all__:
        assert f"::: netsor.torch.{name}\n" in page
        assert ">>>" in getattr(ns.torch, name).__doc__


def test_module_with_uniform_weights_has_the_same_limit():
    """Its law at finite width is that of Gaussian weights of the same variance, and
    does not claim to be exact.
    """

    def uniform():
        return torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)
        )

    def gaussian():
        made = uniform()
        for each in made.parameters():
            torch.nn.init.normal_(each, std=0.3)
        return made

    x = torch.ones(2, 8)
    found = [
        ns.torch.program(build, x)[0].law(draws=10).status
        for build in (uniform, gaussian)
    ]
    assert found == ["same limit", "exact"]


class Pair(torch.nn.Module):
    """Two matrices, 8 by 8, after `change` has been applied to both."""

    def __init__(self, change=None):
        super().__init__()
        self.a, self.b = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
        with torch.no_grad():
            for part in (self.a, self.b):
                part.weight.normal_(std=8**-0.5)
            if change is not None:
                change(self.a.weight, self.b.weight)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def _turn(a, b):
    return b.copy_(a.T)


def _same_law(build, laws, args, draws=2000):
    """The p-value of the first coordinate of a module's own initialisations among draws
    of its law.
    """
    ours = (
        ns.torch.program(build, args, laws=laws)
        .draw(draws=draws, seed=1)
        .reshape(draws, -1)[:, 0]
    )
    torch.manual_seed(1)
    with torch.no_grad():
        real = [float(build()(*args).reshape(-1)[0]) for _ in range(draws)]
    return stats.ks_2samp(ours, real).pvalue


def test_transposed_copy_is_one_matrix():
    found = ns.torch.parameters(lambda: Pair(_turn))
    assert (
        found["b.weight"].law,
        found["b.weight"].of,
        found["b.weight"].transposed,
    ) == ("copy", "a.weight", True)
    assert "transpose of a.weight" in str(found)
    x = (torch.linspace(-1, 2, 8)[None],)
    assert _same_law(lambda: Pair(_turn), found, x) > 1e-4
    declared = ns.torch.parameters(lambda: Pair(_turn), declared={"*": 8**-0.5})
    assert declared["b.weight"].transposed  # a number is a standard deviation
    apart = ns.torch.parameters(
        lambda: Pair(_turn), declared={"b.weight": found["a.weight"]}
    )
    assert _same_law(lambda: Pair(_turn), apart, x) < 1e-4


@pytest.mark.parametrize(
    ("change", "name", "note"),
    [
        (
            lambda a, b: b.copy_(-a),
            "b.weight",
            r"its numbers are those of a\.weight in another order or times a factor",
        ),
        (
            lambda a, b: b.copy_(2 * a),
            "b.weight",
            r"its numbers are those of a\.weight in another order or times a factor",
        ),
        (
            lambda a, b: b.copy_(a.flip(0)),
            "b.weight",
            r"its numbers are those of a\.weight in another order or times a factor",
        ),
        (lambda a, b: b.add_(a), "b.weight", r"its correlation with a\.weight is 0\."),
        (
            lambda a, b: a.add_(a.T.clone()),
            "a.weight",
            "its correlation with its transpose is 0",
        ),
        (
            lambda a, b: a.sub_(a.T.clone()),
            "a.weight",
            "its correlation with its transpose is -",
        ),
        (lambda a, b: a.sub_(a.mean(1, keepdim=True)), "a.weight", "sums of rows are"),
        (lambda a, b: a.fill_diagonal_(0), "a.weight", "the diagonal has another size"),
        (
            lambda a, b: torch.nn.init.sparse_(a, 0.25, std=0.5),
            "a.weight",
            "excess kurtosis",
        ),
    ],
)
def test_parameters_that_are_not_independent_are_refused(change, name, note):
    with pytest.raises(ns.torch.UnsupportedError, match=rf"{name} is unknown \({note}"):
        ns.torch.program(lambda: Pair(change), torch.ones(1, 8))


def test_standard_deviations_are_those_of_the_code():
    found = ns.torch.parameters(lambda: Pair(lambda a, b: b.mul_(3).div_(2)))
    assert [(p.law, p.std, p.std_error) for p in found.values()] == [
        ("normal", 8**-0.5, 0),
        ("normal", 1.5 * 8**-0.5, 0),
    ]
    assert ns.torch.program(Pair, torch.ones(1, 8)).law(draws=10).status == "exact"

    def measured():
        # a sum, whose law the samples show
        return Pair(lambda a, b: a.add_(torch.randn(8, 8)))

    found = ns.torch.parameters(measured)
    assert (found["a.weight"].law, found.samples) == ("normal", 512)
    assert 0 < found["a.weight"].std_error < 0.005 * found["a.weight"].std
    assert (
        ns.torch.program(measured, torch.ones(1, 8)).law(draws=10).status
        == "same limit"
    )
    for size in (1, 2, 3):
        assert (
            ns.torch.parameters(lambda size=size: torch.nn.Linear(size, 4))[
                "weight"
            ].law
            == "uniform"
        )


def test_step_sizes_with_a_least_one_need_few_initialisations():
    def change(a, b):  # Kimi Linear's biases
        a.uniform_(math.log(1e-3), math.log(1e-1))
        steps = a.exp().clamp_min(1e-4)
        a.copy_(steps + torch.log(-torch.expm1(-steps)))

    laws = ns.torch.parameters(lambda: Pair(change))
    assert laws.samples == 8
    assert laws["a.weight"].std_error == 0
    assert laws["a.weight"].entries is not None


def _from_numpy(a, b):
    # its storage is free again, and the next tensor may have the same address
    torch.randn(8, 8)
    a.copy_(
        torch.from_numpy(
            np.random.default_rng().normal(0, 0.4, (8, 8)).astype("float32")
        )
    )


@pytest.mark.parametrize(
    "change", [_from_numpy, lambda a, b: torch._foreach_mul_([a], 0.4 * 8**0.5)]
)
def test_numbers_that_torch_did_not_draw_are_measured(change):
    found = ns.torch.parameters(lambda: Pair(change))["a.weight"]
    assert found.law == "normal"
    assert 0 < found.std_error < 0.005
    assert abs(found.std - 0.4) < 5 * found.std_error


def test_functions_with_keyword_arguments_are_measured():
    def change(a, b):
        a.normal_().copy_((0.01 * a).add(a, alpha=-1))  # −0.99 a
        b.normal_().div_(0.1, rounding_mode="floor")

    laws = ns.torch.parameters(lambda: Pair(change))
    difference = laws["a.weight"]
    assert 0 < difference.std_error < 0.005
    assert abs(difference.std - 0.99) < 5 * difference.std_error
    assert laws["b.weight"].std_error > 0


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_negative_number_is_another_function_of_its_draw(sign):
    """−z and z have one law, but z³ − z is no sum."""

    class Cubic(torch.nn.Module):
        def __init__(self):
            super().__init__()
            z = torch.randn(5000)
            self.size = torch.nn.Parameter(z**3 + z if sign > 0 else z**3 - z)

    law = ns.torch.parameters(Cubic)["size"]
    std = math.sqrt(15 + sign * 6 + 1)
    assert abs(law.std - std) <= max(4 * law.std_error, 1e-9 * std)
    assert (law.std_error == 0) == (sign > 0)


@pytest.mark.parametrize("where", [[(k, k) for k in range(8)], [(0, slice(4))]])
def test_entries_that_are_always_zero_are_refused(where):
    def holes(a, b):
        for each in where:
            a[each] = 0

    with pytest.raises(
        ns.torch.UnsupportedError,
        match=r"a\.weight is unknown \(some of its entries are always 0\)",
    ):
        ns.torch.program(lambda: Pair(holes), torch.ones(1, 8))


def test_dependent_entries_of_convolutions_are_found():
    def build(initialise):
        module = torch.nn.Conv2d(3, 8, 4, bias=False)
        initialise(module.weight.detach())
        return module

    equal = ns.torch.parameters(
        lambda: build(lambda w: w.copy_(torch.randn(1, 3, 4, 4).expand(8, -1, -1, -1)))
    )
    assert equal["weight"].law == "unknown"
    assert (
        ns.torch.parameters(lambda: build(torch.nn.init.orthogonal_))["weight"].law
        == "orthogonal"
    )
    assert (
        ns.torch.parameters(lambda: build(torch.nn.init.kaiming_normal_))["weight"].law
        == "normal"
    )


class Fourier(torch.nn.Module):
    def __init__(self, registered=True):
        super().__init__()
        self.map = torch.nn.Linear(8, 8, bias=False)
        torch.nn.init.normal_(self.map.weight, std=0.5)
        if registered:
            self.register_buffer("frequencies", torch.randn(3, 8))
        else:
            self.frequencies = torch.randn(3, 8)

    def forward(self, x):
        return self.map(torch.cos(x @ self.frequencies))


@pytest.mark.parametrize("registered", [True, False])
def test_random_buffer_is_a_parameter(registered):
    found = ns.torch.parameters(lambda: Fourier(registered))
    assert (found["frequencies"].law, found["frequencies"].std) == ("normal", 1.0)
    assert (
        _same_law(
            lambda: Fourier(registered), found, (torch.tensor([[0.3, -1.0, 0.5]]),)
        )
        > 1e-4
    )


class Forward(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.map, self.function = torch.nn.Linear(8, 8), function

    def forward(self, x):
        return self.function(self.map(x)) + self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: x + torch.randn_like(x),
            r"aten\.randn_like\.default in the module itself: random numbers",
        ),
        (
            lambda x: torch.nn.functional.dropout(x, 0.5),
            r"aten\.dropout\.default in the module itself: random numbers",
        ),
        (
            lambda x: torch.nn.functional.scaled_dot_product_attention(
                x, x, x, dropout_p=0.1
            ),
            "dropout_p=0.1",
        ),
    ],
)
def test_random_numbers_in_forward_are_refused(function, message):
    with pytest.raises(ns.torch.UnsupportedError, match=message):
        ns.torch.program(lambda: Forward(function), torch.ones(1, 2, 8))


def test_two_rows_of_independent_entries_are_not_orthogonal():
    rng = np.random.default_rng(0)
    for _ in range(300):
        samples = [rng.normal(size=(2, 64)) for _ in range(8)]
        assert law_of_entries("weight", (2, 64), samples).law == "normal"
    rows = [np.linalg.qr(rng.normal(size=(64, 2)))[0].T for _ in range(8)]
    assert law_of_entries("weight", (2, 64), rows).law == "orthogonal"


@pytest.mark.parametrize("high", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 3.0])
def test_small_means_of_asymmetric_cuts_are_exact(high):
    """Means between 0 and 12 standard errors of the samples."""

    def build():
        table = torch.nn.Embedding(12, 8)
        torch.nn.init.trunc_normal_(table.weight, a=-1.0, b=high)
        return table

    found = ns.torch.parameters(build)["weight"]
    law = stats.truncnorm(-1.0, high)
    assert found.std_error == 0
    assert found.mean == pytest.approx(law.mean(), abs=1e-12)
    assert found.std == pytest.approx(law.std())
