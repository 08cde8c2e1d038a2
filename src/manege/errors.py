"""The errors a user may meet, by whose hand they are put right; each kind has its exit code.

A message is one line: the thing by name, what was found, what was expected, what to do. What a user
can give is a field of a call, or of the configuration; `field` names it as its user knows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

EXIT_FINE = 0
EXIT_INPUT = 2
EXIT_MACHINE = 3
EXIT_FAILED_CELL = 4
EXIT_STOPPED = 75


class ManegeError(Exception):
    """An error that manege shows to its user in one line instead of a traceback."""

    exit_code = EXIT_INPUT


class ConfigError(ManegeError):
    """The configuration, or a field of a call, is wrong."""


class DataError(ManegeError):
    """The pictures or labels are missing, broken or too few."""


class CheckpointError(ManegeError):
    """A checkpoint, run directory or model cannot be trusted or does not belong here."""


class MachineError(ManegeError):
    """Disk, permissions, device or a missing extra fail: nothing the configuration can mend."""

    exit_code = EXIT_MACHINE


class FieldNames(NamedTuple):
    """The way messages name fields; by default as Python does."""

    before: str = ""
    """Text that stands before each name."""
    between: str = "_"
    """Text that stands between the words of a name."""
    others: Mapping[str, str] = {}
    """Names that do not follow from the field's own."""


_names = FieldNames()


def field(name: str) -> str:
    """Return how a message names a field: as Python does, or as `fields_named` says."""
    return _names.others.get(name, _names.before + name.replace("_", _names.between))


def field_names() -> FieldNames:
    """Return how fields are named now, for a process that works for the same user."""
    return _names


@contextmanager
def fields_named(names: FieldNames) -> Iterator[None]:
    """Name fields that way in all messages that this process makes inside."""
    global _names
    before, _names = _names, names
    try:
        yield
    finally:
        _names = before
