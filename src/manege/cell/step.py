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
from manege.config import (
    ClipConstraint,
    PenaltyConstraint,
    R1Constraint,
    R1R2Constraint,
    SpectralConstraint,
    Training,
)
from manege.models import (
    Discriminator,
    Generator,
    clip_,
    clippable,
    compares,
    discriminator_loss,
    generator_loss,
    gradient_penalty,
    sharpen_,
    squared_gradients,
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
    mix_B: Tensor | None = None
    """Where between a real and a fake picture a gradient is penalised, 0 to 1."""


class Streams(NamedTuple):
    """Where the noise comes from, a stream for each purpose."""

    latents: np.random.Generator
    dropout: np.random.Generator
    mixing: np.random.Generator


def draw_noise(pair: Pair, batch: int, streams: Streams, training: Training) -> Noise:
    """The noise of one update, from the cell's own streams."""
    device = pair.generator.record.device
    width = (batch, pair.generator.network.latent)
    drawn: list[np.ndarray | None] = [streams.latents.standard_normal(width, dtype=np.float32)]
    drawn += [
        _dropout_factors(pair.discriminator.network, batch, streams.dropout) for _ in range(2)
    ]
    mixes = isinstance(training.constraint, PenaltyConstraint)
    drawn.append(streams.mixing.random(batch, dtype=np.float32) if mixes else None)
    z_BZ, *rest = (None if one is None else torch.from_numpy(one).to(device) for one in drawn)
    assert z_BZ is not None
    return Noise(z_BZ, *rest)


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
    generator_loss = update_generator(pair, reals[-1], noise[-1], training)
    return torch.stack([torch.stack(losses).mean(), generator_loss])


def update_discriminator(pair: Pair, reals: Tensor, noise: Noise, training: Training) -> Tensor:
    """The discriminator's loss before its update, penalties included."""
    with torch.no_grad():  # The generator learns nothing here: no graph through it.
        fakes = pair.generator.network(noise.z_BZ)
    discriminator, constraint = pair.discriminator, training.constraint
    if isinstance(constraint, SpectralConstraint):
        sharpen_(discriminator.network)
    if isinstance(constraint, R1Constraint | R1R2Constraint):
        reals = reals.detach().requires_grad_()
    if isinstance(constraint, R1R2Constraint):
        fakes.requires_grad_()
    # Real and fake apart: mixed batches would tell BatchNorm which is which.
    real_B = discriminator.network(reals, noise.real_factors_BW)
    fake_B = discriminator.network(fakes, noise.fake_factors_BW)
    loss = discriminator_loss(training.loss, real_B, fake_B)
    match constraint:
        case PenaltyConstraint():
            loss = loss + constraint.weight * _penalty_between(pair, reals, fakes, noise)
        case R1Constraint():
            loss = loss + constraint.gamma / 2 * squared_gradients(real_B, reals).mean()
        case R1R2Constraint():
            both_B = squared_gradients(real_B, reals) + squared_gradients(fake_B, fakes)
            loss = loss + constraint.gamma / 2 * both_B.mean()
        case _:
            pass
    discriminator.zero_gradients()
    # Only the weights: pictures that want a gradient of their own need not gather this one.
    loss.backward(inputs=discriminator.parameters)
    _adam(discriminator, training)
    if isinstance(constraint, ClipConstraint):
        clip_(clippable(discriminator.network), constraint.bound)
    return loss.detach()


def _penalty_between(pair: Pair, reals: Tensor, fakes: Tensor, noise: Noise) -> Tensor:
    assert noise.mix_B is not None
    between = torch.lerp(fakes, reals, noise.mix_B[:, None, None, None]).requires_grad_()
    value_B = pair.discriminator.network(between, noise.real_factors_BW)
    return gradient_penalty(squared_gradients(value_B, between))


def update_generator(pair: Pair, reals: Tensor, noise: Noise, training: Training) -> Tensor:
    """The generator's loss before its update."""
    pair.generator.zero_gradients()
    # The discriminator passes the gradient on but learns nothing: its weights want none.
    pair.discriminator.network.requires_grad_(requires_grad=False)
    fakes = pair.generator.network(noise.z_BZ)
    fake_B = pair.discriminator.network(fakes, noise.fake_factors_BW)
    real_B = fake_B
    if compares(training.loss):
        real_B = pair.discriminator.network(reals, noise.real_factors_BW)
    loss = generator_loss(training.loss, fake_B, real_B)
    loss.backward()
    pair.discriminator.network.requires_grad_(requires_grad=True)
    _adam(pair.generator, training)
    return loss.detach()


def _adam(
    individual: Individual[Generator] | Individual[Discriminator], training: Training
) -> None:
    individual.adam_step(beta1=training.optimiser.beta1, beta2=training.optimiser.beta2)
