"""Sum up where a grid's time went, from events.jsonl: Table IV of the cellular paper. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ROUTINES: dict[str, tuple[str, ...]] = {
    "gather": ("gather",),
    "train": ("data", "train"),
    "update_genomes": ("update_genomes",),
    "mutate": ("mutate",),
}
"""The paper's routines, and the phases of ours that each is made of."""


@dataclass(frozen=True)
class Profile:
    """Seconds of all cells and rounds together."""

    rounds: int
    """The number of rounds counted, over all cells."""
    seconds: Mapping[str, float]
    """Seconds of each routine, and `overall`."""

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Return rows of routine, seconds in all, seconds a cell and round, share of overall."""
        overall = self.seconds["overall"]
        return [
            (name, value, value / self.rounds, value / overall if overall else 0.0)
            for name, value in self.seconds.items()
        ]

    def lines(self) -> list[str]:
        """Return the lines of the table, ready to print."""
        head = f"{'routine':<16}{'seconds':>10}{'a round':>10}{'share':>8}"
        return [head] + [
            f"{name:<16}{total:>10.2f}{each:>10.4f}{share:>8.1%}"
            for name, total, each, share in self.rows()
        ]


def profile(events: Iterable[Mapping[str, Any]]) -> Profile | None:
    """Return the profile of a run on a grid; None when no cell has ended a round."""
    rounds = 0
    seconds = dict.fromkeys([*ROUTINES, "overall"], 0.0)
    for event in events:
        if event.get("event") != "round" or event.get("grid") is None:
            continue
        rounds += 1
        phases = event["phases_s"]
        for routine, parts in ROUTINES.items():
            seconds[routine] += sum(phases.get(part, 0.0) for part in parts)
        seconds["overall"] += phases["overall"]
    return Profile(rounds, seconds) if rounds else None
