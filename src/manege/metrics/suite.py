"""Compute all scores of one set of pictures against another from features extracted once.

Scores that would mislead are left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manege import plugins
from manege.config import stream
from manege.data import PictureSet, Toy
from manege.metrics.conditions import (
    FEWEST,
    GROUPS,
    SPLITS,
    Preconditions,
    check_facts,
    fewest_for_frechet,
    fewest_for_is,
    why_not,
)
from manege.metrics.distributions import (
    agreement,
    inception_score,
    label_scores,
    stacked_scores,
    toy_scores,
)
from manege.metrics.estimate import Estimate, mean_of, wilson
from manege.metrics.frechet import frechet, frechet_between, spread
from manege.metrics.kid import kid
from manege.metrics.neighbours import nearest, prdc
from manege.metrics.own import own_definition, own_score
from manege.metrics.score import BLIND, DEFINITIONS, Score
from manege.metrics.spaces import CLEAN, INCEPTION, LITE0, MNIST_LOGITS, POINTS, Progress, Space

NEIGHBOURS = 5
MOST_NEAREST, MOST_SEARCHED = 1000, 10_000
"""How many pictures get a search for their nearest, and among how many at most."""
NUM_PAIRS = 16


@dataclass(frozen=True)
class ScoredSets:
    """Two sets of pictures to compare, with the spaces and data that the scores need."""

    generated: PictureSet
    reference: PictureSet
    space: Space
    labeller: Space | None = None
    """The space that tells which labels pictures show, where `space` does not."""
    other: PictureSet | None = None
    """The other split of the data: it gives the floor, and the other side of `nearest`."""
    toy: Toy | None = None
    stacked: Space | None = None
    """MNIST's classifier, when the pictures are three digits stacked."""
    classes: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    """The classes to score one by one, each with pictures of its own, or None for those in
    `generated`."""
    seed: int = 0
    allow_few: bool = False
    blind: frozenset[str] = frozenset()
    """Names of spaces that do not see these data: their scores are marked."""


@dataclass
class Results:
    """The scores that were computed, and those that were left out."""

    scores: list[Score] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Scores that were not computed, and why."""
    pairs: tuple[np.ndarray, np.ndarray] | None = None
    """The generated pictures nearest to training pictures, and those training pictures."""


Counting = Callable[[str], Progress | None]
"""A function from a verb to a progress callback, or None."""


def measure(contest: ScoredSets, groups: tuple[str, ...] | None, counting: Counting) -> Results:
    """Compute the groups of scores that were asked for, or all that can be when none were.

    One asked for that cannot be computed is an error; others are left out with the reason.
    """
    return _Measuring(contest, groups, counting).run()


class _Measuring:
    def __init__(
        self, contest: ScoredSets, groups: tuple[str, ...] | None, counting: Counting
    ) -> None:
        self._contest = contest
        self._groups = groups
        self._counting = counting
        self._results = Results()
        self._facts = Preconditions(
            generated=(contest.generated.name, len(contest.generated)),
            reference=contest.reference,
            other=contest.other,
            toy=contest.toy,
            stacked=contest.stacked is not None,
            allow_few=contest.allow_few,
        ).within(contest.space, contest.labeller)
        check_facts(self._facts, groups)
        space = contest.space
        self._generated, self._classes = self._seen(contest.generated.pictures)
        self._reference = space.features_of(contest.reference, counting("reference: done"))

    def _seen(self, pictures_NSSC: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the generated pictures' features, and Lite0's logits of them if IS needs those."""
        space, progress = self._contest.space, self._counting("features: done")
        wanted = "is" in (self._groups or GROUPS) and why_not("is", self._facts) is None
        if wanted and space.kind == LITE0:
            return space.features_and_classes(pictures_NSSC, progress)
        return space.features(pictures_NSSC, progress), None

    def run(self) -> Results:
        """Compute every group in turn and return the results."""
        work: dict[str, Callable[[], None]] = {
            "kid": self._kid,
            "fd": self._frechet,
            "is": self._inception_score,
            "prdc": self._prdc,
            "labels": self._labels,
            "nearest": self._nearest,
            "modes": self._modes,
        }
        for group in self._groups or GROUPS:
            reason = why_not(group, self._facts)
            if plugins.is_reference(group):
                self._own(group)
            elif reason is None:
                work[group]()
            elif group not in self._not_meant():
                self._results.left_out[group] = reason
        return self._results

    def _not_meant(self) -> set[str]:
        """Return the groups that are left out without a reason here: nobody expects them."""
        standard = self._contest.space.kind == INCEPTION
        return {"modes"} if standard else {"modes", "is"}

    def _add(
        self,
        name: str,
        estimate: Estimate,
        counts: tuple[int, int],
        *,
        shown_as: str | None = None,
        space: str | Space | None = None,
        marks: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        contest = self._contest
        own = contest.space if space is None else space
        name_of_space = own if isinstance(own, str) else own.name
        definition, interval = DEFINITIONS[name] if name in DEFINITIONS else own_definition(name)
        if name_of_space in contest.blind:
            marks = (BLIND, *marks)
        self._results.scores.append(
            Score(
                name=shown_as or name,
                value=estimate.value,
                low=estimate.low,
                high=estimate.high,
                space=name_of_space,
                space_sha256=None if isinstance(own, str) else own.sha256,
                generated=counts[0],
                reference=counts[1],
                split=contest.reference.split,
                seed=contest.seed,
                definition=definition,
                interval=interval,
                marks=marks,
                **more,
            )
        )

    def _kid(self) -> None:
        generated, reference, real = self._generated, self._reference, self._real()
        floor = kid(real, reference) if len(real) >= FEWEST else None
        counts = len(generated), len(reference)
        self._add("kid", kid(generated, reference), counts, floor=floor)
        classes = self._contest.classes
        if not classes:
            return
        own = [self._class_kid(label, pictures) for label, pictures in classes.items()]
        lacking = [label for label, one in zip(classes, own, strict=True) if one is None]
        if lacking:
            reason = f"class {lacking[0]!r} has too few pictures"
            self._results.left_out["intra-class-kid"] = reason
            return
        scores = [one for one in own if one is not None]
        floors = [one.floor for one in scores if one.floor is not None]
        self._add(
            "intra-class-kid",
            mean_of([Estimate(one.value, one.low, one.high) for one in scores]),
            (sum(one.generated for one in scores), sum(one.reference for one in scores)),
            floor=mean_of(floors) if len(floors) == len(scores) else None,
        )

    def _class_kid(self, label: str, pictures: np.ndarray | None) -> Score | None:
        contest = self._contest
        drawn = (
            self._generated[_rows(contest.generated, label)]
            if pictures is None
            else contest.space.features(pictures)
        )
        own = self._reference[_rows(contest.reference, label)]
        fewer = min(len(drawn), len(own))
        if fewer < FEWEST:
            reason = f"{fewer} pictures are too few, expected {FEWEST}"
            self._results.left_out[f"kid of class {label!r}"] = reason
            return None
        floor = None
        if contest.other is not None:
            real = self._real_features()[_rows(contest.other, label)][: len(drawn)]
            floor = kid(real, own) if len(real) >= FEWEST else None
        self._add("kid", kid(drawn, own), (len(drawn), len(own)), label=label, floor=floor)
        return self._results.scores[-1]

    def _frechet(self) -> None:
        generated, reference, real = self._generated, self._reference, self._real()
        space = self._contest.space
        few = min(len(generated), len(reference)) < fewest_for_frechet(space.kind, space.dimensions)
        marks = ("few-samples",) if few else ()
        counts = len(generated), len(reference)
        if space.kind in (INCEPTION, CLEAN):
            target = spread(reference)
            floor = frechet_between(spread(real), target) if self._as_many(real) else None
            name = "fid" if space.kind == INCEPTION else "clean-fid"
            found = frechet_between(spread(generated), target)
            self._add(name, found, counts, floor=floor, marks=marks)
            return
        self._add(
            "fd",
            frechet(generated, reference),
            counts,
            # Published Lipizzaner numbers bear this name.
            shown_as=f"fid-{MNIST_LOGITS}" if space.kind == MNIST_LOGITS else None,
            floor=frechet(real, reference) if self._as_many(real) else None,
            marks=marks,
        )

    def _own(self, reference: str) -> None:
        distance = own_score(reference, "metrics")
        generated, known, real = self._generated, self._reference, self._real()
        floor = distance(real, known) if self._as_many(real) else None
        counts = len(generated), len(known)
        self._add(reference, distance(generated, known), counts, floor=floor)

    def _inception_score(self) -> None:
        contest, count = self._contest, len(self._contest.generated)
        lite0 = contest.space.kind == LITE0
        floor = None
        if lite0:
            logits = self._classes
            rows = self._real_rows()
            if len(rows) == count and contest.other is not None:
                progress = self._counting("real pictures: classes")
                real = contest.space.features_and_classes(contest.other.pictures[rows], progress)
                floor = self._score_of_splits(real[1])
        else:
            logits = contest.space.logits_of(self._generated)
            if self._as_many(real_ND := self._real()):
                floor = self._score_of_splits(contest.space.logits_of(real_ND))
        assert logits is not None
        self._add(
            "is@lite0" if lite0 else "is",
            self._score_of_splits(logits),
            (count, 0),
            shown_as="is",
            floor=floor,
            marks=("few-samples",) if count < fewest_for_is() else (),
        )

    def _score_of_splits(self, logits_NK: np.ndarray) -> Estimate:
        # Shuffled: a split of one class alone would score low however good it is.
        rng = stream(self._contest.seed, cell="", purpose="inception score")
        return inception_score(logits_NK[rng.permutation(len(logits_NK))], SPLITS)

    def _prdc(self) -> None:
        real = self._real()
        count, found = self._equal_prdc(self._generated)
        floor = self._equal_prdc(real)[1] if min(len(real), len(self._reference)) == count else {}
        for name, estimate in found.items():
            self._add(name, estimate, (count, count), floor=floor.get(name))

    def _equal_prdc(self, features: np.ndarray) -> tuple[int, dict[str, Estimate]]:
        """Return the four scores for equally many of both sets: they depend on the counts."""
        reference = self._reference
        count = min(len(features), len(reference))
        both = [one[self._choice(len(one), count)] for one in (features, reference)]
        return count, prdc(both[0], both[1], NEIGHBOURS)

    def _labels(self) -> None:
        contest, labeller = self._contest, self._facts.labeller
        assert labeller is not None
        features = self._generated
        if labeller is not contest.space:
            features = labeller.features(contest.generated.pictures)
        labels, found = labeller.labels, labeller.labels_of(features)
        places = {label: place for place, label in enumerate(labels)}
        truth = np.array([places[label] for label in contest.reference.labels or ()])
        counts = len(found), len(truth)
        tables = [np.bincount(one, minlength=len(labels)) for one in (found, truth)]
        for name, estimate in label_scores(tables[0], tables[1], seed=contest.seed).items():
            shown = "label-modes" if name == "modes" else name
            self._add(shown, estimate, counts, space=labeller)
        wanted = contest.generated.labels
        if wanted is not None and set(wanted) <= set(labels):
            same = agreement(np.array([places[label] for label in wanted]), found)
            self._add("agreement", same, counts, space=labeller)

    def _nearest(self) -> None:
        contest = self._contest
        assert contest.other is not None
        two = {contest.reference.split: contest.reference, contest.other.split: contest.other}
        count = min(MOST_SEARCHED, *(len(one) for one in two.values()))
        some = min(MOST_NEAREST, len(contest.generated))
        shown = contest.generated.pictures[self._choice(len(contest.generated), some)]
        rows = _pixels(shown)
        distances = {}
        for split, pictures in two.items():
            chosen = pictures.pictures[self._choice(len(pictures), count)]
            found, index = nearest(rows, _pixels(chosen))
            distances[split] = found[:, 0]
            if split == "train":
                closest = np.argsort(found[:, 0], kind="stable")[:NUM_PAIRS]
                self._results.pairs = shown[closest], chosen[index[closest, 0]]
            self._add(f"nearest-{split}", _median(found[:, 0]), (len(rows), count), space="pixels")
        nearer = int((distances["train"] < distances["held-out"]).sum())
        self._add("nearer-to-train", wilson(nearer, len(rows)), (len(rows), count), space="pixels")

    def _modes(self) -> None:
        contest, toy = self._contest, self._contest.toy
        if toy is None:
            self._stacked_modes()
            return
        estimates = toy_scores(self._generated, toy.centres, toy.deviation, seed=contest.seed)
        counts = len(self._generated), len(toy.centres)
        for name, estimate in estimates.items():
            self._add(name, estimate, counts, space=POINTS)

    def _stacked_modes(self) -> None:
        contest = self._contest
        assert contest.stacked is not None
        found = self._triples(contest.generated.pictures)
        estimates = stacked_scores(found, seed=contest.seed)
        real = contest.reference if contest.reference.split == "held-out" else contest.other
        floors: dict[str, Estimate] = {}
        # Few pictures cover few modes: only as many can be held against them.
        if real is not None and real.split == "held-out" and len(real) >= len(contest.generated):
            rows = self._choice(len(real), len(contest.generated))
            floors = stacked_scores(self._triples(real.pictures[rows]), seed=contest.seed)
        counts = len(contest.generated), len(found)
        for name, estimate in estimates.items():
            self._add(name, estimate, counts, space=contest.stacked, floor=floors.get(name))

    def _triples(self, pictures_NSSC: np.ndarray) -> np.ndarray:
        """Count how often each of the 1,000 triples of digits was found."""
        space = self._contest.stacked
        assert space is not None
        digits = np.array([int(label) for label in space.labels])
        triple_N = np.zeros(len(pictures_NSSC), dtype=np.int64)
        for channel in range(3):
            features = space.features(pictures_NSSC[..., channel : channel + 1])
            triple_N = 10 * triple_N + digits[space.labels_of(features)]
        return np.bincount(triple_N, minlength=1000)

    def _real_rows(self) -> np.ndarray:
        """Return rows of the other split, as many as there are generated pictures if possible."""
        total = 0 if self._contest.other is None else len(self._contest.other)
        return self._choice(total, min(total, len(self._generated)))

    def _real(self) -> np.ndarray:
        """Return features of as many pictures of the other split as there are generated ones."""
        rows = self._real_rows()
        # Each class takes its own of all of them.
        return self._real_features()[rows] if self._contest.classes else self._real_features(rows)

    def _as_many(self, real: np.ndarray) -> bool:
        """Return whether real pictures are as many as generated ones, so that they give a floor."""
        return len(real) == len(self._generated)

    def _real_features(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        space, other = self._contest.space, self._contest.other
        if other is None:
            return np.empty((0, space.dimensions), dtype=np.float32)
        return space.features_of(other, self._counting("real pictures: done"), rows)

    def _choice(self, total: int, count: int) -> np.ndarray:
        """Draw `count` of `total` rows at random: sets list pictures class after class."""
        rng = stream(self._contest.seed, cell="", purpose="evaluation")
        chosen: np.ndarray = np.sort(rng.permutation(total)[:count])
        return chosen


def _rows(pictures: PictureSet, label: str) -> np.ndarray:
    return np.flatnonzero(np.array(pictures.labels) == label)


def _pixels(pictures_NSSC: np.ndarray) -> np.ndarray:
    """Return rows whose Euclidean distance is the root mean square difference, from 0 to 1."""
    rows: np.ndarray = pictures_NSSC.reshape(len(pictures_NSSC), -1).astype(np.float32)
    rows /= np.float32(255 * np.sqrt(rows.shape[1]))
    return rows


def _median(values_N: np.ndarray) -> Estimate:
    """Return the median with the order statistics that hold it in 95 % of samples."""
    ordered = np.sort(values_N)
    reach = 0.98 * np.sqrt(len(ordered))
    low = max(0, int(np.floor(len(ordered) / 2 - reach)))
    high = min(len(ordered) - 1, int(np.ceil(len(ordered) / 2 + reach)))
    return Estimate(float(np.median(ordered)), float(ordered[low]), float(ordered[high]))
