"""Whom a trial tells what is going on, whom it asks whether to stop, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from manege.errors import EXIT_STOPPED, ManegeError
from manege.progress import duration


class Stopped(ManegeError):
    """A signal came; what is done is kept."""

    exit_code = EXIT_STOPPED


@dataclass(frozen=True)
class Look:
    """Whom to tell what is going on, and whom to ask whether to stop."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[str, float, float], None] = lambda what, done, seconds: None
    """Told what is trained, what part of all is done and the seconds left, at every step."""
    stop: Callable[[], str | None] = lambda: None
    counter: Callable[[int, int], None] | None = None
    """Told how many pictures are drawn, of how many."""

    def check(self) -> None:
        """Nothing; KeyboardInterrupt when it is to stop."""
        if self.stop():
            raise KeyboardInterrupt

    def drawn(self, done: int, total: int) -> None:
        """So many pictures are drawn."""
        if self.counter is not None:
            self.counter(done, total)
        self.check()


@dataclass
class Work:
    """How much training there is, and how fast it goes."""

    look: Look
    total: int
    """Trainings to do."""
    steps: int
    """Of each."""
    done: int = 0
    spent_s: float = 0.0
    """In trainings that are done."""
    began: float = 0.0

    def begin(self) -> None:
        """A training begins."""
        self.began = time.monotonic()

    def each(self, what: str, step: int) -> None:
        """It has come to this step."""
        done = self.done + step / self.steps
        spent_s = self.spent_s + time.monotonic() - self.began
        self.look.step(what, done / self.total, spent_s / done * (self.total - done))
        self.look.check()

    def finished(self, what: str, told: str) -> None:
        """It is done."""
        self.done += 1
        self.spent_s += time.monotonic() - self.began
        left = duration(self.spent_s / self.done * (self.total - self.done))
        self.look.say(f"{what}: {told}; {self.done} of {self.total} trainings, {left} left")
