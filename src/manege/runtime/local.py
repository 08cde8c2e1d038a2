"""The local runtime: trainers as processes of this machine, forked from a trainer server.

Owns the processes, the channels to them and the loop that carries messages; decides nothing (the
coordinator does) and imports no torch. Whatever happens to this process, the others end too.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from manege import failpoints, machine
from manege.config import RunConfig, to_yaml
from manege.errors import EXIT_MACHINE, EXIT_STOPPED, ConfigError, MachineError, ManegeError
from manege.rundir import RunDir
from manege.runtime.channel import Channel, Garbled, Gone
from manege.runtime.coordinator import Coordinator
from manege.runtime.desk import RunDesk
from manege.runtime.orders import (
    Close,
    Kill,
    Order,
    Outcome,
    Refused,
    Send,
    Start,
    Task,
    Watcher,
)
from manege.runtime.screen import Nobody, Screen

_POLL_S = 0.1
_SERVER = "manege.trainer.server"
_END_S = 5.0
_LOST_SERVERS = 3


class Prepared(NamedTuple):
    """A run that can begin."""

    path: Path
    config: RunConfig


class Finished(NamedTuple):
    """A run that has come to an end, or to a stop."""

    path: Path
    config: RunConfig
    outcome: Outcome


class Manner(NamedTuple):
    """How a run is carried out and shown."""

    workers: int | None
    """Trainers at the same time; None chooses."""
    watcher: Watcher
    say: Callable[[str], None]
    show: Callable[[int, int], None] | None
    """Shows how far the feature network's training is."""
    stop: Callable[[], str | None]
    """The name of a signal that came, or None."""
    screen: Screen = Nobody()


def start_run(config: RunConfig, *, out: Path | None, command: str, manner: Manner) -> Finished:
    """A new run on processes of this machine."""
    request = {
        "new": True,
        "config": config.model_dump(mode="json"),
        "out": None if out is None else str(out),
        "command": command,
    }
    return _carried_out(request, manner)


def continue_run(
    path: Path, *, rounds: int | None, budget_s: float | str | None, manner: Manner
) -> Finished:
    """Go on with a run on processes of this machine."""
    request = {"new": False, "out": str(path), "rounds": rounds, "budget_s": budget_s}
    return _carried_out(request, manner)


def _carried_out(request: Mapping[str, Any], manner: Manner) -> Finished:
    machine.allow_many_files()
    with _Server.start() as server:
        failpoints.only_for(None)
        prepared = server.prepare(request, manner)
        rundir = RunDir.open(prepared.path)
        with rundir.start():
            manner.screen.opened(rundir.path)
            if not request["new"]:
                rundir.write_config(to_yaml(prepared.config))
            outcome = _Loop(server, rundir, prepared.config, manner).run()
    return Finished(prepared.path, prepared.config, outcome)


def choose_workers(cells: int, threads: int, bytes_each: int) -> tuple[int, str]:
    """How many trainers suit this machine, and why.

    Args:
        cells: how many there are to train.
        threads: that each trainer uses.
        bytes_each: that a trainer was seen to start with.
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


class _Server:
    """The trainer server's process, and the channel to it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self.process = process
        self.channel = channel

    @classmethod
    def start(cls) -> Self:
        ours, theirs = Channel.pair()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", _SERVER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        finally:
            theirs.close()
        return cls(process, ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        self.channel.close()
        if kind is not None:
            self.process.kill()  # Whatever it is at; its children die with it.
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def prepare(self, request: Mapping[str, Any], manner: Manner) -> Prepared:
        """The run's directory, made or opened by the server."""
        answer = self._ask({"is": "prepare", **request}, manner, "prepared")
        return Prepared(Path(answer["path"]), RunConfig.model_validate(answer["config"]))

    def bind(self, prepared: Prepared, manner: Manner) -> tuple[Task, int]:
        """What there is to do, and the bytes a trainer starts with."""
        request = {
            "is": "bind",
            "path": str(prepared.path),
            "config": prepared.config.model_dump(mode="json"),
        }
        answer = self._ask(request, manner, "bound")
        task = dict(answer["task"])
        task["cells"] = tuple(task["cells"])
        task["groups"] = tuple(tuple(group) for group in task["groups"])
        task["around"] = {cell: tuple(others) for cell, others in task["around"].items()}
        return Task(**task), int(answer["bytes"])

    def _ask(self, request: Mapping[str, Any], manner: Manner, wanted: str) -> dict[str, Any]:
        self.channel.send(request)
        while True:
            if stopped_by := manner.stop():
                raise KeyboardInterrupt(stopped_by)
            self.channel.wait(_POLL_S)
            try:
                received = self.channel.receive()
            except Gone:
                raise MachineError(
                    "the trainer server died while preparing the run; see its words above, "
                    "and try again"
                ) from None
            for message, _ in received:
                match message["is"]:
                    case "say":
                        manner.say(str(message["text"]))
                    case "count" if manner.show is not None:
                        manner.show(int(message["done"]), int(message["total"]))
                    case "refused":
                        raise _error(int(message["code"]), str(message["text"]))
                    case kind if kind == wanted:
                        return message


def _error(code: int, text: str) -> BaseException:
    if code == EXIT_STOPPED:
        return KeyboardInterrupt(text)
    return MachineError(text) if code == EXIT_MACHINE else _as_input(text)


def _as_input(text: str) -> ManegeError:
    return ConfigError(text)


class _Loop:
    """Carries messages until the run has ended."""

    def __init__(self, server: _Server, rundir: RunDir, config: RunConfig, manner: Manner) -> None:
        self._server = server
        self._manner = manner
        self._prepared = Prepared(rundir.path, config)
        task, bytes_each = server.bind(self._prepared, manner)
        workers = manner.workers
        if workers is None:
            workers, why = choose_workers(len(task.cells), config.threads_per_cell, bytes_each)
            manner.say(f"workers: {workers} ({why})")
        self._coordinator = Coordinator(
            task,
            RunDesk(rundir, config.identity()),
            manner.watcher,
            rundir.status().get("cells", {}),
            hosts=workers,
        )
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(server.channel.fileno(), selectors.EVENT_READ, 0)
        self._lost_servers = 0
        self._shown_at = 0.0

    def run(self) -> Outcome:
        """Until the end, whatever it is."""
        coordinator, stopping = self._coordinator, False
        try:
            self._carry(coordinator.begin(time.monotonic()))
            while coordinator.outcome is None:
                for key, _ in self._selector.select(_POLL_S):
                    if key.data == 0:
                        self._hear_server()
                    elif key.data in self._channels:
                        self._hear_trainer(key.data)
                if not stopping and (stopped_by := self._manner.stop()):
                    stopping = True
                    self._carry(coordinator.stop(stopped_by, time.monotonic()))
                self._carry(coordinator.tick(time.monotonic()))
                self._show()
                for channel in self._channels.values():
                    if channel.wants_write:
                        with suppress(Gone):
                            channel.flush()
            self._await_trainers()
        except Refused as refused:
            raise _error(refused.code, str(refused)) from None
        finally:
            for channel in self._channels.values():
                channel.close()
            self._selector.close()
        return coordinator.outcome

    def _show(self) -> None:
        """Tell whoever looks on who trains, and do what they ask for; some times a second."""
        now = time.monotonic()
        if now - self._shown_at < _POLL_S:
            return
        self._shown_at = now
        for wish in self._manner.screen.wishes():
            self._carry(self._coordinator.wish(wish, now))
        trainers, silent_s = self._coordinator.heartbeat()
        self._manner.screen.look(trainers, silent_s, paused=self._coordinator.paused)

    def _carry(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Send(host, message, files):
                    if host in self._channels:
                        # Of its death we hear from the server.
                        with suppress(Gone):
                            self._channels[host].send(message, files)
                case Start(host):
                    self._start(host)
                case Kill(host):
                    self._drop(host)
                case Close(file):
                    os.close(file)

    def _start(self, host: int) -> None:
        ours, theirs = Channel.pair()
        self._channels[host] = ours
        self._selector.register(ours.fileno(), selectors.EVENT_READ, host)
        with suppress(Gone):
            self._server.channel.send({"is": "fork", "host": host}, [theirs.fileno()])
        theirs.close()

    def _drop(self, host: int) -> None:
        channel = self._channels.pop(host, None)
        if channel is None:
            return
        self._unwatch(channel)
        channel.close()
        with suppress(Gone):
            self._server.channel.send({"is": "kill", "host": host})

    def _unwatch(self, channel: Channel) -> None:
        with suppress(KeyError):
            self._selector.unregister(channel.fileno())

    def _hear_trainer(self, host: int) -> None:
        channel = self._channels[host]
        try:
            received = channel.receive()
        except Gone:
            self._unwatch(channel)  # The server tells how it died.
            return
        except Garbled as error:
            self._carry(self._coordinator.died(host, f"said what makes no sense: {error}", _now()))
            return
        for message, files in received:
            self._carry(self._coordinator.heard(host, message, files, _now()))

    def _hear_server(self) -> None:
        try:
            received = self._server.channel.receive()
        except Gone:
            self._replace_server()
            return
        for message, _ in received:
            match message["is"]:
                case "forked":
                    self._pids[int(message["host"])] = int(message["pid"])
                case "dead":
                    host = int(message["host"])
                    if host in self._channels:
                        with suppress(Gone, Garbled):
                            while True:  # Its last words came before.
                                self._hear_last(host)
                        self._carry(self._coordinator.died(host, str(message["how"]), _now()))

    def _hear_last(self, host: int) -> None:
        received = self._channels[host].receive()
        if not received:
            raise Gone("nothing more")
        for message, files in received:
            self._carry(self._coordinator.heard(host, message, files, _now()))
            if host not in self._channels:
                raise Gone("it was given up")

    def _replace_server(self) -> None:
        """Start another; all trainers died with the old one."""
        self._lost_servers += 1
        if self._lost_servers >= _LOST_SERVERS:
            raise MachineError(
                f"the trainer server died {self._lost_servers} times; look for what kills it, then "
                f"`manege resume {self._prepared.path}`"
            )
        self._selector.unregister(self._server.channel.fileno())
        self._server.__exit__()
        fresh = _Server.start()
        self._server.process, self._server.channel = fresh.process, fresh.channel
        self._server.bind(self._prepared, self._manner)
        self._selector.register(self._server.channel.fileno(), selectors.EVENT_READ, 0)
        for host in list(self._channels):
            self._carry(self._coordinator.died(host, "died with the trainer server", _now()))

    def _await_trainers(self) -> None:
        """Trainers were told to quit, and have a while for it."""
        deadline = time.monotonic() + _END_S
        for channel in self._channels.values():
            with suppress(Gone, Garbled):
                channel.flush(max(0.0, deadline - time.monotonic()))
                while time.monotonic() < deadline:
                    channel.wait(deadline - time.monotonic())
                    for _, files in channel.receive():
                        for file in files:
                            os.close(file)


def _now() -> float:
    return time.monotonic()
