"""The driver: every cell to its end, commits, sheets, the budget, a stop when somebody asks.

Cells that hear of each other go round by round together; the others one after another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from manege import device, pictures, sampler
from manege.cell import Centre, GridState
from manege.config import RunConfig
from manege.data import Dataset
from manege.errors import CheckpointError
from manege.failpoints import failpoint
from manege.methods import Cellular, Method, Step
from manege.metrics import Space, load_space
from manege.rundir import RunDir
from manege.trainer.binding import bind
from manege.trainer.cell_run import CellFailed, CellRun


class Watcher(Protocol):
    """Somebody looking on: a progress bar, a log."""

    def event(self, event: dict[str, Any]) -> None:
        """A line of events.jsonl, just written."""
        ...

    def step(self, cell: str, step: Step, fraction: float) -> None:
        """A step was done; `fraction` of the cell's work is behind it."""
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


class _Stop(Exception):
    """Somebody asked for the end; the argument is who."""


def run(
    config: RunConfig,
    rundir: RunDir,
    dataset: Dataset,
    *,
    watcher: Watcher,
    stop: Callable[[], str | None],
) -> Outcome:
    """Train every cell that is not done yet, then write the combined model.

    Args:
        config: the run's configuration, size and channels resolved.
        rundir: started, so that nobody else writes there.
        dataset: opened with the same configuration.
        watcher: sees every event and step.
        stop: asked after every step; the name of a signal, or None to go on.
    """
    device.keep_memory()
    with device.threads(config.threads_per_cell):
        return _Driver(config, rundir, dataset, watcher, stop).run()


class _Driver:
    def __init__(
        self,
        config: RunConfig,
        rundir: RunDir,
        dataset: Dataset,
        watcher: Watcher,
        stop: Callable[[], str | None],
    ) -> None:
        self._config = config
        self._rundir = rundir
        self._watcher = watcher
        self._stop = stop
        self._phases: dict[str, float] = {}
        space: Space | None = load_space(rundir.path / "scorer") if config.scored else None
        self._space = None if space is None else space.name
        self._method: Method[Any] = bind(config, dataset, self._timer, space)
        self._identity = config.identity()
        # What each cell has come to; mirrored in status.json.
        self._cells: dict[str, dict[str, Any]] = sampler.run_cells(rundir)

    def run(self) -> Outcome:
        start = time.monotonic()
        cells = self._method.cells()
        self._emit(
            "run_started",
            method=self._config.method.value,
            preset=self._config.preset,
            cells=list(cells),
            rounds=self._config.rounds,
            budget_s=self._config.budget_s,
        )
        outcome = Outcome("finished")
        groups = [
            group
            for group in self._method.groups()
            if not all(self._is_settled(cell, group) for cell in group)
        ]
        if groups:
            self._rundir.write_status(mixture=None)  # That of an earlier end.
        try:
            for group in groups:
                self._run_group(group)
        except _Stop as stop:
            outcome.state = "stopped"
            self._emit("run_stopped", reason=str(stop))
        done = {cell: self._cells.get(cell, {}) for cell in cells}
        outcome.rounds = {cell: entry.get("round", 0) for cell, entry in done.items()}
        outcome.failed = {c: e["reason"] for c, e in done.items() if e.get("state") == "failed"}
        if outcome.state == "finished":
            outcome.state = "failed" if outcome.failed else "finished"
            self._write_model(outcome.failed)
        outcome.seconds = time.monotonic() - start
        if outcome.state != "stopped":
            self._emit(
                "run_finished",
                finished=[cell for cell in cells if cell not in outcome.failed],
                failed=sorted(outcome.failed),
                seconds=round(outcome.seconds, 3),
            )
        self._rundir.write_status(state=outcome.state, cells=self._cells)
        return outcome

    def _run_group(self, group: Sequence[str]) -> None:
        """Train cells that hear of each other to their end; failures are noted, a stop raised."""
        frozen = {cell for cell in group if self._is_frozen(cell, group)}
        workers = {cell: self._open(cell, quiet=cell in frozen) for cell in group}
        share_s = self._budget_share(group)
        try:
            while going := [one for cell, one in workers.items() if cell not in frozen]:
                # Whoever is behind: its neighbours are ahead by a round at most, so they still
                # have the centres it needs.
                worker = min(going, key=lambda one: one.state.round_)
                try:
                    reason = self._end_of(worker, going, share_s)
                    if reason is not None:
                        break
                    self._run_round(worker, workers, share_s)
                except CellFailed as failure:
                    frozen.add(worker.cell)
                    if len(group) > 1:
                        # Its neighbours go on with its centre, which may never have been saved.
                        worker.commit(self._emit)
                    self._give_up(worker, failure)
            for worker in going:
                try:
                    self._finish(worker, str(reason))
                except CellFailed as failure:
                    self._give_up(worker, failure)
        except _Stop:
            for worker in workers.values():
                if self._cells[worker.cell]["state"] == "running":
                    self._note("stopped", worker)
            raise

    def _open(self, cell: str, *, quiet: bool) -> CellRun:
        """The cell as it was last committed; one that is frozen makes no noise."""
        worker = CellRun(
            cell, self._config, self._method, self._identity, self._rundir, self._space
        )
        worker.restore(self._emit)
        if not quiet:
            state = worker.state
            self._emit("cell_started", cell=cell, round=state.round_, step=state.step)
            self._note("running", worker)
        return worker

    def _end_of(
        self, worker: CellRun, going: Sequence[CellRun], share_s: float | None
    ) -> str | None:
        """Why the group has come to its end, given the one that is behind; None when it has not."""
        if self._config.rounds is not None and worker.state.round_ >= self._config.rounds:
            return "rounds"
        together = all(one.state.round_ == worker.state.round_ for one in going)
        spent_s = sum(one.spent_s for one in going)
        if share_s is None or spent_s < share_s or not together:
            return None
        # A grid ends with whole rounds; a cell alone wherever its time is up.
        return "budget" if len(going) == 1 or worker.state.step == 0 else None

    def _inbox(self, worker: CellRun, workers: Mapping[str, CellRun]) -> dict[str, Centre]:
        """The neighbours' centres of the round before; of a frozen one the last there is."""
        round_ = worker.state.round_
        inbox = {}
        for one in self._method.neighbours(worker.cell, round_ + 1):
            inbox[one] = workers[one].state.published(round_)
            if inbox[one].round_ > round_:
                # Only when its newest commit was damaged, and the one before it was taken.
                raise CheckpointError(
                    f"cell {worker.cell!r}: its last sound commit is of round {round_}, and its "
                    f"neighbour {one!r} has only those of later rounds left; restore "
                    f"checkpoints/ from a copy of the run, or start a new one"
                )
        return inbox

    def _finish(self, worker: CellRun, reason: str) -> None:
        worker.judge_finally(self._emit)
        worker.commit(self._emit)
        worker.draw_sheet(self._emit)
        self._emit(
            "cell_finished",
            cell=worker.cell,
            round=worker.state.round_,
            reason=reason,
            spent_s=round(worker.spent_s, 3),
        )
        self._note("finished", worker)

    def _give_up(self, worker: CellRun, failure: CellFailed) -> None:
        """Record a failure; to its neighbours the cell stays what it last published."""
        self._emit(
            "cell_failed",
            cell=worker.cell,
            round=worker.state.round_ + 1,
            reason=str(failure),
        )
        self._note("failed", worker, reason=str(failure))

    def _run_round(
        self, worker: CellRun, workers: Mapping[str, CellRun], share_s: float | None
    ) -> None:
        """One round, or as much of it as stop and budget allow."""
        self._phases.clear()
        alone = len(workers) == 1
        part_s = None if share_s is None else share_s / len(workers)
        clock = time.process_time if self._config.budget_clock == "cpu" else time.monotonic
        before, began = clock(), time.monotonic()
        with self._timer("gather"):
            inbox = self._inbox(worker, workers)
        steps = self._method.advance(worker.cell, worker.state, inbox)
        for steps_here, step in enumerate(steps, start=1):
            now = clock()
            worker.spent_s += now - before
            self._watcher.step(worker.cell, step, worker.fraction(step, part_s))
            failpoint("step")
            if step.trouble is not None:
                self._tell_trouble(worker, step)
            if step.losses is not None:
                self._phases["overall"] = time.monotonic() - began
                self._end_round(worker, step, steps_here)
            # Neighbours see a round's centre only once it is safe.
            if worker.commit_due(step) or (step.losses is not None and not alone):
                worker.commit(self._emit)
            if stopped_by := self._stop():
                worker.commit(self._emit)
                raise _Stop(stopped_by)
            if alone and worker.over_budget(share_s):
                return
            before = clock()

    def _end_round(self, worker: CellRun, step: Step, steps_here: int) -> None:
        """Tell of a round that is done; `steps_here` were made here, broken attempts included."""
        train_s = self._phases.get("train", 0.0)
        self._emit(
            "round",
            cell=worker.cell,
            round=step.round_,
            steps=step.steps,
            images=step.steps * step.images,
            losses=dict(step.losses or {}),
            phases_s={name: round(value, 6) for name, value in self._phases.items()},
            images_per_s=round(steps_here * step.images / train_s, 2) if train_s else None,
            spread=step.spread,
            augment=dict(step.augment) if step.augment else None,
            grid=dict(step.grid) if step.grid else None,
        )
        if step.judgement is not None:
            worker.tell_score(self._emit, step.judgement)
        if step.round_ % self._config.sheets.every_rounds == 0:
            worker.draw_sheet(self._emit)

    def _tell_trouble(self, worker: CellRun, step: Step) -> None:
        """Tell of a round that broke down, and give the cell up after too many attempts."""
        attempts = self._config.training.attempts
        if attempts > 1:
            self._emit(
                "rollback",
                cell=worker.cell,
                round=step.round_,
                step=step.step,
                attempt=worker.state.attempt,
                reason=step.trouble,
            )
        if worker.state.attempt >= attempts:
            times = f", at {attempts} attempts" if attempts > 1 else ""
            raise CellFailed(f"{step.trouble} in round {step.round_}{times}")

    def _write_model(self, failed: dict[str, str]) -> None:
        """The combined sampler of all cells that did not fail, and its sheet."""
        if len(failed) == len(self._method.cells()):
            return
        if isinstance(self._method, Cellular):
            self._reduce(self._method)
        model = sampler.of_run(self._rundir)
        folder = self._rundir.path / "model"
        sampler.save(model, folder, replace=True)
        rows = 8 * len(model.labels) if not model.unlabelled else 64
        drawn = model.sample(rows, balanced=True, seed=self._config.seed)
        sheet = pictures.grid(drawn.pictures, columns=8)
        scale = pictures.viewing_scale(model.shape.size)
        recipe = {"model": model.digest, "seed": str(self._config.seed), "rows": "labels"}
        self._rundir.write_bytes("samples/model.png", pictures.png_bytes(sheet, recipe, scale))
        self._emit("model", file="model/model.json", labels=list(model.labels))

    def _reduce(self, method: Cellular) -> None:
        """Choose the best mixture of the grid, from the commits of all cells."""
        states: dict[str, GridState] = {}
        for cell in method.cells():
            found = self._rundir.load(cell, identity=self._identity)
            states[cell] = method.init(cell)
            if found is not None:
                states[cell].restore(found.tensors, found.meta)
        chosen = method.reduce(states)
        told = {
            "cell": chosen.cell,
            "weights": dict(chosen.weights),
            "scores": {
                cell: {"value": score.value, "low": score.low, "high": score.high}
                for cell, score in chosen.scores.items()
            },
        }
        self._rundir.write_status(mixture=told)
        self._emit("mixture", space=self._space, **told)

    def _budget_share(self, group: Sequence[str]) -> float | None:
        """Seconds these cells may train in all: an even share of what the ended ones left."""
        if self._config.budget_s is None:
            return None
        others = [self._cells.get(c, {}) for c in self._method.cells() if c not in group]
        ended = [e for e in others if self._is_done(e) or e.get("state") == "failed"]
        spent = sum(float(entry["spent_s"]) for entry in ended)
        left = max(0.0, self._config.budget_s - spent)
        return left * len(group) / (len(group) + len(others) - len(ended))

    def _is_done(self, entry: dict[str, Any]) -> bool:
        """Whether a cell's entry in the status satisfies this run's length."""
        if entry.get("state") != "finished":
            return False
        rounds, budget_s = self._config.rounds, self._config.budget_s
        return (rounds is not None and entry["round"] >= rounds) or (
            budget_s is not None and (entry.get("budget_s") or 0) >= budget_s
        )

    def _is_frozen(self, cell: str, group: Sequence[str]) -> bool:
        """Whether the cell failed and its neighbours have gone on without it."""
        return len(group) > 1 and self._cells.get(cell, {}).get("state") == "failed"

    def _is_settled(self, cell: str, group: Sequence[str]) -> bool:
        """Whether there is nothing left to train in a cell."""
        return self._is_done(self._cells.get(cell, {})) or self._is_frozen(cell, group)

    def _note(self, state: str, worker: CellRun, **more: Any) -> None:
        self._cells[worker.cell] = {
            "state": state,
            "round": worker.state.round_,
            "spent_s": round(worker.spent_s, 3),
            "budget_s": self._config.budget_s,
            **more,
        }
        self._rundir.write_status(cells=self._cells)

    def _emit(self, event: str, **fields: Any) -> None:
        self._watcher.event(self._rundir.append(event, **fields))

    @contextmanager
    def _timer(self, phase: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - start
