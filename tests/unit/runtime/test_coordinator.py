"""Thousands of runs with a clock of their own, whose hosts die, hang, crash and lag.

Hosts are imitated without torch and speak as `runtime/worker/host.py` does, word for word; the run
directory is in memory. A cell's centre is a number made of all that went into it: it is right only
when the cell heard exactly whom it should have heard. A seed makes a schedule of faults.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pytest

from manege.errors import ConfigError, MachineError
from manege.observer import Observer
from manege.runtime.coordinator import Coordinator, Outcome
from manege.runtime.messages import (
    KINDS,
    Close,
    Kill,
    Order,
    Send,
    Start,
    TakeCell,
    Task,
    decode,
    encode,
)
from manege.runtime.policies import (
    COMBINE_S,
    DEATHS_AT_ONE_STEP,
    DEATHS_WITHOUT_COMMIT,
    OPENING_S,
    SILENCE_S,
    STARTING_S,
)
from manege.topology import NINE, Schedule, Topology, isolated, ring, torus

BEAT_S = 2.0
LONG_S = 5_000.0
MANY = 300_000
"""Virtual seconds, and events, in which a run of up to forty cells must have ended."""
FOREVER_S = 1e9
ALWAYS = 10**6


# What there is to do.


def made_of(cell: str, round_: int, own: int, heard: list[int]) -> int:
    return hash((cell, round_, own, *heard))


class Grid:
    """Who hears whom, and the centres of a run that nothing happens to."""

    def __init__(self, *changes: tuple[int, Topology]) -> None:
        self.schedule = Schedule(changes)
        self.cells = changes[0][1].cells
        self.groups = self.schedule.components()
        self.group = {cell: group for group in self.groups for cell in group}
        self.around = self.schedule.around()
        self._neighbours: list[Mapping[str, tuple[str, ...]]] = [{}]
        self._centres = [{cell: hash(cell) for cell in self.cells}]

    def neighbours(self, cell: str, round_: int) -> tuple[str, ...]:
        while round_ >= len(self._neighbours):
            self._neighbours.append(self.schedule.at(len(self._neighbours)).neighbours)
        return self._neighbours[round_][cell]

    def centre(self, cell: str, round_: int) -> int:
        while round_ >= len(self._centres):
            before, now = self._centres[-1], len(self._centres)
            self._centres.append(
                {
                    one: made_of(one, now, own, [before[n] for n in self.neighbours(one, now)])
                    for one, own in before.items()
                }
            )
        return self._centres[round_][cell]


def keys(number: int) -> list[str]:
    return [f"c{index}" for index in range(number)]


ALONE = Grid((1, isolated(keys(6))))
TWO_BY_TWO = Grid((1, torus(keys(4), 2)))
THREE_BY_THREE = Grid((1, torus(keys(9), 3)))
RING = Grid((1, ring(keys(7))))
FIVE_BY_EIGHT = Grid((1, torus(keys(40), 8)))
ROWS = Grid((1, torus(keys(6), 3, [(0, 1), (0, -1)])))
CHANGING = Grid(
    (1, torus(keys(9), 3, NINE)),
    (2, ring(keys(9))),
    (3, isolated(keys(9))),
    (4, torus(keys(9), 3)),
)
LARGE = Grid((1, torus(keys(1000), 40)))


@dataclass(frozen=True)
class Plan:
    """A run, and what happens to it."""

    grid: Grid
    hosts: int
    rounds: int | None = 3
    steps: int = 2
    budget_s: float | None = None
    wall: bool = False
    commit_rounds: int = 1
    """A cell alone commits after so many rounds."""
    commit_share: float = 0.1
    """Of the steps within a round, after which a cell commits."""
    slow: float = 0.0
    """The share of hosts that are ten times slower."""
    lag_s: float = 0.02
    opening_s: float = 0.3
    waits: bool = True
    """Whether cells wait for their neighbours' last round, or take what there is."""
    faults: tuple[Fault, ...] = ()
    crashes: Mapping[str, Crash] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return Task(
            cells=self.grid.cells,
            groups=self.grid.groups,
            links=self.grid.around,
            rounds=self.rounds,
            budget_s=self.budget_s,
            wall=self.wall,
            synchronous=self.waits,
            record={"rounds": self.rounds},
        )


class Fault(NamedTuple):
    """Something that happens once."""

    what: str
    """kill or pause a host, let it be busy for ever, stop the run, or abandon it."""
    at_s: float = 0.0
    word: str = ""
    """It happens to a host as it says this, not at a time."""
    nth: int = 1
    length_s: float = 0.0


class Crash(NamedTuple):
    """A cell that its host dies of."""

    where: str
    """step, opening, finishing; hangs when opening; or fails, and its host lives to tell."""
    round_: int = 0
    step: int = 0
    times: int = ALWAYS
    words: bool = True
    """Whether the host can still tell."""


# The run directory.


class Commit(NamedTuple):
    round_: int = 0
    step: int = 0
    spent_s: float = 0.0
    final: bool = False
    value: int = 0
    previous: int | None = None


class Desk:
    """A run directory in memory, which believes nothing that is out of order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {"cells": {}}
        self.commits: dict[str, list[Commit]] = {cell: [] for cell in world.plan.grid.cells}
        self.trusted: dict[str, Any] = {}
        self.changes = 0

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        self.changes += 1
        self.events.append({"event": event, **fields})
        if event == "trainer_died":
            self._world.deaths.update(fields["cells"])
        if event == "cell_failed":
            self._world.failed.add(fields["cell"])
            if "its trainer died" in fields["reason"]:
                assert self._world.deaths[fields["cell"]] >= DEATHS_AT_ONE_STEP
        return self.events[-1]

    def write_status(self, **fields: Any) -> None:
        self.changes += 1
        self.status |= fields

    def adopt(self, cell: str, pending: Mapping[str, Any]) -> int:
        self.changes += 1
        host, new = pending["host"], pending["commit"]
        assert not host.given_up
        last = self.newest(cell) or Commit()
        steps = 1 if len(self._world.grid.group[cell]) > 1 else self._world.plan.commit_rounds
        assert last.round_ <= new.round_ <= last.round_ + steps, (last, new)
        assert (new.round_, new.step, new.final) > (last.round_, last.step, last.final), (last, new)
        if self._world.plan.waits and not self._world.failed:
            assert new.value == self._world.grid.centre(cell, new.round_)
        self.commits[cell].append(new)
        if cell not in self._world.ending:
            self._world.deaths[cell] = 0
        return 100

    def newest(self, cell: str) -> Commit | None:
        return self.commits[cell][-1] if self.commits[cell] else None

    def trust(self, cell: str, verified: Mapping[str, Any]) -> None:
        self.trusted[cell] = verified
        assert verified["commit"] == self.newest(cell)

    def adopt_file(self, aside: str, path: str) -> None:
        self.changes += 1

    def log(self, cell: str, text: str) -> None:
        self.changes += 1
        assert text == "traceback"

    def told(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]


# Hosts.


class Crashed(Exception):
    """A host dies of it."""


class Killed(Exception):
    """From outside."""


class CellFailed(Exception):
    """A cell cannot go on."""


class Slot:
    """Shared memory with the last two centres."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int] | None] = [None, None]
        self.closed = False

    def write(self, round_: int, value: int) -> None:
        if self.closed:
            raise Crashed("a slot that is closed cannot be written")
        self.places[round_ % 2] = (round_, value)

    def read(self, round_: int) -> tuple[int, int] | None:
        found = self.places[round_ % 2]
        return found if found is not None and found[0] == round_ else None


@dataclass
class Hosted:
    cell: str
    share_s: float | None
    cells: int
    until: int | None
    watched: bool
    frozen: bool
    round_: int
    step: int
    spent_s: float
    value: int
    previous: int | None
    committed: tuple[int, int, bool]
    final: bool = False
    slot: Slot | None = None
    inbox: list[int] | None = None
    looks_at: list[tuple[Slot, int, int]] = field(default_factory=list)
    """What the round under way reads in place."""
    busy_s: float = 0.0
    over: bool = False
    leaving: bool = False


@dataclass
class Elsewhere:
    slot: Slot | None = None
    round_: int = -1
    frozen: bool = False


Life = Iterator[float | None]
"""Waits so long at each yield; with None, for a message."""


class FakeHost:
    """Speaks as a trainer does."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.given_up = False
        self.speed = 10.0 if world.rng.random() < world.plan.slow else 1.0
        self.mail: deque[tuple[dict[str, Any], tuple[int, ...]]] = deque()
        self.backlog: deque[tuple[dict[str, Any], tuple[int, ...]]] = deque()
        self.outbox: deque[tuple[dict[str, Any], tuple[int, ...]]] = deque()
        self.mail_at = self.heard_at = 0.0
        """When the last message arrives, here and there."""
        self.paused_until = 0.0
        self.busy = False
        self.quits = False
        self.waiting = False
        self.here: dict[str, Hosted] = {}
        self.elsewhere: dict[str, Elsewhere] = {}
        self.unadopted: set[str] = set()
        self.active: Hosted | None = None
        self.working: str | None = None
        self.stepped_at, self.longest_s = world.now, 0.0
        self.life = self._life()

    # How it is carried through time.

    def resume(self) -> None:
        world = self.world
        if not self.alive:
            return
        if self.paused_until > world.now:
            world.at(self.paused_until, self.resume)
            return
        try:
            wanted = next(self.life)
        except StopIteration:
            self.die("exit code 0")
        except Killed:
            self.die("killed by SIGKILL")
        except Crashed as crash:
            if crash.args[0]:
                self._tell_crash(str(crash))
            self.die("exit code 70")
        else:
            if wanted is not None:
                world.at(world.now + wanted, self.resume)
            elif self.mail:
                world.at(world.now, self.resume)
            else:
                self.waiting = True

    def die(self, how: str) -> None:
        if self.alive:
            self.alive = False
            self.world.at(self.world.now + self.world.delay(), lambda: self.world.bury(self, how))

    def get(self, message: dict[str, Any], files: tuple[int, ...]) -> None:
        self.mail.append((message, files))
        if self.waiting:
            self.waiting = False
            self.resume()

    def beat(self) -> None:
        if not self.alive:
            return
        if self.paused_until <= self.world.now:
            age_s = 0.0 if self.working is None else self.world.now - self.stepped_at
            self._send("beat", age_s=age_s, longest_s=self.longest_s, working=self.working)
        self.world.at(max(self.paused_until, self.world.now + BEAT_S), self.beat)

    def _tell_crash(self, text: str) -> None:
        hosted = self.here.get(self.working or "")
        self._send(
            "crashed",
            cell=self.working,
            round=hosted.round_ + 1 if hosted else 0,
            step=hosted.step if hosted else 0,
            text=text,
            traceback="traceback",
        )

    def _send(self, kind: str, files: tuple[int, ...] = (), **fields: Any) -> None:
        world = self.world
        self.outbox.append(({"is": kind, **fields}, files))
        self.heard_at = max(self.heard_at, world.now + world.delay())
        world.at(self.heard_at, lambda: world.hear(self))

    def _tell(self, kind: str, files: tuple[int, ...] = (), **fields: Any) -> None:
        self._send(kind, files, **fields)
        self.world.said(self, kind)

    # What it is told, and what it does: see runtime/worker/host.py.

    def _life(self) -> Life:
        yield self.world.rng.uniform(0.02, 0.2)
        self.beat()
        while not self.quits:
            self.backlog += self.mail
            self.mail.clear()
            while self.backlog:
                yield from self._handle(*self.backlog.popleft())
            if not self.quits and not (yield from self._work()) and not self.backlog:
                yield None

    def _listen(self) -> Life:
        if not any(message["is"] == "adopted" for message, _ in self.backlog):
            if not self.mail:
                yield None
            self.backlog += self.mail
            self.mail.clear()
        adopted = [one for one in self.backlog if one[0]["is"] == "adopted"]
        for message, files in adopted:
            self.backlog.remove((message, files))
            yield from self._handle(message, files)

    def _handle(self, message: dict[str, Any], files: tuple[int, ...]) -> Life:
        cell = message.get("cell", "")
        if message["is"] in ("until", "finish", "release") and cell not in self.here:
            self.world.misled.append((self.number, message))
            return
        self.working = cell or None
        match message["is"]:
            case "host":
                yield from self._take_up(cell, message)
            case "until":
                self.here[cell].until = message["round"]
            case "finish":
                yield from self._finish(self.here[cell], message["reason"])
            case "release":
                yield from self._release(self.here[cell])
            case "adopted":
                self.unadopted.discard(cell)
            case "slot":
                # With nobody here there is nothing to compare it with, and nobody to look at it.
                self._known(cell).slot = self.world.slots[files[0]] if self.here else None
            case "centre":
                known = self._known(cell)
                assert message["round"] >= known.round_
                known.round_ = message["round"]
            case "frozen":
                self._known(cell).frozen = True
            case "combine":
                yield 0.5
                self._tell("mixture", record={})
            case "noted":
                yield 0.5
                self._tell("combined")
            case "stop":
                yield from self._stop()
            case "quit":
                self.quits = True
            case other:
                raise AssertionError(other)

    def _known(self, cell: str) -> Elsewhere:
        return self.elsewhere.setdefault(cell, Elsewhere())

    def _take_up(self, cell: str, message: dict[str, Any]) -> Life:
        world = self.world
        yield world.rng.uniform(0.01, world.plan.opening_s)
        yield from world.crash(self, cell, "opening")
        found = world.desk.newest(cell)
        at = found or Commit(value=world.grid.centre(cell, 0))
        hosted = Hosted(
            cell,
            share_s=message["share_s"],
            cells=message["cells"],
            until=message["until"],
            watched=message["watched"],
            frozen=message["quiet"],
            round_=at.round_,
            step=at.step,
            spent_s=at.spent_s,
            value=at.value,
            previous=at.previous,
            committed=(at.round_, at.step, at.final),
        )
        self.here[cell] = hosted
        self.elsewhere.pop(cell, None)
        files: tuple[int, ...] = ()
        if message["elsewhere"]:
            hosted.slot = Slot()
            if hosted.previous is not None:
                hosted.slot.write(at.round_ - 1, hosted.previous)
            hosted.slot.write(at.round_, hosted.value)
            files = (world.new_file(hosted.slot),)
        self._tell(
            "opened",
            files,
            cell=cell,
            round=at.round_,
            step=at.step,
            spent_s=at.spent_s,
            verified=None if found is None else {"commit": found},
        )

    def _finish(self, hosted: Hosted, reason: str) -> Life:
        yield self.world.rng.uniform(0.05, 0.5)
        yield from self.world.crash(self, hosted.cell, "finishing")
        hosted.final = hosted.cells == 1
        yield from self._commit(hosted)
        self._tell("file", aside="", path="")
        self._drop(hosted)
        self._tell(
            "finished",
            cell=hosted.cell,
            round=hosted.round_,
            spent_s=hosted.spent_s,
            reason=reason,
        )

    def _release(self, hosted: Hosted) -> Life:
        hosted.leaving = True
        if hosted.frozen or hosted.inbox is not None:
            return
        yield from self._commit(hosted)
        self._drop(hosted)
        self._tell("released", cell=hosted.cell, round=hosted.round_, spent_s=hosted.spent_s)

    def _drop(self, hosted: Hosted) -> None:
        if self.active is hosted:
            self.active = None
        self.here.pop(hosted.cell, None)
        if hosted.slot is not None:
            hosted.slot.closed = True

    def _fail(self, hosted: Hosted) -> None:
        if hosted.cells > 1:
            # What is not finite is not saved, and its centre was at the end of the round.
            hosted.frozen, hosted.inbox = True, None
            self.active = None if self.active is hosted else self.active
        else:
            self._drop(hosted)
        self._tell(
            "failed",
            cell=hosted.cell,
            round=hosted.round_,
            spent_s=hosted.spent_s,
            reason="a loss is not finite",
        )

    def _stop(self) -> Life:
        cells = {}
        for hosted in list(self.here.values()):
            if not hosted.frozen:
                yield from self._commit(hosted)
            cells[hosted.cell] = (hosted.round_, hosted.spent_s)
        for hosted in list(self.here.values()):
            self._drop(hosted)
        self._tell("stopped", cells=cells)

    def _work(self) -> Iterator[float | None]:
        hosted = self.active or self._next()
        if hosted is None:
            self.working = None
            self.stepped_at = self.world.now
            return False
        self.active, self.working = hosted, hosted.cell
        try:
            yield from self._step(hosted)
        except CellFailed:
            self._fail(hosted)
        self.longest_s = max(self.longest_s, self.world.now - self.stepped_at)
        self.stepped_at = self.world.now
        return True

    def _next(self) -> Hosted | None:
        ready = [hosted for hosted in self.here.values() if self._is_ready(hosted)]
        return min(ready, key=lambda hosted: hosted.round_, default=None)

    def _is_ready(self, hosted: Hosted) -> bool:
        if hosted.frozen or hosted.over:
            return False
        if hosted.until is not None and hosted.round_ >= hosted.until:
            return False
        near = self.world.grid.neighbours
        neighbours = near(hosted.cell, hosted.round_ + 1)
        if not self.world.plan.waits:
            return all(self._has_shown(cell, 0) for cell in neighbours)
        if hosted.round_ > 0:
            # Also who heard it in the last round: only two centres are kept.
            neighbours = (*neighbours, *near(hosted.cell, hosted.round_))
        return all(self._has_shown(cell, hosted.round_) for cell in neighbours)

    def _has_shown(self, cell: str, round_: int) -> bool:
        one = self.here.get(cell) or self.elsewhere.get(cell)
        if one is None or (isinstance(one, Elsewhere) and one.slot is None):
            return False
        return one.frozen or one.round_ >= round_

    def _begin_round(self, hosted: Hosted) -> None:
        world, round_ = self.world, hosted.round_
        hosted.inbox, hosted.looks_at, hosted.busy_s = [], [], 0.0
        for cell in world.grid.neighbours(hosted.cell, round_ + 1):
            here = self.here.get(cell)
            if not world.plan.waits:
                slot = None if here is not None else self.elsewhere[cell].slot
                assert here is not None or slot is not None, "nobody knows where the centre is"
                assert slot is None or slot.places != [None, None]
                continue
            if here is not None:
                behind = here.round_ == round_ + 1
                found = (round_, here.previous) if behind else (here.round_, here.value)
                if not here.frozen:
                    assert found[0] == round_, "a centre of another round"
            else:
                known = self.elsewhere[cell]
                wanted = min(round_, known.round_) if known.frozen else round_
                assert known.slot is not None, "nobody knows where the centre is"
                found = known.slot.read(wanted)
                assert found is not None, "a centre that is there no more"
                hosted.looks_at.append((known.slot, *found))
                safe = world.desk.newest(cell) or Commit()
                assert safe.round_ >= round_ or cell in world.failed
            hosted.inbox.append(found[1])

    def _step(self, hosted: Hosted) -> Life:
        world, plan = self.world, self.world.plan
        if hosted.inbox is None:
            self._begin_round(hosted)
        took_s = world.rng.uniform(0.05, 0.3) * self.speed
        yield FOREVER_S if self.busy else took_s
        hosted.step += 1
        hosted.spent_s += took_s
        hosted.busy_s += took_s
        yield from world.crash(self, hosted.cell, "step", hosted.round_ + 1, hosted.step)
        ended = hosted.step == plan.steps
        if hosted.watched or world.rng.random() < 0.5:
            place = {"round": hosted.round_ + 1, "step": hosted.step, "steps": plan.steps}
            self._tell("step", cell=hosted.cell, fraction=0.5, **place)
        if ended:
            for slot, round_, value in hosted.looks_at:
                # Nobody minds what one reads that was given up.
                unchanged = slot.read(round_) == (round_, value)
                assert unchanged or self.given_up, "overwritten while it was read"
            own, hosted.previous = hosted.value, hosted.value
            hosted.round_, hosted.step = hosted.round_ + 1, 0
            assert hosted.inbox is not None
            hosted.value = made_of(hosted.cell, hosted.round_, own, hosted.inbox)
            self._tell("event", event="round", fields={"cell": hosted.cell})
        due = ended and hosted.round_ % plan.commit_rounds == 0
        due = due or (not ended and world.rng.random() < plan.commit_share)
        if due or (ended and hosted.cells > 1):
            yield from self._commit(hosted)
        if hosted.cells == 1 and hosted.share_s is not None and hosted.spent_s >= hosted.share_s:
            hosted.over, self.active = True, None
        if ended:
            hosted.inbox = self.active = None
            self._show(hosted)
            if hosted.leaving:
                yield from self._release(hosted)
        elif hosted.over:
            self._tell("over", cell=hosted.cell, spent_s=hosted.spent_s)

    def _show(self, hosted: Hosted) -> None:
        if hosted.slot is not None:
            hosted.slot.write(hosted.round_, hosted.value)
        self._tell(
            "round",
            cell=hosted.cell,
            round=hosted.round_,
            spent_s=hosted.spent_s,
            seconds=hosted.busy_s,
        )

    def _commit(self, hosted: Hosted) -> Life:
        here = hosted.round_, hosted.step, hosted.final
        if here[:2] == hosted.committed[:2] and here[2] <= hosted.committed[2]:
            return
        while hosted.cell in self.unadopted:
            yield from self._listen()
        yield self.world.rng.uniform(0.0, 0.05)
        commit = Commit(
            hosted.round_,
            hosted.step,
            hosted.spent_s,
            hosted.final,
            hosted.value,
            hosted.previous,
        )
        self.unadopted.add(hosted.cell)
        hosted.committed = here
        self._tell(
            "commit",
            cell=hosted.cell,
            round=hosted.round_,
            step=hosted.step,
            spent_s=hosted.spent_s,
            seconds=0.1,
            pending={"host": self, "commit": commit},
        )


# The world between them.


class World:
    """A run: its directory, its coordinators one after another, their hosts, and time."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.rng = random.Random(seed)
        self.now = 0.0
        self.grid = plan.grid
        self.desk = Desk(self)
        self.deaths: Counter[str] = Counter()
        """Of a cell's hosts, since its last commit before its end."""
        self.ending: set[str] = set()
        self.misled: list[tuple[int, dict[str, Any]]] = []
        """Messages about cells that a host does not have."""
        self.faults = list(plan.faults)
        self.said_times: Counter[str] = Counter()
        self.crashed: Counter[str] = Counter()
        self.slots: dict[int, Slot] = {}
        self.open: set[int] = set()
        """Files handed to the coordinator, and not closed yet."""
        self.runs = 0
        self._files = count(1)

    def run(self, hosts: int | None = None) -> Outcome | None:
        """Until its end; None when the run was abandoned."""
        plan, status = self.plan, self.desk.status["cells"]
        self.runs += 1
        self.wanted = hosts or plan.hosts
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self._turns = count()
        self.hosts: dict[int, FakeHost] = {}
        self.holder: dict[str, FakeHost] = {}
        """To whom the coordinator gave a cell."""
        self.first_hosted: dict[str, None] = {}
        self.most = 0
        self.abandoned = False
        self.open.clear()
        self.failed = {
            cell
            for cell, entry in status.items()
            if entry["state"] == "failed" and len(self.grid.group[cell]) > 1
        }
        began = self.now
        for fault in self.faults:
            if not fault.word:
                self.at(began + fault.at_s, lambda fault=fault: self.happen(fault))
        self.coordinator = Coordinator(
            plan.task, self.desk, Observer(), status, workers=self.wanted
        )
        self.carry(self.coordinator.begin(self.now))
        self.tick()
        while self.coordinator.outcome is None and not self.abandoned:
            self.now, turn, event = heapq.heappop(self.heap)
            done = max((self.now - began) / LONG_S, turn / MANY)
            assert done < max(1.0, len(self.grid.cells) / 40), "it does not end"
            event()
        if self.coordinator.outcome is not None:
            self._check_end(self.coordinator.outcome)
        return self.coordinator.outcome

    # Time and messages.

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self._turns), event))

    def delay(self) -> float:
        draw = self.rng.random()
        return self.plan.lag_s * (draw if draw < 0.95 else 10 * draw)

    def new_file(self, slot: Slot) -> int:
        file = next(self._files)
        self.slots[file] = slot
        return file

    def tick(self) -> None:
        self.carry(self.coordinator.tick(self.now))
        self.at(self.now + self.rng.uniform(0.1, 1.0), self.tick)

    def hear(self, host: FakeHost) -> None:
        """The next of a host's messages arrives."""
        if not host.outbox:
            return  # It was heard when the host was buried.
        message, files = host.outbox.popleft()
        self.open.update(files)
        before = self.desk.changes
        orders = self.coordinator.heard(host.number, decode(message), files, self.now)
        if host.given_up:
            assert orders == [Close(file) for file in files]
            assert self.desk.changes == before
        self._note(host, message)
        self.carry(orders)

    def _note(self, host: FakeHost, message: dict[str, Any]) -> None:
        """What became of a host's cells."""
        kind, cell = message["is"], message.get("cell", "")
        if kind == "stopped":
            self.holder = {one: other for one, other in self.holder.items() if other is not host}
        elif self.holder.get(cell) is host and (
            kind in ("finished", "released")
            or (kind == "failed" and len(self.grid.group[cell]) == 1)
        ):
            del self.holder[cell]

    def bury(self, host: FakeHost, how: str) -> None:
        """Its last words are heard, then that it is dead."""
        while host.outbox and not host.given_up:
            self.hear(host)
            if self.coordinator.outcome is not None:
                return
        orders = self.coordinator.died(host.number, how, self.now)
        if host.given_up:
            assert not orders
        self.carry(orders)

    def carry(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Start(number):
                    assert number == len(self.hosts) + 1
                    host = self.hosts[number] = FakeHost(self, number)
                    self.at(self.now, host.resume)
                    assert sum(not one.given_up for one in self.hosts.values()) <= self.wanted
                case Kill(number):
                    self._give_up(self.hosts[number])
                case Close(file):
                    self.open.remove(file)
                case Send(number, message, files):
                    self._send(self.hosts[number], encode(message), files)

    def _give_up(self, host: FakeHost) -> None:
        assert not host.given_up
        host.given_up = True
        # It may still speak for a while.
        self.at(self.now + self.rng.uniform(0, 3), lambda: host.die("killed by SIGKILL"))

    def _send(self, host: FakeHost, message: dict[str, Any], files: tuple[int, ...]) -> None:
        assert not host.given_up
        assert set(files) <= self.open
        if message["is"] == "host":
            cell = message["cell"]
            holder = self.holder.get(cell)
            assert holder is None or holder.given_up
            self.holder[cell] = host
            self.ending.discard(cell)
            self.first_hosted[cell] = None
            if len(self.grid.groups) > 1:
                held = sum(not one.given_up for one in self.holder.values())
                self.most = max(self.most, held)
        elif message["is"] == "finish":
            self.ending.add(message["cell"])
        host.mail_at = max(host.mail_at, self.now + self.delay())
        self.at(host.mail_at, lambda: host.get(message, files) if host.alive else None)

    # Faults.

    def happen(self, fault: Fault) -> None:
        """A fault whose time has come."""
        if fault in self.faults:
            self.faults.remove(fault)
            if fault.what in ("stop", "abandon"):
                self._end(fault.what)
            elif living := [host for host in self.hosts.values() if host.alive]:
                self._strike(self.rng.choice(living), fault)

    def said(self, host: FakeHost, word: str) -> None:
        """A host has just said this: now is the time for a fault that waits for it."""
        self.said_times[word] += 1
        for fault in list(self.faults):
            if fault.word == word and fault.nth == self.said_times[word]:
                self.faults.remove(fault)
                if fault.what in ("stop", "abandon"):
                    self.at(self.now + self.delay(), lambda what=fault.what: self._end(what))
                elif fault.what == "kill":
                    raise Killed
                else:
                    self._strike(host, fault)

    def _end(self, what: str) -> None:
        if what == "abandon":
            self.abandoned = True
        else:
            self.carry(self.coordinator.stop("SIGINT", self.now))

    def _strike(self, host: FakeHost, fault: Fault) -> None:
        if fault.what == "kill":
            host.life.close()
            host.die("killed by SIGKILL")
        elif fault.what == "pause":
            host.paused_until = self.now + fault.length_s
        else:
            host.busy = True

    def crash(self, host: FakeHost, cell: str, where: str, round_: int = 0, step: int = 0) -> Life:
        """Nothing, unless the cell is one to break down here."""
        plan = self.plan.crashes.get(cell)
        if plan is None or self.crashed[cell] >= plan.times:
            return
        if (plan.round_, plan.step) != (round_, step):
            return
        if plan.where == where:
            self.crashed[cell] += 1
            raise Crashed("RuntimeError: on purpose" if plan.words else "")
        if (plan.where, where) == ("fails", "step"):
            self.crashed[cell] += 1
            raise CellFailed
        if (plan.where, where) == ("hangs", "opening"):
            self.crashed[cell] += 1
            yield FOREVER_S

    # What must be true in the end.

    def _check_end(self, outcome: Outcome) -> None:
        plan, task = self.plan, self.plan.task
        states, desk = self.coordinator.states, self.desk
        assert not self.open
        # A cell whose time is up may fail before it hears so.
        assert all(message["cell"] in outcome.failed for _, message in self.misled)
        assert desk.status["state"] == outcome.state
        last = desk.events[-1]["event"]
        assert last == ("run_stopped" if outcome.state == "stopped" else "run_finished")
        assert outcome.failed.keys() == {cell for cell in states if states[cell] == "failed"}
        order = [cell for cell in task.cells if cell in self.first_hosted]
        if all(len(group) == 1 for group in task.groups):
            assert list(self.first_hosted) == order
            assert self.most <= self.wanted
        for cell, commits in desk.commits.items():
            assert [c.round_ for c in commits] == sorted(c.round_ for c in commits)
            if len(self.grid.group[cell]) > 1:
                whole = [commit.round_ for commit in commits if commit.step == 0]
                assert whole == list(range(1, len(whole) + 1))
        if outcome.state == "stopped":
            return
        assert outcome.state == ("failed" if outcome.failed else "finished")
        assert set(states.values()) <= {"finished", "failed"}
        for group in task.groups:
            self._check_group([cell for cell in group if cell not in outcome.failed])
        for cell, round_ in outcome.rounds.items():
            if cell not in outcome.failed:
                assert round_ == (desk.newest(cell) or Commit()).round_
                if plan.budget_s is None:
                    assert round_ == plan.rounds

    def _check_group(self, cells: list[str]) -> None:
        commits = [self.desk.newest(cell) or Commit() for cell in cells]
        if self.plan.budget_s is None or not commits:
            return
        if len(self.grid.group[cells[0]]) > 1 and self.plan.waits:
            assert len({(commit.round_, commit.step) for commit in commits}) == 1
            assert commits[0].step == 0
            if self.runs == 1 and not self.failed and commits[0].round_ != self.plan.rounds:
                share = len(cells) / len(self.grid.cells)
                hosts = min(self.wanted, len(self.grid.cells)) if self.plan.wall else 1
                spent_s = sum(commit.spent_s for commit in commits)
                assert spent_s >= share * hosts * self.plan.budget_s * 0.999


def lived_through(plan: Plan, seed: int) -> World:
    """The run, begun again as often as it was stopped or abandoned, to its end."""
    world = World(plan, seed)
    try:
        outcome = world.run()
        for _ in range(10):
            if outcome is not None and outcome.state != "stopped":
                break
            # A budget of wall time is as many hosts'.
            outcome = world.run(plan.hosts if plan.wall else world.rng.randint(1, plan.hosts + 1))
    except MachineError:
        # Nobody can show a frozen cell, or write the model.
        opening = any(crash.where == "opening" for crash in plan.crashes.values())
        assert opening or len(plan.faults) >= DEATHS_AT_ONE_STEP
        return world
    assert outcome is not None
    assert outcome.state in ("finished", "failed")
    return world


# Schedules of faults.

WORDS = ("opened", "step", "commit", "round", "event", "finished", "mixture", "file")


def drawn(grid: Grid, seed: int, *, most_hosts: int = 5) -> Plan:
    """A plan for a seed; every third has a budget."""
    rng = random.Random(f"plan {seed}")
    cells = grid.cells
    hosts = rng.randint(1, min(most_hosts, len(cells) + 1))
    rounds, steps = rng.randint(1, 4), rng.randint(1, 3)
    duration_s = rounds * (steps * 0.3 + 0.3) * (1 + len(cells) / hosts) + 1
    faults = []
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        what = rng.choice(["kill", "kill", "kill", "pause", "pause", "busy"])
        word = rng.choice(["", *WORDS])
        nth = rng.randint(1, max(1, rounds * len(cells)))
        length_s = rng.choice([1.0, 3.0, 10.0, 200.0])
        faults.append(Fault(what, rng.uniform(0, duration_s), word, nth, length_s))
    if rng.random() < 0.3:
        what, word = rng.choice(["stop", "stop", "abandon"]), rng.choice(["", "", *WORDS])
        nth = rng.randint(1, rounds * len(cells))
        faults.append(Fault(what, rng.uniform(0, duration_s), word, nth))
    crashes = {}
    if rng.random() < 0.3:
        for cell in rng.sample(cells, rng.randint(1, 2)):
            where = rng.choice(["step", "step", "fails", "opening", "finishing", "hangs"])
            place = (rng.randint(1, rounds), rng.randint(1, steps))
            at = place if where in ("step", "fails") else (0, 0)
            times = 1 if where == "hangs" else rng.choice([1, 2, ALWAYS])
            crashes[cell] = Crash(where, *at, times, rng.random() < 0.5)
    has_budget, wall = seed % 3 == 0, rng.random() < 0.3
    budget_s = rng.uniform(0.2, 0.3 * rounds * steps * len(cells)) / (hosts if wall else 1)
    return Plan(
        grid,
        hosts,
        rounds=None if has_budget and rng.random() < 0.5 else rounds,
        steps=steps,
        budget_s=budget_s if has_budget else None,
        wall=wall,
        commit_rounds=rng.choice([1, 1, 2]),
        commit_share=rng.choice([0.0, 0.2, 1.0]),
        slow=rng.choice([0.0, 0.0, 0.3]),
        lag_s=rng.choice([0.002, 0.02, 0.2]),
        opening_s=rng.choice([0.3] * 9 + [30.0]),
        waits=rng.random() < 0.8,
        faults=tuple(faults),
        crashes=crashes,
    )


def live(grid: Grid, seeds: range, **more: int) -> None:
    """Schedules of these seeds; a failure names its own."""
    for seed in seeds:
        try:
            lived_through(drawn(grid, seed, **more), seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def batches(number: int, size: int = 100) -> pytest.MarkDecorator:
    """All of them, of which `make test` tries the first."""
    first, *rest = (range(first, first + size) for first in range(0, number, size))
    seeds = [first, *(pytest.param(more, marks=pytest.mark.full) for more in rest)]
    return pytest.mark.parametrize("seeds", seeds, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")


@batches(700)
def test_cells_alone_come_through(seeds):
    live(ALONE, seeds)


@batches(900)
def test_two_by_two_come_through(seeds):
    live(TWO_BY_TWO, seeds)


@batches(300)
def test_two_grids_at_once_come_through(seeds):
    live(ROWS, seeds)


@batches(200)
def test_a_ring_comes_through(seeds):
    live(RING, seeds)


@batches(100)
def test_three_by_three_come_through(seeds):
    live(THREE_BY_THREE, seeds)


@batches(200)
def test_changing_neighbours_come_through(seeds):
    live(CHANGING, seeds)


@batches(10, 10)
def test_five_by_eight_come_through(seeds):
    live(FIVE_BY_EIGHT, seeds, most_hosts=41)


@pytest.mark.parametrize(
    ("grid", "seed"),
    [(TWO_BY_TWO, 14_693), (ROWS, 10_215)],
    ids=["a cell comes back to who gave it away", "adopted comes together with finish"],
)
def test_schedules_that_once_failed(grid, seed):
    live(grid, range(seed, seed + 1))


@pytest.mark.soak
@pytest.mark.parametrize(
    "grid", [ALONE, TWO_BY_TWO, ROWS, RING, THREE_BY_THREE, CHANGING], ids=lambda g: len(g.cells)
)
@batches(5_000, 500)
def test_many_more_come_through(grid, seeds):
    live(grid, range(10_000 + seeds[0], 10_000 + seeds[-1] + 1))


def large(hosts: int, budget_s: float | None, *faults: Fault) -> Plan:
    kills = [Fault("kill", word="round", nth=nth) for nth in (3, 300, 900, 1_500)]
    crashes = {"c500": Crash("step", 2, 1), "c77": Crash("fails", 1, 2)}
    faults = (*kills, Fault("pause", 2.0, length_s=30.0), *faults)
    return Plan(LARGE, hosts, 2, budget_s=budget_s, faults=faults, crashes=crashes)


def test_a_thousand_cells_come_through():
    world = lived_through(large(200, None), 1)
    assert set(world.coordinator.outcome.failed) == {"c500", "c77"}


@pytest.mark.soak
@batches(2_000, 20)
def test_a_thousand_cells_come_through_thousands_of_schedules(seeds):
    live(LARGE, seeds, most_hosts=1_000)


@pytest.mark.soak
@pytest.mark.parametrize("hosts", [50, 300, 1_000])
@pytest.mark.parametrize("budget_s", [None, 600.0])
@pytest.mark.parametrize("what", ["stop", "abandon", "busy"])
def test_a_thousand_cells_come_through_anything(hosts, budget_s, what):
    world = lived_through(large(hosts, budget_s, Fault(what, word="round", nth=1_800)), hosts)
    assert set(world.coordinator.outcome.failed) == {"c500", "c77"}


# Single faults, and what comes of them exactly.


def test_longest_work_first_and_as_many_at_once_as_there_are_hosts():
    world = lived_through(Plan(ALONE, 3), 1)
    assert world.most == 3
    assert list(world.first_hosted) == list(ALONE.cells)
    assert len(world.hosts) == 3


@pytest.mark.parametrize("where", ["step", "finishing"])
@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("grid", [ALONE, TWO_BY_TWO])
def test_three_deaths_at_one_step_are_the_end_of_a_cell(grid, where, words):
    at = (2, 2) if where == "step" else (0, 0)
    plan = Plan(grid, 6, commit_share=0.0, crashes={"c2": Crash(where, *at, words=words)})
    world = lived_through(plan, 1)
    assert world.crashed["c2"] == len(world.desk.told("trainer_died")) == DEATHS_AT_ONE_STEP
    outcome = world.coordinator.outcome
    why = "RuntimeError: on purpose" if words else "exit code 70"
    done = 1 if where == "step" else 3
    assert outcome.state == "failed"
    assert outcome.failed == {"c2": f"its trainer died 3 times in round {done + 1}: {why}"}
    assert outcome.rounds == dict.fromkeys(grid.cells, 3) | {"c2": done}
    assert world.desk.told("run_finished")[0]["failed"] == ["c2"]


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("where", ["step", "opening", "finishing"])
def test_a_cell_that_its_neighbours_hosts_die_of_is_found_among_them(where, words):
    """All on one host; one that cannot tell of whom it dies has more lives."""
    at = (2, 1) if where == "step" else (0, 0)
    told = DEATHS_AT_ONE_STEP if words else DEATHS_WITHOUT_COMMIT
    times = told if where == "opening" else ALWAYS
    plan = Plan(THREE_BY_THREE, 1, crashes={"c4": Crash(where, *at, times, words)})
    world = lived_through(plan, 1)
    assert set(world.coordinator.outcome.failed) == {"c4"}
    assert world.crashed["c4"] < 2 * DEATHS_WITHOUT_COMMIT


def test_two_deaths_at_one_step_are_not():
    world = lived_through(Plan(ALONE, 2, crashes={"c2": Crash("step", 2, 2, times=2)}), 1)
    assert world.coordinator.outcome.state == "finished"
    assert len(world.desk.told("trainer_died")) == 2


def test_a_frozen_cell_that_nobody_can_take_up_ends_the_run():
    plan = Plan(TWO_BY_TWO, 2, crashes={"c3": Crash("opening")})
    with pytest.raises(
        MachineError, match=r"^c3: nobody can take it up, 3 trainers died: RuntimeError"
    ):
        World(plan, 1).run()


def test_a_model_that_nobody_can_write_ends_the_run():
    kills = [Fault("kill", word="mixture", nth=nth) for nth in (1, 2, 3)]
    with pytest.raises(
        MachineError, match=r"^writing the model failed 3 times: killed by SIGKILL$"
    ):
        World(Plan(ALONE, 2, faults=tuple(kills)), 1).run()


def test_a_stop_commits_what_is_under_way():
    world = World(Plan(TWO_BY_TWO, 2, rounds=50, faults=(Fault("stop", 5.0),)), 1)
    outcome = world.run()
    assert outcome.state == "stopped"
    assert world.now < 7
    assert not world.desk.told("trainer_died")
    for cell, entry in world.desk.status["cells"].items():
        assert entry["state"] == "stopped"
        assert entry["round"] == outcome.rounds[cell] == world.desk.newest(cell).round_ > 0


def test_a_stop_does_not_wait_for_who_is_hung():
    faults = (Fault("pause", 4.0, length_s=FOREVER_S), Fault("stop", 5.0))
    world = World(Plan(TWO_BY_TWO, 2, rounds=50, faults=faults), 1)
    assert world.run().state == "stopped"
    assert 10 < world.now < 13


# Messages by hand: two cells that hear each other, "a" and "b", unless it is said otherwise.


class Notes:
    """A run directory that takes everything."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.status: dict[str, Any] = {}

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        self.events.append(event)
        return fields

    def write_status(self, **fields: Any) -> None:
        self.status |= fields

    def adopt(self, cell: str, pending: Mapping[str, Any]) -> int:
        return 1

    def trust(self, cell: str, verified: Mapping[str, Any]) -> None: ...

    def adopt_file(self, aside: str, path: str) -> None: ...

    def log(self, cell: str, text: str) -> None:
        self.events.append(f"log of {cell}: {text}")


PAIR = Topology({"a": ("b",), "b": ("a",)})


def fields_of(kind: str) -> set[str]:
    return {field.name for field in dataclasses.fields(KINDS[kind])}


class Talk:
    """A coordinator, and what it orders as words: "finish a to 1", "close 7"."""

    def __init__(
        self,
        topology: Topology = PAIR,
        *,
        rounds: int | None = None,
        budget_s: float | None = None,
        hosts: int = 2,
        status: Mapping[str, Any] | None = None,
        waits: bool = True,
    ) -> None:
        grid = Grid((1, topology))
        length = (rounds, budget_s, False, waits)
        task = Task(grid.cells, grid.groups, grid.around, *length, record={})
        self.desk = Notes()
        self.now = 100.0
        self.one = Coordinator(task, self.desk, Observer(), status or {}, workers=hosts)
        self.begun = self._words(self.one.begin(self.now))

    def _words(self, orders: list[Order]) -> list[str]:
        words = []
        for order in orders:
            if isinstance(order, Send):
                message = encode(order.message)
                cell = message.get("cell")
                words.append(f"{message['is']}{f' {cell}' if cell else ''} to {order.worker}")
            else:
                (number,) = vars(order).values()
                words.append(f"{type(order).__name__.lower()} {number}")
        return words

    def say(self, host: int, kind: str, *files: int, **fields: Any) -> list[str]:
        usual = {"round": 0, "step": 0, "spent_s": 0.0, "seconds": 1.0, "reason": ""}
        known = {name: value for name, value in usual.items() if name in fields_of(kind)}
        message = decode({"is": kind, **known, **fields})
        return self._words(self.one.heard(host, message, files, self.now))

    def die(self, host: int) -> list[str]:
        return self._words(self.one.died(host, "killed", self.now))

    def stop(self) -> list[str]:
        return self._words(self.one.stop("SIGINT", self.now))

    def later(self, seconds: float) -> list[str]:
        self.now += seconds
        return self._words(self.one.tick(self.now))

    def beat(self, host: int, working: str | None = None, age_s: float = 0.0) -> list[str]:
        return self.say(host, "beat", age_s=age_s, longest_s=0.1, working=working)

    def crash(self, host: int, cell: str | None) -> list[str]:
        return self.say(host, "crashed", cell=cell, text="KeyError", traceback="how")


def test_cells_that_hear_each_other_are_shown_to_each_other():
    talk = Talk(rounds=1)
    assert talk.begun == ["start 1", "start 2", "host a to 1", "host b to 2"]
    assert talk.say(1, "opened", 7, cell="a") == ["slot a to 2", "centre a to 2"]
    assert talk.say(2, "opened", 8, cell="b") == ["slot b to 1", "centre b to 1"]
    assert talk.say(1, "round", cell="a", round=1) == ["centre a to 2"]
    assert talk.say(2, "round", cell="b", round=1) == [
        "centre b to 1",
        "finish a to 1",
        "finish b to 2",
    ]
    assert talk.say(1, "finished", cell="a", round=1) == ["close 7"]
    assert talk.say(2, "finished", cell="b", round=1) == ["close 8", "combine to 1"]
    assert talk.say(1, "mixture", record={}) == ["noted to 1"]
    assert talk.say(1, "combined") == ["quit to 1", "quit to 2"]
    assert talk.one.outcome.rounds == {"a": 1, "b": 1}


def at_their_end(talk: Talk) -> Talk:
    for host, cell in ((1, "a"), (2, "b")):
        talk.say(host, "opened", 6 + host, cell=cell)
    for host, cell in ((1, "a"), (2, "b")):
        talk.say(host, "round", cell=cell, round=1, spent_s=5.0)
    assert talk.one.states == {"a": "finishing", "b": "finishing"}
    return talk


@pytest.mark.parametrize("length", [{"rounds": 1}, {"budget_s": 9.0}])
def test_a_groups_end_is_decided_once(length):
    """Whoever is taken up again after that is finished, wherever the others are."""
    talk = at_their_end(Talk(**length))
    assert talk.die(1)[:4] == ["kill 1", "close 7", "start 3", "host a to 3"]
    assert talk.say(3, "opened", 9, cell="a", round=1) == ["finish a to 3"]
    talk.say(2, "finished", cell="b", round=1)
    assert talk.die(3) == ["kill 3", "close 9", "start 4", "host a to 4"]
    assert talk.say(4, "opened", 10, cell="a", round=1) == ["finish a to 4"]
    assert talk.say(4, "finished", cell="a", round=1) == ["close 10", "combine to 2"]


def test_who_is_finishing_is_shown_nothing_any_more():
    """Its host may have let it go, and have nothing to compare a slot with."""
    talk = Talk(ring("abc"), rounds=1, hosts=3)
    for host, cell in enumerate("abc", 1):
        talk.say(host, "opened", 6 + host, cell=cell)
    talk.say(1, "failed", cell="a")
    for host, cell in ((2, "b"), (3, "c")):
        talk.say(host, "round", cell=cell, round=1)
    assert "host a to 4" in talk.die(1)
    assert talk.say(4, "opened", 10, cell="a") == []


def test_a_cell_that_fails_without_a_slot_is_told_frozen_when_it_has_one():
    talk = Talk(rounds=9)
    talk.say(1, "opened", 7, cell="a")
    talk.say(2, "opened", 8, cell="b")
    for host, fresh in ((1, 3), (3, 4), (4, 5)):
        assert "frozen a to 2" not in talk.die(host)
        said = talk.say(fresh, "opened", 20 + fresh, cell="a")
    assert talk.one.states["a"] == "failed"
    assert said == ["slot a to 2", "centre a to 2", "frozen a to 2"]


def test_a_frozen_cell_is_taken_up_as_often_as_need_be():
    talk = Talk(rounds=9)
    talk.say(1, "opened", 7, cell="a")
    talk.say(2, "opened", 8, cell="b")
    talk.say(1, "failed", cell="a")
    talk.die(1)
    for host in range(3, 60, 2):
        assert f"host a to {host + 1}" in talk.die(host)
        talk.say(host + 1, "opened", host + 1, cell="a")
        talk.die(host + 1)


def test_time_that_is_up_ends_a_cell_once():
    """At the end of a round, and again a step later: the end was under way."""
    talk = Talk(isolated("a"), budget_s=4.0, hosts=1)
    talk.say(1, "opened", cell="a")
    assert talk.say(1, "round", cell="a", round=1, spent_s=4.5) == ["finish a to 1"]
    assert talk.say(1, "over", cell="a", spent_s=4.6) == []


def test_after_a_stop_nobody_is_sent_on_or_shown_anything():
    talk = Talk(budget_s=9.0)
    talk.say(1, "opened", 7, cell="a")
    talk.say(2, "opened", 8, cell="b")
    talk.say(1, "round", cell="a", round=1, spent_s=1.0)
    assert talk.stop() == ["stop to 1", "stop to 2"]
    assert talk.say(2, "round", cell="b", round=1, spent_s=1.0) == ["centre b to 1"]
    assert talk.say(1, "stopped", cells={"a": (1, 1.0)}) == ["close 7"]
    assert talk.say(2, "stopped", cells={"b": (1, 1.0)}) == ["close 8", "quit to 1", "quit to 2"]
    assert talk.one.outcome.state == "stopped"


def test_a_cell_that_opens_after_a_stop_is_not_shown():
    talk = Talk(rounds=9)
    talk.say(1, "opened", 7, cell="a")
    talk.stop()
    assert talk.say(2, "opened", 8, cell="b") == []


def test_time_that_is_up_after_a_stop_ends_nothing():
    talk = Talk(isolated("a"), budget_s=4.0, hosts=1)
    talk.say(1, "opened", cell="a")
    talk.stop()
    assert talk.say(1, "over", cell="a", spent_s=4.6) == []


def test_a_grid_goes_on_round_by_round_once_all_have_opened():
    status = {"a": {"round": 2, "spent_s": 3.0}, "b": {"round": 2, "spent_s": 3.0}}
    talk = Talk(budget_s=9.0, status=status)
    talk.say(1, "opened", 7, cell="a", round=2, spent_s=3.0)
    said = talk.say(2, "opened", 8, cell="b", round=2, spent_s=3.0)
    assert said == ["slot b to 1", "centre b to 1", "until a to 1", "until b to 2"]
    assert talk.say(1, "round", cell="a", round=3, spent_s=4.0) == ["centre a to 2"]
    said = talk.say(2, "round", cell="b", round=3, spent_s=4.5)
    assert said == ["centre b to 1", "until a to 1", "until b to 2"]


def test_what_a_failed_cell_has_spent_is_spent():
    talk = Talk(budget_s=9.0)
    talk.say(1, "opened", 7, cell="a")
    talk.say(2, "opened", 8, cell="b")
    talk.say(1, "failed", cell="a", spent_s=8.0)
    assert "finish b to 2" in talk.say(2, "round", cell="b", round=1, spent_s=1.5)


def test_a_round_that_was_begun_is_ended_whoever_fails_meanwhile():
    talk = Talk(budget_s=9.0)
    talk.say(1, "opened", 7, cell="a")
    talk.say(2, "opened", 8, cell="b")
    assert talk.say(1, "failed", cell="a", spent_s=10.0) == ["frozen a to 2"]
    said = talk.say(2, "round", cell="b", round=1, spent_s=1.5)
    assert said == ["finish b to 2"]


def test_two_grids_share_a_budget():
    pairs = Topology({"a": ("b",), "b": ("a",), "c": ("d",), "d": ("c",)})
    grid = Grid((1, pairs))
    task = Task(
        grid.cells, grid.groups, grid.around, None, 60.0, wall=False, synchronous=True, record={}
    )
    orders = Coordinator(task, Notes(), Observer(), {}, workers=2).begin(0.0)
    hosted = [one.message for one in orders if isinstance(one, Send)]
    assert [(one.cell, one.share_s) for one in hosted] == [(key, 30.0) for key in "abcd"]


def test_a_cell_alone_is_taken_up_beside_a_frozen_one():
    mixed = Topology({"a": ("b",), "b": ("a",), "c": ()})
    talk = Talk(mixed, rounds=1, hosts=1)
    talk.say(1, "opened", cell="a")
    talk.say(1, "opened", cell="b")
    talk.say(1, "failed", cell="a")
    assert talk.say(1, "round", cell="b", round=1) == ["finish b to 1"]
    assert talk.say(1, "finished", cell="b", round=1) == ["host c to 1"]


def test_a_trainer_may_break_down_before_it_trains():
    talk = Talk(rounds=1, hosts=1)
    talk.say(1, "opened", cell="a")
    assert talk.crash(1, None) == []
    assert talk.desk.events[-1] == "log of b: how"
    assert talk.die(1) == ["kill 1", "start 2", "host a to 2", "host b to 2"]


def test_a_trainer_may_break_down_over_a_cell_that_it_let_go():
    talk = Talk(isolated("ab"), rounds=1, hosts=1)
    talk.say(1, "opened", cell="a")
    talk.say(1, "round", cell="a", round=1)
    assert talk.say(1, "finished", cell="a", round=1) == ["host b to 1"]
    talk.crash(1, "a")
    assert talk.die(1) == ["kill 1", "start 2", "host b to 2"]
    assert talk.one.states == {"a": "finished", "b": "opening"}


def test_deaths_while_a_cell_is_taken_up_are_not_deaths_at_its_last_step():
    talk = Talk(isolated("a"), rounds=9, hosts=1)
    talk.say(1, "opened", cell="a")
    for host in range(1, DEATHS_WITHOUT_COMMIT):
        assert f"host a to {host + 1}" in talk.die(host)
    assert talk.die(DEATHS_WITHOUT_COMMIT) == [f"kill {DEATHS_WITHOUT_COMMIT}"]
    assert talk.one.outcome.state == "failed"


def test_when_all_have_failed_nobody_is_started_any_more():
    talk = Talk(rounds=9, hosts=1)
    talk.say(1, "opened", cell="a")
    talk.say(1, "opened", cell="b")
    talk.say(1, "failed", cell="a")
    for host in (1, 2):
        talk.die(host)
        talk.say(host + 1, "opened", cell="a")
        talk.say(host + 1, "opened", cell="b")
    assert talk.die(3) == ["kill 3"]
    assert talk.one.outcome.failed.keys() == {"a", "b"}


def test_who_takes_long_to_take_up_the_next_cell_is_not_hung():
    talk = Talk(isolated("ab"), rounds=1, hosts=1)
    talk.say(1, "opened", cell="a")
    talk.say(1, "step", cell="a", round=1, step=1, steps=1, fraction=0.5)
    talk.say(1, "round", cell="a", round=1)
    assert talk.say(1, "finished", cell="a", round=1) == ["host b to 1"]
    for _ in range(int(OPENING_S) + 1):
        talk.beat(1)
        assert talk.later(1.0) == []
    talk.beat(1)
    assert talk.later(0.2) == ["kill 1", "start 2", "host b to 2"]


def test_who_gives_no_sign_of_life_is_replaced_ten_times():
    talk = Talk(isolated("a"), rounds=1, hosts=1)
    for host in range(1, DEATHS_WITHOUT_COMMIT):
        assert talk.later(STARTING_S) == []
        assert talk.later(0.2) == [f"kill {host}", f"start {host + 1}", f"host a to {host + 1}"]
    assert talk.later(STARTING_S) == []
    assert talk.later(0.2) == ["kill 10"]
    assert talk.one.outcome.failed.keys() == {"a"}


def test_who_opens_or_finishes_many_cells_is_not_hung():
    """Its last step lies far back, yet it gets on."""
    talk = Talk(ring("abcd"), rounds=1, hosts=1)
    began = talk.now
    for word, fields in (("opened", {}), ("round", {"round": 1}), ("finished", {"round": 1})):
        for cell in "abcd":
            for _ in range(100):
                assert talk.later(1.0) == []
                talk.beat(1, cell, age_s=talk.now - began)
            talk.say(1, word, cell=cell, **fields)
    assert not talk.desk.events.count("trainer_died")


def test_who_waits_for_others_is_not_hung_and_who_stands_still_is():
    talk = Talk(rounds=9)
    talk.say(1, "opened", 7, cell="a")
    talk.say(2, "opened", 8, cell="b")
    talk.say(2, "step", cell="b", round=1, step=1, steps=9, fraction=0.1)
    for second in range(int(SILENCE_S) + 1):
        talk.beat(1)
        talk.beat(2, "b", age_s=float(second))
        assert talk.later(1.0) == []
    talk.beat(1)
    talk.beat(2, "b", age_s=SILENCE_S + 1)
    assert talk.later(0.2)[:2] == ["kill 2", "close 8"]


def test_who_begins_after_a_long_wait_is_not_hung():
    """A trainer's step seems as old as its wait."""
    talk = Talk(rounds=9)
    talk.say(1, "opened", 7, cell="a")
    talk.say(1, "step", cell="a", round=1, step=1, steps=9, fraction=0.1)
    for _ in range(60):
        talk.beat(1)
        talk.beat(2)
        assert talk.later(1.0) == []
    talk.beat(1, "a", age_s=60.0)
    assert talk.later(1.0) == []


def test_a_trainer_dies_of_its_own_cells_only():
    """Handling a message, it may name a cell that another has."""
    talk = Talk(ring("abcd"), rounds=9)
    for cell in "ab":
        talk.say(1, "opened", cell=cell)
    talk.beat(1, "b")
    for working in ("c", None):
        talk.beat(1, working)
    orders = talk.one.died(1, "killed", talk.now)
    hosted = [
        one.message for one in orders if isinstance(one, Send) and isinstance(one.message, TakeCell)
    ]
    assert [(one.cell, one.watched) for one in hosted] == [("a", False), ("b", True)]


def test_what_is_trained_while_a_cell_is_to_end_is_no_progress():
    talk = Talk(isolated("a"), budget_s=4.0, hosts=1)
    commit = {"seconds": 0.1, "pending": {}}
    for host in range(1, DEATHS_WITHOUT_COMMIT + 1):
        talk.say(host, "opened", cell="a", round=host, spent_s=5.0)
        talk.say(host, "commit", cell="a", round=host + 1, spent_s=5.0, **commit)
        talk.say(host, "round", cell="a", round=host + 1, spent_s=5.0)
        talk.die(host)
    assert talk.one.outcome.state == "failed"


def test_after_the_end_nothing_changes():
    talk = Talk(isolated("a"), rounds=1, hosts=1)
    talk.say(1, "opened", cell="a")
    talk.say(1, "round", cell="a", round=1)
    talk.say(1, "finished", cell="a", round=1)
    assert talk.stop() == ["stop to 1", "quit to 1"]
    events, status = list(talk.desk.events), dict(talk.desk.status)
    assert talk.say(1, "mixture", record={}) == []
    assert talk.say(1, "combined", 5) == ["close 5"]
    assert talk.later(1000.0) == []
    assert talk.die(1) == ["kill 1"]
    assert (talk.desk.events, talk.desk.status) == (events, status)
    assert talk.one.outcome.state == "stopped"


def test_a_run_that_was_done_is_combined_again():
    done = {"state": "finished", "round": 3, "spent_s": 1.0, "budget_s": None}
    talk = Talk(rounds=3, status={"a": done, "b": done})
    assert talk.begun == ["start 1", "combine to 1"]


def test_bad_input_ends_the_run():
    with pytest.raises(ConfigError, match=r"^no such file$"):
        Talk(rounds=1).say(1, "refused", code=2, text="no such file")


# Cells that would be better off elsewhere.


def test_fast_hosts_get_the_cells_of_slow_ones():
    world = World(Plan(THREE_BY_THREE, 3, rounds=20, slow=0.4), 3)
    world.run()
    speeds = {number: host.speed for number, host in world.hosts.items()}
    assert sorted(speeds.values()) == [1.0, 10.0, 10.0]
    moves = world.desk.told("cell_moved")
    assert len(moves) >= 4
    assert all(speeds[one["trainer"]] > speeds[one["to"]] for one in moves)
    assert world.now < 120  # It takes 208 s when nobody is moved.


RING_OF_FOUR = ring("abcd")


def uneven(talk: Talk) -> Talk:
    """Host 1 has "a" and "b" and is slow, host 2 has the others."""
    assert talk.begun[2:] == ["host a to 1", "host b to 1", "host c to 2", "host d to 2"]
    for number, cell in enumerate("abcd"):
        talk.say(1 + number // 2, "opened", 7 + number, cell=cell)
    for number, cell in enumerate("abcd"):
        talk.say(1 + number // 2, "round", cell=cell, round=1, seconds=1.0 if number > 1 else 9.0)
    assert talk.later(3.0) == ["release b to 1"]
    return talk


def test_a_cell_that_is_moved_is_released_first_and_shown_again():
    talk = uneven(Talk(RING_OF_FOUR, rounds=9))
    assert talk.one.states["b"] == "leaving"
    assert talk.say(1, "round", cell="b", round=2, seconds=9.0) == ["centre b to 2"]
    said = talk.say(1, "released", cell="b", round=2)
    assert said == ["close 8", "host b to 2", "slot a to 2", "centre a to 2"]
    assert talk.desk.events[-1] == "cell_moved"
    said = talk.say(2, "opened", 20, cell="b", round=2)
    assert said == ["slot b to 1", "centre b to 1"]
    # Nobody is moved again before it has shown what it takes there.
    assert talk.later(60.0) == []


def test_who_was_to_have_it_may_be_dead():
    talk = uneven(Talk(RING_OF_FOUR, rounds=9))
    assert talk.die(2)[3] == "start 3"
    said = talk.say(1, "released", cell="b", round=1)
    assert said[:2] == ["close 8", "host b to 1"]


def test_a_cell_that_leaves_is_taken_up_elsewhere_when_its_host_dies():
    talk = uneven(Talk(RING_OF_FOUR, rounds=9))
    said = talk.die(1)
    assert [word for word in said if word.startswith("host")] == ["host a to 3", "host b to 3"]
    talk.say(3, "opened", 20, cell="a", round=1)
    talk.say(3, "opened", 21, cell="b", round=1)
    for number, cell in ((3, "a"), (3, "b")):
        talk.say(number, "round", cell=cell, round=2, seconds=9.0)
    assert talk.later(3.0) == ["release b to 3"]


def test_a_cell_that_fails_while_it_leaves_stays_where_it_is():
    talk = uneven(Talk(RING_OF_FOUR, rounds=9))
    assert talk.say(1, "failed", cell="b", round=1) == ["frozen b to 2"]
    assert talk.one.states["b"] == "failed"


def test_a_stop_waits_for_who_leaves():
    talk = uneven(Talk(RING_OF_FOUR, rounds=9))
    talk.stop()
    assert talk.say(1, "released", cell="b", round=1) == ["close 8"]
    assert talk.say(1, "stopped", cells={"a": (1, 1.0)}) == ["close 7"]
    said = talk.say(2, "stopped", cells={"c": (1, 1.0), "d": (1, 1.0)})
    assert said == ["close 9", "close 10", "quit to 1", "quit to 2"]
    assert set(talk.one.states.values()) == {"stopped"}


def test_a_grid_that_does_not_wait_ends_when_its_time_is_up_wherever_its_cells_are():
    talk = Talk(budget_s=9.0, waits=False)
    for host, cell in ((1, "a"), (2, "b")):
        talk.say(host, "opened", 6 + host, cell=cell)
    for round_ in (1, 2, 3):
        said = talk.say(1, "round", cell="a", round=round_, spent_s=2.0 * round_)
        assert said == ["centre a to 2"]
    said = talk.say(2, "round", cell="b", round=1, spent_s=4.0)
    assert said == ["centre b to 1", "finish a to 1", "finish b to 2"]


def test_a_host_that_does_not_get_on_with_the_model_is_replaced():
    talk = at_their_end(Talk(rounds=1))
    talk.say(1, "finished", cell="a", round=1)
    assert talk.say(2, "finished", cell="b", round=1)[-1] == "combine to 1"
    bound_s = OPENING_S + 2 * COMBINE_S
    for _ in range(int(bound_s) + 1):
        talk.beat(1)
        talk.beat(2)
        assert talk.later(1.0) == []
    talk.beat(1)
    talk.beat(2)
    assert talk.later(1.0) == ["kill 1", "start 3", "combine to 3"]


def test_the_status_is_written_less_often_the_more_cells_there_are():
    written = []
    for number in (10, 1000):
        talk = Talk(isolated(keys(number)), rounds=9, hosts=number)
        talk.desk.write_status = lambda talk=talk, **fields: talk.desk.times.append(talk.now)
        talk.desk.times = []
        for host, cell in enumerate(keys(number), 1):
            talk.now += 0.02
            talk.say(host, "opened", cell=cell)
        talk.later(5.0)
        written.append(len(talk.desk.times) / number)
    assert written[0] == 1.0
    assert written[1] < 0.03


def test_who_has_finished_and_dies_is_not_replaced():
    talk = Talk(isolated("ab"), rounds=1)
    talk.say(1, "opened", cell="a")
    talk.say(2, "opened", cell="b")
    talk.say(1, "round", cell="a", round=1)
    talk.say(1, "finished", cell="a", round=1)
    assert talk.die(1) == ["kill 1"]
    assert talk.say(2, "round", cell="b", round=1) == ["finish b to 2"]
    assert talk.say(2, "finished", cell="b", round=1) == ["combine to 2"]
    talk.say(2, "combined")
    before = list(talk.desk.events)
    assert talk.die(2) == ["kill 2"]
    assert talk.desk.events == before
