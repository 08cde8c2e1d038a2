"""The live page of `manege train`, painted by the coordinating process when it has time.

It measures the CPU time it takes and paints more seldom when that is more than a part of the run
that nobody misses. Should it break, plain lines take over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manege.observer import Observer, Place
from manege.progress import counter
from manege.view.lines import Lines
from manege.view.page import compose
from manege.view.state import Looked
from manege.view.terminal import Keys, Suspending, TerminalScreen, can_paint

SHARE = 0.004
"""The largest part of the time to be spent on painting."""
_AT_LEAST_S = 0.25
_MOST_SAID = 200

KEYS = "p pause   c checkpoint   s sample sheet   q stop, resume later"
_PAUSED = "p go on   c checkpoint   s sample sheet   q stop, resume later"


class Live(Observer):
    """An observer that shows a page on the terminal and turns keys into requests."""

    def __init__(self) -> None:
        self.looked = Looked()
        self._screen = TerminalScreen(sys.stderr)
        self._keys = Keys()
        self._suspending = Suspending(self._screen, self._keys)
        self._began = False
        self._due = 0.0
        self._cost_s = 0.0
        self._asked: list[str] = []
        self._stop: str | None = None
        self._pausing = False
        """Whether a pause was the last request, granted or not yet."""
        self._said: list[str] = []
        self._count = counter("feature network: seen")

    def close(self) -> None:
        """Leave the last page on the terminal, with what was said meanwhile above it."""
        self._suspending.__exit__()
        self._keys.__exit__()
        if not self._began:
            return
        self._screen.leave()
        width, _ = self._screen.size
        self.looked.refresh()
        state = self.looked.history.ended or "interrupted"
        height = 14 + len(self.looked.history.cells)
        # The page as it was last stays, below what was said while it was there.
        self._screen.show([[(line, "")] for line in self._said[-_MOST_SAID:]])
        self.looked.messages.clear()
        self._screen.show(
            compose(self.looked.scene(state), width, min(height, 40), self._screen.signs)
        )
        self._began = False

    def progress(self, done: int, total: int) -> None:
        """Show how far the training of a feature network is, before there is a page."""
        self._count(done, total)

    def say(self, text: str) -> None:
        """Show a line: above the page before there is one, among its messages afterwards."""
        if self._began:
            self.looked.messages.append(text)
            self._said.append(text)
        else:
            sys.stderr.write(f"{text}\n")

    def opened(self, path: Path) -> None:
        """Begin to follow the run in that directory."""
        self.looked.opened(path)

    def event(self, event: dict[str, Any]) -> None:
        """Add a line of events.jsonl to the page."""
        before = time.thread_time()
        if (line := self.looked.event(event)) is not None:
            self._said.append(line)
        if event["event"] == "run_started" and not self._began:
            self._began = True
            self._keys.__enter__()
            self._suspending.__enter__()
        self._spend(before)
        self._paint()

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """Add a step to the page."""
        self.looked.step(cell, place, fraction)
        self._paint()

    def workers(self, count: int, silent_s: float, *, paused: bool) -> None:
        """Show how many workers there are, and whether the run is paused."""
        if paused != self.looked.now.paused:
            self._due = 0.0
        self.looked.look(count, silent_s, paused=paused)
        self._paint()

    def requests(self) -> Sequence[str]:
        """Return the requests of the keys pressed since the last call."""
        for key in self._keys.pressed().lower():
            match key:
                case "p":
                    self._pausing = not self._pausing
                    if self._pausing:
                        self._ask("pause", "paused")
                    else:
                        self._ask("resume", "going on")
                case "c":
                    self._ask(
                        "checkpoint", "checkpoint asked for: each trainer commits after its step"
                    )
                case "s":
                    self._ask("sheet", "sample sheets asked for: in samples/")
                case "q":
                    self._stop = "key q"
                    self.looked.messages.append("stopping: everything is being saved")
                    self._due = 0.0
        asked, self._asked = self._asked, []
        return asked

    def should_stop(self) -> str | None:
        """Return the key that asked for the end; None while none did."""
        return self._stop

    def in_place_of(self, error: Exception) -> Lines:
        """Give the terminal back, and go on in plain lines."""
        self._began = False
        self._suspending.__exit__()
        self._keys.__exit__()
        self._screen.leave()
        lines = Lines(looked=self.looked)
        lines.say(f"warning: the live page broke ({type(error).__name__}: {error}); lines instead")
        return lines

    def _ask(self, request: str, words: str) -> None:
        self._asked.append(request)
        self.looked.messages.append(words)
        self._due = 0.0

    def _spend(self, before: float) -> None:
        spent = time.thread_time() - before
        self._cost_s += spent
        self.looked.now.view_s += spent

    def _paint(self) -> None:
        """Paint the page if it is time to and painting has not cost too much."""
        now = time.monotonic()
        if not self._began or now < self._due:
            return
        before = time.thread_time()
        self.looked.refresh()
        keys = (_PAUSED if self.looked.now.paused else KEYS) if self._keys.listening else ""
        width, height = self._screen.size
        scene = self.looked.scene(self.looked.history.ended or "running", keys)
        self._screen.paint(compose(scene, width, height, self._screen.signs))
        self._spend(before)
        self._due = now + max(_AT_LEAST_S, self._cost_s / SHARE)
        self._cost_s = 0.0


def for_this_caller() -> Observer:
    """Return a display in a notebook's output where Python runs in one, else plain lines."""
    from manege.view.notebook import Display, in_notebook

    return Display() if in_notebook() else Lines()


def for_this_terminal() -> Live | Lines:
    """Return the live page when standard error is a terminal, else plain lines."""
    return Live() if can_paint(sys.stderr) else Lines()
