"""A run as the one who looks on knows it: its history, what goes on now, and how fast."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manege.errors import ConfigError
from manege.report.history import History
from manege.report.run import mixture_metric, part_of
from manege.view.pace import Pace
from manege.view.scene import Now, Pulse, Scene
from manege.view.words import important
from manege.yamltext import load_yaml

_KEPT = 8
_GROWING = ("round", "score", "sheet")
_ROUNDS, _LEAST = 2_000, 20
"""Rounds of all cells, and of each, that are remembered: a long run must not fill the memory."""


class Looked:
    """What was seen of a run so far; fed with events and steps by the process that trains."""

    def __init__(self) -> None:
        self.history = History()
        self.now = Now()
        self.pace = Pace()
        self.messages: deque[str] = deque(maxlen=_KEPT)
        self.name, self.data, self._metric = "", "", "score"
        self.damage: str | None = None
        """Why the configuration tells nothing, if it does not."""
        self._began = time.monotonic()
        self._pulse: Pulse | None = None

    def opened(self, path: Path, *, pulse: bool = True) -> None:
        """The run lies there; whoever carries it out tells others of it by live.json."""
        self._pulse = Pulse(path) if pulse else None
        self.name = path.resolve().name
        try:
            config = load_yaml(path / "config.yaml")
        except ConfigError as error:
            self.damage, config = str(error), {}
        self.data, self._metric = _data_of(config), mixture_metric(config)

    def event(self, event: Mapping[str, Any]) -> str | None:
        """See an event; the line it deserves."""
        self.history.see(event)
        if event["event"] in _GROWING and (cell := self.history.cells.get(str(event.get("cell")))):
            cell.forget(max(_LEAST, _ROUNDS // len(self.history.cells)))
        if event["event"] == "run_started":
            self.now = Now(trainers=self.now.trainers)
            self.pace.begin()
            self._began = time.monotonic()
        elif event["event"] in ("cell_finished", "cell_failed"):
            self.now.places.pop(str(event["cell"]), None)
        line = important(event)
        if line is not None:
            self.messages.append(line)
        return line

    def step(self, cell: str, place: tuple[int, int, int], fraction: float) -> None:
        """See a step."""
        self.now.fractions[cell] = fraction
        self.now.places[cell] = place

    def look(self, trainers: int, silent_s: float, *, paused: bool) -> None:
        """See who trains."""
        self.now.trainers, self.now.heartbeat_s = trainers, round(silent_s, 2)
        if self.now.paused and not paused:
            self.pace.begin()
        self.now.paused = paused

    def refresh(self) -> None:
        """Bring up to date what changes without an event; write live.json now and then."""
        self.now.wall_s = time.monotonic() - self._began
        overall = self.now.overall(self.history)
        if overall is not None and not self.now.paused:
            self.pace.see(self.now.wall_s, overall)
        self.now.left = self.pace.left()
        if self._pulse is not None:
            self._pulse.write(self.now)

    @property
    def metric(self) -> str:
        """What the cells' numbers are."""
        return self.history.measure_name(self._metric)

    def scene(self, state: str, keys: str = "") -> Scene:
        """What a page shows of it now."""
        return Scene(
            self.name,
            self.data,
            "paused" if self.now.paused and state == "running" else state,
            self.history,
            self.now,
            time.time(),
            self.metric,
            list(self.messages),
            keys,
        )


def _data_of(config: Mapping[str, Any]) -> str:
    """The data's name, as far as the configuration tells."""
    source = str(part_of(config, "data").get("source", "?"))
    return Path(source).name or source
