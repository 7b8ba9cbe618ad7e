"""Learning-rate sweeps of modules, files of derived rules, and their commands.

Losses of a sweep are those of an independent loop in plain PyTorch, with the numbers of
the written file, of its TOML, and of the rule itself.
"""

from __future__ import annotations

import json
import math
import tomllib
import types
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import netsor as ns

from ..command import netsor

WORDS, BASE = 32, 32
WIDTHS = [32, 64]
RATES = [0.005, 0.01, 0.02]
STEPS, DRAWS, SEED = 3, 4, 5
MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, n, depth=1):
        super().__init__()
        self.embed = nn.Embedding(32, n)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(n), nn.Linear(n, n), nn.GELU(),
                          nn.Linear(n, n, bias=False))
            for _ in range(depth)
        )
        self.norm, self.head = nn.RMSNorm(n), nn.Linear(n, 32, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def build(n):
    return Net(n)


def deep(n, depth):
    return Net(n, depth)


def own(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def own_adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=0.1)


ids = torch.arange(1, 9).reshape(2, 4)
batch = ids, ids + 1
"""
space: dict = {}
exec(MODULE, space)
build, deep, batch = space["build"], space["deep"], space["batch"]


@cache
def derived():
    return ns.torch.parametrise(build, widths=[32, 128], draws=3, batch=batch)


@pytest.fixture
def files(tmp_path):
    """The rule as a file of plain PyTorch and as TOML."""
    rule = derived()
    python, toml = tmp_path / "mup.py", tmp_path / "rule.toml"
    python.write_text(rule.source(), "utf-8")
    toml.write_text(rule.toml(), "utf-8")
    return python, toml


def sweep(parametrisation=None, **options):
    defaults = {"optimiser": "adamw", "widths": WIDTHS, "lr": RATES, "batch": batch}
    counts = {"steps": STEPS, "draws": DRAWS, "seed": SEED, "progress": False}
    return ns.transfer(
        build, parametrisation=parametrisation, **{**defaults, **counts, **options}
    )


def losses(width, prepare, optimiser_of, clip=None, schedule=None):
    """(rates, draws), by a loop of its own."""
    found = np.zeros((len(RATES), DRAWS))
    ids, targets = batch
    for k, lr in enumerate(RATES):
        for draw in range(DRAWS):
            torch.manual_seed(SEED + draw)
            module = build(width)
            prepare(module)
            optimiser = optimiser_of(module, lr)
            rates = [group["lr"] for group in optimiser.param_groups]
            for step in range(STEPS):
                for group, rate in zip(optimiser.param_groups, rates, strict=True):
                    group["lr"] = rate * (schedule(step) if schedule else 1.0)
                loss = nn.functional.cross_entropy(
                    module(ids).flatten(0, 1), targets.flatten()
                )
                optimiser.zero_grad()
                loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimiser.step()
            logits = module(ids).flatten(0, 1)
            found[k, draw] = nn.functional.cross_entropy(logits, targets.flatten())
    return found


def adamw(module, lr):
    return torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=0.0)


@pytest.mark.parametrize("width", WIDTHS)
def test_losses_of_one_rate_are_those_of_torch(width):
    found = sweep()
    expected = losses(width, lambda module: None, adamw)
    np.testing.assert_allclose(found["sp"].curves[width].losses, expected, rtol=1e-5)
    assert list(found["sp"].curves[width].lr) == RATES


def test_losses_with_a_schedule_and_clipping():
    def schedule(step):
        return 1.0 / (1 + step)

    found = sweep(schedule=schedule, clip_norm=0.3)
    expected = losses(32, lambda module: None, adamw, clip=0.3, schedule=schedule)
    np.testing.assert_allclose(found["sp"].curves[32].losses, expected, rtol=1e-5)
    assert not np.allclose(expected, losses(32, lambda module: None, adamw))


def test_files_and_the_rule_train_alike(files):
    python, toml = files
    written = types.ModuleType("written")
    exec(python.read_text("utf-8"), written.__dict__)

    def prepare(module):
        written.initialise(module, base_width=BASE)
        written.scale_outputs(module, base_width=BASE)

    def optimiser(module, lr):
        groups = written.param_groups(module, lr, base_width=BASE)
        return torch.optim.AdamW(groups, weight_decay=0.0)

    found = sweep(["sp", derived(), str(python), str(toml)])
    expected = losses(64, prepare, optimiser)
    for name in ("derived", "mup", "rule"):
        of_file = found[name].curves[64].losses
        np.testing.assert_allclose(of_file, expected, rtol=1e-5)
    assert not np.allclose(found["sp"].curves[64].losses, expected)


@pytest.mark.parametrize("kind", [0, 1])
def test_files_keep_their_own_base(kind, files):
    """From another smallest width the rule is still relative to its own."""
    path = files[kind]
    both = sweep(str(path), widths=[64, 128])
    alone = sweep(str(path), widths=[32, 64])
    np.testing.assert_array_equal(
        both[path.stem].curves[64].losses, alone[path.stem].curves[64].losses
    )


def test_file_without_its_base_is_relative_to_the_smallest_width(files):
    text = files[0].read_text("utf-8")
    constants = ("OPTIMISER = ", "BASE_WIDTH = ")
    kept = [line for line in text.splitlines() if not line.startswith(constants)]
    files[0].write_text("\n".join(kept), "utf-8")
    older = sweep(str(files[0]), widths=[64, 128])["mup"].curves[64].losses
    plain = sweep("sp", widths=[64, 128])["sp"].curves[64].losses
    np.testing.assert_array_equal(older, plain)


def test_file_that_fails_is_refused(files):
    files[0].write_text("1 / 0", "utf-8")
    with pytest.raises(ValueError, match="netsor parametrise wrote: ZeroDivisionError"):
        sweep(str(files[0]))


def test_own_optimiser():
    found = sweep(optimiser=space["own"])
    name = found[0].name
    assert name == "as written"
    expected = losses(
        32,
        lambda module: None,
        lambda module, lr: torch.optim.SGD(module.parameters(), lr=0.1 * lr),
    )
    np.testing.assert_allclose(found[name].curves[32].losses, expected, rtol=1e-5)


def test_rule_transfers_and_one_rate_does_not():
    """Five steps: without the rule the best rate falls with the width, tenfold from 32
    to 256; with it, it stays within a factor √2.

    The tokens are random, so that some have two targets: the loss of `batch` falls to
    0, up to the rate at which training diverges, and has no other best rate.
    """
    options = {"widths": [32, 64, 128, 256], "lr": None, "batch": None}
    found = sweep(["sp", derived()], steps=5, draws=8, **options)
    assert found["sp"].verdict.startswith("shifts")
    best = found["derived"]
    assert not best.verdict.startswith("shifts")
    for width in (64, 128, 256):
        assert abs(math.log2(best.best(width).lr / best.best(32).lr)) < 0.5
    one = found["sp"]
    assert math.log2(one.best(256).lr / one.best(32).lr) < -2.5


REFUSED = {
    "an optimiser that has its own rates": (
        {"optimiser": space["own"], "parametrisation": "sp"},
        "left out: your own optimiser sets",
    ),
    "a name of no optimiser": ({"optimiser": "adagrad"}, "optimiser='adagrad' must be"),
    "no optimiser": ({"optimiser": 3}, "a name, or a function"),
    "another name of a rule": ({"parametrisation": "mup"}, "its .py or .toml file"),
    "a rule twice": ({"parametrisation": ["sp", "sp"]}, "each once"),
    "no file": ({"parametrisation": "none.py"}, "a file that netsor parametrise wrote"),
    "no TOML file": ({"parametrisation": "none.toml"}, "a TOML file of netsor"),
    "infinite width": ({"widths": [32, 64, math.inf]}, "finite for a module"),
    "ids": ({"ids": [1, 2]}, "a module takes batch"),
    "workers": ({"workers": 2}, "a module is trained in this process"),
    "eps": ({"eps": 0.1}, "the optimiser of a module has its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    options, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        sweep(**options)


def test_toml_says_what_the_rule_says(files):
    content = tomllib.loads(files[1].read_text("utf-8"))
    assert content["optimiser"] == "adamw"
    assert content["base_width"] == BASE
    for name, rule in derived().parameters.items():
        table = content["parameters"][name]
        for kind in ("std", "lr", "eps", "weight_decay"):
            power = getattr(rule, kind)
            expected = {k: x for k, x in power._asdict().items() if x}
            assert table.get(kind, {}) == expected


BROKEN = {
    "a word": ('optimiser = "adamw"', "optimiser = adamw", "not valid TOML"),
    "another key": ("base_width = 32", "base = 32", "'base' is not part of"),
    "a width below 0": ("base_width = 32", "base_width = -32", "base_width=-32 must"),
    "a large power": ("lr.width = -1.0", "lr.width = -9.0", "width=-9.0 must be"),
    "another power": ("lr.width = -1.0", "lr.height = -1.0", "'height' is not part"),
    "code": ('module = "build"', 'module = "build\\"; 1"', "the name of a function"),
    "a missing parameter": ('"embed.weight"]', '"words.weight"]', "no rule for the"),
    "another optimiser": ('"adamw"', '"sgd"', "sgd, which"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_toml_is_refused(name, files):
    old, new, reason = BROKEN[name]
    text = files[1].read_text("utf-8")
    assert old in text
    files[1].write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(ValueError, match=reason):
        sweep(str(files[1]))


def test_coordinate_check_under_files(files):
    """The law of one step agrees: nothing grows under the rule, and matrices do with
    one learning rate.
    """
    how = {"widths": [32, 128], "draws": 6, "progress": False, "ids": [1, 2, 3, 4]}
    for rule in (*map(str, files), [derived()]):
        (under,) = ns.coord_check(
            build, optimiser="adamw", lr=0.01, parametrisation=rule, **how
        )
        assert under.broken == []
        update = under.update("layers.0.1.weight").exponent.value
        assert abs(update) < 0.15
    (plain,) = ns.coord_check(build, optimiser="adam", lr=0.01, **how)
    assert plain.update("layers.0.1.weight").exponent.value > 0.8
    with pytest.raises(ValueError, match="one of adamw, adam, sgd, lion"):
        ns.coord_check(build, optimiser="muon", parametrisation=rule, **how)
    with pytest.raises(ValueError, match="adamw, which the rule is for"):
        ns.coord_check(build, optimiser="sgd", parametrisation=rule, **how)
    with pytest.raises(ValueError, match=r"adamw, which .*mup.py is for"):
        ns.coord_check(build, optimiser="sgd", parametrisation=files[0], **how)
    with pytest.raises(ValueError, match="one rule of ns"):
        ns.coord_check(build, optimiser="adamw", parametrisation="mup", **how)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_model.py").write_text(MODULE, "utf-8")
    return tmp_path


def run(folder, *arguments, code=0):
    result = netsor(*arguments, cwd=folder)
    assert result.returncode == code, result.stderr + result.stdout
    return result


DERIVE = ["parametrise", "my_model.py:build", "--widths", "32,128", "--draws", "3"]


def test_commands(folder):
    """Derive, write both files, and use both in both other commands."""
    written = run(folder, *DERIVE, "--toml", "rule.toml", "--json")
    content = json.loads(written.stdout)
    assert content["file"] == "mup_build.py"
    assert content["toml"] == "rule.toml"
    assert content["parameters"]["head.weight"]["lr"]["width"] == -1.0
    assert "initialise" in (folder / "mup_build.py").read_text("utf-8")
    again = run(folder, *DERIVE, code=2)
    assert "mup_build.py' exists" in again.stderr
    again = run(folder, *DERIVE, "--out", "new.py", "--toml", "rule.toml", code=2)
    assert "rule.toml' exists" in again.stderr
    assert not (folder / "new.py").exists()
    sizes = ["my_model.py:build", "--optimizer", "adamw", "--widths", "32,64"]
    rules = [f"--parametrization={x}" for x in ("sp", "mup_build.py", "rule.toml")]
    swept = run(
        folder, "transfer", *sizes, *rules, "--steps", "2", "--draws", "4", "--json"
    )
    of_files = json.loads(swept.stdout)["sweeps"]
    assert {x["parametrisation"] for x in of_files} == {"sp", "mup_build", "rule"}
    checked = run(
        folder,
        "coord-check",
        *sizes,
        rules[-1],
        *("--draws", "4", "--lr", "0.01", "--vectors", "bias,gain", "--json"),
    )
    assert "layers.0.1.bias" in checked.stdout
    (check,) = json.loads(checked.stdout)["checks"]
    assert check["not_checked"] == []
    checked = run(folder, "coord-check", *sizes, rules[1], "--draws", "4")
    assert "Not checked: layers.*.0.weight" in " ".join(checked.stdout.split())


def test_check_of_the_command_is_announced(folder):
    """The table and the cost come before anything is trained."""
    found = run(folder, *DERIVE, "--check")
    announced = " ".join(found.stderr.split())
    assert "real networks of widths 32, 128, 256, for about" in announced
    table, training = found.stdout.split("wrote mup_build.py")
    assert "head.weight" in table
    assert training.count("head.weight") == 0
    assert "real training with the written file" in training


def test_check_of_the_command(folder):
    found = run(folder, *DERIVE, "--check", "--overwrite", "--json")
    content = json.loads(found.stdout)
    assert {x["verdict"] for x in content["check"]} <= {"ok", "undecided"}
    names = {x["parametrisation"] for x in content["transfer"]["sweeps"]}
    assert names == {"sp", "derived"}
    source = (folder / "mup_build.py").read_text("utf-8")
    assert "Trained in PyTorch" in " ".join(source.split())


def test_depths_of_the_command(folder):
    found = run(
        folder,
        *("parametrise", "my_model.py:deep", "--widths", "32,128", "--draws", "6"),
        *("--depths", "2,4,8", "--branch-power", "-0.5", "--json"),
    )
    content = json.loads(found.stdout)
    assert content["depth"]["branch_power"] == -0.5
    of_matrix = content["parameters"]["layers.0.1.weight"]
    assert of_matrix["lr"] == {"width": -1.0, "depth": -0.5}
    assert {x["of"] for x in content["scales"]} == {"branch"}
    source = (folder / "mup_deep.py").read_text("utf-8")
    assert "base_depth=2" in source
    assert "depth-µP" in source


def test_own_optimiser_of_the_command(folder):
    found = run(folder, *DERIVE, "--optimizer", "own_adamw")
    heading, *lines = found.stdout.splitlines()
    assert heading.startswith("build with its own AdamW departs from maximal updates")
    assert "  the learning rate of layers.0.1.weight: multiply by 1/n" in lines
    run(folder, *DERIVE, "--optimizer", "own_adamw", "--overwrite", "--fail", code=1)


WRONG = {
    "one width": (["--widths", "50"], "--widths 50 must be two or more, such as"),
    "one depth": (["--depths", "2"], "--depths 2 must be two or more"),
    "a power alone": (["--branch-power", "-0.5"], "left out without depths"),
    "a large power": (["--branch-power", "-0.2"], "--branch-power"),
    "an ending": (["--out", "rule.txt"], "--out 'rule.txt' must end in .py"),
    "an ending of TOML": (["--toml", "rule.py"], "--toml 'rule.py' must end in .toml"),
    "a folder": (["--out", "folder.py"], "must be a file, not a folder"),
    "--fail alone": (["--fail"], "--fail is for your own optimiser"),
    "two draws": (["--draws", "2"], "3 or more: two initialisations"),
    "no such function": (["--optimizer", "none"], "none"),
    "no such optimiser": (["--optimizer", "a b"], "must be one of adamw"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options(name, folder):
    options, reason = WRONG[name]
    (folder / "folder.py").mkdir()
    result = run(folder, "parametrise", "my_model.py:build", *options, code=2)
    assert reason in result.stderr


def test_undecided_rule_says_so(folder):
    """Widths 32 and 33 decide nothing: the file must not claim that updates are of
    order 1.
    """
    rule = ns.torch.parametrise(build, widths=[32, 33], draws=3)
    assert rule.undecided
    source = rule.source().split('"""')[1]
    assert "ndecided" in source or "UNDECIDED" in source
    assert source.count("UNDECIDED") + source.count("undecided") == 1
    assert rule.verdict.startswith("Undecided")
