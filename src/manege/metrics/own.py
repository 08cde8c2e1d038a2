"""Scores from outside the package: functions of two tables of features, smaller is better.

Shape legend: N generated and M real pictures, D dimensions of the feature space.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import isfinite

import numpy as np

from manege import plugins
from manege.config import shown
from manege.errors import ConfigError
from manege.metrics.estimate import Estimate, normal
from manege.metrics.frechet import jackknife_variance

_BLOCKS = 10
"""Parts of each table that the jackknife leaves out in turn."""
_TRIED = 16
"""Made-up pictures of each kind that a score is tried with before training."""

Distance = Callable[[np.ndarray, np.ndarray], Estimate]
"""Compares the features of generated pictures, N×D, with those of real ones, M×D."""


def own_score(reference: str, where: str) -> Distance:
    """Return a score of one's own with its interval.

    The function is given copies of both tables and returns an `Estimate`, or a number: its interval
    is then that of a delete-a-block jackknife, for which it is called on parts of the tables.

    Args:
        reference: where the function is.
        where: the field that names it, for messages.
    """
    own = plugins.load(reference, where)
    if not callable(own):
        raise ConfigError(f"{where}: {reference} is {shown(own)}, expected a function")

    def value(drawn_ND: np.ndarray, real_MD: np.ndarray) -> float | Estimate:
        with plugins.blamed(reference, "the score"):
            found = own(drawn_ND.copy(), real_MD.copy())
        if isinstance(found, Estimate):
            if found.low <= found.value <= found.high:
                return found
        elif isinstance(found, int | float | np.number) and isfinite(found):
            return float(found)
        raise plugins.PartError(
            f"{reference}: the score is {shown(found)}, expected a finite number or an Estimate"
        )

    def measured(drawn_ND: np.ndarray, real_MD: np.ndarray) -> Estimate:
        found = value(drawn_ND, real_MD)
        if isinstance(found, Estimate):
            return found
        drawn = [value(part, real_MD) for part in _without_each(drawn_ND)]
        real = [value(drawn_ND, part) for part in _without_each(real_MD)]
        variance = sum(jackknife_variance([_number(one) for one in ones]) for ones in (drawn, real))
        return normal(found, variance)

    return measured


def try_score(reference: str, dimensions: int) -> None:
    """Raise ConfigError if a score of one's own fails, or is another when it is asked again."""
    score = own_score(reference, "score.metric")
    drawn_ND, real_MD = np.random.default_rng(0).random((2, _TRIED, dimensions), dtype=np.float32)
    one, other = (score(drawn_ND, real_MD) for _ in range(2))
    if one != other:
        raise plugins.PartError(
            f"{reference}: the score is {one.value}, and {other.value} of the same features when "
            "it is asked again; let it draw nothing, or from a generator with a fixed seed"
        )


def own_definition(reference: str) -> tuple[str, str]:
    """Return what stands beside a score of one's own: what it is, and what its interval is."""
    words = (inspect.getdoc(plugins.load(reference, "metrics")) or "").split("\n\n")[0]
    source = f"source {plugins.source_digest(reference, 'metrics')[:12]}"
    said = " ".join(words.split())
    return f"{said} ({source})" if said else source, "its own, or a delete-a-block jackknife"


def _without_each(rows_ND: np.ndarray) -> list[np.ndarray]:
    """Return the rows without block 0, block 1, … each; row i is in block i mod their number."""
    blocks = min(_BLOCKS, len(rows_ND) // 2)
    block_N = np.arange(len(rows_ND)) % blocks
    return [rows_ND[block_N != block] for block in range(blocks)]


def _number(found: float | Estimate) -> float:
    return found.value if isinstance(found, Estimate) else found
