"""A grid cell's state: the individuals that live there, their offspring, what it has published.

At every moment a method yields, this is complete: taken apart into arrays and put together again
it goes on with the same bits. What it needs of its neighbours comes in anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manege.cell.centre import Centre
from manege.cell.score import Best
from manege.cell.state import CellState


@dataclass
class GridState:
    """One cell of a grid and its place in time."""

    offspring: CellState
    """The pair in training, and where it stands; at the start of a round it counts for nothing."""
    generators: list[np.ndarray]
    discriminators: list[np.ndarray]
    """The individuals that live here, as records."""
    centre: Centre
    """The fittest of them, as last published."""
    previous: Centre | None = None
    """What was published a round earlier: a neighbour may be that far behind."""
    weights: dict[str, float] = field(default_factory=dict)
    """The neighbourhood's mixture: a weight for this cell and each neighbour, by their keys."""
    score: float | None = None
    """The score of that mixture, by the moments; smaller is better."""

    @property
    def round_(self) -> int:
        """Rounds completed."""
        return self.offspring.round_

    @property
    def step(self) -> int:
        """Steps done of the round under way."""
        return self.offspring.step

    @property
    def attempt(self) -> int:
        """How often the round under way broke down and was begun again."""
        return self.offspring.attempt

    @property
    def sheet_step(self) -> int:
        """0: in the middle of a round a sheet still shows the centre that was published."""
        return 0

    @property
    def best(self) -> Best | None:
        """None: on a grid mixtures are scored, not generators."""
        return None

    def centres(self) -> tuple[Centre, ...]:
        """Return the last two centres, the newest last."""
        return (self.centre,) if self.previous is None else (self.previous, self.centre)

    def publish(self, centre: Centre) -> None:
        """Make a new centre the one that neighbours read; the last one stays readable."""
        self.previous, self.centre = self.centre, centre

    def is_finite(self) -> bool:
        """Return whether no weight, moment or loss is NaN or infinite."""
        return self.centre.is_finite() and (self.step == 0 or self.offspring.is_finite())

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all of the state but its counters, as numpy arrays."""
        previous = {} if self.previous is None else self.previous.to_arrays()
        return {
            **(self.offspring.to_arrays() if self.step else self.offspring.trail.to_arrays()),
            **{f"generator {k}": record for k, record in enumerate(self.generators)},
            **{f"discriminator {k}": record for k, record in enumerate(self.discriminators)},
            "centre moments": self.centre.moments,
            **{f"previous {name}": array for name, array in previous.items()},
        }

    def counters(self) -> dict[str, Any]:
        """Return what `to_arrays` leaves out, as JSON knows it."""
        previous = self.previous
        return {
            **self.offspring.counters(),
            "centre": [
                self.centre.round_,
                _place_of(self.centre.generator, self.generators),
                _place_of(self.centre.discriminator, self.discriminators),
            ],
            "previous": None if previous is None else previous.round_,
            "mixture": self.weights,
            "score": self.score,
        }

    def restore(self, arrays: Mapping[str, np.ndarray], counters: Mapping[str, Any]) -> None:
        """Become the state that these arrays and counters were taken from."""
        # Arrays of a commit cannot be written to, and torch wants to be able to.
        population = range(len(self.generators))
        self.generators = [arrays[f"generator {k}"].copy() for k in population]
        self.discriminators = [arrays[f"discriminator {k}"].copy() for k in population]
        round_, generator, discriminator = (int(number) for number in counters["centre"])
        self.centre = Centre(
            round_,
            self.generators[generator],
            self.discriminators[discriminator],
            arrays["centre moments"].copy(),
        )
        self.previous = None
        if counters["previous"] is not None:
            kept = (arrays[f"previous {name}"].copy() for name in self.centre.to_arrays())
            self.previous = Centre(int(counters["previous"]), *kept)
        self.weights = {str(cell): float(one) for cell, one in counters["mixture"].items()}
        self.score = None if counters["score"] is None else float(counters["score"])
        idle = {
            "generator": self.centre.generator,
            "discriminator": self.centre.discriminator,
            "loss_sums": np.zeros(2),
        }
        self.offspring.restore({**idle, **arrays}, counters)


def _place_of(record: np.ndarray, population: list[np.ndarray]) -> int:
    """Return where in a population a record lies: this very array, not an equal one."""
    return next(k for k, one in enumerate(population) if one is record)
