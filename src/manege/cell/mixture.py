"""A mixture of a neighbourhood's generators: its weights, evolved, and who draws which picture.

Owns the (1+1)-ES over the weights and the exact proportions. What a mixture is worth is the
scorer's business; nothing here draws a picture.

Shape legend: S members in `weights_S`; pictures are N×S×S×C, S their side, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Protocol

import numpy as np

from manege.cell.score import Estimated

_OFF_ONE = 1e-9
"""How far from 1 the sum of weights may be."""

_ROUNDING = 1e-6
"""More than rounding can do to a member's share of a billion pictures, and no matter to it."""


class MixtureScorer(Protocol):
    """Judges mixtures of generators without drawing from them again; smaller is better."""

    def moments(self, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Return all that a mixture's score needs of a member's pictures, as a flat float64."""
        ...

    def score(self, weights_S: np.ndarray, moments: Sequence[np.ndarray]) -> float:
        """Return the score of the mixture, from its members' moments."""
        ...

    def measure(self, pictures_NSSC: np.ndarray) -> Estimated:
        """Return the score of pictures that the mixture drew, in the order it drew them."""
        ...


@dataclass(frozen=True, eq=False)
class Mixture:
    """The weights of a mixture's members, and their score."""

    weights_S: np.ndarray
    """One for each member, float64, none negative; they sum to 1."""
    score: float
    """By the moments it was evolved on; smaller is better."""


def uniform(count: int) -> np.ndarray:
    """Return the same weight for each of `count` members."""
    if count < 1:
        raise ValueError(f"a mixture of {count} members; expected at least 1")
    return np.full(count, 1 / count)


def mutated(weights_S: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Return the weights, moved by normal noise, cut off at 0 and normalised.

    When nothing is left of any weight, they are returned as they were.
    """
    _check(weights_S)
    if not (isfinite(scale) and scale >= 0):
        raise ValueError(f"a mixture's mutation scale of {scale}; expected a number from 0 up")
    moved_S = np.maximum(0.0, weights_S + rng.normal(0.0, scale, len(weights_S)))
    total = moved_S.sum()
    return moved_S / total if total > 0 else weights_S


def evolve(
    weights_S: np.ndarray,
    moments: Sequence[np.ndarray],
    scorer: MixtureScorer,
    *,
    steps: int,
    scale: float,
    rng: np.random.Generator,
) -> Mixture:
    """Return the best of the weights and of `steps` children of them: a (1+1)-ES.

    Each is a child of the best before it, and must be strictly better to be kept; NaN is worse
    than any number. A member alone has the weight 1, and nothing is drawn.
    """
    _check(weights_S)
    if len(moments) != len(weights_S):
        raise ValueError(f"moments of {len(moments)} members, but {len(weights_S)} weights")
    if steps < 0:
        raise ValueError(f"{steps} steps of a mixture; expected 0 or more")
    best = Mixture(weights_S.copy(), scorer.score(weights_S, moments))
    if len(weights_S) == 1:
        return best
    for _ in range(steps):
        child_S = mutated(best.weights_S, scale, rng)
        score = scorer.score(child_S, moments)
        if score < best.score or (isnan(best.score) and not isnan(score)):
            best = Mixture(child_S, score)
    return best


def proportions(weights_S: np.ndarray, count: int) -> np.ndarray:
    """Return for each of `count` pictures the number of the member that draws it, int64.

    Of the first n pictures, for every n, each member draws its share n·w or less than one picture
    more or fewer: with S ≥ 2 weights above 0, at most 1 - 1/(2S - 2); no method can promise less
    (Tijdeman 1980, "The chairman assignment problem"). A larger count begins with the same
    pictures. A member of weight 0 draws none.

    Giving each picture to the member that lacks most is simpler but may leave one of seven more
    than a whole picture behind.
    """
    _check(weights_S)
    if count < 0:
        raise ValueError(f"{count} pictures of a mixture; expected 0 or more")
    members = np.flatnonzero(weights_S)
    if len(members) == 1:
        return np.full(count, members[0], dtype=np.int64)
    shares = (weights_S[members] / weights_S.sum()).tolist()
    least = 1 / (2 * len(shares) - 2)
    # A member's next picture may come once it lacks `least` of it and must come before it lacks
    # more than 1 - least of it. Of those that may, the one that must first: so all are in time.
    release = [(least - _ROUNDING) / share for share in shares]
    deadline = [(1 - least) / share for share in shares]
    drawn = [0] * len(shares)
    order = np.empty(count, dtype=np.int64)
    for place in range(count):
        released = [i for i, due in enumerate(release) if due <= place + 1]
        chosen = min(released, key=deadline.__getitem__)
        drawn[chosen] += 1
        release[chosen] = (drawn[chosen] + least - _ROUNDING) / shares[chosen]
        deadline[chosen] = (drawn[chosen] + 1 - least) / shares[chosen]
        order[place] = chosen
    return members[order]


def _check(weights_S: np.ndarray) -> None:
    """Raise ValueError unless these are weights of a mixture."""
    if weights_S.ndim != 1 or weights_S.dtype != np.float64 or len(weights_S) == 0:
        raise ValueError(
            f"weights of shape {weights_S.shape} and type {weights_S.dtype}; expected a list of "
            "float64, at least one"
        )
    # Written so that NaN fails too.
    if not (weights_S.min() >= 0 and abs(weights_S.sum() - 1) <= _OFF_ONE):
        raise ValueError(f"weights {weights_S}; expected none below 0, and a sum of 1")
