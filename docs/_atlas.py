"""The atlas: one page for each open model that was measured, at initialisation.

- `python docs/_atlas.py measure` audits every model of `MODELS` and writes
  docs/atlas/NAME.json. Models with a file are left out: delete a file to measure its
  model again.
- As a hook of mkdocs it makes the pages from these files.

The settings are those below: they were fixed before any model was measured.
"""

import io
import json
import math
import os
import sys
import textwrap
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

Fields = dict[str, Any]
FOLDER = Path(__file__).parent / "atlas"
SETTINGS = {"tokens": 16, "draws": 20, "seed": 2, "widths": "actual"}
MOST_WEIGHTS_WITH_GRADIENTS = 4e10  # gradients of larger models take minutes
DIGITS = 4


def _llama(width: int, hidden: int, layers: int, heads: int, **more: Any) -> Fields:
    """The fields of a configuration that models of Llama's kind share."""
    return {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
    } | more


def _qwen(width: int, hidden: int, layers: int, heads: int, **more: Any) -> Fields:
    """The fields that models of Qwen 2.5 and Qwen 3 share."""
    common = {"vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
    return _llama(width, hidden, layers, heads, **common) | more


def _pythia(width: int, layers: int, heads: int, vocabulary: int = 50304) -> Fields:
    """The fields of models of GPT-NeoX's kind."""
    return {
        "model_type": "gpt_neox",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "hidden_act": "gelu",
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
        "layer_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
    }


def _gemma2(width: int, hidden: int, layers: int, heads: int, **more: Any) -> Fields:
    """The fields of models of Gemma 2's kind."""
    return {
        "model_type": "gemma2",
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": 256000,
    } | more


def _encoder(family: str, width: int, layers: int, heads: int, **more: Any) -> Fields:
    """The fields that models of the kinds of BERT and ViT share."""
    return {
        "model_type": family,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    } | more


def _t5(width: int, hidden: int, layers: int, heads: int) -> Fields:
    """The fields of models of T5's kind."""
    return {
        "model_type": "t5",
        "d_model": width,
        "d_ff": hidden,
        "d_kv": 64,
        "num_layers": layers,
        "num_heads": heads,
        "vocab_size": 32128,
        "layer_norm_epsilon": 1e-6,
        "pad_token_id": 0,
    }


BERT = {
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
VIT = {"image_size": 224, "patch_size": 16, "num_channels": 3, "num_labels": 1000}
SMOLLM2 = {"vocab_size": 49152, "rope_theta": 1e5, "tie_word_embeddings": True}
QWEN2 = {"model_type": "qwen2", "num_key_value_heads": 2}
QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128}
OLMO2 = {
    "model_type": "olmo2",
    "vocab_size": 100352,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5e5,
}
MIXTRAL = {
    "model_type": "mixtral",
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
}
LLAMA32 = {
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rope_theta": 5e5,
    "tie_word_embeddings": True,
}
TIED = {"tie_word_embeddings": True}

# Name of the page → title and source: a built-in model, the fields of a config.json, or
# only a type, whose default configuration transformers has. Fields are those that the
# authors published; the initialisation is that of the model's code in transformers.
MODELS: dict[str, tuple[str, str | Fields]] = {
    "bert-base": ("BERT base", "bert-base"),
    "bert-large": ("BERT large", _encoder("bert", 1024, 24, 16, **BERT)),
    "deit-tiny": ("DeiT tiny", _encoder("vit", 192, 12, 3, **VIT)),
    "deit-small": ("DeiT small", _encoder("vit", 384, 12, 6, **VIT)),
    "distilgpt2": (
        "DistilGPT2",
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 6,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "initializer_range": 0.02,
        },
    ),
    "falcon-mamba-7b": (
        "Falcon Mamba 7B",
        {
            "model_type": "falcon_mamba",
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "intermediate_size": 8192,
            "time_step_rank": 256,
            "vocab_size": 65024,
            "tie_word_embeddings": False,
        },
    ),
    "gemma-2-2b": (
        "Gemma 2 2B",
        _gemma2(2304, 9216, 26, 8, num_key_value_heads=4, head_dim=256),
    ),
    "gemma-2-9b": ("Gemma 2 9B", "gemma-2-9b"),
    "gemma-2-27b": (
        "Gemma 2 27B",
        _gemma2(
            4608,
            36864,
            46,
            32,
            num_key_value_heads=16,
            head_dim=128,
            query_pre_attn_scalar=144,
        ),
    ),
    "gpt2": ("GPT-2", "gpt2"),
    "gpt2-medium": ("GPT-2 medium", "gpt2-medium"),
    "gpt2-large": ("GPT-2 large", "gpt2-large"),
    "gpt2-xl": ("GPT-2 XL", "gpt2-xl"),
    "gpt3-175b": ("GPT-3 175B", "gpt3-175b"),
    "gpt-neox-20b": (
        "GPT-NeoX 20B",
        _pythia(6144, 44, 64, vocabulary=50432) | {"hidden_act": "gelu_fast"},
    ),
    "llama-2-7b": ("Llama 2 7B", _llama(4096, 11008, 32, 32)),
    "llama-2-13b": ("Llama 2 13B", _llama(5120, 13824, 40, 40)),
    "llama-2-70b": ("Llama 2 70B", _llama(8192, 28672, 80, 64, num_key_value_heads=8)),
    "llama-3-8b": ("Llama 3 8B", "llama-3-8b"),
    "llama-3-70b": ("Llama 3 70B", "llama-3-70b"),
    "llama-3-405b": ("Llama 3.1 405B", "llama-3-405b"),
    "llama-3.2-1b": ("Llama 3.2 1B", _llama(2048, 8192, 16, 32, **LLAMA32)),
    "llama-3.2-3b": ("Llama 3.2 3B", _llama(3072, 8192, 28, 24, **LLAMA32)),
    "mamba-130m": ("Mamba 130M", {"model_type": "mamba", "num_hidden_layers": 24}),
    "mistral-7b": (
        "Mistral 7B",
        _llama(4096, 14336, 32, 32, model_type="mistral", num_key_value_heads=8),
    ),
    "mixtral-8x7b": ("Mixtral 8x7B", _llama(4096, 14336, 32, 32, **MIXTRAL)),
    "mixtral-8x22b": ("Mixtral 8x22B", _llama(6144, 16384, 56, 48, **MIXTRAL)),
    "modernbert-decoder": (
        "ModernBERT decoder",
        {"model_type": "modernbert-decoder"},
    ),
    "nanochat": ("nanochat (12 blocks)", {"model_type": "nanochat"}),
    "olmo-2-1b": ("OLMo 2 1B", _llama(2048, 8192, 16, 16, **OLMO2)),
    "olmo-2-7b": ("OLMo 2 7B", _llama(4096, 11008, 32, 32, **OLMO2)),
    "olmo-2-13b": ("OLMo 2 13B", _llama(5120, 13824, 40, 40, **OLMO2)),
    "olmo-2-32b": (
        "OLMo 2 32B",
        _llama(5120, 27648, 64, 40, num_key_value_heads=8, **OLMO2),
    ),
    "opt-125m": ("OPT 125M", {"model_type": "opt"}),
    "pythia-14m": ("Pythia 14M", _pythia(128, 6, 4)),
    "pythia-31m": ("Pythia 31M", _pythia(256, 6, 8)),
    "pythia-70m": ("Pythia 70M", _pythia(512, 6, 8)),
    "pythia-160m": ("Pythia 160M", _pythia(768, 12, 12)),
    "pythia-410m": ("Pythia 410M (its authors' own start)", "pythia-410m"),
    "pythia-1b": ("Pythia 1B", _pythia(2048, 16, 8)),
    "pythia-1.4b": ("Pythia 1.4B", _pythia(2048, 24, 16)),
    "pythia-2.8b": ("Pythia 2.8B", _pythia(2560, 32, 32)),
    "pythia-6.9b": ("Pythia 6.9B", _pythia(4096, 32, 32, vocabulary=50432)),
    "pythia-12b": ("Pythia 12B", _pythia(5120, 36, 40, vocabulary=50688)),
    "qwen2.5-0.5b": ("Qwen2.5 0.5B", _qwen(896, 4864, 24, 14, **QWEN2, **TIED)),
    "qwen2.5-1.5b": ("Qwen2.5 1.5B", _qwen(1536, 8960, 28, 12, **QWEN2, **TIED)),
    "qwen2.5-3b": ("Qwen2.5 3B", _qwen(2048, 11008, 36, 16, **QWEN2, **TIED)),
    "qwen2.5-7b": (
        "Qwen2.5 7B",
        _qwen(3584, 18944, 28, 28, **QWEN2)
        | {"num_key_value_heads": 4, "vocab_size": 152064},
    ),
    "qwen2.5-72b": (
        "Qwen2.5 72B Instruct",
        _qwen(8192, 29568, 80, 64, **QWEN2)
        | {"num_key_value_heads": 8, "vocab_size": 152064},
    ),
    "qwen3-0.6b": ("Qwen3 0.6B", _qwen(1024, 3072, 28, 16, **QWEN3, **TIED)),
    "qwen3-1.7b": ("Qwen3 1.7B", _qwen(2048, 6144, 28, 16, **QWEN3, **TIED)),
    "qwen3-4b": ("Qwen3 4B", _qwen(2560, 9728, 36, 32, **QWEN3, **TIED)),
    "qwen3-8b": ("Qwen3 8B", "qwen3-8b"),
    "qwen3-14b": ("Qwen3 14B", _qwen(5120, 17408, 40, 40, **QWEN3)),
    "qwen3-32b": ("Qwen3 32B", _qwen(5120, 25600, 64, 64, **QWEN3)),
    "smollm2-135m": (
        "SmolLM2 135M",
        _llama(576, 1536, 30, 9, num_key_value_heads=3, **SMOLLM2)
        | {"initializer_range": 1 / 24},
    ),
    "smollm2-360m": (
        "SmolLM2 360M",
        _llama(960, 2560, 32, 15, num_key_value_heads=5, **SMOLLM2),
    ),
    "smollm2-1.7b": (
        "SmolLM2 1.7B",
        _llama(2048, 8192, 24, 32, **SMOLLM2) | {"rope_theta": 1.3e5},
    ),
    "t5-small": ("T5 small", _t5(512, 2048, 6, 8)),
    "t5-base": ("T5 base", "t5-base"),
    "t5-large": ("T5 large", _t5(1024, 4096, 24, 16)),
    "tinyllama-1.1b": (
        "TinyLlama 1.1B",
        _llama(2048, 5632, 22, 32, num_key_value_heads=4),
    ),
    "vit-base": ("ViT base", "vit-base"),
    "vit-large": ("ViT large", _encoder("vit", 1024, 24, 16, **VIT)),
    "vit-huge": (
        "ViT huge",
        _encoder("vit", 1280, 32, 16, **VIT) | {"patch_size": 14},
    ),
}

# quantity of a block → the label of its axis, and the rule whose finding is its title
PANELS = {
    "mean_square": ("mean square of the stream", "growth"),
    "effective_rank": ("effective rank of tokens", "rank"),
    "entropy": ("attention entropy / uniform", "entropy"),
    "grad_mean_square": ("gradient's mean square", "exploding"),
}
TITLE_LETTERS = 32  # in a line above a panel
GRADIENT = "grad_mean_square"
LOGARITHMIC = {"mean_square", GRADIENT}
MARKS = {"FLAG": "flagged", "ok": "ok", "undecided": "undecided"}


# Measuring


def measure(name: str) -> dict[str, Any]:
    """The audit of one model, in the few numbers that its page shows."""
    import netsor as ns

    _, source = MODELS[name]
    audit = ns.audit(source, workers=1, gradients=_has_gradients(source), **SETTINGS)
    content = audit.as_dict()
    blocks = {
        quantity: [_rounded(block[quantity]["median"]) for block in content["layers"]]
        for quantity in PANELS
        if all(quantity in block for block in content["layers"])
    }
    final = {key: _rounded(band["median"]) for key, band in content["final"].items()}
    findings = [_short(finding) for finding in content["findings"]]
    return {
        "name": name,
        "sizes": content["sizes"],
        "status": content["status"],
        "findings": findings,
        "blocks": blocks,
        "final": final,
        "settings": SETTINGS,
        "versions": _versions(ns.__version__, source),
    }


def _described(source: str | Fields) -> Any:
    """The model, or None if netsor reads it from its module in transformers."""
    import netsor as ns
    from netsor.models._transformer import UnknownFamilyError

    try:
        return ns.models.read(source)
    except UnknownFamilyError:
        return None


def _has_gradients(source: str | Fields) -> bool:
    """Whether a model is small enough for gradients."""
    model = _described(source)
    return model is None or model.weights <= MOST_WEIGHTS_WITH_GRADIENTS


def _size(name: str) -> float:
    """The number of weights, by which models are measured; modules come last."""
    model = _described(MODELS[name][1])
    return math.inf if model is None else float(model.weights)


def _versions(netsor: str, source: str | Fields) -> dict[str, str]:
    """The version of netsor, and that of transformers where its code was read."""
    if _described(source) is not None:
        return {"netsor": netsor}
    import transformers

    return {"netsor": netsor, "transformers": transformers.__version__}


def _rounded(number: float | None) -> float | None:
    """A number of few digits: the files are read by people too."""
    return None if number is None else float(f"{number:.{DIGITS}g}")


def _short(finding: dict[str, Any]) -> dict[str, Any]:
    """What a page shows of the finding of a rule."""
    names = ("name", "verdict", "rule", "brief", "reason", "advice")
    short = {name: finding[name] for name in names}
    return short | {"value": _rounded(finding["value"])}


def measure_all(workers: int, seconds: float) -> None:
    """Measure the models that have no file yet; stop after so many seconds."""
    FOLDER.mkdir(exist_ok=True)
    missing = [name for name in MODELS if not (FOLDER / f"{name}.json").exists()]
    missing.sort(key=_size)
    with ProcessPoolExecutor(workers, max_tasks_per_child=1) as pool:
        jobs = {pool.submit(measure, name): name for name in missing}
        for job in as_completed(jobs, timeout=seconds):
            name = jobs[job]
            try:
                content = job.result()
            except Exception as error:  # the others are measured all the same
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            _store(content)
            print(f"{name}: {_verdict(content)}", flush=True)


def _store(content: dict[str, Any]) -> None:
    """Write the file of a model at once."""
    path = FOLDER / f"{content['name']}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    temporary.replace(path)


# Pages


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs when it has found the pages in docs/."""
    from mkdocs.structure.files import File

    models = [
        json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))
    ]
    models.sort(key=lambda model: MODELS[model["name"]][0].lower())
    for model in models:
        stem = f"atlas/{model['name']}"
        files.append(File.generated(config, f"{stem}.md", content=_page(model)))
        files.append(File.generated(config, f"{stem}.svg", content=_figure(model)))
    page = _index(models)
    files.append(File.generated(config, "atlas/index.md", content=page))
    return files


def _excess_loss(model: dict[str, Any]) -> float | None:
    """The first loss above ln V, in nats."""
    loss = model["final"].get("loss")
    rule = _finding(model, "loss")
    return None if loss is None or rule is None else rule["value"]


def _finding(model: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The finding of one rule."""
    rules = {finding["name"]: finding for finding in model["findings"]}
    return rules.get(name)


def _flags(model: dict[str, Any]) -> list[str]:
    """The rules that flag the model."""
    return [x["name"] for x in model["findings"] if x["verdict"] == "FLAG"]


def _cell(number: float | None) -> str:
    """A number of a table, or a dash."""
    if number is None:
        return "–"
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _verdict(model: dict[str, Any]) -> str:
    """The finding in words."""
    flags = _flags(model)
    passed = sum(finding["verdict"] == "ok" for finding in model["findings"])
    if not flags:
        return f"No problem found; {passed} rules pass."
    problems = "1 problem" if len(flags) == 1 else f"{len(flags)} problems"
    return f"{problems} found: {', '.join(flags)}; {passed} rules pass."


def _value(model: dict[str, Any], rule: str) -> str:
    """The median that a rule judges, as a cell of the table."""
    finding = _finding(model, rule)
    return _cell(None if finding is None else finding["value"])


COLUMNS = {
    "lowest entropy": "entropy",
    "growth of the stream": "growth",
    "rank left": "rank",
    "first loss − ln V": "loss",
    "gradient balance": "exploding",
}
# name of a matrix → the field of its standard deviation, and that of its fan-in
PARAMETRISED = {
    "query": ("std_q", "width"),
    "key": ("std_k", "width"),
    "value": ("std_v", "width"),
    "attention output": ("std_o", "width of all heads"),
    "MLP in": ("std_in", "width"),
    "MLP out": ("std_out", "hidden"),
    "embedding": ("std_embedding", ""),
}
INTRODUCTION = """---
description: Open models at initialisation (initialization), audited alike.
hide: [toc]
---

# Atlas of open models

How do open models start? This page compares {count} of them at initialisation, before
any training. Each has the sizes that its authors published, the initialisation of its
code in transformers, and its own widths. netsor computed the exact law; the numbers are
medians over {draws} draws on {tokens} tokens (seed {seed}). What was trained may have
started otherwise where authors initialise by other code.

**{flagged} of {count} are flagged by a rule**: {rules}. A flag is not a verdict on a
trained model: [what the rules mean](../audit-reference.md), and
[which flags models survive](../audit-reference.md#flags-on-models-that-train-well).
Select a column to sort by it.

<div class="sortable" markdown>
"""


def _index(models: list[dict[str, Any]]) -> str:
    """The page with the table."""
    if not models:
        raise ValueError("docs/atlas has no files: run `make atlas`")
    text = INTRODUCTION.format(
        count=len(models),
        flagged=sum(bool(_flags(model)) for model in models),
        rules=_flags_by_rule(models),
        **SETTINGS,
    )
    heads = ["model", *COLUMNS, "flagged by"]
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for model in models:
        flags = ", ".join(f"`{name}`" for name in _flags(model)) or "–"
        cells = [f"[{MODELS[model['name']][0]}]({model['name']}.md)"]
        cells += [_value(model, rule) for rule in COLUMNS.values()]
        rows.append("| " + " | ".join([*cells, flags]) + " |")
    closing = (
        "\n\n</div>\n\nThe lowest entropy is that of the sharpest block, relative to"
        " uniform attention. The growth is that of the mean square of the residual"
        " stream, from the embedding to the end. The rank is the share of the"
        " directions in which tokens can differ. The gradient balance is the mean"
        " square of the stream's gradient at the embedding over that after the last"
        " block. A dash means that the quantity does not exist in the model, such as"
        " entropy without attention, or was not measured, such as gradients of models"
        " above 40 billion weights.\n\n`make atlas` measures the models that have no"
        " file yet.\n"
    )
    closing += _not_measured(models)
    cards = "\n\n".join(_card(model) for model in models)
    cards = f'## Model by model\n\n<div class="grid cards" markdown>\n\n{cards}'
    return f"{text}\n{chr(10).join(rows)}{closing}\n{cards}\n\n</div>\n"


def _not_measured(models: list[dict[str, Any]]) -> str:
    """A paragraph that names the models of the list without a file."""
    measured = {model["name"] for model in models}
    missing = [MODELS[name][0] for name in MODELS if name not in measured]
    if not missing:
        return ""
    return (
        "\nNot measured here, because each takes one to several minutes of processor"
        f" time: {', '.join(missing)}.\n"
    )


def _flags_by_rule(models: list[dict[str, Any]]) -> str:
    """How many models each rule flags, most first, as "`growth` 9, `scores` 4"."""
    counts = Counter(name for model in models for name in _flags(model))
    return ", ".join(f"`{name}` {count}" for name, count in counts.most_common())


def _card(model: dict[str, Any]) -> str:
    """A card: the name, the finding in words and the sizes."""
    title = MODELS[model["name"]][0]
    sizes = model["sizes"].removesuffix(" in matrices and embeddings")
    return (
        f"-   **[{title}]({model['name']}.md)**\n\n    {_verdict(model)}\n\n"
        f"    <small>{sizes}</small>"
    )


def _page(model: dict[str, Any]) -> str:
    """The page of one model: the verdict, the figure, the rules."""
    title, source = MODELS[model["name"]]
    versions = model["versions"]
    settings = model["settings"]
    lines = [
        f"---\ndescription: {title} at initialisation (initialization), before any"
        " training.\n---",
        f"# {title} at initialisation",
        f"**{_verdict(model)}**",
        f"{model['sizes']}.",
        f"![Four quantities of {title}, block by block]({model['name']}.svg)",
        f"*Medians over {settings['draws']} initialisations, {settings['tokens']}"
        " tokens.*",
        "| rule | verdict | measured |\n|---|---|---|\n" + _rules(model),
    ]
    lines += _parametrisation(source)
    for finding in model["findings"]:
        if finding["verdict"] == "FLAG":
            lines.append(f"## Why `{finding['name']}` flags it")
            lines.append(f"{finding['reason']} {finding['advice']}".strip())
    shown = json.dumps(source, indent=4).replace("true", "True")
    settings_text = f"tokens={settings['tokens']}, draws={settings['draws']}"
    lines.append(
        "## Compute it yourself\n\n```python\nimport netsor as ns\n\nmodel ="
        f" {shown.replace('false', 'False')}\nprint(ns.audit(model, {settings_text},"
        f" seed={settings['seed']}, gradients={bool(model['blocks'].get(GRADIENT))}))"
        "\n```"
    )
    read = " ".join(f"{name} {version}" for name, version in versions.items())
    lines.append(f"{read}; status: {model['status']}. [All models](index.md)")
    return "\n\n".join(lines) + "\n"


def _parametrisation(source: str | Fields) -> list[str]:
    """The standard deviations of the matrices, with a heading; nothing for a model that
    is read from its module.
    """
    model = _described(source)
    if model is None:
        return []
    head_dim = model.head_dim or model.width // model.heads
    fans = {
        "width": model.width,
        "hidden": model.hidden,
        "width of all heads": model.heads * head_dim,
    }
    rows = ["| matrix | std | std · √(fan-in) |\n|---|---|---|"]
    for name, (field, fan) in PARAMETRISED.items():
        std = getattr(model, field)
        scaled = f"{std * fans[fan] ** 0.5:.3g}" if fan else "–"
        rows.append(f"| {name} | {std:.3g} | {scaled} |")
    text = (
        "Standard deviations of the entries. The last column is the factor by which a"
        " matrix multiplies the root mean square of what it reads: 1 keeps it."
    )
    return ["## Parametrisation", text, "\n".join(rows)]


def _rules(model: dict[str, Any]) -> str:
    """The rows of the rules that could be decided."""
    rows = [
        f"| `{x['name']}` | {MARKS[x['verdict']]} | {x['brief']} |"
        for x in model["findings"]
        if x["verdict"] in MARKS
    ]
    return "\n".join(rows)


def _figure(model: dict[str, Any]) -> bytes:
    """Four quantities against the block, as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from netsor.report._mpl_style import BLUE, styled

    with styled():
        figure, panels = plt.subplots(2, 2, figsize=(4.9, 4.0), layout="constrained")
        for axes, quantity in zip(panels.flat, PANELS, strict=True):
            medians = model["blocks"].get(quantity)
            label, rule = PANELS[quantity]
            if not medians:
                axes.set_axis_off()
                axes.text(0, 0.5, f"{label}:\nnot measured", color="0.4")
                continue
            finding = _finding(model, rule) or {"brief": ""}
            title = finding["brief"][:1].upper() + finding["brief"][1:]
            axes.set_title(textwrap.fill(title, TITLE_LETTERS), loc="left")
            axes.set_ylabel(label)
            blocks = [k for k, x in enumerate(medians, 1) if x is not None]
            axes.plot(blocks, [x for x in medians if x is not None], color=BLUE)
            axes.set_xlabel("block")
            axes.xaxis.get_major_locator().set_params(integer=True)
            if quantity in LOGARITHMIC:
                axes.set_yscale("log")
                axes.yaxis.set_minor_formatter("")
            else:
                axes.set_ylim(0, 1.03 * max(x for x in medians if x is not None))
        image = io.BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
        plt.close(figure)
    return image.getvalue()


if __name__ == "__main__":
    if sys.argv[1:2] != ["measure"]:
        sys.exit("usage: python docs/_atlas.py measure [PROCESSES [SECONDS]]")
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else 36_000.0
    measure_all(processes, limit)
