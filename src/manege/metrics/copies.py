"""Find near-copies: measure how near a picture comes to the training pictures of its class.

Distances are taken between pixels, averaged down to at most 16 a side, the smallest over moves of
one pixel either way, and over mirrored pictures where training mirrors. No network has a part in
it: one trained on these very pictures would see each of them apart from all others.

Shape legend: N pictures, M training pictures, D values of a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from manege import device
from manege.metrics.estimate import wilson

SHARE = 0.05
"""The share of held-out pictures that counts as near: what is expected without any copying."""
ENOUGH = 20
"""Held-out pictures that a fifth percentile needs."""
TOO_MUCH = 2 * SHARE
"""A share that is surely above this is copying."""

_SIDE = 16
_BLOCK_BYTES = 1 << 25


@dataclass(frozen=True)
class CopyBound:
    """The distance below which a picture of a class is a near-copy."""

    distance: float
    pictures: int
    """Number of real pictures that it was found with."""
    left_out: bool
    """Whether training pictures, each left out in turn, stood in for too few held-out ones."""

    @property
    def too_much(self) -> float:
        """Return what a share's interval must exceed: more where few pictures set the bound."""
        return max(TOO_MUCH, wilson(round(SHARE * self.pictures), self.pictures).high)

    @property
    def origin(self) -> str:
        """Return in words which pictures it was found with."""
        return "training" if self.left_out else "held-out"


def nearest_of(
    pictures_NSSC: np.ndarray,
    training_MSSC: np.ndarray,
    *,
    mirrored: bool = False,
    others: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each picture's distance to the nearest training picture, and that one's row.

    Args:
        pictures_NSSC: bytes.
        training_MSSC: bytes, at least one, and two with `others`.
        mirrored: a mirrored copy is a copy too.
        others: the pictures are the training pictures, and none counts as its own neighbour.
    """
    with device.threads(1), torch.no_grad():
        training_MD = _coarse(training_MSSC)
        norm_M = training_MD.square().sum(1)
        count, width = len(pictures_NSSC), training_MD.shape[1]
        nearest_N = torch.full((count,), torch.inf)
        index_N = torch.zeros(count, dtype=torch.int64)
        rows = max(1, _BLOCK_BYTES // (4 * len(training_MD)))
        for moved_NSSC in _moved(pictures_NSSC, mirrored=mirrored):
            moved_ND = _coarse(moved_NSSC)
            for start in range(0, count, rows):
                block_BD = moved_ND[start : start + rows]
                square_BM = torch.addmm(norm_M, block_BD, training_MD.T, alpha=-2)
                square_BM += block_BD.square().sum(1, keepdim=True)
                if others:
                    own = torch.arange(len(block_BD))
                    square_BM[own, own + start] = torch.inf
                least_B, at_B = square_BM.min(1)
                nearer_B = least_B < nearest_N[start : start + rows]
                nearest_N[start : start + rows][nearer_B] = least_B[nearer_B]
                index_N[start : start + rows][nearer_B] = at_B[nearer_B]
        distance_N = (nearest_N.clamp_min(0) / width).sqrt().numpy()
    return distance_N, index_N.numpy()


def bound_of(
    training_MSSC: np.ndarray, held_out_NSSC: np.ndarray, *, mirrored: bool = False
) -> CopyBound:
    """Return the fifth percentile of held-out pictures' distances to the training pictures.

    Where fewer than 20 are held out, each training picture is held against all others instead: it
    is as far from them as a held-out one would be. A picture that is there twice says nothing of
    how near others come: with 0 for the percentile nothing would be a copy. So it counts once, and
    not at all where it was trained on. Of the training pictures two must differ.
    """
    known = {picture.tobytes(): row for row, picture in enumerate(training_MSSC)}
    fresh_NSSC = held_out_NSSC[[one.tobytes() not in known for one in held_out_NSSC]]
    left_out = len(fresh_NSSC) < ENOUGH
    distinct_MSSC = training_MSSC[sorted(known.values())]
    distance_N, _ = (
        nearest_of(distinct_MSSC, distinct_MSSC, mirrored=mirrored, others=True)
        if left_out
        else nearest_of(fresh_NSSC, distinct_MSSC, mirrored=mirrored)
    )
    # This quantile leaves that part of *other* real pictures below it, however few set it.
    distance = float(np.quantile(distance_N, SHARE, method="weibull"))
    return CopyBound(distance, len(distance_N), left_out)


def _coarse(pictures_NSSC: np.ndarray) -> Tensor:
    """Return the pictures averaged down to rows N×D of values from 0 to 1."""
    bytes_NSSC = torch.from_numpy(np.ascontiguousarray(pictures_NSSC))
    x_NCSS = bytes_NSSC.permute(0, 3, 1, 2).float() / 255
    side = x_NCSS.shape[-1]
    halvings = max(1, -(-side // _SIDE))
    return F.adaptive_avg_pool2d(x_NCSS, max(4, side // halvings)).flatten(1)


def _moved(pictures_NSSC: np.ndarray, *, mirrored: bool) -> Iterator[np.ndarray]:
    """Yield the pictures shifted by up to a pixel, edges repeated, then the same mirrored."""
    side = pictures_NSSC.shape[1]
    for flipped in (False, True) if mirrored else (False,):
        turned = pictures_NSSC[:, :, ::-1] if flipped else pictures_NSSC
        padded = np.pad(turned, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
        for down, right in product(range(3), repeat=2):
            yield padded[:, down : down + side, right : right + side]
