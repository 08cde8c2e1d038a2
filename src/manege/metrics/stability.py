"""Measure how stable training is: collapse and cycling, round by round.

Collapse is 1 - coverage(generated) / coverage(held-out real), both of the same training pictures,
as many as are drawn, and from as many samples: 0 where a generator reaches what real pictures
reach, 1 where it reaches none of them. Cycling is how far a generator went and came back:
distances between its own feature moments at different rounds, over the variance of real features.
Neither influences training.

Shape legend: N rows, D dimensions, K rounds back, V entries of a triangle; pictures are N×S×S×C, S
their side, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from manege import device
from manege.config import Stability
from manege.data import Dataset, Split, set_of
from manege.metrics.estimate import Estimate
from manege.metrics.frechet import Moments, frechet_distances, moments
from manege.metrics.neighbours import balls, coverage
from manege.metrics.spaces import LITE0, Space, points_space, random_space

NEIGHBOURS = 5
FEWEST, FEWEST_REFERENCES = 16, 32
"""Fewer held-out or training pictures than this tell no collapse: a single picture, repeated, is
then not told from real ones by more than luck; see the table in docs/scores.md."""
PART, LEAST, MOST = 8, 64, 512
"""A round is measured with an eighth of the pictures that it trained on, from least to most."""


def came_back(distances_K: Sequence[float]) -> float | None:
    """Return how far a generator went and came back; None before it could have.

    That is the largest of max over j < k of D(r, r - j), less D(r, r - k), over k from 2; 0 where
    it never came nearer again. `distances_K` are those to the round before, the one before that, ….
    """
    if len(distances_K) < 2:
        return None
    distance_K = np.asarray(distances_K, dtype=np.float64)
    furthest_K = np.maximum.accumulate(distance_K)
    return max(0.0, float((furthest_K[:-1] - distance_K[1:]).max()))


def collapse(generated: Estimate, held_out: Estimate) -> float | None:
    """Return 1 - coverage(generated) / coverage(held-out real); None if real ones cover nothing."""
    return 1 - generated.value / held_out.value if held_out.value else None


def space_without_scores(dataset: Dataset) -> Space:
    """Return a space for runs that compute no scores: it needs no training and no file."""
    if dataset.channels == 2:
        return points_space()
    return random_space(dataset.size, dataset.channels)


@dataclass(frozen=True, eq=False)
class _Balls:
    """Training pictures to be covered, and how well held-out ones cover them."""

    reference_ND: np.ndarray
    radius_N: Tensor
    compared: int
    """The number of held-out pictures; as many generated ones are compared."""
    covered: Estimate
    """The coverage that the held-out pictures reach."""


@dataclass(frozen=True, eq=False)
class _Real:
    """The statistics of some labels' real pictures."""

    variance: float
    """The trace of their features' covariance."""
    balls: _Balls | None
    """The balls around training pictures; None where too few are held out or trained on."""


class StabilityGauge:
    """Measures collapse and cycling of a cell's generator by the cell's own real pictures."""

    def __init__(
        self,
        config: Stability,
        space: Space,
        dataset: Dataset,
        parts: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Prepare the gauge; `parts` says which labels' pictures each cell sees."""
        self.name = f"{space.name} {config.samples or 'auto'}"
        self.window = config.window
        self._config = config
        self._space = space
        self._dataset = dataset
        self._parts = parts
        self._triangle = np.triu_indices(space.dimensions)
        self._known: dict[tuple[tuple[str, ...], int], _Real] = {}

    def due(self, round_: int, images: int) -> bool:
        """Return whether a round that trained on so many pictures is to be measured.

        With Lite0, of rounds of few pictures only some are measured: each draws 64, which take as
        long as some steps of training.
        """
        every = self._config.every_rounds
        if every is None:
            return False
        together = -(-LEAST * PART // images) if self._space.kind == LITE0 else 1
        return round_ % (every * together) == 0

    def samples(self, images: int) -> int:
        """Return how many pictures to draw after a round, a small part of those it trained on."""
        return self._config.samples or min(MOST, max(LEAST, images // PART))

    def measure(
        self, cell: str, pictures_NSSC: np.ndarray, earlier: Sequence[np.ndarray]
    ) -> tuple[dict[str, Any], np.ndarray]:
        """Return the measures of a round, and moments for later comparison; see `cell.Gauge`."""
        real = self._real(self._parts[cell], len(pictures_NSSC))
        with device.threads(1):
            drawn_ND = self._space.features(pictures_NSSC)
            now = moments(drawn_ND)
            # Real pictures that are all the same are no measure of a distance.
            before = [self._unpacked(one) for one in earlier] if real.variance else []
            apart_K = [one / real.variance for one in frechet_distances(now, before)]
            covered = {} if real.balls is None else _covered(drawn_ND, real.balls)
        told = {
            "collapse": None,
            **covered,
            "cycling": came_back(apart_K),
            "moved": apart_K[0] if apart_K else None,
            "samples": len(drawn_ND),
            "space": self._space.name,
        }
        return told, self._packed(now)

    def _real(self, labels: tuple[str, ...], count: int) -> _Real:
        if (labels, count) not in self._known:
            self._known[labels, count] = self._look_at(labels, count)
        return self._known[labels, count]

    def _look_at(self, labels: tuple[str, ...], count: int) -> _Real:
        held_out = set_of(self._dataset, Split.HELD_OUT, count, labels)
        trained = set_of(self._dataset, Split.TRAIN, MOST, labels)
        with device.threads(1):
            trained_ND = self._space.features_of(trained)
            variance = float(moments(trained_ND).covariance_DD.trace())
            # As many as are drawn, however few are held out: in a small set a ball of k neighbours
            # holds so much that anything would cover it.
            reference = set_of(self._dataset, Split.TRAIN, count, labels)
            if len(held_out) < FEWEST or len(reference) < FEWEST_REFERENCES:
                return _Real(variance, None)
            reference_ND = self._space.features_of(reference)
            radius_N = balls(reference_ND, NEIGHBOURS)
            held_out_ND = self._space.features_of(held_out)
            covered = coverage(held_out_ND, reference_ND, radius_N)
            return _Real(variance, _Balls(reference_ND, radius_N, len(held_out), covered))

    def _packed(self, known: Moments) -> np.ndarray:
        """Return count, mean and the covariance's upper triangle in one row."""
        return np.concatenate([[known.count], known.mean_D, known.covariance_DD[self._triangle]])

    def _unpacked(self, packed_V: np.ndarray) -> Moments:
        dimensions = self._space.dimensions
        covariance_DD = np.zeros((dimensions, dimensions))
        covariance_DD[self._triangle] = packed_V[1 + dimensions :]
        covariance_DD.T[self._triangle] = packed_V[1 + dimensions :]
        return Moments(int(packed_V[0]), packed_V[1 : 1 + dimensions], covariance_DD)


def _covered(drawn_ND: np.ndarray, known: _Balls) -> dict[str, Any]:
    """Return collapse, and the two coverages that it comes from."""
    # As many as are held out, so that a perfect generator's collapse is 0; from all over the rows:
    # where labels are told, they lie label after label.
    rows = np.linspace(0, len(drawn_ND) - 1, min(known.compared, len(drawn_ND))).astype(np.int64)
    covered = coverage(drawn_ND[rows], known.reference_ND, known.radius_N)
    return {
        "collapse": collapse(covered, known.covered),
        "coverage": asdict(covered),
        "real_coverage": asdict(known.covered),
        "compared": len(rows),
        "references": len(known.reference_ND),
    }
