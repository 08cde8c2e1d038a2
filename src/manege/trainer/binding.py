"""Which method a configuration means, with its scorer, and what there is to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from manege.config import FeatureCritic, RunConfig, ScoreMetric, partition
from manege.config import MethodName as MethodName
from manege.data import Dataset, Split, set_of
from manege.device import Devices
from manege.errors import ConfigError
from manege.methods import Cellular, Independent, Method
from manege.methods.method import Timer
from manege.metrics import (
    LITE0,
    ClassScorer,
    FrechetMixture,
    InceptionMixture,
    Space,
    StabilityGauge,
    feature_weights,
    load_space,
    space_without_scores,
)
from manege.metrics.controls import EARLY_GENERATOR, told
from manege.metrics.controls import check as check_space
from manege.models import FrozenFeatures, PictureShape
from manege.rundir import RunDir
from manege.runtime.messages import Task
from manege.trainer.host import Phases, TrainingSetup

MOST_REFERENCES, MOST_SEEN_BY_LITE0 = 10_000, 2_000
"""Training pictures that mixtures are compared with; fewer where each takes longer."""

FEWEST_CHECKED, MOST_CHECKED = 32, 128
"""Real pictures of a cell that an early generator's are held against. By fewer nothing is told, and
an evaluation, which looks at all cells together, tells it."""


def bind(
    config: RunConfig, dataset: Dataset, on: Devices, timer: Timer, space: Space | None
) -> Method[Any]:
    """The method, ready to train; `space` is there when the configuration scores anything."""
    gauge = gauge_of(config, dataset, space)
    features = features_of(config, PictureShape(dataset.size, dataset.channels))
    if config.method is MethodName.CELLULAR:
        assert space is not None
        mixtures = mixture_scorer(config, dataset, space)
        return Cellular(config, dataset, on, timer, mixtures, gauge, features)
    scorer = None if space is None else class_scorer(config, dataset, space)
    return Independent(config, dataset, on, timer, scorer, gauge, features)


def features_of(config: RunConfig, shape: PictureShape) -> FrozenFeatures | None:
    """What the run's critics see of pictures; None where they see pixels.

    ConfigError when the weights are not those that the run began with.
    """
    critic = config.critic
    if not isinstance(critic, FeatureCritic):
        return None
    weights = feature_weights(config.feature_weights)
    if critic.weights not in (None, weights.sha256):
        raise ConfigError(
            f"feature_weights: found weights of digest {weights.sha256[:12]}…, expected "
            f"{critic.weights[:12]}…, with which the run began; give back that file"
        )
    return FrozenFeatures(
        weights.network, critic.stages, shape, critic.width, critic.colour, critic.colour_head
    )


def bound_method(config: RunConfig, dataset: Dataset, rundir: RunDir, on: Devices) -> TrainingSetup:
    """A run's method on these devices, in the feature space that its directory holds."""
    folder = rundir.path / "scorer"
    space = load_space(folder, config.feature_weights) if config.scored else None
    phases = Phases()
    method = bind(config, dataset, on, phases.timer, space)
    if space is None:
        return TrainingSetup(config, method, phases, None)
    return TrainingSetup(config, method, phases, space.name, early_check(config, dataset, space))


def early_check(
    config: RunConfig, dataset: Dataset, space: Space
) -> Callable[[str, np.ndarray], str | None]:
    """From a cell and what its generator drew early to why the run's scores are blind, or None."""
    parts = partition(config, dataset.labels)

    def check(cell: str, drawn: np.ndarray) -> str | None:
        train, held_out = (
            set_of(dataset, split, MOST_CHECKED, parts[cell]).pictures for split in Split
        )
        early = {EARLY_GENERATOR: drawn}
        found = check_space(space, train, held_out, early, made=False, fewest=FEWEST_CHECKED)
        return None if found is None else told(found.space, found.blind)

    return check


def task_of(bound: TrainingSetup) -> Task:
    """What there is to do, for the coordinator."""
    config, method = bound.config, bound.method
    cells = method.cells()
    return Task(
        cells=cells,
        groups=method.groups(),
        links=method.around(),
        rounds=config.rounds,
        budget_s=config.budget_s,
        wall=config.budget_clock == "wall",
        synchronous=method.waits(),
        record={
            "method": config.method.value,
            "preset": config.preset,
            "cells": list(cells),
            "rounds": config.rounds,
            "budget_s": config.budget_s,
        },
    )


def check_scores(config: RunConfig, dataset: Dataset, space: Space) -> None:
    """Nothing; ConfigError when the run could not be scored in this space."""
    if config.score.metric is not ScoreMetric.NONE:
        class_scorer(config, dataset, space)
    if config.cellular is not None and config.cellular.mixture.metric == "is":
        InceptionMixture(space)


def class_scorer(config: RunConfig, dataset: Dataset, space: Space) -> ClassScorer:
    """Judges one cell's pictures."""
    return ClassScorer(config.score, space, dataset, partition(config, dataset.labels))


def gauge_of(config: RunConfig, dataset: Dataset, space: Space | None) -> StabilityGauge | None:
    """Tells collapse and cycling, in the space of the scores where there is one."""
    if config.stability.every_rounds is None:
        return None
    parts = partition(config, dataset.labels)
    return StabilityGauge(config.stability, space or space_without_scores(dataset), dataset, parts)


def mixture_scorer(
    config: RunConfig, dataset: Dataset, space: Space
) -> FrechetMixture | InceptionMixture:
    """Judges mixtures of a neighbourhood's generators."""
    assert config.cellular is not None
    if config.cellular.mixture.metric == "is":
        return InceptionMixture(space)
    most = MOST_SEEN_BY_LITE0 if space.kind == LITE0 else MOST_REFERENCES
    reference = set_of(dataset, Split.TRAIN, most, dataset.labels)
    return FrechetMixture(space, space.features_of(reference))
