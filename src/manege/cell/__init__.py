"""One cell: its individuals, their training step, its state.

Owns what happens inside a cell. Knows no data source, neighbour, file, process or clock.
"""

from manege.cell.augmentation import adapted, kept_out, overfitting, probes
from manege.cell.individual import HEADER, Individual
from manege.cell.score import Best, Estimated, Judgement, Scorer, Weights
from manege.cell.state import CellState, generator_with, new_pair, new_state
from manege.cell.step import (
    Batch,
    Noise,
    Pair,
    Streams,
    draw_noise,
    train_step,
    update_discriminator,
    update_generator,
)
from manege.cell.watchdog import round_trouble, spread_of, step_trouble

__all__ = [
    "HEADER",
    "Batch",
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
    "adapted",
    "draw_noise",
    "generator_with",
    "kept_out",
    "new_pair",
    "new_state",
    "overfitting",
    "probes",
    "round_trouble",
    "spread_of",
    "step_trouble",
    "train_step",
    "update_discriminator",
    "update_generator",
]
