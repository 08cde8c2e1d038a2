"""One cell: its individuals, their training step, its state.

Owns what happens inside a cell. Knows no data source, neighbour, file, process or clock.
"""

from manege.cell.individual import HEADER, Individual
from manege.cell.score import Best, Estimated, Judgement, Scorer, Weights
from manege.cell.state import CellState, generator_with, new_pair, new_state
from manege.cell.step import (
    Noise,
    Pair,
    Streams,
    draw_noise,
    train_step,
    update_discriminator,
    update_generator,
)

__all__ = [
    "HEADER",
    "Best",
    "CellState",
    "Estimated",
    "Individual",
    "Judgement",
    "Noise",
    "Pair",
    "Scorer",
    "Streams",
    "Weights",
    "draw_noise",
    "generator_with",
    "new_pair",
    "new_state",
    "train_step",
    "update_discriminator",
    "update_generator",
]
