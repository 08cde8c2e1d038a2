"""The worker server: loads torch, the data and the method once, and forks workers from itself.

    python -m manege.runtime.boot manege.runtime.worker.server channel|listen DESCRIPTOR NAMES

Started by the local runtime with one end of a channel, or by an agent with a socket to which it
and the other agents of its machine connect. A fork takes tens of milliseconds where a new
interpreter takes seconds, and all workers of a machine share the pages of what was loaded before.

It stays on one thread: a child of a process that has run operations on two threads hangs in its
first one. What needs more (a feature network's training) happens in a child of its own. Nor does it
start CUDA, which its children could not use then: each takes the method to its own devices.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from manege import device, failpoints, processes
from manege.data import cache, open_dataset
from manege.errors import (
    EXIT_INPUT,
    EXIT_MACHINE,
    EXIT_STOPPED,
    FieldNames,
    MachineError,
    ManegeError,
    fields_named,
)
from manege.observer import Observer
from manege.runs import RunDir
from manege.runtime import messages
from manege.runtime.channel import Channel, Garbled, Gone
from manege.runtime.messages import (
    ForkWorker,
    Kill,
    Load,
    Loaded,
    NewRun,
    OldRun,
    Prepared,
    Refused,
    decode,
    encode,
)
from manege.runtime.worker.host import Host, TrainingSetup
from manege.runtime.worker.preparing import prepare
from manege.runtime.worker.setup import bound_method, task_of

BEAT_S = 0.5
TELL_EVERY_S = 0.2
CRASHED = 70
_PR_SET_PDEATHSIG = 1
_FLUSH_S = 5.0
_CALLED_S = 5.0
"""Seconds after which a server ends to which nobody has connected."""
_CREDENTIALS = struct.Struct("iii")
"""The process, user and group of a process that connects."""


def main() -> None:
    """Serve until no owner is left."""
    torch.set_num_threads(1)
    way, descriptor, names = sys.argv[1:]
    with fields_named(FieldNames(*json.loads(names))):
        _serve(way, int(descriptor))
    os._exit(0)  # Children are told by the kernel.


def _serve(way: str, descriptor: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # The command decides, and says so.
    if way == "listen":
        # Whoever started it may die, and others go on.
        _Server([], called_on=socket.socket(fileno=descriptor)).serve()
    else:
        _die_with_parent()
        _Server([Channel(socket.socket(fileno=descriptor))]).serve()


class _Child(NamedTuple):
    """A forked worker."""

    host: int
    pid: int
    owner: Channel
    """The channel to the owner that asked for it, and is told of its end."""


class _Server:
    def __init__(self, owners: list[Channel], called_on: socket.socket | None = None) -> None:
        self._owners = owners
        """The channels to those that tell it what to do."""
        self._called_on = called_on
        """The socket on which others connect to become owners."""
        self._channel: Channel
        """The channel to the owner whose message is being handled."""
        self._bound: TrainingSetup | None = None
        self._bound_to: Load | None = None
        self._gpus = 0
        """How many GPUs its workers may use."""
        self._rundir: RunDir | None = None
        self._children: dict[int, _Child] = {}
        """The forked workers by their pidfd."""

    def serve(self) -> None:
        if self._called_on is not None:
            self._called_on.settimeout(0)
            select.select([self._called_on], [], [], _CALLED_S)
            self._answer_calls()
        while self._owners:
            poll = select.poll()
            for file in self._heard():
                poll.register(file, select.POLLIN)
            for file, _ in poll.poll(1000):
                if file in self._children:
                    self._bury(file)
            self._answer_calls()
            for owner in list(self._owners):
                try:
                    for received in owner.receive():
                        self._channel = owner
                        self._obey(decode(received.message), received.files)
                except (Gone, Garbled):
                    self._lose(owner)

    def _heard(self) -> Iterator[int]:
        yield from (owner.fileno() for owner in self._owners)
        yield from self._children
        if self._called_on is not None:
            yield self._called_on.fileno()

    def _answer_calls(self) -> None:
        """Make owners of those of the same user that have connected."""
        if self._called_on is None:
            return
        with suppress(BlockingIOError):
            while True:
                calling, _ = self._called_on.accept()
                if _user_of(calling) == os.geteuid():
                    self._owners.append(Channel(calling))
                else:
                    calling.close()

    def _lose(self, owner: Channel) -> None:
        self._owners.remove(owner)
        owner.close()
        for child in self._children.values():
            if child.owner is owner:
                os.kill(child.pid, signal.SIGKILL)

    def _obey(self, message: Any, files: tuple[int, ...]) -> None:
        match message:
            case NewRun() | OldRun():
                self._apart(lambda: self._prepare(message))
                failpoints.failpoint("server:prepared")
            case Load():
                failpoints.failpoint("server:bind")
                self._answer(lambda: self._bind(message))
            case ForkWorker(worker, local_index):
                self._fork(worker, local_index, files[0])
            case Kill(worker):
                for child in self._children.values():
                    if child.host == worker:
                        os.kill(child.pid, signal.SIGKILL)
            case other:
                raise ValueError(f"nobody asks a worker server for {other!r}")

    def _answer(self, work: Callable[[], Prepared | Loaded]) -> None:
        """Send the result of the work, or why there is none."""
        answer: Prepared | Loaded | Refused
        try:
            answer = work()
        except ManegeError as error:
            answer = Refused.of(error)
        except KeyboardInterrupt:
            answer = Refused(EXIT_STOPPED, "interrupted")
        self._send(answer)
        self._channel.flush(_FLUSH_S)

    def _send(self, message: Any) -> None:
        self._channel.send(encode(message))

    def _apart(self, work: Callable[[], Prepared]) -> None:
        """Answer from a child, which may use as many threads as it likes."""
        try:
            pid = processes.fork()
        except MachineError as error:
            self._send(Refused.of(error))
            return
        if pid == 0:
            _die_with_parent()
            try:
                torch.set_num_threads(len(os.sched_getaffinity(0)))
                self._answer(work)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(CRASHED)
        _, status = os.waitpid(pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            how = f"preparing the run ended with {_how(code)}"
            self._send(Refused(EXIT_MACHINE, how))

    def _prepare(self, request: NewRun | OldRun) -> Prepared:
        opened = prepare(request, _Asker(self._channel))
        return Prepared(opened.rundir.path, opened.config)

    def _bind(self, message: Load) -> Loaded:
        """Load what all workers have in common, once for all owners that ask for the same."""
        if self._bound is None or self._bound_to != message:
            self._load(message)
        assert self._bound is not None
        return Loaded(task_of(self._bound), _resident(), self._gpus)

    def _load(self, message: Load) -> None:
        device.keep_memory()
        config = message.config
        torch.set_num_threads(1)
        rundir = RunDir.open(message.path)
        self._gpus = device.gpus_apart(config.device)
        device.place(config.device, 0, self._gpus)  # Refuse before anything is loaded.
        # On the CPU, whatever the trainers use: this process must not start CUDA.
        bound = bound_method(config, open_dataset(config.data), rundir, device.CPU)
        bound.method.preload()
        self._bound, self._rundir, self._bound_to = bound, rundir, message

    def _fork(self, number: int, local_index: int, file: int) -> None:
        assert self._bound is not None
        assert self._rundir is not None
        try:
            pid = processes.fork()
        except MachineError as error:
            os.close(file)
            self._send(Refused.of(error))
            return
        if pid == 0:
            _die_with_parent()
            try:
                _write_to(self._rundir.path / "logs" / "trainers.log")
                self._let_go()
                channel = Channel(socket.socket(fileno=file))
                code = _train(
                    _on_own_devices(self._bound, local_index, self._gpus),
                    self._rundir,
                    number,
                    channel,
                )
            except BaseException:
                traceback.print_exc()
                code = CRASHED
            os._exit(code)
        os.close(file)
        self._children[os.pidfd_open(pid)] = _Child(number, pid, self._channel)
        self._send(messages.Forked(number, pid))

    def _let_go(self) -> None:
        """Close, in a forked worker, what only the server uses."""
        for owner in self._owners:
            owner.close()
        for pidfd in self._children:
            os.close(pidfd)
        if self._called_on is not None:
            self._called_on.close()

    def _bury(self, pidfd: int) -> None:
        host, pid, owner = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        how = _how(os.waitstatus_to_exitcode(status))
        with suppress(Gone):
            owner.send(encode(messages.Died(host, how)))


class _Asker(Observer):
    """The observer of a run being prepared: it sends what it sees to whoever asked for the run."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def say(self, text: str) -> None:
        """Send a line for people."""
        self._channel.send(encode(messages.Say(text)))

    def progress(self, done: int, total: int) -> None:
        """Send how far the training of a feature network is."""
        self._channel.send(encode(messages.Count(done, total)))


def _on_own_devices(bound: TrainingSetup, local_index: int, gpus: int) -> TrainingSetup:
    """Return the method on a worker's own devices; what was loaded stays shared."""
    name = bound.config.device
    on = device.place(name, local_index, gpus)
    # Two devices go the way of a GPU even if both are the CPU, so that this way can be tested.
    if on == device.CPU and "+" not in name:
        return bound
    device.enter(on)
    return bound._replace(method=bound.method.to(on))


def _train(bound: TrainingSetup, rundir: RunDir, number: int, channel: Channel) -> int:
    """Run a worker from its first message to its last; return its exit code."""
    failpoints.only_for(number)
    backlog: deque[tuple[Any, tuple[int, ...]]] = deque()

    def receive() -> None:
        backlog.extend((decode(message), files) for message, files in channel.receive())

    def listen() -> None:
        # In the middle of a commit: what else there is to do comes after it. What is waited for
        # may have come already, together with what is being done.
        if not any(map(_is_adopted, backlog)):
            channel.wait(None)
            receive()
        adopted = [received for received in backlog if _is_adopted(received)]
        for received in adopted:
            backlog.remove(received)
            host.handle(*received)

    host = Host(
        bound,
        rundir,
        lambda message, files: channel.send(encode(message), files),
        mark=f"{rundir.incarnation}.{number}",
        listen=listen,
        tell_every_s=TELL_EVERY_S,
    )
    cache.warn_by(host.warn)
    try:
        with processes.starting():
            threading.Thread(target=_beat, args=(host, channel), daemon=True).start()
        device.use_threads(bound.config.threads_per_cell)
        while not host.done:
            receive()
            while backlog:
                host.handle(*backlog.popleft())
            if not host.done and not host.work() and not backlog:
                channel.wait(None)
        channel.flush(_FLUSH_S)
    except Gone:
        os._exit(0)  # Nobody would give its files their names.
    except ManegeError as error:
        channel.send(encode(Refused.of(error)))
        channel.flush(_FLUSH_S)
        return EXIT_INPUT
    except Exception as error:
        told = traceback.format_exc()
        sys.stderr.write(told)
        words = f"{type(error).__name__}: {error}"
        channel.send(encode(host.crashed(words, told)))
        channel.flush(_FLUSH_S)
        return CRASHED
    return 0


def _is_adopted(received: tuple[Any, tuple[int, ...]]) -> bool:
    return isinstance(received[0], messages.Adopted)


def _beat(host: Host, channel: Channel) -> None:
    """Send signs of life, with the age of the step; end the process when nobody listens."""
    while True:
        working = host.working
        # Waiting is no step, however long it takes.
        age_s = 0.0 if working is None else time.monotonic() - host.stepped_at
        try:
            channel.send(encode(messages.Beat(age_s, host.longest_s, working)))
        except Gone:
            os._exit(0)
        time.sleep(BEAT_S)


def _user_of(calling: socket.socket) -> int:
    told = calling.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return int(user)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, however that happens."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # It died before.


def _write_to(log: Path) -> None:
    """Write what this process prints to the log, as the screen is the command's."""
    log.parent.mkdir(exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _resident() -> int:
    """Return the bytes of memory that this process uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
