"""CIFAR-10 and CIFAR-100: opens the official files, in either layout, unpacked or in archives.

The python layout is pickles, the binary one plain records; both hold the same pictures in the same
order, so names, labels and digests do not depend on the layout. How many pictures there are is
read from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from manege.data import cache
from manege.data.archives import unpack
from manege.data.arrays import ArraySource, Part, stamp
from manege.data.cifar_files import (
    AGAIN,
    MOST_BYTES,
    MOST_NAMES_BYTES,
    SIDE,
    CifarBatch,
    Labelling,
    read_binary_batch,
    read_binary_names,
    read_pickled_batch,
    read_pickled_names,
)
from manege.data.labels import check_label
from manege.data.published import download_folder, fetch, places, put_into
from manege.data.split import Split
from manege.errors import DataError

URL = "https://www.cs.toronto.edu/~kriz/"
PICTURES = 60_000


@dataclass(frozen=True)
class ArchiveLayout:
    """The files of one official archive, and how they are read."""

    folder: str
    archive: str
    md5: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: tuple[str, ...]
    read_batch: Callable[[Path, Labelling], CifarBatch]
    read_names: Callable[[Path, Labelling], Sequence[object]]

    @property
    def caps(self) -> dict[str, int]:
        """The files' names, and how many bytes each may have."""
        pictures = dict.fromkeys((*self.train, *self.test), MOST_BYTES)
        return pictures | dict.fromkeys(self.names, MOST_NAMES_BYTES)


@dataclass(frozen=True)
class CifarDataset:
    """A dataset of the CIFAR family."""

    name: str
    about: str
    home: str
    """The folder for its files, below the user's places and in the download cache."""
    layouts: tuple[ArchiveLayout, ArchiveLayout]
    """The python layout and the binary one."""
    labelling: Labelling
    url: str = URL


@dataclass(frozen=True)
class Found:
    """Where a dataset lies: its folder, or its archive."""

    layout: ArchiveLayout
    path: Path


def locate(dataset: CifarDataset, root: str | None) -> Found | None:
    """Return the files or their archive, from the first place that has them; None if none has.

    Order: ``root``, MANEGE_DATA (each itself or its subfolder of the dataset's name), the
    download cache; in each a folder before an archive.
    """
    for place in places(dataset.home, root):
        found = _found_in(place, dataset)
        if found is not None:
            return found
        _refuse_half(place, dataset)
    return _found_in(download_folder(dataset.home), dataset)


def download(dataset: CifarDataset) -> Found:
    """Fetch the archive into the download cache, check it against its hash and return it."""
    # The binary one, for there is nothing to unpickle in it.
    python, binary = dataset.layouts
    path = fetch(
        dataset.name,
        dataset.url,
        binary.archive,
        f"md5:{binary.md5}",
        home=dataset.home,
        remedy=put_into(dataset.home, f"{python.archive} or {binary.archive}"),
    )
    return Found(binary, path)


def open_cifar(dataset: CifarDataset, found: Found) -> ArraySource:
    """Return the dataset in that place, with its official names and test split."""
    layout, folder = found.layout, found.path
    if not folder.is_dir():
        folder = unpack(folder, layout.folder, layout.caps)
    return ArraySource(
        name=dataset.name,
        labels=_labels(folder, layout, dataset.labelling),
        parts={
            Split.TRAIN: _part("train", folder, layout.train, layout, dataset.labelling),
            Split.HELD_OUT: _part("test", folder, layout.test, layout, dataset.labelling),
        },
        shape=(SIDE, SIDE, 3),
        official="test",
    )


def _found_in(place: Path, dataset: CifarDataset) -> Found | None:
    for layout in dataset.layouts:
        for folder in _folders_in(place, layout):
            if not _missing(folder, layout):
                return Found(layout, folder)
    for layout in dataset.layouts:
        if (place / layout.archive).is_file():
            return Found(layout, place / layout.archive)
    return None


def _refuse_half(place: Path, dataset: CifarDataset) -> None:
    for layout in dataset.layouts:
        for folder in _folders_in(place, layout):
            missing = _missing(folder, layout)
            if len(missing) < len(layout.caps):
                raise DataError(
                    f"{dataset.name} in {folder}: {', '.join(missing)} not found; put all "
                    f"{len(layout.caps)} files there, or {layout.archive} beside the folder"
                )


def _folders_in(place: Path, layout: ArchiveLayout) -> list[Path]:
    # The user may have named the very folder.
    itself = [place] if place.name == layout.folder else []
    return [place / layout.folder, *itself]


def _missing(folder: Path, layout: ArchiveLayout) -> list[str]:
    return [name for name in layout.caps if not (folder / name).is_file()]


def _part(
    prefix: str, folder: Path, names: tuple[str, ...], layout: ArchiveLayout, labelling: Labelling
) -> Part:
    files = tuple(folder / name for name in names)
    stamps = tuple(stamp(file) for file in files)
    read = partial(_read, files, layout, labelling)
    # The labels stand among the pictures; every process that trains would read them all again.
    key = cache.key("cifar", labelling.key.decode("ascii"), stamps)
    entry = cache.find(key, "labels")
    if entry is None:
        targets = np.concatenate([batch.targets for batch in read()])
        entry = cache.store(key, targets.shape, (), [targets], "labels")
    return Part(
        prefix=prefix,
        targets=entry.open().astype(np.int64),
        pictures=partial(_pictures, read),
        stamps=stamps,
    )


def _read(
    files: tuple[Path, ...], layout: ArchiveLayout, labelling: Labelling
) -> Iterator[CifarBatch]:
    """Yield the content of one file after the other, so that memory need not hold them all."""
    for file in files:
        yield layout.read_batch(file, labelling)


def _pictures(read: Callable[[], Iterator[CifarBatch]]) -> npt.NDArray[np.uint8]:
    """Return all pictures of the files, one file after the other, N x H x W x C."""
    planes = np.concatenate([batch.pixels for batch in read()])
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _labels(folder: Path, layout: ArchiveLayout, labelling: Labelling) -> tuple[str, ...]:
    """Return the official names of the labels, from the file that came with the pictures."""
    own = [name for name in layout.names if name == labelling.names_file]
    path = folder / (own or layout.names)[0]
    names = layout.read_names(path, labelling)
    labels = [name.decode("utf-8", "backslashreplace") for name in names if type(name) is bytes]
    if len(names) != labelling.classes or len(set(labels)) != labelling.classes:
        raise DataError(
            f"{path}: {len(set(labels))} names of classes, expected {labelling.classes}; {AGAIN}"
        )
    for label in labels:
        check_label(label, str(path))
    return tuple(labels)


_CIFAR10 = (
    ArchiveLayout(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        names=("batches.meta",),
        read_batch=read_pickled_batch,
        read_names=read_pickled_names,
    ),
    ArchiveLayout(
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test=("test_batch.bin",),
        names=("batches.meta.txt",),
        read_batch=read_binary_batch,
        read_names=read_binary_names,
    ),
)
_CIFAR100 = (
    ArchiveLayout(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        train=("train",),
        test=("test",),
        names=("meta",),
        read_batch=read_pickled_batch,
        read_names=read_pickled_names,
    ),
    ArchiveLayout(
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        train=("train.bin",),
        test=("test.bin",),
        names=("fine_label_names.txt", "coarse_label_names.txt"),
        read_batch=read_binary_batch,
        read_names=read_binary_names,
    ),
)
CIFAR10 = CifarDataset(
    name="cifar10",
    about="CIFAR-10: 60,000 photographs of ten kinds of things, 32x32 colour, official test split",
    home="cifar10",
    layouts=_CIFAR10,
    labelling=Labelling(
        classes=10,
        key=b"labels",
        names_key=b"label_names",
        names_file="batches.meta.txt",
        columns=1,
        column=0,
    ),
)
CIFAR100 = CifarDataset(
    name="cifar100",
    about="CIFAR-100: 60,000 photographs of 100 kinds, 32x32 colour, official test split",
    home="cifar100",
    layouts=_CIFAR100,
    labelling=Labelling(
        classes=100,
        key=b"fine_labels",
        names_key=b"fine_label_names",
        names_file="fine_label_names.txt",
        columns=2,
        column=1,
    ),
)
CIFAR100_COARSE = CifarDataset(
    name="cifar100-coarse",
    about="CIFAR-100 by its 20 superclasses, 32x32 colour, official test split",
    home="cifar100",
    layouts=_CIFAR100,
    labelling=Labelling(
        classes=20,
        key=b"coarse_labels",
        names_key=b"coarse_label_names",
        names_file="coarse_label_names.txt",
        columns=2,
        column=0,
    ),
)
CIFAR_DATASETS = {dataset.name: dataset for dataset in (CIFAR10, CIFAR100, CIFAR100_COARSE)}
