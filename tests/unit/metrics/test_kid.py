"""KID against its definition, and its interval against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from manege.metrics import kid as module
from manege.metrics.estimate import Z95
from manege.metrics.kid import kid


def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x @ y.T / x.shape[1] + 1) ** 3


def third_moment(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """E[x⊗x⊗x] of a Gaussian."""
    pairs = np.einsum("ij,k->ijk", covariance, mean)
    return (
        np.einsum("i,j,k->ijk", mean, mean, mean)
        + pairs
        + pairs.transpose(0, 2, 1)
        + pairs.transpose(2, 1, 0)
    )


def expected_kernel(mean_x, covariance_x, mean_y, covariance_y):
    """E[(x·y/D + 1)³] of independent Gaussians, by their moments."""
    D = len(mean_x)
    second_x = covariance_x + np.outer(mean_x, mean_x)
    second_y = covariance_y + np.outer(mean_y, mean_y)
    third = third_moment(mean_x, covariance_x) * third_moment(mean_y, covariance_y)
    return (
        1 + 3 * (mean_x @ mean_y) / D + 3 * (second_x * second_y).sum() / D**2 + third.sum() / D**3
    )


def deviations(found):
    return np.array([(one.high - one.low) / (2 * Z95) for one in found])


@pytest.mark.parametrize("tile", [512, 7])
def test_value_and_variance_are_those_of_the_definition(tile, monkeypatch):
    monkeypatch.setattr(module, "_TILE", tile)
    source = np.random.default_rng(0)
    x = source.random((30, 4)).astype(np.float32)
    y = (source.random((23, 4)) * 1.5).astype(np.float32)
    x.flags.writeable = False
    found = kid(x, y)

    N, M = len(x), len(y)
    x, y = x.astype(np.float64), y.astype(np.float64)
    xx, yy, xy = kernel(x, x), kernel(y, y), kernel(x, y)
    np.fill_diagonal(xx, 0)
    np.fill_diagonal(yy, 0)
    value = xx.sum() / (N * (N - 1)) + yy.sum() / (M * (M - 1)) - 2 * xy.mean()
    assert found.value == pytest.approx(value, rel=1e-10)

    def within(k):
        n = len(k)
        rows = k.sum(1, keepdims=True) / (n - 2)
        rest = k - rows - rows.T + k.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(rest, 0)
        np.testing.assert_allclose(rest.sum(1), 0, atol=1e-10)
        return (rest**2).sum() / (n * (n - 3))

    rest = xy - xy.mean(0) - xy.mean(1, keepdims=True) + xy.mean()
    between = (rest**2).sum() / ((N - 1) * (M - 1))
    a = 2 * (xx.sum(1) / (N - 2) - xy.mean(1))
    b = 2 * (yy.sum(1) / (M - 2) - xy.mean(0))
    first = (a.var(ddof=1) - 4 * within(xx) / (N - 2) - 4 * between / M) / N + (
        b.var(ddof=1) - 4 * within(yy) / (M - 2) - 4 * between / N
    ) / M
    second = 2 * within(xx) / (N * (N - 1)) + 2 * within(yy) / (M * (M - 1)) + 4 * between / (N * M)
    assert first > 0
    assert deviations([found])[0] == pytest.approx(np.sqrt(first + second), rel=1e-9)


@pytest.mark.full
@pytest.mark.parametrize(
    ("N", "M", "shift", "scale", "low", "high"),
    [
        (60, 60, 0.0, 1.0, 0.95, 1.25),  # The cut at 0 makes it wide where the sets agree.
        (120, 60, 0.0, 1.0, 0.95, 1.25),
        (60, 60, 0.3, 1.0, 0.9, 1.1),
        (60, 150, 0.2, 1.3, 0.9, 1.1),
    ],
)
def test_the_deviation_is_that_of_repeated_samples(N, M, shift, scale, low, high):
    source = np.random.default_rng(1)
    D, mean, spread = 5, 0.5, 0.5
    found = [
        kid(
            mean + spread * source.standard_normal((N, D)),
            mean + shift + spread * scale * source.standard_normal((M, D)),
        )
        for _ in range(1000)
    ]
    values = np.array([one.value for one in found])
    assert low < deviations(found).mean() / values.std() < high

    here, there = np.full(D, mean), np.full(D, mean + shift)
    narrow, wide = spread**2 * np.eye(D), (spread * scale) ** 2 * np.eye(D)
    truth = (
        expected_kernel(here, narrow, here, narrow)
        + expected_kernel(there, wide, there, wide)
        - 2 * expected_kernel(here, narrow, there, wide)
    )
    assert abs(values.mean() - truth) < 4 * values.std() / np.sqrt(len(values))
    covered = np.mean([one.low <= truth <= one.high for one in found])
    assert covered > 0.92
    if shift:
        assert covered < 0.98


@pytest.mark.full
@pytest.mark.parametrize(("N", "M"), [(20, 10), (8, 30)])
def test_the_variance_is_unbiased_even_for_a_few_rows(N, M):
    """Row effects common to all three kernels must cancel: here they are most of a kernel."""
    source = np.random.default_rng(2)
    found = [kid(source.random((N, 5)), 0.2 + source.random((M, 5))) for _ in range(2500)]
    spread = np.var([one.value for one in found])
    assert (deviations(found) ** 2).mean() == pytest.approx(spread, rel=0.12)


def test_the_value_may_be_negative():
    source = np.random.default_rng(3)
    found = [kid(source.random((20, 3)), source.random((20, 3))) for _ in range(40)]
    assert min(one.value for one in found) < 0 < max(one.value for one in found)


def test_rows_all_alike_have_no_variance():
    found = kid(np.ones((9, 3)), np.ones((7, 3)))
    assert found.value == pytest.approx(0, abs=1e-12)
    assert found.high - found.low == pytest.approx(0, abs=1e-6)
    assert np.isfinite([found.low, found.high]).all()


def test_three_rows_are_refused():
    assert np.isfinite(kid(np.eye(4), np.eye(4)).high)
    with pytest.raises(ValueError, match="3 rows of features; expected at least 4"):
        kid(np.eye(4), np.eye(4)[:3])
