"""The agent, the main loop of every MPI rank but the first: it carries messages, computes nothing.

It has its workers forked by the server of its machine, which all agents there share, and carries
messages between them and rank 0, and centres between them and the agents of other ranks. It
imports no torch and decides nothing.
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
from manege.observer import Observer
from manege.runtime import messages
from manege.runtime.messages import (
    Died,
    EndJob,
    Loaded,
    Prepared,
    Refused,
    Said,
    decode,
    encode,
)
from manege.runtime.mirrors import Mirrors, Shown
from manege.runtime.mpi import World
from manege.runtime.transports.local import Server, Workers
from manege.stopping import StopSignals

_SHORT_S, _LONG_S = 0.001, 0.005
"""Seconds to wait before looking for messages of other ranks: after one was found, and at most."""
_BEAT_S = 0.5
_ORPHANED = 70
"""The exit code of a rank whose coordinator is lost: a launcher may start the job again."""
_ORDERLY = (EXIT_FINE, EXIT_FAILED_CELL, EXIT_STOPPED)
"""Exit codes of runs whose workers were told to quit."""


def serve(world: World) -> int:
    """Carry messages until the job ends; return the exit code that rank 0 states."""
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
    """Tell rank 0 why no worker can be started here; return the exit code that it then states."""
    world.post(0, encode(Refused.of(error)))
    while 0 not in world.lost():
        for _, content in world.poll():
            if isinstance(content, np.ndarray):
                continue
            if isinstance(message := decode(content), EndJob):
                return message.code
        time.sleep(_LONG_S)
    return _ORPHANED


class _Agent:
    def __init__(self, world: World, server: Server, stop: StopSignals) -> None:
        self._world = world
        self._server = server
        self._stop = stop
        self._signalled = False
        self._refused = False
        self._bound_to: Prepared | None = None
        self._workers_here: Workers | None = None
        """None until the server has loaded the run."""
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
                self._refuse(error)
            if time.monotonic() - beaten_at > _BEAT_S:
                beaten_at = time.monotonic()
                self._post(messages.RankAlive())
            if 0 in self._world.lost():
                return self._orphaned()
            if not self._signalled and (name := self._stop()):
                self._signalled = True
                self._post(messages.Signalled(name))
        if self._workers_here is not None and self._code in _ORDERLY:
            self._workers_here.await_end()
        else:
            self._server.kill()
        if self._workers_here is not None:
            self._workers_here.close()
        return self._code

    def _read(self) -> bool:
        """Carry out the messages that other ranks sent; return whether there were any."""
        found = False
        for rank, content in self._world.poll():
            found = True
            if isinstance(content, np.ndarray):
                self._mirrors.fill(content)
            else:
                self._obey(rank, decode(content))
        return found

    def _listen(self, timeout_s: float) -> None:
        """Pass on what the server and workers say within that time."""
        if self._workers_here is not None and not self._refused:
            for heard in self._workers_here.hear(timeout_s):
                self._hand_on(heard)
            return
        self._server.channel.wait(timeout_s)
        if self._refused:
            return
        for message in self._server.answers():
            if isinstance(message, Loaded):
                self._post(self._node(message))
                assert self._bound_to is not None
                local_indices = (self._world.local_rank, self._world.local_size)
                self._workers_here = Workers(
                    self._server, self._bound_to, Observer(), local_indices
                )
            else:
                self._post(message)

    def _node(self, loaded: Loaded) -> messages.NodeLoaded:
        """Return the description of this machine that rank 0 is told once a run is loaded."""
        return messages.NodeLoaded(
            self._world.rank,
            loaded,
            number=self._world.node,
            name=os.uname().nodename,
            cores=machine.cores(),
            free_bytes=machine.free_bytes(),
        )

    def _post(self, message: Any) -> None:
        """Send the coordinator's rank a message."""
        self._world.post(0, encode(message))

    def _orphaned(self) -> int:
        """Kill the workers, as nobody would give their files names; return the exit code for it."""
        self._server.kill()
        if self._world.rank == self._world.first_worker:
            sys.stderr.write(
                "manege: rank 0, the coordinator's, is lost; `manege resume` goes on from the last "
                "commits\n"
            )
        return _ORPHANED

    def _refuse(self, error: ManegeError) -> None:
        """Tell rank 0, which ends the job, that nothing more can be done here."""
        self._refused = True
        self._post(Refused.of(error))

    def _obey(self, rank: int, message: Any) -> None:
        match message:
            case messages.NewRun() | messages.OldRun():
                self._server.ask(message)
            case messages.Load(path, config):
                self._bound_to = Prepared(path, config)
                self._server.ask(message)
            case messages.Start(worker):
                self._known.start(worker)
            case messages.Send(worker, told, slots):
                self._tell(worker, told, slots)
            case messages.Kill(worker):
                self._known.drop(worker)
                self._mirrors.look_away(worker)
            case messages.Close(slot):
                self._shown.forget(slot)
            case messages.Follow(slot):
                self._shown.follow(slot, rank)
            case messages.Unfollow(slot):
                self._shown.unfollow(slot, rank)
            case messages.SlotHolds(slot, lengths):
                self._mirrors.hold(slot, lengths)
            case messages.SlotFilled(slot):
                self._mirrors.filled(slot)
            case EndJob(code):
                self._code = code
            case other:
                raise ValueError(f"nobody tells an agent {other!r}")

    def _tell(self, worker: int, message: Any, slots: tuple[int, ...]) -> None:
        match message:
            case messages.TakeCell(cell):
                self._mirrors.look_away(worker, cell)
                self._known.send(worker, message)
            case messages.SlotShown(cell) if slots[0] % self._world.size == self._world.rank:
                # A trainer of this rank shows it: its own memory will do.
                self._mirrors.look_away(worker, cell)
                file = self._shown.file(slots[0])
                if file is not None:
                    self._known.send(worker, message, (file,))
            case messages.SlotShown():
                self._mirrors.tell(worker, message, slots[0])
            case messages.CentreShown() | messages.CellFrozen():
                self._mirrors.tell(worker, message)
            case _:
                self._known.send(worker, message)

    def _give(self, worker: int, message: Any, files: tuple[int, ...]) -> None:
        self._known.send(worker, message, files)

    def _hand_on(self, heard: Said | Died) -> None:
        if isinstance(heard, Died):
            self._post(heard)
            return
        worker, message = heard.worker, heard.message
        numbers = tuple(self._shown.add(worker, message.cell, file) for file in heard.files)
        if isinstance(message, messages.RoundDone):
            # Before it is told of, so that it is there, or under way.
            self._shown.shows(worker, message.cell, message.round)
        self._post(Said(worker, message, numbers))

    @property
    def _known(self) -> Workers:
        assert self._workers_here is not None, "told of workers before there can be any"
        return self._workers_here
