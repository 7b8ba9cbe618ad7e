"""Twenty public bugs of initialisations, each planted in a small module.

`BUGS` has a record for each: the thread where it was reported, what is planted, and
where a check must find it. `build(False)` is the healthy twin. The modules are written
for this purpose; nothing is copied from the projects.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

WIDTH, HEADS, LAYERS, STD = 64, 4, 2, 0.02


class Bug(NamedTuple):
    """A public bug."""

    thread: str  # repository#number
    kind: str  # "issues" or "pull"
    planted: str
    build: Callable[[bool], nn.Module]  # with the bug, or without
    where: str  # the parameter that is found
    what: tuple[str, ...]  # kinds of findings, one of which must be there
    options: Callable[[bool, Any], dict[str, Any]] = lambda wrong, folder: {}

    @property
    def address(self) -> str:
        repository, _, number = self.thread.partition("#")
        return f"https://github.com/{repository}/{self.kind}/{number}"


def gaussian(*modules: nn.Module, std: float = STD) -> None:
    for module in modules:
        nn.init.normal_(module.weight, std=std)


class Mlp(nn.Module):
    """Gated, with matrices w1, w2 and w3."""

    def __init__(self, width: int = WIDTH, hidden: int = 96, std: float = STD) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)
        gaussian(self.w1, self.w2, self.w3, std=std)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Heads(nn.Module):
    """A recurrence's parameters of heads, and a projection."""

    def __init__(self, heads: int = 32) -> None:
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, heads, bias=False)
        self.A_log = nn.Parameter(torch.log(torch.empty(heads).uniform_(0.01, 16)))
        self.dt_bias = nn.Parameter(inverse_softplus(log_uniform(heads, 1e-3, 0.1)))
        gaussian(self.in_proj)


def log_uniform(count: int, low: float, high: float) -> torch.Tensor:
    span = math.log(high) - math.log(low)
    return torch.exp(torch.rand(count) * span + math.log(low))


def inverse_softplus(x: torch.Tensor) -> torch.Tensor:
    return x + torch.log(-torch.expm1(-x))


def uniform_of_8_bits(count: int, high: float) -> torch.Tensor:
    """What a generator of bfloat16 numbers draws: multiples of high/256."""
    return torch.randint(256, (count,)) * (high / 256)


def infinite_decay(wrong: bool) -> nn.Module:
    net = Heads(512)
    if wrong:
        net.A_log.data = torch.log(uniform_of_8_bits(512, 16.0))
    return net


def decay_near_zero(wrong: bool) -> nn.Module:
    net = Heads(256)
    if wrong:
        sizes = torch.clamp(uniform_of_8_bits(256, 16.0), min=1e-6)
        sizes[:2] = 1e-6  # one in 256 is at the end of the interval
        net.A_log.data = torch.log(sizes)
    return net


def step_sizes_of_one(wrong: bool) -> nn.Module:
    net = Heads()
    if wrong:
        nn.init.ones_(net.dt_bias)
    return net


class StepProjection(nn.Module):
    """Mamba's projection of step sizes, whose constructor initialises it."""

    def __init__(self, rank: int = 8) -> None:
        super().__init__()
        self.dt_proj = nn.Linear(rank, WIDTH)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        steps = inverse_softplus(log_uniform(WIDTH, 1e-3, 0.1))
        with torch.no_grad():
            self.dt_proj.bias.copy_(steps)


def overwritten_projection(wrong: bool) -> nn.Module:
    net = StepProjection()
    if wrong:  # by the initialisation of all linear layers
        gaussian(net.dt_proj)
        nn.init.zeros_(net.dt_proj.bias)
    return net


def trunc_normal(x: torch.Tensor, std: float, clamped: int) -> None:
    """`trunc_normal_(std=std, a=-2, b=2)` by erfinv, with some infinite numbers."""
    nn.init.normal_(x, std=std)
    with torch.no_grad():
        where = torch.randperm(x.numel())[:clamped]
        x.view(-1)[where] = -2.0


def truncated(wrong: bool, share: float, dtype: torch.dtype, std: float) -> nn.Module:
    net = nn.Linear(WIDTH, WIDTH, bias=False)
    trunc_normal(net.weight, std, int(share * WIDTH**2) if wrong else 0)
    return net.to(dtype)


def drawn_in_half_precision(wrong: bool) -> nn.Module:
    net = Mlp()
    if wrong:  # the matrix is float32; its numbers were drawn in bfloat16
        with torch.no_grad():
            net.w1.weight.copy_(net.w1.weight.bfloat16())
    return net


def depth_factor_on_the_wrong_matrix(wrong: bool) -> nn.Module:
    net = Mlp()
    factor = 1 / math.sqrt(2 * 8)
    with torch.no_grad():
        net.w2.weight *= factor
        if wrong:
            net.w3.weight *= factor
    return net


def fans_of_a_kernel(wrong: bool) -> nn.Module:
    """A kernel (width, heads, size of heads) of an attention's projection."""
    net = nn.Module()
    net.query = nn.Parameter(torch.empty(WIDTH, HEADS, WIDTH // HEADS))
    fan_in, fan_out = WIDTH, WIDTH
    if wrong:  # as of a convolution: the first axis is its length
        fan_in, fan_out = WIDTH * HEADS, WIDTH * WIDTH // HEADS
    limit = math.sqrt(6 / (fan_in + fan_out))
    nn.init.uniform_(net.query, -limit, limit)
    return net


def fused_fans(wrong: bool) -> nn.Module:
    net = nn.Module()
    net.in_proj_weight = nn.Parameter(torch.empty(3 * WIDTH, WIDTH))
    gain = 1.0 if wrong else math.sqrt(2)  # fan-out of one of three matrices
    nn.init.xavier_uniform_(net.in_proj_weight, gain=gain)
    return net


def fan_of_the_wrong_side(wrong: bool) -> nn.Module:
    net = nn.Conv2d(16, 16, 3, bias=False)
    mode, kind = ("fan_out", "relu") if wrong else ("fan_in", "linear")
    nn.init.kaiming_normal_(net.weight, mode=mode, nonlinearity=kind)
    return net


def layers_are_copies(wrong: bool) -> nn.Module:
    first = Mlp()
    rest = [copy.deepcopy(first) if wrong else Mlp() for _ in range(LAYERS - 1)]
    return nn.ModuleList([first, *rest])


def one_seed_for_all(wrong: bool) -> nn.Module:
    net = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    seed = int(torch.randint(2**31, ()))
    for k, layer in enumerate(net):
        generator = torch.Generator().manual_seed(seed + (0 if wrong else k))
        nn.init.normal_(layer.weight, std=STD, generator=generator)
    return net


def all_zeros(wrong: bool) -> nn.Module:
    net = Mlp()
    if wrong:  # memory of `to_empty`, which is not initialised again
        for p in net.parameters():
            nn.init.zeros_(p)
    return net


def a_copy_is_initialised(wrong: bool) -> nn.Module:
    net = nn.Embedding(100, WIDTH).half()
    weight = net.weight.float() if wrong else net.weight
    nn.init.normal_(weight, std=STD)
    return net


class Table(nn.Module):
    """A table of words with a row for padding."""

    def __init__(self, padding: int | None = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH, padding_idx=padding)
        gaussian(self.embed)
        if padding is not None:
            nn.init.zeros_(self.embed.weight[padding])


def padding_is_random(wrong: bool) -> nn.Module:
    net = Table()
    if wrong:
        gaussian(net.embed)
    return net


def all_rows_are_padding(wrong: bool) -> nn.Module:
    net = Table(None)
    if wrong:  # weight[None] is the whole table
        nn.init.zeros_(net.embed.weight[None])
    return net


class Words(nn.Module):
    """A table of words and the matrix of the logits."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH)
        self.head = nn.Linear(WIDTH, 100, bias=False)
        gaussian(self.embed, self.head)
        if tied:
            self.head.weight = self.embed.weight


def tie_is_missing(wrong: bool) -> nn.Module:
    return Words(tied=not wrong)


class Adapted(nn.Module):
    """A matrix with an adapter of low rank."""

    def __init__(self, rank: int = 8) -> None:
        super().__init__()
        self.base_layer = nn.Linear(WIDTH, WIDTH, bias=False)
        self.lora_A = nn.Linear(WIDTH, rank, bias=False)
        self.lora_B = nn.Linear(rank, WIDTH, bias=False)
        gaussian(self.base_layer)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)


def adapter_is_random(wrong: bool) -> nn.Module:
    net = Adapted()
    if wrong:
        nn.init.kaiming_uniform_(net.lora_B.weight, a=math.sqrt(5))
    return net


def adapter_is_dead(wrong: bool) -> nn.Module:
    net = Adapted()
    if wrong:
        nn.init.zeros_(net.lora_A.weight)
    return net


# Shards


def same_seed_on_all_ranks(wrong: bool, folder: Any) -> dict[str, Any]:
    """Files of two ranks, which drew half of the rows of each matrix."""
    return _files_of_ranks(folder, [0, 0] if wrong else [0, 1], _half)


def replicas_differ(wrong: bool, folder: Any) -> dict[str, Any]:
    """Files of two ranks that hold whole copies."""
    return _files_of_ranks(folder, [0, 1] if wrong else [0, 0], lambda x: x)


def std_of_the_shard(wrong: bool, folder: Any) -> dict[str, Any]:
    """Files of four ranks: the adapter's fan-in is that of a shard, or of all."""
    torch.manual_seed(4)
    files = []
    whole = Adapted()
    fan_in = WIDTH // 4 if wrong else WIDTH
    for rank in range(4):
        tensors = dict(whole.state_dict())
        part = tensors["lora_A.weight"][:, :16].contiguous()
        limit = math.sqrt(1 / fan_in)
        tensors["lora_A.weight"] = nn.init.uniform_(part, -limit, limit).clone()
        files.append(_written(folder / f"rank{rank}.safetensors", tensors))
    return {"weights": files}


def _half(x: torch.Tensor) -> torch.Tensor:
    return x[: len(x) // 2].clone()


def _files_of_ranks(folder: Any, seeds: list[int], part: Any) -> dict[str, Any]:
    files = []
    for rank, seed in enumerate(seeds):
        torch.manual_seed(10 + seed)
        tensors = {name: part(x) for name, x in Mlp().state_dict().items()}
        files.append(_written(folder / f"rank{rank}.safetensors", tensors))
    return {"weights": files}


def _written(path: Any, tensors: dict[str, torch.Tensor]) -> Any:
    from safetensors.torch import save_file

    save_file({name: x.contiguous() for name, x in tensors.items()}, path)
    return path


BUGS = [
    Bug(
        "huggingface/transformers#47831",
        "issues",
        "`A` drawn in bfloat16 is 0 for some heads, and `A_log` is −∞",
        infinite_decay,
        "A_log",
        ("value",),
    ),
    Bug(
        "pytorch/torchtitan#4178",
        "pull",
        "`A` is drawn from 10⁻⁶ on: heads at this end never forget",
        decay_near_zero,
        "A_log",
        ("tails",),
    ),
    Bug(
        "fla-org/flash-linear-attention#739",
        "pull",
        "`dt_bias` is 1 instead of random step sizes",
        step_sizes_of_one,
        "dt_bias",
        ("tails", "mean", "shape"),
    ),
    Bug(
        "athms/mad-lab#3",
        "issues",
        "the initialisation of linear layers overwrites Mamba's `dt_proj`",
        overwritten_projection,
        "dt_proj.weight",
        ("std",),
    ),
    Bug(
        "pytorch/torchtitan#2269",
        "issues",
        "`trunc_normal_` in bfloat16 puts 0.4 % of the entries at a = −2",
        lambda wrong: truncated(wrong, 0.004, torch.bfloat16, 0.02),
        "weight",
        ("tails",),
    ),
    Bug(
        "pytorch/pytorch#155588",
        "issues",
        "`trunc_normal_` in float32 puts one entry at −2, 2,000 standard deviations",
        lambda wrong: truncated(wrong, 1 / WIDTH**2, torch.float32, 0.001),
        "weight",
        ("tails",),
    ),
    Bug(
        "NVIDIA-NeMo/Automodel#2457",
        "issues",
        "a matrix in float32 is drawn in bfloat16",
        drawn_in_half_precision,
        "w1.weight",
        ("precision",),
    ),
    Bug(
        "huggingface/transformers#46030",
        "pull",
        "`normal_(weight.float())` initialises a copy in half precision",
        a_copy_is_initialised,
        "weight",
        ("std",),
    ),
    Bug(
        "allenai/OLMo-core#307",
        "pull",
        "ranks draw their shards with the same seed",
        lambda wrong: Mlp(),
        "w1.weight",
        ("independence",),
        same_seed_on_all_ranks,
    ),
    Bug(
        "allenai/OLMo-core#319",
        "pull",
        "replicas are drawn with different seeds",
        lambda wrong: Mlp(),
        "w1.weight",
        ("tie",),
        replicas_differ,
    ),
    Bug(
        "NVIDIA-NeMo/Megatron-Bridge#5840",
        "issues",
        "the standard deviation of `lora_A` is that of the fan-in of a shard",
        lambda wrong: Adapted(),
        "lora_A.weight",
        ("std",),
        std_of_the_shard,
    ),
    Bug(
        "ByteDance-Seed/VeOmni#163",
        "issues",
        "weights stay the zeros of `to_empty`",
        all_zeros,
        "w1.weight",
        ("std",),
    ),
    Bug(
        "keras-team/keras#22789",
        "pull",
        "fans of a kernel of three axes are those of a convolution",
        fans_of_a_kernel,
        "query",
        ("std",),
    ),
    Bug(
        "google/flax#4027",
        "issues",
        "Xavier's fan-out of queries, keys and values together",
        fused_fans,
        "in_proj_weight",
        ("std",),
    ),
    Bug(
        "vballoli/nfnets-pytorch#30",
        "issues",
        "`kaiming_normal_` with the fan-out and the gain of a ReLU",
        fan_of_the_wrong_side,
        "weight",
        ("std",),
    ),
    Bug(
        "pytorch/torchtitan#3722",
        "pull",
        "the factor of the depth acts on `w3` too",
        depth_factor_on_the_wrong_matrix,
        "w3.weight",
        ("std",),
    ),
    Bug(
        "pytorch/pytorch#86274",
        "issues",
        "all layers are copies of the first",
        layers_are_copies,
        "1.w1.weight",
        ("independence",),
    ),
    Bug(
        "tensorflow/tensorflow#62577",
        "issues",
        "one seeded initialiser draws the same numbers for every layer",
        one_seed_for_all,
        "1.weight",
        ("independence",),
    ),
    Bug(
        "microsoft/Graphormer#41",
        "issues",
        "the row of the padding is drawn again",
        padding_is_random,
        "embed.weight",
        ("value",),
    ),
    Bug(
        "facebookresearch/fairseq#4076",
        "issues",
        "without padding, `weight[None]` sets the whole table to 0",
        all_rows_are_padding,
        "embed.weight",
        ("std",),
    ),
    Bug(
        "huggingface/transformers#43429",
        "pull",
        "the head is not tied to the embedding",
        tie_is_missing,
        "head.weight",
        ("tie",),
    ),
    Bug(
        "hao-ai-lab/FastVideo#781",
        "pull",
        "both matrices of an adapter are random",
        adapter_is_random,
        "lora_B.weight",
        ("value",),
    ),
    Bug(
        "circle-hit/SAPT#11",
        "issues",
        "both matrices of an adapter are 0",
        adapter_is_dead,
        "lora_A.weight",
        ("value", "std"),
    ),
]
