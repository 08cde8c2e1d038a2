"""The arms of the trial: each says which pictures a classifier sees, and whether augmented.

Shape legend: N pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from manege.config import stream


class Arm(StrEnum):
    """The pictures that a classifier of the trial is trained on."""

    REAL = "a"
    OVERSAMPLED = "b"
    AUGMENTED = "c"
    BOTH = "b+c"
    ADDED = "d"
    ADDED_AUGMENTED = "e"
    SYNTHETIC = "f"

    @property
    def words(self) -> str:
        """Return the arm's name in words."""
        return _TITLES[self]

    @property
    def augmented(self) -> bool:
        """Return whether its pictures are shifted, and mirrored where the data allow."""
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
"""The arms that tell whether synthetic pictures help in addition to real ones."""


@dataclass(frozen=True)
class PicturePool:
    """All real pictures, then all synthetic ones, both class after class."""

    pictures: np.ndarray
    targets: np.ndarray
    real: tuple[int, ...]
    """Number of real pictures of each class."""
    synthetic: tuple[int, ...]

    def rows(self, arm: Arm, seed: int) -> np.ndarray:
        """Return the rows an arm trains on, each repeated as often as a pass shows it."""
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
    """Join the real and the synthetic pictures of each class into one pool."""
    counts = [tuple(len(pictures) for pictures in parts) for parts in (real, synthetic)]
    targets = [np.repeat(np.arange(len(lengths)), lengths) for lengths in counts]
    return PicturePool(
        np.concatenate([*real, *synthetic]), np.concatenate(targets), counts[0], counts[1]
    )


def _repeated(rows: np.ndarray, count: int, seed: int, number: int) -> np.ndarray:
    """Repeat the rows up to this count; the seed decides which ones appear once more."""
    order = stream(seed, cell="", purpose="verdict oversampling", step=number).permutation(rows)
    return np.resize(order, count)
