"""Inception-v3 as released on 2015-12-05: the network that FID, KID and IS are defined with.

Maps bytes to the 2048 pooled features, resizing included, written for a CPU: batch norms are folded
into the convolutions once, and channels come last. `weights` says where the weights come from.

Shape legend: B pictures, C channels, S side, D dimensions, K outputs, T the side of 299.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from manege.metrics.resizing import bicubic, bilinear_tf1

SIDE = 299
DIMENSIONS = 2048
OUTPUTS = 1008
HEAD = "fc.weight"
"""The last layer, without its bias: the inception score was defined so (Salimans et al. 2016)."""

_EPSILON = 1e-3
"""Epsilon of the batch norms, which have no scale."""


@dataclass(frozen=True)
class InceptionConv:
    """A step of the network: a convolution without bias, its batch norm and a ReLU."""

    name: str
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    same: bool = False
    """Whether it is padded so that the side stays the same."""

    @property
    def padding(self) -> tuple[int, int]:
        """Return the rows and columns of zeros at each border."""
        return (self.kernel[0] // 2, self.kernel[1] // 2) if self.same else (0, 0)


@dataclass(frozen=True)
class InceptionPool:
    """A 3×3 pooling step; the mean counts only what lies inside the picture."""

    kind: Literal["max", "mean"]
    stride: int = 1

    @property
    def padding(self) -> int:
        """Return the padding: 1 where the step keeps the side, else 0."""
        return 1 if self.stride == 1 else 0


@dataclass(frozen=True)
class Fork:
    """Branches with the same input, whose outputs are concatenated along the channels."""

    branches: tuple[Chain, ...]


Chain = tuple["InceptionConv | InceptionPool | Fork", ...]
HALVE = InceptionPool("max", stride=2)


def _wide(name: str, outputs: int, *kernel: int, stride: int = 1) -> InceptionConv:
    both = (kernel[0], kernel[-1])
    return InceptionConv(name, outputs, both, stride, same=stride == 1)


def _block_a(name: str, pooled: int) -> Fork:
    return Fork(
        (
            (InceptionConv(f"{name}.branch1x1", 64),),
            (InceptionConv(f"{name}.branch5x5_1", 48), _wide(f"{name}.branch5x5_2", 64, 5)),
            (
                InceptionConv(f"{name}.branch3x3dbl_1", 64),
                _wide(f"{name}.branch3x3dbl_2", 96, 3),
                _wide(f"{name}.branch3x3dbl_3", 96, 3),
            ),
            (InceptionPool("mean"), InceptionConv(f"{name}.branch_pool", pooled)),
        )
    )


def _block_b(name: str) -> Fork:
    return Fork(
        (
            (_wide(f"{name}.branch3x3", 384, 3, stride=2),),
            (
                InceptionConv(f"{name}.branch3x3dbl_1", 64),
                _wide(f"{name}.branch3x3dbl_2", 96, 3),
                _wide(f"{name}.branch3x3dbl_3", 96, 3, stride=2),
            ),
            (HALVE,),
        )
    )


def _block_c(name: str, width: int) -> Fork:
    return Fork(
        (
            (InceptionConv(f"{name}.branch1x1", 192),),
            (
                InceptionConv(f"{name}.branch7x7_1", width),
                _wide(f"{name}.branch7x7_2", width, 1, 7),
                _wide(f"{name}.branch7x7_3", 192, 7, 1),
            ),
            (
                InceptionConv(f"{name}.branch7x7dbl_1", width),
                _wide(f"{name}.branch7x7dbl_2", width, 7, 1),
                _wide(f"{name}.branch7x7dbl_3", width, 1, 7),
                _wide(f"{name}.branch7x7dbl_4", width, 7, 1),
                _wide(f"{name}.branch7x7dbl_5", 192, 1, 7),
            ),
            (InceptionPool("mean"), InceptionConv(f"{name}.branch_pool", 192)),
        )
    )


def _block_d(name: str) -> Fork:
    return Fork(
        (
            (
                InceptionConv(f"{name}.branch3x3_1", 192),
                _wide(f"{name}.branch3x3_2", 320, 3, stride=2),
            ),
            (
                InceptionConv(f"{name}.branch7x7x3_1", 192),
                _wide(f"{name}.branch7x7x3_2", 192, 1, 7),
                _wide(f"{name}.branch7x7x3_3", 192, 7, 1),
                _wide(f"{name}.branch7x7x3_4", 192, 3, stride=2),
            ),
            (HALVE,),
        )
    )


def _block_e(name: str, kind: Literal["max", "mean"]) -> Fork:
    def crossed(begin: str) -> Fork:
        return Fork(
            (
                (_wide(f"{name}.{begin}a", 384, 1, 3),),
                (_wide(f"{name}.{begin}b", 384, 3, 1),),
            )
        )

    return Fork(
        (
            (InceptionConv(f"{name}.branch1x1", 320),),
            (InceptionConv(f"{name}.branch3x3_1", 384), crossed("branch3x3_2")),
            (
                InceptionConv(f"{name}.branch3x3dbl_1", 448),
                _wide(f"{name}.branch3x3dbl_2", 384, 3),
                crossed("branch3x3dbl_3"),
            ),
            (InceptionPool(kind), InceptionConv(f"{name}.branch_pool", 192)),
        )
    )


PLAN: Chain = (
    InceptionConv("Conv2d_1a_3x3", 32, (3, 3), stride=2),
    InceptionConv("Conv2d_2a_3x3", 32, (3, 3)),
    _wide("Conv2d_2b_3x3", 64, 3),
    HALVE,
    InceptionConv("Conv2d_3b_1x1", 80),
    InceptionConv("Conv2d_4a_3x3", 192, (3, 3)),
    HALVE,
    _block_a("Mixed_5b", 32),
    _block_a("Mixed_5c", 64),
    _block_a("Mixed_5d", 64),
    _block_b("Mixed_6a"),
    _block_c("Mixed_6b", 128),
    _block_c("Mixed_6c", 160),
    _block_c("Mixed_6d", 160),
    _block_c("Mixed_6e", 192),
    _block_d("Mixed_7a"),
    _block_e("Mixed_7b", "mean"),
    # The release takes the maximum here, not the mean as the paper does.
    _block_e("Mixed_7c", "max"),
)
"""The whole network; layers have their usual names."""


def shapes() -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor but the head, in the order of the network."""
    found: dict[str, tuple[int, ...]] = {}
    for conv, inputs in _convs(PLAN, 3):
        found[f"{conv.name}.weight"] = (conv.outputs, inputs, *conv.kernel)
        for part in ("beta", "mean", "var"):
            found[f"{conv.name}.{part}"] = (conv.outputs,)
    return found


class Inception:
    """The network with its weights, which takes pictures of any side.

    Args:
        tensors: as `shapes` lists them, maybe with the head.
        resize: what pictures are brought to 299 with, `bilinear_tf1` or `bicubic`.
    """

    dimensions = DIMENSIONS

    def __init__(
        self, tensors: Mapping[str, Tensor], resize: Callable[[int, int], np.ndarray] = bilinear_tf1
    ) -> None:
        self._folded = {conv.name: _folded(conv.name, tensors) for conv, _ in _convs(PLAN, 3)}
        self._head = tensors.get(HEAD)
        self._resize = resize

    @property
    def has_head(self) -> bool:
        """Return whether the last layer is there: without it there is no inception score."""
        return self._head is not None

    def features(self, bytes_BSSC: Tensor) -> Tensor:
        """Return the features B×2048 of pictures in bytes; grey ones fill all three channels."""
        x = self._chain(PLAN, self.prepared(bytes_BSSC))
        return x.mean((2, 3))

    def logits(self, features_BD: Tensor) -> Tensor | None:
        """Return the logits B×1008, or None without the head."""
        return None if self._head is None else features_BD @ self._head.T

    def prepared(self, bytes_BSSC: Tensor) -> Tensor:
        """Return the network's input B×3×299×299: (byte - 128) / 128 after resizing."""
        side = bytes_BSSC.shape[1]
        resize_TS = torch.from_numpy(self._resize(side, SIDE))
        x = resize_TS @ bytes_BSSC.permute(0, 3, 1, 2).float() @ resize_TS.T
        # A cubic may overshoot; a bilinear cannot, but for rounding.
        x = x.clamp_(0, 255).sub_(128).div_(128)
        return x.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)

    def _chain(self, chain: Chain, x: Tensor) -> Tensor:
        for step in chain:
            x = self._step(step, x)
        return x

    def _step(self, step: InceptionConv | InceptionPool | Fork, x: Tensor) -> Tensor:
        match step:
            case InceptionConv():
                weight, bias = self._folded[step.name]
                return F.relu_(F.conv2d(x, weight, bias, step.stride, step.padding))
            case InceptionPool(kind="max"):
                return F.max_pool2d(x, 3, step.stride, step.padding)
            case InceptionPool():
                return F.avg_pool2d(x, 3, step.stride, step.padding, count_include_pad=False)
            case Fork():
                return torch.cat([self._chain(branch, x) for branch in step.branches], 1)


def clean(tensors: Mapping[str, Tensor]) -> Inception:
    """Return the network of these weights behind an antialiased resize (Parmar et al. 2022)."""
    return Inception(tensors, bicubic)


def _convs(chain: Chain, inputs: int) -> Iterator[tuple[InceptionConv, int]]:
    """Yield every convolution with its number of inputs, in the order of the network."""
    for step in chain:
        match step:
            case InceptionConv():
                yield step, inputs
            case Fork():
                for branch in step.branches:
                    yield from _convs(branch, inputs)
        inputs = _outputs(step, inputs)


def _outputs(step: InceptionConv | InceptionPool | Fork, inputs: int) -> int:
    match step:
        case InceptionConv():
            return step.outputs
        case InceptionPool():
            return inputs
        case Fork():
            total = 0
            for branch in step.branches:
                channels = inputs
                for one in branch:
                    channels = _outputs(one, channels)
                total += channels
            return total


def _folded(name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the one convolution that equals convolution and batch norm."""
    weight, beta, mean, var = (
        tensors[f"{name}.{part}"].double() for part in ("weight", "beta", "mean", "var")
    )
    scale = (var + _EPSILON).rsqrt()
    folded = (weight * scale[:, None, None, None]).float()
    return folded.contiguous(memory_format=torch.channels_last), (beta - mean * scale).float()
