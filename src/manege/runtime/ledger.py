"""The coordinator's books: what is known of each cell, the group it belongs to, and each worker.

Counts are kept, not taken: a round of a thousand cells costs a thousand entries, not a million.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Group:
    """Cells that hear of each other, directly or not; one alone is a group too."""

    keys: tuple[str, ...]
    goal: int | None = None
    """The round that all are to come to next; None if there is no such round."""
    short: int = 0
    """How many cells that did not fail have not come to the goal."""
    away: int = 0
    """How many cells are to be trained, but wait for a worker to open them."""
    spent_s: float = 0.0

    @property
    def many(self) -> bool:
        """Whether its cells hear each other."""
        return len(self.keys) > 1


@dataclass(eq=False)
class Cell:
    """What is known of a cell; its state, round and time change through its methods only."""

    key: str
    group: Group
    state: str = "waiting"
    """waiting, opening, running, leaving (its worker), finishing, finished, failed or stopped."""
    entry: dict[str, Any] = field(default_factory=dict)
    """The cell's entry in the status."""
    round_: int = 0
    spent_s: float = 0.0
    share_s: float | None = None
    worker: int | None = None
    until: int | None = None
    """The round that it may go on to, as far as is decided; None: no limit."""
    ending: str | None = None
    """Why it is to end, once that is decided."""
    slot: tuple[int, ...] = ()
    place: tuple[int, int] | None = None
    """The round and step last heard of."""
    whole: bool = True
    """Whether it stands between two rounds, as far as has been heard."""
    round_s: float | None = None
    """How long a round of it takes where it is."""
    deaths: list[tuple[int, int] | None] = field(default_factory=list)
    """Round and step, if known, of each worker death it may have caused since its last commit."""

    def __post_init__(self) -> None:
        self.group.away += 1

    def turn(self, state: str) -> None:
        """Set its state."""
        self.group.away += (state in _AWAY) - (self.state in _AWAY)
        if state == "failed" and self.is_short:
            self.group.short -= 1
        self.state = state

    def come_to(self, round_: int, spent_s: float) -> None:
        """Set the round it has come to, or was taken up again at, and the seconds it has had."""
        before = self.is_short
        self.group.spent_s += spent_s - self.spent_s
        self.round_, self.spent_s = round_, spent_s
        self.group.short += self.is_short - before

    @property
    def is_short(self) -> bool:
        """Whether it has not come to its group's goal, and has not failed."""
        return self.state != "failed" and self.round_ < (self.group.goal or 0)

    @property
    def frozen(self) -> bool:
        """Whether it failed and so keeps its last centres for all later rounds."""
        return self.state == "failed"

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to train."""
        return self.state in ("finished", "failed")

    @property
    def listens(self) -> bool:
        """Whether its worker, if it has one, wants to hear of its neighbours."""
        return self.state in ("opening", "running", "leaving")


_AWAY = ("waiting", "opening", "leaving", "stopped")


@dataclass
class WorkerRecord:
    """What is known of a worker."""

    number: int
    cells: dict[str, None] = field(default_factory=dict)
    heard_at: float = 0.0
    heard: bool = False
    """Whether it has given a sign of life."""
    moved_at: float = 0.0
    """When it was last seen to get on, to have nothing to do, or to be given something."""
    working: str | None = None
    broke_over: str | None = None
    """The cell that it named when it crashed."""
    words: str | None = None
    longest_s: float = 0.0
    stepped: bool = False
    """Whether it has trained since it was given something else to do."""
    combines: bool = False
    stopped: bool = False
