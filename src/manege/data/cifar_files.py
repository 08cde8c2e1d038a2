"""Reads the files of CIFAR: pictures and names of labels, as pickles or as plain records.

A file is read whole or refused: an error names the file whose pictures have another size, whose
labels lie beyond the classes, or whose labels and pictures differ in number. Which files make a
dataset is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from manege.data.arrays import read_file
from manege.data.labels import printable
from manege.data.unpickling import read_pickle
from manege.errors import DataError

SIDE = 32
MOST_BYTES = 256 << 20
"""The most bytes that a file of pictures may have: the largest official one has 155 MB."""
MOST_NAMES_BYTES = 1 << 20
AGAIN = "get the file again"

_PIXELS = 3 * SIDE**2
_T = TypeVar("_T")


@dataclass(frozen=True)
class Labelling:
    """Which of its labels a picture goes by, and where either layout keeps them."""

    classes: int
    key: bytes
    """The key of the labels in a pickle of pictures."""
    names_key: bytes
    """The key of the labels' names in the pickle of names."""
    names_file: str
    """The file of the labels' names in the binary layout: a line each."""
    columns: int
    """Bytes before the pixels of a binary record, each a label."""
    column: int
    """Which of these bytes is the label used here."""


@dataclass(frozen=True)
class CifarBatch:
    """The pictures of a file, each a row of planes R, G, B, and their labels."""

    pixels: npt.NDArray[np.uint8]
    targets: npt.NDArray[np.uint8]


def read_pickled_batch(path: Path, labelling: Labelling) -> CifarBatch:
    """Return the pictures of a pickle, with the labels that the labelling chooses."""
    told = read_pickle(path, MOST_BYTES)
    pixels = _value(path, told, b"data", np.ndarray)
    targets = _value(path, told, labelling.key, list)
    if pixels.shape[1] != _PIXELS:
        raise DataError(
            f"{path}: data has rows of {pixels.shape[1]} bytes, expected {_PIXELS}; {AGAIN}"
        )
    if len(targets) != len(pixels):
        raise DataError(
            f"{path}: {len(targets)} labels, expected {len(pixels)}, one for each picture; {AGAIN}"
        )
    for place, target in enumerate(targets):
        if type(target) is not int or not 0 <= target < labelling.classes:
            raise _bad_label(path, place, target, labelling)
    return CifarBatch(pixels, np.array(targets, dtype=np.uint8))


def read_pickled_names(path: Path, labelling: Labelling) -> Sequence[object]:
    """Return the entries of the pickle of names, which need not be text."""
    told = read_pickle(path, MOST_NAMES_BYTES)
    names: list[object] = _value(path, told, labelling.names_key, list)
    return names


def _value(path: Path, told: dict[bytes, object], key: bytes, kind: type[_T]) -> _T:
    found = told.get(key)
    if not isinstance(found, kind):
        what = f"a {type(found).__name__} as" if key in told else "no"
        keys = ", ".join(sorted(printable(one.decode("latin-1")) for one in told)) or "nothing"
        raise DataError(
            f"{path}: {what} {key.decode('ascii')}, expected a {kind.__name__}; it holds "
            f"{keys[:200]}; {AGAIN}"
        )
    return found


def read_binary_batch(path: Path, labelling: Labelling) -> CifarBatch:
    """Return the pictures of plain records, with the labels that the labelling chooses."""
    content = read_file(path, MOST_BYTES)
    length = labelling.columns + _PIXELS
    if not content or len(content) % length:
        raise DataError(
            f"{path}: {len(content)} bytes, expected a multiple of {length}, for each picture's "
            f"label and pixels; {AGAIN}"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, length)
    targets = records[:, labelling.column]
    wrong = np.flatnonzero(targets >= labelling.classes)
    if wrong.size:
        raise _bad_label(path, int(wrong[0]), int(targets[wrong[0]]), labelling)
    return CifarBatch(records[:, labelling.columns :], targets.copy())


def read_binary_names(path: Path, labelling: Labelling) -> Sequence[object]:
    """Return the labels' names in a text file, one from each line."""
    return [line.strip() for line in read_file(path, MOST_NAMES_BYTES).splitlines() if line.strip()]


def _bad_label(path: Path, place: int, found: object, labelling: Labelling) -> DataError:
    shown = found if isinstance(found, int) else f"a {type(found).__name__}"
    return DataError(
        f"{path}: label {shown} at place {place}, expected 0 to {labelling.classes - 1}; {AGAIN}"
    )
