"""How far something has come, in words: a count on a terminal, a time for people. No torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_COUNT_EVERY_S = 0.5


def counter(verb: str) -> Callable[[int, int], None] | None:
    """`drawn 3,200 of 10,000 pictures, 12s left` on a terminal; None, for silence, elsewhere."""
    if not sys.stderr.isatty():
        return None
    started = last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _COUNT_EVERY_S and not (done == total and last > started):
            return
        last = now
        left = duration((now - started) / done * (total - done))
        sys.stderr.write(f"\r{verb} {done:,} of {total:,} pictures, {left} left  ")
        if done == total:
            sys.stderr.write("\n")

    return show


def duration(seconds: float) -> str:
    """`45s`, `12m05s`, `3h20m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
