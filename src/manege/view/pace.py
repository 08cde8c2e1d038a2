"""Estimate how fast a run gets on, and how long it will take, with a spread."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import NamedTuple

_EVERY_S = 0.25
_WINDOWS = 8
_FEWEST = 3


class Left(NamedTuple):
    """Seconds left; low and high are None while too little is known."""

    seconds: float
    low: float | None
    high: float | None


class Pace:
    """Estimates the time left from how the finished part of a run has grown."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=2000)

    def begin(self) -> None:
        """Forget the past: the run was started, or went on after a pause."""
        self._seen.clear()

    def see(self, t: float, fraction: float) -> None:
        """Note which part of the run was done at that time."""
        if not self._seen or t - self._seen[-1][0] >= _EVERY_S:
            self._seen.append((t, fraction))

    def left(self) -> Left | None:
        """Return the time left, within two standard errors of the speed; None if it is too soon."""
        if len(self._seen) < 2:
            return None
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        if last <= first or now - began < 1.0:
            return None
        speed = (last - first) / (now - began)
        seconds = (1.0 - last) / speed
        speeds = self._speeds(began, now)
        if len(speeds) < _FEWEST:
            return Left(seconds, None, None)
        mean = sum(speeds) / len(speeds)
        spread = math.sqrt(sum((one - mean) ** 2 for one in speeds) / (len(speeds) - 1))
        error = 2 * spread / math.sqrt(len(speeds)) / mean if mean > 0 else 1.0
        return Left(seconds, seconds / (1 + error), seconds / (1 - error) if error < 0.8 else None)

    def _speeds(self, began: float, now: float) -> list[float]:
        """Return the speed in each of several stretches of equal length."""
        wide = (now - began) / _WINDOWS
        ends = [self._seen[0]]
        for t, fraction in self._seen:
            if t - ends[-1][0] >= wide:
                ends.append((t, fraction))
        return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(ends)]
