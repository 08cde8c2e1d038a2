"""Records of a round, a score, a fault and a cell, and how they are read from a line of events.

Lines may hold anything: what should be a number and is none becomes None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple


class Offspring(NamedTuple):
    """What a grid's cell made of its generator or discriminator in a round."""

    fitness: float | None
    replaced: bool
    parent: tuple[str, int] | None
    """Where and when the parent was born."""
    rate: float | None
    objective: str | None
    born: int | None
    """The round in which the cell's best one after this round was born."""


class Round(NamedTuple):
    """One round of a cell, from its line in events.jsonl."""

    round_: int
    t: float
    generator: float | None
    """Mean loss of the generator over the round; the discriminator's follows."""
    discriminator: float | None
    spread: float | None
    images_per_s: float | None
    seconds: float
    """Seconds of all its phases."""
    diversity: float | None = None
    offspring: tuple[Offspring, Offspring] | None = None
    """Offspring of the generator and of the discriminator, on a grid."""
    weights: dict[str, float] | None = None
    mixture: float | None = None
    """The score of the cell's mixture."""
    indices: dict[str, float] | None = None


class Settled(NamedTuple):
    """An index over the last half of a run: mean, least and most over its cells."""

    mean: float
    low: float
    high: float
    worst: str
    """The cell with the highest value."""
    cells: int


class ShownEstimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float | None
    high: float | None


class Scored(NamedTuple):
    """The scores of a generator after a round."""

    round_: int
    t: float
    scores: dict[str, ShownEstimate]


class Fault(NamedTuple):
    """Something that went wrong in a run, or a step of its recovery."""

    t: float
    kind: str
    """The kind: rollback, trainer_died, cell_failed, warning, stopped or resumed."""
    cell: str | None
    round_: int | None
    text: str


@dataclass
class CellRecord:
    """All that is known of one cell."""

    key: str
    state: str = "waiting"
    """The state: waiting, running, finished, failed or stopped."""
    rounds: dict[int, Round] = field(default_factory=dict)
    scored: dict[int, Scored] = field(default_factory=dict)
    best: dict[str, Any] | None = None
    """The best score so far, as the last score's line gave it."""
    sheets: dict[int, str] = field(default_factory=dict)
    """Files of sample sheets, by round."""
    spent_s: float | None = None
    reason: str | None = None
    """Why it failed, or what ended it."""
    rolled_back: int = 0
    """The round it last began again; 0 for none."""
    last: int = 0
    """The number of rounds it has done."""
    offspring: int = 0
    """The number of rounds in which its centre was replaced."""
    forgotten: int = 0
    """Rounds up to this one may no longer be remembered."""

    def forget(self, keep: int) -> None:
        """Forget all but the last `keep` rounds, scores and sheets."""
        while len(self.rounds) > keep:
            oldest = next(iter(self.rounds))
            del self.rounds[oldest]
            self.forgotten = max(self.forgotten, oldest)
        for known in (self.scored, self.sheets):
            while len(known) > keep:
                del known[next(iter(known))]

    def ordered(self) -> list[Round]:
        """Return its rounds from the first on."""
        found = list(self.rounds.values())
        if any(a.round_ > b.round_ for a, b in pairwise(found)):
            found.sort(key=lambda one: one.round_)
        return found


def number(value: Any) -> float | None:
    """Return the value if it is a finite number, else None."""
    if type(value) is float:  # As nearly always, in files of a hundred thousand lines.
        return value if -math.inf < value < math.inf else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers."""
    found = {str(name): number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def estimate_of(one: Mapping[str, Any] | None) -> ShownEstimate | None:
    """Read a score from its line; return None if it has no value."""
    value = None if one is None else number(one["value"])
    if one is None or value is None:
        return None
    return ShownEstimate(value, number(one.get("low")), number(one.get("high")))


def offspring_of(one: Mapping[str, Any]) -> Offspring:
    """Read a grid's offspring from its line."""
    parent = one.get("parent")
    return Offspring(
        number(one.get("fitness")),
        bool(one.get("replaced")),
        None if parent is None else (str(parent["cell"]), int(parent["round"])),
        number(one.get("rate")),
        one.get("objective"),
        None if one.get("born") is None else int(one["born"]),
    )
