"""What a critic on features is shown of real pictures: as they are, mirrored, or changed if few."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from manege.cell import Streams, new_state
from manege.config import partition, resolve, stream
from manege.data import open_dataset
from manege.methods.shares import Shares
from manege.metrics.lite0_weights import feature_weights
from manege.models import FrozenFeatures, PictureShape

CPU = torch.device("cpu")
COUNT = 60


@pytest.fixture
def shares_of(tmp_path, monkeypatch):
    """The shares of one class of colour pictures, with a preset over these settings."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=np.zeros(COUNT, np.int64))

    def opened(*sets: str) -> tuple[Shares, FrozenFeatures]:
        flags = {"data.source": str(tmp_path / "set.npz"), "rounds": 1}
        config = resolve(preset="modern", flags=flags, sets=["training.batch=8", *sets])
        shape = PictureShape(16, 3)
        features = FrozenFeatures(feature_weights().network, (24,), shape, 16)
        dataset = open_dataset(config.data)
        parts = partition(config, dataset.labels)
        return Shares(config, dataset, CPU, parts, features), features

    return opened


def _batch(shares: Shares):
    """The first batch of the first round, and its pictures' noise."""
    config = shares._config
    state = new_state(config, "0", shares.shape, CPU, features=shares.features)
    streams = Streams(lambda purpose: stream(0, cell="0", purpose=purpose))
    (batch,) = shares.reals("0", state, [0], streams)
    return batch, shares.noise("0", state, 8, streams)


def test_many_pictures_are_seen_as_they_are(shares_of):
    shares, features = shares_of("training.augment.below=40", "training.flip=false")
    batch, noise = _batch(shares)
    torch.testing.assert_close(batch.seen_BF, features.of(batch.pictures), rtol=1e-3, atol=1e-3)
    assert noise.fake_changes is None


def test_many_pictures_are_seen_as_they_are_or_mirrored(shares_of):
    shares, features = shares_of("training.augment.below=40", "training.flip=true")
    batch, noise = _batch(shares)
    plain, mirrored = (features.of(one) for one in (batch.pictures, batch.pictures.flip(3)))
    apart = [(batch.seen_BF - one).abs().amax(1) for one in (plain, mirrored)]
    assert float(torch.minimum(*apart).max()) < 1e-3
    assert 0 < int((apart[0] < 1e-3).sum()) < 8  # Both kinds came.
    assert noise.fake_changes is None


def test_few_pictures_are_seen_changed_and_so_are_fakes(shares_of):
    shares, features = shares_of("training.augment.below=500", "training.flip=false")
    batch, noise = _batch(shares)
    apart = (batch.seen_BF - features.of(batch.pictures)).abs().amax(1)
    assert float(apart.min()) > 0.01
    assert noise.fake_changes is not None
    side = shares.shape.size
    assert bool((noise.fake_changes.hole_B2 <= -side).all())  # No hole is cut.
    again, _ = _batch(shares_of("training.augment.below=500", "training.flip=false")[0])
    assert torch.equal(batch.seen_BF, again.seen_BF)


def test_what_does_not_fit_into_memory_is_looked_at_anew(shares_of, monkeypatch):
    monkeypatch.setattr("manege.methods.shares.MOST_SEEN_BYTES", 1000)
    shares, _ = shares_of("training.augment.below=40", "training.flip=false")
    batch, _ = _batch(shares)
    assert batch.seen_BF is None
    assert batch.pictures.shape == (8, 3, 16, 16)
