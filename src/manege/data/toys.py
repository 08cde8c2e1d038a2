"""Toy datasets: points in the plane round known centres, on which lost modes can be counted.

A point is a picture of one pixel whose two channels are x and y, so that everything that handles
pictures handles points: byte b is the coordinate b / 127.5 - 1, as for any pixel. Nothing is read
or fetched: the points are drawn when asked for, and are the same bytes everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from manege.config import stream
from manege.config.schema import TOY_NAMES
from manege.data.arrays import POINT, ArraySource, Part
from manege.data.split import Split

_RING8, _GRID25 = TOY_NAMES


@dataclass(frozen=True, eq=False)
class Toy:
    """A dataset of equally likely round Gaussians, with a label for each.

    Bytes are 2/255 apart in coordinates, so rounding adds a variance of (2/255)²/12 = 5.1e-6 to
    each coordinate: 0.57 % of 0.03², the variance of both toys.
    """

    name: str
    about: str
    centres: npt.NDArray[np.float64] = field(repr=False)
    """K x 2, the coordinates of the modes in [-1, 1]; mode k has the label ``str(k)``."""
    deviation: float
    """The standard deviation of each coordinate about its centre."""
    each: Mapping[Split, int]
    """The number of points of every mode in each split."""

    def __post_init__(self) -> None:
        self.centres.setflags(write=False)

    def restricted(self, labels: tuple[str, ...]) -> Toy:
        """Return the same toy with these modes only."""
        return replace(self, centres=self.centres[[int(label) for label in labels]])


def _ring(modes: int, radius: float) -> npt.NDArray[np.float64]:
    angles = 2 * np.pi * np.arange(modes) / modes
    return radius * np.column_stack([np.cos(angles), np.sin(angles)])


def _lattice(axis: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Return the points of a square lattice, row-major: the second coordinate runs fastest."""
    return np.array([(x, y) for x in axis for y in axis])


TOYS: dict[str, Toy] = {
    toy.name: toy
    for toy in (
        Toy(
            name=_RING8,
            about="8 Gaussians on a circle: points in the plane",
            centres=_ring(8, radius=0.75),
            deviation=0.03,
            each={Split.TRAIN: 1000, Split.HELD_OUT: 250},
        ),
        Toy(
            name=_GRID25,
            about="5x5 Gaussians: points in the plane",
            centres=_lattice((-0.8, -0.4, 0.0, 0.4, 0.8)),
            deviation=0.03,
            each={Split.TRAIN: 400, Split.HELD_OUT: 100},
        ),
    )
}
"""The toys by their names."""


def toy_of(name: str) -> Toy | None:
    """Return the toy of that name; None if there is none."""
    return TOYS.get(name)


def open_toy(name: str) -> ArraySource:
    """Return the toy's points, a class for each mode, with an official test split."""
    toy = TOYS[name]
    return ArraySource(
        name=name,
        labels=tuple(str(mode) for mode in range(len(toy.centres))),
        parts={split: _part(toy, split) for split in Split},
        shape=POINT,
        official="test",
    )


def _part(toy: Toy, split: Split) -> Part:
    points = _points(toy, split)
    return Part(
        prefix="train" if split is Split.TRAIN else "test",
        targets=np.repeat(np.arange(len(toy.centres)), toy.each[split]),
        pictures=partial(np.copy, points),
        # Drawn at once, being few: their digest then stands for them better than any name.
        stamps=(hashlib.sha256(points.tobytes()).hexdigest(),),
    )


def _points(toy: Toy, split: Split) -> npt.NDArray[np.uint8]:
    """Return all points of a split, mode after mode, N x 1 x 1 x 2."""
    rng = stream(0, cell=toy.name, purpose=f"toy {split.value}")
    drawn = rng.standard_normal((len(toy.centres), toy.each[split], 2))
    coordinates = toy.centres[:, np.newaxis] + toy.deviation * drawn
    # No clipping: the edge is more than six deviations from any centre.
    return np.rint((coordinates + 1) * 127.5).astype(np.uint8).reshape(-1, *POINT)
