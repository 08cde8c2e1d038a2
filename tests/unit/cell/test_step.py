"""The training step against the common way to write it."""

from __future__ import annotations

import pytest
import torch
from tests.plain_form import PlainDiscriminator, PlainGenerator, PlainPair
from torch.nn import functional as F

from manege.cell import draw_noise, new_pair, train_step, update_generator
from manege.config import ClipConstraint, DcganNetworks, Loss, NoConstraint, Training, stream
from manege.models import PictureShape, build_discriminator, build_generator, initialise

CPU = torch.device("cpu")
BATCH = 12


def _setting(size: int, training: Training):
    shape = PictureShape(size, 3)
    pair = new_pair(
        DcganNetworks(),
        shape,
        training,
        CPU,
        stream(1, cell="a", purpose="init generator"),
        stream(1, cell="a", purpose="init discriminator"),
    )
    generator = torch.Generator().manual_seed(0)
    reals = [
        torch.rand(BATCH, 3, size, size, generator=generator) * 2 - 1
        for _ in range(training.n_critic)
    ]
    return pair, reals


def _noise(pair, training: Training, step: int):
    latents = stream(1, cell="a", purpose="latents", step=step)
    dropout = stream(1, cell="a", purpose="dropout", step=step)
    return [draw_noise(pair, BATCH, latents, dropout) for _ in range(training.n_critic + 1)]


def test_both_networks_equal_the_plain_form_forward_and_in_gradients_in_double():
    shape = PictureShape(16, 3)
    ours_g = build_generator(DcganNetworks(), shape).to_empty(device="cpu").double()
    ours_d = build_discriminator(DcganNetworks(), shape).to_empty(device="cpu").double()
    for network in (ours_g, ours_d):
        initialise(network, stream(0, cell="x", purpose="init"))
    plain_g, plain_d = PlainGenerator(ours_g).double(), PlainDiscriminator(ours_d).double()
    z = torch.randn(6, 100, generator=torch.Generator().manual_seed(5)).double()
    factors = torch.rand(6, ours_d.dropout_width, generator=torch.Generator().manual_seed(6))
    outputs = []
    for g, d in ((ours_g, ours_d), (plain_g, plain_d)):
        pictures = g(z)
        value = F.softplus(-d(pictures, factors.double())).mean()
        value.backward()
        outputs.append((pictures, value, g, d))
    (ours_pictures, ours_value, *ours), (plain_pictures, plain_value, *plain) = outputs
    torch.testing.assert_close(ours_pictures, plain_pictures, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours_value, plain_value, rtol=0, atol=1e-9)
    for network, reference in zip(ours, plain, strict=True):
        theirs = dict(reference.named_parameters())
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_critic", [1, 3])
@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize(
    "constraint", [NoConstraint(), ClipConstraint(bound=0.1)], ids=["free", "clip"]
)
def test_a_few_training_steps_equal_the_plain_form_within_rounding(loss, constraint, n_critic):
    training = Training(loss=loss, constraint=constraint, n_critic=n_critic, batch=BATCH)
    pair, reals = _setting(16, training)
    plain = PlainPair.like(pair, training)
    start = pair.discriminator.weights.clone()
    steps = 4
    for step in range(steps):
        noise = _noise(pair, training, step)
        fast_reals = [batch.contiguous(memory_format=torch.channels_last) for batch in reals]
        ours = train_step(pair, fast_reals, noise, training)
        theirs = plain.train_step(reals, noise)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert (pair.discriminator.weights - start).abs().max() > 1e-4  # They did train.
    for ours_network, plain_network in (
        (pair.generator.network, plain.generator),
        (pair.discriminator.network, plain.discriminator),
    ):
        theirs = dict(plain_network.named_parameters())
        gaps = torch.cat(
            [
                (parameter - theirs[name]).abs().flatten()
                for name, parameter in ours_network.named_parameters()
            ]
        )
        # Adam's first steps are lr * sign(gradient): where a gradient is rounding noise, the
        # sign is too, so a few weights may differ by whole steps. Nine in ten must differ by
        # less than a hundredth of the way they have gone.
        way = training.optimiser.discriminator_lr * steps * n_critic
        assert gaps.quantile(0.9) < 0.01 * way
        assert gaps.max() <= 2 * way


def test_the_generators_step_leaves_the_discriminator_untouched():
    training = Training(batch=BATCH)
    pair, _ = _setting(8, training)
    weights = pair.discriminator.weights.clone()
    gradient = pair.discriminator._gradient.clone()
    update_generator(pair, _noise(pair, training, 0)[0], training)
    assert torch.equal(weights, pair.discriminator.weights)
    assert torch.equal(gradient, pair.discriminator._gradient)
    assert all(p.requires_grad for p in pair.discriminator.network.parameters())


def test_clipping_holds_after_every_step():
    training = Training(constraint=ClipConstraint(bound=0.02), batch=BATCH)
    pair, reals = _setting(8, training)
    train_step(pair, reals, _noise(pair, training, 0), training)
    for name, parameter in pair.discriminator.network.named_parameters():
        if ".norm." not in name:
            assert parameter.abs().max() <= 0.02 + 1e-9


def test_a_step_draws_nothing_from_the_global_generator():
    training = Training(batch=BATCH, n_critic=2)
    pair, reals = _setting(8, training)
    before = torch.get_rng_state()
    train_step(pair, reals, _noise(pair, training, 0), training)
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_drops_a_quarter_of_the_channels_and_scales_the_rest():
    training = Training(batch=BATCH)
    pair, _ = _setting(8, training)
    rng = stream(0, cell="x", purpose="dropout")
    noise = draw_noise(pair, 2000, rng, rng)
    factors = noise.real_factors_BW
    assert factors.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (factors == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert not torch.equal(factors, noise.fake_factors_BW)
