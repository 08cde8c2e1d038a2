"""Stacked MNIST: three digits as the colours of one picture, so that there are 1,000 modes.

Which digits are stacked is drawn once and is the same everywhere. There is one class: a classifier
of the digits, not labels, tells which modes a model has lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from manege.config import stream
from manege.data.arrays import ArraySource, Part, stamp
from manege.data.idx import picture_shape, read_pictures
from manege.data.published import FILES_OF
from manege.data.split import Split

NAME = "stacked-mnist"
COUNTS = {Split.TRAIN: 60_000, Split.HELD_OUT: 25_600}
"""Pictures of each split; as many are held out as in the literature (Srivastava et al. 2017)."""
PICTURES = sum(COUNTS.values())
ABOUT = "stacked MNIST: three digits as red, green and blue, 1,000 modes; made from mnist"


def open_stacked(files: Mapping[str, Path]) -> ArraySource:
    """Return the pictures made from MNIST's four files; held-out ones are made of test digits."""
    height, width = picture_shape(files[FILES_OF[Split.TRAIN][0]])[1:]
    return ArraySource(
        name=NAME,
        labels=("stacked",),
        parts={split: _part(files[FILES_OF[split][0]], split) for split in Split},
        shape=(height, width, 3),
        official="test",
    )


def _part(file: Path, split: Split) -> Part:
    return Part(
        prefix="train" if split is Split.TRAIN else "test",
        targets=np.zeros(COUNTS[split], dtype=np.int64),
        pictures=partial(_pictures, file, split),
        stamps=(NAME, stamp(file)),
    )


def _pictures(file: Path, split: Split) -> npt.NDArray[np.uint8]:
    digits = read_pictures(file)
    rng = stream(0, cell=NAME, purpose=f"stacked {split.value}")
    chosen = rng.integers(0, len(digits), (COUNTS[split], 3))
    return np.stack([digits[chosen[:, channel]] for channel in range(3)], axis=-1)
