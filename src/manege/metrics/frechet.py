"""Fréchet distance between two sets of features, each taken for a Gaussian (Heusel et al. 2017).

Moments with their counts, the distance between two, and how far sampling noise moves it. Shape
legend: N and M rows of the two sets, D dimensions, R rank, G blocks, K shared directions, S several
sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from manege.metrics.estimate import Estimate, check_features, normal

SAMPLES_PER_DIMENSION = 8
"""With fewer samples for each dimension the bias outweighs the distance."""

_CHUNK = 2048
"""Rows that are in memory as float64 at once."""


@dataclass(frozen=True)
class Moments:
    """The count, mean and covariance of a set of features: all that the distance depends on."""

    count: int
    """Rows the moments were taken from."""
    mean_D: np.ndarray
    """Means, float64."""
    covariance_DD: np.ndarray
    """Covariances with divisor ``count - 1``, float64."""


@dataclass(frozen=True)
class _Sums:
    """The number and the sums of some rows, taken relative to one common origin."""

    count: int
    sum_D: Tensor
    products_DD: Tensor

    def minus(self, part: _Sums) -> _Sums:
        """Return the sums without some of their rows."""
        return _Sums(
            self.count - part.count,
            self.sum_D - part.sum_D,
            self.products_DD - part.products_DD,
        )

    def moments(self, origin_D: Tensor) -> Moments:
        """Return the moments of the rows, relative to 0 again."""
        shift_D = self.sum_D / self.count
        covariance_DD = self.products_DD - self.count * torch.outer(shift_D, shift_D)
        return Moments(
            self.count, (origin_D + shift_D).numpy(), (covariance_DD / (self.count - 1)).numpy()
        )


def moments(features_ND: np.ndarray) -> Moments:
    """Return count, mean and covariance of at least two rows."""
    check_features(features_ND, at_least=2)
    origin_D = _mean(features_ND)
    return _sums(features_ND, origin_D).moments(origin_D)


def frechet_distance(a: Moments, b: Moments) -> float:
    """Return |μa − μb|² + tr Σa + tr Σb − 2 tr (Σa Σb)^½, never negative, for any covariances."""
    return _distance(a, root(a), b, root(b))


def frechet_distances(own: Moments, others: Sequence[Moments]) -> list[float]:
    """Return the distance of one set to each of several, computed together."""
    if not others:
        return []
    root_DR = root(own)
    covariance_SDD = torch.from_numpy(np.stack([one.covariance_DD for one in others]))
    # The eigenvalues of Σa Σb, real whatever the rounding, which makes of 0 what is dust.
    values_SR = torch.linalg.eigvalsh(root_DR.T @ covariance_SDD @ root_DR).numpy()
    rank = values_SR.shape[1]
    largest_S1 = np.abs(values_SR).max(axis=1, initial=0.0, keepdims=True)
    dust_S1 = largest_S1 * rank * np.finfo(np.float64).eps
    shared_S = np.sqrt(np.where(values_SR > dust_S1, values_SR, 0.0)).sum(axis=1)
    found = []
    for one, shared in zip(others, shared_S, strict=True):
        apart = np.square(own.mean_D - one.mean_D).sum()
        traces = own.covariance_DD.trace() + one.covariance_DD.trace()
        found.append(max(0.0, float(apart + traces - 2 * shared)))
    return found


def frechet(x_ND: np.ndarray, y_MD: np.ndarray, blocks: int = 20) -> Estimate:
    """Return the distance between two sets of at least four rows, with a jackknife interval.

    Each set is cut into interleaved blocks and the distance taken again without each block
    (delete-a-group jackknife, Kott 2001); the variances of both sets add up. The interval tells
    how far other samples of this size would move the value. It does not take back the value's
    bias, which is upward and shrinks with the number of samples: so compare values at equal
    counts only, and see :func:`enough_for_frechet`. Where the sets agree, what is left to vary is
    of second order, which a jackknife counts twice: there the interval is too wide, by √2.
    """
    check_features(x_ND, y_MD, at_least=4)
    if blocks < 2:
        raise ValueError(f"{blocks} blocks; the jackknife needs at least 2")
    x, y = moments(x_ND), moments(y_MD)
    x_root_DR, y_root_DR = root(x), root(y)
    without_x = [_distance(m, root(m), y, y_root_DR) for m in _without_each(x_ND, blocks)]
    without_y = [_distance(m, root(m), x, x_root_DR) for m in _without_each(y_MD, blocks)]
    return normal(
        _distance(x, x_root_DR, y, y_root_DR),
        jackknife_variance(without_x) + jackknife_variance(without_y),
        lowest=0.0,
    )


@dataclass(frozen=True)
class Spread:
    """A set of features in a form whose distance to another takes one decomposition."""

    count: int
    mean_D: Tensor
    """Means, float64."""
    square_N: Tensor
    """Each row's squared distance to the mean."""
    rows_NR: Tensor
    """The rows in coordinates in which they are white, but for a factor: QᵀQ = 1."""
    root_RD: Tensor
    """The covariance is its transpose times itself."""


def spread(features_ND: np.ndarray) -> Spread:
    """Return the spread of at least four rows, of whatever rank."""
    check_features(features_ND, at_least=4)
    # A copy: torch refuses to share memory that may not be written.
    rows_ND = torch.from_numpy(np.array(features_ND, dtype=np.float64))
    mean_D = rows_ND.mean(0)
    rows_ND -= mean_D
    square_N = rows_ND.square().sum(1)
    rows_NR, root_RD = torch.linalg.qr(rows_ND)
    root_RD /= sqrt(len(rows_ND) - 1)
    return Spread(len(rows_ND), mean_D, square_N, rows_NR, root_RD)


def frechet_between(a: Spread, b: Spread) -> Estimate:
    """Return the Fréchet distance with an interval of first order, for many dimensions.

    The jackknife of :func:`frechet` would take a decomposition for each block. Here a row's
    influence on the distance comes from its gradient: with T the map that takes a's Gaussian to
    b's most cheaply, and x seen from the mean,

        2(μa − μb)·x + |x|² − x·Tx.

    Their variance over the number of rows, both sets added, is that of the distance. With
    Σ = RᵀR and RaRbᵀ = USVᵀ, x·Tx of a row x = √(n−1)Raᵀq is (n−1) Σ s(Uᵀq)²: nothing is inverted.
    """
    u_RK, s_K, vh_KR = torch.linalg.svd(a.root_RD @ b.root_RD.T, full_matrices=False)
    apart_D = a.mean_D - b.mean_D
    traces = float(a.root_RD.square().sum() + b.root_RD.square().sum())
    value = float(apart_D.square().sum()) + traces - 2 * float(s_K.sum())
    variance = _influence(a, apart_D, u_RK, s_K) + _influence(b, -apart_D, vh_KR.T, s_K)
    # Where the sets agree, rounding may leave less than nothing.
    return normal(max(0.0, value), variance, lowest=0.0)


def _influence(set_: Spread, apart_D: Tensor, turn_RK: Tensor, s_K: Tensor) -> float:
    """Return what a set's sampling adds to the variance of the distance."""
    scale = set_.count - 1
    towards_N = set_.rows_NR @ (set_.root_RD @ apart_D) * sqrt(scale)
    moved_N = (set_.rows_NR @ turn_RK).square_() @ s_K * scale
    return float((2 * towards_N + set_.square_N - moved_N).var() / set_.count)


def enough_for_frechet(dimensions: int) -> int:
    """Return the samples that a distance in so many dimensions needs."""
    return SAMPLES_PER_DIMENSION * dimensions


def root(set_: Moments) -> Tensor:
    """Return a D×R matrix A with Σ = A Aᵀ, R the rank that rounding leaves."""
    values_D, vectors_DD = torch.linalg.eigh(torch.from_numpy(set_.covariance_DD))
    # What rounding makes of an eigenvalue 0 may be negative, and if positive its root is no
    # longer small: 1e-16 would add 1e-8 to the distance.
    dust = values_D.abs().max() * len(values_D) * torch.finfo(torch.float64).eps
    kept = values_D > dust
    root_DR: Tensor = vectors_DD[:, kept] * values_D[kept].sqrt()
    return root_DR


def jackknife_variance(without_each: list[float]) -> float:
    """Return the variance of a value, from the values without each block."""
    left_out_G = np.array(without_each)
    return float((len(left_out_G) - 1) * left_out_G.var())


def _mean(features_ND: np.ndarray) -> Tensor:
    mean_D: np.ndarray = features_ND.mean(axis=0, dtype=np.float64)
    return torch.from_numpy(mean_D)


def _sums(features_ND: np.ndarray, origin_D: Tensor) -> _Sums:
    """Sum all rows; the origin, near the mean, keeps products from cancelling later."""
    dimensions = len(origin_D)
    sum_D = torch.zeros(dimensions, dtype=torch.float64)
    products_DD = torch.zeros(dimensions, dimensions, dtype=torch.float64)
    for start in range(0, len(features_ND), _CHUNK):
        # A copy: torch refuses to share memory that may not be written.
        rows = np.array(features_ND[start : start + _CHUNK], dtype=np.float64)
        rows_ND = torch.from_numpy(rows).sub_(origin_D)
        sum_D += rows_ND.sum(0)
        products_DD.addmm_(rows_ND.T, rows_ND)
    return _Sums(len(features_ND), sum_D, products_DD)


def _without_each(features_ND: np.ndarray, blocks: int) -> list[Moments]:
    """Return the moments without block 0, block 1, … each; row i is in block i mod ``blocks``."""
    # Two rows a block at least, so that two are left of the smallest set there may be.
    blocks = min(blocks, len(features_ND) // 2)
    origin_D = _mean(features_ND)
    parts = [_sums(features_ND[block::blocks], origin_D) for block in range(blocks)]
    whole = _Sums(
        len(features_ND),
        torch.stack([part.sum_D for part in parts]).sum(0),
        torch.stack([part.products_DD for part in parts]).sum(0),
    )
    return [whole.minus(part).moments(origin_D) for part in parts]


def _distance(a: Moments, a_root_DR: Tensor, b: Moments, b_root_DR: Tensor) -> float:
    apart = float(np.square(a.mean_D - b.mean_D).sum())
    traces = float(a.covariance_DD.trace() + b.covariance_DD.trace())
    # The eigenvalues of Σa Σb are the squared singular values of AᵀB, which are real whatever
    # the rounding; a square root of the product itself may turn complex.
    shared = float(torch.linalg.svdvals(a_root_DR.T @ b_root_DR).sum())
    return max(0.0, apart + traces - 2 * shared)
