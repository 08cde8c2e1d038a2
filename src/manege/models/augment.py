"""Differentiable changes to pictures, so that a discriminator cannot learn a few of them by heart.

Real and fake pictures go through the same kinds of change; which picture is changed, and how, is
drawn beforehand (Zhao et al. 2020; Karras et al. 2020).

Shape legend: B pictures, C channels, S side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_MOVED = 1 / 8
"""The furthest that a picture is moved, as a part of its side."""
_CUT = 1 / 2
"""The side of the hole that is cut, as a part of the picture's."""


class AugmentParams(NamedTuple):
    """What happens to each picture of a batch; a picture left alone has the neutral values."""

    brightness_B: Tensor
    """What is added to every value; 0 changes nothing."""
    saturation_B: Tensor
    """What the distance from grey is multiplied by; 1 changes nothing."""
    contrast_B: Tensor
    """What the distance from the picture's mean is multiplied by; 1 changes nothing."""
    moved_B2: Tensor
    """How many pixels it is moved down and to the right."""
    hole_B2: Tensor
    """Where the hole begins; far outside when there is none."""


def draw_augmentation(
    rng: np.random.Generator, batch: int, side: int, chance: float, *, holes: bool = True
) -> AugmentParams:
    """Draw what happens to each picture: each kind of change with this chance, holes if allowed."""
    happens_5B = rng.random((5, batch)) < chance
    uniform_3B = rng.random((3, batch)) - 0.5
    furthest = round(side * _MOVED)
    moved_B2 = rng.integers(-furthest, furthest + 1, (batch, 2)) * happens_5B[3, :, None]
    hole = round(side * _CUT)
    hole_B2 = rng.integers(1 - hole, side, (batch, 2))
    hole_B2[~(happens_5B[4] & holes)] = -2 * side
    brightness_B = uniform_3B[0] * happens_5B[0]
    saturation_B = 1 + 2 * uniform_3B[1] * happens_5B[1]
    contrast_B = 1 + uniform_3B[2] * happens_5B[2]
    return AugmentParams(
        torch.from_numpy(brightness_B.astype(np.float32)),
        torch.from_numpy(saturation_B.astype(np.float32)),
        torch.from_numpy(contrast_B.astype(np.float32)),
        torch.from_numpy(moved_B2),
        torch.from_numpy(hole_B2),
    )


def augment(x_BCSS: Tensor, changes: AugmentParams) -> Tensor:
    """Return the changed pictures, channels last in memory; it can be differentiated twice."""
    side = x_BCSS.shape[-1]
    x = x_BCSS + changes.brightness_B[:, None, None, None]
    grey = x.mean(1, keepdim=True)
    x = torch.lerp(grey.expand_as(x), x, changes.saturation_B[:, None, None, None])
    mean = x.mean((1, 2, 3), keepdim=True)
    x = torch.lerp(mean.expand_as(x), x, changes.contrast_B[:, None, None, None])
    place_S = torch.arange(side, device=x.device)
    inside: list[Tensor] = []
    for axis in (0, 1):
        source_BS = place_S - changes.moved_B2[:, axis, None]
        inside.append((source_BS >= 0) & (source_BS < side))
        index = source_BS.clamp(0, side - 1)
        index = index[:, None, :, None] if axis == 0 else index[:, None, None, :]
        x = torch.take_along_dim(x, index, dim=2 + axis)
    hole = round(side * _CUT)
    cut = [
        (place_S >= start) & (place_S < start + hole) for start in changes.hole_B2.t()[:, :, None]
    ]
    kept = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    kept &= ~(cut[0][:, None, :, None] & cut[1][:, None, None, :])
    return (x * kept).contiguous(memory_format=torch.channels_last)
