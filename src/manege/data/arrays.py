"""Datasets that are arrays: in idx or .npz files, scikit-learn's digits, or computed.

The labels are read at opening, the pictures only when a cache entry must be made, and then once
for all classes.
"""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from manege.data.decode import Form, PictureHeader, array_to_form, pixel_digest
from manege.data.labels import printable
from manege.data.split import Split
from manege.errors import DataError, MachineError, ManegeError
from manege.files import read_capped

POINT = (1, 1, 2)
"""The shape of a point in the plane, taken for a picture whose channels are its coordinates."""

UNZIPPED = 1032
"""The most bytes that one deflated byte unzips to: 258 of them take two bits."""

_BLOCK = 1024
_EACH = 512
"""Bytes of memory that the label, name and place of a picture take, however small it is."""
_ANY_FILE = 1 << 30
"""Bytes that these may take even of a small file: a byte of it may hold many blank pictures."""
_SHOWN = 200


@dataclass(frozen=True)
class Part:
    """The arrays of one split: labels in memory, pictures read by a function."""

    prefix: str
    """What the pictures' names begin with: ``train`` in ``train/123``."""
    targets: npt.NDArray[np.int64]
    """Each picture's position in the source's labels."""
    pictures: Callable[[], npt.NDArray[np.uint8]]
    """Reads and checks them all, N x H x W x C."""
    stamps: tuple[Any, ...]
    """What identifies the content without reading it; a tuple among them is a file's stamp."""
    digits: int = 0
    """The width that the numbers in names are padded to."""


@dataclass(frozen=True)
class ArraySource:
    """A dataset of arrays, which is decoded all at once."""

    name: str
    labels: tuple[str, ...]
    parts: Mapping[Split, Part]
    shape: tuple[int, int, int]
    """Height, width and channels of every picture."""
    official: str | None
    """The name of the split that came with the data; None if it has none."""

    @property
    def together(self) -> bool:
        """Always true: one reading serves every class."""
        return True

    def found(self, label: str, split: Split) -> tuple[str, ...]:
        """Return the names of that label's pictures in that split."""
        part = self.parts[split]
        places = np.flatnonzero(part.targets == self.labels.index(label))
        return tuple(f"{part.prefix}/{place:0{part.digits}d}" for place in places)

    def count(self, label: str, split: Split) -> int:
        """Return how many pictures :meth:`found` would name."""
        return int(np.count_nonzero(self.parts[split].targets == self.labels.index(label)))

    def headers(self, labels: tuple[str, ...]) -> list[PictureHeader]:
        """Return one header, as all pictures share it."""
        height, width, channels = self.shape
        return [PictureHeader(width, height, _mode(channels), grey=channels == 1)]

    def every_header(self) -> Iterator[PictureHeader]:
        """Yield one header, as all pictures share it."""
        yield from self.headers(self.labels)

    def ignored(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return nothing: an array has no stray files."""
        return ()

    def stamps(self, label: str, split: Split, names: tuple[str, ...]) -> list[Any]:
        """Return what stands for the content in a cache key."""
        return [*self._part(split).stamps, names]

    def decode(
        self, wanted: Mapping[str, tuple[str, ...]], split: Split, form: Form
    ) -> Iterator[tuple[str, Iterator[npt.NDArray[np.uint8]]]]:
        """Yield each label, and blocks of its wanted pictures in the order of their names."""
        part = self._part(split)
        pictures = part.pictures()
        _require_unchanged(part)
        for label, names in wanted.items():
            yield label, _blocks(pictures, names, form)

    def inspect(
        self, wanted: Mapping[str, tuple[str, ...]], split: Split
    ) -> Iterator[tuple[str, str, PictureHeader | str]]:
        """Yield label, name and header of each wanted picture."""
        pictures = self._part(split).pictures()
        height, width, channels = self.shape
        for label, names in wanted.items():
            for name in names:
                digest = pixel_digest(pictures[_place(name)])
                yield (
                    label,
                    name,
                    PictureHeader(width, height, _mode(channels), channels == 1, digest),
                )

    def _part(self, split: Split) -> Part:
        # Without an official split both parts lie in the one array there is.
        return self.parts.get(split, self.parts[Split.TRAIN])


def stamp(path: Path) -> tuple[str, int, int]:
    """Return a file's absolute path, size and time of change, which stand for its content."""
    try:
        state = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    return str(path.absolute()), state.st_size, state.st_mtime_ns


def read_file(path: Path, cap: int) -> bytes:
    """Return the content of a file, which must be a regular one of at most ``cap`` bytes."""
    try:
        return read_capped(path, cap)
    except OSError as error:
        # The refusals of read_capped have no number; the machine's have one.
        if error.errno is None:
            raise DataError(f"{printable(path)}: {error}; get the file again") from error
        raise unreadable(path, error) from error


@contextlib.contextmanager
def decoding(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Raise DataError, one line about the file, for whatever a decoder raises over its bytes.

    Args:
        path: the file.
        what: what is wrong with the file then.
        remedy: what to do about it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (ManegeError, MemoryError):
            raise
        except Exception as error:
            # gzip's own errors have no number, and a place before a file's beginning is its own.
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise unreadable(path, error) from error
            reason = printable(" ".join(str(error).split()))[:_SHOWN] or type(error).__name__
            raise DataError(f"{path}: {what} ({reason}); {remedy}") from error


def require_room(path: Path, count: int) -> None:
    """Refuse more pictures than an honest file of that size has: memory holds a word of each."""
    size = stamp(path)[1]
    most = max(_ANY_FILE, UNZIPPED * size) // _EACH
    if count > most:
        raise DataError(
            f"{path}: {count:,} pictures in {size:,} bytes, expected at most {most:,}; "
            "save fewer, or larger ones"
        )


def unreadable(path: Path, error: OSError) -> DataError | MachineError:
    """Return the error to raise for a data file that the machine would not read."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: not found; it was there when the dataset was opened")
    return MachineError(f"{path}: cannot be read ({error.strerror or error}); check permissions")


def _require_unchanged(part: Part) -> None:
    """Refuse files that changed since their labels were read: pictures would get wrong ones."""
    for taken in part.stamps:
        if isinstance(taken, tuple) and stamp(Path(taken[0])) != taken:
            raise DataError(f"{taken[0]}: changed while it was in use; leave it alone, start again")


def _blocks(
    pictures: npt.NDArray[np.uint8], names: tuple[str, ...], form: Form
) -> Iterator[npt.NDArray[np.uint8]]:
    places = np.array([_place(name) for name in names], dtype=np.int64)
    as_is = pictures.shape[1:] == (form.size, form.size, form.channels)
    for start in range(0, len(places), _BLOCK):
        block = pictures[places[start : start + _BLOCK]]
        yield block if as_is else np.stack([array_to_form(picture, form) for picture in block])


def _place(name: str) -> int:
    return int(name.rpartition("/")[2])


def _mode(channels: int) -> str:
    return {1: "L", 2: "XY", 3: "RGB"}[channels]
