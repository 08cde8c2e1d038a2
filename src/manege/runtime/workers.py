"""The workers of one machine: forked by its worker server, heard over their channels.

Starts them, gives them messages and hands on what they say and how they die; who they are and
what becomes of it is for others to decide.
"""

from __future__ import annotations

import itertools
import os
import selectors
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from manege.errors import MachineError
from manege.observer import Observer
from manege.runtime.channel import Channel, Garbled, Gone
from manege.runtime.messages import Died, ForkWorker, Kill, Prepared, Refused, Said, decode, encode
from manege.runtime.serving import Server

_END_S = 5.0
_LOST_SERVERS = 3


class Workers:
    """Those under way, and the server that forks them."""

    def __init__(
        self,
        server: Server,
        prepared: Prepared,
        observer: Observer,
        seats: Sequence[int] = (0, 1),
    ) -> None:
        """None yet.

        Args:
            server: bound; replaced when it dies.
            prepared: what it is bound to.
            observer: sees what another one says, should this one die.
            seats: the first of ours among those of the machine's workers, and how far apart ours
                are; a worker's seat says which GPU is its own.
        """
        self._seats = seats
        self._taken: dict[int, int] = {}
        """Which of our seats every worker has."""
        self._server = server
        self._prepared = prepared
        self._observer = observer
        self._channels: dict[int, Channel] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(server.channel.fileno(), selectors.EVENT_READ, 0)
        self._lost_servers = 0

    def start(self, worker: int) -> None:
        """Start one, under this number."""
        ours, theirs = Channel.pair()
        self._channels[worker] = ours
        self._selector.register(ours.fileno(), selectors.EVENT_READ, worker)
        self._taken[worker] = next(
            seat for seat in itertools.count() if seat not in self._taken.values()
        )
        first, apart = self._seats
        seat = first + apart * self._taken[worker]
        with suppress(Gone):
            self._server.channel.send(encode(ForkWorker(worker, seat)), [theirs.fileno()])
        theirs.close()

    def send(self, worker: int, message: Any, files: Sequence[int] = ()) -> None:
        """Give one a message, if it is there."""
        if worker in self._channels:
            # Of its death we hear from the server.
            with suppress(Gone):
                self._channels[worker].send(encode(message), files)

    def drop(self, worker: int) -> None:
        """Make sure that one is dead, and listen to it no more."""
        channel = self._channels.pop(worker, None)
        if channel is None:
            return
        self._taken.pop(worker, None)
        self._unwatch(channel)
        channel.close()
        with suppress(Gone):
            self._server.channel.send(encode(Kill(worker)))

    def hear(self, timeout_s: float) -> Iterator[Said | Died]:
        """What comes within that time, one by one: what is done about it may change the rest."""
        for channel in self._channels.values():
            if channel.wants_write:
                with suppress(Gone):
                    channel.flush()
        for key, _ in self._selector.select(timeout_s):
            if key.data == 0:
                yield from self._hear_server()
            elif key.data in self._channels:
                yield from self._hear_worker(key.data)

    def await_end(self) -> None:
        """They were told to quit, and have a while for it."""
        deadline = time.monotonic() + _END_S
        for channel in self._channels.values():
            with suppress(Gone, Garbled):
                channel.flush(max(0.0, deadline - time.monotonic()))
                while time.monotonic() < deadline:
                    channel.wait(deadline - time.monotonic())
                    for _, files in channel.receive():
                        for file in files:
                            os.close(file)

    def close(self) -> None:
        """Listen to none of them any more."""
        for channel in self._channels.values():
            channel.close()
        self._selector.close()

    def _unwatch(self, channel: Channel) -> None:
        with suppress(KeyError):
            self._selector.unregister(channel.fileno())

    def _hear_worker(self, worker: int) -> Iterator[Said | Died]:
        channel = self._channels[worker]
        try:
            received = channel.receive()
        except Gone:
            self._unwatch(channel)  # The server tells how it died.
            return
        except Garbled as error:
            yield Died(worker, f"said what makes no sense: {error}")
            return
        for message, files in received:
            yield _said(worker, message, files)

    def _hear_server(self) -> Iterator[Said | Died]:
        try:
            received = self._server.channel.receive()
        except Gone:
            yield from self._replace_server()
            return
        for message in (decode(message) for message, _ in received):
            if isinstance(message, Refused):  # It could not fork one.
                raise message.error()
            if isinstance(message, Died) and message.worker in self._channels:
                yield from self._hear_last(message.worker)
                yield message

    def _hear_last(self, worker: int) -> Iterator[Said | Died]:
        """A dead one's last words, unless it is given up meanwhile."""
        with suppress(Gone, Garbled):
            while worker in self._channels and (received := self._channels[worker].receive()):
                for message, files in received:
                    yield _said(worker, message, files)

    def _replace_server(self) -> Iterator[Died]:
        """Start another; all workers died with the old one."""
        self._lost_servers += 1
        if self._lost_servers >= _LOST_SERVERS:
            raise MachineError(
                f"the trainer server died {self._lost_servers} times; look for what kills it, then "
                f"`manege resume {self._prepared.path}`"
            )
        self._selector.unregister(self._server.channel.fileno())
        self._server.replace()
        self._server.load(self._prepared, self._observer)
        self._selector.register(self._server.channel.fileno(), selectors.EVENT_READ, 0)
        for worker in list(self._channels):
            yield Died(worker, "died with the trainer server")


def _said(worker: int, message: Mapping[str, Any], files: tuple[int, ...]) -> Said | Died:
    """Return what a worker said, or that it is as good as dead: nobody understands it."""
    try:
        return Said(worker, decode(message), files)
    except ValueError as error:
        for file in files:
            os.close(file)
        return Died(worker, f"said what makes no sense: {error}")
