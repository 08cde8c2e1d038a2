"""Somebody at the keyboard, as a run sees them: where it lies, who trains, what they wish for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

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
