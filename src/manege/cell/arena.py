"""A round's contests: every generator against every discriminator, on common samples.

Fitness is a loss, lower is fitter, and always binary cross-entropy on logits, whatever an
individual trains with: else fitnesses would not compare. All networks run in eval mode; nothing
is learnt here.

Shape legend: G generators, D discriminators, N samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from manege.cell.step import Pair
from manege.config import Fitness

_CHUNK = 200
"""Pictures judged at once: a bound on memory. Another one gives other bits."""


class Arena:
    """Real pictures and latents of one round, and what the gathered individuals make of them."""

    def __init__(
        self,
        judge: Pair,
        reals: Tensor,
        z_NZ: Tensor,
        generators: Sequence[np.ndarray],
        discriminators: Sequence[np.ndarray],
    ) -> None:
        """Hold all contests.

        Args:
            judge: a pair of the same layout, to be overwritten with each record in turn.
            reals: N pictures in [-1, 1], where the judge's discriminator is.
            z_NZ: the latents, where its generator is.
            generators: records.
            discriminators: records.
        """
        self._judge = judge
        self._device = reals.device
        self._z_NZ = z_NZ
        self._discriminators = discriminators
        self._drawn = [self._drawn_by(record) for record in generators]
        # Seen once: on features every further discriminator costs its heads alone.
        self._reals, *self._fakes = (self._seen(pictures) for pictures in (reals, *self._drawn))
        sets = [self._reals, *self._fakes]
        judged = [self._logits(record, sets) for record in discriminators]
        self.generator_losses_GD = np.array([_generator_losses(fakes) for _, *fakes in judged]).T
        """The generators' losses: how far each discriminator is from taking their pictures."""
        self.discriminator_losses_DG = np.array([_discriminator_losses(one) for one in judged])

    def generator_against_all(self, record: np.ndarray) -> np.ndarray:
        """Return a newcomer's losses against each of the gathered discriminators."""
        fakes = [self._seen(self._drawn_by(record))]
        rows = [_generator_losses(self._logits(one, fakes)) for one in self._discriminators]
        return np.concatenate(rows)

    def discriminator_against_all(self, record: np.ndarray) -> np.ndarray:
        """Return a newcomer's losses against each of the gathered generators."""
        return np.array(_discriminator_losses(self._logits(record, [self._reals, *self._fakes])))

    def diversity(self) -> float:
        """Return how far two gathered generators' pictures of one latent lie apart on average."""
        flat = [fakes.flatten(1) for fakes in self._drawn]
        apart = [
            float((one - other).norm(dim=1).mean())
            for number, one in enumerate(flat)
            for other in flat[:number]
        ]
        return sum(apart) / len(apart) if apart else 0.0

    @torch.no_grad()
    def _drawn_by(self, record: np.ndarray) -> Tensor:
        """Return the pictures that a generator draws at the common latents."""
        generator = self._judge.generator
        generator.load(record)
        generator.network.eval()
        drawn = torch.cat([generator.network(z_BZ) for z_BZ in self._z_NZ.split(_CHUNK)])
        return drawn.to(self._device)

    @torch.no_grad()
    def _seen(self, pictures: Tensor) -> Tensor:
        """Return what discriminators see of pictures; all of them see the same."""
        network = self._judge.discriminator.network
        if not network.sees_features:
            return pictures
        return torch.cat([network.observe(part) for part in pictures.split(_CHUNK)])

    @torch.no_grad()
    def _logits(self, record: np.ndarray, sets: Sequence[Tensor]) -> list[Tensor]:
        """Return a discriminator's logits of some sets of pictures; no batch holds two sets."""
        discriminator = self._judge.discriminator
        discriminator.load(record)
        discriminator.network.eval()
        return [
            torch.cat([discriminator.network(part) for part in pictures.split(_CHUNK)])
            for pictures in sets
        ]


def _generator_losses(fakes: Sequence[Tensor]) -> list[float]:
    """Return a generator's loss against each discriminator, from the logits of its pictures."""
    return [_mean(F.softplus(-fake_N)) for fake_N in fakes]


def _discriminator_losses(real_and_fakes: Sequence[Tensor]) -> list[float]:
    """Return a discriminator's loss against each generator, from its logits."""
    """Return a generator's loss against each discriminator, from the logits of its pictures."""
    real_N, *fakes = real_and_fakes
    real = _mean(F.softplus(-real_N))
    return [real + _mean(F.softplus(fake_N)) for fake_N in fakes]


def fitness(losses_AO: np.ndarray, kind: Fitness) -> np.ndarray:
    """Return the fitness of A individuals from their losses against O opponents.

    The lowest is the fittest. Where a loss is no number, the fitness is infinite.
    """
    match kind:
        case Fitness.AVERAGE:
            value = losses_AO.mean(-1)
        case Fitness.BEST:
            value = losses_AO.min(-1)
        case Fitness.WORST:
            value = losses_AO.max(-1)
    return np.where(np.isfinite(value), value, np.inf)


def _mean(values_N: Tensor) -> float:
    return float(values_N.double().mean())
