"""Shows labels and names to people: in natural order, with the nearest spelling, on one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from manege.errors import DataError
from manege.labels import LABEL, is_label, shown
from manege.labels import printable as printable

_SHOWN = 12


def natural(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the order people expect: 2 before 10, capitals beside small letters."""
    return tuple(sorted(names, key=_natural_key))


def choose(
    labels: Sequence[str], wanted: Sequence[str] | None, dataset: str, *, key: str = "classes"
) -> tuple[str, ...]:
    """Return the wanted labels in the dataset's own order, all if None; refuse unknown ones."""
    if wanted is None:
        return tuple(labels)
    unknown = [label for label in wanted if label not in labels]
    if unknown:
        near = nearest(unknown[0], labels)
        named = ", ".join(repr(label) for label in unknown)
        raise DataError(
            f"{key}: {dataset} has no {named}"
            + (f"; nearest is {near!r}" if near else "")
            + f"; choose among {listed(labels)}"
        )
    return tuple(label for label in labels if label in wanted)


def nearest(word: str, words: Sequence[str]) -> str | None:
    """Return the word that looks most like it; None if none is close."""
    lowered = {known.lower(): known for known in words}
    close = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    return lowered[close[0]] if close else None


def listed(words: Sequence[str]) -> str:
    """Return the words with commas; of many, the first dozen and how many more there are."""
    shown = ", ".join(printable(word) for word in words[:_SHOWN])
    return shown if len(words) <= _SHOWN else f"{shown} and {len(words) - _SHOWN} more"


def check_label(label: str, where: str) -> None:
    """Refuse what may not be a label."""
    if not is_label(label):
        raise DataError(f"{where}: {shown(label)} cannot be a label; expected {LABEL}; rename it")


def _natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    parts = re.split(r"([0-9]+)", name.casefold())
    return [
        (0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part)
        for part in parts
        if part
    ], name
