"""The per-class method: order, rounds, and independence of everything but its place.

Below, the same with a scorer: what it judges, what it keeps, and that training does not notice.
Whole runs: tests/contract.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tests.helpers.generators import global_generators_left_alone

from manege.cell import WeightsKind
from manege.config import partition, resolve
from manege.data import open_dataset
from manege.errors import MachineError
from manege.methods import Independent
from manege.metrics import ClassScorer, random_space
from manege.models import PictureShape

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "method-cache"))


def _method(*sets: str) -> Independent:
    base = ["networks.kind=mlp", "networks.hidden=8", "training.batch=50"]
    config = resolve(preset="paper", flags={"data.source": "digits"}, sets=[*base, *sets])
    return Independent(config, open_dataset(config.data), CPU, lambda phase: nullcontext())


def _train(method: Independent, cell: str, rounds: int) -> np.ndarray:
    state = method.init(cell)
    for _ in range(rounds):
        list(method.advance(cell, state))
    return state.pair.generator.to_numpy().copy()


def test_the_longest_classes_come_first():
    method = _method()
    counts = {one.label: one.train for one in method._shares.dataset.classes}
    in_order = [counts[cell] for cell in method.cells()]
    assert in_order == sorted(in_order, reverse=True)
    assert set(method.cells()) == {str(digit) for digit in range(10)}


@pytest.mark.parametrize(
    ("sets", "steps", "images"),
    [
        ([], 4, 200),  # 160 threes in batches of 50, wrapping round.
        (["training.n_critic=3"], 2, 300),
        (["training.batches_per_round=1"], 1, 50),
        (["training.batch=1000"], 1, 165),
        (["data.limit_per_class=10"], 1, 10),
    ],
)
def test_a_round_is_one_pass_over_the_pictures(sets, steps, images):
    method = _method(*sets)
    state = method.init("3")
    done = list(method.advance("3", state))
    assert len(done) == steps == method.steps_in_round("3")
    assert sum(step.images for step in done) == images
    assert [step.losses is not None for step in done] == [False] * (steps - 1) + [True]
    assert (state.round_, state.step) == (1, 0)


def test_a_round_broken_off_and_restored_goes_on_with_the_same_bits():
    method = _method("training.n_critic=2")
    whole = _train(method, "3", 2)
    state = method.init("3")
    next(iter(method.advance("3", state)))
    arrays = {name: array.copy() for name, array in state.to_arrays().items()}
    counters = state.counters()
    assert (counters["round"], counters["step"]) == (0, 1)
    other = _method("training.n_critic=2")
    restored = other.init("3")
    restored.restore(arrays, counters)
    for _ in range(2):
        steps = list(other.advance("3", restored))
    assert np.array_equal(restored.pair.generator.to_numpy(), whole)
    assert steps[-1].losses is not None


def test_a_second_cell_in_the_same_process_changes_nothing():
    alone = _train(_method("networks.kind=dcgan", "training.batches_per_round=1"), "3", 2)
    method = _method("networks.kind=dcgan", "training.batches_per_round=1")
    _train(method, "7", 1)
    assert np.array_equal(_train(method, "3", 2), alone)
    seeded = _method("networks.kind=dcgan", "training.batches_per_round=1", "seed=1")
    assert not np.array_equal(_train(seeded, "3", 2), alone)


def test_training_leaves_the_global_generators_alone():
    with global_generators_left_alone():
        _train(_method("networks.kind=dcgan", "training.batches_per_round=1"), "3", 1)


def test_a_sheet_shows_the_same_latents_every_time_and_changes_nothing():
    method = _method("sheets.pictures=9")
    state = method.init("3")
    list(method.advance("3", state))
    before = state.pair.generator.record.clone()
    first = method.sheet("3", state)
    assert first.shape == (9, 8, 8, 1)
    assert np.array_equal(first, method.sheet("3", state))
    assert torch.equal(before, state.pair.generator.record)


def test_another_attempt_draws_other_numbers():
    method = _method()
    first, second = method.init("3"), method.init("3")
    second.attempt = 1
    list(method.advance("3", first))
    list(method.advance("3", second))
    assert not torch.equal(first.pair.generator.record, second.pair.generator.record)


def test_a_state_with_nan_is_not_finite():
    state = _method().init("3")
    assert state.is_finite()
    state.pair.discriminator.record[3] = float("nan")
    assert not state.is_finite()


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class without Lite0's weights is scored in random features: quick, as all of this is."""

    def none(file: object = None) -> None:
        raise MachineError("no weights")

    monkeypatch.setattr("manege.metrics.classifier.feature_weights", none)


# With a scorer.

SHAPE = PictureShape(8, 1)


def _scored(*sets: str) -> Independent:
    """The method with a scorer in the random space, which needs no training."""
    small = ["networks.kind=dcgan", "training.batches_per_round=1", "training.batch=50"]
    scoring = ["score.metric=kid", "score.every_rounds=1", "score.samples=16"]
    config = resolve(
        preset="paper", flags={"data.source": "digits"}, sets=[*small, *scoring, *sets]
    )
    dataset = open_dataset(config.data)
    parts = partition(config, dataset.labels)
    scorer = ClassScorer(config.score, random_space(8, 1), dataset, parts)
    return Independent(config, dataset, CPU, lambda phase: nullcontext(), scorer)


def _records(method: Independent, rounds: int) -> list[np.ndarray]:
    """Both networks' records after every round."""
    state = method.init("3")
    records = []
    for _ in range(rounds):
        list(method.advance("3", state))
        pair = state.pair
        records += [pair.generator.to_numpy().copy(), pair.discriminator.to_numpy().copy()]
    return records


@pytest.mark.full
@pytest.mark.parametrize(
    "sets",
    [[], ["training.ema=0.9"], ["training.ema=0.9", "score.every_rounds=2"]],
    ids=["score", "score and ema", "every other round"],
)
def test_training_does_not_notice_that_it_is_scored_or_averaged(sets):
    small = ["networks.kind=dcgan", "training.batches_per_round=1"]
    plain = _records(_method(*small), 3)
    watched = _records(_scored(*sets), 3)
    assert all(np.array_equal(a, b) for a, b in zip(plain, watched, strict=True))
    averaged = _records(_method(*small, "training.ema=0.9"), 3)
    assert all(np.array_equal(a, b) for a, b in zip(plain, averaged, strict=True))


def test_a_judgement_comes_with_the_last_step_of_every_so_manieth_round():
    method = _scored("training.batches_per_round=2", "score.every_rounds=2", "training.ema=0.5")
    state = method.init("3")
    judged = []
    for _ in range(4):
        *earlier, last = method.advance("3", state)
        assert all(step.judgement is None for step in earlier)
        assert method.judges_now(state) == (last.judgement is not None)
        judged.append(last.judgement)
    assert [one and one.round_ for one in judged] == [None, 2, None, 4]
    assert list(judged[1].scores) == [WeightsKind.RAW, WeightsKind.EMA]
    values = [one.scores[one.chosen].value for one in judged if one]
    assert state.best.score["value"] == min(values)


def test_a_judgement_repeats_to_the_bit_and_changes_nothing():
    method = _scored("training.ema=0.5")
    state = method.init("3")
    list(method.advance("3", state))
    before = {name: array.copy() for name, array in state.to_arrays().items()}
    torch_before = torch.get_rng_state()
    first = method.judge("3", state)
    assert method.judge("3", state) == first
    assert all(np.array_equal(before[name], now) for name, now in state.to_arrays().items())
    assert torch.equal(torch_before, torch.get_rng_state())


def test_without_a_scorer_nothing_is_judged_or_kept():
    method = _method("score.every_rounds=1")
    state = method.init("3")
    steps = list(method.advance("3", state))
    assert [step.judgement for step in steps] == [None] * len(steps)
    assert method.judge("3", state) is None
    assert state.best is None
