"""SIGKILL at every step of a run and inside every part of a commit: the result is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manege.rundir import COMMIT_POINTS

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12

EVERY_ROUND = {"checkpoints.every_rounds": "1"}
EVERY_STEP = {"checkpoints.every_s": "0.000001"}
# Points are their own features: no network has to be trained to score them.
SCORED_POINTS = {
    "data.source": "ring8",
    "networks.kind": "mlp",
    "networks.hidden": "8",
    "training.ema": "0.9",
    "training.optimiser.generator_lr": "0.05",  # Too fast: the best is not always the last.
    "score.metric": "kid",
    "score.every_rounds": "1",
    "score.samples": "16",
}


def run_plan(tmp_path: Path, sets: dict, failpoints: list[str], then: list[str] | None = None):
    """What became of each failpoint's victim."""
    plan = {"sets": sets, "failpoints": failpoints, "then": then or []}
    done = subprocess.run(
        [sys.executable, "-m", "tests.recovery.forker", str(tmp_path), json.dumps(plan)],
        cwd=ROOT,
        env=os.environ | {"MANEGE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)["results"]
    assert [one["failpoint"] for one in results] == failpoints
    return results


def all_well(results: list, times_killed_again: int | None = 0) -> None:
    """Every run was killed, resumed and ended in the same bits; None: killed again or not."""
    assert all(one["killed"] for one in results), results
    if times_killed_again is not None:
        assert all(one["killed_again"] == times_killed_again for one in results), results
    assert all(one["resumed"] for one in results), results
    assert all(one["same"] for one in results), results


@pytest.mark.parametrize("saving", [EVERY_ROUND, EVERY_STEP], ids=["by round", "by step"])
def test_killed_at_every_step_the_result_is_the_same_bits(tmp_path, saving):
    all_well(run_plan(tmp_path, saving, [f"step@{n}" for n in range(1, STEPS + 1)]))


def test_killed_three_times_in_a_row_the_result_is_the_same_bits(tmp_path):
    all_well(run_plan(tmp_path, EVERY_STEP, ["step@2", "step@5"], ["step@1", "step@3"]), 2)


def test_killed_inside_every_part_of_a_commit_the_result_is_the_same_bits(tmp_path):
    points = [f"{point}@{n}" for point in COMMIT_POINTS for n in (1, 3)]
    all_well(run_plan(tmp_path, EVERY_ROUND, points))


@pytest.mark.parametrize(
    "sets",
    [
        {"training.loss": "bce", "training.n_critic": "2"},
        {"training.constraint.kind": "clip"},
        {"networks.kind": "mlp", "training.batches_per_round": "2"},
    ],
    ids=["bce, n_critic 2", "clip", "mlp"],
)
def test_other_settings_resume_to_the_same_bits_too(tmp_path, sets):
    all_well(run_plan(tmp_path, EVERY_STEP | sets, ["step@1", "step@4"]))


def test_scored_and_averaged_runs_end_with_the_same_best_and_average_too(tmp_path):
    """Each of these deaths lies between two scores, or in a commit of a new average and best."""
    sets = EVERY_STEP | SCORED_POINTS
    steps = [f"step@{n}" for n in range(1, STEPS + 1, 2)]
    all_well(run_plan(tmp_path, sets, steps + [f"{point}@4" for point in COMMIT_POINTS]))


def test_killed_round_a_last_score_off_the_schedule_the_result_is_the_same_bits(tmp_path):
    """Three rounds, scored every second: the fourth commit holds the last score."""
    sets = EVERY_ROUND | SCORED_POINTS | {"score.every_rounds": "2"}
    all_well(run_plan(tmp_path, sets, ["step@5", *(f"{point}@4" for point in COMMIT_POINTS)]))
