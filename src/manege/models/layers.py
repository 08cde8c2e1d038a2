"""Layers that torch lacks in the form we need: no hidden randomness, no hidden state, and fast.

Shape legend: B pictures, C channels, H W sides, I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manege.config import Activation

SLOPE = 0.2
"""The slope below 0 of every LeakyReLU in both papers."""


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply the non-linearity; it may reuse the storage of `x`, an intermediate result."""
    match activation:
        case Activation.LEAKY_RELU:
            return F.leaky_relu_(x, SLOPE)
        case Activation.RELU:
            return F.relu_(x)
        case Activation.SILU:
            return F.silu(x)
        case Activation.TANH:
            return tanh_(x)


def tanh_(x: Tensor) -> Tensor:
    """Apply tanh in place, by way of the sigmoid: tanh x = 2σ(2x) - 1, to 2e-7.

    torch's own vector code for tanh takes more than twice as long, which for a perceptron is a
    tenth of a training step.
    """
    result: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2).sigmoid_().mul_(2).sub_(1)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        passed: Tensor = torch.ops.aten.tanh_backward(gradient, y)
        return passed


class UpsampleConv(nn.Module):
    """Nearest-neighbour ×2 followed by a 3×3 convolution, as one transposed convolution.

    Doubling repeats every pixel, so several of the nine taps always meet the same pixel. Summing
    those taps first leaves a 4×4 kernel of stride 2: 16 instead of 36 multiplications for each
    low-resolution pixel, with the same result. The parameters stay the 3×3 ones of the paper.
    """

    def __init__(self, inputs: int, outputs: int, *, normalised: bool = False) -> None:
        """Make a layer without storage.

        Args:
            inputs: channels that come in.
            outputs: channels that go out.
            normalised: BatchNorm follows and takes every constant away again. The bias then stays
                as it is: its gradient is nothing but rounding, and costs a pass over the maps.
        """
        super().__init__()
        self.normalised = normalised
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x_BIHW: Tensor) -> Tensor:
        """Return the upsampled and convolved maps, twice as large."""
        bias = self.bias.detach() if self.normalised else self.bias
        return F.conv_transpose2d(x_BIHW, spread_kernel(self.weight), bias, stride=2, padding=1)


def spread_kernel(weight_OI33: Tensor) -> Tensor:
    """Return the I×O×4×4 kernel of the transposed convolution that equals upsample + 3×3 one.

    Made channels last in memory, as the convolution wants it: it would copy it each time.
    """
    outputs, inputs = weight_OI33.shape[:2]
    taps_I9O = weight_OI33.reshape(outputs, inputs * 9).t().contiguous().view(inputs, 9, outputs)
    spread_I16O = _spread_matrix(weight_OI33.dtype, weight_OI33.device) @ taps_I9O
    return spread_I16O.view(inputs, 4, 4, outputs).permute(0, 3, 1, 2)


# Per axis the taps (a, b, c) become (c, b+c, a+b, a); both axes together are a 16×9 matrix.
_AXIS = np.array([[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]])
_SPREAD: list[list[int]] = np.kron(_AXIS, _AXIS).tolist()


def _spread_matrix(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix that takes the nine taps of a 3×3 kernel to the sixteen of a 4×4 one."""
    return constant("spread", _SPREAD, dtype, device)


_constants: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}


def constant(
    name: str, values: float | list[list[int]], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return a named constant as a tensor, which is made once.

    One made while torch follows the program, as `torch.export` does, is not kept: it has no
    numbers, and would break whatever is computed later. So would one made for inference alone.
    """
    found = _constants.get((name, dtype, device))
    if found is None:
        found = torch.tensor(values, dtype=dtype, device=device)
        followed = type(found) is not Tensor or torch.compiler.is_compiling()
        if not followed and not found.is_inference():
            _constants[name, dtype, device] = found
    return found


class SpectralLayer(nn.Module):
    """A layer whose weight is divided by its spectral norm, where it is told to be.

    `u` is an estimate of the weight's first left singular vector. Only
    `power_iteration_` changes it, so that a forward pass has no side effect, training or not.
    """

    weight: Tensor
    u: Tensor | None

    @torch.no_grad()
    def power_iteration_(self) -> None:
        """Bring the estimate `u` one power iteration nearer."""
        if self.u is not None:
            matrix = self.weight.flatten(1)
            v = F.normalize(matrix.t() @ self.u, dim=0)
            self.u.copy_(F.normalize(matrix @ v, dim=0))

    def bounded_weight(self) -> Tensor:
        """Return the weight, divided by its norm as far as `u` tells it."""
        if self.u is None:
            return self.weight
        matrix = self.weight.flatten(1)
        with torch.no_grad():
            v = F.normalize(matrix.t() @ self.u, dim=0)
        return self.weight / torch.dot(self.u, matrix @ v)


class Conv(nn.Conv2d, SpectralLayer):
    """A convolution that keeps the side, or halves it with stride 2."""

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, spectral: bool = False
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
        self.register_buffer("u", torch.empty(outputs) if spectral else None)

    def forward(self, x_BIHW: Tensor) -> Tensor:
        """Return the convolved maps."""
        weight = self.bounded_weight()
        return F.conv2d(x_BIHW, weight, self.bias, self.stride, self.padding)


class ConvPool(Conv):
    """A 3×3 convolution followed by 2×2 averaging, as one convolution of stride 2.

    Averaging sums four overlapping 3×3 windows: together a 4×4 window, 16 instead of 36
    multiplications for each pixel that is left.
    """

    def forward(self, x_BIHW: Tensor) -> Tensor:
        """Return the convolved and averaged maps, half as large."""
        # The same kernel as of upsampling, transposed and turned, a quarter of it.
        kernel_OI44 = spread_kernel(self.bounded_weight()).flip(2, 3).transpose(0, 1) / 4
        return F.conv2d(x_BIHW, kernel_OI44, self.bias, stride=2, padding=1)


class Dense(nn.Linear, SpectralLayer):
    """A linear layer that may have a spectral norm."""

    def __init__(self, inputs: int, outputs: int, *, spectral: bool = False) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("u", torch.empty(outputs) if spectral else None)

    def forward(self, x_BI: Tensor) -> Tensor:
        """Return the linear map of every row."""
        return F.linear(x_BI, self.bounded_weight(), self.bias)


class Embed(nn.Embedding, SpectralLayer):
    """A learnt row for each label, at first of this deviation."""

    def __init__(
        self, labels: int, width: int, deviation: float = 1.0, *, spectral: bool = False
    ) -> None:
        super().__init__(labels, width)
        self.deviation = deviation
        self.register_buffer("u", torch.empty(labels) if spectral else None)

    def reset_parameters(self) -> None:
        """Do nothing: `initialise` fills it, and torch's own way imports its compiler for that."""

    def forward(self, labels_B: Tensor) -> Tensor:
        """Return the labels' rows, B×width."""
        return F.embedding(labels_B, self.bounded_weight())


class LastConv(nn.Conv2d):
    """A 3×3 convolution to one or three channels, computed as the transposed one it equals.

    With so few outputs the kernel chosen for the weight's gradient is four times slower in the
    ordinary form.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, x_BIHW: Tensor) -> Tensor:
        """Return the convolved pictures."""
        kernel = self.weight.flip(2, 3).transpose(0, 1)
        return F.conv_transpose2d(x_BIHW, kernel, self.bias, padding=1)


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose only state is floats: torch's batch counter decides nothing at momentum 0.1.

    An integer buffer would not fit into an individual's flat record.
    """

    def __init__(self, channels: int, *, eps: float) -> None:
        super().__init__(channels, eps=eps, momentum=0.1)
        self.num_batches_tracked = None
        self.running_mean: Tensor
        self.running_var: Tensor


def scale_channels(x_BCHW: Tensor, factor_BC: Tensor) -> Tensor:
    """Multiply every channel of every picture by its factor: dropout by channel, mask given."""
    return x_BCHW * factor_BC[:, :, None, None]
