"""Train the feature network of labelled data: a small classifier, which the cache keeps.

It uses one thread and random streams of its own, so that the same pictures give the same network;
the digests of the pictures it was trained on find it again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from manege import device
from manege.config import SMALLEST_CLASS, DataConfig, stream
from manege.data import Dataset, PictureSet, Split, cache, cache_folder, set_of, survey_measured
from manege.errors import CheckpointError, ConfigError, MachineError, field
from manege.metrics.distributions import agreement
from manege.metrics.lite0_weights import feature_weights
from manege.metrics.networks import FeatureNetwork, bare
from manege.metrics.spaces import (
    CLASSIFIER,
    Progress,
    Space,
    digest_of,
    lite0_space,
    load_space,
    points_space,
    random_space,
    save_space,
)
from manege.models import PictureShape, initialise, to_floats

RECIPE = 1
"""Part of the cache's key: change it whenever the arithmetic below changes."""

_BATCH = 64
_RATE = 0.1
_WARM_UP = 0.2
_DECAY = 5e-4
_SHIFT = 1
"""Pixels that a batch is shifted by at most: augmentation for few pictures."""
_MOST_SEEN = 120_000
_LEAST_SEEN = 20_000
_PASSES = 30
_MOST_HELD_OUT = 10_000


@dataclass(frozen=True)
class Telling:
    """The callbacks that are told what happens: one for messages, one for progress."""

    say: Callable[[str], None] = lambda text: None
    progress: Progress | None = None


def scored_data(config: DataConfig, size: int, channels: int) -> Dataset:
    """Return the data to train the feature network of scores on: all of a source's classes.

    Whatever classes a run trains, and however few pictures of them, runs on one source share one
    space and can be compared; but `limits` cut here too, for what they cut is not to be had. Of
    very many pictures a part is enough to train the network.
    """
    every = config.model_copy(update={"classes": None, "limit_per_class": None})
    whole = survey_measured(every, size, channels)
    if sum(count.train for count in whole.classes) <= _MOST_SEEN:
        return whole
    limit = max(SMALLEST_CLASS, _MOST_SEEN // len(whole.labels))
    some = config.model_copy(update={"classes": None, "limit_per_class": limit})
    return survey_measured(some, size, channels)


def space_for(
    shape: PictureShape,
    data: DataConfig | None,
    telling: Telling | None = None,
    weights_file: str | Path | None = None,
) -> Space:
    """Return the feature space that pictures are scored in when nobody names one.

    Points are their own features; pictures go through EfficientNet-Lite0. Where its weights are
    missing, they go through the data's own classifier, or without labels random convolutions.

    Args:
        shape: of the pictures.
        data: where they are from; None for pictures without labels.
        telling: told what is going on.
        weights_file: Lite0's, else where `feature_weights` finds them.
    """
    telling = telling or Telling()
    if shape.channels == 2:
        return points_space()
    try:
        return lite0_space(shape.size, shape.channels, feature_weights(weights_file))
    except MachineError as error:
        telling.say(f"warning: scores fall back on the data's own classifier: {error}")
    scored = None if data is None else scored_data(data, shape.size, shape.channels)
    if scored is None or len(scored.labels) < 2:
        return random_space(shape.size, shape.channels)
    return classifier_for(scored, telling)


def classifier_for(dataset: Dataset, telling: Telling | None = None) -> Space:
    """Return the classifier of a dataset, from the cache or trained now."""
    telling = telling or Telling()
    if len(dataset.labels) < 2:
        raise ConfigError(
            f"{field('features')} classifier: {dataset.name} has one class, and a classifier needs "
            f"two; use {field('features')} lite0"
        )
    trained_on = training_digest(dataset)
    folder = cache_folder() / "scorers" / trained_on
    space = _cached(folder)
    if space is None:
        seen = examples(sum(count.train for count in dataset.classes))
        telling.say(
            f"training a feature network on {dataset.name} ({seen:,} pictures seen), once; it is "
            "kept in the cache"
        )
        space = _trained(dataset, trained_on, telling)
        save_space(space, folder)
    if (warning := poor(space, dataset)) is not None:
        telling.say(f"warning: {warning}")
    return space


def training_digest(dataset: Dataset) -> str:
    """Return the digest that names a dataset's classifier: of labels, pictures and recipe."""
    digests = [(label, dataset.digest(label, Split.TRAIN)) for label in dataset.labels]
    return cache.key("feature network", RECIPE, dataset.size, dataset.channels, digests)


def poor(space: Space, dataset: Dataset) -> str | None:
    """Return a warning when the classifier is too weak for its features to mean much, else None."""
    if space.accuracy is None:
        return (
            f"{dataset.name} has no held-out pictures to test the feature network on: how good "
            "its scores are is unknown"
        )
    held_out = [count.held_out for count in dataset.classes]
    chance = max(held_out) / max(1, sum(held_out))
    if space.accuracy.value >= chance + (1 - chance) / 2:
        return None
    return (
        f"the feature network is right on {space.accuracy.value:.0%} of the held-out pictures "
        f"(always the commonest class: {chance:.0%}); scores in its space tell little, use "
        f"{field('features')} lite0"
    )


def examples(num_pictures: int) -> int:
    """Return how many pictures training sees, repetitions counted."""
    return min(_MOST_SEEN, max(_LEAST_SEEN, _PASSES * num_pictures))


def _cached(folder: Path) -> Space | None:
    if not folder.is_dir():
        return None
    try:
        return load_space(folder)
    except CheckpointError:
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _trained(dataset: Dataset, trained_on: str, telling: Telling) -> Space:
    network = train(set_of(dataset, Split.TRAIN), dataset.labels, telling.progress)
    bare = Space(
        CLASSIFIER,
        dataset.size,
        dataset.channels,
        network,
        digest_of(network),
        dataset.labels,
        trained_on,
    )
    held_out = set_of(dataset, Split.HELD_OUT, limit=_MOST_HELD_OUT)
    if not len(held_out):
        return bare
    found = bare.labels_of(bare.features(held_out.pictures))
    accuracy = agreement(numbers(held_out, dataset.labels), found)
    return Space(**{**vars(bare), "accuracy": accuracy})


def numbers(pictures: PictureSet, labels: tuple[str, ...]) -> np.ndarray:
    """Return the number of each picture's label."""
    places = {label: place for place, label in enumerate(labels)}
    return np.array([places[label] for label in pictures.labels or ()], dtype=np.int64)


def train(
    pictures: PictureSet, labels: tuple[str, ...], progress: Progress | None = None
) -> FeatureNetwork:
    """Train a classifier of the pictures: SGD with Nesterov momentum, the rate up and down once."""
    network = bare(FeatureNetwork, pictures.channels, len(labels))
    initialise(network, stream(0, cell="", purpose="feature network"))
    optimiser = optimiser_of(network)
    bytes_NSSC = torch.from_numpy(np.ascontiguousarray(pictures.pictures))
    targets_N = torch.from_numpy(numbers(pictures, labels))
    seen = examples(len(pictures))
    steps = seen // _BATCH
    size, purpose = min(_BATCH, len(pictures)), "feature network order"
    order = batches(len(pictures), size, steps, seed=0, purpose=purpose)
    device.keep_memory()
    with device.threads(1):
        for step, batch in enumerate(map(torch.from_numpy, order)):
            set_rate(optimiser, step, steps)
            x_BCSS = _shifted(to_floats(bytes_NSSC[batch]), step)
            logits_BK = network.logits(network.features(x_BCSS))
            assert logits_BK is not None
            optimiser.zero_grad()
            F.cross_entropy(logits_BK, targets_N[batch]).backward()
            optimiser.step()
            if progress is not None:
                progress(min(seen, (step + 1) * _BATCH), seen)
    return network.eval()


def optimiser_of(network: FeatureNetwork) -> torch.optim.SGD:
    """Return SGD with Nesterov momentum for the network; `set_rate` sets its rates."""
    return torch.optim.SGD(
        network.parameters(), lr=_RATE, momentum=0.9, nesterov=True, weight_decay=_DECAY
    )


def set_rate(optimiser: torch.optim.SGD, step: int, steps: int) -> None:
    """Set the learning rate of a step: it rises over the first fifth, then falls to the end."""
    done = step / steps
    for group in optimiser.param_groups:
        group["lr"] = _RATE * min((done + 1 / steps) / _WARM_UP, (1 - done) / (1 - _WARM_UP))


def batches(
    num_pictures: int, size: int, steps: int, *, seed: int, purpose: str
) -> Iterator[np.ndarray]:
    """Yield one batch of row numbers for each step, each pass over the data in a new order.

    Rows left over at the end of a pass begin the next batch, so that all have one size.
    """
    left, passes = np.empty(0, np.int64), count()
    for _ in range(steps):
        while len(left) < size:
            rng = stream(seed, cell="", purpose=purpose, round_=next(passes))
            left = np.concatenate([left, rng.permutation(num_pictures)])
        yield left[:size]
        left = left[size:]


def _shifted(x_BCSS: torch.Tensor, step: int) -> torch.Tensor:
    """Return the batch shifted by up to a pixel either way, edges repeated."""
    side = x_BCSS.shape[-1]
    rng = stream(0, cell="", purpose="feature network shift", step=step)
    down, right = rng.integers(0, 2 * _SHIFT + 1, 2)
    padded = F.pad(x_BCSS, (_SHIFT,) * 4, mode="replicate")
    moved = padded[:, :, down : down + side, right : right + side]
    return moved.contiguous(memory_format=torch.channels_last)
