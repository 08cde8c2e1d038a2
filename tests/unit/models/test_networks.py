"""The networks of the papers: sizes, counts, and no randomness of their own."""

from __future__ import annotations

import pytest
import torch

from manege.cell import Individual
from manege.config import SIZES, Activation, DcganNetworks, MlpNetworks, stream
from manege.models import (
    PictureShape,
    build_discriminator,
    build_generator,
    generate,
    initialise,
    to_floats,
)

CPU = torch.device("cpu")


def _count(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_parameter_counts_at_32_by_32_in_colour_are_the_papers():
    shape = PictureShape(32, 3)
    assert _count(build_generator(DcganNetworks(), shape)) == 1_051_139
    assert _count(build_discriminator(DcganNetworks(), shape)) == 98_401


def test_perceptrons_have_the_layers_of_table_one():
    shape = PictureShape(28, 1)
    generator, discriminator = (
        build(MlpNetworks(), shape) for build in (build_generator, build_discriminator)
    )
    weights = [tuple(p.shape) for p in generator.parameters() if p.dim() == 2]
    assert weights == [(256, 64), (256, 256), (784, 256)]
    weights = [tuple(p.shape) for p in discriminator.parameters() if p.dim() == 2]
    assert weights == [(256, 784), (256, 256), (1, 256)]


@pytest.mark.parametrize(
    ("size", "start", "doublings", "features"),
    [
        (8, 2, 2, 128),
        (16, 4, 2, 128),
        (28, 7, 2, 512),
        (32, 8, 2, 512),
        (64, 8, 3, 2048),
        (128, 8, 4, 4096),
    ],
)
def test_resolutions_follow_the_specification(size, start, doublings, features):
    shape = PictureShape(size, 3)
    generator = build_generator(DcganNetworks(), shape)
    assert (generator.start, len(generator.blocks)) == (start, doublings)
    widths = [block.conv.weight.shape[0] for block in generator.blocks]
    assert widths == [128] * (doublings - 1) + [64]
    discriminator = build_discriminator(DcganNetworks(), shape)
    assert discriminator.linear.in_features == features
    assert len(discriminator.blocks) == (5 if size >= 128 else 4)
    assert discriminator.blocks[0].norm is None
    assert all(block.norm is not None for block in discriminator.blocks[1:])


@pytest.mark.parametrize("size", [size for size in SIZES if size <= 64])
@pytest.mark.parametrize("spec", [DcganNetworks(), MlpNetworks()], ids=["dcgan", "mlp"])
def test_every_accepted_size_goes_round(spec, size):
    shape = PictureShape(size, 1)
    generator = Individual(build_generator(spec, shape), CPU)
    discriminator = Individual(build_discriminator(spec, shape), CPU)
    rng = stream(0, cell="x", purpose="init")
    initialise(generator.network, rng)
    initialise(discriminator.network, rng)
    pictures = generator.network(torch.zeros(2, spec.latent))
    assert pictures.shape == (2, 1, size, size)
    assert pictures.abs().max() <= 1
    assert discriminator.network(pictures).shape == (2,)


def test_perceptrons_make_and_judge_points():
    shape = PictureShape(1, 2)
    generator = Individual(build_generator(MlpNetworks(), shape), CPU)
    discriminator = Individual(build_discriminator(MlpNetworks(), shape), CPU)
    rng = stream(0, cell="x", purpose="init")
    initialise(generator.network, rng)
    initialise(discriminator.network, rng)
    z_BZ = rng.standard_normal((5, 64), dtype="float32")
    points = generator.network(torch.from_numpy(z_BZ))
    assert points.shape == (5, 2, 1, 1)
    assert discriminator.network(points).shape == (5,)
    drawn = generate(generator.network, z_BZ)
    assert drawn.shape == (5, 1, 1, 2)
    torch.testing.assert_close(
        to_floats(torch.from_numpy(drawn)), points.detach(), atol=1 / 255 + 1e-6, rtol=0
    )


def test_batchnorm_eps_is_the_papers_and_the_first_is_torchs():
    generator = build_generator(DcganNetworks(), PictureShape(32, 3))
    assert generator.norm.eps == 1e-5
    assert {block.norm.eps for block in generator.blocks} == {0.8}
    discriminator = build_discriminator(DcganNetworks(), PictureShape(32, 3))
    assert {block.norm.eps for block in discriminator.blocks[1:]} == {0.8}


def test_pictures_leave_the_generator_channels_last():
    generator = Individual(build_generator(DcganNetworks(), PictureShape(16, 3)), CPU)
    pictures = generator.network(torch.zeros(2, 100))
    assert pictures.is_contiguous(memory_format=torch.channels_last)


def test_initial_weights_are_a_function_of_the_stream_alone():
    shape = PictureShape(8, 1)

    def fresh(seed: int) -> torch.Tensor:
        individual = Individual(build_generator(DcganNetworks(), shape), CPU)
        initialise(individual.network, stream(seed, cell="3", purpose="init"))
        return individual.record.clone()

    torch.manual_seed(1)
    first = fresh(0)
    torch.manual_seed(2)
    assert torch.equal(first, fresh(0))
    assert not torch.equal(first, fresh(1))


def test_initial_weights_are_uniform_within_one_over_root_fan_in():
    individual = Individual(build_generator(DcganNetworks(), PictureShape(32, 3)), CPU)
    initialise(individual.network, stream(0, cell="3", purpose="init"))
    weight = individual.network.linear.weight
    assert weight.abs().max() <= 0.1
    assert weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.01)
    assert torch.equal(individual.network.norm.weight, torch.ones(128))
    assert torch.equal(individual.network.norm.running_var, torch.ones(128))


def test_building_and_filling_networks_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    for spec in (DcganNetworks(), MlpNetworks(activation=Activation.LEAKY_RELU)):
        for build in (build_generator, build_discriminator):
            individual = Individual(build(spec, PictureShape(8, 1)), CPU)
            initialise(individual.network, stream(0, cell="x", purpose="init"))
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_happens_exactly_when_factors_are_given():
    discriminator = Individual(build_discriminator(DcganNetworks(), PictureShape(8, 1)), CPU)
    network = discriminator.network
    initialise(network, stream(0, cell="x", purpose="init"))
    network.eval()
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert network.dropout_width == 16 + 32 + 64 + 128
    ones = torch.ones(4, network.dropout_width)
    torch.testing.assert_close(network(x), network(x, ones))
    dropped = network(x, torch.zeros(4, network.dropout_width))
    assert not torch.allclose(dropped, network(x))
    assert torch.allclose(dropped, dropped[0].expand(4))  # Nothing of the picture is left.
