"""One cell: its individuals, their training step, its state.

Owns what happens inside a cell. Knows no data source, neighbour, file, process or clock.
"""

from manege.cell.arena import Arena, fitness
from manege.cell.augmentation import adapted, kept_out, overfitting, probes
from manege.cell.centre import Centre, published
from manege.cell.evolution import (
    draw_objective,
    rate_at_batch,
    rate_when_cloned,
    selection_of,
    tournament,
    try_selection,
)
from manege.cell.individual import HEADER, Individual, born_in
from manege.cell.mixture import Mixture, MixtureScorer, evolve, proportions, uniform
from manege.cell.population import GridState
from manege.cell.score import Best, Estimated, Judgement, Scorer, WeightsKind
from manege.cell.state import CellState, generator_with, new_pair, new_state
from manege.cell.step import (
    Batch,
    Noise,
    Pair,
    Streams,
    draw_noise,
    noises_in_step,
    train_step,
    update_both,
    update_discriminator,
    update_generator,
)
from manege.cell.trail import Gauge, Trail
from manege.cell.trial import try_parts
from manege.cell.watchdog import collapse, round_trouble, spread_of, step_trouble

__all__ = [
    "HEADER",
    "Arena",
    "Batch",
    "Best",
    "CellState",
    "Centre",
    "Estimated",
    "Gauge",
    "GridState",
    "Individual",
    "Judgement",
    "Mixture",
    "MixtureScorer",
    "Noise",
    "Pair",
    "Scorer",
    "Streams",
    "Trail",
    "WeightsKind",
    "adapted",
    "born_in",
    "collapse",
    "draw_noise",
    "draw_objective",
    "evolve",
    "fitness",
    "generator_with",
    "kept_out",
    "new_pair",
    "new_state",
    "noises_in_step",
    "overfitting",
    "probes",
    "proportions",
    "published",
    "rate_at_batch",
    "rate_when_cloned",
    "round_trouble",
    "selection_of",
    "spread_of",
    "step_trouble",
    "tournament",
    "train_step",
    "try_parts",
    "try_selection",
    "uniform",
    "update_both",
    "update_discriminator",
    "update_generator",
]
