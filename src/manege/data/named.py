"""Opens and lists the datasets known by name, and says what else is accepted as data."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from manege.data import cifar, digits, idx, stacked, toys
from manege.data.arrays import ArraySource, Part, require_room, stamp
from manege.data.cifar import CIFAR_DATASETS
from manege.data.published import (
    FILES,
    FILES_OF,
    IDX_DATASETS,
    MNIST,
    IdxDataset,
    download,
    locate,
)
from manege.data.split import Split
from manege.errors import DataError, field

KNOWN: dict[str, str] = {
    digits.NAME: digits.ABOUT,
    **{dataset.name: dataset.about for dataset in IDX_DATASETS.values()},
    **{dataset.name: dataset.about for dataset in CIFAR_DATASETS.values()},
    stacked.NAME: stacked.ABOUT,
    **{toy.name: toy.about for toy in toys.TOYS.values()},
}
"""The datasets known by name, each with a line about it."""

ACCEPTED: dict[str, str] = {
    "FOLDER": "an image folder: a subfolder a class, PNG, JPEG, BMP or WebP; "
    "or train/ and test/ (val/, validation/), each with a subfolder a class; or with a labels.csv "
    "of the columns file, label and maybe split, which wins over subfolders",
    "FILE.npz": "arrays images and labels, maybe test_images and test_labels",
}
"""What else can be named as data, each with a line about it."""


def open_named(name: str, root: str | None) -> ArraySource:
    """Return the dataset of that name; fetch it if needed."""
    if name == digits.NAME:
        return digits.open_digits()
    if name in toys.TOYS:
        return toys.open_toy(name)
    if name in CIFAR_DATASETS:
        family = CIFAR_DATASETS[name]
        return cifar.open_cifar(family, cifar.locate(family, root) or cifar.download(family))
    if name == stacked.NAME:
        # Through the digits themselves: what is wrong with them is said there.
        files = locate(MNIST, root) or download(MNIST)
        open_idx(MNIST, files)
        return stacked.open_stacked(files)
    dataset = IDX_DATASETS[name]
    return open_idx(dataset, locate(dataset, root) or download(dataset))


def list_datasets(root: str | None) -> list[dict[str, Any]]:
    """Return name, description, number of pictures and place of all that can be named as data."""
    rows: list[dict[str, Any]] = [
        {
            "name": digits.NAME,
            "description": digits.ABOUT,
            "pictures": digits.PICTURES,
            "where": "comes with scikit-learn",
        }
    ]
    for dataset in IDX_DATASETS.values():
        files = locate(dataset, root)
        rows.append(
            {
                "name": dataset.name,
                "description": dataset.about,
                "pictures": 70_000,
                "where": str(files[FILES[0]].parent) if files else _absent(dataset.url),
            }
        )
    for family in CIFAR_DATASETS.values():
        found = cifar.locate(family, root)
        rows.append(
            {
                "name": family.name,
                "description": family.about,
                "pictures": cifar.PICTURES,
                "where": str(found.path) if found else _absent(family.url),
            }
        )
    digits_found = locate(MNIST, root)
    rows.append(
        {
            "name": stacked.NAME,
            "description": stacked.ABOUT,
            "pictures": stacked.PICTURES,
            "where": str(digits_found[FILES[0]].parent) if digits_found else _absent(MNIST.url),
        }
    )
    rows += [
        {
            "name": toy.name,
            "description": f"{toy.about}, for {field('networks')} mlp",
            "pictures": len(toy.centres) * sum(toy.each.values()),
            "where": "computed",
        }
        for toy in toys.TOYS.values()
    ]
    rows += [
        {"name": name, "description": about, "pictures": None, "where": "given as a path"}
        for name, about in ACCEPTED.items()
    ]
    return rows


def open_idx(dataset: IdxDataset, files: dict[str, Path]) -> ArraySource:
    """Return the dataset in those four files."""
    parts: dict[Split, Part] = {}
    shapes: dict[Split, tuple[int, int]] = {}
    for split, (pictures, labels) in FILES_OF.items():
        count, *side = idx.picture_shape(files[pictures])
        require_room(files[pictures], count)
        found = idx.label_count(files[labels])
        if found != count:
            raise DataError(
                f"{files[labels]}: {found} labels, expected {count}, one for each picture "
                f"of {files[pictures].name}; get both files again"
            )
        targets = idx.read_labels(files[labels], classes=len(dataset.labels))
        if split is Split.TRAIN:
            _refuse_namesake(dataset, files[labels], targets)
        shapes[split] = (side[0], side[1])
        parts[split] = Part(
            prefix="train" if split is Split.TRAIN else "test",
            targets=targets.astype(np.int64),
            pictures=partial(_read_pictures, files[pictures]),
            stamps=(stamp(files[pictures]), stamp(files[labels])),
        )
    if len(set(shapes.values())) > 1:
        raise DataError(
            f"{files[FILES[2]]}: pictures are {shapes[Split.HELD_OUT]}, expected "
            f"{shapes[Split.TRAIN]} as in {files[FILES[0]].name}; get both files again"
        )
    return ArraySource(
        name=dataset.name,
        labels=dataset.labels,
        parts=parts,
        shape=(*shapes[Split.TRAIN], 1),
        official="test",
    )


def _absent(url: str) -> str:
    return f"not here: would be downloaded from {url}"


def _read_pictures(path: Path) -> npt.NDArray[np.uint8]:
    return idx.read_pictures(path)[..., np.newaxis]


def _refuse_namesake(dataset: IdxDataset, path: Path, targets: npt.NDArray[np.uint8]) -> None:
    digest = hashlib.sha256(targets.tobytes()).hexdigest()
    for other in IDX_DATASETS.values():
        if other.name != dataset.name and other.train_labels_sha256 == digest:
            raise DataError(
                f"{path}: these are the labels of {other.name}, expected {dataset.name}; "
                f"put each dataset into a folder of its name"
            )
