"""The training step against the common way to write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.helpers.generators import global_generators_left_alone
from tests.helpers.plain_form import PlainPair, doubles, plain
from torch.nn import functional as F

from manege.cell import Batch, Noise, Streams, draw_noise, new_pair, train_step, update_generator
from manege.config import (
    Activation,
    ClipConstraint,
    DataConfig,
    DcganNetworks,
    LossName,
    MlpNetworks,
    NoConstraint,
    PenaltyConstraint,
    R1Constraint,
    R1R2Constraint,
    ResnetNetworks,
    RunConfig,
    SpectralConstraint,
    Training,
    stream,
)
from manege.models import (
    AugmentParams,
    PictureShape,
    build_discriminator,
    build_generator,
    initialise,
    loss_of,
)

CPU = torch.device("cpu")
BATCH = 12

PAPER = DcganNetworks()
NORMED = DcganNetworks(latent=6, generator_width=8, discriminator_width=4)
FREE = NORMED.model_copy(update={"discriminator_batchnorm": False})
RESNET = ResnetNetworks(latent=6, generator_width=6, discriminator_width=4)
MLP = MlpNetworks(latent=6, hidden=9)

CONSTRAINTS = (
    NoConstraint(),
    ClipConstraint(bound=0.05),
    PenaltyConstraint(),
    SpectralConstraint(),
    R1Constraint(gamma=3),
    R1R2Constraint(gamma=3),
)


def _streams(step: int = 0, seed: int = 1) -> Streams:
    return Streams(lambda purpose: stream(seed, cell="a", purpose=purpose, step=step))


def _setting(size: int, training: Training, networks=PAPER, *, channels: int = 3, labels: int = 0):
    shape = PictureShape(size, channels)
    pair = new_pair(
        networks,
        shape,
        training,
        CPU,
        stream(1, cell="a", purpose="init generator"),
        stream(1, cell="a", purpose="init discriminator"),
        labels,
    )
    generator = torch.Generator().manual_seed(0)
    dtype = torch.get_default_dtype()
    reals = []
    for _ in range(training.n_critic):
        x = torch.rand(training.batch, channels, size, size, generator=generator) * 2 - 1
        y = torch.randint(labels, (training.batch,), generator=generator) if labels else None
        reals.append(Batch(x.to(dtype), y))
    return pair, reals


def _noise(pair, training: Training, step: int, augment: float = 0.0, size: int = 8):
    streams, shape = _streams(step), PictureShape(size, 1)
    return [
        draw_noise(pair, training.batch, streams, training, augment, shape)
        for _ in range(training.n_critic + 1)
    ]


def _doubled(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if value is None:
        return None
    return type(value)(*(_doubled(one) for one in value))


def _channels_last(batch: Batch) -> Batch:
    return Batch(batch.pictures.contiguous(memory_format=torch.channels_last), batch.labels_B)


def _same_training(pair, plain_pair, reals, training: Training, noise_of, losses_close) -> None:
    """Both forms take four steps on the same numbers; `losses_close` judges each step's losses."""
    start = pair.discriminator.weights.clone(), pair.generator.weights.clone()
    fast_reals = [_channels_last(batch) for batch in reals]
    for step in range(4):
        noise = noise_of(step)
        ours = train_step(pair, fast_reals, noise, training)
        losses_close(ours, plain_pair.train_step(reals, noise))
    # They did train.
    assert (pair.discriminator.weights - start[0]).abs().max() > 1e-4
    assert (pair.generator.weights - start[1]).abs().max() > 1e-4


def _same_state(pair, plain_pair, close) -> None:
    pair.generator.check_views()
    pair.discriminator.check_views()
    for network, plain_network in (
        (pair.generator.network, plain_pair.generator),
        (pair.discriminator.network, plain_pair.discriminator),
    ):
        theirs = dict(plain_network.state_dict())
        for name, tensor in network.state_dict().items():
            close(tensor, theirs[name])


def _equals_the_plain_form(
    training: Training, networks, size: int, *, labels: int = 0, augment: float = 0.0
) -> None:
    """In float32 Adam makes whole steps of rounding: lr * sign(noise). Doubles leave no excuse."""
    with doubles():
        pair, reals = _setting(size, training, networks, labels=labels)
    plain_pair = PlainPair.like(pair, training)
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-9)

    def noise_of(step: int) -> list[Noise]:
        return [_doubled(one) for one in _noise(pair, training, step, augment, size)]

    _same_training(pair, plain_pair, reals, training, noise_of, close)
    _same_state(pair, plain_pair, close)


def _admitted(networks, training: Training) -> bool:
    """Whether a run may be configured so."""
    try:
        RunConfig(
            preset="", rounds=1, data=DataConfig(source="-"), networks=networks, training=training
        )
    except ValidationError:
        return False
    return True


def _settings(networks, *, n_critic: int, batch: int, losses=LossName) -> list[Training]:
    """Every loss with every constraint that it makes sense with on these networks."""
    every = [
        Training(loss=loss, constraint=constraint, n_critic=n_critic, batch=batch)
        for loss in losses
        for constraint in CONSTRAINTS
    ]
    return [training for training in every if _admitted(networks, training)]


def _name(training: Training) -> str:
    return f"{training.loss}-{training.constraint.kind}-{training.n_critic}"


SIDE = 20
"""The smallest that leaves a 2×2 map before the last layer: with 1×1 nothing trains, see below."""

PAPER_SETTINGS = [
    training
    for n in (1, 3)
    for training in _settings(
        PAPER, n_critic=n, batch=4, losses=(LossName.BCE, LossName.WASSERSTEIN)
    )
]
NORMED_SETTINGS = [
    training for n in (1, 3) for training in _settings(NORMED, n_critic=n, batch=BATCH)
]
FREE_SETTINGS = _settings(FREE, n_critic=2, batch=6)
RESNET_SETTINGS = _settings(RESNET, n_critic=2, batch=6)
MLP_SETTINGS = _settings(MLP, n_critic=2, batch=6)

# Every constraint with a loss that it is used with.
PAIRED = [
    Training(loss=loss, constraint=constraint, n_critic=2, batch=6)
    for loss, constraint in zip(
        (
            LossName.BCE,
            LossName.WASSERSTEIN,
            LossName.WASSERSTEIN,
            LossName.HINGE,
            LossName.LEAST_SQUARES,
            LossName.RELATIVISTIC,
        ),
        CONSTRAINTS,
        strict=True,
    )
]


def _fewer(settings: list[Training], kept: Callable[[Training], bool]) -> list[Any]:
    """All of them; `make test` compares those that are kept, `make test-all` the rest."""
    return [one if kept(one) else pytest.param(one, marks=pytest.mark.full) for one in settings]


def _once(training: Training) -> bool:
    return training.n_critic == 1


def test_all_that_is_admitted_is_compared():
    for settings in (FREE_SETTINGS, RESNET_SETTINGS, MLP_SETTINGS):
        assert len(settings) == 6 * 6 - 5  # Clipping has one loss.
    assert len(NORMED_SETTINGS) == 2 * (6 + 1)
    assert {type(t.constraint) for t in PAIRED} == {type(c) for c in CONSTRAINTS}
    assert all(_admitted(networks, t) for networks in (FREE, RESNET, MLP) for t in PAIRED)


def test_both_networks_equal_the_plain_form_forward_and_in_gradients_in_double():
    shape = PictureShape(16, 3)
    ours_g = build_generator(DcganNetworks(), shape).to_empty(device="cpu").double()
    ours_d = build_discriminator(DcganNetworks(), shape).to_empty(device="cpu").double()
    for network in (ours_g, ours_d):
        initialise(network, stream(0, cell="x", purpose="init"))
    plain_g, plain_d = plain(ours_g), plain(ours_d)
    z = torch.randn(6, 100, generator=torch.Generator().manual_seed(5)).double()
    factors = torch.rand(6, ours_d.dropout_width, generator=torch.Generator().manual_seed(6))
    outputs = []
    for g, d in ((ours_g, ours_d), (plain_g, plain_d)):
        pictures = g(z)
        value = F.softplus(-d(pictures, factors.double())).mean()
        value.backward()
        outputs.append((pictures, value, g, d))
    (ours_pictures, ours_value, *ours), (plain_pictures, plain_value, *plain_pair) = outputs
    torch.testing.assert_close(ours_pictures, plain_pictures, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours_value, plain_value, rtol=0, atol=1e-9)
    for network, reference in zip(ours, plain_pair, strict=True):
        theirs = dict(reference.named_parameters())
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize("training", _fewer(PAPER_SETTINGS, _once), ids=_name)
def test_a_few_steps_of_the_papers_pair_equal_the_plain_form_in_double(training):
    _equals_the_plain_form(training, PAPER, SIDE)


@pytest.mark.parametrize("training", _fewer(NORMED_SETTINGS, _once), ids=_name)
def test_a_few_steps_with_batchnorm_equal_the_plain_form_in_double(training):
    _equals_the_plain_form(training, NORMED, SIDE)


@pytest.mark.parametrize("training", _fewer(FREE_SETTINGS, PAIRED.__contains__), ids=_name)
def test_a_few_steps_without_batchnorm_equal_the_plain_form_in_double(training):
    _equals_the_plain_form(training, FREE, 12)


@pytest.mark.parametrize("training", _fewer(RESNET_SETTINGS, PAIRED.__contains__), ids=_name)
def test_a_few_steps_of_the_residual_pair_equal_the_plain_form_in_double(training):
    _equals_the_plain_form(training, RESNET, 12)


@pytest.mark.parametrize("training", _fewer(MLP_SETTINGS, PAIRED.__contains__), ids=_name)
def test_a_few_steps_of_the_perceptrons_equal_the_plain_form_in_double(training):
    _equals_the_plain_form(training, MLP, 8)


@pytest.mark.parametrize("activation", Activation)
def test_a_few_steps_of_perceptrons_of_each_activation_equal_the_plain_form(activation):
    networks = MlpNetworks(latent=6, hidden=9, activation=activation)
    _equals_the_plain_form(Training(loss=LossName.BCE, batch=6), networks, 8)
    _equals_the_plain_form(Training(loss=LossName.RELATIVISTIC, batch=6), networks, 8, augment=0.7)


@pytest.mark.parametrize("training", PAIRED, ids=_name)
@pytest.mark.parametrize("networks", [FREE, RESNET, MLP], ids=lambda one: one.kind)
def test_a_few_steps_of_a_conditional_pair_equal_the_plain_form_in_double(networks, training):
    _equals_the_plain_form(training, networks, 8, labels=3)


def test_a_few_steps_of_the_papers_pair_told_the_labels_equal_the_plain_form_in_double():
    _equals_the_plain_form(Training(loss=LossName.BCE, batch=6), NORMED, SIDE, labels=3)


@pytest.mark.parametrize("training", PAIRED, ids=_name)
def test_a_few_steps_on_changed_pictures_equal_the_plain_form_in_double(training):
    _equals_the_plain_form(training, FREE, 8, labels=3, augment=0.7)


@pytest.mark.full
@pytest.mark.parametrize("training", _fewer(NORMED_SETTINGS, _once), ids=_name)
def test_a_few_training_steps_in_float32_lose_and_win_like_the_plain_form(training):
    small = training.loss not in (LossName.BCE, LossName.WASSERSTEIN)
    pair, reals = _setting(SIDE, training, NORMED if small else PAPER)
    plain_pair = PlainPair.like(pair, training)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-5)
    _same_training(pair, plain_pair, reals, training, partial(_noise, pair, training), close)


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
    loss_of(LossName.WASSERSTEIN).discriminator(network(real), network(0.1 * fake)).backward()
    largest = max(parameter.grad.abs().max().item() for parameter in network.parameters())
    assert (largest > 1e-3) == trains
    assert trains or largest < 1e-12


@pytest.mark.parametrize("loss", [LossName.WASSERSTEIN, LossName.RELATIVISTIC])
def test_the_generators_step_leaves_the_discriminator_untouched(loss):
    training = Training(loss=loss, batch=BATCH, constraint=SpectralConstraint())
    pair, reals = _setting(8, training, FREE)
    record = pair.discriminator.record.clone()
    gradient = pair.discriminator._gradient.clone()
    update_generator(pair, reals[0], _noise(pair, training, 0)[0], training)
    assert torch.equal(record, pair.discriminator.record)
    assert torch.equal(gradient, pair.discriminator._gradient)
    assert all(p.requires_grad for p in pair.discriminator.network.parameters())


def test_clipping_holds_after_every_step():
    training = Training(constraint=ClipConstraint(bound=0.02), batch=BATCH)
    pair, reals = _setting(8, training)
    train_step(pair, reals, _noise(pair, training, 0), training)
    for name, parameter in pair.discriminator.network.named_parameters():
        if ".norm." not in name:
            assert parameter.abs().max() <= 0.02 + 1e-9


@pytest.mark.parametrize("augment", [0.0, 0.5])
@pytest.mark.parametrize("training", PAIRED, ids=_name)
def test_a_step_draws_nothing_from_the_global_generators_and_leaves_its_inputs_alone(
    training, augment
):
    pair, reals = _setting(8, training, FREE, labels=3)
    noise = _noise(pair, training, 0, augment)
    copies = [batch.pictures.clone() for batch in reals]
    with global_generators_left_alone():
        train_step(pair, reals, noise, training)
        _noise(pair, training, 1, augment)
    for batch, copy in zip(reals, copies, strict=True):
        assert torch.equal(batch.pictures, copy)
        assert not batch.pictures.requires_grad
        assert batch.pictures.grad is None


@pytest.mark.parametrize("networks", [FREE, RESNET, MLP], ids=lambda one: one.kind)
@pytest.mark.parametrize("training", PAIRED, ids=_name)
def test_everything_trained_stays_in_the_record_and_survives_bytes(networks, training):
    pair, reals = _setting(8, training, networks, labels=3)
    copy, _ = _setting(8, training, networks, labels=3)
    for step in range(2):
        train_step(pair, reals, _noise(pair, training, step), training)
    for ours, theirs in (
        (pair.generator, copy.generator),
        (pair.discriminator, copy.discriminator),
    ):
        theirs.load(np.frombuffer(ours.to_numpy().tobytes(), np.float32).copy())
    for one in (pair, copy):
        train_step(one, reals, _noise(one, training, 2), training)
    assert torch.equal(pair.discriminator.record, copy.discriminator.record)
    assert torch.equal(pair.generator.record, copy.generator.record)
    names = dict(pair.discriminator.network.named_buffers())
    spectral = isinstance(training.constraint, SpectralConstraint)
    assert any(name.endswith("u") for name in names) == spectral


def test_dropout_drops_a_quarter_of_the_channels_and_scales_the_rest():
    training = Training(batch=BATCH)
    pair, _ = _setting(8, training)
    noise = draw_noise(pair, 2000, _streams(), training)
    factors = noise.real_factors_BW
    assert factors.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (factors == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert not torch.equal(factors, noise.fake_factors_BW)


def test_noise_is_drawn_for_what_needs_it_and_for_nothing_else():
    bare = FREE.model_copy(update={"dropout": 0.0})
    for networks, drops in ((FREE, True), (bare, False), (RESNET, False), (MLP, False)):
        for constraint in CONSTRAINTS:
            training = Training(batch=4, constraint=constraint)
            pair, _ = _setting(8, training, networks)
            noise = draw_noise(pair, 4, _streams(), training)
            assert noise.z_BZ.shape == (4, 6)
            assert (noise.real_factors_BW is not None) == drops
            assert (noise.fake_factors_BW is not None) == drops
            assert (noise.mix_B is not None) == isinstance(constraint, PenaltyConstraint)
            assert noise.real_changes is noise.fake_changes is None
    assert drops is False


def test_where_gradients_are_penalised_is_uniform_between_real_and_fake():
    training = Training(constraint=PenaltyConstraint(), batch=4)
    pair, _ = _setting(8, training, FREE)
    mix = draw_noise(pair, 4000, _streams(), training).mix_B
    assert mix.shape == (4000,)
    assert 0 <= mix.min() < 0.01
    assert 0.99 < mix.max() < 1
    assert mix.mean().item() == pytest.approx(0.5, abs=0.02)
    assert mix.var().item() == pytest.approx(1 / 12, abs=0.005)


def test_no_purpose_shifts_the_numbers_of_another():
    """What a constraint or augmentation draws must not change the latents or the dropout."""
    calm = Training(batch=4)
    wild = Training(batch=4, constraint=PenaltyConstraint())
    pair, _ = _setting(8, calm, FREE)
    first = [_noise(pair, calm, 3)[1], _noise(pair, wild, 3, augment=0.9)[1]]
    assert torch.equal(first[0].z_BZ, first[1].z_BZ)
    assert torch.equal(first[0].real_factors_BW, first[1].real_factors_BW)
    assert torch.equal(first[0].fake_factors_BW, first[1].fake_factors_BW)
    assert isinstance(first[1].real_changes, AugmentParams)
    assert not torch.equal(first[1].real_changes.hole_B2, first[1].fake_changes.hole_B2)
    again = _noise(pair, wild, 3, augment=0.9)[1]
    for one, other in zip(again.real_changes, first[1].real_changes, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(again.mix_B, first[1].mix_B)
    assert not torch.equal(_noise(pair, wild, 4)[1].z_BZ, first[1].z_BZ)


def test_the_loss_told_is_the_mean_over_the_discriminators_updates():
    training = Training(loss=LossName.BCE, n_critic=3, batch=6)
    pair, reals = _setting(8, training, FREE)
    other, _ = _setting(8, training, FREE)
    noise = _noise(pair, training, 0)
    both = train_step(pair, reals, noise, training)
    alone = PlainPair.like(other, training)
    each = [alone._update_discriminator(*one) for one in zip(reals, noise[:3], strict=True)]
    assert both.shape == (2,)
    torch.testing.assert_close(both[0], torch.stack(each).mean(), rtol=1e-4, atol=1e-5)
