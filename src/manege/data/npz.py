"""Reads a dataset in an .npz file: ``images``, ``labels``, maybe ``test_images``, ``test_labels``.

Opening reads the labels and the header of the pictures; nothing is ever unpickled. What an
array's header claims must be in the file, or nothing is read. Labels may be missing, and pictures
be points, only where nothing is to be trained.
"""

from __future__ import annotations

import contextlib
import io
import math
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from manege.data.arrays import (
    POINT,
    UNZIPPED,
    ArraySource,
    Part,
    decoding,
    require_room,
    stamp,
)
from manege.data.labels import check_label, listed, natural, printable
from manege.data.split import Split
from manege.errors import DataError

_KEYS = {Split.TRAIN: ("images", "labels"), Split.HELD_OUT: ("test_images", "test_labels")}
_SHAPES = "(N, H, W), (N, H, W, 1 or 3) or (N, 1 or 3, H, W)"
_NO_LABEL = "all"
_WIDEST_LABEL = 4096
"""The most bytes of a label in its array, where a character takes one or four."""
_MOST_HEADER = 10_000
"""The most bytes of an array's header, as numpy limits it."""
_CHUNK = 1 << 20
_BLOCK = 1024
_SHOWN = 100


class _Header(NamedTuple):
    """What an array's header claims, and how much of it the file can hold."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]
    held: int
    """Bytes in the file, but no more than its packed ones can unzip to."""

    @property
    def claimed(self) -> int:
        """Bytes that the array would take."""
        return math.prod(self.shape) * self.dtype.itemsize


class _Column(NamedTuple):
    """The labels of a split, each once, and for every picture the position of its label."""

    labels: list[str]
    places: npt.NDArray[np.int64]


def open_npz(path: Path) -> ArraySource:
    """Return the dataset in that file, to be trained on."""
    present = _members(path)
    _require(path, present, "images", "labels")
    half = [key for key in _KEYS[Split.HELD_OUT] if key in present]
    if len(half) == 1:
        raise DataError(
            f"{path}: {half[0]!r} stands alone; expected test_images and test_labels, or neither"
        )
    source = _open(path, tuple(Split) if half else (Split.TRAIN,), labelled=True)
    if source.shape == POINT:
        raise DataError(f"{path}: images are points, (N, 1, 1, 2), expected {_SHAPES}")
    return source


def open_pictures(path: Path) -> tuple[ArraySource, bool]:
    """Return the pictures or points in that file, and whether it has labels for them."""
    present = _members(path)
    _require(path, present, "images")
    splits = tuple(split for split in Split if _KEYS[split][0] in present)
    labels = [_KEYS[split][1] for split in splits]
    labelled = [key for key in labels if key in present]
    if labelled and labelled != labels:
        missing = next(key for key in labels if key not in present)
        raise DataError(f"{path}: {labelled[0]!r} without {missing!r}; expected both or neither")
    return _open(path, splits, labelled=bool(labelled)), bool(labelled)


def _require(path: Path, present: set[str], *keys: str) -> None:
    for key in keys:
        if key not in present:
            wanted = ", ".join(f"{one}=..." for one in keys)
            raise DataError(
                f"{path}: no array {key!r}, found {listed(sorted(present)) or 'none'}; "
                f"save it with numpy.savez(file, {wanted})"
            )


def _open(path: Path, splits: tuple[Split, ...], *, labelled: bool) -> ArraySource:
    """Return those splits of the file; as one class if it has no labels."""
    shapes = {split: _picture_shape(path, _KEYS[split][0]) for split in splits}
    for shape in shapes.values():
        require_room(path, shape[0])
    columns = {
        split: _read_labels(path, _KEYS[split][1], shapes[split][0])
        if labelled
        else _Column([_NO_LABEL], np.zeros(shapes[split][0], dtype=np.int64))
        for split in splits
    }
    if len({shape[1:] for shape in shapes.values()}) > 1:
        raise DataError(
            f"{path}: images are {shapes[Split.TRAIN][1:]} and test_images "
            f"{shapes[Split.HELD_OUT][1:]} (height, width, channels); expected the same"
        )
    if shapes[Split.TRAIN][0] == 0:
        raise DataError(f"{path}: no pictures in images, expected some")
    found = {label for column in columns.values() for label in column.labels}
    for label in sorted(found):
        check_label(label, f"{path}: labels")
    labels = natural(found)
    places = {label: place for place, label in enumerate(labels)}
    parts = {
        split: Part(
            prefix=_KEYS[split][0],
            targets=_targets(columns[split], places),
            pictures=partial(_read_pictures, path, _KEYS[split][0]),
            stamps=(stamp(path), _KEYS[split][0]),
        )
        for split in splits
    }
    return ArraySource(
        name=path.stem,
        labels=labels,
        parts=parts,
        shape=shapes[Split.TRAIN][1:],
        official="test_images" if Split.HELD_OUT in splits else None,
    )


def _targets(column: _Column, places: dict[str, int]) -> npt.NDArray[np.int64]:
    """Return, for every picture, the position of its label in the dataset."""
    return np.array([places[label] for label in column.labels], dtype=np.int64)[column.places]


def _members(path: Path) -> set[str]:
    with (
        decoding(path, "not a .npz file", "save it with numpy.savez"),
        zipfile.ZipFile(path) as archive,
    ):
        names = archive.namelist()
    return {name.removesuffix(".npy") for name in names if name.endswith(".npy")}


def _picture_shape(path: Path, key: str) -> tuple[int, int, int, int]:
    """Return count, height, width and channels of the pictures, from the array's header alone."""
    with _member(path, key) as (header, _):
        shape, dtype = header.shape, header.dtype
        if dtype != np.uint8 and dtype.kind != "f":
            raise _refused_dtype(path, key, dtype, "uint8, or floats between 0 and 1")
        if len(shape) == 3:
            shape = (*shape, 1)
        elif len(shape) == 4 and _channels_first(shape):
            shape = (shape[0], shape[2], shape[3], shape[1])
        channels_last = len(shape) == 4 and (shape[3] in (1, 3) or shape[1:] == POINT)
        if len(shape) != 4 or not channels_last or shape[0] < 0 or min(shape[1:]) < 1:
            raise DataError(f"{path}: {key} has shape {shape}, expected {_SHAPES}")
        _require_held(path, key, header)
    return shape


def _channels_first(shape: tuple[int, ...]) -> bool:
    # Points could be taken for grey pictures of 1 x 2, which nobody has.
    return shape[3] not in (1, 3) and shape[1] in (1, 3) and shape[1:] != POINT


def _read_labels(path: Path, key: str, count: int) -> _Column:
    with _member(path, key) as (header, _):
        shape, dtype = header.shape, header.dtype
        if shape != (count,):
            raise DataError(
                f"{path}: {key} has shape {shape}, expected ({count},), one for each picture"
            )
        if dtype.kind not in "iuUS" or dtype.itemsize > _WIDEST_LABEL:
            wanted = f"integers, or strings of at most {_WIDEST_LABEL:,} bytes"
            raise _refused_dtype(path, key, dtype, wanted)
    column = _load(path, key)
    with _decoding(path, key):
        # The distinct ones alone become text: of millions of pictures there may be two.
        labels, places = np.unique(column, return_inverse=True)
        if dtype.kind == "U":
            # numpy would make broken text of it.
            letters = labels.astype(dtype.newbyteorder("=")).view(np.uint32)
            if letters.max(initial=0) > sys.maxunicode:
                raise ValueError("a character beyond Unicode")
        found = labels.tolist()
    if dtype.kind == "S":
        return _Column([value.decode("utf-8", "backslashreplace") for value in found], places)
    return _Column([str(value) for value in found], places)


def _read_pictures(path: Path, key: str) -> npt.NDArray[np.uint8]:
    pictures = _load(path, key)
    if pictures.ndim == 3:
        pictures = pictures[..., np.newaxis]
    elif _channels_first(pictures.shape):
        pictures = pictures.transpose(0, 2, 3, 1)
    if pictures.dtype == np.uint8:
        return pictures.astype(np.uint8, copy=False)
    low, high = (float(pictures.min()), float(pictures.max())) if pictures.size else (0.0, 0.0)
    # Written so that NaN fails too.
    if not (low >= 0 and high <= 1):
        raise DataError(
            f"{path}: {key} are floats from {low:g} to {high:g}, expected 0 to 1; "
            "scale them or save uint8"
        )
    scaled = np.empty(pictures.shape, dtype=np.uint8)
    for start in range(0, len(pictures), _BLOCK):
        block = pictures[start : start + _BLOCK].astype(np.float64)
        scaled[start : start + _BLOCK] = np.rint(block * 255)
    return scaled


def _load(path: Path, key: str) -> npt.NDArray[Any]:
    """Return the whole array."""
    with _member(path, key) as (header, file):
        _require_held(path, key, header)
        content = np.empty(header.claimed, dtype=np.uint8)
        done = 0
        while done < len(content):
            chunk = file.read(min(_CHUNK, len(content) - done))
            if not chunk:
                raise EOFError(f"it ends after {done} bytes of {len(content)}")
            content[done : done + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            done += len(chunk)
        shape, dtype = header.shape, header.dtype
        return np.ndarray(shape, dtype, content.data, order="F" if header.by_column else "C")


@contextlib.contextmanager
def _member(path: Path, key: str) -> Iterator[tuple[_Header, IO[bytes]]]:
    """Give an array's header, and the file at its content, while inside."""
    with _decoding(path, key), zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{key}.npy")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # What others could unzip to has no bound.
            raise ValueError(f"packed by method {member.compress_type}, expected 0 or 8")
        # The zip's own directory may lie too, but not on the size of the file.
        packed = min(member.compress_size, stamp(path)[1])
        most = packed * (1 if member.compress_type == zipfile.ZIP_STORED else UNZIPPED)
        with archive.open(member) as file:
            shape, by_column, dtype = _read_header(file)
            held = min(member.file_size, most) - file.tell()
            yield _Header(shape, by_column, dtype, held), file


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type; read no more than a header has."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format")
    length = file.read(2 if version == (1, 0) else 4)
    size = int.from_bytes(length, "little")
    if size > _MOST_HEADER:
        raise ValueError(f"a header of {size} bytes")
    header = io.BytesIO(length + file.read(size))
    try:
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(header)
        return np.lib.format.read_array_header_2_0(header)
    except MemoryError:
        # Of the parser, which has so few bytes to parse.
        raise ValueError("a header that is nested too deeply") from None


def _require_held(path: Path, key: str, header: _Header) -> None:
    """Refuse an array that is not in the file as its header claims."""
    if header.claimed != header.held:
        claimed = "x".join(map(str, header.shape))
        raise DataError(
            f"{path}: array {key!r} claims {claimed} of {header.dtype}, {header.claimed:,} bytes, "
            f"expected the {header.held:,} that the file can hold; save it again with numpy.savez"
        )


def _refused_dtype(path: Path, key: str, dtype: np.dtype[Any], wanted: str) -> DataError:
    shown = printable(dtype)[:_SHOWN]
    return DataError(f"{path}: {key} has dtype {shown}, expected {wanted}")


def _decoding(path: Path, key: str) -> contextlib.AbstractContextManager[None]:
    return decoding(path, f"array {key!r} cannot be read", "save it again as plain data")
