"""The idx format of MNIST and its like: unsigned bytes behind a big-endian header, maybe gzipped.

A file is read whole or refused: a wrong number, a missing or a surplus byte names the file.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from manege.data.arrays import unreadable
from manege.errors import DataError

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_AGAIN = "get the file again"
_KIND = {1: "labels", 3: "pictures"}


def read_pictures(path: Path) -> npt.NDArray[np.uint8]:
    """All pictures, N x H x W."""
    return _read(path, 3)


def read_labels(path: Path, classes: int) -> npt.NDArray[np.uint8]:
    """All labels, each below ``classes``."""
    labels = _read(path, 1)
    if labels.size and int(labels.max()) >= classes:
        place = int(np.argmax(labels >= classes))
        raise DataError(
            f"{path}: label {labels[place]} at place {place}, expected 0 to {classes - 1}; {_AGAIN}"
        )
    return labels


def picture_shape(path: Path) -> tuple[int, int, int]:
    """Count, height and width, from the header alone."""
    try:
        with _open(path) as file:
            count, height, width = _header(path, file, 3)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return count, height, width


def _read(path: Path, dims: int) -> npt.NDArray[np.uint8]:
    try:
        with _open(path) as file:
            shape = _header(path, file, dims)
            expected = math.prod(shape)
            content = bytearray()
            # Never a single read of what the header promises: it may promise terabytes.
            while len(content) <= expected:
                chunk = file.read(min(_CHUNK, expected + 1 - len(content)))
                if not chunk:
                    break
                content += chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if len(content) != expected:
        found = f"only {len(content)}" if len(content) < expected else f"more than {expected}"
        raise DataError(
            f"{path}: {found} bytes after the header, expected {expected} for "
            f"{'x'.join(map(str, shape))} {_KIND[dims]}; {_AGAIN}"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _open(path: Path) -> IO[bytes]:
    """The file's content; gzip is told by its first bytes, not by its name."""
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
    return shape


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: damaged gzip file ({' '.join(str(error).split())}); {_AGAIN}")
