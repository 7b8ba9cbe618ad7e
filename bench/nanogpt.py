"""A GPT-2 in nanoGPT's style, its optimiser, and a training loop written out.

It shares no code with netsor: `first_steps.py` compares its logs with the laws of
netsor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

RATE, WARM_UP, BETAS, DECAY = 6e-4, 10, (0.9, 0.95), 0.1
CLIP = 1.0


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT; those of GPT-2, with 124 million parameters, by default."""

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768


class Attention(torch.nn.Module):
    """Causal attention."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.n_head
        self.c_attn = torch.nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = torch.nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        """Apply the layer."""
        rows, tokens, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        q, k, v = (
            part.view(rows, tokens, self.heads, -1).transpose(1, 2) for part in parts
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(rows, tokens, width))


class MLP(torch.nn.Module):
    """A perceptron with one hidden layer."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = torch.nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = torch.nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x):
        """Apply the layer."""
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(torch.nn.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = torch.nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = torch.nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x):
        """Apply the layer."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(torch.nn.Module):
    """The language model; it returns logits and the loss."""

    def __init__(self, config):
        super().__init__()
        self.wte = torch.nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = torch.nn.Embedding(config.block_size, config.n_embd)
        self.h = torch.nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = torch.nn.LayerNorm(config.n_embd)
        self.lm_head = torch.nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(_initialise)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, std=0.02 / math.sqrt(2 * config.n_layer))

    def forward(self, ids, targets):
        """The logits and the mean loss."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.wte(ids) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def _initialise(part):
    """nanoGPT's initialisation of a part of the model."""
    if isinstance(part, torch.nn.Linear | torch.nn.Embedding):
        torch.nn.init.normal_(part.weight, std=0.02)
    if isinstance(part, torch.nn.Linear) and part.bias is not None:
        torch.nn.init.zeros_(part.bias)


def groups(model):
    """Matrices, which decay, and vectors, which do not."""
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    return [
        {"name": "matrices", "params": matrices, "weight_decay": DECAY},
        {"name": "vectors", "params": vectors, "weight_decay": 0.0},
    ]


def adamw(model):
    """The optimiser; its kernel is fused on a GPU."""
    is_on_gpu = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups(model), lr=RATE, betas=BETAS, fused=is_on_gpu)


def warm_up(step):
    """The share of the learning rate at a step."""
    return min(1.0, (step + 1) / (WARM_UP + 1))


def scheduled(model):
    """The optimiser and its schedule, as Lightning asks for them."""
    optimizer = adamw(model)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)


def train(config, batches, accumulation, seed, device, mistake=None):
    """The log of a run: a row for each step.

    The weights are drawn on the device. `mistake` is one of `MISTAKES`, or None.
    """
    torch.manual_seed(seed)
    with torch.device(device):
        model = GPT(config)
    model.train()
    optimizer = adamw(model)
    members = {group["name"]: group["params"] for group in optimizer.param_groups}
    rows = []
    for step in range(len(batches) // accumulation):
        first = step * accumulation
        loss = _backward(model, batches[first : first + accumulation], mistake)
        row = {"step": step, "loss": loss}
        for name, parameters in members.items():
            row[f"grad_norm/{name}"] = _norm([p.grad for p in parameters])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        row["grad_norm"] = norm.item()
        row["grad_norm_clipped"] = _norm([p.grad for p in model.parameters()])
        row["param_norm"] = _norm(list(model.parameters()))
        row["lr"] = RATE * warm_up(step + (mistake == "schedule one step early"))
        for group in optimizer.param_groups:
            group["lr"] = row["lr"]
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        moves = {
            p: p.detach() - old
            for p, old in zip(model.parameters(), before, strict=True)
        }
        row["update_norm"] = _norm(list(moves.values()))
        for name, parameters in members.items():
            row[f"update_norm/{name}"] = _norm([moves[p] for p in parameters])
        rows.append(row)
    return rows


MISTAKES = ("summed gradients", "labels not shifted", "schedule one step early")


def _backward(model, batches, mistake):
    """Accumulate the gradients of a step; the mean loss."""
    losses = []
    for ids, targets in batches:
        if mistake == "labels not shifted":
            targets = ids
        loss = model(ids, targets)[1]
        share = 1.0 if mistake == "summed gradients" else 1 / len(batches)
        (loss * share).backward()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def _norm(tensors):
    """The norm of all entries of several tensors together."""
    squares = [x.detach().double().square().sum() for x in tensors]
    return math.sqrt(torch.stack(squares).sum().item())
