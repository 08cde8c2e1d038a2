"""The scorer of training: compare a cell's pictures with the cell's own training pictures.

It does not use held-out pictures, so that what this score selects can be evaluated on them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manege import plugins
from manege.config import ScoreConfig, ScoreMetric
from manege.data import Dataset, Split, set_of
from manege.errors import ConfigError, field
from manege.metrics.estimate import Estimate
from manege.metrics.frechet import enough_for_frechet, frechet
from manege.metrics.kid import kid
from manege.metrics.own import Distance, own_score
from manege.metrics.spaces import LITE0, Space
from manege.metrics.stability import LEAST, PART

MOST_REFERENCES = 2000
"""Training pictures of a cell that the score compares with, at most."""


class ClassScorer:
    """Computes the distance of pictures to a cell's training pictures; smaller is better."""

    def __init__(
        self,
        config: ScoreConfig,
        space: Space,
        dataset: Dataset,
        parts: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Prepare the scorer; `parts` says which labels' pictures each cell sees."""
        self.config = config
        self._parts = parts
        self.space = space
        self._dataset = dataset
        self._references: dict[str, np.ndarray] = {}
        self._distance = _distance(config)
        if config.metric is ScoreMetric.FD:
            self._require_enough()

    def score(self, cell: str, pictures_NSSC: np.ndarray) -> Estimate:
        """Return the distance of pictures drawn for a cell to the cell's training pictures."""
        drawn_ND = self.space.features(self._affordable(cell, pictures_NSSC))
        if cell not in self._references:
            own = set_of(self._dataset, Split.TRAIN, MOST_REFERENCES, self._parts[cell])
            self._references[cell] = self.space.features_of(own)
        return self._distance(drawn_ND, self._references[cell])

    def _affordable(self, cell: str, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Return the pictures to score: all, or for Lite0 about an eighth of those trained on.

        These are an eighth of what is trained on between two scores, 64 at least: Lite0 takes as
        long for a picture as some steps of training, and thirty pictures are a round of one step.
        """
        if self.space.kind != LITE0 or self.config.metric is ScoreMetric.FD:
            return pictures_NSSC
        most = max(LEAST, self._counts()[cell] * self.config.every_rounds // PART)
        # From all over: where labels are told, they lie label after label.
        count = len(pictures_NSSC)
        return pictures_NSSC[np.linspace(0, count - 1, min(most, count)).astype(np.int64)]

    def _counts(self) -> dict[str, int]:
        """Return the number of training pictures of each cell."""
        return {
            cell: sum(len(self._dataset.names(label, Split.TRAIN)) for label in labels)
            for cell, labels in self._parts.items()
        }

    def _require_enough(self) -> None:
        counts = self._counts()
        for what, count in {
            field("score.samples"): self.config.samples,
            **{f"class {cell!r}": count for cell, count in counts.items()},
        }.items():
            if count < enough_for_frechet(self.space.dimensions):
                raise ConfigError(
                    f"{field('score')} fd: {what} has {count} pictures, too few for a Fréchet "
                    f"distance in {self.space.dimensions} dimensions; use {field('score')} kid"
                )


def _distance(config: ScoreConfig) -> Distance:
    """Return what compares two tables of features, as the configuration says."""
    if plugins.is_reference(config.metric):
        return own_score(config.metric, "score.metric")
    return frechet if config.metric is ScoreMetric.FD else kid
