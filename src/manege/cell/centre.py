"""The centre: what a cell shows its neighbours, and all that ever travels between cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Centre:
    """What a cell shows its neighbours: copies, never written to."""

    round_: int
    """The round after which it was published; 0 is the untrained one."""
    generator: np.ndarray
    discriminator: np.ndarray
    """Both networks with their optimisers' states, as flat records."""
    moments: np.ndarray
    """What a mixture's score needs of the generator."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all but the round."""
        return {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "moments": self.moments,
        }

    def is_finite(self) -> bool:
        """Return whether all numbers are finite, so that it may leave the cell."""
        return all(bool(np.isfinite(array).all()) for array in self.to_arrays().values())


def published(centres: Sequence[Centre], round_: int) -> Centre:
    """Return the centre after a round; of a cell that lags or is frozen, the last there is."""
    return next((one for one in reversed(centres) if one.round_ == round_), centres[-1])
