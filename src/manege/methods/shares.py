"""What every cell does with its share of the data: batches, noise, pictures at fixed latents.

A cell's share are the pictures of its labels, or a part of them drawn for it. Everything here is
a function of the seed, the cell's key and its place in time.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manege.cell import (
    Batch,
    CellState,
    Gauge,
    Noise,
    Streams,
    draw_noise,
    kept_out,
    spread_of,
)
from manege.config import (
    AdaptiveAugment,
    FewAugment,
    RunConfig,
    stream,
)
from manege.data import Dataset, Split, batch_at, batches_in, round_order
from manege.models import (
    FrozenFeatures,
    Generator,
    PictureShape,
    augment,
    draw_augmentation,
    generate,
    to_floats,
)

_CHUNK = 64
"""Pictures drawn at once."""
_WATCHED = 32
"""Samples whose spread tells of a collapse."""
MOST_SEEN_BYTES = 5 << 28
"""What a critic on features sees of real pictures is kept where a run's all fit into this; else it
is computed anew for each batch. A rule of the data alone: both ways may differ in the last bit."""
_SEEN_TOGETHER = 64
"""Pictures that are looked at together, always the same ones: another batch may give other bits."""


class Shares:
    """The shares of all cells, each opened when it is first needed."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        parts: Mapping[str, tuple[str, ...]],
        features: FrozenFeatures | None = None,
        *,
        tells_labels: bool = False,
    ) -> None:
        """Open no share yet.

        Args:
            config: the run's configuration.
            dataset: the pictures of all cells.
            device: where batches are wanted: that of the discriminators.
            parts: the labels that each cell sees the pictures of.
            features: what discriminators see of pictures; None for the pictures themselves.
            tells_labels: whether networks are told the label of each picture.
        """
        self.device = device
        self.features = features
        self.shape = PictureShape(dataset.size, dataset.channels)
        self.labels = dict(parts)
        self.num_labels = len(dataset.labels) if tells_labels else 0
        self._config = config
        self._fraction = 1.0 if config.cellular is None else config.cellular.data_fraction
        self.dataset = dataset
        self._pools: dict[tuple[str, ...], _Pool] = {}
        self._opened: dict[str, Share] = {}
        self._keeps_seen = features is not None and self._fits(features)

    def _fits(self, features: FrozenFeatures) -> bool:
        """Return whether what critics see of all real pictures may be kept in memory."""
        pools = set(self.labels.values())
        counts = {one.label: one.train for one in self.dataset.classes}
        rows = sum(
            self._versions(count) * count
            for labels in pools
            for count in [sum(counts[one] for one in labels)]
        )
        adapts = isinstance(self._config.training.augment, AdaptiveAugment)
        return not adapts and 4 * features.floats * rows <= MOST_SEEN_BYTES

    def _versions(self, count: int) -> int:
        """Return in how many forms each of so many real pictures is shown."""
        few = self._few(count)
        if few is not None:
            return few.versions
        return 2 if self._config.training.flip else 1

    def _few(self, count: int) -> FewAugment | None:
        """Return how so many pictures are augmented for being few; None where they are not."""
        augment = self._config.training.augment
        return augment if isinstance(augment, FewAugment) and count < augment.below else None

    def augment_of(self, cell: str, state: CellState) -> tuple[float, bool]:
        """Return the chance of each change to the cell's pictures, and whether holes are cut."""
        if not isinstance(self._config.training.augment, FewAugment):
            return state.augment, True
        few = self._few(len(self._pool(self.labels[cell]).pictures))
        return (0.0 if few is None else few.chance), False

    def to(self, device: torch.device) -> Self:
        """Return the same shares, with batches that come to another device."""
        other = copy(self)
        other.device = device
        return other

    def cells(self) -> tuple[str, ...]:
        """Return all cells' keys, those with most pictures first."""
        counts = {one.label: one.train for one in self.dataset.classes}
        sizes = {cell: sum(counts[one] for one in labels) for cell, labels in self.labels.items()}
        return tuple(sorted(sizes, key=lambda cell: -sizes[cell]))

    def digest(self, cell: str) -> str:
        """Return the digest of the pictures that the cell's share is taken from."""
        digests = [self.dataset.digest(label, Split.TRAIN) for label in self.labels[cell]]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def batches_in_round(self, cell: str) -> int:
        """Return how many real batches a round sees."""
        training = self._config.training
        return training.batches_per_round or batches_in(self.of(cell).count, training.batch)

    def of(self, cell: str) -> Share:
        """Return the cell's share, opened on first use; no other cell's files are touched."""
        if cell not in self._opened:
            pool = self._pool(self.labels[cell])
            rows = self._diet(cell, len(pool.pictures)) if self._fraction < 1 else None
            self._opened[cell] = Share(pool, rows)
        return self._opened[cell]

    def preload(self) -> None:
        """Load the pictures that several cells see."""
        for labels, cells in Counter(self.labels.values()).items():
            if cells > 1:
                self._pool(labels)

    def _pool(self, labels: tuple[str, ...]) -> _Pool:
        """Return the pictures of some labels; cells with the same labels share them."""
        if labels not in self._pools:
            blocks = [torch.from_numpy(self.dataset.pictures(one, Split.TRAIN)) for one in labels]
            numbers = [self.dataset.labels.index(one) for one in labels]
            self._pools[labels] = _Pool(
                blocks,
                numbers if self.num_labels else None,
                keeps=isinstance(self._config.training.augment, AdaptiveAugment),
            )
            if self.features is not None and self._keeps_seen:
                pool = self._pools[labels]
                count = len(pool.pictures)
                showing = self._showing(labels, count)
                pool.seen = SeenPictures(
                    self.features, pool.pictures, self._versions(count), showing
                )
        return self._pools[labels]

    def streams(self, cell: str, state: CellState) -> Streams:
        """Return the streams of the step that `state` is at; they stay that step's."""
        place = {"round_": state.round_ + 1, "step": state.step, "attempt": state.attempt}
        return Streams(
            lambda purpose: stream(self._config.seed, cell=cell, purpose=purpose, **place)
        )

    def reals(
        self, cell: str, state: CellState, numbers: Iterable[int], streams: Streams
    ) -> list[Batch]:
        """Return the real batches with these numbers of the round under way."""
        training, share = self._config.training, self.of(cell)
        order = share.order(self._config.seed, cell, round_=state.round_ + 1, attempt=state.attempt)
        reals = []
        for number in numbers:
            rows = torch.from_numpy(batch_at(order, number, training.batch))
            pictures = to_floats(share.pictures.index_select(0, rows).to(self.device))
            labels = None if share.labels is None else share.labels[rows]
            seen_BF = None
            if share.seen is not None:
                version_B = torch.from_numpy(
                    streams.flips.integers(share.seen.versions, size=len(rows))
                )
                seen_BF = share.seen.of(share.in_pool(rows), version_B).to(self.device)
            elif training.flip:
                pictures = _flipped(pictures, streams.flips)
            reals.append(Batch(pictures, self.on_device(labels), seen_BF))
        return reals

    def _showing(self, labels: tuple[str, ...], count: int) -> Callable[[Tensor, int, int], Tensor]:
        """Return what shows version v of pictures, given the row of the pool they begin at.

        `count` is how many pictures the pool has.
        """
        training, side, few = self._config.training, self.shape.size, self._few(count)

        def show(pictures: Tensor, start: int, version: int) -> Tensor:
            if few is None:
                return pictures.flip(3) if version else pictures
            rng = stream(
                self._config.seed,
                cell="\n".join(labels),
                purpose="versions",
                round_=version + 1,
                step=start,
            )
            if training.flip:
                pictures = _flipped(pictures, rng)
            changes = draw_augmentation(rng, len(pictures), side, few.chance, holes=False)
            return augment(pictures, changes)

        return show

    def noise(self, cell: str, state: CellState, batch: int, streams: Streams) -> Noise:
        """Draw the noise of one update."""
        chance, holes = self.augment_of(cell, state)
        return draw_noise(
            state.pair, batch, streams, self._config.training, chance, self.shape, holes=holes
        )

    def draw(
        self,
        cell: str,
        generator: Generator,
        purpose: str,
        count: int,
        *,
        round_: int = 0,
        labels_N: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draw pictures at latents that depend on the cell, the purpose and the round given alone.

        Their labels are as frequent as in the cell's data, with which scores compare them, unless
        some are given.
        """
        rng = stream(self._config.seed, cell=cell, purpose=purpose, round_=round_)
        z_NZ = rng.standard_normal((count, generator.latent), dtype=np.float32)
        labels = self.of(cell).labels
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

    def sheet(self, cell: str, generator: Generator) -> np.ndarray:
        """Draw pictures of the cell at latents that never change over a run."""
        count = self._config.sheets.pictures
        in_turn = np.sort(np.arange(count) % self.num_labels) if self.num_labels else None
        return self.draw(cell, generator, "sheet", count, labels_N=in_turn)

    def spread(self, cell: str, generator: Generator) -> float:
        """Return the mean distance between samples at latents that never change."""
        drawn = self.draw(cell, generator, "spread", _WATCHED)
        return spread_of(to_floats(torch.from_numpy(drawn)))

    def real_spread(self, cell: str) -> float:
        """Return the mean distance between as many real pictures."""
        share = self.of(cell)
        if share.spread is None:
            # Spread out over the share, which lies there class after class.
            rows = np.linspace(0, share.count - 1, _WATCHED).astype(np.int64)
            share.spread = spread_of(to_floats(share.pictures[torch.from_numpy(rows)]))
        return share.spread

    def images_in_round(self, cell: str) -> int:
        """Return how many training pictures a round looks at, repetitions counted."""
        return self.batches_in_round(cell) * self._config.training.batch

    def indices(
        self, cell: str, place: CellState, generator: Generator, gauge: Gauge
    ) -> dict[str, Any]:
        """Return the signs of collapse and cycling after a round, and add it to the trail."""
        images = self.images_in_round(cell)
        drawn = self.draw(cell, generator, "indices", gauge.samples(images))
        found, moments = gauge.measure(cell, drawn, place.trail.before(gauge))
        place.trail.add(gauge, moments)
        return found

    def on_device(self, labels: Tensor | None) -> Tensor | None:
        """Return labels on the discriminators' device."""
        return None if labels is None else labels.to(self.device)

    def _diet(self, cell: str, count: int) -> Tensor:
        """Draw the rows of the pictures that the cell sees, without replacement."""
        kept = max(1, round(self._fraction * count))
        rng = stream(self._config.seed, cell=cell, purpose="diet")
        return torch.from_numpy(np.sort(rng.permutation(count)[:kept]))


class _Pool:
    """Pictures of some labels: to train on, and kept out to tell overfitting."""

    def __init__(self, blocks: list[Tensor], numbers: list[int] | None, *, keeps: bool) -> None:
        """Join a block of pictures for each label, with the labels' numbers where they count.

        With `keeps` some pictures of each label are kept out of training.
        """
        # A class's pictures lie in the order of a hash, so its last ones are a fair sample.
        ends = [len(block) - (kept_out(len(block)) if keeps else 0) for block in blocks]
        trained = [block[:end] for block, end in zip(blocks, ends, strict=True)]
        kept = [block[end:] for block, end in zip(blocks, ends, strict=True)]
        self.pictures = _joined(trained)
        self.kept_pictures = _joined(kept)
        self.labels = _numbered(trained, numbers)
        self.kept_labels = _numbered(kept, numbers)
        self.seen: SeenPictures | None = None


class Share:
    """One cell's pictures, and their order in the round under way."""

    def __init__(self, pool: _Pool, rows: Tensor | None) -> None:
        """Take these rows of a pool; all of them when None."""
        self.pictures = pool.pictures if rows is None else pool.pictures[rows]
        self.labels = pool.labels if rows is None or pool.labels is None else pool.labels[rows]
        self.kept_pictures, self.kept_labels = pool.kept_pictures, pool.kept_labels
        self.seen, self._rows = pool.seen, rows
        self.spread: float | None = None
        self._order: tuple[tuple[int, int], np.ndarray] | None = None

    @property
    def count(self) -> int:
        """The number of pictures trained on."""
        return len(self.pictures)

    def in_pool(self, rows_B: Tensor) -> Tensor:
        """Return which rows of the pool some rows of the share are."""
        return rows_B if self._rows is None else self._rows[rows_B]

    def order(self, seed: int, cell: str, *, round_: int, attempt: int) -> np.ndarray:
        """Return the order of the pictures in a round, drawn once."""
        if self._order is None or self._order[0] != (round_, attempt):
            drawn = round_order(self.count, seed=seed, cell=cell, round_=round_, attempt=attempt)
            self._order = (round_, attempt), drawn
        return self._order[1]


class SeenPictures:
    """What a critic sees of a pool's pictures, in some versions each; computed when first needed.

    It lies in memory that processes forked later share, so that a grid's trainers look at each
    picture once between them. Whoever finds a block missing computes it: all find the same.
    """

    def __init__(
        self,
        features: FrozenFeatures,
        pictures_NSSC: Tensor,
        versions: int,
        show: Callable[[Tensor, int, int], Tensor],
    ) -> None:
        """Look at no picture yet.

        Args:
            features: what is seen of pictures.
            pictures_NSSC: the pool's, as bytes.
            versions: of each picture.
            show: version v of some pictures in [-1, 1], given the row they begin at.
        """
        self.versions = versions
        self._features, self._pictures, self._show = features, pictures_NSSC, show
        count = len(pictures_NSSC)
        self._blocks = -(-count // _SEEN_TOGETHER)
        # Pages that nobody touches take no memory.
        whole = mmap.mmap(-1, max(1, 4 * versions * count * features.floats))
        self._seen_VNF = torch.frombuffer(whole, dtype=torch.float32).view(versions, count, -1)
        done = mmap.mmap(-1, max(1, versions * self._blocks))
        self._done_VK = torch.frombuffer(done, dtype=torch.uint8).view(versions, self._blocks)

    def of(self, rows_B: Tensor, version_B: Tensor) -> Tensor:
        """Return what is seen of these rows, each in its version, B×F."""
        block_B = rows_B // _SEEN_TOGETHER
        if not bool(self._done_VK[version_B, block_B].all()):
            wanted = zip(version_B.tolist(), block_B.tolist(), strict=True)
            for version, block in sorted(set(wanted)):
                if not self._done_VK[version, block]:
                    self._look(version, block)
        return self._seen_VNF[version_B, rows_B]

    @torch.no_grad()
    def _look(self, version: int, block: int) -> None:
        """Compute and keep what is seen of a block of pictures in one version."""
        start = block * _SEEN_TOGETHER
        pictures = to_floats(self._pictures[start : start + _SEEN_TOGETHER])
        seen = self._features.of(self._show(pictures, start, version))
        self._seen_VNF[version, start : start + len(seen)] = seen.to(self._seen_VNF.device)
        self._done_VK[version, block] = 1


def _joined(blocks: list[Tensor]) -> Tensor:
    """Join blocks of pictures; a single one stays the mapped file it is."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _numbered(blocks: list[Tensor], numbers: list[int] | None) -> Tensor | None:
    """Return the label's number for each picture of some blocks; None without numbers."""
    if numbers is None:
        return None
    lengths = torch.tensor([len(block) for block in blocks])
    return torch.repeat_interleave(torch.tensor(numbers), lengths)


def _flipped(pictures_BCSS: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the pictures, about half of them mirrored."""
    mirrored_B = torch.from_numpy(rng.random(len(pictures_BCSS)) < 0.5).to(pictures_BCSS.device)
    return torch.where(mirrored_B[:, None, None, None], pictures_BCSS.flip(3), pictures_BCSS)
