"""Ranks against trainers of one machine: the same grid, its exchange, and what a loss costs.

    python benchmarks/mpi.py [--rounds 10] [--repeats 3] [--kills 5] [--json FILE]

- *grid*: 2x2 on digits with two trainers of the local runtime and with two worker ranks: wall
  seconds from the first step to the last, and seconds a cell and round for its neighbours' centres.
- *exchange*: a centre of 5 MB to four others: written into a slot and read in place by four
  processes' worth of readers on one machine; as bytes between two ranks, four times.
- *losses*: worker ranks killed one after another, with ULFM: seconds until all their cells have
  opened elsewhere.
- *restarts*: rank 0 killed under `--launch mpiexec --restarts`: seconds until a round is told of
  again.

Run it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from benchmarks.runtime import children, ended, grid_args, of, span, start
from benchmarks.step import cpu

from manege.profile import profile
from manege.runs import RunDir
from manege.runtime import launch, mpi
from manege.runtime.slots import CentreSlot

LAUNCH = ("--launch", "mpiexec", "-n", "3")
FLOATS = 5 << 18
"""Of a centre of 5 MB."""
TIMES = 20


def main() -> None:
    """Print the tables; write them as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--ranks", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks:
        between_ranks()
    found: dict[str, Any] = {"cpu": cpu(), "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MANEGE_CACHE"] = f"{folder}/cache"
        found["exchange_s"] = {"slots": in_slots(), "ranks": by_ranks()}
        found["grid"] = grid(Path(folder), args.rounds, args.repeats)
        found["lost_s"] = {
            "a worker's rank is killed, its cells are open elsewhere": losses(
                Path(folder) / "ranks", args.kills
            ),
            "rank 0 is killed, the job is at work again": restarts(
                Path(folder) / "restarts", args.kills
            ),
        }
    print(f"{cpu()}, {len(os.sched_getaffinity(0))} cores; medians of {args.repeats}")
    for way, (seconds, gather_s, share) in found["grid"].items():
        print(
            f"  2x2, {args.rounds} rounds, {way:22}{seconds:7.2f} s, gather {gather_s * 1e3:.2f} ms"
        )
        print(f"    a cell and round ({share:.2%})")
    for way, seconds in found["exchange_s"].items():
        print(f"  5 MB to four, by {way}: {seconds * 1e3:.1f} ms")
    for what, times in found["lost_s"].items():
        low, middle, high = min(times), statistics.median(times), max(times)
        print(f"  {what}: {middle:.2f} s ({low:.2f} to {high:.2f}), {len(times)} times")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


def grid(folder: Path, rounds: int, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Median wall seconds, seconds of gather a cell and round, and its share."""
    ways = {"two trainers": ("--workers", "2"), "two worker ranks": LAUNCH}
    taken: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for number, (way, args) in enumerate(ways.items()):
            path = folder / f"g{repeat}-{number}"
            ended(start(*grid_args(rounds), *args, "--out", str(path)))
            found = profile(RunDir.open(path).events())
            assert found is not None
            seconds = found.seconds
            gather_s = seconds["gather"] / (4 * rounds)
            taken[way].append((span([path]), gather_s, seconds["gather"] / seconds["overall"]))
            print(f"  2x2, {way}: {taken[way][-1][0]:.2f} s", file=sys.stderr)
    return {
        way: tuple(map(statistics.median, zip(*all_, strict=True))) for way, all_ in taken.items()
    }


def in_slots() -> float:
    """Seconds to show a centre and to read it four times, in place."""
    slot = CentreSlot.create((("f", FLOATS),))
    readers = [CentreSlot.attach(os.dup(slot.fileno()), (("f", FLOATS),)) for _ in range(4)]
    centre, taken = np.ones(FLOATS, np.float32), []
    for round_ in range(1, TIMES + 1):
        began = time.perf_counter()
        slot.write(round_, [centre])
        for reader in readers:
            float(reader.read(round_)[0].sum())
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def by_ranks() -> float:
    """The same as bytes from one rank to another, four times, there and back; half of it."""
    mpiexec = Path(sys.executable).parent / "mpiexec"
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [mpiexec, *root, "-n", "2", sys.executable, __file__, "--ranks"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def between_ranks() -> None:
    """One of two ranks."""
    world = mpi.join(launch.rank_info(os.environ))
    centre = np.ones(FLOATS, np.float32).view(np.uint8)
    world.expect(centre.nbytes)
    other, taken = 1 - world.rank, []
    for _ in range(TIMES):
        began = time.perf_counter()
        for turn in range(2):
            if turn == world.rank:
                for _ in range(4):
                    world.post_bytes(other, centre)
            else:
                left = 4
                while left:
                    left -= sum(
                        bool(np.asarray(one.content).view(np.float32).sum()) for one in world.poll()
                    )
        taken.append((time.perf_counter() - began) / 2)
    if world.rank == 0:
        print(statistics.median(taken))
    world.leave(0)


def losses(path: Path, kills: int) -> list[float]:
    """Seconds from a worker rank's death until all its cells have opened elsewhere."""
    args = ("--launch", "mpiexec", "-n", str(kills + 2))
    process = start(*grid_args(10_000), *args, "--out", str(path), every="2s")
    killed = []
    for rank in range(kills + 1, 1, -1):
        _wait(path, "round", process, more=8)
        killed.append(time.time())
        os.kill(_rank(process.pid, rank), signal.SIGKILL)
        time.sleep(3.0)
    return _opened_after(path, killed, process)


def restarts(path: Path, kills: int) -> list[float]:
    """Seconds from the death of rank 0 until a round is told of again."""
    args = (*LAUNCH, "--restarts", str(kills))
    process = start(*grid_args(10_000), *args, "--out", str(path), every="2s")
    killed = []
    for _ in range(kills):
        _wait(path, "round", process, more=8)
        killed.append(time.time())
        os.kill(_rank(process.pid, 0), signal.SIGKILL)
        _wait(path, "run_started", process, more=1)
    _wait(path, "round", process, more=4)
    process.send_signal(signal.SIGTERM)
    process.wait()
    rounds = [event["t"] for event in of(path, "round")]
    starts = [event["t"] for event in of(path, "run_started")][1:]
    return [
        next(t for t in rounds if t > begun) - at for at, begun in zip(killed, starts, strict=True)
    ]


def _opened_after(path: Path, killed: list[float], process: subprocess.Popen[bytes]) -> list[float]:
    time.sleep(3.0)
    process.send_signal(signal.SIGTERM)
    process.wait()
    events = list(RunDir.open(path).events())
    back = []
    for at in killed:
        deaths = [
            one for one in events if one["event"] == "trainer_died" and at < one["t"] < at + 3
        ]
        cells = {cell for death in deaths for cell in death["cells"]}
        opened = [
            next(
                one["t"]
                for one in events
                if one["event"] == "cell_started" and one["cell"] == cell and one["t"] > at
            )
            for cell in cells
        ]
        if opened:  # A rank without a cell takes nothing with it.
            back.append(max(opened) - at)
    return back


def _wait(path: Path, kind: str, process: subprocess.Popen[bytes], more: int) -> None:
    known = len(of(path, kind))
    _until(lambda: len(of(path, kind)) >= known + more, process)


def _until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not true():
        if process.poll() is not None:
            raise SystemExit(f"the job ended with {process.returncode}")
        time.sleep(0.1)


def _rank(launcher: int, rank: int) -> int:
    """The process of a rank, below the launcher."""
    wanted, look = f"OMPI_COMM_WORLD_RANK={rank}".encode(), [launcher]
    while look:
        look = [child for pid in look for child in children(pid)]
        for pid in look:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and (
                b"manege.runtime.worker.server" not in words
            ):
                return pid
    raise SystemExit(f"there is no rank {rank}")


if __name__ == "__main__":
    main()
