"""The live page of `manege train`: painted by the process that coordinates, at its leisure.

It measures the CPU time it takes and paints more seldom when that is more than a part of the run
that nobody misses. Should it break, plain lines take over and training never hears of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from manege.view.lines import Lines
from manege.view.page import compose
from manege.view.state import Looked
from manege.view.terminal import Keys, Suspending, TerminalScreen, can_paint

SHARE = 0.004
"""Of the time, at most, to be spent on painting."""
_AT_LEAST_S = 0.25
_MOST_SAID = 200
T = TypeVar("T")

KEYS = "p pause   c checkpoint   s sample sheet   q stop, resume later"
_PAUSED = "p go on   c checkpoint   s sample sheet   q stop, resume later"


class Live:
    """A watcher and a screen: the page, and the keys."""

    def __init__(self) -> None:
        self.looked = Looked()
        self._screen = TerminalScreen(sys.stderr)
        self._keys = Keys()
        self._suspending = Suspending(self._screen, self._keys)
        self._began = False
        self._due = 0.0
        self._cost_s = 0.0
        self._wished: list[str] = []
        self._stop: str | None = None
        self._pausing = False
        """Whether a pause was asked for last, granted or not yet."""
        self._said: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
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

    def say(self, text: str) -> None:
        """A line: above the page before there is one, among its messages afterwards."""
        if self._began:
            self.looked.messages.append(text)
            self._said.append(text)
        else:
            sys.stderr.write(f"{text}\n")

    def opened(self, path: Path) -> None:
        """The run lies there."""
        self.looked.opened(path)

    def event(self, event: Mapping[str, Any]) -> None:
        """See a line of events.jsonl."""
        before = time.thread_time()
        if (line := self.looked.event(event)) is not None:
            self._said.append(line)
        if event["event"] == "run_started" and not self._began:
            self._began = True
            self._keys.__enter__()
            self._suspending.__enter__()
        self._spend(before)
        self._paint()

    def step(self, cell: str, place: tuple[int, int, int], fraction: float) -> None:
        """See a step."""
        self.looked.step(cell, place, fraction)
        self._paint()

    def look(self, trainers: int, silent_s: float, *, paused: bool) -> None:
        """See who trains."""
        if paused != self.looked.now.paused:
            self._due = 0.0
        self.looked.look(trainers, silent_s, paused=paused)
        self._paint()

    def wishes(self) -> Sequence[str]:
        """What the keys pressed since ask for."""
        for key in self._keys.pressed().lower():
            match key:
                case "p":
                    self._pausing = not self._pausing
                    if self._pausing:
                        self._wish("pause", "paused")
                    else:
                        self._wish("resume", "going on")
                case "c":
                    self._wish(
                        "checkpoint", "checkpoint asked for: each trainer commits after its step"
                    )
                case "s":
                    self._wish("sheet", "sample sheets asked for: in samples/")
                case "q":
                    self._stop = "key q"
                    self.looked.messages.append("stopping: everything is being saved")
                    self._due = 0.0
        wished, self._wished = self._wished, []
        return wished

    def abandon(self) -> None:
        """Give the terminal back, and paint no more."""
        self._began = False
        self._suspending.__exit__()
        self._keys.__exit__()
        self._screen.leave()

    def asked_to_stop(self) -> str | None:
        """The key that asked for the end, once one did."""
        return self._stop

    def _wish(self, wish: str, words: str) -> None:
        self._wished.append(wish)
        self.looked.messages.append(words)
        self._due = 0.0

    def _spend(self, before: float) -> None:
        spent = time.thread_time() - before
        self._cost_s += spent
        self.looked.now.view_s += spent

    def _paint(self) -> None:
        """Paint, if it is time to and the page has not cost too much."""
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


class Sink(Protocol):
    """Somebody who wants every event."""

    def opened(self, path: Path) -> None:
        """The run lies there."""
        ...

    def event(self, event: Mapping[str, Any]) -> None:
        """A line of events.jsonl."""
        ...


class Careful:
    """A view that cannot hurt: when it breaks, plain lines take over; when they do, silence."""

    def __init__(self, view: Live | Lines, sinks: Sequence[Sink] = ()) -> None:
        self._view: Live | Lines | None = view
        self._sinks = list(sinks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._try(lambda view: view.__exit__(), None)

    def say(self, text: str) -> None:
        """A line."""
        self._try(lambda view: view.say(text), None)

    def opened(self, path: Path) -> None:
        """The run lies there."""
        self._try(lambda view: view.opened(path), None)
        self._pour(lambda sink: sink.opened(path))

    def event(self, event: dict[str, Any]) -> None:
        """See a line of events.jsonl."""
        self._try(lambda view: view.event(event), None)
        self._pour(lambda sink: sink.event(event))

    def step(self, cell: str, place: tuple[int, int, int], fraction: float) -> None:
        """See a step."""
        self._try(lambda view: view.step(cell, place, fraction), None)

    def look(self, trainers: int, silent_s: float, *, paused: bool) -> None:
        """See who trains."""
        self._try(lambda view: view.look(trainers, silent_s, paused=paused), None)

    def wishes(self) -> Sequence[str]:
        """What was asked for."""
        return self._try(lambda view: view.wishes(), ())

    def asked_to_stop(self) -> str | None:
        """Who asked for the end."""
        return self._try(lambda view: view.asked_to_stop(), None)

    def _pour(self, act: Callable[[Sink], None]) -> None:
        """Give the sinks what they want; one that breaks is left out from then on."""
        for sink in list(self._sinks):
            try:
                act(sink)
            except Exception as error:
                self._sinks.remove(sink)
                name = type(sink).__name__
                self.say(f"warning: {name} broke and is left out ({type(error).__name__}: {error})")

    def _try(self, act: Callable[[Live | Lines], T], otherwise: T) -> T:
        if self._view is None:
            return otherwise
        try:
            return act(self._view)
        except Exception as error:
            broken, self._view = self._view, None
            self._fall_back(broken, error)
            return otherwise

    def _fall_back(self, broken: Live | Lines, error: Exception) -> None:
        if not isinstance(broken, Live):
            return
        try:
            broken.abandon()
            lines = Lines(looked=broken.looked)
            lines.say(
                f"warning: the live page broke ({type(error).__name__}: {error}); lines instead"
            )
        except Exception:
            return
        self._view = lines


def for_this_terminal(sinks: Sequence[Sink] = ()) -> Careful:
    """The live page when standard error is a terminal, else plain lines."""
    return Careful(Live() if can_paint(sys.stderr) else Lines(), sinks)
