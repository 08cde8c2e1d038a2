"""Over which cell a trainer died, and when the cell itself must be the cause.

Reads the coordinator's books; what follows is the coordinator's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from manege.runtime.ledger import Cell, WorkerRecord

DEATHS_AT_ONE_STEP = 3
"""Of its trainer, in a row: the step itself must be the cause."""
DEATHS_WITHOUT_COMMIT = 10


def guilty(host: WorkerRecord, cells: Mapping[str, Cell]) -> Cell | None:
    """The cell over which a trainer dies; None when that cannot be known.

    Args:
        host: the trainer, with what it held when it died.
        cells: all of the run's, by their keys.
    """
    if host.broke_over in host.cells:
        return cells[host.broke_over]
    working = cells[host.working] if host.working in host.cells else None
    if working is not None and working.state in ("running", "leaving"):
        return working
    held = [cells[key] for key in host.cells]
    # Cells are opened, and finished, in the order in which they were given.
    at_it = [cell for cell in held if cell.place is None or cell.state == "finishing"]
    going = [cell for cell in held if not cell.frozen]
    return at_it[0] if at_it else going[0] if len(going) == 1 else None


def count_death(suspects: Sequence[Cell]) -> Cell | None:
    """The cell to be given up, once a death is counted against those it may have been over."""
    for cell in suspects:
        cell.deaths.append(cell.place if len(suspects) == 1 else None)
    # Of several, the one that is behind is trained first.
    cell = min(suspects, key=lambda cell: cell.round_)
    last = cell.deaths[-DEATHS_AT_ONE_STEP:]
    # The first may have been seen late: steps are told one by one only after a death.
    stuck = len(last) == DEATHS_AT_ONE_STEP and len(set(last[1:])) == 1 and last[-1] is not None
    return cell if stuck or len(cell.deaths) >= DEATHS_WITHOUT_COMMIT else None
