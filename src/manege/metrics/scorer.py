"""The scorer that training steers by: a cell's pictures against the cell's own training pictures.

Held-out pictures are left alone, so that what is chosen by this score can be judged on them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manege.config import Score, ScoreMetric
from manege.data import Dataset, Split, set_of
from manege.errors import ConfigError
from manege.metrics.estimate import Estimate
from manege.metrics.frechet import enough_for_frechet, frechet
from manege.metrics.kid import kid
from manege.metrics.spaces import Space

MOST_REFERENCES = 2000
"""Training pictures of a class that the score compares with."""


class ClassScorer:
    """KID or Fréchet distance to a cell's training pictures; smaller is better."""

    def __init__(
        self,
        config: Score,
        space: Space,
        dataset: Dataset,
        parts: Mapping[str, tuple[str, ...]],
    ) -> None:
        """`parts` says which labels' pictures each cell sees."""
        self.config = config
        self._parts = parts
        self.space = space
        self._dataset = dataset
        self._references: dict[str, np.ndarray] = {}
        if config.metric is ScoreMetric.FD:
            self._require_enough()

    def score(self, cell: str, pictures_NSSC: np.ndarray) -> Estimate:
        """How far pictures drawn for a cell are from the cell's own."""
        drawn_ND = self.space.features(pictures_NSSC)
        if cell not in self._references:
            own = set_of(self._dataset, Split.TRAIN, MOST_REFERENCES, self._parts[cell])
            self._references[cell] = self.space.features_of(own)
        measure = frechet if self.config.metric is ScoreMetric.FD else kid
        return measure(drawn_ND, self._references[cell])

    def _require_enough(self) -> None:
        counts = {
            cell: sum(len(self._dataset.names(label, Split.TRAIN)) for label in labels)
            for cell, labels in self._parts.items()
        }
        for what, count in {
            "--set score.samples": self.config.samples,
            **{f"class {cell!r}": count for cell, count in counts.items()},
        }.items():
            if count < enough_for_frechet(self.space.dimensions):
                raise ConfigError(
                    f"--score fd: {what} has {count} pictures, too few for a Fréchet distance in "
                    f"{self.space.dimensions} dimensions; use --score kid"
                )
