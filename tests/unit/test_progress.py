"""A count on a terminal, and in a log."""

from __future__ import annotations

import io

import pytest

from manege import progress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def counted(clock: Clock, seconds: float, total: int = 10) -> None:
    """So many pictures, in so long."""
    show = progress.counter("drawn")
    for done in range(1, total + 1):
        clock.now += seconds / total
        show(done, total)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


@pytest.mark.parametrize("seconds", [1, 29])
def test_short_work_leaves_a_log_alone(clock, monkeypatch, seconds):
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    counted(clock, seconds)
    assert log.getvalue() == ""


def test_long_work_says_in_a_log_how_far_it_is(clock, monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    counted(clock, 100)
    assert log.getvalue().splitlines() == [
        "drawn 3 of 10 pictures, 1m10s left",
        "drawn 6 of 10 pictures, 40s left",
        "drawn 9 of 10 pictures, 10s left",
        "drawn 10 of 10 pictures, 0s left",
    ]


def test_a_terminal_has_one_line_that_changes(clock, monkeypatch):
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    counted(clock, 2)
    assert screen.getvalue().count("\n") == 1
    assert screen.getvalue().split("\r")[1:] == [
        "drawn 3 of 10 pictures, 1s left  ",
        "drawn 6 of 10 pictures, 1s left  ",
        "drawn 9 of 10 pictures, 0s left  ",
        "drawn 10 of 10 pictures, 0s left  \n",
    ]


def test_the_end_is_said_once_however_often_it_is_told(clock, monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    show = progress.counter("drawn")
    for _ in range(5):
        clock.now += 40
        show(10, 10)
    assert log.getvalue().splitlines() == ["drawn 10 of 10 pictures, 0s left"]
