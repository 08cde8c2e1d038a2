"""What may go wrong, by whose hand it can be put right; each kind has its exit code.

A message is one line: the thing by name, what was found, what was expected, what to do.
"""

from __future__ import annotations

EXIT_FINE = 0
EXIT_INPUT = 2
EXIT_MACHINE = 3
EXIT_FAILED_CELL = 4
EXIT_STOPPED = 75


class ManegeError(Exception):
    """Anything manege says to its user instead of a traceback."""

    exit_code = EXIT_INPUT


class ConfigError(ManegeError):
    """The configuration, a flag or an argument is wrong."""


class DataError(ManegeError):
    """The pictures or labels are missing, broken or too few."""


class CheckpointError(ManegeError):
    """A checkpoint, run directory or model cannot be trusted or does not belong here."""


class MachineError(ManegeError):
    """Disk, permissions, device or a missing extra: nothing the configuration can mend."""

    exit_code = EXIT_MACHINE
