"""Layers that torch lacks in the form we need: no hidden randomness, no hidden state, and fast.

Shape legend: B pictures, C channels, H W sides, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SLOPE = 0.2
"""Of every LeakyReLU in both papers."""


class UpsampleConv(nn.Module):
    """Nearest-neighbour ×2 followed by a 3×3 convolution, as one transposed convolution.

    Doubling repeats every pixel, so several of the nine taps always meet the same pixel. Summing
    those taps first leaves a 4×4 kernel of stride 2: 16 instead of 36 multiplications for each
    low-resolution pixel, with the same result. The parameters stay the 3×3 ones of the paper.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x_BIHW: Tensor) -> Tensor:
        """The upsampled and convolved pictures, twice as large."""
        return F.conv_transpose2d(
            x_BIHW, spread_kernel(self.weight), self.bias, stride=2, padding=1
        )


def spread_kernel(weight_OI33: Tensor) -> Tensor:
    """The I×O×4×4 kernel of the transposed convolution that equals upsample + 3×3 convolution.

    Made channels last in memory, as the convolution wants it: it would copy it each time.
    """
    outputs, inputs = weight_OI33.shape[:2]
    taps_I9O = weight_OI33.reshape(outputs, inputs * 9).t().contiguous().view(inputs, 9, outputs)
    spread_I16O = _spread_matrix(weight_OI33.dtype, weight_OI33.device) @ taps_I9O
    return spread_I16O.view(inputs, 4, 4, outputs).permute(0, 3, 1, 2)


@cache
def _spread_matrix(dtype: torch.dtype, device: torch.device) -> Tensor:
    # Per axis the taps (a, b, c) become (c, b+c, a+b, a); both axes together are a 16×9 matrix.
    axis = [[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]]
    rows = torch.tensor(axis, dtype=dtype, device=device)
    return torch.kron(rows, rows)


class LastConv(nn.Conv2d):
    """A 3×3 convolution to one or three channels, computed as the transposed one it equals.

    With so few outputs the kernel chosen for the weight's gradient is four times slower in the
    ordinary form.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, x_BIHW: Tensor) -> Tensor:
        """The convolved pictures."""
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
    """Every channel of every picture times its own factor: dropout by channel, its mask given."""
    return x_BCHW * factor_BC[:, :, None, None]
