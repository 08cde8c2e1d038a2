"""What the built-in methods have in common: shares of the data, and rounds that may begin again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, Self

import torch

from manege.cell import CellState, Gauge, collapse, round_trouble, step_trouble
from manege.config import MethodName, RunConfig, partition
from manege.data import Dataset
from manege.device import Devices, both
from manege.methods.method import Scorers, Step, Timer, partition_by
from manege.methods.shares import Shares
from manege.models import FrozenFeatures, Generator


class BaseMethod(ABC):
    """A method whose cells train pairs on shares of one dataset."""

    check_phase = "watch"
    """The phase of the profile that looking for a collapse belongs to."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        devices: torch.device | Devices,
        timer: Timer,
        scorer: Any = None,
        gauge: Gauge | None = None,
        features: FrozenFeatures | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            config: the run's configuration.
            dataset: the pictures of all cells.
            devices: where generators and discriminators live.
            timer: measures the phases of a round.
            scorer: of the kind that `chosen_scorer` returns.
            gauge: measures collapse and cycling; None where nobody wants to know.
            features: what discriminators see of pictures; None for the pictures themselves.
        """
        self._config = config
        self._devices = both(devices)
        self._timer = timer
        self._scorer = scorer
        self._gauge = gauge
        parts = partition_by(self.partition, config, dataset.labels)
        self._shares = Shares(
            config,
            dataset,
            self._devices.discriminator,
            parts,
            features,
            tells_labels=self.tells_labels(config),
        )

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self._config

    @classmethod
    def build(
        cls,
        config: RunConfig,
        dataset: Dataset,
        devices: Devices,
        timer: Timer,
        scorers: Scorers,
        gauge: Gauge | None,
        features: FrozenFeatures | None,
    ) -> Self:
        """Return the method of a configuration, ready to train."""
        scorer = cls.chosen_scorer(scorers)
        return cls(config, dataset, devices, timer, scorer, gauge, features)

    @classmethod
    def partition(cls, config: RunConfig, labels: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        """Return the run's cells, and the labels each sees the pictures of."""
        return partition(config, labels)

    @classmethod
    def check(cls, config: RunConfig, labels: tuple[str, ...]) -> None:
        """Raise ConfigError for what cannot be trained on data with these labels."""
        partition_by(cls.partition, config, labels)

    @classmethod
    def tells_labels(cls, config: RunConfig) -> bool:
        """Return whether the networks are told which label each picture has."""
        return config.method == MethodName.CONDITIONAL

    @staticmethod
    @abstractmethod
    def chosen_scorer(scorers: Scorers) -> Any:
        """Return the scorer that the method needs."""

    def preload(self) -> None:
        """Load the pictures that several cells see, so that processes forked later share them."""
        self._shares.preload()

    def to(self, devices: Devices) -> Self:
        """Return the same method with its networks on other devices; loaded pictures are shared."""
        other = copy(self)
        other._devices, other._shares = devices, self._shares.to(devices.discriminator)
        return other

    def data_digest(self, cell: str) -> str:
        """Return the digest of the pictures that a cell's share is taken from."""
        return self._shares.digest(cell)

    def _attempts(
        self,
        cell: str,
        state: CellState,
        steps: int,
        train: Callable[[], int],
        end: Callable[[int, float], Step],
    ) -> Iterator[Step]:
        """Yield the steps of a round; when it breaks down, roll it back and begin it again.

        Args:
            cell: the cell.
            state: the pair in training and where it stands; changed in place.
            steps: how many there are in a round.
            train: takes one step and returns the number of real pictures it saw.
            end: ends the round, given those pictures and the samples' spread, and returns its last
                step.
        """
        while True:
            images = train()
            # The numbers of the step just taken: rolling back and ending both reset the state's.
            done, round_, spread = state.step, state.round_ + 1, 0.0
            trouble = step_trouble(state)
            if trouble is None and done == steps:
                spread, trouble = self._check_round(cell, state, steps)
            if trouble is not None:
                # Before the yield: there the state must be one that a commit may hold.
                state.roll_back()
                yield Step(round_, done, steps, images, trouble=trouble)
            elif done < steps:
                yield Step(round_, done, steps, images)
            else:
                yield end(images, spread)
                return

    def _check_round(self, cell: str, state: CellState, steps: int) -> tuple[float, str | None]:
        """Return the samples' spread after a round's last step, and what has broken or None.

        Where a round has a single attempt nothing is measured: the spread is then 0.
        """
        if self._config.training.attempts == 1:
            return 0.0, None
        with self._timer(self.check_phase):
            spread = self._shares.spread(cell, state.pair.generator.network)
        return spread, round_trouble(state, steps) or self._collapse(cell, state, spread)

    def _collapse(self, cell: str, state: CellState, spread: float) -> str | None:
        """Return how the samples have collapsed, if the round must begin again for that."""
        return collapse(state, spread, self._shares.real_spread(cell))

    def _indices(
        self, cell: str, state: CellState, generator: Callable[[], Generator]
    ) -> dict[str, Any] | None:
        """Return the signs of collapse and cycling after a round, None where none are due.

        `generator` returns the network to draw with; it is called only when they are due.
        """
        if self._gauge is None:
            return None
        if not self._gauge.due(state.round_, self._shares.images_in_round(cell)):
            return None
        with self._timer("indices"):
            return self._shares.indices(cell, state, generator(), self._gauge)
