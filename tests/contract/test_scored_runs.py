"""Whole runs of one class, scored: what they tell and keep, and which weights the model has."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import manege
from manege.api import Run, start_run
from manege.cell import generator_with
from manege.config import DataConfig, RunConfig, resolve, stream
from manege.data import Split, open_dataset
from manege.errors import CheckpointError, MachineError
from manege.metrics import ClassScorer, Space, load_space, random_space, save_space
from manege.metrics.networks import FeatureNetwork, initialise_random
from manege.metrics.spaces import digest_of
from manege.models import PictureShape, build_generator, generate, named_tensors
from manege.runs import Checkpoint, RunDir
from manege.sampler import of_run, run_config
from tests.helpers.observers import StopWhen

SHAPE = PictureShape(8, 1)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "method-cache"))


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class without Lite0's weights is scored in random features: quick, as all of this is."""

    def none(file: object = None) -> None:
        raise MachineError("no weights")

    monkeypatch.setattr("manege.metrics.classifier.feature_weights", none)


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
    manege.resume(tmp_path / "parts", rounds=6, runtime="inline")
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
        manege.resume(path, rounds=4, runtime="inline")
    assert _other_space().name in str(told.value)
    assert random_space(8, 1).name in str(told.value)
    assert len(str(told.value).splitlines()) == 1
    shutil.rmtree(path / "scorer")
    shutil.move(tmp_path / "old", path / "scorer")
    assert manege.resume(path, rounds=4, runtime="inline").outcome.rounds == {"3": 4}


def test_a_lost_scorer_is_made_again_on_resume(tmp_path):
    path = tmp_path / "run"
    _run(path, rounds=2, **SCORED)
    shutil.rmtree(path / "scorer")
    assert manege.resume(path, rounds=4, runtime="inline").outcome.rounds == {"3": 4}
    assert load_space(path / "scorer") == random_space(8, 1)


def test_toys_are_scored_by_their_points(tmp_path):
    done = manege.train(
        "ring8",
        runtime="inline",
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
