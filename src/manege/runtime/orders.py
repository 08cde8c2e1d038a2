"""What goes in and out of the coordinator: a run's task, its outcome, orders to a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Place(NamedTuple):
    """Where a cell stands in its round."""

    round_: int
    step: int
    steps: int


class Watcher(Protocol):
    """Somebody looking on: a progress bar, a log."""

    def event(self, event: dict[str, Any]) -> None:
        """A line of events.jsonl, just written."""
        ...

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """A step was done; `fraction` of the cell's work is behind it."""
        ...


class Desk(Protocol):
    """The run directory, as far as the coordinator writes there."""

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """A line of events.jsonl, as written."""
        ...

    def write_status(self, **fields: Any) -> None:
        """These fields of status.json."""
        ...

    def adopt(self, cell: str, pending: Mapping[str, Any]) -> int:
        """The bytes of a checkpoint written aside, which is now the cell's newest commit."""
        ...

    def trust(self, cell: str, verified: Mapping[str, Any]) -> None:
        """A host has verified this commit."""
        ...

    def adopt_file(self, aside: str, path: str) -> None:
        """A file written aside has its name."""
        ...

    def log(self, cell: str, text: str) -> None:
        """A text for the cell's log."""
        ...


@dataclass
class Outcome:
    """How a run ended."""

    state: str
    """finished, stopped, or failed when at least one cell did."""
    rounds: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Cells that failed, and why."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Task:
    """What is to be done, known before the first host starts."""

    cells: tuple[str, ...]
    """The longest work first."""
    groups: tuple[tuple[str, ...], ...]
    """Cells that ever hear of each other."""
    around: Mapping[str, tuple[str, ...]]
    """Whom a cell ever hears, and who hears it."""
    rounds: int | None
    budget_s: float | None
    wall: bool
    """Whether the budget is one of wall time, of which every host has its own."""
    waits: bool
    """Whether cells that hear each other wait for each other's last round."""
    told: Mapping[str, Any]
    """What the event that the run has started holds besides."""


class Send(NamedTuple):
    """Give a host a message."""

    host: int
    message: dict[str, Any]
    files: tuple[int, ...] = ()


class Start(NamedTuple):
    """Start a trainer, under this number."""

    host: int


class Kill(NamedTuple):
    """Make sure that a trainer is dead, and stop listening to it."""

    host: int


class Close(NamedTuple):
    """Nobody needs this file any more."""

    file: int


Order = Send | Start | Kill | Close


class Refused(Exception):
    """A host met bad input or a machine that refuses: exit code and line."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
