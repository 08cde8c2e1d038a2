"""A grid cell's state: what it publishes, and that taking it apart loses nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from manege.cell import Centre, GridState, new_state, published
from manege.config import resolve
from manege.models import PictureShape

SHAPE = PictureShape(8, 1)
SETS = ["networks.hidden=8", "networks.latent=4"]


def _state(population: int = 1, cell: str = "0-0") -> GridState:
    """An untrained cell, made as the method makes it."""
    config = resolve(preset="cellular-paper", flags={"data.source": "digits"}, sets=SETS)
    states = [
        new_state(config, f"{cell} {k}", SHAPE, torch.device("cpu")) for k in range(population)
    ]
    generators = [one.pair.generator.to_numpy().copy() for one in states]
    discriminators = [one.pair.discriminator.to_numpy().copy() for one in states]
    centre = Centre(0, generators[0], discriminators[0], np.zeros(3))
    return GridState(states[0], generators, discriminators, centre)


def _ended_round(state: GridState, generator: int, discriminator: int) -> None:
    """A round that made those individuals the centre."""
    round_ = state.round_ + 1
    state.publish(
        Centre(
            round_,
            state.generators[generator],
            state.discriminators[discriminator],
            np.full(3, float(round_)),
        )
    )
    state.offspring.end_round(0.5)


def _again(state: GridState, population: int = 1) -> GridState:
    """Taken apart as a commit does it, and put together: the counters have been JSON."""
    arrays = {name: array.copy() for name, array in state.to_arrays().items()}
    other = _state(population, cell="another")
    other.restore(arrays, json.loads(json.dumps(state.counters())))
    return other


def _bits(state: GridState) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.to_arrays().items()}


def test_a_cell_shows_its_last_centre_or_the_one_before():
    state = _state()
    first = state.centre
    assert published(state.centres(), 0) is first
    _ended_round(state, 0, 0)
    assert (state.centre.round_, state.previous) == (1, first)
    assert published(state.centres(), 0) is first  # To a neighbour that is a round behind.
    assert published(state.centres(), 1) is state.centre
    _ended_round(state, 0, 0)
    assert [published(state.centres(), round_).round_ for round_ in (1, 2)] == [1, 2]


def test_of_a_frozen_cell_the_last_centre_is_shown_for_ever():
    state = _state()
    _ended_round(state, 0, 0)
    assert [published(state.centres(), round_).round_ for round_ in (1, 2, 3, 50)] == [1, 1, 1, 1]


@pytest.mark.parametrize("population", [1, 3])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_between_rounds_taken_apart_and_put_together_it_is_the_same(population, rounds):
    state = _state(population)
    for number in range(rounds):
        _ended_round(state, number % population, (number + 1) % population)
    state.weights, state.score = {"0-0": 0.25, "0-1": 0.75}, 0.125
    again = _again(state, population)
    assert _bits(again) == _bits(state)
    assert again.counters() == state.counters()
    for round_ in (max(0, rounds - 1), rounds):
        one, other = published(state.centres(), round_), published(again.centres(), round_)
        assert one.round_ == other.round_ == round_
        for name, array in one.to_arrays().items():
            assert array.tobytes() == other.to_arrays()[name].tobytes()


def test_in_mid_round_the_offspring_is_kept_and_between_rounds_it_is_not():
    state = _state()
    assert "generator" not in state.to_arrays()
    state.offspring.step = 3
    state.offspring.loss_sums += 2.5
    with torch.no_grad():
        state.offspring.pair.generator.record[5] = 7.0
    again = _again(state)
    assert (again.round_, again.step, again.attempt) == (0, 3, 0)
    assert again.offspring.loss_sums.tolist() == [2.5, 2.5]
    assert again.offspring.pair.generator.record[5] == 7.0
    assert again.generators[0][5] != 7.0
    assert _bits(again) == _bits(state)


def test_the_centre_is_one_of_the_individuals_before_and_after():
    state = _state(3)
    _ended_round(state, 2, 1)
    again = _again(state, 3)
    assert again.counters()["centre"] == [1, 2, 1]
    # The same object: a round tells by that whether its generator's moments are known.
    assert again.centre.generator is again.generators[2]
    assert again.centre.discriminator is again.discriminators[1]


def test_what_was_restored_is_nobody_else_s():
    state = _state(2)
    _ended_round(state, 1, 0)
    arrays = state.to_arrays()
    other = _state(2, cell="another")
    other.restore(arrays, state.counters())
    before = _bits(other)
    for array in arrays.values():
        array.fill(9)
    assert _bits(other) == before


@pytest.mark.parametrize("where", ["generator", "discriminator", "moments"])
def test_a_broken_centre_is_not_finite(where):
    state = _state()
    assert state.is_finite()
    state.centre.to_arrays()[where][1] = np.nan
    assert not state.is_finite()
    assert not state.centre.is_finite()


def test_a_broken_offspring_counts_only_in_mid_round():
    state = _state()
    with torch.no_grad():
        state.offspring.pair.discriminator.record[1] = np.inf
    assert state.is_finite()  # A round begins with a new one.
    state.offspring.step = 1
    assert not state.is_finite()


def test_a_grid_keeps_no_best_generator():
    assert _state().best is None
