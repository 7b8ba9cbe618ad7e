"""Parameters of the same role under the names of common code bases.

The matrix of queries is `attention.wq` in Llama's own code and `self_attn.q_proj` in
Transformers. Where the forward pass of a module is not read, its parameters are matched
with those of a reference by such names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# by kind, the ends of names without ".weight" or ".bias", as a regular expression
OF_BLOCKS = {
    "query": "wq|q_proj|query",
    "key": "wk|k_proj|key",
    "value": "wv|v_proj|value",
    "qkv": "c_attn|wqkv|qkv|qkv_proj|query_key_value",
    "output": r"wo|o_proj|out_proj|(?:attn|attention)\.(?:c_proj|proj|dense)",
    "gate": "w1|gate_proj",
    "in": "w3|up_proj|c_fc|fc1|fc_in|dense_h_to_4h",
    "out": r"w2|down_proj|mlp\.c_proj|fc2|fc_out|dense_4h_to_h",
    "first norm": "ln_1|ln1|norm1|attention_norm|input_layernorm",
    "second norm": "ln_2|ln2|norm2|ffn_norm|post_attention_layernorm",
}
OUTSIDE = {
    "embedding": "wte|tok_embeddings|tok_emb|embed_tokens|embed_in|token_embedding"
    "|token_embedding_table|tok",
    "position": "wpe|pos_emb|position_embedding|position_embeddings"
    "|position_embedding_table|pos",
    "head": "lm_head|embed_out|output|head",
    "last norm": "ln_f|norm|final_norm|final_layer_norm",
}
NORMS = ("first norm", "second norm", "last norm")


class Role(NamedTuple):
    """What a parameter is: its block (None outside of blocks), and its kind."""

    block: int | None
    kind: str
    suffix: str  # "weight" or "bias"


def role_of(name: str) -> Role | None:
    """The role of a parameter, by its name; None for other names."""
    path, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        return None
    in_block = re.fullmatch(r"(?:.*?\.)?(\d+)\.(\D+\d?)", path)
    block = None
    rest = path
    kinds = OUTSIDE
    if in_block is not None:
        block = int(in_block[1])
        rest = in_block[2]
        kinds = OF_BLOCKS
    for kind, ends in kinds.items():
        if re.search(rf"(?:^|\.)(?:{ends})$", rest):
            return Role(block, kind, suffix)
    return None


def by_role(names: Iterable[str]) -> dict[Role, str]:
    """The names of parameters by their roles; a role that several have is left out."""
    names_of_role: dict[Role, list[str]] = {}
    for name in names:
        role = role_of(name)
        if role is not None:
            names_of_role.setdefault(role, []).append(name)
    return {
        role: listed[0] for role, listed in names_of_role.items() if len(listed) == 1
    }
