"""The centre: what a cell shows its neighbours, and all that ever travels between cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Centre:
    """What a cell shows its neighbours: copies, never written to."""

    round_: int
    """The round after which it was published; 0 is the untrained one."""
    generator: np.ndarray
    discriminator: np.ndarray
    """Records."""
    moments: np.ndarray
    """What a mixture's score needs of the generator."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All but the round."""
        return {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "moments": self.moments,
        }

    def is_finite(self) -> bool:
        """Whether it may leave the cell."""
        return all(bool(np.isfinite(array).all()) for array in self.to_arrays().values())
