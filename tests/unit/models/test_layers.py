"""The fast layers are the plain ones, to the last bits of a double."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.plain_form import ACTIVATIONS, doubles
from torch import Tensor, nn
from torch.nn import functional as F

from manege.config import Activation
from manege.models.layers import (
    BatchNorm2d,
    Conv,
    ConvPool,
    Dense,
    Embed,
    LastConv,
    SpectralLayer,
    UpsampleConv,
    activate,
    spread_kernel,
)


def _layer(kind: type[nn.Module], *args: int, **options):
    with doubles():
        layer = kind(*args, **options)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    if getattr(layer, "u", None) is not None:
        layer.u.copy_(F.normalize(torch.randn(layer.u.shape, generator=generator), dim=0))
    return layer


def _pictures(channels: int, side: int) -> Tensor:
    x = torch.randn(3, channels, side, side, generator=torch.Generator().manual_seed(2)).double()
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


def _gradients(y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).double()
    return torch.autograd.grad(y, inputs, weights)


def _assert_same(fast: Tensor, plain: Tensor, *inputs: Tensor) -> None:
    """Equal values, and equal gradients with respect to the inputs."""
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-9)
    for ours, theirs in zip(_gradients(fast, *inputs), _gradients(plain, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("inputs", "outputs", "side"), [(1, 1, 1), (5, 3, 2), (8, 4, 7)])
def test_upsampling_convolution_equals_upsampling_then_convolution(inputs, outputs, side):
    layer, x = _layer(UpsampleConv, inputs, outputs), _pictures(inputs, side)
    fast = layer(x)
    doubled = F.interpolate(x, scale_factor=2, mode="nearest")
    plain = F.conv2d(doubled, layer.weight, layer.bias, padding=1)
    assert fast.shape == (3, outputs, 2 * side, 2 * side)
    _assert_same(fast, plain, x, layer.weight, layer.bias)


def _divided(layer: SpectralLayer) -> Tensor:
    """W / uᵀWv as the paper writes it; v from u, and both constant."""
    if layer.u is None:
        return layer.weight
    matrix = layer.weight.reshape(layer.weight.shape[0], -1)
    v = matrix.detach().T @ layer.u
    v = v / v.norm()
    return layer.weight / (layer.u @ (matrix @ v))


@pytest.mark.parametrize("spectral", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs", "side"), [(1, 1, 2), (3, 2, 3), (5, 3, 5), (4, 6, 8), (2, 3, 9)]
)
def test_averaging_convolution_equals_convolution_then_averaging(inputs, outputs, side, spectral):
    layer, x = _layer(ConvPool, inputs, outputs, spectral=spectral), _pictures(inputs, side)
    fast = layer(x)
    plain = F.avg_pool2d(F.conv2d(x, _divided(layer), layer.bias, padding=1), 2)
    assert fast.shape == (3, outputs, side // 2, side // 2)
    _assert_same(fast, plain, x, layer.weight, layer.bias)


@pytest.mark.parametrize("spectral", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "side"), [(3, 1, 5), (3, 2, 6), (3, 2, 7), (1, 1, 4)])
def test_a_convolution_is_torchs_with_its_weight_divided(kernel, stride, side, spectral):
    layer = _layer(Conv, 3, 4, kernel=kernel, stride=stride, spectral=spectral)
    x = _pictures(3, side)
    plain = F.conv2d(x, _divided(layer), layer.bias, stride, kernel // 2)
    fast = layer(x)
    assert fast.shape[2] == (side if stride == 1 else (side + 1) // 2)
    _assert_same(fast, plain, x, layer.weight, layer.bias)


@pytest.mark.parametrize("spectral", [False, True])
def test_linear_layers_and_rows_are_torchs_with_their_weight_divided(spectral):
    dense, embed = (
        _layer(Dense, 5, 3, spectral=spectral),
        _layer(Embed, 4, 6, spectral=spectral),
    )
    x = _pictures(5, 1).flatten(1)
    _assert_same(dense(x), x @ _divided(dense).T + dense.bias, x, dense.weight, dense.bias)
    labels = torch.tensor([2, 0, 2, 3])
    _assert_same(embed(labels), _divided(embed)[labels], embed.weight)


def test_last_convolution_equals_the_ordinary_one():
    layer, x = _layer(LastConv, 6, 3), _pictures(6, 5)
    fast, plain = layer(x), F.conv2d(x, layer.weight, layer.bias, padding=1)
    _assert_same(fast, plain, x, layer.weight, layer.bias)


def test_the_spread_kernel_sums_the_taps_that_meet_one_pixel():
    a, b, c = 1.0, 10.0, 100.0
    taps = torch.tensor([a, b, c])
    kernel = spread_kernel(torch.outer(taps, taps).view(1, 1, 3, 3))[0, 0]
    axis = torch.tensor([c, b + c, a + b, a])
    assert torch.equal(kernel, torch.outer(axis, axis))


@pytest.mark.parametrize("activation", Activation)
def test_activations_are_the_formulas_and_bend_twice_as_they_should(activation):
    """In place or not: a penalised gradient differentiates them again."""
    x = torch.linspace(-3, 3, 13, dtype=torch.float64).add(0.01).requires_grad_()
    found, wanted = activate(1 * x, activation), ACTIVATIONS[activation](1 * x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    slopes = [torch.autograd.grad(y.sum(), x, create_graph=True)[0] for y in (found, wanted)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=1e-12)
    bends = [
        torch.autograd.grad(slope.square().sum(), x, allow_unused=True)[0]
        if slope.requires_grad
        else None
        for slope in slopes
    ]
    ready = [torch.zeros_like(x) if bend is None else bend for bend in bends]
    torch.testing.assert_close(ready[0], ready[1], rtol=0, atol=1e-12)
    assert ready[0].any() == (activation in (Activation.SILU, Activation.TANH))


LAYERS = {
    "upsample": (UpsampleConv, (2, 3), {}),
    "last": (LastConv, (2, 3), {}),
    "conv": (Conv, (2, 3), {"stride": 2, "spectral": True}),
    "pool": (ConvPool, (2, 3), {}),
    "pool, spectral": (ConvPool, (2, 3), {"spectral": True}),
    "dense, spectral": (Dense, (2 * 5 * 5, 3), {"spectral": True}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_can_be_differentiated_twice(name):
    kind, args, options = LAYERS[name]
    layer = _layer(kind, *args, **options)
    x = _pictures(2, 5).detach()

    def value(pictures: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        inputs = pictures.flatten(1) if kind is Dense else pictures
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (inputs,))

    inputs = tuple(
        one.detach().clone().requires_grad_() for one in (x[:1], layer.weight, layer.bias)
    )
    assert torch.autograd.gradcheck(value, inputs, fast_mode=True)
    if getattr(layer, "u", None) is None:
        assert torch.autograd.gradgradcheck(value, inputs, fast_mode=True)
    else:
        # uᵀWv = |Wᵀu|, so v may be held constant once, but not twice: only pictures' gradients
        # are ever differentiated again.
        weights = inputs[1:]
        assert torch.autograd.gradgradcheck(
            lambda pictures: value(pictures, *weights), inputs[:1], fast_mode=True
        )


SPECTRAL = {
    "conv": (Conv, (5, 4), {}),
    "strided": (Conv, (3, 8), {"stride": 2}),
    "1x1": (Conv, (6, 4), {"kernel": 1}),
    "pool": (ConvPool, (4, 6), {}),
    "dense": (Dense, (7, 1), {}),
    "wide dense": (Dense, (7, 5), {}),
    "rows": (Embed, (5, 9), {}),
}


def _spectral(name: str) -> SpectralLayer:
    kind, args, options = SPECTRAL[name]
    return _layer(kind, *args, **options, spectral=True)


def _input(layer: SpectralLayer) -> Tensor:
    if isinstance(layer, Embed):
        return torch.tensor([0, 3, 1])
    if isinstance(layer, Dense):
        return _pictures(layer.in_features, 1).flatten(1)
    return _pictures(layer.in_channels, 6)


@pytest.mark.parametrize("name", SPECTRAL)
def test_the_largest_singular_value_of_a_sharpened_layer_is_one(name):
    layer = _spectral(name)
    matrix = layer.weight.detach().flatten(1).numpy()
    before = np.linalg.svd(layer.bounded_weight().detach().flatten(1).numpy(), compute_uv=False)
    assert before[0] > 1 - 1e-9  # u tells at most the norm.
    for _ in range(1000):
        layer.power_iteration_()
    values = np.linalg.svd(layer.bounded_weight().detach().flatten(1).numpy(), compute_uv=False)
    assert values[0] == pytest.approx(1, abs=1e-9)
    # And it is the weight still, but for its length.
    left, top, _ = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(
        layer.bounded_weight().detach().flatten(1).numpy() * top[0], matrix, rtol=1e-7, atol=1e-9
    )
    assert abs(left[:, 0] @ layer.u.numpy()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("name", SPECTRAL)
def test_sharpening_is_one_power_iteration_and_changes_nothing_but_u(name):
    layer = _spectral(name)
    weight, matrix, u = layer.weight.detach().clone(), layer.weight.flatten(1).detach(), layer.u
    before, place = u.clone(), u.data_ptr()
    layer.power_iteration_()
    v = matrix.T @ before
    wanted = matrix @ v
    torch.testing.assert_close(layer.u, wanted / wanted.norm(), rtol=0, atol=1e-12)
    assert layer.u.data_ptr() == place
    assert torch.equal(layer.weight, weight)
    assert layer.u.requires_grad is False
    if len(u) > 1:
        assert not torch.equal(before, layer.u)


@pytest.mark.parametrize("name", SPECTRAL)
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
def test_a_forward_and_a_backward_pass_change_no_buffer(name, mode):
    layer = _spectral(name)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.train(mode == "train")
    with torch.set_grad_enabled(mode != "no_grad"):
        first = layer(_input(layer))
        second = layer(_input(layer))
    assert torch.equal(first, second)
    if mode != "no_grad":
        (first.sum() + second.square().sum()).backward()
    assert set(before) >= {"weight", "u"}
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", SPECTRAL)
def test_the_gradient_through_the_norm_is_the_formulas(name):
    """For L = ⟨G, W/σ⟩ with σ = uᵀWv: G/σ - ⟨G, W⟩/σ² uvᵀ."""
    layer = _spectral(name)
    weight = layer.weight.detach()
    pull = torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)).double()
    (found,) = torch.autograd.grad(layer.bounded_weight(), layer.weight, pull)
    (by_torch,) = torch.autograd.grad(_divided(layer), layer.weight, pull)
    torch.testing.assert_close(found, by_torch, rtol=0, atol=1e-9)
    matrix = weight.flatten(1)
    v = F.normalize(matrix.T @ layer.u, dim=0)
    sigma = layer.u @ matrix @ v
    formula = pull / sigma - (pull * weight).sum() / sigma**2 * torch.outer(layer.u, v).view(
        weight.shape
    )
    torch.testing.assert_close(found, formula, rtol=0, atol=1e-9)


def test_a_layer_that_is_not_spectral_has_no_vector_and_is_not_sharpened():
    for kind, args, options in SPECTRAL.values():
        layer = _layer(kind, *args, **options)
        before = {key: value.clone() for key, value in layer.state_dict().items()}
        assert "u" not in before
        assert layer.bounded_weight() is layer.weight
        layer.power_iteration_()
        assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


def test_batchnorm_has_no_state_but_floats():
    norm = BatchNorm2d(4, eps=0.8)
    norm(torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0)))
    assert {tensor.dtype for tensor in norm.state_dict().values()} == {torch.float32}
    assert norm.eps == 0.8
