"""Clipping and why BatchNorm is exempt from it; penalties against brute force; spectral norms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.plain_form import doubles
from torch import Tensor, nn

from manege.cell import Individual, new_pair
from manege.config import (
    Activation,
    DcganNetworks,
    MlpNetworks,
    ResnetNetworks,
    SpectralConstraint,
    Training,
    stream,
)
from manege.models import (
    PictureShape,
    build_discriminator,
    clip_,
    clippable,
    gradient_penalty,
    initialise,
    power_iteration_,
    squared_gradients,
)
from manege.models.layers import SpectralLayer

CPU = torch.device("cpu")
BATCH, SIDE, LABELS = 4, 10, 3

FREE = DcganNetworks(discriminator_width=2, discriminator_batchnorm=False)
RESNET = ResnetNetworks(discriminator_width=2)
MLP = MlpNetworks(hidden=6)
KINDS = pytest.mark.parametrize("spec", [FREE, RESNET, MLP], ids=lambda spec: spec.kind)
BENT = pytest.mark.parametrize("activation", Activation)


def _pair():
    rng = stream(0, cell="x", purpose="init")
    return new_pair(DcganNetworks(), PictureShape(32, 3), Training(), torch.device("cpu"), rng, rng)


def _generator_gradient(pair) -> float:
    z = torch.randn(16, 100, generator=torch.Generator().manual_seed(0))
    pair.generator.zero_gradients()
    (-pair.discriminator.network(pair.generator.network(z)).mean()).backward()
    return pair.generator.network.linear.weight.grad.abs().mean().item()


def test_clipping_cuts_every_weight_but_those_of_batchnorm():
    pair = _pair()
    network = pair.discriminator.network
    clip_(clippable(network), 0.01)
    for name, parameter in network.named_parameters():
        limit = parameter.abs().max().item()
        if ".norm." in name:
            assert limit == (1.0 if name.endswith("weight") else 0.0)
        else:
            assert limit <= 0.01 + 1e-9
    pair.discriminator.check_views()


def test_clipping_batchnorm_too_leaves_the_generator_without_gradient():
    free, clipped, everything = _pair(), _pair(), _pair()
    clip_(clippable(clipped.discriminator.network), 0.01)
    clip_(list(everything.discriminator.network.parameters()), 0.01)
    with_exemption, without = _generator_gradient(clipped), _generator_gradient(everything)
    assert without < 1e-5 * with_exemption  # 0.01 for each of the three BatchNorms.
    assert without < 1e-14 < with_exemption < _generator_gradient(free)


@KINDS
def test_clipping_reaches_every_parameter_of_a_discriminator_without_batchnorm(spec):
    individual = _individual(spec, labels=LABELS)
    names = {name for name, _ in individual.network.named_parameters()}
    assert "embed.weight" in names
    assert len(clippable(individual.network)) == len(names)
    clip_(clippable(individual.network), 0.01)
    assert individual.weights.abs().max() <= 0.01 + 1e-9


def _individual(spec, *, spectral: bool = False, labels: int = 0, **changes):
    """A small discriminator in doubles."""
    with doubles():
        network = build_discriminator(
            spec.model_copy(update=changes), PictureShape(SIDE, 2), labels, spectral=spectral
        )
        individual = Individual(network, CPU)
    initialise(individual.network, stream(0, cell="x", purpose="init"))
    with torch.no_grad():  # Fresh weights hardly bend anything.
        individual.weights.mul_(2)
    return individual


def _inputs(network, labels: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH, 2, SIDE, SIDE, generator=generator).double() * 2 - 1
    width = network.dropout_width
    factors = (torch.rand(BATCH, width, generator=generator) > 0.25).double() if width else None
    chosen = torch.randint(labels, (BATCH,), generator=generator) if labels else None
    return x.contiguous(memory_format=torch.channels_last), factors, chosen


class _Linear(nn.Module):
    """The critic w·x."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.w


@pytest.mark.parametrize("length", [0.3, 1.0, 2.5])
def test_a_linear_critics_penalties_have_the_closed_form(length):
    w = torch.randn(2 * SIDE**2, generator=torch.Generator().manual_seed(7)).double()
    critic = _Linear(length * w / w.norm())
    x, _, _ = _inputs(build_discriminator(MLP, PictureShape(SIDE, 2)), 0)
    x.requires_grad_()
    squared_B = squared_gradients(critic(x), x)
    torch.testing.assert_close(squared_B, torch.full((BATCH,), length**2).double())
    penalty = gradient_penalty(squared_B)
    torch.testing.assert_close(penalty, torch.tensor((length - 1) ** 2).double())
    # d(|w|-1)²/dw = 2 (|w|-1) w/|w|, and d|w|²/dw = 2w.
    (slope,) = torch.autograd.grad(penalty, critic.w, retain_graph=True)
    torch.testing.assert_close(
        slope, (2 * (length - 1) * critic.w / length).detach(), atol=1e-12, rtol=0
    )
    (slope,) = torch.autograd.grad(squared_B.mean(), critic.w)
    torch.testing.assert_close(slope, 2 * critic.w.detach(), atol=1e-12, rtol=0)


def test_a_critic_that_is_flat_has_the_penalty_one_and_no_nan():
    critic = _Linear(torch.zeros(8).double())
    x = torch.ones(2, 2, 2, 2).double().requires_grad_()
    penalty = gradient_penalty(squared_gradients(critic(x), x))
    assert penalty.item() == pytest.approx(1, abs=1e-5)
    (slope,) = torch.autograd.grad(penalty, critic.w)
    assert torch.isfinite(slope).all()


@KINDS
@BENT
@pytest.mark.parametrize("spectral", [False, True])
def test_penalised_gradients_are_those_of_each_picture_alone(spec, activation, spectral):
    individual = _individual(spec, spectral=spectral, labels=LABELS, activation=activation)
    network = individual.network
    x, factors, labels = _inputs(network, LABELS)
    batch = x.clone().requires_grad_()
    squared_B = squared_gradients(network(batch, factors, labels), batch)
    alone = []
    for row in range(BATCH):
        picture = x[row : row + 1].clone().requires_grad_()
        mask = None if factors is None else factors[row : row + 1]
        (value,) = network(picture, mask, labels[row : row + 1])
        (gradient,) = torch.autograd.grad(value, picture)
        alone.append(sum(float(one) ** 2 for one in gradient.flatten()))
    wanted = torch.tensor(alone, dtype=torch.float64)
    assert wanted.min() > 1e-8
    torch.testing.assert_close(squared_B, wanted, rtol=1e-9, atol=1e-12)
    mean = np.mean([(np.sqrt(one) - 1) ** 2 for one in alone])
    assert gradient_penalty(squared_B).item() == pytest.approx(mean, rel=1e-9)


@KINDS
@BENT
@pytest.mark.parametrize("penalty", ["r1", "gp"])
def test_penalties_pull_the_weights_as_finite_differences_say(spec, activation, penalty):
    individual = _individual(spec, labels=LABELS, activation=activation)
    network = individual.network
    x, factors, labels = _inputs(network, LABELS)

    def value() -> Tensor:
        pictures = x.clone().requires_grad_()
        squared_B = squared_gradients(network(pictures, factors, labels), pictures)
        return gradient_penalty(squared_B) if penalty == "gp" else squared_B.mean()

    individual.zero_gradients()
    value().backward(inputs=individual.parameters)
    gradient, start = individual._gradient.clone(), individual.weights.clone()
    assert gradient.norm() > 1e-3
    # Every layer's weight is pulled; a bias only where the activation is curved.
    for name, parameter in network.named_parameters():
        assert name.endswith("bias") or parameter.grad.abs().max() > 0, name
    generator, step = torch.Generator().manual_seed(1), 1e-6
    for _ in range(4):
        direction = torch.randn(start.shape, generator=generator).double()
        direction /= direction.norm()
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                individual.weights.copy_(start + sign * step * direction)
            ends.append(value().item())
        with torch.no_grad():
            individual.weights.copy_(start)
        found = (ends[0] - ends[1]) / (2 * step)
        assert found == pytest.approx((gradient @ direction).item(), rel=1e-4, abs=1e-7)


@KINDS
def test_penalising_leaves_no_gradient_on_the_pictures_and_gathers_all_of_the_weights(spec):
    individual = _individual(spec)
    x, factors, _ = _inputs(individual.network, 0)
    x.requires_grad_()
    loss = squared_gradients(individual.network(x, factors), x).mean()
    assert loss.requires_grad
    assert x.grad is None
    assert individual._gradient.abs().max() == 0  # Asking for pictures' gradients gathers none.
    loss.backward(inputs=individual.parameters)
    assert x.grad is None
    individual.check_views()


def _singular_values(network: nn.Module) -> dict[str, float]:
    return {
        name: float(
            np.linalg.svd(module.bounded_weight().detach().flatten(1).numpy(), compute_uv=False)[0]
        )
        for name, module in network.named_modules()
        if isinstance(module, SpectralLayer)
    }


@KINDS
def test_every_layer_of_a_spectral_discriminator_comes_to_norm_one(spec):
    network = _individual(spec, spectral=True, labels=LABELS).network
    layers = [one for one in network.modules() if list(one.parameters(recurse=False))]
    fresh = _singular_values(network)
    assert len(fresh) == len(layers)
    # `initialise` has sharpened them on fresh weights; from there it is a short way.
    assert all(1 - 1e-9 <= value < 1.2 for value in fresh.values()), fresh
    for _ in range(400):
        power_iteration_(network)
    for name, value in _singular_values(network).items():
        assert value == pytest.approx(1, abs=1e-6), name


@KINDS
def test_sharpening_changes_the_vectors_of_the_record_and_nothing_else(spec):
    individual = _individual(spec, spectral=True, labels=LABELS)
    network = individual.network
    with torch.no_grad():  # Other weights than those the vectors were sharpened on.
        individual.weights.copy_(
            torch.randn(individual.weights.shape, generator=torch.Generator().manual_seed(5))
        )
    weights = individual.weights.clone()
    vectors = {name: buffer.clone() for name, buffer in network.named_buffers()}
    assert set(vectors) == {f"{name}.u" for name in _singular_values(network)}
    x, factors, labels = _inputs(network, LABELS)
    record = individual.record.clone()
    for mode in (True, False):
        network.train(mode)
        network(x, factors, labels).sum().backward()
        with torch.no_grad():
            network(x, factors, labels)
    assert torch.equal(record, individual.record)
    power_iteration_(network)
    assert torch.equal(weights, individual.weights)
    for name, buffer in network.named_buffers():
        if len(buffer) > 1:
            assert not torch.equal(buffer, vectors[name]), name
        assert buffer.norm().item() == pytest.approx(1)
    individual.check_views()


def test_the_vectors_survive_in_bytes():
    training = Training(constraint=SpectralConstraint())
    pairs = []
    for seed in (0, 1):
        rng = stream(seed, cell="x", purpose="init")
        pairs.append(new_pair(FREE, PictureShape(8, 1), training, CPU, rng, rng))
    one, other = (pair.discriminator for pair in pairs)
    power_iteration_(one.network)
    other.load(one.to_numpy().copy())
    for name, buffer in other.network.named_buffers():
        assert name.endswith(".u")
        assert torch.equal(buffer, one.network.get_buffer(name))
    assert len(dict(other.network.named_buffers())) == 5


def test_sharpening_does_nothing_where_nothing_is_spectral():
    individual = _individual(RESNET)
    before = individual.record.clone()
    assert not list(individual.network.buffers())
    power_iteration_(individual.network)
    assert torch.equal(before, individual.record)
