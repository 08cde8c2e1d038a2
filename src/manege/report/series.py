"""Numbers ready to be drawn: quantiles over cells, thinned to what a figure can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manege.report.history import History

MOST_POINTS = 240
"""The most points of a curve: nobody sees more, as they would be less than pixels apart."""

Floats = npt.NDArray[np.float64]
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Quantiles:
    """A measure over the rounds: its median over the cells, and how far they are apart."""

    rounds: Floats
    levels_QR: Floats
    """One row for each of `QUANTILES`."""
    cells: int

    @property
    def median(self) -> Floats:
        """The median over the cells."""
        middle: Floats = self.levels_QR[2]
        return middle


def quantiles(history: History, measure: str) -> Quantiles | None:
    """Return the measure's quantiles over all cells; None when no cell has it."""
    found = [one for cell in history.cells.values() if (one := history.series(cell, measure))]
    if not found:
        return None
    table = np.array([pair for one in found for pair in one], dtype=np.float64)
    rounds, values = table[:, 0], table[:, 1]
    order = np.argsort(rounds, kind="stable")
    rounds, values = rounds[order], values[order]
    every = np.unique(rounds)
    if len(every) > MOST_POINTS:
        edges = np.unique(np.linspace(every[0], every[-1] + 1, MOST_POINTS + 1).astype(np.int64))
        starts = np.searchsorted(rounds, edges[:-1])
        places = np.minimum(edges[1:] - 1, every[-1]).astype(np.float64)
    else:
        starts, places = np.searchsorted(rounds, every), every
    pieces = np.split(values, starts[1:])
    kept = [number for number, piece in enumerate(pieces) if len(piece)]
    levels = np.array([np.quantile(pieces[number], QUANTILES) for number in kept]).T
    return Quantiles(places[kept], levels, len(found))


def thinned(
    pairs: Sequence[tuple[int, float]], most: int = MOST_POINTS
) -> list[tuple[float, float]]:
    """Return a curve of at most `most` points, each the mean of its stretch."""
    if len(pairs) <= most:
        return [(float(x), y) for x, y in pairs]
    table = np.array(pairs, dtype=np.float64)
    parts = np.array_split(table, most)
    return [(float(part[-1, 0]), float(part[:, 1].mean())) for part in parts]
