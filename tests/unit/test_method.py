"""The per-class method: order, rounds, and independence of everything but its place."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from manege.config import resolve
from manege.data import open_dataset
from manege.methods import PerClass

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "method-cache"))


def _method(*sets: str) -> PerClass:
    base = ["networks.kind=mlp", "networks.hidden=8", "training.batch=50"]
    config = resolve(flags={"data.source": "digits"}, sets=[*base, *sets])
    return PerClass(config, open_dataset(config.data), CPU, lambda phase: nullcontext())


def _train(method: PerClass, cell: str, rounds: int) -> np.ndarray:
    state = method.init(cell)
    for _ in range(rounds):
        list(method.advance(cell, state))
    return state.pair.generator.to_numpy().copy()


def test_the_longest_classes_come_first():
    method = _method()
    counts = {one.label: one.train for one in method._dataset.classes}
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
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    _train(_method("networks.kind=dcgan", "training.batches_per_round=1"), "3", 1)
    assert torch.equal(torch_before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


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
