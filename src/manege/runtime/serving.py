"""The trainer server as seen by those who start it, and what is asked of it before a run begins."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from manege import processes
from manege.config import RunConfig
from manege.errors import EXIT_MACHINE, EXIT_STOPPED, ConfigError, MachineError, field_names
from manege.runtime.boot import NO_ROOM
from manege.runtime.channel import Channel, Garbled, Gone
from manege.runtime.orders import Task, Watcher
from manege.runtime.screen import Nobody, Screen

_POLL_S = 0.1
_BOOT, _SERVER = "manege.runtime.boot", "manege.trainer.server"
_END_S = 5.0
_MOST_CALLS = 1024


class PreparedRun(NamedTuple):
    """A run that can begin."""

    path: Path
    config: RunConfig


class DriveOptions(NamedTuple):
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


class LoadedRun(NamedTuple):
    """What there is to do, and the bytes a trainer starts with."""

    task: Task
    bytes_each: int


class Server:
    """The channel to a trainer server, and its process if it was started here."""

    def __init__(self, shared_as: str | None = None) -> None:
        """One of our own, or that which those of this machine share who know its name.

        Whoever comes first starts the one that is shared.
        """
        self._shared_as = shared_as
        self._process: subprocess.Popen[bytes] | None = None
        self._run: Path | None = None
        """The run that it was told to load, once it was."""
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
        """The connection to the server of that name, which is started unless another listens."""
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
                # One that is shared is not reached by signals to our group.
                process_group=None if self._shared_as is None else 0,
            )

    def replace(self) -> None:
        """Another one, in the place of one that died."""
        self.__exit__()
        self.channel = self._reached()

    def kill(self) -> None:
        """End it, whatever it is at, if it was started here; its trainers die with it."""
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

    def prepare(self, request: Mapping[str, Any], manner: DriveOptions) -> PreparedRun:
        """The run's directory, made or opened by the server."""
        self.ask(preparing(request))
        return prepared_of(answer(self._receive, "prepared", manner))

    def bind(self, prepared: PreparedRun, manner: DriveOptions) -> LoadedRun:
        """Have it load what all trainers have in common."""
        self.ask(binding(prepared))
        return bound_of(answer(self._receive, "bound", manner))

    def ask(self, message: Mapping[str, Any]) -> None:
        """Send it what is to be done before trainers are forked; MachineError when it is dead."""
        if message["is"] == "bind":
            self._run = Path(message["path"])
        try:
            self.channel.send(message)
        except Gone:
            raise self.lost() from None

    def answers(self) -> list[dict[str, Any]]:
        """Return what it has said; MachineError when it is dead."""
        try:
            said = [message for message, _ in self.channel.receive()]
        except (Gone, Garbled):
            raise self.lost() from None
        for message in said:
            if message["is"] == "prepared":
                self._run = Path(message["path"])
        return said

    def lost(self) -> MachineError:
        """Return the error for a server that died before it had forked a trainer."""
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

    def _receive(self) -> Iterable[dict[str, Any]]:
        self.channel.wait(_POLL_S)
        return self.answers()


def answer(
    receive: Callable[[], Iterable[dict[str, Any]]], wanted: str, manner: DriveOptions
) -> dict[str, Any]:
    """What a server answers at last, what it says before being shown; raises what it refuses."""
    while True:
        if stopped_by := manner.stop():
            raise KeyboardInterrupt(stopped_by)
        for message in receive():
            match message["is"]:
                case "say":
                    manner.say(str(message["text"]))
                case "count" if manner.show is not None:
                    manner.show(int(message["done"]), int(message["total"]))
                case "refused":
                    raise refusal(int(message["code"]), str(message["text"]))
                case kind if kind == wanted:
                    return message


def preparing(request: Mapping[str, Any]) -> dict[str, Any]:
    """Asks a server for a run directory."""
    return {"is": "prepare", **request}


def prepared_of(message: Mapping[str, Any]) -> PreparedRun:
    """What it answered."""
    return PreparedRun(Path(message["path"]), RunConfig.model_validate(message["config"]))


def binding(prepared: PreparedRun) -> dict[str, Any]:
    """Asks a server to load what all trainers have in common."""
    config = prepared.config.model_dump(mode="json")
    return {"is": "bind", "path": str(prepared.path), "config": config}


def bound_of(message: Mapping[str, Any]) -> LoadedRun:
    """What it answered."""
    task = dict(message["task"])
    task["cells"] = tuple(task["cells"])
    task["groups"] = tuple(tuple(group) for group in task["groups"])
    task["around"] = {cell: tuple(others) for cell, others in task["around"].items()}
    return LoadedRun(Task(**task), int(message["bytes"]))


def refusal(code: int, text: str) -> BaseException:
    """The error for a refusal that came as a message."""
    if code == EXIT_STOPPED:
        return KeyboardInterrupt(text)
    return MachineError(text) if code == EXIT_MACHINE else ConfigError(text)
