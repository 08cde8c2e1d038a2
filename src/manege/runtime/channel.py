"""JSON messages with open files, over one Unix stream socket.

Owns framing, the pairing of files with their messages and the queue of what the kernel does not
take at once; knows nothing of what the messages say. One thread reads; any thread may send.
"""

from __future__ import annotations

import array
import json
import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from manege.runs.jsontext import finite, parse_object

CAP = 1 << 20
"""The most bytes that the JSON of a message may have."""
MAX_FILES = 4
"""The most files that a message may carry."""

_HEADER = struct.Struct(">IB")
"""The header of a message: bytes of JSON, number of files."""
_QUEUE_CAP = 64 << 20
_READ_BYTES = 1 << 16
_READS = 128
"""Reads in one `receive`: far more than a socket holds, yet a flood must not keep it for ever."""
_LONG_S = 3600.0
_FILES_SPACE = socket.CMSG_SPACE(MAX_FILES * array.array("i").itemsize)


class Gone(Exception):
    """Raised when the other side has closed the channel or left too much unread."""


class Garbled(ValueError):
    """Raised when what came is not what a `Channel` sends; nothing after it can be trusted."""


class Received(NamedTuple):
    """A message and its open files, which the receiver must close."""

    message: dict[str, Any]
    files: tuple[int, ...]


@dataclass
class _Outgoing:
    rest: memoryview
    files: tuple[int, ...]


class _Attached(NamedTuple):
    """Files that came with the bytes of the stream from `begin` to before `end`."""

    begin: int
    end: int
    files: tuple[int, ...]


@dataclass
class _Head:
    """The length and files of the message that is arriving, from its header."""

    length: int
    files: tuple[int, ...]


class Channel:
    """One end of a stream of messages, which sends and receives without waiting for the other."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._sending = threading.Lock()
        self._queue: deque[_Outgoing] = deque()
        self._unsent = 0
        self._no_more: str | None = None
        """Why nothing can be sent any more."""
        self._buffer = bytearray()
        self._start = 0
        """Where in the stream the buffer starts."""
        self._head: _Head | None = None
        self._attached: list[_Attached] = []
        self._end: Gone | Garbled | None = None

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two connected ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 when closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket and all files not yet handed over; what was not sent is lost."""
        with self._sending:
            self._forget_queue("this side closed the channel")
            # No shutdown: a fork that closes its copy must not take the channel from its parent.
            self._socket.close()
        self._end = self._end or Gone("this side closed the channel")
        self._forget_arriving()

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message; what cannot go at once waits in a queue, which `flush` and `wait` empty.

        The files stay the caller's, who may close them at once. Non-finite numbers become null.
        Raises Gone when the other side is, or has left 64 MiB unread; ValueError for too large a
        message.
        """
        frame = _frame(message, len(files))
        with self._sending:
            self._refuse_no_more()
            if self._unsent + len(frame) > _QUEUE_CAP:
                self._give_up(f"the other side has left {self._unsent} bytes unread")
                self._refuse_no_more()
            self._queue.append(_Outgoing(memoryview(frame), _duplicates(files)))
            self._unsent += len(frame)
            self._send_some()

    @property
    def wants_write(self) -> bool:
        """Whether there are bytes that the kernel has not taken."""
        return bool(self._queue)

    def flush(self, timeout_s: float = 0.0) -> bool:
        """Return whether the kernel took all of the queue in that time; raise Gone as in `send`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._sending:
                self._refuse_no_more()
                self._send_some()
                if not self._queue:
                    return True
                file = self.fileno()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            _poll(file, select.POLLOUT, left_s)

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether there is something to `receive`, if only the end; None waits for it.

        Sends what is in the queue meanwhile. What another thread adds goes out with its next send.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self._end is None:
            try:
                wanted = select.POLLIN if self.flush() else select.POLLIN | select.POLLOUT
            except Gone:
                break
            left_s = max(0.0, deadline_s - time.monotonic())
            found = _poll(self.fileno(), wanted, left_s)
            if found & ~select.POLLOUT:
                break
            if left_s == 0:
                return False
        return True

    def receive(self) -> list[Received]:
        """Return the whole messages that have arrived, without waiting.

        When the stream has ended (Gone) or makes no sense (Garbled), the messages before that are
        returned first; the next call raises the error, as does every later one.
        """
        received: list[Received] = []
        if self._end is None:
            try:
                self._read(received)
            except (Gone, Garbled) as end:
                self._end = end
                self._forget_arriving()
        if self._end is not None and not received:
            raise self._end.with_traceback(None)
        return received

    def _send_some(self) -> None:
        """Send what the kernel takes now; the caller holds the lock."""
        while self._queue:
            first = self._queue[0]
            try:
                # Without the flag, a program that does not ignore SIGPIPE would die here.
                taken = self._socket.sendmsg(
                    [first.rest], _rights(first.files), socket.MSG_NOSIGNAL
                )
            except BlockingIOError:
                return
            except ConnectionError as error:
                self._give_up(f"the other side has closed the channel ({error.strerror})")
                raise Gone(self._no_more) from None
            # The files have gone with the first byte, however few bytes were taken.
            _close_all(first.files)
            first.files = ()
            first.rest = first.rest[taken:]
            self._unsent -= taken
            if not first.rest:
                self._queue.popleft()

    def _refuse_no_more(self) -> None:
        if self._no_more is not None:
            raise Gone(self._no_more)

    def _give_up(self, why: str) -> None:
        """Send nothing any more, and wake whoever waits for this channel."""
        self._forget_queue(why)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _forget_queue(self, why: str) -> None:
        self._no_more = self._no_more or why
        for outgoing in self._queue:
            _close_all(outgoing.files)
        self._queue.clear()
        self._unsent = 0

    def _read(self, received: list[Received]) -> None:
        for _ in range(_READS):
            begin = self._start + len(self._buffer)
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    _READ_BYTES, _FILES_SPACE, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionError as error:
                raise self._gone(error.strerror) from None
            files = _files_in(ancillary)
            if files:
                self._attached.append(_Attached(begin, begin + len(data), files))
            if flags & socket.MSG_CTRUNC:
                raise self._garbled(
                    f"files were lost: more than {MAX_FILES} came at once, or this process has "
                    "too many open"
                )
            if not data:
                raise self._gone("end of stream")
            self._buffer += data
            self._parse(received)

    def _parse(self, received: list[Received]) -> None:
        """Move the whole messages from the buffer to the list."""
        at = 0
        try:
            while True:
                if self._head is None:
                    if len(self._buffer) - at < _HEADER.size:
                        break
                    length, num_files = _HEADER.unpack_from(self._buffer, at)
                    if length > CAP:
                        raise self._garbled(f"a message of {length} bytes; expected {CAP} at most")
                    self._head = _Head(length, self._claim(self._start + at, num_files))
                    at += _HEADER.size
                if len(self._buffer) - at < self._head.length:
                    break
                try:
                    message = parse_object(bytes(self._buffer[at : at + self._head.length]))
                except ValueError as error:
                    raise self._garbled(f"a message that cannot be read: {error}") from None
                at += self._head.length
                received.append(Received(message, self._head.files))
                self._head = None
        finally:
            del self._buffer[:at]
            self._start += at
        next_start = self._start + (self._head.length if self._head else 0)
        if self._attached and self._attached[0].end <= next_start:
            raise self._garbled("files that belong to no message")

    def _claim(self, start: int, num_files: int) -> tuple[int, ...]:
        """Return the files of the message that starts there.

        The kernel hands files out with the bytes they were sent with. It may put earlier bytes
        before those, but never later ones after: they are the files of the one message with files
        that starts among the bytes they came with.
        """
        if num_files == 0:
            return ()
        came: tuple[int, ...] = ()
        if self._attached and self._attached[0].begin <= start < self._attached[0].end:
            came = self._attached[0].files
        if len(came) != num_files:
            raise self._garbled(f"{len(came)} files with a message that states {num_files}")
        del self._attached[0]
        return came

    def _gone(self, why: str | None) -> Gone:
        where = " in the middle of a message" if self._buffer or self._head else ""
        return Gone(f"the other side has closed the channel{where} ({why})")

    def _garbled(self, what: str) -> Garbled:
        with self._sending:
            # Wakes whoever polls this end, also when no more bytes come.
            self._give_up("what the other side sent made no sense")
        return Garbled(what)

    def _forget_arriving(self) -> None:
        for attached in self._attached:
            _close_all(attached.files)
        if self._head is not None:
            _close_all(self._head.files)
        self._attached, self._head = [], None
        self._buffer = bytearray()


def _frame(message: Mapping[str, Any], num_files: int) -> bytes:
    if num_files > MAX_FILES:
        raise ValueError(f"{num_files} files with a message; expected {MAX_FILES} at most")
    # ASCII: a file name that is not UTF-8 is a string that has no encoding, but can be escaped.
    text = json.dumps(finite(message), separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(text) > CAP:
        raise ValueError(f"a message of {len(text)} bytes; expected {CAP} at most")
    return _HEADER.pack(len(text), num_files) + text


def _rights(files: tuple[int, ...]) -> list[tuple[int, int, Any]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []


def _files_in(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return tuple(files)


def _duplicates(files: Sequence[int]) -> tuple[int, ...]:
    made: list[int] = []
    try:
        for file in files:
            made.append(os.dup(file))  # noqa: PERF401 - those made so far must be known.
    except OSError:
        _close_all(made)
        raise
    return tuple(made)


def _close_all(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _poll(file: int, wanted: int, timeout_s: float) -> int:
    """Return the events found, hang-ups and errors too; 0 after the time, or a long while."""
    poll = select.poll()
    poll.register(file, wanted)
    found = poll.poll(math.ceil(1000 * min(timeout_s, _LONG_S)))
    return found[0][1] if found else 0
