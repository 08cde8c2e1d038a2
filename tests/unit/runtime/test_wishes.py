"""What somebody at the screen asks a run for: to pause, to go on, to commit, to draw."""

from __future__ import annotations

from typing import Any

import pytest

from manege.runtime.coordinator import Coordinator
from manege.runtime.orders import Send, Start, Task
from manege.runtime.screen import WISHES, Nobody


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


class Watcher:
    def event(self, event: dict[str, Any]) -> None: ...

    def step(self, cell: str, place: Any, fraction: float) -> None: ...


@pytest.fixture
def coordinator() -> Coordinator:
    """Two classes with a trainer each."""
    cells = ("a", "b", "c")
    task = Task(
        cells=cells,
        groups=tuple((cell,) for cell in cells),
        around={cell: () for cell in cells},
        rounds=3,
        budget_s=None,
        wall=False,
        waits=True,
        told={},
    )
    made = Coordinator(task, Desk(), Watcher(), {}, hosts=2)
    made.begin(0.0)
    return made


def _sent(orders: list[Any], kind: str) -> list[int]:
    return [one.host for one in orders if isinstance(one, Send) and one.message["is"] == kind]


@pytest.mark.parametrize("wish", WISHES)
def test_a_wish_reaches_every_trainer(coordinator, wish):
    assert _sent(coordinator.wish(wish, 1.0), wish) == [1, 2]


def test_a_trainer_that_starts_in_a_pause_waits_too(coordinator):
    coordinator.wish("pause", 1.0)
    assert coordinator.paused
    orders = coordinator.died(1, "killed", 2.0)
    assert Start(3) in orders
    assert _sent(orders, "pause") == [3]
    coordinator.wish("resume", 3.0)
    assert not coordinator.paused
    assert _sent(coordinator.died(2, "killed", 4.0), "pause") == []


def test_a_run_that_is_stopping_grants_no_wishes(coordinator):
    coordinator.stop("SIGINT", 1.0)
    assert coordinator.wish("pause", 1.5) == []
    assert not coordinator.paused


def test_the_heartbeat_is_that_of_the_most_silent_trainer(coordinator):
    beat = {"is": "beat", "age_s": 0.0, "longest_s": 0.1, "working": None}
    coordinator.heard(1, beat, (), 2.0)
    coordinator.heard(2, beat, (), 2.5)
    coordinator.tick(3.0)
    assert coordinator.heartbeat() == (2, 1.0)


def test_nobody_wishes_for_nothing(tmp_path):
    nobody = Nobody()
    nobody.opened(tmp_path)
    nobody.look(1, 0.0, paused=False)
    assert nobody.wishes() == ()
