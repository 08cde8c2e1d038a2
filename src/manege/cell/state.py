"""A cell's state: its pair and where it stands; everything a commit holds.

At every moment a method yields, this is complete: a state taken apart into arrays and put
together again goes on with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manege.cell.centre import Centre
from manege.cell.individual import Individual
from manege.cell.score import Best, Judgement, WeightsKind
from manege.cell.step import Pair
from manege.cell.trail import Trail
from manege.config import RunConfig, SpectralConstraint, Training, stream
from manege.device import Devices, both
from manege.models import (
    FrozenFeatures,
    Generator,
    PictureShape,
    Spec,
    build_discriminator,
    build_feature_discriminator,
    build_generator,
    fill,
    initialise,
    tensors_in,
)

_RAMP = 9
"""The average forgets its beginning: update n weighs at least 9 / (9 + n)."""


@dataclass(frozen=True)
class Snapshot:
    """What a round began with, so that it can begin again."""

    arrays: dict[str, np.ndarray]
    """Copies of all that training changes."""
    averaged: int
    augment: float
    overfit: float
    """The counters of the state that training changes, as they were then."""


@dataclass
class CellState:
    """One pair in training and where it stands: all that its cell's commits hold."""

    pair: Pair
    round_: int = 0
    """Rounds completed; round `round_ + 1` is under way when `step` is not 0."""
    step: int = 0
    """Steps done of the round under way."""
    attempt: int = 0
    """How often the round under way broke down and was begun again."""
    loss_sums: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    """Sums over the steps of the round under way: the discriminator's, the generator's."""
    ema: Tensor | None = None
    """Running average of the generator's weights and buffers, where one is kept."""
    averaged: int = 0
    """Updates that are in the average."""
    best: Best | None = None
    """The generator that scored best so far, where there is a scorer."""
    widest: float = 0.0
    """The largest spread that samples had at the end of a round."""
    augment: float = 0.0
    """The chance of each kind of change to a picture."""
    overfit: float = 0.0
    """How much the discriminator overfits, as last measured on pictures kept out of training."""
    trail: Trail = field(default_factory=Trail)
    """Where the generator has been, at the ends of the last rounds; on a grid the centre."""
    snapshot: Snapshot | None = None
    """What the round under way began with, where it may be begun again."""
    began: tuple[float, float] | None = None
    """The norms of the generator's and the discriminator's weights when the round began."""

    @property
    def sheet_step(self) -> int:
        """Steps of the round under way that the generator on a sheet has taken: all of them."""
        return self.step

    @torch.no_grad()
    def average(self, decay: float) -> None:
        """Add the generator as it is now to the running average, if one is kept."""
        if self.ema is not None:
            kept = min(decay, self.averaged / (self.averaged + _RAMP))
            self.ema.lerp_(self.pair.generator.body, 1 - kept)
            self.averaged += 1

    def remember(self) -> None:
        """Keep what the round begins with; one that is under way has kept it already."""
        if self.step == 0:
            arrays = {name: array.copy() for name, array in self._changing().items()}
            self.snapshot = Snapshot(arrays, self.averaged, self.augment, self.overfit)
            self.begin()

    def begin(self) -> None:
        """Note how large the weights are as a round begins."""
        self.began = self._norms()

    def roll_back(self) -> None:
        """Begin the round again, on another attempt."""
        self.attempt += 1
        self.step = 0
        self.loss_sums.zero_()
        if self.snapshot is not None:
            self._take(self.snapshot.arrays)
            self.averaged = self.snapshot.averaged
            self.augment, self.overfit = self.snapshot.augment, self.snapshot.overfit

    def end_round(self, spread: float) -> None:
        """Count the round as done, and remember how far apart its samples lay."""
        self.round_ += 1
        self.step = self.attempt = 0
        self.loss_sums.zero_()
        self.widest = max(self.widest, spread)
        self.snapshot = self.began = None

    def growth(self) -> float:
        """Return how many times larger a network's weights have become since the round began."""
        if self.began is None:
            return 1.0
        return max(now / before for now, before in zip(self._norms(), self.began, strict=True))

    def _norms(self) -> tuple[float, float]:
        """Return the norms of the generator's and the discriminator's weights."""
        pair = self.pair
        return float(pair.generator.weights.norm()), float(pair.discriminator.weights.norm())

    def bodies(self) -> dict[WeightsKind, Tensor]:
        """Return every set of weights the generator has, with its buffers."""
        raw = {WeightsKind.RAW: self.pair.generator.body}
        return raw if self.ema is None else raw | {WeightsKind.EMA: self.ema}

    def keep_if_better(self, judgement: Judgement) -> None:
        """Remember the judged generator as the best, if it scores better than any before."""
        score = judgement.best()
        if isnan(score["value"]):
            return
        if self.best is None or score["value"] < self.best.score["value"]:
            body = self.bodies()[judgement.chosen]
            self.best = Best(body.detach().cpu().numpy().copy(), score)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all of the state but its counters, as numpy arrays."""
        good = {} if self.snapshot is None or not self.step else self.snapshot.arrays
        return {
            **self._changing(),
            "loss_sums": self.loss_sums.cpu().numpy(),
            **({} if self.best is None else {"best": self.best.body}),
            **self.trail.to_arrays(),
            **{f"good {name}": array for name, array in good.items()},
        }

    def is_finite(self) -> bool:
        """Return whether no weight, moment or loss is NaN or infinite."""
        parts = (
            self.pair.generator.record,
            self.pair.discriminator.record,
            self.loss_sums,
            *self.bodies().values(),
        )
        return all(bool(torch.isfinite(part).all()) for part in parts)

    def counters(self) -> dict[str, Any]:
        """Return what `to_arrays` leaves out, as JSON knows it."""
        return {
            "round": self.round_,
            "step": self.step,
            "attempt": self.attempt,
            "averaged": self.averaged,
            "best": None if self.best is None else self.best.score,
            "widest": self.widest,
            "augment": self.augment,
            "overfit": self.overfit,
            "trail": self.trail.gauge,
            "began": self.began if self.step > 0 else None,
            "good": (
                [self.snapshot.averaged, self.snapshot.augment, self.snapshot.overfit]
                if self.snapshot is not None and self.step > 0
                else None
            ),
        }

    def restore(self, arrays: Mapping[str, np.ndarray], counters: Mapping[str, Any]) -> None:
        """Become the state that these arrays and counters were taken from."""
        self._take(arrays)
        self.loss_sums.copy_(torch.from_numpy(arrays["loss_sums"].copy()))
        self.round_, self.step = int(counters["round"]), int(counters["step"])
        self.attempt = int(counters["attempt"])
        self.averaged = int(counters["averaged"])
        self.widest = float(counters["widest"])
        self.augment, self.overfit = float(counters["augment"]), float(counters["overfit"])
        # Commits of earlier versions have none.
        self.trail = Trail.of(arrays, str(counters.get("trail", "")))
        began = counters["began"]
        self.began = None if began is None else (float(began[0]), float(began[1]))
        self.best = self.snapshot = None
        if counters["best"] is not None:
            self.best = Best(arrays["best"], dict(counters["best"]))
        if counters["good"] is not None:
            averaged, augment, overfit = counters["good"]
            kept = {name: arrays[f"good {name}"] for name in self._changing()}
            self.snapshot = Snapshot(kept, int(averaged), float(augment), float(overfit))

    def centres(self) -> tuple[Centre, ...]:
        """Return no centre: whoever trains a pair alone has no neighbours."""
        return ()

    def _changing(self) -> dict[str, np.ndarray]:
        """Return the arrays that training changes; on a CPU they are views."""
        return {
            "generator": self.pair.generator.to_numpy(),
            "discriminator": self.pair.discriminator.to_numpy(),
            **({} if self.ema is None else {"ema": self.ema.cpu().numpy()}),
        }

    def _take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over the arrays that training changes."""
        self.pair.generator.load(arrays["generator"])
        self.pair.discriminator.load(arrays["discriminator"])
        if self.ema is not None:
            self.ema.copy_(torch.from_numpy(arrays["ema"]))


def new_state(
    config: RunConfig,
    cell: str,
    shape: PictureShape,
    on: torch.device | Devices,
    num_labels: int = 0,
    features: FrozenFeatures | None = None,
) -> CellState:
    """Return the untrained state of a cell, a function of the seed and the cell's key."""
    pair = new_pair(
        config.networks,
        shape,
        config.training,
        on,
        stream(config.seed, cell=cell, purpose="init generator"),
        stream(config.seed, cell=cell, purpose="init discriminator"),
        num_labels,
        features,
    )
    return CellState(
        pair,
        # Both losses come from the discriminator.
        loss_sums=torch.zeros(2, dtype=torch.float64, device=both(on).discriminator),
        ema=pair.generator.body.clone() if config.training.ema else None,
    )


def generator_with(spec: Spec, shape: PictureShape, body: Tensor, num_labels: int = 0) -> Generator:
    """Build a generator that reads its weights and buffers from `body`, without a copy."""
    generator = build_generator(spec, shape, num_labels)
    fill(generator, tensors_in(generator, body))
    return generator


def new_pair(
    spec: Spec,
    shape: PictureShape,
    training: Training,
    on: torch.device | Devices,
    generator_rng: np.random.Generator,
    discriminator_rng: np.random.Generator,
    num_labels: int = 0,
    features: FrozenFeatures | None = None,
) -> Pair:
    """Build an untrained pair, on one device or each network on its own.

    With `features` the discriminator is heads on them, instead of the one that `spec` has.
    """
    devices = both(on)
    generator = Individual(build_generator(spec, shape, num_labels), devices.generator)
    spectral = isinstance(training.constraint, SpectralConstraint)
    if features is None:
        judge = build_discriminator(spec, shape, num_labels, spectral=spectral)
    else:
        there = features.to(devices.discriminator)
        judge = build_feature_discriminator(there, num_labels, spectral=spectral)
    discriminator = Individual(judge, devices.discriminator)
    initialise(generator.network, generator_rng)
    initialise(discriminator.network, discriminator_rng)
    generator.set_learning_rate(training.optimiser.generator_lr)
    discriminator.set_learning_rate(training.optimiser.discriminator_lr)
    return Pair(generator, discriminator)
