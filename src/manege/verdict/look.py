"""The observer of a trial, which it informs and asks whether to stop, and the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TypeVar

from manege.errors import EXIT_STOPPED, ManegeError
from manege.progress import duration

Job = TypeVar("Job")
Found = TypeVar("Found")


class Stopped(ManegeError):
    """A signal stopped the trial; trainings that are done are kept."""

    exit_code = EXIT_STOPPED


@dataclass(frozen=True)
class VerdictObserver:
    """The callbacks that a trial tells what it does, and asks whether to stop."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[str, float, float], None] = lambda what, done, seconds: None
    """Called at every step with what is trained, the share of it all done and the seconds left."""
    stop: Callable[[], str | None] = lambda: None
    counter: Callable[[int, int], None] | None = None
    """Called with how many pictures are drawn, of how many."""

    def check(self) -> None:
        """Raise KeyboardInterrupt when the trial is to stop."""
        if self.stop():
            raise KeyboardInterrupt

    def drawn(self, done: int, total: int) -> None:
        """Report how many pictures are drawn, and stop if asked to."""
        if self.counter is not None:
            self.counter(done, total)
        self.check()


@dataclass
class TrainingProgress:
    """The progress of all trainings, which may run in parallel, and the time left."""

    look: VerdictObserver
    total: int
    """Number of trainings to do."""
    steps: int
    """Steps of each training."""
    done: int = 0
    _began: float | None = None
    _under_way: dict[str, int] = field(default_factory=dict)
    """By the name of each training under way, the steps it has done."""
    _given_up: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def each(self, what: str, step: int) -> None:
        """Report that a training has reached this step, and stop if asked to."""
        if self._given_up:
            raise KeyboardInterrupt
        with self._lock:
            if self._began is None:
                self._began = time.monotonic()
            self._under_way[what] = step
            self.look.step(" and ".join(self._under_way), self._part, self._left_s)
        self.look.check()

    def finished(self, what: str, told: str) -> None:
        """Report that a training is done."""
        with self._lock:
            del self._under_way[what]
            self.done += 1
            left = duration(self._left_s)
            self.look.say(f"{what}: {told}; {self.done} of {self.total} trainings, {left} left")

    def side_by_side(
        self, train: Callable[[Job], Found], jobs: Sequence[Job], workers: int
    ) -> list[Found]:
        """Run the jobs, so many at a time and begun in order, and return the result of each.

        They run in threads: torch holds Python's lock only between its operations, and all see the
        same pictures. The first job that fails ends the others at their next step.
        """
        with ThreadPoolExecutor(workers) as threads:
            futures = [threads.submit(train, job) for job in jobs]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._given_up = True
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    @property
    def _part(self) -> float:
        return (self.done + sum(self._under_way.values()) / self.steps) / self.total

    @property
    def _left_s(self) -> float:
        spent_s = 0.0 if self._began is None else time.monotonic() - self._began
        return spent_s * (1 / self._part - 1)
