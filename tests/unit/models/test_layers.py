"""The fast layers are the plain ones, to the last bits of a double."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manege.models.layers import BatchNorm2d, LastConv, UpsampleConv, spread_kernel


def _layer(kind: type[UpsampleConv] | type[LastConv], inputs: int, outputs: int):
    layer = kind(inputs, outputs).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
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


def test_batchnorm_has_no_state_but_floats():
    norm = BatchNorm2d(4, eps=0.8)
    norm(torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0)))
    assert {tensor.dtype for tensor in norm.state_dict().values()} == {torch.float32}
    assert norm.eps == 0.8
