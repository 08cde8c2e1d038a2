"""EfficientNet-Lite0: our folded network against the published weights, layer by layer."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.pictures import noise
from torch import Tensor
from torch.nn import functional as F

from manege.metrics.lite0_weights import feature_weights, package_file
from manege.models.lite0 import STAGES, WIDTHS, Lite0, folded, shapes, sides

SIDES = (8, 12, 28, 32, 33, 64, 100)
KNOWN = {
    "n01443537": 1,  # goldfish
    "n02099601": 207,  # golden retriever
    "n02123394": 283,  # Persian cat
    "n02129165": 291,  # lion
    "n04146614": 779,  # school bus
    "n07747607": 950,  # orange
    "n09428293": 978,  # seashore
}
"""Folders of pictures, and the number of their class in ImageNet."""
RECORDED = {2: 3.577, 7: 3.498, 28: 0.573, 36: 2.186, 57: 2.311, 66: 1.424, 71: 2.722, 72: 0.966}
"""Some features of `_picture`, by their place."""


@pytest.fixture(scope="module")
def network() -> Lite0:
    return feature_weights().network


@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    path = package_file()
    assert path is not None
    return torch.load(path, map_location="cpu", weights_only=True)


def _picture(side: int = 64) -> Tensor:
    """A disc on a gradient."""
    place = torch.linspace(-1, 1, side)
    disc = (place[:, None] ** 2 + place[None] ** 2 < 0.4).float()
    return torch.stack([place[:, None].expand(side, side), disc * 2 - 1, -disc])[None]


def _same(x: Tensor, weight: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
    """A convolution as TensorFlow pads it."""
    kernel, side = weight.shape[-1], x.shape[-1]
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    x = F.pad(x, (total // 2, total - total // 2) * 2)
    return F.conv2d(x, weight, stride=stride, groups=groups)


def _norm(x: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    parts = (state[f"{name}.{one}"] for one in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, *parts, eps=1e-3)


def _plain(x: Tensor, state: dict[str, Tensor]) -> tuple[dict[int, Tensor], Tensor, Tensor]:
    """Maps, pooled features and logits, as the network is usually written."""
    x = x * (127.5 / 128) + 0.5 / 128
    x = F.relu6(_norm(_same(x, state["_conv_stem.weight"], 2), state, "_bn0"))
    maps, number = {}, 0
    for _, first, expansion, width, repeats in STAGES:
        for repeat in range(repeats):
            name, y = f"_blocks.{number}", x
            if expansion > 1:
                y = F.conv2d(y, state[f"{name}._expand_conv.weight"])
                y = F.relu6(_norm(y, state, f"{name}._bn0"))
            weight = state[f"{name}._depthwise_conv.weight"]
            y = _same(y, weight, first if repeat == 0 else 1, len(weight))
            y = F.relu6(_norm(y, state, f"{name}._bn1"))
            y = _norm(F.conv2d(y, state[f"{name}._project_conv.weight"]), state, f"{name}._bn2")
            x, number = (x + y if repeat else y), number + 1
        maps[width] = x
    top = F.relu6(_norm(F.conv2d(x, state["_conv_head.weight"]), state, "_bn1"))
    pooled = top.mean((2, 3))
    return maps, pooled, F.linear(pooled, state["_fc.weight"], state["_fc.bias"])


def test_the_network_has_the_published_numbers(published):
    learnt = {
        name: one
        for name, one in published.items()
        if not name.endswith(("num_batches_tracked", "running_mean", "running_var"))
    }
    assert sum(one.numel() for one in learnt.values()) == 4_652_008
    norms = sum(one.numel() for name, one in learnt.items() if "_bn" in name)
    # BatchNorm's two numbers a channel become the one bias of its convolution.
    assert sum(prod(shape) for shape in shapes().values()) == 4_652_008 - norms // 2


@pytest.mark.parametrize("side", SIDES)
def test_maps_features_and_logits_are_the_published_networks(network, published, side):
    x = noise(3, side)
    maps, pooled, logits = _plain(x, published)
    found = dict(zip(WIDTHS, network.maps(x, WIDTHS), strict=True))
    for width, one in maps.items():
        assert found[width].shape == one.shape
        assert found[width].shape[1:] == (width, sides(side)[width], sides(side)[width])
        torch.testing.assert_close(found[width], one, rtol=1e-3, atol=1e-3)
    features = network.features(x)
    torch.testing.assert_close(features, pooled, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(network.logits(features), logits, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("side", [11, 16])
def test_gradients_at_the_pixels_are_the_plain_forms(network, published, side):
    # In double precision: in single, a value near a bend of ReLU6 may fall on either side.
    double = Lite0({name: one.double() for name, one in network.tensors.items()})
    wide = folded(published)
    assert all(torch.equal(wide[name], network.tensors[name]) for name in shapes())
    x, y = (noise(2, side).double().requires_grad_() for _ in range(2))
    widths = (24, 40, 112)
    state = {name: one.double() for name, one in published.items()}
    maps, _, _ = _plain(y, state)
    rng = torch.Generator().manual_seed(3)
    weights = [torch.randn(maps[width].shape, generator=rng).double() for width in widths]
    torch.autograd.backward(double.maps(x, widths), weights)
    torch.autograd.backward([maps[width] for width in widths], weights)
    scale = float(y.grad.abs().max())
    torch.testing.assert_close(x.grad / scale, y.grad / scale, rtol=0, atol=1e-5)


def test_grey_pictures_are_seen_as_colourless_ones(network):
    grey = noise(2, 32, channels=1)
    torch.testing.assert_close(network.features(grey), network.features(grey.expand(-1, 3, -1, -1)))


def test_a_fixed_picture_has_the_recorded_features(network):
    found = network.features(_picture())[0]
    told = {place: float(found[place]) for place in RECORDED}
    assert told == pytest.approx(RECORDED, abs=5e-3)


def test_it_tells_photographs_apart_as_imagenet_does(network, real_data: Path):
    root = real_data / "imagefolder-sample" / "tiny-imagenet-10x64px" / "train"
    for folder, number in KNOWN.items():
        pictures = [
            np.array(Image.open(path).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC))
            for path in sorted((root / folder).iterdir())[:16]
        ]
        x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2) / 127.5 - 1
        found = network.logits(network.features(x)).argmax(1).tolist()
        (commonest, count), *_ = Counter(found).most_common()
        assert commonest == number
        assert count >= 4  # Of a thousand classes: by chance it would be none.


def test_weights_of_another_network_are_refused(published):
    other = published | {"_conv_stem.weight": torch.zeros(32, 3, 5, 5)}
    with pytest.raises(ValueError, match=r"stem\.weight of \(32, 3, 5, 5\)"):
        folded(other)
    del other["_conv_stem.weight"]
    with pytest.raises(KeyError):
        folded(other)
    with pytest.raises(ValueError, match="classes"):
        folded(published | {"_fc.bias": torch.full((1000,), torch.nan)})
