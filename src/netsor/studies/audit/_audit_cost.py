"""What plans and draws of a model take, told before one is made; models that are too large are refused.

Numbers fitted to measured times and sizes, right within a factor of two or three.
"""

from __future__ import annotations

from ...engine._parallel import check_memory
from ...engine.backends._numpy import together
from .._cost import Draw, Planning, planning
from ._program_adapter import Model, ProgramModel

MOST_LAYERS = 2000
OPERATIONS = 40  # of one block, and its quantities
STEPS = 120  # of a plan, for one block
BACKWARD = 4  # times as many, with gradients
LOGIT_PROBE_COST = 4e-8, 75.0  # seconds and bytes of a number, when what gradients need of logits is tried out
NUMBER = 1.2e-8  # seconds of a random number, and of what is done with it alone
PRODUCT = 4e-10  # seconds of a multiplication in products of tokens, with what factors of these take
MULTIPLIED = 2e-10  # seconds of a multiplication with a matrix that is drawn
TURNED = 1e-7  # seconds of a number of rotary scores at infinite width
BACK_NUMBERS, BACK_SECONDS, BACK_STEPS = 1.7, 2.5, 3  # times as many numbers, seconds and steps, with gradients
# Times as many seconds and bytes with ranges, which read every number. Measured: 2.7 to 4.2, and at most 2.5.
RANGES_SECONDS, RANGES_BYTES = 3.4, 2.5


def draw_cost(model: Model, tokens: int, infinite: bool, gradients: bool = False, ranges: bool = False) -> Draw:
    """The estimated cost of one draw of the quantities of a model on so many tokens."""
    if isinstance(model, ProgramModel):
        return Draw.of(model.plan)
    s, blocks = float(tokens), model.layers + 1.5 * model.decoder_layers
    wide = model.hidden * (1 + model.gated) * (model.experts or 1)
    own = model.positions == "rotary" or model.qk_norm  # queries and keys have coordinates
    logits = s * (model.vocabulary or 0)
    if infinite:
        scores = model.heads * s * s * (2 * s if model.positions == "rotary" else 1)
        numbers = blocks * scores
        seconds = blocks * scores * (TURNED if model.positions == "rotary" else NUMBER) + blocks * s**3 * PRODUCT
    else:
        scores = s * model.d * (model.heads + model.key_heads) if own else 3 * model.heads * s * s
        every = 2 * model.d * (model.heads + model.key_heads) + wide + model.hidden * (model.experts or 1)
        weights = float(model.width * every)
        few = (s * wide + scores) * NUMBER + s * s * (6 * model.width + wide) * PRODUCT, s * wide + scores
        drawn = weights * (NUMBER + s * MULTIPLIED) + scores * NUMBER, weights
        seconds, numbers = (blocks * some for some in min(few, drawn))  # a plan takes what costs less
    times = (BACK_SECONDS, BACK_NUMBERS) if gradients else (1.0, 1.0)
    seconds, numbers = seconds * times[0] + logits * NUMBER, numbers * times[1] + logits
    inner = 8 * max(s * wide, model.heads * s * s)
    size = max(16 * logits, inner)
    beside = inner if model.tied and not gradients else size  # logits of a draw are made after those of another
    if ranges:
        seconds, size, beside = RANGES_SECONDS * seconds, RANGES_BYTES * size, RANGES_BYTES * beside
    steps = STEPS * blocks * (BACK_STEPS if gradients else 1)
    return Draw(seconds, numbers, size, beside, together(size, beside, seconds, steps))


def planning_cost(model: Model, tokens: int, infinite: bool, gradients: bool = False) -> Planning:
    """What it takes to write down the quantities of a model on so many tokens, and to plan them."""
    if isinstance(model, ProgramModel):
        return model.planning(infinite)
    blocks, heads = model.layers + 2.0 * model.decoder_layers, float(model.heads)
    vectors = blocks * tokens * (4 * heads + 8)
    found = planning(OPERATIONS * blocks, vectors, 2 * blocks * heads * tokens**2, infinite)
    tried = tokens * (model.vocabulary or 0) if gradients else 0.0
    times = BACKWARD if gradients else 1
    return Planning(
        times * found.seconds + LOGIT_PROBE_COST[0] * tried, times * found.bytes + LOGIT_PROBE_COST[1] * tried
    )


def refuse_large(model: Model, tokens: int, infinite: bool, gradients: bool = False) -> None:
    """Refuse what could not even be written down as a program, before it is tried."""
    if isinstance(model, ProgramModel):
        check_memory(planning_cost(model, tokens, infinite).bytes, model.name, "take fewer tokens, or smaller widths")
        return
    if model.layers + model.decoder_layers > MOST_LAYERS:
        raise ValueError(f"layers={model.layers} of {model.name} must be at most {MOST_LAYERS} for an audit")
    size = 24.0 * tokens * (model.heads * tokens + model.hidden + model.width + (model.vocabulary or 0))
    words = "" if model.vocabulary is None else f", vocabulary {model.vocabulary:,}"
    sizes = f"width {model.width:,}, {model.heads:,} heads, hidden {model.hidden:,}{words}"
    what = f"tokens={tokens} of {model.name} ({sizes})"
    check_memory(
        max(size, planning_cost(model, tokens, False, gradients).bytes), what, "take fewer tokens, or a smaller model"
    )
    if infinite:
        check_memory(
            planning_cost(model, tokens, True, gradients).bytes,
            f"{what} at infinite width",
            "take fewer tokens, or widths='actual'",
        )
