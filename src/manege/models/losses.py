"""Losses on logits (a Wasserstein critic's values are its logits); callers minimise them."""

from __future__ import annotations

from typing import assert_never

from torch import Tensor
from torch.nn import functional as F

from manege.config import Loss, Objective


def discriminator_loss(loss: Loss, real_B: Tensor, fake_B: Tensor) -> Tensor:
    """Return what the discriminator minimises over a batch of real and one of fake pictures."""
    match loss:
        case Loss.BCE | Loss.MINIMAX:
            # -log σ(real) - log(1 - σ(fake)), without overflow.
            return F.softplus(-real_B).mean() + F.softplus(fake_B).mean()
        case Loss.LEAST_SQUARES:
            return (real_B - 1).square().mean() / 2 + fake_B.square().mean() / 2
        case Loss.HINGE:
            return F.relu(1 - real_B).mean() + F.relu(1 + fake_B).mean()
        case Loss.RELATIVISTIC:
            # Each fake against one real picture: -log σ(real - fake).
            return F.softplus(fake_B - real_B).mean()
        case Loss.WASSERSTEIN:
            return fake_B.mean() - real_B.mean()  # Eq. (6) with its sign turned.
        case _:
            assert_never(loss)


def generator_loss(loss: Loss, fake_B: Tensor, real_B: Tensor) -> Tensor:
    """Return what the generator minimises; only a relativistic loss looks at real logits."""
    match loss:
        case Loss.BCE:
            return F.softplus(-fake_B).mean()  # Non-saturating: -log σ(fake).
        case Loss.MINIMAX:
            return -F.softplus(fake_B).mean()  # log(1 - σ(fake)): flat where fakes are found out.
        case Loss.LEAST_SQUARES:
            return (fake_B - 1).square().mean() / 2
        case Loss.HINGE | Loss.WASSERSTEIN:
            return -fake_B.mean()  # Eq. (7).
        case Loss.RELATIVISTIC:
            return F.softplus(real_B - fake_B).mean()
        case _:
            assert_never(loss)


def objective_loss(objective: Objective, fake_B: Tensor) -> Tensor:
    """Return what a generator minimises against a discriminator under BCE, p = σ(logit)."""
    match objective:
        case Objective.MINIMAX:
            return -F.softplus(fake_B).mean()  # log(1 - p).
        case Objective.HEURISTIC:
            return F.softplus(-fake_B).mean()  # -log p.
        case Objective.LEAST_SQUARES:
            return (fake_B.sigmoid() - 1).square().mean()
        case _:
            assert_never(objective)


def needs_real(loss: Loss) -> bool:
    """Return whether the generator's loss needs the real pictures' logits."""
    return loss is Loss.RELATIVISTIC
