"""The composition root of training: data, method and run directory bound together and driven.

Runs every cell to its end, commits, draws sheets, honours budget and stop requests. Owns no
mathematics (that is the method's) and no screen (watchers look on).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from manege import device, pictures, sampler
from manege.cell import CellState, Judgement
from manege.config import RunConfig, ScoreMetric, partition
from manege.data import Dataset
from manege.errors import CheckpointError
from manege.failpoints import failpoint
from manege.methods import Independent, Step
from manege.metrics import ClassScorer, load_space
from manege.rundir import RunDir, cell_folder


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


class _CellFailed(Exception):
    """This cell cannot go on; the others can."""


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
        self._scorer = _open_scorer(config, rundir, dataset)
        self._method = Independent(
            config, dataset, device.resolve(config.device), self._timer, self._scorer
        )
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
        try:
            for cell in cells:
                if not self._is_done(self._cells.get(cell, {})):
                    self._run_cell(cell)
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

    def _run_cell(self, cell: str) -> None:
        """Train one cell to its end; a failure is recorded, a stop passed on."""
        space = self._scorer.space.name if self._scorer else None
        worker = _CellRun(cell, self._config, self._method, self._identity, self._rundir, space)
        worker.restore(self._emit)
        self._note(cell, "running", worker)
        share_s = self._budget_share(cell)
        try:
            while (reason := worker.done(share_s)) is None:
                self._run_round(worker, share_s)
            worker.judge_finally(self._emit)
            worker.commit(self._emit)
            worker.draw_sheet(self._emit)
            self._emit(
                "cell_finished",
                cell=cell,
                round=worker.state.round_,
                reason=reason,
                spent_s=round(worker.spent_s, 3),
            )
            self._note(cell, "finished", worker)
        except _CellFailed as failure:
            self._emit("cell_failed", cell=cell, round=worker.state.round_ + 1, reason=str(failure))
            self._note(cell, "failed", worker, reason=str(failure))
        except _Stop:
            self._note(cell, "stopped", worker)
            raise

    def _run_round(self, worker: _CellRun, share_s: float | None) -> None:
        """One round, or as much of it as stop and budget allow."""
        self._phases.clear()
        clock = time.process_time if self._config.budget_clock == "cpu" else time.monotonic
        before = clock()
        for steps_here, step in enumerate(self._method.advance(worker.cell, worker.state), start=1):
            now = clock()
            worker.spent_s += now - before
            self._watcher.step(worker.cell, step, worker.fraction(step, share_s))
            failpoint("step")
            if step.trouble is not None:
                self._tell_trouble(worker, step)
            if step.losses is not None:
                self._end_round(worker, step, steps_here)
            if worker.commit_due(step):
                worker.commit(self._emit)
            if stopped_by := self._stop():
                worker.commit(self._emit)
                raise _Stop(stopped_by)
            if worker.over_budget(share_s):
                return
            before = clock()

    def _end_round(self, worker: _CellRun, step: Step, steps_here: int) -> None:
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
        )
        if step.judgement is not None:
            worker.tell_score(self._emit, step.judgement)
        if step.round_ % self._config.sheets.every_rounds == 0:
            worker.draw_sheet(self._emit)

    def _tell_trouble(self, worker: _CellRun, step: Step) -> None:
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
            raise _CellFailed(f"{step.trouble} in round {step.round_}{times}")

    def _write_model(self, failed: dict[str, str]) -> None:
        """The combined sampler of all cells that did not fail, and its sheet."""
        if len(failed) == len(self._method.cells()):
            return
        model = sampler.of_run(self._rundir)
        folder = self._rundir.path / "model"
        sampler.save(model, folder, replace=True)
        drawn = model.sample(8 * len(model.labels), balanced=True, seed=self._config.seed)
        sheet = pictures.grid(drawn.pictures, columns=8)
        scale = pictures.viewing_scale(model.shape.size)
        recipe = {"model": model.digest, "seed": str(self._config.seed), "rows": "labels"}
        self._rundir.write_bytes("samples/model.png", pictures.png_bytes(sheet, recipe, scale))
        self._emit("model", file="model/model.json", labels=list(model.labels))

    def _budget_share(self, cell: str) -> float | None:
        """Seconds this cell may train in all: an even share of what the ended ones left."""
        if self._config.budget_s is None:
            return None
        others = [self._cells.get(c, {}) for c in self._method.cells() if c != cell]
        ended = [e for e in others if self._is_done(e) or e.get("state") == "failed"]
        spent = sum(float(entry["spent_s"]) for entry in ended)
        return max(0.0, self._config.budget_s - spent) / (1 + len(others) - len(ended))

    def _is_done(self, entry: dict[str, Any]) -> bool:
        """Whether a cell's entry in the status satisfies this run's length."""
        if entry.get("state") != "finished":
            return False
        rounds, budget_s = self._config.rounds, self._config.budget_s
        return (rounds is not None and entry["round"] >= rounds) or (
            budget_s is not None and (entry.get("budget_s") or 0) >= budget_s
        )

    def _note(self, cell: str, state: str, worker: _CellRun, **more: Any) -> None:
        self._cells[cell] = {
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


def _open_scorer(config: RunConfig, rundir: RunDir, dataset: Dataset) -> ClassScorer | None:
    """The run's scorer, from the feature network in its ``scorer/``."""
    if config.score.metric is ScoreMetric.NONE:
        return None
    parts = partition(config.method, dataset.labels)
    return ClassScorer(config.score, load_space(rundir.path / "scorer"), dataset, parts)


def check_scorer(cell: str, meta: Mapping[str, Any], space: str | None) -> None:
    """Nothing; CheckpointError when a commit was scored in another space than the run now has."""
    if meta["space"] != space:
        raise CheckpointError(
            f"class {cell!r}: scored with the feature network {meta['space']}, scorer/ holds "
            f"{space}; put the old one back, or start a new run"
        )


Emit = Callable[..., None]


class _CellRun:
    """One cell on its way: its state, its commits, the time it has had."""

    def __init__(
        self,
        cell: str,
        config: RunConfig,
        method: Independent,
        identity: str,
        rundir: RunDir,
        space: str | None,
    ) -> None:
        self.cell = cell
        self.state: CellState = method.init(cell)
        self.spent_s = 0.0
        self._config = config
        self._method = method
        self._identity = identity
        self._rundir = rundir
        self._space = space
        self._final: dict[str, Any] | None = None
        self._committed: tuple[int, int, int, bool] = (0, 0, 0, False)
        self._committed_at = time.monotonic()
        self._sheet_round = -1

    def restore(self, emit: Emit) -> None:
        """Go on from the last sound commit, if there is one."""
        data = self._method.data_digest(self.cell)
        found = self._rundir.load(self.cell, identity=self._identity)
        if found is not None:
            for warning in found.warnings:
                emit("warning", cell=self.cell, message=warning)
            if found.meta["data"] != data:
                raise CheckpointError(
                    f"class {self.cell!r}: its training pictures are not the ones this run began "
                    "with; put them back, or start a new run"
                )
            check_scorer(self.cell, found.meta, self._space)
            self.state.restore(found.tensors, found.meta)
            self.spent_s = float(found.meta["spent_s"])
            self._committed = self._place(judged=found.meta["final"] is not None)
        emit("cell_started", cell=self.cell, round=self.state.round_, step=self.state.step)

    def done(self, share_s: float | None) -> str | None:
        """Why the cell has come to its end, or None."""
        if self._config.rounds is not None and self.state.round_ >= self._config.rounds:
            return "rounds"
        return "budget" if self.over_budget(share_s) else None

    def over_budget(self, share_s: float | None) -> bool:
        """Whether the cell's share of the time is used up."""
        return share_s is not None and self.spent_s >= share_s

    def fraction(self, step: Step, share_s: float | None) -> float:
        """The part of the cell's work that is behind it."""
        parts = [0.0]
        if self._config.rounds is not None:
            parts.append((step.round_ - 1 + step.step / step.steps) / self._config.rounds)
        if share_s:
            parts.append(self.spent_s / share_s)
        return min(1.0, max(parts))

    def commit_due(self, step: Step) -> bool:
        """Whether the configuration wants a commit here."""
        every = self._config.checkpoints
        if time.monotonic() - self._committed_at >= every.every_s:
            return True
        round_ended = step.losses is not None
        return bool(round_ended and every.every_rounds and step.round_ % every.every_rounds == 0)

    def judge_finally(self, emit: Emit) -> None:
        """Score the state in which the cell ends, unless its last round did.

        The verdict is kept beside the state, not in it: a run that is made longer later must not
        differ from one that was long from the start.
        """
        if self._method.judges_now(self.state):
            return
        judgement = self._method.judge(self.cell, self.state)
        if judgement is not None:
            self._final = judgement.best()
            self.tell_score(emit, judgement)

    def tell_score(self, emit: Emit, judgement: Judgement) -> None:
        """Tell what the generator is worth, and the best so far."""
        best = self.state.best.told if self.state.best else None
        if self._final is not None and (best is None or self._final["value"] < best["value"]):
            best = self._final
        emit(
            "score",
            cell=self.cell,
            round=judgement.round_,
            metric=self._config.score.metric.value,
            space=self._space,
            scores={
                which.value: {"value": score.value, "low": score.low, "high": score.high}
                for which, score in judgement.scores.items()
            },
            best=best,
        )

    def commit(self, emit: Emit) -> None:
        """Save the state; nothing to do where it is saved already."""
        here = self._place(judged=self._final is not None)
        if here[:-1] == self._committed[:-1] and here[-1] <= self._committed[-1]:
            return
        if not self.state.is_finite():
            if self.state.step > 0:
                return  # The watchdog meets it at the next step.
            raise _CellFailed(f"a weight or loss is not finite in round {self.state.round_ + 1}")
        start = time.monotonic()
        commit = self._rundir.commit(
            self.cell,
            identity=self._identity,
            round_=self.state.round_,
            step=self.state.step,
            tensors=self.state.to_arrays(),
            meta={
                **self.state.counters(),
                "spent_s": round(self.spent_s, 3),
                "data": self._method.data_digest(self.cell),
                "space": self._space,
                "final": self._final,
            },
        )
        self._committed, self._committed_at = here, time.monotonic()
        emit(
            "commit",
            cell=self.cell,
            round=self.state.round_,
            step=self.state.step,
            bytes=commit.bytes,
            seconds=round(self._committed_at - start, 4),
        )

    def _place(self, *, judged: bool) -> tuple[int, int, int, bool]:
        """Where the state stands, and whether its last score is known."""
        return self.state.round_, self.state.step, self.state.attempt, judged

    def draw_sheet(self, emit: Emit) -> None:
        """A sheet of this cell at its fixed latents; once a round."""
        round_ = self.state.round_
        if round_ == self._sheet_round:
            return
        self._sheet_round = round_
        file = f"samples/{cell_folder(self.cell)}/round-{round_:06d}.png"
        drawn = self._method.sheet(self.cell, self.state)
        sheet, scale = pictures.grid(drawn), pictures.viewing_scale(drawn.shape[1])
        recipe = {"cell": self.cell, "round": str(round_), "seed": str(self._config.seed)}
        self._rundir.write_bytes(file, pictures.png_bytes(sheet, recipe, scale))
        emit("sheet", cell=self.cell, round=round_, file=file)
