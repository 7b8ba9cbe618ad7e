"""The atlas: one page for each of about forty open models at initialisation.

- `python docs/_atlas.py measure` audits every model of `MODELS`, whose configuration is
  the default one of its class in transformers, and writes docs/atlas/NAME.json. Models
  with a file are left out: delete a file to measure its model again.
- As a hook of mkdocs it makes the pages from these files.

The settings are those below: they were fixed before any model was measured.
"""

import io
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "atlas"
SETTINGS = {"tokens": 16, "draws": 20, "seed": 2, "widths": "actual", "gradients": True}
DIGITS = 4

# type in transformers → name for people; sizes are those of the default configuration
MODELS = {
    "apertus": "Apertus",
    "bamba": "Bamba",
    "codegen": "CodeGen",
    "cohere": "Command R",
    "deepseek_v2": "DeepSeek V2",
    "deepseek_v3": "DeepSeek V3",
    "exaone4": "EXAONE 4",
    "falcon": "Falcon",
    "falcon_h1": "Falcon-H1",
    "falcon_mamba": "Falcon Mamba",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3",
    "gemma4_text": "Gemma 4",
    "glm4": "GLM-4",
    "glm4_moe": "GLM-4.5 (experts)",
    "gpt2": "GPT-2",
    "gpt_neox": "GPT-NeoX",
    "gpt_oss": "gpt-oss",
    "gptj": "GPT-J",
    "granite": "Granite",
    "jamba": "Jamba",
    "kimi_linear": "Kimi Linear",
    "lfm2": "LFM2",
    "llama": "Llama",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "minimax": "MiniMax-01",
    "ministral3": "Ministral 3",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "modernbert-decoder": "ModernBERT decoder",
    "nanochat": "nanochat",
    "nemotron": "Nemotron",
    "olmo": "OLMo",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "olmoe": "OLMoE",
    "opt": "OPT",
    "phi3": "Phi-3",
    "phimoe": "Phi-3.5 MoE",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_5": "Qwen3.5",
    "qwen3_moe": "Qwen3 MoE",
    "recurrent_gemma": "RecurrentGemma",
    "seed_oss": "Seed-OSS",
    "smollm3": "SmolLM3",
    "stablelm": "StableLM",
    "starcoder2": "StarCoder2",
    "zamba2": "Zamba2",
}

# quantity of a block → title of its panel
PANELS = {
    "mean_square": "mean square of the residual stream",
    "effective_rank": "effective rank of the tokens",
    "entropy": "attention entropy / uniform",
    "grad_mean_square": "mean square of the stream's gradient",
}
LOGARITHMIC = {"mean_square", "grad_mean_square"}
MARKS = {"FLAG": "flagged", "ok": "ok", "undecided": "undecided"}


# Measuring


def measure(name: str) -> dict[str, Any]:
    """The audit of one model, in the few numbers that its page shows."""
    import transformers
    from transformers import AutoConfig

    import netsor as ns

    config = AutoConfig.for_model(name)
    audit = ns.audit(config, workers=1, **SETTINGS)
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
        "vocabulary": config.get_text_config().vocab_size,
        "sizes": content["sizes"],
        "status": content["status"],
        "verdict": str(audit).split("\n", 1)[0].partition(": ")[2],
        "findings": findings,
        "blocks": blocks,
        "final": final,
        "settings": SETTINGS,
        "versions": {
            "netsor": ns.__version__,
            "transformers": transformers.__version__,
        },
    }


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
    with ProcessPoolExecutor(workers, max_tasks_per_child=1) as pool:
        jobs = {pool.submit(measure, name): name for name in missing}
        for job in as_completed(jobs, timeout=seconds):
            name = jobs[job]
            try:
                content = job.result()
            except Exception as error:  # the others are measured all the same
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            path = FOLDER / f"{name}.json"
            temporary = path.with_suffix(".part")
            temporary.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
            temporary.replace(path)
            print(f"{name}: {content['verdict']}", flush=True)


# Pages


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs when it has found the pages in docs/."""
    from mkdocs.structure.files import File

    models = [
        json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))
    ]
    models.sort(key=lambda model: MODELS[model["name"]].lower())
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
    return "–" if number is None else f"{number:,.3g}"


def _value(model: dict[str, Any], rule: str) -> str:
    """The median that a rule judges, as a cell of the table."""
    finding = _finding(model, rule)
    return _cell(None if finding is None else finding["value"])


COLUMNS = {
    "lowest entropy": "entropy",
    "growth of the stream": "growth",
    "rank left": "rank",
    "first loss − ln V": "loss",
}
INTRODUCTION = """---
description: Open models at initialisation (initialization), audited alike.
hide: [toc]
---

# Atlas of open models

How do open models start? This page compares {count} of them at initialisation, before
any training. Each has the default configuration of its class in transformers {version},
its own initialisation and its own widths. netsor read the code of the model and
computed the exact law; the numbers are medians over {draws} draws on {tokens} tokens
(seed {seed}). A default configuration is not always the one that was trained: it is
what you get if you construct the class.

**{flagged} of {count} are flagged by a rule.** A flag is no verdict on a trained model:
[what the rules mean](../audit-reference.md), and
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
        version=models[0]["versions"]["transformers"],
        flagged=sum(bool(_flags(model)) for model in models),
        **SETTINGS,
    )
    heads = ["model", *COLUMNS, "flagged by"]
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for model in models:
        flags = ", ".join(f"`{name}`" for name in _flags(model)) or "–"
        cells = [f"[{MODELS[model['name']]}]({model['name']}.md)"]
        cells += [_value(model, rule) for rule in COLUMNS.values()]
        rows.append("| " + " | ".join([*cells, flags]) + " |")
    closing = (
        "\n\n</div>\n\nThe lowest entropy is that of the sharpest block, relative to"
        " uniform attention. The growth is that of the mean square of the residual"
        " stream, from the embedding to the end. The rank is the share of the"
        " directions in which tokens can differ. A dash means that the quantity does"
        " not exist in the model, such as entropy without attention.\n\n`make atlas`"
        " measures all models again.\n"
    )
    return text + "\n" + "\n".join(rows) + closing


def _page(model: dict[str, Any]) -> str:
    """The page of one model: the verdict, the figure, the rules."""
    title = MODELS[model["name"]]
    versions = model["versions"]
    settings = model["settings"]
    config = f'AutoConfig.for_model("{model["name"]}")'
    lines = [
        f"---\ndescription: {title} at initialisation (initialization): audit before"
        " training.\n---",
        f"# {title} at initialisation",
        f"**{model['verdict']}**",
        f"{model['sizes']}.",
        f"![Four quantities of {title}, block by block]({model['name']}.svg)",
        f"*Medians over {settings['draws']} initialisations, {settings['tokens']}"
        " tokens.*",
        "| rule | verdict | measured |\n|---|---|---|\n" + _rules(model),
    ]
    for finding in model["findings"]:
        if finding["verdict"] == "FLAG":
            lines.append(f"## Why `{finding['name']}` flags it")
            lines.append(f"{finding['reason']} {finding['advice']}".strip())
    lines.append(
        "## Compute it yourself\n\n```python\nimport netsor as ns\nfrom transformers"
        f" import AutoConfig\n\nprint(ns.audit({config}, tokens={settings['tokens']},"
        f" draws={settings['draws']}, seed={settings['seed']}, gradients=True))\n```"
    )
    lines.append(
        f"netsor {versions['netsor']}, transformers {versions['transformers']}; status"
        f" *{model['status']}*. [All models](index.md)"
    )
    return "\n\n".join(lines) + "\n"


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
        figure, panels = plt.subplots(2, 2, figsize=(6.8, 3.8), layout="constrained")
        for axes, (quantity, title) in zip(panels.flat, PANELS.items(), strict=True):
            medians = model["blocks"].get(quantity)
            axes.set_title(title, loc="left")
            if not medians:
                axes.set_axis_off()
                axes.text(0, 0.5, "not measured in this model", color="0.4")
                continue
            blocks = [k for k, x in enumerate(medians, 1) if x is not None]
            axes.plot(blocks, [x for x in medians if x is not None], color=BLUE)
            axes.set_xlabel("block")
            if quantity in LOGARITHMIC:
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, None)
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
