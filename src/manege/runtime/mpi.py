"""The only module that knows MPI: it carries messages between ranks and ends a job.

It knows ranks and bytes, never cells: a message is a JSON object or a flat buffer. Nothing is
pickled, and nothing larger than expected is received. All calls come from one thread, and none
waits inside MPI, where waiting is busy and takes the core from a worker.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from manege import processes
from manege.errors import ConfigError, MachineError, field
from manege.runs.jsontext import finite, parse_object
from manege.runtime.launch import RankInfo

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Message, Request, Status

CAP = 1 << 21
"""The most bytes of JSON between ranks: a worker's message, and a little more around it."""

_JSON, _BYTES = 1, 2
_NOT_OPEN_MPI = ("MPICH", "MVAPICH", "Intel")
_NAP_S = 0.002
_LOOK_S = 0.05
_END_S = 10.0
_FINALIZE_S = 3.0
_KEY_BYTES = 16


class RankMessage(NamedTuple):
    """What another rank sent: an object, or bytes."""

    rank: int
    content: dict[str, Any] | np.ndarray


@dataclass
class _Arriving:
    """A message that was seen; received when all before it, of the same rank, are opened."""

    tag: int
    num_bytes: int
    message: Message
    buffer: np.ndarray | None = None
    request: Request | None = None


class _Leaving(NamedTuple):
    """A message that MPI may still be reading."""

    rank: int
    buffer: np.ndarray
    request: Request


class World:
    """All ranks of the job, and the messages between them."""

    def __init__(self, comm: Comm) -> None:
        """Take the communicator; use `join` instead."""
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.key = _agreed_key(comm)
        """A random word that only the ranks of this job know."""
        self.node, self.local_rank, self.local_size = _place(comm)
        """The first rank of this machine, how many worker ranks come before this one there, and how
        many there are.
        """
        self._leaving: deque[_Leaving] = deque()
        self._arriving: dict[int, deque[_Arriving]] = {}
        self._largest = 0
        self._lost: set[int] = set()
        self._looked_at = 0.0
        self._outlives = self._can_outlive()

    def lost(self) -> list[int]:
        """Return the ranks that died since the last call; none where MPI cannot outlive a death."""
        now = time.monotonic()
        if not self._outlives or now - self._looked_at < _LOOK_S:
            return []
        self._looked_at = now
        found = [rank for rank in self._failed() if rank not in self._lost]
        for rank in found:
            self._lost.add(rank)
            self._arriving.pop(rank, None)
        return found

    @property
    def first_worker(self) -> int:
        """The first rank that is left besides the coordinator's."""
        return min(rank for rank in range(1, self.size) if rank not in self._lost)

    def expect(self, num_bytes: int) -> None:
        """Accept buffers of up to so many bytes."""
        self._largest = max(self._largest, num_bytes)

    def post(self, rank: int, message: Mapping[str, Any]) -> None:
        """Send a message, without waiting."""
        text = json.dumps(finite(message), separators=(",", ":"), allow_nan=False).encode("ascii")
        if len(text) > CAP:
            raise ValueError(f"a message of {len(text)} bytes; expected {CAP} at most")
        self._send(rank, _JSON, np.frombuffer(text, np.uint8))

    def post_bytes(self, rank: int, buffer: np.ndarray) -> None:
        """Send a buffer, which may not change any more, without waiting."""
        self._send(rank, _BYTES, buffer)

    def poll(self) -> Iterator[RankMessage]:
        """Yield what has arrived, without waiting; each rank's messages in the order of posting.

        One by one, as a message may make the next one expected.
        """
        from mpi4py import MPI

        while self._leaving and self._is_over(self._leaving[0]):
            self._leaving.popleft()
        status = MPI.Status()
        while (found := self._probed(status)) is not None:
            seen = _Arriving(status.Get_tag(), status.Get_count(MPI.BYTE), found)
            self._arriving.setdefault(status.Get_source(), deque()).append(seen)
        for rank, queue in list(self._arriving.items()):
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
        try:
            return bool(arriving.request.Test())
        except MPI.Exception:
            if rank not in self._failed():
                raise
            return False  # `lost` tells of it, and forgets it.

    def leave(self, code: int) -> NoReturn:
        """End this process, once all ranks have come here."""
        _set_timer(_END_S + _FINALIZE_S, code)
        self._lost.update(self._failed())
        deadline = time.monotonic() + _END_S
        # With a rank missing nobody comes to the old barrier, and Finalize may hang.
        barrier = (self._comm.Shrink() if self._lost else self._comm).Ibarrier()
        while not barrier.Test() and time.monotonic() < deadline:
            deque(self.poll(), maxlen=0)
            time.sleep(_NAP_S)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if not barrier.Test():
            self._comm.Abort(code)  # A rank that hangs would keep the launcher for ever.
        if not self._lost:
            _finalize(code)
        os._exit(code)

    def abort(self, code: int) -> NoReturn:
        """End the whole job, as this rank cannot go on."""
        sys.stderr.flush()
        self._comm.Abort(code)
        os._exit(code)

    def _send(self, rank: int, tag: int, buffer: np.ndarray) -> None:
        from mpi4py import MPI

        if rank in self._lost:
            return
        try:
            request = self._comm.Isend([buffer, MPI.BYTE], dest=rank, tag=tag)
        except MPI.Exception:
            if rank not in self._failed():
                raise
        else:
            self._leaving.append(_Leaving(rank, buffer, request))

    def _probed(self, status: Status) -> Message | None:
        from mpi4py import MPI

        try:
            return self._comm.Improbe(status=status)
        except MPI.Exception:
            if not self._failed():
                raise
            self._comm.Ack_failed()  # Else none but the dead could be heard of.
            return None

    def _is_over(self, leaving: _Leaving) -> bool:
        """Return whether MPI needs a message's buffer no more, be it that the receiver died."""
        from mpi4py import MPI

        try:
            return bool(leaving.request.Test())
        except MPI.Exception:
            if leaving.rank not in self._failed():
                raise
            return True

    def _failed(self) -> list[int]:
        from mpi4py import MPI

        if not self._outlives:
            return []
        failed = self._comm.Get_failed()
        return list(MPI.Group.Translate_ranks(failed, None, self._comm.Get_group()))

    def _can_outlive(self) -> bool:
        """Return whether this MPI was started so that it reports a rank's death (ULFM)."""
        from mpi4py import MPI

        try:
            self._comm.Get_failed()
        except (MPI.Exception, NotImplementedError):
            return False
        return True


def _agreed_key(comm: Comm) -> str:
    from mpi4py import MPI

    key = np.frombuffer(secrets.token_bytes(_KEY_BYTES), np.uint8).copy()
    comm.Bcast([key, MPI.BYTE], root=0)
    return key.tobytes().hex()


def _place(comm: Comm) -> tuple[int, int, int]:
    from mpi4py import MPI

    here = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank())
    first = np.array([comm.Get_rank()], np.int64)
    here.Bcast([first, MPI.INT64_T], root=0)
    rank, size = here.Get_rank(), here.Get_size()
    here.Free()
    coordinators = int(first[0] == 0)  # It takes no place from the others.
    return int(first[0]), rank - coordinators, size - coordinators


def _opened(rank: int, arrived: _Arriving) -> RankMessage:
    assert arrived.buffer is not None
    if arrived.tag == _JSON:
        return RankMessage(rank, parse_object(arrived.buffer.tobytes()))
    return RankMessage(rank, arrived.buffer)


def _finalize(code: int) -> None:
    """Finalise MPI, or mpiexec would take the end for a crash; end the process if that hangs."""
    from mpi4py import MPI

    _set_timer(_FINALIZE_S, code)
    MPI.Finalize()


def _set_timer(seconds: float, code: int) -> None:
    """End this process after so many seconds, whatever it waits for."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    try:
        with processes.starting():
            timer.start()
    except MachineError:
        # The kernel's alarm takes no thread, but leaves the launcher a signal instead of the code.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


_joined: World | None = None


def join(info: RankInfo | None) -> World:
    """Return all ranks of the job that this process belongs to.

    Args:
        info: what the launcher said, if it is one we know.
    """
    global _joined
    if _joined is None:
        _joined = _join(info)
    return _joined


def joined() -> World | None:
    """Return the job that this process has joined; None if it has joined none."""
    return _joined


def _join(info: RankInfo | None) -> World:
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MachineError(
            f"MPI cannot be used ({_first_line(error)}); install it: pip install 'manege[mpi]', or "
            "mpi4py alone where the machine has an MPI of its own"
        ) from None
    library = _first_line(MPI.Get_library_version())
    if info is not None and info.is_open_mpi and library.startswith(_NOT_OPEN_MPI):
        raise _mismatch(info, library)  # It would abort in its own words.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Of a mismatch, which we say below.
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    comm = MPI.COMM_WORLD.Dup()
    if comm.Get_size() == 1:
        if info is not None:
            raise _mismatch(info, library)
        raise ConfigError(
            f"{field('runtime')} mpi: one rank only; a coordinator and at least one worker are "
            "needed: mpiexec -n 3 manege train …"
        )
    return World(comm)


def _mismatch(info: RankInfo, library: str) -> ConfigError:
    return ConfigError(
        f"the launcher started {info.size} ranks, but is not that of mpi4py's library ({library}), "
        "so that each would be alone; use that library's mpiexec, or build mpi4py for the MPI at "
        "hand: pip install --no-binary mpi4py mpi4py"
    )


def _first_line(text: object) -> str:
    return " ".join(str(text).split("\n")[0].split(", package")[0].split())
