"""A dataset, opened: its classes, its held-out part, and the pictures of one class at a time.

Owns the choice of source, the resolved form and the cache entries. Refuses a dataset whose
classes cannot be trained. Knows nothing of batches, tensors or runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manege import plugins
from manege.config import SIZES, SMALLEST_CLASS, DataConfig
from manege.data import cache
from manege.data.arrays import ArraySource
from manege.data.decode import RESIZE_RULE, Form
from manege.data.folder import FolderSource
from manege.data.labelled import open_images
from manege.data.labels import choose, listed, nearest, printable
from manege.data.named import KNOWN, open_named
from manege.data.npz import open_npz
from manege.data.objects import ObjectSource, object_name, open_object, store
from manege.data.split import HASH_RULE, Split, by_hash, divide, held_out_count
from manege.data.toys import TOYS
from manege.errors import DataError, ManegeError, field
from manege.files import user_path

_DEFAULT_SIZE = 32

FLIPPABLE = frozenset({"fashion-mnist", "cifar10", "cifar100", "cifar100-coarse"})
"""Named datasets whose pictures may be mirrored; a mirrored digit is no digit."""


Source = ArraySource | FolderSource | ObjectSource
"""A kind of dataset: what it holds and how it decodes; knows no split but an official one."""


@dataclass(frozen=True)
class ClassCount:
    """How many pictures of a label there are, after ``limits``, before ``limit_per_class``."""

    label: str
    train: int
    held_out: int


class Dataset:
    """A dataset with classes, split and form settled, which decodes pictures when first asked.

    Args:
        source: where the pictures are.
        config: classes, limit, and a form that the networks can make.
        form: any other form, which takes the place of the configuration's.
    """

    def __init__(self, source: Source, config: DataConfig, form: Form | None = None) -> None:
        self.source = source
        self.labels = choose(source.labels, config.classes, source.name)
        self.name = source.name
        self._known = config.source
        self._limit = config.limit_per_class
        self._limits = config.limits or {}
        choose(source.labels, tuple(self._limits), source.name, key="limits")
        self._names: dict[tuple[str, Split], tuple[str, ...]] = {}
        self.classes = tuple(self._count(label) for label in self.labels)
        self.size, self.channels = (
            self._resolve(config) if form is None else (form.size, form.channels)
        )
        self.held_out_rule = (
            HASH_RULE if source.official is None else f"official {source.official} split"
        )

    @property
    def flippable(self) -> bool:
        """Whether a mirrored picture is as good: of folders and files only their owner knows."""
        return self._known in FLIPPABLE

    def names(self, label: str, split: Split) -> tuple[str, ...]:
        """Return the names of :meth:`pictures`, in the same order."""
        if label not in self.labels:
            choose(self.labels, (label,), self.name)
        if (label, split) not in self._names:
            if self.source.official is None:
                names = divide(self.source.found(label, Split.TRAIN))[split]
            else:
                names = by_hash(self.source.found(label, split))
            if split is Split.TRAIN:
                names = names[: self._limits.get(label)][: self._limit]
            self._names[label, split] = names
        return self._names[label, split]

    def pictures(self, label: str, split: Split) -> npt.NDArray[np.uint8]:
        """Return the decoded pictures, N x size x size x channels, mapped copy-on-write."""
        return self.entry(label, split).open()

    def digest(self, label: str, split: Split = Split.TRAIN) -> str:
        """Return the SHA-256 of the bytes of :meth:`pictures`."""
        return self.entry(label, split).sha256

    def entry(self, label: str, split: Split) -> cache.Entry:
        """Return the cache entry of :meth:`pictures` and :meth:`digest`; decode it if needed."""
        key = self._key(label, split)
        entry = cache.find(key)
        if entry is not None:
            return entry
        # Keys before content: a file that changes meanwhile must not pass for the one it was.
        keys = {label: key}
        if self.source.together:
            # One reading of the archive serves all classes, so none of them reads it again.
            others = {other: self._key(other, split) for other in self.labels if other != label}
            keys |= {other: key for other, key in others.items() if cache.find(key) is None}
        wanted = {other: self.names(other, split) for other in keys}
        made: dict[str, cache.Entry] = {}
        for other, blocks in self.source.decode(wanted, split, Form(self.size, self.channels)):
            shape = (len(wanted[other]), self.size, self.size, self.channels)
            made[other] = cache.store(keys[other], shape, wanted[other], blocks)
        return made[label]

    def split_record(self) -> dict[str, Any]:
        """Return what was held out, for a run to keep; with names unless the split is official."""
        by_name = self.source.official is None
        return {
            "rule": self.held_out_rule,
            "classes": {
                count.label: {
                    "train": count.train,
                    "held_out": count.held_out,
                    **(
                        {"held_out_names": list(self.names(count.label, Split.HELD_OUT))}
                        if by_name
                        else {}
                    ),
                }
                for count in self.classes
            },
        }

    def _count(self, label: str) -> ClassCount:
        found = self.source.count(label, Split.TRAIN)
        if self.source.official is not None:
            train, held_out = found, self.source.count(label, Split.HELD_OUT)
        else:
            held_out = held_out_count(found)
            train = found - held_out
        return ClassCount(label, min(train, self._limits.get(label, train)), held_out)

    def _resolve(self, config: DataConfig) -> tuple[int, int]:
        size, channels = config.size, config.channels
        if size is not None and channels is not None:
            return size, channels
        headers = self.source.headers(self.labels)
        if size is None:
            sides = {side for header in headers for side in (header.width, header.height)}
            shared = sides.pop() if len(sides) == 1 else None
            size = shared if shared in SIZES else _DEFAULT_SIZE
        if channels is None:
            channels = 1 if headers and all(header.grey for header in headers) else 3
        return size, channels

    def _key(self, label: str, split: Split) -> str:
        stamps = self.source.stamps(label, split, self.names(label, split))
        return cache.key(self.size, self.channels, RESIZE_RULE, label, split.value, stamps)


def open_dataset(config: DataConfig) -> Dataset:
    """Return the dataset that the configuration names; raise DataError if a class is too small."""
    dataset = survey(config)
    small = [count for count in dataset.classes if count.train < SMALLEST_CLASS]
    if small:
        found = listed([f"{count.label!r} ({count.train})" for count in small])
        raise DataError(
            f"{dataset.name}: too few training pictures in class {found}; expected at least "
            f"{SMALLEST_CLASS} each; add pictures or leave it out with {field('classes')}"
        )
    return dataset


def survey(config: DataConfig) -> Dataset:
    """Return the dataset however small its classes are: to be looked at, not trained on."""
    form = Form(1, 2) if config.source in TOYS else None
    return Dataset(open_source(config), config, form)


def open_source(config: DataConfig) -> Source:
    """Open and return what the configuration names."""
    if config.source in KNOWN:
        return open_named(config.source, config.root)
    if object_name(config.source) is not None:
        return open_object(config.source)
    if (reference := own_dataset(config.source)) is not None:
        return _open_own(reference)
    path = user_path(config.source)
    if path.is_dir():
        return open_images(path)
    if path.is_file():
        if path.suffix.lower() == ".npz":
            return open_npz(path)
        raise DataError(
            f"{printable(path)}: a file, but no .npz; expected an image folder, an .npz file "
            f"or a dataset's name ({listed(list(KNOWN))})"
        )
    near = nearest(config.source, list(KNOWN))
    raise DataError(
        f"data {printable(config.source)}: no dataset of that name and no such path"
        + (f"; did you mean {near}?" if near else "")
        + f"; known are {listed(list(KNOWN))}, else give an image folder, an .npz file or "
        "module:name"
    )


def own_dataset(source: str) -> str | None:
    """Return the ``module:name`` that a source means; None for what is built in or a path."""
    if plugins.is_reference(source):
        return source
    if source in KNOWN or object_name(source) is not None or user_path(source).exists():
        return None
    return plugins.reference_named(source)


def _open_own(reference: str) -> ObjectSource:
    """Return the dataset that an object outside the package is, or that a function there gives."""
    found = plugins.load(reference, "data.source")
    if callable(found):
        with plugins.blamed(reference, "the dataset"):
            found = found()
    try:
        return open_object(store(found, name=plugins.short(reference)))
    except ManegeError as error:
        raise type(error)(f"{reference}: {error}") from error
