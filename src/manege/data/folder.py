"""Reads image folders: a subfolder for each class, picture files anywhere below it.

Folders are listed when asked for, files opened one class at a time: nothing of another class is
read to load one. Never follows a link in circles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from manege.data import decode
from manege.data.arrays import stamp
from manege.data.decode import SUFFIXES, Broken, Form, PictureHeader
from manege.data.labels import check_label, natural, printable
from manege.data.split import Split
from manege.errors import DataError, MachineError

TRAIN = "train"
HELD_OUT = ("test", "val", "validation")
"""Folder names of an official held-out part, in the order of preference."""


class Kind(Enum):
    """What a name in a folder leads to, links followed."""

    FOLDER = auto()
    FILE = auto()
    OTHER = auto()
    """A broken link, a pipe or a device: opening it may fail or wait for ever."""


@dataclass(frozen=True)
class Listing:
    """Files below a folder, as paths relative to it with forward slashes, in natural order."""

    pictures: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class FolderSource:
    """An image folder, which is decoded class by class."""

    name: str
    labels: tuple[str, ...]
    root: Path
    parts: Mapping[Split, Path]
    """The folder of each split, whose subfolders are the classes."""
    official: str | None
    """The name of the split that came with the data; None if it has none."""
    _listings: dict[Path, Listing] = field(default_factory=dict, compare=False)

    @property
    def together(self) -> bool:
        """Always false: a class is decoded when it is asked for."""
        return False

    def found(self, label: str, split: Split) -> tuple[str, ...]:
        """Return the names of that label's picture files in that split."""
        return self._listing(label, split).pictures

    def count(self, label: str, split: Split) -> int:
        """Return how many pictures :meth:`found` would name."""
        return len(self.found(label, split))

    def headers(self, labels: tuple[str, ...]) -> list[PictureHeader]:
        """Return the header of each class's first picture; loading will report broken ones."""
        headers = []
        for label in labels:
            for name in self.found(label, Split.TRAIN)[:1]:
                try:
                    headers.append(decode.read_header(self._path(label, Split.TRAIN, name)))
                except Broken:
                    continue
        return headers

    def every_header(self) -> Iterator[PictureHeader]:
        """Yield the header of every picture; raise DataError for a broken one."""
        for split in self.parts:
            for label in self.labels:
                for name in self.found(label, split):
                    path = self._path(label, split, name)
                    try:
                        yield decode.read_header(path)
                    except Broken as error:
                        raise DataError(
                            f"{printable(path)}: {printable(error)}; mend or remove it"
                        ) from error

    def left_out(self) -> tuple[str, ...]:
        """Return the pictures below the root that are in no class folder of any split."""
        classes = tuple(
            f"{(folder / label).relative_to(self.root).as_posix()}/"
            for folder in self.parts.values()
            for label in self.labels
        )
        return tuple(name for name in walk(self.root).pictures if not name.startswith(classes))

    def ignored(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the files that are no pictures by their suffix, or lie outside any class."""
        stray = []
        for folder in dict.fromkeys((self.root, *self.parts.values())):
            stray += [(folder / name).relative_to(self.root) for name in files(folder)]
        for split, folder in self.parts.items():
            for label in labels:
                below = (folder / label).relative_to(self.root)
                stray += [below / name for name in self._listing(label, split).ignored]
        return tuple(path.as_posix() for path in stray)

    def stamps(self, label: str, split: Split, names: tuple[str, ...]) -> list[Any]:
        """Return path, size and time of change of each file."""
        return [stamp(self._path(label, split, name)) for name in names]

    def decode(
        self, wanted: Mapping[str, tuple[str, ...]], split: Split, form: Form
    ) -> Iterator[tuple[str, Iterator[npt.NDArray[np.uint8]]]]:
        """Yield each label, and blocks of its wanted pictures in the order of their names."""
        for label, names in wanted.items():
            yield label, self._blocks(label, names, split, form)

    def inspect(
        self, wanted: Mapping[str, tuple[str, ...]], split: Split
    ) -> Iterator[tuple[str, str, PictureHeader | str]]:
        """Yield label, name and header of each wanted picture, or why it is broken."""
        for label, names in wanted.items():
            for name in names:
                try:
                    yield label, name, decode.inspect(self._path(label, split, name))
                except Broken as error:
                    yield label, name, str(error)

    def _blocks(
        self, label: str, names: tuple[str, ...], split: Split, form: Form
    ) -> Iterator[npt.NDArray[np.uint8]]:
        for place, name in enumerate(names):
            path = self._path(label, split, name)
            try:
                picture = decode.decode(path, form)
            except Broken as error:
                rest = [self._path(label, split, other) for other in names[place + 1 :]]
                more = sum(_is_broken(other, form) for other in rest)
                raise DataError(
                    f"{printable(path)}: {printable(error)}; "
                    f"{more} more of class {label!r} {'is' if more == 1 else 'are'} broken; "
                    "run `manege data check` and mend or remove them"
                ) from error
            yield picture[np.newaxis]

    def _listing(self, label: str, split: Split) -> Listing:
        folder = self.parts[split] / label
        if folder not in self._listings:
            self._listings[folder] = walk(folder)
        return self._listings[folder]

    def _path(self, label: str, split: Split, name: str) -> Path:
        # Without an official split both parts lie in the one folder there is.
        return self.parts.get(split, self.parts[Split.TRAIN]) / label / name


def open_folder(path: Path) -> FolderSource:
    """Return the dataset in that folder."""
    root = path.absolute()
    parts, official = _layout(root)
    labels = natural({label for folder in parts.values() for label in subfolders(folder)})
    if not labels:
        folder = parts[Split.TRAIN]
        loose = [name for name in files(folder) if Path(name).suffix.lower() in SUFFIXES]
        if loose:
            raise DataError(
                f"{printable(folder)}: {len(loose)} pictures but no subfolders; "
                "put each class in its own subfolder, or name file and label in a labels.csv"
            )
        raise DataError(
            f"{printable(folder)}: an empty folder; expected a subfolder with pictures for "
            "each class"
        )
    for label in labels:
        check_label(label, f"{printable(root)}: a class folder")
    return FolderSource(
        name=root.resolve().name, labels=labels, root=root, parts=parts, official=official
    )


def open_flat(path: Path) -> FolderSource | None:
    """Return the pictures directly in that folder as one class; None if some lie deeper."""
    root = path.absolute()
    listing = walk(root)
    if not listing.pictures:
        found = f"{len(listing.ignored)} files, none a picture" if listing.ignored else "no file"
        raise DataError(
            f"{printable(path)}: {found}; expected PNG, JPEG, BMP or WebP pictures, or a "
            "subfolder of them for each class"
        )
    if any("/" in name for name in listing.pictures):
        return None
    return FolderSource(
        name=root.resolve().name,
        labels=(root.name,),
        root=root,
        # The class folder is the folder itself.
        parts={Split.TRAIN: root.parent},
        official=None,
        _listings={root.parent / root.name: listing},
    )


def _layout(root: Path) -> tuple[dict[Split, Path], str | None]:
    """Return the folders of each split's classes, and the official held-out one's name if any."""
    visible = subfolders(root)
    classes = subfolders(root / TRAIN) if TRAIN in visible else []
    # A class may be called "train": only one with subfolders can be the training part.
    if not classes:
        return {Split.TRAIN: root}, None
    beside = [name for name in HELD_OUT if name in visible]
    for name in beside:
        # A test folder without labels, as contests give them, is no held-out part.
        if set(classes) & set(subfolders(root / name)):
            return {Split.TRAIN: root / TRAIN, Split.HELD_OUT: root / name}, name
    if beside or visible == [TRAIN]:
        return {Split.TRAIN: root / TRAIN}, None
    return {Split.TRAIN: root}, None


def walk(folder: Path) -> Listing:
    """Return every file below the folder; follow links, but enter each folder once."""
    pictures: list[str] = []
    ignored: list[str] = []
    entered: set[Path] = set()
    waiting = [folder] if folder.is_dir() else []
    while waiting:
        current = waiting.pop()
        if current.resolve() in entered:
            continue
        entered.add(current.resolve())
        for entry in sorted(_scan(current), key=lambda entry: entry.name, reverse=True):
            kind = _kind(entry)
            if kind is Kind.FOLDER:
                waiting.append(Path(entry.path))
                continue
            wanted = kind is Kind.FILE and Path(entry.name).suffix.lower() in SUFFIXES
            name = Path(entry.path).relative_to(folder).as_posix()
            (pictures if wanted else ignored).append(name)
    return Listing(natural(pictures), natural(ignored))


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders directly in it, links followed."""
    return sorted(entry.name for entry in _scan(folder) if _kind(entry) is Kind.FOLDER)


def files(folder: Path) -> list[str]:
    """Return the names of everything else directly in it."""
    return sorted(entry.name for entry in _scan(folder) if _kind(entry) is not Kind.FOLDER)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """Return the folder's entries, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise MachineError(
            f"{printable(folder)}: cannot be listed ({error.strerror}); check its permissions"
        ) from error


def _kind(entry: os.DirEntry[str]) -> Kind:
    try:
        folder, file = entry.is_dir(), entry.is_file()
    except OSError:
        # A link to itself, for one.
        return Kind.OTHER
    return Kind.FOLDER if folder else Kind.FILE if file else Kind.OTHER


def _is_broken(path: Path, form: Form) -> bool:
    try:
        decode.decode(path, form)
    except Broken:
        return True
    return False
