"""Looks at every picture of a dataset before hours are spent on it; changes nothing.

Collects all that is wrong instead of stopping at the first; raises only for a dataset that cannot
be opened at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manege.config import SMALLEST_CLASS, DataConfig
from manege.data.dataset import ClassCount, Dataset, survey
from manege.data.decode import PictureHeader
from manege.data.labels import listed
from manege.data.split import Split
from manege.errors import DataError, field
from manege.pictures import BACKGROUND, grid

_COMMONEST = 5


@dataclass(frozen=True)
class Where:
    """The place of a picture in the dataset."""

    label: str
    split: str
    name: str


@dataclass(frozen=True)
class BrokenFile:
    """A file that does not decode, and why; the label is None for an archive of all classes."""

    label: str | None
    split: str
    name: str
    reason: str


@dataclass(frozen=True)
class Duplicate:
    """Pictures with the same pixels."""

    pictures: tuple[Where, ...]
    across_splits: bool
    """Whether a held-out picture is trained on, which flatters scores."""
    across_classes: bool
    """Whether one picture has two labels, at least one of which is wrong."""


@dataclass(frozen=True)
class Sides:
    """The original sizes: min and max by area, None if no picture could be decoded."""

    smallest: tuple[int, int] | None
    median: tuple[int, int] | None
    largest: tuple[int, int] | None
    commonest: tuple[tuple[int, int, int], ...]
    """The commonest sizes, each as width, height and number of pictures."""


@dataclass(frozen=True)
class Report:
    """What :func:`check` found in a dataset."""

    name: str
    size: int
    channels: int
    held_out_rule: str
    classes: tuple[ClassCount, ...]
    sides: Sides
    modes: dict[str, int]
    """Number of pictures of each Pillow mode (L grey, RGB colour, ...)."""
    broken: tuple[BrokenFile, ...]
    ignored: tuple[str, ...]
    duplicates: tuple[Duplicate, ...]
    small: tuple[str, ...]
    """Labels with fewer training pictures than can be trained on, broken ones left out."""
    memory_bytes: int
    """Bytes that the decoded pictures take, ``limit_per_class`` applied."""

    @property
    def form(self) -> str:
        """What the pictures are brought to for training, in a few words."""
        if self.channels == 2:
            return "points in the plane"
        return f"{self.size}x{self.size} {'grey' if self.channels == 1 else 'colour'}"

    @property
    def problems(self) -> tuple[str, ...]:
        """What should be corrected before training, a sentence each."""
        splits = sum(duplicate.across_splits for duplicate in self.duplicates)
        classes = sum(duplicate.across_classes for duplicate in self.duplicates)
        bare = [count.label for count in self.classes if count.held_out == 0]
        told = [
            (len(self.broken), f"{len(self.broken)} broken: mend or remove them"),
            (
                len(self.small),
                f"fewer than {SMALLEST_CLASS} training pictures of {listed(self.small)}: "
                f"add some or leave it out with {field('classes')}",
            ),
            (splits, f"{splits} pictures are both trained on and held out: scores would flatter"),
            (classes, f"{classes} pictures are in more than one class: a label is wrong"),
            (len(bare), f"nothing held out of {listed(bare)}: it cannot be scored"),
        ]
        return tuple(sentence for count, sentence in told if count)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {**asdict(self), "problems": list(self.problems)}


def check(config: DataConfig, progress: Callable[[int, int], None] | None = None) -> Report:
    """Look at every picture of the chosen classes and return the report.

    Args:
        config: what to look at; ``limit_per_class`` counts for the memory only.
        progress: called with (pictures looked at, pictures in all).
    """
    dataset = survey(config.model_copy(update={"limit_per_class": None}))
    total = sum(count.train + count.held_out for count in dataset.classes)
    done = 0
    broken: list[BrokenFile] = []
    sizes: Counter[tuple[int, int]] = Counter()
    modes: Counter[str] = Counter()
    same: defaultdict[bytes, list[Where]] = defaultdict(list)
    for split in Split:
        wanted = {label: dataset.names(label, split) for label in dataset.labels}
        if not any(wanted.values()):
            continue
        try:
            for label, name, seen in dataset.source.inspect(wanted, split):
                if isinstance(seen, PictureHeader):
                    sizes[seen.width, seen.height] += 1
                    modes[seen.mode] += 1
                    same[seen.digest].append(Where(label, split.value, name))
                else:
                    broken.append(BrokenFile(label, split.value, name, seen))
                done += 1
                if progress is not None:
                    progress(done, total)
        except DataError as error:
            # An archive that does not decode takes all its pictures with it.
            broken.append(BrokenFile(None, split.value, dataset.name, str(error)))
    return Report(
        name=dataset.name,
        size=dataset.size,
        channels=dataset.channels,
        held_out_rule=dataset.held_out_rule,
        classes=dataset.classes,
        sides=_sides(sizes),
        modes=dict(modes.most_common()),
        broken=tuple(broken),
        ignored=dataset.source.ignored(dataset.labels),
        # Points lie on a lattice of 256 x 256: that two are equal is chance, not a mistake.
        duplicates=() if dataset.channels == 2 else _duplicates(same),
        small=_small(dataset, broken),
        memory_bytes=_memory_bytes(dataset, config.limit_per_class),
    )


def sheet(dataset: Dataset, per_class: int = 8) -> npt.NDArray[np.uint8]:
    """Return a sheet of training pictures, a row for each class; for points, one drawing of all."""
    if dataset.channels == 2:
        points = [dataset.pictures(label, Split.TRAIN) for label in dataset.labels]
        return grid(np.concatenate(points))
    rows = []
    for label in dataset.labels:
        shown = dataset.pictures(label, Split.TRAIN)[:per_class]
        empty = (per_class - len(shown), *shown.shape[1:])
        rows += [shown, np.full(empty, BACKGROUND, dtype=np.uint8)]
    return grid(np.concatenate(rows), columns=per_class)


def _sides(sizes: Counter[tuple[int, int]]) -> Sides:
    if not sizes:
        return Sides(None, None, None, ())
    ordered = sorted(sizes, key=lambda side: (side[0] * side[1], side))
    middle, passed = (sizes.total() + 1) // 2, 0
    for median in ordered:
        passed += sizes[median]
        if passed >= middle:
            break
    commonest = tuple((*side, count) for side, count in sizes.most_common(_COMMONEST))
    return Sides(ordered[0], median, ordered[-1], commonest)


def _duplicates(same: dict[bytes, list[Where]]) -> tuple[Duplicate, ...]:
    """Return the groups of equal pictures, the harmful ones first."""
    found = [
        Duplicate(
            pictures=tuple(places),
            across_splits=len({place.split for place in places}) > 1,
            across_classes=len({place.label for place in places}) > 1,
        )
        for places in same.values()
        if len(places) > 1
    ]
    return tuple(sorted(found, key=lambda group: not (group.across_splits or group.across_classes)))


def _small(dataset: Dataset, broken: list[BrokenFile]) -> tuple[str, ...]:
    lost = Counter(file.label for file in broken if file.split == Split.TRAIN.value)
    return tuple(
        count.label for count in dataset.classes if count.train - lost[count.label] < SMALLEST_CLASS
    )


def _memory_bytes(dataset: Dataset, limit: int | None) -> int:
    pictures = sum(
        (count.train if limit is None else min(limit, count.train)) + count.held_out
        for count in dataset.classes
    )
    return pictures * dataset.size**2 * dataset.channels
