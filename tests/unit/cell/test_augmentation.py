"""How overfitting is told, and what the chance of a change makes of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from manege.cell import Batch, adapted, kept_out, new_pair, overfitting, probes
from manege.config import AdaptiveAugment, DcganNetworks, MlpNetworks, Training, stream
from manege.models import Discriminator, PictureShape


class _Mean(Discriminator):
    """The logit of a picture is its mean; of a labelled one that plus ten times its label."""

    def forward(self, x_BCSS, factors_BW, labels_B):
        assert factors_BW is None
        assert not torch.is_grad_enabled()
        assert not self.training
        values = x_BCSS.mean((1, 2, 3))
        return values if labels_B is None else values + 10 * labels_B


def _pair():
    return SimpleNamespace(discriminator=SimpleNamespace(network=_Mean()))


def _batch(*logits: float, labels: list[int] | None = None) -> Batch:
    pictures = torch.tensor(logits)[:, None, None, None].expand(-1, 3, 4, 4)
    return Batch(pictures, None if labels is None else torch.tensor(labels))


@pytest.mark.parametrize(
    ("trained", "kept", "fakes", "told"),
    [
        (2.0, 2.0, 0.0, 0.0),  # Pictures kept out look like training pictures.
        (2.0, 0.0, 0.0, 1.0),  # Like fakes.
        (2.0, 1.5, 0.0, 0.25),
        (2.0, -1.0, -2.0, 0.75),
        (2.0, 3.0, 0.0, 0.0),  # Even better than training pictures.
        (2.0, -1.0, 0.0, 1.0),  # Even worse than fakes.
        (1.0, 1.0, 1.0, 0.0),  # Nothing is told from anything.
        (0.0, -1.0, 1.0, 0.0),  # Fakes pass for better: nothing is known by heart.
    ],
)
def test_overfitting_is_how_far_unseen_pictures_fall_towards_fakes(trained, kept, fakes, told):
    pair = _pair()
    found = overfitting(pair, _batch(trained, trained), _batch(kept), _batch(fakes, fakes, fakes))
    assert found == pytest.approx(told)
    assert isinstance(found, float)
    assert pair.discriminator.network.training


def test_overfitting_takes_means_over_each_batch():
    found = overfitting(_pair(), _batch(3.0, 1.0), _batch(2.0, 0.0), _batch(1.0, -3.0))
    assert found == pytest.approx(1 / 3)  # 2, 1 and -1.


def test_overfitting_shows_a_conditional_discriminator_the_labels():
    batches = [
        _batch(0.0, 0.0, labels=[1, 3]),
        _batch(0.0, labels=[1]),
        _batch(0.0, labels=[0]),
    ]
    assert overfitting(_pair(), *batches) == pytest.approx(0.5)


@pytest.mark.parametrize("training", [True, False])
def test_looking_changes_neither_statistics_nor_weights_nor_the_mode(training):
    rng = stream(0, cell="x", purpose="init")
    spec = DcganNetworks(discriminator_width=2)
    pair = new_pair(spec, PictureShape(8, 1), Training(), torch.device("cpu"), rng, rng)
    network = pair.discriminator.network.train(training)
    before = pair.discriminator.record.clone()
    generator = torch.Generator().manual_seed(0)
    batches = [Batch(torch.rand(5, 1, 8, 8, generator=generator)) for _ in range(3)]
    first = overfitting(pair, *batches)
    assert first == overfitting(pair, *batches)
    assert torch.equal(before, pair.discriminator.record)
    assert network.training is training
    assert all(module.training is training for module in network.modules())
    assert pair.discriminator._gradient.abs().max() == 0


def test_a_picture_of_the_batch_does_not_change_what_is_told_of_another():
    rng = stream(0, cell="x", purpose="init")
    pair = new_pair(MlpNetworks(), PictureShape(8, 1), Training(), torch.device("cpu"), rng, rng)
    one = Batch(torch.zeros(4, 1, 8, 8))
    other = Batch(torch.full((9, 1, 8, 8), 0.5))
    assert overfitting(pair, one, one, other) == 0
    assert overfitting(pair, other, other, one) == 0
    assert {overfitting(pair, one, other, other), overfitting(pair, other, one, one)} == {0.0, 1.0}


def test_the_chance_rises_above_the_target_and_falls_below_it():
    augment = AdaptiveAugment(target=0.6, step=0.25, most=0.8)
    assert adapted(0.25, 0.61, augment) == 0.5
    assert adapted(0.5, 0.59, augment) == 0.25
    assert adapted(0.25, 0.0, augment) == 0.0
    assert adapted(0.5, 1.0, augment) == 0.75


def test_the_chance_stays_within_its_bounds():
    augment = AdaptiveAugment(target=0.5, step=0.3, most=0.8)
    chance, seen = 0.0, []
    for overfit in [0.0, 0.0, *[1.0] * 5, *[0.0] * 5]:
        chance = adapted(chance, overfit, augment)
        seen.append(chance)
    assert seen == pytest.approx([0, 0, 0.3, 0.6, 0.8, 0.8, 0.8, 0.5, 0.2, 0, 0, 0])


@pytest.mark.parametrize(
    ("count", "kept"), [(8, 1), (19, 1), (20, 1), (40, 2), (5000, 250), (60_000, 500)]
)
def test_a_twentieth_of_the_pictures_is_kept_out_but_not_too_many(count, kept):
    assert kept_out(count) == kept


def test_probes_are_few_and_keep_their_labels():
    pictures, labels = torch.arange(200)[:, None], torch.arange(200) % 7
    found = probes(pictures, labels)
    assert len(found.pictures) == len(found.labels_B) == 64
    assert torch.equal(found.labels_B, found.pictures[:, 0] % 7)
    assert probes(pictures[:5], None).pictures.shape == (5, 1)
    assert probes(pictures, None).labels_B is None
