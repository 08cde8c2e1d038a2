"""Sum up a run's events as a history of each cell, of faults, and of the run.

Made by seeing events one after the other, so that a screen can follow a run that goes on. Of a
(cell, round) that was trained twice the later line counts. No file is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from manege.profile import ROUTINES
from manege.report.records import (
    CellRecord,
    Fault,
    Round,
    Scored,
    Settled,
    estimate_of,
    number,
    numbers,
    offspring_of,
)

INDEX_NOTES = {
    "collapse": "0: covers what real pictures cover; 1: nothing of it",
    "cycling": "how far it went and came back, over the variance of real features",
}
INDICES = tuple(INDEX_NOTES)
"""Names under `indices` in a round's line, where a run writes them."""

_LATEST = 1e11
"""The latest time that counts as one, in seconds since 1970: calendars go no further."""

MEASURES = {
    "score": "score",
    "mixture": "mixture score",
    "fitness": "fitness of the generator",
    "generator": "generator loss",
    "discriminator": "discriminator loss",
    "spread": "spread of samples",
    "diversity": "diversity of the neighbourhood",
}


class History:
    """A run, as far as its events tell."""

    def __init__(self) -> None:
        self.cells: dict[str, CellRecord] = {}
        self.method: str | None = None
        self.preset: str | None = None
        self.rounds: int | None = None
        self.budget_s: float | None = None
        self.events = 0
        self.unread = 0
        """The number of events whose fields were not what they should be."""
        self.started_at: float | None = None
        self.last_t: float | None = None
        self.starts: list[float] = []
        """Times at which the run was started, and started again."""
        self.ended: str | None = None
        """How the run ended: stopped, finished or failed; None while it has not."""
        self.metric: str | None = None
        self.space: str | None = None
        self.index_space: str | None = None
        """The feature network of collapse and cycling."""
        self.blind: dict[str, str] = {}
        """Feature spaces of the scores that do not see these data, and how that was found."""
        self.index_samples: set[int] = set()
        """How many pictures collapse and cycling were measured on, in any round."""
        self.index_compared: set[int] = set()
        """How many of those collapse was measured on: as many as are held out."""
        self.index_references: set[int] = set()
        """How many training pictures were to be covered."""
        self.faults: list[Fault] = []
        self.commits = 0
        self.commit_bytes = 0
        self.commit_s = 0.0
        self.last_commit: tuple[float, str] | None = None
        self.mixture: dict[str, Any] | None = None
        self.model: list[str] | None = None
        self.done = 0
        """Rounds done by all cells together."""
        self.phases_s: dict[str, float] = {}
        """Seconds of all cells' rounds, by phase."""

    @property
    def on_grid(self) -> bool:
        """Whether its cells make a grid."""
        return self.method == "cellular"

    def see_all(self, events: Iterable[Mapping[str, Any]]) -> None:
        """See events in their order."""
        for event in events:
            self.see(event)

    def see(self, event: Mapping[str, Any]) -> None:
        """Add an event; one that makes no sense is counted and left out."""
        self.events += 1
        see = getattr(self, f"_see_{event.get('event')}", None)
        if see is None:
            return
        try:
            t = float(event["t"])
            if not 0 < t < _LATEST:
                raise ValueError("no time of day")
            see(t, event)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.unread += 1
            return
        self.last_t = t
        if self.started_at is None:
            self.started_at = t

    def _cell(self, event: Mapping[str, Any]) -> CellRecord:
        key = str(event["cell"])
        found = self.cells.get(key)
        if found is None:
            found = self.cells[key] = CellRecord(key)
        return found

    def _see_run_started(self, t: float, event: Mapping[str, Any]) -> None:
        self.method, self.preset = str(event["method"]), event.get("preset")
        self.rounds, self.budget_s = event.get("rounds"), event.get("budget_s")
        for key in event["cells"]:
            cell = self.cells.setdefault(str(key), CellRecord(str(key)))
            if cell.state not in ("finished", "failed"):
                cell.state = "waiting"
        if self.starts:
            self.faults.append(Fault(t, "resumed", None, None, "the run was started again"))
        self.starts.append(t)
        self.ended = None

    def _see_cell_started(self, t: float, event: Mapping[str, Any]) -> None:
        cell = self._cell(event)
        cell.state, cell.reason = "running", None
        cell.last = max(cell.last, int(event["round"]))

    def _see_round(self, t: float, event: Mapping[str, Any]) -> None:
        cell, round_ = self._cell(event), int(event["round"])
        losses, phases = event["losses"], numbers(event.get("phases_s") or {})
        grid: Mapping[str, Any] = event.get("grid") or {}
        mixture: Mapping[str, Any] = grid.get("mixture") or {}
        pair = None
        if grid:
            pair = (offspring_of(grid["generator"]), offspring_of(grid["discriminator"]))
            cell.offspring += pair[0].replaced
        indices: Mapping[str, Any] = event.get("indices") or {}
        if indices.get("space") is not None:
            self.index_space = str(indices["space"])
        if number(indices.get("samples")) is not None:
            self.index_samples.add(int(indices["samples"]))
        if number(indices.get("compared")) is not None:
            compared = int(indices["compared"])
            self.index_compared.add(compared)
            # Runs that do not tell it took as many as they compared.
            self.index_references.add(int(number(indices.get("references")) or compared))
        again = cell.rounds.get(round_)
        cell.rounds[round_] = Round(
            round_,
            t,
            number(losses.get("generator")),
            number(losses.get("discriminator")),
            number(event.get("spread")),
            number(event.get("images_per_s")),
            phases.get("overall") or sum(phases.values()),
            number(grid.get("diversity")),
            pair,
            numbers(mixture["weights"]) if mixture.get("weights") else None,
            number(mixture.get("score")),
            numbers(indices) if indices else None,
        )
        if again is None:
            self.done += 1
        for name, seconds in phases.items():
            self.phases_s[name] = self.phases_s.get(name, 0.0) + seconds
        cell.last = max(cell.last, round_)
        if cell.state == "waiting":
            cell.state = "running"

    def _see_score(self, t: float, event: Mapping[str, Any]) -> None:
        cell, round_ = self._cell(event), int(event["round"])
        self.metric, self.space = str(event["metric"]), event.get("space")
        scores = {str(name): estimate_of(one) for name, one in event["scores"].items()}
        cell.scored[round_] = Scored(
            round_, t, {name: one for name, one in scores.items() if one is not None}
        )
        best = event.get("best")
        if best is not None and number(best["value"]) is not None:
            cell.best = dict(best)

    def _see_sheet(self, t: float, event: Mapping[str, Any]) -> None:
        self._cell(event).sheets[int(event["round"])] = str(event["file"])

    def _see_commit(self, t: float, event: Mapping[str, Any]) -> None:
        self.commits += 1
        self.commit_bytes += int(event.get("bytes") or 0)
        self.commit_s += number(event.get("seconds")) or 0.0
        self.last_commit = (t, str(event["cell"]))

    def _see_rollback(self, t: float, event: Mapping[str, Any]) -> None:
        cell, round_ = self._cell(event), int(event["round"])
        cell.rolled_back = round_
        text = f"attempt {event['attempt']}: {event['reason']}"
        self.faults.append(Fault(t, "rollback", cell.key, round_, text))

    def _see_warning(self, t: float, event: Mapping[str, Any]) -> None:
        self.faults.append(Fault(t, "warning", event.get("cell"), None, str(event["message"])))

    def _see_blind(self, t: float, event: Mapping[str, Any]) -> None:
        self.blind.setdefault(str(event["space"]), str(event["message"]))

    def _see_trainer_died(self, t: float, event: Mapping[str, Any]) -> None:
        cells = ", ".join(map(str, event["cells"]))
        text = f"trainer {event['trainer']} {event['how']}; its cells: {cells or 'none'}"
        self.faults.append(Fault(t, "trainer_died", None, None, text))

    def _see_cell_finished(self, t: float, event: Mapping[str, Any]) -> None:
        cell = self._cell(event)
        cell.state, cell.reason = "finished", str(event["reason"])
        cell.spent_s, cell.last = number(event.get("spent_s")), int(event["round"])

    def _see_cell_failed(self, t: float, event: Mapping[str, Any]) -> None:
        cell = self._cell(event)
        cell.state, cell.reason = "failed", str(event["reason"])
        round_ = int(event["round"])
        self.faults.append(Fault(t, "cell_failed", cell.key, round_, cell.reason))

    def _see_mixture(self, t: float, event: Mapping[str, Any]) -> None:
        self.space = event.get("space")
        self.mixture = {
            "cell": str(event["cell"]),
            "weights": numbers(event["weights"]),
            "scores": {str(cell): estimate_of(one) for cell, one in event["scores"].items()},
        }

    def _see_model(self, t: float, event: Mapping[str, Any]) -> None:
        self.model = [str(label) for label in event["labels"]]

    def _see_run_stopped(self, t: float, event: Mapping[str, Any]) -> None:
        self.ended = "stopped"
        self.faults.append(Fault(t, "stopped", None, None, f"stopped on {event['reason']}"))
        for cell in self.cells.values():
            if cell.state == "running":
                cell.state = "stopped"

    def _see_run_finished(self, t: float, event: Mapping[str, Any]) -> None:
        self.ended = "failed" if event.get("failed") else "finished"

    # What follows from it.

    @property
    def measure(self) -> str:
        """What cells are judged by: `score`, `mixture`, `fitness` or `generator` (its loss)."""
        if self.metric is not None:
            return "score"
        for cell in self.cells.values():
            for one in reversed(cell.rounds.values()):
                if one.mixture is not None:
                    return "mixture"
                if one.offspring is not None and one.offspring[0].fitness is not None:
                    return "fitness"
                break
        return "generator"

    def measure_name(self, mixture_metric: str) -> str:
        """Return the name of what cells are judged by, marked where it is blind."""
        mark = " (blind)" if self.blind else ""
        if self.measure == "score":
            return f"{self.metric}{mark}"
        if self.measure == "mixture":
            return f"mixture score ({mixture_metric}){mark}"
        return MEASURES[self.measure]

    def routines(self) -> dict[str, float]:
        """Return seconds of the paper's routines and of what else takes time, over all cells."""
        phases = dict(self.phases_s)
        overall = phases.pop("overall", None)
        found: dict[str, float] = {}
        if self.on_grid:
            for routine, parts in ROUTINES.items():
                found[routine] = sum(phases.pop(part, 0.0) for part in parts)
        else:
            phases.pop("gather", None)
        found |= phases
        rest = 0.0 if overall is None else overall - sum(found.values())
        if overall and rest > 0.005 * overall:
            found["other"] = rest
        return found if any(found.values()) else {}

    def series(self, cell: CellRecord, measure: str) -> list[tuple[int, float]]:
        """Return the cell's values of a measure, with their rounds."""
        if measure == "score":
            return [
                (one.round_, min(estimate.value for estimate in one.scores.values()))
                for one in cell.scored.values()
                if one.scores
            ]
        return [
            (one.round_, value)
            for one in cell.rounds.values()
            if (value := _measured(one, measure)) is not None
        ]

    def settled(self, cell: CellRecord, index: str) -> float | None:
        """Return the mean of an index over the last half of a cell's rounds.

        None where it was not measured, and where some of these rounds are forgotten.
        """
        if 2 * cell.forgotten > cell.last:
            return None
        late = [value for round_, value in self.series(cell, index) if 2 * round_ > cell.last]
        return sum(late) / len(late) if late else None

    def stability(self, index: str) -> Settled | None:
        """Return an index over all cells; None when it was never measured."""
        found = {
            key: value
            for key, cell in self.cells.items()
            if (value := self.settled(cell, index)) is not None
        }
        if not found:
            return None
        worst = max(found, key=lambda key: found[key])
        values = found.values()
        return Settled(sum(values) / len(found), min(values), found[worst], worst, len(found))

    def latest(self, cell: CellRecord, measure: str) -> float | None:
        """Return the cell's last value of a measure; None when it has none."""
        if measure == "score":
            for one in reversed(cell.scored.values()):
                if one.scores:
                    return min(estimate.value for estimate in one.scores.values())
            return None
        for row in reversed(cell.rounds.values()):
            if (value := _measured(row, measure)) is not None:
                return value
        return None

    def best_cell(self, measure: str) -> tuple[CellRecord, float, int | None] | None:
        """Return the cell that is best by a measure, its value, and the round that reached it."""
        found: list[tuple[float, CellRecord, int | None]] = []
        for cell in self.cells.values():
            if measure == "score" and cell.best is not None:
                found.append((float(cell.best["value"]), cell, cell.best.get("round")))
            elif (value := self.latest(cell, measure)) is not None:
                found.append((value, cell, cell.last))
        if not found or measure == "generator":
            return None
        value, cell, round_ = min(found, key=lambda one: one[0])
        return cell, value, round_

    def shape(self) -> tuple[int, int] | None:
        """Return the grid's rows and columns, from its cells' names; None if they are no grid's."""
        if not self.on_grid or not self.cells:
            return None
        places = [place_of(key) for key in self.cells]
        if any(place is None for place in places):
            return None
        sound = [place for place in places if place is not None]
        rows = max(row for row, _ in sound) + 1
        columns = max(column for _, column in sound) + 1
        # Of a damaged file: a grid has its places taken.
        return (rows, columns) if rows * columns <= 2 * len(sound) + 16 else None

    def lineage(self, cell: str) -> list[tuple[str, int]]:
        """Return where and when a cell's generator and its ancestors were born, newest first."""
        here = self._birth(cell, self.cells[cell].last)
        line = [here]
        while here[1] > 0:
            row = self.cells[here[0]].rounds.get(here[1]) if here[0] in self.cells else None
            parent = row.offspring[0].parent if row is not None and row.offspring else None
            # A parent is older; of a damaged file nobody knows.
            if parent is None or parent[1] >= here[1]:
                break
            here = parent
            line.append(here)
        return line

    def _birth(self, cell: str, until: int) -> tuple[str, int]:
        """Return where and when the generator that a cell had after a round was born."""
        for row in reversed(self.cells[cell].ordered()):
            if row.round_ > until or row.offspring is None:
                continue
            if row.offspring[0].born is not None:
                return cell, row.offspring[0].born
            if row.offspring[0].replaced:
                return cell, row.round_
        return cell, 0


def place_of(key: str) -> tuple[int, int] | None:
    """Return row and column of a grid's cell, by its name; None when it is no grid's."""
    row, dash, column = key.partition("-")
    return (int(row), int(column)) if dash and row.isdecimal() and column.isdecimal() else None


def _measured(one: Round, measure: str) -> float | None:
    match measure:
        case "mixture":
            return one.mixture
        case "fitness":
            return one.offspring[0].fitness if one.offspring else None
        case "discriminator":
            return one.discriminator
        case "spread":
            return one.spread
        case "diversity":
            return one.diversity
        case "generator":
            return one.generator
        case _:
            return (one.indices or {}).get(measure)
