"""Say how far something has come: a count, a time for people. No torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_COUNT_EVERY_S = 0.5
_CLEAR = "\r\033[K"
_LINE_EVERY_S = 30.0
"""The pause between lines in a file or a batch job's log; what takes less stays silent."""


def counter(verb: str) -> Callable[[int, int], None]:
    """Return a function that writes `drawn 3,200 of 10,000 pictures, 12s left` for counts.

    It rewrites one line of a terminal, and writes a line now and then elsewhere.
    """
    terminal = sys.stderr.isatty()
    every = _COUNT_EVERY_S if terminal else _LINE_EVERY_S
    started = last = time.monotonic()
    said = (0, 0)

    def show(done: int, total: int) -> None:
        nonlocal last, said
        now = time.monotonic()
        if now - last < every and not (done == total and last > started):
            return
        if (done, total) == said:
            return  # Whoever draws again what was left out has come no further.
        last, said = now, (done, total)
        left = duration((now - started) / done * (total - done))
        text = f"{verb} {done:,} of {total:,} pictures, {left} left"
        sys.stderr.write(f"\r{text}  " if terminal else f"{text}\n")
        if terminal and done == total:
            sys.stderr.write("\n")
        sys.stderr.flush()

    return show


def tell(text: str) -> None:
    """Write a line on standard error: what goes on, or a warning."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class OneLine:
    """Progress on a line that is written over on a terminal, and lines above it."""

    def __init__(self) -> None:
        self._last = 0.0

    def tell(self, text: str) -> None:
        """Write a line, over the one of `training` where there is one."""
        sys.stderr.write(f"{_CLEAR if sys.stderr.isatty() else ''}{text}\n")

    def training(self, what: str, part: float, left_s: float) -> None:
        """Show how far trainings are; on a terminal only."""
        now = time.monotonic()
        if now - self._last < _COUNT_EVERY_S or not sys.stderr.isatty():
            return
        self._last = now
        sys.stderr.write(f"{_CLEAR}{part:.0%} done, {duration(left_s)} left; training {what}\r")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """Format seconds as `45s`, `12m05s` or `3h20m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
