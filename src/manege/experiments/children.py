"""Run manege commands in processes of their own: start them, wait for them, stop them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from manege.progress import duration

_POLL_S = 0.1


@dataclass(frozen=True)
class ExperimentProgress:
    """How many of an experiment's runs are done, and how long the rest may take."""

    done: int
    total: int
    left_s: float | None
    """Estimated seconds left; None while there is nothing to judge by."""
    latest: str
    failed: tuple[str, ...] = ()

    def words(self) -> str:
        """Return a line for people."""
        left = "" if self.left_s is None else f", {duration(self.left_s)} left"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.done} of {self.total} runs{failed}{left}: {self.latest}"


@dataclass(frozen=True)
class Child:
    """A command that is under way or has ended."""

    process: subprocess.Popen[bytes]
    log: Path

    def last_line(self) -> str:
        """Return the last line of its output."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


class Children:
    """The commands under way; whatever ends the `with` block, they save and stop."""

    def __init__(self, stop: Callable[[], str | None], patience_s: float | None = None) -> None:
        """Begin without commands.

        Args:
            stop: why to stop, once there is a reason; then start and ended raise KeyboardInterrupt.
            patience_s: a child that was told to stop is killed after so long; None: never.
        """
        self._stop, self._patience_s = stop, patience_s
        self.running: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running:
            child.process.send_signal(signal.SIGTERM)
        for child in self.running:
            try:
                child.process.wait(self._patience_s)
            except BaseException:
                if self._patience_s is not None:
                    child.process.kill()
                    child.process.wait()
                raise

    def start(self, arguments: Sequence[str], log: Path) -> Child:
        """Start `manege` with these arguments; its output is appended to the log."""
        self._check()
        with log.open("ab") as file:
            # A group of its own: Ctrl-C reaches us alone, and we stop what we began.
            process = subprocess.Popen(
                [sys.executable, "-m", "manege", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        child = Child(process, log)
        self.running.append(child)
        return child

    def ended(self) -> list[Child]:
        """Wait a moment, and return the commands that have ended since the last call."""
        with suppress(subprocess.TimeoutExpired):
            self.running[0].process.wait(_POLL_S)
        ended = [child for child in self.running if child.process.poll() is not None]
        self.running = [child for child in self.running if child not in ended]
        if not ended:
            self._check()
        return ended

    def _check(self) -> None:
        if stopped_by := self._stop():
            raise KeyboardInterrupt(stopped_by)
