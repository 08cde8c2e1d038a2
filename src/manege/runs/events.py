"""Reads and writes events.jsonl: one JSON object a line, each appended by a single write.

Reports learn the course of training from it alone. A torn last line means a writer at work, or
killed; damage before it is an error.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manege.errors import CheckpointError
from manege.files import blaming, machine_error
from manege.runs.jsontext import parse_object

_BLOCK = 1 << 16


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append the record as the file's last line, by a single write."""
    line = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
    with blaming(path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(path, flags, 0o666)
        try:
            written = os.write(descriptor, line)
            if written < len(line):
                _take_back(descriptor, written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object of every whole line, in order; nothing if there is no file yet."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise machine_error(path, error) from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield parse_object(line)
            except ValueError as error:
                raise CheckpointError(
                    f"{path}: line {number} is damaged ({error}), expected one JSON object; "
                    "delete that line to read the rest"
                ) from error


def cut_torn_line(path: Path) -> int:
    """Cut off a last line that has no end; return the number of bytes cut off."""
    with blaming(path):
        if not path.exists():
            return 0
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            keep = _end_of_last_line(file.fileno(), size)
            if keep < size:
                file.truncate(keep)
                os.fsync(file.fileno())
            return size - keep


def _end_of_last_line(descriptor: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _take_back(descriptor: int, written: int) -> None:
    # A part of a line followed by a later whole one would be damage in the middle of the file.
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    if os.fstat(descriptor).st_size == end:
        os.ftruncate(descriptor, end - written)
