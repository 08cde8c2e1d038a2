"""CPU time of the coordinator, as a share of a core, with as many hosts as a grid has cells.

    python benchmarks/coordinator.py [--hosts 100 300 1000] [--rounds 4] [--json FILE]

No host computes anything and no message is carried: what real ones would say is made up, a second
of it at a time, and given to the coordinator, whose run directory is in memory. A host has one cell
of a torus, says twice a second that it lives and five times how far it is; every 30 s it ends a
round, once its neighbours have ended theirs, with its events, its commit and a sheet. The clock
ticks after each message, as it does in the local runtime when messages come one by one.

A share that grows faster than the number of hosts is quadratic somewhere.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.step import cpu

from manege.observer import Observer
from manege.runtime.coordinator import Coordinator
from manege.runtime.messages import Finish, Order, Send, Task, decode
from manege.topology import Schedule, torus

ROUND_S = 30.0
BEAT_S = 0.5
TELL_S = 0.2
STEPS = 600
COLUMNS = ("messages", "opening_s", "share", "microseconds", "ending_s")


class Said(NamedTuple):
    """What a host says, and when."""

    at_s: float
    host: int
    message: dict[str, Any]
    files: tuple[int, ...] = ()


class Desk:
    """A run directory in memory."""

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """Nothing is kept."""
        return {"event": event, **fields}

    def write_status(self, **fields: Any) -> None:
        """Nothing is kept."""

    def adopt(self, cell: str, pending: Mapping[str, Any]) -> int:
        """Some bytes."""
        return 1

    def trust(self, cell: str, verified: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    def adopt_file(self, aside: str, path: str) -> None:
        """Nothing is kept."""

    def log(self, cell: str, text: str) -> None:
        """Nothing is kept."""


class Run:
    """A coordinator, and the CPU seconds it has taken."""

    def __init__(self, task: Task) -> None:
        self._coordinator = Coordinator(task, Desk(), Observer(), {}, workers=len(task.cells))
        self.spent_s = 0.0
        self.messages = 0
        self.orders: list[Order] = []

    def begin(self) -> None:
        """The first orders."""
        start = time.process_time()
        self.orders = self._coordinator.begin(0.0)
        self.spent_s += time.process_time() - start

    def hear(self, said: Sequence[Said]) -> None:
        """All these messages, in the order of their times; the orders that follow are kept."""
        said = sorted(said, key=lambda one: one.at_s)
        coordinator, orders = self._coordinator, []
        start = time.process_time()
        for at_s, host, message, files in said:
            orders += coordinator.heard(host, decode(message), files, at_s)
            orders += coordinator.tick(at_s)
        self.spent_s += time.process_time() - start
        self.messages += len(said)
        self.orders = orders

    @property
    def state(self) -> str | None:
        """How it ended."""
        return self._coordinator.outcome.state if self._coordinator.outcome else None


def main() -> None:
    """Print the table; write it as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    args = parser.parse_args()
    print(f"{cpu()}; {args.rounds} rounds of {ROUND_S:.0f} virtual seconds")
    print("                 messages   opening    training          a message    ending")
    print("length   hosts   a second   CPU s      share of a core   CPU µs       CPU s")
    found = []
    for length in ("rounds", "budget"):
        for hosts in args.hosts:
            numbers = measure(hosts, args.rounds, length)
            found.append({"length": length, "hosts": hosts, **numbers})
            messages, opening_s, share, microseconds, ending_s = (numbers[key] for key in COLUMNS)
            print(
                f"{length:9}{hosts:5}{messages:11,.0f}{opening_s:10.3f}{share:14.2%}"
                f"{microseconds:17.2f}{ending_s:13.3f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu(), "runs": found}, indent=2))


def measure(hosts: int, rounds: int, length: str) -> dict[str, float]:
    """Messages a virtual second, and the CPU seconds of a run's parts."""
    schedule = Schedule(((1, torus([f"c{n}" for n in range(hosts)], _columns(hosts))),))
    cells = schedule.changes[0][1].cells
    task = Task(
        cells=cells,
        groups=schedule.components(),
        links=schedule.around(),
        rounds=rounds if length == "rounds" else None,
        # Its last round is the one in which it is used up.
        budget_s=None if length == "rounds" else ROUND_S * hosts * (rounds - 0.5),
        wall=False,
        synchronous=True,
        record={},
    )
    run = Run(task)
    run.begin()
    run.hear([_opened(number, cell) for number, cell in enumerate(cells, 1)])
    opening_s, run.spent_s, run.messages = run.spent_s, 0.0, 0
    ends = _ends(task, rounds, together=length == "budget")
    last_s = max(found[-1] for found in ends.values())
    told: list[Order] = []
    for second in range(1, math.ceil(last_s) + 1):
        run.hear(
            [
                one
                for number, cell in enumerate(cells, 1)
                for one in _said(number, cell, ends[cell], float(second))
            ]
        )
        told += run.orders
    share, each_s, messages = run.spent_s / last_s, run.spent_s / run.messages, run.messages
    run.spent_s = 0.0
    _end(run, told, rounds, last_s + 2)
    return {
        "messages": messages / last_s,
        "opening_s": opening_s,
        "share": share,
        "microseconds": 1e6 * each_s,
        "ending_s": run.spent_s,
    }


def _columns(cells: int) -> int:
    rows = next(rows for rows in range(math.isqrt(cells), 0, -1) if cells % rows == 0)
    return cells // rows


def _ends(task: Task, rounds: int, *, together: bool) -> dict[str, list[float]]:
    """When each cell ends its rounds: after its neighbours, or all of them, ended the last one."""
    rng = random.Random(1)
    ends = {cell: [1.0] for cell in task.cells}
    for _ in range(rounds):
        begin = {
            cell: max(ends[one][-1] for one in (task.cells if together else (cell, *near)))
            for cell, near in task.links.items()
        }
        for cell, at_s in begin.items():
            ends[cell].append(at_s + ROUND_S * rng.uniform(0.9, 1.1))
    return {cell: found[1:] for cell, found in ends.items()}


def _opened(host: int, cell: str) -> Said:
    message = {"is": "opened", "cell": cell, "round": 0, "step": 0, "spent_s": 0.0}
    return Said(host * 1e-6, host, message, (host,))


def _said(host: int, cell: str, ends: Sequence[float], second: float) -> Iterator[Said]:
    """What a host says in a second."""
    offset = host % 97 / 97
    for n in range(round(1 / BEAT_S)):
        at_s = second + (n + offset) * BEAT_S
        beat = {"is": "beat", "age_s": 0.05, "longest_s": 0.06, "working": cell}
        yield Said(at_s, host, beat)
    for n in range(round(1 / TELL_S)):
        at_s = second + (n + offset) * TELL_S
        done = sum(end <= at_s for end in ends)
        if done < len(ends):
            step = {"is": "step", "cell": cell, "round": done + 1, "step": n, "steps": STEPS}
            yield Said(at_s, host, {**step, "fraction": 0.5})
    for number, end in enumerate(ends, 1):
        if second <= end < second + 1:
            yield from _round_end(host, cell, number, end)


def _round_end(host: int, cell: str, round_: int, at_s: float) -> Iterator[Said]:
    event = {"cell": cell, "round": round_, "losses": {"generator": 0.7}}
    commit = {"is": "commit", "cell": cell, "round": round_, "step": 0, "spent_s": 0.0}
    yield Said(at_s - 4e-3, host, {"is": "event", "event": "round", "fields": event})
    yield Said(at_s - 3e-3, host, {"is": "file", "aside": "a", "path": "b"})
    yield Said(at_s - 2e-3, host, {"is": "event", "event": "sheet", "fields": event})
    yield Said(at_s - 1e-3, host, {**commit, "seconds": 0.1, "pending": {}})
    spent_s = ROUND_S * round_
    yield Said(
        at_s,
        host,
        {"is": "round", "cell": cell, "round": round_, "spent_s": spent_s, "seconds": ROUND_S},
    )


def _end(run: Run, told: Sequence[Order], rounds: int, at_s: float) -> None:
    """All cells that were told to finish do, and the model is written."""
    ends = [one for one in told if isinstance(one, Send) and isinstance(one.message, Finish)]
    finished = {"is": "finished", "round": rounds, "spent_s": ROUND_S * rounds, "reason": ""}
    run.hear([Said(at_s, one.worker, {**finished, "cell": one.message.cell}) for one in ends])
    writer = next(one for one in run.orders if isinstance(one, Send)).worker
    run.hear([Said(at_s, writer, {"is": "mixture", "record": {}})])
    run.hear([Said(at_s, writer, {"is": "combined"})])
    assert run.state == "finished"


if __name__ == "__main__":
    main()
