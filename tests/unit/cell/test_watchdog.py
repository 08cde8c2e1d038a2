"""Trouble is told when there is some, and never of an ordinary state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from manege.cell import CellState, collapse, new_state, round_trouble, spread_of, step_trouble
from manege.config import resolve
from manege.models import PictureShape

NAN, INF = math.nan, math.inf


def _state(*sets: str) -> CellState:
    base = ["networks.kind=mlp", "networks.hidden=8", "training.ema=0.9"]
    config = resolve(preset="paper", flags={"data.source": "digits"}, sets=[*base, *sets])
    return new_state(config, "3", PictureShape(8, 1), torch.device("cpu"))


def _in_round(**values: float) -> CellState:
    """A state at the end of an ordinary round of 10 steps."""
    state = _state()
    state.remember()
    state.step = 10
    state.loss_sums += torch.tensor([7.0, -30.0])
    for name, value in values.items():
        setattr(state, name, value)
    return state


def _trouble(state: CellState, spread: float = 8.0, real_spread: float = 10.0) -> str | None:
    return round_trouble(state, 10) or collapse(state, spread, real_spread)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(("player", "place"), [("discriminator", 0), ("generator", 1)])
def test_a_loss_that_is_no_number_is_told_with_its_player(player, place, bad):
    state = _in_round()
    assert step_trouble(state) is None
    state.loss_sums[place] += bad
    assert step_trouble(state) == f"the {player}'s loss is not finite"


def test_large_losses_are_no_trouble_within_a_round():
    state = _in_round()
    state.loss_sums.fill_(1e12)
    assert step_trouble(state) is None


def test_an_ordinary_round_is_no_trouble():
    assert _trouble(_in_round()) is None
    assert _trouble(_in_round(widest=9.0)) is None


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("part", ["generator", "discriminator", "ema"])
def test_a_weight_or_moment_that_is_no_number_is_told(part, bad):
    state = _in_round()
    flat = state.ema if part == "ema" else getattr(state.pair, part).record
    for place in (0, len(flat) // 2, len(flat) - 20):
        kept = flat[place].item()
        flat[place] = bad
        assert _trouble(state) == "a weight is not finite"
        flat[place] = kept
    assert _trouble(state) is None


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_exploding_losses_are_told_by_their_mean_over_the_round(place, sign):
    state = _in_round()
    state.loss_sums[place] = sign * 0.99e7  # Ten steps.
    assert _trouble(state) is None
    state.loss_sums[place] = sign * 1.01e7
    assert "the losses have exploded to " in (told := _trouble(state))
    assert "1.01e+06" in told


@pytest.mark.parametrize("part", ["generator", "discriminator"])
def test_weights_that_grow_out_of_bounds_are_told(part):
    state = _in_round()
    weights = getattr(state.pair, part).weights
    with torch.no_grad():
        weights.mul_(9.9)
        assert _trouble(state) is None
        assert state.growth() == pytest.approx(9.9, rel=1e-5)
        weights.mul_(1.1)
    assert _trouble(state) == "the weights have grown 10.9 times within the round"


def test_weights_that_shrink_or_were_large_before_are_no_trouble():
    state = _in_round()
    with torch.no_grad():
        state.pair.generator.weights.mul_(0.01)
    assert _trouble(state) is None
    state = _state()
    with torch.no_grad():
        state.pair.generator.weights.mul_(100)
    assert state.growth() == 1  # Nothing is remembered: nothing has grown.
    state.remember()
    state.step = 10
    assert _trouble(state) is None


def test_buffers_and_moments_do_not_count_as_weights():
    state = _in_round()
    state.pair.discriminator.record[len(state.pair.discriminator.weights) :].fill_(1e4)
    assert state.growth() == pytest.approx(1, rel=1e-5)
    assert _trouble(state) is None


@pytest.mark.parametrize(
    ("widest", "spread", "real", "collapsed"),
    [
        (0.0, 0.001, 10.0, False),  # The first round: fresh samples hardly differ.
        (0.0, 5.0, 10.0, False),
        (6.0, 3.1, 10.0, False),
        (6.0, 2.9, 10.0, True),
        (6.0, 0.0, 10.0, True),
        (20.0, 5.1, 10.0, False),  # Wider than the pictures: those count.
        (20.0, 4.9, 10.0, True),
        (6.0, 12.0, 10.0, False),  # It grows.
        (6.0, 0.0, 0.0, False),  # Pictures that are all alike.
    ],
)
def test_samples_that_collapse_are_told(widest, spread, real, collapsed):
    told = _trouble(_in_round(widest=widest), spread, real)
    assert (told is not None) == collapsed
    if told is not None:
        assert told == (
            f"the samples have collapsed: their mean distance is {spread:.3g}, it was "
            f"{widest:.3g} before and is {real:.3g} between real pictures"
        )


def test_judging_changes_nothing():
    state = _in_round(widest=6.0)
    before = {name: array.copy() for name, array in state.to_arrays().items()}
    counters = state.counters()
    step_trouble(state)
    _trouble(state, 1.0)
    assert state.counters() == counters
    for name, array in state.to_arrays().items():
        assert np.array_equal(array, before[name]), name


def test_the_spread_is_the_mean_distance_of_two_pictures():
    x = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    rows = x.flatten(1).numpy().astype(np.float64)
    every = [np.linalg.norm(rows[i] - rows[j]) for i in range(5) for j in range(i)]
    assert spread_of(x) == pytest.approx(np.mean(every), rel=1e-5)
    assert spread_of(x[:1].expand(5, -1, -1, -1)) == 0
