"""Locks a run for the process that runs it; the kernel frees the lock when its holder dies.

An advisory lock on one file, which is never removed (a process could then lock a file that no
longer has the name). Held over fork, not over exec (Python opens files so): a worker started as
a program does not keep its coordinator's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manege.errors import CheckpointError, MachineError
from manege.files import blaming

_BUSY = (errno.EWOULDBLOCK, errno.EACCES)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_ATTEMPTS = 100
_PAUSE_S = 0.01


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock while inside, with this process's pid in the file."""
    with blaming(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, path)
        with blaming(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        with _freed_by(os.getpid(), descriptor):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def _freed_by(pid: int, descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        # A fork that unwinds through here must not free its parent's lock.
        if os.getpid() == pid:
            os.ftruncate(descriptor, 0)
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_held(path: Path) -> bool:
    """Return whether a living process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise MachineError(f"{path}: cannot see whether the run is going on: {error}") from error
    try:
        return not _try(descriptor, fcntl.LOCK_SH, path)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    for _ in range(_ATTEMPTS):
        if _try(descriptor, fcntl.LOCK_EX, path):
            return
        # A shared lock can be had beside those who only look (`is_held`), never beside a holder.
        if not _try(descriptor, fcntl.LOCK_SH, path):
            break
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_PAUSE_S)
    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    whom = f"process {holder}" if holder else "another process"
    raise CheckpointError(
        f"{path.parent} is being run by {whom}; wait for it to end or stop it, then try again"
    )


def _try(descriptor: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _UNSUPPORTED:
            raise MachineError(
                f"{path}: this file system has no locks ({error.strerror}); put the run on one "
                "that has"
            ) from error
        raise
    return True
