"""Stacked digits are made from MNIST's, and the same everywhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from manege.config import DataConfig
from manege.data import KNOWN, STACKED, Split, list_datasets, open_dataset
from manege.data import stacked as module
from manege.data.idx import read_pictures
from manege.data.published import MNIST, locate
from manege.errors import DataError


def test_channels_are_digits_of_the_same_split(
    tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNTS", {Split.TRAIN: 300, Split.HELD_OUT: 40})
    dataset = open_dataset(DataConfig(source=STACKED, root=str(tiny_mnist)))
    assert (dataset.size, dataset.channels, dataset.labels) == (28, 3, ("stacked",))
    files = locate(MNIST, str(tiny_mnist))
    assert files is not None
    for split, name, count in (
        (Split.TRAIN, "train-images-idx3-ubyte", 300),
        (Split.HELD_OUT, "t10k-images-idx3-ubyte", 40),
    ):
        pictures = dataset.pictures("stacked", split)
        assert pictures.shape == (count, 28, 28, 3)
        known = {picture.tobytes() for picture in read_pictures(files[name])}
        for channel in range(3):
            drawn = [np.ascontiguousarray(one[..., channel]).tobytes() for one in pictures]
            assert set(drawn) <= known
            assert len(set(drawn)) > 1
    # Channels are drawn one by one, not together.
    assert (pictures[..., 0] != pictures[..., 1]).any()


def test_the_same_digits_lie_on_each_other_everywhere(real_data: Path) -> None:
    dataset = open_dataset(DataConfig(source=STACKED, root=str(real_data)))
    pictures = dataset.pictures("stacked", Split.HELD_OUT)
    assert pictures.shape == (25_600, 28, 28, 3)
    digest = hashlib.sha256(np.ascontiguousarray(pictures)).hexdigest()
    assert digest.startswith("4e547f26")


def test_stacked_digits_are_listed_and_their_faults_are_mnists(
    tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert STACKED in KNOWN
    (row,) = (row for row in list_datasets(str(tiny_mnist)) if row["name"] == STACKED)
    assert row["pictures"] == 85_600
    (tiny_mnist / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"mnist in .*train-labels-idx1-ubyte not found"):
        open_dataset(DataConfig(source=STACKED, root=str(tiny_mnist)))
