"""Discriminators on frozen features: what they see, what is in their record, what learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.pictures import noise

from manege.cell import Individual, new_pair
from manege.config import PyramidNetworks, SpectralConstraint, Training
from manege.metrics.lite0_weights import feature_weights
from manege.models import (
    FrozenFeatures,
    PictureShape,
    build_feature_discriminator,
    build_generator,
    fed_side,
    initialise,
    layout_of,
)
from manege.models.critic import mixing

CPU = torch.device("cpu")
STAGES = (24, 40, 112)


@pytest.fixture(scope="module")
def network():
    return feature_weights().network


def _features(network, side: int, channels: int = 3, width: int = 16) -> FrozenFeatures:
    return FrozenFeatures(network, STAGES, PictureShape(side, channels), width)


def _filled(features: FrozenFeatures, labels: int = 0, *, spectral: bool = True):
    rng = np.random.default_rng(1)
    judge = Individual(build_feature_discriminator(features, labels, spectral=spectral), CPU)
    initialise(judge.network, rng)
    return judge


@pytest.mark.parametrize(
    ("side", "fed"), [(8, 24), (12, 24), (16, 32), (20, 40), (24, 24), (28, 28), (32, 32), (64, 64)]
)
def test_small_pictures_are_enlarged_by_a_whole_factor(network, side, fed):
    assert fed_side(side) == fed
    features = _features(network, side, 1)
    x = noise(2, side, 1)
    times = fed // side
    larger = x.repeat_interleave(times, 2).repeat_interleave(times, 3)
    (first,) = network.maps(larger, (24,))
    seen = features.of(x)
    assert seen.shape == (2, features.floats)
    start = first.permute(0, 2, 3, 1).flatten(1)
    assert torch.equal(seen[:, : start.shape[1]], start)


def test_heads_see_every_stage_with_its_channels_mixed(network):
    features = _features(network, 32)
    x = noise(3, 32)
    maps = network.maps(x, STAGES)
    for stage, raw, mixed in zip(STAGES, maps, features.maps(features.of(x)), strict=True):
        expected = torch.einsum("bchv,cw->bwhv", raw, mixing(stage, stage, 16))
        torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("side", "channels"), [(32, 3), (8, 1), (28, 1)])
def test_colours_are_further_channels_of_the_first_map(network, side, channels):
    shape = PictureShape(side, channels)
    plain, coloured = (FrozenFeatures(network, STAGES, shape, 16, one) for one in (0.0, 20.0))
    x = noise(3, side, channels)
    first = plain.sides[0]
    rows = coloured.of(x)
    assert coloured.floats - plain.floats == channels * first**2 == rows.shape[1] - plain.floats
    start = rows[:, : (24 + channels) * first**2].view(3, first, first, 24 + channels)
    times = fed_side(side) // side
    shown = x.repeat_interleave(times, 2).repeat_interleave(times, 3)
    averages = torch.nn.functional.adaptive_avg_pool2d(shown, first)
    torch.testing.assert_close(start[..., 24:], 20 * averages.permute(0, 2, 3, 1))
    torch.testing.assert_close(rows[:, start[0].numel() :], plain.of(x)[:, 24 * first**2 :])
    assert coloured.maps(rows)[0].shape == (3, 16, first, first)
    moved = coloured.to(torch.device("cpu"))
    assert torch.equal(moved.of(x), rows)


@pytest.mark.parametrize(("side", "channels"), [(32, 3), (8, 1), (28, 1)])
def test_colours_are_a_map_of_their_own(network, side, channels):
    shape = PictureShape(side, channels)
    plain, coloured = (
        FrozenFeatures(network, STAGES, shape, 16, colour_head=one) for one in (0.0, 20.0)
    )
    x = noise(3, side, channels)
    rows = coloured.of(x)
    assert coloured.sides == (*plain.sides, 4)
    assert coloured.floats - plain.floats == channels * 4**2 == rows.shape[1] - plain.floats
    torch.testing.assert_close(rows[:, : plain.floats], plain.of(x))
    averages = torch.nn.functional.adaptive_avg_pool2d(x, 4)
    colours = rows[:, plain.floats :].view(3, 4, 4, channels)
    torch.testing.assert_close(colours, 20 * averages.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)
    assert [one.shape[1:] for one in coloured.maps(rows)] == [
        (16, side, side) for side in coloured.sides
    ]
    moved = coloured.to(torch.device("cpu"))
    assert torch.equal(moved.of(x), rows)


def test_a_tint_changes_the_head_that_sees_colours_most(network):
    features = FrozenFeatures(network, STAGES, PictureShape(32, 3), 16, colour_head=20.0)
    x = noise(4, 32, 3) * 0.5
    tint = torch.tensor([0.3, -0.3, 0.0]).view(1, 3, 1, 1)
    plain, tinted = features.maps(features.of(x)), features.maps(features.of(x + tint))
    moved = [
        float((other - one).norm() / one.norm()) for one, other in zip(plain, tinted, strict=True)
    ]
    assert moved[-1] > 2 * max(moved[:-1])


def test_mixing_is_the_same_for_everybody_and_keeps_the_size_of_what_it_mixes():
    one, same = mixing(40, 40, 64), mixing(40, 40, 64)
    assert torch.equal(one, same)
    assert float((one**2).sum(0).mean()) == pytest.approx(1, abs=0.1)


def test_a_value_for_each_stage_and_nothing_of_the_frozen_network_in_the_record(network):
    features = _features(network, 32)
    judge = _filled(features)
    values = judge.network(judge.network.observe(noise(5, 32)))
    assert values.shape == (5, len(STAGES))
    names = {slot.name for slot in layout_of(judge.network).parameters}
    assert all(name.startswith("heads.") for name in names)
    judge.check_views()
    # Two convolutions at 8x8, one at 4x4, one at 2x2, and a linear layer each.
    convs, linears = 4 * (16 * 16 * 9 + 16), sum(16 * side**2 + 1 for side in (4, 4, 2))
    assert sum(one.numel() for one in judge.parameters) == convs + linears


def test_gradients_reach_the_pictures_and_no_frozen_weight(network):
    judge = _filled(_features(network, 32))
    x = noise(2, 32).requires_grad_()
    judge.network(judge.network.observe(x)).sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().sum()) > 0
    assert not any(tensor.requires_grad for tensor in network.tensors.values())


def test_labels_begin_without_a_say_and_then_have_one(network):
    judge = _filled(_features(network, 32), labels=3)
    seen = judge.network.observe(noise(3, 32))
    values = [judge.network(seen, None, torch.full((3,), label)) for label in range(3)]
    assert torch.equal(values[0], values[1])
    with torch.no_grad():
        judge.network.heads[0].embed.weight[1] += 1
    assert not torch.equal(values[0], judge.network(seen, None, torch.full((3,), 1)))


def test_a_conditional_generators_rows_are_small_beside_the_latent():
    generator = Individual(build_generator(PyramidNetworks(), PictureShape(32, 3), 10), CPU)
    initialise(generator.network, np.random.default_rng(0))
    assert float(generator.network.embed.weight.detach().std()) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("side", [8, 12, 20, 28, 32, 48, 64, 128])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_pyramid_pair_makes_and_judges_pictures_of_every_side(side, channels):
    rng = np.random.default_rng(0)
    training = Training(constraint=SpectralConstraint(), loss="hinge")
    spec = PyramidNetworks(generator_width=16, discriminator_width=4)
    pair = new_pair(spec, PictureShape(side, channels), training, CPU, rng, rng)
    drawn = pair.generator.network(torch.randn(2, spec.latent))
    assert drawn.shape == (2, channels, side, side)
    assert float(drawn.detach().abs().max()) <= 1
    assert pair.discriminator.network(drawn).shape == (2,)
