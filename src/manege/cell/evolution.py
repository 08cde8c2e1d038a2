"""Selection and mutation: who is cloned, and with what learning rate and objective."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp
from typing import assert_never

import numpy as np

from manege import plugins
from manege.config import (
    CellularConfig,
    MutationPerBatch,
    MutationPerRound,
    NoMutation,
    Objective,
    RateMutation,
    shown,
)
from manege.errors import ConfigError

_SLOWEST, _FASTEST = 0.1, 5.0
"""Bounds of a mutated rate, in first rates."""
_TRIALS = 8
"""How often a selection of one's own is tried for each size of a sub-population."""


Selection = Callable[[np.ndarray, np.random.Generator], int]
"""Returns which individual of a sub-population is cloned, given their fitnesses (lower is fitter)
and the cell's own stream of random numbers."""


def selection_of(config: CellularConfig) -> Selection:
    """Return how a grid's cells pick the individual to clone."""
    reference = config.selection
    if not plugins.is_reference(reference):
        return lambda fitness_S, rng: tournament(fitness_S, config.tournament, rng)
    own = plugins.load(reference, "cellular.selection")
    if not callable(own):
        raise ConfigError(f"cellular.selection: {reference} is {shown(own)}, expected a function")

    def select(fitness_S: np.ndarray, rng: np.random.Generator) -> int:
        with plugins.blamed(reference, "the selection"):
            chosen = own(fitness_S.copy(), rng)
        if not isinstance(chosen, int | np.integer) or not 0 <= chosen < len(fitness_S):
            raise plugins.PartError(
                f"{reference}: the selection returned {shown(chosen)}, expected a whole number "
                f"from 0 to {len(fitness_S) - 1}"
            )
        return int(chosen)

    return select


def try_selection(config: CellularConfig, sizes: Iterable[int]) -> None:
    """Raise ConfigError if a selection of one's own fails, or picks otherwise when asked again.

    Args:
        config: the grid.
        sizes: how many individuals the sub-populations have.
    """
    select = selection_of(config)
    if not plugins.is_reference(config.selection):
        return
    for size in sorted(set(sizes)):
        for seed in range(_TRIALS):
            fitness_S = np.random.default_rng(seed).random(size)
            one, other = (select(fitness_S, np.random.default_rng(seed)) for _ in range(2))
            if one != other:
                raise plugins.PartError(
                    f"{config.selection}: picks {one}, and {other} when it is asked the same "
                    "again; draw from the generator that it is given alone"
                )


def tournament(fitness_S: np.ndarray, size: int, rng: np.random.Generator) -> int:
    """Return the fittest of `size` distinct individuals drawn at random, or of all if fewer."""
    entrants = rng.permutation(len(fitness_S))[:size]
    return int(entrants[np.argmin(fitness_S[entrants])])


def rate_when_cloned(
    rate: float, first: float, mutation: RateMutation, rng: np.random.Generator
) -> float:
    """Return the learning rate a clone starts with."""
    match mutation:
        case MutationPerRound():
            if rng.random() >= mutation.probability:
                return rate
            factor = exp(mutation.scale / first * rng.standard_normal())
            return min(max(rate * factor, _SLOWEST * first), _FASTEST * first)
        case MutationPerBatch() | NoMutation():
            return rate
        case _:
            assert_never(mutation)


def rate_at_batch(
    rate: float, first: float, mutation: RateMutation, rng: np.random.Generator
) -> float:
    """Return the learning rate of the next update, where rates change from batch to batch."""
    if not isinstance(mutation, MutationPerBatch) or rng.random() >= mutation.probability:
        return rate
    # A rate below 0 would climb the loss.
    return max(rate + mutation.scale * rng.normal(-first / 10, first), _SLOWEST * first)


def draw_objective(objectives: tuple[Objective, ...], rng: np.random.Generator) -> Objective | None:
    """Draw what a generator minimises in this round; None when there is no choice."""
    return objectives[rng.integers(len(objectives))] if objectives else None
