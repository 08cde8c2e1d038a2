"""The trainer server as seen by those who start it, and what is asked of it before a run begins."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

from manege import processes
from manege.errors import MachineError, field_names
from manege.observer import Observer
from manege.runtime.boot import NO_ROOM
from manege.runtime.channel import Channel, Gone
from manege.runtime.messages import (
    Count,
    Load,
    Loaded,
    NewRun,
    OldRun,
    Prepared,
    Refused,
    Say,
    decode,
    encode,
)

T = TypeVar("T")
_POLL_S = 0.1
_BOOT, _SERVER = "manege.runtime.boot", "manege.trainer.server"
_END_S = 5.0
_MOST_CALLS = 1024


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

    def prepare(self, request: NewRun | OldRun, observer: Observer) -> Prepared:
        """Have it make or open the run's directory."""
        self.ask(request)
        return answer(self._receive, Prepared, observer)

    def load(self, prepared: Prepared, observer: Observer) -> Loaded:
        """Have it load what all workers have in common."""
        self.ask(Load(prepared.path, prepared.config))
        return answer(self._receive, Loaded, observer)

    def ask(self, message: NewRun | OldRun | Load) -> None:
        """Ask for what is to be done before workers are forked; MachineError when it is dead."""
        if isinstance(message, Load):
            self._run = message.path
        try:
            self.channel.send(encode(message))
        except Gone:
            raise self.lost() from None

    def answers(self) -> list[Any]:
        """Return what it has said; MachineError when it is dead."""
        try:
            said = [decode(message) for message, _ in self.channel.receive()]
        except (Gone, ValueError):
            raise self.lost() from None
        for message in said:
            if isinstance(message, Prepared):
                self._run = message.path
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

    def _receive(self) -> Iterable[Any]:
        self.channel.wait(_POLL_S)
        return self.answers()


def answer(receive: Callable[[], Iterable[Any]], wanted: type[T], observer: Observer) -> T:
    """Return what a server answers at last; raise what it refuses."""
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
