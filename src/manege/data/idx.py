"""Reads the idx format of MNIST: unsigned bytes behind a big-endian header, gzipped or not.

A file is read whole or refused: an error names the file for a wrong number, a missing or a surplus
byte, before memory is taken for what the header promises.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from manege.data.arrays import UNZIPPED, decoding, stamp
from manege.errors import DataError

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_AGAIN = "get the file again"
_KIND = {1: "labels", 3: "pictures"}


def read_pictures(path: Path) -> npt.NDArray[np.uint8]:
    """Return all pictures, N x H x W."""
    return _read(path, 3)


def read_labels(path: Path, classes: int) -> npt.NDArray[np.uint8]:
    """Return all labels; raise DataError unless each is below ``classes``."""
    labels = _read(path, 1)
    if labels.size and int(labels.max()) >= classes:
        place = int(np.argmax(labels >= classes))
        raise DataError(
            f"{path}: label {labels[place]} at place {place}, expected 0 to {classes - 1}; {_AGAIN}"
        )
    return labels


def picture_shape(path: Path) -> tuple[int, int, int]:
    """Return count, height and width, from the header alone."""
    count, height, width = _promised(path, 3)
    return count, height, width


def label_count(path: Path) -> int:
    """Return how many labels there are, from the header alone."""
    return _promised(path, 1)[0]


def _promised(path: Path, dims: int) -> tuple[int, ...]:
    with _opened(path) as file:
        return _header(path, file, dims)


def _read(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    with _opened(path) as file:
        shape = _header(path, file, dims)
        expected = math.prod(shape)
        # Read twice, once to count: a small file may unzip to gigabytes, and then be refused.
        found = _count(file, expected + 1)
    if found != expected:
        words = f"only {found}" if found < expected else f"more than {expected}"
        raise DataError(
            f"{path}: {words} bytes after the header, expected {expected} for "
            f"{'x'.join(map(str, shape))} {_KIND[dims]}; {_AGAIN}"
        )
    content = np.empty(expected, dtype=np.uint8)
    with _opened(path) as file:
        _header(path, file, dims)
        done = 0
        while done < expected:
            chunk = file.read(min(_CHUNK, expected - done))
            if not chunk:
                raise EOFError("it became shorter")
            content[done : done + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            done += len(chunk)
    return content.reshape(shape)


def _count(file: IO[bytes], most: int) -> int:
    """Return how many bytes are left, counted up to ``most``."""
    found = 0
    while found < most and (chunk := file.read(min(_CHUNK, most - found))):
        found += len(chunk)
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with decoding(path, "damaged gzip file", _AGAIN), _open(path) as file:
        yield file


def _open(path: Path) -> IO[bytes]:
    """Return the file's content; gzip is known by the first bytes, not by the name."""
    file = path.open("rb")
    zipped = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    if not zipped:
        return file
    file.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


def _header(path: Path, file: IO[bytes], dims: int) -> tuple[int, ...]:
    expected = 0x800 + dims  # 0x08 is the code of unsigned bytes.
    head = file.read(4 + 4 * dims)
    magic = int.from_bytes(head[:4], "big") if len(head) >= 4 else None
    if magic != expected:
        found = "too few bytes" if magic is None else f"magic number {magic}"
        raise DataError(
            f"{path}: {found}, expected {expected} of an idx file of {_KIND[dims]}; {_AGAIN}"
        )
    if len(head) < 4 + 4 * dims:
        raise DataError(
            f"{path}: the header ends after {len(head)} bytes, expected {4 + 4 * dims}; {_AGAIN}"
        )
    shape: tuple[int, ...] = struct.unpack(f">{dims}I", head[4:])
    if 0 in shape:
        raise DataError(f"{path}: {'x'.join(map(str, shape))} {_KIND[dims]}, expected some")
    size = stamp(path)[1]
    if math.prod(shape) > UNZIPPED * size:
        raise DataError(
            f"{path}: the header promises {'x'.join(map(str, shape))} {_KIND[dims]}, more than "
            f"{size} bytes can hold; {_AGAIN}"
        )
    return shape
