"""Intervals against their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from manege.metrics.estimate import (
    Z95,
    Estimate,
    basic_bootstrap,
    check_features,
    normal,
    percentile_bootstrap,
    wilson,
)


def test_z95_leaves_two_and_a_half_percent_on_either_side():
    assert stats.norm.cdf(Z95) == pytest.approx(0.975, abs=1e-15)


def test_a_normal_interval_is_clipped_to_what_is_possible():
    assert normal(1.0, 4.0) == Estimate(1.0, 1 - 2 * Z95, 1 + 2 * Z95)
    assert normal(1.0, 4.0, lowest=0.0, highest=2.0) == Estimate(1.0, 0.0, 2.0)
    assert normal(1.0, 0.0) == Estimate(1.0, 1.0, 1.0)


@pytest.mark.parametrize(("successes", "count"), [(0, 1), (0, 50), (7, 10), (50, 50), (999, 1000)])
def test_wilson_agrees_with_scipy(successes, count):
    found = wilson(successes, count)
    expected = stats.binomtest(successes, count).proportion_ci(method="wilson")
    assert found.value == successes / count
    assert found.low == pytest.approx(expected.low, abs=1e-12)
    assert found.high == pytest.approx(expected.high, abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize(("successes", "count"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_refuses_shares_that_are_none(successes, count):
    with pytest.raises(ValueError, match="at least one trial"):
        wilson(successes, count)


def test_the_basic_interval_takes_a_shift_back_and_the_percentile_one_does_not():
    draws = np.linspace(5.0, 7.0, 1001)  # Around 6, for a value of 5.5: shifted up by a half.
    found = basic_bootstrap(5.5, draws, lowest=0.0, highest=10.0)
    assert (found.low, found.high) == pytest.approx((11 - 6.95, 11 - 5.05))
    found = percentile_bootstrap(5.5, draws)
    assert (found.low, found.high) == pytest.approx((5.05, 6.95), abs=2.1e-3)


def test_bootstrap_intervals_hold_their_value_and_only_what_is_possible():
    above = np.linspace(1.0, 2.0, 100)
    assert basic_bootstrap(0.0, above, lowest=0.0, highest=1.0) == Estimate(0.0, 0.0, 0.0)
    below = np.linspace(0.2, 0.6, 100)
    found = basic_bootstrap(0.9, below, lowest=0.0, highest=1.0)
    assert (found.low, found.high) == (0.9, 1.0)
    assert percentile_bootstrap(3.0, np.array([4, 4, 5])) == Estimate(3.0, 3.0, 5.0)
    assert percentile_bootstrap(6.0, np.array([4, 4, 5])) == Estimate(6.0, 4.0, 6.0)


@pytest.mark.parametrize(
    ("sets", "complaint"),
    [
        ([np.zeros(5)], "rows × dimensions"),
        ([np.zeros((2, 3))], "2 rows of features; expected at least 3"),
        ([np.zeros((9, 3)), np.zeros((9, 2))], r"\[2, 3\] dimensions"),
        ([np.zeros((9, 0))], "at least 1"),
        ([np.full((9, 3), math.nan)], "not finite"),
        ([np.full((9, 3), math.inf)], "not finite"),
    ],
)
def test_features_that_are_no_table_of_numbers_are_refused(sets, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_features(*sets, at_least=3)
