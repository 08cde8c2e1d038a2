"""Seconds and bytes of a report, and CPU milliseconds of a watch page, for very large runs.

    python benchmarks/report.py [FOLDER]

Two runs made without training: one of 100,000 events, one of 1,000 cells on a torus.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.helpers.synthetic_run import grid_events, make_run, per_class_events

from manege.view.following import Followed
from manege.view.page import text_of
from manege.view.terminal import painted

LABELS = [f"class-{number:02d}" for number in range(20)]


def main() -> None:
    """Print a table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    long, large = folder / "events-100000", folder / "cells-1000"
    if not long.exists():
        make_run(
            long,
            per_class_events(LABELS, 4150),
            labels=LABELS,
            method="per-class",
            sheets_every=500,
        )
    if not large.exists():
        make_run(
            large,
            grid_events(25, 40, 20),
            labels=["0", "1"],
            method="cellular",
            sheets_every=20,
        )
    print("| run | events | MB | report, s | CPU s | MB | first page, CPU ms | next, CPU ms |")
    print("|---|---|---|---|---|---|---|---|")
    for run in (long, large):
        events = run / "events.jsonl"
        lines = events.read_bytes().count(b"\n")
        wall, cpu = _report(run)
        size = (run / "report.html").stat().st_size
        first, after = _watch(run)
        print(
            f"| {run.name} | {lines:,} | {events.stat().st_size / 1e6:.0f} | {wall:.1f} "
            f"| {cpu:.1f} | {size / 1e6:.1f} | {first:.0f} | {after:.1f} |"
        )


def _report(run: Path) -> tuple[float, float]:
    """Wall and CPU seconds of `manege report`, the interpreter's start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "manege", "report", str(run)], check=True, stdout=subprocess.DEVNULL
    )
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return wall, cpu


def _watch(run: Path) -> tuple[float, float]:
    """CPU milliseconds of the first page, which reads everything, and of those after it."""
    began = time.process_time()
    followed = Followed(run)
    followed.refresh()
    text_of(followed.page(80, 24))
    first = time.process_time() - began
    count = 20
    began = time.process_time()
    for number in range(count):
        followed.refresh()
        painted(followed.page(*((80, 24) if number % 2 else (200, 50))), colour=True)
    return 1000 * first, 1000 * (time.process_time() - began) / count


if __name__ == "__main__":
    main()
