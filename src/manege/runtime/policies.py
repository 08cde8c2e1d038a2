"""The rules that the coordinator goes by: time budgets, timeouts, faults, placement.

Each is a function of the coordinator's books; what follows is the coordinator's to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from manege.runtime.ledger import Cell, Group, WorkerRecord
from manege.runtime.messages import Task

SILENCE_S = 5.0
"""Seconds of silence, at least, after which a worker may be hung."""
STARTING_S = 30.0
"""Seconds for a worker's first sign of life."""
OPENING_S = 120.0
"""Seconds for a worker's first step: it may have to read all its pictures."""
PATIENCE = 5.0
"""A step may take this many times the longest step seen."""
COMBINE_S = 10.0
"""Seconds to read each cell and judge its mixture at the end, besides those of an opening."""

DEATHS_AT_ONE_STEP = 3
"""Deaths in a row at one step that show that the step itself is the cause."""
DEATHS_WITHOUT_COMMIT = 10

ENOUGH = 0.8
"""The part of the slowest worker's round that a move may leave, at most."""
LEAST_S = 0.2
"""Seconds of each round that a move must save: taking a cell up costs time as well."""


# Budgets: how long a run's cells may train, and who has come to the end.


def share_s(group: Group, cells: Iterable[Cell], total_s: float) -> float:
    """Return the seconds a group may train in all: an even share of what the others leave.

    Args:
        group: whose share it is.
        cells: all of the run's.
        total_s: seconds of training there are for them all.
    """
    members = set(group.keys)
    others = [cell for cell in cells if cell.key not in members]
    ended = [cell for cell in others if cell.settled]
    reserved = [cell for cell in others if not cell.settled and cell.share_s is not None]
    spent = sum(cell.spent_s for cell in ended)
    spent += sum((cell.share_s or 0.0) / len(cell.group.keys) for cell in reserved)
    waiting = len(others) - len(ended) - len(reserved)
    return max(0.0, total_s - spent) * len(members) / (len(members) + waiting)


def was_settled(cell: Cell, task: Task) -> bool:
    """Return whether an earlier run left nothing of a cell to train, by its entry in the status."""
    return _is_done(cell, task) or was_frozen(cell)


def was_frozen(cell: Cell) -> bool:
    """Return whether the cell failed and its neighbours have gone on without it."""
    return cell.group.many and cell.entry.get("state") == "failed"


def _is_done(cell: Cell, task: Task) -> bool:
    """Return whether the cell has had all the rounds or time that this run is to give it."""
    entry = cell.entry
    if entry.get("state") != "finished":
        return False
    return (task.rounds is not None and entry["round"] >= task.rounds) or (
        task.budget_s is not None and (entry.get("budget_s") or 0) >= task.budget_s
    )


# Timeouts: how long a worker may be silent, or stay where it is, before it counts as hung.


def bound_s(worker: WorkerRecord, num_cells: int) -> float:
    """Return how long a worker may be silent, in a run of so many cells."""
    if not worker.heard:
        return STARTING_S
    if worker.combines:
        return OPENING_S + COMBINE_S * num_cells
    if not worker.stepped:
        return OPENING_S
    return max(SILENCE_S, PATIENCE * worker.longest_s)


def still_since(worker: WorkerRecord, now: float, age_s: float, *, opens: bool) -> float:
    """Return the time since when a worker that gives signs of life has made no progress.

    Args:
        worker: what is known of it.
        now: the time.
        age_s: the age of its step in seconds, as it says.
        opens: whether it has cells that it has not opened.
    """
    # A step seems as old as the wait before it; opening and combining are none.
    began_at = 0.0 if opens or worker.combines else now - age_s
    return max(began_at, worker.moved_at)


# Faults: over which cell a worker died, and when the cell itself must be the cause.


def suspect(worker: WorkerRecord, cells: Mapping[str, Cell]) -> Cell | None:
    """Return the cell over which a worker died; None when that cannot be known.

    Args:
        worker: the worker, with what it held when it died.
        cells: all of the run's, by their keys.
    """
    if worker.broke_over in worker.cells:
        return cells[worker.broke_over]
    working = cells[worker.working] if worker.working in worker.cells else None
    if working is not None and working.state in ("running", "leaving"):
        return working
    held = [cells[key] for key in worker.cells]
    # Cells are opened, and finished, in the order in which they were given.
    at_it = [cell for cell in held if cell.place is None or cell.state == "finishing"]
    going = [cell for cell in held if not cell.frozen]
    return at_it[0] if at_it else going[0] if len(going) == 1 else None


def count_death(suspects: Sequence[Cell]) -> Cell | None:
    """Count a death against the cells it may have been over; return the one to give up, if any."""
    for cell in suspects:
        cell.deaths.append(cell.place if len(suspects) == 1 else None)
    # Of several, the one that is behind is trained first.
    cell = min(suspects, key=lambda cell: cell.round_)
    last = cell.deaths[-DEATHS_AT_ONE_STEP:]
    # The first may have been seen late: steps are told one by one only after a death.
    stuck = len(last) == DEATHS_AT_ONE_STEP and len(set(last[1:])) == 1 and last[-1] is not None
    return cell if stuck or len(cell.deaths) >= DEATHS_WITHOUT_COMMIT else None


# Placement: where cells are better off, from how long their rounds took.


class Move(NamedTuple):
    """A cell that is better off with another worker, and that worker."""

    cell: str
    worker: int


def better_place(loads: Mapping[int, Mapping[str, float]]) -> Move | None:
    """Return the move that shortens the round that all wait for; None if none does so by enough.

    Args:
        loads: the cells of every worker, and the seconds that a round of each took it. A worker
            without cells has not shown how fast it is, and gets none.
    """
    total = {worker: sum(cells.values()) for worker, cells in loads.items() if cells}
    if len(total) < 2:
        return None
    slowest = max(total, key=lambda worker: total[worker])
    after = {
        worker: total[worker] + total[worker] / len(loads[worker])
        for worker in total
        if worker != slowest
    }
    target = min(after, key=lambda worker: after[worker])
    cell = list(loads[slowest])[-1]
    rest = max(after[target], total[slowest] - loads[slowest][cell])
    if rest > ENOUGH * total[slowest] or total[slowest] - rest < LEAST_S:
        return None
    return Move(cell, target)
