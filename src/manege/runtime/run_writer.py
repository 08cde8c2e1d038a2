"""Writes into the run directory for the coordinator, which alone gives files their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manege.files import below, blaming, make_folder
from manege.runs import Commit, Pending, RunDir, cell_folder
from manege.runtime.ledger import Cell

WRITE_S = 1e-3
"""Seconds between two writes of the status, for each cell in it."""


class RunWriter:
    """Writes events, status, commits and logs into the directory of the run of this process."""

    def __init__(self, rundir: RunDir, identity: str) -> None:
        self._rundir = rundir
        self._identity = identity

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """Append a line to events.jsonl; return it as written."""
        return self._rundir.append(event, **fields)

    def write_status(self, **fields: Any) -> None:
        """Set these fields of status.json."""
        self._rundir.write_status(**fields)

    def adopt(self, cell: str, pending: Mapping[str, Any]) -> int:
        """Make a checkpoint written aside the cell's newest commit; return its size in bytes."""
        written = Pending.from_json(pending)
        return self._rundir.adopt(cell, written, identity=self._identity).bytes

    def trust(self, cell: str, verified: Mapping[str, Any]) -> None:
        """Note that a worker has verified this commit."""
        self._rundir.trust(cell, Commit.from_json(verified))

    def adopt_file(self, aside: str, path: str) -> None:
        """Give a file written aside its name."""
        self._rundir.adopt_file(aside, path)

    def log(self, cell: str, text: str) -> None:
        """Append a text to the cell's log."""
        path = below(self._rundir.path, "logs", f"{cell_folder(cell)}.log")
        with blaming(path):
            make_folder(path.parent, within=self._rundir.path)
            with path.open("a") as file:
                file.write(text.rstrip("\n") + "\n\n")


class CellStatuses:
    """What the status says of every cell: noted at once, but written only now and then."""

    def __init__(self, writer: RunWriter, cells: Mapping[str, Cell]) -> None:
        self._writer = writer
        self._cells = cells
        self._due: float | None = None
        """When to write the status; None if it has not changed."""
        self._written_at = 0.0

    def note(self, cell: Cell, state: str, budget_s: float | None, **more: Any) -> None:
        """Note what a cell has come to."""
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
        """Write the status, if that is due."""
        if self._due is not None and now >= self._due:
            self.write(now)

    def write(self, now: float, **more: Any) -> None:
        """Write the status of every cell, and these other fields."""
        self._due, self._written_at = None, now
        entries = {key: cell.entry for key, cell in self._cells.items() if cell.entry}
        self._writer.write_status(**more, cells=entries)
