"""Arguments of audits and checks of modules: each acts, or is refused in one line that
names it.
"""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import netsor as ns  # noqa: E402
from netsor.torch import InitCheck, InitFinding, Parameter  # noqa: E402
from tests.internals import torch_network  # noqa: E402

from ..command import netsor  # noqa: E402

MODULE = """
import torch


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, words=30, positions=24):
        super().__init__()
        self.embed, self.place = torch.nn.Embedding(words, 8), torch.nn.Embedding(positions, 8)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.head = torch.nn.Linear(8, words, bias=False)
        for p in self.parameters():
            torch.nn.init.normal_(p, std=0.3)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Unread(Net):
    def forward(self, ids):
        return self.head(self.embed(ids).sort(-1).values)


def build(words=30):
    return Net(words)


def unread():
    return Unread()


def changed(change):
    made = Net()
    with torch.no_grad():
        for p in made.parameters():
            change(p)
    return made


def zeros():
    return changed(lambda p: p.zero_())


def nan():
    return changed(lambda p: p.reshape(-1)[:1].fill_(float("nan")))


def infinite():
    return changed(lambda p: p.reshape(-1)[:1].fill_(float("inf")))


def half():
    made = Net()
    made.layers.half()
    return made


def meta():
    with torch.device("meta"):
        return Net()


def moved():
    return Net().to("meta")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def mine():
    made = {}
    exec(MODULE, made)
    return made


REFUSED = {
    "--widths inf": "--widths 'inf' must be left out: the widths of Net are numbers",
    "--widths both": "--widths 'both' must be left out: the widths of Net are numbers",
    "--ids 99,3": "--ids 99,3 must be from 0 to 29, the rows of embed.weight",
    "--ids 3": "--ids 3 must be two or more: tokens are compared",
    "--ids 3,-1": "--ids -1 must be an integer, 0 or more",
    "--tokens 0": "--tokens 0 must be an integer, 2 or more: an audit compares tokens",
    "--tokens 1": "--tokens 1 must be an integer, 2 or more: an audit compares tokens",
    "--tokens 31": (
        "--tokens 31 must be at most 29 for Net: its embedding has 30 rows, and id 0 is"
        " left out"
    ),
    "--tokens 25": (
        "--tokens 25 must be at most 24, the rows of place.weight: give fewer tokens"
    ),
    "--tokens 5,5": "--tokens 5,5 must be one length or more, each once",
    "--tokens 4 --ids 3,1": (
        "--tokens 4 must be left out: the ids say how many tokens there are"
    ),
    "--bind n=4": (
        "--bind n=4 is for programs: mine.py:build makes a module, which takes --arg"
        " NAME=VALUE"
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_audit_of_a_module_refuses_options_it_cannot_follow(words, folder):
    done = netsor("audit", "mine.py:build", "--quick", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"netsor: {REFUSED[words]}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["audit", "check-init"])
def test_audit_of_a_module_refuses_parts(command, folder):
    done = netsor(command, "mine.py:build[0]")
    assert done.returncode == 2
    assert (
        "'mine.py:build[0]' makes a module, which has no parts: leave out the index"
        in done.stderr
    )


def test_audit_measures_the_largest_number_of_tokens(folder):
    done = netsor("audit", "mine.py:build", "--quick", "--tokens", "24", "--json")
    assert (json.loads(done.stdout)["tokens"], json.loads(done.stdout)["widths"]) == (
        24,
        "actual",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "mine.py:build --ids 99,3",
            "--ids 99,3 must be from 0 to 29, the rows of embed.weight",
        ),
        ("mine.py:build --ids 3", "--ids 3 must be two or more: tokens are compared"),
        (
            "mine.py:build --draws 99",
            "Invalid value for '--draws': '99' must be an integer, 100 or more",
        ),
        (
            "mine.py:meta",
            (
                "embed.weight is on the meta device and has no numbers to check: make"
                " the module on the CPU"
            ),
        ),
    ],
)
def test_check_init_refuses_what_it_cannot_check(words, message, folder):
    done = netsor("check-init", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mine.py:zeros", "Net returns nothing random: its parameters are the same in"),
        (
            "mine.py:build --reference mine.py:moved",
            "make the module on the CPU, or under torch.device('meta')",
        ),
    ],
)
def test_check_init_says_why_a_reference_shows_no_law(words, message, folder):
    done = netsor("check-init", *words.split())
    assert done.returncode == 3
    assert done.stdout.startswith("incomplete (forward pass not checked): ")
    assert message in done.stdout.replace("\n", " ")


@pytest.mark.parametrize("name", ["nan", "infinite"])
def test_check_init_finds_what_is_never_finite(name, folder):
    """Without a reference: its own initialisation has no law."""
    found = json.loads(netsor("check-init", f"mine.py:{name}", "--json").stdout)
    assert found["status"] == "FLAG"
    assert found["first"]["text"].startswith("expected finite entries, found ")


@pytest.mark.parametrize("name", ["nan", "infinite"])
def test_check_init_finds_weights_that_are_not_finite(name, folder):
    found = json.loads(
        netsor(
            "check-init", f"mine.py:{name}", "--reference", "mine.py:build", "--json"
        ).stdout
    )
    assert found["status"] == "FLAG"
    text = found["first"]["text"]
    kind = {"nan": "NaN", "infinite": "infinity"}[name]
    assert text == f"expected finite entries, found {kind} in 1 of 240 entries"


def test_check_init_without_its_pass_is_incomplete(folder, mine):
    """A sort cannot be captured as a program; nor can the pass of a module of several
    precisions run.
    """
    for name in ("unread", "half"):
        words = "check-init", f"mine.py:{name}", "--reference", "mine.py:build"
        done = netsor(*words)
        assert done.returncode == 3
        first = done.stdout.partition("\n\n")[0].replace("\n", " ")
        assert first.startswith("incomplete (forward pass not checked): ")
        assert "; all 7 parameters checked; " in first
        assert "--allow-incomplete" in done.stderr
        assert netsor(*words, "--allow-incomplete").returncode == 0
        found = json.loads(netsor(*words, "--json").stdout)
        assert (
            found["ok"],
            found["status"],
            found["checked_pass"],
            found["draws"],
        ) == (False, "incomplete", "", 0)
    found = ns.torch.check_init(mine["half"], [3, 7, 1], reference=mine["build"])
    assert (
        "its parameters are float16 and float32; make it with .float()"
        in found.notes[0]
    )


CHECK = InitCheck(
    name="Net",
    reference="gpt2",
    findings=[],
    first=None,
    tests=152,
    parameters=148,
    unchecked=["w"] * 35,
    undeclared=["w"] * 35,
    checked_pass="forward pass",
    draws=300,
    notes=[],
)
FOUND = InitFinding("w", "std", 0.0, "expected 1, found 2")


def test_check_init_prints_status_and_coverage_first():
    lines = str(CHECK).splitlines()
    assert (
        lines[0]
        == "ok: 152 tests; 35 of 148 parameters unchecked (w, w, w, …: declare their"
        " laws);"
    )
    for incomplete in (
        replace(CHECK, checked_pass=""),
        replace(CHECK, unchecked=["w"] * 148),
    ):
        assert (incomplete.status, incomplete.ok, incomplete.to_dict()["ok"]) == (
            "incomplete",
            False,
            False,
        )
    nothing = replace(CHECK, tests=0, unchecked=["w"] * 148, checked_pass="")
    said = (
        "incomplete (forward pass not checked): 0 tests; 148 of 148 parameters"
        " unchecked (w, w, w, …: declare their laws); "
    )
    assert nothing.verdict.startswith(said)
    departs = replace(CHECK, findings=[FOUND], first=FOUND, checked_pass="")
    assert departs.status == "FLAG"
    assert departs.verdict.startswith(
        "FLAG (forward pass not checked): Net differs from the reference gpt2 in 1"
        " parameter; look first at w; 152"
    )


def test_check_init_without_a_reference_says_so_first(mine):
    found = ns.torch.check_init(mine["build"], [3, 7, 1])
    first = str(found).partition("\n\n")[0].replace("\n", " ")
    assert first.startswith("ok: ")
    assert (
        "is consistent with its own initialisation code; no reference, so mistakes in"
        " that code cannot be found; "
    ) in first
    assert first.endswith("all 7 parameters checked; forward and backward pass checked")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"declared": 2.5}, "declared=2.5 must be a mapping of names"),
        ({"declared": {3: 1.0}}, "declared={3: 1.0} must be a mapping of names"),
        (
            {"declared": {"*": -1.0}},
            r"declared\['\*'\]=-1.0 must be a finite number, 0 or",
        ),
        (
            {"declared": {"*": float("nan")}},
            r"declared\['\*'\]=nan must be a finite number, 0 or",
        ),
        (
            {"declared": {"*": "x"}},
            r"declared\['\*'\]='x' must be a standard deviation, a frozen distribution",
        ),
        (
            {"declared": {"*": Parameter("", (), "cauchy")}},
            r"declared\['\*'\]\.law='cauchy' must be one of constant",
        ),
        (
            {"declared": {"*": Parameter("", (), "normal", std=-1.0)}},
            r"declared\['\*'\]\.std=-1.0 must be",
        ),
        ({"seed": None}, "seed=None must be an integer, 0 or more"),
        ({"level": object}, "level=<class 'object'> must be a number between 0 and 1"),
        ({"level": None}, "level=None must be a number between 0 and 1"),
        ({"level": float("nan")}, "level=nan must be a number between 0 and 1"),
        ({"draws": 2.5}, "draws=2.5 must be an integer, 100 or more"),
        ({"args": []}, r"ids=\[\] must be two or more"),
        ({"args": "3,1"}, "ids='3,1' must be a sequence of token ids"),
        ({"args": 3}, "ids=3 must be a sequence of token ids"),
        ({"args": [1.5, 2]}, "ids=1.5 must be an integer, 0 or more"),
        ({"kwargs": 3}, "kwargs=3 must be a mapping"),
        (
            {"weights": 3},
            "weights=3 must be the path of a .safetensors file, of a folder",
        ),
        ({"module": 3}, "module=3 must be a torch.nn.Module"),
    ],
)
def test_check_init_refuses_wrong_arguments_by_name(given, message, mine):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        ns.torch.check_init(**{"module": mine["build"], "args": [3, 7, 1], **given})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"samples": "x"}, "samples='x' must be an integer, 2 or more"),
        ({"samples": 1}, "samples=1 must be an integer, 2 or more"),
        ({"seed": None}, "seed=None must be an integer, 0 or more"),
        ({"declared": [1]}, r"declared=\[1\] must be a mapping"),
    ],
)
def test_parameters_refuses_wrong_arguments_by_name(given, message, mine):
    with pytest.raises(ValueError, match=f"^{message}"):
        ns.torch.parameters(mine["build"], **given)


def test_parameters_accepts_a_seed_of_128_bits(mine):
    assert (
        ns.torch.parameters(mine["build"], seed=2**128 - 1, samples=2)[
            "head.weight"
        ].law
        == "normal"
    )


def test_program_refuses_laws_of_a_wrong_type(mine):
    with pytest.raises(
        ValueError, match=r"^laws=3 must be the result of ns\.torch\.parameters"
    ):
        ns.torch.program(mine["build"], torch.tensor([[1, 2]]), laws=3)


def test_declared_std_of_0_makes_zeros(mine):
    found = ns.torch.check_init(mine["build"], [3, 7, 1], declared={"head.weight": 0.0})
    assert found.first.where == "head.weight"
    assert "expected 0 in every entry" in found.first.text


def test_the_default_ids_leave_out_the_padding():
    """Its vector is 0, and norms multiply the gradient there by 1/√eps in each block."""
    padded = torch.nn.Sequential(torch.nn.Embedding(8, 4, padding_idx=3))
    assert torch_network.token_ids(padded, None, None, 5).tolist() == [[1, 2, 4, 5, 6]]
    with pytest.raises(ValueError, match=r"at most 6 .*, and ids 0 and 3 are left out"):
        torch_network.token_ids(padded, None, 7)
