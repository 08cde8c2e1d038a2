"""Kernel distance between two sets of features: the unbiased MMD² of KID (Bińkowski et al. 2018).

It uses all pairs of all samples, not the mean over random subsets of the paper: nothing is random
and nothing is wasted. Shape legend: N and M rows of the two sets, D dimensions, B rows of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from manege.metrics.estimate import Estimate, check_features, normal

_TILE = 512
"""Rows and columns of the kernel in memory at once: 2 MB, which fit a processor's cache."""


def kid(x_ND: np.ndarray, y_MD: np.ndarray) -> Estimate:
    """Return MMD² with the kernel (x·y/D + 1)³ between two sets of at least four rows.

    The value is unbiased, hence sometimes negative where the sets agree. Its variance is that of
    a U-statistic of two samples, both orders of Hoeffding's decomposition (Serfling 1980, chapter
    5). With g and u the row effects of k(x, x') and k(x, y), likewise for y, and σ² the variance
    of what row and column effects leave of a kernel,

        first = 4 var(g − u)/N + the same for y over M,
        second = 2σxx²/(N(N−1)) + 2σyy²/(M(M−1)) + 4σxy²/(NM).

    Row sums give the effects, yet each is a sum over the other rows and carries their noise: the
    variance of a below is too large by 4σxx²/(N−2) + 4σxy²/M, which is taken off again. So both
    orders are estimated without bias at any N and M. The first order vanishes where the sets
    agree; its estimate is cut at 0, hence the interval there is too wide by up to a quarter.
    """
    check_features(x_ND, y_MD, at_least=4)
    x, y = _doubles(x_ND), _doubles(y_MD)
    N, M = len(x), len(y)
    xx_N, xx_squares = _within(x)
    yy_M, yy_squares = _within(y)
    xy_N, xy_M, xy_squares = _between(x, y)

    value = xx_N.sum() / (N * (N - 1)) + yy_M.sum() / (M * (M - 1)) - 2 * xy_N.sum() / (N * M)
    # N − 2, not N − 1: row i is missing from its own sum, so that the sums' spread falls short of
    # the effects' by as much. The common row effects of g and u would not cancel otherwise.
    a_N = 2 * (xx_N / (N - 2) - xy_N / M)
    b_M = 2 * (yy_M / (M - 2) - xy_M / N)
    xx = _interaction_within(xx_N, xx_squares)
    yy = _interaction_within(yy_M, yy_squares)
    xy = _interaction_between(xy_N, xy_M, xy_squares)
    noise = 4 * xx / (N * (N - 2)) + 4 * yy / (M * (M - 2)) + 8 * xy / (N * M)
    first = max(0.0, float(a_N.var() / N + b_M.var() / M) - noise)
    second = 2 * xx / (N * (N - 1)) + 2 * yy / (M * (M - 1)) + 4 * xy / (N * M)
    return normal(float(value), first + second)


def _doubles(features_ND: np.ndarray) -> Tensor:
    # A copy: torch refuses to share memory that may not be written.
    return torch.from_numpy(np.array(features_ND, dtype=np.float64, order="C"))


def _kernel(x_BD: Tensor, y_BD: Tensor) -> Tensor:
    one = torch.ones((), dtype=torch.float64)
    return torch.addmm(one, x_BD, y_BD.T, alpha=1 / x_BD.shape[1]).pow_(3)


def _tiles(count: int, first: int = 0) -> Iterator[slice]:
    for start in range(first, count, _TILE):
        yield slice(start, min(start + _TILE, count))


def _within(x_ND: Tensor) -> tuple[Tensor, float]:
    """Return row sums of the kernel within a set, and the sum of its squares, off the diagonal."""
    sum_N = torch.zeros(len(x_ND), dtype=torch.float64)
    squares = 0.0
    for rows in _tiles(len(x_ND)):
        # The kernel is symmetric: a tile above the diagonal stands for its mirror image too.
        for columns in _tiles(len(x_ND), first=rows.start):
            tile = _kernel(x_ND[rows], x_ND[columns])
            if rows == columns:
                tile.fill_diagonal_(0)
                squares += _sum_of_squares(tile)
            else:
                sum_N[columns] += tile.sum(0)
                squares += 2 * _sum_of_squares(tile)
            sum_N[rows] += tile.sum(1)
    return sum_N, squares


def _between(x_ND: Tensor, y_MD: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return row and column sums of the kernel between two sets, and the sum of its squares."""
    sum_N = torch.zeros(len(x_ND), dtype=torch.float64)
    sum_M = torch.zeros(len(y_MD), dtype=torch.float64)
    squares = 0.0
    for rows in _tiles(len(x_ND)):
        for columns in _tiles(len(y_MD)):
            tile = _kernel(x_ND[rows], y_MD[columns])
            sum_N[rows] += tile.sum(1)
            sum_M[columns] += tile.sum(0)
            squares += _sum_of_squares(tile)
    return sum_N, sum_M, squares


def _sum_of_squares(tile: Tensor) -> float:
    return float(torch.dot(tile.flatten(), tile.flatten()))


def _interaction_within(sum_N: Tensor, squares: float) -> float:
    """Return σ² of a kernel within a set: what row and column effects leave, off the diagonal.

    Unbiased: the effects use up N of the N(N−1)/2 pairs (Székely & Rizzo 2014, on U-centring).
    """
    N, total = len(sum_N), float(sum_N.sum())
    effects = 2 * float(sum_N.square().sum()) / (N - 2) - total**2 / ((N - 1) * (N - 2))
    return max(0.0, (squares - effects) / (N * (N - 3)))


def _interaction_between(sum_N: Tensor, sum_M: Tensor, squares: float) -> float:
    """Return σ² of a kernel between two sets: what row and column effects leave of it; unbiased."""
    N, M, total = len(sum_N), len(sum_M), float(sum_N.sum())
    effects = float(sum_N.square().sum()) / M + float(sum_M.square().sum()) / N - total**2 / (N * M)
    return max(0.0, (squares - effects) / ((N - 1) * (M - 1)))
