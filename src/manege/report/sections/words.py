"""Words and orders that several sections share."""

from __future__ import annotations

from manege.report.records import CellRecord
from manege.report.run import RunRecord, mixture_metric


def measure_name(run: RunRecord) -> str:
    """Return the name of what cells are judged by."""
    return run.history.measure_name(mixture_metric(run.config))


def titled(name: str) -> str:
    """Return a score's name as a heading."""
    if ":" in name:
        return name  # A score of one's own.
    return {"kid": "KID", "fd": "Fréchet distance"}.get(name, name[:1].upper() + name[1:])


def ranked(run: RunRecord) -> list[CellRecord]:
    """Return the cells, the best first; in their own order where nothing judges them."""
    history, measure = run.history, run.history.measure
    cells = list(history.cells.values())
    if measure == "generator":
        return cells
    if not history.on_grid:
        return sorted(
            cells, key=lambda cell: run.labels.index(cell.key) if cell.key in run.labels else 0
        )
    latest = {cell.key: history.latest(cell, measure) for cell in cells}
    winner = history.mixture["cell"] if history.mixture else None
    return sorted(
        cells,
        key=lambda cell: (
            cell.key != winner,
            latest[cell.key] is None,
            latest[cell.key] or 0.0,
        ),
    )
