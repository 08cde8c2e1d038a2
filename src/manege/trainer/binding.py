"""Which method a configuration means, with its scorer, and what there is to do."""

from __future__ import annotations

from typing import Any

from manege.config import FeatureCritic, RunConfig, ScoreMetric, partition
from manege.config import Method as MethodName
from manege.data import Dataset, Split, set_of
from manege.device import Devices
from manege.errors import ConfigError
from manege.methods import Cellular, Independent, Method
from manege.methods.method import Timer
from manege.metrics import (
    ClassScorer,
    FrechetMixture,
    InceptionMixture,
    Space,
    StabilityGauge,
    feature_weights,
    load_space,
    space_without_scores,
)
from manege.models import FrozenFeatures, PictureShape
from manege.rundir import RunDir
from manege.runtime.orders import Task
from manege.trainer.host import Bound, Phases

MOST_REFERENCES = 10_000
"""Training pictures that mixtures are compared with."""


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
    return FrozenFeatures(weights.network, critic.stages, shape, critic.width)


def bound_method(config: RunConfig, dataset: Dataset, rundir: RunDir, on: Devices) -> Bound:
    """A run's method on these devices, in the feature space that its directory holds."""
    space = load_space(rundir.path / "scorer") if config.scored else None
    phases = Phases()
    method = bind(config, dataset, on, phases.timer, space)
    return Bound(config, method, phases, None if space is None else space.name)


def task_of(bound: Bound) -> Task:
    """What there is to do, for the coordinator."""
    config, method = bound.config, bound.method
    cells = method.cells()
    return Task(
        cells=cells,
        groups=method.groups(),
        around=method.around(),
        rounds=config.rounds,
        budget_s=config.budget_s,
        wall=config.budget_clock == "wall",
        waits=method.waits(),
        told={
            "method": config.method.value,
            "preset": config.preset,
            "cells": list(cells),
            "rounds": config.rounds,
            "budget_s": config.budget_s,
        },
    )


def check_space(config: RunConfig, dataset: Dataset, space: Space) -> None:
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
    reference = set_of(dataset, Split.TRAIN, MOST_REFERENCES, dataset.labels)
    return FrechetMixture(space, space.features_of(reference))
