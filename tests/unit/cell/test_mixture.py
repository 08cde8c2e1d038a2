"""Weights of a mixture, their evolution, and who draws which picture."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manege.cell.mixture import evolve, mutated, proportions, uniform

EPSILON = 1e-12


class Towards:
    """Squared distance to a target; keeps what it was asked."""

    def __init__(self, target: Sequence[float]) -> None:
        self.target = np.array(target)
        self.asked: list[np.ndarray] = []

    def moments(self, pictures_NSSC):
        raise AssertionError("evolving needs no pictures")

    measure = moments

    def score(self, weights_S, moments):
        self.asked.append(weights_S.copy())
        return float(np.square(weights_S - self.target).sum())


class Told(Towards):
    """The scores it was told to give, one after the other."""

    def __init__(self, *scores: float) -> None:
        super().__init__([])
        self.scores = list(scores)

    def score(self, weights_S, moments):
        self.asked.append(weights_S.copy())
        return self.scores[len(self.asked) - 1]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def moments_of(count: int) -> list[np.ndarray]:
    return [np.zeros(1)] * count


def on_simplex(weights_S: np.ndarray) -> bool:
    return bool(
        weights_S.dtype == np.float64
        and weights_S.min() >= 0
        and abs(weights_S.sum() - 1) < EPSILON
    )


@st.composite
def weights(draw: st.DrawFn, most: int = 9) -> np.ndarray:
    """Points of the simplex, its faces and corners and its very small weights included."""
    parts = draw(
        st.lists(
            st.one_of(st.just(0.0), st.integers(1, 9), st.floats(1e-12, 1.0)),
            min_size=1,
            max_size=most,
        ).filter(lambda parts: sum(parts) > 0)
    )
    return np.array(parts) / np.sum(parts)


# The weights.


def test_uniform_weights_are_alike():
    assert uniform(5).tolist() == [0.2] * 5
    assert uniform(1).tolist() == [1.0]
    assert all(on_simplex(uniform(count)) for count in range(1, 50))
    with pytest.raises(ValueError, match="a mixture of 0 members"):
        uniform(0)


@given(weights(), st.sampled_from([0.0, 1e-9, 0.01, 0.3, 5.0, 1e6]), st.integers(0, 2**32))
def test_mutated_weights_stay_on_the_simplex(weights_S, scale, seed):
    before = weights_S.copy()
    child_S = mutated(weights_S, scale, rng(seed))
    assert child_S.shape == weights_S.shape
    assert on_simplex(child_S)
    assert np.array_equal(weights_S, before)


def test_a_mutation_is_normal_noise_of_the_scale_cut_at_zero_and_normalised():
    weights_S = np.array([0.5, 0.3, 0.2, 0.0])
    child_S = mutated(weights_S, 0.01, rng(3))
    plain_S = np.maximum(0, weights_S + 0.01 * rng(3).standard_normal(4))
    np.testing.assert_allclose(child_S, plain_S / plain_S.sum(), rtol=1e-14)


def test_the_noise_has_the_scale_that_was_asked_for():
    source, weights_S = rng(4), uniform(4)
    moved = np.array([mutated(weights_S, 0.01, source) for _ in range(4000)]) - weights_S
    # Normalising takes back the mean of the noise: 3/4 of the variance is left, up to (scale/w)².
    expected = 0.01 * np.sqrt(3 / 4)
    np.testing.assert_allclose(moved.std(axis=0), expected, rtol=4 / np.sqrt(2 * 4000))
    np.testing.assert_allclose(moved.mean(axis=0), 0, atol=4 * expected / np.sqrt(4000))


def test_a_weight_of_zero_may_come_back():
    grown = [mutated(np.array([1.0, 0.0]), 0.01, rng(seed))[1] > 0 for seed in range(200)]
    assert 70 < sum(grown) < 130


class Downwards:
    """A generator of noise that cuts everything to 0."""

    def normal(self, mean: float, scale: float, size: int) -> np.ndarray:
        return np.full(size, mean - 3 * scale)


def test_a_mutation_that_leaves_nothing_returns_the_parent():
    parent_S = np.array([0.25, 0.75])
    assert mutated(parent_S, 1.0, Downwards()).tolist() == [0.25, 0.75]
    assert mutated(parent_S, 0.1, Downwards()).tolist() == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("scale", [-0.1, nan, inf])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ValueError, match=f"mutation scale of {scale}"):
        mutated(uniform(2), scale, rng())


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([]),
        np.array([0.5, 0.4]),
        np.array([1.1, -0.1]),
        np.array([nan, 1.0]),
        np.array([inf, 0.0]),
        np.array([[0.5, 0.5]]),
        np.array([0, 1]),
        np.array([0.5, 0.5], dtype=np.float32),
    ],
)
def test_wrong_weights_are_refused(wrong):
    for use in (
        lambda: mutated(wrong, 0.01, rng()),
        lambda: proportions(wrong, 3),
        lambda: evolve(
            wrong, moments_of(len(wrong)), Towards([0, 1]), steps=1, scale=0.01, rng=rng()
        ),
    ):
        with pytest.raises(ValueError, match=r"^weights .*; expected"):
            use()


# Their evolution.


def test_a_planted_optimum_is_found_from_uniform_weights():
    target = [0.6, 0.0, 0.3, 0.1, 0.0]
    found = evolve(uniform(5), moments_of(5), Towards(target), steps=1500, scale=0.02, rng=rng())
    np.testing.assert_allclose(found.weights_S, target, atol=0.01)
    assert on_simplex(found.weights_S)


@given(weights(), weights(), st.integers(0, 20), st.integers(0, 2**32))
def test_evolution_keeps_to_the_simplex_and_never_gets_worse(start_S, target, steps, seed):
    target = np.resize(target, start_S.shape)
    scorer = Towards(target)
    before = start_S.copy()
    found = evolve(start_S, moments_of(len(start_S)), scorer, steps=steps, scale=0.1, rng=rng(seed))
    assert on_simplex(found.weights_S)
    assert all(on_simplex(asked_S) for asked_S in scorer.asked)
    assert found.score == Towards(target).score(found.weights_S, [])
    assert found.score == min(Towards(target).score(asked_S, []) for asked_S in scorer.asked)
    assert np.array_equal(scorer.asked[0], before)
    assert np.array_equal(start_S, before)
    assert not np.shares_memory(found.weights_S, start_S)


def test_evolution_scores_the_start_and_each_child_once():
    scorer = Towards([1.0, 0.0])
    evolve(uniform(2), moments_of(2), scorer, steps=7, scale=0.01, rng=rng())
    assert len(scorer.asked) == 8


def test_without_steps_the_start_is_scored_and_kept():
    found = evolve(
        np.array([0.4, 0.6]), moments_of(2), Towards([0, 0]), steps=0, scale=0.1, rng=rng()
    )
    assert found.weights_S.tolist() == [0.4, 0.6]
    assert found.score == pytest.approx(0.52)


def test_children_descend_from_the_best_so_far():
    scorer, parts = Told(3.0, 5.0, 2.0, 4.0), []
    found = evolve(uniform(3), moments_of(3), scorer, steps=3, scale=0.01, rng=rng(1))
    source, parent_S = rng(1), uniform(3)
    for score in scorer.scores[1:]:
        child_S = mutated(parent_S, 0.01, source)
        parts.append(child_S)
        parent_S = child_S if score == 2.0 else parent_S
    assert np.array_equal(scorer.asked[1:], parts)
    assert np.array_equal(found.weights_S, parts[1])
    assert found.score == 2.0


def test_evolution_is_the_same_for_the_same_noise_and_another_for_other():
    def found(seed: int) -> np.ndarray:
        start_S, target = uniform(3), Towards([0.9, 0.1, 0.0])
        return evolve(start_S, moments_of(3), target, steps=20, scale=0.05, rng=rng(seed)).weights_S

    assert np.array_equal(found(5), found(5))
    assert not np.array_equal(found(5), found(6))


def test_nothing_is_drawn_from_numpys_own_generator():
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    evolve(uniform(3), moments_of(3), Towards([1, 0, 0]), steps=5, scale=0.1, rng=rng())
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("score", [1.0, 1.5, inf, nan])
def test_a_child_that_is_no_better_is_not_taken(score):
    found = evolve(uniform(2), moments_of(2), Told(1.0, score), steps=1, scale=0.1, rng=rng())
    assert found.weights_S.tolist() == [0.5, 0.5]
    assert found.score == 1.0


@pytest.mark.parametrize("score", [1e9, inf, -inf])
def test_any_number_is_better_than_none(score):
    found = evolve(uniform(2), moments_of(2), Told(nan, nan, score), steps=2, scale=0.1, rng=rng())
    assert found.weights_S.tolist() != [0.5, 0.5]
    assert found.score == score


def test_where_nothing_has_a_score_the_start_is_kept():
    found = evolve(uniform(2), moments_of(2), Told(nan, nan), steps=1, scale=0.1, rng=rng())
    assert found.weights_S.tolist() == [0.5, 0.5]
    assert np.isnan(found.score)


def test_one_member_has_all_the_weight_and_draws_nothing():
    source, scorer = rng(2), Towards([0.0])
    found = evolve(uniform(1), moments_of(1), scorer, steps=100, scale=0.01, rng=source)
    assert found.weights_S.tolist() == [1.0]
    assert found.score == 1.0
    assert len(scorer.asked) == 1
    assert source.random() == rng(2).random()


def test_too_few_moments_or_steps_are_refused():
    with pytest.raises(ValueError, match="moments of 2 members, but 3 weights"):
        evolve(uniform(3), moments_of(2), Towards([1, 0, 0]), steps=1, scale=0.1, rng=rng())
    with pytest.raises(ValueError, match="-1 steps"):
        evolve(uniform(1), moments_of(1), Towards([1]), steps=-1, scale=0.1, rng=rng())


# Who draws which picture.


def farthest(weights_S: np.ndarray, order: np.ndarray) -> float:
    """How far any member ever is from its share, over all prefixes."""
    drawn = np.cumsum(order[:, None] == np.arange(len(weights_S)), axis=0)
    shares = np.arange(1, len(order) + 1)[:, None] * weights_S
    return float(np.abs(drawn - shares).max(initial=0.0))


def bound(weights_S: np.ndarray) -> float:
    members = np.count_nonzero(weights_S)
    return 0.0 if members == 1 else 1 - 1 / (2 * members - 2)


@given(weights(), st.integers(0, 150))
def test_in_every_prefix_each_member_is_within_one_of_its_share(weights_S, count):
    order = proportions(weights_S, count)
    assert order.dtype == np.int64
    assert order.shape == (count,)
    assert farthest(weights_S, order) <= bound(weights_S) + 1e-5 < 1
    assert np.all(weights_S[order] > 0)


def test_a_member_that_giving_to_the_neediest_leaves_behind_is_not():
    weights_S = np.array([0.0174, 0.0034, 0.093, 0.4032, 0.054, 0.0659, 0.3631])
    weights_S /= weights_S.sum()
    neediest, drawn = [], np.zeros(7)
    for place in range(300):
        drawn[np.argmax((place + 1) * weights_S - drawn)] += 1
        neediest.append(drawn.copy())
    shares = np.arange(1, 301)[:, None] * weights_S
    assert np.abs(neediest - shares).max() > 1, "choose other weights: nothing was left behind"
    assert farthest(weights_S, proportions(weights_S, 300)) <= bound(weights_S) + 1e-5


@given(weights(), st.integers(0, 60), st.integers(0, 60))
def test_a_larger_count_begins_with_the_same_pictures(weights_S, count, more):
    order = proportions(weights_S, count + more)
    assert np.array_equal(order[:count], proportions(weights_S, count))


def test_counts_are_exact_where_they_can_be():
    order = proportions(np.array([0.5, 0.0, 0.3, 0.2]), 10_000)
    for end in range(10, 10_001, 10):
        counts = np.bincount(order[end - 10 : end], minlength=4)
        assert counts.tolist() == [5, 0, 3, 2]


@pytest.mark.parametrize("members", [2, 3, 5, 7, 9])
def test_members_of_equal_weight_take_turns_the_first_first(members):
    order = proportions(uniform(members), 1000)
    assert np.array_equal(order, np.arange(1000) % members)


def test_one_member_draws_everything():
    assert proportions(uniform(1), 3).tolist() == [0, 0, 0]
    assert proportions(np.array([0.0, 0.0, 1.0]), 3).tolist() == [2, 2, 2]


def test_a_member_of_hardly_any_weight_does_no_harm():
    tiny = np.nextafter(0, 1)
    assert set(proportions(np.array([tiny, 1 - 1e-12, 1e-12]), 1000).tolist()) == {1}


def test_proportions_of_a_hundred_thousand_pictures_are_quick_and_still_exact():
    weights_S = rng(1).dirichlet(np.ones(9))
    start = process_time()
    order = proportions(weights_S, 100_000)
    assert process_time() - start < 2
    assert farthest(weights_S, order) <= bound(weights_S) + 1e-5


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="-1 pictures"):
        proportions(uniform(2), -1)
