"""Which arrays of a plan are needed, until when, and which may be overwritten."""

from __future__ import annotations

from collections import Counter

from ._steps import VIEWS, Register, Step

LATE = 2**18  # numbers of a replica from which on a draw that one function alone reads is made as it reads them


def needed(steps: list[Step], results: tuple[Register, ...]) -> list[Step]:
    """The steps that the results depend on."""
    wanted, kept = set(results), []
    for step in reversed(steps):
        if step.out in wanted:
            kept.append(step)
            wanted.update(step.args)
    return kept[::-1]


def freed(steps: list[Step], results: tuple[Register, ...]) -> list[list[int]]:
    """For each step, the numbers of those whose results no later step reads."""
    made = {step.out: k for k, step in enumerate(steps)}
    seen = {made[result] for result in results if result in made}
    last: list[list[int]] = [[] for _ in steps]
    for k in reversed(range(len(steps))):
        for arg in steps[k].args:
            source = made.get(arg)
            if source is not None and source not in seen:
                seen.add(source)
                last[k].append(source)
    return last


def at_once(last: list[list[int]], sizes: list[int]) -> list[int]:
    """How many numbers there are during each step: its result, and those before it that are not freed yet."""
    live, found = 0, []
    for size, dead in zip(sizes, last, strict=True):
        live += size
        found.append(live)
        live -= sum(sizes[k] for k in dead)
    return found


def read_once(steps: list[Step]) -> set[Step]:
    """Large draws that one function alone reads: the noise of all logits, say."""
    readers = Counter(arg for step in steps for arg in step.args)
    given = {arg for step in steps if step.kind == "apply" for arg in step.args if readers[arg] == 1}
    return {step for step in steps if step.numbers >= LATE and step.out in given}


def overwritten(steps: list[Step], results: tuple[Register, ...]) -> list[int | None]:
    """For each entrywise step: the index of an argument that no later step reads and the result may overwrite."""
    root: dict[Register, Register] = {}
    last: dict[Register, int] = {}
    for k, step in enumerate(steps):
        root[step.out] = root.get(step.args[0], step.args[0]) if step.kind in VIEWS or step.kind == "take" else step.out
        for arg in step.args:
            last[root.get(arg, arg)] = k
    for result in results:
        last[root.get(result, result)] = len(steps)
    found: list[int | None] = []
    for k, step in enumerate(steps):
        places = [
            i
            for i, arg in enumerate(step.args)
            if (step.kind in ("add", "add_at", "multiply", "scale") or step.params.get("coordinates"))
            and arg.varies
            and arg.shape == step.out.shape
            and last[root.get(arg, arg)] == k
        ]
        found.append(places[0] if places else None)
    return found
