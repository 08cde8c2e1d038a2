"""Write results.json, tables.md and plot.png to the bench's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manege.experiments.scaling.tables import Row, tables_of
from manege.files import write_atomic
from manege.report.charts import WIDE, Whisker, bars, whiskers
from manege.report.drawing import Drawing, png_of


def write_results(results: Mapping[str, Any], out: Path) -> tuple[Path, Path, Path]:
    """Write the three files, and return their paths."""
    files = out / "results.json", out / "tables.md", out / "plot.png"
    write_atomic(files[0], json.dumps(results, indent=1, allow_nan=False).encode())
    write_atomic(files[1], markdown(results).encode())
    write_atomic(files[2], plot(results))
    return files


def markdown(results: Mapping[str, Any]) -> str:
    """Return all tables as text, below the machine they were measured on."""
    parts = [f"## {_title(results)}\n", f"{_surroundings(results['machine'])}\n"]
    others = max(run["others_cores"] for run in results["runs"])
    parts.append(f"Other processes kept up to {others:.2f} cores busy meanwhile.\n")
    if disturbed := [run["name"] for run in results["runs"] if run["deaths"]]:
        parts.append(f"Trainers died and were replaced in {', '.join(disturbed)}.\n")
    return "\n".join([*parts, *(table.markdown() for table in tables_of(results))])


def plot(results: Mapping[str, Any]) -> bytes:
    """Draw weak and strong scaling, the profile and, for a grid, traffic, as PNG."""
    machine = results["machine"]
    on = f"{_title(results)}; {machine['cpu']}, {machine['cores']} cores"
    drawings = [_weak(results, on), _strong(results, on), _profile(results, on)]
    drawings += [_traffic(results, on)] if results["traffic"] else []
    return png_of(drawings)


def _weak(results: Mapping[str, Any], on: str) -> Drawing:
    rows = results["weak"]
    shown = [
        _whisker(_workers(row["workers"]), row, "slowest_s", rows[0]["slowest_s"]) for row in rows
    ]
    title = "Weak scaling: equal work each; seconds of the slowest (dashed: ideal)"
    return whiskers(title, on, shown, width=WIDE, zero=True)


def _strong(results: Mapping[str, Any], on: str) -> Drawing:
    workers = results["settings"]["workers"]
    shown = [
        _whisker(
            f"{row['shape']}  {row['one_worker_s']:.1f} s → {row['workers_s']:.1f} s",
            row,
            "speedup",
            workers,
        )
        for row in results["strong"]
    ]
    title = f"Strong scaling: the same work; speed-up of {workers} workers (dashed: ideal)"
    return whiskers(title, on, shown, width=WIDE, zero=True)


def _profile(results: Mapping[str, Any], on: str) -> Drawing:
    """Draw the profile of the largest shape by routine, for one worker and for each of all."""
    last = results["profile"][-1]["shape"]
    rows = [row for row in results["profile"] if row["shape"] == last]
    who = {"one_worker_s": "one worker", "a_worker_s": f"each of {results['settings']['workers']}"}
    shown = [
        (f"{row['routine']}, {whose}", row[bar], f"{row[bar]:.1f} s")
        for row in rows
        for bar, whose in who.items()
    ]
    return bars(f"Profile, {last}", on, shown, width=WIDE, colours=("c6", "c0") * len(rows))


def _traffic(results: Mapping[str, Any], on: str) -> Drawing:
    rows: Sequence[Row] = results["traffic"]
    kinds = {"sent_bytes": "measured", "all_gather_bytes": "an all-gather's, computed"}
    shown = [
        (f"{row['grid']}, {said}", sent := row[name] / row["centre_bytes"], f"{sent:.1f}")
        for row in rows
        for name, said in kinds.items()
    ]
    title = "Cells' traffic: centres sent, a cell and round"
    return bars(title, on, shown, width=WIDE, colours=("c0", "c1") * len(rows))


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _whisker(label: str, row: Row, name: str, ideal: float) -> Whisker:
    value, deviation = row[name], row[f"{name}_sd"]
    low, high = (None, None) if deviation is None else (value - deviation, value + deviation)
    return Whisker(label, value, low, high, "c0", ideal)


def _title(results: Mapping[str, Any]) -> str:
    settings = results["settings"]
    return f"Scaling: {settings['method']}, {settings['runtime']} runtime, {settings['data']}"


def _surroundings(machine: Mapping[str, Any]) -> str:
    named = ("manege", "python", "torch", "numpy", "mpi4py", "mpi")
    versions = [f"{name} {machine[name]}" for name in named if name in machine]
    memory = f"{machine['memory_bytes'] / 1e9:.1f} GB"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {memory} of memory; {machine['system']}; "
        f"{', '.join(versions)}."
    )
