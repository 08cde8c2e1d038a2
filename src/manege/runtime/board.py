"""The cells' entries in the status: noted at once, written now and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manege.runtime.ledger import Cell
from manege.runtime.orders import Desk

WRITE_S = 1e-3
"""How often to write the status, for each cell in it."""


class CellStatuses:
    """What the status says of every cell."""

    def __init__(self, desk: Desk, cells: Mapping[str, Cell]) -> None:
        self._desk = desk
        self._cells = cells
        self._due: float | None = None
        """When it is to be written, if it has changed."""
        self._written_at = 0.0

    def note(self, cell: Cell, state: str, budget_s: float | None, **more: Any) -> None:
        """A cell has come to this."""
        cell.entry = {
            "state": state,
            "round": cell.round_,
            "spent_s": round(cell.spent_s, 3),
            "budget_s": budget_s,
            **more,
        }
        if self._due is None:
            self._due = self._written_at + WRITE_S * len(self._cells)

    def write_if_due(self, now: float) -> None:
        """Written, if that is due."""
        if self._due is not None and now >= self._due:
            self.write(now)

    def write(self, now: float, **more: Any) -> None:
        """Written, with these other fields of the status."""
        self._due, self._written_at = None, now
        entries = {key: cell.entry for key, cell in self._cells.items() if cell.entry}
        self._desk.write_status(**more, cells=entries)
