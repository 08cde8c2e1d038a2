"""The protocol that every method satisfies: cells, rounds of steps, and the model they come to.

A method knows no communicator, file or clock: the timer for the profile is passed in. Whoever
drives one (a worker, the sampler) asks it and never tests which method it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from manege import plugins
from manege.cell import Best, Centre, Gauge, Judgement, MixtureScorer, Scorer
from manege.config import RunConfig, shown
from manege.data import Dataset
from manege.data.labels import listed
from manege.device import Devices
from manege.errors import ConfigError
from manege.labels import LABEL, is_label
from manege.models import FrozenFeatures

Timer = Callable[[str], AbstractContextManager[None]]
"""`with timer("train"):` measures a phase."""

Inbox = Mapping[str, Centre]
"""The neighbours' centres of the round before, by their cells."""


@dataclass(frozen=True)
class Step:
    """One training step that was taken; when a method yields it, the cell's state is whole."""

    round_: int
    step: int
    """Steps done of this round."""
    steps: int
    """Steps in this round."""
    images: int
    """Real pictures a step sees; the same in every step of a round."""
    losses: Mapping[str, float] | None = None
    """Means over the round, with its last step."""
    judgement: Judgement | None = None
    """With the last step of a round that was scored."""
    spread: float | None = None
    """With the last step: mean distance between samples, where it is watched."""
    augment: Mapping[str, float] | None = None
    """With the last step: the chance of a change and the overfitting that led to it."""
    grid: Mapping[str, Any] | None = None
    """With the last step, on a grid: fitness and lineage of the offspring, mixture, diversity."""
    indices: Mapping[str, Any] | None = None
    """With the last step of a round that was measured: collapse, cycling, what they come from."""
    trouble: str | None = None
    """Why the round broke down; it begins again with the next step."""


class State(Protocol):
    """A cell's state, as a worker sees it: what a commit holds, and where it stands."""

    @property
    def round_(self) -> int:
        """Rounds completed."""
        ...

    @property
    def step(self) -> int:
        """Steps done of the round under way."""
        ...

    @property
    def attempt(self) -> int:
        """How often the round under way broke down and was begun again."""
        ...

    @property
    def sheet_step(self) -> int:
        """Steps of the round under way that the generator on a sheet has taken."""
        ...

    @property
    def best(self) -> Best | None:
        """The generator that scored best so far, where there is a scorer."""
        ...

    def is_finite(self) -> bool:
        """Return whether no weight, moment or loss is NaN or infinite."""
        ...

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all of the state but its counters, as numpy arrays."""
        ...

    def counters(self) -> dict[str, Any]:
        """Return what `to_arrays` leaves out, as JSON knows it."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray], counters: Mapping[str, Any]) -> None:
        """Become the state that these arrays and counters were taken from."""
        ...

    def centres(self) -> tuple[Centre, ...]:
        """Return the centres that neighbours may read, the newest last; none without neighbours."""
        ...


class Scorers(Protocol):
    """The scorers of a run; each is made when a method asks for it."""

    def for_cells(self) -> Scorer | None:
        """Return what scores one cell's pictures; None when the run keeps no score."""
        ...

    def for_mixtures(self) -> MixtureScorer:
        """Return what scores mixtures of several cells' generators."""
        ...


class SavedCell(Protocol):
    """A cell's state as it was saved: what `to_arrays` and `counters` gave, and more in `meta`."""

    @property
    def round_(self) -> int:
        """Rounds completed."""
        ...

    @property
    def tensors(self) -> Mapping[str, np.ndarray]:
        """The state's arrays."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """The state's counters; under `final` the last judgement, or None."""
        ...


@dataclass(frozen=True)
class ModelPart:
    """A generator that the finished model ought to have."""

    label: str
    """What it draws: a label, or `ALL` when its pictures have none."""
    cell: str
    """The cell whose commit holds it."""
    weight: float
    """How often it draws, beside the others' weights."""
    labels: tuple[str, ...] = ()
    """All labels that its networks are told, in the order of their numbers; empty when none are."""
    score: Mapping[str, Any] | None = None
    """The score of the mixture it is a part of."""
    required: bool = False
    """Whether there is no model without it; else a cell that failed only leaves its labels out."""


@dataclass(frozen=True, eq=False)
class TrainedGenerator:
    """A generator as a commit holds it."""

    record: np.ndarray
    """Its weights and buffers, maybe with more behind them."""
    rounds: int
    """How many it has trained."""
    weights: str
    """Which of its sets of weights these are: `raw` or `ema`."""
    score: Mapping[str, Any] | None
    """The metric and the score that it was chosen by; None without a score."""


class Choice(Protocol):
    """What a method chose over all cells when training had ended."""

    def to_json(self) -> dict[str, Any]:
        """Return the choice as the run's status keeps it."""
        ...


AnyState = TypeVar("AnyState", bound=State)


class Method(Protocol[AnyState]):
    """The partition of the data into cells, their links, what a round does, what draws in the end.

    The class methods need no dataset: with them a model is made from a run directory alone.
    """

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
        ...

    @classmethod
    def partition(cls, config: RunConfig, labels: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        """Return the run's cells by their keys, and the labels each sees the pictures of."""
        ...

    @classmethod
    def check(cls, config: RunConfig, labels: tuple[str, ...]) -> None:
        """Raise ConfigError for what cannot be trained on data with these labels."""
        ...

    @classmethod
    def draws_labels(cls, config: RunConfig, labels: tuple[str, ...]) -> bool:
        """Return whether the model can be asked for pictures of one label."""
        ...

    @classmethod
    def components(
        cls,
        config: RunConfig,
        counts: Mapping[str, int],
        choice: Mapping[str, Any] | None,
        commits: Iterable[tuple[str, SavedCell]],
    ) -> list[ModelPart]:
        """Return the generators of the model; none when no cell can be chosen yet.

        Args:
            config: the run's configuration.
            counts: training pictures of each label.
            choice: what `combine` chose, as JSON; None in a run that has not ended.
            commits: every cell with its last commit, loaded one after the other if they are needed.
        """
        ...

    @classmethod
    def trained(cls, config: RunConfig, part: ModelPart, commit: SavedCell) -> TrainedGenerator:
        """Return the generator of a part from its cell's commit."""
        ...

    def cells(self) -> tuple[str, ...]:
        """Return all cells' keys, the longest work first."""
        ...

    def links(self) -> Mapping[str, tuple[str, ...]]:
        """Return for every cell those that it ever hears of, and those that ever hear of it."""
        ...

    def neighbours(self, cell: str, round_: int) -> tuple[str, ...]:
        """Return the cells whose centres of the round before a cell needs in a round."""
        ...

    def synchronous(self) -> bool:
        """Return whether a round needs its neighbours' centres of the very round before it."""
        ...

    def preload(self) -> None:
        """Load what cells have in common, so that processes forked later share it."""
        ...

    def to(self, devices: Devices) -> Self:
        """Return the same method with its networks on other devices; loaded data are shared."""
        ...

    def init(self, cell: str) -> AnyState:
        """Return the state of an untrained cell."""
        ...

    def data_digest(self, cell: str) -> str:
        """Return the digest of the pictures that a cell trains on."""
        ...

    def steps_in_round(self, cell: str) -> int:
        """Return how many steps a round of the cell takes."""
        ...

    def advance(self, cell: str, state: AnyState, inbox: Inbox) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end, given the neighbours' centres.

        Every yield is a legal place to commit, to stop, or to leave the round for good.
        """
        ...

    def judge(self, cell: str, state: AnyState) -> Judgement | None:
        """Return the scores of the cell's generator as it stands; None when none are kept."""
        ...

    def judges_now(self, state: AnyState) -> bool:
        """Return whether `advance` has judged this very state, at the end of a round."""
        ...

    def sheet(self, cell: str, state: AnyState) -> np.ndarray:
        """Return pictures of the cell at latents that never change over a run."""
        ...

    def combine(self, states: Iterable[tuple[str, AnyState]]) -> Choice | None:
        """Choose what the model draws with, over the last states of all cells.

        Return None where there is nothing to choose; `states` are then not even loaded.
        """
        ...


Partition = Callable[[RunConfig, tuple[str, ...]], Mapping[str, tuple[str, ...]]]


def partition_by(
    partition: Partition, config: RunConfig, labels: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return a method's partition; raise ConfigError if a method of one's own gives none."""
    if not plugins.is_reference(config.method):
        return dict(partition(config, labels))
    with plugins.blamed(config.method, "partition"):
        found = partition(config, labels)
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(
            f"{config.method}: partition gave {shown(found)}, expected the labels of each cell, by "
            "the cells' keys"
        )
    parts = {}
    for cell, own in found.items():
        if not isinstance(cell, str) or not is_label(cell):
            raise ConfigError(
                f"{config.method}: partition names a cell {shown(cell)}, expected {LABEL}"
            )
        known = isinstance(own, tuple | list) and all(one in labels for one in own)
        if not own or not known or len(set(own)) < len(own):
            raise ConfigError(
                f"{config.method}: partition gives cell {cell!r} the labels {shown(own)}, expected "
                f"some of the data's, each once ({listed(labels)})"
            )
        parts[cell] = tuple(own)
    return parts
