"""Observers of a run: a page on the terminal, lines in a log, TensorBoard, a caller's own.

An observer sees what happens, and may ask for something. None can hurt a run: whatever breaks in
one is caught by `Observers`, said once, and the observer is left out from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, NamedTuple, TypeVar, get_args

T = TypeVar("T")
_LONGEST = 200

Asks = Literal["pause", "resume", "checkpoint", "sheet"]
"""Requests that can be made to a run that goes on."""
REQUESTS: tuple[Asks, ...] = get_args(Asks)


class Place(NamedTuple):
    """The place of a cell in its round."""

    round_: int
    step: int
    steps: int


class Observer:
    """Sees a run; each method may be overridden, and does nothing by default."""

    called = ""
    """What a warning calls this observer; its class's name when empty."""

    def opened(self, path: Path) -> None:
        """See the run directory, before the first event."""

    def event(self, event: dict[str, Any]) -> None:
        """See a line of events.jsonl, just written."""

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """See a step; `fraction` of the cell's work is done."""

    def workers(self, count: int, silent_s: float, *, paused: bool) -> None:
        """See how many workers there are, and how long the most silent was not heard of.

        Called several times a second.
        """

    def say(self, text: str) -> None:
        """See a line of text for people."""

    def progress(self, done: int, total: int) -> None:
        """See how far the training of a feature network is."""

    def requests(self) -> Sequence[str]:
        """Return requests to the run, each one of `REQUESTS`."""
        return ()

    def should_stop(self) -> str | None:
        """Return why the run is to be saved and stopped, or None to go on."""
        return None

    def close(self) -> None:
        """Clean up: the run has ended."""

    def in_place_of(self, error: Exception) -> Observer | None:
        """Return an observer that replaces this one, which broke; None: no observer does."""
        return None


class EventCallback(Observer):
    """Calls a function with each line of events.jsonl."""

    called = "on_event"

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self._function = function

    def event(self, event: dict[str, Any]) -> None:
        """Hand the event on."""
        self._function(event)


class Stopper(Observer):
    """Stops a run when it is called, from another observer, thread or cell: ``stop()``."""

    def __init__(self) -> None:
        self._why: str | None = None

    def __call__(self, why: str = "asked to") -> None:
        """Have the run saved and stopped."""
        self._why = why

    def should_stop(self) -> str | None:
        """Return why to stop, once it was called."""
        return self._why


class Observers(Observer):
    """Several observers as one; one that breaks is left out, and a warning says so."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = list(observers)
        self.path: Path | None = None
        """The run directory, once there is one."""

    def opened(self, path: Path) -> None:
        """Show the run directory to each observer."""
        self.path = path
        self._each(lambda one: one.opened(path))

    def event(self, event: dict[str, Any]) -> None:
        """Show a line of events.jsonl to each observer."""
        self._each(lambda one: one.event(event))

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """Show a step to each observer."""
        self._each(lambda one: one.step(cell, place, fraction))

    def workers(self, count: int, silent_s: float, *, paused: bool) -> None:
        """Show each observer how many workers there are."""
        self._each(lambda one: one.workers(count, silent_s, paused=paused))

    def say(self, text: str) -> None:
        """Show a line of text to each observer."""
        self._each(lambda one: one.say(text))

    def progress(self, done: int, total: int) -> None:
        """Show each observer how far the training of a feature network is."""
        self._each(lambda one: one.progress(done, total))

    def requests(self) -> Sequence[Asks]:
        """Return the requests of all observers."""
        return list(chain.from_iterable(self._each(lambda one: _known(one.requests()))))

    def should_stop(self) -> str | None:
        """Return the first reason to stop."""
        return next((why for why in self._each(lambda one: one.should_stop()) if why), None)

    def close(self) -> None:
        """Close each observer."""
        self._each(lambda one: one.close())

    def _each(self, act: Callable[[Observer], T]) -> list[T]:
        """Call `act` with each observer, and return the results of those that did not break."""
        found = []
        for observer in list(self._observers):
            try:
                found.append(act(observer))
            except Exception as error:
                self._leave_out(observer, error)
        return found

    def _leave_out(self, observer: Observer, error: Exception) -> None:
        at = self._observers.index(observer)
        self._observers.remove(observer)
        with suppress(Exception):
            if (other := observer.in_place_of(error)) is not None:
                self._observers.insert(at, other)
                return
        why = shorten(f"{type(error).__name__}: {error}", _LONGEST)
        words = (
            f"warning: {observer.called or type(observer).__name__} broke and is left out ({why})"
        )
        if self._observers:
            self.say(words)
        else:
            with suppress(Exception):  # There may be no standard error.
                sys.stderr.write(f"{words}\n")


def _known(requests: Sequence[str]) -> list[Asks]:
    """Return the requests; raise ValueError for one that is not in `REQUESTS`."""
    for request in requests:
        if request not in REQUESTS:
            raise ValueError(f"request {request!r}, expected one of {', '.join(REQUESTS)}")
    return [known for request in requests for known in REQUESTS if known == request]
