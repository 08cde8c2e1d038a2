"""Augmentation that rises only when the discriminator overfits, and falls again.

Overfitting is told from training pictures that were kept out of training: by how much of the way
from a fake picture's logit to a training picture's theirs falls short (Karras et al. 2020, r_v).
"""

from __future__ import annotations

import torch
from torch import Tensor

from manege.cell.step import Batch, Pair
from manege.config import AdaptiveAugment

PROBES = 64
"""Pictures of each kind that are looked at."""


def kept_out(count: int) -> int:
    """Return how many of a cell's pictures are kept out of training, to measure overfitting."""
    return min(500, max(1, count // 20))


@torch.no_grad()
def overfitting(pair: Pair, trained: Batch, kept: Batch, fakes: Batch) -> float:
    """Return how much the discriminator overfits, from 0 to 1.

    It is 0 when pictures kept out look like training pictures to it, 1 when they look like fakes.
    """
    network = pair.discriminator.network
    training = network.training
    network.eval()  # Looking must not change BatchNorm's statistics.
    try:
        seen, unseen, fake = (
            float(network(network.observe(batch.pictures), None, batch.labels_B).mean())
            for batch in (trained, kept, fakes)
        )
    finally:
        network.train(training)
    gap = seen - fake
    # A discriminator that does not tell training pictures from fakes has learnt nothing by heart.
    return 0.0 if gap <= 0 else max(0.0, min(1.0, (seen - unseen) / gap))


def adapted(chance: float, overfit: float, augment: AdaptiveAugment) -> float:
    """Return the chance of a change, a step nearer to where overfitting is as wanted."""
    step = augment.step if overfit > augment.target else -augment.step
    return min(augment.most, max(0.0, chance + step))


def probes(pictures: Tensor, labels: Tensor | None) -> Batch:
    """Return a few of the pictures from all over: they lie there class after class."""
    rows = torch.linspace(0, len(pictures) - 1, min(PROBES, len(pictures))).long()
    return Batch(pictures[rows], None if labels is None else labels[rows])
