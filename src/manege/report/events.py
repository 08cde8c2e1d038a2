"""Read events.jsonl for a report: every sound line, and a count of the others.

The strict reader is `manege.runs`'s; this one never fails over what a line holds, so that a run
that was damaged, or is being written, can be looked at all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manege.files import machine_error

_CHUNK = 1 << 22


class Tail:
    """Reads the lines of a growing file, each time only the new ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.damaged: list[int] = []
        """Numbers of the lines that hold no JSON object with an event in it."""
        self.torn = False
        """Whether the last line had no end when it was read."""
        self.lines = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the last reading; none when there is no file."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise machine_error(self._path, error) from error
        with file:
            if file.seek(0, 2) < self._offset:
                self._offset = self.lines = 0  # Another file took its place.
            file.seek(self._offset)
            self.torn = False
            rest = b""
            while chunk := file.read(_CHUNK):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    self.lines += 1
                    self._offset += len(line) + 1
                    event = _parsed(line)
                    if event is None:
                        self.damaged.append(self.lines)
                    else:
                        yield event
            self.torn = bool(rest)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
