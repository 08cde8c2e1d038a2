"""Show a run as plain lines, one a round: fit for a log file, no control characters."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from manege.observer import Observer, Place
from manege.progress import counter, duration
from manege.view.state import Looked
from manege.view.words import important, losses, value_of

_REFRESH_S = 0.5
_AT_MOST_EVERY_S = 1.0
"""The least time between two lines: rounds of a second and less share one."""


class Lines(Observer):
    """An observer that writes one line a round, of a class or of the whole grid."""

    def __init__(
        self, stream: TextIO | None = None, looked: Looked | None = None, *, own: bool = True
    ) -> None:
        """Write to standard error by default; `own` when nobody else refreshes `looked`."""
        self._stream = stream
        self._looked = looked or Looked()
        self._own = own
        self._refreshed_at = -_REFRESH_S
        self._spoke_at = -_AT_MOST_EVERY_S
        self._told: dict[str, int] = {}
        self._count = counter("feature network: seen")

    def close(self) -> None:
        """Flush the stream."""
        (self._stream or sys.stderr).flush()

    def progress(self, done: int, total: int) -> None:
        """Show how far the training of a feature network is."""
        self._count(done, total)

    def say(self, text: str) -> None:
        """Write a line."""
        clean = "".join(one if one.isprintable() else "?" for one in text)
        stream = self._stream or sys.stderr
        stream.write(clean + "\n")
        stream.flush()

    def opened(self, path: Path) -> None:
        """Begin to follow the run in that directory."""
        self._looked.opened(path)

    def event(self, event: dict[str, Any]) -> None:
        """Add a line of events.jsonl to what is known, and write the line it calls for, if any."""
        self._looked.event(event)
        self.tell(event)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Write the line that an event calls for, if any."""
        if event["event"] == "round":
            self._round(str(event["cell"]))
        if (line := important(event)) is not None:
            self.say(line)

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """Note how far a step has brought its cell."""
        self._looked.step(cell, place, fraction)

    def workers(self, count: int, silent_s: float, *, paused: bool) -> None:
        """Note how many workers there are, and how long the most silent was not heard of."""
        self._looked.look(count, silent_s, paused=paused)
        # It is told with every message, and a thousand cells take a while to sum up.
        if time.monotonic() - self._refreshed_at >= _REFRESH_S:
            self._refresh()

    def _refresh(self) -> None:
        self._refreshed_at = time.monotonic()
        if self._own:
            self._looked.refresh()

    def _round(self, key: str) -> None:
        history = self._looked.history
        now = time.monotonic()
        if history.on_grid:
            cells = history.cells.values()
            least = min(cell.last for cell in cells if cell.state != "failed")
            name, last = "round", least
            if least <= self._told.get("", 0) or now - self._spoke_at < _AT_MOST_EVERY_S:
                return
            self._told[""] = least
        else:
            last = history.cells[key].last
            if now - self._spoke_at < _AT_MOST_EVERY_S:
                return
            name = f"{key}: round"
        self._spoke_at = now
        self._refresh()
        self.say(f"{name} {last}{self._of(key)}")

    def _of(self, key: str) -> str:
        """Return what a round's line says after the round."""
        looked, history = self._looked, self._looked.history
        total = f" of {history.rounds}" if history.rounds else ""
        if history.on_grid:
            best = history.best_cell(history.measure)
            found = f"best {best[0].key} {looked.metric} {best[1]:.5g}" if best else ""
        else:
            found = value_of(history, history.cells[key], looked.metric)
        parts = [losses(history.cells[key]), found]
        overall, left = looked.now.overall(history), looked.now.left
        if overall is not None:
            whole = f"whole run {overall:.0%}"
            if left is not None:
                whole += f", {duration(left.seconds)} left"
                if left.low is not None and left.high is not None:
                    whole += f" ({duration(left.low)} to {duration(left.high)})"
            parts.append(whole)
        return total + "".join(f"  {part}" for part in parts if part)
