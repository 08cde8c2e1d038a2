"""Start processes and threads, and say so in words when the machine lets us have no more."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from manege.errors import MachineError, field

_REMEDIES = {
    errno.EAGAIN: "raise the limit on them (ulimit -u, or pids.max of the container), end other "
    "programs",
    errno.ENOMEM: "free some memory",
}


def no_more(number: int = errno.EAGAIN) -> MachineError:
    """Return the error for a process or thread that the system refused with this error number."""
    reason = os.strerror(number)
    return MachineError(
        f"no further process or thread can be started ({reason[:1].lower()}{reason[1:]}); "
        f"{_REMEDIES[number]}, or use fewer {field('workers')}"
    )


@contextmanager
def starting() -> Iterator[None]:
    """Turn the system's refusal to start a process or a thread inside into a MachineError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        raise no_more(error.errno) from error
    except RuntimeError as error:
        # Python has no kind of its own for this one.
        if "can't start new thread" not in str(error):
            raise
        raise no_more() from error


def fork() -> int:
    """Fork as `os.fork` does; raise MachineError when there can be no further process."""
    with starting():
        return os.fork()


def check_threads(count: int) -> None:
    """Raise MachineError unless so many threads can be started beside those that there are.

    For libraries that end or interrupt the whole process when they cannot start their own.
    """
    release, started = threading.Event(), []
    try:
        with starting():
            for _ in range(count):
                thread = threading.Thread(target=release.wait, daemon=True)
                thread.start()
                started.append(thread)
    finally:
        release.set()
        for thread in started:
            thread.join()
