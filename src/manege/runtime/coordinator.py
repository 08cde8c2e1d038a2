"""The coordinator: decides which worker trains which cell, how far it may go, when the run ends.

A state machine: what workers say, their deaths and the time go in; orders come out. It alone
appends events, writes the status and gives commits their names. It computes nothing, opens no
socket and starts no process, so that a test can drive it with a clock of its own.

See docs/decisions/0007-coordinator-and-hosts.md for the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manege.errors import MachineError
from manege.observer import Asks, Observer, Place
from manege.runtime import messages
from manege.runtime.ledger import Cell, Group, WorkerRecord
from manege.runtime.messages import Close, Kill, Order, Send, Start, Task
from manege.runtime.policies import (
    DEATHS_AT_ONE_STEP,
    better_place,
    bound_s,
    count_death,
    share_s,
    still_since,
    suspect,
    was_frozen,
    was_settled,
)
from manege.runtime.run_writer import CellStatuses, RunWriter

STOP_S = 5.0
"""Seconds that workers have to commit when the run is to stop."""
LOOK_S = 0.1
"""Seconds between two searches for hung workers: a tick may come with every message."""
PLACE_S = 2.0
"""Seconds between two checks whether a cell would be better off with another worker."""


@dataclass
class Outcome:
    """How a run ended."""

    state: str
    """finished, stopped, or failed when at least one cell did."""
    rounds: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Cells that failed, and why each did."""
    seconds: float = 0.0


class Coordinator:
    """Decides for one run, from its first order to its outcome."""

    def __init__(
        self,
        task: Task,
        writer: RunWriter,
        observer: Observer,
        status: Mapping[str, Any],
        *,
        workers: int,
    ) -> None:
        """Begin with cells that no worker has.

        Args:
            task: what is to be done.
            writer: writes into the run directory.
            observer: sees every event and many steps.
            status: what each cell had come to when the run was last left, by their keys.
            workers: how many to keep going at most.
        """
        self._task = task
        self._writer = writer
        self._observer = observer
        self._groups = [Group(keys) for keys in task.groups]
        group_of = {key: group for group in self._groups for key in group.keys}
        self._cells = {key: Cell(key, group_of[key]) for key in task.cells}
        for key, cell in self._cells.items():
            cell.entry = dict(status.get(key, {}))
            cell.come_to(int(cell.entry.get("round", 0)), float(cell.entry.get("spent_s", 0.0)))
        for group in self._groups:
            # A grid ends its budget with whole rounds: it is let go on when all have opened.
            self._aim(group, 0 if self._goes_in_step(group) else task.rounds)
        self._queue: deque[Cell] = deque()
        """Cells without neighbours that wait for a worker, the longest work first."""
        self._moving: tuple[Cell, int] | None = None
        """The cell that is leaving its worker, and the worker it is to go to."""
        self._wanted = workers
        self._workers: dict[int, WorkerRecord] = {}
        self._started = 0
        self._orders: list[Order] = []
        self._now = self._began_at = self._looked_at = self._placed_at = 0.0
        self._statuses = CellStatuses(writer, self._cells)
        self._stop: tuple[str, float] | None = None
        self._combine_deaths = 0
        self.paused = False
        """Whether somebody asked the workers to wait."""
        self.outcome: Outcome | None = None
        """None until the run has come to its end."""

    # What comes in. Each returns the orders that follow.

    def begin(self, now: float) -> list[Order]:
        """Start the run: start workers and give them cells."""
        self._now = self._began_at = now
        self._emit("run_started", **self._task.record)
        unsettled = []
        for group in self._groups:
            cells = [self._cells[key] for key in group.keys]
            if all(was_settled(cell, self._task) for cell in cells):
                for cell in cells:
                    cell.turn(str(cell.entry["state"]))
            else:
                unsettled += cells
        if unsettled:
            self._writer.write_status(mixture=None)  # That of an earlier end.
            for _ in range(min(self._wanted, len(unsettled))):
                self._start_worker()
            self._place_all([cell for cell in unsettled if cell.group.many])
            alone = {cell.key for cell in unsettled if not cell.group.many}
            self._queue.extend(cell for cell in self._cells.values() if cell.key in alone)
            self._feed()
        else:
            self._end_if_done()
        return self._take_orders()

    def heard(self, number: int, message: Any, files: tuple[int, ...], now: float) -> list[Order]:
        """Take in what a worker said; ignore one that counts as dead."""
        self._now = now
        worker = self._workers.get(number)
        if worker is None or self.outcome is not None:
            return [Close(file) for file in files]
        worker.heard_at, worker.heard = now, True
        if not isinstance(message, messages.Beat):
            worker.moved_at = now
        match message:
            case messages.Beat():
                self._hear_beat(worker, message)
            case messages.Emitted(event, fields):
                self._emit(event, **fields)
            case messages.FileWritten(aside, path):
                self._writer.adopt_file(aside, path)
            case messages.CellsStopped():
                self._hear_stopped(worker, message)
            case messages.Crashed():
                self._hear_crashed(worker, message)
            case messages.MixtureChosen(record):
                self._writer.write_status(mixture=record)
                self._send(worker, messages.Noted())
            case messages.Combined():
                worker.combines = False
                self._close("failed" if self._failed() else "finished")
            case messages.Refused():
                raise message.error()
            case _:
                cell = self._cells[message.cell]
                if cell.worker != number:
                    return [Close(file) for file in files]  # It was taken away from this worker.
                self._hear_of_cell(worker, cell, message, files)
        return self._take_orders()

    def _hear_of_cell(
        self, worker: WorkerRecord, cell: Cell, message: Any, files: tuple[int, ...]
    ) -> None:
        match message:
            case messages.Opened():
                self._hear_opened(cell, message, files)
            case messages.Stepped():
                self._hear_step(worker, cell, message)
            case messages.CommitWritten():
                self._hear_commit(worker, cell, message)
            case messages.RoundDone():
                self._hear_round(cell, message)
            case messages.TimeUp():
                cell.come_to(cell.round_, message.spent_s)
                if cell.state == "running" and self._stop is None:
                    self._finish(cell, "budget")
            case messages.Released():
                self._hear_released(worker, cell, message)
            case messages.CellFinished():
                self._hear_finished(cell, message)
            case messages.GaveUp():
                cell.come_to(message.round, message.spent_s)
                self._fail(cell, message.reason)
            case other:
                raise ValueError(f"a worker does not tell the coordinator {other!r}")

    def died(self, number: int, how: str, now: float) -> list[Order]:
        """Take in that a worker is dead, and give its cells to another."""
        self._now = now
        worker = self._workers.pop(number, None)
        if worker is None:
            return []
        self._orders.append(Kill(number))
        lost = [self._cells[key] for key in worker.cells]
        if self._stop is not None or self.outcome is not None:
            for cell in lost:
                self._leave(cell, "stopped")
            self._end_if_done()
            return self._take_orders()
        self._emit("trainer_died", trainer=number, how=how, cells=[cell.key for cell in lost])
        blamed = suspect(worker, self._cells)
        for cell in lost:
            self._let_go(cell)
            if not cell.frozen:
                cell.turn("waiting")
        suspects = [blamed] if blamed else [cell for cell in lost if not cell.frozen]
        if suspects:
            self._count_death(suspects, worker.words or how)
        if worker.combines:
            self._combine_deaths += 1
            if self._combine_deaths >= DEATHS_AT_ONE_STEP:
                how = worker.words or how
                raise MachineError(f"writing the model failed {self._combine_deaths} times: {how}")
        # A frozen cell is there for the others of its group only.
        again = [cell for cell in lost if not cell.frozen or self._going(cell.group)]
        if again or worker.combines or self._queue:
            fresh = self._start_worker()
            for cell in again:
                self._give(cell, fresh)
            if worker.combines:
                self._combine(fresh)
        self._feed()
        self._end_if_done()
        return self._take_orders()

    def tick(self, now: float) -> list[Order]:
        """Look for hung workers and cells better off elsewhere; end a stop that takes too long."""
        self._now = now
        if self.outcome is not None or now - self._looked_at < LOOK_S:
            return []
        self._looked_at = now
        if self._stop is not None:
            if now - self._stop[1] > STOP_S + self._longest_step():
                for cell in self._cells.values():
                    if cell.worker is not None:
                        self._leave(cell, "stopped")
                self._end_if_done()
            return self._take_orders()
        hung = [
            worker
            for worker in self._workers.values()
            if now - worker.heard_at > self._bound_s(worker)
        ]
        orders: list[Order] = []
        for worker in hung:
            silence = now - worker.heard_at
            how = f"hung: not heard of for {silence:.1f} s{self._own_parts()}"
            orders += self.died(worker.number, how, now)
        if now - self._placed_at >= PLACE_S:
            self._placed_at = now
            self._even_out()
        return orders + self._take_orders()

    def _own_parts(self) -> str:
        """Return which code from outside the package a hung worker may be in."""
        parts = self._task.record.get("parts")
        return f"; it runs code of {', '.join(parts)}" if parts else ""

    def stop(self, reason: str, now: float) -> list[Order]:
        """Tell the workers to commit and leave."""
        self._now = now
        if self._stop is None and self.outcome is None:
            self._stop = (reason, now)
            for worker in self._workers.values():
                self._send(worker, messages.Stop(reason))
            self._end_if_done()
        return self._take_orders()

    def ask(self, what: Asks, now: float) -> list[Order]:
        """Pass on an observer's request for a pause, its end, a checkpoint or sample sheets."""
        self._now = now
        if self._stop is None and self.outcome is None:
            if what in ("pause", "resume"):
                self.paused = what == "pause"
            for worker in self._workers.values():
                self._send(worker, messages.Asked(what))
        return self._take_orders()

    def heartbeat(self) -> tuple[int, float]:
        """Return the number of workers, and for how many seconds the most silent has been so."""
        silent = [self._now - worker.heard_at for worker in self._workers.values()]
        return len(silent), max(0.0, *silent) if silent else 0.0

    @property
    def states(self) -> dict[str, str]:
        """The state of every cell."""
        return {key: cell.state for key, cell in self._cells.items()}

    # What workers say.

    def _hear_opened(self, cell: Cell, message: messages.Opened, files: tuple[int, ...]) -> None:
        cell.come_to(message.round, message.spent_s)
        cell.place = (cell.round_, message.step)
        cell.whole = message.step == 0
        if message.verified is not None:
            self._writer.trust(cell.key, message.verified)
        cell.slot = files
        if cell.frozen:
            cell.deaths.clear()
        if cell.state == "opening":
            cell.turn("running")
            self._emit("cell_started", cell=cell.key, round=cell.round_, step=message.step)
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

    def _hear_step(self, worker: WorkerRecord, cell: Cell, message: messages.Stepped) -> None:
        place = Place(message.round, message.step, message.steps)
        cell.place = (place.round_, place.step)
        cell.whole = False
        worker.stepped = True
        worker.working = cell.key
        self._observer.step(cell.key, place, message.fraction)

    def _hear_commit(
        self, worker: WorkerRecord, cell: Cell, message: messages.CommitWritten
    ) -> None:
        num_bytes = self._writer.adopt(cell.key, message.pending)
        # What a cell may still train while it is to end is no progress.
        if cell.state in ("running", "leaving"):
            cell.deaths.clear()
        cell.come_to(cell.round_, message.spent_s)
        self._emit(
            "commit",
            cell=cell.key,
            round=message.round,
            step=message.step,
            bytes=num_bytes,
            seconds=message.seconds,
        )
        self._send(worker, messages.Adopted(cell.key))

    def _hear_round(self, cell: Cell, message: messages.RoundDone) -> None:
        cell.come_to(message.round, message.spent_s)
        cell.whole = True
        took_s = message.seconds
        cell.round_s = took_s if cell.round_s is None else (cell.round_s + took_s) / 2
        for other in self._around(cell):
            self._send(other, messages.CentreShown(cell.key, cell.round_))
        self._allow(cell.group)

    def _hear_released(self, worker: WorkerRecord, cell: Cell, message: messages.Released) -> None:
        cell.come_to(message.round, message.spent_s)
        if self._stop is not None:
            self._leave(cell, "stopped")
            self._end_if_done()
            return
        assert self._moving is not None
        wanted = self._moving[1]
        self._let_go(cell)
        other = self._workers.get(wanted)
        if other is None:  # It died meanwhile.
            other = min(self._workers.values(), key=lambda one: len(one.cells))
        self._emit(
            "cell_moved", cell=cell.key, round=cell.round_, trainer=worker.number, to=other.number
        )
        self._give(cell, other)

    def _hear_finished(self, cell: Cell, message: messages.CellFinished) -> None:
        cell.come_to(message.round, message.spent_s)
        self._emit(
            "cell_finished",
            cell=cell.key,
            round=cell.round_,
            reason=message.reason,
            spent_s=round(cell.spent_s, 3),
        )
        self._leave(cell, "finished")
        self._feed()
        self._end_if_done()

    def _hear_stopped(self, worker: WorkerRecord, message: messages.CellsStopped) -> None:
        for key, (round_, spent_s) in message.cells.items():
            self._cells[key].come_to(round_, spent_s)
        for key in list(worker.cells):
            self._leave(self._cells[key], "stopped")
        worker.stopped = True
        self._end_if_done()

    def _hear_crashed(self, worker: WorkerRecord, message: messages.Crashed) -> None:
        """Take in why a worker will die; it may not train the cell yet, or have released it."""
        worker.words = message.text
        if message.cell is not None and message.cell in worker.cells:
            worker.broke_over = message.cell
            self._cells[message.cell].place = (message.round, message.step)
        blamed = suspect(worker, self._cells)
        if blamed is not None:
            self._writer.log(blamed.key, message.traceback)

    def _hear_beat(self, worker: WorkerRecord, message: messages.Beat) -> None:
        worker.longest_s = max(worker.longest_s, message.longest_s)
        opens = any(self._cells[key].place is None for key in worker.cells)
        if message.working in worker.cells:
            worker.working = message.working
        elif not opens and not worker.combines:
            worker.moved_at = self._now
        since = still_since(worker, self._now, message.age_s, opens=opens)
        if self._now - since > self._bound_s(worker):
            # It beats, but does not get on: counts as silence.
            worker.heard_at = since

    # Decisions.

    def _start_worker(self) -> WorkerRecord:
        self._started += 1
        worker = WorkerRecord(self._started, heard_at=self._now)
        self._workers[worker.number] = worker
        self._orders.append(Start(worker.number))
        if self.paused:
            self._send(worker, messages.Asked("pause"))
        return worker

    def _place_all(self, cells: Sequence[Cell]) -> None:
        """Give all these cells, which hear each other, to workers, neighbouring keys together."""
        workers = list(self._workers.values())
        for number, cell in enumerate(cells):
            self._give(cell, workers[number * len(workers) // len(cells)])

    def _feed(self) -> None:
        """Give idle workers the next cells of the queue."""
        if self._stop is not None or not self._queue:
            return
        for worker in self._workers.values():
            if self._queue and all(self._cells[key].settled for key in worker.cells):
                self._give(self._queue.popleft(), worker)

    def _even_out(self) -> None:
        """Move a cell from a worker that others wait for to one that gets on faster."""
        if self._moving is not None or len(self._workers) < 2:
            return
        loads: dict[int, dict[str, float]] = {}
        for worker in self._workers.values():
            going = [self._cells[key] for key in worker.cells if not self._cells[key].settled]
            if any(not cell.group.many or cell.state != "running" for cell in going):
                return
            known = {cell.key: cell.round_s for cell in going if cell.round_s is not None}
            if len(known) < len(going):
                return  # One that was moved last is still to show what it takes.
            loads[worker.number] = known
        move = better_place(loads)
        if move is not None:
            cell = self._cells[move.cell]
            self._moving = cell, move.worker
            cell.turn("leaving")
            assert cell.worker is not None
            self._send(self._workers[cell.worker], messages.Release(cell.key))

    def _give(self, cell: Cell, worker: WorkerRecord) -> None:
        quiet = cell.frozen or was_frozen(cell)
        if quiet and not cell.frozen:
            cell.turn("failed")
        cell.worker, cell.round_s = worker.number, None
        worker.cells[cell.key] = None
        worker.moved_at, worker.stepped = self._now, False
        if cell.share_s is None and self._task.budget_s is not None:
            workers = min(self._wanted, len(self._cells)) if self._task.wall else 1
            share = share_s(cell.group, self._cells.values(), self._task.budget_s * workers)
            for key in cell.group.keys:
                self._cells[key].share_s = share
        if not quiet:
            cell.turn("opening")
        cell.place = None
        self._send(
            worker,
            messages.TakeCell(
                cell.key,
                share_s=cell.share_s,
                cells=len(cell.group.keys),
                until=cell.until,
                quiet=quiet,
                elsewhere=cell.group.many and self._wanted > 1,
                watched=bool(cell.deaths),
            ),
        )
        for key in self._task.links[cell.key]:
            other = self._cells[key]
            if other.worker not in (None, worker.number) and other.slot:
                self._show(other, worker)

    def _show(self, cell: Cell, worker: WorkerRecord) -> None:
        """Tell a worker where a cell elsewhere shows its centres, and the newest round there."""
        if cell.slot:
            self._send(worker, messages.SlotShown(cell.key), cell.slot)
            self._send(worker, messages.CentreShown(cell.key, cell.round_))
        if cell.frozen:
            self._send(worker, messages.CellFrozen(cell.key))

    def _around(self, cell: Cell) -> list[WorkerRecord]:
        """Return the other workers that want to know of a cell."""
        others = (self._cells[key] for key in self._task.links[cell.key])
        numbers = dict.fromkeys(other.worker for other in others if other.listens)
        return [self._workers[one] for one in numbers if one is not None and one != cell.worker]

    def _goes_in_step(self, group: Group) -> bool:
        """Return whether a group's cells are allowed one round at a time."""
        return group.many and self._task.budget_s is not None and self._task.synchronous

    def _going(self, group: Group) -> list[Cell]:
        return [self._cells[key] for key in group.keys if not self._cells[key].settled]

    def _aim(self, group: Group, goal: int | None) -> None:
        """Set the round up to which a group's cells may train."""
        cells = [self._cells[key] for key in group.keys]
        group.goal = goal
        group.short = sum(cell.is_short for cell in cells)
        for cell in cells:
            cell.until = goal

    def _allow(self, group: Group) -> None:
        """Let a group go on, or end it when it has had its rounds or its budget."""
        if group.away or self._stop is not None:
            return
        if self._goes_in_step(group):
            if not group.short:
                self._allow_round(group)
        elif self._task.rounds is not None and not group.short:
            self._finish_all(group, "rounds")
        elif self._is_over(group):
            self._finish_all(group, "budget")

    def _allow_round(self, group: Group) -> None:
        """Allow the next round to a group that goes in step, or end it when there is none."""
        going = self._going(group)
        if not going:
            return
        rounds = {cell.round_ for cell in going}
        behind = min(rounds)
        # Who was taken up again may stand within a round, or behind.
        together = len(rounds) == 1 and all(cell.whole for cell in going)
        if self._task.rounds is not None and behind >= self._task.rounds:
            self._finish_all(group, "rounds")
        elif together and self._is_over(group):
            self._finish_all(group, "budget")
        elif group.goal != behind + 1:
            self._aim(group, behind + 1)
            for cell in going:
                if cell.worker is not None:
                    self._send(self._workers[cell.worker], messages.RunUntil(cell.key, behind + 1))

    def _is_over(self, group: Group) -> bool:
        share = self._cells[group.keys[0]].share_s
        return share is not None and group.spent_s >= share

    def _finish_all(self, group: Group, reason: str) -> None:
        for cell in self._going(group):
            if cell.state == "running":
                self._finish(cell, reason)

    def _finish(self, cell: Cell, reason: str) -> None:
        assert cell.worker is not None
        cell.turn("finishing")
        if cell.group.many:
            cell.ending = reason
        worker = self._workers[cell.worker]
        worker.moved_at, worker.stepped = self._now, False
        self._send(worker, messages.Finish(cell.key, reason))

    def _fail(self, cell: Cell, reason: str) -> None:
        """Give a cell up; its neighbours keep the centres that it last showed."""
        self._emit("cell_failed", cell=cell.key, round=cell.round_ + 1, reason=reason)
        if self._moving is not None and self._moving[0] is cell:
            self._moving = None
        cell.turn("failed")
        cell.deaths.clear()
        self._note(cell, "failed", reason=reason)
        # At once: its neighbours go on as if it had not been for them.
        self._statuses.write(self._now)
        if not cell.group.many:
            self._let_go(cell)
        elif cell.slot:
            # Without, its next worker will have to show what it last was.
            for other in self._around(cell):
                self._send(other, messages.CellFrozen(cell.key))
        self._allow(cell.group)
        self._feed()
        self._end_if_done()

    def _count_death(self, suspects: Sequence[Cell], words: str) -> None:
        """Count a worker's death, and give up the cell that must be its cause."""
        cell = count_death(suspects)
        if cell is None:
            return
        times = len(cell.deaths)
        if cell.frozen:
            raise MachineError(f"{cell.key}: nobody can take it up, {times} trainers died: {words}")
        self._fail(cell, f"its trainer died {times} times in round {cell.round_ + 1}: {words}")

    def _leave(self, cell: Cell, state: str) -> None:
        """Note that a cell is done with, for this run or for now, and take it from its worker."""
        if not (state == "stopped" and cell.settled):
            if state != "stopped" or cell.state in ("running", "leaving", "finishing"):
                self._note(cell, state)
            cell.turn(state)
        self._let_go(cell)

    def _let_go(self, cell: Cell) -> None:
        if self._moving is not None and self._moving[0] is cell:
            self._moving = None
        if cell.worker is not None and cell.worker in self._workers:
            self._workers[cell.worker].cells.pop(cell.key, None)
        cell.worker = None
        self._lose_slot(cell)

    def _lose_slot(self, cell: Cell) -> None:
        self._orders += [Close(file) for file in cell.slot]
        cell.slot = ()

    def _end_if_done(self) -> None:
        """End the run if all workers have stopped; if all is trained, have the model written."""
        if self.outcome is not None:
            return
        if self._stop is not None:
            if all(worker.stopped or not worker.cells for worker in self._workers.values()):
                self._emit("run_stopped", reason=self._stop[0])
                self._close("stopped")
            return
        if not all(cell.settled for cell in self._cells.values()):
            return
        if any(worker.combines for worker in self._workers.values()):
            return
        if len(self._failed()) == len(self._cells):
            self._close("failed")
            return
        workers = list(self._workers.values())
        self._combine(workers[0] if workers else self._start_worker())

    def _combine(self, worker: WorkerRecord) -> None:
        worker.combines, worker.moved_at = True, self._now
        self._send(worker, messages.Combine())

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
        for worker in self._workers.values():
            self._send(worker, messages.Quit())
        self._statuses.write(self._now, state=state)

    def _bound_s(self, worker: WorkerRecord) -> float:
        return bound_s(worker, len(self._cells))

    def _longest_step(self) -> float:
        return max((worker.longest_s for worker in self._workers.values()), default=0.0)

    def _note(self, cell: Cell, state: str, **more: Any) -> None:
        self._statuses.note(cell, state, self._task.budget_s, **more)

    def _send(self, worker: WorkerRecord, message: Any, files: tuple[int, ...] = ()) -> None:
        self._orders.append(Send(worker.number, message, files))

    def _emit(self, event: str, **fields: Any) -> None:
        self._observer.event(self._writer.append(event, **fields))

    def _take_orders(self) -> list[Order]:
        self._statuses.write_if_due(self._now)
        taken, self._orders = self._orders, []
        return taken
