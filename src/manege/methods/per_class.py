"""The per-class method (Lupo Pasini & Yin): one pair a label, no communication.

A cell is a label: its data are the label's pictures, its neighbours nobody. A round is one pass
over those pictures.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from manege.cell import (
    CellState,
    Judgement,
    Noise,
    Scorer,
    Streams,
    draw_noise,
    generator_with,
    new_state,
    train_step,
)
from manege.config import RunConfig, stream
from manege.data import Dataset, Split, batch_at, batches_in, round_order
from manege.methods.method import Step, Timer
from manege.models import PictureShape, generate, to_floats

_CHUNK = 64
"""Pictures drawn at once for a score."""


class PerClass:
    """One generator/discriminator pair for each label."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        timer: Timer,
        scorer: Scorer | None = None,
    ) -> None:
        self._config = config
        self._dataset = dataset
        self._device = device
        self._timer = timer
        self._scorer = scorer
        self._shape = PictureShape(dataset.size, dataset.channels)
        self._opened: dict[str, Tensor] = {}

    def cells(self) -> tuple[str, ...]:
        """All cells' keys: the labels, those with most pictures first."""
        sizes = {one.label: one.train for one in self._dataset.classes}
        return tuple(sorted(sizes, key=lambda label: -sizes[label]))

    def init(self, cell: str) -> CellState:
        """The untrained cell."""
        return new_state(self._config, cell, self._shape, self._device)

    def data_digest(self, cell: str) -> str:
        """Digest of the pictures a cell trains on."""
        return self._dataset.digest(cell, Split.TRAIN)

    def steps_in_round(self, cell: str) -> int:
        """Generator updates in one round."""
        training = self._config.training
        batches = training.batches_per_round or batches_in(
            len(self._pictures(cell)), training.batch
        )
        return -(-batches // training.n_critic)

    def advance(self, cell: str, state: CellState) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end."""
        round_ = state.round_ + 1
        pictures = self._pictures(cell)
        order = round_order(
            len(pictures), seed=self._config.seed, cell=cell, round_=round_, attempt=state.attempt
        )
        steps = self.steps_in_round(cell)
        while True:
            reals, noise = self._inputs(cell, state, pictures, order)
            with self._timer("train"):
                state.loss_sums += train_step(state.pair, reals, noise, self._config.training)
                state.average(self._config.training.ema)
            state.step += 1
            images = sum(len(batch) for batch in reals)
            if state.step < steps:
                yield Step(round_, state.step, steps, images)
                continue
            # The one read from the device in a round.
            discriminator, generator = (state.loss_sums / steps).tolist()
            state.round_, state.step = round_, 0
            state.loss_sums.zero_()
            judgement = self.judge(cell, state) if self.judges_now(state) else None
            if judgement is not None:
                state.keep_if_better(judgement)
            yield Step(
                round_,
                steps,
                steps,
                images,
                losses={"discriminator": discriminator, "generator": generator},
                judgement=judgement,
            )
            return

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
            # The same latents each time: what changes the score is the generator alone.
            rng = stream(self._config.seed, cell=cell, purpose="score")
            width = (self._config.score.samples, state.pair.generator.network.latent)
            z_NZ = rng.standard_normal(width, dtype=np.float32)
            for which, body in state.bodies().items():
                generator = generator_with(self._config.networks, self._shape, body)
                drawn = [
                    generate(generator, z_NZ[k : k + _CHUNK]) for k in range(0, len(z_NZ), _CHUNK)
                ]
                scores[which] = self._scorer.score(cell, np.concatenate(drawn))
        return Judgement(state.round_, scores)

    def sheet(self, cell: str, state: CellState) -> np.ndarray:
        """Pictures of the cell at latents that never change over a run."""
        rng = stream(self._config.seed, cell=cell, purpose="sheet")
        generator = state.pair.generator.network
        width = (self._config.sheets.pictures, generator.latent)
        return generate(generator, rng.standard_normal(width, dtype=np.float32))

    def _pictures(self, cell: str) -> Tensor:
        """The label's pictures, opened once; no other label's files are touched."""
        if cell not in self._opened:
            pictures = self._dataset.pictures(cell, Split.TRAIN)
            self._opened[cell] = torch.from_numpy(pictures)
        return self._opened[cell]

    def _inputs(
        self, cell: str, state: CellState, pictures: Tensor, order: np.ndarray
    ) -> tuple[list[Tensor], list[Noise]]:
        """The real batches and the noise of the next step, functions of the cell's place alone."""
        training = self._config.training
        place = {"round_": state.round_ + 1, "step": state.step, "attempt": state.attempt}
        with self._timer("data"):
            first = state.step * training.n_critic
            reals = [
                to_floats(pictures[batch_at(order, first + k, training.batch)].to(self._device))
                for k in range(training.n_critic)
            ]
            streams = Streams(
                *(
                    stream(self._config.seed, cell=cell, purpose=purpose, **place)
                    for purpose in Streams._fields
                )
            )
            noise = [
                draw_noise(state.pair, len(reals[0]), streams, training)
                for _ in range(training.n_critic + 1)
            ]
        return reals, noise
