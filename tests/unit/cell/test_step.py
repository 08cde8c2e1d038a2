"""The training step against the common way to write it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.plain_form import PlainDiscriminator, PlainGenerator, PlainPair
from torch.nn import functional as F

from manege.cell import Noise, draw_noise, new_pair, train_step, update_generator
from manege.config import ClipConstraint, DcganNetworks, Loss, NoConstraint, Training, stream
from manege.models import (
    PictureShape,
    build_discriminator,
    build_generator,
    discriminator_loss,
    initialise,
)

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


def _in_double(noise: Noise) -> Noise:
    return Noise(*(None if tensor is None else tensor.double() for tensor in noise))


def _same_training(pair, plain, reals, training: Training, noise_of, losses_close) -> None:
    """Both forms take four steps on the same numbers; `losses_close` judges each step's losses."""
    start = pair.discriminator.weights.clone()
    for step in range(4):
        noise = noise_of(step)
        fast_reals = [batch.contiguous(memory_format=torch.channels_last) for batch in reals]
        ours = train_step(pair, fast_reals, noise, training)
        losses_close(ours, plain.train_step(reals, noise))
    assert (pair.discriminator.weights - start).abs().max() > 1e-4  # They did train.


SIDE = 20
"""The smallest that leaves a 2×2 map before the last layer: with 1×1 nothing trains, see below."""

SETTINGS = [
    Training(loss=loss, constraint=constraint, n_critic=n_critic, batch=BATCH)
    for loss in Loss
    for constraint in (NoConstraint(), ClipConstraint())
    for n_critic in (1, 3)
]


def _name(training: Training) -> str:
    return f"{training.loss}-{training.constraint.kind}-{training.n_critic}"


@pytest.mark.parametrize("training", SETTINGS, ids=_name)
def test_a_few_training_steps_equal_the_plain_form_in_double(training):
    """In float32 Adam makes whole steps of rounding: lr * sign(noise). Doubles leave no excuse."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        pair, reals = _setting(SIDE, training)
    finally:
        torch.set_default_dtype(before)
    plain = PlainPair.like(pair, training, torch.float64)
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
    doubles = [batch.double() for batch in reals]

    def noise_of(step: int) -> list[Noise]:
        return [_in_double(one) for one in _noise(pair, training, step)]

    _same_training(pair, plain, doubles, training, noise_of, close)
    for network, plain_network in (
        (pair.generator.network, plain.generator),
        (pair.discriminator.network, plain.discriminator),
    ):
        theirs = dict(plain_network.state_dict())
        for name, tensor in network.state_dict().items():
            close(tensor, theirs[name])


@pytest.mark.parametrize("training", SETTINGS, ids=_name)
def test_a_few_training_steps_in_float32_lose_and_win_like_the_plain_form(training):
    pair, reals = _setting(SIDE, training)
    plain = PlainPair.like(pair, training)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-5)
    _same_training(pair, plain, reals, training, partial(_noise, pair, training), close)


@pytest.mark.parametrize(("size", "trains"), [(8, False), (16, False), (20, True), (32, True)])
def test_a_wasserstein_critic_has_no_gradient_on_pictures_so_small(size, trains):
    """BatchNorm before the last layer makes the mean over a batch its bias, whatever the pictures.

    On a 1×1 map the critic's loss, a difference of such means, is zero for all pictures; on a
    larger map the positions still differ.
    """
    shape = PictureShape(size, 1)
    network = build_discriminator(DcganNetworks(), shape).to_empty(device="cpu").double()
    initialise(network, stream(0, cell="x", purpose="init"))
    generator = torch.Generator().manual_seed(0)
    real, fake = (torch.rand(BATCH, 1, size, size, generator=generator).double() for _ in range(2))
    discriminator_loss(Loss.WASSERSTEIN, network(real), network(0.1 * fake)).backward()
    largest = max(parameter.grad.abs().max().item() for parameter in network.parameters())
    assert (largest > 1e-3) == trains
    assert trains or largest < 1e-12


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
