"""Losses on logits (a Wasserstein critic's values are its logits); callers minimise them."""

from __future__ import annotations

from typing import assert_never

from torch import Tensor
from torch.nn import functional as F

from manege.config import Loss


def discriminator_loss(loss: Loss, real_B: Tensor, fake_B: Tensor) -> Tensor:
    """What the discriminator minimises over one batch of each kind."""
    match loss:
        case Loss.BCE:
            # -log σ(real) - log(1 - σ(fake)), without overflow.
            return F.softplus(-real_B).mean() + F.softplus(fake_B).mean()
        case Loss.WASSERSTEIN:
            return fake_B.mean() - real_B.mean()  # Eq. (6) with its sign turned.
        case _:
            assert_never(loss)


def generator_loss(loss: Loss, fake_B: Tensor) -> Tensor:
    """What the generator minimises."""
    match loss:
        case Loss.BCE:
            return F.softplus(-fake_B).mean()  # Non-saturating: -log σ(fake).
        case Loss.WASSERSTEIN:
            return -fake_B.mean()  # Eq. (7).
        case _:
            assert_never(loss)
