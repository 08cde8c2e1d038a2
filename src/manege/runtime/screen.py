"""Somebody at the keyboard, as a run sees them: where it lies, who trains, what they wish for.

Nobody who looks on can hurt a run: see `Guarded`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol, TypeVar

from manege.runtime.orders import Place, Watcher

T = TypeVar("T")
_LONGEST = 200

WISHES = ("pause", "resume", "checkpoint", "sheet")
"""What can be asked of a run that goes on."""


class Screen(Protocol):
    """What is told to the one who looks on, besides events and steps; and what they ask for."""

    def opened(self, path: Path) -> None:
        """The run directory, before the first event."""
        ...

    def look(self, trainers: int, silent_s: float, *, paused: bool) -> None:
        """So many trainers, one of which was not heard of for so long; some times a second."""
        ...

    def wishes(self) -> Sequence[str]:
        """What was asked for since, of `WISHES`."""
        ...


class Nobody:
    """A screen that nobody looks at."""

    def opened(self, path: Path) -> None:
        """Nothing."""

    def look(self, trainers: int, silent_s: float, *, paused: bool) -> None:
        """Nothing."""

    def wishes(self) -> Sequence[str]:
        """Nothing."""
        return ()


class Guarded:
    """A watcher and a screen of anybody's making: one that breaks is left out, which is said."""

    def __init__(self, watcher: Watcher, screen: Screen) -> None:
        self._watcher = watcher
        self._screen = screen
        self._broken: list[object] = []

    def event(self, event: dict[str, Any]) -> None:
        """Show the watcher a line of events.jsonl."""
        self._try(self._watcher, lambda: self._watcher.event(event), None)

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """Show the watcher a step."""
        self._try(self._watcher, lambda: self._watcher.step(cell, place, fraction), None)

    def opened(self, path: Path) -> None:
        """Tell the screen where the run lies."""
        self._try(self._screen, lambda: self._screen.opened(path), None)

    def look(self, trainers: int, silent_s: float, *, paused: bool) -> None:
        """Tell the screen who trains."""
        self._try(self._screen, lambda: self._screen.look(trainers, silent_s, paused=paused), None)

    def wishes(self) -> Sequence[str]:
        """Return what was asked for at the screen."""
        return self._try(self._screen, lambda: _known(self._screen.wishes()), ())

    def _try(self, whom: object, act: Callable[[], T], otherwise: T) -> T:
        if any(whom is one for one in self._broken):
            return otherwise
        try:
            return act()
        except Exception as error:
            self._broken.append(whom)
            why = shorten(f"{type(error).__name__}: {error}", _LONGEST)
            with suppress(Exception):  # There may be no standard error.
                name = type(whom).__name__
                sys.stderr.write(f"warning: {name} broke and is left out ({why})\n")
            return otherwise


def _known(wishes: Sequence[str]) -> Sequence[str]:
    """Return the wishes; raise ValueError for one that cannot be granted."""
    for wish in wishes:
        if wish not in WISHES:
            raise ValueError(f"wish {wish!r}, expected one of {', '.join(WISHES)}")
    return wishes
