"""What `ns.torch.parameters` says of parameters whose law is known."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import netsor as ns
from netsor.torch import _fresh_modules

from .own_modules import Initialised, Scaled

LAWS = {
    "normal.weight": ("normal", 0.02),
    "uniform.weight": ("uniform", 1 / math.sqrt(3 * 64)),
    "truncated.weight": ("truncated normal", 0.02 * 0.8796),  # of a standard normal between −2 and 2
    "copy.weight": ("copy", 0.02),
    "zero.weight": ("constant", 0.0),
    "table.weight": ("normal", 1.0),
    "shifted": ("normal", 0.3),
    "fixed": ("fixed", 0.0),
}


@pytest.mark.parametrize("large", [2**20, 1000])  # with all numbers, and with samples of large parameters
def test_laws_are_read_from_the_initialisation(large, monkeypatch):
    monkeypatch.setattr(_fresh_modules, "LARGE", large)
    state = torch.random.get_rng_state()
    found = ns.torch.parameters(Initialised)
    assert torch.equal(state, torch.random.get_rng_state())
    for name, (law, std) in LAWS.items():
        assert found[name].law == law, (name, found[name])
        assert abs(found[name].std - std) <= 5 * found[name].std_error, (name, found[name])
        assert found[name].std_error < 0.01
    assert (found["orthogonal.weight"].law, found["rows.weight"].law) == ("orthogonal", "unknown")
    assert found["copy.weight"].of == "normal.weight"
    assert found["table.weight"].zero_rows == (3,)
    assert abs(found["shifted"].mean - 1) < 0.05
    assert found["table.weight"].fan_in is None
    assert found["normal.weight"].fan_in == 64
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found)
    assert any("truncated normal, as normal" in line and "±" in line for line in lines)


def test_declared_laws_take_the_place_of_samples():
    found = ns.torch.parameters(Initialised, declared={"orthogonal.*": 0.1, "normal.weight": 0.5})
    assert (found["orthogonal.weight"].law, found["orthogonal.weight"].std) == ("normal", 0.1)
    assert found["normal.weight"].std == 0.5
    with pytest.raises(ValueError, match=r"declared='nothing\.\*' names no parameter"):
        ns.torch.parameters(Initialised, declared={"nothing.*": 1.0})


def test_a_module_is_initialised_anew():
    module = torch.nn.Linear(64, 96)
    before = module.weight.detach().clone()
    found = ns.torch.parameters(module)
    assert torch.equal(module.weight, before)
    assert found["weight"].law == "uniform"


def test_a_module_that_its_methods_do_not_initialise_as_its_constructor_did_needs_a_factory():
    assert abs(ns.torch.parameters(Scaled)["attention.o.weight"].std - 0.02 / math.sqrt(8)) < 2e-4
    with pytest.raises(ValueError, match=r"attention\.o\.weight has .*: pass a function that makes the module"):
        ns.torch.parameters(Scaled())


def test_a_large_parameter_takes_no_memory():
    def build():
        module = torch.nn.Linear(2**20, 2**20, bias=False)  # four terabytes
        torch.nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        return module

    found = ns.torch.parameters(build)["weight"]
    assert found.shape == (2**20, 2**20)
    assert (found.law, found.fan_in) == ("truncated normal", 2**20)


def test_a_module_on_the_meta_device_has_the_laws_of_a_real_one():
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, vocab_size=50, pad_token_id=3
    )
    with torch.device("meta"):
        empty = transformers.BertForMaskedLM(config)
    found, real = (ns.torch.parameters(each) for each in (empty, lambda: transformers.BertForMaskedLM(config)))
    for name, law in real.items():
        assert (found[name].law, found[name].zero_rows) == (law.law, law.zero_rows), name
        assert abs(found[name].std - law.std) <= 6 * law.std_error, name
    ids = torch.tensor([[3, 7, 7]])
    assert ns.torch.program(empty, ids, laws=real).shape == (1, 3, 50)


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import netsor; netsor.torch"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: ns.torch needs PyTorch: pip install torch" in made.stderr


def test_every_name_has_a_page_and_an_example():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for name in ns.torch.__all__:
        assert f"::: netsor.torch.{name}\n" in page
        assert ">>>" in getattr(ns.torch, name).__doc__


def test_a_module_with_uniform_weights_has_the_same_limit():
    """Its law at finite width is that of Gaussian weights of the same variance, and does not claim to be exact."""

    def uniform():
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))

    def gaussian():
        made = uniform()
        for each in made.parameters():
            torch.nn.init.normal_(each, std=0.3)
        return made

    x = torch.ones(2, 8)
    found = [ns.torch.program(build, x)[0].law(draws=10).status for build in (uniform, gaussian)]
    assert found == ["same limit", "exact"]
