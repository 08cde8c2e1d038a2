"""Hundreds of deaths at random places, one after another; `make soak`."""

from __future__ import annotations

import random

import pytest

from manege.runs import COMMIT_POINTS
from tests.recovery.test_kills import EVERY_ROUND, EVERY_STEP, STEPS, all_well, run_plan


@pytest.mark.soak
@pytest.mark.parametrize("number", range(8))
def test_random_deaths_in_pairs_leave_the_same_bits(forker, tmp_path, number):
    rng = random.Random(number)
    saving = rng.choice([EVERY_ROUND, EVERY_STEP])
    first = [f"step@{rng.randint(1, STEPS)}" for _ in range(15)]
    first += [f"{rng.choice(COMMIT_POINTS)}@{rng.randint(1, 4)}" for _ in range(15)]
    # The second strikes in the first commit after the resume, if one is left to come.
    second = rng.choice(["commit:before", "commit:written", "commit:renamed"])
    all_well(run_plan(forker, tmp_path, saving, first, [second]), times_killed_again=None)
