"""A check of real weights at step 0: it finds planted mistakes where they are, and
nothing in correct models.
"""

import json
import math
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import netsor as ns  # noqa: E402
from tests.internals import (  # noqa: E402
    _own_reference,
    holm,
    pass_tests,
    reference_of,
)

from ..command import netsor  # noqa: E402
from . import blind_loops as llama  # noqa: E402
from . import training_loops as loops  # noqa: E402
from .broken_modules import IDS, WHERE, Decoder  # noqa: E402
from .own_modules import WIDTH, Attention, halves  # noqa: E402
from .test_torch_modules import MODULES  # noqa: E402

ARGS = (torch.tensor([IDS]),)
LEVEL = 1e-3  # the default


@pytest.fixture(scope="module")
def declared():
    return reference_of(Decoder, ARGS, {})


def _checked(known, seed, mistake=None):
    torch.manual_seed(seed)
    return ns.torch.check_init(Decoder(mistake), ARGS, reference=known)


@pytest.mark.parametrize("mistake", WHERE)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_check_init_locates_each_planted_mistake(declared, mistake, seed):
    found = _checked(declared, seed, mistake)
    assert not found.ok
    assert found.first.where == WHERE[mistake], str(found)
    assert mistake != "wrong mask" or not any(
        each.what == "entropy" for each in found.findings if each.where == "layers.1"
    )
    assert str(found).startswith("FLAG: Decoder differs from the reference Decoder in ")
    assert found.first.where in str(found).partition("\n\n")[0]
    assert all(
        each.text.startswith("expected ") and ", found " in each.text
        for each in found.findings
    )
    assert max(map(len, str(found).splitlines())) <= 80


CORRECT = [
    "gpt2",
    "llama",
    "qwen3",
    "gemma",
    "phi3",
    "smollm3",
    "bert",
    "t5",
    "parallel",
]


def test_check_init_of_correct_models_alarms_at_its_level(declared):
    """100 modules, ten of each, those whose configuration netsor reads against it, the
    others against their function.

    All are independent: each has its own draws of the pass, and of the initialisations
    that laws are read from. So the number of alarms at a level p is at most
    Binomial(100, p): above 23 for p = 0.1 with probability 4e-5, and above 3 for the
    default level with probability 4e-6.
    """
    usual, rare, trial = {}, {}, 0
    for name in ["decoder", *CORRECT]:
        build, args, kwargs = (
            (Decoder, ARGS, {}) if name == "decoder" else MODULES[name][:3]
        )
        known = (
            declared
            if name == "decoder"
            else reference_of(_own_reference(build, build()), args, kwargs)
        )
        for _ in range(10):
            trial += 1
            laws = (
                None
                if known.laws is None
                else ns.torch.parameters(build, seed=100 * trial)
            )
            torch.manual_seed(100_000 + trial)
            own = replace(known, laws=laws)
            found = ns.torch.check_init(
                build(), args, kwargs, reference=own, level=0.1, seed=trial
            )
            assert not any("pass was not checked" in note for note in found.notes), (
                found.notes
            )
            # a half of the level is for parameters, a half for the pass
            smallest = 2 * min((each.p for each in found.findings), default=1.0)
            usual |= {} if found.ok else {(name, trial): str(found)}
            rare |= {(name, trial): str(found)} if smallest < LEVEL else {}
    assert len(usual) <= 23, usual
    assert len(rare) <= 3, rare


def test_small_uniform_biases_are_read_as_uniform():
    """They are read as uniform: as normal ones their kurtosis would be an alarm, in one
    of 40 modules.
    """
    laws = [
        ns.torch.parameters(lambda: torch.nn.Linear(64, 64), seed=100 * k)["bias"].law
        for k in range(100)
    ]
    assert laws.count("uniform") > 90
    assert "normal" not in laws


def test_missing_truncation_is_found_by_the_shape():
    """Of the same standard deviation."""

    def build(cut=2.0):
        made = torch.nn.Sequential(
            torch.nn.Embedding(50, 64), torch.nn.Linear(64, 64, bias=False)
        )
        std = 1.0 if cut == 2.0 else 0.8796
        for p in made.parameters():
            torch.nn.init.trunc_normal_(p, std=std, a=-cut, b=cut)
        return made

    from tests.internals import entries_of, parameter_tests

    laws = ns.torch.parameters(build)
    assert laws["1.weight"].law == "truncated normal"
    for cut, least, most in ((2.0, 1e-4, 1.0), (100.0, 0.0, 1e-4)):
        torch.manual_seed(3)
        tests = {
            t.what: t.p
            for t in parameter_tests(
                "1.weight",
                entries_of(build(cut)[1].weight),
                laws["1.weight"],
                laws.samples,
            )
        }
        assert least <= min(tests["shape"], tests["tails"]) <= most
        assert tests["std"] > 1e-4


QWEN3 = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 60,
    "max_position_embeddings": 32,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
    "use_cache": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**QWEN3))


def _no_norm():
    made = _qwen3()
    for layer in made.model.layers:
        layer.self_attn.q_norm = torch.nn.Identity()
    return made


def _unscaled():
    made = _qwen3()
    torch.nn.init.normal_(made.model.layers[1].mlp.up_proj.weight, std=0.02)
    return made


@pytest.mark.parametrize(
    ("build", "where"),
    [
        (_qwen3, None),
        (_no_norm, "model.layers.0.self_attn"),
        (_unscaled, "model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_check_init_of_a_transformers_model_uses_its_configuration(build, where):
    found = ns.torch.check_init(build, IDS)
    assert found.reference == "qwen3"
    assert (found.first and found.first.where) == where, str(found)
    assert not found.undeclared


def test_check_init_declared_laws_replace_those_of_the_reference():
    found = ns.torch.check_init(
        _qwen3, IDS, declared={"model.layers.*.mlp.down_proj.weight": 0.02}
    )
    assert {each.where for each in found.findings} == {
        f"model.layers.{k}.mlp.down_proj.weight" for k in (0, 1)
    }


def _write(path, tensors):
    header, content = {}, b""
    for name, x in tensors.items():
        numbers = x.detach().contiguous().numpy().tobytes()
        about = {
            "dtype": "F32",
            "shape": list(x.shape),
            "data_offsets": [len(content), len(content) + len(numbers)],
        }
        header[name], content = about, content + numbers
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


def test_check_init_of_a_checkpoint_uses_the_factory(tmp_path):
    torch.manual_seed(7)
    made = Decoder()
    _write(tmp_path / "good.safetensors", dict(made.named_parameters()))
    good = ns.torch.check_init(Decoder, IDS, weights=tmp_path / "good.safetensors")
    first = str(good).replace("\n", " ")
    assert first.startswith(
        "ok: Decoder is consistent with its own initialisation code; no reference, so"
        " mistakes in that code cannot be found; "
    )
    assert "compared with fresh ones that its own code makes" in good.notes[0]
    assert "consistent with its own initialisation code" in good._repr_html_()
    with torch.no_grad():
        made.layers[2].down.weight *= 1.2
    _write(tmp_path / "bad.safetensors", dict(made.named_parameters()))
    found = ns.torch.check_init(Decoder, IDS, weights=tmp_path / "bad.safetensors")
    assert found.first.where == "layers.2.down.weight"
    (tmp_path / "cut.safetensors").write_bytes(
        (tmp_path / "bad.safetensors").read_bytes()[:-5]
    )
    with pytest.raises(ValueError, match="is not a safetensors file: "):
        ns.torch.check_init(Decoder, IDS, weights=tmp_path / "cut.safetensors")
    _write(tmp_path / "less.safetensors", {"embed.weight": made.embed.weight})
    with pytest.raises(
        ValueError, match=r"weights=.* must be a readable file: No such file"
    ):
        ns.torch.check_init(Decoder, IDS, weights=tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match=r"a file with the parameter head\.weight"):
        ns.torch.check_init(Decoder, IDS, weights=tmp_path / "less.safetensors")


def test_check_init_command_exits_with_3_on_a_departure(tmp_path):
    file = tmp_path / "my_model.py"
    file.write_text(
        "from tests.peers.broken_modules import Decoder\n\n\ndef build(mistake=None):\n"
        "    return Decoder(mistake)\n"
    )
    words = [
        sys.executable,
        "-m",
        "netsor",
        "check-init",
        f"{file}:build",
        "--reference",
        f"{file}:build",
        "--json",
    ]
    for more, code in (([], 0), (["--arg", "mistake=std"], 3)):
        done = subprocess.run([*words, *more], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert json.loads(done.stdout)["ok"] == (code == 0)


def test_check_init_of_a_module_without_embedding_asks_for_inputs():
    check = ns.torch.check_init(lambda: torch.nn.Linear(4, 4))
    assert check.status == "incomplete"
    assert "Linear has no torch.nn.Embedding for token ids: give" in check.notes[0]


class WithoutResidual(torch.nn.Module):
    """Attention whose output replaces the stream, so that there is no block."""

    def __init__(self, std=0.02):
        super().__init__()
        self.embed, self.attention = torch.nn.Embedding(40, WIDTH), Attention(halves)
        torch.nn.init.normal_(self.attention.q.weight, std=std)

    def forward(self, ids):
        return self.attention(self.embed(ids))


def test_check_init_of_a_module_without_blocks_is_incomplete():
    check = ns.torch.check_init(WithoutResidual, IDS)
    assert check.status == "incomplete"
    assert not check.findings
    assert not check.unchecked
    assert str(check).startswith("incomplete (forward pass not checked): ")
    assert (
        "no blocks were found: the module adds nothing to its input; an audit"
        in (check.notes[0])
    )


def test_check_init_of_a_module_without_blocks_finds_wrong_parameters():
    torch.manual_seed(0)
    wrong = WithoutResidual(std=0.03)
    check = ns.torch.check_init(wrong, IDS, reference=WithoutResidual)
    assert check.status == "FLAG"
    assert check.first.where == "attention.q.weight"
    assert check.reference == "WithoutResidual"


def test_check_init_hides_a_mean_where_the_std_is_wrong(declared):
    torch.manual_seed(0)
    made = Decoder()
    with torch.no_grad():
        made.head.weight *= 50
        made.head.weight += 1
    found = ns.torch.check_init(made, ARGS, reference=declared)
    assert {"std", "mean"} <= {
        each.what for each in found.findings if each.where == "head.weight"
    }
    assert (
        "head.weight std: expected" in str(found),
        "mean: expected" in str(found),
    ) == (True, False)


class Plain(torch.nn.Module):
    """A GPT as people write it: names of its own, biases and learned positions."""

    def __init__(self, std_position=0.02, bias=0.0, gain=1.0):
        super().__init__()
        self.tok = torch.nn.Embedding(96, 64)
        self.pos = torch.nn.Embedding(32, 64)
        self.layers = torch.nn.ModuleList(loops.Block(0.0) for _ in range(2))
        self.norm = torch.nn.LayerNorm(64)
        self.head = torch.nn.Linear(64, 96, bias=False)
        self.head.weight = self.tok.weight
        for name, p in self.named_parameters():
            into_stream = name.endswith(("c_proj.weight", "down.weight"))
            if p.ndim == 2:
                torch.nn.init.normal_(p, std=0.01 if into_stream else 0.02)
            elif name.endswith("bias"):
                torch.nn.init.zeros_(p)
        torch.nn.init.normal_(self.pos.weight, std=std_position)
        torch.nn.init.constant_(self.layers[1].up.bias, bias)
        torch.nn.init.constant_(self.norm.weight, gain)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


GPT2 = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 96,
    "n_positions": 32,
    "activation_function": "gelu",
}


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({}, None),
        ({"std_position": 0.025}, "pos.weight"),
        ({"bias": 1e-3}, "layers.1.up.bias"),
        ({"gain": 0.99}, "norm.weight"),
    ],
    ids=["right", "positions", "bias", "gain"],
)
def test_check_init_matches_every_parameter_of_a_plain_module(wrong, where):
    """By their use: no name is one that netsor knows."""
    torch.manual_seed(0)
    found = ns.torch.check_init(Plain(**wrong), IDS, reference=GPT2)
    assert not found.unchecked
    assert (found.first and found.first.where) == where
    assert found.status == ("FLAG" if where else "ok")


@pytest.mark.parametrize("offset", [False, True], ids=["gain", "1 + gain"])
def test_gains_written_out_are_read(offset):
    """Of RMSNorms as in Llama, and as in Gemma, which adds 1 to its weight."""
    kind, extra = ("gemma2", {"head_dim": 16}) if offset else ("llama", {})
    config = {
        "model_type": kind,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        **extra,
    }
    own = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(own)
    right = ns.torch.check_init(made, IDS, reference=config)
    assert right.status == "ok", str(right)
    assert not right.unchecked
    torch.nn.init.constant_(made.model.norm.weight, 0.5)
    wrong = ns.torch.check_init(made, IDS, reference=config)
    assert wrong.first.where == "model.norm.weight"


def test_parameters_only_matches_names_of_other_code_bases():
    """Those of Llama's own code, against a configuration of Transformers: the residual
    matrices have a depth factor there, and nothing else departs.
    """
    config = {
        "model_type": "llama",
        "hidden_size": llama.WIDTH,
        "num_hidden_layers": llama.LAYERS,
        "num_attention_heads": llama.HEADS,
        "num_key_value_heads": llama.KEYS,
        "intermediate_size": 2 * llama.WIDTH,
        "vocab_size": llama.VOCABULARY,
        "pad_token_id": None,
    }
    torch.manual_seed(0)
    found = ns.torch.check_init(llama.Llama, reference=config, parameters_only=True)
    assert not found.unchecked
    assert {(each.where.split(".")[-2], each.what) for each in found.findings} == {
        ("wo", "std"),
        ("w2", "std"),
    }


def test_unknown_parameters_are_named_first_and_declared_on_the_command_line(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gate.py").write_text(
        "from tests.peers.test_check_init import Plain\n"
        "import torch\n"
        "class Gated(Plain):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.gate = torch.nn.Parameter(torch.full((), 3.0))\n"
        "    def forward(self, ids):\n"
        "        return super().forward(ids) * torch.sigmoid(self.gate)\n"
    )
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    arguments = ["check-init", "gate.py:Gated", "--reference", "config.json"]
    unknown = netsor(*arguments)
    first = " ".join(unknown.stdout.split("\n\n")[0].split())
    assert "1 of 29 parameters unchecked (gate: declare their laws)" in first
    assert "--declared 'gate=0.02'" in " ".join(unknown.stdout.split())
    right = netsor(*arguments, "--declared", "gate=constant(3.0)", "--json")
    assert not json.loads(right.stdout)["unchecked"], right.stderr
    wrong = netsor(*arguments, "--declared", "gate=constant(2.0)", "--json")
    assert json.loads(wrong.stdout)["first"]["where"] == "gate"
    for text, message in (
        ("gate", "must be NAME=LAW, such as '*.bias=constant(0)'"),
        ("gate=open(3)", "where LAW is a standard deviation, constant(X), or norm("),
        ("no.such=0.02", "names no parameter"),
    ):
        result = netsor(*arguments, "--declared", text)
        assert result.returncode == 2
        assert message in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1


def test_p_values_of_a_pass_are_uniform_under_the_law():
    """Independent draws of the law itself: the smallest of all p-values is uniform."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(20, 20))
    smallest = []
    for _ in range(400):
        draws = np.exp(0.3 * rng.normal(size=(301, 20)) @ mixing)
        law = {(str(k), 0): draws[:-1, k] for k in range(20)}
        smallest.append(
            min(pass_tests({(str(k), 0): float(draws[-1, k]) for k in range(20)}, law))
        )
    below = np.mean(np.array(smallest) < 0.05)
    assert abs(below - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 400)
    shifted = pass_tests({("a", 0): 12.0}, {("a", 0): rng.normal(size=300)})
    assert shifted[0] < 1e-6


def test_holm_matches_a_published_example():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
