"""A cell's state: its pair and where it stands; everything a commit holds.

At every moment a method yields, this is complete: a state taken apart into arrays and put
together again goes on with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manege.cell.individual import Individual
from manege.cell.step import Pair
from manege.config import RunConfig, Training, stream
from manege.models import (
    PictureShape,
    Spec,
    build_discriminator,
    build_generator,
    initialise,
)


@dataclass
class CellState:
    """One cell's centre and its place in time."""

    pair: Pair
    round_: int = 0
    """Rounds completed; round `round_ + 1` is under way when `step` is not 0."""
    step: int = 0
    """Steps done of the round under way."""
    attempt: int = 0
    """How often the watchdog rolled back."""
    loss_sums: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    """Over the steps of the round under way: discriminator's, generator's."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything but the counters, as numpy arrays."""
        return {
            "generator": self.pair.generator.to_numpy(),
            "discriminator": self.pair.discriminator.to_numpy(),
            "loss_sums": self.loss_sums.cpu().numpy(),
        }

    def is_finite(self) -> bool:
        """Whether no weight, moment or loss is NaN or infinite."""
        parts = (self.pair.generator.record, self.pair.discriminator.record, self.loss_sums)
        return all(bool(torch.isfinite(part).all()) for part in parts)

    def counters(self) -> dict[str, int]:
        """The rest."""
        return {"round": self.round_, "step": self.step, "attempt": self.attempt}

    def restore(self, arrays: Mapping[str, np.ndarray], counters: Mapping[str, Any]) -> None:
        """Become the state those two were taken from."""
        self.pair.generator.load(arrays["generator"])
        self.pair.discriminator.load(arrays["discriminator"])
        self.loss_sums.copy_(torch.from_numpy(arrays["loss_sums"].copy()))
        self.round_, self.step = int(counters["round"]), int(counters["step"])
        self.attempt = int(counters["attempt"])


def new_state(config: RunConfig, cell: str, shape: PictureShape, device: torch.device) -> CellState:
    """Centre 0 of a cell, a function of the seed and the cell's key."""
    pair = new_pair(
        config.networks,
        shape,
        config.training,
        device,
        stream(config.seed, cell=cell, purpose="init generator"),
        stream(config.seed, cell=cell, purpose="init discriminator"),
    )
    return CellState(pair, loss_sums=torch.zeros(2, dtype=torch.float64, device=device))


def new_pair(
    spec: Spec,
    shape: PictureShape,
    training: Training,
    device: torch.device,
    generator_rng: np.random.Generator,
    discriminator_rng: np.random.Generator,
) -> Pair:
    """An untrained pair."""
    generator = Individual(build_generator(spec, shape), device)
    discriminator = Individual(build_discriminator(spec, shape), device)
    initialise(generator.network, generator_rng)
    initialise(discriminator.network, discriminator_rng)
    generator.set_learning_rate(training.optimiser.generator_lr)
    discriminator.set_learning_rate(training.optimiser.discriminator_lr)
    return Pair(generator, discriminator)
