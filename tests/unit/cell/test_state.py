"""A cell's state: taken apart and put together, remembered and rolled back, to the bit."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from manege.cell import (
    Batch,
    Best,
    CellState,
    Streams,
    draw_noise,
    new_state,
    train_step,
)
from manege.config import resolve, stream
from manege.models import PictureShape

SHAPE = PictureShape(8, 1)
BARE = ["networks.kind=dcgan", "networks.discriminator_batchnorm=false"]
SMALL = ["networks.generator_width=4", "networks.discriminator_width=2", "networks.latent=4"]
SPECTRAL = [*BARE, *SMALL, "training.constraint.kind=spectral", "training.loss=hinge"]

KINDS = pytest.mark.parametrize(
    ("sets", "labels"),
    [
        (["networks.kind=mlp", "networks.hidden=8"], 0),
        (["networks.kind=mlp", "networks.hidden=8", "training.ema=0.9"], 0),
        ([*SMALL, "training.ema=0.9"], 3),
        ([*SPECTRAL, "training.ema=0.9"], 3),
        (["networks.kind=resnet", *SMALL, "training.ema=0.9"], 0),
    ],
    ids=["mlp", "mlp ema", "dcgan conditional", "spectral conditional", "resnet"],
)


def _config(sets: list[str]):
    return resolve(
        preset="paper", flags={"data.source": "digits"}, sets=[*sets, "training.attempts=3"]
    )


def _state(sets: list[str], labels: int = 0) -> CellState:
    return new_state(_config(sets), "3", SHAPE, torch.device("cpu"), labels)


def _stream(place: dict[str, int], purpose: str) -> np.random.Generator:
    return stream(0, cell="3", purpose=purpose, **place)


def _train(state: CellState, sets: list[str], labels: int, steps: int) -> None:
    """Some steps of the round under way, as a method takes them."""
    training = _config(sets).training
    generator = torch.Generator().manual_seed(state.step)
    for _ in range(steps):
        place = {"round_": state.round_ + 1, "step": state.step, "attempt": state.attempt}
        streams = Streams(partial(_stream, place))
        chosen = torch.arange(6) % labels if labels else None
        batch = Batch(torch.rand(6, 1, 8, 8, generator=generator) * 2 - 1, chosen)
        noise = [draw_noise(state.pair, 6, streams, training) for _ in range(2)]
        state.loss_sums += train_step(state.pair, [batch], noise, training)
        state.average(training.ema)
        state.step += 1


def _bits(state: CellState) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.to_arrays().items()}


def _begun(sets: list[str], labels: int) -> CellState:
    """At the beginning of the third round."""
    state = _state(sets, labels)
    for spread in (2.0, 3.0):
        _train(state, sets, labels, 2)
        state.end_round(spread)
    state.augment, state.overfit = 0.3, 0.5
    state.best = Best(state.pair.generator.body.numpy().copy(), {"round": 1, "value": 0.25})
    return state


@KINDS
def test_rolling_back_returns_everything_to_the_bit_on_another_attempt(sets, labels):
    state = _begun(sets, labels)
    bits, counters = _bits(state), state.counters()
    rates = state.pair.generator.learning_rate, state.pair.discriminator.learning_rate
    for attempt in (1, 2):
        state.remember()
        _train(state, sets, labels, 3)
        state.augment = 0.8
        state.pair.generator.set_learning_rate(0.5)
        state.pair.discriminator.record.fill_(float("nan"))
        state.loss_sums.fill_(float("nan"))
        assert _bits(state) != bits
        state.roll_back()
        assert _bits(state) == bits
        assert state.counters() == {**counters, "attempt": attempt}
        assert rates == (
            state.pair.generator.learning_rate,
            state.pair.discriminator.learning_rate,
        )
        state.pair.generator.check_views()
        state.pair.discriminator.check_views()


def test_rolling_back_takes_back_what_was_told_of_overfitting():
    """Or the round's last step tells of a discriminator that is no more."""
    state = _begun(["networks.kind=mlp"], 0)
    state.remember()
    state.step, state.overfit = 1, 1.0
    state.roll_back()
    assert state.overfit == 0.5


@KINDS
def test_what_is_remembered_is_the_beginning_however_often_it_is_asked_for(sets, labels):
    state = _begun(sets, labels)
    bits = _bits(state)
    state.remember()
    _train(state, sets, labels, 2)
    state.remember()  # As after a resume in mid-round.
    _train(state, sets, labels, 1)
    state.roll_back()
    assert _bits(state) == bits


@KINDS
def test_the_round_begun_again_draws_other_numbers_and_ends_elsewhere(sets, labels):
    state, undisturbed = _begun(sets, labels), _begun(sets, labels)
    state.remember()
    _train(state, sets, labels, 2)
    state.roll_back()
    _train(state, sets, labels, 3)
    _train(undisturbed, sets, labels, 3)
    assert _bits(state) != _bits(undisturbed)
    again = _begun(sets, labels)
    again.attempt = 1
    _train(again, sets, labels, 3)
    state.snapshot = None
    assert _bits(state) == _bits(again)  # The first attempt has left no trace.


def test_a_round_that_has_ended_is_not_begun_again():
    sets, labels = ["networks.kind=mlp"], 0
    state = _begun(sets, labels)
    state.remember()
    _train(state, sets, labels, 1)
    state.attempt = 1
    state.end_round(2.5)
    assert (state.round_, state.step, state.attempt, state.widest) == (3, 0, 0, 3.0)
    assert state.snapshot is None
    assert state.loss_sums.tolist() == [0, 0]
    state.end_round(4.0)
    assert state.widest == 4.0


def test_without_memory_a_round_begins_again_from_what_is_there():
    state = _begun(["networks.kind=mlp"], 0)
    _train(state, ["networks.kind=mlp"], 0, 1)
    record = state.pair.generator.record.clone()
    state.roll_back()
    assert (state.attempt, state.step) == (1, 0)
    assert torch.equal(state.pair.generator.record, record)


def _put_together(state: CellState, sets: list[str], labels: int) -> CellState:
    """A state made of another's arrays and counters, the latter by way of JSON."""
    arrays = {name: array.copy() for name, array in state.to_arrays().items()}
    other = _state(sets, labels)
    other.restore(arrays, json.loads(json.dumps(state.counters())))
    return other


@KINDS
@pytest.mark.parametrize("steps", [0, 2])
def test_a_state_put_together_again_is_the_same_and_goes_on_the_same(sets, labels, steps):
    state = _begun(sets, labels)
    state.remember()
    beginning = _bits(state)
    _train(state, sets, labels, steps)
    state.attempt = 2
    other = _put_together(state, sets, labels)
    assert other.counters() == state.counters()
    assert _bits(other) == _bits(state)
    assert other.best.score == state.best.score
    assert (other.snapshot is not None) == (steps > 0)  # At its beginning a round needs no copy.
    for one in (state, other):
        one.remember()
        _train(one, sets, labels, 2)
    assert _bits(other) == _bits(state)
    for one in (state, other):
        one.roll_back()
        assert _bits(one) == beginning
    assert other.counters() == state.counters()


def test_a_commit_in_mid_round_holds_the_beginning_and_one_between_rounds_does_not():
    sets = ["networks.kind=mlp", "training.ema=0.5"]
    state = _begun(sets, 0)
    state.remember()
    assert not any(name.startswith("good") for name in state.to_arrays())
    assert state.counters()["good"] is None
    _train(state, sets, 0, 1)
    assert {"good generator", "good discriminator", "good ema"} <= set(state.to_arrays())
    assert state.counters()["good"][:2] == [4, 0.3]
    kept = {name: array.copy() for name, array in state.to_arrays().items() if "good" in name}
    _train(state, sets, 0, 1)
    for name, array in kept.items():
        assert np.array_equal(state.to_arrays()[name], array)


def test_a_state_becomes_the_one_it_is_given_whatever_it_was_before():
    sets = ["networks.kind=mlp"]
    fresh, used = _state(sets), _begun(sets, 0)
    used.remember()
    _train(used, sets, 0, 1)
    used.restore({n: a.copy() for n, a in fresh.to_arrays().items()}, fresh.counters())
    assert used.counters() == fresh.counters()
    assert _bits(used) == _bits(fresh)


def test_the_average_follows_the_generator_and_is_rolled_back_with_it():
    sets = ["networks.kind=mlp", "networks.hidden=8", "training.ema=0.9"]
    state = _state(sets)
    assert torch.equal(state.ema, state.pair.generator.body)
    wanted = state.ema.double().clone()
    for update in range(4):
        _train(state, sets, 0, 1)
        kept = min(0.9, update / (update + 9))
        wanted = kept * wanted + (1 - kept) * state.pair.generator.body.double()
        torch.testing.assert_close(state.ema.double(), wanted, rtol=0, atol=1e-6)
    assert state.averaged == 4
    state.end_round(1.0)
    state.remember()
    before = state.ema.clone()
    _train(state, sets, 0, 2)
    assert state.averaged == 6
    state.roll_back()
    assert state.averaged == 4
    assert torch.equal(state.ema, before)


def test_a_fresh_state_is_a_function_of_seed_and_cell_alone():
    sets = ["networks.kind=resnet", *SMALL]
    config, device = _config(sets), torch.device("cpu")
    one, same = (new_state(config, "3", SHAPE, device, 3) for _ in range(2))
    other = new_state(config, "4", SHAPE, device, 3)
    assert _bits(one) == _bits(same) != _bits(other)
    assert (one.round_, one.step, one.attempt, one.augment, one.widest) == (0, 0, 0, 0.0, 0.0)
    assert one.is_finite()
