"""A generator on one device and a discriminator on another: the bits of a pair on one.

The second device is a stand-in: see `tests/helpers/second_device.py`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.second_device import ELSEWHERE, HERE, DeviceMismatchError, second_device

from manege.cell import (
    Arena,
    Batch,
    Noise,
    Pair,
    Streams,
    draw_noise,
    new_pair,
    published,
    train_step,
)
from manege.config import (
    ClipConstraint,
    DcganNetworks,
    LossName,
    MlpNetworks,
    NoConstraint,
    PenaltyConstraint,
    R1Constraint,
    R1R2Constraint,
    ResnetNetworks,
    SpectralConstraint,
    Training,
    resolve,
    stream,
)
from manege.data import open_dataset
from manege.device import CPU, Devices
from manege.methods import Cellular, Independent
from manege.models import PictureShape

APART = (Devices(HERE, ELSEWHERE), Devices(ELSEWHERE, HERE))
WAYS = pytest.mark.parametrize("on", APART, ids=["discriminator", "generator"])
"""Which network is on the second device."""
SIDE, BATCH, LABELS = 8, 6, 3

MLP = MlpNetworks(latent=6, hidden=9)
DCGAN = DcganNetworks(latent=6, generator_width=4, discriminator_width=2)
FREE = DCGAN.model_copy(update={"discriminator_batchnorm": False})
RESNET = ResnetNetworks(latent=6, generator_width=4, discriminator_width=2)
STEPS: dict[str, tuple[Any, Training, int, float]] = {
    "perceptrons written out": (MLP, Training(constraint=NoConstraint()), 0, 0.0),
    "clipped": (
        MLP,
        Training(loss=LossName.WASSERSTEIN, constraint=ClipConstraint(bound=0.1)),
        0,
        0.0,
    ),
    "relativistic, written out": (
        MLP,
        Training(loss=LossName.RELATIVISTIC, constraint=NoConstraint()),
        0,
        0.0,
    ),
    "perceptrons, augmented": (MLP, Training(constraint=NoConstraint()), 0, 0.9),
    "perceptrons told labels": (MLP, Training(constraint=NoConstraint()), LABELS, 0.0),
    "BatchNorm and dropout": (DCGAN, Training(constraint=NoConstraint()), 0, 0.0),
    "convolutions, augmented, told labels": (
        FREE,
        Training(loss=LossName.RELATIVISTIC, constraint=R1R2Constraint(gamma=3)),
        LABELS,
        0.9,
    ),
    "penalised between": (FREE, Training(constraint=PenaltyConstraint(), n_critic=2), LABELS, 0.0),
    "spectral": (MLP, Training(loss=LossName.HINGE, constraint=SpectralConstraint()), LABELS, 0.0),
    "residual, R1": (RESNET, Training(constraint=R1Constraint(gamma=3)), 0, 0.9),
}


def _pair(networks: Any, training: Training, labels: int, on: torch.device | Devices) -> Pair:
    rngs = [stream(1, cell="a", purpose=purpose) for purpose in ("g", "d")]
    return new_pair(networks, PictureShape(SIDE, 1), training, on, *rngs, labels)


def _inputs(
    pair: Pair, training: Training, labels: int, augment: float, step: int
) -> tuple[list[Batch], list[Noise]]:
    rng = stream(1, cell="a", purpose="data", step=step)
    there = pair.discriminator.record.device
    streams = Streams(lambda purpose: stream(1, cell="a", purpose=purpose, step=step))
    reals, noise = [], []
    for _ in range(training.n_critic):
        x = rng.uniform(-1, 1, (BATCH, 1, SIDE, SIDE)).astype(np.float32)
        y = torch.from_numpy(rng.integers(labels, size=BATCH)).to(there) if labels else None
        reals.append(Batch(torch.from_numpy(x).to(there), y))
    for _ in range(training.n_critic + 1):
        shape = PictureShape(SIDE, 1)
        noise.append(draw_noise(pair, BATCH, streams, training, augment, shape))
    return reals, noise


def _trained(case: str, on: torch.device | Devices, sent: Counter[str]) -> dict[str, bytes]:
    """What two steps come to; only what the second one sends is counted."""
    networks, training, labels, augment = STEPS[case]
    pair = _pair(networks, training, labels, on)
    losses = []
    for step in range(2):
        inputs = _inputs(pair, training, labels, augment, step)
        sent.clear()
        losses.append(train_step(pair, *inputs, training))
    counts = Counter(sent)
    found = {
        "generator": pair.generator.to_numpy().tobytes(),
        "discriminator": pair.discriminator.to_numpy().tobytes(),
        "losses": torch.stack(losses).cpu().numpy().tobytes(),
    }
    sent.clear()
    sent.update(counts)
    return found


@pytest.mark.parametrize("case", STEPS)
def test_a_step_across_two_devices_has_the_bits_of_one_and_reads_nothing_back(case):
    _, training, labels, _ = STEPS[case]
    with second_device() as device:
        wanted = _trained(case, HERE, device.counts)
        assert not device.counts
        drawn, told = training.n_critic + 1, training.n_critic + 1 if labels else 0
        # Fakes go to the discriminator; labels and one gradient come to the generator.
        assert _trained(case, APART[0], device.counts) == wanted
        assert device.counts == {"over": drawn, "back": 1 + told}
        assert _trained(case, APART[1], device.counts) == wanted
        assert device.counts == {"back": drawn, "over": 1 + told}


@pytest.mark.parametrize("case", ["perceptrons written out", "penalised between"])
@pytest.mark.parametrize("what", ["pictures", "latents"])
def test_what_is_on_the_wrong_device_is_found(case, what):
    _, training, labels, augment = STEPS[case]
    with second_device():
        pair = _pair(*STEPS[case][:3], APART[0])
        reals, noise = _inputs(pair, training, labels, augment, 0)
        if what == "pictures":
            reals = [one._replace(pictures=one.pictures.to(HERE)) for one in reals]
        else:
            noise = [one._replace(z_BZ=one.z_BZ.to(ELSEWHERE)) for one in noise]
        with pytest.raises(DeviceMismatchError):
            train_step(pair, reals, noise, training)


@WAYS
def test_all_contests_across_two_devices_come_to_the_same(on):
    def contests(on: torch.device | Devices) -> list[Any]:
        training = Training(constraint=NoConstraint())
        judge = _pair(DCGAN, training, 0, on)
        rng = np.random.default_rng(0)
        shape = len(judge.generator.record), len(judge.discriminator.record)
        records = [[rng.random(one, dtype=np.float32) for _ in range(3)] for one in shape]
        reals, noise = _inputs(judge, training, 0, 0.0, 0)
        arena = Arena(judge, reals[0].pictures, noise[0].z_BZ, *records)
        return [
            arena.generator_losses_GD.tolist(),
            arena.discriminator_losses_DG.tolist(),
            arena.generator_against_all(records[0][1]).tolist(),
            arena.discriminator_against_all(records[1][1]).tolist(),
            arena.diversity(),
        ]

    wanted = contests(HERE)
    with second_device():
        assert contests(on) == wanted


# Whole rounds.


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "method-cache"))


def _scorer() -> SimpleNamespace:
    def estimated(pictures: np.ndarray) -> SimpleNamespace:
        value = float(pictures.mean())
        return SimpleNamespace(value=value, low=value, high=value)

    return SimpleNamespace(
        moments=lambda drawn: drawn.reshape(len(drawn), -1).mean(0),
        score=lambda weights_S, moments: float(np.square(weights_S @ np.stack(moments)).sum()),
        measure=estimated,
    )


GRID = (
    *("cellular.rows=1", "cellular.columns=2", "cellular.fitness_samples=10", "training.batch=10"),
    *("training.batches_per_round=2", "cellular.mixture.samples=100", "cellular.mixture.steps=2"),
    *("cellular.mixture.final_samples=100", "cellular.mixture.final_steps=2", "sheets.pictures=4"),
    *("networks.latent=8", "training.attempts=2"),
)
SMALL = ("networks.hidden=8",)
CONVOLUTIONS = (
    *("networks.kind=dcgan", "networks.generator_width=4", "networks.discriminator_width=2"),
)
GRIDS = {
    "perceptrons": (
        *(*SMALL, "cellular.objectives=[minimax, heuristic, least-squares]"),
        *("cellular.opponents=neighbourhood", "cellular.population=2"),
    ),
    "convolutions": CONVOLUTIONS,
}


def _bits(state: Any) -> dict[str, Any]:
    return {name: array.tobytes() for name, array in state.to_arrays().items()} | state.counters()


def _grid_of(method: Cellular) -> dict[str, Any]:
    states = {cell: method.init(cell) for cell in method.cells()}
    for round_ in range(2):
        inboxes = {
            cell: {
                one: published(states[one].centres(), round_)
                for one in method.neighbours(cell, round_ + 1)
            }
            for cell in states
        }
        for cell, state in states.items():
            steps = method.advance(cell, state, inboxes[cell])
            next(steps)
            taken = {name: array.copy() for name, array in state.to_arrays().items()}
            state.restore(taken, state.counters())
            list(method.advance(cell, state, inboxes[cell]))
    cell = method.cells()[0]
    found = method.combine(states.items())
    return {
        "cells": {cell: _bits(state) for cell, state in states.items()},
        "sheet": method.sheet(cell, states[cell]).tobytes(),
        "best": (found.cell, found.weights),
    }


@WAYS
@pytest.mark.parametrize("case", GRIDS)
def test_a_grid_across_two_devices_has_the_bits_of_one(case, on):
    flags = {"data.source": "digits", "method": "cellular"}
    config = resolve(flags=flags, sets=[*GRID, *GRIDS[case]])
    dataset = open_dataset(config.data)
    method = Cellular(config, dataset, CPU, lambda phase: nullcontext(), _scorer())
    wanted = _grid_of(method)
    with second_device() as device:
        assert _grid_of(method.to(on)) == wanted
        assert device.counts["over"] > 0


CLASSES = {
    "a class, averaged and scored": ("per-class", "networks.kind=mlp", *SMALL, "training.ema=0.9"),
    "labels, watched for overfitting": (
        *("conditional", *CONVOLUTIONS, "networks.discriminator_batchnorm=false"),
        *("training.augment.kind=adaptive", "training.augment.every_steps=2"),
        *("training.augment.target=0.01", "training.augment.step=0.5"),
    ),
}


def _cell_of(method: Independent) -> dict[str, Any]:
    cell = method.cells()[0]
    state = method.init(cell)
    for _ in range(2):
        list(method.advance(cell, state))
    state.roll_back()
    return {"state": _bits(state), "sheet": method.sheet(cell, state).tobytes()}


@pytest.mark.full
@WAYS
@pytest.mark.parametrize("case", CLASSES)
def test_a_cell_across_two_devices_has_the_bits_of_one(case, on):
    method_name, *sets = CLASSES[case]
    flags = {"data.source": "digits", "method": method_name, "data.classes": ["3", "7"]}
    sets += ["training.batch=20", "training.attempts=2", "sheets.pictures=4", "networks.latent=8"]
    config = resolve(preset="paper", flags=flags, sets=[*sets, "data.limit_per_class=60"])
    told = SimpleNamespace(value=0.5, low=0.4, high=0.6)
    scorer = SimpleNamespace(score=lambda cell, drawn: told)
    dataset = open_dataset(config.data)
    method = Independent(config, dataset, CPU, lambda phase: nullcontext(), scorer)
    wanted = _cell_of(method)
    with second_device() as device:
        assert _cell_of(method.to(on)) == wanted
        assert device.counts["over"] > 0


def test_a_method_that_moves_shares_what_was_loaded():
    config = resolve(flags={"data.source": "digits", "method": "cellular"}, sets=[*GRID, *SMALL])
    method = Cellular(
        config, open_dataset(config.data), CPU, lambda phase: nullcontext(), _scorer()
    )
    method.preload()
    other = method.to(Devices(HERE, HERE))
    cell = method.cells()[0]
    assert other._shares.of(cell).pictures.data_ptr() == method._shares.of(cell).pictures.data_ptr()
    assert other._scorer is method._scorer
    assert other._scratch is not method._scratch
