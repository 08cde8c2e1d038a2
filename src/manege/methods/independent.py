"""Cells that never hear of each other: a pair for each label, or one pair for all the data.

- per-class (Lupo Pasini & Yin): a cell is a label, its data are the label's pictures;
- single: one cell, all pictures, labels unseen: what a plain GAN makes of them;
- conditional: one cell, all pictures, the networks are told the labels.

A round is one pass over a cell's pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Self

import numpy as np
import torch

from manege.cell import (
    Batch,
    CellState,
    Gauge,
    Judgement,
    Noise,
    Scorer,
    adapted,
    collapse,
    generator_with,
    new_state,
    noises_in_step,
    overfitting,
    probes,
    round_trouble,
    step_trouble,
    train_step,
)
from manege.config import AdaptiveAugment, RunConfig, stream
from manege.data import Dataset
from manege.device import Devices, both
from manege.methods.method import Inbox, Step, Timer
from manege.methods.shares import Shares
from manege.models import FrozenFeatures, generate, to_floats

NOBODY: Inbox = {}


class Independent:
    """One generator/discriminator pair for each part of the data."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        on: torch.device | Devices,
        timer: Timer,
        scorer: Scorer | None = None,
        gauge: Gauge | None = None,
        features: FrozenFeatures | None = None,
    ) -> None:
        self._config = config
        self._devices = both(on)
        self._timer = timer
        self._scorer = scorer
        self._gauge = gauge
        self._shares = Shares(config, dataset, self._devices.discriminator, features)

    def cells(self) -> tuple[str, ...]:
        """All cells' keys, those with most pictures first."""
        return self._shares.cells()

    def warm(self) -> None:
        """Load the pictures that several cells see."""
        self._shares.warm()

    def moved(self, on: Devices) -> Self:
        """The same with its networks on other devices; what was loaded is shared."""
        other = copy(self)
        other._devices, other._shares = on, self._shares.moved(on.discriminator)
        return other

    def init(self, cell: str) -> CellState:
        """The untrained cell."""
        shares = self._shares
        return new_state(
            self._config, cell, shares.shape, self._devices, shares.num_labels, shares.features
        )

    def data_digest(self, cell: str) -> str:
        """Digest of the pictures a cell trains on."""
        return self._shares.digest(cell)

    def steps_in_round(self, cell: str) -> int:
        """Generator updates in one round."""
        return -(-self._shares.batches_in_round(cell) // self._config.training.n_critic)

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Every cell for itself."""
        return tuple((cell,) for cell in self.cells())

    def waits(self) -> bool:
        """There is nobody to wait for."""
        return True

    def around(self) -> dict[str, tuple[str, ...]]:
        """Nobody is around anybody."""
        return dict.fromkeys(self.cells(), ())

    def neighbours(self, cell: str, round_: int) -> tuple[str, ...]:
        """Nobody."""
        return ()

    def advance(self, cell: str, state: CellState, inbox: Inbox = NOBODY) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end; again from its start if it fails."""
        training, steps = self._config.training, self.steps_in_round(cell)
        if training.attempts > 1:
            state.remember()
        while True:
            images = self._train(cell, state)
            done, round_, spread = state.step, state.round_ + 1, 0.0
            trouble = step_trouble(state)
            if trouble is None and done == steps and training.attempts > 1:
                with self._timer("watch"):
                    spread = self._shares.spread(cell, state.pair.generator.network)
                real_spread = self._shares.real_spread(cell)
                trouble = round_trouble(state, steps) or collapse(state, spread, real_spread)
            if trouble is not None:
                state.roll_back()
                yield Step(round_, done, steps, images, trouble=trouble)
            elif done < steps:
                yield Step(round_, done, steps, images)
            else:
                yield self._end_round(cell, state, images, spread)
                return

    def _train(self, cell: str, state: CellState) -> int:
        """One step; the number of real pictures it saw."""
        training = self._config.training
        reals, noise = self._inputs(cell, state)
        with self._timer("train"):
            state.loss_sums += train_step(state.pair, reals, noise, training)
            state.average(training.ema)
        state.step += 1
        augment = training.augment
        # Counted from the first round on: a round may be shorter than the interval.
        steps = state.round_ * self.steps_in_round(cell) + state.step
        if isinstance(augment, AdaptiveAugment) and steps % augment.every_steps == 0:
            with self._timer("watch"):
                state.overfit = self._overfitting(cell, state)
                state.augment = adapted(state.augment, state.overfit, augment)
        return sum(len(batch.pictures) for batch in reals)

    def _end_round(self, cell: str, state: CellState, images: int, spread: float) -> Step:
        """The round's last step, the generator judged if it is to be."""
        steps = state.step
        discriminator, generator = (state.loss_sums / steps).tolist()
        state.end_round(spread)
        judgement = self.judge(cell, state) if self.judges_now(state) else None
        if judgement is not None:
            state.keep_if_better(judgement)
        indices = None
        if self._gauge is not None and self._gauge.due(
            state.round_, self._shares.images_in_round(cell)
        ):
            with self._timer("indices"):
                network = state.pair.generator.network
                indices = self._shares.indices(cell, state, network, self._gauge)
        adapts = isinstance(self._config.training.augment, AdaptiveAugment)
        return Step(
            state.round_,
            steps,
            steps,
            images,
            losses={"discriminator": discriminator, "generator": generator},
            judgement=judgement,
            spread=spread or None,
            augment={"chance": state.augment, "overfit": state.overfit} if adapts else None,
            indices=indices,
        )

    def judges_now(self, state: CellState) -> bool:
        """Whether `advance` has judged this very state, at the end of a round."""
        ended = state.round_ > 0 and state.step == 0
        return ended and state.round_ % self._config.score.every_rounds == 0

    def judge(self, cell: str, state: CellState) -> Judgement | None:
        """The scores of the cell's generator as it stands; None when training keeps no score."""
        if self._scorer is None:
            return None
        scores = {}
        with self._timer("score"):
            for which, body in state.bodies().items():
                generator = generator_with(
                    self._config.networks, self._shares.shape, body, self._shares.num_labels
                )
                # The same latents each time: what changes the score is the generator alone.
                drawn = self._shares.draw(cell, generator, "score", self._config.score.samples)
                scores[which] = self._scorer.score(cell, drawn)
        return Judgement(state.round_, scores)

    def sheet(self, cell: str, state: CellState) -> np.ndarray:
        """Pictures of the cell at latents that never change over a run."""
        return self._shares.sheet(cell, state.pair.generator.network)

    def _overfitting(self, cell: str, state: CellState) -> float:
        shares, share = self._shares, self._shares.of(cell)
        kept = probes(share.kept_pictures, share.kept_labels)
        rng = stream(self._config.seed, cell=cell, purpose="probes")
        rows = torch.from_numpy(rng.permutation(share.count)[: len(kept.pictures)])
        trained = Batch(share.pictures[rows], None if share.labels is None else share.labels[rows])
        z_BZ = rng.standard_normal(
            (len(kept.pictures), state.pair.generator.network.latent), dtype=np.float32
        )
        labels = None if kept.labels_B is None else kept.labels_B.numpy()
        drawn = torch.from_numpy(generate(state.pair.generator.network, z_BZ, labels))
        batches = (trained, kept, Batch(drawn, kept.labels_B))
        return overfitting(
            state.pair,
            *(
                Batch(to_floats(one.pictures.to(shares.device)), shares.on_device(one.labels_B))
                for one in batches
            ),
        )

    def _inputs(self, cell: str, state: CellState) -> tuple[list[Batch], list[Noise]]:
        """The real batches and the noise of the next step, functions of the cell's place alone."""
        n_critic = self._config.training.n_critic
        with self._timer("data"):
            streams = self._shares.streams(cell, state)
            first = state.step * n_critic
            reals = self._shares.reals(cell, state, range(first, first + n_critic), streams)
            size = len(reals[0].pictures)
            passes = noises_in_step(state.pair, self._config.training)
            noise = [self._shares.noise(cell, state, size, streams) for _ in range(passes)]
        return reals, noise
