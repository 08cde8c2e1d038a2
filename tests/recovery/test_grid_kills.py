"""A grid killed anywhere: whoever was ahead, whoever was behind, the result is the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from manege.api import continue_run, start_run
from manege.errors import CheckpointError
from manege.runs import COMMIT_POINTS, RunDir
from manege.sampler import open_model
from tests.helpers.command import run_here
from tests.helpers.forker import Silent, config, state_of
from tests.helpers.observers import StopAfterSteps

from .test_kills import EVERY_ROUND, EVERY_STEP, all_well, run_plan

# Points are their own features: no network has to be trained to score their mixtures.
GRID = {
    "data.source": "ring8",
    "method": "cellular",
    "training.loss": "bce",
    "networks.kind": "mlp",
    "networks.hidden": "8",
    "networks.latent": "4",
    "training.batches_per_round": "2",
    "cellular.rows": "2",
    "cellular.columns": "2",
    "cellular.fitness_samples": "32",
    "cellular.mixture.samples": "100",
    "cellular.mixture.steps": "5",
    "cellular.mixture.final_samples": "200",
    "cellular.mixture.final_steps": "5",
}
STEPS = 3 * 4 * 2
EVERYTHING = {
    "cellular.population": "2",
    "cellular.objectives": "[minimax, heuristic, least-squares]",
    "cellular.opponents": "neighbourhood",
    "cellular.mutation.kind": "batch",
    "cellular.data_fraction": "0.5",
    "cellular.changes": "[{from_round: 3, neighbourhood: {kind: nine}}]",
    "training.attempts": "3",
}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.full
def test_a_grid_killed_at_random_steps_ends_in_the_same_bits(forker, tmp_path):
    steps = random.Random(1).sample(range(1, STEPS + 1), 4)
    told = run_plan(forker, tmp_path, GRID, [f"step@{n}" for n in steps])
    all_well(told)
    assert sum(name.startswith("cell ") for name in told["reference"]) == 4
    assert any("@" in name for name in told["reference"]), "no mixture was to be chosen"


@pytest.mark.full
def test_a_grid_killed_four_times_in_a_row_ends_in_the_same_bits(forker, tmp_path):
    then = ["step@3", "commit:written@2", "step@6"]
    all_well(run_plan(forker, tmp_path, GRID | EVERY_STEP | EVERYTHING, ["step@5"], then), 3)


@pytest.mark.full
def test_a_grid_killed_inside_every_part_of_a_commit_ends_in_the_same_bits(forker, tmp_path):
    """The first commit of the first cell, and one in the midst, when some are ahead of others."""
    points = [f"{point}@{1 + 5 * (n % 2)}" for n, point in enumerate(COMMIT_POINTS)]
    all_well(run_plan(forker, tmp_path, GRID | EVERY_ROUND, points))


# The real command, killed by the clock.

TRAIN = (
    *("train", "ring8", "--method", "cellular", "--grid", "2x2", "--rounds", "6"),
    *("--limit-per-class", "40", "--batch", "40", "--checkpoint-every", "0.05s"),
    *(
        word
        for key in GRID
        if key.startswith(("networks", "cellular.m", "cellular.f"))
        for word in ("--set", f"{key}={GRID[key]}")
    ),
)


def _commits(path: Path) -> int:
    events = path / "events.jsonl"
    return events.read_text().count('"event":"commit"') if events.exists() else 0


@pytest.mark.full
def test_the_command_killed_at_random_moments_ends_with_the_same_model(tmp_path):
    assert run_here(*TRAIN, "--out", "reference", cwd=tmp_path).code == 0
    path, rng = tmp_path / "run", random.Random(7)
    for command in ((*TRAIN, "--out", path), ("resume", path)):
        process = subprocess.Popen(
            [sys.executable, "-m", "manege", *map(str, command)],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = _commits(path)
        for _ in range(6000):
            if _commits(path) > before:
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        assert RunDir.open(path).status()["state"] == "interrupted"
    done = run_here("resume", path, cwd=tmp_path)
    assert done.code == 0, done.err
    assert open_model(path).digest == open_model(tmp_path / "reference").digest
    assert state_of(path) == state_of(tmp_path / "reference")


# Damage.


# So that whoever meets another centre than it should becomes another one itself.
TOUCHY = GRID | {"cellular.opponents": "neighbourhood", "cellular.replacement": "always"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    start_run(config(**TOUCHY), out=path, observer=Silent())
    return state_of(path)


@pytest.mark.parametrize(
    ("steps", "cell", "ahead"),
    [(20, "0-0", 1), (20, "1-1", 2), (18, "0-1", 2)],
    ids=["it is ahead", "it is behind", "it is behind its neighbours"],
)
def test_a_damaged_newest_checkpoint_of_a_cell_never_changes_the_result(
    tmp_path, undisturbed, steps, cell, ahead
):
    """Or, where neighbours have gone on too far to take it along, the run is refused."""
    path, stopper = tmp_path / "run", StopAfterSteps(steps)
    start_run(config(**TOUCHY), out=path, observer=stopper)
    rundir = RunDir.open(path)
    newest, older = rundir.commits(cell)
    rounds = {one: rundir.commits(one)[0].round_ for one in rundir.cells()}
    assert max(rounds.values()) - older.round_ == ahead
    file = path / "checkpoints" / cell / newest.file
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with suppress(CheckpointError) if ahead == 2 else nullcontext():
        continue_run(path, observer=Silent())
        assert state_of(path) == undisturbed
