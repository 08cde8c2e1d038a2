"""All scores of one set of pictures against another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from math import exp

import numpy as np
import pytest

from manege.config import DataConfig
from manege.data import PictureSet, Split, open_dataset, set_of, toy_of
from manege.errors import ConfigError, DataError
from manege.metrics import (
    GROUPS,
    Results,
    Score,
    ScoredSets,
    check_groups,
    measure,
    points_space,
    random_space,
)
from manege.metrics.conditions import FEWEST
from manege.metrics.frechet import SAMPLES_PER_DIMENSION, frechet
from manege.metrics.kid import kid


def as_set(
    pictures: np.ndarray, labels: tuple[str, ...] | None = None, split: str = "all"
) -> PictureSet:
    digest = hashlib.sha256(pictures.tobytes() + repr(labels).encode()).hexdigest()
    return PictureSet("made", split, np.ascontiguousarray(pictures), labels, digest)


def taken(pictures: PictureSet, rows: np.ndarray) -> PictureSet:
    labels = None if pictures.labels is None else tuple(pictures.labels[row] for row in rows)
    return as_set(pictures.pictures[rows], labels)


def noise(count: int, side: int = 8, channels: int = 1, seed: int = 0) -> np.ndarray:
    shape = (count, side, side, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def run(contest: ScoredSets, *groups: str) -> Results:
    return measure(contest, groups or None, lambda verb: None)


def named(results: Results, label: str | None = None) -> dict[str, Score]:
    return {score.name: score for score in results.scores if score.label == label}


@pytest.fixture(scope="module")
def parts(three) -> tuple[PictureSet, PictureSet]:
    """Held-out and training pictures of three digits."""
    return set_of(three, Split.HELD_OUT), set_of(three, Split.TRAIN)


@pytest.fixture(scope="module")
def itself(parts, classifier) -> Results:
    """The held-out pictures against themselves."""
    held_out, train = parts
    contest = ScoredSets(held_out, held_out, classifier, other=train, allow_few=True)
    return run(replace(contest, classes=dict.fromkeys(classifier.labels)))


@pytest.fixture(scope="module")
def worthless(parts, classifier) -> Results:
    """Noise against the held-out pictures."""
    held_out, train = parts
    return run(ScoredSets(as_set(noise(53)), held_out, classifier, other=train, allow_few=True))


# What is good and what is bad.


def test_a_set_against_itself_is_as_good_as_can_be(itself, parts):
    found = named(itself)
    # Unbiased, and every picture of the one set has its copy in the other: below 0, hardly.
    assert -0.2 < found["kid"].value <= 0
    assert found["fd"].value < 1e-6
    for name in ("precision", "recall", "coverage"):
        assert found[name].value == 1
    # A network may err on some of 53 that it never saw; labels that do not fit agree in a third.
    assert found["label-tvd"].value < 0.1
    assert found["label-modes"].value == 3
    assert found["agreement"].value > 0.9
    assert found["nearest-held-out"].value == 0
    assert found["nearest-train"].value > 0
    assert found["nearer-to-train"].value == 0


def test_noise_is_far_worse(itself, worthless, parts):
    good, bad = named(itself), named(worthless)
    # What holds of any network that was trained. With 14 seeds of its training, KID's lower end was
    # 4.5 times the upper ends of real pictures and more, coverage at most 0.36.
    assert bad["kid"].low > 2 * max(good["kid"].high, bad["kid"].floor.high)
    assert bad["fd"].low > 10 > bad["fd"].floor.high
    assert bad["coverage"].value < 0.5 < bad["coverage"].floor.value
    assert bad["label-tvd"].low > 0.4
    assert bad["label-modes"].value < 3
    assert bad["nearest-held-out"].low > 0.2
    # The other three say nothing of noise there: to a classifier of three digits it is some digit,
    # and may lie where digits are dense (the same seeds: density 0.2 to 0.9, precision 0.6 to 1).
    # The random space is one network, the same for everybody, and noise lies outside of all its
    # balls, the nearest by a fifth of the radius: rounding does not get there.
    held_out, train = parts
    contest = ScoredSets(as_set(noise(53)), held_out, random_space(8, 1), other=train)
    for name, score in named(run(contest, "prdc")).items():
        assert score.value == 0, name
        assert score.floor.value > 0.8, name


def test_a_copy_of_the_training_pictures_is_found_out(parts, classifier):
    held_out, train = parts
    # As many training as held-out pictures are searched: of no more than those, each copy meets its
    # original. Pictures that are no copies would be nearer to training ones half of the time.
    rows = slice(0, len(held_out) * 9, 9)
    some = replace(train, pictures=train.pictures[rows], labels=train.labels[rows])
    assert len(some) == len(held_out)
    found = run(ScoredSets(some, held_out, classifier, other=some), "nearest")
    assert named(found)["nearer-to-train"].value > 0.9
    drawn, real = found.pairs
    assert drawn.shape == real.shape == (16, 8, 8, 1)
    np.testing.assert_array_equal(drawn, real)


# Order, repetition, seeds.


def test_the_order_of_the_pictures_does_not_matter_but_for_rounding(parts, classifier):
    held_out, train = parts
    some = taken(train, np.arange(0, len(train), 3))
    mixed = taken(some, np.random.default_rng(0).permutation(len(some)))
    one, other = (
        named(run(ScoredSets(drawn, held_out, classifier, allow_few=True), "kid", "fd"))
        for drawn in (some, mixed)
    )
    assert other["kid"].value == pytest.approx(one["kid"].value, rel=1e-6, abs=1e-6)
    assert other["fd"].value == pytest.approx(one["fd"].value, rel=1e-6)
    # Another tenth of the pictures would move them by more than that.
    third = named(
        run(ScoredSets(taken(train, np.arange(1, len(train), 3)), held_out, classifier), "kid")
    )
    assert third["kid"].value != pytest.approx(one["kid"].value, rel=1e-3)


def test_the_same_contest_gives_the_same_results_to_the_bit(itself, parts, classifier):
    held_out, train = parts
    contest = ScoredSets(held_out, held_out, classifier, other=train, allow_few=True)
    again = run(replace(contest, classes=dict.fromkeys(classifier.labels)))
    assert again.scores == itself.scores
    assert again.left_out == itself.left_out


def test_a_seed_moves_what_is_drawn_and_not_the_distance(parts, classifier):
    held_out, train = parts
    one, other = (
        named(run(ScoredSets(train, held_out, classifier, other=train, seed=seed)))
        for seed in (0, 1)
    )
    assert one["kid"].value == other["kid"].value
    assert one["density"].value != other["density"].value
    assert one["nearest-train"].value != other["nearest-train"].value
    assert {score.seed for score in one.values()} == {0}
    assert {score.seed for score in other.values()} == {1}


# The whole protocol.


def test_every_score_says_what_it_takes_to_compute_it_again(itself, worthless, classifier):
    for score in (*itself.scores, *worthless.scores):
        assert score.low <= score.value <= score.high
        assert np.isfinite([score.low, score.value, score.high]).all()
        assert 0 < score.generated <= 53
        assert 0 < score.reference <= 53
        assert score.split == "held-out"
        assert score.definition
        assert score.interval
        assert score.seed == 0
        if score.space == "pixels":
            assert score.space_sha256 is None
        else:
            assert score.space == classifier.name
            assert score.space_sha256 == classifier.sha256
        assert score.full_name == f"{score.name}@{score.space}"
        json.dumps(score.as_dict(), allow_nan=False)
    names = [(score.full_name, score.label) for score in itself.scores]
    assert len(names) == len(set(names))


def test_counts_are_those_of_the_pictures_that_were_compared(parts, classifier):
    held_out, train = parts
    found = named(run(ScoredSets(train, held_out, classifier, other=train, allow_few=True)))
    for name in ("kid", "fd", "label-tvd", "agreement"):
        assert (found[name].generated, found[name].reference) == (len(train), len(held_out))
    # These depend on the numbers, so they take as many of both.
    for name in ("precision", "recall", "density", "coverage"):
        assert (found[name].generated, found[name].reference) == (len(held_out), len(held_out))
    assert found["nearest-train"].reference == found["nearest-held-out"].reference == len(held_out)


def test_numbers_of_two_spaces_bear_different_names(parts, classifier):
    held_out, train = parts
    spaces = (classifier, random_space(8, 1))
    names = [
        {score.full_name for score in run(ScoredSets(train, held_out, space), "kid", "prdc").scores}
        for space in spaces
    ]
    assert not names[0] & names[1]
    assert names[0] == {
        f"{name}@{classifier.name}"
        for name in ("kid", "precision", "recall", "density", "coverage")
    }


def test_numbers_in_the_classifier_of_lipizzaner_bear_its_name():
    space = replace(random_space(8, 1), kind="mnist-logits")
    few = as_set(noise(20))
    found = named(run(ScoredSets(few, few, space, allow_few=True), "fd", "kid"))
    assert set(found) == {"fid-mnist-logits", "kid"}
    assert found["kid"].full_name == f"kid@{space.name}"


# The floor.


def test_the_floor_is_what_real_pictures_get(parts, classifier):
    held_out, train = parts
    found = named(
        run(ScoredSets(as_set(noise(1000)), held_out, classifier, other=train), "kid", "prdc")
    )
    # More were generated than there are training pictures: all of them make the floor.
    real, reference = classifier.features(train.pictures), classifier.features(held_out.pictures)
    assert found["kid"].floor == kid(real, reference)
    assert found["kid"].floor.value < 0.01 * found["kid"].value
    # Coverage: whether noise is precise is the network's whim.
    assert found["coverage"].floor.value > 0.8 > 0.5 > found["coverage"].value


def test_the_floor_is_of_as_many_real_pictures_as_were_generated(parts, classifier):
    held_out, train = parts
    wide = named(run(ScoredSets(as_set(noise(10)), held_out, classifier, other=train), "kid"))[
        "kid"
    ]
    narrow = named(run(ScoredSets(as_set(noise(400)), held_out, classifier, other=train), "kid"))[
        "kid"
    ]
    assert wide.floor.high - wide.floor.low > 2 * (narrow.floor.high - narrow.floor.low)


def test_scores_that_depend_on_the_number_have_no_floor_of_fewer_pictures(parts, classifier):
    """Fewer real pictures have a larger Fréchet distance: a generator would seem to beat them."""
    _, train = parts
    half = len(train) // 2
    some, rest = (
        replace(train, pictures=train.pictures[rows], labels=train.labels[rows])
        for rows in (slice(half), slice(half, None))
    )
    few = replace(rest, pictures=rest.pictures[:60], labels=rest.labels[:60])
    contest = ScoredSets(as_set(noise(half)), some, classifier, other=few, allow_few=True)
    found = named(run(contest, "kid", "fd", "prdc"))
    assert found["kid"].floor is not None
    assert {found[name].floor for name in ("fd", "precision", "coverage")} == {None}
    as_many = named(run(replace(contest, other=rest), "fd", "prdc"))
    assert None not in {as_many[name].floor for name in ("fd", "precision", "coverage")}


def test_without_another_split_there_is_no_floor(parts, classifier):
    held_out, train = parts
    found = run(ScoredSets(train, held_out, classifier))
    assert {score.floor for score in found.scores} == {None}
    assert found.left_out["nearest"] == "needs data with training and held-out pictures"


# What cannot be said honestly.


def test_a_frechet_distance_of_few_pictures_is_left_out_refused_or_marked(parts, classifier):
    held_out, train = parts
    contest = ScoredSets(train, held_out, classifier)
    left_out = run(contest).left_out["fd"]
    assert "53 reference pictures are too few" in left_out
    with pytest.raises(ConfigError, match="metrics fd: 53 reference pictures are too few") as told:
        run(contest, "kid", "fd")
    assert "allow_few_samples" in str(told.value)
    assert len(str(told.value).splitlines()) == 1
    marked = named(run(replace(contest, allow_few=True)))
    assert marked["fd"].marks == ("few-samples",)
    assert marked["kid"].marks == ()


def test_a_frechet_distance_of_enough_pictures_is_not_marked():
    space = points_space()
    least = SAMPLES_PER_DIMENSION * space.dimensions
    one, other = as_set(noise(least, 1, 2)), as_set(noise(least, 1, 2, seed=1))
    found = named(run(ScoredSets(one, other, space)))["fd"]
    assert found.marks == ()
    features = [space.features(part.pictures) for part in (one, other)]
    assert (found.value, found.low, found.high) == tuple(vars(frechet(*features)).values())
    short = as_set(noise(least - 1, 1, 2))
    for contest in (ScoredSets(short, other, space), ScoredSets(one, short, space)):
        assert "fd" in run(contest).left_out


@pytest.mark.parametrize("count", [0, 1, FEWEST - 1])
def test_a_handful_of_pictures_is_not_scored(count, parts, classifier):
    held_out, _ = parts
    few = as_set(noise(count))
    with pytest.raises(DataError, match=f"{count} generated pictures, expected"):
        run(ScoredSets(few, held_out, classifier))
    with pytest.raises(DataError, match=rf"{count} .*pictures.*at least {FEWEST}"):
        run(ScoredSets(held_out, few, classifier))
    assert run(ScoredSets(as_set(noise(FEWEST)), as_set(noise(FEWEST)), random_space(8, 1))).scores


def test_pictures_without_labels_have_no_label_scores(parts, classifier):
    held_out, train = parts
    unlabelled = replace(held_out, labels=None)
    for contest in (
        ScoredSets(train, unlabelled, classifier),
        ScoredSets(train, held_out, random_space(8, 1)),
        ScoredSets(train, replace(held_out, labels=("x",) * len(held_out)), classifier),
    ):
        assert "labels" in run(contest).left_out
        with pytest.raises(ConfigError, match="metrics labels: "):
            run(contest, "labels")
    # The subject's own labels are needed for the agreement only.
    scores = named(run(ScoredSets(replace(train, labels=None), held_out, classifier), "labels"))
    assert set(scores) == {"label-entropy", "label-tvd", "label-modes"}


def test_modes_are_asked_of_toys_only(parts, classifier):
    held_out, train = parts
    assert "modes" not in run(ScoredSets(train, held_out, classifier)).left_out
    with pytest.raises(ConfigError, match="metrics modes: only the toys"):
        run(ScoredSets(train, held_out, classifier), "modes")


def test_groups_are_checked_and_taken_once():
    assert check_groups(None) is None
    assert check_groups(["kid", "fd", "kid"]) == ("kid", "fd")
    assert check_groups(GROUPS) == tuple(GROUPS)
    with pytest.raises(ConfigError, match="metrics fid: not known; expected some of kid, fd"):
        check_groups(["kid", "fid"])
    with pytest.raises(ConfigError, match="metrics: empty"):
        check_groups([])


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("kid", {"kid"}),
        ("fd", {"fd"}),
        ("prdc", {"precision", "recall", "density", "coverage"}),
        ("labels", {"label-entropy", "label-tvd", "label-modes", "agreement"}),
        ("nearest", {"nearest-train", "nearest-held-out", "nearer-to-train"}),
    ],
)
def test_a_group_asked_for_comes_alone(group, names, parts, classifier):
    held_out, train = parts
    contest = ScoredSets(train, held_out, classifier, other=train, allow_few=True)
    found = run(contest, group)
    assert set(named(found)) == names
    assert found.left_out == {}


# Labels and classes.


def test_a_missing_class_is_a_mode_fewer_and_a_distance_of_its_share(parts, classifier):
    held_out, train = parts
    labels = np.array(train.labels)
    whole = named(run(ScoredSets(train, held_out, classifier), "labels"))
    lacking = taken(train, np.flatnonzero(labels != "7"))
    found = named(run(ScoredSets(lacking, held_out, classifier), "labels"))
    share = held_out.labels.count("7") / len(held_out)
    assert whole["label-modes"].value == 3
    assert found["label-modes"].value == 2
    assert whole["label-tvd"].value < 0.03
    assert found["label-tvd"].value == pytest.approx(share, abs=0.03)
    assert found["label-entropy"].value == pytest.approx(np.log(2), abs=0.02)
    assert found["agreement"].value > 0.97


def test_agreement_is_with_the_label_a_picture_was_made_for(parts, classifier):
    held_out, train = parts
    turned = {"3": "7", "7": "8", "8": "3"}
    wrong = replace(train, labels=tuple(turned[label] for label in train.labels))
    assert named(run(ScoredSets(wrong, held_out, classifier), "labels"))["agreement"].value < 0.03


def test_classes_are_scored_by_their_own_pictures(parts, classifier):
    held_out, train = parts
    contest = ScoredSets(train, held_out, classifier, other=train)
    found = run(replace(contest, classes=dict.fromkeys(("3", "8"))), "kid")
    assert [score.label for score in found.scores] == [None, "3", "8", None]
    assert found.scores[-1].name == "intra-class-kid"
    for label in ("3", "8"):
        rows = [
            classifier.features(part.pictures)[np.array(part.labels) == label]
            for part in (train, held_out)
        ]
        score = named(found, label)["kid"]
        expected = kid(*rows)
        assert (score.value, score.low, score.high) == tuple(vars(expected).values())
        assert (score.generated, score.reference) == tuple(map(len, rows))
        assert score.floor == expected  # The training pictures are the other split here.


def test_a_class_may_come_with_pictures_of_its_own(parts, classifier):
    held_out, train = parts
    eights = train.pictures[np.array(train.labels) == "8"]
    contest = ScoredSets(train, held_out, classifier, classes={"3": eights, "8": eights, "7": None})
    found = run(contest, "kid")
    kids = {label: named(found, label)["kid"].value for label in ("3", "7", "8")}
    assert kids["8"] < 0.1 * kids["3"]
    assert kids["7"] < 0.1 * kids["3"]


def test_a_class_with_too_few_pictures_is_left_out_by_name(parts, classifier):
    held_out, train = parts
    rows = np.flatnonzero(np.array(train.labels) == "7")[: FEWEST - 1]
    others = np.flatnonzero(np.array(train.labels) != "7")
    contest = ScoredSets(taken(train, np.append(others, rows)), held_out, classifier)
    found = run(replace(contest, classes=dict.fromkeys(classifier.labels)), "kid")
    assert [score.label for score in found.scores] == [None, "3", "8"]
    assert found.left_out == {
        "kid of class '7'": f"7 pictures are too few, expected {FEWEST}",
        "intra-class-kid": "class '7' has too few pictures",
    }


# The toys.


@pytest.mark.full
@pytest.mark.parametrize(("name", "modes"), [("ring8", 8), ("grid25", 25)])
def test_a_toys_own_points_hit_every_mode(name, modes):
    dataset = open_dataset(DataConfig(source=name))
    held_out, train = (set_of(dataset, split) for split in (Split.HELD_OUT, Split.TRAIN))
    contest = ScoredSets(held_out, held_out, points_space(), other=train, toy=toy_of(name))
    found = run(contest)
    scores = named(found)
    assert scores["modes"].value == modes
    # The share of a round Gaussian within three deviations.
    assert scores["high-quality"].value == pytest.approx(1 - exp(-4.5), abs=0.006)
    assert scores["fd"].value < 1e-9
    assert scores["kid"].value <= 0
    for score in found.scores:
        assert score.space == "points"
    assert scores["high-quality"].full_name == "high-quality@points"
    assert found.left_out == {
        "labels": "needs labelled reference data and a feature network that knows labels",
        "nearest": "points have no pixels",
    }
    only = set_of(open_dataset(DataConfig(source=name, classes=("1",))), Split.TRAIN)
    lost = named(run(replace(contest, generated=only)))
    assert lost["modes"].value == 1
    assert lost["high-quality"].value > 0.97
    assert lost["kid"].low > 10 * abs(scores["kid"].value)
    assert lost["recall"].value < 0.2


def test_points_between_the_modes_are_of_low_quality():
    dataset = open_dataset(DataConfig(source="ring8"))
    held_out = set_of(dataset, Split.HELD_OUT)
    middle = as_set(np.full((100, 1, 1, 2), 128, dtype=np.uint8))
    found = named(run(ScoredSets(middle, held_out, points_space(), toy=toy_of("ring8")), "modes"))
    assert (found["modes"].value, found["high-quality"].value) == (0, 0)
