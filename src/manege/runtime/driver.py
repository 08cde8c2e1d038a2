"""The loop that carries a run from the request for it to its outcome, whoever computes.

Who computes, and how messages travel, is a transport's business: this process (`worker.inline`),
processes of this machine (`local`), ranks of an MPI job (`ranks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from manege.config import to_yaml
from manege.observer import Observers
from manege.runs import RunDir
from manege.runtime.coordinator import Coordinator, Outcome
from manege.runtime.messages import Died, NewRun, OldRun, Order, Prepared, Said, Task
from manege.runtime.run_writer import RunWriter

_POLL_S = 0.1

Deliver = Callable[[Said | Died], None]
"""Takes in what a worker said, or that it died."""


class Transport(Protocol):
    """Starts workers and carries messages to and from them, wherever they are."""

    watches: bool
    """Whether workers may hang or die, so that the coordinator must look for it."""

    def prepare(self, request: NewRun | OldRun) -> Prepared:
        """Make or open the run's directory."""
        ...

    def load(self, prepared: Prepared) -> tuple[Task, int]:
        """Return what there is to do, and how many workers to keep going.

        Workers can be started from now on.
        """
        ...

    def carry(self, order: Order) -> None:
        """Carry out an order of the coordinator."""
        ...

    def poll(self, timeout_s: float, deliver: Deliver) -> None:
        """Deliver what workers say within that time, one by one."""
        ...

    def await_end(self) -> None:
        """Wait a while for workers, which were told to quit, to end."""
        ...


def drive(
    request: NewRun | OldRun, transport: Transport, observer: Observers
) -> tuple[Prepared, Outcome]:
    """Carry a run from the request to its outcome."""
    prepared = transport.prepare(request)
    rundir = RunDir.open(prepared.path)
    with rundir.start():
        observer.opened(rundir.path)
        if isinstance(request, OldRun):
            rundir.write_config(to_yaml(prepared.config))
        task, workers = transport.load(prepared)
        coordinator = Coordinator(
            task,
            RunWriter(rundir, prepared.config.identity()),
            observer,
            rundir.status().get("cells", {}),
            workers=workers,
        )
        outcome = _loop(coordinator, transport, observer)
    return prepared, outcome


def _loop(coordinator: Coordinator, transport: Transport, observer: Observers) -> Outcome:
    """Carry messages and orders until the run has come to its end."""

    def carry(orders: list[Order]) -> None:
        for order in orders:
            transport.carry(order)

    def deliver(heard: Said | Died) -> None:
        now = time.monotonic()
        if isinstance(heard, Died):
            carry(coordinator.died(heard.worker, heard.how, now))
        else:
            carry(coordinator.heard(heard.worker, heard.message, heard.files, now))

    # A worker in this process is looked at after every step: nothing happens between them.
    look_every_s = _POLL_S if transport.watches else 0.0
    stopping, shown_at = False, 0.0
    carry(coordinator.begin(time.monotonic()))
    while coordinator.outcome is None:
        transport.poll(_POLL_S, deliver)
        if not stopping and (stopped_by := observer.should_stop()):
            stopping = True
            carry(coordinator.stop(stopped_by, time.monotonic()))
        if transport.watches:
            carry(coordinator.tick(time.monotonic()))
        if time.monotonic() - shown_at >= look_every_s:
            shown_at = time.monotonic()
            workers, silent_s = coordinator.heartbeat()
            observer.workers(workers, silent_s, paused=coordinator.paused)
            for request in observer.requests():
                carry(coordinator.ask(request, time.monotonic()))
    transport.await_end()
    return coordinator.outcome
