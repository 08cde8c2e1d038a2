"""What a cell's generator is worth: the scorer's protocol, and the best that was seen.

Smaller is better. The best generator belongs to the cell's state, so that a commit holds it and a
resumed run ends with the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isnan
from typing import Any, Protocol

import numpy as np


class WeightsKind(StrEnum):
    """Which of a generator's two sets of weights."""

    RAW = "raw"
    EMA = "ema"
    """The running average of the raw ones."""


class Estimated(Protocol):
    """A number with its 95 % interval."""

    @property
    def value(self) -> float:
        """The number."""
        ...

    @property
    def low(self) -> float:
        """The interval's lower end."""
        ...

    @property
    def high(self) -> float:
        """Its upper end."""
        ...


class Scorer(Protocol):
    """Scores pictures, smaller is better; the same pictures get the same score."""

    def score(self, cell: str, pictures_NSSC: np.ndarray) -> Estimated:
        """Return how far pictures drawn for a cell are from what it ought to draw."""
        ...


@dataclass(frozen=True)
class Judgement:
    """The scores of a cell's generator at one moment, for each set of weights it has."""

    round_: int
    scores: Mapping[WeightsKind, Estimated]

    @property
    def chosen(self) -> WeightsKind:
        """The weights that score better; the raw ones when both do the same."""
        return min(self.scores, key=self._rank)

    def _rank(self, which: WeightsKind) -> tuple[bool, float, bool]:
        """Return what orders two sets of weights, the better one first."""
        value = self.scores[which].value
        return isnan(value), value, which is not WeightsKind.RAW

    def best(self) -> dict[str, Any]:
        """Return the better score as JSON knows it."""
        score = self.scores[self.chosen]
        return {
            "round": self.round_,
            "weights": self.chosen.value,
            "value": score.value,
            "low": score.low,
            "high": score.high,
        }


@dataclass(frozen=True)
class Best:
    """The best generator so far."""

    body: np.ndarray
    """Its weights and buffers."""
    score: dict[str, Any]
    """Its round and weights, and the score's value, low and high."""
