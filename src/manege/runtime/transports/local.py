"""The local transport: workers as processes of this machine, forked from a worker server.

`Server` reaches the server, and asks it for what precedes a run; `Workers` reaches the workers
that it forked. Decides nothing (the coordinator does) and imports no torch. Whatever happens to
this process, the others end too.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from manege import failpoints, machine, plugins, processes
from manege.errors import MachineError, field_names
from manege.observer import Observer, Observers
from manege.runtime.boot import NO_ROOM
from manege.runtime.channel import Channel, Garbled, Gone
from manege.runtime.coordinator import Outcome
from manege.runtime.driver import Deliver, drive
from manege.runtime.messages import (
    Close,
    Count,
    Died,
    ForkWorker,
    Kill,
    Load,
    Loaded,
    NewRun,
    OldRun,
    Order,
    Prepared,
    Refused,
    Said,
    Say,
    Send,
    Start,
    Task,
    decode,
    encode,
)

T = TypeVar("T")
_POLL_S = 0.1
_BOOT, _SERVER = "manege.runtime.boot", "manege.runtime.worker.server"
_END_S = 5.0
_MOST_CALLS = 1024
_LOST_SERVERS = 3


def run(
    request: NewRun | OldRun, observer: Observers, workers: int | None
) -> tuple[Prepared, Outcome]:
    """Drive a run on processes of this machine; `workers` None chooses how many."""
    machine.allow_many_files()
    with Server() as server:
        failpoints.only_for(None)
        transport = _Local(server, observer, workers)
        try:
            return drive(request, transport, observer)
        finally:
            transport.close()


def choose_workers(cells: int, threads: int, bytes_each: int) -> tuple[int, str]:
    """Return how many workers suit this machine, and why.

    Args:
        cells: how many cells there are to train.
        threads: how many threads each worker uses.
        bytes_each: how much memory a worker was seen to start with.
    """
    cores = machine.cores()
    by_cores = max(1, cores // threads)
    by_memory = max(1, machine.free_bytes() // max(1, bytes_each))
    workers = min(by_cores, by_memory, cells)
    if workers == cells:
        why = f"{cells} to train"
    elif workers == by_cores:
        why = f"{cores} cores, {threads} a trainer"
    else:
        why = f"memory for {by_memory}, {bytes_each >> 20} MB each"
    return workers, why


class _Local:
    """The transport to workers of this machine."""

    watches = True

    def __init__(self, server: Server, observer: Observer, workers: int | None) -> None:
        self._server = server
        self._observer = observer
        self._workers = workers
        self._workers_here: Workers | None = None

    def prepare(self, request: NewRun | OldRun) -> Prepared:
        return self._server.prepare(request, self._observer)

    def load(self, prepared: Prepared) -> tuple[Task, int]:
        loaded = self._server.load(prepared, self._observer)
        workers = self._workers
        if workers is None:
            threads = prepared.config.threads_per_cell
            workers, why = choose_workers(len(loaded.task.cells), threads, loaded.bytes_each)
            self._observer.say(f"workers: {workers} ({why})")
        self._workers_here = Workers(self._server, prepared, self._observer)
        return loaded.task, workers

    @property
    def _bound(self) -> Workers:
        assert self._workers_here is not None
        return self._workers_here

    def carry(self, order: Order) -> None:
        match order:
            case Send(worker, message, files):
                self._bound.send(worker, message, files)
            case Start(worker):
                self._bound.start(worker)
            case Kill(worker):
                self._bound.drop(worker)
            case Close(file):
                os.close(file)

    def poll(self, timeout_s: float, deliver: Deliver) -> None:
        for heard in self._bound.hear(timeout_s):
            deliver(heard)

    def await_end(self) -> None:
        self._bound.await_end()

    def close(self) -> None:
        if self._workers_here is not None:
            self._workers_here.close()


class Workers:
    """The workers that run on this machine, and the server that forks them."""

    def __init__(
        self,
        server: Server,
        prepared: Prepared,
        observer: Observer,
        local_indices: Sequence[int] = (0, 1),
    ) -> None:
        """Begin without any worker.

        Args:
            server: the worker server, with the run loaded; replaced when it dies.
            prepared: the run that it has loaded.
            observer: sees what another server says, should this one die.
            local_indices: the first of ours among those of the machine's workers, and how far
                apart ours are; a worker's index says which GPU is its own.
        """
        self._local_indices = local_indices
        self._taken: dict[int, int] = {}
        """Which of our indices each worker has."""
        self._server = server
        self._prepared = prepared
        self._observer = observer
        self._channels: dict[int, Channel] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(server.channel.fileno(), selectors.EVENT_READ, 0)
        self._lost_servers = 0

    def start(self, worker: int) -> None:
        """Start a worker, under this number."""
        ours, theirs = Channel.pair()
        self._channels[worker] = ours
        self._selector.register(ours.fileno(), selectors.EVENT_READ, worker)
        self._taken[worker] = next(
            index for index in itertools.count() if index not in self._taken.values()
        )
        first, apart = self._local_indices
        local_index = first + apart * self._taken[worker]
        with suppress(Gone):
            self._server.channel.send(encode(ForkWorker(worker, local_index)), [theirs.fileno()])
        theirs.close()

    def send(self, worker: int, message: Any, files: Sequence[int] = ()) -> None:
        """Send a worker a message, if it is there."""
        if worker in self._channels:
            # Of its death we hear from the server.
            with suppress(Gone):
                self._channels[worker].send(encode(message), files)

    def drop(self, worker: int) -> None:
        """Make sure that a worker is dead, and listen to it no more."""
        channel = self._channels.pop(worker, None)
        if channel is None:
            return
        self._taken.pop(worker, None)
        self._unwatch(channel)
        channel.close()
        with suppress(Gone):
            self._server.channel.send(encode(Kill(worker)))

    def hear(self, timeout_s: float) -> Iterator[Said | Died]:
        """Yield what comes within that time; one by one, as an answer may change what follows."""
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
        """Wait a while for the workers, which were told to quit, to end."""
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
        """Close the channels to all workers."""
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
        """Yield what a dead worker said last, unless it is given up meanwhile."""
        with suppress(Gone, Garbled):
            while worker in self._channels and (received := self._channels[worker].receive()):
                for message, files in received:
                    yield _said(worker, message, files)

    def _replace_server(self) -> Iterator[Died]:
        """Start another server; yield the deaths of all workers, which died with the old one."""
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
    """Return what a worker said; that it died, if what it said makes no sense."""
    try:
        return Said(worker, decode(message), files)
    except ValueError as error:
        for file in files:
            os.close(file)
        return Died(worker, f"said what makes no sense: {error}")


class Server:
    """The channel to a worker server, and its process if it was started here."""

    def __init__(self, shared_as: str | None = None) -> None:
        """Reach a server of our own, or the one that this machine's processes share by its name.

        Whoever comes first starts the one that is shared.
        """
        self._shared_as = shared_as
        self._process: subprocess.Popen[bytes] | None = None
        self._run: Path | None = None
        """The run that it was told to load or has prepared; None before."""
        self.channel = self._reached()

    def _reached(self) -> Channel:
        if self._shared_as is None:
            ours, theirs = socket.socketpair()
            self._start("channel", theirs)
            return Channel(ours)
        deadline = time.monotonic() + _END_S
        while True:
            try:
                return Channel(self._called(f"\0{self._shared_as}"))
            except ConnectionRefusedError:  # One was there, and was dying.
                if time.monotonic() > deadline:
                    raise self.lost() from None
                time.sleep(_POLL_S)

    def _called(self, name: str) -> socket.socket:
        """Return a connection to the server of that name; start it unless another listens."""
        called_on, ours = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        with called_on:
            try:
                called_on.bind(name)  # Refused while another one listens, and freed by its death.
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                called_on.listen(_MOST_CALLS)
                self._start("listen", called_on)
        try:
            ours.connect(name)
        except OSError:
            ours.close()
            raise
        return ours

    def _start(self, way: str, theirs: socket.socket) -> None:
        names = json.dumps(field_names())  # Its messages are for our user.
        with theirs, processes.starting():
            self._process = subprocess.Popen(
                [sys.executable, "-m", _BOOT, _SERVER, way, str(theirs.fileno()), names],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=plugins.environment(),  # What is imported here can be imported there.
                # One that is shared is not reached by signals to our group.
                process_group=None if self._shared_as is None else 0,
            )

    def replace(self) -> None:
        """Reach another server in the place of one that died."""
        self.__exit__()
        self.channel = self._reached()

    def kill(self) -> None:
        """Kill the server, whatever it does, if it was started here; its workers die with it."""
        if self._process is not None:
            self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        self.channel.close()
        if self._process is None:
            return
        if kind is not None:
            self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def prepare(self, request: NewRun | OldRun, observer: Observer) -> Prepared:
        """Have the server make or open the run's directory."""
        self.ask(request)
        return answer(self._receive, Prepared, observer)

    def load(self, prepared: Prepared, observer: Observer) -> Loaded:
        """Have the server load what all workers have in common."""
        self.ask(Load(prepared.path, prepared.config))
        return answer(self._receive, Loaded, observer)

    def ask(self, message: NewRun | OldRun | Load) -> None:
        """Ask for what must precede any worker; raise MachineError if the server is dead."""
        if isinstance(message, Load):
            self._run = message.path
        try:
            self.channel.send(encode(message))
        except Gone:
            raise self.lost() from None

    def answers(self) -> list[Any]:
        """Return what the server has said; raise MachineError if it is dead."""
        try:
            said = [decode(message) for message, _ in self.channel.receive()]
        except (Gone, ValueError):
            raise self.lost() from None
        for message in said:
            if isinstance(message, Prepared):
                self._run = message.path
        return said

    def lost(self) -> MachineError:
        """Return the error for a server that died before it had forked a worker."""
        if self._ended() == NO_ROOM:
            return processes.no_more()
        if self._run is None:
            return MachineError(
                "the trainer server died while preparing the run; see its words above, and try "
                "again"
            )
        return MachineError(
            "the trainer server died while loading the run; look for what killed it, then "
            f"`manege resume {self._run}`"
        )

    def _ended(self) -> int | None:
        """Return the exit code of the process that was started here, if it has ended."""
        try:
            return None if self._process is None else self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None

    def _receive(self) -> Iterable[Any]:
        self.channel.wait(_POLL_S)
        return self.answers()


def answer(receive: Callable[[], Iterable[Any]], wanted: type[T], observer: Observer) -> T:
    """Return the answer that a server gives at last; raise its refusal."""
    while True:
        if stopped_by := observer.should_stop():
            raise KeyboardInterrupt(stopped_by)
        for message in receive():
            match message:
                case Say(text):
                    observer.say(text)
                case Count(done, total):
                    observer.progress(done, total)
                case Refused():
                    raise message.error()
                case _ if isinstance(message, wanted):
                    return message
