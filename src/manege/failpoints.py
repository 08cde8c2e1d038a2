"""Named places where a test may kill the process or break it, to prove that this does no harm.

Owns the environment variable ``MANEGE_FAILPOINT``. Death is sudden: no handler runs, no buffer is
flushed, as when the power or the out-of-memory killer strikes.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from manege.errors import ConfigError

VARIABLE = "MANEGE_FAILPOINT"
TRAINER = "MANEGE_FAILPOINT_TRAINER"
"""The number of the worker a failpoint is meant for, or any; unset, it is the command itself."""


@dataclass
class _Armed:
    name: str
    remaining: int
    raises: bool


_armed: _Armed | None = None
_parsed = False


def failpoint(name: str) -> None:
    """Kill this process by SIGKILL if ``MANEGE_FAILPOINT`` is ``name`` or ``name@N``, else return.

    With ``!`` at its end it raises RuntimeError instead. N counts the times this process reaches
    the name, from 1. The environment is read at the first call; a forked child that changes the
    variable calls `reset` afterwards.
    """
    if not _parsed:
        _parse()
    if _armed is None or _armed.name != name:
        return
    _armed.remaining -= 1
    if _armed.remaining == 0 and _armed.raises:
        raise RuntimeError(f"failpoint {name}")
    if _armed.remaining == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def only_for(trainer: int | None) -> None:
    """Arm this process if it is the one meant: the command (None) or a worker by its number."""
    meant = os.environ.get(TRAINER)
    if meant != (None if trainer is None else str(trainer)) and not (trainer and meant == "any"):
        os.environ.pop(VARIABLE, None)
    reset()


def reset() -> None:
    """Have the next `failpoint` read the environment anew and count from 1."""
    global _armed, _parsed
    _armed, _parsed = None, False


def _parse() -> None:
    global _armed, _parsed
    text = os.environ.get(VARIABLE, "")
    name, at, count = text.removesuffix("!").partition("@")
    if at and not (count.isascii() and count.isdigit() and int(count) > 0):
        raise ConfigError(f"{VARIABLE} is {text!r}, expected name or name@N with N from 1")
    _armed = _Armed(name, int(count) if at else 1, text.endswith("!")) if name else None
    _parsed = True
