"""The core of a worker: trains some cells in turn, whatever transport carries its messages.

It computes, writes checkpoints aside and tells the coordinator, which decides. The messages to
and from it are listed in `runtime/messages.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from manege import pictures, sampler
from manege.config import RunConfig, shown
from manege.failpoints import failpoint
from manege.methods import Method, State, Step
from manege.plugins import PartError, at_fault
from manege.runs import RunDir
from manege.runtime import messages
from manege.runtime.worker.cell_run import CellFailed, CellRun
from manege.runtime.worker.exchange import Centres, Hosted


class Phases:
    """Seconds that each phase of the round under way has taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timer(self, phase: str) -> Iterator[None]:
        """Measure a phase while inside."""
        start = time.monotonic()
        yield
        self.add(phase, time.monotonic() - start)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


class TrainingSetup(NamedTuple):
    """A method ready to train, and what belongs to it; made once, before workers are forked."""

    config: RunConfig
    method: Method[Any]
    phases: Phases
    space: str | None
    """The name of the feature space that the run is scored in."""
    check: Callable[[str, np.ndarray], str | None] = lambda cell, drawn: None
    """Returns why the space is blind, given what a cell's early generator drew; else None."""


class Host:
    """The cells of one worker, and its answers to messages about them."""

    def __init__(
        self,
        bound: TrainingSetup,
        rundir: RunDir,
        send: Callable[[Any, tuple[int, ...]], None],
        *,
        mark: str,
        listen: Callable[[], None],
        tell_every_s: float,
    ) -> None:
        """Begin without any cell.

        Args:
            bound: the method.
            rundir: read, and written to aside.
            send: carries a message, with open files, to the coordinator.
            mark: part of the names of files written aside, which no other worker has.
            listen: waits for a message, and gives it to `handle`.
            tell_every_s: the least time between two messages about steps.
        """
        self.done = False
        """Whether it was told to quit."""
        self.working: str | None = None
        """The cell in training."""
        self.stepped_at = time.monotonic()
        self.longest_s = 0.0
        """The longest time between two steps."""
        self._config, self._method, self._phases, self._space, self._check = bound
        self._rundir = rundir
        self._send = send
        self._mark = mark
        self._listen = listen
        self._every_s = tell_every_s
        self._told_at = -tell_every_s
        self._identity = self._config.identity()
        self._here: dict[str, Hosted] = {}
        self._centres = Centres(self._method, self._here)
        self._unadopted: set[str] = set()
        self._active: Hosted | None = None
        self._idle_since: float | None = None
        self._paused_at: float | None = None
        self._asked: list[str] = []

    # What it is told.

    def handle(self, message: Any, files: tuple[int, ...] = ()) -> None:
        """Carry out a message; raise PartError where the code of somebody else's part fails."""
        try:
            self._handle(message, files)
        except Exception as error:
            if (words := self._own_fault(error)) is None:
                raise
            raise PartError(words) from error

    def _own_fault(self, error: Exception) -> str | None:
        """Return what to say of an error that comes from a part outside the package; else None."""
        if isinstance(error, PartError):
            return str(error)
        return at_fault(error, self._config.references().values())

    def _handle(self, message: Any, files: tuple[int, ...]) -> None:
        match message:
            case messages.RunUntil(cell) | messages.Finish(cell) | messages.Release(cell) if (
                cell not in self._here
            ):
                return  # It failed or was let go while this was on its way.
            case messages.TakeCell(cell) | messages.Finish(cell):
                self.working = cell
        match message:
            case messages.TakeCell():
                self._take_up(message)
            case messages.RunUntil(cell, round_):
                self._here[cell].until = round_
            case messages.Finish(cell, reason):
                self._finish(self._here[cell], reason)
            case messages.Release(cell):
                self._release(self._here[cell])
            case messages.Adopted(cell):
                self._unadopted.discard(cell)
            case messages.SlotShown(cell):
                self._centres.look_at(cell, files[0])
            case messages.CentreShown(cell, round_):
                self._centres.known(cell).round_ = round_
            case messages.CellFrozen(cell):
                self._centres.known(cell).frozen = True
            case messages.Combine():
                self._combine()
            case messages.Noted():
                self._write_model()
            case messages.Asked("pause"):
                self._paused_at = self._paused_at or time.monotonic()
            case messages.Asked("resume"):
                self._go_on()
            case messages.Asked(what):
                # Not here: this may be the middle of a commit.
                self._asked.append(what)
            case messages.Stop():
                self._stop()
            case messages.Quit():
                self.done = True
            case other:
                raise ValueError(f"nobody tells a worker {other!r}")

    @property
    def paused(self) -> bool:
        """Whether it was asked to wait."""
        return self._paused_at is not None

    def _event(self, event: str, **fields: Any) -> None:
        """Have an event appended to events.jsonl."""
        self._tell(messages.Emitted(event, fields))

    def _tell(self, message: Any, *files: int) -> None:
        """Send the coordinator a message."""
        self._send(message, files)

    def _take_up(self, message: messages.TakeCell) -> None:
        cell = message.cell
        run = CellRun(
            cell,
            self._config,
            self._method,
            self._identity,
            self._rundir,
            self._space,
            self._commit_aside,
        )
        run.restore(self._event)
        hosted = Hosted(
            run,
            share_s=message.share_s,
            cells=message.cells,
            until=message.until,
            watched=message.watched,
            frozen=message.quiet,
        )
        self._here[cell] = hosted
        self._centres.elsewhere.pop(cell, None)
        state = run.state
        files = (hosted.open_slot(),) if message.elsewhere else ()
        verified = self._rundir.verified(cell)
        commit = None if verified is None else verified.to_json()
        opened = messages.Opened(cell, state.round_, state.step, run.spent_s, commit)
        self._tell(opened, *files)
        if hosted.frozen and run.state.step == 0:
            run.commit_first()  # It failed before anything was saved, and others draw from it.

    def _finish(self, hosted: Hosted, reason: str) -> None:
        run = hosted.run
        try:
            run.judge_finally(self._event)
            run.commit()
            self._look_early(run, ended=True)
            self._draw_sheet(run)
        except CellFailed as failure:
            self._fail(hosted, failure)
            return
        self._drop(hosted)
        self._tell(messages.CellFinished(run.cell, run.state.round_, run.spent_s, reason))

    def _release(self, hosted: Hosted) -> None:
        """Commit a cell and let it go, once its round has ended."""
        run = hosted.run
        hosted.leaving = True
        if hosted.frozen or hosted.steps is not None:
            return
        try:
            run.commit()
        except CellFailed as failure:
            self._fail(hosted, failure)
            return
        self._drop(hosted)
        self._tell(messages.Released(run.cell, hosted.round_, run.spent_s))

    def _drop(self, hosted: Hosted) -> None:
        if self._active is hosted:
            self._active = None
        del self._here[hosted.run.cell]
        if hosted.slot is not None:
            hosted.slot.close()

    def _fail(self, hosted: Hosted, failure: CellFailed) -> None:
        run = hosted.run
        if hosted.cells > 1:
            # Its neighbours go on with its centre, which may never have been saved.
            with suppress(CellFailed):
                run.commit()
            hosted.frozen, hosted.steps = True, None
            self._active = None if self._active is hosted else self._active
        else:
            self._drop(hosted)
        self._tell(messages.GaveUp(run.cell, run.state.round_, run.spent_s, str(failure)))

    def _stop(self) -> None:
        cells = {}
        for hosted in list(self._here.values()):
            run = hosted.run
            if not hosted.frozen:
                try:
                    run.commit()
                except CellFailed as failure:
                    self._fail(hosted, failure)
                    continue
            cells[run.cell] = (run.state.round_, run.spent_s)
        for hosted in list(self._here.values()):
            self._drop(hosted)
        self._tell(messages.CellsStopped(cells))

    def _go_on(self) -> None:
        """End a pause, which counts as part of no round."""
        if self._paused_at is None:
            return
        pause_s, self._paused_at = time.monotonic() - self._paused_at, None
        for hosted in self._here.values():
            hosted.began += pause_s
        if self._idle_since is not None:
            self._idle_since += pause_s

    def _grant(self) -> None:
        """Carry out what an observer asked for: checkpoints or sheets."""
        asked, self._asked = self._asked, []
        for hosted in list(self._here.values()) if asked else ():
            if hosted.frozen:
                continue
            if "checkpoint" in asked:
                try:
                    hosted.run.commit()
                except CellFailed as failure:
                    self._fail(hosted, failure)
                    continue
            if "sheet" in asked:
                self._draw_sheet(hosted.run)

    # What it does.

    def crashed(self, text: str, traceback: str) -> messages.Crashed:
        """Return the message about an error: the cell in training, and where it stands."""
        hosted = self._here.get(self.working or "")
        state = None if hosted is None else hosted.run.state
        round_, step = (0, 0) if state is None else (state.round_ + 1, state.step)
        return messages.Crashed(self.working, round_, step, text, traceback)

    def warn(self, text: str) -> None:
        """Emit a warning, which the command shows and the run remembers."""
        self._event("warning", message=text)

    def work(self) -> bool:
        """Take one step of one cell; return whether there was one to take."""
        self._grant()
        if self.paused:
            self.working = None
            self.stepped_at = time.monotonic()
            return False
        hosted = self._active or self._next()
        if hosted is None:
            self.working = None
            self._idle_since = self._idle_since or time.monotonic()
            self.stepped_at = time.monotonic()
            return False
        if self._idle_since is not None:
            self.stepped_at = time.monotonic()  # Waiting was no step.
        self._active, self.working = hosted, hosted.run.cell
        try:
            self._step(hosted)
        except CellFailed as failure:
            self._fail(hosted, failure)
        except Exception as error:
            if (words := self._own_fault(error)) is None:
                raise
            self._fail(hosted, CellFailed(words))
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self.stepped_at)
        self.stepped_at = now
        return True

    def _next(self) -> Hosted | None:
        """Return the cell that has done the fewest rounds of those that can go on, if any can."""
        ready = [hosted for hosted in self._here.values() if self._is_ready(hosted)]
        return min(ready, key=lambda hosted: hosted.round_, default=None)

    def _is_ready(self, hosted: Hosted) -> bool:
        if hosted.frozen or hosted.over:
            return False
        if hosted.until is not None and hosted.round_ >= hosted.until:
            return False
        return self._centres.are_there_for(hosted)

    def _step(self, hosted: Hosted) -> None:
        run = hosted.run
        clock = time.process_time if self._config.budget_clock == "cpu" else time.monotonic
        before, began = clock(), time.monotonic()
        if hosted.steps is None:
            self._begin_round(hosted)
        assert hosted.steps is not None
        step = next(hosted.steps, None)
        if not isinstance(step, Step):
            raise PartError(
                f"{self._config.method}: advance gave {shown(step)}, expected a Step, and with the "
                "last one of a round its losses"
            )
        hosted.steps_here += 1
        run.spent_s += clock() - before
        hosted.busy_s += time.monotonic() - began
        self._tell_step(hosted, step)
        failpoint("step")
        if step.trouble is not None:
            self._tell_trouble(run, step)
        ended = step.losses is not None
        if ended:
            self._phases.seconds["overall"] = time.monotonic() - hosted.began
            self._end_round(hosted, step)
        # Neighbours see a round's centre only once it is safe.
        if run.commit_due(step) or (ended and hosted.cells > 1):
            run.commit()
        if hosted.cells == 1 and run.over_budget(hosted.share_s):
            hosted.over, self._active = True, None
        if ended:
            hosted.steps = self._active = None
            self._show(hosted)
            if hosted.leaving:
                self._release(hosted)
        elif hosted.over:
            self._tell(messages.TimeUp(run.cell, run.spent_s))

    def _begin_round(self, hosted: Hosted) -> None:
        hosted.began, hosted.steps_here, hosted.busy_s = time.monotonic(), 0, 0.0
        self._phases.seconds.clear()
        if self._idle_since is not None:
            self._phases.add("gather", hosted.began - self._idle_since)
            hosted.began, self._idle_since = self._idle_since, None
        with self._phases.timer("gather"):
            inbox = self._centres.inbox(hosted)
        hosted.steps = self._method.advance(hosted.run.cell, hosted.run.state, inbox)

    def _show(self, hosted: Hosted) -> None:
        hosted.show_centre()
        run, seconds = hosted.run, round(hosted.busy_s, 4)
        self._tell(messages.RoundDone(run.cell, hosted.round_, run.spent_s, seconds))

    def _end_round(self, hosted: Hosted, step: Step) -> None:
        """Emit the event of a round that is done, and draw its sheet if one is due."""
        run, seconds = hosted.run, self._phases.seconds
        train_s = seconds.get("train", 0.0)
        self._event(
            "round",
            cell=run.cell,
            round=step.round_,
            steps=step.steps,
            images=step.steps * step.images,
            losses=dict(step.losses or {}),
            phases_s={name: round(value, 6) for name, value in seconds.items()},
            # Broken attempts included.
            images_per_s=round(hosted.steps_here * step.images / train_s, 2) if train_s else None,
            spread=step.spread,
            augment=dict(step.augment) if step.augment else None,
            grid=dict(step.grid) if step.grid else None,
            indices=dict(step.indices) if step.indices else None,
        )
        if step.judgement is not None:
            run.tell_score(self._event, step.judgement)
        self._look_early(run)
        if step.round_ % self._config.sheets.every_rounds == 0:
            self._draw_sheet(run)

    def _tell_trouble(self, run: CellRun, step: Step) -> None:
        """Emit that a round broke down; give the cell up after too many attempts."""
        attempts = self._config.training.attempts
        if attempts > 1:
            self._event(
                "rollback",
                cell=run.cell,
                round=step.round_,
                step=step.step,
                attempt=run.state.attempt,
                reason=step.trouble,
            )
        if run.state.attempt >= attempts:
            times = f", at {attempts} attempts" if attempts > 1 else ""
            raise CellFailed(f"{step.trouble} in round {step.round_}{times}")

    def _tell_step(self, hosted: Hosted, step: Step) -> None:
        now = time.monotonic()
        if now - self._told_at < self._every_s and not hosted.watched:
            return
        self._told_at = now
        part_s = None if hosted.share_s is None else hosted.share_s / hosted.cells
        run, fraction = hosted.run, hosted.run.fraction(step, part_s)
        self._tell(messages.Stepped(run.cell, step.round_, step.step, step.steps, fraction))

    def _commit_aside(self, cell: str, **commit: Any) -> None:
        """Write a checkpoint aside and announce it; wait until the cell's one before is adopted."""
        while cell in self._unadopted:
            self._listen()
        start = time.monotonic()
        spent_s = commit.pop("spent_s")
        pending = self._rundir.write_pending(
            cell, identity=self._identity, mark=self._mark, **commit
        )
        self._unadopted.add(cell)
        self._tell(
            messages.CommitWritten(
                cell,
                round=commit["round_"],
                step=commit["step"],
                spent_s=spent_s,
                seconds=round(time.monotonic() - start, 4),
                pending=pending.to_json(),
            )
        )

    def _draw_sheet(self, run: CellRun) -> None:
        sheet = run.draw_sheet()
        if sheet is None:
            return
        file, data = sheet
        self._write(file, data)
        self._event("sheet", cell=run.cell, round=run.state.round_, file=file)

    def _look_early(self, run: CellRun, *, ended: bool = False) -> None:
        """Keep what an early generator drew, and emit if the scores do not see how poor it is."""
        early = run.draw_early(ended=ended)
        if early is None:
            return
        file, data, drawn = early
        self._write(file, data)
        if (reason := self._check(run.cell, drawn)) is not None:
            self._event("blind", cell=run.cell, space=self._space, message=reason)

    def _write(self, file: str, data: bytes) -> None:
        aside = self._rundir.write_file_aside(file, data, self._mark)
        self._tell(messages.FileWritten(aside, file))

    # The end.

    def _combine(self) -> None:
        """Have the method choose which cells' generators draw, then write the model."""
        cells = self._method.cells()
        choice = self._method.combine((cell, self._restored(cell)) for cell in cells)
        if choice is None:
            self._write_model()
            return
        record = choice.to_json()
        self._event("mixture", space=self._space, **record)
        self._tell(messages.MixtureChosen(record))

    def _restored(self, cell: str) -> State:
        """Return a cell's state as it was last committed, else as it begins."""
        found = self._rundir.load(cell, identity=self._identity)
        state: State = self._method.init(cell)
        if found is not None:
            state.restore(found.tensors, found.meta)
        return state

    def _write_model(self) -> None:
        """Write the combined sampler of all cells that did not fail, and its sheet."""
        model = sampler.of_run(self._rundir)
        sampler.save(model, self._rundir.path / "model", replace=True)
        rows = 8 * len(model.labels) if not model.unlabelled else 64
        drawn = model.sample(rows, balanced=True, seed=self._config.seed)
        sheet = pictures.grid(drawn.pictures, columns=8)
        scale = pictures.viewing_scale(model.shape.size)
        recipe = {"model": model.digest, "seed": str(self._config.seed), "rows": "labels"}
        self._write("samples/model.png", pictures.png_bytes(sheet, recipe, scale))
        self._event("model", file="model/model.json", labels=list(model.labels))
        self._tell(messages.Combined())
