"""SIGKILL at every step of a run and inside every part of a commit: the result is the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from manege.runs import COMMIT_POINTS

from .conftest import Forker

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
# As in the paper, but for the widths: where a run dies does not depend on them.
NARROW = {
    "networks.generator_width": "8",
    "networks.discriminator_width": "4",
    "networks.latent": "8",
}
BARE = NARROW | {"networks.discriminator_batchnorm": "false"}
RESNET = NARROW | {"networks.kind": "resnet"}
ADAPTIVE = {
    "training.augment.kind": "adaptive",
    "training.augment.every_steps": "1",
    "training.augment.step": "0.3",
    "training.augment.target": "0.01",
    "training.optimiser.discriminator_lr": "0.05",  # Learns something by heart at once.
}


def loss_and(loss: str, constraint: str = "none") -> dict[str, str]:
    return {"training.loss": loss, "training.constraint.kind": constraint}


# Every loss, every constraint, and whatever else has a state or draws numbers of its own.
SETTINGS = {
    "as in the paper": {},
    "bce, n_critic 2": NARROW | loss_and("bce") | {"training.n_critic": "2"},
    "wasserstein, clip": NARROW | loss_and("wasserstein", "clip"),
    "mlp": {"networks.kind": "mlp", "training.batches_per_round": "2"},
    "minimax, flips": NARROW | loss_and("minimax") | {"training.flip": "true"},
    "least-squares, r1": BARE | loss_and("least-squares", "r1"),
    "hinge, spectral": BARE | loss_and("hinge", "spectral"),
    "relativistic, r1r2, ema": BARE | loss_and("relativistic", "r1r2") | {"training.ema": "0.9"},
    "wasserstein, gp, attempts": BARE | loss_and("wasserstein", "gp") | {"training.attempts": "3"},
    "adaptive augmentation": NARROW | loss_and("bce") | ADAPTIVE,
    "resnet": RESNET | loss_and("hinge", "spectral"),
    "single": NARROW | loss_and("bce") | {"method": "single"},
    "conditional": NARROW | loss_and("bce") | {"method": "conditional"},
    "conditional resnet, all of it": RESNET
    | loss_and("relativistic", "r1")
    | ADAPTIVE
    | {
        "method": "conditional",
        "training.ema": "0.9",
        "training.flip": "true",
        "training.n_critic": "2",
        "training.attempts": "3",
        "training.optimiser.discriminator_lr": "0.002",
    },
}


def run_plan(
    forker: Forker, work: Path, sets: dict, failpoints: list[str], then: list[str] | None = None
) -> dict[str, Any]:
    """What became of the reference and of each failpoint's victim."""
    told = forker({"work": str(work), "sets": sets, "failpoints": failpoints, "then": then or []})
    assert [one["failpoint"] for one in told["results"]] == failpoints
    return told


def all_well(told: dict, times_killed_again: int | None = 0) -> None:
    """Every run was killed, resumed and ended in the same bits; None: killed again or not."""
    results = told["results"]
    assert all(one["killed"] for one in results), results
    if times_killed_again is not None:
        assert all(one["killed_again"] == times_killed_again for one in results), results
    assert all(one["resumed"] for one in results), results
    assert all(one["same"] for one in results), results


@pytest.mark.full
@pytest.mark.parametrize(
    "saving",
    [
        pytest.param(EVERY_ROUND, id="by round", marks=pytest.mark.soak),
        pytest.param(EVERY_STEP, id="by step"),
    ],
)
def test_killed_at_every_step_the_result_is_the_same_bits(forker, tmp_path, saving):
    steps = [f"step@{n}" for n in range(1, STEPS + 1)]
    all_well(run_plan(forker, tmp_path, saving | NARROW, steps))


@pytest.mark.full
def test_killed_three_times_in_a_row_the_result_is_the_same_bits(forker, tmp_path):
    plan = (EVERY_STEP | NARROW, ["step@2", "step@5"], ["step@1", "step@3"])
    all_well(run_plan(forker, tmp_path, *plan), 2)


@pytest.mark.full
def test_killed_inside_every_part_of_a_commit_the_result_is_the_same_bits(forker, tmp_path):
    points = [f"{point}@{n}" for point in COMMIT_POINTS for n in (1, 3)]
    all_well(run_plan(forker, tmp_path, EVERY_ROUND | NARROW, points))


# Left to make soak: less of a state of their own than the others.
PLAIN = {"minimax, flips", "least-squares, r1", "resnet", "single", "conditional", "mlp"}


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.soak) if one in PLAIN else one for one in SETTINGS],
)
def test_other_settings_resume_to_the_same_bits_too(forker, tmp_path, name):
    """Taken up at the end of a round, and within one."""
    told = run_plan(forker, tmp_path, EVERY_STEP | SETTINGS[name], ["step@3", "step@4"])
    all_well(told)
    if "training.augment.kind" in SETTINGS[name]:
        # It had adapted where it is taken up, so that something could go wrong.
        first = next(value for key, value in told["reference"].items() if "round 1 of" in key)
        assert float(re.search(r"'chance': ([\d.]+)", first)[1]) > 0


@pytest.mark.full
def test_scored_and_averaged_runs_end_with_the_same_best_and_average_too(forker, tmp_path):
    """Each of these deaths lies between two scores, or in a commit of a new average and best."""
    sets = EVERY_STEP | SCORED_POINTS
    steps = [f"step@{n}" for n in range(1, STEPS + 1, 2)]
    all_well(run_plan(forker, tmp_path, sets, steps + [f"{point}@4" for point in COMMIT_POINTS]))


def test_killed_round_a_last_score_off_the_schedule_the_result_is_the_same_bits(forker, tmp_path):
    """Three rounds, scored every second: the fourth commit holds the last score."""
    sets = EVERY_ROUND | SCORED_POINTS | {"score.every_rounds": "2"}
    points = ["step@5", *(f"{point}@4" for point in COMMIT_POINTS)]
    all_well(run_plan(forker, tmp_path, sets, points))
