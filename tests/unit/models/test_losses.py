"""Losses against the formulas of the papers, values and gradients."""

from __future__ import annotations

import pytest
import torch

from manege.config import Loss
from manege.models import discriminator_loss, generator_loss

REAL = torch.tensor([1.5, -0.3, 0.2, -4.0], dtype=torch.float64)
FAKE = torch.tensor([-0.7, 2.1, 0.0, -1.0], dtype=torch.float64)


def _formulas(loss: Loss, real: torch.Tensor, fake: torch.Tensor):
    p_real, p_fake = torch.sigmoid(real), torch.sigmoid(fake)
    match loss:
        case Loss.BCE:
            return -(p_real.log().mean() + (1 - p_fake).log().mean()), -p_fake.log().mean()
        case Loss.WASSERSTEIN:  # Eq. (6) and (7) are maximised there.
            return -(real.mean() - fake.mean()), -fake.mean()


@pytest.mark.parametrize("loss", Loss)
def test_losses_and_their_gradients_are_the_formulas(loss):
    real, fake = REAL.clone().requires_grad_(), FAKE.clone().requires_grad_()
    wanted_d, wanted_g = _formulas(loss, real, fake)
    found_d, found_g = discriminator_loss(loss, real, fake), generator_loss(loss, fake)
    torch.testing.assert_close(found_d, wanted_d)
    torch.testing.assert_close(found_g, wanted_g)
    for found, wanted in ((found_d + found_g, wanted_d + wanted_g), (found_g, wanted_g)):
        torch.testing.assert_close(
            torch.autograd.grad(found, (real, fake), retain_graph=True, allow_unused=True),
            torch.autograd.grad(wanted, (real, fake), retain_graph=True, allow_unused=True),
        )


@pytest.mark.parametrize("loss", Loss)
def test_losses_stay_finite_on_extreme_logits(loss):
    extreme = torch.tensor([-1e4, 1e4])
    assert torch.isfinite(discriminator_loss(loss, extreme, extreme))
    assert torch.isfinite(generator_loss(loss, extreme))


@pytest.mark.parametrize("loss", Loss)
def test_each_player_gains_by_what_the_other_loses(loss):
    better_fakes = FAKE + 1
    assert generator_loss(loss, better_fakes) < generator_loss(loss, FAKE)
    assert discriminator_loss(loss, REAL, better_fakes) > discriminator_loss(loss, REAL, FAKE)
    assert discriminator_loss(loss, REAL + 1, FAKE) < discriminator_loss(loss, REAL, FAKE)
