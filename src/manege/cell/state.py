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
from manege.cell.score import Best, Judgement, Weights
from manege.cell.step import Pair
from manege.config import RunConfig, SpectralConstraint, Training, stream
from manege.models import (
    Generator,
    PictureShape,
    Spec,
    build_discriminator,
    build_generator,
    fill,
    initialise,
    tensors_in,
)

_RAMP = 9
"""The average forgets its beginning: update n weighs at least 9 / (9 + n)."""


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
    ema: Tensor | None = None
    """Running average of the generator's weights and buffers, where one is kept."""
    averaged: int = 0
    """Updates that are in the average."""
    best: Best | None = None
    """The generator that scored best so far, where there is a scorer."""

    @torch.no_grad()
    def average(self, decay: float) -> None:
        """Take the generator as it is now into the average, if one is kept."""
        if self.ema is not None:
            kept = min(decay, self.averaged / (self.averaged + _RAMP))
            self.ema.lerp_(self.pair.generator.body, 1 - kept)
            self.averaged += 1

    def bodies(self) -> dict[Weights, Tensor]:
        """Every set of weights the generator has, with its buffers."""
        raw = {Weights.RAW: self.pair.generator.body}
        return raw if self.ema is None else raw | {Weights.EMA: self.ema}

    def keep_if_better(self, judgement: Judgement) -> None:
        """Remember the judged generator as the best, if it is."""
        told = judgement.best()
        if self.best is None or told["value"] < self.best.told["value"]:
            body = self.bodies()[judgement.chosen]
            self.best = Best(body.detach().cpu().numpy().copy(), told)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything but the counters, as numpy arrays."""
        return {
            "generator": self.pair.generator.to_numpy(),
            "discriminator": self.pair.discriminator.to_numpy(),
            "loss_sums": self.loss_sums.cpu().numpy(),
            **({} if self.ema is None else {"ema": self.ema.cpu().numpy()}),
            **({} if self.best is None else {"best": self.best.body}),
        }

    def is_finite(self) -> bool:
        """Whether no weight, moment or loss is NaN or infinite."""
        parts = (
            self.pair.generator.record,
            self.pair.discriminator.record,
            self.loss_sums,
            *self.bodies().values(),
        )
        return all(bool(torch.isfinite(part).all()) for part in parts)

    def counters(self) -> dict[str, Any]:
        """The rest."""
        return {
            "round": self.round_,
            "step": self.step,
            "attempt": self.attempt,
            "averaged": self.averaged,
            "best": None if self.best is None else self.best.told,
        }

    def restore(self, arrays: Mapping[str, np.ndarray], counters: Mapping[str, Any]) -> None:
        """Become the state those two were taken from."""
        self.pair.generator.load(arrays["generator"])
        self.pair.discriminator.load(arrays["discriminator"])
        self.loss_sums.copy_(torch.from_numpy(arrays["loss_sums"].copy()))
        self.round_, self.step = int(counters["round"]), int(counters["step"])
        self.attempt = int(counters["attempt"])
        self.averaged = int(counters["averaged"])
        if self.ema is not None:
            self.ema.copy_(torch.from_numpy(arrays["ema"]))
        if counters["best"] is not None:
            self.best = Best(arrays["best"], dict(counters["best"]))


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
    return CellState(
        pair,
        loss_sums=torch.zeros(2, dtype=torch.float64, device=device),
        ema=pair.generator.body.clone() if config.training.ema else None,
    )


def generator_with(spec: Spec, shape: PictureShape, body: Tensor) -> Generator:
    """A generator that reads its weights and buffers from `body`, which stays what it is."""
    generator = build_generator(spec, shape)
    fill(generator, tensors_in(generator, body))
    return generator


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
    spectral = isinstance(training.constraint, SpectralConstraint)
    discriminator = Individual(build_discriminator(spec, shape, spectral=spectral), device)
    initialise(generator.network, generator_rng)
    initialise(discriminator.network, discriminator_rng)
    generator.set_learning_rate(training.optimiser.generator_lr)
    discriminator.set_learning_rate(training.optimiser.discriminator_lr)
    return Pair(generator, discriminator)
