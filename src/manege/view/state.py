"""A run as an observer knows it: its history, what goes on now, and how fast."""

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
"""How many rounds of all cells, and of each, are kept: a long run must not fill the memory."""


class Looked:
    """What was seen of a run so far, from events and steps."""

    def __init__(self) -> None:
        self.history = History()
        self.now = Now()
        self.pace = Pace()
        self.messages: deque[str] = deque(maxlen=_KEPT)
        self.name, self.data, self._metric = "", "", "score"
        self.damage: str | None = None
        """The error that kept the configuration from being read, if any."""
        self._began = time.monotonic()
        self._pulse: Pulse | None = None

    def opened(self, path: Path, *, pulse: bool = True) -> None:
        """Begin to follow the run there; with `pulse`, also write it to live.json for others."""
        self._pulse = Pulse(path) if pulse else None
        self.name = path.resolve().name
        try:
            config = load_yaml(path / "config.yaml")
        except ConfigError as error:
            self.damage, config = str(error), {}
        self.data, self._metric = _data_of(config), mixture_metric(config)

    def event(self, event: Mapping[str, Any]) -> str | None:
        """Add an event, and return the line it calls for, if any."""
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
        """Note how far a step has brought its cell."""
        self.now.fractions[cell] = fraction
        self.now.places[cell] = place

    def look(self, trainers: int, silent_s: float, *, paused: bool) -> None:
        """Note how many workers there are, and how long the most silent was not heard of."""
        self.now.trainers, self.now.heartbeat_s = trainers, round(silent_s, 2)
        if self.now.paused and not paused:
            self.pace.begin()
        self.now.paused = paused

    def refresh(self) -> None:
        """Update what changes without an event, and write live.json every few seconds."""
        self.now.wall_s = time.monotonic() - self._began
        overall = self.now.overall(self.history)
        if overall is not None and not self.now.paused:
            self.pace.see(self.now.wall_s, overall)
        self.now.left = self.pace.left()
        if self._pulse is not None:
            self._pulse.write(self.now)

    @property
    def metric(self) -> str:
        """The name of the cells' numbers."""
        return self.history.measure_name(self._metric)

    def scene(self, state: str, keys: str = "") -> Scene:
        """Return what a page shows of the run now."""
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
    """Return the data's name, as far as the configuration gives it."""
    source = str(part_of(config, "data").get("source", "?"))
    return Path(source).name or source
