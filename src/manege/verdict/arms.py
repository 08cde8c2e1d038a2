"""The arms of the trial: which rows of all pictures a classifier sees, and whether augmented.

Shape legend: N pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from manege.config import stream


class Arm(StrEnum):
    """What a classifier is trained on."""

    REAL = "a"
    OVERSAMPLED = "b"
    AUGMENTED = "c"
    BOTH = "b+c"
    ADDED = "d"
    ADDED_AUGMENTED = "e"
    SYNTHETIC = "f"

    @property
    def words(self) -> str:
        """What it is called."""
        return _TITLES[self]

    @property
    def augmented(self) -> bool:
        """Whether its pictures are moved about, and mirrored where the data allow."""
        return self in (Arm.AUGMENTED, Arm.BOTH, Arm.ADDED_AUGMENTED)


_TITLES = {
    Arm.REAL: "real",
    Arm.OVERSAMPLED: "real, oversampled",
    Arm.AUGMENTED: "real, augmented",
    Arm.BOTH: "real, oversampled and augmented",
    Arm.ADDED: "real + synthetic",
    Arm.ADDED_AUGMENTED: "real + synthetic, augmented",
    Arm.SYNTHETIC: "synthetic only",
}

WITHOUT = (Arm.REAL, Arm.OVERSAMPLED, Arm.AUGMENTED, Arm.BOTH)
"""The arms without a synthetic picture."""
WITH = (Arm.ADDED, Arm.ADDED_AUGMENTED)
"""The arms that answer whether synthetic pictures help beside real ones."""


@dataclass(frozen=True)
class PicturePool:
    """All real pictures, then all synthetic ones, class after class."""

    pictures: np.ndarray
    targets: np.ndarray
    real: tuple[int, ...]
    """Real pictures of each class."""
    synthetic: tuple[int, ...]

    def rows(self, arm: Arm, seed: int) -> np.ndarray:
        """The rows an arm trains on, repeated as often as it sees them in a pass."""
        largest = max(self.real)
        real = self._blocks(self.real, 0)
        synthetic = self._blocks(self.synthetic, sum(self.real))
        match arm:
            case Arm.REAL | Arm.AUGMENTED:
                parts = real
            case Arm.OVERSAMPLED | Arm.BOTH:
                parts = [_repeated(rows, largest, seed, number) for number, rows in enumerate(real)]
            case Arm.ADDED | Arm.ADDED_AUGMENTED:
                added = [
                    rows[: largest - count]
                    for rows, count in zip(synthetic, self.real, strict=True)
                ]
                parts = [*real, *added]
            case Arm.SYNTHETIC:
                parts = synthetic
        return np.concatenate(parts)

    @staticmethod
    def _blocks(counts: tuple[int, ...], start: int) -> list[np.ndarray]:
        ends = start + np.cumsum(counts)
        return [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]


def pool_of(real: Sequence[np.ndarray], synthetic: Sequence[np.ndarray]) -> PicturePool:
    """Pictures of each class, real and synthetic, in one."""
    counts = [tuple(len(pictures) for pictures in parts) for parts in (real, synthetic)]
    targets = [np.repeat(np.arange(len(lengths)), lengths) for lengths in counts]
    return PicturePool(
        np.concatenate([*real, *synthetic]), np.concatenate(targets), counts[0], counts[1]
    )


def _repeated(rows: np.ndarray, count: int, seed: int, number: int) -> np.ndarray:
    """The rows over and over until they are so many; who is seen once more, the seed decides."""
    order = stream(seed, cell="", purpose="verdict oversampling", step=number).permutation(rows)
    return np.resize(order, count)
