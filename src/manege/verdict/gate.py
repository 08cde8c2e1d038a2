"""Classify drawn pictures, and leave out those that the gate refuses.

The classifier is trained on the training pictures, oversampled and augmented; EfficientNet-Lite0
checks pictures too. The gate's bounds come from the calibration pictures. Neither sees a test
picture. The classifier also labels the pictures of a model without labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from manege import errors
from manege.config import ALL
from manege.errors import DataError, MachineError
from manege.metrics import Space, feature_weights, lite0_space
from manege.metrics.controls import check, told
from manege.metrics.copies import ENOUGH, CopyBound, bound_of, nearest_of
from manege.metrics.lite0_weights import missing
from manege.metrics.neighbours import nearest
from manege.metrics.networks import FeatureNetwork
from manege.sampler import Model
from manege.verdict.arms import Arm, pool_of
from manege.verdict.case import TrialData
from manege.verdict.look import TrainingProgress, VerdictObserver
from manege.verdict.training import TrainingSpec, probabilities, train

IMPLAUSIBLE = 0.01
"""The share of real pictures that would be found as implausible as the pictures left out."""
NEAR_COPY, UNLIKELY = "near-copy", "implausible"

_MOST_TRIES = 8
"""How many pictures are drawn at most for each one wanted."""
_TELLING = 256
"""At least so many pictures are drawn before the attempt is given up."""

_MOST_CHECKED = 128
"""Pictures of a class that check whether the gate's space sees the data, at most."""
_MOST_SEEN = 2_000
"""Training pictures of a class that are searched for the nearest, at most."""

_BLOCK = 1_024
"""Pictures that are checked in one batch."""

Progress = Callable[[int, int], None]
Sieve = Callable[[str, np.ndarray], np.ndarray]
"""A function from a label and pictures to the reasons why they are left out, "" for none."""


@dataclass(frozen=True)
class LabelClassifier:
    """A network that tells which label of the training pictures a picture has."""

    network: FeatureNetwork = field(repr=False)

    def shares(self, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Return the probabilities N×K of the labels."""
        return probabilities(self.network, pictures_NSSC)


@dataclass(frozen=True)
class Sight:
    """A space from a network trained on more than these pictures, with distances of real ones.

    A classifier knows its classes alone, and takes noise for one of them. Here a picture must be
    as near to some training picture of its class as real pictures are.
    """

    space: Space
    seen: Mapping[str, np.ndarray] = field(repr=False)
    """Features M×D of each class's training pictures."""
    furthest: Mapping[str, float]
    """For each class, the distance that real pictures of it stay below."""
    blind: str | None = None
    """One line on why the space does not see these data, None when it does."""

    def strange(self, label: str, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Return, for each picture, whether no training picture of the class is near."""
        found = nearest(self.space.features(pictures_NSSC), self.seen[label])[0][:, 0]
        strange: np.ndarray = found > self.furthest[label]
        return strange


def gate_space(case: TrialData) -> Space | None:
    """Return EfficientNet-Lite0's space, which the gate uses; None without its weights."""
    shape = case.model.shape
    try:
        return lite0_space(shape.size, shape.channels, feature_weights())
    except MachineError:
        return None


def sight_of(case: TrialData, space: Space) -> Sight:
    """Compute features of the training pictures, and how far from them real pictures are."""
    seen, furthest = {}, {}
    for label, train_, held_out in zip(case.labels, case.train, case.calibration, strict=True):
        seen[label] = space.features(train_[:_MOST_SEEN])
        # Of few to calibrate with, each training picture against all others, as of copies.
        fresh = len(held_out) >= ENOUGH
        rows = space.features(held_out) if fresh else seen[label]
        distance_N = nearest(rows, seen[label], 1 if fresh else 2)[0][:, -1]
        furthest[label] = float(np.quantile(distance_N, 1 - IMPLAUSIBLE))
    train_, held_out = (
        np.concatenate([one[:_MOST_CHECKED] for one in part])
        for part in (case.train, case.calibration)
    )
    checked = check(space, train_, held_out, {})
    blind = None if checked is None else told(checked.space, checked.blind)
    return Sight(space, seen, furthest, blind)


@dataclass(frozen=True)
class Gate:
    """The conditions that a picture of each class must satisfy."""

    case: TrialData = field(repr=False)
    bounds: Mapping[str, CopyBound]
    """For each class, the distance below which a picture is a near-copy."""
    least: Mapping[str, float]
    """For each class, the probability that the classifier must give the label at least."""
    looker: LabelClassifier
    sight: Sight | None = None
    """The check by EfficientNet-Lite0; None where its weights are missing."""

    def reasons(self, label: str, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Return why each picture is left out, "" if it is not; near-copies are named as such."""
        case, number = self.case, self.case.labels.index(label)
        found = np.full(len(pictures_NSSC), "", dtype=object)
        found[self.looker.shares(pictures_NSSC)[:, number] < self.least[label]] = UNLIKELY
        if self.sight is not None:
            found[self.sight.strange(label, pictures_NSSC)] = UNLIKELY
        distance_N, _ = nearest_of(pictures_NSSC, case.train[number], mirrored=case.mirrored)
        found[distance_N < self.bounds[label].distance] = NEAR_COPY
        return found

    def sieve(self, look: VerdictObserver) -> Sieve:
        """Return a function for `draw` that gives the reasons and can be stopped between blocks."""

        def sieve(label: str, pictures_NSSC: np.ndarray) -> np.ndarray:
            look.check()
            return self.reasons(label, pictures_NSSC)

        return sieve

    def description(self) -> dict[str, Any]:
        """Return the gate's bounds as a tree for JSON."""
        return {
            label: {
                "nearest": bound.distance,
                "nearest_from": f"{bound.pictures} {bound.origin} pictures",
                "probability": self.least[label],
                **self._seen(label),
            }
            for label, bound in self.bounds.items()
        }

    def _seen(self, label: str) -> dict[str, Any]:
        if self.sight is None:
            return {}
        mark = {} if self.sight.blind is None else {"blind": self.sight.blind}
        return {"furthest": self.sight.furthest[label], "space": self.sight.space.name, **mark}


@dataclass(frozen=True)
class Drawn:
    """A class's pictures, their numbers among all that were drawn, and what was left out."""

    pictures: np.ndarray
    indices: np.ndarray
    drawn: int
    left_out: Mapping[str, int]

    def record(self) -> dict[str, Any]:
        """Return the counts of pictures kept, drawn and left out, for JSON."""
        return {"kept": len(self.pictures), "drawn": self.drawn, "left_out": dict(self.left_out)}

    def require(self, label: str, count: int, remedy: str = "") -> None:
        """Raise DataError when there are fewer pictures of the label than that."""
        if (have := len(self.pictures)) >= count:
            return
        told = ", ".join(f"{number:,} {what}" for what, number in self.left_out.items())
        why, otherwise = (
            (f"came out of {self.drawn:,} drawn ({told})", f"leave {errors.field('gate')} out")
            if told
            else (
                "came out: a classifier takes most of what the model draws for other classes",
                f"train with labels ({errors.field('method')} per-class)",
            )
        )
        raise DataError(
            f"class {label!r}: {have:,} of {count:,} pictures wanted {why}; {remedy}{otherwise}, "
            "or train longer"
        )


def bounds_of(case: TrialData) -> dict[str, CopyBound]:
    """Return for each class the distance below which a picture is a near-copy."""
    for label, pictures in zip(case.labels, case.train, strict=True):
        if (pictures == pictures[0]).all():
            raise DataError(
                f"{case.name}: the {len(pictures)} training pictures of class {label!r} are all "
                "the same, expected two that differ; add pictures, or train without it "
                f"({errors.field('classes')})"
            )
    return {
        label: bound_of(train_, held_out, mirrored=case.mirrored)
        for label, train_, held_out in zip(case.labels, case.train, case.calibration, strict=True)
    }


def train_looker(case: TrialData, work: TrainingProgress) -> LabelClassifier:
    """Train the classifier of the training pictures: all classes equally often, and augmented."""
    pool = pool_of(case.train, ())
    lesson = TrainingSpec(
        pool.pictures,
        pool.targets,
        len(case.labels),
        augmented=True,
        mirrored=case.mirrored,
        steps=work.steps,
        seed=0,
        purpose="verdict gate",
    )
    what = "the classifier that looks at them"
    network = train(lesson, pool.rows(Arm.BOTH, 0), partial(work.each, what))
    work.finished(what, "trained")
    return LabelClassifier(network)


def gate_of(
    case: TrialData,
    looker: LabelClassifier,
    bounds: Mapping[str, CopyBound],
    say: Callable[[str], None] = lambda text: None,
) -> Gate:
    """Set the gate by what real pictures score: of all classes where one has few to calibrate."""
    own = [looker.shares(pictures)[:, number] for number, pictures in enumerate(case.calibration)]
    every = np.concatenate(own)
    if not len(every):
        raise DataError(
            f"{case.name}: {len(case.labels)} classes without pictures to calibrate the gate, "
            "expected three held-out pictures in one of them at least; leave "
            f"{errors.field('gate')} out"
        )
    least = {
        label: float(np.quantile(shares if len(shares) >= ENOUGH else every, IMPLAUSIBLE))
        for label, shares in zip(case.labels, own, strict=True)
    }
    space = gate_space(case)
    if space is None:
        say(f"warning: the gate looks with a classifier of the data alone: {missing()}")
        return Gate(case, bounds, least, looker)
    sight = sight_of(case, space)
    if sight.blind is not None:
        say(f"warning: the gate lets through what it should not: {sight.blind}")
    return Gate(case, bounds, least, looker, sight)


def draw(
    model: Model,
    wanted: Mapping[str, int],
    seed: int,
    *,
    sieve: Sieve | None = None,
    looker: LabelClassifier | None = None,
    progress: Progress | None = None,
) -> dict[str, Drawn]:
    """Draw pictures and return the first of each label that pass, fewer where too few do.

    Args:
        model: what draws.
        wanted: how many of each label.
        seed: the same seed draws the same pictures.
        sieve: leaves pictures out; none when None.
        looker: says what the pictures of a model without labels show.
        progress: told how many pictures there are, of how many.
    """
    if model.unlabelled:
        assert looker is not None
        return _draw_unlabelled(model, wanted, seed, looker, sieve, progress)
    total, done = sum(wanted.values()), 0
    found: dict[str, Drawn] = {}
    for label, count in wanted.items():
        tell = None if progress is None else _shifted(progress, done, count, total)
        found[label] = _draw_label(model, label, count, seed, sieve, tell)
        done += count
    return found


def _draw_label(
    model: Model,
    label: str,
    count: int,
    seed: int,
    sieve: Sieve | None,
    tell: Callable[[int], None] | None,
) -> Drawn:
    tried, most = count, max(_MOST_TRIES * count, _TELLING)
    pictures = model.pictures_of(label, tried, seed, progress=tell)
    reasons = _reasons(sieve, label, pictures)
    while True:
        have = int((reasons == "").sum())
        if have >= count or _is_hopeless(have, count, tried, most):
            return _first(pictures, np.arange(tried), reasons, count)
        before, tried = tried, min(2 * tried, most)
        more = model.pictures_of(label, tried, seed, progress=tell, start=before)
        pictures = np.concatenate([pictures, more])
        reasons = np.concatenate([reasons, _reasons(sieve, label, more)])


def _draw_unlabelled(
    model: Model,
    wanted: Mapping[str, int],
    seed: int,
    looker: LabelClassifier,
    sieve: Sieve | None,
    progress: Progress | None,
) -> dict[str, Drawn]:
    tried, labels = len(wanted) * max(wanted.values()), tuple(wanted)
    most = max(_MOST_TRIES * tried, _TELLING)
    pictures, shown, reasons = model.pictures_of(ALL, 0), np.empty(0, int), np.empty(0, object)
    while True:
        tell = None if progress is None else _shifted(progress, 0, tried, tried)
        more = model.pictures_of(ALL, tried, seed, progress=tell, start=len(pictures))
        shows = looker.shares(more).argmax(1)
        why = np.empty(len(more), object)
        for number, label in enumerate(labels):
            why[shows == number] = _reasons(sieve, label, more[shows == number])
        pictures, shown, reasons = (
            np.concatenate(both) for both in ((pictures, more), (shown, shows), (reasons, why))
        )
        found: dict[str, Drawn] = {}
        for number, (label, count) in enumerate(wanted.items()):
            rows = np.flatnonzero(shown == number)
            found[label] = _first(pictures[rows], rows, reasons[rows], count)
        short = {
            label: have
            for label, one in found.items()
            if (have := len(one.pictures)) < wanted[label]
        }
        if all(_is_hopeless(have, wanted[label], tried, most) for label, have in short.items()):
            return found
        tried = min(2 * tried, most)


def _is_hopeless(have: int, count: int, tried: int, most: int) -> bool:
    """Return whether, by the rate so far, even drawing the most would give too few pictures."""
    return tried >= most or (tried >= _TELLING and 2 * have * most < count * tried)


def _shifted(progress: Progress, before: int, count: int, total: int) -> Callable[[int], None]:
    """Return a callback that reports the pictures of one label as part of all."""
    return lambda done: progress(before + min(done, count), total)


def _reasons(sieve: Sieve | None, label: str, pictures: np.ndarray) -> np.ndarray:
    found = np.full(len(pictures), "", dtype=object)
    if sieve is not None:
        for start in range(0, len(pictures), _BLOCK):
            found[start : start + _BLOCK] = sieve(label, pictures[start : start + _BLOCK])
    return found


def _first(pictures: np.ndarray, numbers: np.ndarray, reasons: np.ndarray, count: int) -> Drawn:
    """Return the first pictures that pass; count what was left out before the last of them."""
    kept = np.flatnonzero(reasons == "")[:count]
    seen = (int(kept[-1]) + 1 if count else 0) if len(kept) == count else len(reasons)
    left_out = {
        reason: number
        for reason in (NEAR_COPY, UNLIKELY)
        if (number := int((reasons[:seen] == reason).sum()))
    }
    return Drawn(pictures[kept], numbers[kept], seen, left_out)
