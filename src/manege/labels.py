"""Decide what may be a label, wherever labels enter (data, configurations, models, runs).

Each place words its own refusal, with what `LABEL` says is expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

LONGEST = 1_000
"""The most characters of a label: every picture that is drawn carries its own."""

LABEL = (
    f"text that could name a folder (printable, without slashes, at most {LONGEST:,} characters)"
)

_SHOWN = 80


def is_label(value: object) -> TypeGuard[str]:
    """Return whether the value may be a label: its name becomes a folder's."""
    return (
        isinstance(value, str)
        and len(value) <= LONGEST
        and value.isprintable()
        and not set("/\\") & set(value)
        and value.strip() not in ("", ".", "..")
    )


def namesakes(names: Iterable[tuple[str, str]]) -> tuple[str, str, str] | None:
    """Return two labels whose names as a file or folder are the same, and that name.

    Args:
        names: each label, or what it is called, with its name.
    """
    owners: dict[str, str] = {}
    for label, name in names:
        if (other := owners.setdefault(name, label)) != label:
            return other, label, name
    return None


def shown(value: object) -> str:
    """Return the value as an error shows it: on one line, and not all of a long one."""
    text = printable(repr(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def printable(text: object) -> str:
    """Return the text on one line that any terminal can print: a file's name may hold anything."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in str(text)
    )
