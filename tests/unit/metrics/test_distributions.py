"""Spread of labels and toy modes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from manege.metrics.distributions import (
    MODE_SHARE,
    agreement,
    inception_score,
    label_scores,
    stacked_scores,
    toy_scores,
)
from manege.metrics.estimate import Estimate, wilson


def counts(*values: int) -> np.ndarray:
    return np.array(values)


def test_entropy_is_that_of_the_generated_shares_in_nats():
    found = label_scores(counts(50, 25, 25, 0), counts(1, 1, 1, 1), seed=0)["label-entropy"]
    assert found.value == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
    assert found.low < found.value < found.high < math.log(4)


def test_the_distance_is_half_the_difference_of_the_shares():
    found = label_scores(counts(600, 350, 50), counts(25, 25, 50), seed=0)["label-tvd"]
    assert found.value == pytest.approx((0.35 + 0.1 + 0.45) / 2)
    assert 0.42 < found.low < found.value < found.high < 0.48


def test_a_label_never_generated_is_taken_for_impossible():
    found = label_scores(counts(600, 400, 0), counts(25, 25, 50), seed=0)
    assert found["label-tvd"] == Estimate(0.5, 0.5, 0.5)
    assert found["modes"] == Estimate(2.0, 2.0, 2.0)


def test_shares_as_they_should_be_have_no_distance_but_an_interval():
    found = label_scores(counts(30, 60, 90), counts(1, 2, 3), seed=0)
    assert found["label-tvd"].value == pytest.approx(0, abs=1e-15)
    assert found["label-tvd"].low == 0
    assert 0.01 < found["label-tvd"].high < 0.1
    assert found["label-entropy"].low < found["label-entropy"].value


def test_the_extremes_stay_within_what_is_possible():
    found = label_scores(counts(40, 0), counts(0, 7), seed=0)
    assert found["label-entropy"] == Estimate(0.0, 0.0, 0.0)
    assert found["label-tvd"] == Estimate(1.0, 1.0, 1.0)
    assert found["modes"] == Estimate(0.0, 0.0, 0.0)
    # These shares add up to a little more than 1 in floating point.
    apart = counts(6, 1, 6, 18, 6, 0, 0, 0, 0, 0), counts(0, 0, 0, 0, 0, 4, 13, 32, 26, 14)
    assert label_scores(*apart, seed=0)["label-tvd"] == Estimate(1.0, 1.0, 1.0)
    even = label_scores(counts(*[5] * 10), counts(*[1] * 10), seed=0)["label-entropy"]
    assert even.high == pytest.approx(math.log(10))


def test_a_tenth_of_the_fair_share_makes_a_mode():
    # A tenth of the shares 1/2, 3/10 and 1/5 of 1,000 labels: 50, 30 and 20.
    reference = counts(50, 30, 20, 0)
    assert MODE_SHARE == 0.1
    for generated, modes in [
        ((50, 930, 20, 0), 3),
        ((49, 931, 20, 0), 2),
        ((49, 932, 19, 0), 1),
        ((0, 0, 0, 1000), 0),
        ((250, 250, 250, 250), 3),
    ]:
        found = label_scores(counts(*generated), reference, seed=0)["modes"]
        assert found.value == modes
        assert found.low <= modes <= found.high


def test_the_interval_of_the_modes_knows_what_hangs_by_a_thread():
    found = label_scores(counts(51, 930, 19), counts(5, 3, 2), seed=0)["modes"]
    assert (found.low, found.value, found.high) == (1, 2, 3)


def test_a_seed_fixes_the_intervals_and_another_moves_them():
    arguments = counts(310, 240, 450), counts(1, 1, 1)
    assert label_scores(*arguments, seed=7) == label_scores(*arguments, seed=7)
    one, other = label_scores(*arguments, seed=7), label_scores(*arguments, seed=8)
    assert one["label-tvd"].value == other["label-tvd"].value
    assert one["label-tvd"].low != other["label-tvd"].low
    assert one["label-entropy"].low != other["label-entropy"].low


@pytest.mark.full
@pytest.mark.parametrize("uneven", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("name", ["label-tvd", "label-entropy"])
def test_the_intervals_cover_the_truth_near_and_far_from_the_boundary(uneven, name):
    shares = np.array([1 + uneven, 1 - uneven] * 5) / 10
    truth = {"label-tvd": uneven / 2, "label-entropy": -(shares * np.log(shares)).sum()}[name]
    source = np.random.default_rng(0)
    found = [
        label_scores(source.multinomial(1000, shares), np.full(10, 100), seed=seed)[name]
        for seed in range(150)
    ]
    covered = np.mean([one.low - 1e-12 <= truth <= one.high + 1e-12 for one in found])
    assert covered > 0.9


@pytest.mark.parametrize(
    ("generated", "reference", "complaint"),
    [
        (counts(1, 2), counts(1, 2, 3), "2 labels against 3"),
        (counts(0, 0), counts(1, 2), "counts of nothing"),
        (counts(1, 2), counts(0, 0), "counts of nothing"),
        (counts(1, -2), counts(1, 2), "none negative"),
        (np.array([0.5, 0.5]), counts(1, 2), "integers"),
        (counts(1, 2).reshape(1, 2), counts(1, 2), "a list"),
    ],
)
def test_counts_that_are_none_are_refused(generated, reference, complaint):
    with pytest.raises(ValueError, match=complaint):
        label_scores(generated, reference, seed=0)


def test_agreement_is_the_share_of_equal_labels():
    assert agreement([0, 1, 2, 2], [0, 1, 1, 2]) == wilson(3, 4)
    assert agreement(["a", "b"], np.array(["b", "a"])) == wilson(0, 2)
    with pytest.raises(ValueError, match="two lists alike"):
        agreement([0, 1], [0])
    with pytest.raises(ValueError, match="at least one trial"):
        agreement([], [])


def ring(modes: int) -> np.ndarray:
    angles = 2 * np.pi * np.arange(modes) / modes
    return 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_points_of_high_quality_lie_within_three_deviations():
    centres = np.array([[0.0, 0.0], [10.0, 0.0]])
    points = np.array([[0, 1.5], [0, 1.51], [10, -1.5], [8.4, 0]], dtype=np.float32)
    assert toy_scores(points, centres, 0.5, seed=0)["high-quality"] == wilson(2, 4)


def test_all_modes_of_a_good_sample_are_found():
    source = np.random.default_rng(0)
    centres = ring(8)
    points = centres[source.integers(8, size=1000)] + 0.02 * source.standard_normal((1000, 2))
    found = toy_scores(points.astype(np.float32), centres, 0.02, seed=0)
    assert found["modes"] == Estimate(8.0, 8.0, 8.0)
    assert found["high-quality"].value > 0.97


def test_a_mode_needs_a_tenth_of_its_fair_share_of_all_points():
    # Four centres, 400 points: a tenth of the fair share is 10 points.
    centres = ring(4)
    for last, modes in [(10, 4), (9, 3)]:
        good = np.repeat(centres, [100, 100, 100, last], axis=0)
        points = np.concatenate([good, np.full((100 - last, 2), 50.0)])
        found = toy_scores(points, centres, 0.1, seed=0)
        assert found["modes"] == Estimate(modes, 3, 4)
        assert found["high-quality"] == wilson(300 + last, 400)


def test_points_of_a_generator_that_diverged_are_of_no_quality():
    points = np.array([[np.nan, 0], [np.inf, 0], [-np.inf, np.inf], [3e38, 1], [0, 0]], np.float32)
    found = toy_scores(points, np.zeros((1, 2)), 1.0, seed=0)
    assert found["high-quality"] == wilson(1, 5)
    lost = toy_scores(points[:4], np.zeros((1, 2)), 1.0, seed=0)
    assert lost["modes"] == Estimate(0.0, 0.0, 0.0)


@pytest.mark.parametrize("shape", [(0, 2), (5, 3), (4,)])
def test_points_in_no_plane_are_refused(shape):
    with pytest.raises(ValueError, match="expected N×2"):
        toy_scores(np.zeros(shape), np.zeros((1, 2)), 1.0, seed=0)


# The inception score.


def test_sure_and_even_labels_score_as_many_as_there_are():
    logits = 1000.0 * np.tile(np.eye(5), (20, 1))
    assert inception_score(logits) == Estimate(*[pytest.approx(5)] * 3)


@pytest.mark.parametrize("logits", [np.zeros((40, 7)), 1000 * np.eye(7)[np.zeros(40, int)]])
def test_unsure_labels_and_one_label_score_one(logits):
    assert inception_score(logits) == Estimate(*[pytest.approx(1)] * 3)


def test_the_inception_score_is_the_mean_of_splits_in_their_order():
    """Each split has one label: all together would score 10."""
    logits = 1000.0 * np.repeat(np.eye(10), 4, axis=0)
    assert inception_score(logits).value == pytest.approx(1)
    assert inception_score(logits, splits=1 + 1).value == pytest.approx(5)
    # Half the splits score 2, half 1: mean 1.5, deviation √(10/9)/2.
    halves = np.concatenate([np.tile(np.eye(10)[:2], (10, 1)), np.repeat(np.eye(10)[:1], 20, 0)])
    found = inception_score(1000 * halves)
    assert found.value == pytest.approx(1.5)
    assert found.high - found.value == pytest.approx(
        1.96 * math.sqrt(10 / 9) / 2 / math.sqrt(10), rel=1e-3
    )
    with pytest.raises(ValueError, match="9 rows in 10 splits"):
        inception_score(logits[:9])


def test_outputs_of_two_probabilities_have_the_closed_form():
    p = 0.9
    logits = np.log(np.tile([[p, 1 - p], [1 - p, p]], (50, 1)))
    expected = math.exp(math.log(2) + p * math.log(p) + (1 - p) * math.log(1 - p))
    assert inception_score(logits).value == pytest.approx(expected)


# Modes that should be equally likely.


def test_modes_are_covered_by_one_picture_and_kl_is_to_equal_shares():
    found = stacked_scores(counts(1, 0, 50, 49), seed=0)
    assert found["modes-covered"].value == 3
    shares = np.array([0.01, 0.5, 0.49])
    assert found["modes-kl"].value == pytest.approx((shares * np.log(4 * shares)).sum())
    assert found["modes-covered"].low == 2
    assert found["modes-kl"].low < found["modes-kl"].value < found["modes-kl"].high
    even = stacked_scores(counts(*[25] * 1000), seed=0)
    assert even["modes-covered"].value == 1000
    assert even["modes-kl"].value == pytest.approx(0, abs=1e-12)
    assert stacked_scores(counts(7, 0), seed=0)["modes-kl"].value == pytest.approx(math.log(2))
