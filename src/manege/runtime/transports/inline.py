"""The inline transport: one worker in this process, which is sent messages by calls."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from typing import Any, Self

from manege import device
from manege.observer import Observer
from manege.runs import RunDir
from manege.runtime.driver import Deliver
from manege.runtime.messages import (
    Adopted,
    NewRun,
    OldRun,
    Order,
    Prepared,
    Said,
    Send,
    Start,
    Stop,
    Task,
)
from manege.runtime.worker.host import Host
from manege.runtime.worker.preparing import OpenedRun, prepare
from manege.runtime.worker.setup import bound_method, task_of

_PAUSED_S = 0.1


class Inline:
    """Trains every cell in this process."""

    watches = False

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._open = ExitStack()
        self._opened: OpenedRun | None = None
        self._host: Host | None = None
        self._number = 1
        self._told: deque[Any] = deque()
        """Messages to the worker that it has not handled yet."""
        self._deliver: Deliver = lambda heard: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def prepare(self, request: NewRun | OldRun) -> Prepared:
        """Make or open the run's directory."""
        self._opened = prepare(request, self._observer)
        return Prepared(self._opened.rundir.path, self._opened.config)

    def load(self, prepared: Prepared) -> tuple[Task, int]:
        """Load data and method; return what there is to do, and that one worker does it."""
        assert self._opened is not None
        config = prepared.config
        device.keep_memory()
        self._open.enter_context(device.threads(config.threads_per_cell))
        on = device.place(config.device, 0, device.gpus_for(config.device))
        rundir = RunDir.open(prepared.path)
        bound = bound_method(config, self._opened.dataset, rundir, on)
        self._host = Host(
            bound,
            rundir,
            self._hear,
            mark=f"{rundir.incarnation}.{self._number}",
            listen=self._listen,
            tell_every_s=0.0,
        )
        return task_of(bound), 1

    def carry(self, order: Order) -> None:
        """Keep a message for the worker, which is there from the start and cannot be killed."""
        match order:
            case Send(_, Stop() as message):
                self._told.appendleft(message)  # Before what it was told last: maybe to finish.
            case Send(_, message):
                self._told.append(message)
            case Start(number):
                assert number == self._number, "a worker in this process cannot be replaced"

    def poll(self, timeout_s: float, deliver: Deliver) -> None:
        """Let the worker handle its messages, then take a step."""
        self._deliver = deliver
        host = self._bound
        while self._told:
            host.handle(self._told.popleft())
        if not host.done and not host.work():
            assert host.paused, "nothing is left to do, and the run has not ended"
            time.sleep(min(timeout_s, _PAUSED_S))

    def await_end(self) -> None:
        """Return at once: the worker has ended with the loop."""

    @property
    def _bound(self) -> Host:
        assert self._host is not None
        return self._host

    def _hear(self, message: Any, files: tuple[int, ...]) -> None:
        self._deliver(Said(self._number, message, files))

    def _listen(self) -> None:
        """Handle the names of commits, which the worker waits for; leave the rest for later."""
        adopted = [message for message in self._told if isinstance(message, Adopted)]
        assert adopted, "a worker waits for what nobody will say"
        for message in adopted:
            self._told.remove(message)
            self._bound.handle(message)
