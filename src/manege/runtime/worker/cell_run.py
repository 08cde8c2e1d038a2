"""Trains one cell for a worker: restores, commits, scores and draws it, and counts its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from manege import pictures
from manege.cell import Judgement
from manege.config import RunConfig
from manege.errors import CheckpointError
from manege.methods import Method, State, Step
from manege.runs import RunDir, cell_folder

EARLY_STEPS = {"pixels": 200, "features": 20}
"""Up to so many steps a generator cannot draw yet, by what its critic sees: a score that praises it
is blind. Taught by features, one draws 8×8 digits after 100."""
EARLY = "early.png"

Emit = Callable[..., None]
Write = Callable[..., None]
"""Saves a cell's round_, step, tensors and meta; is told the time it has had as well."""


class CellFailed(Exception):
    """Raised when this cell cannot go on, though the others can."""


def check_scorer(cell: str, meta: Mapping[str, Any], space: str | None) -> None:
    """Raise CheckpointError if a commit was scored in another space than the run now has."""
    if meta["space"] != space:
        raise CheckpointError(
            f"class {cell!r}: scored with the feature network {meta['space']}, scorer/ holds "
            f"{space}; put the old one back, or start a new run"
        )


class CellRun:
    """One cell in training: its state, its commits, the time it has had."""

    def __init__(
        self,
        cell: str,
        config: RunConfig,
        method: Method[Any],
        identity: str,
        rundir: RunDir,
        space: str | None,
        write: Write,
    ) -> None:
        self.cell = cell
        self.state: State = method.init(cell)
        self.spent_s = 0.0
        self._config = config
        self._method = method
        self._identity = identity
        self._rundir = rundir
        self._space = space
        self._write = write
        self._final: dict[str, Any] | None = None
        self._committed: tuple[int, int, int, bool] = (0, 0, 0, False)
        self._committed_at = time.monotonic()
        self._sheet_place = (-1, 0)

    def restore(self, emit: Emit) -> None:
        """Restore the state from the last sound commit, if there is one."""
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

    def over_budget(self, share_s: float | None) -> bool:
        """Return whether the cell's share of the time is used up."""
        return share_s is not None and self.spent_s >= share_s

    def fraction(self, step: Step, share_s: float | None) -> float:
        """Return the part of the cell's work that is done, from 0 to 1."""
        parts = [0.0]
        if self._config.rounds is not None:
            parts.append((step.round_ - 1 + step.step / step.steps) / self._config.rounds)
        if share_s:
            parts.append(self.spent_s / share_s)
        return min(1.0, max(parts))

    def commit_due(self, step: Step) -> bool:
        """Return whether the configuration wants a commit here."""
        every = self._config.checkpoints
        if time.monotonic() - self._committed_at >= every.every_s:
            return True
        round_ended = step.losses is not None
        return bool(round_ended and every.every_rounds and step.round_ % every.every_rounds == 0)

    def judge_finally(self, emit: Emit) -> None:
        """Score the state in which the cell ends, unless its last round did.

        The score is kept beside the state, not in it: a run that is made longer later must not
        differ from one that was long from the start.
        """
        if self._method.judges_now(self.state):
            return
        judgement = self._method.judge(self.cell, self.state)
        if judgement is not None:
            self._final = judgement.best()
            self.tell_score(emit, judgement)

    def tell_score(self, emit: Emit, judgement: Judgement) -> None:
        """Emit the scores of the generator, and the best so far."""
        best = self.state.best.score if self.state.best else None
        if self._final is not None and (best is None or self._final["value"] < best["value"]):
            best = self._final
        emit(
            "score",
            cell=self.cell,
            round=judgement.round_,
            metric=str(self._config.score.metric),
            space=self._space,
            scores={
                which.value: {"value": score.value, "low": score.low, "high": score.high}
                for which, score in judgement.scores.items()
            },
            best=best,
        )

    def commit(self) -> None:
        """Save the state, unless it is saved already."""
        here = self._place(judged=self._final is not None)
        if here[:-1] == self._committed[:-1] and here[-1] <= self._committed[-1]:
            return
        if not self.state.is_finite():
            if self.state.step > 0:
                return  # The watchdog meets it at the next step.
            raise CellFailed(f"a weight or loss is not finite in round {self.state.round_ + 1}")
        self._save()
        self._committed, self._committed_at = here, time.monotonic()

    def _save(self) -> None:
        self._write(
            self.cell,
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
            spent_s=self.spent_s,
        )

    def commit_first(self) -> None:
        """Save the state that the cell began with, if nothing was ever saved of it."""
        if self._rundir.load(self.cell, identity=self._identity) is None:
            self._save()

    def _place(self, *, judged: bool) -> tuple[int, int, int, bool]:
        """Return where the state stands, and whether its last score is known."""
        return self.state.round_, self.state.step, self.state.attempt, judged

    def draw_early(self, *, ended: bool = False) -> tuple[str, bytes, np.ndarray] | None:
        """Return the file, sheet and pictures of a generator that cannot draw yet.

        None but after the round in which it has taken EARLY_STEPS, or where a shorter run ended.
        """
        steps, round_ = self._method.steps_in_round(self.cell), self.state.round_
        last = -(-EARLY_STEPS[self._config.critic.kind] // steps)
        if not (0 < round_ < last if ended else round_ == last):
            return None
        drawn = self._method.sheet(self.cell, self.state)
        if pictures.is_points(drawn):
            return None
        scale = pictures.viewing_scale(drawn.shape[1])
        recipe = {"cell": self.cell, "round": str(round_), "seed": str(self._config.seed)}
        file = f"samples/{cell_folder(self.cell)}/{EARLY}"
        return file, pictures.png_bytes(pictures.grid(drawn), recipe, scale), drawn

    def draw_sheet(self) -> tuple[str, bytes] | None:
        """Return the file and a sheet at the cell's fixed latents; None if it was drawn already."""
        round_ = self.state.round_
        step = self.state.sheet_step
        if (round_, step) == self._sheet_place:
            return None
        self._sheet_place = (round_, step)
        within = f"-step-{step:06d}" if step else ""
        file = f"samples/{cell_folder(self.cell)}/round-{round_:06d}{within}.png"
        drawn = self._method.sheet(self.cell, self.state)
        sheet, scale = pictures.grid(drawn), pictures.viewing_scale(drawn.shape[1])
        recipe = {"cell": self.cell, "round": str(round_), "seed": str(self._config.seed)}
        return file, pictures.png_bytes(sheet, recipe, scale)
