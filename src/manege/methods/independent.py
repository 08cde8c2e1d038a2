"""Cells that never hear of each other: a pair for each label, or one pair for all the data.

- per-class (Lupo Pasini & Yin): a cell is a label, its data are the label's pictures;
- single: one cell, all pictures, labels unseen: what a plain GAN makes of them;
- conditional: one cell, all pictures, the networks are told the labels.

A round is one pass over a cell's pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from manege.cell import (
    Batch,
    CellState,
    Judgement,
    Noise,
    Scorer,
    WeightsKind,
    adapted,
    generator_with,
    new_state,
    noises_in_step,
    overfitting,
    probes,
    train_step,
)
from manege.config import ALL, AdaptiveAugment, RunConfig, stream
from manege.methods.base import BaseMethod
from manege.methods.method import (
    Inbox,
    ModelPart,
    SavedCell,
    Scorers,
    Step,
    TrainedGenerator,
    partition_by,
)
from manege.models import generate, to_floats

NOBODY: Inbox = {}


class Independent(BaseMethod):
    """One generator/discriminator pair for each part of the data."""

    _scorer: Scorer | None

    @staticmethod
    def chosen_scorer(scorers: Scorers) -> Scorer | None:
        """Return what scores one cell's pictures; None when the run keeps no score."""
        return scorers.for_cells()

    @classmethod
    def draws_labels(cls, config: RunConfig, labels: tuple[str, ...]) -> bool:
        """Return whether every cell is a label's own, or the networks are told the labels."""
        parts = partition_by(cls.partition, config, labels)
        return cls.tells_labels(config) or all(own == (cell,) for cell, own in parts.items())

    @classmethod
    def components(
        cls,
        config: RunConfig,
        counts: Mapping[str, int],
        choice: Mapping[str, Any] | None,
        commits: Iterable[tuple[str, SavedCell]],
    ) -> list[ModelPart]:
        """Return a generator for each label; else one of each cell, and they draw all together.

        Each weighs as much as the pictures that it stands for.
        """
        labels, tells = tuple(counts), cls.tells_labels(config)
        parts = partition_by(cls.partition, config, labels)
        if not cls.draws_labels(config, labels):
            return [
                ModelPart(ALL, cell, float(sum(counts[label] for label in own)))
                for cell, own in parts.items()
            ]
        return [
            ModelPart(label, cell, float(counts[label]), own if tells else ())
            for cell, own in parts.items()
            for label in own
        ]

    @classmethod
    def trained(cls, config: RunConfig, part: ModelPart, commit: SavedCell) -> TrainedGenerator:
        """Return the generator that scored best, else the average, else the last."""
        kept, final = commit.meta["best"], commit.meta["final"]
        scored = [one for one in (kept, final) if one is not None]
        if not scored:
            which = WeightsKind.EMA if "ema" in commit.tensors else WeightsKind.RAW
            return TrainedGenerator(
                commit.tensors[_TENSORS[which]], commit.round_, which.value, None
            )
        best = min(scored, key=lambda one: one["value"])
        return TrainedGenerator(
            commit.tensors["best" if best == kept else _TENSORS[best["weights"]]],
            best["round"],
            best["weights"],
            {"metric": str(config.score.metric), **best},
        )

    def cells(self) -> tuple[str, ...]:
        """Return all cells' keys, those with most pictures first."""
        return self._shares.cells()

    def init(self, cell: str) -> CellState:
        """Return the state of an untrained cell."""
        shares = self._shares
        return new_state(
            self._config, cell, shares.shape, self._devices, shares.num_labels, shares.features
        )

    def steps_in_round(self, cell: str) -> int:
        """Return the number of generator updates in one round."""
        return -(-self._shares.batches_in_round(cell) // self._config.training.n_critic)

    def links(self) -> dict[str, tuple[str, ...]]:
        """Return nobody for every cell: none hears of another."""
        return dict.fromkeys(self.cells(), ())

    def neighbours(self, cell: str, round_: int) -> tuple[str, ...]:
        """Return nobody."""
        return ()

    def synchronous(self) -> bool:
        """Return True, for there is nobody to hurry past."""
        return True

    def combine(self, states: Iterable[tuple[str, CellState]]) -> None:
        """Choose nothing: every cell's generator draws."""

    def advance(self, cell: str, state: CellState, inbox: Inbox = NOBODY) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end; again from its start if it fails."""
        steps = self.steps_in_round(cell)
        if self._config.training.attempts > 1:
            state.remember()
        yield from self._attempts(
            cell,
            state,
            steps,
            train=lambda: self._train(cell, state),
            end=lambda images, spread: self._end_round(cell, state, images, spread),
        )

    def _train(self, cell: str, state: CellState) -> int:
        """Take one step, and return the number of real pictures it saw."""
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
        """End the round, judge the generator if its score is due, and return the last step."""
        steps = state.step
        discriminator, generator = (state.loss_sums / steps).tolist()
        state.end_round(spread)
        judgement = self.judge(cell, state) if self.judges_now(state) else None
        if judgement is not None:
            state.keep_if_better(judgement)
        indices = self._indices(cell, state, lambda: state.pair.generator.network)
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
        """Return whether `advance` has judged this very state, at the end of a round."""
        ended = state.round_ > 0 and state.step == 0
        return ended and state.round_ % self._config.score.every_rounds == 0

    def judge(self, cell: str, state: CellState) -> Judgement | None:
        """Return the scores of the cell's generator as it stands; None when none are kept."""
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
        """Return pictures of the cell at latents that never change over a run."""
        return self._shares.sheet(cell, state.pair.generator.network)

    def _overfitting(self, cell: str, state: CellState) -> float:
        """Return how far the discriminator knows its training pictures by heart, 0 to 1."""
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
        """Return the real batches and the noise of the next step.

        Both are functions of where the cell stands alone.
        """
        n_critic = self._config.training.n_critic
        with self._timer("data"):
            streams = self._shares.streams(cell, state)
            first = state.step * n_critic
            reals = self._shares.reals(cell, state, range(first, first + n_critic), streams)
            size = len(reals[0].pictures)
            passes = noises_in_step(state.pair, self._config.training)
            noise = [self._shares.noise(cell, state, size, streams) for _ in range(passes)]
        return reals, noise


_TENSORS = {WeightsKind.EMA: "ema", WeightsKind.RAW: "generator"}
"""Which array of a commit holds each set of a generator's weights."""
