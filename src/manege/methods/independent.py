"""Cells that never hear of each other: a pair for each label, or one pair for all the data.

- per-class (Lupo Pasini & Yin): a cell is a label, its data are the label's pictures;
- single: one cell, all pictures, labels unseen: what a plain GAN makes of them;
- conditional: one cell, all pictures, the networks are told the labels.

A round is one pass over a cell's pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from manege.cell import (
    Batch,
    CellState,
    Judgement,
    Noise,
    Scorer,
    Streams,
    adapted,
    draw_noise,
    generator_with,
    kept_out,
    new_state,
    overfitting,
    probes,
    round_trouble,
    spread_of,
    step_trouble,
    train_step,
)
from manege.config import AdaptiveAugment, RunConfig, partition, stream
from manege.config import Method as MethodName
from manege.data import Dataset, Split, batch_at, batches_in, round_order
from manege.methods.method import Step, Timer
from manege.models import Generator, PictureShape, generate, to_floats

_CHUNK = 64
"""Pictures drawn at once."""
_WATCHED = 32
"""Samples whose spread tells of a collapse."""


class Independent:
    """One generator/discriminator pair for each part of the data."""

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
        self._parts = partition(config.method, dataset.labels)
        conditional = config.method is MethodName.CONDITIONAL
        self._num_labels = len(dataset.labels) if conditional else 0
        self._opened: dict[str, _Part] = {}

    def cells(self) -> tuple[str, ...]:
        """All cells' keys, those with most pictures first."""
        counts = {one.label: one.train for one in self._dataset.classes}
        sizes = {cell: sum(counts[one] for one in labels) for cell, labels in self._parts.items()}
        return tuple(sorted(sizes, key=lambda cell: -sizes[cell]))

    def init(self, cell: str) -> CellState:
        """The untrained cell."""
        return new_state(self._config, cell, self._shape, self._device, self._num_labels)

    def data_digest(self, cell: str) -> str:
        """Digest of the pictures a cell trains on."""
        digests = [self._dataset.digest(label, Split.TRAIN) for label in self._parts[cell]]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def steps_in_round(self, cell: str) -> int:
        """Generator updates in one round."""
        training = self._config.training
        batches = training.batches_per_round or batches_in(self._part(cell).count, training.batch)
        return -(-batches // training.n_critic)

    def advance(self, cell: str, state: CellState) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end; again from its start if it fails."""
        training, steps = self._config.training, self.steps_in_round(cell)
        if training.attempts > 1:
            state.remember()
        while True:
            images = self._train(cell, state)
            done, round_, spread = state.step, state.round_ + 1, 0.0
            trouble = step_trouble(state)
            if trouble is None and done == steps and training.attempts > 1:
                spread = self._spread(cell, state)
                trouble = round_trouble(state, steps, spread, self._real_spread(cell))
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
                    self._config.networks, self._shape, body, self._num_labels
                )
                # The same latents each time: what changes the score is the generator alone.
                drawn = self._draw(cell, generator, "score", self._config.score.samples)
                scores[which] = self._scorer.score(cell, drawn)
        return Judgement(state.round_, scores)

    def sheet(self, cell: str, state: CellState) -> np.ndarray:
        """Pictures of the cell at latents that never change over a run."""
        count = self._config.sheets.pictures
        in_turn = np.sort(np.arange(count) % self._num_labels) if self._num_labels else None
        return self._draw(cell, state.pair.generator.network, "sheet", count, in_turn)

    def _draw(
        self,
        cell: str,
        generator: Generator,
        purpose: str,
        count: int,
        labels_N: np.ndarray | None = None,
    ) -> np.ndarray:
        """Pictures at latents that depend on the cell and the purpose alone.

        Their labels are as frequent as in the cell's data, with which scores compare them, unless
        some are given.
        """
        rng = stream(self._config.seed, cell=cell, purpose=purpose)
        z_NZ = rng.standard_normal((count, generator.latent), dtype=np.float32)
        labels = self._part(cell).labels
        if labels is not None and labels_N is None:
            rows = np.linspace(0, len(labels) - 1, count).astype(np.int64)
            labels_N = labels.numpy()[rows]  # They lie there label after label.
        chunks = [
            generate(
                generator,
                z_NZ[k : k + _CHUNK],
                None if labels_N is None else labels_N[k : k + _CHUNK],
            )
            for k in range(0, count, _CHUNK)
        ]
        return np.concatenate(chunks)

    def _spread(self, cell: str, state: CellState) -> float:
        with self._timer("watch"):
            drawn = self._draw(cell, state.pair.generator.network, "spread", _WATCHED)
            return spread_of(to_floats(torch.from_numpy(drawn)))

    def _real_spread(self, cell: str) -> float:
        part = self._part(cell)
        if part.spread is None:
            # Spread out over the part, which lies there class after class.
            rows = np.linspace(0, part.count - 1, _WATCHED).astype(np.int64)
            part.spread = spread_of(to_floats(part.pictures[torch.from_numpy(rows)]))
        return part.spread

    def _overfitting(self, cell: str, state: CellState) -> float:
        part = self._part(cell)
        kept = probes(part.kept_pictures, part.kept_labels)
        rng = stream(self._config.seed, cell=cell, purpose="probes")
        rows = torch.from_numpy(rng.permutation(part.count)[: len(kept.pictures)])
        trained = Batch(part.pictures[rows], None if part.labels is None else part.labels[rows])
        z_BZ = rng.standard_normal(
            (len(kept.pictures), state.pair.generator.network.latent), dtype=np.float32
        )
        labels = None if kept.labels_B is None else kept.labels_B.numpy()
        drawn = torch.from_numpy(generate(state.pair.generator.network, z_BZ, labels))
        batches = (trained, kept, Batch(drawn, kept.labels_B))
        return overfitting(
            state.pair,
            *(
                Batch(to_floats(one.pictures.to(self._device)), self._on_device(one.labels_B))
                for one in batches
            ),
        )

    def _part(self, cell: str) -> _Part:
        """The cell's pictures, opened once; no other cell's files are touched."""
        if cell not in self._opened:
            labels = self._parts[cell]
            blocks = [torch.from_numpy(self._dataset.pictures(one, Split.TRAIN)) for one in labels]
            numbers = [self._dataset.labels.index(one) for one in labels]
            self._opened[cell] = _Part(
                blocks,
                numbers if self._num_labels else None,
                keeps=isinstance(self._config.training.augment, AdaptiveAugment),
            )
        return self._opened[cell]

    def _inputs(self, cell: str, state: CellState) -> tuple[list[Batch], list[Noise]]:
        """The real batches and the noise of the next step, functions of the cell's place alone."""
        seed, training, part = self._config.seed, self._config.training, self._part(cell)
        place = {"round_": state.round_ + 1, "attempt": state.attempt}
        with self._timer("data"):
            order = part.order(seed, cell, **place)
            streams = Streams(
                *(
                    stream(seed, cell=cell, purpose=purpose, step=state.step, **place)
                    for purpose in Streams._fields
                )
            )
            first = state.step * training.n_critic
            reals = []
            for number in range(first, first + training.n_critic):
                rows = torch.from_numpy(batch_at(order, number, training.batch))
                pictures = to_floats(part.pictures[rows].to(self._device))
                if training.flip:
                    pictures = _flipped(pictures, streams.flips)
                labels = None if part.labels is None else part.labels[rows]
                reals.append(Batch(pictures, self._on_device(labels)))
            noise = [
                draw_noise(
                    state.pair,
                    len(reals[0].pictures),
                    streams,
                    training,
                    state.augment,
                    self._shape,
                )
                for _ in range(training.n_critic + 1)
            ]
        return reals, noise

    def _on_device(self, labels: Tensor | None) -> Tensor | None:
        return None if labels is None else labels.to(self._device)


class _Part:
    """A cell's share of the data: what it trains on, and what it keeps out to tell overfitting."""

    def __init__(self, blocks: list[Tensor], numbers: list[int] | None, *, keeps: bool) -> None:
        """From a block of pictures for each label, and the labels' numbers where they count."""
        # A class's pictures lie in the order of a hash, so its last ones are a fair sample.
        ends = [len(block) - (kept_out(len(block)) if keeps else 0) for block in blocks]
        trained = [block[:end] for block, end in zip(blocks, ends, strict=True)]
        kept = [block[end:] for block, end in zip(blocks, ends, strict=True)]
        self.pictures = _joined(trained)
        self.kept_pictures = _joined(kept)
        self.labels = _numbered(trained, numbers)
        self.kept_labels = _numbered(kept, numbers)
        self.spread: float | None = None
        self._order: tuple[tuple[int, int], np.ndarray] | None = None

    @property
    def count(self) -> int:
        """Pictures trained on."""
        return len(self.pictures)

    def order(self, seed: int, cell: str, *, round_: int, attempt: int) -> np.ndarray:
        """The order of a round, drawn once."""
        if self._order is None or self._order[0] != (round_, attempt):
            drawn = round_order(self.count, seed=seed, cell=cell, round_=round_, attempt=attempt)
            self._order = (round_, attempt), drawn
        return self._order[1]


def _joined(blocks: list[Tensor]) -> Tensor:
    """One block stays the mapped file it is."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _numbered(blocks: list[Tensor], numbers: list[int] | None) -> Tensor | None:
    if numbers is None:
        return None
    lengths = torch.tensor([len(block) for block in blocks])
    return torch.repeat_interleave(torch.tensor(numbers), lengths)


def _flipped(pictures_BCSS: Tensor, rng: np.random.Generator) -> Tensor:
    """About half of the pictures mirrored."""
    mirrored_B = torch.from_numpy(rng.random(len(pictures_BCSS)) < 0.5).to(pictures_BCSS.device)
    return torch.where(mirrored_B[:, None, None, None], pictures_BCSS.flip(3), pictures_BCSS)
