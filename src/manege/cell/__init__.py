"""One cell: its individuals, their training step, its state.

Owns what happens inside a cell. Knows no data source, neighbour, file, process or clock.
"""

from manege.cell.individual import HEADER, Individual
from manege.cell.state import CellState, new_pair, new_state
from manege.cell.step import (
    Noise,
    Pair,
    draw_noise,
    train_step,
    update_discriminator,
    update_generator,
)

__all__ = [
    "HEADER",
    "CellState",
    "Individual",
    "Noise",
    "Pair",
    "draw_noise",
    "new_pair",
    "new_state",
    "train_step",
    "update_discriminator",
    "update_generator",
]
