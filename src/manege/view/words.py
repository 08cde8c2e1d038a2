"""Put events into words: the one line that some of them call for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manege.progress import duration
from manege.report.history import History
from manege.report.records import CellRecord


def important(event: Mapping[str, Any]) -> str | None:
    """Return the line that an event calls for, if any."""
    match event["event"]:
        case "warning" | "blind":
            return f"warning: {event['message']}"
        case "rollback":
            return f"{event['cell']}: round {event['round']} again: {event['reason']}"
        case "cell_failed":
            return f"{event['cell']}: FAILED: {event['reason']}"
        case "trainer_died":
            return f"trainer {event['trainer']} {event['how']}; its cells are taken up again"
        case "cell_finished":
            return (
                f"{event['cell']}: done, {event['round']} rounds "
                f"({'budget used up' if event['reason'] == 'budget' else 'all'}) "
                f"in {duration(event['spent_s'])}"
            )
        case "run_stopped":
            return f"stopping on {event['reason']}: everything is saved"
        case _:
            return None


def losses(cell: CellRecord) -> str:
    """Return a cell's losses and speed in its last round, in words."""
    if not cell.rounds:
        return ""
    last = cell.rounds[max(cell.rounds)]
    parts = [
        f"{name} {value:.3f}" if value is not None else f"{name} -"
        for name, value in (("D", last.discriminator), ("G", last.generator))
    ]
    if last.images_per_s:
        parts.append(f" {last.images_per_s:,.0f} images/s")
    return " ".join(parts)


def value_of(history: History, cell: CellRecord, metric: str) -> str:
    """Return the number a cell is judged by, with its name; nothing when that is a mere loss."""
    value = history.latest(cell, history.measure)
    return f"{metric} {value:.5g}" if value is not None and history.measure != "generator" else ""
