"""Cells are moved when that shortens a round, and by enough."""

from __future__ import annotations

import pytest

from manege.runtime.policies import Move, better_place


def even(cells: str, each_s: float) -> dict[str, float]:
    return dict.fromkeys(cells, each_s)


def test_a_cell_of_the_slowest_host_goes_to_the_one_that_would_end_first():
    loads = {1: even("abc", 1.0), 2: even("de", 5.0), 3: even("fg", 2.0)}
    assert better_place(loads) == Move("e", 1)


def test_hosts_alike_keep_what_they_have():
    assert better_place({1: even("ab", 2.0), 2: even("cd", 2.0)}) is None
    assert better_place({1: even("abc", 2.0), 2: even("cd", 2.0)}) is None


def test_two_that_could_be_one_are_made_even():
    assert better_place({1: even("abcd", 1.0), 2: even("e", 1.0)}) == Move("d", 2)


@pytest.mark.parametrize(
    ("fast_s", "move"), [(0.52, Move("b", 2)), (0.55, None)], ids=["enough", "not enough"]
)
def test_a_little_faster_is_not_enough(fast_s, move):
    """Three rounds of the fast one are to be less than 0.8 of two of the slow one."""
    assert better_place({1: even("ab", 1.0), 2: even("cd", fast_s)}) == move


def test_rounds_that_take_no_time_are_left_where_they_are():
    assert better_place({1: even("ab", 0.1), 2: even("cd", 0.01)}) is None


def test_a_host_without_cells_has_not_shown_how_fast_it_is():
    assert better_place({1: even("ab", 9.0), 2: {}}) is None
    assert better_place({}) is None


def test_the_only_cell_of_a_slow_host_may_go():
    assert better_place({1: even("a", 9.0), 2: even("b", 1.0)}) == Move("a", 2)
