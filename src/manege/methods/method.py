"""What every method is to the driver: cells, and rounds of steps.

A method knows no communicator, file or clock: the timer for the profile is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from manege.cell import Best, Centre, Judgement
from manege.device import Devices

Timer = Callable[[str], AbstractContextManager[None]]
"""`with timer("train"):` measures a phase."""

Inbox = Mapping[str, Centre]
"""The neighbours' centres of the round before, by their cells."""


@dataclass(frozen=True)
class Step:
    """What a method yields: a place where the state is whole."""

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
    """A cell's state, as the driver sees it: what a commit holds, and where it stands."""

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
    def best(self) -> Best | None:
        """The generator that scored best so far, where there is a scorer."""
        ...

    def is_finite(self) -> bool:
        """Whether no weight, moment or loss is NaN or infinite."""
        ...

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything but the counters, as numpy arrays."""
        ...

    def counters(self) -> dict[str, Any]:
        """The rest."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray], counters: Mapping[str, Any]) -> None:
        """Become the state those two were taken from."""
        ...

    def published(self, round_: int) -> Centre:
        """The centre after a round, for the neighbours."""
        ...


AnyState = TypeVar("AnyState", bound=State)


class Method(Protocol[AnyState]):
    """Partition, topology, and what a round does."""

    def cells(self) -> tuple[str, ...]:
        """All cells' keys, the longest work first."""
        ...

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Cells that ever hear of each other; each group goes round by round together."""
        ...

    def neighbours(self, cell: str, round_: int) -> tuple[str, ...]:
        """Whose centres of the round before a cell needs in a round."""
        ...

    def waits(self) -> bool:
        """Whether a round needs its neighbours' centres of the round before, or any will do."""
        ...

    def around(self) -> Mapping[str, tuple[str, ...]]:
        """For every cell those that it ever hears, and those that ever hear it."""
        ...

    def warm(self) -> None:
        """Load what cells have in common, so that processes forked afterwards share it."""
        ...

    def moved(self, on: Devices) -> Self:
        """The same with its networks on other devices; what was loaded is shared."""
        ...

    def init(self, cell: str) -> AnyState:
        """The untrained cell."""
        ...

    def data_digest(self, cell: str) -> str:
        """Digest of the pictures a cell trains on."""
        ...

    def steps_in_round(self, cell: str) -> int:
        """Steps a round takes."""
        ...

    def advance(self, cell: str, state: AnyState, inbox: Inbox) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end, given the neighbours' centres.

        Every yield is a legal place to commit, to stop, or to leave the round for good.
        """
        ...

    def judge(self, cell: str, state: AnyState) -> Judgement | None:
        """The scores of the cell's generator as it stands; None when training keeps no score."""
        ...

    def judges_now(self, state: AnyState) -> bool:
        """Whether `advance` has judged this very state, at the end of a round."""
        ...

    def sheet(self, cell: str, state: AnyState) -> np.ndarray:
        """Pictures of the cell at latents that never change over a run."""
        ...
