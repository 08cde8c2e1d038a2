"""The only module that knows MPI: letters between ranks, and how a job ends.

Knows ranks and bytes, never cells: a letter is a JSON object or a flat buffer. Nothing is pickled,
and nothing larger than expected is received. All calls come from one thread and none waits inside
MPI, where waiting is busy and takes the core from a trainer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from manege.errors import ConfigError, MachineError
from manege.rundir.jsontext import finite, parse_object
from manege.runtime.launch import Seat

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Message, Request

CAP = 1 << 21
"""Bytes of a letter's JSON, at most: that of a trainer's message, and a little more."""

_JSON, _BYTES = 1, 2
_NAP_S = 0.002
_END_S = 10.0
_FINALIZE_S = 3.0


class Letter(NamedTuple):
    """What another rank sent: an object, or bytes."""

    rank: int
    content: dict[str, Any] | np.ndarray


@dataclass
class _Arriving:
    """A letter that was seen; received when all before it, of the same rank, are opened."""

    tag: int
    num_bytes: int
    message: Message
    buffer: np.ndarray | None = None
    request: Request | None = None


class World:
    """All ranks of the job."""

    def __init__(self, comm: Comm) -> None:
        """Use `join`."""
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._leaving: deque[tuple[np.ndarray, Request]] = deque()
        self._arriving: dict[int, deque[_Arriving]] = {}
        self._largest = 0

    def expect(self, num_bytes: int) -> None:
        """Buffers of up to so many bytes may come."""
        self._largest = max(self._largest, num_bytes)

    def post(self, rank: int, message: Mapping[str, Any]) -> None:
        """A letter is under way."""
        text = json.dumps(finite(message), separators=(",", ":"), allow_nan=False).encode("ascii")
        if len(text) > CAP:
            raise ValueError(f"a letter of {len(text)} bytes; expected {CAP} at most")
        self._send(rank, _JSON, np.frombuffer(text, np.uint8))

    def post_bytes(self, rank: int, buffer: np.ndarray) -> None:
        """A buffer is under way; it may not change any more."""
        self._send(rank, _BYTES, buffer)

    def poll(self) -> Iterator[Letter]:
        """What has arrived, without waiting; of one rank in the order in which it was posted.

        One by one: what a letter says may be what makes the next one expected.
        """
        from mpi4py import MPI

        while self._leaving and self._leaving[0][1].Test():
            self._leaving.popleft()
        status = MPI.Status()
        while (found := self._comm.Improbe(status=status)) is not None:
            seen = _Arriving(status.Get_tag(), status.Get_count(MPI.BYTE), found)
            self._arriving.setdefault(status.Get_source(), deque()).append(seen)
        for rank, queue in self._arriving.items():
            while queue and self._is_here(rank, queue[0]):
                yield _opened(rank, queue.popleft())

    def _is_here(self, rank: int, arriving: _Arriving) -> bool:
        from mpi4py import MPI

        if arriving.request is None:
            most = CAP if arriving.tag == _JSON else self._largest
            if arriving.num_bytes > most:
                raise MachineError(
                    f"rank {rank} sends {arriving.num_bytes} bytes, expected {most} at most; are "
                    "all ranks of the same version of manege?"
                )
            arriving.buffer = np.empty(arriving.num_bytes, np.uint8)
            arriving.request = arriving.message.Irecv([arriving.buffer, MPI.BYTE])
        return bool(arriving.request.Test())

    def leave(self, code: int) -> NoReturn:
        """The end of this process, once all ranks are here."""
        deadline = time.monotonic() + _END_S
        barrier = self._comm.Ibarrier()
        while not barrier.Test() and time.monotonic() < deadline:
            deque(self.poll(), maxlen=0)
            time.sleep(_NAP_S)
        _quit(code)

    def abort(self, code: int) -> NoReturn:
        """The end of the job: this rank cannot go on."""
        sys.stderr.flush()
        self._comm.Abort(code)
        os._exit(code)

    def _send(self, rank: int, tag: int, buffer: np.ndarray) -> None:
        from mpi4py import MPI

        request = self._comm.Isend([buffer, MPI.BYTE], dest=rank, tag=tag)
        self._leaving.append((buffer, request))


def _opened(rank: int, arrived: _Arriving) -> Letter:
    assert arrived.buffer is not None
    if arrived.tag == _JSON:
        return Letter(rank, parse_object(arrived.buffer.tobytes()))
    return Letter(rank, arrived.buffer)


def _quit(code: int) -> NoReturn:
    """Without Finalize mpiexec takes the end for a crash; but it may hang."""
    from mpi4py import MPI

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    timer = threading.Timer(_FINALIZE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    MPI.Finalize()
    os._exit(code)


_joined: World | None = None


def join(seat: Seat | None) -> World:
    """All ranks of the job this process belongs to.

    Args:
        seat: what the launcher said, if it is one we know.
    """
    global _joined
    if _joined is None:
        _joined = _join(seat)
    return _joined


def joined() -> World | None:
    """The job this process has joined, if any."""
    return _joined


def _join(seat: Seat | None) -> World:
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MachineError(
            f"MPI cannot be used ({_first_line(error)}); install it: pip install 'manege[mpi]', or "
            "mpi4py alone where the machine has an MPI of its own"
        ) from None
    MPI.Init_thread(MPI.THREAD_FUNNELED)
    comm = MPI.COMM_WORLD.Dup()
    if comm.Get_size() == 1:
        library = _first_line(MPI.Get_library_version())
        if seat is not None:
            raise ConfigError(
                f"the launcher started {seat.size} ranks, but each sees itself alone: it is not "
                f"that of mpi4py's library ({library}); use that library's mpiexec, or build "
                "mpi4py for the MPI at hand: pip install --no-binary mpi4py mpi4py"
            )
        raise ConfigError(
            "--runtime mpi: one rank only; a coordinator and at least one worker are needed: "
            "mpiexec -n 3 manege train …"
        )
    return World(comm)


def _first_line(text: object) -> str:
    return str(text).split("\n")[0].split(", package")[0].strip()
