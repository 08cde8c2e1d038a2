"""The agent: the main loop of every rank but the first; it carries, it does not compute.

It has its trainers forked by the trainer server of its machine, which all agents there share, and
carries messages between them and rank 0, and centres between them and the agents of other ranks.
No torch, and no decisions.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from manege import failpoints, machine
from manege.errors import EXIT_FAILED_CELL, EXIT_FINE, EXIT_STOPPED, ManegeError
from manege.runtime.mirrors import Mirrors, Shown
from manege.runtime.mpi import World
from manege.runtime.serving import DriveOptions, PreparedRun, Server, prepared_of
from manege.runtime.trainers import Died, Said, Trainers
from manege.stopping import StopSignals

_SHORT_S, _LONG_S = 0.001, 0.005
"""A nap between two looks at what other ranks sent, after one that found something and later."""
_BEAT_S = 0.5
_ORPHANED = 70
"""The exit code of a rank whose coordinator is lost: a launcher may start the job again."""
_ORDERLY = (EXIT_FINE, EXIT_FAILED_CELL, EXIT_STOPPED)
"""Exit codes of runs whose trainers were told to quit."""
_ABOUT_OTHERS = ("slot", "centre", "frozen")


def serve(world: World) -> int:
    """Carry until the job's end; the exit code that rank 0 says."""
    machine.allow_many_files()
    machine.unbind()
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        try:
            server = stack.enter_context(Server(shared_as=f"manege-{world.key}-{world.node}"))
        except ManegeError as error:
            return _without_server(world, error)
        failpoints.only_for(None)
        return _Agent(world, server, stop).serve()


def _without_server(world: World, error: ManegeError) -> int:
    """Tell rank 0 why there can be no trainer here; return the exit code that it says then."""
    world.post(0, {"is": "refused", "code": error.exit_code, "text": str(error)})
    while 0 not in world.lost():
        for _, content in world.poll():
            if not isinstance(content, np.ndarray) and content["is"] == "end":
                return int(content["code"])
        time.sleep(_LONG_S)
    return _ORPHANED


class _Agent:
    def __init__(self, world: World, server: Server, stop: StopSignals) -> None:
        self._world = world
        self._server = server
        self._stop = stop
        self._signalled = False
        self._refused = False
        self._bound_to: PreparedRun | None = None
        self._trainers: Trainers | None = None
        """Once the server is bound."""
        self._shown = Shown(world, world.rank, world.size)
        self._mirrors = Mirrors(world, world.size, self._give)
        self._code: int | None = None

    def serve(self) -> int:
        nap_s, beaten_at = _SHORT_S, 0.0
        while self._code is None:
            try:
                nap_s = _SHORT_S if self._read() else min(_LONG_S, 1.2 * nap_s)
                self._listen(nap_s)
            except ManegeError as error:
                self._refuse(error.exit_code, str(error))
            if time.monotonic() - beaten_at > _BEAT_S:
                beaten_at = time.monotonic()
                self._world.post(0, {"is": "beat"})
            if 0 in self._world.lost():
                return self._orphaned()
            if not self._signalled and (name := self._stop()):
                self._signalled = True
                self._world.post(0, {"is": "signal", "name": name})
        if self._trainers is not None and self._code in _ORDERLY:
            self._trainers.await_end()
        else:
            self._server.kill()
        if self._trainers is not None:
            self._trainers.close()
        return self._code

    def _read(self) -> bool:
        """Do what letters say; whether there were any."""
        found = False
        for rank, content in self._world.poll():
            found = True
            if isinstance(content, np.ndarray):
                self._mirrors.fill(content)
            else:
                self._obey(rank, content)
        return found

    def _listen(self, timeout_s: float) -> None:
        """Hand on what the server and trainers say within that time."""
        if self._trainers is not None and not self._refused:
            for heard in self._trainers.hear(timeout_s):
                self._hand_on(heard)
            return
        self._server.channel.wait(timeout_s)
        if self._refused:
            return
        for message in self._server.answers():
            if message["is"] == "bound":
                node = self._node(int(message["devices"]))
                self._world.post(0, {**message, "rank": self._world.rank, "node": node})
                assert self._bound_to is not None
                seats = (self._world.local_rank, self._world.local_size)
                self._trainers = Trainers(self._server, self._bound_to, _quietly(), seats)
            else:
                self._world.post(0, message)

    def _node(self, devices: int) -> dict[str, Any]:
        """What this machine has."""
        return {
            "number": self._world.node,
            "name": os.uname().nodename,
            "cores": machine.cores(),
            "bytes": machine.free_bytes(),
            "devices": devices,
        }

    def _orphaned(self) -> int:
        """The coordinator is lost: nobody would give files their names."""
        self._server.kill()
        if self._world.rank == self._world.first_worker:
            sys.stderr.write(
                "manege: rank 0, the coordinator's, is lost; `manege resume` goes on from the last "
                "commits\n"
            )
        return _ORPHANED

    def _refuse(self, code: int, text: str) -> None:
        """Nothing more can be done here: rank 0 ends the job."""
        self._refused = True
        self._world.post(0, {"is": "refused", "code": code, "text": text})

    def _obey(self, rank: int, message: dict[str, Any]) -> None:
        match message["is"]:
            case "prepare":
                self._server.ask(message)
            case "bind":
                self._bound_to = prepared_of(message)
                self._server.ask(message)
            case "start":
                self._known.start(int(message["host"]))
            case "tell":
                self._tell(int(message["host"]), message["message"], message["slots"])
            case "kill":
                self._known.drop(int(message["host"]))
                self._mirrors.look_away(int(message["host"]))
            case "follow":
                self._shown.follow(int(message["slot"]), rank)
            case "unfollow":
                self._shown.unfollow(int(message["slot"]), rank)
            case "holds":
                lengths = tuple((str(kind), int(length)) for kind, length in message["lengths"])
                self._mirrors.hold(int(message["slot"]), lengths)
            case "filled":
                self._mirrors.filled(int(message["slot"]))
            case "forget":
                self._shown.forget(int(message["slot"]))
            case "end":
                self._code = int(message["code"])
            case other:
                raise ValueError(f"an agent knows no message {other!r}")

    def _tell(self, host: int, message: dict[str, Any], slots: list[int]) -> None:
        if message["is"] == "host":
            self._mirrors.look_away(host, str(message["cell"]))
        if message["is"] not in _ABOUT_OTHERS:
            self._give(host, message, ())
        elif not slots:
            self._mirrors.tell(host, message)
        elif (number := int(slots[0])) % self._world.size != self._world.rank:
            self._mirrors.tell(host, message, number)
        else:
            # A trainer of this rank shows it: its own memory will do.
            self._mirrors.look_away(host, str(message["cell"]))
            file = self._shown.file(number)
            if file is not None:
                self._give(host, message, (file,))

    def _give(self, host: int, message: dict[str, Any], files: tuple[int, ...]) -> None:
        self._known.send(host, message, files)

    def _hand_on(self, heard: Said | Died) -> None:
        if isinstance(heard, Died):
            self._world.post(0, {"is": "dead", "host": heard.host, "how": heard.how})
            return
        host, message, files = heard
        numbers = [self._shown.add(host, str(message["cell"]), file) for file in files]
        if message["is"] == "round":
            # Before it is told of, so that it is there, or under way.
            self._shown.shows(host, str(message["cell"]), int(message["round"]))
        self._world.post(0, {"is": "said", "host": host, "message": message, "slots": numbers})

    @property
    def _known(self) -> Trainers:
        assert self._trainers is not None, "told of trainers before there can be any"
        return self._trainers


class _Nobody:
    """Looks on and sees nothing."""

    def event(self, event: dict[str, Any]) -> None: ...

    def step(self, cell: str, place: object, fraction: float) -> None: ...


def _quietly() -> DriveOptions:
    return DriveOptions(None, _Nobody(), lambda text: None, None, lambda: None)
