"""What somebody who watches asks of a run: to pause, to go on, to commit, to draw."""

from __future__ import annotations

from typing import Any

import pytest

from manege.observer import REQUESTS, Observer
from manege.runtime.coordinator import Coordinator
from manege.runtime.messages import Asked, Beat, Send, Start, Task


class Desk:
    """A run directory in memory."""

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        return {"t": 0.0, "event": event, **fields}

    def write_status(self, **fields: Any) -> None: ...

    def adopt(self, cell: str, pending: Any) -> int:
        return 0

    def trust(self, cell: str, verified: Any) -> None: ...

    def adopt_file(self, aside: str, path: str) -> None: ...

    def log(self, cell: str, text: str) -> None: ...


@pytest.fixture
def coordinator() -> Coordinator:
    """Two classes with a trainer each."""
    cells = ("a", "b", "c")
    task = Task(
        cells=cells,
        groups=tuple((cell,) for cell in cells),
        links={cell: () for cell in cells},
        rounds=3,
        budget_s=None,
        wall=False,
        synchronous=True,
        record={},
    )
    made = Coordinator(task, Desk(), Observer(), {}, workers=2)
    made.begin(0.0)
    return made


def _sent(orders: list[Any], kind: str) -> list[int]:
    return [one.worker for one in orders if isinstance(one, Send) and one.message == Asked(kind)]


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_reaches_every_worker(coordinator, what):
    assert _sent(coordinator.ask(what, 1.0), what) == [1, 2]


def test_a_trainer_that_starts_in_a_pause_waits_too(coordinator):
    coordinator.ask("pause", 1.0)
    assert coordinator.paused
    orders = coordinator.died(1, "killed", 2.0)
    assert Start(3) in orders
    assert _sent(orders, "pause") == [3]
    coordinator.ask("resume", 3.0)
    assert not coordinator.paused
    assert _sent(coordinator.died(2, "killed", 4.0), "pause") == []


def test_a_run_that_is_stopping_grants_no_requests(coordinator):
    coordinator.stop("SIGINT", 1.0)
    assert coordinator.ask("pause", 1.5) == []
    assert not coordinator.paused


def test_the_heartbeat_is_that_of_the_most_silent_trainer(coordinator):
    beat = Beat(age_s=0.0, longest_s=0.1, working=None)
    coordinator.heard(1, beat, (), 2.0)
    coordinator.heard(2, beat, (), 2.5)
    coordinator.tick(3.0)
    assert coordinator.heartbeat() == (2, 1.0)


def test_an_observer_that_is_left_as_it_is_asks_for_nothing(tmp_path):
    observer = Observer()
    observer.opened(tmp_path)
    observer.workers(1, 0.0, paused=False)
    assert observer.requests() == ()
    assert observer.should_stop() is None
