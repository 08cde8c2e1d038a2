"""How long a trainer may be silent, or stay where it is, before it counts as hung."""

from __future__ import annotations

from manege.runtime.ledger import WorkerRecord

SILENCE_S = 5.0
"""A trainer that has not been heard of for so long may be hung."""
STARTING_S = 30.0
"""Time for a trainer's first sign of life."""
OPENING_S = 120.0
"""Time for a trainer's first step: it may have to read all its pictures."""
PATIENCE = 5.0
"""How many of the longest steps seen a step may take."""
COMBINE_S = 10.0
"""Time to read a cell and judge its mixture at the end, besides that of an opening."""


def bound_s(host: WorkerRecord, num_cells: int) -> float:
    """How long a host may be silent, in a run of so many cells."""
    if not host.heard:
        return STARTING_S
    if host.combines:
        return OPENING_S + COMBINE_S * num_cells
    if not host.stepped:
        return OPENING_S
    return max(SILENCE_S, PATIENCE * host.longest_s)


def still_since(host: WorkerRecord, now: float, age_s: float, *, opens: bool) -> float:
    """Since when a host that gives signs of life has not got on.

    Args:
        host: what is known of it.
        now: the time.
        age_s: of its step, as it says.
        opens: whether it has cells that it has not opened.
    """
    # A step seems as old as the wait before it; opening and combining are none.
    began_at = 0.0 if opens or host.combines else now - age_s
    return max(began_at, host.moved_at)
