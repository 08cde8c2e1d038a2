"""Reads the table ``labels.csv``: which picture file has which label, and maybe which split.

A line that could be understood in two ways is refused with its number. Whether the files exist is
not checked here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from manege.data.arrays import read_file
from manege.data.folder import HELD_OUT, TRAIN
from manege.data.labels import check_label, listed, printable
from manege.errors import DataError

TABLE = "labels.csv"

_FILE = ("file", "filename", "image", "path")
_LABEL = ("label", "class", "category")
_SPLIT = ("split",)
_MOST_BYTES = 256 << 20
_HEADER = (
    f"expected a first line that names the columns, separated by commas: {_FILE[0]} (or "
    f"{', '.join(_FILE[1:])}), {_LABEL[0]} (or {', '.join(_LABEL[1:])}), maybe {_SPLIT[0]}"
)


@dataclass(frozen=True)
class LabelRow:
    """A line of the table."""

    line: int
    file: str
    """The file's path relative to the table's folder, with forward slashes."""
    label: str
    split: str | None
    """The split: ``train``, ``test``, ``val`` or ``validation``; None without such a column."""


def read_table(path: Path) -> list[LabelRow]:
    """Return the table's rows in their order, each file once."""
    lines = _lines(path)
    if not lines:
        raise DataError(f"{printable(path)}: an empty file; {_HEADER}")
    (_, header), *body = lines
    names = [name.strip().casefold() for name in header]
    file, label = (_column(path, names, kind) for kind in (_FILE, _LABEL))
    split = _column(path, names, _SPLIT) if _SPLIT[0] in names else None
    rows: dict[str, LabelRow] = {}
    for line, fields in body:
        where = f"{printable(path)}: line {line}"
        if len(fields) != len(names):
            raise DataError(
                f"{where} has {len(fields)} fields, expected {len(names)} as the header has; "
                "put a field that holds a comma into quotes"
            )
        row = LabelRow(
            line,
            _relative(fields[file], where),
            fields[label].strip(),
            None if split is None else _split(fields[split], where),
        )
        _check_row_label(row, where)
        first = rows.setdefault(row.file, row)
        if (first.label, first.split) != (row.label, row.split):
            raise DataError(
                f"{where} lists {printable(row.file)} as {_told(row)}, line {first.line} as "
                f"{_told(first)}; expected every file once; keep the line that is right"
            )
    if not rows:
        raise DataError(f"{printable(path)}: a header and no line below; list the pictures there")
    return list(rows.values())


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return the table's lines as numbers and fields, without blank ones."""
    content = read_file(path, _MOST_BYTES)
    try:
        # Spreadsheets put a mark in front of UTF-8; "-sig" takes it off.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{printable(path)}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        return [(reader.line_num, fields) for fields in reader if fields]
    except csv.Error as error:
        raise DataError(
            f"{printable(path)}: line {reader.line_num} cannot be read ({error}); mend its quotes"
        ) from error


def _column(path: Path, names: Sequence[str], kind: Sequence[str]) -> int:
    found = [place for place, name in enumerate(names) if name in kind]
    if len(found) != 1:
        what = f"{len(found)} columns" if found else "no column"
        raise DataError(
            f"{printable(path)}: {what} for the {kind[0]} among {listed(names)}; {_HEADER}; "
            "or give the file another name if it is no table of pictures"
        )
    return found[0]


def _relative(name: str, where: str) -> str:
    """Return the file's path in its shortest spelling: no file is to be listed twice unnoticed."""
    path = PurePosixPath(name)
    if not path.parts or "\0" in name:
        raise DataError(f"{where}: {printable(repr(name))} is no file's name; name a picture")
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise DataError(
            f"{where}: {printable(name)}, expected a path below the folder of {TABLE}, with "
            "forward slashes; neither an absolute one nor one with .."
        )
    return path.as_posix()


def _split(value: str, where: str) -> str:
    split = value.strip().casefold()
    if split not in (TRAIN, *HELD_OUT):
        raise DataError(
            f"{where}: split {printable(repr(value))}, expected {TRAIN} or {', '.join(HELD_OUT)}; "
            "fill it in, or take the column away"
        )
    return split


def _check_row_label(row: LabelRow, where: str) -> None:
    if not row.label:
        raise DataError(
            f"{where}: {printable(row.file)} has an empty label, expected one; fill it in or take "
            "the line away"
        )
    check_label(row.label, where)


def _told(row: LabelRow) -> str:
    return repr(row.label) if row.split is None else f"{row.label!r} of {row.split}"
