"""Find nearest neighbours, and score by them: precision, recall, density and coverage.

Distances are Euclidean, between all pairs, a block of rows at a time. Shape legend: N and M rows of
the two sets, D dimensions, B rows of a block, K neighbours, C candidates for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from manege.metrics.estimate import Estimate, check_features, normal, wilson

_BLOCK_BYTES = 16 * 2**20
"""Largest block of distances; blocks that almost fit a cache are quicker than larger ones."""

_SPARE = 8
"""Candidates for neighbours beyond those asked for; see :func:`nearest`."""

_ROUNDING = 1e-12
"""Error of the quadratic expansion relative to |x|² + |y|²: well above D·2⁻⁵³ for any D we meet."""


def nearest(x_ND: np.ndarray, y_MD: np.ndarray, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each row of x, its k nearest rows of y: distances N×k, ascending, and indices.

    Candidates are chosen by |x|² + |y|² − 2 x·y, which is quick but cancels: where a distance is
    small against the rows, even 0, nothing but rounding is left. So the candidates' distances are
    taken again by subtraction, and there are a few more candidates than k, because rounding may
    have put the true k-th behind some that are as near. Equal distances are sorted by index.
    """
    check_features(x_ND, y_MD, at_least=1)
    if not 1 <= k <= len(y_MD):
        raise ValueError(f"{k} nearest of {len(y_MD)} rows; expected 1 to {len(y_MD)}")
    x, y = _centred(x_ND, y_MD)
    norm_M = y.square().sum(1)
    candidates = min(len(y), k + _SPARE)
    distance_NK = np.empty((len(x), k))
    index_NK = np.empty((len(x), k), dtype=np.int64)
    for rows in _blocks(len(x), max(len(y), candidates * y.shape[1])):
        # |x|² is the same for all candidates of a row.
        partial_BM = torch.addmm(norm_M, x[rows], y.T, alpha=-2)
        index_BC = partial_BM.topk(candidates, largest=False).indices.sort(dim=1).values
        distance_BC = (x[rows, None] - y[index_BC]).square().sum(2).sqrt()
        distance_BC, order_BC = distance_BC.sort(dim=1, stable=True)
        distance_NK[rows] = distance_BC[:, :k].numpy()
        index_NK[rows] = index_BC.gather(1, order_BC)[:, :k].numpy()
    return distance_NK, index_NK


def prdc(generated_ND: np.ndarray, reference_MD: np.ndarray, k: int = 5) -> dict[str, Estimate]:
    """Return precision, recall, density and coverage of generated rows, by name.

    Around each row lies a ball that reaches to the k-th nearest other row of its own set.
    Precision is the share of generated rows in any reference ball, recall the share of reference
    rows in any generated ball (Kynkäänniemi et al. 2019). Density is the mean number of reference
    balls that hold a generated row, over k; coverage the share of reference balls that hold a
    generated row (Naeem et al. 2020).

    Each interval is that of a mean over the rows that are counted, given the balls and the other
    set as they are: what other balls would change is not in it.
    """
    if k < 1:
        raise ValueError(f"balls that reach to neighbour {k}; expected at least 1")
    check_features(generated_ND, reference_MD, at_least=k + 1)
    generated_radius_N = _radii(generated_ND, k)
    reference_radius_M = _radii(reference_MD, k)
    generated, reference = _centred(generated_ND, reference_MD)
    # A row on a border is inside, and rounding must not put it out: else a row might not even lie
    # in the ball around itself. So squared distances are made smaller by as much as they may err.
    norm_N = generated.square().sum(1) * (1 - _ROUNDING)
    norm_M = reference.square().sum(1) * (1 - _ROUNDING)
    balls_N = torch.zeros(len(generated), dtype=torch.int64)
    recalled_M = torch.zeros(len(reference), dtype=torch.bool)
    covered_M = torch.zeros(len(reference), dtype=torch.bool)
    for rows in _blocks(len(generated), len(reference)):
        square_BM = torch.addmm(norm_M, generated[rows], reference.T, alpha=-2)
        square_BM += norm_N[rows, None]
        in_reference_BM = square_BM <= reference_radius_M.square()
        in_generated_BM = square_BM <= generated_radius_N[rows, None].square()
        balls_N[rows] = in_reference_BM.sum(1)
        covered_M |= in_reference_BM.any(0)
        recalled_M |= in_generated_BM.any(0)
    density_N = balls_N.double() / k
    return {
        "precision": wilson(int(balls_N.count_nonzero()), len(generated)),
        "recall": wilson(int(recalled_M.count_nonzero()), len(reference)),
        "density": normal(
            float(density_N.mean()), float(density_N.var()) / len(generated), lowest=0.0
        ),
        "coverage": wilson(int(covered_M.count_nonzero()), len(reference)),
    }


def balls(reference_MD: np.ndarray, k: int = 5) -> Tensor:
    """Return the radius of the ball around each of at least k + 1 rows, for :func:`coverage`."""
    check_features(reference_MD, at_least=k + 1)
    return _radii(reference_MD, k)


def coverage(generated_ND: np.ndarray, reference_MD: np.ndarray, radius_M: Tensor) -> Estimate:
    """Return the coverage of :func:`prdc` alone, from radii that are known already."""
    check_features(generated_ND, reference_MD, at_least=1)
    generated, reference = _centred(generated_ND, reference_MD)
    norm_N = generated.square().sum(1) * (1 - _ROUNDING)
    norm_M = reference.square().sum(1) * (1 - _ROUNDING)
    covered_M = torch.zeros(len(reference), dtype=torch.bool)
    for rows in _blocks(len(generated), len(reference)):
        square_BM = torch.addmm(norm_M, generated[rows], reference.T, alpha=-2)
        square_BM += norm_N[rows, None]
        covered_M |= (square_BM <= radius_M.square()).any(0)
    return wilson(int(covered_M.count_nonzero()), len(reference))


def _centred(x_ND: np.ndarray, y_MD: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return both sets in float64, minus the mean of y: near the origin, less cancels."""
    origin_D = y_MD.mean(axis=0, dtype=np.float64)
    return torch.from_numpy(x_ND - origin_D), torch.from_numpy(y_MD - origin_D)


def _blocks(count: int, width: int) -> Iterator[slice]:
    """Yield slices of ``count`` rows; a block of ``width`` float64 a row stays below the limit."""
    rows = max(1, _BLOCK_BYTES // (8 * width))
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def _radii(features_ND: np.ndarray, k: int) -> Tensor:
    """Return, for each row, the distance to the k-th nearest other row."""
    # The nearest of all is the row itself, or a copy at the same distance of 0.
    distance_NK, _ = nearest(features_ND, features_ND, k + 1)
    return torch.from_numpy(distance_NK[:, k].copy())
