"""What a terminal page shows: the history so far, and what goes on this second.

The process that trains writes the second part to live.json, so that others can see it as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manege.errors import ConfigError
from manege.files import below
from manege.report.history import History
from manege.report.records import CellRecord
from manege.report.run import LIVE
from manege.view.pace import Left

_WRITE_EVERY_S = 2.0


@dataclass
class Now:
    """What no event says: how far steps are, how many workers train, how long one was silent."""

    fractions: dict[str, float] = field(default_factory=dict)
    places: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Round, step and number of steps of each cell in training."""
    trainers: int | None = None
    heartbeat_s: float | None = None
    """Seconds since the most silent worker was heard of."""
    paused: bool = False
    left: Left | None = None
    view_s: float = 0.0
    """CPU seconds spent on showing all this."""
    wall_s: float = 0.0

    def overall(self, history: History) -> float | None:
        """Return the part of the run that is done; None when nobody can know."""
        parts = [self._part(cell, history) for cell in history.cells.values()]
        known = [part for part in parts if part is not None]
        return sum(known) / len(known) if known and len(known) == len(parts) else None

    def _part(self, cell: CellRecord, history: History) -> float | None:
        if cell.state in ("finished", "failed"):
            return 1.0
        if cell.key in self.fractions:
            return self.fractions[cell.key]
        if history.rounds:
            return min(1.0, cell.last / history.rounds)
        return 0.0 if cell.last == 0 else None


@dataclass
class Scene:
    """All that a page is composed of."""

    name: str
    data: str
    state: str
    """The state: running, paused, stopped, interrupted, finished, failed, new or unknown."""
    history: History
    now: Now
    t: float
    """The current time, in seconds since 1970."""
    metric: str = ""
    """The name of the cells' numbers."""
    messages: list[str] = field(default_factory=list)
    keys: str = ""
    measure: str = ""
    """The measure that cells are judged by, as in `History`."""

    def __post_init__(self) -> None:
        self.measure = self.measure or self.history.measure


class Pulse:
    """Writes live.json every few seconds, to a new file then renamed; losing it loses nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_at = 0.0

    def write(self, now: Now, *, at_once: bool = False) -> None:
        """Write live.json if it is time to; a disk that refuses is no reason to stop training."""
        t = time.monotonic()
        if not at_once and t - self._written_at < _WRITE_EVERY_S:
            return
        self._written_at = t
        tree = {
            "t": round(time.time(), 3),
            "fractions": {key: round(value, 5) for key, value in now.fractions.items()},
            "places": now.places,
            "trainers": now.trainers,
            "heartbeat_s": now.heartbeat_s,
            "paused": now.paused,
            "left_s": now.left,
            "view_s": round(now.view_s, 4),
            "wall_s": round(now.wall_s, 2),
        }
        with suppress(OSError, ConfigError):
            aside = below(self._path, f".{LIVE}.tmp")
            aside.write_text(json.dumps(tree), encoding="utf-8")
            aside.replace(self._path / LIVE)


def read_live(path: Path) -> tuple[Now, float] | None:
    """Read live.json and its time; return None when there is none, or it is damaged."""
    try:
        tree = json.loads((path / LIVE).read_text(encoding="utf-8"))
        return _now_of(tree), float(tree["t"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _now_of(tree: Mapping[str, Any]) -> Now:
    left = tree["left_s"]
    places = {
        str(key): (int(one[0]), int(one[1]), int(one[2])) for key, one in tree["places"].items()
    }
    return Now(
        fractions={str(key): float(value) for key, value in tree["fractions"].items()},
        places=places,
        trainers=tree["trainers"],
        heartbeat_s=tree["heartbeat_s"],
        paused=bool(tree["paused"]),
        left=None if left is None else Left(*left),
        view_s=float(tree["view_s"]),
        wall_s=float(tree["wall_s"]),
    )
