"""Scores of mixtures by algebra, against the scores of pictures that a mixture drew."""

from __future__ import annotations

from math import e, inf, nan

import numpy as np
import pytest
import torch
from torch import nn

from manege.cell.mixture import evolve, proportions, uniform
from manege.data import Split
from manege.errors import ConfigError
from manege.metrics import Space, points_space, random_space
from manege.metrics import mixture as module
from manege.metrics.estimate import Z95
from manege.metrics.frechet import Moments, frechet, frechet_distance, moments
from manege.metrics.mixture import FrechetMixture, InceptionMixture

CENTRES = np.array([[-0.5, 0.0], [0.6, 0.2], [0.1, -0.6], [0.0, 0.7], [-0.2, 0.3]])


class Plain(nn.Module):
    """The numbers of a picture are its features, and its logits a multiple of them."""

    def __init__(self, dimensions: int, steep: float = 1.0) -> None:
        super().__init__()
        self.dimensions, self.steep = dimensions, steep

    def features(self, x_BCSS):
        return x_BCSS.flatten(1)

    def logits(self, features_BD):
        return self.steep * features_BD


class Wide(Space):
    """A space whose pictures are rows of features."""

    def features(self, pictures_NSSC, progress=None):
        return np.asarray(pictures_NSSC, dtype=np.float32)


def wide(dimensions: int) -> Space:
    return Wide("wide", 1, dimensions, Plain(dimensions), "0" * 64)


def labelled(labels: int, steep: float) -> Space:
    names = tuple(str(label) for label in range(labels))
    return Space("labelled", 1, labels, Plain(labels, steep), "0" * 64, names)


def points(source: np.random.Generator, members: np.ndarray, scale: float = 0.08) -> np.ndarray:
    """A point about the centre of each member, as pictures."""
    drawn = CENTRES[members] + scale * source.standard_normal((len(members), 2))
    return np.clip(np.rint((drawn + 1) * 127.5), 0, 255).astype(np.uint8)[:, None, None, :]


def features(seed: int, rows: int, dimensions: int, shift: float = 0.0) -> np.ndarray:
    source = np.random.default_rng(seed)
    mixed = source.standard_normal((rows, dimensions)) * np.linspace(0.5, 2, dimensions)
    return (mixed + shift + 0.3 * source.standard_normal(dimensions)).astype(np.float32)


def reference_points(seed: int = 100) -> np.ndarray:
    drawn = points(np.random.default_rng(seed), np.repeat(np.arange(5), 2000), scale=0.15)
    return points_space().features(drawn)


# The Fréchet distance.


@pytest.mark.parametrize("dimensions", [1, 2, 5, 24])
def test_one_member_alone_has_the_distance_of_its_pictures(dimensions):
    own, reference = features(1, 300, dimensions), features(2, 400, dimensions, shift=0.2)
    scorer = FrechetMixture(wide(dimensions), reference)
    expected = frechet_distance(moments(own), moments(reference))
    known = scorer.moments(own)
    assert scorer.score(uniform(1), [known]) == pytest.approx(expected, rel=1e-9)
    other = scorer.moments(features(3, 90, dimensions, shift=3.0))
    assert scorer.score(np.array([1.0, 0.0]), [known, other]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("counts", [(50, 50, 50), (20, 100, 31)])
def test_members_weighted_by_their_counts_have_the_distance_of_all_their_pictures(counts):
    reference = features(9, 500, 6)
    sets = [features(seed, count, 6, shift=seed / 3) for seed, count in enumerate(counts)]
    scorer = FrechetMixture(wide(6), reference)
    found = scorer.score(np.array(counts) / sum(counts), [scorer.moments(own) for own in sets])
    expected = frechet_distance(moments(np.concatenate(sets)), moments(reference))
    assert found == pytest.approx(expected, rel=1e-10)


def test_any_weights_have_the_moments_of_weighted_rows():
    reference, shares = features(9, 500, 6), np.array([3, 0, 1, 4])
    sets = [features(seed, 40, 6, shift=seed / 3) for seed in range(4)]
    scorer = FrechetMixture(wide(6), reference)
    found = scorer.score(shares / 8, [scorer.moments(own) for own in sets])
    rows = np.concatenate(
        [own for own, times in zip(sets, shares, strict=True) for _ in range(times)]
    ).astype(np.float64)
    divisor = 1 - np.square(shares / 8).sum() / 40
    pooled = Moments(320, rows.mean(0), np.cov(rows.T, bias=True) / divisor)
    assert found == pytest.approx(frechet_distance(pooled, moments(reference)), rel=1e-8)


def test_features_far_from_zero_cost_no_precision():
    near = [features(seed, 200, 4, shift=seed / 2) for seed in range(3)]
    # Whole eighths, so that float32 holds the far ones exactly.
    near = [np.rint(8 * own) / 8 for own in near]
    far = [own + 2.0**17 for own in near]
    weights_S = np.array([0.7, 0.3])
    found = []
    for first, second, reference in (near, far):
        scorer = FrechetMixture(wide(4), reference)
        found.append(scorer.score(weights_S, [scorer.moments(own) for own in (first, second)]))
    assert found[1] == pytest.approx(found[0], rel=1e-9)


def test_directions_without_spread_do_no_harm():
    thin, round_ = features(1, 400, 20), features(2, 900, 20)
    thin[:, 3:] = 0.5
    one, two = FrechetMixture(wide(20), round_), FrechetMixture(wide(20), thin)
    expected = frechet_distance(moments(thin), moments(round_))
    assert one.score(uniform(1), [one.moments(thin)]) == pytest.approx(expected, rel=1e-9)
    assert two.score(uniform(1), [two.moments(round_)]) == pytest.approx(expected, rel=1e-9)
    assert two.score(uniform(1), [two.moments(thin)]) == pytest.approx(0, abs=1e-12)
    dead = FrechetMixture(wide(20), np.zeros((9, 20), dtype=np.float32))
    traces = np.square(moments(thin).mean_D).sum() + moments(thin).covariance_DD.trace()
    assert dead.score(uniform(1), [dead.moments(thin)]) == pytest.approx(traces, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_a_score_is_never_negative(seed):
    reference = features(seed, 40, 3)
    scorer = FrechetMixture(wide(3), reference)
    assert 0 <= scorer.score(uniform(1), [scorer.moments(reference)]) < 1e-9


def test_the_algebra_agrees_with_pictures_drawn_from_the_mixture():
    weights_S, repeats, count = np.array([0.35, 0.3, 0.05, 0.2, 0.1]), 100, 3000
    space, reference = points_space(), reference_points()
    scorer, expected = FrechetMixture(space, reference), moments(reference)
    source, apart = np.random.default_rng(5), []
    for _ in range(repeats):
        known = [scorer.moments(points(source, np.full(1000, member))) for member in range(5)]
        drawn = points(source, source.choice(5, count, p=weights_S))
        sampled = frechet_distance(moments(space.features(drawn)), expected)
        apart.append(scorer.score(weights_S, known) - sampled)
    error = np.std(apart, ddof=1) / np.sqrt(repeats)
    assert abs(np.mean(apart)) < 4 * error
    # Without the spread between the members' means it would be far off.
    within = [np.append(np.append(own[0], expected.mean_D), own[3:]) for own in known]
    assert abs(scorer.score(weights_S, within) - sampled) > 100 * error


def test_the_measure_is_the_frechet_distance_of_the_pictures():
    space, reference = points_space(), reference_points()
    drawn = points(np.random.default_rng(1), np.arange(1003) % 5)
    found = FrechetMixture(space, reference).measure(drawn)
    assert found.value == pytest.approx(frechet(space.features(drawn), reference).value, rel=1e-10)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("count", [4, 5, 13, 41])
def test_few_pictures_are_measured_too(count):
    space, reference = points_space(), reference_points()[::100]
    drawn = points(np.random.default_rng(1), np.arange(count) % 5)
    found = FrechetMixture(space, reference).measure(drawn)
    assert 0 <= found.low <= found.value <= found.high < inf
    assert found.value == pytest.approx(frechet(space.features(drawn), reference).value, rel=1e-9)


def test_the_interval_is_as_wide_as_pictures_drawn_in_proportion_vary():
    reference, source = reference_points() * 0.5, np.random.default_rng(6)
    scorer, order = FrechetMixture(points_space(), reference), proportions(uniform(5), 1000)
    found = [scorer.measure(points(source, order)) for _ in range(40)]
    spread = np.std([one.value for one in found])
    reach = np.mean([one.high - one.value for one in found]) / Z95
    # The reference's own noise is in the interval as well. Blocks of every twentieth picture
    # would leave out a fifth of a member at a time, and reach many times as far.
    assert 0.8 * spread < reach < 2 * spread


def test_evolution_finds_the_one_good_generator_among_bad_ones():
    space, source = points_space(), np.random.default_rng(7)
    good = points(source, np.repeat(np.arange(5), 400))
    bad = [points(source, np.full(1000, member), scale=0.02) for member in (0, 1)]
    scorer = FrechetMixture(space, space.features(good))
    fresh = points(source, np.repeat(np.arange(5), 200))
    known = [scorer.moments(own) for own in (bad[0], fresh, bad[1])]
    found = evolve(uniform(3), known, scorer, steps=600, scale=0.02, rng=source)
    assert found.weights_S[1] > 0.95
    assert found.score < 0.1 * scorer.score(uniform(3), known)


def test_evolution_finds_the_proportions_of_the_modes():
    space, source = points_space(), np.random.default_rng(8)
    shares = np.array([0.5, 0.2, 0.3])
    reference = points(source, source.choice(3, 20_000, p=shares))
    scorer = FrechetMixture(space, space.features(reference))
    known = [scorer.moments(points(source, np.full(1000, member))) for member in range(3)]
    found = evolve(uniform(3), known, scorer, steps=400, scale=0.02, rng=source)
    np.testing.assert_allclose(found.weights_S, shares, atol=0.02)


def test_moments_are_flat_doubles_and_leave_the_order_of_members_alone():
    scorer = FrechetMixture(wide(6), features(0, 50, 6))
    sets = [features(seed, 30, 6, shift=seed) for seed in range(3)]
    known = [scorer.moments(own) for own in sets]
    assert {(own.dtype, own.shape) for own in known} == {(np.dtype(np.float64), (1 + 6 + 21,))}
    weights_S = np.array([0.5, 0.1, 0.4])
    found = scorer.score(weights_S, known)
    assert scorer.score(weights_S[::-1].copy(), known[::-1]) == pytest.approx(found, rel=1e-12)
    assert scorer.score(weights_S, known[::-1]) != pytest.approx(found, rel=1e-3)


def test_the_same_moments_get_the_same_score_to_the_bit_whatever_the_threads():
    # Wide enough for two threads to change the bits of an eigenvalue.
    sets = [features(seed, 1000, 128) for seed in range(3)]

    def found(threads: int) -> tuple[list[bytes], float]:
        torch.set_num_threads(threads)
        try:
            scorer = FrechetMixture(wide(128), sets[0])
            known = [scorer.moments(own) for own in sets[1:]]
            return [own.tobytes() for own in known], scorer.score(np.array([0.3, 0.7]), known)
        finally:
            assert torch.get_num_threads() == threads
            torch.set_num_threads(1)

    assert found(1) == found(2) == found(1)


def test_everything_is_computed_by_one_thread(monkeypatch):
    seen = []

    def seeing(name: str) -> None:
        plain = getattr(module, name)

        def seen_first(*arguments):
            seen.append((name, torch.get_num_threads()))
            return plain(*arguments)

        monkeypatch.setattr(module, name, seen_first)

    for name in ("moments", "root", "frechet"):
        seeing(name)
    own = features(1, 50, 3)
    torch.set_num_threads(2)
    try:
        scorer = FrechetMixture(wide(3), features(0, 50, 3))
        scorer.moments(own)
        scorer.measure(own)
    finally:
        torch.set_num_threads(1)
    assert seen == [("moments", 1), ("root", 1), ("moments", 1), ("frechet", 1)]


@pytest.mark.parametrize(("count", "blocks"), [(40, 20), (1003, 20), (13, 6), (5, 2)])
def test_blocks_of_a_jackknife_are_runs_of_pictures(count, blocks):
    order = module._runs(count, blocks)
    found = [order[block::blocks].tolist() for block in range(blocks)]
    assert found == [part.tolist() for part in np.array_split(np.arange(count), blocks)]


def test_wrong_features_and_moments_are_refused():
    scorer = FrechetMixture(wide(3), features(0, 50, 3))
    known = scorer.moments(features(1, 50, 3))
    with pytest.raises(ValueError, match="a reference of 4 dimensions; expected the 3 of wide"):
        FrechetMixture(wide(3), features(0, 50, 4))
    with pytest.raises(ValueError, match="3 rows of features; expected at least 4"):
        FrechetMixture(wide(3), features(0, 3, 3))
    with pytest.raises(ValueError, match="at least 2"):
        scorer.moments(features(1, 1, 3))
    with pytest.raises(ValueError, match="at least 4"):
        scorer.measure(features(1, 3, 3))
    with pytest.raises(ValueError, match=r"shapes \[\(9,\), \(10,\)\]; expected 10 numbers"):
        scorer.score(uniform(2), [known, known[:-1]])
    with pytest.raises(ValueError, match=r"moments of 1\.0 pictures"):
        scorer.score(uniform(2), [known, np.append(1.0, known[1:])])
    # A weight of 0 excuses nothing: it would be NaN all the same.
    with pytest.raises(ValueError, match="moments that are not finite"):
        scorer.score(np.array([1.0, 0.0]), [known, known * nan])


WRONG_WEIGHTS = [
    np.array([1.0]),
    np.array([0.5, 0.4]),
    np.array([1.1, -0.1]),
    np.array([nan, 1.0]),
    np.array([[0.5, 0.5]]),
    np.array([0, 1]),
]


@pytest.mark.parametrize("wrong", WRONG_WEIGHTS)
def test_wrong_weights_are_refused(wrong):
    apart = FrechetMixture(wide(3), features(0, 50, 3))
    told = InceptionMixture(labelled(3, 1.0))
    drawn = np.zeros((5, 1, 1, 3), dtype=np.uint8)
    for scorer, known in (
        (apart, apart.moments(features(1, 50, 3))),
        (told, told.moments(drawn)),
    ):
        with pytest.raises(ValueError, match=r"^weights .*; expected"):
            scorer.score(wrong, [known, known])
        with pytest.raises(ValueError, match="one member at least"):
            scorer.score(np.array([]), [])


# The inception score.


def certain(labels: np.ndarray, count: int) -> np.ndarray:
    """Pictures that are of their label beyond doubt, where logits are steep."""
    return (255 * np.eye(count, dtype=np.uint8))[labels][:, None, None, :]


def vague(source: np.random.Generator, count: int, labels: int, towards: int = 0) -> np.ndarray:
    """Pictures that look like several labels, and a little more like one."""
    drawn = source.integers(0, 200, (count, 1, 1, labels))
    drawn[..., towards] += 55
    return drawn.astype(np.uint8)


@pytest.mark.parametrize("labels", [2, 5, 10])
def test_certain_and_balanced_pictures_score_the_number_of_labels(labels):
    scorer = InceptionMixture(labelled(labels, 1000.0))
    balanced = certain(np.arange(40 * labels) % labels, labels)
    assert scorer.score(uniform(1), [scorer.moments(balanced)]) == pytest.approx(-labels, rel=1e-12)
    found = scorer.measure(balanced)
    assert found.value == pytest.approx(-labels, rel=1e-12)
    assert -labels <= found.low <= found.value <= found.high
    # Members of one label each make it together.
    known = [scorer.moments(certain(np.full(9, label), labels)) for label in range(labels)]
    assert scorer.score(uniform(labels), known) == pytest.approx(-labels, rel=1e-12)


def test_pictures_of_one_label_score_one():
    scorer = InceptionMixture(labelled(4, 1000.0))
    same = certain(np.full(30, 2), 4)
    assert scorer.score(uniform(1), [scorer.moments(same)]) == -1
    found = scorer.measure(same)
    assert (found.value, found.low, found.high) == (-1, -1, -1)


def test_pictures_that_could_be_anything_score_one():
    scorer = InceptionMixture(labelled(4, 1.0))
    grey = np.full((30, 1, 1, 4), 128, dtype=np.uint8)
    known = scorer.moments(grey)
    assert scorer.score(uniform(1), [known]) == pytest.approx(-1, rel=1e-12)
    np.testing.assert_allclose(known, [0.25] * 4 + [np.log(4)], rtol=1e-12)


def test_the_inception_score_is_that_of_the_formula():
    scorer, drawn = InceptionMixture(labelled(3, 2.0)), vague(np.random.default_rng(0), 50, 3)
    logits_NK = 2 * (drawn[:, 0, 0].astype(np.float64) * (2 / 255) - 1)
    p_NK = np.exp(logits_NK) / np.exp(logits_NK).sum(1, keepdims=True)
    divergence_N = (p_NK * np.log(p_NK / p_NK.mean(0))).sum(1)
    expected = -(e ** divergence_N.mean())
    assert scorer.score(uniform(1), [scorer.moments(drawn)]) == pytest.approx(expected, rel=1e-6)
    assert scorer.measure(drawn).value == pytest.approx(expected, rel=1e-6)


def test_the_algebra_is_the_inception_score_of_all_pictures_together():
    source, scorer = np.random.default_rng(1), InceptionMixture(labelled(4, 6.0))
    sets = [vague(source, 60, 4, towards) for towards in range(3)]
    known = [scorer.moments(own) for own in sets]
    for shares in ([1, 1, 1], [3, 0, 1]):
        pooled = np.concatenate([np.repeat(own, n, 0) for own, n in zip(sets, shares, strict=True)])
        found = scorer.score(np.array(shares) / sum(shares), known)
        assert found == pytest.approx(scorer.measure(pooled).value, rel=1e-12)
        assert found < -1.05, "choose other pictures: nothing was to be told apart"


def test_the_algebra_agrees_with_the_inception_score_of_pictures_drawn_from_the_mixture():
    weights_S, source = np.array([0.6, 0.3, 0.1]), np.random.default_rng(2)
    scorer, apart = InceptionMixture(labelled(3, 6.0)), []
    for _ in range(60):
        known = [scorer.moments(vague(source, 1000, 3, member)) for member in range(3)]
        counts = source.multinomial(2000, weights_S)
        drawn = [vague(source, int(n), 3, member) for member, n in enumerate(counts)]
        apart.append(scorer.score(weights_S, known) - scorer.measure(np.concatenate(drawn)).value)
    assert abs(np.mean(apart)) < 4 * np.std(apart, ddof=1) / np.sqrt(60)
    assert np.std(apart) < 0.02


@pytest.mark.parametrize(("count", "blocks"), [(83, 20), (13, 6), (4, 2)])
def test_the_inception_scores_interval_is_the_jackknife_over_runs(count, blocks):
    scorer, drawn = InceptionMixture(labelled(3, 6.0)), vague(np.random.default_rng(5), count, 3)
    left_out = [
        scorer.score(uniform(1), [scorer.moments(np.delete(drawn, part, axis=0))])
        for part in np.array_split(np.arange(count), blocks)
    ]
    reach = Z95 * np.sqrt((blocks - 1) * np.var(left_out))
    found = scorer.measure(drawn)
    assert found.low == pytest.approx(max(-3, found.value - reach), rel=1e-9)
    assert found.high == pytest.approx(min(-1, found.value + reach), rel=1e-9)


def test_the_inception_scores_interval_is_as_wide_as_pictures_drawn_in_proportion_vary():
    source, scorer = np.random.default_rng(3), InceptionMixture(labelled(5, 6.0))
    found = []
    for _ in range(80):
        members = [vague(source, 200, 5, member) for member in range(4)]
        # One of them sure of itself: it moves the score on its own.
        members.append(certain(source.integers(0, 2, 200), 5))
        found.append(scorer.measure(np.stack(members, axis=1).reshape(1000, 1, 1, 5)))
    spread = np.std([one.value for one in found])
    reach = np.mean([one.high - one.value for one in found]) / Z95
    assert reach == pytest.approx(spread, rel=0.3)


def test_evolution_balances_the_labels():
    scorer = InceptionMixture(labelled(3, 1000.0))
    labels = ([0, 0, 0, 1], [1], [2])
    known = [scorer.moments(certain(np.array(own), 3)) for own in labels]
    rng = np.random.default_rng(4)
    found = evolve(uniform(3), known, scorer, steps=800, scale=0.02, rng=rng)
    np.testing.assert_allclose(found.weights_S, [4 / 9, 2 / 9, 1 / 3], atol=0.02)
    assert found.score == pytest.approx(-3, rel=1e-3)


def test_a_trained_classifier_prefers_all_digits_to_one(classifier, three):
    scorer = InceptionMixture(classifier)
    known = [scorer.moments(three.pictures(label, Split.TRAIN)) for label in three.labels]
    together = scorer.score(uniform(3), known)
    assert -3 <= together < -2.5
    assert all(scorer.score(uniform(1), [own]) > -1.3 for own in known)
    drawn = np.concatenate([three.pictures(label, Split.HELD_OUT)[:16] for label in three.labels])
    assert scorer.measure(drawn).value < -2


@pytest.mark.parametrize("space", [points_space(), random_space(8, 1)], ids=lambda s: s.kind)
def test_a_space_without_labels_has_no_inception_score(space):
    with pytest.raises(ConfigError, match=f"{space.name} knows no labels; use") as told:
        InceptionMixture(space)
    assert "\n" not in str(told.value)


def test_wrong_inception_moments_and_too_few_pictures_are_refused():
    scorer = InceptionMixture(labelled(3, 1.0))
    known = scorer.moments(certain(np.array([0]), 3))
    with pytest.raises(ValueError, match=r"shapes \[\(3,\)\]; expected 4 numbers"):
        scorer.score(uniform(1), [known[:-1]])
    with pytest.raises(ValueError, match="moments that are not finite"):
        scorer.score(uniform(1), [known * inf])
    with pytest.raises(ValueError, match="0 rows of features; expected at least 1"):
        scorer.moments(certain(np.array([], dtype=int), 3))
    with pytest.raises(ValueError, match="3 rows of features; expected at least 4"):
        scorer.measure(certain(np.array([0, 1, 2]), 3))
