"""The local runtime: trainers as processes of this machine, forked from a trainer server.

Decides nothing (the coordinator does) and imports no torch. Whatever happens to this process, the
others end too.
"""

from __future__ import annotations

import os

from manege import failpoints, machine
from manege.observer import Observer, Observers
from manege.runtime.driver import Deliver, Run, drive
from manege.runtime.messages import (
    Close,
    Kill,
    NewRun,
    OldRun,
    Order,
    Prepared,
    Send,
    Start,
    Task,
)
from manege.runtime.serving import Server
from manege.runtime.workers import Workers


def run(request: NewRun | OldRun, observer: Observers, workers: int | None) -> Run:
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


class _Local:
    """Reaches workers of this machine."""

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
