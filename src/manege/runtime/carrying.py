"""A run carried out: prepared, bound, and its messages carried until it has ended.

The same for trainers of this machine and of many; where they are is the `Carrier`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from manege.config import RunConfig, to_yaml
from manege.rundir import RunDir
from manege.runtime.coordinator import Coordinator
from manege.runtime.desk import RunDesk
from manege.runtime.orders import Close, Kill, Order, Outcome, Refused, Send, Start, Task
from manege.runtime.screen import Screen
from manege.runtime.serving import DriveOptions, PreparedRun, refusal
from manege.runtime.trainers import Died, Said

_POLL_S = 0.1


class Finished(NamedTuple):
    """A run that has come to an end, or to a stop."""

    path: Path
    config: RunConfig
    outcome: Outcome


class Carrier(Protocol):
    """Reaches trainers, wherever they are; files are what trainers sent, or numbers for them."""

    def prepare(self, request: Mapping[str, Any]) -> PreparedRun:
        """The run's directory, made or opened."""
        ...

    def bind(self, prepared: PreparedRun) -> tuple[Task, int]:
        """What there is to do, and how many trainers to keep going; they can be started now."""
        ...

    def start(self, host: int) -> None:
        """Start a trainer, under this number."""
        ...

    def send(self, host: int, message: dict[str, Any], files: tuple[int, ...]) -> None:
        """Give a trainer a message, if it is there."""
        ...

    def drop(self, host: int) -> None:
        """Make sure that a trainer is dead, and listen to it no more."""
        ...

    def forget(self, file: int) -> None:
        """Nobody needs this file any more."""
        ...

    def hear(self, timeout_s: float) -> Iterator[Said | Died]:
        """What comes within that time, one by one."""
        ...

    def stopped_by(self) -> str | None:
        """The name of a signal that asks for the end, if one came."""
        ...

    def await_end(self) -> None:
        """Trainers were told to quit, and have a while for it."""
        ...


def new_run(
    config: RunConfig, out: Path | None, command: str, on_pixels: RunConfig | None = None
) -> dict[str, Any]:
    """What to ask for a new run; `on_pixels` is for where its critics cannot see features."""
    return {
        "new": True,
        "config": config.model_dump(mode="json"),
        "on_pixels": None if on_pixels is None else on_pixels.model_dump(mode="json"),
        "out": None if out is None else str(out),
        "command": command,
    }


def old_run(
    path: Path, rounds: int | None, budget_s: float | str | None, trainers: int
) -> dict[str, Any]:
    """What to ask to go on with a run, on so many trainers at most."""
    return {
        "new": False,
        "out": str(path),
        "rounds": rounds,
        "budget_s": budget_s,
        "trainers": trainers,
    }


def carry_out(request: Mapping[str, Any], carrier: Carrier, manner: DriveOptions) -> Finished:
    """A run, from the request to its outcome."""
    prepared = carrier.prepare(request)
    rundir = RunDir.open(prepared.path)
    with rundir.start():
        manner.screen.opened(rundir.path)
        if not request["new"]:
            rundir.write_config(to_yaml(prepared.config))
        task, hosts = carrier.bind(prepared)
        coordinator = Coordinator(
            task,
            RunDesk(rundir, prepared.config.identity()),
            manner.watcher,
            rundir.status().get("cells", {}),
            hosts=hosts,
        )
        try:
            outcome = _run(coordinator, carrier, manner.screen)
        except Refused as refused:
            raise refusal(refused.code, str(refused)) from None
    return Finished(prepared.path, prepared.config, outcome)


def _run(coordinator: Coordinator, carrier: Carrier, screen: Screen) -> Outcome:
    """Until the end, whatever it is."""
    stopping, shown_at = False, 0.0
    _carry(coordinator.begin(time.monotonic()), carrier)
    while coordinator.outcome is None:
        for heard in carrier.hear(_POLL_S):
            now = time.monotonic()
            if isinstance(heard, Died):
                _carry(coordinator.died(heard.host, heard.how, now), carrier)
            else:
                _carry(coordinator.heard(heard.host, heard.message, heard.files, now), carrier)
        if not stopping and (stopped_by := carrier.stopped_by()):
            stopping = True
            _carry(coordinator.stop(stopped_by, time.monotonic()), carrier)
        _carry(coordinator.tick(time.monotonic()), carrier)
        if time.monotonic() - shown_at >= _POLL_S:
            shown_at = time.monotonic()
            _show(coordinator, carrier, screen)
    carrier.await_end()
    return coordinator.outcome


def _show(coordinator: Coordinator, carrier: Carrier, screen: Screen) -> None:
    """Tell whoever looks on who trains, and do what they ask for."""
    for wish in screen.wishes():
        _carry(coordinator.wish(wish, time.monotonic()), carrier)
    trainers, silent_s = coordinator.heartbeat()
    screen.look(trainers, silent_s, paused=coordinator.paused)


def _carry(orders: list[Order], carrier: Carrier) -> None:
    for order in orders:
        match order:
            case Send(host, message, files):
                carrier.send(host, message, files)
            case Start(host):
                carrier.start(host)
            case Kill(host):
                carrier.drop(host)
            case Close(file):
                carrier.forget(file)
