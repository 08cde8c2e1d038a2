"""Where a cell's generator has been: what its samples' features were, round by round.

Part of a cell's state, so that a resumed run compares with the same rounds. What the numbers mean
is the gauge's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


class Gauge(Protocol):
    """Measures collapse and cycling; the same pictures and trail get the same numbers."""

    @property
    def name(self) -> str:
        """All that moments depend on besides the generator: those of another do not compare."""
        ...

    def samples(self, images: int) -> int:
        """Return how many pictures to draw after a round that trained on so many."""
        ...

    @property
    def window(self) -> int:
        """Rounds to remember."""
        ...

    def due(self, round_: int, images: int) -> bool:
        """Return whether a round that trained on so many pictures is to be measured."""
        ...

    def measure(
        self, cell: str, pictures_NSSC: np.ndarray, earlier: Sequence[np.ndarray]
    ) -> tuple[dict[str, Any], np.ndarray]:
        """Return the measurements of a round, and the moments to remember it by.

        Args:
            cell: whose pictures.
            pictures_NSSC: drawn at latents that never change.
            earlier: moments of rounds before, the last one first.
        """
        ...


@dataclass
class Trail:
    """The moments of the last measured rounds, the oldest first."""

    gauge: str = ""
    """The name of the gauge that the moments belong to."""
    moments: list[np.ndarray] = field(default_factory=list)

    def before(self, gauge: Gauge) -> list[np.ndarray]:
        """Return the moments that a gauge can compare with, the last first."""
        if self.gauge != gauge.name:
            return []
        # A run may be resumed with a smaller window than its commit was made with.
        return self.moments[::-1][: gauge.window]

    def add(self, gauge: Gauge, moments: np.ndarray) -> None:
        """Remember a round, and forget those that the gauge will not ask for."""
        kept = self.moments if self.gauge == gauge.name else []
        self.gauge, self.moments = gauge.name, [*kept, moments][-gauge.window :]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the moments, for a commit."""
        return {"trail": np.stack(self.moments)} if self.moments else {}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], gauge: str) -> Trail:
        """Return the trail that was committed; an empty one where there is none."""
        return cls(gauge, [one.copy() for one in arrays.get("trail", ())])
