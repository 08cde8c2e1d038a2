"""Reads sets of pictures to be measured: a split of a dataset, or what a folder or file holds.

A set is a plain array with labels and a digest; it does not matter who made the pictures.
Training never reads one: it wants classes, a split and sides that the networks can make.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from manege import errors
from manege.config import DataConfig
from manege.data.arrays import POINT, ArraySource
from manege.data.cache import Entry
from manege.data.dataset import Dataset, Source, open_source
from manege.data.decode import Form
from manege.data.folder import FolderSource, open_flat, open_folder
from manege.data.labelled import open_labelled
from manege.data.labels import printable
from manege.data.npz import open_pictures
from manege.data.objects import ObjectSource, object_name, open_object
from manege.data.split import Split
from manege.errors import ConfigError, DataError
from manege.files import user_path

SMALLEST_SIDE, LARGEST_SIDE = 4, 1024


@dataclass(frozen=True)
class PictureSet:
    """Pictures in memory; sets with equal digests hold the same pictures and labels."""

    name: str
    """The name of the dataset, folder or file."""
    split: str
    """``held-out``, ``train`` or ``all``."""
    pictures: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    """The pictures, N x S x S x C."""
    labels: tuple[str, ...] | None = field(repr=False)
    """One label for each picture; None if the set has none."""
    digest: str
    """SHA-256 of pictures, labels and their order, but not of the name."""

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def size(self) -> int:
        """The side of the pictures, 1 for points."""
        return int(self.pictures.shape[1])

    @property
    def channels(self) -> int:
        """The number of channels: 1 grey, 3 colour, 2 for points."""
        return int(self.pictures.shape[3])


@dataclass(frozen=True)
class _Piece:
    """The first rows of a cache entry, all of one label."""

    entry: Entry
    rows: int
    label: str | None


def set_of(
    dataset: Dataset,
    split: Split,
    limit: int | None = None,
    labels: tuple[str, ...] | None = None,
) -> PictureSet:
    """Return a split of a dataset, class after class; empty if that split is.

    Args:
        dataset: opened or surveyed.
        split: which split.
        limit: at most so many pictures in all, from each class in proportion to its number; its
            first ones, which are a fair sample, for they lie in the order of a hash.
        labels: only of these classes.
    """
    chosen = dataset.labels if labels is None else labels
    counts = [len(dataset.names(label, split)) for label in chosen]
    rows = counts if limit is None else _shares(counts, limit)
    pieces = [
        _Piece(dataset.entry(label, split), taken, label)
        for label, taken in zip(chosen, rows, strict=True)
        if taken
    ]
    pictures, digest = _joined(pieces, Form(dataset.size, dataset.channels))
    return PictureSet(dataset.name, split.value, pictures, _labels(pieces), digest)


def read_set(source: Path, *, size: int | None = None, channels: int | None = None) -> PictureSet:
    """Return all pictures of a folder, an .npz file or an object, whoever made them.

    Args:
        source: a folder with a labels.csv (the pictures it lists), with a subfolder a class, or
            with train/ and test/ (joined), or of pictures alone (no labels); an .npz with images,
            maybe labels; or the source of an object that is in the cache.
        size: bring them to this side; None expects that all have the same.
        channels: bring them to grey or colour; None is grey where all are.
    """
    opened, labelled = _open(source)
    # The configuration decides nothing here: all classes, no limit, and the form is given.
    dataset = Dataset(opened, DataConfig(source="-"), _form(opened, source, size, channels))
    # Held out first: a class without an official split then lies in the order of the hash.
    pieces = [
        _Piece(dataset.entry(label, split), len(names), label if labelled else None)
        for label in dataset.labels
        for split in (Split.HELD_OUT, Split.TRAIN)
        if (names := dataset.names(label, split))
    ]
    pictures, digest = _joined(pieces, Form(dataset.size, dataset.channels))
    labels = _labels(pieces) if labelled else None
    return PictureSet(dataset.name, "all", pictures, labels, digest)


def survey_measured(config: DataConfig, size: int | None, channels: int | None) -> Dataset:
    """Return the dataset that the configuration names, to be measured: its side may be any.

    Args:
        config: what to open; its own size and channels do not count.
        size: bring the pictures to this side; None expects that all have the same.
        channels: bring them to grey or colour; None is grey where all are.
    """
    source = open_source(config)
    return Dataset(source, config, _form(source, Path(config.source), size, channels))


def has_labels(source: Path) -> bool:
    """Return whether a folder or an .npz file says what its pictures show."""
    return _open(source)[1]


def _shares(counts: Sequence[int], limit: int) -> list[int]:
    """Divide at most ``limit`` in proportion, the rest to the largest remainders (Hamilton)."""
    total = sum(counts)
    if limit >= total:
        return list(counts)
    shares = [limit * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda place: -(limit * counts[place] % total))
    for place in by_remainder[: limit - sum(shares)]:
        shares[place] += 1
    return shares


def _joined(pieces: Sequence[_Piece], form: Form) -> tuple[npt.NDArray[np.uint8], str]:
    """Return the pieces' pictures in one array, and the digest of the set."""
    total = sum(piece.rows for piece in pieces)
    pictures = np.empty((total, form.size, form.size, form.channels), dtype=np.uint8)
    told = []
    start = 0
    for piece in pieces:
        rows = pictures[start : start + piece.rows]
        rows[:] = piece.entry.open()[: piece.rows]
        start += piece.rows
        # A whole entry's digest is known, and is the same as that of its bytes.
        whole = piece.rows == piece.entry.shape[0]
        digest = piece.entry.sha256 if whole else hashlib.sha256(rows.data).hexdigest()
        told.append((piece.label, piece.rows, digest))
    spelled = json.dumps([form.size, form.channels, told])
    return pictures, hashlib.sha256(spelled.encode("ascii")).hexdigest()


def _labels(pieces: Sequence[_Piece]) -> tuple[str, ...]:
    return tuple(str(piece.label) for piece in pieces for _ in range(piece.rows))


def _open(path: Path) -> tuple[Source, bool]:
    """Return the source at a path, or of an object, and whether it has labels."""
    if object_name(str(path)) is not None:
        return open_object(str(path)), True
    path = user_path(path)
    if path.is_dir():
        return _open_folder(path)
    expected = "expected a folder of pictures or an .npz file"
    if not path.exists():
        raise DataError(f"{printable(path)}: no such file or folder; {expected}")
    if not path.is_file() or path.suffix.lower() != ".npz":
        raise DataError(f"{printable(path)}: a file, but no .npz; {expected}")
    return open_pictures(path)


def _open_folder(path: Path) -> tuple[FolderSource, bool]:
    source: FolderSource | None = open_labelled(path)
    place = "below no labels.csv"
    if source is None:
        flat = open_flat(path)
        if flat is not None:
            return flat, False
        source = open_folder(path)
        place = "in no class folder"
    left_out = source.left_out()
    if left_out:
        raise DataError(
            f"{printable(path)}: {len(left_out)} pictures are {place}, "
            f"{printable(left_out[0])} for one; move them away, or name a folder that has only "
            "class folders or only pictures"
        )
    return source, True


def _form(source: Source, path: Path, size: int | None, channels: int | None) -> Form:
    """Return the form asked for, completed from what the pictures are."""
    if isinstance(source, ObjectSource):
        path = Path(source.name)
    points = isinstance(source, ArraySource) and source.shape == POINT
    if points or (size, channels) == (1, 2):
        return _form_of_points(path, size, channels, found=points)
    if size is not None and not SMALLEST_SIDE <= size <= LARGEST_SIDE:
        raise ConfigError(
            f"{errors.field('size')} {size}: expected {SMALLEST_SIDE} to {LARGEST_SIDE}"
        )
    if channels not in (None, 1, 3):
        raise ConfigError(f"{errors.field('channels')} {channels}: expected 1 (grey) or 3 (colour)")
    if size is not None and channels is not None:
        return Form(size, channels)
    sides: Counter[tuple[int, int]] = Counter()
    grey = True
    for header in source.every_header():
        sides[header.width, header.height] += 1
        grey = grey and header.grey
    return Form(size or _side(path, sides), channels or (1 if grey else 3))


def _form_of_points(path: Path, size: int | None, channels: int | None, *, found: bool) -> Form:
    if found and size in (None, 1) and channels in (None, 2):
        return Form(1, 2)
    both = ("points", "pictures") if found else ("pictures", "points")
    raise DataError(
        f"{printable(path)}: holds {both[0]}, expected {both[1]}; give a file of {both[1]}, "
        f"or leave out {errors.field('size')} and {errors.field('channels')}"
    )


def _side(path: Path, sides: Counter[tuple[int, int]]) -> int:
    """Return the one side that all pictures have; raise DataError if they differ."""
    (side, count), *others = sides.most_common(2)
    found = f"{count} are {side[0]}x{side[1]}"
    if others:
        (other, other_count) = others[0]
        raise DataError(
            f"{printable(path)}: pictures of differing sizes, {found} and {other_count} are "
            f"{other[0]}x{other[1]}; expected one side for all; give {errors.field('size')} to "
            "bring them to one"
        )
    if side[0] != side[1] or not SMALLEST_SIDE <= side[0] <= LARGEST_SIDE:
        raise DataError(
            f"{printable(path)}: pictures of {side[0]}x{side[1]}, expected squares with a side of "
            f"{SMALLEST_SIDE} to {LARGEST_SIDE}; give {errors.field('size')} to bring them to one"
        )
    return side[0]
