"""Whole grids under the driver: stopped, broken, gone on with, and ended.

Points are their own features: no feature network is trained here.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from manege.api import continue_run, start_run
from manege.cell import GridState
from manege.config import ALL, RunConfig, resolve
from manege.data import open_dataset
from manege.errors import CheckpointError
from manege.methods import Cellular
from manege.runs import RunDir
from manege.sampler import of_run
from tests.helpers.forker import Silent, state_of
from tests.helpers.observers import StopAfterSteps

CPU = torch.device("cpu")
SMALL = (
    *("training.batch=50", "training.batches_per_round=3", "training.attempts=1"),
    "sheets.pictures=4",
)
GRID = (
    *("cellular.rows=2", "cellular.columns=2", "cellular.fitness_samples=32"),
    *("cellular.mixture.samples=100", "cellular.mixture.steps=5"),
    *("cellular.mixture.final_samples=200", "cellular.mixture.final_steps=5"),
)
ONE_CELL = ("cellular.rows=1", "cellular.columns=1")
POINTS = (*("networks.hidden=8", "networks.latent=4", *SMALL, "data.limit_per_class=40", *GRID),)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "cellular-cache"))


def _points(*sets: str, **flags: Any) -> RunConfig:
    given = {"data.source": "ring8", "method": "cellular", "rounds": 3, **flags}
    return resolve(flags=given, sets=[*POINTS, *sets])


class Breaking:
    """While inside, steps after which `where(cell, state)` holds break the generator."""

    def __init__(self, where) -> None:
        self._patch = pytest.MonkeyPatch()
        self._where = where

    def __enter__(self) -> None:
        train, where = Cellular._train, self._where

        def broken(method, cell, state, opponents):
            images = train(method, cell, state, opponents)
            if where(cell, state):
                with torch.no_grad():
                    state.offspring.pair.generator.weights.fill_(float("nan"))
            return images

        self._patch.setattr(Cellular, "_train", broken)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def _events(path, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in RunDir.open(path).events() if event["event"] in kinds]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A grid of points that nobody interrupted; not to be changed."""
    path = tmp_path_factory.mktemp("grid") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "cellular-cache"))
        run = start_run(_points(), out=path, observer=Silent())
    assert run.outcome.state == "finished"
    return path


def test_cells_go_round_by_round_and_use_centres_only_once_they_are_safe(undisturbed):
    config = _points()
    data = open_dataset(config.data)
    method = Cellular(config, data, CPU, lambda phase: nullcontext(), None, None)
    done = dict.fromkeys(method.cells(), 0)
    saved = dict.fromkeys(method.cells(), 0)
    for event in _events(undisturbed, "round", "commit"):
        cell = event["cell"]
        if event["event"] == "commit":
            saved[cell] = event["round"]
            continue
        for one in method.neighbours(cell, event["round"]):
            assert saved[one] >= event["round"] - 1
        done[cell] += 1
        assert done[cell] == event["round"]
        assert max(done.values()) - min(done.values()) <= 1
    assert done == saved == dict.fromkeys(method.cells(), 3)


def test_a_grid_s_budget_ends_it_with_whole_rounds(tmp_path):
    config = _points("rounds=null", budget_s=0.4)
    run = start_run(config, out=tmp_path / "run", observer=Silent())
    assert run.outcome.state == "finished"
    (rounds,) = set(run.outcome.rounds.values())
    assert rounds > 0
    finished = _events(run.path, "cell_finished")
    assert {one["reason"] for one in finished} == {"budget"}
    assert sum(one["spent_s"] for one in finished) >= 0.4
    for cell in run.outcome.rounds:
        found = RunDir.open(run.path).load(cell, identity=run.config.identity())
        assert (found.round_, found.step) == (rounds, 0)


def _stopped_after(steps: int, run, *args: Any, **more: Any):
    """A run that was stopped after so many steps, if it had them."""
    stopper = StopAfterSteps(steps)
    return run(*args, observer=stopper, **more)


@pytest.mark.parametrize("steps", [1, 5, 20, 36])
def test_a_grid_stopped_anywhere_and_resumed_ends_in_the_same_bits(tmp_path, undisturbed, steps):
    path = tmp_path / "run"
    begun = _stopped_after(steps, start_run, _points(), out=path)
    assert begun.outcome.state == "stopped"
    rundir = RunDir.open(path)
    assert sum(1 for _ in _events(path, "commit")) >= 1
    assert {entry["state"] for entry in rundir.status()["cells"].values()} == {"stopped"}
    again = _stopped_after(4, continue_run, path)
    if steps < 30:
        assert again.outcome.state == "stopped"
        again = continue_run(path, observer=Silent())
    assert again.outcome.state == "finished"
    assert state_of(path) == state_of(undisturbed)
    assert again.model.digest == of_run(RunDir.open(undisturbed)).digest


@pytest.mark.full
def test_a_grid_made_longer_is_what_a_long_one_would_be(tmp_path, undisturbed):
    path = tmp_path / "run"
    start_run(_points(rounds=1), out=path, observer=Silent())
    continue_run(path, rounds=3, observer=Silent())
    ours = {name: value for name, value in state_of(path).items() if "round-000001" not in name}
    assert ours == state_of(undisturbed)


def test_a_run_that_went_on_after_its_end_forgets_the_mixture_of_that_end(tmp_path):
    """Its weights and its score were those of other generators."""
    path = tmp_path / "run"
    first = start_run(_points(rounds=1), out=path, observer=Silent())
    old = first.model.components[0].trained["score"]
    stopped = _stopped_after(20, continue_run, path, rounds=3)
    assert stopped.outcome.state == "stopped"
    rundir, identity = RunDir.open(path), stopped.config.identity()
    scores = [rundir.load(cell, identity=identity).meta["score"] for cell in rundir.cells()]
    now = of_run(rundir).components[0].trained["score"]
    assert now["value"] != old["value"]
    assert now["value"] == min(scores)


ATTEMPTS = ("training.attempts=2", "cellular.mixture.final_over=grid")


def test_a_cell_that_breaks_down_once_heals_and_the_grid_finishes(tmp_path):
    def once(cell: str, state: GridState) -> bool:
        return cell == "0-1" and (state.round_, state.step, state.attempt) == (1, 2, 0)

    with Breaking(once):
        run = start_run(_points(*ATTEMPTS), out=tmp_path / "run", observer=Silent())
    assert run.outcome.state == "finished"
    (rollback,) = _events(run.path, "rollback")
    assert (rollback["cell"], rollback["round"], rollback["attempt"]) == ("0-1", 2, 1)
    healed = next(
        one for one in _events(run.path, "round") if (one["cell"], one["round"]) == ("0-1", 2)
    )
    assert healed["grid"]["generator"]["from"] in ("0-0", "1-1")


@pytest.mark.parametrize("round_", [1, 2])
def test_a_cell_that_always_breaks_down_is_frozen_and_the_others_go_on(tmp_path, round_):
    """In its first round too, when it has never been saved."""
    path = tmp_path / "run"

    def always(cell: str, state: GridState) -> bool:
        return cell == "0-1" and state.round_ == round_ - 1 and state.step == 1

    with Breaking(always):
        run = start_run(_points(*ATTEMPTS), out=path, observer=Silent())
    assert run.outcome.state == "failed"
    reason = f"the generator's loss is not finite in round {round_}, at 2 attempts"
    assert run.outcome.failed == {"0-1": reason}
    others = {"0-0": 3, "1-0": 3, "1-1": 3}
    assert run.outcome.rounds == {"0-1": round_ - 1, **others}
    for one in _events(path, "round"):
        for kind in ("generator", "discriminator"):
            assert one["grid"][kind]["fitness"] is not None, one
    # The model is a mixture of all, and the frozen one's last centre is in it.
    assert {one.cell for one in run.model.components} == {"0-1", *others}
    assert run.model.sample(8).pictures.shape == (8, 1, 1, 2)

    # It stays frozen, and the others finish as if there had been no end.
    longer = continue_run(path, rounds=4, observer=Silent())
    assert longer.outcome.state == "failed"
    assert longer.outcome.failed == {"0-1": reason}
    assert longer.outcome.rounds == {"0-1": round_ - 1, **dict.fromkeys(others, 4)}
    with Breaking(always):
        config = _points(*ATTEMPTS, rounds=4)
        undivided = start_run(config, out=tmp_path / "undivided", observer=Silent())
    ours = {k: v for k, v in state_of(path).items() if "round-000003.png" not in k}
    assert ours == state_of(undivided.path)


@pytest.mark.full
def test_a_crash_while_a_cell_is_given_up_leaves_a_run_that_can_be_finished(tmp_path, monkeypatch):
    """Whatever of it was on the disk by then: the cell's state, or that it failed."""
    path = tmp_path / "run"

    class PowerCut(Exception):
        pass

    def write(self, cell, **parts):
        if cell == "0-1":
            raise PowerCut
        return save(self, cell, **parts)

    save = RunDir.write_pending
    with monkeypatch.context() as patch, Breaking(lambda cell, state: cell == "0-1"):
        patch.setattr(RunDir, "write_pending", write)
        with pytest.raises(PowerCut):
            start_run(_points(*ATTEMPTS), out=path, observer=Silent())
    again = continue_run(path, observer=Silent())
    assert {again.outcome.rounds[cell] for cell in ("0-0", "1-0", "1-1")} == {3}
    assert again.model.sample(4).pictures.shape == (4, 1, 1, 2)


@pytest.mark.full
def test_a_stop_beside_a_frozen_cell_resumes_to_the_same_bits(tmp_path):
    def always(cell: str, state: GridState) -> bool:
        return cell == "0-0" and state.round_ == 1 and state.step == 2

    ends = []
    for steps in (-1, 25):
        path = tmp_path / str(steps)
        with Breaking(always):
            run = _stopped_after(steps, start_run, _points(*ATTEMPTS), out=path)
        if steps > 0:
            assert run.outcome.state == "stopped"
            assert "0-0" in run.outcome.failed
            run = continue_run(path, observer=Silent())
        assert run.outcome.state == "failed"
        ends.append(state_of(path))
    assert ends[0] == ends[1]


def test_an_offspring_broken_by_its_last_step_never_reaches_a_neighbour(tmp_path):
    """Nobody looks after the last step when there is one attempt, and it is taken always."""

    def last(cell: str, state: GridState) -> bool:
        return cell == "0-0" and state.round_ == 1 and state.step == 3

    config = _points("cellular.replacement=always")
    with Breaking(last):
        run = start_run(config, out=tmp_path / "run", observer=Silent())
    others = [one for one in _events(run.path, "round") if one["cell"] != "0-0"]
    assert {(one["cell"], one["round"]) for one in others} >= {("0-1", 3), ("1-0", 3), ("1-1", 3)}
    for one in others:
        for kind in ("generator", "discriminator"):
            assert one["grid"][kind]["fitness"] is not None, one
            assert one["grid"][kind]["offspring"] is not None, one
    rundir = RunDir.open(run.path)
    for cell in rundir.cells():
        found = rundir.load(cell, identity=run.config.identity())
        assert all(np.isfinite(array).all() for array in found.tensors.values())


def test_a_grid_of_one_cell_that_fails_is_tried_again_on_resume(tmp_path):
    path = tmp_path / "run"
    with Breaking(lambda cell, state: state.round_ == 1 and state.step == 1):
        run = start_run(_points(*ONE_CELL), out=path, observer=Silent())
    assert run.outcome.failed == {ALL: "the generator's loss is not finite in round 2"}
    again = continue_run(path, observer=Silent())
    assert again.outcome.state == "finished"


def test_a_grid_of_which_all_cells_fail_has_no_model_and_says_so(tmp_path):
    with Breaking(lambda cell, state: state.step == 1):
        run = start_run(_points(), out=tmp_path / "run", observer=Silent())
    assert run.outcome.state == "failed"
    assert set(run.outcome.failed) == {"0-0", "0-1", "1-0", "1-1"}
    assert not (run.path / "model").exists()
    with pytest.raises(CheckpointError, match="no cell has ended a round yet"):
        of_run(RunDir.open(run.path))


def test_isolated_cells_train_one_after_another(tmp_path):
    config = _points("cellular.neighbourhood.kind=isolated", rounds=2)
    run = start_run(config, out=tmp_path / "run", observer=Silent())
    told = [(one["cell"], one["round"]) for one in _events(run.path, "round")]
    assert told == [(cell, r) for cell in ("0-0", "0-1", "1-0", "1-1") for r in (1, 2)]
    assert len(run.model.components) == 1
