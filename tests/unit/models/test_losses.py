"""Losses against the formulas of the papers, values and gradients."""

from __future__ import annotations

import pytest
import torch

from manege.config import LossName
from manege.models import loss_of

REAL = torch.tensor([1.5, -0.3, 0.2, -4.0], dtype=torch.float64)
FAKE = torch.tensor([-0.7, 2.1, 0.0, -1.5], dtype=torch.float64)


def generator_loss(loss: LossName, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    return loss_of(loss).of_generator(real, fake)


def _formulas(loss: LossName, real: torch.Tensor, fake: torch.Tensor):
    p_real, p_fake = torch.sigmoid(real), torch.sigmoid(fake)
    zero = torch.zeros_like(real)
    match loss:
        case LossName.BCE:
            return -(p_real.log().mean() + (1 - p_fake).log().mean()), -p_fake.log().mean()
        case LossName.MINIMAX:  # Goodfellow et al. 2014, eq. (1): one value, two players.
            value = p_real.log().mean() + (1 - p_fake).log().mean()
            return -value, (1 - p_fake).log().mean()
        case LossName.LEAST_SQUARES:  # Mao et al. 2017, eq. (9).
            return ((real - 1) ** 2).mean() / 2 + (fake**2).mean() / 2, ((fake - 1) ** 2).mean() / 2
        case LossName.HINGE:  # Miyato et al. 2018, eq. (16) and (17), negated.
            found = torch.minimum(zero, real - 1).mean() + torch.minimum(zero, -fake - 1).mean()
            return -found, -fake.mean()
        case LossName.RELATIVISTIC:  # Jolicoeur-Martineau 2018: a real and a fake picture in pairs.
            return -torch.sigmoid(real - fake).log().mean(), -torch.sigmoid(
                fake - real
            ).log().mean()
        case LossName.WASSERSTEIN:  # Eq. (6) and (7) are maximised there.
            return -(real.mean() - fake.mean()), -fake.mean()


@pytest.mark.parametrize("loss", LossName)
def test_losses_and_their_gradients_are_the_formulas(loss):
    real, fake = REAL.clone().requires_grad_(), FAKE.clone().requires_grad_()
    wanted_d, wanted_g = _formulas(loss, real, fake)
    found_d, found_g = loss_of(loss).discriminator(real, fake), generator_loss(loss, fake, real)
    torch.testing.assert_close(found_d, wanted_d, rtol=0, atol=1e-12)
    torch.testing.assert_close(found_g, wanted_g, rtol=0, atol=1e-12)
    for found, wanted in ((found_d + found_g, wanted_d + wanted_g), (found_g, wanted_g)):
        torch.testing.assert_close(
            torch.autograd.grad(found, (real, fake), retain_graph=True, allow_unused=True),
            torch.autograd.grad(wanted, (real, fake), retain_graph=True, allow_unused=True),
            rtol=0,
            atol=1e-12,
        )


@pytest.mark.parametrize("loss", LossName)
def test_losses_and_their_gradients_stay_finite_on_extreme_logits(loss):
    values = [-1e4, -100.0, 0.0, 100.0, 1e4]
    every = torch.tensor([(real, fake) for real in values for fake in values])
    real, fake = (column.clone().requires_grad_() for column in every.t())
    total = loss_of(loss).discriminator(real, fake) + generator_loss(loss, fake, real)
    assert torch.isfinite(total)
    for gradient in torch.autograd.grad(total, (real, fake)):
        assert torch.isfinite(gradient).all()
    # The formulas with a logarithm of 0 in them would have given up here.
    assert generator_loss(loss, torch.full((2,), -1e4), torch.zeros(2)).isfinite()


@pytest.mark.parametrize("loss", LossName)
def test_each_player_gains_by_what_the_other_loses(loss):
    better_fakes = FAKE + 1
    assert generator_loss(loss, better_fakes, REAL) < generator_loss(loss, FAKE, REAL)
    assert loss_of(loss).discriminator(REAL, better_fakes) > loss_of(loss).discriminator(REAL, FAKE)
    assert loss_of(loss).discriminator(REAL + 1, FAKE) < loss_of(loss).discriminator(REAL, FAKE)


# From where on a player has what it wants, and is drawn no further, or back.
_SATISFIED = {LossName.HINGE: (1.0, -1.0, None), LossName.LEAST_SQUARES: (1.0, 0.0, 1.0)}


@pytest.mark.parametrize("loss", LossName)
def test_every_logit_is_drawn_the_right_way_until_its_player_is_satisfied(loss):
    logits = torch.tensor([-30.0, -3.0, -0.9, -0.1, 0.1, 0.9, 3.0, 30.0], dtype=torch.float64)
    real, fake = logits.clone().requires_grad_(), logits.flip(0).clone().requires_grad_()
    real_from, fake_from, generator_from = _SATISFIED.get(loss, (None, None, None))
    slope_real, slope_fake = torch.autograd.grad(
        loss_of(loss).discriminator(real, fake), (real, fake)
    )
    (slope,) = torch.autograd.grad(generator_loss(loss, fake, real.detach()), fake)
    wants_real = torch.ones(8).bool() if real_from is None else real < real_from
    wants_fake = torch.ones(8).bool() if fake_from is None else fake > fake_from
    wants = torch.ones(8).bool() if generator_from is None else fake < generator_from
    assert torch.equal(slope_real < 0, wants_real)
    assert torch.equal(slope_fake > 0, wants_fake)
    assert torch.equal(slope < 0, wants)
    if loss is LossName.HINGE:  # Satisfied is indifferent; in least squares it is drawn back.
        assert (slope_real[~wants_real] == 0).all()
        assert (slope_fake[~wants_fake] == 0).all()
    elif loss is LossName.LEAST_SQUARES:
        assert (slope_real[~wants_real] > 0).all()
        assert (slope[~wants] > 0).all()


def test_a_generator_that_is_found_out_learns_from_every_loss_but_minimax():
    found_out = torch.full((2,), -40.0, dtype=torch.float64)
    for loss in LossName:
        fake = found_out.clone().requires_grad_()
        (slope,) = torch.autograd.grad(generator_loss(loss, fake, torch.zeros(2).double()), fake)
        if loss is LossName.MINIMAX:
            assert slope.abs().max() < 1e-15
        else:
            assert slope.max() < -0.49


def test_minimax_and_wasserstein_are_zero_sum_games_and_relativistic_is_fair():
    real_only = torch.full((4,), 1e4, dtype=torch.float64)  # A minimax loss of 0 for the real part.
    total = loss_of(LossName.MINIMAX).discriminator(real_only, FAKE) + generator_loss(
        LossName.MINIMAX, FAKE, REAL
    )
    assert total.abs() < 1e-12
    total = loss_of(LossName.WASSERSTEIN).discriminator(REAL, FAKE) + generator_loss(
        LossName.WASSERSTEIN, FAKE, REAL
    )
    assert (total + REAL.mean()).abs() < 1e-12
    for one, other in ((REAL, FAKE), (FAKE, REAL)):
        torch.testing.assert_close(
            loss_of(LossName.RELATIVISTIC).discriminator(one, other),
            generator_loss(LossName.RELATIVISTIC, one, other),
        )


def test_only_a_relativistic_generator_looks_at_the_real_pictures():
    for loss in LossName:
        moved = generator_loss(loss, FAKE, REAL + 1) != generator_loss(loss, FAKE, REAL)
        assert bool(moved) == loss_of(loss).needs_real == (loss is LossName.RELATIVISTIC)
