"""The running average of a generator's weights, the best generator so far, and who is better."""

from __future__ import annotations

import json
from math import inf, nan

import numpy as np
import pytest
import torch

from manege.cell import CellState, Judgement, WeightsKind, generator_with, new_state
from manege.config import resolve
from manege.metrics import Estimate
from manege.models import PictureShape, generate

CPU = torch.device("cpu")
SHAPE = PictureShape(8, 1)
RAMP = 9


def _state(ema: float = 0.0, kind: str = "mlp") -> CellState:
    small = ["networks.hidden=4"] if kind == "mlp" else []
    flags = {"data.source": "digits", "networks.kind": kind, "training.ema": ema}
    config = resolve(preset="paper", flags=flags, sets=small)
    return new_state(config, "3", SHAPE, CPU)


def _move(state: CellState, seed: int) -> np.ndarray:
    """As if a step had been done: other weights, returned in double."""
    body = state.pair.generator.body
    body.copy_(torch.randn(body.shape, generator=torch.Generator().manual_seed(seed)))
    return body.double().numpy()


def _judgement(raw: float, ema: float | None = None, round_: int = 1) -> Judgement:
    scores = {WeightsKind.RAW: Estimate(raw, raw - 1, raw + 1)}
    if ema is not None:
        scores[WeightsKind.EMA] = Estimate(ema, ema - 2, ema + 2)
    return Judgement(round_, scores)


# The average.


@pytest.mark.parametrize("decay", [0.3, 0.9, 0.999])
def test_the_average_is_that_of_plain_arithmetic_in_double(decay):
    state = _state(decay)
    expected = None
    for update in range(60):
        body = _move(state, update)
        kept = min(decay, update / (update + RAMP))
        expected = body if expected is None else kept * expected + (1 - kept) * body
        state.average(decay)
        assert state.averaged == update + 1
    np.testing.assert_allclose(state.ema.numpy(), expected, rtol=0, atol=2e-6)


def test_the_average_is_nearer_to_the_mean_than_the_last_weights_are():
    state = _state(0.99)
    for update in range(200):
        _move(state, update)
        state.average(0.99)
    # White noise: an average over about 20 and more of them is a few times smaller.
    assert state.ema.std() < 0.4 * state.pair.generator.body.std()


def test_the_first_update_copies_the_generator():
    state = _state(0.999)
    untrained = state.pair.generator.body.clone()
    assert torch.equal(state.ema, untrained)
    _move(state, 1)
    state.average(0.999)
    assert torch.equal(state.ema, state.pair.generator.body)
    assert not torch.equal(state.ema, untrained)
    assert state.ema.data_ptr() != state.pair.generator.body.data_ptr()


def test_the_average_holds_buffers_too_and_changes_nothing_in_the_pair():
    state = _state(0.5, kind="dcgan")
    generator = state.pair.generator.network
    for seed in range(2):
        _move(state, seed)
        before = state.pair.generator.record.clone()
        state.average(0.5)
        assert torch.equal(before, state.pair.generator.record)
    averaged = generator_with(
        resolve(preset="paper", flags={"data.source": "digits"}).networks, SHAPE, state.ema
    )
    names = dict(averaged.named_buffers())
    assert names
    for name, buffer in names.items():
        assert not torch.equal(buffer, generator.get_buffer(name))


def test_without_ema_there_is_no_average_and_none_in_a_commit():
    state = _state(0.0)
    state.average(0.0)
    assert state.ema is None
    assert state.averaged == 0
    assert list(state.bodies()) == [WeightsKind.RAW]
    assert set(state.to_arrays()) == {"generator", "discriminator", "loss_sums"}
    assert list(_state(0.9).bodies()) == [WeightsKind.RAW, WeightsKind.EMA]
    assert "ema" in _state(0.9).to_arrays()


def test_an_average_that_is_not_finite_is_noticed():
    state = _state(0.9)
    assert state.is_finite()
    state.ema[3] = inf
    assert not state.is_finite()


def test_a_generator_on_a_body_draws_what_its_owner_draws_and_leaves_it_alone():
    config = resolve(preset="paper", flags={"data.source": "digits"})
    state = new_state(config, "3", SHAPE, CPU)
    z = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    before = state.pair.generator.record.clone()
    drawn = generate(generator_with(config.networks, SHAPE, state.pair.generator.body), z)
    assert np.array_equal(drawn, generate(state.pair.generator.network, z))
    assert torch.equal(before, state.pair.generator.record)
    state.pair.generator.check_views()


# Who is better.


@pytest.mark.parametrize(
    ("raw", "ema", "chosen"),
    [
        (1.0, None, WeightsKind.RAW),
        (1.0, 2.0, WeightsKind.RAW),
        (2.0, 1.0, WeightsKind.EMA),
        (-0.1, -0.2, WeightsKind.EMA),
        (1.0, 1.0, WeightsKind.RAW),
        (nan, 5.0, WeightsKind.EMA),
        (5.0, nan, WeightsKind.RAW),
        (nan, inf, WeightsKind.EMA),
        (inf, nan, WeightsKind.RAW),
    ],
)
def test_the_better_weights_are_chosen_the_raw_ones_on_a_tie_and_never_nan(raw, ema, chosen):
    judgement = _judgement(raw, ema, round_=7)
    assert judgement.chosen is chosen
    best = judgement.best()
    assert (best["round"], best["weights"]) == (7, chosen.value)
    score = judgement.scores[chosen]
    assert (best["value"], best["low"], best["high"]) == (score.value, score.low, score.high)


# The best so far.


def test_the_best_is_a_copy_that_later_training_does_not_change():
    state = _state(0.9)
    body = _move(state, 1).astype(np.float32)
    state.average(0.9)
    state.keep_if_better(_judgement(2.0, 3.0))
    _move(state, 2)
    state.average(0.9)
    assert np.array_equal(state.best.body, body)
    average = state.ema.numpy().copy()
    assert not np.array_equal(average, state.pair.generator.body.numpy())
    state.keep_if_better(_judgement(2.0, 1.0, round_=2))
    state.average(0.9)
    _move(state, 3)
    state.average(0.9)
    assert np.array_equal(state.best.body, average)
    assert state.best.score == {
        "round": 2,
        "weights": "ema",
        "value": 1.0,
        "low": -1.0,
        "high": 3.0,
    }


@pytest.mark.parametrize("worse", [1.0, 1.5, inf, nan])
def test_the_best_is_not_replaced_by_what_is_no_better(worse):
    state = _state()
    body = _move(state, 1).astype(np.float32)
    state.keep_if_better(_judgement(1.0))
    _move(state, 2)
    state.keep_if_better(_judgement(worse, round_=2))
    assert state.best.score["round"] == 1
    assert np.array_equal(state.best.body, body)


def test_the_best_is_replaced_by_anything_better():
    state = _state()
    for round_, value in enumerate([0.5, 0.4999, -0.01, -0.02], start=1):
        body = _move(state, round_).astype(np.float32)
        state.keep_if_better(_judgement(value, round_=round_))
        assert state.best.score["round"] == round_
        assert np.array_equal(state.best.body, body)


# Taken apart and put together.


@pytest.mark.parametrize("kind", ["mlp", "dcgan"])
def test_a_state_with_average_and_best_survives_being_taken_apart(kind):
    state = _state(0.9, kind)
    for seed in range(3):
        _move(state, seed)
        state.average(0.9)
    state.round_, state.step, state.attempt = 4, 2, 1
    state.keep_if_better(_judgement(2.0, 1.0, round_=4))
    _move(state, 9)
    arrays = {name: array.copy() for name, array in state.to_arrays().items()}
    counters = json.loads(json.dumps(state.counters()))
    restored = _state(0.9, kind)
    restored.restore(arrays, counters)
    assert restored.counters() == state.counters()
    again = restored.to_arrays()
    assert set(again) == {"generator", "discriminator", "loss_sums", "ema", "best"}
    for name, array in state.to_arrays().items():
        assert np.array_equal(array, again[name]), name
    # Both go on alike: the ramp of the average is part of the state.
    for one in (state, restored):
        _move(one, 10)
        one.average(0.9)
        one.keep_if_better(_judgement(0.5, 0.4, round_=5))
    assert torch.equal(state.ema, restored.ema)
    assert np.array_equal(state.best.body, restored.best.body)
    assert state.best.score == restored.best.score


def test_a_state_without_a_best_says_so():
    state = _state()
    assert state.counters()["best"] is None
    restored = _state()
    restored.restore(state.to_arrays(), state.counters())
    assert restored.best is None
