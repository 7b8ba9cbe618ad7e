"""Real networks, drawn by the code of their authors, and the same numbers of them as
`small.program` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

from netsor.models import Transformer

from ..models.small import DECODER_IDS, IDS, OTHER, PIXELS, pair, seen

CLASSES = {
    "gpt2": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "mistral": transformers.MistralForCausalLM,
    "mixtral": transformers.MixtralForCausalLM,
    "olmo2": transformers.Olmo2ForCausalLM,
    "qwen2": transformers.Qwen2ForCausalLM,
    "qwen3": transformers.Qwen3ForCausalLM,
    "gemma2": transformers.Gemma2ForCausalLM,
    "gpt_neox": transformers.GPTNeoXForCausalLM,
    "bert": transformers.BertForMaskedLM,
    "vit": transformers.ViTForImageClassification,
    "t5": transformers.T5ForConditionalGeneration,
}


def configuration(given: dict[str, Any]) -> Any:
    """The configuration object of transformers."""
    fields = {k: v for k, v in given.items() if k != "model_type"}
    return transformers.AutoConfig.for_model(given["model_type"], **fields)


def draws(given: dict[str, Any], model: Transformer, count: int) -> np.ndarray:
    """(count, quantities) of so many initialisations, each of a new model."""
    config = configuration(given)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return np.array(
        [
            _numbers(CLASSES[given["model_type"]](config).eval(), model)
            for _ in range(count)
        ]
    )


@torch.no_grad()
def _numbers(network: Any, model: Transformer) -> list[float]:
    asked = {"output_hidden_states": True, "output_attentions": True}
    if model.inputs == "patches":
        out = network(torch.tensor(PIXELS[None], dtype=torch.float32), **asked)
        return _row(
            network.vit(
                torch.tensor(PIXELS[None], dtype=torch.float32)
            ).last_hidden_state,
            out,
            model,
        )
    ids = torch.tensor([IDS])
    if model.decoder_layers:
        out = network(
            input_ids=ids, decoder_input_ids=torch.tensor([DECODER_IDS]), **asked
        )
        out.hidden_states, out.attentions = (
            out.decoder_hidden_states,
            out.decoder_attentions,
        )
    else:
        out = network(input_ids=ids, **asked)
    return _row(out.hidden_states[-1], out, model)


def _row(last: torch.Tensor, out: Any, model: Transformer) -> list[float]:
    at, other, block, word = seen(model)
    block -= model.layers if model.decoder_layers else 0
    stream = out.hidden_states[block + 1][0].double().numpy()
    start = out.hidden_states[0][0].double().numpy()
    weights = out.attentions[block][0, -1, -1].double().numpy()
    weights = weights[weights > 0]
    early, (i, j) = out.attentions[0][0, 0, -1].double().numpy(), pair(model)
    logits = out.logits[0].double().numpy()
    gram = stream @ stream.T
    return [
        float(last[0, at, 0]),
        gram[at, at] / stream.shape[1],
        gram[at, other] / np.sqrt(gram[at, at] * gram[other, other]),
        float(np.mean(start[at] ** 2)),
        float(-(weights * np.log(weights)).sum()),
        float(np.log(early[i] / early[j])),
        *(
            (logits[1], logits[4])
            if logits.ndim == 1
            else (logits[at, word], logits[at, OTHER])
        ),
    ]


@torch.no_grad()
def loads(given: dict[str, Any], count: int) -> np.ndarray:
    """(count, blocks, 2): how many tokens the routers of real models send to the
    busiest and to the idlest expert.
    """
    config = configuration(given)
    torch.manual_seed(1)
    made = []
    for _ in range(count):
        network = CLASSES[given["model_type"]](config).eval()
        routers = network(
            input_ids=torch.tensor([IDS]), output_router_logits=True
        ).router_logits
        chosen = [
            logits.topk(config.num_experts_per_tok, dim=-1).indices
            for logits in routers
        ]
        counts = [
            torch.bincount(each.ravel(), minlength=config.num_local_experts)
            for each in chosen
        ]
        made.append([[int(each.max()), int(each.min())] for each in counts])
    return np.array(made)


@torch.no_grad()
def encoder(made: Callable[[], torch.nn.Module], width: int, count: int) -> np.ndarray:
    """(count, 3) of PyTorch's own encoders on unit Gaussian tokens: of what they add to
    their input, a coordinate, the mean square, and the product with what they add to
    another token.
    """
    torch.manual_seed(0)
    ids, found = torch.tensor([IDS]), []
    for _ in range(count):
        x = torch.nn.Embedding(max(IDS) + 1, width)(ids)
        added = (made().eval()(x) - x)[0].double().numpy()
        found.append(
            [added[4, 0], added[4] @ added[4] / width, added[4] @ added[1] / width]
        )
    return np.array(found)
