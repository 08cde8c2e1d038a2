"""EfficientNet-Lite0, frozen: pictures to maps of features, to a row of features, to classes.

The network of Tan & Le (2019) in the form for small devices: no squeeze-and-excitation, ReLU6.
BatchNorm is folded into the convolutions. Its weights are plain tensors that no optimiser and no
checkpoint knows; gradients pass through to the pictures and stop there.

Activations are channels last in memory, so that a 1×1 convolution is one matrix product and
nothing is copied in between; both passes are written out here for that.

Shape legend: B pictures, C channels, S side, N = B·S·S pixels, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
"""The kernel, stride of the first block, expansion, channels and blocks of each stage."""
WIDTHS = tuple(stage[3] for stage in STAGES)
"""Channels of the maps that each stage gives; they name the stages."""
DIMENSIONS, CLASSES = 1280, 1000
EPS = 1e-3
_STEM = 32
_TOP = 6.0
"""Where ReLU6 cuts values off."""
_SCALE, _SHIFT = 127.5 / 128, 0.5 / 128
"""From our pictures in [-1, 1] to what the network was trained on, (byte - 127) / 128."""


def halved(side: int) -> int:
    """Return the side of a map after a stride of 2, as TensorFlow pads it."""
    return -(-side // 2)


def sides(side: int) -> dict[int, int]:
    """Return the side of each stage's maps for pictures of a side, by the stage's channels."""
    strides = accumulate(STAGES, lambda at, stage: at * stage[1], initial=2)
    found = {}
    for width, stride in zip(WIDTHS, list(strides)[1:], strict=True):
        here = side
        for _ in range(stride.bit_length() - 1):
            here = halved(here)
        found[width] = here
    return found


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the folded network's tensors, in their order."""
    found: dict[str, tuple[int, ...]] = {"stem.weight": (_STEM, 3, 3, 3), "stem.bias": (_STEM,)}
    inputs, number = _STEM, 0
    for kernel, _, expansion, width, repeats in STAGES:
        for _ in range(repeats):
            inner, name = inputs * expansion, f"blocks.{number}"
            if expansion > 1:
                found[f"{name}.expand.weight"] = (inner, inputs, 1, 1)
                found[f"{name}.expand.bias"] = (inner,)
            found[f"{name}.depthwise.weight"] = (inner, 1, kernel, kernel)
            found[f"{name}.depthwise.bias"] = (inner,)
            found[f"{name}.project.weight"] = (width, inner, 1, 1)
            found[f"{name}.project.bias"] = (width,)
            inputs, number = width, number + 1
    found["head.weight"] = (DIMENSIONS, inputs, 1, 1)
    found["head.bias"] = (DIMENSIONS,)
    found["classes.weight"] = (CLASSES, DIMENSIONS)
    found["classes.bias"] = (CLASSES,)
    return found


_PUBLISHED = {
    "stem": ("_conv_stem", "_bn0"),
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
    "head": ("_conv_head", "_bn1"),
}
"""A layer, and what its convolution and its BatchNorm are called in the published file."""


def folded(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's tensors from a published state dict.

    Raise LookupError or ValueError for a state dict of another network.
    """
    tensors = {}
    for name, shape in shapes().items():
        layer, _, kind = name.rpartition(".")
        if layer == "classes":
            found = published[f"_fc.{kind}"]
        else:
            place, _, last = layer.rpartition(".")
            before = f"_{place}." if place else ""
            conv, norm = (f"{before}{one}" for one in _PUBLISHED[last])
            gamma, beta, mean, var = (
                published[f"{norm}.{one}"].double()
                for one in ("weight", "bias", "running_mean", "running_var")
            )
            scale = gamma / (var + EPS).sqrt()
            if kind == "weight":
                found = published[f"{conv}.weight"].double() * scale.view(-1, 1, 1, 1)
            else:
                found = beta - mean * scale
        if tuple(found.shape) != shape or not bool(torch.isfinite(found).all()):
            raise ValueError(f"{name} of {tuple(found.shape)}")
        tensors[name] = found.float().contiguous()
    return tensors


@dataclass(frozen=True, eq=False)
class _Pointwise:
    """A 1×1 convolution."""

    weight_IO: Tensor
    weight_OI: Tensor
    bias_O: Tensor

    def forward(self, x_NI: Tensor) -> Tensor:
        return torch.addmm(self.bias_O, x_NI, self.weight_IO)

    def backward(self, gradient_NO: Tensor) -> Tensor:
        return gradient_NO @ self.weight_OI


class _Conv:
    """A convolution as TensorFlow pads it ("same"): one more after than before, where it is odd.

    Padding of two lengths takes a copy. A kernel with one more row and column of zeros before it
    gives the same with the longer padding on all sides.
    """

    def __init__(self, weight: Tensor, bias: Tensor, stride: int, groups: int = 1) -> None:
        self.bias, self.stride, self.groups = bias, stride, groups
        self._weight = weight.contiguous(memory_format=torch.channels_last)
        self._wider = F.pad(weight, (1, 0, 1, 0)).contiguous(memory_format=torch.channels_last)

    def _form(self, side: int) -> tuple[Tensor, int]:
        """Return the kernel and the padding for a side."""
        kernel = self._weight.shape[-1]
        total = max((-(-side // self.stride) - 1) * self.stride + kernel - side, 0)
        return (self._wider, total // 2 + 1) if total % 2 else (self._weight, total // 2)

    def forward(self, x_BCSS: Tensor) -> Tensor:
        weight, padding = self._form(x_BCSS.shape[-1])
        return F.conv2d(x_BCSS, weight, self.bias, self.stride, padding, groups=self.groups)

    def backward(self, gradient: Tensor, x_BCSS: Tensor) -> Tensor:
        """Return the gradient by the input; of `x_BCSS` only the shape counts."""
        weight, padding = self._form(x_BCSS.shape[-1])
        found: Tensor = torch.ops.aten.convolution_backward(
            gradient,
            x_BCSS,
            weight,
            bias_sizes=None,
            stride=(self.stride, self.stride),
            padding=(padding, padding),
            dilation=(1, 1),
            transposed=False,
            output_padding=(0, 0),
            groups=self.groups,
            output_mask=(True, False, False),
        )[0]
        return found


@dataclass(frozen=True, eq=False)
class _Block:
    """A block: it widens, convolves channel by channel, narrows, and adds its input if alike."""

    expand: _Pointwise | None
    depthwise: _Conv
    project: _Pointwise
    beside: bool
    width: int


class Lite0:
    """The network with its weights, on one device."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors that `folded` gives; they are kept as they are."""
        self.tensors = tensors
        self._stem = _Conv(tensors["stem.weight"], tensors["stem.bias"], 2)
        self._blocks: list[_Block] = []
        self._ends: dict[int, int] = {}
        inputs = _STEM
        for _, first_stride, expansion, width, repeats in STAGES:
            for number in range(repeats):
                name = f"blocks.{len(self._blocks)}"
                stride = first_stride if number == 0 else 1
                weight = tensors[f"{name}.depthwise.weight"]
                bias = tensors[f"{name}.depthwise.bias"]
                depthwise = _Conv(weight, bias, stride, groups=len(weight))
                expand = self._pointwise(f"{name}.expand") if expansion > 1 else None
                project = self._pointwise(f"{name}.project")
                beside = stride == 1 and inputs == width
                self._blocks.append(_Block(expand, depthwise, project, beside, width))
                inputs = width
            self._ends[width] = len(self._blocks)
        self._head = self._pointwise("head")

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self.tensors["stem.weight"].device

    def to(self, device: torch.device) -> Lite0:
        """Return the same network on another device; itself where it is there already."""
        if self.device == device:
            return self
        return Lite0({name: tensor.to(device) for name, tensor in self.tensors.items()})

    def maps(self, x_BCSS: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the maps of these stages, channels last in memory; to be differentiated once.

        Args:
            x_BCSS: pictures in [-1, 1], grey or colour.
            widths: some of `WIDTHS`, from the first to the last.
        """
        if x_BCSS.shape[1] == 1:
            x_BCSS = x_BCSS.expand(-1, 3, -1, -1)
        found: tuple[Tensor, ...] = _Maps.apply(x_BCSS, self, tuple(widths))  # type: ignore[no-untyped-call]
        return found

    @torch.no_grad()
    def features(self, x_BCSS: Tensor) -> Tensor:
        """Return the last maps, averaged over the picture, B×1280."""
        (last,) = self.maps(x_BCSS, WIDTHS[-1:])
        x_NO = self._head.forward(_rows(last)).clamp_(0, _TOP)
        return x_NO.view(len(last), -1, DIMENSIONS).mean(1)

    def logits(self, features_BD: Tensor) -> Tensor:
        """Return the logits of ImageNet's classes, B×1000."""
        return F.linear(features_BD, self.tensors["classes.weight"], self.tensors["classes.bias"])

    def _pointwise(self, name: str) -> _Pointwise:
        """Return the 1×1 convolution of a name."""
        weight_OI = self.tensors[f"{name}.weight"].flatten(1)
        return _Pointwise(weight_OI.t().contiguous(), weight_OI, self.tensors[f"{name}.bias"])

    def forward_(self, x_BCSS: Tensor, widths: tuple[int, ...], kept: list[Any] | None) -> Any:
        """Return the maps; what the backward pass needs goes into `kept`."""
        x = x_BCSS.mul(_SCALE).add_(_SHIFT).contiguous(memory_format=torch.channels_last)
        if kept is not None:
            kept.append(x)
        x = self._stem.forward(x).clamp_(0, _TOP)
        found = []
        for block in self._blocks[: self._ends[widths[-1]]]:
            wide = x
            if block.expand is not None:
                wide = _pictures(block.expand.forward(_rows(x)).clamp_(0, _TOP), x)
            deep = block.depthwise.forward(wide).clamp_(0, _TOP)
            narrow = _pictures(block.project.forward(_rows(deep)), deep)
            x = narrow.add_(x) if block.beside else narrow
            if kept is not None:
                kept.append((wide, deep))
            if block is self._blocks[self._ends[block.width] - 1] and block.width in widths:
                found.append(x)
        return tuple(found)

    def backward_(
        self, gradients: Sequence[Tensor], widths: tuple[int, ...], kept: Sequence[Any]
    ) -> Tensor:
        """Return the gradient by the pictures, given those by the maps."""
        given = dict(zip(widths, gradients, strict=True))
        gradient: Tensor | None = None
        for number in reversed(range(self._ends[widths[-1]])):
            block, (wide, deep) = self._blocks[number], kept[number + 1]
            if number + 1 == self._ends[block.width] and block.width in given:
                own = given[block.width].contiguous(memory_format=torch.channels_last)
                gradient = own if gradient is None else gradient + own
            assert gradient is not None, "the last block's maps are asked for"
            by_deep = _bounded_(block.project.backward(_rows(gradient)), _rows(deep))
            by_wide = block.depthwise.backward(_pictures(by_deep, deep), wide)
            # What went in is the output of a ReLU6 too: the widened maps, or the stem's.
            rows = _bounded_(_rows(by_wide), _rows(wide))
            if block.expand is not None:
                rows = block.expand.backward(rows)
            by_input = _pictures(rows, wide)
            gradient = by_input.add_(gradient) if block.beside else by_input
        assert gradient is not None
        return self._stem.backward(gradient, kept[0]).mul_(_SCALE)


class _Maps(torch.autograd.Function):
    """Both passes through the network as one operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, network: Lite0, widths: tuple[int, ...]) -> Any:
        ctx.network, ctx.widths = network, widths
        ctx.kept = [] if ctx.needs_input_grad[0] else None
        return network.forward_(x, widths, ctx.kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.network.backward_(gradients, ctx.widths, ctx.kept), None, None


def _rows(x_BCSS: Tensor) -> Tensor:
    """Return maps that lie channels last as N×C, a view."""
    channels = x_BCSS.shape[1]
    return x_BCSS.permute(0, 2, 3, 1).contiguous().view(-1, channels)


def _pictures(x_NC: Tensor, like: Tensor) -> Tensor:
    """Return rows as B×C×S×S with the pictures and the side of `like`, a view."""
    count, _, side, _ = like.shape
    return x_NC.view(count, side, side, -1).permute(0, 3, 1, 2)


def _bounded_(gradient: Tensor, output: Tensor) -> Tensor:
    """Carry a gradient back through ReLU6, whose output is known, in place."""
    found: Tensor = torch.ops.aten.hardtanh_backward.grad_input(
        gradient, output, 0.0, _TOP, grad_input=gradient
    )
    return found
