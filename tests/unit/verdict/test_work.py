"""Trainings side by side: in order, counted, and ended together when one fails."""

from __future__ import annotations

import re
import threading
import time

import pytest

from manege.verdict.look import TrainingProgress, VerdictObserver


def test_what_is_found_stands_in_the_order_of_the_jobs() -> None:
    told: list[str] = []
    parts: list[float] = []
    look = VerdictObserver(told.append, lambda what, part, left_s: parts.append(part))
    work = TrainingProgress(look, total=6, steps=2)
    met = threading.Barrier(3)

    def train(job: int) -> int:
        met.wait(10)  # Three are under way at once, or this breaks.
        for step in (1, 2):
            work.each(str(job), step)
        work.finished(str(job), "trained")
        return job * job

    assert work.side_by_side(train, range(6), workers=3) == [0, 1, 4, 9, 16, 25]
    assert parts == sorted(parts)
    assert parts[-1] == 1
    assert [int(re.search(r"(\d+) of 6 trainings", line)[1]) for line in told] == [*range(1, 7)]


def test_the_first_that_fails_ends_the_others_at_their_next_step() -> None:
    work = TrainingProgress(VerdictObserver(), total=4, steps=10**9)
    before = threading.active_count()
    begun: list[int] = []
    both = threading.Barrier(2)

    def train(job: int) -> None:
        begun.append(job)
        both.wait(10)
        if job == 1:
            raise OSError("disk full")
        for step in range(1, 10**9):
            work.each(str(job), step)
            time.sleep(0.001)

    with pytest.raises(OSError, match="disk full"):
        work.side_by_side(train, range(4), workers=2)
    # Those that had not begun never do, and nobody is left behind.
    assert sorted(begun) == [0, 1]
    assert threading.active_count() == before


def test_who_is_asked_to_stop_stops_them_all() -> None:
    asked = threading.Event()
    work = TrainingProgress(
        VerdictObserver(stop=lambda: "SIGINT" if asked.is_set() else None), total=2, steps=10**9
    )

    def train(job: int) -> None:
        for step in range(1, 10**9):
            work.each(str(job), step)
            if step == 5:
                asked.set()

    with pytest.raises(KeyboardInterrupt):
        work.side_by_side(train, range(2), workers=2)
