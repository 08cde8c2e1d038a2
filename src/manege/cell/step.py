"""One training step of a generator/discriminator pair: the mathematics, written once.

All randomness comes in as `Noise`. Nothing is read back from the device here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manege.cell.individual import Individual
from manege.config import ClipConstraint, Training
from manege.models import (
    Discriminator,
    Generator,
    clip_,
    clippable,
    discriminator_loss,
    generator_loss,
)


@dataclass
class Pair:
    """A generator and the discriminator it plays against."""

    generator: Individual[Generator]
    discriminator: Individual[Discriminator]


class Noise(NamedTuple):
    """All random numbers of one forward pass through a pair."""

    z_BZ: Tensor
    real_factors_BW: Tensor | None
    fake_factors_BW: Tensor | None


def draw_noise(
    pair: Pair, batch: int, latents: np.random.Generator, dropout: np.random.Generator
) -> Noise:
    """The noise of one update, from the cell's own streams."""
    device = pair.generator.record.device
    width = (batch, pair.generator.network.latent)
    z_BZ = torch.from_numpy(latents.standard_normal(width, dtype=np.float32))
    factors = [_dropout_factors(pair.discriminator.network, batch, dropout) for _ in range(2)]
    return Noise(
        z_BZ.to(device), *(None if f is None else torch.from_numpy(f).to(device) for f in factors)
    )


def _dropout_factors(
    network: Discriminator, batch: int, rng: np.random.Generator
) -> np.ndarray | None:
    """0 for a dropped channel, 1 / (1 - p) for a kept one."""
    if not network.dropout_width:
        return None
    kept = rng.random((batch, network.dropout_width), dtype=np.float32) >= network.dropout
    return kept * np.float32(1 / (1 - network.dropout))


def train_step(pair: Pair, reals: list[Tensor], noise: list[Noise], training: Training) -> Tensor:
    """Losses (discriminator's, generator's) of some discriminator updates, then one generator's.

    Args:
        pair: updated in place.
        reals: a batch in [-1, 1] for each discriminator update.
        noise: one for each discriminator update and one for the generator's.
        training: the loss, the constraint, the optimiser.
    """
    # Discriminator first: the generator's gradient must see the updated one.
    losses = [
        update_discriminator(pair, batch, one, training)
        for batch, one in zip(reals, noise, strict=False)
    ]
    return torch.stack([torch.stack(losses).mean(), update_generator(pair, noise[-1], training)])


def update_discriminator(pair: Pair, reals: Tensor, noise: Noise, training: Training) -> Tensor:
    """The discriminator's loss before its update."""
    with torch.no_grad():  # The generator learns nothing here: no graph through it.
        fakes = pair.generator.network(noise.z_BZ)
    discriminator = pair.discriminator
    discriminator.zero_gradients()
    # Real and fake apart: mixed batches would tell BatchNorm which is which.
    loss = discriminator_loss(
        training.loss,
        discriminator.network(reals, noise.real_factors_BW),
        discriminator.network(fakes, noise.fake_factors_BW),
    )
    loss.backward()
    _adam(discriminator, training)
    if isinstance(training.constraint, ClipConstraint):
        clip_(clippable(discriminator.network), training.constraint.bound)
    return loss.detach()


def update_generator(pair: Pair, noise: Noise, training: Training) -> Tensor:
    """The generator's loss before its update."""
    pair.generator.zero_gradients()
    # The discriminator passes the gradient on but learns nothing: its weights want none.
    pair.discriminator.network.requires_grad_(requires_grad=False)
    fakes = pair.generator.network(noise.z_BZ)
    loss = generator_loss(training.loss, pair.discriminator.network(fakes, noise.fake_factors_BW))
    loss.backward()
    pair.discriminator.network.requires_grad_(requires_grad=True)
    _adam(pair.generator, training)
    return loss.detach()


def _adam(
    individual: Individual[Generator] | Individual[Discriminator], training: Training
) -> None:
    individual.adam_step(beta1=training.optimiser.beta1, beta2=training.optimiser.beta2)
