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
    Objective,
    PenaltyConstraint,
    R1Constraint,
    R1R2Constraint,
    SpectralConstraint,
    Training,
)
from manege.models import (
    Changes,
    Discriminator,
    Generator,
    PictureShape,
    change,
    clip_,
    clippable,
    compares,
    discriminator_loss,
    draw_changes,
    generator_loss,
    gradient_penalty,
    objective_loss,
    sharpen_,
    squared_gradients,
)


@dataclass
class Pair:
    """A generator and the discriminator it plays against."""

    generator: Individual[Generator]
    discriminator: Individual[Discriminator]


class Batch(NamedTuple):
    """Real pictures, and what they show where the pair is conditional."""

    pictures: Tensor
    """In [-1, 1]."""
    labels_B: Tensor | None = None
    """The fakes made beside them get the same labels."""


class Noise(NamedTuple):
    """All random numbers of one forward pass through a pair."""

    z_BZ: Tensor
    real_factors_BW: Tensor | None
    fake_factors_BW: Tensor | None
    mix_B: Tensor | None = None
    """Where between a real and a fake picture a gradient is penalised, 0 to 1."""
    real_changes: Changes | None = None
    fake_changes: Changes | None = None
    """How pictures are augmented before the discriminator sees them."""


class Streams(NamedTuple):
    """Where a step's random numbers come from, a stream for each purpose."""

    latents: np.random.Generator
    dropout: np.random.Generator
    mixing: np.random.Generator
    flips: np.random.Generator
    changes: np.random.Generator


def draw_noise(
    pair: Pair,
    batch: int,
    streams: Streams,
    training: Training,
    augment: float = 0.0,
    shape: PictureShape | None = None,
) -> Noise:
    """The noise of one update, from the cell's own streams; `augment` is the chance of a change."""
    device = pair.generator.record.device
    width = (batch, pair.generator.network.latent)
    z_BZ = torch.from_numpy(streams.latents.standard_normal(width, dtype=np.float32))
    factors = [
        _dropout_factors(pair.discriminator.network, batch, streams.dropout) for _ in range(2)
    ]
    mixes = isinstance(training.constraint, PenaltyConstraint)
    mix_B = streams.mixing.random(batch, dtype=np.float32) if mixes else None
    changes: list[Changes | None] = [None, None]
    if augment > 0 and shape is not None:
        drawn = [draw_changes(streams.changes, batch, shape.size, augment) for _ in range(2)]
        changes = [Changes(*(tensor.to(device) for tensor in one)) for one in drawn]
    ready = [None if one is None else torch.from_numpy(one).to(device) for one in (*factors, mix_B)]
    return Noise(z_BZ.to(device), ready[0], ready[1], ready[2], changes[0], changes[1])


def _dropout_factors(
    network: Discriminator, batch: int, rng: np.random.Generator
) -> np.ndarray | None:
    """0 for a dropped channel, 1 / (1 - p) for a kept one."""
    if not network.dropout_width:
        return None
    kept = rng.random((batch, network.dropout_width), dtype=np.float32) >= network.dropout
    return kept * np.float32(1 / (1 - network.dropout))


def train_step(pair: Pair, reals: list[Batch], noise: list[Noise], training: Training) -> Tensor:
    """Losses (discriminator's, generator's) of some discriminator updates, then one generator's.

    Args:
        pair: updated in place.
        reals: a batch for each discriminator update.
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


def update_discriminator(pair: Pair, batch: Batch, noise: Noise, training: Training) -> Tensor:
    """The discriminator's loss before its update, penalties included."""
    labels_B = batch.labels_B
    reals = _augmented(batch.pictures, noise.real_changes)
    with torch.no_grad():  # The generator learns nothing here: no graph through it.
        fakes = _augmented(pair.generator.network(noise.z_BZ, labels_B), noise.fake_changes)
    discriminator, constraint = pair.discriminator, training.constraint
    if isinstance(constraint, SpectralConstraint):
        sharpen_(discriminator.network)
    if isinstance(constraint, R1Constraint):
        reals = reals.detach().requires_grad_()
    if discriminator.network.mixes or isinstance(constraint, R1Constraint):
        # Apart: mixed batches would tell BatchNorm which is which; and R1 is the reals' alone.
        real_B = discriminator.network(reals, noise.real_factors_BW, labels_B)
        fake_B = discriminator.network(fakes, noise.fake_factors_BW, labels_B)
    else:
        pictures = torch.cat([reals, fakes])
        pictures.requires_grad_(isinstance(constraint, R1R2Constraint))
        factors = _joined(noise.real_factors_BW, noise.fake_factors_BW)
        value_B = discriminator.network(pictures, factors, _joined(labels_B, labels_B))
        real_B, fake_B = value_B.chunk(2)
    loss = discriminator_loss(training.loss, real_B, fake_B)
    match constraint:
        case PenaltyConstraint():
            loss = loss + constraint.weight * _penalty_between(
                pair, Batch(reals, labels_B), fakes, noise
            )
        case R1Constraint():
            loss = loss + constraint.gamma / 2 * squared_gradients(real_B, reals).mean()
        case R1R2Constraint():
            # γ/2 of each kind's mean: γ of the mean over both.
            loss = loss + constraint.gamma * squared_gradients(value_B, pictures).mean()
        case _:
            pass
    discriminator.zero_gradients()
    # Only the weights: pictures that want a gradient of their own need not gather this one.
    loss.backward(inputs=discriminator.parameters)
    _adam(discriminator, training)
    if isinstance(constraint, ClipConstraint):
        clip_(clippable(discriminator.network), constraint.bound)
    return loss.detach()


def _joined(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else torch.cat([one, other])


def _penalty_between(pair: Pair, batch: Batch, fakes: Tensor, noise: Noise) -> Tensor:
    assert noise.mix_B is not None
    between = torch.lerp(fakes, batch.pictures, noise.mix_B[:, None, None, None])
    between.requires_grad_()
    value_B = pair.discriminator.network(between, noise.real_factors_BW, batch.labels_B)
    return gradient_penalty(squared_gradients(value_B, between))


def update_generator(
    pair: Pair,
    batch: Batch,
    noise: Noise,
    training: Training,
    objective: Objective | None = None,
) -> Tensor:
    """The generator's loss before its update: the run's loss, or an objective of its own."""
    pair.generator.zero_gradients()
    # The discriminator passes the gradient on but learns nothing: its weights want none.
    pair.discriminator.network.requires_grad_(requires_grad=False)
    labels_B = batch.labels_B
    fakes = _augmented(pair.generator.network(noise.z_BZ, labels_B), noise.fake_changes)
    fake_B = pair.discriminator.network(fakes, noise.fake_factors_BW, labels_B)
    real_B = fake_B
    if compares(training.loss):
        reals = _augmented(batch.pictures, noise.real_changes)
        real_B = pair.discriminator.network(reals, noise.real_factors_BW, labels_B)
    if objective is None:
        loss = generator_loss(training.loss, fake_B, real_B)
    else:
        loss = objective_loss(objective, fake_B)
    loss.backward()
    pair.discriminator.network.requires_grad_(requires_grad=True)
    _adam(pair.generator, training)
    return loss.detach()


def _augmented(pictures: Tensor, changes: Changes | None) -> Tensor:
    return pictures if changes is None else change(pictures, changes)


def _adam(
    individual: Individual[Generator] | Individual[Discriminator], training: Training
) -> None:
    individual.adam_step(beta1=training.optimiser.beta1, beta2=training.optimiser.beta2)
