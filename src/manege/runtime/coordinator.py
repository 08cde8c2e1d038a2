"""The coordinator: which cell is where, how far each may go, and when the run has come to its end.

A state machine. What hosts say, their deaths and the time go in; orders come out. It alone
appends events, writes the status and gives commits their names; it computes nothing, opens no
socket and starts no process, so that a test can drive it with a clock of its own.

See docs/decisions/0007-coordinator-and-hosts.md for the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

DEATHS_AT_ONE_STEP = 3
"""Of its trainer, in a row: the step itself must be the cause."""
DEATHS_WITHOUT_COMMIT = 10
STOP_S = 5.0
"""Time to commit when the run is to stop."""
SILENCE_S = 5.0
"""A trainer that has not been heard of for so long may be hung."""
OPENING_S = 120.0
"""Time for a trainer's first step: it may have to read all its pictures."""
PATIENCE = 5.0
"""How many of the longest steps seen a step may take."""
LOOK_S = 0.1
"""How often to look for hung trainers: a tick may come with every message."""


class Place(NamedTuple):
    """Where a cell stands in its round."""

    round_: int
    step: int
    steps: int


class Watcher(Protocol):
    """Somebody looking on: a progress bar, a log."""

    def event(self, event: dict[str, Any]) -> None:
        """A line of events.jsonl, just written."""
        ...

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """A step was done; `fraction` of the cell's work is behind it."""
        ...


class Desk(Protocol):
    """The run directory, as far as the coordinator writes there."""

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """A line of events.jsonl, as written."""
        ...

    def write_status(self, **fields: Any) -> None:
        """These fields of status.json."""
        ...

    def adopt(self, cell: str, pending: Mapping[str, Any]) -> int:
        """The bytes of a checkpoint written aside, which is now the cell's newest commit."""
        ...

    def trust(self, cell: str, verified: Mapping[str, Any]) -> None:
        """A host has verified this commit."""
        ...

    def adopt_file(self, aside: str, path: str) -> None:
        """A file written aside has its name."""
        ...

    def log(self, cell: str, text: str) -> None:
        """A text for the cell's log."""
        ...


@dataclass
class Outcome:
    """How a run ended."""

    state: str
    """finished, stopped, or failed when at least one cell did."""
    rounds: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Cells that failed, and why."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Task:
    """What is to be done, known before the first host starts."""

    cells: tuple[str, ...]
    """The longest work first."""
    groups: tuple[tuple[str, ...], ...]
    """Cells that ever hear of each other."""
    around: Mapping[str, tuple[str, ...]]
    """Whom a cell ever hears, and who hears it."""
    rounds: int | None
    budget_s: float | None
    wall: bool
    """Whether the budget is one of wall time, of which every host has its own."""
    told: Mapping[str, Any]
    """What the event that the run has started holds besides."""


class Send(NamedTuple):
    """Give a host a message."""

    host: int
    message: dict[str, Any]
    files: tuple[int, ...] = ()


class Start(NamedTuple):
    """Start a trainer, under this number."""

    host: int


class Kill(NamedTuple):
    """Make sure that a trainer is dead, and stop listening to it."""

    host: int


class Close(NamedTuple):
    """Nobody needs this file any more."""

    file: int


Order = Send | Start | Kill | Close


class Refused(Exception):
    """A host met bad input or a machine that refuses: exit code and line."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class _Cell:
    key: str
    group: tuple[str, ...]
    state: str = "waiting"
    """waiting, opening, running, finishing, finished, failed or stopped."""
    entry: dict[str, Any] = field(default_factory=dict)
    """In the status."""
    round_: int = 0
    spent_s: float = 0.0
    share_s: float | None = None
    host: int | None = None
    until: int | None = None
    """The round that it may go on to, as far as is decided; None: no limit."""
    ending: str | None = None
    """Why it is to end, once that is decided."""
    slot: tuple[int, ...] = ()
    place: tuple[int, int] | None = None
    """Round and step last heard of."""
    whole: bool = True
    """Whether it stands between two rounds, as far as was heard."""
    deaths: list[tuple[int, int] | None] = field(default_factory=list)
    """Where trainers died over it since its last commit."""

    @property
    def frozen(self) -> bool:
        return self.state == "failed"

    @property
    def settled(self) -> bool:
        return self.state in ("finished", "failed")

    @property
    def listens(self) -> bool:
        """Whether its host, if it has one, wants to know of others."""
        return self.state in ("opening", "running")


@dataclass
class _Host:
    number: int
    cells: dict[str, None] = field(default_factory=dict)
    heard_at: float = 0.0
    moved_at: float = 0.0
    """When it was last seen to get on, to have nothing to do, or was given something."""
    working: str | None = None
    broke_over: str | None = None
    """The cell that it named when it broke down, and what it said."""
    words: str | None = None
    longest_s: float = 0.0
    stepped: bool = False
    """Whether it has trained since it was given something else to do."""
    combines: bool = False
    stopped: bool = False


class Coordinator:
    """One run, from its first order to its outcome."""

    def __init__(
        self,
        task: Task,
        desk: Desk,
        watcher: Watcher,
        status: Mapping[str, Any],
        *,
        hosts: int,
    ) -> None:
        """A run over these cells.

        Args:
            task: what is to be done.
            desk: the run directory.
            watcher: sees every event and many steps.
            status: what each cell had come to when the run was last left, by their keys.
            hosts: how many to keep going at most.
        """
        self._task = task
        self._desk = desk
        self._watcher = watcher
        group_of = {cell: group for group in task.groups for cell in group}
        self._cells = {key: _Cell(key, group_of[key]) for key in task.cells}
        for key, cell in self._cells.items():
            cell.entry = dict(status.get(key, {}))
            cell.round_ = int(cell.entry.get("round", 0))
            cell.spent_s = float(cell.entry.get("spent_s", 0.0))
            # A grid ends its budget with whole rounds: it is let go on when all have opened.
            cell.until = 0 if self._goes_in_step(cell.group) else task.rounds
        self._wanted = hosts
        self._hosts: dict[int, _Host] = {}
        self._started = 0
        self._orders: list[Order] = []
        self._now = self._began_at = self._looked_at = 0.0
        self._stop: tuple[str, float] | None = None
        self._combine_deaths = 0
        self.paused = False
        """Whether somebody asked the trainers to wait."""
        self.outcome: Outcome | None = None
        """Set when the run has come to its end."""

    # What comes in. Each returns the orders that follow.

    def begin(self, now: float) -> list[Order]:
        """The run starts."""
        self._now = self._began_at = now
        self._emit("run_started", **self._task.told)
        unsettled = []
        for group in self._task.groups:
            done = [self._was_settled(self._cells[key], group) for key in group]
            if all(done):
                for key in group:
                    self._cells[key].state = str(self._cells[key].entry["state"])
            else:
                unsettled.append(group)
        if unsettled:
            self._desk.write_status(mixture=None)  # That of an earlier end.
            going = sum(len(group) for group in unsettled)
            for _ in range(min(self._wanted, going)):
                self._start_host()
            self._place_groups([group for group in unsettled if len(group) > 1])
            self._feed()
        else:
            self._end_if_done()
        return self._take_orders()

    def heard(
        self, number: int, message: Mapping[str, Any], files: tuple[int, ...], now: float
    ) -> list[Order]:
        """A host said something; of one that was given up nothing is believed."""
        self._now = now
        host = self._hosts.get(number)
        if host is None or self.outcome is not None:
            return [Close(file) for file in files]
        host.heard_at = now
        kind = str(message["is"])
        if kind == "refused":
            raise Refused(int(message["code"]), str(message["text"]))
        if kind != "beat":
            host.moved_at = now
        if kind == "crashed":
            self._hear_crashed(host, message)
        elif message.get("cell") is not None:
            cell = self._cells[str(message["cell"])]
            if cell.host != number:
                return [Close(file) for file in files]  # It was taken away from this host.
            getattr(self, f"_hear_{kind}")(host, cell, message, *([files] if files else []))
        else:
            getattr(self, f"_hear_{kind}")(host, message)
        return self._take_orders()

    def died(self, number: int, how: str, now: float) -> list[Order]:
        """A trainer is dead: its cells are taken up again by another."""
        self._now = now
        host = self._hosts.pop(number, None)
        if host is None:
            return []
        self._orders.append(Kill(number))
        lost = [self._cells[key] for key in host.cells]
        if self._stop is not None or self.outcome is not None:
            for cell in lost:
                self._leave(cell, "stopped")
            self._end_if_done()
            return self._take_orders()
        self._emit("trainer_died", trainer=number, how=how, cells=[cell.key for cell in lost])
        guilty = self._guilty(host, lost)
        for cell in lost:
            self._let_go(cell)
            if not cell.frozen:
                cell.state = "waiting"
        suspects = [guilty] if guilty else [cell for cell in lost if not cell.frozen]
        if suspects:
            self._count_death(suspects, host.words or how)
        if host.combines:
            self._combine_deaths += 1
            if self._combine_deaths >= DEATHS_AT_ONE_STEP:
                how = host.words or how
                raise Refused(3, f"writing the model failed {self._combine_deaths} times: {how}")
        # A frozen cell is there for the others of its group only.
        again = [cell for cell in lost if not cell.frozen or self._going(cell.group)]
        if again or host.combines or self._queue():
            fresh = self._start_host()
            for cell in again:
                self._host_cell(cell, fresh)
            if host.combines:
                self._combine(fresh)
        self._feed()
        self._end_if_done()
        return self._take_orders()

    def tick(self, now: float) -> list[Order]:
        """Time has passed."""
        self._now = now
        if self.outcome is not None or now - self._looked_at < LOOK_S:
            return []
        self._looked_at = now
        if self._stop is not None:
            if now - self._stop[1] > STOP_S + self._longest_step():
                for cell in self._cells.values():
                    if cell.host is not None:
                        self._leave(cell, "stopped")
                self._end_if_done()
            return self._take_orders()
        hung = [host for host in self._hosts.values() if now - host.heard_at > self._bound(host)]
        orders: list[Order] = []
        for host in hung:
            silence = now - host.heard_at
            orders += self.died(host.number, f"hung: not heard of for {silence:.1f} s", now)
        return orders

    def stop(self, reason: str, now: float) -> list[Order]:
        """Somebody asks for the end: commit and leave."""
        self._now = now
        if self._stop is None and self.outcome is None:
            self._stop = (reason, now)
            for host in self._hosts.values():
                self._send(host, "stop", reason=reason)
            self._end_if_done()
        return self._take_orders()

    def wish(self, kind: str, now: float) -> list[Order]:
        """Somebody at the screen asks for a pause, its end, a checkpoint or sample sheets."""
        self._now = now
        if self._stop is None and self.outcome is None:
            if kind in ("pause", "resume"):
                self.paused = kind == "pause"
            for host in self._hosts.values():
                self._send(host, kind)
        return self._take_orders()

    def heartbeat(self) -> tuple[int, float]:
        """How many trainers there are, and since when the most silent was not heard of."""
        silent = [self._now - host.heard_at for host in self._hosts.values()]
        return len(silent), max(0.0, *silent) if silent else 0.0

    @property
    def states(self) -> dict[str, str]:
        """Of every cell."""
        return {key: cell.state for key, cell in self._cells.items()}

    # What hosts say.

    def _hear_opened(
        self, host: _Host, cell: _Cell, message: Mapping[str, Any], files: tuple[int, ...] = ()
    ) -> None:
        cell.round_, cell.spent_s = int(message["round"]), float(message["spent_s"])
        cell.place = (cell.round_, int(message["step"]))
        cell.whole = int(message["step"]) == 0
        if message.get("verified") is not None:
            self._desk.trust(cell.key, message["verified"])
        cell.slot = files
        if cell.frozen:
            cell.deaths.clear()
        if cell.state == "opening":
            cell.state = "running"
            self._emit("cell_started", cell=cell.key, round=cell.round_, step=message["step"])
            self._note(cell, "running")
        if self._stop is not None:
            return
        if cell.ending is not None and not cell.frozen:
            # The others have gone as far, and may be gone.
            self._finish(cell, cell.ending)
            return
        for other in self._around(cell):
            self._show(cell, other)
        self._allow(cell.group)

    def _hear_event(self, host: _Host, message: Mapping[str, Any]) -> None:
        self._emit(str(message["event"]), **message["fields"])

    def _hear_step(self, host: _Host, cell: _Cell, message: Mapping[str, Any]) -> None:
        place = Place(int(message["round"]), int(message["step"]), int(message["steps"]))
        cell.place = (place.round_, place.step)
        cell.whole = False
        host.stepped = True
        host.working = cell.key
        self._watcher.step(cell.key, place, float(message["fraction"]))

    def _hear_commit(self, host: _Host, cell: _Cell, message: Mapping[str, Any]) -> None:
        num_bytes = self._desk.adopt(cell.key, message["pending"])
        if cell.state == "running":  # What it may still train while it is to end is no progress.
            cell.deaths.clear()
        cell.spent_s = float(message["spent_s"])
        self._emit(
            "commit",
            cell=cell.key,
            round=message["round"],
            step=message["step"],
            bytes=num_bytes,
            seconds=message["seconds"],
        )
        self._send(host, "adopted", cell=cell.key)

    def _hear_file(self, host: _Host, message: Mapping[str, Any]) -> None:
        self._desk.adopt_file(str(message["aside"]), str(message["path"]))

    def _hear_round(self, host: _Host, cell: _Cell, message: Mapping[str, Any]) -> None:
        cell.round_, cell.spent_s = int(message["round"]), float(message["spent_s"])
        cell.whole = True
        for other in self._around(cell):
            self._send(other, "centre", cell=cell.key, round=cell.round_)
        self._allow(cell.group)

    def _hear_over(self, host: _Host, cell: _Cell, message: Mapping[str, Any]) -> None:
        cell.spent_s = float(message["spent_s"])
        if cell.state == "running" and self._stop is None:
            self._finish(cell, "budget")

    def _hear_finished(self, host: _Host, cell: _Cell, message: Mapping[str, Any]) -> None:
        cell.round_, cell.spent_s = int(message["round"]), float(message["spent_s"])
        self._emit(
            "cell_finished",
            cell=cell.key,
            round=cell.round_,
            reason=message["reason"],
            spent_s=round(cell.spent_s, 3),
        )
        self._leave(cell, "finished")
        self._feed()
        self._end_if_done()

    def _hear_stopped(self, host: _Host, message: Mapping[str, Any]) -> None:
        for key, (round_, spent_s) in message["cells"].items():
            cell = self._cells[key]
            cell.round_, cell.spent_s = int(round_), float(spent_s)
        for key in list(host.cells):
            self._leave(self._cells[key], "stopped")
        host.stopped = True
        self._end_if_done()

    def _hear_failed(self, host: _Host, cell: _Cell, message: Mapping[str, Any]) -> None:
        cell.round_, cell.spent_s = int(message["round"]), float(message["spent_s"])
        self._fail(cell, str(message["reason"]))

    def _hear_crashed(self, host: _Host, message: Mapping[str, Any]) -> None:
        """The trainer will die of it; it may not have come to train a cell, or have let it go."""
        host.words = str(message["text"])
        if message["cell"] in host.cells:
            host.broke_over = str(message["cell"])
            place = (int(message["round"]), int(message["step"]))
            self._cells[host.broke_over].place = place
        guilty = self._guilty(host, [self._cells[key] for key in host.cells])
        if guilty is not None:
            self._desk.log(guilty.key, str(message["traceback"]))

    def _hear_mixture(self, host: _Host, message: Mapping[str, Any]) -> None:
        self._desk.write_status(mixture=message["told"])
        self._send(host, "noted")

    def _hear_combined(self, host: _Host, message: Mapping[str, Any]) -> None:
        host.combines = False
        self._close("failed" if self._failed() else "finished")

    def _hear_beat(self, host: _Host, message: Mapping[str, Any]) -> None:
        host.longest_s = max(host.longest_s, float(message["longest_s"]))
        opens = any(self._cells[key].place is None for key in host.cells)
        if message["working"] in host.cells:
            host.working = str(message["working"])
        elif not opens:
            host.moved_at = self._now
        # A step seems as old as the wait before it.
        began_at = 0.0 if opens else self._now - float(message["age_s"])
        since = max(began_at, host.moved_at)
        if self._now - since > self._bound(host):
            # It beats, but does not get on: counts as silence.
            host.heard_at = since

    # Decisions.

    def _start_host(self) -> _Host:
        self._started += 1
        host = _Host(self._started, heard_at=self._now)
        self._hosts[host.number] = host
        self._orders.append(Start(host.number))
        if self.paused:
            self._send(host, "pause")
        return host

    def _place_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Cells that hear each other are all hosted at once, neighbouring keys together."""
        keys = [key for group in groups for key in group]
        hosts = list(self._hosts.values())
        for number, key in enumerate(keys):
            self._host_cell(self._cells[key], hosts[number * len(hosts) // len(keys)])

    def _queue(self) -> list[_Cell]:
        """Cells that hear nobody and wait for a host."""
        return [
            cell
            for cell in self._cells.values()
            if cell.state == "waiting" and cell.host is None and len(cell.group) == 1
        ]

    def _feed(self) -> None:
        """Give idle hosts the next cells of the queue, the longest work first; end idle ones."""
        if self._stop is not None:
            return
        queue = self._queue()
        for host in self._hosts.values():
            if queue and all(self._cells[key].settled for key in host.cells):
                self._host_cell(queue.pop(0), host)

    def _host_cell(self, cell: _Cell, host: _Host) -> None:
        quiet = cell.frozen or self._was_frozen(cell)
        if quiet and not cell.frozen:
            cell.state = "failed"
        cell.host = host.number
        host.cells[cell.key] = None
        host.moved_at, host.stepped = self._now, False
        if cell.share_s is None and self._task.budget_s is not None:
            share_s = self._budget_share(cell.group, self._task.budget_s)
            for key in cell.group:
                self._cells[key].share_s = share_s
        if not quiet:
            cell.state = "opening"
        cell.place = None
        self._send(
            host,
            "host",
            cell=cell.key,
            share_s=cell.share_s,
            cells=len(cell.group),
            until=cell.until,
            quiet=quiet,
            elsewhere=len(cell.group) > 1 and self._wanted > 1,
            watched=bool(cell.deaths),
        )
        for key in self._task.around[cell.key]:
            other = self._cells[key]
            if other.host not in (None, host.number) and other.slot:
                self._show(other, host)

    def _show(self, cell: _Cell, host: _Host) -> None:
        """Tell a host where a cell elsewhere shows its centres, and which."""
        if cell.slot:
            self._send(host, "slot", cell=cell.key, files=cell.slot)
            self._send(host, "centre", cell=cell.key, round=cell.round_)
        if cell.frozen:
            self._send(host, "frozen", cell=cell.key)

    def _around(self, cell: _Cell) -> list[_Host]:
        """Other hosts that want to know of a cell."""
        others = (self._cells[key] for key in self._task.around[cell.key])
        numbers = dict.fromkeys(other.host for other in others if other.listens)
        return [self._hosts[one] for one in numbers if one is not None and one != cell.host]

    def _goes_in_step(self, group: Sequence[str]) -> bool:
        """Whether a group's cells are let go on one round at a time."""
        return len(group) > 1 and self._task.budget_s is not None

    def _going(self, group: Sequence[str]) -> list[_Cell]:
        return [self._cells[key] for key in group if not self._cells[key].settled]

    def _allow(self, group: Sequence[str]) -> None:
        """Let a group go on, or end it when it has come to its end."""
        going = self._going(group)
        if not going or any(cell.state != "running" for cell in going) or self._stop is not None:
            return
        reason = self._end_of(group, going)
        if reason is not None:
            for cell in going:
                self._finish(cell, reason)
        elif self._goes_in_step(group):
            until = min(cell.round_ for cell in going) + 1
            for cell in going:
                if cell.host is not None and cell.until != until:
                    cell.until = until
                    self._send(self._hosts[cell.host], "until", cell=cell.key, round=until)

    def _end_of(self, group: Sequence[str], going: Sequence[_Cell]) -> str | None:
        """Why a group has come to its end; None when it has not."""
        behind = min(cell.round_ for cell in going)
        if self._task.rounds is not None and behind >= self._task.rounds:
            return "rounds"
        share_s = going[0].share_s
        if share_s is None or len(group) == 1:
            # A cell alone says when its time is up, wherever it is.
            single = going[0]
            return "budget" if share_s is not None and single.spent_s >= share_s else None
        # Those that were let go on may have begun, also when nothing was heard of it yet.
        together = all(cell.round_ == behind >= (cell.until or 0) and cell.whole for cell in going)
        spent_s = sum(self._cells[key].spent_s for key in group)
        return "budget" if together and spent_s >= share_s else None

    def _finish(self, cell: _Cell, reason: str) -> None:
        assert cell.host is not None
        cell.state = "finishing"
        if len(cell.group) > 1:
            cell.ending = reason
        host = self._hosts[cell.host]
        host.moved_at, host.stepped = self._now, False
        self._send(host, "finish", cell=cell.key, reason=reason)

    def _fail(self, cell: _Cell, reason: str) -> None:
        """Give a cell up; to its neighbours it stays what it last showed."""
        self._emit("cell_failed", cell=cell.key, round=cell.round_ + 1, reason=reason)
        cell.state = "failed"
        cell.deaths.clear()
        self._note(cell, "failed", reason=reason)
        if len(cell.group) == 1:
            self._let_go(cell)
        elif cell.slot:
            # Without, its next host will have to show what it last was.
            for other in self._around(cell):
                self._send(other, "frozen", cell=cell.key)
        self._allow(cell.group)
        self._feed()
        self._end_if_done()

    def _guilty(self, host: _Host, lost: Sequence[_Cell]) -> _Cell | None:
        """The cell over which a trainer died; None when that cannot be known."""
        if host.broke_over in host.cells:
            return self._cells[host.broke_over]
        working = self._cells[host.working] if host.working in host.cells else None
        if working is not None and working.state == "running":
            return working
        # Cells are opened, and finished, in the order in which they were given.
        at_it = [cell for cell in lost if cell.place is None or cell.state == "finishing"]
        going = [cell for cell in lost if not cell.frozen]
        return at_it[0] if at_it else going[0] if len(going) == 1 else None

    def _count_death(self, suspects: Sequence[_Cell], words: str) -> None:
        """Count a trainer's death against the cell it died over, or all that it may have been."""
        for cell in suspects:
            cell.deaths.append(cell.place if len(suspects) == 1 else None)
        # Of several, the one that is behind is trained first.
        cell = min(suspects, key=lambda cell: cell.round_)
        times, last = len(cell.deaths), cell.deaths[-DEATHS_AT_ONE_STEP:]
        # The first may have been seen late: steps are told one by one only after a death.
        stuck = len(last) == DEATHS_AT_ONE_STEP and len(set(last[1:])) == 1 and last[-1] is not None
        if not stuck and times < DEATHS_WITHOUT_COMMIT:
            return
        if cell.frozen:
            raise Refused(3, f"{cell.key}: nobody can take it up, {times} trainers died: {words}")
        self._fail(cell, f"its trainer died {times} times in round {cell.round_ + 1}: {words}")

    def _leave(self, cell: _Cell, state: str) -> None:
        """A cell is done with, for this run or for now."""
        if not (state == "stopped" and cell.settled):
            if state != "stopped" or cell.state in ("running", "finishing"):
                self._note(cell, state)
            cell.state = state
        self._let_go(cell)

    def _let_go(self, cell: _Cell) -> None:
        if cell.host is not None and cell.host in self._hosts:
            self._hosts[cell.host].cells.pop(cell.key, None)
        cell.host = None
        self._lose_slot(cell)

    def _lose_slot(self, cell: _Cell) -> None:
        self._orders += [Close(file) for file in cell.slot]
        cell.slot = ()

    def _end_if_done(self) -> None:
        """See to the end of the run, when nothing is left to train."""
        if self.outcome is not None:
            return
        if self._stop is not None:
            if all(host.stopped or not host.cells for host in self._hosts.values()):
                self._emit("run_stopped", reason=self._stop[0])
                self._close("stopped")
            return
        if not all(cell.settled for cell in self._cells.values()):
            return
        if any(host.combines for host in self._hosts.values()):
            return
        if len(self._failed()) == len(self._cells):
            self._close("failed")
            return
        hosts = list(self._hosts.values())
        self._combine(hosts[0] if hosts else self._start_host())

    def _combine(self, host: _Host) -> None:
        host.combines = True
        self._send(host, "combine", failed=sorted(self._failed()))

    def _failed(self) -> dict[str, str]:
        return {
            key: str(cell.entry.get("reason", ""))
            for key, cell in self._cells.items()
            if cell.state == "failed"
        }

    def _close(self, state: str) -> None:
        failed = self._failed()
        self.outcome = Outcome(
            state,
            rounds={key: cell.round_ for key, cell in self._cells.items()},
            failed=failed,
            seconds=self._now - self._began_at,
        )
        if state != "stopped":
            self._emit(
                "run_finished",
                finished=[key for key in self._task.cells if key not in failed],
                failed=sorted(failed),
                seconds=round(self.outcome.seconds, 3),
            )
        for cell in self._cells.values():
            self._let_go(cell)
        for host in self._hosts.values():
            self._send(host, "quit")
        self._desk.write_status(state=state, cells=self._entries())

    def _budget_share(self, group: Sequence[str], budget_s: float) -> float:
        """Seconds these cells may train in all: an even share of what the others leave."""
        total = budget_s * (min(self._wanted, len(self._cells)) if self._task.wall else 1)
        members = set(group)
        others = [cell for cell in self._cells.values() if cell.key not in members]
        ended = [cell for cell in others if cell.settled]
        reserved = [cell for cell in others if not cell.settled and cell.share_s is not None]
        spent = sum(cell.spent_s for cell in ended)
        spent += sum((cell.share_s or 0.0) / len(cell.group) for cell in reserved)
        waiting = len(others) - len(ended) - len(reserved)
        return max(0.0, total - spent) * len(group) / (len(group) + waiting)

    def _is_done(self, cell: _Cell) -> bool:
        """Whether a cell's entry in the status satisfies this run's length."""
        entry, task = cell.entry, self._task
        if entry.get("state") != "finished":
            return False
        return (task.rounds is not None and entry["round"] >= task.rounds) or (
            task.budget_s is not None and (entry.get("budget_s") or 0) >= task.budget_s
        )

    def _was_frozen(self, cell: _Cell) -> bool:
        """Whether the cell failed and its neighbours have gone on without it."""
        return len(cell.group) > 1 and cell.entry.get("state") == "failed"

    def _was_settled(self, cell: _Cell, group: Sequence[str]) -> bool:
        return self._is_done(cell) or self._was_frozen(cell)

    def _bound(self, host: _Host) -> float:
        """How long a host may be silent."""
        if not host.stepped:
            return OPENING_S
        return max(SILENCE_S, PATIENCE * host.longest_s)

    def _longest_step(self) -> float:
        return max((host.longest_s for host in self._hosts.values()), default=0.0)

    def _note(self, cell: _Cell, state: str, **more: Any) -> None:
        cell.entry = {
            "state": state,
            "round": cell.round_,
            "spent_s": round(cell.spent_s, 3),
            "budget_s": self._task.budget_s,
            **more,
        }
        self._desk.write_status(cells=self._entries())

    def _entries(self) -> dict[str, Any]:
        return {key: cell.entry for key, cell in self._cells.items() if cell.entry}

    def _send(self, host: _Host, kind: str, files: Iterable[int] = (), **fields: Any) -> None:
        self._orders.append(Send(host.number, {"is": kind, **fields}, tuple(files)))

    def _emit(self, event: str, **fields: Any) -> None:
        self._watcher.event(self._desk.append(event, **fields))

    def _take_orders(self) -> list[Order]:
        taken, self._orders = self._orders, []
        return taken
