"""A step on features: one pass serves both updates, and comes to what two passes would."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from tests.helpers.pictures import noise as noisy_pictures

from manege.cell import Arena, Batch, Streams, draw_noise, new_pair, noises_in_step, train_step
from manege.config import LossName, PyramidNetworks, SpectralConstraint, Training, stream
from manege.methods import shares
from manege.methods.shares import SeenPictures
from manege.metrics.lite0_weights import feature_weights
from manege.models import (
    FrozenFeatures,
    PictureShape,
    loss_of,
    power_iteration_,
)

CPU = torch.device("cpu")
SHAPE = PictureShape(16, 3)
BATCH = 6
SPEC = PyramidNetworks(generator_width=16, latent=8)


@pytest.fixture(scope="module")
def features() -> FrozenFeatures:
    return FrozenFeatures(feature_weights().network, (24, 40), SHAPE, 16)


def _training(loss: LossName = LossName.HINGE, n_critic: int = 1) -> Training:
    return Training(loss=loss, constraint=SpectralConstraint(), batch=BATCH, n_critic=n_critic)


def _pair(features, training, labels: int = 0):
    rngs = (np.random.default_rng(seed) for seed in (1, 2))
    return new_pair(SPEC, SHAPE, training, CPU, *rngs, labels, features)


def _inputs(pair, training, step: int, labels: int = 0):
    streams = Streams(lambda purpose: stream(0, cell="a", purpose=purpose, step=step))
    drawn = [
        draw_noise(pair, BATCH, streams, training) for _ in range(noises_in_step(pair, training))
    ]
    told = torch.arange(BATCH) % labels if labels else None
    reals = [
        Batch(noisy_pictures(BATCH, 16, seed=10 * step + number), told)
        for number in range(training.n_critic)
    ]
    return reals, drawn


def _two_passes(pair, reals, noises, training, optimisers) -> list[float]:
    """The same step as it is usually written: pictures are drawn and seen anew for each update."""
    generator, judge = pair.generator.network, pair.discriminator.network
    critic = []
    for batch, noise in zip(reals, noises, strict=True):
        power_iteration_(judge)
        fakes = generator(noise.z_BZ, batch.labels_B).detach()
        values = judge(judge.observe(torch.cat([batch.pictures, fakes])), None, _twice(batch))
        loss = loss_of(training.loss).discriminator(*values.chunk(2))
        critic.append(float(loss.detach()))
        _step(optimisers[1], loss)
    batch, noise = reals[-1], noises[-1]
    fake = judge(judge.observe(generator(noise.z_BZ, batch.labels_B)), None, batch.labels_B)
    real = judge(judge.observe(batch.pictures), None, batch.labels_B)
    loss = loss_of(training.loss).of_generator(real, fake)
    _step(optimisers[0], loss)
    return [sum(critic) / len(critic), float(loss.detach())]


def _twice(batch: Batch):
    return None if batch.labels_B is None else torch.cat([batch.labels_B, batch.labels_B])


def _step(optimiser, loss) -> None:
    optimiser.zero_grad(set_to_none=False)
    loss.backward()
    optimiser.step()


@pytest.mark.parametrize("loss", list(LossName))
@pytest.mark.parametrize(
    ("n_critic", "labels"), [(1, 0), pytest.param(3, 0, marks=pytest.mark.full), (1, 4)]
)
def test_one_pass_comes_to_what_two_come_to(features, loss, n_critic, labels):
    training = _training(loss, n_critic)
    pair, plain = (_pair(features, training, labels) for _ in range(2))
    optimisers = [
        torch.optim.Adam(one.parameters, lr=2e-4, betas=(0.5, 0.999))
        for one in (plain.generator, plain.discriminator)
    ]
    before = pair.generator.weights.clone(), pair.discriminator.weights.clone()
    for step in range(3):
        reals, noises = _inputs(pair, training, step, labels)
        assert len(noises) == n_critic
        ours = train_step(pair, reals, noises, training).tolist()
        assert ours == pytest.approx(
            _two_passes(plain, reals, noises, training, optimisers), rel=2e-3, abs=2e-3
        )
    for one, other, start in zip(
        (pair.generator, pair.discriminator),
        (plain.generator, plain.discriminator),
        before,
        strict=True,
    ):
        assert float((one.weights - start).abs().max()) > 1e-4  # It did train.
        # Adam's first steps are as long for a gradient near 0: a few weights may go either way.
        apart = (one.weights - other.weights).abs()
        assert float(apart.mean()) < 0.02 * float((one.weights - start).abs().mean())
        one.check_views()


def test_what_is_known_of_real_pictures_is_taken_for_granted(features):
    training = _training()
    pair, other = (_pair(features, training) for _ in range(2))
    reals, noises = _inputs(pair, training, 0)
    seen = features.of(reals[0].pictures)
    known = [Batch(torch.full_like(reals[0].pictures, torch.nan), None, seen)]
    ours, theirs = (
        train_step(one, batch, noises, training) for one, batch in ((pair, known), (other, reals))
    )
    assert torch.equal(ours, theirs)


def test_an_arena_looks_at_each_picture_once(features, monkeypatch):
    training = _training(LossName.BCE)
    pairs = [_pair(features, training) for _ in range(3)]
    for number, pair in enumerate(pairs):
        with torch.no_grad():
            pair.discriminator.weights.mul_(1 + number)
            pair.generator.weights.mul_(1 + number)
    looked_at = []
    of = FrozenFeatures.of
    monkeypatch.setattr(
        FrozenFeatures, "of", lambda self, x: looked_at.append(len(x)) or of(self, x)
    )
    arena = Arena(
        _pair(features, training),
        noisy_pictures(10, 16),
        torch.randn(10, SPEC.latent),
        [pair.generator.to_numpy() for pair in pairs],
        [pair.discriminator.to_numpy() for pair in pairs],
    )
    assert looked_at == [10] * 4  # The real ones, and three generators'; not for each of 3 × 3.
    assert arena.generator_losses_GD.shape == (3, 3)
    newcomer = pairs[0].generator.to_numpy()
    assert arena.generator_against_all(newcomer) == pytest.approx(arena.generator_losses_GD[0])
    assert len(looked_at) == 5


class TestSeen:
    COUNT = 150

    def _seen(self, features, versions=2):
        rng = np.random.default_rng(0)
        bytes_NSSC = torch.from_numpy(rng.integers(0, 256, (self.COUNT, 16, 16, 3), dtype=np.uint8))
        self.shown = []

        def show(pictures, start, version):
            self.shown.append((start, version))
            return pictures.flip(3) if version else pictures

        return bytes_NSSC, SeenPictures(features, bytes_NSSC, versions, show)

    def test_it_gives_what_the_frozen_network_gives(self, features):
        bytes_NSSC, seen = self._seen(features)
        rows, versions = torch.tensor([3, 149, 70, 3]), torch.tensor([0, 1, 1, 1])
        found = seen.of(rows, versions)
        x = bytes_NSSC[rows].float() * (2 / 255) - 1
        x = x.permute(0, 3, 1, 2)
        x = torch.where(versions[:, None, None, None] == 1, x.flip(3), x)
        torch.testing.assert_close(found, features.of(x), rtol=1e-3, atol=1e-3)

    def test_a_block_is_looked_at_once_and_only_when_needed(self, features):
        _, seen = self._seen(features)
        together = shares._SEEN_TOGETHER
        first = seen.of(torch.tensor([0, 1]), torch.tensor([0, 0]))
        assert self.shown == [(0, 0)]
        again = seen.of(torch.tensor([1, 0, together]), torch.tensor([0, 0, 1]))
        assert self.shown == [(0, 0), (together, 1)]
        assert torch.equal(again[:2], first.flip(0))

    def test_bits_do_not_depend_on_what_was_asked_for_before(self, features):
        _, one = self._seen(features)
        _, other = self._seen(features)
        rows = torch.arange(self.COUNT)
        zeros = torch.zeros_like(rows)
        for row in (140, 7, 80):
            other.of(torch.tensor([row]), torch.tensor([0]))
        assert torch.equal(one.of(rows, zeros), other.of(rows, zeros))

    def test_processes_forked_later_share_it(self, features):
        _, seen = self._seen(features)
        pid = os.fork()
        if pid == 0:
            seen.of(torch.tensor([5]), torch.tensor([1]))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        seen.of(torch.tensor([5]), torch.tensor([1]))
        assert self.shown == []  # The child looked.
