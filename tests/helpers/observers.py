"""Observers that ask a run to stop."""

from __future__ import annotations

from collections.abc import Callable

from manege.observer import Observer, Place


class StopWhen(Observer):
    """Asks for the end as soon as a function gives a reason."""

    def __init__(self, reason: Callable[[], str | None]) -> None:
        self.should_stop = reason


class StopAfter(Observer):
    """Asks for the end after so many questions whether to."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def should_stop(self) -> str | None:
        self.left -= 1
        return "SIGTERM" if self.left < 0 else None


class StopAfterSteps(Observer):
    """Asks for the end after so many steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, cell: str, place: Place, fraction: float) -> None:
        self._left -= 1

    def should_stop(self) -> str | None:
        return "SIGTERM" if self._left == 0 else None
