"""The per-class method: order, rounds, and independence of everything but its place.

Below, the same with a scorer: what it judges, what it keeps, and that training does not notice.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from tests.helpers.generators import global_generators_left_alone
from tests.helpers.observers import StopWhen

import manege
from manege.api import Run, start_run
from manege.cell import WeightsKind, generator_with
from manege.config import DataConfig, RunConfig, partition, resolve, stream
from manege.data import Split, open_dataset
from manege.errors import CheckpointError, MachineError
from manege.methods import Independent
from manege.metrics import ClassScorer, Space, load_space, random_space, save_space
from manege.metrics.networks import FeatureNetwork, initialise_random
from manege.metrics.spaces import digest_of
from manege.models import PictureShape, build_generator, generate, named_tensors
from manege.rundir import Checkpoint, RunDir
from manege.sampler import of_run, run_config

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


# Whole runs, of one class.


def _threes(folder: Path) -> Path:
    """A dataset of one class: its scores are those of the random space, which needs no training."""
    path = folder / "threes.npz"
    if not path.exists():
        digits = open_dataset(DataConfig(source="digits"))
        pictures = digits.pictures("3", Split.TRAIN)
        np.savez(path, images=pictures, labels=np.full(len(pictures), "3"))
    return path


def _config(folder: Path, **more: object) -> RunConfig:
    flags = {
        "data.source": str(_threes(folder)),
        "data.limit_per_class": 60,
        "networks.kind": "mlp",
        "networks.hidden": 8,
        "training.batch": 30,
        "training.optimiser.generator_lr": 0.05,
        "sheets.pictures": 1,
    }
    if "networks__kind" in more:
        del flags["networks.hidden"]
    more_flags = {key.replace("__", "."): value for key, value in more.items()}
    return resolve(preset="paper", flags=flags | more_flags)


SCORED = {"score__metric": "kid", "score__every_rounds": 2, "score__samples": 16}


def _run(path: Path, **more: object) -> Run:
    done = start_run(_config(path.parent, **more), out=path)
    assert done.outcome.state == "finished"
    return done


def _commit(path: Path) -> Checkpoint:
    rundir = RunDir.open(path)
    found = rundir.load("3", identity=run_config(rundir).identity())
    assert found is not None
    return found


def _events(path: Path, kind: str) -> list[dict]:
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


def _file_of(path: Path, body: np.ndarray) -> bytes:
    """What a model's file must be, when it draws with these weights."""
    network = build_generator(run_config(RunDir.open(path)).networks, SHAPE)
    return safetensors.numpy.save(named_tensors(network, body))


def _score_of(path: Path, body: np.ndarray) -> float:
    """The score of some weights, taken again by hand."""
    config = run_config(RunDir.open(path))
    generator = generator_with(config.networks, SHAPE, torch.from_numpy(body))
    rng = stream(config.seed, cell="3", purpose="score")
    z = rng.standard_normal((config.score.samples, generator.latent), dtype=np.float32)
    scorer = ClassScorer(
        config.score, load_space(path / "scorer"), open_dataset(config.data), {"3": ("3",)}
    )
    return scorer.score("3", np.concatenate([generate(generator, z)])).value


@pytest.mark.parametrize(("rounds", "scored"), [(6, [2, 4, 6]), (5, [2, 4, 5]), (1, [1])])
def test_a_run_tells_its_scores_on_schedule_and_at_the_end(tmp_path, rounds, scored):
    _run(tmp_path / "run", rounds=rounds, training__ema=0.5, **SCORED)
    events = _events(tmp_path / "run", "score")
    assert [event["round"] for event in events] == scored
    space = random_space(8, 1).name
    best = None
    for event in events:
        assert (event["cell"], event["metric"], event["space"]) == ("3", "kid", space)
        assert list(event["scores"]) == ["raw", "ema"]
        for which, score in event["scores"].items():
            assert score["low"] <= score["value"] <= score["high"]
            if best is None or score["value"] < best["value"]:
                best = {"round": event["round"], "weights": which, **score}
        assert event["best"] == best


def test_a_run_without_a_score_tells_none_and_has_no_scorer(tmp_path):
    _run(tmp_path / "run", rounds=2)
    assert _events(tmp_path / "run", "score") == []
    assert not (tmp_path / "run" / "scorer").exists()


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_the_model_is_the_generator_that_scored_best(tmp_path, ema):
    path = tmp_path / "run"
    done = _run(path, rounds=8, training__ema=ema, **SCORED)
    found = _commit(path)
    events = _events(path, "score")
    best = events[-1]["best"]
    assert best["round"] < 8, "choose other settings: nothing was to be chosen"
    assert found.meta["best"] == best
    (component,) = done.model.components
    assert component.read() == _file_of(path, found.tensors["best"])
    assert component.read() != _file_of(path, found.tensors["generator"])
    assert component.trained["rounds"] == best["round"]
    assert component.trained["weights"] == best["weights"]
    assert component.trained["score"] == {"metric": "kid", **best}
    assert _score_of(path, found.tensors["best"]) == best["value"]
    # A run that ended in that round ends with those weights.
    shorter = tmp_path / "shorter"
    _run(shorter, rounds=best["round"], training__ema=ema, **SCORED)
    last = _commit(shorter).tensors["ema" if best["weights"] == "ema" else "generator"]
    assert np.array_equal(last[: len(found.tensors["best"])], found.tensors["best"])


@pytest.mark.parametrize(
    ("rate", "rounds", "every"),
    [(0.01, 3, 2), (0.05, 4, 100)],
    ids=["better than a scheduled one", "the only one"],
)
def test_a_final_score_off_the_schedule_counts_for_the_model_and_not_for_the_state(
    tmp_path, rate, rounds, every
):
    path = tmp_path / "run"
    settings = {"training__optimiser__generator_lr": rate, "training__ema": 0.5}
    # The last round is committed already when the last score comes.
    settings |= {"checkpoints__every_rounds": 1, **SCORED, "score__every_rounds": every}
    done = _run(path, rounds=rounds, **settings)
    found = _commit(path)
    *scheduled, final = _events(path, "score")
    best = final["best"]
    assert best["round"] == rounds, "choose other settings"
    weights = min(final["scores"], key=lambda which: final["scores"][which]["value"])
    assert best["weights"] == weights
    assert found.meta["best"] == (scheduled[0]["best"] if scheduled else None)
    assert ("best" in found.tensors) == bool(scheduled)
    assert found.meta["final"] == best
    (component,) = done.model.components
    assert (component.trained["rounds"], component.trained["weights"]) == (rounds, weights)
    body = found.tensors["ema" if weights == "ema" else "generator"]
    assert component.read() == _file_of(path, body)
    assert _score_of(path, body) == best["value"]


@pytest.mark.parametrize(("ema", "tensor"), [(0.0, "generator"), (0.5, "ema")])
def test_without_a_score_the_model_is_the_average_or_else_the_last(tmp_path, ema, tensor):
    path = tmp_path / "run"
    done = _run(path, rounds=3, training__ema=ema)
    found = _commit(path)
    assert ("ema" in found.tensors) == (ema > 0)
    assert "best" not in found.tensors
    (component,) = done.model.components
    assert component.read() == _file_of(path, found.tensors[tensor])
    assert component.trained["rounds"] == 3
    assert component.trained["weights"] == ("ema" if ema else "raw")
    assert component.trained["score"] is None


def test_the_last_weights_are_the_same_with_and_without_score_and_average(tmp_path):
    generators = []
    for number, more in enumerate([{}, SCORED, {"training__ema": 0.5}]):
        _run(tmp_path / str(number), rounds=3, **more)
        tensors = _commit(tmp_path / str(number)).tensors
        generators.append([tensors["generator"], tensors["discriminator"]])
    for other in generators[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(generators[0], other, strict=True))


@pytest.mark.parametrize("networks", [{}, {"kind": "dcgan"}], ids=["perceptrons", "with BatchNorm"])
def test_a_run_made_longer_equals_one_that_was_long_from_the_start(tmp_path, networks):
    """Although the shorter one ended with a score off the schedule."""
    settings = {f"networks__{key}": value for key, value in networks.items()}
    settings |= {"training__ema": 0.5, "training__batches_per_round": 1, **SCORED}
    _run(tmp_path / "parts", rounds=3, **settings)
    assert [event["round"] for event in _events(tmp_path / "parts", "score")] == [2, 3]
    manege.resume(tmp_path / "parts", rounds=6)
    _run(tmp_path / "whole", rounds=6, **settings)
    ours, theirs = _commit(tmp_path / "parts"), _commit(tmp_path / "whole")
    assert set(ours.tensors) == {"generator", "discriminator", "loss_sums", "ema", "best", "trail"}
    for name, tensor in theirs.tensors.items():
        assert np.array_equal(ours.tensors[name], tensor), name
    timeless = [{k: v for k, v in one.meta.items() if k != "spent_s"} for one in (ours, theirs)]
    assert timeless[0] == timeless[1]
    models = [of_run(RunDir.open(tmp_path / name)) for name in ("parts", "whole")]
    assert models[0].digest == models[1].digest
    assert [event["round"] for event in _events(tmp_path / "whole", "score")] == [2, 4, 6]


def test_a_stopped_run_draws_with_the_best_so_far(tmp_path):
    path = tmp_path / "run"

    def stop() -> str | None:
        return "SIGTERM" if path.exists() and len(_events(path, "round")) >= 5 else None

    done = start_run(_config(tmp_path, rounds=50, **SCORED), out=path, observer=StopWhen(stop))
    assert done.outcome.state == "stopped"
    found = _commit(path)
    assert found.meta["final"] is None
    (component,) = of_run(RunDir.open(path)).components
    assert component.trained["score"]["round"] in (2, 4)
    assert component.read() == _file_of(path, found.tensors["best"])


def _other_space() -> Space:
    network = FeatureNetwork(1, num_labels=0)
    initialise_random(network, stream(1, cell="", purpose="another"))
    return Space("random", 8, 1, network.eval(), digest_of(network))


def test_a_swapped_scorer_is_refused_on_resume_and_the_old_one_taken_back(tmp_path):
    path = tmp_path / "run"
    _run(path, rounds=2, **SCORED)
    shutil.move(path / "scorer", tmp_path / "old")
    save_space(_other_space(), path / "scorer")
    with pytest.raises(CheckpointError, match="class '3': scored with the feature network") as told:
        manege.resume(path, rounds=4)
    assert _other_space().name in str(told.value)
    assert random_space(8, 1).name in str(told.value)
    assert len(str(told.value).splitlines()) == 1
    shutil.rmtree(path / "scorer")
    shutil.move(tmp_path / "old", path / "scorer")
    assert manege.resume(path, rounds=4).outcome.rounds == {"3": 4}


def test_a_lost_scorer_is_made_again_on_resume(tmp_path):
    path = tmp_path / "run"
    _run(path, rounds=2, **SCORED)
    shutil.rmtree(path / "scorer")
    assert manege.resume(path, rounds=4).outcome.rounds == {"3": 4}
    assert load_space(path / "scorer") == random_space(8, 1)


def test_toys_are_scored_by_their_points(tmp_path):
    done = manege.train(
        "ring8",
        preset="paper",
        out=tmp_path / "run",
        rounds=2,
        data__classes=["0", "1"],
        data__limit_per_class=50,
        networks__kind="mlp",
        networks__hidden=8,
        score__metric="fd",
        score__every_rounds=2,
        score__samples=50,
    )
    assert done.outcome.state == "finished"
    told = [
        (event["cell"], event["metric"], event["space"]) for event in _events(done.path, "score")
    ]
    assert told == [("0", "fd", "points"), ("1", "fd", "points")]
