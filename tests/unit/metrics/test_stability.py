"""Collapse and cycling, where the truth is known: paths, the Dirac-GAN, the ring of Gaussians."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import combinations, islice
from math import ceil, cos, exp, pi, sqrt

import numpy as np
import pytest
import torch
from scipy.stats import norm

from manege.cell import Trail, spread_of
from manege.config import ALL, DataConfig, Stability
from manege.data import TOYS, Dataset, Split, open_dataset, set_of
from manege.metrics import (
    StabilityGauge,
    feature_weights,
    lite0_space,
    points_space,
    random_space,
)
from manege.metrics.distributions import toy_scores
from manege.metrics.frechet import Moments, frechet_distance, frechet_distances, moments
from manege.metrics.neighbours import balls, coverage, prdc
from manege.metrics.stability import FEWEST, FEWEST_REFERENCES, came_back
from manege.models import to_floats

MODES = 8


def indices_of(means_RD: np.ndarray, window: int) -> list[float]:
    """The cycling index of each round of a Gaussian that moves and keeps its shape."""
    dimensions = means_RD.shape[1]
    path = [Moments(100, mean_D, np.eye(dimensions)) for mean_D in means_RD]
    found = []
    for round_ in range(2, len(path)):
        earlier = path[max(0, round_ - window) : round_][::-1]
        index = came_back(frechet_distances(path[round_], earlier))
        assert index is not None
        found.append(index)
    return found


def over_last_half(values: list[float]) -> float:
    return float(np.mean(values[len(values) // 2 :]))


# Paths.


def test_before_two_rounds_nothing_can_have_come_back():
    assert came_back([]) is None
    assert came_back([1.0]) is None
    assert came_back([1.0, 1.0]) == 0.0


def test_it_is_the_furthest_less_where_it_came_back_to():
    assert came_back([1.0, 4.0, 3.0, 9.0]) == 1.0
    assert came_back([1.0, 4.0, 3.0, 9.0, 0.5]) == 8.5
    assert came_back([5.0, 1.0, 9.0]) == 4.0


def test_a_straight_path_does_not_cycle():
    means_RD = np.outer(np.arange(40), [0.3, -0.1, 0.2])
    assert max(indices_of(means_RD, 10)) < 1e-9


@pytest.mark.parametrize(("period", "window"), [(8, 10), (8, 8), (12, 10), (20, 10)])
def test_a_circle_gives_its_diameter_squared_less_what_the_window_does_not_see(period, window):
    radius = 0.7
    angles = 2 * pi * np.arange(5 * period) / period
    means_RD = radius * np.column_stack([np.cos(angles), np.sin(angles)])
    apart = [2 * radius**2 * (1 - cos(2 * pi * back / period)) for back in range(window + 1)]
    wanted = max(0.0, *(max(apart[1:k]) - apart[k] for k in range(2, window + 1)))
    if window >= period:
        assert wanted == pytest.approx((2 * radius) ** 2)
    settled = indices_of(means_RD, window)[window:]
    assert settled == pytest.approx([wanted] * len(settled), abs=1e-9)


def test_a_random_walk_comes_back_little():
    """By how much: the sum over pairs j < k of the mean of what D(j) may exceed D(k) by.

    With steps of N(0, I) in d dimensions, D(k) - D(j) has the mean (k - j)d and, |S(j)|² being
    near jd, the variance d(2(k - j)² + 4(k - j)j); it is near to normal for large d.
    """
    dimensions, window = 64, 10
    bound = 0.0
    for j, k in combinations(range(1, window + 1), 2):
        deviation = sqrt(dimensions * (2 * (k - j) ** 2 + 4 * (k - j) * j))
        z = (k - j) * dimensions / deviation
        bound += deviation * float(norm.pdf(z) - z * norm.sf(z))
    assert bound < 0.03 * window * dimensions  # Of how far it went.
    rng = np.random.default_rng(0)
    means_RD = rng.standard_normal((400, dimensions)).cumsum(axis=0)
    found = np.mean(indices_of(means_RD, window))
    assert 0 < found < bound


def test_a_change_of_shape_is_a_way_to_go_and_to_come_back():
    wide, narrow = (Moments(100, np.zeros(2), size * np.eye(2)) for size in (4.0, 1.0))
    there = frechet_distances(wide, [narrow, wide])
    assert there == pytest.approx([2.0, 0.0], abs=1e-9)
    assert came_back(there) == pytest.approx(2.0)


# The Dirac-GAN of Mescheder et al. (2018): real points at 0, a generator at θ, D(x) = ψx.

RATE, STEPS = 0.1, 2
START = 1.0, 0.0


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value))


def wasserstein(value: float) -> float:
    return 1.0


def dirac_gan(slope: Callable[[float], float], gamma: float) -> Iterator[tuple[float, float]]:
    """θ and ψ after each step of alternating gradient descent, discriminator first.

    The discriminator maximises f(D(0)) - F(D(θ)) and the generator F(D(θ)), with F' = `slope`; R1
    adds γ/2 ψ², for ψ is the gradient at the real points.
    """
    theta, psi = START
    while True:
        psi -= RATE * (slope(psi * theta) * theta + gamma * psi)
        theta += RATE * slope(psi * theta) * psi
        yield theta, psi


def rounds_of(slope: Callable[[float], float], gamma: float, rounds: int) -> np.ndarray:
    """θ at the end of each round, as the mean of the generator's samples."""
    steps = islice(dirac_gan(slope, gamma), rounds * STEPS)
    return np.array([theta for theta, _ in steps])[STEPS - 1 :: STEPS, None]


def test_a_dirac_gan_under_wasserstein_cycles_by_what_its_orbit_says():
    """Small steps leave an ellipse near to θ = A cos t; from θ(t) it goes to the far end, ±A.

    A round's index is then (|θ| + A)², whose mean over the orbit is A²(1/2 + 4/π + 1).
    """
    period = 2 * pi / (RATE * STEPS)
    window = ceil(period)
    thetas_R1 = rounds_of(wasserstein, 0.0, 20 * window)
    half = thetas_R1[len(thetas_R1) // 2 :]
    amplitude = float(np.abs(half).max())
    assert amplitude == pytest.approx(START[0], rel=RATE)  # It has neither converged nor left.
    found = over_last_half(indices_of(thetas_R1, window))
    # A path of `window` points a turn misses the far end and its start by at most half a step.
    missed = 1 - cos(pi / period) + sqrt(2 * (1 - cos(2 * pi / period))) / 2
    assert found == pytest.approx(amplitude**2 * (1.5 + 4 / pi), rel=2 * missed)


@pytest.mark.full
def test_a_dirac_gan_under_minimax_cycles():
    # Half the slope at 0: twice the period.
    window = ceil(2 * 2 * pi / (RATE * STEPS)) + 2
    thetas_R1 = rounds_of(sigmoid, 0.0, 20 * window)
    half = thetas_R1[len(thetas_R1) // 2 :]
    # Whatever the orbit's form, from the middle of it the far end is its amplitude away.
    amplitude = min(float(half.max()), float(-half.min()))
    assert amplitude > 0.5 * START[0]
    assert over_last_half(indices_of(thetas_R1, window)) > amplitude**2


@pytest.mark.full
@pytest.mark.parametrize(("slope", "at_zero"), [(wasserstein, 1.0), (sigmoid, 0.5)])
def test_r1_ends_the_cycling_as_fast_as_its_eigenvalues_say(slope, at_zero):
    """Around 0 a step is linear, (ψ, θ) → M(ψ, θ) with |λ|² = det M = 1 - hγ.

    So |θ| ≤ κ|λ|ⁿ times the start, κ being the condition of M's eigenvectors, and no index of the
    last half exceeds the square of twice that when its window begins.
    """
    gamma, window, rounds = 1.0, 64, 400
    pull = RATE * at_zero
    step = np.array([[1 - RATE * gamma, -pull], [pull * (1 - RATE * gamma), 1 - pull * pull]])
    values, vectors = np.linalg.eig(step)
    contraction = float(np.abs(values).max())
    if at_zero == 1.0:
        assert contraction == pytest.approx(sqrt(1 - RATE * gamma))
    begins = (rounds // 2 - window) * STEPS
    reach = float(np.linalg.cond(vectors)) * contraction**begins * abs(START[0])
    thetas_R1 = rounds_of(slope, gamma, rounds)
    found = over_last_half(indices_of(thetas_R1, window))
    assert found < (2 * reach) ** 2 < 1e-6
    cycling = over_last_half(indices_of(rounds_of(slope, 0.0, rounds), window))
    assert cycling > 1e6 * found


# The ring: eight modes, of which a generator may reach some.


@pytest.fixture(scope="module")
def ring(_cache) -> Dataset:
    return open_dataset(DataConfig(source="ring8"))


@pytest.fixture(scope="module")
def gauge(ring) -> StabilityGauge:
    parts = {ALL: ring.labels, **{label: (label,) for label in ring.labels}}
    return StabilityGauge(Stability(), points_space(), ring, parts)


def points_of(ring: Dataset, modes: tuple[int, ...], count: int = 512) -> np.ndarray:
    """Training points of these modes, none of which is a reference of the gauge."""
    each = [ring.pictures(str(mode), Split.TRAIN)[::-1] for mode in modes]
    shares = np.bincount(np.arange(count) % len(modes))
    return np.concatenate([own[:n] for own, n in zip(each, shares, strict=True)])


def collapse_of(gauge: StabilityGauge, drawn: np.ndarray, cell: str = ALL) -> float:
    told, _ = gauge.measure(cell, drawn, [])
    return float(told["collapse"])


@pytest.mark.parametrize("reached", range(1, MODES + 1))
def test_collapse_on_the_ring_is_the_share_of_modes_that_are_missing(ring, gauge, reached):
    drawn = points_of(ring, tuple(range(reached)))
    toy = TOYS["ring8"]
    points_N2 = to_floats(torch.from_numpy(drawn)).flatten(1).numpy()
    counted = toy_scores(points_N2, toy.centres, toy.deviation, seed=0)["modes"].value
    assert counted == reached
    # Of the balls of a mode that is reached, 1 - (reached / (reached + 8))⁵ are expected to be
    # covered, of 8 / reached times as many points; with real points in their place 1 - 2⁻⁵.
    expected = 1 - reached / MODES * (1 - (reached / (reached + MODES)) ** 5) / (1 - 2**-5)
    assert expected == pytest.approx(1 - reached / MODES, abs=2**-5)
    # Balls of one mode overlap, k at a point: the noise of 512 / k independent ones, twice.
    noise = sqrt(2 * 5 * 2**-5 * (1 - 2**-5) / 512)
    assert collapse_of(gauge, drawn) == pytest.approx(expected, abs=3 * noise)
    assert collapse_of(gauge, drawn) == pytest.approx(1 - counted / MODES, abs=3 * noise)


def test_pairwise_distance_takes_two_far_modes_for_more_than_four_near_ones(ring, gauge):
    few, many = points_of(ring, (0, 4)), points_of(ring, (0, 1, 2, 3))
    spread_few, spread_many = (
        spread_of(to_floats(torch.from_numpy(drawn))) for drawn in (few, many)
    )
    assert spread_few > spread_many  # The one with two modes looks more varied,
    assert collapse_of(gauge, few) > collapse_of(gauge, many) + 0.2  # and is not.


def test_points_that_lie_nowhere_have_collapsed_altogether(gauge):
    nowhere = np.full((512, 1, 1, 2), 127, dtype=np.uint8)
    assert collapse_of(gauge, nowhere) == 1.0


def test_a_class_is_measured_within_itself(ring, gauge):
    own, other = points_of(ring, (3,), 250), points_of(ring, (4,), 250)
    assert abs(collapse_of(gauge, own, "3")) < 0.1
    assert collapse_of(gauge, other, "3") == 1.0
    assert gauge.measure("3", own, [])[0]["compared"] == 250


# The gauge.


def test_a_generator_that_stays_has_not_moved(ring, gauge):
    drawn, other = points_of(ring, (0, 1)), points_of(ring, (2, 3))
    _, here = gauge.measure(ALL, drawn, [])
    _, there = gauge.measure(ALL, other, [])
    told, again = gauge.measure(ALL, drawn, [here])
    assert told["moved"] < 1e-9
    assert told["cycling"] is None
    assert np.array_equal(again, here)
    told, _ = gauge.measure(ALL, drawn, [there, here])
    assert told["cycling"] == told["moved"] > 0.5


def test_distances_are_over_the_variance_of_real_features(ring, gauge):
    features = [points_space().features(points_of(ring, modes)) for modes in ((0, 1), (2, 3))]
    real = points_space().features(set_of(ring, Split.TRAIN, 512).pictures)
    variance = np.trace(moments(real).covariance_DD)
    wanted = frechet_distance(*map(moments, features)) / variance
    _, before = gauge.measure(ALL, points_of(ring, (0, 1)), [])
    told, _ = gauge.measure(ALL, points_of(ring, (2, 3)), [before])
    assert told["moved"] == pytest.approx(wanted)


def test_short_rounds_are_measured_with_fewer_pictures(ring):
    gauge = StabilityGauge(Stability(), points_space(), ring, {})
    assert [gauge.samples(images) for images in (8, 512, 1000, 4096, 60_000)] == [
        *(64, 64, 125, 512, 512),
    ]
    asked = StabilityGauge(Stability(samples=700), points_space(), ring, {})
    assert asked.samples(8) == asked.samples(60_000) == 700


def test_rounds_are_measured_when_they_are_due(ring):
    for every, due in ((1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (None, [])):
        gauge = StabilityGauge(Stability(every_rounds=every), points_space(), ring, {})
        assert [round_ for round_ in range(1, 7) if gauge.due(round_, 64)] == due


def test_by_lite0_rounds_of_few_pictures_are_measured_together(ring):
    space = lite0_space(8, 1, feature_weights())
    for images, due in ((512, [1, 2, 3, 4, 5, 6]), (511, [2, 4, 6]), (192, [3, 6])):
        gauge = StabilityGauge(Stability(), space, ring, {})
        assert [round_ for round_ in range(1, 7) if gauge.due(round_, images)] == due
    gauge = StabilityGauge(Stability(every_rounds=2), space, ring, {})
    assert [round_ for round_ in range(1, 13) if gauge.due(round_, 192)] == [6, 12]


class Bare(Dataset):
    """A dataset cut down to the first pictures of each class."""

    def __init__(self, dataset: Dataset, train: int | None, held_out: int) -> None:
        vars(self).update(vars(dataset))
        self._names = {}
        self._cut = {Split.TRAIN: train, Split.HELD_OUT: held_out}

    def names(self, label: str, split: Split) -> tuple[str, ...]:
        return super().names(label, split)[: self._cut[split]]


@pytest.mark.parametrize("samples", [64, 250])
@pytest.mark.parametrize("cell", ["3", ALL])
def test_where_as_many_are_held_out_as_drawn_all_three_sets_are_as_large(ring, samples, cell):
    """As decision 0009 had it: a real set as large as the generated one, on both sides."""
    labels = ring.labels if cell == ALL else (cell,)
    drawn = points_of(ring, (2, 3), samples)
    real_ND, held_out_ND = (
        points_space().features(set_of(ring, split, samples, labels).pictures) for split in Split
    )
    assert len(real_ND) == len(held_out_ND) == samples
    generated, held_out = (
        prdc(rows_ND, real_ND, 5)["coverage"]
        for rows_ND in (points_space().features(drawn), held_out_ND)
    )
    gauge = StabilityGauge(Stability(), points_space(), ring, {cell: labels})
    told, _ = gauge.measure(cell, drawn, [])
    assert told["collapse"] == 1 - generated.value / held_out.value
    assert (told["coverage"], told["real_coverage"]) == (asdict(generated), asdict(held_out))
    assert told["compared"] == told["references"] == samples


def test_few_held_out_pictures_tell_a_total_collapse_all_the_same(ring):
    few = Bare(ring, None, FEWEST)
    gauge = StabilityGauge(Stability(), points_space(), few, {"3": ("3",)})
    own = points_of(ring, (3,), 256)
    told, _ = gauge.measure("3", own, [])
    assert (told["compared"], told["references"]) == (FEWEST, 256)
    for one in own[::16]:
        alike = np.repeat(one[None], 256, axis=0)
        # It lies in some k of 256 balls, as each of the real ones does.
        assert collapse_of(gauge, alike, "3") > told["collapse"] + 0.3


@pytest.mark.parametrize(
    ("train", "held_out"), [(None, FEWEST - 1), (FEWEST_REFERENCES - 1, 64), (3, 64), (3, 0)]
)
def test_with_too_few_real_pictures_there_is_cycling_alone(ring, train, held_out):
    bare = Bare(ring, train, held_out)
    gauge = StabilityGauge(Stability(), points_space(), bare, {"0": ("0",)})
    drawn = points_of(ring, (0,))
    _, before = gauge.measure("0", drawn, [])
    told, _ = gauge.measure("0", drawn, [before, before])
    assert told["collapse"] is None
    assert "coverage" not in told
    assert told["cycling"] == pytest.approx(0.0, abs=1e-9)


def test_pictures_are_told_apart_by_random_features_too(three):
    gauge = StabilityGauge(Stability(), random_space(8, 1), three, {"3": ("3",)})
    own = three.pictures("3", Split.TRAIN)
    alike = np.repeat(own[:1], len(own), axis=0)
    assert collapse_of(gauge, own, "3") < 0.2 < 0.8 < collapse_of(gauge, alike, "3")


# What it is made of.


def test_several_distances_are_those_of_each_pair():
    rng = np.random.default_rng(1)
    sets = [
        moments(rng.standard_normal((count, 6)) @ rng.standard_normal((6, 6)) + shift)
        for count, shift in ((50, 0.0), (4, 1.0), (200, -3.0))
    ]
    flat = moments(np.ones((5, 6)))
    for own in (*sets, flat):
        wanted = [frechet_distance(own, other) for other in (*sets, flat)]
        assert frechet_distances(own, [*sets, flat]) == pytest.approx(wanted, abs=1e-7)
    assert frechet_distances(flat, []) == []


def test_coverage_alone_is_that_of_all_four():
    rng = np.random.default_rng(2)
    generated_ND, reference_ND = rng.standard_normal((90, 4)), rng.standard_normal((80, 4)) + 1
    alone = coverage(generated_ND, reference_ND, balls(reference_ND))
    assert alone == prdc(generated_ND, reference_ND)["coverage"]
    assert 0.1 < alone.value < 0.9


def test_a_trail_keeps_the_last_rounds_of_one_gauge(ring):
    gauge = StabilityGauge(Stability(window=3), points_space(), ring, {})
    trail = Trail()
    for number in range(5):
        trail.add(gauge, np.full(4, float(number)))
    assert [one[0] for one in trail.before(gauge)] == [4.0, 3.0, 2.0]
    again = Trail.of(trail.to_arrays(), trail.gauge)
    assert [one.tolist() for one in again.before(gauge)] == [
        one.tolist() for one in trail.before(gauge)
    ]
    shorter = StabilityGauge(Stability(window=2), points_space(), ring, {})
    assert [one[0] for one in again.before(shorter)] == [4.0, 3.0]
    other = StabilityGauge(Stability(samples=99), points_space(), ring, {})
    assert trail.before(other) == []
    trail.add(other, np.zeros(4))
    assert len(trail.moments) == 1
    assert Trail.of({}, "").to_arrays() == {}
