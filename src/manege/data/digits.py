"""scikit-learn's handwritten digits, kept in our cache after the first reading.

Importing scikit-learn takes seconds, which every worker would need again.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import numpy as np
import numpy.typing as npt

from manege.data import cache
from manege.data.arrays import ArraySource, Part
from manege.data.split import Split

NAME = "digits"
PICTURES = 1797
ABOUT = "scikit-learn's digits: 1,797 handwritten digits, 8x8 grey, needs no download"

_SIDE = 8
_HIGHEST = 16
"""The highest value in the pictures, which begin at 0."""


def open_digits() -> ArraySource:
    """Return the ten classes of digits, without an official split."""
    stamps = ("scikit-learn", version("scikit-learn"))
    key = cache.key(NAME, *stamps)
    entry = cache.find(key) or cache.store(key, (PICTURES, _SIDE**2 + 1), (), _rows())
    rows = entry.open()
    part = Part(
        prefix=NAME,
        targets=rows[:, -1].astype(np.int64),
        pictures=partial(_pictures, rows),
        stamps=stamps,
        digits=4,
    )
    return ArraySource(
        name=NAME,
        labels=tuple(str(digit) for digit in range(10)),
        parts={Split.TRAIN: part},
        shape=(_SIDE, _SIDE, 1),
        official=None,
    )


def _pictures(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return rows[:, :-1].reshape(-1, _SIDE, _SIDE, 1)


def _rows() -> list[npt.NDArray[np.uint8]]:
    """Return one block, in which each row is a picture's pixels and its label."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.data * (255 / _HIGHEST)).astype(np.uint8)
    return [np.column_stack([pixels, bunch.target.astype(np.uint8)])]
