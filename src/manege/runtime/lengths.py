"""How long a run's cells may train: shares of a time budget, and who has come to the end."""

from __future__ import annotations

from collections.abc import Iterable

from manege.runtime.ledger import Cell, Group
from manege.runtime.orders import Task


def share_s(group: Group, cells: Iterable[Cell], total_s: float) -> float:
    """Seconds a group may train in all: an even share of what the others leave.

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
    """Whether an earlier run left nothing of a cell to be trained, by its entry in the status."""
    return _is_done(cell, task) or was_frozen(cell)


def was_frozen(cell: Cell) -> bool:
    """Whether the cell failed and its neighbours have gone on without it."""
    return cell.group.many and cell.entry.get("state") == "failed"


def _is_done(cell: Cell, task: Task) -> bool:
    """Whether it satisfies this run's length."""
    entry = cell.entry
    if entry.get("state") != "finished":
        return False
    return (task.rounds is not None and entry["round"] >= task.rounds) or (
        task.budget_s is not None and (entry.get("budget_s") or 0) >= task.budget_s
    )
