"""Makes the method that a configuration means, with its scorer, and says what there is to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from manege.config import FeatureCritic, RunConfig, ScoreMetric, shown
from manege.data import Dataset, Split, set_of
from manege.device import Devices
from manege.errors import ConfigError, DataError
from manege.methods import Method, Timer, method_of, partition_of
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
    try_score,
)
from manege.metrics.controls import EARLY_GENERATOR, told
from manege.metrics.controls import check as check_space
from manege.models import FrozenFeatures, PictureShape
from manege.plugins import blamed, check_sources, is_reference
from manege.runs import RunDir
from manege.runtime.messages import Task
from manege.runtime.worker.host import Phases, TrainingSetup
from manege.sampler import run_data
from manege.topology import Topology, connected

MOST_REFERENCES, MOST_SEEN_BY_LITE0 = 10_000, 2_000
"""How many training pictures mixtures are compared with; the second where each takes longer."""

FEWEST_CHECKED, MOST_CHECKED = 32, 128
"""How many real pictures of a cell an early generator's are compared with. With fewer than the
first nothing is said; an evaluation, which looks at all cells together, then says it.
"""


class RunScorers:
    """The scorers of a run's method, made from its configuration when it asks."""

    def __init__(self, config: RunConfig, dataset: Dataset, space: Space | None) -> None:
        self._config, self._dataset, self._space = config, dataset, space

    def for_cells(self) -> ClassScorer | None:
        """Return the scorer of one cell's pictures; None if the run keeps no score."""
        config = self._config
        if self._space is None or config.score.metric is ScoreMetric.NONE:
            return None
        parts = partition_of(config, self._dataset.labels)
        return ClassScorer(config.score, self._space, self._dataset, parts)

    def for_mixtures(self) -> FrechetMixture | InceptionMixture:
        """Return the scorer of mixtures of several cells' generators."""
        space = self._space
        assert space is not None
        assert self._config.cellular is not None
        if self._config.cellular.mixture.metric == "is":
            return InceptionMixture(space)
        most = MOST_SEEN_BY_LITE0 if space.kind == LITE0 else MOST_REFERENCES
        reference = set_of(self._dataset, Split.TRAIN, most, self._dataset.labels)
        return FrechetMixture(space, space.features_of(reference))


def bind(
    config: RunConfig, dataset: Dataset, on: Devices, timer: Timer, space: Space | None
) -> Method[Any]:
    """Return the method, ready to train; `space` is given if the run is scored at all."""
    gauge = gauge_of(config, dataset, space)
    features = features_of(config, PictureShape(dataset.size, dataset.channels))
    scorers = RunScorers(config, dataset, space)
    with _own_method_blamed(config):
        method = method_of(config).build(config, dataset, on, timer, scorers, gauge, features)
    if is_reference(config.method):
        _check_own_cells(config, method, tuple(partition_of(config, dataset.labels)))
    return method


def features_of(config: RunConfig, shape: PictureShape) -> FrozenFeatures | None:
    """Return what the run's critics see of pictures; None if they see pixels.

    Raises ConfigError if the weights are not those that the run began with.
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
    """Bind a run's method to these devices and to the feature space that its directory holds.

    Raises ConfigError if a part from outside the package is not here as it was prepared.
    """
    check_sources(
        config.references(),
        config.plugins,
        f"workers on {os.uname().nodename} find another source than the run was prepared with",
    )
    if is_reference(config.data.source):
        _check_same_pictures(rundir, dataset)
    folder = rundir.path / "scorer"
    space = load_space(folder, config.feature_weights) if config.scored else None
    phases = Phases()
    method = bind(config, dataset, on, phases.timer, space)
    if space is None:
        return TrainingSetup(config, method, phases, None)
    return TrainingSetup(config, method, phases, space.name, early_check(config, dataset, space))


def _check_same_pictures(rundir: RunDir, dataset: Dataset) -> None:
    """Raise DataError if a dataset from outside the package is not the one that was prepared."""
    for label, known in run_data(rundir)["classes"].items():
        if known.get("train_sha256") != dataset.digest(label, Split.TRAIN):
            raise DataError(
                f"{dataset.name}: gives other pictures of class {label!r} in this process than "
                "when the run was prepared; make it give the same ones each time"
            )


def early_check(
    config: RunConfig, dataset: Dataset, space: Space
) -> Callable[[str, np.ndarray], str | None]:
    """Return a function that tells whether the run's scores are blind to an early generator.

    It is given a cell and the generator's pictures, and returns why they are, or None.
    """
    parts = partition_of(config, dataset.labels)

    def check(cell: str, drawn: np.ndarray) -> str | None:
        train, held_out = (
            set_of(dataset, split, MOST_CHECKED, parts[cell]).pictures for split in Split
        )
        early = {EARLY_GENERATOR: drawn}
        found = check_space(space, train, held_out, early, made=False, fewest=FEWEST_CHECKED)
        return None if found is None else told(found.space, found.blind)

    return check


def task_of(bound: TrainingSetup) -> Task:
    """Return what there is to do, for the coordinator."""
    config, method = bound.config, bound.method
    with _own_method_blamed(config):
        cells, links = method.cells(), method.links()
    return Task(
        cells=cells,
        groups=connected(links),
        links=links,
        rounds=config.rounds,
        budget_s=config.budget_s,
        wall=config.budget_clock == "wall",
        synchronous=method.synchronous(),
        record={
            "method": str(config.method),
            "preset": config.preset,
            "cells": list(cells),
            "rounds": config.rounds,
            "budget_s": config.budget_s,
            **({"parts": parts} if (parts := sorted(set(config.references().values()))) else {}),
        },
    )


def _own_method_blamed(config: RunConfig) -> AbstractContextManager[None]:
    """Name a method from outside the package where it fails."""
    own = is_reference(config.method)
    return blamed(config.method, "the method") if own else nullcontext()


def _check_own_cells(config: RunConfig, method: Method[Any], wanted: tuple[str, ...]) -> None:
    """Raise ConfigError unless a method has the cells of its partition, linked both ways if any."""
    with _own_method_blamed(config):
        cells, links = method.cells(), method.links()
    for what, found in (("cells", cells), ("links", list(links))):
        if sorted(found) != sorted(wanted):
            raise ConfigError(
                f"{config.method}: {what} gives {shown(found)}, expected the cells of its "
                f"partition, each once: {shown(wanted)}"
            )
    try:
        Topology(links)
    except ValueError as error:
        raise ConfigError(f"{config.method}: links: {error}") from None


def check_scores(config: RunConfig, dataset: Dataset, space: Space) -> None:
    """Raise ConfigError if the run could not be scored in this space."""
    RunScorers(config, dataset, space).for_cells()
    if is_reference(config.score.metric):
        try_score(config.score.metric, space.dimensions)
    if config.cellular is not None and config.cellular.mixture.metric == "is":
        InceptionMixture(space)  # The other mixtures' scorer looks at pictures, and takes long.


def gauge_of(config: RunConfig, dataset: Dataset, space: Space | None) -> StabilityGauge | None:
    """Return what measures collapse and cycling, in the space of the scores if there is one."""
    if config.stability.every_rounds is None:
        return None
    parts = partition_of(config, dataset.labels)
    return StabilityGauge(config.stability, space or space_without_scores(dataset), dataset, parts)
