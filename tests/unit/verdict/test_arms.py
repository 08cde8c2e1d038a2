"""What each arm sees, and what arms of one seed share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from manege.verdict.arms import Arm, PicturePool, pool_of
from manege.verdict.training import TrainingSpec, augmented, probabilities, train

REAL, LARGEST = (10, 50, 25), 50


@pytest.fixture
def pool() -> PicturePool:
    """Pictures that say where they come from: class, then 0 for real and 1 for synthetic."""
    rng = np.random.default_rng(0)

    def some(number: int, synthetic: int, count: int) -> np.ndarray:
        made = rng.integers(0, 100, (count, 8, 8, 1), dtype=np.uint8)
        made[:, 0, 0, 0], made[:, 0, 1, 0] = number, synthetic
        return made

    real = [some(number, 0, count) for number, count in enumerate(REAL)]
    return pool_of(real, [some(number, 1, LARGEST) for number in range(3)])


def counted(pool: PicturePool, arm: Arm, seed: int = 0) -> dict[tuple[int, int], int]:
    """How often a pass sees each class, real (0) or synthetic (1)."""
    rows = pool.rows(arm, seed)
    shown = pool.pictures[rows]
    assert (shown[:, 0, 0, 0] == pool.targets[rows]).all()
    kinds = [(int(one[0, 0, 0]), int(one[0, 1, 0])) for one in shown]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def test_every_arm_sees_what_its_name_says(pool: PicturePool) -> None:
    plain = {(0, 0): 10, (1, 0): 50, (2, 0): 25}
    even = {(0, 0): 50, (1, 0): 50, (2, 0): 50}
    added = {(0, 0): 10, (0, 1): 40, (1, 0): 50, (2, 0): 25, (2, 1): 25}
    assert counted(pool, Arm.REAL) == counted(pool, Arm.AUGMENTED) == plain
    assert counted(pool, Arm.OVERSAMPLED) == counted(pool, Arm.BOTH) == even
    assert counted(pool, Arm.ADDED) == counted(pool, Arm.ADDED_AUGMENTED) == added
    assert counted(pool, Arm.SYNTHETIC) == {(0, 1): 50, (1, 1): 50, (2, 1): 50}


def test_oversampling_shows_every_picture_as_often_as_may_be(pool: PicturePool) -> None:
    rows, counts = np.unique(pool.rows(Arm.OVERSAMPLED, 3), return_counts=True)
    assert rows.tolist() == list(range(85))
    assert {int(count) for count in counts[:10]} == {5}
    assert {int(count) for count in counts[60:]} == {2}


def lesson(pool: PicturePool, *, seed: int = 0, steps: int = 3, more: bool = False) -> TrainingSpec:
    return TrainingSpec(pool.pictures, pool.targets, 3, more, False, steps, seed)


def weights(pool: PicturePool, arm: Arm, **options: int | bool) -> torch.Tensor:
    one = lesson(pool, **options)
    network = train(one, pool.rows(arm, one.seed), lambda step: None)
    return torch.cat([tensor.flatten() for tensor in network.state_dict().values()])


def test_a_training_is_its_seed_s(pool: PicturePool) -> None:
    first = weights(pool, Arm.ADDED)
    assert torch.equal(first, weights(pool, Arm.ADDED))
    assert not torch.equal(first, weights(pool, Arm.ADDED, seed=1))
    assert not torch.equal(first, weights(pool, Arm.REAL))
    assert not torch.equal(first, weights(pool, Arm.ADDED, more=True))


def test_a_training_leaves_the_global_generator_alone(pool: PicturePool) -> None:
    before = torch.get_rng_state()
    weights(pool, Arm.BOTH, more=True)
    assert torch.equal(before, torch.get_rng_state())


def test_arms_of_a_seed_begin_with_the_same_weights(pool: PicturePool) -> None:
    """With one picture for all classes the first step sees the same, whatever the arm."""
    same = PicturePool(np.full_like(pool.pictures, 7), np.zeros_like(pool.targets), REAL, (50,) * 3)
    assert torch.equal(weights(same, Arm.REAL, steps=1), weights(same, Arm.SYNTHETIC, steps=1))


def test_every_training_has_as_many_steps(pool: PicturePool) -> None:
    for arm in Arm:
        done: list[int] = []
        train(lesson(pool, steps=4), pool.rows(arm, 0), done.append)
        assert done == [1, 2, 3, 4]


def test_a_classifier_learns_what_it_is_shown(pool: PicturePool) -> None:
    plain = np.repeat(np.array([20, 128, 230], np.uint8), 30)[:, None, None, None]
    easy = PicturePool(
        np.broadcast_to(plain, (90, 8, 8, 1)), np.repeat([0, 1, 2], 30), (30,) * 3, ()
    )
    network = train(lesson(easy, steps=60), easy.rows(Arm.REAL, 0), lambda step: None)
    shares = probabilities(network, easy.pictures)
    assert shares.sum(1) == pytest.approx(np.ones(90), abs=1e-5)
    assert (shares.argmax(1) == easy.targets).all()


@pytest.mark.parametrize(("side", "reach"), [(8, 1), (28, 2)])
def test_augmentation_moves_and_only_mirrors_where_it_may(side: int, reach: int) -> None:
    real = np.random.default_rng(0).integers(0, 256, (200, side, side, 1), dtype=np.uint8)
    places = range(-reach, reach + 1)

    def is_moved(one: np.ndarray, of: np.ndarray) -> bool:
        around = np.pad(of, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
        return any(
            (one == around[down + reach :, right + reach :][:side, :side]).all()
            for down in places
            for right in places
        )

    made = augmented(real, np.random.default_rng(1), mirrored=False)
    assert all(is_moved(one, of) for one, of in zip(made, real, strict=True))
    assert 0 < sum((one == of).all() for one, of in zip(made, real, strict=True)) < 100
    made = augmented(real, np.random.default_rng(1), mirrored=True)
    kept = sum(is_moved(one, of) for one, of in zip(made, real, strict=True))
    turned = sum(is_moved(one[:, ::-1], of) for one, of in zip(made, real, strict=True))
    assert kept + turned == 200
    assert 60 < kept < 140
