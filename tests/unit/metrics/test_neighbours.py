"""Nearest rows, and precision, recall, density and coverage by hand."""

from __future__ import annotations

import numpy as np
import pytest

from manege.metrics import neighbours as module
from manege.metrics.estimate import Z95, wilson
from manege.metrics.neighbours import nearest, prdc


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


def test_distances_ascend_and_come_with_their_rows():
    distances, indices = nearest(column(0, 10), column(7, 1, -2, 30), k=3)
    assert distances.tolist() == [[1, 2, 7], [3, 9, 12]]
    assert indices.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert (distances.dtype, indices.dtype) == (np.float64, np.int64)


def test_of_equally_near_rows_the_first_comes_first():
    distances, indices = nearest(column(0), column(2, -1, 1, -1), k=4)
    assert distances.tolist() == [[1, 1, 1, 2]]
    assert indices.tolist() == [[1, 2, 3, 0]]


def test_identical_rows_are_at_no_distance_however_far_out():
    x = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32) + 1e4
    distances, indices = nearest(x, x)
    assert (distances == 0).all()
    assert (indices[:, 0] == np.arange(300)).all()


def test_rows_closer_than_the_quick_formula_can_tell_are_told_apart():
    # Squares of 1e12 leave an error of 1e-4, far more than these squared distances.
    near = np.array([3e-5, -2e-5, 5e-5, 1e-5, -4e-5, 6e-5])
    y = np.concatenate([1e6 + near, [-1e6] * 6])[:, None]
    distances, indices = nearest(np.array([[1e6]]), y)
    assert indices.tolist() == [[3]]
    assert distances[0, 0] == pytest.approx(1e-5, rel=1e-4)


def test_blocks_change_nothing(monkeypatch):
    source = np.random.default_rng(1)
    x, y = source.standard_normal((40, 3)), source.standard_normal((30, 3))
    whole, scores = nearest(x, y, k=4), prdc(x, y, k=3)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 3 * 8 * 40)
    np.testing.assert_array_equal(whole[0], nearest(x, y, k=4)[0])
    np.testing.assert_array_equal(whole[1], nearest(x, y, k=4)[1])
    assert prdc(x, y, k=3) == scores


def test_no_more_neighbours_than_rows():
    assert nearest(column(0), column(1, 2), k=2)[0].shape == (1, 2)
    for k in (0, 3):
        with pytest.raises(ValueError, match=f"{k} nearest of 2 rows; expected 1 to 2"):
            nearest(column(0), column(1, 2), k=k)


def test_the_four_scores_of_an_example_done_by_hand():
    # Balls of the reference: 0 ± 1, 1 ± 1, 3 ± 2, 10 ± 7; of the generated: 2 ± 3, 5 ± 3, 30 ± 25.
    found = prdc(column(2, 5, 30), column(0, 1, 3, 10), k=1)
    # 2 lies in those of 1 (on its border) and 3; 5 in those of 3 (border) and 10; 30 in none.
    assert found["precision"] == wilson(2, 3)
    assert found["density"].value == pytest.approx(4 / 3)
    assert found["density"].high == pytest.approx(4 / 3 + Z95 * np.sqrt(4 / 3 / 3))
    assert found["coverage"] == wilson(3, 4)
    # 0, 1 and 3 lie in that of 2, 10 in that of 30.
    assert found["recall"] == wilson(4, 4)
    assert list(found) == ["precision", "recall", "density", "coverage"]


def test_a_generator_of_one_mode_is_precise_and_does_not_recall():
    source = np.random.default_rng(2)
    modes = source.choice([-50.0, 50.0], 400)[:, None] + source.standard_normal((400, 2))
    found = prdc(50 + 0.5 * source.standard_normal((300, 2)), modes)
    assert found["precision"].value > 0.98
    assert found["recall"].value < 0.5
    assert found["coverage"].value < 0.55
    assert found["density"].value > 1


def test_sets_far_apart_share_nothing():
    source = np.random.default_rng(3)
    found = prdc(source.random((30, 4)), 100 + source.random((30, 4)))
    assert {name: one.value for name, one in found.items()} == {
        "precision": 0,
        "recall": 0,
        "density": 0,
        "coverage": 0,
    }
    assert found["precision"].high > 0.05  # Wilson: 0 of 30 is not known to be never.


def test_many_copies_of_a_row_lie_in_their_own_balls_of_no_size():
    source = np.random.default_rng(4)
    x = np.repeat(source.standard_normal((4, 64)) * 100 + 37, 8, axis=0)
    found = prdc(x, x[::-1], k=5)
    assert found["precision"].value == found["recall"].value == found["coverage"].value == 1
    assert found["density"].value == 8 / 5


def test_balls_need_more_than_k_rows():
    x = np.random.default_rng(5).random((6, 2))
    assert prdc(x, x, k=5)["precision"].value == 1
    with pytest.raises(ValueError, match="5 rows of features; expected at least 6"):
        prdc(x, x[:5], k=5)
    with pytest.raises(ValueError, match="expected at least 1"):
        prdc(x, x, k=0)
