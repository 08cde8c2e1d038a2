"""A score with its 95 % interval, and the few ways in which such intervals are computed.

Defines no score. Shape legend: N rows, D dimensions, R draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
"""Standard deviations to either side of the mean that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A score and the interval in which sampling noise alone would move it; low ≤ value ≤ high."""

    value: float
    """The score of the samples at hand."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


def normal(
    value: float, variance: float, *, lowest: float = -math.inf, highest: float = math.inf
) -> Estimate:
    """Return the value ± 1.96 standard deviations, clipped to the range that is possible."""
    reach = Z95 * math.sqrt(variance)
    return Estimate(value, max(lowest, value - reach), min(highest, value + reach))


def mean_of(independent: Sequence[Estimate]) -> Estimate:
    """Return the mean of scores of independent samples whose intervals are symmetric."""
    deviations = [(one.high - one.low) / (2 * Z95) for one in independent]
    variance = sum(one**2 for one in deviations) / len(deviations) ** 2
    return normal(sum(one.value for one in independent) / len(independent), variance)


def wilson(successes: int, count: int) -> Estimate:
    """Return the share of successes with Wilson's interval (1927), good for few and at 0 or 1."""
    if not 0 <= successes <= count or count == 0:
        raise ValueError(f"{successes} successes of {count}; expected at least one trial")
    share, weight = successes / count, Z95**2 / count
    middle = (share + weight / 2) / (1 + weight)
    reach = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    # At 0 and 1 one end equals the share, but for rounding.
    return Estimate(
        share, max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))
    )


def basic_bootstrap(
    value: float, draws_R: np.ndarray, *, lowest: float, highest: float
) -> Estimate:
    """Return the value with the basic bootstrap interval, clipped to what is possible.

    Basic, not percentile: a score that redrawing shifts one way (entropy down, a distance up) has
    already been shifted so once by the sample itself. The basic interval takes the shift back, the
    percentile one would double it. It may even move past the value, and is widened to it then.
    """
    below, above = np.quantile(draws_R, (0.025, 0.975))
    low, high = 2 * value - float(above), 2 * value - float(below)
    return Estimate(value, min(value, max(lowest, low)), max(value, min(highest, high)))


def percentile_bootstrap(value: float, draws_R: np.ndarray) -> Estimate:
    """Return the value with the middle 95 % of the draws, widened to the value; for counts."""
    below, above = np.quantile(draws_R, (0.025, 0.975), method="inverted_cdf")
    return Estimate(value, min(value, float(below)), max(value, float(above)))


def check_features(*sets_ND: np.ndarray, at_least: int) -> None:
    """Raise ValueError unless these are finite tables of one width with enough rows each."""
    for features_ND in sets_ND:
        if features_ND.ndim != 2:
            raise ValueError(f"features of shape {features_ND.shape}; expected rows × dimensions")
        if len(features_ND) < at_least:
            raise ValueError(f"{len(features_ND)} rows of features; expected at least {at_least}")
        if not np.isfinite(features_ND).all():
            raise ValueError("features that are not finite; expected numbers")
    widths = sorted({features_ND.shape[1] for features_ND in sets_ND})
    if len(widths) > 1 or widths[0] == 0:
        raise ValueError(f"features of {widths} dimensions; expected one width, at least 1")
