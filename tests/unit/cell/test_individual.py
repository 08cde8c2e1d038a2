"""The flat record, and everything known to break its views in silence."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from manege.cell import HEADER, Individual
from manege.config import DcganNetworks, MlpNetworks, stream
from manege.models import PictureShape, build_discriminator, initialise

CPU = torch.device("cpu")
SHAPE = PictureShape(8, 1)


def _individual(spec=None, build=build_discriminator) -> Individual:
    individual = Individual(build(spec or DcganNetworks(), SHAPE), CPU)
    initialise(individual.network, stream(0, cell="x", purpose="init"))
    individual.set_learning_rate(1e-3)
    return individual


def _step(individual: Individual, seed: int = 0) -> None:
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    individual.zero_gradients()
    individual.network(x).square().mean().backward()
    individual.adam_step(beta1=0.5, beta2=0.999)


def test_parameters_and_buffers_are_views_of_one_record():
    individual = _individual()
    individual.record.fill_(7)
    tensors = [*individual.network.parameters(), *individual.network.buffers()]
    assert tensors
    assert all((tensor == 7).all() for tensor in tensors)


def test_slices_are_aligned_and_do_not_overlap():
    individual = _individual()
    individual.record.zero_()
    total = 0
    for tensor in [*individual.network.parameters(), *individual.network.buffers()]:
        offset = (tensor.data_ptr() - individual.record.data_ptr()) // 4
        assert offset % 16 == 0
        with torch.no_grad():
            tensor += 1
        total += tensor.numel()
    assert individual.record.sum() == total


def test_adam_over_the_record_is_torchs_adam_parameter_by_parameter_to_the_bit():
    individual = _individual()
    reference = build_discriminator(DcganNetworks(), SHAPE).to_empty(device="cpu")
    initialise(reference, stream(0, cell="x", purpose="init"))
    # The rate a record holds is a float32; torch's Adam must be given that one.
    rate = individual.learning_rate
    adam = torch.optim.Adam(reference.parameters(), rate, (0.5, 0.999), fused=True)
    generator = torch.Generator().manual_seed(0)
    pairs = list(zip(individual.network.parameters(), reference.parameters(), strict=True))
    for _ in range(5):
        for ours, theirs in pairs:
            theirs.grad = torch.randn(theirs.shape, generator=generator)
            ours.grad.copy_(theirs.grad)
        individual.adam_step(beta1=0.5, beta2=0.999)
        adam.step()
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs)
    assert individual.steps == 5


def test_a_copy_goes_on_like_the_original_optimiser_state_and_all():
    original, copied = _individual(), _individual()
    _step(original)
    original.set_learning_rate(5e-3)
    copied.load(original.to_numpy())
    assert torch.equal(original.record, copied.record)
    for individual in (original, copied):
        _step(individual, seed=1)
    assert torch.equal(original.record, copied.record)
    _step(original, seed=2)
    assert not torch.equal(original.record, copied.record)  # They share no storage.


def test_a_record_loaded_from_bytes_goes_on_like_the_original():
    original, loaded = _individual(), _individual()
    _step(original)
    loaded.load(np.frombuffer(original.to_numpy().tobytes(), dtype=np.float32).copy())
    for individual in (original, loaded):
        _step(individual, seed=1)
    assert torch.equal(original.record, loaded.record)


def test_a_new_learning_rate_changes_the_next_step_by_its_ratio():
    slow, fast = _individual(), _individual()
    fast.set_learning_rate(4e-3)
    before = slow.weights.clone()
    _step(slow)
    _step(fast)
    moved = (slow.weights - before).abs() > 1e-5
    ratio = ((fast.weights - before) / (slow.weights - before))[moved]
    torch.testing.assert_close(ratio, torch.full_like(ratio, 4), rtol=1e-2, atol=0)


def test_the_header_holds_what_travels_with_an_individual():
    individual = _individual()
    _step(individual)
    header = dict(zip(HEADER, individual.record[-16:].tolist(), strict=False))
    assert header["steps"] == 1
    assert header["learning_rate"] == pytest.approx(1e-3)
    assert header["parent"] == -1


@pytest.mark.parametrize("bad", [np.zeros(3, np.float32), None], ids=["length", "dtype"])
def test_a_foreign_record_is_refused(bad):
    individual = _individual()
    record = individual.to_numpy().astype(np.float64) if bad is None else bad
    with pytest.raises(ValueError, match="expected float32"):
        individual.load(record)


def test_channels_last_weights_are_noticed():
    individual = _individual()
    individual.network.to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="left the individual's flat storage"):
        individual.to_numpy()


def test_zero_grad_that_drops_gradients_is_noticed():
    individual = _individual()
    individual.network.zero_grad()
    with pytest.raises(RuntimeError, match="gradient of"):
        individual.check_views()


def test_a_parametrisation_put_on_afterwards_is_noticed():
    individual = _individual(MlpNetworks())
    parametrizations.spectral_norm(individual.network.body.layers[0])
    with pytest.raises(RuntimeError, match=r"parameter body\.layers\.0\.weight"):
        individual.check_views()


def test_a_parametrisation_put_on_before_is_in_the_record():
    network = nn.Sequential(nn.Linear(4, 3))
    parametrizations.spectral_norm(network[0])
    individual = Individual(network, CPU)
    individual.check_views()
    assert any("original" in slot.name for slot in individual._layout.parameters)
    assert {slot.attribute for slot in individual._layout.buffers} == {"_u", "_v"}


def test_deepcopy_is_refused():
    with pytest.raises(TypeError, match=r"load\(\)"):
        copy.deepcopy(_individual())


def test_moving_to_another_dtype_is_noticed():
    individual = _individual()
    individual.network.double()
    with pytest.raises(RuntimeError, match="flat storage"):
        individual.check_views()


def test_integer_buffers_are_refused():
    with pytest.raises(TypeError, match="float32 only"):
        Individual(nn.BatchNorm2d(3), CPU)


def test_training_steps_keep_the_views():
    individual = _individual()
    for seed in range(3):
        _step(individual, seed)
    individual.check_views()
