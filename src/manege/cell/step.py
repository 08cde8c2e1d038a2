"""One training step of a generator/discriminator pair: the mathematics, written once.

All randomness comes in as `Noise`. Nothing is read back from a device here.

The two networks may live on different devices. Latents are where the generator is, everything else
where the discriminator is; labels and fakes are sent over, which does nothing on a single device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manege.cell.individual import Individual
from manege.config import (
    ClipConstraint,
    NoConstraint,
    Objective,
    PenaltyConstraint,
    R1Constraint,
    R1R2Constraint,
    SpectralConstraint,
    Training,
)
from manege.models import (
    AugmentParams,
    Discriminator,
    Generator,
    ManualMLP,
    PictureShape,
    augment,
    clip_,
    clippable,
    draw_augmentation,
    gradient_penalty,
    loss_of,
    objective_loss,
    power_iteration_,
    seeded,
    squared_gradients,
)
from manege.plugins import is_reference


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
    seen_BF: Tensor | None = None
    """What the discriminator sees of the pictures, where that is known already."""


class Noise(NamedTuple):
    """All random numbers of one forward pass through a pair."""

    z_BZ: Tensor
    real_factors_BW: Tensor | None
    fake_factors_BW: Tensor | None
    mix_B: Tensor | None = None
    """Where between a real and a fake picture a gradient is penalised, 0 to 1."""
    real_changes: AugmentParams | None = None
    fake_changes: AugmentParams | None = None
    """How pictures are augmented before the discriminator sees them."""
    seed: int | None = None
    """Where the draws of somebody else's networks and loss begin; None where all are ours."""


class Streams:
    """Where a step's random numbers come from: a stream for each purpose, opened at first use."""

    def __init__(self, open_stream: Callable[[str], np.random.Generator]) -> None:
        self.open = open_stream
        """Open the stream of a purpose at its start."""

    @cached_property
    def latents(self) -> np.random.Generator:
        """The stream of the latents that generators draw from."""
        return self.open("latents")

    @cached_property
    def dropout(self) -> np.random.Generator:
        """The stream of which channels a discriminator drops."""
        return self.open("dropout")

    @cached_property
    def mixing(self) -> np.random.Generator:
        """The stream of where between a real and a fake picture a gradient is penalised."""
        return self.open("mixing")

    @cached_property
    def flips(self) -> np.random.Generator:
        """The stream of which pictures are mirrored."""
        return self.open("flips")

    @cached_property
    def own(self) -> np.random.Generator:
        """The stream of the seeds that somebody else's networks and losses draw from."""
        return self.open("own")

    @cached_property
    def changes(self) -> np.random.Generator:
        """The stream of how pictures are augmented."""
        return self.open("changes")


def draw_noise(
    pair: Pair,
    batch: int,
    streams: Streams,
    training: Training,
    augment: float = 0.0,
    shape: PictureShape | None = None,
    *,
    holes: bool = True,
) -> Noise:
    """Draw the noise of one update from the cell's own streams.

    `augment` is the chance of each kind of change to a picture, `holes` whether holes are cut.
    """
    device = pair.discriminator.record.device
    width = (batch, pair.generator.network.latent)
    z_BZ = torch.from_numpy(streams.latents.standard_normal(width, dtype=np.float32))
    factors = [
        _dropout_factors(pair.discriminator.network, batch, streams.dropout) for _ in range(2)
    ]
    mixes = isinstance(training.constraint, PenaltyConstraint)
    mix_B = streams.mixing.random(batch, dtype=np.float32) if mixes else None
    changes: list[AugmentParams | None] = [None, None]
    if augment > 0 and shape is not None:
        drawn = [
            draw_augmentation(streams.changes, batch, shape.size, augment, holes=holes)
            for _ in range(2)
        ]
        changes = [AugmentParams(*(tensor.to(device) for tensor in one)) for one in drawn]
    ready = [None if one is None else torch.from_numpy(one).to(device) for one in (*factors, mix_B)]
    z_BZ = z_BZ.to(pair.generator.record.device)
    own = pair.generator.network.own or pair.discriminator.network.own
    seed = int(streams.own.integers(2**63)) if own or is_reference(training.loss) else None
    return Noise(z_BZ, ready[0], ready[1], ready[2], changes[0], changes[1], seed)


def _dropout_factors(
    network: Discriminator, batch: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw a factor for every channel: 0 drops it, 1 / (1 - p) keeps it."""
    if not network.dropout_width:
        return None
    kept = rng.random((batch, network.dropout_width), dtype=np.float32) >= network.dropout
    return kept * np.float32(1 / (1 - network.dropout))


def noises_in_step(pair: Pair, training: Training) -> int:
    """Return how many noises `train_step` takes: one less where one pass serves both updates."""
    return training.n_critic + (0 if pair.discriminator.network.sees_features else 1)


def train_step(pair: Pair, reals: list[Batch], noise: list[Noise], training: Training) -> Tensor:
    """Update the discriminator some times, then the generator once; return both mean losses.

    Args:
        pair: updated in place.
        reals: a batch for each discriminator update.
        noise: one for each discriminator update and one for the generator's; a critic on features
            takes the last two as one.
        training: the loss, the constraint, the optimiser.
    """
    if pair.discriminator.network.sees_features:
        losses = [
            update_discriminator(pair, batch, one, training)
            for batch, one in zip(reals[:-1], noise[:-1], strict=True)
        ]
        last, generator_loss = update_both(pair, reals[-1], noise[-1], training)
        return torch.stack([torch.stack([*losses, last]).mean(), generator_loss])
    # Discriminator first: the generator's gradient must see the updated one.
    losses = [
        update_discriminator(pair, batch, one, training)
        for batch, one in zip(reals, noise, strict=False)
    ]
    generator_loss = update_generator(pair, reals[-1], noise[-1], training)
    return torch.stack([torch.stack(losses).mean(), generator_loss])


def update_discriminator(pair: Pair, batch: Batch, noise: Noise, training: Training) -> Tensor:
    """Update the discriminator; return its loss before that, penalties included."""
    discriminator, constraint = pair.discriminator, training.constraint
    with seeded(noise.seed, *_devices(pair)):
        reals = _seen(discriminator.network, batch, noise)
        with torch.no_grad():  # The generator learns nothing here: no graph through it.
            drawn = _draw(pair.generator.network, noise.z_BZ, batch)
            fakes = discriminator.network.observe(_augmented(drawn, noise.fake_changes))
        chain = discriminator.network.chain
        if chain is not None and isinstance(constraint, NoConstraint | ClipConstraint):
            loss = _discriminate_by_chain(chain, reals, fakes, training)
        else:
            loss = _discriminate(pair, Batch(reals, batch.labels_B), fakes, noise, training)
    _step_discriminator(discriminator, training)
    return loss.detach()


def update_both(
    pair: Pair,
    batch: Batch,
    noise: Noise,
    training: Training,
    objective: Objective | None = None,
) -> tuple[Tensor, Tensor]:
    """Update a critic on features and then the generator in one pass; return both losses.

    Pictures are drawn and looked at once. The heads learn from what was seen, cut off from the
    generator; then the generator learns through the same pass and the heads as they are now.
    """
    with seeded(noise.seed, *_devices(pair)):
        return _update_both(pair, batch, noise, training, objective)


def _update_both(
    pair: Pair, batch: Batch, noise: Noise, training: Training, objective: Objective | None
) -> tuple[Tensor, Tensor]:
    generator, discriminator = pair.generator, pair.discriminator
    labels_B = batch.labels_B
    drawn = generator.network(noise.z_BZ, _beside(noise.z_BZ, labels_B))
    fakes = _augmented(drawn.to(batch.pictures.device), noise.fake_changes)
    seen_BF = discriminator.network.observe(fakes)
    reals_BF = _seen(discriminator.network, batch, noise)
    critic_loss = _discriminate(
        pair, Batch(reals_BF, labels_B), seen_BF.detach(), noise, training
    ).detach()
    _step_discriminator(discriminator, training)
    generator.zero_gradients()
    loss = _judged_fakes(pair, reals_BF, seen_BF, labels_B, noise, training, objective)
    _adam(generator, training)
    return critic_loss, loss.detach()


def _devices(pair: Pair) -> tuple[torch.device, torch.device]:
    return pair.generator.record.device, pair.discriminator.record.device


def _seen(network: Discriminator, batch: Batch, noise: Noise) -> Tensor:
    """Return what a discriminator sees of real pictures."""
    if batch.seen_BF is not None:
        return batch.seen_BF
    with torch.no_grad():  # Nothing before the discriminator learns from real pictures.
        return network.observe(_augmented(batch.pictures, noise.real_changes))


def _draw(network: Generator, z_BZ: Tensor, batch: Batch) -> Tensor:
    """Draw as many pictures as a batch has, with its labels, on its device."""
    drawn: Tensor
    if network.chain is None:
        drawn = network(z_BZ, _beside(z_BZ, batch.labels_B))
    else:
        drawn = network.chain.forward(z_BZ)[-1].view_as(batch.pictures)
    return drawn.to(batch.pictures.device)


def _beside(z_BZ: Tensor, labels_B: Tensor | None) -> Tensor | None:
    """Return labels on the latents' device."""
    return None if labels_B is None else labels_B.to(z_BZ.device)


def _discriminate(
    pair: Pair, batch: Batch, fakes: Tensor, noise: Noise, training: Training
) -> Tensor:
    """Return the discriminator's loss, after gathering its gradient by autograd."""
    reals, labels_B, _ = batch
    discriminator, constraint = pair.discriminator, training.constraint
    if isinstance(constraint, SpectralConstraint):
        power_iteration_(discriminator.network)
    apart = discriminator.network.mixes or isinstance(constraint, R1Constraint)
    if apart and isinstance(constraint, R1Constraint | R1R2Constraint):
        reals = reals.detach().requires_grad_()
    if apart and isinstance(constraint, R1R2Constraint):
        fakes = fakes.detach().requires_grad_()
    if apart:
        # Apart: mixed batches would tell BatchNorm which is which; and R1 is the reals' alone.
        real_B = discriminator.network(reals, noise.real_factors_BW, labels_B)
        fake_B = discriminator.network(fakes, noise.fake_factors_BW, labels_B)
    else:
        pictures = torch.cat([reals, fakes])
        pictures.requires_grad_(isinstance(constraint, R1R2Constraint))
        factors = _joined(noise.real_factors_BW, noise.fake_factors_BW)
        value_B = discriminator.network(pictures, factors, _joined(labels_B, labels_B))
        real_B, fake_B = value_B.chunk(2)
    loss = loss_of(training.loss).discriminator(real_B, fake_B)
    match constraint:
        case PenaltyConstraint():
            loss = loss + constraint.weight * _penalty_between(
                pair, Batch(reals, labels_B), fakes, noise
            )
        case R1Constraint():
            loss = loss + constraint.gamma / 2 * squared_gradients(real_B, reals).mean()
        case R1R2Constraint() if apart:
            both = squared_gradients(real_B, reals).mean(), squared_gradients(fake_B, fakes).mean()
            loss = loss + constraint.gamma / 2 * (both[0] + both[1])
        case R1R2Constraint():
            # γ/2 of each kind's mean: γ of the mean over both.
            loss = loss + constraint.gamma * squared_gradients(value_B, pictures).mean()
        case _:
            pass
    discriminator.zero_gradients()
    # Only the weights: pictures that want a gradient of their own need not gather this one.
    loss.backward(inputs=discriminator.parameters)
    return loss


def _discriminate_by_chain(
    chain: ManualMLP, reals: Tensor, fakes: Tensor, training: Training
) -> Tensor:
    """Do the same as `_discriminate` with the passes that perceptrons have written out."""
    outputs = chain.forward(torch.cat([reals.flatten(1), fakes.flatten(1)]))
    value_B1 = outputs[-1].requires_grad_()
    loss = loss_of(training.loss).discriminator(*value_B1.squeeze(1).chunk(2))
    (gradient,) = torch.autograd.grad(loss, value_B1)
    chain.backward(outputs, gradient, weights=True, inputs=False)
    return loss


def _joined(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return two batches as one; None where one of them is missing."""
    return None if one is None or other is None else torch.cat([one, other])


def _penalty_between(pair: Pair, batch: Batch, fakes: Tensor, noise: Noise) -> Tensor:
    """Return the gradient penalty at points between real and fake pictures."""
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
    """Update the generator; return its loss before that.

    It minimises the run's loss, or an objective of its own.
    """
    chains = pair.generator.network.chain, pair.discriminator.network.chain
    with seeded(noise.seed, *_devices(pair)):
        if chains[0] is not None and chains[1] is not None and noise.fake_changes is None:
            loss = _generate_by_chain(chains[0], chains[1], batch, noise, training, objective)
        else:
            loss = _generate(pair, batch, noise, training, objective)
    _adam(pair.generator, training)
    return loss.detach()


def _generate(
    pair: Pair, batch: Batch, noise: Noise, training: Training, objective: Objective | None
) -> Tensor:
    """Return the generator's loss, after gathering its gradient by autograd."""
    pair.generator.zero_gradients()
    network, labels_B = pair.discriminator.network, batch.labels_B
    drawn = pair.generator.network(noise.z_BZ, _beside(noise.z_BZ, labels_B))
    fakes = _augmented(drawn.to(batch.pictures.device), noise.fake_changes)
    reals = _seen(network, batch, noise) if loss_of(training.loss).needs_real else None
    return _judged_fakes(pair, reals, network.observe(fakes), labels_B, noise, training, objective)


def _judged_fakes(
    pair: Pair,
    reals: Tensor | None,
    fakes: Tensor,
    labels_B: Tensor | None,
    noise: Noise,
    training: Training,
    objective: Objective | None,
) -> Tensor:
    """Return the generator's loss from what the discriminator sees, and gather its gradient."""
    network = pair.discriminator.network
    # The discriminator passes the gradient on but learns nothing: its weights want none.
    network.requires_grad_(requires_grad=False)
    fake_B = network(fakes, noise.fake_factors_BW, labels_B)
    real_B = fake_B
    if reals is not None and loss_of(training.loss).needs_real:
        real_B = network(reals, noise.real_factors_BW, labels_B)
    loss = _loss_of_generator(training, objective, fake_B, real_B)
    loss.backward()
    network.requires_grad_(requires_grad=True)
    return loss


def _generate_by_chain(
    generator: ManualMLP,
    discriminator: ManualMLP,
    batch: Batch,
    noise: Noise,
    training: Training,
    objective: Objective | None,
) -> Tensor:
    """Do the same as `_generate` with the passes that perceptrons have written out."""
    drawn = generator.forward(noise.z_BZ)
    judged = discriminator.forward(drawn[-1].to(batch.pictures.device))
    fake_B1 = real_B1 = judged[-1].requires_grad_()
    if loss_of(training.loss).needs_real:
        reals = _augmented(batch.pictures, noise.real_changes)
        real_B1 = discriminator.forward(reals.flatten(1))[-1]
    loss = _loss_of_generator(training, objective, fake_B1.squeeze(1), real_B1.squeeze(1))
    (gradient,) = torch.autograd.grad(loss, fake_B1)
    by_pictures = discriminator.backward(judged, gradient, weights=False, inputs=True)
    assert by_pictures is not None
    by_drawn = by_pictures.to(noise.z_BZ.device)
    generator.backward(drawn, by_drawn, weights=True, inputs=False)
    return loss


def _loss_of_generator(
    training: Training, objective: Objective | None, fake_B: Tensor, real_B: Tensor
) -> Tensor:
    """Return the loss that the generator minimises: the objective's if it has one."""
    if objective is None:
        return loss_of(training.loss).of_generator(real_B, fake_B)
    return objective_loss(objective, fake_B)


def _augmented(pictures: Tensor, changes: AugmentParams | None) -> Tensor:
    return pictures if changes is None else augment(pictures, changes)


def _step_discriminator(discriminator: Individual[Discriminator], training: Training) -> None:
    """Take an Adam step, then cut the weights where the constraint says so."""
    _adam(discriminator, training)
    if isinstance(training.constraint, ClipConstraint):
        clip_(clippable(discriminator.network), training.constraint.bound)


def _adam(
    individual: Individual[Generator] | Individual[Discriminator], training: Training
) -> None:
    individual.adam_step(beta1=training.optimiser.beta1, beta2=training.optimiser.beta2)
