"""The networks of the papers: sizes, counts, and no randomness of their own."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.generators import global_generators_left_alone
from tests.helpers.plain_form import doubles, plain

from manege.cell import Individual
from manege.config import (
    SIZES,
    Activation,
    DcganNetworks,
    MlpNetworks,
    ResnetNetworks,
    stream,
)
from manege.models import (
    PictureShape,
    build_discriminator,
    build_generator,
    fill,
    generate,
    initialise,
    to_floats,
    with_label,
)
from manege.models.networks import EMBEDDED

CPU = torch.device("cpu")
LABELS = 3

SMALL = (
    DcganNetworks(latent=5, generator_width=6, discriminator_width=4),
    DcganNetworks(
        latent=5,
        generator_width=4,
        discriminator_width=2,
        discriminator_batchnorm=False,
        dropout=0.0,
        activation=Activation.SILU,
    ),
    ResnetNetworks(latent=5, generator_width=6, discriminator_width=4),
    MlpNetworks(latent=5, hidden=7),
)
EVERY_KIND = pytest.mark.parametrize("spec", SMALL, ids=["dcgan", "dcgan bare", "resnet", "mlp"])


def _filled(network: torch.nn.Module, seed: int = 0):
    """The network of an individual, its weights drawn."""
    individual = Individual(network, CPU)
    initialise(individual.network, stream(seed, cell="x", purpose="init"))
    return individual.network


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


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
@pytest.mark.parametrize(
    "spec", [DcganNetworks(), SMALL[2], MlpNetworks()], ids=["dcgan", "resnet", "mlp"]
)
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


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 12, 20, 28, 32, 48, 64, 128])
@EVERY_KIND
def test_every_kind_makes_and_judges_pictures_of_a_size(spec, size, channels):
    shape = PictureShape(size, channels)
    for labels, spectral in ((0, False), (LABELS, True)):
        generator = _filled(build_generator(spec, shape, labels))
        bounded = spectral and getattr(spec, "discriminator_batchnorm", False) is False
        discriminator = _filled(build_discriminator(spec, shape, labels, spectral=bounded))
        chosen = torch.tensor([2, 0]) if labels else None
        z = _noise(2, 5).float()
        pictures = generator(z, chosen)
        assert pictures.shape == (2, channels, size, size)
        assert pictures.abs().max() <= 1
        assert pictures.std() > 1e-4
        assert not torch.equal(pictures[0], pictures[1])
        values = discriminator(pictures, None, chosen)
        assert values.shape == (2,)
        assert values.isfinite().all()
        if spec.kind != "mlp":
            assert pictures.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("size", "start", "doublings", "halved"),
    [(8, 2, 2, 1), (12, 3, 2, 1), (20, 5, 2, 2), (32, 8, 2, 4), (48, 6, 3, 3), (128, 8, 4, 4)],
)
def test_the_residual_pair_doubles_and_halves_with_the_picture(size, start, doublings, halved):
    shape = PictureShape(size, 3)
    generator = build_generator(ResnetNetworks(), shape)
    assert (generator.start, len(generator.blocks)) == (start, doublings)
    assert generator.out.weight.shape == (3, 64, 3, 3)
    discriminator = build_discriminator(ResnetNetworks(), shape)
    widths = [block.pool.weight.shape[0] for block in discriminator.blocks]
    assert widths == [32 << k for k in range(doublings + 1)]
    x = torch.empty(1, 3, size, size, device="meta")
    for block in discriminator.blocks:
        x = block(x)
    assert x.shape == (1, widths[-1], halved, halved)
    assert discriminator.linear.in_features == widths[-1]
    assert discriminator.dropout_width == 0
    assert not list(discriminator.buffers())


def test_the_convolutional_pairs_options_are_its_own():
    spec = DcganNetworks(
        generator_width=10, discriminator_width=6, discriminator_batchnorm=False, dropout=0.0
    )
    generator = build_generator(spec, PictureShape(32, 3))
    assert generator.linear.weight.shape == (10 * 64, 100)
    assert [tuple(b.conv.weight.shape[:2]) for b in generator.blocks] == [(10, 10), (5, 10)]
    discriminator = build_discriminator(spec, PictureShape(32, 3))
    widths = [block.conv.weight.shape[0] for block in discriminator.blocks]
    assert widths == [6, 12, 24, 48]
    assert all(block.norm is None for block in discriminator.blocks)
    assert discriminator.dropout_width == 0
    assert not list(discriminator.buffers())
    assert build_discriminator(
        DcganNetworks(discriminator_width=6), PictureShape(32, 3)
    ).dropout_width == sum(widths)


@pytest.mark.parametrize(
    ("size", "last_stride", "inputs"), [(32, 2, 512), (32, 1, 2048), (64, 2, 2048)]
)
def test_the_last_layer_has_the_2048_inputs_of_table_2_where_its_maps_are_4x4(
    size, last_stride, inputs
):
    spec = DcganNetworks(last_stride=last_stride)
    assert build_discriminator(spec, PictureShape(size, 3)).linear.in_features == inputs


@pytest.mark.parametrize("last_stride", [1, 2])
def test_dropout_by_element_has_a_factor_for_every_value_of_the_maps(last_stride):
    spec = DcganNetworks(
        discriminator_width=2,
        discriminator_batchnorm=False,
        dropout_by="element",
        last_stride=last_stride,
    )
    with doubles():
        network = _filled(build_discriminator(spec, PictureShape(12, 1)))
    sides = [6, 3, 2, 2 if last_stride == 1 else 1]
    assert network.factors == [(2 << k) * side**2 for k, side in enumerate(sides)]
    assert network.dropout_width == sum(network.factors)
    x = _noise(3, 1, 12, 12).contiguous(memory_format=torch.channels_last)
    ones = torch.ones(3, network.dropout_width).double()
    torch.testing.assert_close(network(x), network(x, ones))
    factors = _noise(3, network.dropout_width, seed=1)
    torch.testing.assert_close(network(x, factors), plain(network)(x, factors), rtol=0, atol=1e-12)


def test_keys_that_earlier_versions_lack_count_only_where_they_are_set():
    """Else old runs and models would have other digests."""
    assert not {"dropout_by", "last_stride"} & set(DcganNetworks().model_dump())
    both = {"dropout_by": "element", "last_stride": 1}
    assert both.items() <= DcganNetworks(**both).model_dump().items()
    assert DcganNetworks(**DcganNetworks(**both).model_dump()) == DcganNetworks(**both)


def _compare_with_plain(spec, size: int, channels: int, labels: int, *, spectral: bool) -> None:
    """Values of both networks and gradients of all weights and of the latents, in doubles."""
    shape = PictureShape(size, channels)
    with doubles():
        ours = (
            _filled(build_generator(spec, shape, labels)),
            _filled(build_discriminator(spec, shape, labels, spectral=spectral)),
        )
    with torch.no_grad():  # Fresh weights hardly bend anything.
        for network in ours:
            for parameter in network.parameters():
                parameter.mul_(1.5)
    forms = [ours, tuple(plain(network) for network in ours)]
    chosen = torch.tensor([1, 0, 2, 1, 1]) if labels else None
    found = []
    for generator, discriminator in forms:
        z = _noise(5, 5).requires_grad_()
        pictures = generator(z, chosen)
        values = discriminator(pictures, None, chosen)
        (values * _noise(5, seed=3)).sum().backward()
        slopes = {
            f"{place}.{name}": parameter.grad
            for place, network in enumerate((generator, discriminator))
            for name, parameter in network.named_parameters()
        }
        found.append({"pictures": pictures, "values": values, "z": z.grad} | slopes)
    one, other = found
    assert set(one) == set(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-9, msg=name)
    assert one["z"].abs().max() > 1e-9


@pytest.mark.parametrize("labels", [0, LABELS])
@pytest.mark.parametrize("activation", Activation)
@EVERY_KIND
def test_every_pair_equals_its_plain_form_with_every_activation_in_double(spec, activation, labels):
    bent = spec.model_copy(update={"activation": activation})
    free = getattr(spec, "discriminator_batchnorm", False) is False
    _compare_with_plain(bent, 8, 1, labels, spectral=free and labels > 0)


@pytest.mark.parametrize(("size", "channels"), [(12, 3), (20, 1), (28, 3), (48, 1)])
@pytest.mark.parametrize("spec", SMALL[1:3], ids=["dcgan bare", "resnet"])
def test_pairs_equal_their_plain_form_on_odd_maps_too(spec, size, channels):
    _compare_with_plain(spec, size, channels, 0, spectral=True)


@EVERY_KIND
def test_a_generator_with_a_label_built_in_draws_what_the_conditional_one_does(spec):
    shape = PictureShape(12, 3)
    conditional = _filled(build_generator(spec, shape, LABELS))
    with torch.no_grad():  # Statistics of its own, as after training.
        for _ in range(3):
            conditional(_noise(6, 5).float(), torch.tensor([0, 1, 2, 0, 1, 2]))
    conditional.eval()
    tensors = {name: tensor.detach() for name, tensor in conditional.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    z = _noise(4, 5, seed=8)
    drawn = []
    for label in range(LABELS):
        baked = with_label(tensors, label)
        ordinary = build_generator(spec, shape)
        fill(ordinary, baked)  # Refuses names and shapes that are not an ordinary generator's.
        assert all(tensor.is_contiguous() for tensor in baked.values())
        ordinary.double().eval()
        wide = build_generator(spec, shape, LABELS)
        fill(wide, tensors)
        wide.double().eval()
        # The bias was added up in float32; in doubles the same sum is the same picture.
        first = "linear" if "linear.weight" in baked else "body.layers.0"
        exact = with_label({name: tensor.double() for name, tensor in tensors.items()}, label)
        rounded = ordinary.get_parameter(f"{first}.bias")
        torch.testing.assert_close(rounded.detach(), exact[f"{first}.bias"], rtol=0, atol=1e-6)
        with torch.no_grad():
            rounded.copy_(exact[f"{first}.bias"])
            wanted = wide(z, torch.full((4,), label))
            torch.testing.assert_close(ordinary(z), wanted, rtol=0, atol=1e-9)
        drawn.append(wanted)
    assert not torch.allclose(drawn[0], drawn[1], atol=1e-4)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in tensors.items())


@EVERY_KIND
@pytest.mark.parametrize("spectral", [False, True])
def test_a_conditional_discriminator_projects_its_features_on_the_labels_row(spec, spectral):
    """f(x, y) = w·φ(x) + b + v_y·φ(x), Miyato & Koyama 2018, eq. (3)."""
    shape = PictureShape(12, 3)
    with doubles():
        network = _filled(build_discriminator(spec, shape, LABELS, spectral=spectral))
    network.eval()
    seen = []
    network.linear.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    x = torch.tanh(_noise(6, 3, 12, 12)).contiguous(memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    values = network(x, None, labels)
    (features,) = seen
    weight, rows = network.linear.bounded_weight(), network.embed.bounded_weight()
    assert rows.shape == (LABELS, features.shape[1])
    for picture in range(6):
        wanted = (
            weight[0] @ features[picture]
            + network.linear.bias[0]
            + rows[labels[picture]] @ features[picture]
        )
        torch.testing.assert_close(values[picture], wanted, rtol=0, atol=1e-9)
    other = network(x, None, (labels + 1) % LABELS)
    assert (other - values).abs().min() > 0


def test_a_label_is_a_row_beside_the_latent():
    network = _filled(build_generator(SMALL[2], PictureShape(8, 1), LABELS))
    assert network.embed.weight.shape == (LABELS, EMBEDDED)
    z, labels = _noise(4, 5).float(), torch.tensor([2, 0, 1, 2])
    rows = network.inputs(z, labels)
    assert torch.equal(rows[:, :5], z)
    assert torch.equal(rows[:, 5:], network.embed.weight[labels])
    with pytest.raises(AssertionError, match="needs labels"):
        network(z)
    with pytest.raises(AssertionError, match="needs labels"):
        _filled(build_discriminator(SMALL[2], PictureShape(8, 1), LABELS))(torch.zeros(1, 1, 8, 8))


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


def _builds(spec, shape: PictureShape):
    """Every network of a kind: conditional or not, spectral or not."""
    for labels in (0, LABELS):
        yield lambda labels=labels: build_generator(spec, shape, labels)
        for spectral in (False, True):
            yield lambda labels=labels, spectral=spectral: build_discriminator(
                spec, shape, labels, spectral=spectral
            )


@EVERY_KIND
def test_filling_a_network_sets_everything_whatever_was_there_before(spec):
    for build in _builds(spec, PictureShape(12, 3)):
        records = []
        for garbage in (float("nan"), 1e30):
            individual = Individual(build(), CPU)
            individual.body.fill_(garbage)
            initialise(individual.network, stream(4, cell="x", purpose="init"))
            tensors = [*individual.network.parameters(), *individual.network.buffers()]
            assert all(tensor.isfinite().all() for tensor in tensors)
            assert max(tensor.abs().max().item() for tensor in tensors) < 10
            records.append(torch.cat([tensor.detach().flatten() for tensor in tensors]))
        assert torch.equal(*records)
        other = Individual(build(), CPU)
        initialise(other.network, stream(5, cell="x", purpose="init"))
        weights = [
            (name, one, dict(other.network.named_parameters())[name])
            for name, one in individual.network.named_parameters()
            if "norm" not in name
        ]
        assert weights
        assert not any(torch.equal(one, another) for _, one, another in weights)


def test_rows_of_labels_are_standard_normal():
    network = _filled(build_discriminator(DcganNetworks(), PictureShape(32, 3), 10))
    rows = network.embed.weight
    assert rows.shape == (10, 512)
    assert rows.mean().item() == pytest.approx(0, abs=0.05)
    assert rows.std().item() == pytest.approx(1, abs=0.05)


@EVERY_KIND
def test_building_and_filling_networks_leaves_the_global_generators_alone(spec):
    with global_generators_left_alone():
        for build in _builds(spec, PictureShape(8, 1)):
            individual = Individual(build(), CPU)
            initialise(individual.network, stream(0, cell="x", purpose="init"))


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
