"""The perceptron's passes written out, against autograd on the same networks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from manege.config import Activation, MlpNetworks, stream
from manege.models import PictureShape, build_discriminator, build_generator, initialise

WRITTEN_OUT = [Activation.TANH, Activation.RELU, Activation.LEAKY_RELU]
SHAPE = PictureShape(4, 3)


def _filled(network):
    network = network.to_empty(device="cpu").double()
    initialise(network, stream(3, cell="a", purpose="init"))
    for parameter in network.parameters():
        parameter.data.uniform_(-1, 1, generator=torch.Generator().manual_seed(parameter.numel()))
        parameter.grad = torch.full_like(parameter, 7.0)  # Must be written over, not added to.
    return network


def _pair(activation: Activation):
    spec = MlpNetworks(latent=5, hidden=7, activation=activation)
    return _filled(build_generator(spec, SHAPE)), _filled(build_discriminator(spec, SHAPE))


def _by_autograd(network, x, gradient):
    x = x.clone().requires_grad_()
    wanted = [x, *network.parameters()]
    y = network(x).flatten(1) if network(x).dim() > 1 else network(x)[:, None]
    found = torch.autograd.grad(y, wanted, gradient)
    return y.detach(), found[0], dict(zip(wanted[1:], found[1:], strict=True))


@pytest.mark.parametrize("activation", WRITTEN_OUT)
@pytest.mark.parametrize("which", [0, 1], ids=["generator", "discriminator"])
def test_both_passes_equal_autograd(activation, which):
    network = _pair(activation)[which]
    random = torch.Generator().manual_seed(0)
    shape = (6, 3, 4, 4) if which else (6, 5)
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    gradient = torch.randn(6, 1 if which else 48, generator=random, dtype=torch.float64)
    y, by_x, by_weights = _by_autograd(network, x, gradient)
    chain = network.chain
    outputs = chain.forward(x.flatten(1))
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(outputs[-1], y, **close)
    ours = chain.backward(outputs, gradient, weights=True, inputs=True)
    torch.testing.assert_close(ours.view(shape), by_x, **close)
    assert len(by_weights) == 6
    for parameter, theirs in by_weights.items():
        torch.testing.assert_close(parameter.grad, theirs, **close)


def test_weights_that_do_not_learn_keep_their_gradients():
    _, discriminator = _pair(Activation.TANH)
    chain = discriminator.chain
    outputs = chain.forward(torch.zeros(2, 48, dtype=torch.float64))
    passed = chain.backward(outputs, torch.ones_like(outputs[-1]), weights=False, inputs=True)
    assert passed.abs().max() > 0
    assert all((one.grad == 7).all() for one in discriminator.parameters())


def test_gradients_stay_where_they_live():
    generator, _ = _pair(Activation.LEAKY_RELU)
    places = [one.grad.data_ptr() for one in generator.parameters()]
    outputs = generator.chain.forward(torch.ones(3, 5, dtype=torch.float64))
    result = generator.chain.backward(
        outputs, torch.ones_like(outputs[-1]), weights=True, inputs=False
    )
    assert result is None
    assert places == [one.grad.data_ptr() for one in generator.parameters()]


def test_what_cannot_be_written_out_has_no_chain():
    silu = MlpNetworks(latent=5, hidden=7, activation=Activation.SILU)
    tanh = MlpNetworks(latent=5, hidden=7, activation=Activation.TANH)
    assert build_generator(tanh, SHAPE).chain is not None
    assert build_discriminator(tanh, SHAPE).chain is not None
    assert build_generator(silu, SHAPE).chain is None
    assert build_discriminator(silu, SHAPE).chain is None
    assert build_generator(tanh, SHAPE, num_labels=3).chain is None
    assert build_discriminator(tanh, SHAPE, num_labels=3).chain is None
    assert build_discriminator(tanh, SHAPE, spectral=True).chain is None


def test_twice_the_sigmoid_is_the_tanh_in_single_precision_too():
    spec = MlpNetworks(latent=1, hidden=2)
    generator = build_generator(spec, PictureShape(8, 1)).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.fill_(0.1)
        last = generator.body.dense()[-1]
        last.bias.copy_(torch.linspace(-12, 12, 64))
        last.weight.zero_()
    drawn = generator.chain.forward(torch.zeros(1, 1))[-1][0]
    exact = F.tanh(torch.linspace(-12, 12, 64).double())
    assert (drawn.double() - exact).abs().max() < 3e-7
