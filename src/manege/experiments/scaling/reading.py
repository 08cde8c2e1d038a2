"""Read a run's times from the events of its run directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manege.errors import CheckpointError
from manege.profile import profile
from manege.runs import RunDir


@dataclass(frozen=True)
class Times:
    """A run's times in seconds, from the first step on, so that nobody's start counts."""

    span_s: float
    """Seconds from the first cell's start to the last one's end."""
    slowest_s: float
    """Seconds of the slowest cell, from its start to its end."""
    training_cpu_s: float
    """Computing time of all cells' steps."""
    routines: dict[str, float]
    """Seconds of all cells and rounds in each routine, and `overall`."""
    deaths: int
    moves: int


def read_times(path: Path, cells: int) -> Times:
    """Return the times of a finished run with so many cells."""
    return times_of(list(RunDir.open(path).events()), cells, str(path))


def times_of(events: Iterable[Mapping[str, Any]], cells: int, name: str) -> Times:
    """Return a run's times from its events; CheckpointError when they are not a whole run's."""
    events = list(events)
    try:
        begun = _first(events, "cell_started")
        ended = {str(one["cell"]): float(one["t"]) for one in _of(events, "cell_finished")}
        spent = {str(one["cell"]): float(one["spent_s"]) for one in _of(events, "cell_finished")}
        routines = _routines(events)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name}: events.jsonl is not a run's ({error!r})") from None
    if not len(begun) == len(ended) == cells or begun.keys() != ended.keys():
        raise CheckpointError(
            f"{name}: {len(begun)} cells were started and {len(ended)} finished, expected {cells}; "
            "the run cannot be counted"
        )
    return Times(
        span_s=max(ended.values()) - min(begun.values()),
        slowest_s=max(ended[cell] - begun[cell] for cell in begun),
        training_cpu_s=sum(spent.values()),
        routines=routines,
        deaths=len(_of(events, "trainer_died")),
        moves=len(_of(events, "cell_moved")),
    )


def _routines(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return seconds by the routines of Table IV on a grid, else by the phases of rounds."""
    events = list(events)
    if (found := profile(events)) is not None:
        return dict(found.seconds)
    seconds: dict[str, float] = {}
    for event in _of(events, "round"):
        for phase, value in event["phases_s"].items():
            seconds[phase] = seconds.get(phase, 0.0) + float(value)
    overall = seconds.pop("overall", 0.0)
    return {**seconds, "overall": overall}


def _of(events: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [one for one in events if one.get("event") == kind]


def _first(events: Iterable[Mapping[str, Any]], kind: str) -> dict[str, float]:
    """Return when each cell's first event of a kind was: one that died is started again."""
    found: dict[str, float] = {}
    for one in _of(events, kind):
        found.setdefault(str(one["cell"]), float(one["t"]))
    return found
