"""What can go wrong in a round of training, told from the state alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manege.cell.state import CellState

LARGEST_LOSS = 1e6
LARGEST_GROWTH = 10.0
"""How many times larger a network's weights may become within a round."""
SMALLEST_SPREAD = 0.5
"""The least part of the widest spread that samples ever had, or of the real pictures' spread where
that is smaller."""


def spread_of(pictures_BCSS: Tensor) -> float:
    """Return the mean distance between two of the pictures."""
    return float(torch.pdist(pictures_BCSS.flatten(1)).mean())


def step_trouble(state: CellState) -> str | None:
    """Return which loss is not finite after a step, or None."""
    if bool(torch.isfinite(state.loss_sums).all()):
        return None
    names = ("discriminator", "generator")
    sums = zip(names, state.loss_sums.tolist(), strict=True)
    bad = next(name for name, value in sums if not math.isfinite(value))
    return f"the {bad}'s loss is not finite"


def round_trouble(state: CellState, steps: int) -> str | None:
    """Return what has broken at the end of a round of so many steps, or None.

    `state` is that after its last step, and still counts as in the round.
    """
    if not state.is_finite():
        return "a weight is not finite"
    losses = [value / steps for value in state.loss_sums.tolist()]
    if max(abs(value) for value in losses) > LARGEST_LOSS:
        return f"the losses have exploded to {losses[0]:.3g} and {losses[1]:.3g}"
    if (grown := state.growth()) > LARGEST_GROWTH:
        return f"the weights have grown {grown:.3g} times within the round"
    return None


def collapse(state: CellState, spread: float, real_spread: float) -> str | None:
    """Return how samples have become too much alike at the end of a round, or None.

    Args:
        state: after the round's last step.
        spread: of samples at fixed latents, now.
        real_spread: of as many real pictures.
    """
    widest = min(max(state.widest, spread), real_spread)
    if spread < SMALLEST_SPREAD * widest:
        return (
            f"the samples have collapsed: their mean distance is {spread:.3g}, it was "
            f"{state.widest:.3g} before and is {real_spread:.3g} between real pictures"
        )
    return None
