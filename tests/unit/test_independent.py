"""The methods: partition, rounds, and independence of everything but their place."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.helpers.generators import global_generators_left_alone

from manege.cell import Batch, CellState, kept_out, overfitting, train_step
from manege.config import ALL, partition, resolve
from manege.data import Split, open_dataset
from manege.errors import ConfigError
from manege.methods import Independent, Step, independent, shares
from manege.models import to_bytes
from manege.runtime.worker.setup import gauge_of

CPU = torch.device("cpu")
NAN = float("nan")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "method-cache"))


BASE = ("networks.kind=mlp", "networks.hidden=8", "training.batch=50")
BARE = (
    "networks.kind=dcgan",
    "networks.generator_width=4",
    "networks.discriminator_width=2",
    "networks.discriminator_batchnorm=false",
    "networks.latent=4",
)
RESNET = ("networks.kind=resnet", *BARE[1:3], "networks.latent=4")


def _method(*sets: str) -> Independent:
    config = resolve(preset="paper", flags={"data.source": "digits"}, sets=[*BASE, *sets])
    dataset = open_dataset(config.data)
    gauge = gauge_of(config, dataset, None)
    return Independent(config, dataset, CPU, lambda phase: nullcontext(), None, gauge)


def _train(method: Independent, cell: str, rounds: int) -> np.ndarray:
    state = method.init(cell)
    for _ in range(rounds):
        list(method.advance(cell, state))
    return state.pair.generator.to_numpy().copy()


def _bits(state: CellState) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.to_arrays().items()}


ADAPTIVE = (
    "training.augment.kind=adaptive",
    "training.augment.every_steps=1",
    "training.augment.step=0.2",
    "training.augment.target=0.01",
    "training.loss=bce",
)
SETTINGS = {
    "paper": (),
    "clip": ("training.constraint.kind=clip",),
    "gp": ("training.constraint.kind=gp",),
    "spectral": ("training.constraint.kind=spectral", "training.loss=hinge"),
    "r1": ("training.constraint.kind=r1", "training.loss=least-squares"),
    "r1r2": ("training.constraint.kind=r1r2", "training.loss=relativistic"),
    "ema": ("training.ema=0.99",),
    "flips": ("training.flip=true",),
    "adaptive": ADAPTIVE,
    "attempts": ("training.attempts=3",),
    "single": ("method=single",),
    "conditional": ("method=conditional",),
    "resnet": (*RESNET, "training.constraint.kind=spectral", "training.loss=hinge"),
    "dcgan": (*BARE, "training.constraint.kind=r1r2", "training.loss=relativistic"),
    "all of it": (
        *BARE,
        *ADAPTIVE[:-1],
        "training.loss=relativistic",
        "training.constraint.kind=gp",
        "method=conditional",
        "training.attempts=3",
        "training.flip=true",
        "training.ema=0.99",
        "training.n_critic=2",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_cell_taken_up_in_mid_round_is_the_one_that_was_not_interrupted(name, monkeypatch):
    # In so few steps nothing is learnt by heart: what is told is moved up to where it matters.
    monkeypatch.setattr(independent, "overfitting", lambda *inputs: (1 + overfitting(*inputs)) / 2)
    sets = (*SETTINGS[name], "training.batches_per_round=6")
    cell = ALL if any("method=" in one for one in sets) else "3"
    method = _method(*sets)
    steps = method.steps_in_round(cell)
    assert steps >= 3
    whole = method.init(cell)
    told = [step for _ in range(2) for step in method.advance(cell, whole)]
    if "augment" in str(sets):
        assert 0 < whole.augment <= 0.8  # It did adapt, so that something could go wrong.
    state = _method(*sets).init(cell)
    list(_method(*sets).advance(cell, state))
    walk = iter(_method(*sets).advance(cell, state))
    for _ in range(2):
        next(walk)
    arrays = {name: array.copy() for name, array in state.to_arrays().items()}
    counters = json.loads(json.dumps(state.counters()))
    assert (counters["round"], counters["step"]) == (1, 2)
    other = _method(*sets)
    restored = other.init(cell)
    restored.restore(arrays, counters)
    rest = list(other.advance(cell, restored))
    assert rest == told[-len(rest) :]
    assert len(rest) == steps - 2
    assert _bits(restored) == _bits(whole)
    assert restored.counters() == whole.counters()


@pytest.mark.parametrize("name", SETTINGS)
def test_training_leaves_the_global_generators_alone_and_is_the_same_every_time(name):
    sets = (*SETTINGS[name], "training.batches_per_round=2")
    cell = ALL if any("method=" in one for one in sets) else "3"
    with global_generators_left_alone():
        first = _train(_method(*sets), cell, 1)
    torch.manual_seed(7)
    assert np.array_equal(first, _train(_method(*sets), cell, 1))
    assert not np.array_equal(first, _train(_method(*sets, "seed=1"), cell, 1))


# Collapse and cycling.

MEASURED = ("training.batches_per_round=2", "training.ema=0.9", "stability.samples=32")


def _indices(method: Independent, cell: str, state: CellState, rounds: int) -> list:
    steps = [step for _ in range(rounds) for step in method.advance(cell, state)]
    return [step.indices for step in steps if step.losses is not None]


@pytest.mark.parametrize("name", ["paper", "conditional"])
def test_training_is_the_same_whether_it_is_measured_or_not(name):
    sets = (*SETTINGS[name], *MEASURED)
    cell = ALL if name == "conditional" else "3"
    measured, left_alone = _method(*sets), _method(*sets, "stability.every_rounds=null")
    state, other = measured.init(cell), left_alone.init(cell)
    told = _indices(measured, cell, state, 4)
    assert all(one["collapse"] is not None for one in told)
    assert _indices(left_alone, cell, other, 4) == [None] * 4
    assert {k: v for k, v in _bits(state).items() if k != "trail"} == _bits(other)
    assert {**state.counters(), "trail": ""} == other.counters()


def test_indices_begin_when_there_is_something_to_compare_with_and_go_on_after_a_restore():
    sets = (*MEASURED, "stability.window=3")
    method = _method(*sets)
    whole = method.init("3")
    told = _indices(method, "3", whole, 6)
    assert [one["moved"] is None for one in told] == [True, *[False] * 5]
    assert [one["cycling"] is None for one in told] == [True, True, *[False] * 4]
    assert len(whole.trail.moments) == 3
    state = method.init("3")
    assert _indices(method, "3", state, 4) == told[:4]
    arrays = {name: array.copy() for name, array in state.to_arrays().items()}
    other = _method(*sets)
    restored = other.init("3")
    restored.restore(arrays, json.loads(json.dumps(state.counters())))
    assert _indices(other, "3", restored, 2) == told[4:]
    assert _bits(restored) == _bits(whole)


def test_a_commit_of_an_earlier_version_begins_with_an_empty_trail():
    method = _method(*MEASURED)
    state = method.init("3")
    list(method.advance("3", state))
    arrays = {name: array.copy() for name, array in state.to_arrays().items() if name != "trail"}
    counters = {key: value for key, value in state.counters().items() if key != "trail"}
    restored = method.init("3")
    restored.restore(arrays, counters)
    (told,) = _indices(method, "3", restored, 1)
    assert told["moved"] is None


def test_rounds_between_two_measurements_tell_nothing():
    told = _indices(
        method := _method(*MEASURED, "stability.every_rounds=2"), "3", method.init("3"), 4
    )
    assert [one is None for one in told] == [True, False, True, False]
    assert told[3]["moved"] is not None


# One cell for all the data.

WHOLE = pytest.mark.parametrize("method_name", ["single", "conditional"])


@WHOLE
def test_all_the_data_are_one_cell(method_name):
    method, per_class = _method(f"method={method_name}"), _method()
    assert method.cells() == (ALL,)
    counts = sum(one.train for one in method._shares.dataset.classes)
    assert method.steps_in_round(ALL) == -(-counts // 50)
    digests = [per_class.data_digest(label) for label in method._shares.dataset.labels]
    wanted = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    assert method.data_digest(ALL) == wanted
    fewer = _method(f"method={method_name}", "data.classes=[3, 7]")
    assert fewer.cells() == (ALL,)
    assert fewer.data_digest(ALL) != wanted


@WHOLE
def test_a_round_of_all_the_data_shows_every_picture(method_name):
    method = _method(f"method={method_name}", "data.classes=[3, 7]")
    state, seen = method.init(ALL), set()
    for _ in range(method.steps_in_round(ALL)):
        (batch,), _ = method._inputs(ALL, state)
        seen |= {one.tobytes() for one in to_bytes(batch.pictures)}
        state.step += 1
    every = np.concatenate(
        [method._shares.dataset.pictures(label, Split.TRAIN) for label in ("3", "7")]
    )
    assert seen == {one.tobytes() for one in every}


def test_the_networks_are_told_what_the_pictures_show():
    method = _method("method=conditional", "data.classes=[7, 3, 8]", "training.n_critic=2")
    labels = method._shares.dataset.labels
    shown = {
        picture.tobytes(): number
        for number, label in enumerate(labels)
        for picture in method._shares.dataset.pictures(label, Split.TRAIN)
    }
    state = method.init(ALL)
    assert state.pair.generator.network.embed.weight.shape[0] == 3
    assert state.pair.discriminator.network.embed.weight.shape[0] == 3
    reals, noise = method._inputs(ALL, state)
    assert (len(reals), len(noise)) == (2, 3)
    for batch in reals:
        found = [shown[picture.tobytes()] for picture in to_bytes(batch.pictures)]
        assert batch.labels_B.tolist() == found
        assert set(found) == {0, 1, 2}


def test_a_pair_that_is_not_told_the_labels_has_no_rows_for_them():
    for sets in ((), ("method=single",)):
        method = _method(*sets)
        (cell, *_) = method.cells()
        state = method.init(cell)
        assert state.pair.generator.network.embed is None
        assert method._inputs(cell, state)[0][0].labels_B is None


@WHOLE
def test_a_sheet_of_all_the_data_changes_with_nothing_but_the_generator(method_name):
    method = _method(f"method={method_name}", "sheets.pictures=25", "training.batches_per_round=2")
    state = method.init(ALL)
    fresh = method.sheet(ALL, state)
    (*_, last) = method.advance(ALL, state)
    assert isinstance(last, Step)
    assert set(last.losses) == {"discriminator", "generator"}
    before = state.pair.generator.record.clone()
    first = method.sheet(ALL, state)
    assert first.shape == (25, 8, 8, 1)
    assert not np.array_equal(first, fresh)
    assert np.array_equal(first, method.sheet(ALL, state))
    assert torch.equal(before, state.pair.generator.record)


def test_a_conditional_sheet_shows_the_labels_in_turn():
    method = _method("method=conditional", "sheets.pictures=25")
    state = method.init(ALL)
    asked = []
    embed = state.pair.generator.network.embed
    embed.register_forward_hook(lambda module, inputs, _: asked.append(inputs[0]))
    method.sheet(ALL, state)
    assert torch.cat(asked).tolist() == sorted(number % 10 for number in range(25))


def test_a_conditional_pair_is_scored_on_labels_as_frequent_as_in_its_data(tmp_path, monkeypatch):
    """The scorer's real pictures are so: drawn one like the other, a perfect pair would fail."""
    pictures = np.random.default_rng(0).integers(0, 256, (400, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", images=pictures, labels=np.arange(400) % 4 // 3)
    flags = {"data.source": str(tmp_path / "a.npz"), "method": "conditional"}
    config = resolve(preset="paper", flags=flags, sets=[*BASE, "score.samples=200"])
    scorer = SimpleNamespace(score=lambda cell, drawn: SimpleNamespace(value=0.0, low=0, high=0))
    method = Independent(
        config, open_dataset(config.data), CPU, lambda phase: nullcontext(), scorer
    )
    train = {one.label: one.train for one in method._shares.dataset.classes}
    assert train["0"] > 2 * train["1"]
    asked = []
    generate = shares.generate

    def watched(generator, z_BZ, labels_B=None):
        asked.extend(labels_B.tolist())
        return generate(generator, z_BZ, labels_B)

    monkeypatch.setattr(shares, "generate", watched)
    method.judge(ALL, method.init(ALL))
    assert len(asked) == 200
    wanted = 200 * train["0"] / sum(train.values())
    assert asked.count(0) == pytest.approx(wanted, abs=2)


def test_methods_and_parts():
    def parts(**flags: object) -> dict[str, tuple[str, ...]]:
        return partition(resolve(flags={"data.source": "digits", **flags}), ("a", "b"))

    assert parts() == {"a": ("a",), "b": ("b",)}
    for one in ("single", "conditional"):
        assert parts(method=one) == {ALL: ("a", "b")}
    grid = {"method": "cellular", "cellular.columns": 2}
    assert list(parts(**grid, **{"cellular.rows": 2})) == ["0-0", "0-1", "1-0", "1-1"]
    assert list(parts(method="cellular", **{"cellular.rows": 1, "cellular.columns": 1})) == [ALL]


# Flips and augmentation.


def test_about_half_of_the_pictures_are_mirrored_and_no_others_touched():
    plain, flipping = _method(), _method("training.flip=true")
    mirrored = total = 0
    for step in range(4):
        states = plain.init("3"), flipping.init("3")
        for state in states:
            state.step = step
        (was,), (now,) = plain._inputs("3", states[0])[0], flipping._inputs("3", states[1])[0]
        for one, other in zip(was.pictures, now.pictures, strict=True):
            flipped = torch.equal(one.flip(2), other)
            assert flipped or torch.equal(one, other)
            mirrored, total = mirrored + flipped, total + 1
    assert 0.35 < mirrored / total < 0.65


def test_pictures_kept_out_are_never_trained_on_and_all_others_are():
    method = _method(*ADAPTIVE)
    pictures = method._shares.dataset.pictures("3", Split.TRAIN)
    kept = kept_out(len(pictures))
    assert kept == 8
    state, seen = method.init("3"), set()
    for _ in range(method.steps_in_round("3")):
        (batch,), _ = method._inputs("3", state)
        seen |= {one.tobytes() for one in to_bytes(batch.pictures)}
        state.step += 1
    assert seen == {one.tobytes() for one in pictures[:-kept]}
    assert not seen & {one.tobytes() for one in pictures[-kept:]}


def _watch_overfitting(monkeypatch, told: float = 1.0) -> list[tuple[Batch, Batch, Batch]]:
    asked = []

    def look(pair, *batches: Batch) -> float:
        asked.append(batches)
        return told

    monkeypatch.setattr(independent, "overfitting", look)
    return asked


def test_overfitting_is_told_from_training_kept_and_drawn_pictures(monkeypatch):
    asked = _watch_overfitting(monkeypatch)
    method = _method(*ADAPTIVE)
    pictures = method._shares.dataset.pictures("3", Split.TRAIN)
    list(method.advance("3", method.init("3")))
    assert len(asked) == 4
    for trained, kept, fakes in asked:
        known = {one.tobytes() for one in pictures[:-8]}
        assert {one.tobytes() for one in to_bytes(trained.pictures)} <= known
        assert {one.tobytes() for one in to_bytes(kept.pictures)} == {
            one.tobytes() for one in pictures[-8:]
        }
        assert not {one.tobytes() for one in to_bytes(fakes.pictures)} & known
        assert all(batch.pictures.abs().max() <= 1 for batch in (trained, kept, fakes))


def test_overfitting_is_told_from_pictures_of_every_label(monkeypatch):
    """Else it is the difference between classes that is told, as far as there is one."""
    asked = _watch_overfitting(monkeypatch)
    method = _method(*ADAPTIVE, "method=conditional", "training.batches_per_round=1")
    list(method.advance(ALL, method.init(ALL)))
    ((trained, kept, fakes),) = asked
    assert torch.equal(kept.labels_B, fakes.labels_B)
    counts = torch.bincount(kept.labels_B, minlength=10)
    assert len(trained.labels_B) == len(trained.pictures)
    assert counts.min() >= 4, counts  # 64 of ten labels that are about as frequent.


def test_the_chance_is_adapted_after_so_many_steps_however_short_a_round_is(monkeypatch):
    asked = _watch_overfitting(monkeypatch)
    method = _method("training.augment.kind=adaptive", "training.loss=bce")
    assert method.steps_in_round("3") == 4  # And every_steps is 16.
    state = method.init("3")
    chances = []
    for _ in range(9):
        (*_, last) = method.advance("3", state)
        chances.append(last.augment["chance"])
    assert chances == pytest.approx([0, 0, 0, 0.02, 0.02, 0.02, 0.02, 0.04, 0.04])
    assert len(asked) == 2


def test_changes_are_drawn_once_the_chance_is_above_zero():
    method = _method(*ADAPTIVE)
    state = method.init("3")
    assert method._inputs("3", state)[1][0].real_changes is None
    state.augment = 0.5
    noise = method._inputs("3", state)[1]
    assert all(one.real_changes is not None for one in noise)
    assert 5 < int((noise[0].fake_changes.brightness_B != 0).sum()) < 45
    (*_, last) = method.advance("3", state)
    assert set(last.augment) == {"chance", "overfit"}
    (*_, last) = (plain := _method()).advance("3", plain.init("3"))
    assert last.augment is None


def test_points_are_refused_augmentation_or_train_with_it():
    flags = {"data.source": "ring8", "networks.kind": "mlp"}
    try:
        config = resolve(
            preset="paper", flags=flags, sets=[*BASE[1:], *ADAPTIVE, "training.batches_per_round=1"]
        )
    except ConfigError:
        return
    method = Independent(config, open_dataset(config.data), CPU, lambda phase: nullcontext())
    (cell, *_) = method.cells()
    state = method.init(cell)
    state.augment = 0.5
    list(method.advance(cell, state))


# The watchdog.


class _Poison:
    """A training step after which the generator is broken, in some of its calls."""

    def __init__(self, *calls: int) -> None:
        self.calls = calls
        self.count = 0

    def __call__(self, pair, reals, noise, training):
        losses = train_step(pair, reals, noise, training)
        self.count += 1
        if self.count in self.calls:
            with torch.no_grad():
                pair.generator.weights.fill_(NAN)
        return losses


@pytest.mark.parametrize(
    ("call", "done", "reason"),
    [
        (5, 2, "the discriminator's loss is not finite"),  # Met at the step after.
        (8, 4, "a weight is not finite"),  # The round's last step has no step after it.
    ],
)
def test_a_round_that_breaks_down_is_begun_again_on_another_attempt(
    monkeypatch, call, done, reason
):
    sets = ("training.attempts=3", "training.ema=0.9", "training.loss=bce")
    method = _method(*sets)
    undisturbed = method.init("3")
    list(method.advance("3", undisturbed))
    start, counters = _bits(undisturbed), undisturbed.counters()
    list(method.advance("3", undisturbed))
    monkeypatch.setattr(independent, "train_step", _Poison(call))
    state = method.init("3")
    list(method.advance("3", state))
    assert _bits(state) == start
    steps = []
    for step in method.advance("3", state):
        steps.append((step.step, step.trouble, state.attempt))
        assert step.round_ == 2
        if step.trouble is not None:
            assert _bits(state) == start  # It stands where the round began, to the bit.
            assert state.counters() == {**counters, "attempt": 1}
    before = [(number, None, 0) for number in range(1, done)]
    again = [(1, None, 1), (2, None, 1), (3, None, 1), (4, None, 0)]
    assert steps == [*before, (done, reason, 1), *again]
    assert (state.round_, state.attempt) == (2, 0)
    assert state.is_finite()
    assert _bits(state) != _bits(undisturbed)  # Other numbers were drawn.
    list(method.advance("3", state))
    assert state.round_ == 3


def test_another_attempt_is_a_function_of_its_place_alone(monkeypatch):
    """Wherever the first one broke down."""
    ends = []
    for call in (5, 6, 8):
        method = _method("training.attempts=3")
        monkeypatch.setattr(independent, "train_step", _Poison(call))
        state = method.init("3")
        for _ in range(2):
            list(method.advance("3", state))
        ends.append(_bits(state))
    assert ends[0] == ends[1] == ends[2]


def test_a_round_taken_up_in_mid_round_is_begun_again_from_its_beginning(monkeypatch):
    method = _method("training.attempts=3")
    monkeypatch.setattr(independent, "train_step", _Poison(7))
    whole = method.init("3")
    for _ in range(2):
        list(method.advance("3", whole))
    monkeypatch.setattr(independent, "train_step", _Poison())
    state = method.init("3")
    list(method.advance("3", state))
    walk = iter(method.advance("3", state))
    next(walk)
    arrays = {name: array.copy() for name, array in state.to_arrays().items()}
    restored = method.init("3")
    restored.restore(arrays, json.loads(json.dumps(state.counters())))
    monkeypatch.setattr(independent, "train_step", _Poison(2))
    troubles = [step.trouble for step in method.advance("3", restored)]
    assert len([one for one in troubles if one]) == 1
    assert _bits(restored) == _bits(whole)
    assert restored.counters() == whole.counters()


def test_samples_that_collapse_begin_the_round_again(monkeypatch):
    method = _method("training.attempts=2")
    state = method.init("3")
    (*_, first) = method.advance("3", state)
    assert state.widest == first.spread > 0
    real_spread = method._shares.real_spread("3")
    assert real_spread > first.spread
    state.widest = 2.1 * real_spread
    told = []
    for step in method.advance("3", state):
        told.append(step.trouble)
        if step.trouble:
            break
    assert told[:-1] == [None] * 3
    assert told[-1].startswith("the samples have collapsed: their mean distance is ")
    assert (state.round_, state.step, state.attempt) == (1, 0, 1)


def test_without_attempts_nothing_is_remembered_and_nothing_watched():
    method = _method()
    state = method.init("3")
    for step in method.advance("3", state):
        assert state.snapshot is None
        assert step.spread is None
    assert state.widest == 0
