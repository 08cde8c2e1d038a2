"""Score how labels and modes are spread: entropy, distance of shares, modes, agreement.

Counts and labels in, scores out: who gave a picture its label is the caller's business. Shape
legend: K labels or centres, N points, R draws; what takes counts_K takes R×K of them as well.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from manege.config import stream
from manege.metrics.estimate import (
    Estimate,
    basic_bootstrap,
    normal,
    percentile_bootstrap,
    wilson,
)

MODE_SHARE = 0.1
"""A mode is reached when it gets at least this part of the share it should have."""

HIGH_QUALITY_DEVIATIONS = 3
"""A toy point is of high quality within so many deviations of a centre."""

_DRAWS = 1000
"""Draws of a bootstrap."""


def label_scores(
    generated_K: np.ndarray, reference_K: np.ndarray, *, seed: int
) -> dict[str, Estimate]:
    """Score the generated labels' counts against the reference's; return the scores by name.

    "label-entropy": of the generated shares, in nats. "label-tvd": total variation distance
    between both shares. "modes": labels that get at least a tenth of the share they have in the
    reference; labels absent from the reference do not count.

    The intervals come from multinomial draws around the generated shares, the reference taken as
    exact. Near a boundary they are worth less. A finite sample is never as even as its source, so
    where the spread is right the entropy is too low and the distance too high; the intervals
    reach back for that, and the distance's reaches 0 whenever labels drawn with the reference's
    own shares may well be as far from it. And a label that was never generated is never drawn:
    no interval can tell a rare label from an impossible one, nor can the modes rise by it.

    Args:
        generated_K: how often each label was generated.
        reference_K: how often it is in the reference.
        seed: of the bootstrap's draws.
    """
    generated_K, reference_K = _counts(generated_K), _counts(reference_K)
    if generated_K.shape != reference_K.shape:
        raise ValueError(
            f"{len(generated_K)} labels against {len(reference_K)}; expected the same labels"
        )
    count = int(generated_K.sum())
    source = stream(seed, cell="", purpose="bootstrap")
    draws_RK = source.multinomial(count, generated_K / count, size=_DRAWS)
    right_RK = source.multinomial(count, reference_K / reference_K.sum(), size=_DRAWS)
    return {
        "label-entropy": basic_bootstrap(
            float(_entropy(generated_K / count)),
            _entropy(draws_RK / count),
            lowest=0.0,
            highest=float(np.log(len(generated_K))),
        ),
        "label-tvd": _variation_estimate(
            float(_variation(generated_K, reference_K)),
            _variation(draws_RK, reference_K),
            _variation(right_RK, reference_K),
        ),
        "modes": percentile_bootstrap(
            float(_modes(generated_K, count, reference_K)), _modes(draws_RK, count, reference_K)
        ),
    }


def inception_score(logits_NK: np.ndarray, splits: int = 10) -> Estimate:
    """Return the mean over splits, in order, of exp of the mean KL of a picture's labels to all's.

    The interval is that of a mean of so many values. Like the score itself (Salimans et al. 2016)
    it knows nothing of what few pictures a split do to it: they make it too small.
    """
    if len(logits_NK) < splits:
        raise ValueError(f"{len(logits_NK)} rows in {splits} splits; expected one each at least")
    log_NK = log_softmax(logits_NK.astype(np.float64), axis=1)
    scores = []
    for log_BK in np.array_split(log_NK, splits):
        share_BK = np.exp(log_BK)
        mean_K = np.log(np.maximum(share_BK.mean(0), np.finfo(np.float64).tiny))
        scores.append(float(np.exp((share_BK * (log_BK - mean_K)).sum(1).mean())))
    return normal(float(np.mean(scores)), float(np.var(scores, ddof=1)) / splits, lowest=1.0)


def stacked_scores(counts_K: np.ndarray, *, seed: int) -> dict[str, Estimate]:
    """Score how pictures are spread over modes that should be equally likely, by name.

    "modes-covered": modes that have a picture at all. "modes-kl": Kullback-Leibler divergence of
    their shares to equal ones, in nats; few pictures make it too large. The intervals have the
    limits that :func:`label_scores` tells of.
    """
    counts_K = _counts(counts_K)
    count, most = int(counts_K.sum()), float(np.log(len(counts_K)))
    source = stream(seed, cell="", purpose="bootstrap")
    draws_RK = source.multinomial(count, counts_K / count, size=_DRAWS)
    return {
        "modes-covered": percentile_bootstrap(
            float(np.count_nonzero(counts_K)), np.count_nonzero(draws_RK, axis=1)
        ),
        "modes-kl": basic_bootstrap(
            most - float(_entropy(counts_K / count)),
            most - _entropy(draws_RK / count),
            lowest=0.0,
            highest=most,
        ),
    }


def agreement(wanted: npt.ArrayLike, found: npt.ArrayLike) -> Estimate:
    """Return the share of labels found as they were wanted."""
    wanted_N, found_N = np.asarray(wanted), np.asarray(found)
    if wanted_N.ndim != 1 or wanted_N.shape != found_N.shape:
        raise ValueError(
            f"labels of shapes {wanted_N.shape} and {found_N.shape}; expected two lists alike"
        )
    return wilson(int(np.count_nonzero(wanted_N == found_N)), len(wanted_N))


def toy_scores(
    points_N2: np.ndarray, centres_K2: np.ndarray, deviation: float, *, seed: int
) -> dict[str, Estimate]:
    """Score points that should lie in equal shares around some centres, by name.

    "high-quality": the share of points within three deviations of the nearest centre. "modes":
    centres that get a tenth of their fair share of all points, as high-quality ones. Its interval
    has the limits that :func:`label_scores` tells of. A point that is not finite lies nowhere.
    """
    if points_N2.ndim != 2 or points_N2.shape[1] != 2 or len(points_N2) == 0:
        raise ValueError(f"points of shape {points_N2.shape}; expected N×2, at least one")
    offset_NK2 = points_N2[:, None, :].astype(np.float64) - centres_K2[None, :, :]
    # Not a sum of squares: points of a generator that diverged may be too large to square.
    distance_NK = np.hypot(offset_NK2[..., 0], offset_NK2[..., 1])
    good_N = distance_NK.min(axis=1) <= HIGH_QUALITY_DEVIATIONS * deviation
    count, centres = distance_NK.shape
    hits_K = np.bincount(distance_NK.argmin(axis=1)[good_N], minlength=centres)
    # Points of low quality are one more outcome of a draw, and no mode.
    outcomes = np.append(hits_K, count - hits_K.sum())
    source = stream(seed, cell="", purpose="bootstrap")
    draws = source.multinomial(count, outcomes / count, size=_DRAWS)
    fair_K = np.ones(centres, dtype=np.int64)
    return {
        "high-quality": wilson(int(hits_K.sum()), count),
        "modes": percentile_bootstrap(
            float(_modes(hits_K, count, fair_K)),
            _modes(draws[:, :centres], count, fair_K),
        ),
    }


def _counts(counts_K: np.ndarray) -> np.ndarray:
    """Return the counts as integers, or raise ValueError if they are invalid or all zero."""
    counts_K = np.asarray(counts_K)
    if counts_K.ndim != 1 or counts_K.dtype.kind not in "iu" or (counts_K < 0).any():
        raise ValueError(f"counts {counts_K}; expected a list of integers, none negative")
    if counts_K.sum() == 0:
        raise ValueError("counts of nothing; expected at least one label")
    return counts_K.astype(np.int64)


def _entropy(shares_K: np.ndarray) -> np.ndarray:
    # p log p is 0 at 0; the logarithm of 1 stands in for that of 0.
    entropy: np.ndarray = (shares_K * np.log(1 / np.where(shares_K > 0, shares_K, 1))).sum(axis=-1)
    return entropy


def _variation(counts_K: np.ndarray, reference_K: np.ndarray) -> np.ndarray:
    shares_K = counts_K / counts_K.sum(axis=-1, keepdims=True)
    apart = np.abs(shares_K - reference_K / reference_K.sum()).sum(axis=-1)
    variation: np.ndarray = np.minimum(apart / 2, 1.0)  # Rounding may go past it.
    return variation


def _variation_estimate(value: float, draws_R: np.ndarray, right_R: np.ndarray) -> Estimate:
    """Return the distance between shares with its interval.

    Args:
        value: the distance of the generated counts.
        draws_R: distances of counts drawn with the generated shares.
        right_R: distances of counts drawn with the reference's shares: what it takes to be right.
    """
    if value <= np.quantile(right_R, 0.975):
        low = 0.0
    else:
        # As far down as draws go up: they repeat the shift that the value itself has had.
        low = basic_bootstrap(value, draws_R, lowest=0.0, highest=1.0).low
    # Upwards no shift is taken back: right where it is small, on the safe side elsewhere.
    return Estimate(value, low, normal(value, float(draws_R.var()), highest=1.0).high)


def _modes(counts_K: np.ndarray, count: int, fair_K: np.ndarray) -> np.ndarray:
    """Count the modes with their share, in whole numbers, so that exactly a tenth is enough."""
    reached_K = (fair_K > 0) & (counts_K * fair_K.sum() >= MODE_SHARE * fair_K * count)
    modes: np.ndarray = reached_K.sum(axis=-1)
    return modes
