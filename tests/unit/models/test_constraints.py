"""Clipping, and why BatchNorm is exempt from it."""

from __future__ import annotations

import torch

from manege.cell import new_pair
from manege.config import DcganNetworks, Training, stream
from manege.models import PictureShape, clip_, clippable


def _pair():
    rng = stream(0, cell="x", purpose="init")
    return new_pair(DcganNetworks(), PictureShape(32, 3), Training(), torch.device("cpu"), rng, rng)


def _generator_gradient(pair) -> float:
    z = torch.randn(16, 100, generator=torch.Generator().manual_seed(0))
    pair.generator.zero_gradients()
    (-pair.discriminator.network(pair.generator.network(z)).mean()).backward()
    return pair.generator.network.linear.weight.grad.abs().mean().item()


def test_clipping_cuts_every_weight_but_those_of_batchnorm():
    pair = _pair()
    network = pair.discriminator.network
    clip_(clippable(network), 0.01)
    for name, parameter in network.named_parameters():
        limit = parameter.abs().max().item()
        if ".norm." in name:
            assert limit == (1.0 if name.endswith("weight") else 0.0)
        else:
            assert limit <= 0.01 + 1e-9
    pair.discriminator.check_views()


def test_clipping_batchnorm_too_leaves_the_generator_without_gradient():
    free, clipped, everything = _pair(), _pair(), _pair()
    clip_(clippable(clipped.discriminator.network), 0.01)
    clip_(list(everything.discriminator.network.parameters()), 0.01)
    with_exemption, without = _generator_gradient(clipped), _generator_gradient(everything)
    assert without < 1e-5 * with_exemption  # 0.01 for each of the three BatchNorms.
    assert without < 1e-14 < with_exemption < _generator_gradient(free)
