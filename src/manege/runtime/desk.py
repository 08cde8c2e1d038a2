"""The coordinator's side of the run directory: the only one that gives files their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manege.files import below, blaming, make_folder
from manege.rundir import Commit, Pending, RunDir, cell_folder


class RunDesk:
    """A run directory that this process runs."""

    def __init__(self, rundir: RunDir, identity: str) -> None:
        self._rundir = rundir
        self._identity = identity

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """A line of events.jsonl, as written."""
        return self._rundir.append(event, **fields)

    def write_status(self, **fields: Any) -> None:
        """These fields of status.json."""
        self._rundir.write_status(**fields)

    def adopt(self, cell: str, pending: Mapping[str, Any]) -> int:
        """The bytes of a checkpoint written aside, which is now the cell's newest commit."""
        written = Pending.from_json(pending)
        return self._rundir.adopt(cell, written, identity=self._identity).bytes

    def trust(self, cell: str, verified: Mapping[str, Any]) -> None:
        """A host has verified this commit."""
        self._rundir.trust(cell, Commit.from_json(verified))

    def adopt_file(self, aside: str, path: str) -> None:
        """A file written aside has its name."""
        self._rundir.adopt_file(aside, path)

    def log(self, cell: str, text: str) -> None:
        """A text for the cell's log."""
        path = below(self._rundir.path, "logs", f"{cell_folder(cell)}.log")
        with blaming(path):
            make_folder(path.parent, within=self._rundir.path)
            with path.open("a") as file:
                file.write(text.rstrip("\n") + "\n\n")
