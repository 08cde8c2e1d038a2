"""Standard output: text for people, or exactly one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

from manege.errors import MachineError


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
