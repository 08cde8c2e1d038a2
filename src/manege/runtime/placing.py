"""Where cells are best placed, from how long their rounds took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ENOUGH = 0.8
"""Of the time that all wait for the slowest host: a move must leave no more."""
LEAST_S = 0.2
"""And save this much a round: taking a cell up costs time as well."""


class Move(NamedTuple):
    """A cell is better off with another host."""

    cell: str
    host: int


def better_place(loads: Mapping[int, Mapping[str, float]]) -> Move | None:
    """The move that shortens a round of them all, when it does so by enough.

    Args:
        loads: of every host its cells, and the seconds that a round of each took it. A host without
            cells has not shown how fast it is, and is given none.
    """
    total = {host: sum(cells.values()) for host, cells in loads.items() if cells}
    if len(total) < 2:
        return None
    slowest = max(total, key=lambda host: total[host])
    after = {
        host: total[host] + total[host] / len(loads[host]) for host in total if host != slowest
    }
    target = min(after, key=lambda host: after[host])
    cell = list(loads[slowest])[-1]
    rest = max(after[target], total[slowest] - loads[slowest][cell])
    if rest > ENOUGH * total[slowest] or total[slowest] - rest < LEAST_S:
        return None
    return Move(cell, target)
