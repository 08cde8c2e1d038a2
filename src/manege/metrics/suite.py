"""All scores of one set of pictures against another, from features that are extracted once.

A score carries what it takes to compute it again: definition, counts, split, space, seed and
interval. What cannot be said honestly is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from manege.config import stream
from manege.data import PictureSet, Toy
from manege.errors import ConfigError, DataError
from manege.metrics.distributions import (
    agreement,
    inception_score,
    label_scores,
    stacked_scores,
    toy_scores,
)
from manege.metrics.estimate import Estimate, mean_of, wilson
from manege.metrics.frechet import SAMPLES_PER_DIMENSION, frechet, frechet_between, spread
from manege.metrics.inception import Inception
from manege.metrics.kid import kid
from manege.metrics.neighbours import nearest, prdc
from manege.metrics.spaces import CLEAN, INCEPTION, MNIST_LOGITS, POINTS, Progress, Space
from manege.metrics.weights import NO_HEAD

GROUPS: dict[str, str] = {
    "kid": "kernel distance, right for few pictures too",
    "fd": "Fréchet distance, for many pictures; in Inception's space it is FID",
    "is": "inception score, with --features inception",
    "prdc": "precision, recall, density, coverage",
    "labels": "what the pictures look like to the classifier",
    "nearest": "distances to the nearest training and held-out pictures",
    "modes": "modes hit, for the toys and stacked-mnist",
}
"""What `--metrics` chooses from."""

FEWEST = 8
"""Fewer pictures than this in a set, or in a class, are not scored."""

FEWEST_FOR_FID = 10_000
"""Pictures that FID's authors ask for (Heusel et al. 2017)."""

SPLITS = 10
"""Of the inception score."""

NEIGHBOURS = 5
MOST_NEAREST, MOST_SEARCHED = 1000, 10_000
"""Pictures whose nearest are sought, and among how many."""
NUM_PAIRS = 16

_WILSON_FIXED = "Wilson, the other set held fixed"
_ORDER = "order statistics, the real set held fixed"
_BOOTSTRAP = "1,000 multinomial redraws of the generated counts"
_FRECHET = "|μ - μ'|² + tr(Σ + Σ' - 2(ΣΣ')^½)"
_POOLED = "the 2048 pooled features of Inception-v3 of 2015-12-05"
_FIRST_ORDER = "each picture's influence, first order; not its bias"
_PROTOCOLS: dict[str, tuple[str, str]] = {
    "kid": ("unbiased MMD² with kernel (x·y/D + 1)³ over all pairs", "variance of the U-statistic"),
    "intra-class-kid": (
        "mean of the classes' kid, each class weighing the same",
        "their variances",
    ),
    "fd": (_FRECHET, "delete-a-block jackknife, 20 blocks; not its bias"),
    "fid": (f"{_FRECHET}, {_POOLED}; bytes, TF1's bilinear resize to 299", _FIRST_ORDER),
    "clean-fid": (f"{_FRECHET}, {_POOLED}; bytes, antialiased bicubic to 299", _FIRST_ORDER),
    "is": (
        "exp of the mean KL(labels of a picture, labels of all), mean of 10 random splits, no bias "
        "in the last layer; Inception-v3 of 2015-12-05, bytes, TF1's bilinear resize to 299",
        "normal, from the 10 splits",
    ),
    "precision": ("share of generated within a reference ball, k = 5", _WILSON_FIXED),
    "recall": ("share of reference within a generated ball, k = 5", _WILSON_FIXED),
    "density": ("reference balls round a generated picture over k, k = 5", "normal, other fixed"),
    "coverage": ("share of reference balls with a generated picture, k = 5", _WILSON_FIXED),
    "label-entropy": ("entropy of the labels found, nats", _BOOTSTRAP),
    "label-tvd": ("total variation distance of labels found to the reference's", _BOOTSTRAP),
    "label-modes": ("labels found at a tenth of their share in the reference or more", _BOOTSTRAP),
    "agreement": ("share whose label found is the one they were made for", "Wilson"),
    "nearest-train": ("median RMS pixel distance (0 to 1) to the nearest", _ORDER),
    "nearest-held-out": ("median RMS pixel distance (0 to 1) to the nearest", _ORDER),
    "nearer-to-train": (
        "share nearer to a training than to a held-out picture, as many of both; 0.5 is neutral",
        "Wilson, both real sets held fixed",
    ),
    "high-quality": ("share of points within 3 deviations of a centre", "Wilson"),
    "modes": ("centres with a tenth of their fair share of high-quality points", _BOOTSTRAP),
    "modes-covered": ("of 1,000 triples of digits those with a picture", _BOOTSTRAP),
    "modes-kl": ("KL of the triples' shares to equal ones, nats", _BOOTSTRAP),
}
"""Of each score: definition, and how its interval was made."""


@dataclass(frozen=True)
class Score:
    """A number, and what it takes to compute it again."""

    name: str
    value: float
    low: float
    high: float
    space: str
    """Where it was computed: numbers of different spaces must not be compared."""
    space_sha256: str | None
    generated: int
    reference: int
    split: str
    """Of the reference."""
    seed: int
    definition: str
    interval: str
    label: str | None = None
    """The class it is of, None for all together."""
    floor: Estimate | None = None
    """What as many real pictures of the other split get in the generated ones' place."""
    marks: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name with its space: the column it belongs into."""
        return self.name if self.space in self.name else f"{self.name}@{self.space}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"full_name": self.full_name, **asdict(self)}


@dataclass(frozen=True)
class Contest:
    """Two sets to compare, and what is needed beside."""

    generated: PictureSet
    reference: PictureSet
    space: Space
    other: PictureSet | None = None
    """The split the reference is not: gives the floor, and the other side of `nearest`."""
    toy: Toy | None = None
    stacked: Space | None = None
    """MNIST's classifier, when the pictures are three digits stacked."""
    classes: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    """The classes to score one by one, each with pictures of its own, or None for those in
    `generated`."""
    seed: int = 0
    allow_few: bool = False


@dataclass
class Results:
    """What came of it."""

    scores: list[Score] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Scores that were not computed, and why."""
    pairs: tuple[np.ndarray, np.ndarray] | None = None
    """Generated pictures that come nearest to training pictures, and those."""


@dataclass(frozen=True)
class Facts:
    """What is known of a contest before anything is drawn or computed."""

    generated: tuple[str, int]
    """Whose pictures, and how many."""
    reference: PictureSet
    other: PictureSet | None = None
    toy: Toy | None = None
    stacked: bool = False
    """Whether the pictures are three digits stacked."""
    space: Space | None = None
    """None while it is not known yet."""
    allow_few: bool = False


Counting = Callable[[str], Progress | None]
"""From a verb to somebody who is told how far it has come."""


def check_groups(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names, all known and each once; None stands for whatever applies."""
    if names is None:
        return None
    chosen = tuple(dict.fromkeys(names))
    if "" in chosen and len(chosen) > 1:
        given = ",".join(names)
        raise ConfigError(
            f"--metrics {given!r}: an empty name; expected some of {', '.join(GROUPS)}"
        )
    for name in filter(None, chosen):
        if name not in GROUPS:
            hint = " (FID is fd with --features inception)" if "fid" in name.lower() else ""
            raise ConfigError(
                f"--metrics {name}: not known; expected some of {', '.join(GROUPS)}{hint}"
            )
    if chosen in ((), ("",)):
        raise ConfigError(f"--metrics: empty; expected some of {', '.join(GROUPS)}")
    return chosen


def check_facts(facts: Facts, groups: tuple[str, ...] | None) -> None:
    """Nothing; an error for too few pictures, or for scores asked for that cannot be had."""
    subject, count = facts.generated
    if count < FEWEST:
        raise DataError(
            f"{subject}: {count} generated pictures, expected at least {FEWEST}; give more"
        )
    if len(facts.reference) < FEWEST:
        raise DataError(
            f"{facts.reference.name}: {len(facts.reference)} reference pictures "
            f"({facts.reference.split}), expected at least {FEWEST}; give more, or another "
            "--reference"
        )
    for group in groups or ():
        if (reason := why_not(group, facts)) is not None:
            raise ConfigError(f"--metrics {group}: {reason}")


def why_not(group: str, facts: Facts) -> str | None:
    """Why a group of scores cannot be had, as far as is known, or None."""
    fewer = min(facts.generated[1], len(facts.reference))
    space, labels = facts.space, facts.reference.labels
    match group:
        case "fd" if space is not None:
            return None if facts.allow_few else _too_few(fewer, space)
        case "is" if space is not None:
            if space.kind != INCEPTION:
                return "needs --features inception"
            assert isinstance(space.network, Inception)
            if not space.network.has_head:
                return NO_HEAD
            if facts.generated[1] < SPLITS:
                return f"{facts.generated[1]} pictures cannot be split into {SPLITS}; give more"
            return None if facts.allow_few else _too_few(facts.generated[1], space)
        case "labels":
            if labels is None or (space is not None and not space.labels):
                return "needs labelled reference data and a feature network that knows labels"
            if space is not None and not set(labels) <= set(space.labels):
                return f"the feature network {space.name} knows other labels"
        case "nearest":
            if facts.toy is not None:
                return "points have no pixels"
            if facts.other is None or not len(facts.other):
                return "needs data with training and held-out pictures"
        case "modes" if facts.toy is None and not facts.stacked:
            return "only the toys ring8 and grid25, and stacked-mnist, have known modes"
    return None


def fewest_for_frechet(space: Space) -> int:
    """Fewer pictures than this in a set, and a Fréchet distance is mostly bias."""
    if space.kind in (INCEPTION, CLEAN):
        return FEWEST_FOR_FID
    return SAMPLES_PER_DIMENSION * space.dimensions


def _too_few(count: int, space: Space) -> str | None:
    fewest = fewest_for_frechet(space)
    if count >= fewest:
        return None
    what = f"a Fréchet distance in {space.dimensions} dimensions"
    if space.kind in (INCEPTION, CLEAN):
        what = "FID and IS"
    return (
        f"{count:,} pictures are too few for {what}, which takes {fewest:,}; use kid, or "
        "--allow-few-samples"
    )


def measure(contest: Contest, groups: tuple[str, ...] | None, counting: Counting) -> Results:
    """All scores that were asked for, or, when nothing was, all that can be had.

    One that was asked for and cannot be had is an error; else it is left out with the reason.
    """
    return _Measuring(contest, groups, counting).run()


class _Measuring:
    def __init__(
        self, contest: Contest, groups: tuple[str, ...] | None, counting: Counting
    ) -> None:
        self._contest = contest
        self._groups = groups
        self._counting = counting
        self._results = Results()
        self._facts = Facts(
            generated=(contest.generated.name, len(contest.generated)),
            reference=contest.reference,
            other=contest.other,
            toy=contest.toy,
            stacked=contest.stacked is not None,
            space=contest.space,
            allow_few=contest.allow_few,
        )
        check_facts(self._facts, groups)
        space = contest.space
        self._generated = space.features(contest.generated.pictures, counting("features: done"))
        self._reference = space.features_of(contest.reference, counting("reference: done"))

    def run(self) -> Results:
        """Every group in turn."""
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
            if reason is None:
                work[group]()
            elif group not in self._not_meant():
                self._results.left_out[group] = reason
        return self._results

    def _not_meant(self) -> set[str]:
        """Groups that nobody misses here."""
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
        **more: Any,
    ) -> None:
        contest = self._contest
        own = contest.space if space is None else space
        definition, interval = _PROTOCOLS[name]
        self._results.scores.append(
            Score(
                name=shown_as or name,
                value=estimate.value,
                low=estimate.low,
                high=estimate.high,
                space=own if isinstance(own, str) else own.name,
                space_sha256=None if isinstance(own, str) else own.sha256,
                generated=counts[0],
                reference=counts[1],
                split=contest.reference.split,
                seed=contest.seed,
                definition=definition,
                interval=interval,
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
        fewest = fewest_for_frechet(space)
        few = min(len(generated), len(reference)) < fewest
        enough_real = len(real) >= max(FEWEST, min(len(generated), fewest))
        marks = ("few-samples",) if few else ()
        counts = len(generated), len(reference)
        if space.kind in (INCEPTION, CLEAN):
            target = spread(reference)
            floor = frechet_between(spread(real), target) if enough_real else None
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
            floor=frechet(real, reference) if enough_real else None,
            marks=marks,
        )

    def _inception_score(self) -> None:
        real = self._real()
        few = len(self._generated) < FEWEST_FOR_FID
        same = len(real) == len(self._generated)
        self._add(
            "is",
            self._score_of_splits(self._generated),
            (len(self._generated), 0),
            floor=self._score_of_splits(real) if same else None,
            marks=("few-samples",) if few else (),
        )

    def _score_of_splits(self, features_ND: np.ndarray) -> Estimate:
        # Shuffled: a split of one class alone would score low however good it is.
        rng = stream(self._contest.seed, cell="", purpose="inception score")
        shuffled = features_ND[rng.permutation(len(features_ND))]
        return inception_score(self._contest.space.logits_of(shuffled), SPLITS)

    def _prdc(self) -> None:
        real = self._real()
        found = self._equal_prdc(self._generated)
        floor = self._equal_prdc(real)[1] if len(real) > NEIGHBOURS else {}
        count = found[0]
        for name, estimate in found[1].items():
            self._add(name, estimate, (count, count), floor=floor.get(name))

    def _equal_prdc(self, features: np.ndarray) -> tuple[int, dict[str, Estimate]]:
        """The four of as many of both: they depend on the numbers."""
        reference = self._reference
        count = min(len(features), len(reference))
        both = [one[self._choice(len(one), count)] for one in (features, reference)]
        return count, prdc(both[0], both[1], NEIGHBOURS)

    def _labels(self) -> None:
        contest = self._contest
        labels = contest.space.labels
        found = contest.space.labels_of(self._generated)
        places = {label: place for place, label in enumerate(labels)}
        truth = np.array([places[label] for label in contest.reference.labels or ()])
        counts = len(found), len(truth)
        tables = [np.bincount(one, minlength=len(labels)) for one in (found, truth)]
        for name, estimate in label_scores(tables[0], tables[1], seed=contest.seed).items():
            self._add("label-modes" if name == "modes" else name, estimate, counts)
        wanted = contest.generated.labels
        if wanted is not None and set(wanted) <= set(labels):
            same = agreement(np.array([places[label] for label in wanted]), found)
            self._add("agreement", same, counts)

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
        """How often each of the 1,000 triples of digits was found."""
        space = self._contest.stacked
        assert space is not None
        digits = np.array([int(label) for label in space.labels])
        triple_N = np.zeros(len(pictures_NSSC), dtype=np.int64)
        for channel in range(3):
            features = space.features(pictures_NSSC[..., channel : channel + 1])
            triple_N = 10 * triple_N + digits[space.labels_of(features)]
        return np.bincount(triple_N, minlength=1000)

    def _real(self) -> np.ndarray:
        """Features of as many pictures of the other split as there are generated ones."""
        total = 0 if self._contest.other is None else len(self._contest.other)
        rows = self._choice(total, min(total, len(self._generated)))
        # Each class takes its own of all of them.
        return self._real_features()[rows] if self._contest.classes else self._real_features(rows)

    def _real_features(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        space, other = self._contest.space, self._contest.other
        if other is None:
            return np.empty((0, space.dimensions), dtype=np.float32)
        return space.features_of(other, self._counting("real pictures: done"), rows)

    def _choice(self, total: int, count: int) -> np.ndarray:
        """`count` of `total` rows, a fair sample: sets lie there class after class."""
        rng = stream(self._contest.seed, cell="", purpose="evaluation")
        chosen: np.ndarray = np.sort(rng.permutation(total)[:count])
        return chosen


def _rows(pictures: PictureSet, label: str) -> np.ndarray:
    return np.flatnonzero(np.array(pictures.labels) == label)


def _pixels(pictures_NSSC: np.ndarray) -> np.ndarray:
    """Rows between which the Euclidean distance is the root mean square difference, 0 to 1."""
    rows: np.ndarray = pictures_NSSC.reshape(len(pictures_NSSC), -1).astype(np.float32)
    rows /= np.float32(255 * np.sqrt(rows.shape[1]))
    return rows


def _median(values_N: np.ndarray) -> Estimate:
    """The median with the order statistics that hold it in 95 % of samples."""
    ordered = np.sort(values_N)
    reach = 0.98 * np.sqrt(len(ordered))
    low = max(0, int(np.floor(len(ordered) / 2 - reach)))
    high = min(len(ordered) - 1, int(np.ceil(len(ordered) / 2 + reach)))
    return Estimate(float(np.median(ordered)), float(ordered[low]), float(ordered[high]))
