"""netsor plan: what would be drawn and computed, and what it costs."""

from __future__ import annotations

import math
import time
from typing import Any

import click

from ._group import cli
from ._options import subject_options
from ._output import apart, echo_json, say

NOTICED = 0.1  # seconds: if making the plan takes longer, that is printed


@cli.command("plan")
@subject_options(width="256")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def plan_command(as_json: bool, **options: Any) -> None:
    """What would be drawn and computed for one replica, and what it costs; nothing is drawn.

    Of the attention layer, or of a program of one's own, FILE:PROGRAM with --bind; FILE is run.
    """
    from ._subject import PLANS, subject

    if options["infinite_heads"]:
        raise click.UsageError("--infinite-heads is a formula, and has no plan")
    with apart(as_json):
        asked = subject(options)
        start = time.perf_counter()
        plan = asked.plan()
        seconds = time.perf_counter() - start
        text = str(plan)
    if as_json:
        costs = {name: int(getattr(plan, name)) for name in ("bytes", "operations", "random_numbers")}
        echo_json({"program": asked.net.name, **costs, "planning_seconds": seconds, "plan": text})
        return
    say(text)
    if seconds > NOTICED:
        count = PLANS[math.inf in asked.widths.values()]
        say(f"  the plan itself took {seconds:.2g} s; a law makes {count} of them, so it takes that much longer")
