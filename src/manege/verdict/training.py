"""Train one classifier of the trial: the small network of the scores, from scratch.

Weights at the start, order and augmentation are functions of the seed and the step alone, so that
arms of one seed differ in their pictures and nothing else. It uses one thread.

Shape legend: N pictures, B pictures of a batch, S side, C channels, K labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from manege import device
from manege.config import stream
from manege.metrics.classifier import batches, optimiser_of, set_rate
from manege.metrics.networks import FeatureNetwork, bare
from manege.models import initialise, to_floats

RECIPE = 2
"""Part of what names a trial: change it whenever the arithmetic of a training, a bound or a
finding changes."""
BATCH = 64

_CHUNK = 256
_LARGE = 16
"""From this side on pictures are shifted by up to two pixels, smaller ones by one."""


@dataclass(frozen=True)
class TrainingSpec:
    """The pictures that a classifier is trained on, and how."""

    pictures: np.ndarray
    """The pictures N×S×S×C in bytes."""
    targets: np.ndarray
    """The number of each picture's label."""
    num_labels: int
    augmented: bool
    mirrored: bool
    """Whether augmentation mirrors, too."""
    steps: int
    seed: int
    purpose: str = "verdict"


def train(lesson: TrainingSpec, rows_N: np.ndarray, each: Callable[[int], None]) -> FeatureNetwork:
    """Train a classifier on these rows of the lesson's pictures; call `each` after every step."""
    network = bare(FeatureNetwork, lesson.pictures.shape[3], lesson.num_labels)
    initialise(network, stream(lesson.seed, cell="", purpose=f"{lesson.purpose} weights"))
    optimiser = optimiser_of(network)
    purpose = f"{lesson.purpose} order"
    order = batches(len(rows_N), BATCH, lesson.steps, seed=lesson.seed, purpose=purpose)
    device.keep_memory()
    with device.threads(1):
        for step, numbers in enumerate(order):
            batch = rows_N[numbers]
            set_rate(optimiser, step, lesson.steps)
            pictures_BSSC = lesson.pictures[batch]
            if lesson.augmented:
                rng = stream(
                    lesson.seed, cell="", purpose=f"{lesson.purpose} augmentation", step=step
                )
                pictures_BSSC = augmented(pictures_BSSC, rng, mirrored=lesson.mirrored)
            targets_B = torch.from_numpy(lesson.targets[batch])
            optimiser.zero_grad()
            F.cross_entropy(_logits(network, pictures_BSSC), targets_B).backward()
            optimiser.step()
            each(step + 1)
    return network.eval()


def probabilities(network: FeatureNetwork, pictures_NSSC: np.ndarray) -> np.ndarray:
    """Return the probabilities N×K that the classifier gives each picture's labels."""
    parts = [np.empty((0, network.head.out_features if network.head else 0), np.float32)]
    with device.threads(1), torch.no_grad():
        for start in range(0, len(pictures_NSSC), _CHUNK):
            logits_BK = _logits(network, pictures_NSSC[start : start + _CHUNK])
            parts.append(logits_BK.softmax(1).numpy())
    return np.concatenate(parts)


def augmented(pictures_BSSC: np.ndarray, rng: np.random.Generator, *, mirrored: bool) -> np.ndarray:
    """Shift each picture by up to two pixels (one when small), edges repeated; maybe mirror it."""
    count, side = pictures_BSSC.shape[:2]
    reach = 2 if side >= _LARGE else 1
    moves_2B = rng.integers(-reach, reach + 1, (2, count, 1))
    rows_BS, columns_BS = np.clip(np.arange(side) + moves_2B, 0, side - 1)
    turned_B1 = rng.random((count, 1)) < 0.5
    if mirrored:
        columns_BS = np.where(turned_B1, columns_BS[:, ::-1], columns_BS)
    places = np.arange(count)[:, None, None]
    return np.asarray(pictures_BSSC[places, rows_BS[:, :, None], columns_BS[:, None, :]])


def _logits(network: FeatureNetwork, pictures_BSSC: np.ndarray) -> torch.Tensor:
    x_BCSS = to_floats(torch.from_numpy(np.array(pictures_BSSC, order="C")))
    logits_BK = network.logits(network.features(x_BCSS))
    assert logits_BK is not None
    return logits_BK
