"""netsor plan: what would be drawn and computed, and what it costs."""

from __future__ import annotations

import math
import time
from typing import Any

import click

from ._group import cli
from ._options import subject_options
from ._output import apart, echo_json, say
from ._where import place_options, planned_for

NOTICED = 0.1  # seconds: if making the plan takes longer, that is printed


@cli.command("plan")
@subject_options(width="256")
@place_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def plan_command(as_json: bool, **options: Any) -> None:
    """What would be drawn and computed for one replica, and what it costs; nothing is drawn.

    Of the attention layer, or of a program of one's own, FILE:PROGRAM with --bind; FILE is run. With --backend and
    --device it is the plan that law makes there: a device that is named need not be here, since a plan depends on cpu
    or cuda alone. It is the same in both precisions; bytes are those of double precision.
    """
    from ._subject import PLANS, subject

    if options["infinite_heads"]:
        raise click.UsageError("--infinite-heads is a formula, and has no plan")
    place = planned_for(options)
    with apart(as_json):
        asked = subject(options)
        start = time.perf_counter()
        plan = asked.plan(**place)
        seconds = time.perf_counter() - start
        text = str(plan)
    if as_json:
        costs = {name: int(getattr(plan, name)) for name in ("bytes", "operations", "random_numbers")}
        echo_json({"program": asked.net.name, **costs, "planning_seconds": seconds, "place": plan.place, "plan": text})
        return
    say(text)
    if seconds > NOTICED:
        count = PLANS[math.inf in asked.widths.values()]
        say(f"  the plan itself took {seconds:.2g} s; a law makes {count} of them, so it takes that much longer")
