"""Thousands of runs with a clock of their own, whose hosts die, hang, crash and lag.

Hosts are imitated without torch and speak as `trainer/host.py` does, word for word; the run
directory is in memory. A cell's centre is a number made of all that went into it: it is right only
when the cell heard exactly whom it should have heard. A seed makes a schedule of faults.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pytest

from manege.runtime.coordinator import (
    DEATHS_AT_ONE_STEP,
    Close,
    Coordinator,
    Kill,
    Order,
    Outcome,
    Place,
    Refused,
    Send,
    Start,
    Task,
)
from manege.topology import NINE, Schedule, Topology, isolated, ring, torus

BEAT_S = 1.0
LONG_S = 5_000.0
MANY = 300_000
"""Virtual seconds, and events, in which every run must have ended."""
FOREVER_S = 1e9
ALWAYS = 1_000


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
    faults: tuple[Fault, ...] = ()
    crashes: Mapping[str, Crash] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return Task(
            cells=self.grid.cells,
            groups=self.grid.groups,
            around=self.grid.around,
            rounds=self.rounds,
            budget_s=self.budget_s,
            wall=self.wall,
            told={"rounds": self.rounds},
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
    """step, opening, finishing; or fails: the host survives, and says so."""
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
        if not self._world.failed:
            assert new.value == self._world.grid.centre(cell, new.round_)
        self.commits[cell].append(new)
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


class Watcher:
    def event(self, event: dict[str, Any]) -> None: ...

    def step(self, cell: str, place: Place, fraction: float) -> None: ...


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
    over: bool = False
    shown: bool = True


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
        self.mail: list[tuple[dict[str, Any], tuple[int, ...]]] = []
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

    # What it is told, and what it does: see trainer/host.py.

    def _life(self) -> Life:
        yield self.world.rng.uniform(0.02, 0.2)
        self.beat()
        while not self.quits:
            yield from self._handle_all()
            if not self.quits and not (yield from self._work()):
                yield None

    def _handle_all(self) -> Life:
        batch, self.mail = self.mail, []
        for message, files in batch:
            yield from self._handle(message, files)

    def _listen(self) -> Life:
        if not self.mail:
            yield None
        yield from self._handle_all()

    def _handle(self, message: dict[str, Any], files: tuple[int, ...]) -> Life:
        cell = message.get("cell", "")
        match message["is"]:
            case "host":
                yield from self._take_up(cell, message)
            case "until":
                self._own(cell, message).until = message["round"]
            case "finish":
                yield from self._finish(self._own(cell, message), message["reason"])
            case "adopted":
                self.unadopted.discard(cell)
            case "slot":
                if not self.here:
                    raise self._misled(message)
                self._known(cell).slot = self.world.slots[files[0]]
            case "centre":
                known = self._known(cell)
                assert message["round"] >= known.round_
                known.round_ = message["round"]
            case "frozen":
                self._known(cell).frozen = True
            case "combine":
                yield 0.5
                self._tell("mixture", told={})
            case "noted":
                yield 0.5
                self._tell("combined")
            case "stop":
                yield from self._stop()
            case "quit":
                self.quits = True
            case other:
                raise AssertionError(other)

    def _own(self, cell: str, message: dict[str, Any]) -> Hosted:
        if cell not in self.here:
            raise self._misled(message)
        return self.here[cell]

    def _misled(self, message: dict[str, Any]) -> Crashed:
        self.world.misled.append((self.number, message))
        return Crashed(f"KeyError: {message}")

    def _known(self, cell: str) -> Elsewhere:
        return self.elsewhere.setdefault(cell, Elsewhere())

    def _take_up(self, cell: str, message: dict[str, Any]) -> Life:
        world = self.world
        yield world.rng.uniform(0.01, 0.3)
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
            return False
        if self.working is None:
            self.stepped_at = self.world.now
        self.active, self.working = hosted, hosted.cell
        try:
            yield from self._step(hosted)
        except CellFailed:
            self._fail(hosted)
        self.longest_s = max(self.longest_s, self.world.now - self.stepped_at)
        self.stepped_at = self.world.now
        return True

    def _next(self) -> Hosted | None:
        for hosted in self.here.values():
            if not hosted.shown:
                self._show(hosted)
        ready = [hosted for hosted in self.here.values() if self._is_ready(hosted)]
        return min(ready, key=lambda hosted: hosted.round_, default=None)

    def _is_ready(self, hosted: Hosted) -> bool:
        if hosted.frozen or hosted.over or not hosted.shown:
            return False
        if hosted.until is not None and hosted.round_ >= hosted.until:
            return False
        near = self.world.grid.neighbours
        neighbours = near(hosted.cell, hosted.round_ + 1)
        if hosted.round_ > 0:
            # Also who heard it in the last round: only two centres are kept.
            neighbours = (*neighbours, *near(hosted.cell, hosted.round_))
        return all(self._has_shown(cell, hosted.round_) for cell in neighbours)

    def _has_shown(self, cell: str, round_: int) -> bool:
        one = self.here.get(cell) or self.elsewhere.get(cell)
        return one is not None and (one.frozen or one.round_ >= round_)

    def _begin_round(self, hosted: Hosted) -> None:
        world, round_ = self.world, hosted.round_
        hosted.inbox, hosted.looks_at = [], []
        for cell in world.grid.neighbours(hosted.cell, round_ + 1):
            here = self.here.get(cell)
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
        yield from world.crash(self, hosted.cell, "step", hosted.round_ + 1, hosted.step)
        ended = hosted.step == plan.steps
        if hosted.watched or world.rng.random() < 0.5:
            place = {"round": hosted.round_ + 1, "step": hosted.step, "steps": plan.steps}
            self._tell("step", cell=hosted.cell, fraction=0.5, **place)
        if ended:
            for slot, round_, value in hosted.looks_at:
                assert slot.read(round_) == (round_, value), "overwritten while it was read"
            own, hosted.previous = hosted.value, hosted.value
            hosted.round_, hosted.step = hosted.round_ + 1, 0
            assert hosted.inbox is not None
            hosted.value = made_of(hosted.cell, hosted.round_, own, hosted.inbox)
            self._tell("event", event="round", fields={"cell": hosted.cell})
        due = ended and hosted.round_ % plan.commit_rounds == 0
        due = due or (not ended and world.rng.random() < plan.commit_share)
        if due or (ended and hosted.cells > 1):
            yield from self._commit(hosted)
        if ended:
            hosted.inbox = self.active = None
            hosted.shown = False
            self._show(hosted)
        elif hosted.cells == 1 and hosted.share_s is not None and hosted.spent_s >= hosted.share_s:
            hosted.over, self.active = True, None
            self._tell("over", cell=hosted.cell, spent_s=hosted.spent_s)

    def _show(self, hosted: Hosted) -> None:
        if hosted.slot is not None:
            between = hosted.round_ - 1
            readers = (
                cell
                for cell in {*self.here, *self.elsewhere}
                if cell != hosted.cell
                and between > 0
                and hosted.cell in self.world.grid.neighbours(cell, between)
            )
            if not all(self._has_shown(cell, between) for cell in readers):
                return
            hosted.slot.write(hosted.round_, hosted.value)
        hosted.shown = True
        self._tell("round", cell=hosted.cell, round=hosted.round_, spent_s=hosted.spent_s)

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
        """Of a cell's hosts, since its last commit."""
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
        self.coordinator = Coordinator(plan.task, self.desk, Watcher(), status, hosts=self.wanted)
        self.carry(self.coordinator.begin(self.now))
        self.tick()
        while self.coordinator.outcome is None and not self.abandoned:
            self.now, turn, event = heapq.heappop(self.heap)
            assert self.now - began < LONG_S and turn < MANY, "it does not end"
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
        orders = self.coordinator.heard(host.number, message, files, self.now)
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
            kind == "finished" or (kind == "failed" and len(self.grid.group[cell]) == 1)
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
                    self._send(self.hosts[number], message, files)

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
            self.first_hosted[cell] = None
            if len(self.grid.groups) > 1:
                held = sum(not one.given_up for one in self.holder.values())
                self.most = max(self.most, held)
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
        if len(self.grid.group[cells[0]]) > 1:
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
    except Refused:
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
    """A plan for a seed."""
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
    has_budget = rng.random() < 0.3
    return Plan(
        grid,
        hosts,
        rounds=None if has_budget and rng.random() < 0.5 else rounds,
        steps=steps,
        budget_s=rng.uniform(0.2, 0.3 * rounds * steps * len(cells)) if has_budget else None,
        wall=rng.random() < 0.3,
        commit_rounds=rng.choice([1, 1, 2]),
        commit_share=rng.choice([0.0, 0.2, 1.0]),
        slow=rng.choice([0.0, 0.0, 0.3]),
        lag_s=rng.choice([0.002, 0.02, 0.2]),
        faults=tuple(faults),
        crashes=crashes,
    )


def batches(number: int, size: int = 50) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("first", range(0, number, size))


def live(grid: Grid, first: int, size: int = 50, **more: int) -> None:
    """Schedules of consecutive seeds; a failure names its own."""
    for seed in range(first, first + size):
        try:
            lived_through(drawn(grid, seed, **more), seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@batches(700)
def test_cells_alone(first):
    live(ALONE, first)


@batches(700)
def test_two_by_two(first):
    live(TWO_BY_TWO, first)


@batches(200)
def test_three_by_three(first):
    live(THREE_BY_THREE, first)


@batches(300)
def test_a_ring(first):
    live(RING, first)


@batches(300)
def test_two_rings(first):
    live(ROWS, first)


@batches(300)
def test_changing(first):
    live(CHANGING, first)


@batches(20, 10)
def test_five_by_eight(first):
    live(FIVE_BY_EIGHT, first, 10, most_hosts=40)
