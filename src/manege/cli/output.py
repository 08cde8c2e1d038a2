"""Standard output: text for people, or exactly one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(text: str, end: str = "\n") -> None:
    """One line of a result."""
    sys.stdout.write(text + end)


def emit_json(value: dict[str, Any]) -> None:
    """The whole result."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
