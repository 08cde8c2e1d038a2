"""The scorer that training steers by."""

from __future__ import annotations

import numpy as np
import pytest

from manege.config import ALL, DataConfig, ScoreConfig, ScoreMetric
from manege.data import Dataset, Split, open_dataset, set_of
from manege.data.cache import Entry
from manege.errors import ConfigError
from manege.metrics import (
    ClassScorer,
    Space,
    feature_weights,
    lite0_space,
    points_space,
    random_space,
)
from manege.metrics import scorer as module
from manege.metrics.frechet import SAMPLES_PER_DIMENSION, frechet
from manege.metrics.kid import kid

KID, FD = ScoreConfig(metric="kid"), ScoreConfig(metric="fd", samples=100_000)


class Guarded(Dataset):
    """A dataset that hands out training pictures only, and remembers whose."""

    def __init__(self, dataset: Dataset) -> None:
        vars(self).update(vars(dataset))
        self.opened: list[str] = []

    def names(self, label: str, split: Split) -> tuple[str, ...]:
        assert split is Split.TRAIN, "a held-out picture"
        return super().names(label, split)

    def entry(self, label: str, split: Split) -> Entry:
        assert split is Split.TRAIN, "a held-out picture"
        self.opened.append(label)
        return super().entry(label, split)


def scorer_of(config: ScoreConfig, space: Space, dataset: Dataset) -> ClassScorer:
    """A cell for each label."""
    return ClassScorer(config, space, dataset, {label: (label,) for label in dataset.labels})


@pytest.fixture(scope="module")
def ring(_cache) -> Dataset:
    return open_dataset(DataConfig(source="ring8", classes=("0", "1")))


def test_a_classs_own_pictures_are_near_and_others_far(three, classifier):
    for space in (classifier, random_space(8, 1)):
        scorer = scorer_of(KID, space, three)
        own = scorer.score("3", three.pictures("3", Split.TRAIN)).value
        fresh = scorer.score("3", three.pictures("3", Split.HELD_OUT)).value
        other = scorer.score("3", three.pictures("8", Split.TRAIN)).value
        noise = np.random.default_rng(0).integers(0, 256, (150, 8, 8, 1), dtype=np.uint8)
        random = scorer.score("3", noise).value
        assert max(abs(own), abs(fresh)) < 0.1 * min(other, random)


def test_the_score_is_the_kernel_distance_to_the_classs_training_pictures(three):
    space = random_space(8, 1)
    drawn, own = three.pictures("8", Split.TRAIN), three.pictures("3", Split.TRAIN)
    found = scorer_of(KID, space, three).score("3", drawn)
    assert found == kid(space.features(drawn), space.features(own))


@pytest.mark.full
def test_lite0_looks_at_no_more_than_an_eighth_of_what_is_trained_on(three, monkeypatch):
    space = lite0_space(8, 1, feature_weights())
    seen = []
    real = Space.features
    monkeypatch.setattr(
        Space, "features", lambda self, x, *more: seen.append(len(x)) or real(self, x, *more)
    )
    drawn = np.random.default_rng(0).integers(0, 256, (512, 8, 8, 1), dtype=np.uint8)
    trained = len(three.names("3", Split.TRAIN))
    for every, expected in ((1, 64), (5, trained * 5 // 8), (100, 512)):
        config = ScoreConfig(metric=ScoreMetric.KID, every_rounds=every)
        scorer_of(config, space, three).score("3", drawn)
        assert seen[0] == expected
        seen.clear()
    scorer_of(KID, random_space(8, 1), three).score("3", drawn)
    assert seen[0] == 512


def test_the_same_pictures_get_the_same_score_to_the_bit(three):
    scorer = scorer_of(KID, random_space(8, 1), three)
    pictures = three.pictures("7", Split.TRAIN)
    first = scorer.score("3", pictures)
    scorer.score("8", pictures[:50])
    assert scorer.score("3", pictures) == first
    assert scorer_of(KID, random_space(8, 1), three).score("3", pictures) == first


def test_references_are_training_pictures_of_the_class_opened_once(three, ring):
    guarded = Guarded(three)
    with pytest.raises(AssertionError, match="a held-out picture"):
        guarded.pictures("3", Split.HELD_OUT)
    scorer = scorer_of(KID, random_space(8, 1), guarded)
    for _ in range(3):
        scorer.score("3", three.pictures("8", Split.HELD_OUT))
    assert guarded.opened == ["3"]
    guarded = Guarded(ring)
    scorer_of(FD, points_space(), guarded).score("1", ring.pictures("0", Split.HELD_OUT))
    assert guarded.opened == ["1"]


def test_of_a_large_class_the_first_pictures_stand_for_all(ring, monkeypatch):
    monkeypatch.setattr(module, "MOST_REFERENCES", 100)
    space, drawn = points_space(), ring.pictures("0", Split.HELD_OUT)
    found = scorer_of(KID, space, ring).score("0", drawn)
    own = ring.pictures("0", Split.TRAIN)
    assert found == kid(space.features(drawn), space.features(own[:100]))
    assert found != kid(space.features(drawn), space.features(own))


def test_a_frechet_distance_is_near_for_own_points_and_far_for_others(ring):
    scorer = scorer_of(FD, points_space(), ring)
    own, other = ring.pictures("0", Split.TRAIN), ring.pictures("1", Split.TRAIN)
    space = points_space()
    assert scorer.score("0", own).value < 1e-9
    assert scorer.score("0", other).value > 0.1
    assert scorer.score("0", other) == frechet(space.features(other), space.features(own))


def test_a_frechet_distance_of_too_few_pictures_is_refused(three, ring):
    with pytest.raises(ConfigError, match=r"score fd: class '3' has 1\d\d pictures, too few"):
        scorer_of(FD, random_space(8, 1), three)
    least = 2 * SAMPLES_PER_DIMENSION
    scorer_of(ScoreConfig(metric="fd", samples=least), points_space(), ring)
    with pytest.raises(ConfigError, match=rf"score.samples has {least - 1} pictures") as told:
        scorer_of(ScoreConfig(metric="fd", samples=least - 1), points_space(), ring)
    assert "score kid" in str(told.value)
    # KID is right for few pictures too.
    scorer_of(ScoreConfig(metric="kid", samples=8), random_space(8, 1), three)


def test_a_limit_on_the_pictures_counts(three):
    few = open_dataset(DataConfig(source="ring8", limit_per_class=2 * SAMPLES_PER_DIMENSION - 1))
    with pytest.raises(ConfigError, match="class '0'"):
        scorer_of(FD, points_space(), few)


def test_one_cell_for_all_the_data_is_held_against_all_of_it(three):
    space = random_space(8, 1)
    scorer = ClassScorer(KID, space, three, {ALL: three.labels})
    everything = set_of(three, Split.TRAIN)
    drawn = three.pictures("3", Split.HELD_OUT)
    found = scorer.score("all", drawn)
    assert found == kid(space.features(drawn), space.features(everything.pictures))
    own = scorer.score("all", everything.pictures)
    assert abs(own.value) < 0.1 * found.value
