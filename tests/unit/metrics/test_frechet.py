"""Moments, the distance between them, and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from manege.metrics import frechet as module
from manege.metrics.estimate import Z95
from manege.metrics.frechet import (
    Moments,
    enough_for_frechet,
    frechet,
    frechet_between,
    frechet_distance,
    moments,
    spread,
)


def features(seed: int, rows: int, dimensions: int, shift: float = 0.0) -> np.ndarray:
    source = np.random.default_rng(seed)
    mixed = source.standard_normal((rows, dimensions)) @ np.diag(np.linspace(0.5, 2, dimensions))
    return mixed + shift


def test_moments_are_numpys_mean_and_covariance(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 7)
    x = features(0, 50, 4).astype(np.float32)
    x.flags.writeable = False
    found = moments(x)
    assert found.count == 50
    np.testing.assert_allclose(found.mean_D, x.astype(np.float64).mean(0), rtol=1e-13)
    np.testing.assert_allclose(found.covariance_DD, np.cov(x.astype(np.float64).T), atol=1e-13)
    assert found.mean_D.dtype == found.covariance_DD.dtype == np.float64


def test_a_large_mean_costs_no_precision():
    x = features(1, 400, 3)
    far = moments(x + 2.0**27)
    np.testing.assert_allclose(far.covariance_DD, np.cov(x.T), atol=1e-7)


def test_one_row_has_no_covariance():
    with pytest.raises(ValueError, match="at least 2"):
        moments(np.zeros((1, 3)))


def test_diagonal_gaussians_have_the_distance_of_the_formula():
    a = Moments(9, np.array([0.0, 1.0]), np.diag([4.0, 1.0]))
    b = Moments(9, np.array([3.0, 1.0]), np.diag([1.0, 9.0]))
    assert frechet_distance(a, b) == pytest.approx(9 + (2 - 1) ** 2 + (1 - 3) ** 2, rel=1e-14)


def test_a_covariance_with_a_negative_eigenvalue_from_rounding_does_no_harm():
    flat = Moments(9, np.zeros(2), np.array([[1.0, 1.0], [1.0, 1.0 - 1e-16]]) - 1e-17)
    assert frechet_distance(flat, flat) == pytest.approx(0, abs=1e-14)
    across = Moments(9, np.zeros(2), np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert frechet_distance(flat, across) == pytest.approx(4, rel=1e-12)
    nothing = Moments(9, np.zeros(2), np.zeros((2, 2)))
    assert frechet_distance(nothing, flat) == pytest.approx(2, rel=1e-14)
    assert frechet_distance(nothing, nothing) == 0


def test_directions_without_spread_add_nothing_but_the_other_sets_spread():
    source = np.random.default_rng(8)
    axes, _ = np.linalg.qr(source.standard_normal((60, 60)))
    spectrum = np.array([4.0, 1.0, 0.25])
    thin = Moments(99, np.zeros(60), axes[:, :3] * spectrum @ axes[:, :3].T)
    round_ = Moments(99, np.zeros(60), np.eye(60))
    expected = np.square(np.sqrt(spectrum) - 1).sum() + 57
    # Roots of eigenvalues that rounding made would be off by 1e-8 each.
    assert frechet_distance(thin, round_) == pytest.approx(expected, rel=1e-11)


def test_the_value_is_the_plain_distance_of_the_whole_samples():
    x, y = features(2, 83, 5), features(3, 61, 5, shift=0.4)
    assert frechet(x, y).value == frechet_distance(moments(x), moments(y))


@pytest.mark.parametrize(("rows", "blocks", "used"), [(83, 20, 20), (80, 8, 8), (13, 20, 6)])
def test_the_interval_is_the_jackknife_over_interleaved_blocks(rows, blocks, used):
    x, y = features(4, rows, 3), features(5, 90, 3, shift=2.0)

    def variance(one, other, groups):
        place = np.arange(len(one)) % groups
        left_out = [
            frechet_distance(moments(one[place != group]), moments(other))
            for group in range(groups)
        ]
        return (groups - 1) / groups * np.sum((left_out - np.mean(left_out)) ** 2)

    reach = Z95 * np.sqrt(variance(x, y, used) + variance(y, x, blocks))
    found = frechet(x, y, blocks)
    assert found.high - found.value == pytest.approx(reach, rel=1e-9)
    assert found.low == pytest.approx(max(0, found.value - reach), rel=1e-9)


@pytest.mark.full
def test_the_interval_is_as_wide_as_samples_vary():
    found = [
        frechet(features(seed, 300, 4), features(seed + 1000, 200, 4, shift=0.5))
        for seed in range(150)
    ]
    spread = np.std([one.value for one in found])
    assert np.mean([one.high - one.value for one in found]) / Z95 == pytest.approx(spread, rel=0.15)


def test_an_interval_ends_at_zero():
    found = frechet(features(6, 8, 2), features(6, 8, 2))
    assert found.low == 0
    assert found.high >= found.value >= 0


def test_four_rows_are_enough_and_three_are_refused():
    x = features(7, 40, 3)
    assert np.isfinite(frechet(x[:4], x).high)
    with pytest.raises(ValueError, match="3 rows of features; expected at least 4"):
        frechet(x, x[:3])
    with pytest.raises(ValueError, match="at least 2"):
        frechet(x, x, blocks=1)


def test_eight_samples_a_dimension_are_enough():
    assert enough_for_frechet(128) == 1024


# For many dimensions.


@pytest.mark.parametrize(("n", "m"), [(400, 300), (12, 300), (300, 9), (7, 8)])
def test_one_decomposition_gives_the_same_distance(n, m):
    rng = np.random.default_rng(n)
    x = rng.normal(0.3, 1.0, (n, 20)) @ rng.normal(0, 1, (20, 20))
    y = rng.normal(0, 1.0, (m, 20))
    expected = frechet_distance(moments(x), moments(y))
    assert frechet_between(spread(x), spread(y)).value == pytest.approx(expected, rel=1e-9)


def test_a_set_is_no_distance_from_itself_in_one_decomposition():
    x = np.random.default_rng(0).normal(0, 3, (50, 60))
    found = frechet_between(spread(x), spread(x))
    assert found.value == pytest.approx(0, abs=1e-9)
    assert found.high == pytest.approx(0, abs=1e-9)


def test_the_closed_form_of_two_diagonal_gaussians():
    """Rows whose moments are exact, so that the distance is."""
    signs = np.array([[a, b] for a in (-1, 1) for b in (-1, 1)], dtype=np.float64)
    scale = np.sqrt(3 / 4)
    x = signs * scale * np.array([1.0, 2.0])
    y = signs * scale * np.array([3.0, 1.0]) + np.array([5.0, 0.0])
    found = frechet_between(spread(x), spread(y)).value
    assert found == pytest.approx(25 + (1 - 3) ** 2 + (2 - 1) ** 2, rel=1e-12)


@pytest.mark.parametrize("shift", [0.15, 0.5])
def test_the_interval_of_first_order_is_as_wide_as_samples_differ(shift):
    """Five rows a dimension, as for FID with 10,000 pictures."""
    rng = np.random.default_rng(1)
    scale = np.exp(rng.normal(0, 1, 40))
    values, reaches = [], []
    for _ in range(200):
        x = rng.normal(shift, 1, (200, 40)) * scale
        y = rng.normal(0, 1.2, (200, 40)) * scale
        found = frechet_between(spread(x), spread(y))
        values.append(found.value)
        reaches.append((found.high - found.low) / 2)
    assert np.mean(reaches) == pytest.approx(1.96 * np.std(values), rel=0.2)
