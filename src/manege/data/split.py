"""Decides which pictures are held out, and the one order that all of a class's pictures have.

Both follow a hash of the picture's name, so neither depends on where the dataset lies, on the
order of a folder's listing, or on any seed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from enum import StrEnum

HASH_RULE = "10 % of each class by a hash of the file name"

_SMALLEST_TO_DIVIDE = 9


class Split(StrEnum):
    """The two parts of a dataset; training sees only the first."""

    TRAIN = "train"
    HELD_OUT = "held-out"


def by_hash(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names sorted by their hash: any prefix is a fair sample of the whole."""
    return tuple(sorted(names, key=_hash))


def held_out_count(count: int) -> int:
    """Return a tenth, halves rounded up; 0 of fewer than nine, as the rest must be trainable."""
    return 0 if count < _SMALLEST_TO_DIVIDE else max(1, (count + 5) // 10)


def divide(names: Iterable[str]) -> dict[Split, tuple[str, ...]]:
    """Return both parts of a class that has no official split, each in hash order."""
    ordered = by_hash(names)
    held_out = held_out_count(len(ordered))
    return {Split.HELD_OUT: ordered[:held_out], Split.TRAIN: ordered[held_out:]}


def _hash(name: str) -> tuple[bytes, str]:
    # fsencode, not UTF-8: a file's name need not be text.
    digest = hashlib.blake2b(os.fsencode(name), digest_size=16, person=b"manege-split").digest()
    return digest, name
