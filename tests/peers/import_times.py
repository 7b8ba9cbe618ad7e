"""How long netsor takes to import small models: a table in docs/coverage.md.

`python -m tests.peers.import_times` builds each class of `NAMES` small, with two blocks
or more, imports it once and prints its row: the seconds of processor time. One module
is imported before, because the first `torch.export` of a process takes seconds. Names
of classes import only these. Set OMP_NUM_THREADS=1 for it, and run it beside nothing
else: processes that share a processor make each other slower.
"""

from __future__ import annotations

import sys
import time
import warnings

import torch
import transformers

import netsor as ns

from .coverage import builder, model_classes

NAMES = (
    *("DeepseekV4ForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM"),
    *("Llama4ForCausalLM", "DiffLlamaForCausalLM", "HYV4ForCausalLM"),
    *("Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM", "KimiLinearForCausalLM"),
    *("NemotronHForCausalLM", "JambaForCausalLM", "Zamba2ForCausalLM"),
    *("FalconH1ForCausalLM", "BartForConditionalGeneration"),
    "ConvNextV2ForImageClassification",
)


def seconds_of_import(name: str) -> float:
    """The processor time that the import of a class takes."""
    arguments = next(x for x in model_classes() if x[2] == name)
    build, inputs = builder(*arguments)
    start = time.process_time()
    ns.torch.program(build, tuple(inputs.values()))
    return time.process_time() - start


def main(names: list[str]) -> None:
    """Import classes one after the other, and print the table."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    ns.torch.program(lambda: torch.nn.Linear(4, 4), torch.ones(2, 4))
    print("| class | seconds |\n|---|---|")
    for name in names or NAMES:
        if hasattr(transformers, name):
            print(f"| `{name}` | {seconds_of_import(name):.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
