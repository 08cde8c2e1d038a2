"""Who is cloned, with what learning rate, and with what objective."""

from __future__ import annotations

from math import exp, inf, nan

import numpy as np
import pytest

from manege.cell import draw_objective, fitness, rate_at_batch, rate_when_cloned, tournament
from manege.config import (
    Fitness,
    MutationPerBatch,
    MutationPerRound,
    NoMutation,
    Objective,
    RateMutation,
)

FIRST = 2e-4
TABLE_I = MutationPerRound()
ALWAYS = MutationPerRound(probability=1)
PER_BATCH = MutationPerBatch(scale=1, probability=1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def winners(fitness_S: np.ndarray, size: int, times: int = 3000) -> np.ndarray:
    """How often each individual won."""
    source = rng()
    won = [tournament(fitness_S, size, source) for _ in range(times)]
    return np.bincount(won, minlength=len(fitness_S))


FIVE = np.array([0.5, 0.1, 0.4, 0.2, 0.3])


def test_a_tournament_of_one_is_a_uniform_draw():
    found = winners(FIVE, 1)
    chi_square = float((np.square(found - 600) / 600).sum())
    assert chi_square < 13.3  # Four degrees of freedom: more than that once in a hundred.


def test_the_chance_to_win_is_that_of_distinct_entrants():
    """Of two distinct ones of five, the fittest is among them in 4 of 10 pairs, the worst never."""
    in_order = winners(FIVE, 2)[np.argsort(FIVE)]
    expected = np.array([0.4, 0.3, 0.2, 0.1, 0.0]) * 3000
    assert in_order[-1] == 0  # It would win against itself.
    assert float((np.square(in_order - expected)[:-1] / expected[:-1]).sum()) < 11.3


@pytest.mark.parametrize("size", [5, 6, 1000])
def test_a_tournament_of_all_or_more_is_always_won_by_the_fittest(size):
    assert winners(FIVE, size, 100).tolist() == [0, 100, 0, 0, 0]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_who_is_alone_wins(size):
    assert tournament(np.array([3.0]), size, rng()) == 0


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        *((kind, nan) for kind in Fitness),
        *((kind, inf) for kind in (Fitness.AVERAGE, Fitness.WORST)),
        *((kind, -inf) for kind in (Fitness.AVERAGE, Fitness.BEST)),
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_who_has_no_fitness_never_wins(kind, broken, place):
    """One loss that is no number is enough, whichever it is."""
    losses_AO = np.arange(1.0, 13.0).reshape(4, 3)
    losses_AO[0, place] = broken
    told_A = fitness(losses_AO, kind)
    assert told_A[0] == inf
    won = winners(told_A, 2, 200)
    assert won[0] == 0
    assert won[1] > 0


def test_selection_is_a_function_of_its_stream():
    drawn = [[tournament(FIVE, 2, source) for _ in range(20)] for source in (rng(1), rng(1))]
    assert drawn[0] == drawn[1]
    assert drawn[0] != [tournament(FIVE, 2, source) for source in [rng(2)] * 20]


# Learning rates.


def cloned(mutation: RateMutation, rate: float = FIRST, times: int = 4000) -> np.ndarray:
    source = rng()
    return np.array([rate_when_cloned(rate, FIRST, mutation, source) for _ in range(times)])


def at_batches(mutation: RateMutation, rate: float = FIRST, times: int = 4000) -> np.ndarray:
    source = rng()
    return np.array([rate_at_batch(rate, FIRST, mutation, source) for _ in range(times)])


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_a_rate_is_mutated_with_its_probability(probability):
    for rates in (
        cloned(MutationPerRound(probability=probability)),
        at_batches(MutationPerBatch(scale=1, probability=probability)),
    ):
        changed = float((rates != FIRST).mean())
        assert changed == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize("scale", [2e-5, 4e-5])
def test_a_mutation_is_log_normal_with_scale_over_the_first_rate(scale):
    """Small enough for the bounds not to be met: τ is 0.1 and 0.2."""
    logs = np.log(cloned(MutationPerRound(scale=scale, probability=1)) / FIRST)
    assert logs.mean() == pytest.approx(0, abs=4 * scale / FIRST / np.sqrt(4000))
    assert logs.std() == pytest.approx(scale / FIRST, rel=0.05)
    assert np.abs(logs).max() < np.log(5)


def test_a_mutation_moves_from_the_rate_that_was_inherited():
    rate = 7e-4
    assert cloned(MutationPerRound(scale=2e-5, probability=1), rate).mean() == pytest.approx(
        rate * exp(0.1**2 / 2), rel=0.02
    )


def test_a_mutated_rate_stays_within_a_tenth_and_five_times_the_first():
    wild = MutationPerRound(scale=1e-2, probability=1)
    rates = cloned(wild)
    assert rates.min() == FIRST * 0.1
    assert rates.max() == FIRST * 5.0
    assert float((rates == FIRST * 0.1).mean()) > 0.3
    assert float((rates == FIRST * 5.0).mean()) > 0.3
    # A walk of many rounds stays inside too; with Table I it gets about.
    rate, source, seen = FIRST, rng(), []
    for _ in range(500):
        rate = rate_when_cloned(rate, FIRST, ALWAYS, source)
        seen.append(rate)
    assert FIRST * 0.1 <= min(seen) < FIRST / 5
    assert FIRST * 3 < max(seen) <= FIRST * 5


def test_table_i_moves_half_of_the_rates_by_about_a_ten_thousandth():
    rates = cloned(TABLE_I)
    moved = rates[rates != FIRST]
    assert len(moved) / len(rates) == pytest.approx(0.5, abs=0.03)
    assert np.median(np.abs(moved - FIRST)) == pytest.approx(0.67 * 1e-4, rel=0.15)


def test_without_mutation_a_rate_stays_and_nothing_is_drawn():
    source = rng()
    for rate in (FIRST, 9e-4):
        assert rate_when_cloned(rate, FIRST, NoMutation(), source) == rate
        assert rate_at_batch(rate, FIRST, NoMutation(), source) == rate
    assert source.bit_generator.state == rng().bit_generator.state


def test_each_kind_of_mutation_has_its_own_moment():
    assert (at_batches(ALWAYS, times=10) == FIRST).all()
    assert (cloned(PER_BATCH, times=10) == FIRST).all()


def test_a_mutation_per_batch_adds_what_the_public_implementation_adds():
    """scale · N(-first / 10, first), and never below a tenth of the first rate."""
    rates = at_batches(MutationPerBatch(scale=0.1, probability=1))
    steps = (rates - FIRST) / 0.1
    assert steps.mean() == pytest.approx(-FIRST / 10, abs=4 * FIRST / np.sqrt(4000))
    assert steps.std() == pytest.approx(FIRST, rel=0.05)
    wild = at_batches(MutationPerBatch(scale=10, probability=1))
    assert wild.min() == FIRST * 0.1
    assert wild.max() > FIRST * 5


# Objectives.


def test_all_objectives_are_drawn_equally_often_minimax_among_them():
    source = rng()
    drawn = [draw_objective(tuple(Objective), source) for _ in range(3000)]
    for objective in (Objective.MINIMAX, Objective.HEURISTIC, Objective.LEAST_SQUARES):
        assert drawn.count(objective) == pytest.approx(1000, abs=100)


def test_where_there_is_no_choice_of_objectives_nothing_is_drawn():
    source = rng()
    assert draw_objective((), source) is None
    assert source.bit_generator.state == rng().bit_generator.state
    only = (Objective.MINIMAX,)
    assert {draw_objective(only, source) for _ in range(9)} == {Objective.MINIMAX}
