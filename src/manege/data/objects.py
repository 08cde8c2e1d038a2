"""Keeps datasets that were objects of a Python program in the cache, named by their content.

An entry holds the pictures' bytes one after the other, its description their sizes and labels; the
digest of all of it is the entry's name. So every process opens the data by a text, the same data
are written once, and nothing is taken for them that is not the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from manege.config import SIZES
from manege.data import cache, given
from manege.data.decode import Form, PictureHeader, array_to_form, pixel_digest
from manege.data.given import Given, Signed
from manege.data.labels import check_label, listed, natural
from manege.data.split import Split
from manege.errors import DataError, MachineError

_KIND = "objects"
_FORMAT = 1
_PREFIX = "images"
"""Pictures are named and so held out as those of an .npz file are."""
_BLOCK = 1024
_DEFAULT_SIZE = 32
_DIGITS = 40
_SOURCE = re.compile(rf"object:([^/\\]+)-([0-9a-f]{{{_DIGITS}}})")


def store(
    data: object,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    name: str | None = None,
    say: Callable[[str], None] | None = None,
) -> str:
    """Write an object of pictures and labels into the cache, once; return the source that names it.

    Args:
        data: ``(images, labels)`` arrays, a torch or Hugging Face dataset, or a pandas frame of
            paths and labels.
        image_column: the column of pictures, where there are columns; found when None.
        label_column: the column of labels, likewise.
        name: what runs and reports call the data; what its kind is called when None.
        say: told in a line what will be written, before it is.

    Example:
        >>> images = numpy.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype="uint8")
        >>> source = store((images, numpy.repeat(["cat", "dog"], 10)), name="pets")
    """
    seen = given.look_at(data, image_column=image_column, label_column=label_column, name=name)
    say = say or _say_nothing
    # Arrays are read twice rather than written twice; anything else might be slow, or differ.
    if seen.alike:
        index = _Index()
        digest = hashlib.sha256()
        for part in _rows(seen, index):
            digest.update(np.ascontiguousarray(part).data)
        key, told = index.described(digest.hexdigest())
        if cache.holds(key, _KIND, told):
            say(f"{_seen(seen)}; found in the cache")
            return f"object:{seen.name}-{key}"
    say(f"{_seen(seen)}; {_taken(seen)}")
    index = _Index()
    try:
        key, is_new = cache.store_by_content(_rows(seen, index), _KIND, index.described)
    except Signed:
        seen, index = replace(seen, lowest=-1), _Index()
        say(f"{seen.name}: floats below 0 after the first picture; all taken as -1 to 1")
        key, is_new = cache.store_by_content(_rows(seen, index), _KIND, index.described)
    if not is_new:
        say(f"{seen.name}: found in the cache")
    elif not index.is_as(seen):
        say(f"{seen.name}: {index.summed()}")
    return f"object:{seen.name}-{key}"


def object_name(source: str) -> str | None:
    """Return what an object is called whose source :func:`store` returned; None for others."""
    found = _SOURCE.fullmatch(source)
    return None if found is None else found[1]


@dataclass(frozen=True, eq=False)
class ObjectSource:
    """A dataset that was an object, decoded class by class from its bytes in the cache."""

    name: str
    labels: tuple[str, ...]
    key: str
    targets: npt.NDArray[np.int64]
    """Each picture's position in the labels."""
    sizes: npt.NDArray[np.int64]
    """Height, width and channels of each picture."""
    official: None = None

    @property
    def together(self) -> bool:
        """Always false: a class is read alone."""
        return False

    def found(self, label: str, split: Split) -> tuple[str, ...]:
        """Return the names of that label's pictures; all are in the training part."""
        return tuple(f"{_PREFIX}/{place}" for place in self._places(label, split))

    def count(self, label: str, split: Split) -> int:
        """Return how many pictures :meth:`found` would name."""
        return len(self._places(label, split))

    def headers(self, labels: tuple[str, ...]) -> list[PictureHeader]:
        """Return the header of each class's first picture."""
        return [self._header(int(self._places(label, Split.TRAIN)[0])) for label in labels]

    def every_header(self) -> Iterator[PictureHeader]:
        """Yield the header of every picture."""
        for place in range(len(self.targets)):
            yield self._header(place)

    def ignored(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return nothing: an object has no stray files."""
        return ()

    def stamps(self, label: str, split: Split, names: tuple[str, ...]) -> list[Any]:
        """Return what stands for the content in a cache key: the digest of the whole."""
        return [_KIND, self.key, names]

    def decode(
        self, wanted: Mapping[str, tuple[str, ...]], split: Split, form: Form
    ) -> Iterator[tuple[str, Iterator[npt.NDArray[np.uint8]]]]:
        """Yield each label, and blocks of its wanted pictures in the order of their names."""
        content = self._content()
        for label, names in wanted.items():
            yield label, self._blocks(content, names, form)

    def inspect(
        self, wanted: Mapping[str, tuple[str, ...]], split: Split
    ) -> Iterator[tuple[str, str, PictureHeader | str]]:
        """Yield label, name and header of each wanted picture."""
        content = self._content()
        for label, names in wanted.items():
            for name in names:
                place = _place(name)
                digest = pixel_digest(self._picture(content, place))
                yield label, name, replace(self._header(place), digest=digest)

    def _blocks(
        self, content: npt.NDArray[np.uint8], names: tuple[str, ...], form: Form
    ) -> Iterator[npt.NDArray[np.uint8]]:
        for start in range(0, len(names), _BLOCK):
            pictures = (self._picture(content, _place(name)) for name in names[start:][:_BLOCK])
            yield np.stack([array_to_form(picture, form) for picture in pictures])

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.sizes.prod(axis=1))])

    def _picture(self, content: npt.NDArray[np.uint8], place: int) -> npt.NDArray[np.uint8]:
        start, end = self._starts[place : place + 2]
        return content[start:end].reshape(self.sizes[place])

    def _places(self, label: str, split: Split) -> npt.NDArray[np.int64]:
        if split is not Split.TRAIN:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.targets == self.labels.index(label))

    def _header(self, place: int) -> PictureHeader:
        height, width, channels = map(int, self.sizes[place])
        return PictureHeader(width, height, "L" if channels == 1 else "RGB", channels == 1)

    def _content(self) -> npt.NDArray[np.uint8]:
        with _told_of(self.name, self.key):
            return cache.read(self.key, _KIND).open()


def open_object(source: str) -> ObjectSource:
    """Return the dataset that a source names; its pictures are verified when they are read."""
    found = _SOURCE.fullmatch(source)
    assert found is not None
    name, key = found.groups()
    with _told_of(name, key):
        told = cache.description(key, _KIND)
        sizes, labels, targets = told["sizes"], told["labels"], told["targets"]
        if _digest(sizes, labels, targets, told["sha256"]) != key:
            raise ValueError("sizes or labels of another digest")
        every = sizes * len(targets) if len(sizes) == 1 else sizes
        return ObjectSource(
            name=name,
            labels=tuple(labels),
            key=key,
            targets=np.array(targets, dtype=np.int64),
            sizes=np.array(every, dtype=np.int64),
        )


class _Index:
    """The sizes and labels of the pictures that have passed by."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int, int]] = []
        self.labels: list[str] = []
        self._checked: set[str] = set()

    def fed(self, blocks: Iterator[given.Block]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the pictures of the blocks as rows of bytes."""
        for pictures, labels in blocks:
            for label in labels:
                if label not in self._checked:
                    check_label(label, "labels")
                    self._checked.add(label)
            height, width, channels = pictures.shape[1:]
            self.sizes += [(height, width, channels)] * len(labels)
            self.labels += labels
            yield pictures.reshape(-1)

    def described(self, sha256: str) -> tuple[str, dict[str, Any]]:
        """Return the entry's name and what its description says of the pictures."""
        distinct = natural(self._checked)
        place = {label: position for position, label in enumerate(distinct)}
        targets = [place[label] for label in self.labels]
        sizes = self.sizes[:1] if len(set(self.sizes)) == 1 else self.sizes
        told = {"sizes": sizes, "labels": distinct, "targets": targets}
        return _digest(sizes, distinct, targets, sha256), told

    def is_as(self, seen: Given) -> bool:
        """Return whether all came as was said before."""
        known = seen.labels is not None and self._checked == set(seen.labels)
        return known and set(self.sizes) == {seen.first}

    def summed(self) -> str:
        """Return in a line what there was."""
        smallest, largest = min(self.sizes), max(self.sizes)
        span = _sides(smallest) + ("" if smallest == largest else f" to {_sides(largest)}")
        took = _in_words(sum(height * width * channels for height, width, channels in self.sizes))
        return f"{_counted(len(self.sizes))} of {span}, {_classes(self._checked)}; {took} written"


@contextmanager
def _told_of(name: str, key: str) -> Iterator[None]:
    """Turn whatever reading an entry raises into one line about the data."""
    place = cache.cache_folder() / _KIND
    remedy = (
        "call train again with the same data, which writes them there, or set MANEGE_CACHE to the "
        "folder that has them"
    )
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{name}: the data of digest {key} are not in the cache ({place}); {remedy}"
        ) from error
    except OSError as error:
        raise MachineError(
            f"{place}: cannot be read ({error.strerror or error}); check permissions"
        ) from error
    # Damage makes readers throw whatever its meaning comes to.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{name}: the data of digest {key} are damaged in the cache ({place}: {reason}); "
            f"{remedy}"
        ) from error


def _rows(seen: Given, index: _Index) -> Iterator[npt.NDArray[np.uint8]]:
    return index.fed(seen.blocks(seen.lowest))


def _digest(sizes: object, labels: object, targets: object, sha256: object) -> str:
    spelled = json.dumps([_FORMAT, sizes, labels, targets, sha256], separators=(",", ":"))
    return hashlib.sha256(spelled.encode("ascii")).hexdigest()[:_DIGITS]


def _seen(seen: Given) -> str:
    """Return in a few words what an object holds, as far as that is known before it is read."""
    of = "of" if seen.alike else "the first"
    floats = f" ({seen.floats})" if seen.floats else ""
    classes = "" if seen.labels is None else f", {_classes(set(seen.labels))}"
    comma = "" if seen.alike else ","
    return f"{seen.name}: {_counted(seen.count)}{comma} {of} {_sides(seen.first)}{floats}{classes}"


def _taken(seen: Given) -> str:
    """Return what it will take on disk and in memory."""
    height, width, channels = seen.first
    side = height if height == width and height in SIZES else _DEFAULT_SIZE
    stored = _in_words(seen.count * height * width * channels)
    decoded = _in_words(seen.count * side * side * channels)
    return (
        f"{'' if seen.alike else 'if all are like it, '}{stored} in the cache, and {decoded} more "
        f"there and in memory for training at {side}x{side}"
    )


def _sides(size: tuple[int, int, int]) -> str:
    height, width, channels = size
    return f"{width}x{height} {'grey' if channels == 1 else 'colour'}"


def _classes(labels: set[str]) -> str:
    ordered = natural(labels)
    return f"{len(ordered)} {'class' if len(ordered) == 1 else 'classes'} ({listed(ordered)})"


def _counted(count: int) -> str:
    return f"{count:,} {'picture' if count == 1 else 'pictures'}"


def _in_words(num_bytes: int) -> str:
    """Return a number of bytes as people say it."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


def _place(name: str) -> int:
    return int(name.rpartition("/")[2])


def _say_nothing(_: str) -> None:
    """Hear a line and do nothing."""
