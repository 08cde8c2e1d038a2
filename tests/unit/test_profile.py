"""Where a grid's time went, summed from events as they are written."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from manege.profile import Profile, profile


def told(*, on_grid: bool = True, event: str = "round", **phases_s: float) -> dict[str, Any]:
    return {
        "event": event,
        "cell": "0-0",
        "round": 1,
        "phases_s": phases_s,
        "grid": {"diversity": 0.5} if on_grid else None,
    }


EVENTS = [
    {"event": "run_started", "cells": ["0-0", "0-1"]},
    told(gather=0.5, data=1.0, train=4.0, update_genomes=2.0, mutate=1.0, overall=9.0),
    {"event": "commit", "cell": "0-0", "round": 1, "seconds": 100.0},
    told(gather=0.25, data=0.5, train=3.0, update_genomes=1.0, mutate=0.5, overall=7.0),
    {"event": "run_finished", "seconds": 50.0},
]


def test_phases_are_summed_over_cells_and_rounds():
    found = profile(EVENTS)
    assert found is not None
    assert found.rounds == 2
    assert found.seconds == {
        "gather": 0.75,
        "train": 8.5,  # Reading the batches is part of it.
        "update_genomes": 3.0,
        "mutate": 1.5,
        "overall": 16.0,
    }


def test_rows_tell_totals_means_and_shares():
    found = profile(EVENTS)
    assert found is not None
    rows = {name: numbers for name, *numbers in found.rows()}
    assert list(rows) == ["gather", "train", "update_genomes", "mutate", "overall"]
    assert rows["train"] == pytest.approx([8.5, 4.25, 8.5 / 16])
    assert rows["gather"] == pytest.approx([0.75, 0.375, 0.75 / 16])
    assert rows["overall"] == [16.0, 8.0, 1.0]


def test_lines_are_a_table_of_equal_widths():
    found = profile(EVENTS)
    assert found is not None
    head, *lines = found.lines()
    assert head.split() == ["routine", "seconds", "a", "round", "share"]
    assert [line.split()[0] for line in lines] == [name for name, *_ in found.rows()]
    assert lines[1].split() == ["train", "8.50", "4.2500", "53.1%"]
    assert lines[-1].split() == ["overall", "16.00", "8.0000", "100.0%"]
    assert len({len(line) for line in (head, *lines)}) == 1


def test_a_phase_that_a_round_never_entered_counts_nothing():
    found = profile([told(gather=0.1, overall=1.0), told(mutate=0.2, overall=1.0)])
    assert found is not None
    expected = {"gather": 0.1, "train": 0.0, "update_genomes": 0.0, "mutate": 0.2, "overall": 2.0}
    assert found.seconds == pytest.approx(expected)


def test_time_that_belongs_to_no_routine_is_only_in_overall():
    found = profile([told(gather=1.0, watch=5.0, overall=7.0)])
    assert found is not None
    assert sum(found.seconds.values()) == 1.0 + 7.0


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"event": "run_started"}],
        [told(on_grid=False, data=1.0, train=2.0, overall=4.0)],
        [{"event": "round", "phases_s": {"train": 1.0}}],  # As written before there were grids.
        [told(event="score", overall=1.0)],
    ],
    ids=["nothing", "no round", "no grid", "an old run", "another event"],
)
def test_without_a_round_on_a_grid_there_is_no_profile(events):
    assert profile(events) is None


def test_a_clock_that_stood_still_divides_nothing():
    found = Profile(1, {"train": 0.0, "overall": 0.0})
    assert found.rows() == [("train", 0.0, 0.0, 0.0), ("overall", 0.0, 0.0, 0.0)]


def test_a_profile_needs_no_torch():
    code = "import sys, manege.profile; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
