"""The local runtime: trainers as processes of this machine, forked from a trainer server.

Decides nothing (the coordinator does) and imports no torch. Whatever happens to this process, the
others end too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from manege import failpoints, machine
from manege.runtime.carrying import Finished, carry_out
from manege.runtime.orders import Task
from manege.runtime.serving import DriveOptions, PreparedRun, Server
from manege.runtime.trainers import Died, Said, Trainers


def carried_out(request: Mapping[str, Any], manner: DriveOptions) -> Finished:
    """A run on processes of this machine."""
    machine.allow_many_files()
    with Server() as server:
        failpoints.only_for(None)
        carrier = _Here(server, manner)
        try:
            return carry_out(request, carrier, manner)
        finally:
            carrier.close()


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


class _Here:
    """Carries messages to and from trainers of this machine."""

    def __init__(self, server: Server, manner: DriveOptions) -> None:
        self._server = server
        self._manner = manner
        self._trainers: Trainers | None = None

    def prepare(self, request: Mapping[str, Any]) -> PreparedRun:
        return self._server.prepare(request, self._manner)

    def bind(self, prepared: PreparedRun) -> tuple[Task, int]:
        task, bytes_each = self._server.bind(prepared, self._manner)
        workers = self._manner.workers
        if workers is None:
            threads = prepared.config.threads_per_cell
            workers, why = choose_workers(len(task.cells), threads, bytes_each)
            self._manner.say(f"workers: {workers} ({why})")
        self._trainers = Trainers(self._server, prepared, self._manner)
        return task, workers

    @property
    def _bound(self) -> Trainers:
        assert self._trainers is not None
        return self._trainers

    def start(self, host: int) -> None:
        self._bound.start(host)

    def send(self, host: int, message: dict[str, Any], files: tuple[int, ...]) -> None:
        self._bound.send(host, message, files)

    def drop(self, host: int) -> None:
        self._bound.drop(host)

    def forget(self, file: int) -> None:
        os.close(file)

    def hear(self, timeout_s: float) -> Iterator[Said | Died]:
        return self._bound.hear(timeout_s)

    def stopped_by(self) -> str | None:
        return self._manner.stop()

    def await_end(self) -> None:
        self._bound.await_end()

    def close(self) -> None:
        if self._trainers is not None:
            self._trainers.close()
