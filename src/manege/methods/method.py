"""What every method is to the driver: cells, and rounds of steps.

A method knows no communicator, file or clock: the timer for the profile is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from manege.cell import CellState, Judgement

Timer = Callable[[str], AbstractContextManager[None]]
"""`with timer("train"):` measures a phase."""


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
    trouble: str | None = None
    """Why the round broke down; it begins again with the next step."""


class Method(Protocol):
    """Partition, topology, and what a round does."""

    def cells(self) -> tuple[str, ...]:
        """All cells' keys, the longest work first."""
        ...

    def init(self, cell: str) -> CellState:
        """The untrained cell."""
        ...

    def data_digest(self, cell: str) -> str:
        """Digest of the pictures a cell trains on."""
        ...

    def steps_in_round(self, cell: str) -> int:
        """Steps a round takes."""
        ...

    def advance(self, cell: str, state: CellState) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end.

        Every yield is a legal place to commit, to stop, or to leave the round for good.
        """
        ...

    def judge(self, cell: str, state: CellState) -> Judgement | None:
        """The scores of the cell's generator as it stands; None when training keeps no score."""
        ...

    def judges_now(self, state: CellState) -> bool:
        """Whether `advance` has judged this very state, at the end of a round."""
        ...

    def sheet(self, cell: str, state: CellState) -> np.ndarray:
        """Pictures of the cell at latents that never change over a run."""
        ...
