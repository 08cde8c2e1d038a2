"""Turn measured runs into the papers' tables: rows of numbers, and the same in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from manege.experiments.scaling.plan import STRONG, WEAK, Settings
from manege.experiments.scaling.runs import MeasuredRun
from manege.experiments.scaling.traffic import Traffic

Row = dict[str, Any]

_NOTHING = 0.001
"""The part of a run's rounds below which a routine has no speed-up: the time is too short."""


class MeanAndDeviation(NamedTuple):
    """Mean and standard deviation of a sample; of a single value there is no deviation."""

    mean: float
    sd: float | None

    def told(self, digits: int = 2) -> str:
        """Format it as `12.34 ± 0.05`."""
        sd = "" if self.sd is None else f" ± {self.sd:.{digits}f}"
        return f"{self.mean:.{digits}f}{sd}"


def spread(values: Sequence[float]) -> MeanAndDeviation:
    """Return mean and standard deviation of one value or more."""
    sd = statistics.stdev(values) if len(values) > 1 else None
    return MeanAndDeviation(statistics.fmean(values), sd)


def ratio(above: MeanAndDeviation, below: MeanAndDeviation) -> MeanAndDeviation:
    """Divide the means; the deviation is as for independent errors."""
    mean = above.mean / below.mean
    if above.sd is None or below.sd is None:
        return MeanAndDeviation(mean, None)
    return MeanAndDeviation(mean, mean * math.hypot(above.sd / above.mean, below.sd / below.mean))


@dataclass(frozen=True)
class Table:
    """A table for people, in words."""

    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table as Markdown, columns aligned, so that it can be read as it is."""
        lines = [self.head, tuple("---" for _ in self.head), *self.rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.head))]
        told = [
            "| " + " | ".join(one.ljust(width) for one, width in zip(line, widths, strict=True))
            for line in lines
        ]
        told[1] = "|" + "|".join("-" * (width + 2) for width in widths)
        table = "\n".join(f"{line} |" if line is not told[1] else f"{line}|" for line in told)
        return f"### {self.title}\n\n{self.caption}\n\n{table}\n"


def results_of(
    settings: Settings,
    surroundings: Mapping[str, Any],
    runs: Sequence[MeasuredRun],
    traffic: Sequence[Traffic],
) -> dict[str, Any]:
    """Return everything as one JSON object."""
    return {
        "settings": asdict(settings),
        "machine": dict(surroundings),
        "weak": weak(runs),
        "strong": strong(runs),
        "resources": resources(runs),
        "profile": profiles(runs),
        "traffic": [asdict(one) for one in traffic],
        "runs": [asdict(run) for run in runs],
    }


def weak(runs: Sequence[MeasuredRun]) -> list[Row]:
    """Return a row for each number of workers: time of the slowest, efficiency T(1) / T(w)."""
    by_workers = _grouped((run for run in runs if run.kind == WEAK), lambda run: run.workers)
    times = {count: spread([run.slowest_s for run in own]) for count, own in by_workers.items()}
    return [
        {
            "workers": count,
            "shape": own[0].shape,
            "cells": own[0].cells,
            **_named("slowest_s", times[count]),
            **_named("efficiency", ratio(times[1], times[count])),
            **_named("utilisation", spread([run.utilisation for run in own])),
            "repeats": len(own),
        }
        for count, own in by_workers.items()
    ]


def strong(runs: Sequence[MeasuredRun]) -> list[Row]:
    """Return a row for each shape: time of one worker and of W, and speed-up, as Table III."""
    rows = []
    for shape, alone, together in _pairs(runs):
        one_s, many_s = (spread([run.span_s for run in own]) for own in (alone, together))
        speedup = ratio(one_s, many_s)
        rows.append(
            {
                "shape": shape,
                "cells": alone[0].cells,
                "workers": together[0].workers,
                **_named("one_worker_s", one_s),
                **_named("workers_s", many_s),
                **_named("speedup", speedup),
                "efficiency": speedup.mean / together[0].workers,
                "repeats": len(together),
            }
        )
    return rows


def resources(runs: Sequence[MeasuredRun]) -> list[Row]:
    """Return a row for each shape and number of workers: memory, processes, cores, as Table II."""
    groups = _grouped(runs, lambda run: (run.kind, run.shape, run.workers))
    rows = []
    for (kind, shape, workers), own in groups.items():
        peaks = [run.peak_bytes for run in own if run.peak_bytes is not None]
        rows.append(
            {
                "kind": kind,
                "shape": shape,
                "workers": workers,
                "processes": max(run.processes for run in own),
                **_named("cores", spread([run.cores for run in own])),
                **_named("utilisation", spread([run.utilisation for run in own])),
                "peak_bytes": max(peaks) if peaks else None,
                **_named("wall_s", spread([run.wall_s for run in own])),
                "repeats": len(own),
            }
        )
    return rows


def profiles(runs: Sequence[MeasuredRun]) -> list[Row]:
    """Return a row for each shape and routine: seconds of one worker, of each of W, as Table IV."""
    rows = []
    for shape, alone, together in _pairs(runs):
        for routine in alone[0].routines:
            one_s = spread([run.routines[routine] for run in alone])
            many_s = spread([run.routines[routine] / run.workers for run in together])
            # One worker has all its neighbours at hand: next to nothing is no time to compare with.
            known = one_s.mean > _NOTHING * alone[0].routines["overall"]
            shrunk = many_s.mean / one_s.mean if known else None
            rows.append(
                {
                    "shape": shape,
                    "routine": routine,
                    "workers": together[0].workers,
                    **_named("one_worker_s", one_s),
                    **_named("a_worker_s", many_s),
                    "acceleration": None if shrunk is None else 1 - shrunk,
                    "speedup": 1 / shrunk if shrunk else None,
                }
            )
    return rows


def tables_of(results: Mapping[str, Any]) -> list[Table]:
    """Return all tables, in words."""
    found = [_weak_table(results), _strong_table(results)]
    found += [_resources_table(results), _profile_table(results)]
    return [*found, _traffic_table(results["traffic"])] if results["traffic"] else found


def _weak_table(results: Mapping[str, Any]) -> Table:
    share = (
        "Each worker has nine cells of a torus three rows high, where every cell hears four others"
        if results["traffic"]
        else "Each worker has one class, and every class equally many pictures"
    )
    return Table(
        "Weak scaling (W-CGAN, Fig. 9)",
        f"{share}; {_rounds(results)} Seconds of the slowest {_cell(results)}, from its start to "
        f"its end; efficiency is T(1) / T(workers).{_crowded(results)}",
        ("workers", "shape", "slowest, s", "efficiency", "utilised"),
        tuple(
            (
                str(row["workers"]),
                row["shape"],
                _told(row, "slowest_s"),
                _told(row, "efficiency"),
                _percent(row["utilisation"]),
            )
            for row in results["weak"]
        ),
    )


def _strong_table(results: Mapping[str, Any]) -> Table:
    most = results["settings"]["workers"]
    return Table(
        "Strong scaling (cellular paper, Table III)",
        f"The same work with one worker and with {most}; {_rounds(results)} Seconds from the "
        f"first {_cell(results)}'s start to the last one's end; efficiency is speed-up / {most}."
        f"{_crowded(results)}",
        ("shape", "one worker, s", f"{most} workers, s", "speed-up", "efficiency"),
        tuple(
            (
                row["shape"],
                _told(row, "one_worker_s"),
                _told(row, "workers_s"),
                _told(row, "speedup"),
                f"{row['efficiency']:.2f}",
            )
            for row in results["strong"]
        ),
    )


def _resources_table(results: Mapping[str, Any]) -> Table:
    return Table(
        "Memory and cores of a run (cellular paper, Table II)",
        "Of all processes together, coordinator and launcher included: most processes and most "
        "memory seen at once (shared pages count once), and cores kept busy on average, start and "
        "end included. Utilised is the part of the workers' time in which they computed steps.",
        ("run", "workers", "processes", "cores", "memory, MB", "utilised", "command, s"),
        tuple(
            (
                f"{row['kind']} {row['shape']}",
                str(row["workers"]),
                str(row["processes"]),
                _told(row, "cores"),
                "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.0f}",
                _percent(row["utilisation"]),
                _told(row, "wall_s"),
            )
            for row in results["resources"]
        ),
    )


def _profile_table(results: Mapping[str, Any]) -> Table:
    most = results["settings"]["workers"]
    return Table(
        "Profile (cellular paper, Table IV)",
        f"Seconds of the one worker, and of each of {most} on average; means. Waiting for "
        "neighbours counts as gather.",
        ("shape", "routine", "one worker, s", f"each of {most}, s", "acceleration", "speed-up"),
        tuple(
            (
                row["shape"],
                row["routine"],
                f"{row['one_worker_s']:.3f}",
                f"{row['a_worker_s']:.3f}",
                "–" if row["acceleration"] is None else _percent(row["acceleration"]),
                "–" if row["speedup"] is None else f"{row['speedup']:.2f}",
            )
            for row in results["profile"]
        ),
    )


def _traffic_table(rows: Sequence[Row]) -> Table:
    return Table(
        "Cells' traffic",
        "A rank for each cell on a torus, the runtime's own slots, packets and mirrors, the post "
        f"between ranks counted; centres of {rows[0]['centre_bytes']:,} bytes. The same for every "
        "cell and round; words with the coordinator are not in it. The last column is computed.",
        ("grid", "cells", "messages a cell and round", "bytes a cell and round", "an all-gather's"),
        tuple(
            (
                row["grid"],
                str(row["cells"]),
                str(row["letters"]),
                f"{row['sent_bytes']:,}",
                f"{row['all_gather_bytes']:,}",
            )
            for row in rows
        ),
    )


def _rounds(results: Mapping[str, Any]) -> str:
    settings = results["settings"]
    repeats = settings["repeats"]
    times = "one run" if repeats == 1 else f"mean ± standard deviation of {repeats} runs"
    return f"{settings['rounds']} rounds on {settings['data']}, {times}."


def _cell(results: Mapping[str, Any]) -> str:
    return "cell" if results["traffic"] else "class"


def _crowded(results: Mapping[str, Any]) -> str:
    cores = results["machine"]["cores"]
    many = results["settings"]["workers"] > cores
    return f" More than {cores} workers share {cores} cores." if many else ""


def _told(row: Row, name: str) -> str:
    return MeanAndDeviation(row[name], row[f"{name}_sd"]).told()


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _named(name: str, value: MeanAndDeviation) -> Row:
    return {name: value.mean, f"{name}_sd": value.sd}


def _grouped(
    runs: Iterable[MeasuredRun], key: Callable[[MeasuredRun], Any]
) -> dict[Any, list[MeasuredRun]]:
    found: dict[Any, list[MeasuredRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def _pairs(runs: Sequence[MeasuredRun]) -> list[tuple[str, list[MeasuredRun], list[MeasuredRun]]]:
    """Return each shape of strong scaling, its runs with one worker, and those with all."""
    found = []
    by_shape = _grouped((run for run in runs if run.kind == STRONG), lambda run: run.shape)
    for shape, own in by_shape.items():
        by_workers = _grouped(own, lambda run: run.workers)
        found.append((shape, by_workers[min(by_workers)], by_workers[max(by_workers)]))
    return found
