"""Wall seconds of the same work in one process, with trainers, and as commands side by side.

    python benchmarks/runtime.py [--rounds 40] [--repeats 3] [--kills 10] [--json FILE]

- *classes*: two digits, one after the other in one process; with one trainer; with two; and as two
  commands of one process each, side by side, which nothing coordinates. From the first step to the
  last, so that nobody's start counts; ways take turns, medians of ratios count. Two trainers are
  to cost no more than 5 % over two commands.
- *grid*: 2x2 on digits with one trainer and with two; the share of a cell's round that it waits for
  centres and reads them (gather).
- *deaths*: a grid's trainers are killed one after another: seconds from the kill until the
  coordinator knows (seen), and until all the cells it had have opened elsewhere (back).

Run it alone: on a shared machine nothing but the ratios means anything, and not even they when
something else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.step import cpu

from manege.profile import profile
from manege.runs import RunDir

CLASSES = ("3", "8")
COMMON = ("--sheet-every", "100000", "--checkpoint-every")


def main() -> None:
    """Print the tables; write them as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    args = parser.parse_args()
    found: dict[str, Any] = {"cpu": cpu(), "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MANEGE_CACHE"] = f"{folder}/cache"
        found["classes"] = classes(Path(folder), args.rounds, args.repeats)
        found["grid"] = grid(Path(folder), args.rounds // 4, args.repeats)
        found["deaths"] = deaths(Path(folder), args.kills)
    print(f"{cpu()}, {len(os.sched_getaffinity(0))} cores; medians of {args.repeats}")
    apart = found["classes"]["two commands"]
    print(f"two classes, {args.rounds} rounds each, wall seconds from the first step to the last")
    for way, times in found["classes"].items():
        ratios = [one / other for one, other in zip(times, apart, strict=True)]
        print(
            f"  {way:24}{statistics.median(times):8.2f}"
            f"{statistics.median(ratios):8.3f} of two commands"
            f" ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    print(f"2x2, {args.rounds // 4} rounds")
    for way, (seconds, share) in found["grid"].items():
        print(f"  {way:24}{seconds:8.2f}   gather {share:.2%}")
    for what, times in found["deaths"].items():
        low, middle, high = min(times), statistics.median(times), max(times)
        print(f"  a trainer killed, {what}: {middle:.3f} s ({low:.3f} to {high:.3f}), {len(times)}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


def classes(folder: Path, rounds: int, repeats: int) -> dict[str, list[float]]:
    """Wall seconds of each way to train two classes."""
    both = ",".join(CLASSES)
    ways: dict[str, list[tuple[str, ...]]] = {
        "in one process": [("--classes", both, "--runtime", "inline")],
        "one trainer": [("--classes", both, "--workers", "1")],
        "two trainers": [("--classes", both, "--workers", "2")],
        "two commands": [("--classes", one, "--runtime", "inline") for one in CLASSES],
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for number, (way, commands) in enumerate(ways.items()):
            paths = [folder / f"c{repeat}-{number}-{one}" for one in range(len(commands))]
            running = [
                start("digits", "--rounds", str(rounds), *command, "--out", str(path))
                for command, path in zip(commands, paths, strict=True)
            ]
            for process in running:
                ended(process)
            taken[way].append(span(paths))
            print(f"  {way}: {taken[way][-1]:.2f} s", file=sys.stderr)
    return taken


def grid(folder: Path, rounds: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Median wall seconds and the share of gather, with one trainer and two."""
    taken: dict[str, list[tuple[float, float]]] = {"one trainer": [], "two trainers": []}
    for repeat in range(repeats):
        for workers, way in enumerate(taken, 1):
            path = folder / f"g{repeat}-{workers}"
            ended(start(*grid_args(rounds), "--workers", str(workers), "--out", str(path)))
            found = profile(RunDir.open(path).events())
            assert found is not None
            share = found.seconds["gather"] / found.seconds["overall"]
            taken[way].append((span([path]), share))
            print(f"  2x2, {way}: {taken[way][-1][0]:.2f} s", file=sys.stderr)
    return {
        way: tuple(map(statistics.median, zip(*all_, strict=True))) for way, all_ in taken.items()
    }


def deaths(folder: Path, kills: int) -> dict[str, list[float]]:
    """Seconds from a kill until it is seen, and until all its cells have opened elsewhere."""
    path, rng = folder / "killed", random.Random(1)
    process = start(*grid_args(10_000), "--workers", "2", "--out", str(path), every="2s")
    killed: list[float] = []
    while len(killed) < kills:
        time.sleep(2.0)
        if not path.exists() or len(of(path, "trainer_died")) < len(killed):
            continue
        servers = children(process.pid)
        trainers = children(servers[0]) if servers else []
        if len(trainers) == 2 and of(path, "commit"):
            killed.append(time.time())
            os.kill(rng.choice(trainers), signal.SIGKILL)
    time.sleep(2.0)
    process.send_signal(signal.SIGTERM)
    process.wait()
    events = list(RunDir.open(path).events())
    seen, back = [], []
    for at in killed:
        number, death = next(
            (n, one)
            for n, one in enumerate(events)
            if one["event"] == "trainer_died" and one["t"] > at
        )
        opened = [
            next(
                one["t"]
                for one in events[number:]
                if one["event"] == "cell_started" and one["cell"] == cell
            )
            for cell in death["cells"]
        ]
        seen.append(death["t"] - at)
        back.append(max(opened) - at)
    return {"seen": seen, "back": back}


def grid_args(rounds: int) -> tuple[str, ...]:
    """A grid whose rounds take a second or so."""
    return (
        *("digits", "--method", "cellular", "--grid", "2x2", "--rounds", str(rounds)),
        *("--set", "training.batches_per_round=60", "--set", "networks.hidden=256"),
    )


def start(*args: str, every: str = "10m") -> subprocess.Popen[bytes]:
    """A command under way."""
    return subprocess.Popen(
        [sys.executable, "-m", "manege", "train", *args, *COMMON, every],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for it."""
    if process.wait():
        raise SystemExit(f"a command ended with {process.returncode}")


def of(path: Path, kind: str) -> list[dict[str, Any]]:
    """A run's events of one kind, so far."""
    if not (path / "events.jsonl").exists():
        return []
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


def span(paths: list[Path]) -> float:
    """Seconds from the first cell's start to the last one's end."""
    begun = min(event["t"] for path in paths for event in of(path, "cell_started"))
    return float(max(event["t"] for path in paths for event in of(path, "cell_finished")) - begun)


def children(pid: int) -> list[int]:
    """A process's own."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


if __name__ == "__main__":
    main()
