"""Intervals against closed forms, and the sentence of constructed trials."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from manege.metrics.copies import CopyBound
from manege.metrics.estimate import Estimate
from manege.verdict.arms import Arm
from manege.verdict.copying import ClassCopies, Copies
from manege.verdict.judging import (
    Finding,
    Recommendation,
    TrialResults,
    answered,
    balanced_sentence,
    chosen_arm,
    compare,
    decide,
    holm,
    resampled,
)

LABELS = ("cat", "dog")
EACH = 400
TARGETS = np.repeat([0, 1], EACH)


def copies(**near: int) -> Copies:
    """Near-copies among a hundred pictures of each class, 300 real ones behind each bound."""
    bound = CopyBound(0.1, 300, left_out=False)
    return Copies({label: ClassCopies(100, near.get(label, 2), bound) for label in LABELS}, ())


def trial(**recalls: tuple[float, float]) -> TrialResults:
    """Five seeds that agree; each arm gets so much of cats and of dogs right, the same first."""
    arms = {arm: recalls.get(arm.name.lower(), (0.5, 0.5)) for arm in Arm}
    right = {
        arm: np.tile(np.concatenate([np.arange(EACH) < round(one * EACH) for one in pair]), (5, 1))
        for arm, pair in arms.items()
    }
    return TrialResults(right, TARGETS, LABELS)


def test_over_seeds_alone_the_interval_is_students() -> None:
    by_seed = np.array([0.10, 0.13, 0.08, 0.11, 0.17])
    values = np.repeat(by_seed[:, None], 20_000, axis=1)
    found = resampled(values, np.zeros(20_000, dtype=int), 1).mean
    reach = stats.t.ppf(0.975, 4) * by_seed.std(ddof=1) / np.sqrt(5)
    assert found.value == pytest.approx(by_seed.mean())
    assert found.high - found.value == pytest.approx(reach, rel=0.06)
    assert found.value - found.low == pytest.approx(reach, rel=0.06)


def test_two_seeds_are_told_for_the_few_they_are() -> None:
    values = np.repeat(np.array([[0.1], [0.2]]), 20_000, axis=1)
    found = resampled(values, np.zeros(20_000, dtype=int), 1).mean
    assert found.high - found.value == pytest.approx(12.706 * 0.05, rel=0.15)


def test_over_pictures_alone_the_interval_is_the_binomials() -> None:
    found = answered(np.tile(np.arange(1_000) < 300, (4, 1)), np.zeros(1_000, dtype=int), 1).mean
    reach = 1.96 * np.sqrt(0.3 * 0.7 / 1_000)
    assert found.value == pytest.approx(0.3)
    assert found.high - found.value == pytest.approx(reach, rel=0.05)
    assert found.value - found.low == pytest.approx(reach, rel=0.05)


def test_classes_count_alike_whatever_their_number() -> None:
    targets = np.repeat([0, 1], [900, 100])
    found = answered(np.tile(targets == 1, (3, 1)), targets, 2)
    assert found.mean.value == 0.5
    assert found.weighted(np.array([0.9, 0.1])).value == pytest.approx(0.1)
    assert [found.of_class(number).value for number in (0, 1)] == [0, 1]


@pytest.mark.full
def test_the_interval_covers_as_often_as_it_says() -> None:
    """Two arms that are equally good: about 95 in 100 intervals of their difference hold 0."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        chance = rng.beta(2, 0.5, (1, 300))
        lucky = rng.normal(0, 0.03, (2, 5, 1))
        one, other = rng.random((2, 5, 300)) < chance + lucky
        found = resampled(one.astype(float) - other, np.zeros(300, dtype=int), 1).mean
        held += found.low <= 0 <= found.high
    assert 0.92 <= held / 200 <= 0.995


def test_arms_that_err_on_the_same_pictures_hardly_differ() -> None:
    same = trial(real=(0.7, 0.4), added=(0.7, 0.4)).difference(Arm.ADDED, Arm.REAL).of_class(0)
    # One pair of each sign would be 1/2 of a picture in 402: sd √(1/402/400).
    reach = 1.96 * np.sqrt(1 / 402 / 400)
    assert same.value == 0
    assert same.high == pytest.approx(reach, rel=0.2)
    assert same.low == pytest.approx(-reach, rel=0.2)
    apart = trial(real=(0.7, 0.4), added=(0.4, 0.4)).difference(Arm.ADDED, Arm.REAL).of_class(0)
    assert apart.high - apart.low > 5 * (same.high - same.low)


def test_a_dozen_right_answers_prove_little() -> None:
    all_right = answered(np.ones((5, 12)), np.zeros(12, dtype=int), 1).mean
    assert all_right.value == 1
    assert 0.7 < all_right.low < 0.9


def test_three_better_answers_among_twelve_may_be_luck() -> None:
    gap = np.tile(np.arange(12) < 3, (5, 1)).astype(float)
    assert resampled(gap, np.zeros(12, dtype=int), 1).mean.low < 0


def test_holm_stops_at_the_first_that_may_be_chance() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == ("b",)
    assert holm({"a": 0.02, "b": 0.01, "c": 0.016}) == ("a", "b", "c")
    assert holm({"a": 0.06}) == holm({}) == ()


def test_the_arm_put_forward_is_the_better_one_in_calibration() -> None:
    assert chosen_arm({Arm.ADDED: 0.8, Arm.ADDED_AUGMENTED: 0.7}) is Arm.ADDED
    assert chosen_arm({Arm.ADDED: 0.6, Arm.ADDED_AUGMENTED: 0.7}) is Arm.ADDED_AUGMENTED
    assert chosen_arm({}) is Arm.ADDED_AUGMENTED


def judged(one: TrialResults, **near: int) -> tuple[Recommendation, tuple[str, ...], str]:
    return decide(compare(one, Arm.ADDED, LABELS), copies(**near))


def test_a_clear_gain_over_the_best_arm_says_use_it() -> None:
    outcome, classes, sentence = judged(trial(added=(0.9, 0.8), augmented=(0.7, 0.7)))
    assert (outcome, classes) == (Recommendation.USE, ())
    assert sentence.startswith("Use it: with synthetic pictures (real + synthetic)")
    assert "+15.0 points [" in sentence
    assert "(real, augmented)" in sentence


def test_a_gain_over_every_arm_but_one_does_not() -> None:
    outcome, _, sentence = judged(trial(added=(0.9, 0.8), both=(0.9, 0.8)))
    assert outcome is Recommendation.DONT
    assert sentence.startswith("Don't: it is not shown to help")
    assert "(real, oversampled and augmented)" in sentence


def test_a_gain_that_may_be_chance_does_not() -> None:
    found = compare(trial(added=(0.505, 0.5)), Arm.ADDED, LABELS)
    assert found.gain.low <= 0 < found.gain.value
    assert decide(found, copies())[0] is Recommendation.DONT


def test_a_loss_is_called_one() -> None:
    outcome, _, sentence = judged(trial(added=(0.3, 0.3)))
    assert outcome is Recommendation.DONT
    assert sentence.startswith("Don't: it does harm")


def test_classes_that_gain_while_the_whole_does_not_are_named() -> None:
    one = trial(added=(0.62, 0.47), real=(0.5, 0.6), oversampled=(0.5, 0.6))
    outcome, classes, sentence = judged(one)
    assert (outcome, classes) == (Recommendation.USE_FOR, ("cat",))
    assert sentence.startswith("Use it for cat: ")
    assert "cat +12.0 points" in sentence
    assert "over all classes it is not shown to help" in sentence
    assert judged(one, cat=20)[0] is Recommendation.DONT


def test_a_class_must_gain_over_the_arm_that_is_best_at_it() -> None:
    one = trial(added=(0.62, 0.48), real=(0.5, 0.6), oversampled=(0.7, 0.3))
    found = compare(one, Arm.ADDED, LABELS)
    assert found.over is Arm.REAL
    assert found.gains["cat"].value == pytest.approx(-0.08)
    assert found.helped == ()


def test_classes_that_nothing_was_added_to_are_not_named() -> None:
    one = trial(added=(0.62, 0.47), real=(0.5, 0.6), oversampled=(0.5, 0.6))
    assert compare(one, Arm.ADDED, ["dog"]).helped == ()


def test_copying_outweighs_any_gain() -> None:
    good = trial(added=(0.9, 0.9))
    outcome, _, sentence = judged(good, cat=30, dog=30)
    assert outcome is Recommendation.COPIES
    assert sentence.startswith("Don't: it copies; 30% [24%, 37%]")
    # 14 % [10 %, 19 %] might be 10 %.
    assert judged(good, cat=14, dog=14)[0] is Recommendation.USE


def test_where_a_class_is_copied_only_others_that_gain_are_recommended() -> None:
    outcome, classes, sentence = judged(trial(added=(0.9, 0.9)), dog=20)
    assert (outcome, classes) == (Recommendation.USE_FOR, ("cat",))
    assert sentence.startswith("Use it for cat: ")
    assert sentence.endswith("; it copies dog.")
    outcome, classes, sentence = judged(trial(added=(0.5, 0.9)), dog=20)
    assert (outcome, classes) == (Recommendation.COPIES, ())
    assert sentence.startswith("Don't: it copies dog, and no other class is shown to gain; with")


def test_balanced_data_are_told() -> None:
    assert balanced_sentence(95, 1_000) == (
        "There is nothing to balance: the smallest class has 95 training pictures, the largest "
        "1,000."
    )


def test_use_it_wants_the_interval_above_0() -> None:
    gains = {label: Estimate(0.01, 0, 0.02) for label in LABELS}
    for low, outcome in ((0.0, Recommendation.DONT), (1e-9, Recommendation.USE)):
        found = Finding(Arm.ADDED, Arm.REAL, Estimate(0.01, low, 0.02), gains, ())
        assert decide(found, copies())[0] is outcome
