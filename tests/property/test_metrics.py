"""What holds for the scores of any features: identity, symmetry, range, growth with noise."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manege.metrics.distributions import label_scores
from manege.metrics.frechet import Moments, frechet, frechet_distance, moments
from manege.metrics.kid import kid
from manege.metrics.neighbours import nearest, prdc

few = settings(deadline=None, derandomize=True, max_examples=40)

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def features(draw, columns=None, least=4):
    """Rows of any scale and offset; often fewer than dimensions, or with columns of rank 0 or 1."""
    source = np.random.default_rng(draw(SEEDS))
    rows, dimensions = draw(st.integers(least, 40)), columns or draw(st.integers(1, 24))
    table = source.standard_normal((rows, dimensions)) * draw(st.sampled_from([1e-3, 1.0, 1e3]))
    table += draw(st.sampled_from([0.0, 1.0, 1e4]))
    if draw(st.booleans()):
        table[:, dimensions // 2 :] = 3.0  # Constant, like a unit that never fires.
    if draw(st.booleans()):
        table[:, -1] = table[:, 0]
    return table.astype(draw(st.sampled_from([np.float32, np.float64])))


# Few different values, so that rows repeat and distances tie.
COARSE = hnp.arrays(
    np.float32, st.tuples(st.integers(7, 25), st.just(2)), elements=st.integers(-3, 3)
)


def scale(*sets):
    """What rounding is measured against: the second moments that go into a distance."""
    return 1 + max(float(np.square(one.astype(np.float64)).sum(1).max()) for one in sets)


def pairs(least=4):
    return st.integers(1, 24).flatmap(
        lambda columns: st.tuples(features(columns, least), features(columns, least))
    )


@given(features(), SEEDS)
@few
def test_a_set_is_at_no_distance_from_itself_in_any_order(x, seed):
    own = moments(x)
    spread = float(own.covariance_DD.trace())
    mixed = moments(np.random.default_rng(seed).permutation(x))
    assert frechet_distance(own, own) <= 1e-12 * spread
    assert frechet_distance(own, mixed) <= 1e-12 * (spread + scale(x) * 1e-3)


@given(pairs(), SEEDS)
@few
def test_neither_side_nor_order_matters_and_no_score_is_out_of_range(sets, seed):
    x, y = sets
    source = np.random.default_rng(seed)
    one, other = moments(x), moments(y)
    distance = frechet_distance(one, other)
    assert np.isfinite(distance)
    assert distance >= 0
    assert frechet_distance(other, one) == pytest.approx(distance, abs=1e-11 * scale(x, y))
    mixed = moments(source.permutation(x))
    assert frechet_distance(mixed, other) == pytest.approx(distance, abs=1e-11 * scale(x, y))
    estimate = frechet(x, y)
    assert 0 <= estimate.low <= estimate.value <= estimate.high < np.inf

    found = kid(x, y)
    size = (scale(x, y) / x.shape[1] + 1) ** 3
    assert found.low <= found.value <= found.high < np.inf
    assert kid(y, x).value == pytest.approx(found.value, abs=1e-12 * size)
    again = kid(source.permutation(x), source.permutation(y))
    assert again.value == pytest.approx(found.value, abs=1e-12 * size)


@given(SEEDS, st.integers(1, 8))
@few
def test_gaussians_have_the_closed_form(seed, dimensions):
    source = np.random.default_rng(seed)

    def spd():
        root = source.standard_normal((dimensions, dimensions + 3))
        return root @ root.T / dimensions

    def closed(a, b):
        root = scipy.linalg.sqrtm(a.covariance_DD @ b.covariance_DD)
        return (
            np.square(a.mean_D - b.mean_D).sum()
            + np.trace(a.covariance_DD + b.covariance_DD)
            - 2 * np.trace(root).real
        )

    mean_a, mean_b = source.standard_normal((2, dimensions))
    a, b = Moments(99, mean_a, spd()), Moments(99, mean_b, spd())
    assert frechet_distance(a, b) == pytest.approx(closed(a, b), rel=1e-7)

    # One set of axes for both: the covariances commute, and the roots of their spectra remain.
    axes, _ = np.linalg.qr(source.standard_normal((dimensions, dimensions)))
    p, q = source.uniform(0.1, 3, (2, dimensions))
    a = Moments(99, mean_a, axes @ np.diag(p) @ axes.T)
    b = Moments(99, mean_b, axes @ np.diag(q) @ axes.T)
    formula = np.square(mean_a - mean_b).sum() + np.square(np.sqrt(p) - np.sqrt(q)).sum()
    assert frechet_distance(a, b) == pytest.approx(formula, rel=1e-9)
    assert frechet_distance(a, b) == pytest.approx(closed(a, b), rel=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_more_noise_is_further_away(seed):
    source = np.random.default_rng(seed)
    reference, clean = source.standard_normal((2, 400, 6)) * np.linspace(0.5, 1.5, 6)
    noise = source.standard_normal(clean.shape)
    worse = [clean + level * noise for level in (0.0, 0.7, 1.5, 3.0)]
    assert np.all(np.diff([frechet(one, reference).value for one in worse]) > 0.1)
    assert np.all(np.diff([kid(one, reference).value for one in worse]) > 0.02)
    assert np.all(np.diff([prdc(one, reference)["precision"].value for one in worse]) < -0.1)


@given(pairs(least=1) | st.tuples(COARSE, COARSE), st.integers(1, 6))
@few
def test_nearest_agrees_with_brute_force(sets, k):
    x, y = (one.astype(np.float64) for one in sets)
    k = min(k, len(y))
    expected = np.sqrt(np.square(x[:, None] - y[None]).sum(2))
    distances, indices = nearest(x, y, k)
    np.testing.assert_allclose(distances, np.sort(expected, axis=1)[:, :k], rtol=1e-9, atol=1e-12)
    chosen = np.take_along_axis(expected, indices, axis=1)
    np.testing.assert_allclose(chosen, distances, rtol=1e-9, atol=1e-12)
    assert all(len(set(row)) == k for row in indices.tolist())


def brute_force_prdc(generated, reference, k):
    def distances(a, b):
        return np.sqrt(np.square(a[:, None] - b[None]).sum(2))

    def radii(own):
        apart = distances(own, own)
        return np.array([np.sort(np.delete(row, i))[k - 1] for i, row in enumerate(apart)])

    between = distances(generated, reference)
    in_reference = between <= radii(reference)[None, :] + 1e-9
    in_generated = between <= radii(generated)[:, None] + 1e-9
    return {
        "precision": in_reference.any(1).mean(),
        "recall": in_generated.any(0).mean(),
        "density": in_reference.sum() / (k * len(generated)),
        "coverage": in_reference.any(0).mean(),
    }


@given(
    st.tuples(COARSE, COARSE)
    | SEEDS.map(lambda seed: tuple(np.random.default_rng(seed).standard_normal((2, 30, 3)))),
    st.integers(1, 6),
)
@few
def test_prdc_agrees_with_brute_force(sets, k):
    generated, reference = (one.astype(np.float64) for one in sets)
    found = prdc(generated, reference, k)
    assert {name: one.value for name, one in found.items()} == pytest.approx(
        brute_force_prdc(generated, reference, k)
    )
    assert all(one.low <= one.value <= one.high for one in found.values())


@given(features(least=7), st.integers(1, 6), SEEDS)
@few
def test_a_set_is_precise_recalled_and_covered_by_itself(x, k, seed):
    found = prdc(np.random.default_rng(seed).permutation(x), x, k)
    assert found["precision"].value == found["recall"].value == found["coverage"].value == 1


COUNTS = st.lists(st.integers(0, 60) | st.integers(0, 5000), min_size=1, max_size=12)


@given(COUNTS, st.randoms(use_true_random=False), SEEDS)
@few
def test_intervals_of_label_scores_hold_their_value(generated, random, seed):
    reference = random.sample(generated, len(generated))
    generated[random.randrange(len(generated))] += 1
    reference[random.randrange(len(reference))] += 1
    found = label_scores(np.array(generated), np.array(reference), seed=seed)
    for name, highest in [
        ("label-entropy", np.log(len(generated)) + 1e-12),
        ("label-tvd", 1.0),
        ("modes", float(len(generated))),
    ]:
        one = found[name]
        assert 0 <= one.low <= one.value <= one.high <= highest
