"""Changes to pictures: each one against a picture changed by hand, and how often they happen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.generators import global_generators_left_alone
from torch import Tensor

from manege.config import SIZES, stream
from manege.models import AugmentParams, augment, draw_augmentation

BATCH, SIDE = 6, 8


def _rng(seed: int = 0) -> np.random.Generator:
    return stream(seed, cell="x", purpose="changes")


def _pictures(channels: int = 3, side: int = SIDE) -> Tensor:
    x = torch.rand(BATCH, channels, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return x.double().contiguous(memory_format=torch.channels_last)


def _neutral() -> AugmentParams:
    return AugmentParams(
        torch.zeros(BATCH).double(),
        torch.ones(BATCH).double(),
        torch.ones(BATCH).double(),
        torch.zeros(BATCH, 2).long(),
        torch.full((BATCH, 2), -2 * SIDE),
    )


def _doubled(changes: AugmentParams) -> AugmentParams:
    return AugmentParams(*(one.double() if one.is_floating_point() else one for one in changes))


def _by_hand(x: Tensor, changes: AugmentParams) -> np.ndarray:
    """One picture and one pixel at a time."""
    done = []
    for picture, added, saturation, contrast, moved, hole in zip(
        x.numpy(), *(one.tolist() for one in changes), strict=True
    ):
        side = picture.shape[1]
        y = picture + added
        grey = y.sum(0) / len(y)
        y = np.stack([grey + saturation * (channel - grey) for channel in y])
        mean = y.sum() / y.size
        y = mean + contrast * (y - mean)
        new = np.zeros_like(y)
        for row in range(side):
            for column in range(side):
                from_row, from_column = row - moved[0], column - moved[1]
                if 0 <= from_row < side and 0 <= from_column < side:
                    new[:, row, column] = y[:, from_row, from_column]
                if hole[0] <= row < hole[0] + side // 2 and hole[1] <= column < hole[1] + side // 2:
                    new[:, row, column] = 0
        done.append(new)
    return np.stack(done)


SINGLE = {
    "brightness": {"brightness_B": torch.linspace(-0.5, 0.5, BATCH).double()},
    "saturation": {"saturation_B": torch.linspace(0, 2, BATCH).double()},
    "contrast": {"contrast_B": torch.linspace(0.5, 1.5, BATCH).double()},
    "moved": {"moved_B2": torch.tensor([[0, 0], [1, 0], [0, 1], [-1, 2], [2, -1], [-2, -2]])},
    "hole": {"hole_B2": torch.tensor([[-16, -16], [0, 0], [-3, 2], [7, 7], [2, -3], [3, 1]])},
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", SINGLE)
def test_every_single_change_is_what_is_done_by_hand(kind, channels):
    x, changes = _pictures(channels), _neutral()._replace(**SINGLE[kind])
    found = augment(x, changes)
    np.testing.assert_allclose(found.numpy(), _by_hand(x, changes), rtol=0, atol=1e-12)
    assert found.shape == x.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    if (kind, channels) != ("saturation", 1):  # Grey has no colour to lose.
        assert not torch.allclose(found, x)


@pytest.mark.parametrize("side", [8, 12, 20, 28])
def test_all_changes_together_are_what_is_done_by_hand_in_this_order(side):
    x = _pictures(3, side)
    for seed in range(4):
        changes = _doubled(draw_augmentation(_rng(seed), BATCH, side, 0.8))
        np.testing.assert_allclose(
            augment(x, changes).numpy(), _by_hand(x, changes), rtol=0, atol=1e-12
        )


def test_each_picture_has_its_own_change():
    x = _pictures()
    changes = _doubled(draw_augmentation(_rng(), BATCH, SIDE, 0.8))
    together = augment(x, changes)
    for row in range(BATCH):
        alone = augment(x[row : row + 1], AugmentParams(*(one[row : row + 1] for one in changes)))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_chance_of_zero_leaves_pictures_as_they_are_to_the_bit(channels, dtype):
    x = _pictures(channels).to(dtype)
    x[0, 0, 0, :4] = torch.tensor([1.0, -1.0, 0.1, 1e-30], dtype=dtype)
    drawn = draw_augmentation(_rng(), BATCH, SIDE, 0.0)
    changes = drawn if dtype == torch.float32 else _doubled(drawn)
    assert torch.equal(augment(x, changes), x)
    for one, neutral in zip(_doubled(drawn), _neutral(), strict=True):
        assert torch.equal(one, neutral)


@pytest.mark.full
def test_changes_can_be_differentiated_twice():
    changes = _doubled(draw_augmentation(_rng(3), BATCH, SIDE, 0.9))
    two = AugmentParams(*(one[:2] for one in changes))
    x = _pictures(2)[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: augment(x, two), x)
    assert torch.autograd.gradgradcheck(lambda x: augment(x, two).square(), x)
    (slope,) = torch.autograd.grad(augment(x, two).sum(), x)
    assert slope.abs().max() > 0


def test_draws_are_a_function_of_the_stream_alone():
    with global_generators_left_alone():
        first, second = (draw_augmentation(_rng(), 50, SIDE, 0.5) for _ in range(2))
        other = draw_augmentation(_rng(1), 50, SIDE, 0.5)
    for one, same, differing in zip(first, second, other, strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, differing)


MANY, WIDE = 20_000, 32


def _happened(drawn: AugmentParams) -> np.ndarray:
    """5×MANY: which kinds are to be seen."""
    return np.stack(
        [
            drawn.brightness_B.numpy() != 0,
            drawn.saturation_B.numpy() != 1,
            drawn.contrast_B.numpy() != 1,
            (drawn.moved_B2.numpy() != 0).any(1),
            (drawn.hole_B2.numpy() != -2 * WIDE).any(1),
        ]
    )


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.8, 1.0])
def test_each_kind_happens_to_each_picture_with_the_chance_by_itself(chance):
    seen = _happened(draw_augmentation(_rng(), MANY, WIDE, chance))
    by_nothing = 1 - 1 / 9**2  # A move of 0 by 0 is not to be seen; four pixels at most.
    wanted = np.array([chance, chance, chance, chance * by_nothing, chance])
    error = 4 * np.sqrt(wanted * (1 - wanted) / MANY) + 1e-9
    assert (np.abs(seen.mean(1) - wanted) <= error).all()
    if chance < 1:
        correlation = np.corrcoef(seen)[~np.eye(5, dtype=bool)]
        assert np.abs(correlation).max() < 4 / np.sqrt(MANY)


def test_changes_are_spread_over_their_whole_range():
    drawn = draw_augmentation(_rng(), MANY, WIDE, 1.0)
    for found, low, high in (
        (drawn.brightness_B, -0.5, 0.5),
        (drawn.saturation_B, 0, 2),
        (drawn.contrast_B, 0.5, 1.5),
    ):
        assert low <= found.min() < low + 0.01
        assert high - 0.01 < found.max() <= high
        assert found.mean().item() == pytest.approx((low + high) / 2, abs=0.02)
    for axis in (0, 1):
        assert drawn.moved_B2[:, axis].unique().tolist() == list(range(-4, 5))
        # Every row and column can lie in the hole, the first and the last as well.
        assert drawn.hole_B2[:, axis].unique().tolist() == list(range(1 - 16, 32))
    assert not torch.equal(drawn.moved_B2[:, 0], drawn.moved_B2[:, 1])
    assert not torch.equal(drawn.hole_B2[:, 0], drawn.hole_B2[:, 1])


@pytest.mark.parametrize("side", SIZES)
def test_changes_are_drawn_for_every_size(side):
    drawn = draw_augmentation(_rng(), 4, side, 1.0)
    assert drawn.moved_B2.abs().max() <= side // 8 + 1
    x = torch.zeros(4, 1, side, side)
    assert augment(x, drawn).shape == x.shape
