"""Standard output: text for people, or exactly one JSON object."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from manege.errors import MachineError

if TYPE_CHECKING:
    from manege.experiments.children import ExperimentProgress


def say(text: str, end: str = "\n") -> None:
    """One line of a result."""
    try:
        sys.stdout.write(text + end)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(f"standard output: {error.strerror}; the result is lost") from error


def emit_json(value: dict[str, Any]) -> None:
    """The whole result."""
    say(json.dumps(value, ensure_ascii=False, allow_nan=False))


def tell(text: str) -> None:
    """A line on standard error: what goes on, or a warning."""
    sys.stderr.write(f"{text}\n")


def tell_progress(progress: ExperimentProgress) -> None:
    """A line on standard error for a run that has ended, of many."""
    tell(progress.words())
    sys.stderr.flush()
