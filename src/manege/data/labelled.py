"""Reads image folders whose labels stand in a ``labels.csv``.

The table says which picture has which label and, in a column ``split``, which ones are held out;
where it lies beside folders of classes, it wins over them. Everything else is as in any image
folder: pictures are decoded class by class, and nothing of another class is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manege.data.arrays import stamp
from manege.data.folder import (
    HELD_OUT,
    TRAIN,
    FolderSource,
    Listing,
    files,
    open_folder,
    subfolders,
    walk,
)
from manege.data.labels import natural, printable
from manege.data.split import Split
from manege.data.table import TABLE, LabelRow, read_table
from manege.errors import DataError

_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class LabelledSource(FolderSource):
    """An image folder whose classes are listed in a table, decoded class by class.

    The parts are the folders that the tables' files are relative to; both may be the same.
    """

    pictures: Mapping[tuple[str, Split], Listing]
    tables: Mapping[Split, tuple[str, int, int]]
    """The path, size and time of change of each table, from before it was read."""

    def left_out(self) -> tuple[str, ...]:
        """Return the pictures that no table could list; those merely not listed are not meant."""
        folders = tuple(self.parts.values())
        return tuple(
            name
            for name in walk(self.root).pictures
            if not any((self.root / name).is_relative_to(folder) for folder in folders)
        )

    def ignored(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the files beside the tables that these do not list, whatever the chosen labels."""
        meant = {
            self.parts[split] / name
            for (_, split), listing in self.pictures.items()
            for name in listing.pictures
        }
        meant |= {Path(table[0]) for table in self.tables.values()}
        stray = [self.root / name for name in files(self.root)]
        for folder in dict.fromkeys(self.parts.values()):
            below = walk(folder)
            stray += [folder / name for name in (*below.pictures, *below.ignored)]
        return tuple(
            path.relative_to(self.root).as_posix()
            for path in dict.fromkeys(stray)
            if path not in meant
        )

    def stamps(self, label: str, split: Split, names: tuple[str, ...]) -> list[Any]:
        """Return path, size and time of change of the table and of each file."""
        table = self.tables.get(split, self.tables[Split.TRAIN])
        return [table, *super().stamps(label, split, names)]

    def _listing(self, label: str, split: Split) -> Listing:
        return self.pictures.get((label, split), Listing((), ()))

    def _path(self, label: str, split: Split, name: str) -> Path:
        return self.parts.get(split, self.parts[Split.TRAIN]) / name


def open_images(path: Path) -> FolderSource:
    """Return the dataset in that folder: by its table if it has one, else by its class folders."""
    return open_labelled(path) or open_folder(path)


def open_labelled(path: Path) -> LabelledSource | None:
    """Return the dataset that a ``labels.csv`` in the folder or its ``train/`` lists; None without.

    With one in ``train/`` the first of ``test/``, ``val/``, ``validation/`` that has one too is
    held out. A column ``split`` says the same of files in one folder: whatever is not ``train`` is
    held out.
    """
    root = path.absolute()
    parts = _parts(root)
    if not parts:
        return None
    tables = {split: stamp(folder / TABLE) for split, folder in parts.items()}
    rows = {split: read_table(folder / TABLE) for split, folder in parts.items()}
    if Split.HELD_OUT in parts:
        official: str | None = parts[Split.HELD_OUT].name
        for split, folder in parts.items():
            _require_split(folder / TABLE, rows[split], split)
    else:
        folder = parts[Split.TRAIN]
        rows, official = _divided(folder / TABLE, rows[Split.TRAIN])
        parts = dict.fromkeys(rows, folder)
        tables = dict.fromkeys(rows, tables[Split.TRAIN])
    for split, folder in parts.items():
        _require_files(folder, rows[split])
    pictures = {
        key: Listing(natural(names), ())
        for split, listed_rows in rows.items()
        for key, names in _by_label(listed_rows, split).items()
    }
    return LabelledSource(
        name=root.resolve().name,
        labels=natural({label for label, _ in pictures}),
        root=root,
        parts=parts,
        official=official,
        pictures=pictures,
        tables=tables,
    )


def _parts(root: Path) -> dict[Split, Path]:
    """Return the folder with a table of each split; none if there is no table to go by."""
    if (root / TABLE).is_file():
        return {Split.TRAIN: root}
    train = root / TRAIN
    if not (train / TABLE).is_file():
        return {}
    beside = [root / name for name in HELD_OUT if (root / name).is_dir()]
    for folder in beside:
        if (folder / TABLE).is_file():
            return {Split.TRAIN: train, Split.HELD_OUT: folder}
    # A test folder of pictures alone has no labels; one of classes has, and would be lost.
    for folder in beside:
        if subfolders(folder):
            raise DataError(
                f"{printable(folder)}: subfolders but no {TABLE}, expected one as "
                f"{printable(train)} has; write one there, or take that one away"
            )
    return {Split.TRAIN: train}


def _require_split(table: Path, rows: Sequence[LabelRow], split: Split) -> None:
    """Refuse a column ``split`` that contradicts the folders."""
    for row in rows:
        if row.split is not None and (row.split == TRAIN) != (split is Split.TRAIN):
            raise DataError(
                f"{printable(table)}: line {row.line} says split {row.split}, but the file is in "
                f"{table.parent.name}/; expected the same; take the column away or move the file"
            )


def _divided(
    table: Path, rows: Sequence[LabelRow]
) -> tuple[dict[Split, list[LabelRow]], str | None]:
    """Return the rows of each split, and the held-out one's name; all are to train if none says."""
    train = [row for row in rows if row.split in (None, TRAIN)]
    held_out = [row for row in rows if row.split not in (None, TRAIN)]
    if not train:
        raise DataError(
            f"{printable(table)}: no line of split {TRAIN}, expected some; without the column a "
            "tenth is held out"
        )
    if not held_out:
        return {Split.TRAIN: train}, None
    found = {row.split for row in held_out}
    official = " and ".join(name for name in HELD_OUT if name in found)
    return {Split.TRAIN: train, Split.HELD_OUT: held_out}, official


def _by_label(rows: Sequence[LabelRow], split: Split) -> dict[tuple[str, Split], list[str]]:
    names: dict[tuple[str, Split], list[str]] = {}
    for row in rows:
        names.setdefault((row.label, split), []).append(row.file)
    return names


def _require_files(folder: Path, rows: Sequence[LabelRow]) -> None:
    # Listing a folder is faster than asking for each file. A hidden one, one of another suffix, or
    # one that is reached by a second link is not among them, and is asked for.
    seen = set(walk(folder).pictures)
    missing = [row for row in rows if row.file not in seen and not _is_file(folder / row.file)]
    if missing:
        first = missing[0]
        raise DataError(
            f"{printable(folder / TABLE)}: line {first.line} lists "
            f"{printable(first.file[:_SHOWN])}, which is not there; {len(missing) - 1} more are "
            f"missing; paths are relative to {printable(folder)}; bring the files or take the "
            "lines away"
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name too long for a file, for one.
        return False
