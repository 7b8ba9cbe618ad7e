"""A training loop in nanoGPT's style, written out, with mistakes that can be planted.

It shares nothing with the loop of `ns.torch.run_law`: the mistakes are made as people
make them.
"""

import math

import numpy as np
import torch
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, TOKENS = 96, 64, 4, 32
ROWS, ACCUMULATION, STEPS, CLIP = 2, 4, 2, 1.0
WARM_UP, RATE, STD = 8, 6e-3, 0.02
IGNORED = -1  # the label of padding, as in nanoGPT


class Block(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.c_attn = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.drop = torch.nn.Dropout(dropout)
        self.is_causal = True

    def forward(self, x):
        rows, tokens, _ = x.shape
        parts = self.c_attn(self.ln_1(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(rows, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln_2(x)))))


class GPT(torch.nn.Module):
    def __init__(self, dropout=0.0, mistake=None):
        super().__init__()
        self.wte = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = torch.nn.Embedding(TOKENS, WIDTH)
        self.h = torch.nn.ModuleList(Block(dropout) for _ in range(2))
        self.ln_f = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        if mistake != "untied":
            self.lm_head.weight = self.wte.weight
        if mistake == "default initialisation":
            return
        for p in self.parameters():
            if p.ndim == 2:
                torch.nn.init.normal_(p, std=STD)
        for part in self.modules():
            if isinstance(part, torch.nn.Linear) and part.bias is not None:
                torch.nn.init.zeros_(part.bias)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED
        )
        return logits, loss


def groups(model):
    """Tables, matrices and vectors, each a group."""
    tables = {id(model.wte.weight), id(model.wpe.weight)}
    named = {"tables": [], "matrices": [], "vectors": []}
    for p in model.parameters():
        kind = "matrices" if p.ndim == 2 else "vectors"
        named["tables" if id(p) in tables else kind].append(p)
    return [
        {
            "params": members,
            "name": name,
            "weight_decay": 0.1 if name != "vectors" else 0,
        }
        for name, members in named.items()
    ]


def adamw(model):
    optimizer = torch.optim.AdamW(groups(model), lr=RATE, betas=(0.9, 0.95))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)


def warm_up(step):
    return min(1.0, (step + 1) / WARM_UP)


def data(count=ACCUMULATION * (STEPS + 2), seed=0):
    """Batches of ids with frequencies as 1/rank, the last tokens of a row are padding."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, VOCABULARY)
    batches = []
    for _ in range(count):
        ids = rng.choice(
            VOCABULARY - 1, p=weights / weights.sum(), size=(ROWS, TOKENS + 1)
        )
        ids = 1 + torch.tensor(ids)
        ids[0, -24:] = 0  # padding
        targets = ids[:, 1:].clone()
        targets[targets == 0] = IGNORED
        batches.append((ids[:, :-1].clone(), targets))
    return batches


def norm_of(tensors):
    return math.sqrt(sum(float(x.detach().double().square().sum()) for x in tensors))


def gradients(parameters):
    return norm_of([p.grad for p in parameters if p.grad is not None])


def train(seed, mistake=None, steps=STEPS):
    """The log of a run: rows with loss, gradient and update norms by group."""
    torch.manual_seed(seed)
    model = GPT(0.1 if mistake == "dropout" else 0.0, mistake)
    if mistake == "no causal mask":
        for block in model.h:
            block.is_causal = False
    kinds = {each["name"]: each["params"] for each in groups(model)}
    optimizer = optimizer_of(model, mistake)
    model.train()
    batches = data()
    rows = []
    for step in range(steps + 1):
        losses = []
        for part in range(ACCUMULATION):
            if mistake == "zeroed at each pass":
                optimizer.zero_grad()
            number = part if mistake == "one batch" else step * ACCUMULATION + part
            ids, targets = batch_of(batches[number], mistake)
            loss = model(ids, targets)[1]
            if mistake == "sum over tokens":
                loss = loss * int((targets != IGNORED).sum())
            share = 1.0 if mistake == "summed gradients" else 1 / ACCUMULATION
            if mistake == "divided twice":
                share = 1 / ACCUMULATION**2
            (loss * share).backward()
            losses.append(loss.item())
        row = {"step": step, "loss": sum(losses) / len(losses)}
        if mistake == "summed logged loss":
            row["loss"] = sum(losses)
        row["grad_norm"] = gradients(model.parameters())
        for name, members in kinds.items():
            row[f"grad_norm/{name}"] = gradients(members)
        if mistake != "not clipped":
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        row["grad_norm_clipped"] = gradients(model.parameters())
        before = {id(p): p.detach().clone() for p in model.parameters()}
        for group in optimizer.param_groups:
            group["lr"] = rate(step, mistake)
        optimizer.step()
        if mistake == "two updates":
            optimizer.step()
        for name, members in kinds.items():
            moves = [p.detach() - before[id(p)] for p in members]
            row[f"update_norm/{name}"] = norm_of(moves)
        if mistake == "new optimiser":
            optimizer = optimizer_of(model, mistake)
        if mistake != "not zeroed":
            optimizer.zero_grad()
        rows.append(row)
    return rows


def rate(step, mistake):
    """The learning rate of a step."""
    if mistake == "no schedule":
        return RATE
    if mistake == "schedule off by one":
        step += 1
    if mistake == "schedule at each pass":
        step = ACCUMULATION * (step + 1) - 1
    factor = 0.1 if mistake == "learning rate" else 1.0
    return factor * RATE * warm_up(step)


def optimizer_of(model, mistake):
    """The optimizer, with mistakes in its parameters."""
    if mistake == "frozen":
        model.wpe.weight.requires_grad_(False)
    listed = groups(model)
    if mistake == "group left out":
        listed = listed[:2]
    if mistake == "coupled decay":
        return torch.optim.Adam(listed, lr=RATE, betas=(0.9, 0.95))
    return torch.optim.AdamW(listed, lr=RATE, betas=(0.9, 0.95))


def batch_of(batch, mistake):
    """The batch, with mistakes in its labels."""
    ids, targets = batch
    if mistake == "labels not shifted":
        return ids, torch.where(ids == 0, IGNORED, ids)
    if mistake == "labels shifted twice":
        return ids, torch.cat([targets[:, 1:], targets[:, -1:]], dim=1)
    if mistake == "loss over padding":
        return ids, torch.where(targets == IGNORED, 0, targets)
    return ids, targets


# how the verdict names each
QUESTIONS = {
    "summed gradients": "are gradients summed over 4 accumulation steps, not averaged?",
    "summed logged loss": "is the logged loss summed over 4 accumulation steps",
    "divided twice": "are gradients divided by 4 accumulation steps twice?",
    "zeroed at each pass": "are gradients zeroed at each accumulation step",
    "sum over tokens": "is the loss summed over the",
    "not zeroed": "are gradients not zeroed after each step?",
    "not clipped": "is clipping missing?",
    "labels not shifted": "are labels not shifted",
    "loss over padding": "does the loss count padding",
    "one batch": "is the first batch used at every step?",
    "no causal mask": "is the causal mask missing?",
    "default initialisation": "do the weights keep PyTorch's default initialisation?",
    "untied": "are wte.weight and lm_head.weight not tied?",
    "dropout": "is dropout active",
    "frozen": "is wpe frozen",
    "group left out": "is parameter group vectors left out of the optimiser?",
    "two updates": "does the optimiser step twice at each step?",
    "learning rate": "is the learning rate a tenth of what it should be?",
    "no schedule": "is the schedule of the learning rate, such as its warm-up, missing?",
    "schedule off by one": "is the schedule off by one",
    "schedule at each pass": "does the schedule step at each accumulation step?",
    "new optimiser": "is the optimiser created again at each step",
}
# on ids without structure these change no number that is visible at random weights
INVISIBLE = {"no causal mask", "dropout"}
