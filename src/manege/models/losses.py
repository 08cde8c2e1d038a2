"""Losses on logits (a Wasserstein critic's values are its logits); callers minimise them.

A loss is a value, a built-in one or one from outside the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import assert_never

from torch import Tensor
from torch.nn import functional as F

from manege.config import LossName, Objective, shown
from manege.errors import ConfigError
from manege.plugins import PartError, blamed, load


@dataclass(frozen=True)
class Loss:
    """What discriminator and generator minimise, as functions of logits.

    Args:
        discriminator: ``discriminator(real, fake)`` returns a number for a batch of each.
        generator: ``generator(fake)`` returns a number; ``generator(real, fake)`` with
            `needs_real`.
        needs_real: whether the generator's loss looks at the real pictures' logits.

    Example:
        >>> from torch.nn.functional import softplus
        >>> logistic = manege.Loss(
        ...     discriminator=lambda real, fake: softplus(-real).mean() + softplus(fake).mean(),
        ...     generator=lambda fake: softplus(-fake).mean(),
        ... )
    """

    discriminator: Callable[[Tensor, Tensor], Tensor]
    generator: Callable[..., Tensor]
    needs_real: bool = False

    def of_generator(self, real_B: Tensor, fake_B: Tensor) -> Tensor:
        """Return what the generator minimises; `real_B` counts only where it is needed."""
        return self.generator(real_B, fake_B) if self.needs_real else self.generator(fake_B)


def _logistic(real_B: Tensor, fake_B: Tensor) -> Tensor:
    # -log σ(real) - log(1 - σ(fake)), without overflow.
    return F.softplus(-real_B).mean() + F.softplus(fake_B).mean()


def _minus_mean(fake_B: Tensor) -> Tensor:
    return -fake_B.mean()  # Eq. (7).


LOSSES: Mapping[str, Loss] = {
    # The generator's is non-saturating: -log σ(fake).
    LossName.BCE: Loss(_logistic, lambda fake_B: F.softplus(-fake_B).mean()),
    # log(1 - σ(fake)): flat where fakes are found out.
    LossName.MINIMAX: Loss(_logistic, lambda fake_B: -F.softplus(fake_B).mean()),
    LossName.LEAST_SQUARES: Loss(
        lambda real_B, fake_B: (real_B - 1).square().mean() / 2 + fake_B.square().mean() / 2,
        lambda fake_B: (fake_B - 1).square().mean() / 2,
    ),
    LossName.HINGE: Loss(
        lambda real_B, fake_B: F.relu(1 - real_B).mean() + F.relu(1 + fake_B).mean(), _minus_mean
    ),
    # Each fake against one real picture: -log σ(real - fake).
    LossName.RELATIVISTIC: Loss(
        lambda real_B, fake_B: F.softplus(fake_B - real_B).mean(),
        lambda real_B, fake_B: F.softplus(real_B - fake_B).mean(),
        needs_real=True,
    ),
    # Eq. (6) with its sign turned.
    LossName.WASSERSTEIN: Loss(lambda real_B, fake_B: fake_B.mean() - real_B.mean(), _minus_mean),
}
"""The built-in losses."""


def loss_of(name: str) -> Loss:
    """Return the loss of a configuration: a built-in one, or that of a ``module:name``."""
    return LOSSES.get(name) or _own_loss(name)


def _own_loss(reference: str) -> Loss:
    """Return a loss from outside the package."""
    found = load(reference, "training.loss")
    if not isinstance(found, Loss):
        raise ConfigError(
            f"training.loss: {reference} is a {type(found).__name__}, expected a manege.Loss; "
            "make one with manege.Loss(discriminator, generator)"
        )
    return _told(found, reference)


@cache
def _told(found: Loss, reference: str) -> Loss:
    """Return the loss, with functions whose errors name it."""
    return Loss(
        _checked(found.discriminator, reference, "discriminator(real, fake)"),
        _checked(
            found.generator,
            reference,
            "generator(real, fake)" if found.needs_real else "generator(fake)",
        ),
        found.needs_real,
    )


def _checked(function: Callable[..., Tensor], reference: str, what: str) -> Callable[..., Tensor]:
    """Return the function, with errors that name it and what it returned."""

    def call(*logits: Tensor) -> Tensor:
        with blamed(reference, what):
            loss = function(*logits)
        if isinstance(loss, Tensor) and loss.ndim == 0 and loss.is_floating_point():
            return loss
        found = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise PartError(
            f"{reference}: {what} returned {found or shown(loss)}, expected one number with a "
            "gradient, as of .mean()"
        )

    return call


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
