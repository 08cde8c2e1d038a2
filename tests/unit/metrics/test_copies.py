"""Near-copies: closed forms, copies that must be caught, and real pictures that must not."""

from __future__ import annotations

import numpy as np
import pytest

from manege.config import DataConfig
from manege.data import Split, open_dataset
from manege.metrics.copies import CopyBound, bound_of, nearest_of


def share_near(pictures: np.ndarray, training: np.ndarray, bound: CopyBound) -> float:
    return float((nearest_of(pictures, training)[0] < bound.distance).mean())


def flat(*values: int, side: int = 8) -> np.ndarray:
    return np.stack([np.full((side, side, 1), value, np.uint8) for value in values])


def blobs(count: int, side: int = 28, seed: int = 0) -> np.ndarray:
    """Smooth random pictures, all of one distribution."""
    coarse = np.random.default_rng(seed).random((count, 7, 7, 1))
    fine = np.repeat(np.repeat(coarse, side // 7, axis=1), side // 7, axis=2)
    return np.rint(255 * fine).astype(np.uint8)


def noisy(pictures: np.ndarray, deviation: float) -> np.ndarray:
    drawn = np.random.default_rng(1).normal(0, deviation, pictures.shape)
    return np.clip(pictures + drawn, 0, 255).astype(np.uint8)


def moved(pictures: np.ndarray) -> np.ndarray:
    return np.concatenate([pictures[:, 1:], pictures[:, -1:]], axis=1)


def test_the_distance_of_plain_pictures_is_their_difference() -> None:
    distance, at = nearest_of(flat(10, 100), flat(0, 40, 90))
    assert distance == pytest.approx([10 / 255, 10 / 255], abs=1e-5)
    assert at.tolist() == [0, 2]


@pytest.mark.parametrize("side", [8, 28, 32, 48, 64])
def test_a_picture_is_no_distance_from_itself_and_from_itself_moved(side: int) -> None:
    real = np.random.default_rng(0).integers(0, 256, (20, side, side, 3), dtype=np.uint8)
    distance, at = nearest_of(real, real)
    assert at.tolist() == list(range(20))
    assert distance.max() < 2e-3
    # All but the row that came in at the edge is the same.
    distance, at = nearest_of(moved(real), real)
    assert at.tolist() == list(range(20))
    unrelated, _ = nearest_of(real, real, others=True)
    assert distance.max() < unrelated.min()


def test_nobody_is_its_own_neighbour_among_others() -> None:
    distance, at = nearest_of(flat(0, 10, 30), flat(0, 10, 30), others=True)
    assert distance == pytest.approx([10 / 255, 10 / 255, 20 / 255], abs=1e-5)
    assert at.tolist() == [1, 0, 1]


def test_a_mirrored_copy_counts_where_training_mirrors() -> None:
    real = blobs(50)
    mirrored = real[:, :, ::-1]
    assert nearest_of(mirrored, real, mirrored=True)[0].max() < 2e-3
    assert nearest_of(mirrored, real)[0].min() > 0.02


def test_held_out_pictures_give_five_in_a_hundred() -> None:
    real = blobs(1_700)
    bound = bound_of(real[:300], real[300:700])
    assert (bound.pictures, bound.left_out) == (400, False)
    # The bound itself wanders: a fifth percentile of 400 lies between 3 % and 7.5 %.
    assert 0.03 < share_near(real[700:], real[:300], bound) < 0.08


@pytest.mark.full
def test_few_held_out_pictures_give_five_in_a_hundred_on_average() -> None:
    """Plain pictures of even brightness, black ones to copy: a bound is the share below it."""
    rng = np.random.default_rng(0)
    bounds = [bound_of(flat(0), flat(*rng.integers(1, 256, 20))).distance for _ in range(400)]
    # 1.05/21, and half a level for whole numbers; the mean of 400 has a deviation of 0.24 %.
    # The usual percentile, between the two lowest, would give 9 %.
    assert np.mean(bounds) == pytest.approx(0.052, abs=0.01)


@pytest.mark.parametrize(
    ("pictures", "least", "most"),
    [(8, 0.3, 0.35), (20, 0.2, 0.25), (50, 0.12, 0.14), (333, 0.1, 0.1)],
)
def test_few_pictures_set_no_strict_bound(pictures: int, least: float, most: float) -> None:
    assert least <= CopyBound(0.1, pictures, left_out=False).too_much <= most


def test_with_few_held_out_each_training_picture_is_left_out_in_turn() -> None:
    real = blobs(1_300)
    few = bound_of(real[:300], real[300:319])
    assert (few.pictures, few.left_out) == (300, True)
    assert 0.025 < share_near(real[319:], real[:300], few) < 0.09


@pytest.mark.parametrize("label", ["0", "3", "8"])
def test_copies_of_digits_are_caught_with_noise_and_moved(label: str) -> None:
    dataset = open_dataset(DataConfig(source="digits"))
    real = np.array(dataset.pictures(label, Split.TRAIN))
    bound = bound_of(real, dataset.pictures(label, Split.HELD_OUT))
    for copies in (real, noisy(real, 8)):
        assert share_near(copies, real, bound) > 0.95


def test_copies_of_larger_pictures_are_caught_moved() -> None:
    real = blobs(1_000)
    train, held_out = real[:500], real[500:]
    bound = bound_of(train, held_out)
    for copies in (moved(train), noisy(train, 25), noisy(moved(train), 25)):
        assert share_near(copies, train, bound) > 0.95


@pytest.mark.parametrize("held_out", [100, 10], ids=["held-out", "left-out"])
def test_pictures_that_are_there_twice_do_not_hide_copies(held_out: int) -> None:
    """A fifth percentile of 0 would leave nothing nearer than that."""
    real = blobs(300)
    plain = bound_of(real[:200], real[200 : 200 + held_out])
    training = np.concatenate([real[:200], real[:40]])
    twins = bound_of(training, np.concatenate([real[200 : 200 + held_out], real[:30]]))
    assert (twins.pictures, twins.left_out) == (plain.pictures, plain.left_out)
    assert twins.distance == pytest.approx(plain.distance, rel=1e-5)
    assert share_near(training, training, twins) == 1
