"""Measure how much of what a model draws is a near-copy, and collect the nearest pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manege import pictures
from manege.metrics.copies import CopyBound, nearest_of
from manege.metrics.estimate import Estimate, wilson
from manege.verdict.case import TrialData

_PAIRS = 12


@dataclass(frozen=True)
class ClassCopies:
    """The count of near-copies among the pictures of one class."""

    pictures: int
    near: int
    bound: CopyBound

    @property
    def share(self) -> Estimate:
        """Return the share of near-copies among the pictures."""
        return wilson(self.near, self.pictures)

    @property
    def copied(self) -> bool:
        """Return whether near-copies are surely more frequent than among real pictures."""
        return self.share.low > self.bound.too_much


@dataclass(frozen=True)
class Copies:
    """The near-copies of all classes that were checked."""

    classes: Mapping[str, ClassCopies]
    pairs: Sequence[tuple[float, np.ndarray, np.ndarray]]
    """The nearest pairs: distance over the bound, picture, training picture."""

    @property
    def pictures(self) -> int:
        """Return how many pictures were checked."""
        return sum(one.pictures for one in self.classes.values())

    @property
    def share(self) -> Estimate:
        """Return the share of near-copies among all pictures."""
        return wilson(sum(one.near for one in self.classes.values()), self.pictures)

    @property
    def too_much(self) -> float:
        """Return what the share's interval must exceed: the classes' limits, averaged by size."""
        limits = [one.pictures * one.bound.too_much for one in self.classes.values()]
        return sum(limits) / self.pictures

    @property
    def copying(self) -> bool:
        """Return whether the model as a whole copies."""
        return self.share.low > self.too_much

    @property
    def copied(self) -> tuple[str, ...]:
        """Return the classes it copies."""
        return tuple(label for label, one in self.classes.items() if one.copied)

    def record(self) -> dict[str, Any]:
        """Return the result as a tree for JSON."""
        return {
            "share": vars(self.share),
            "pictures": self.pictures,
            "too_much": self.too_much,
            "copied": list(self.copied),
            "classes": {
                label: {
                    "pictures": one.pictures,
                    "share": vars(one.share),
                    "too_much": one.bound.too_much,
                    "bound": one.bound.distance,
                    "bound_from": one.bound.origin,
                    "bound_pictures": one.bound.pictures,
                }
                for label, one in self.classes.items()
            },
        }

    def png(self) -> bytes:
        """Return a PNG of the nearest pairs: drawn pictures above, training pictures below."""
        both = np.stack([one for _, one, _ in self.pairs] + [one for _, _, one in self.pairs])
        sheet = pictures.grid(both, columns=len(self.pairs))
        recipe = {
            "rows": "generated, nearest training picture",
            "distance / bound": ", ".join(f"{part:.2f}" for part, _, _ in self.pairs),
        }
        return pictures.png_bytes(sheet, recipe, pictures.viewing_scale(both.shape[1]))


def copies_of(
    case: TrialData,
    bounds: Mapping[str, CopyBound],
    drawn: Mapping[str, np.ndarray],
    check: Callable[[], None] = lambda: None,
) -> Copies:
    """Find near-copies among the drawn pictures of each class.

    Args:
        case: whose training pictures may have been copied.
        bounds: the distance that is too near, for each class.
        drawn: pictures by their label; a class may have none.
        check: called between classes; may raise.
    """
    classes: dict[str, ClassCopies] = {}
    pairs: list[tuple[float, np.ndarray, np.ndarray]] = []
    for label, training in zip(case.labels, case.train, strict=True):
        judged = drawn[label]
        if not len(judged):
            continue
        check()
        bound = bounds[label]
        distance_N, at_N = nearest_of(judged, training, mirrored=case.mirrored)
        near = int((distance_N < bound.distance).sum())
        classes[label] = ClassCopies(len(judged), near, bound)
        for row in np.argsort(distance_N, kind="stable")[:_PAIRS]:
            part = float(distance_N[row]) / max(bound.distance, 1e-9)
            pairs.append((part, judged[row], training[at_N[row]]))
    pairs.sort(key=lambda one: one[0])
    return Copies(classes, pairs[:_PAIRS])
