"""Contests: every generator against every discriminator on the same samples, under one loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from manege.cell import Arena, Pair, fitness, new_pair
from manege.config import Fitness, RunConfig, resolve, stream
from manege.models import PictureShape

SHAPE = PictureShape(8, 1)
MLP = ("networks.kind=mlp", "networks.hidden=8", "networks.latent=4")
DCGAN = ("networks.generator_width=4", "networks.discriminator_width=2", "networks.latent=4")
COUNT = 230
"""More than are judged at once."""


def _config(*sets: str) -> RunConfig:
    return resolve(preset="paper-dc", flags={"data.source": "digits"}, sets=[*sets])


def _pair(config: RunConfig, number: int) -> Pair:
    streams = [stream(number, cell="a", purpose=kind) for kind in ("generator", "discriminator")]
    return new_pair(config.networks, SHAPE, config.training, torch.device("cpu"), *streams)


def _records(config: RunConfig, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    pairs = [_pair(config, number) for number in range(count)]
    for pair in pairs:
        # Far apart: fresh networks answer almost alike.
        for individual in (pair.generator, pair.discriminator):
            individual.weights.mul_(3)
    return (
        [pair.generator.to_numpy().copy() for pair in pairs],
        [pair.discriminator.to_numpy().copy() for pair in pairs],
    )


def _samples() -> tuple[torch.Tensor, torch.Tensor]:
    source = np.random.default_rng(5)
    reals = torch.from_numpy(source.uniform(-1, 1, (COUNT, 1, 8, 8)).astype(np.float32))
    return reals, torch.from_numpy(source.standard_normal((COUNT, 4), dtype=np.float32))


def _arena(config: RunConfig, generators, discriminators) -> Arena:
    return Arena(_pair(config, 99), *_samples(), generators, discriminators)


@torch.no_grad()
def _by_hand(config: RunConfig, generator, discriminator) -> tuple[float, float]:
    """The generator's and the discriminator's loss, written out, in float64."""
    reals, z_NZ = _samples()
    pair = _pair(config, 98)
    pair.generator.load(generator)
    pair.discriminator.load(discriminator)
    pair.generator.network.eval()
    pair.discriminator.network.eval()
    of_fakes = pair.discriminator.network(pair.generator.network(z_NZ)).double().sigmoid()
    of_reals = pair.discriminator.network(reals).double().sigmoid()
    own = -of_reals.log().mean() - (1 - of_fakes).log().mean()
    return float(-of_fakes.log().mean()), float(own)


@pytest.mark.parametrize("sets", [MLP, DCGAN], ids=["mlp", "dcgan"])
def test_every_pair_meets_under_binary_cross_entropy_on_the_same_samples(sets):
    config = _config(*sets)
    generators, discriminators = _records(config, 3)
    arena = _arena(config, generators, discriminators[:2])
    assert arena.generator_losses_GD.shape == (3, 2)
    assert arena.discriminator_losses_DG.shape == (2, 3)
    for g, generator in enumerate(generators):
        for d, discriminator in enumerate(discriminators[:2]):
            found = arena.generator_losses_GD[g, d], arena.discriminator_losses_DG[d, g]
            assert found == pytest.approx(_by_hand(config, generator, discriminator), rel=1e-5)
    assert len(set(arena.generator_losses_GD.flat)) == 6


def test_newcomers_meet_the_gathered_on_the_same_samples():
    """Who is gathered already gets the very same losses as a newcomer."""
    config = _config(*MLP)
    generators, discriminators = _records(config, 3)
    arena = _arena(config, generators, discriminators)
    for k in range(3):
        again = arena.generator_against_all(generators[k])
        assert again.tolist() == arena.generator_losses_GD[k].tolist()
        again = arena.discriminator_against_all(discriminators[k])
        assert again.tolist() == arena.discriminator_losses_DG[k].tolist()
    assert arena.generator_against_all(generators[0]).shape == (3,)


@pytest.mark.parametrize("loss", ["bce", "minimax", "least-squares", "hinge", "wasserstein"])
def test_fitness_is_the_same_whatever_loss_the_run_trains_with(loss):
    config, plain = _config(*MLP, f"training.loss={loss}"), _config(*MLP)
    records = _records(plain, 2)
    found, expected = _arena(config, *records), _arena(plain, *records)
    assert found.generator_losses_GD.tolist() == expected.generator_losses_GD.tolist()
    assert found.discriminator_losses_DG.tolist() == expected.discriminator_losses_DG.tolist()


@pytest.mark.parametrize("sets", [MLP, DCGAN], ids=["mlp", "dcgan"])
def test_nobody_learns_from_a_contest(sets):
    """BatchNorm's statistics neither: they are in the record."""
    config = _config(*sets)
    records = _records(config, 2)
    before = [one.tobytes() for kind in records for one in kind]
    judge = _pair(config, 99)
    arena = Arena(judge, *_samples(), *records)
    arena.generator_against_all(records[0][1])
    assert judge.generator.to_numpy().tobytes() == before[1]
    arena.discriminator_against_all(records[1][0])
    assert judge.discriminator.to_numpy().tobytes() == before[2]
    arena.diversity()
    assert [one.tobytes() for kind in records for one in kind] == before


def test_an_individual_s_losses_do_not_depend_on_who_else_is_there():
    config = _config(*DCGAN)
    generators, discriminators = _records(config, 3)
    all_three = _arena(config, generators, discriminators)
    alone = _arena(config, generators[1:2], discriminators[2:])
    assert alone.generator_losses_GD[0, 0] == all_three.generator_losses_GD[1, 2]
    assert alone.discriminator_losses_DG[0, 0] == all_three.discriminator_losses_DG[2, 1]


def test_diversity_is_the_mean_distance_at_equal_latents():
    config = _config(*MLP)
    generators, discriminators = _records(config, 3)
    one, other, third = generators
    assert _arena(config, [one], discriminators).diversity() == 0
    assert _arena(config, [one, one], discriminators).diversity() == 0
    pairs = [(one, other), (one, third), (other, third)]
    apart = [_arena(config, pair, discriminators).diversity() for pair in pairs]
    assert min(apart) > 0
    together = _arena(config, generators, discriminators).diversity()
    assert together == pytest.approx(sum(apart) / 3)


def test_fitness_is_the_mean_the_best_or_the_worst_of_the_losses():
    losses_AO = np.array([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
    assert fitness(losses_AO, Fitness.AVERAGE).tolist() == [3.0, 4.0]
    assert fitness(losses_AO, Fitness.BEST).tolist() == [1.0, 4.0]
    assert fitness(losses_AO, Fitness.WORST).tolist() == [6.0, 4.0]
    assert float(fitness(losses_AO[0], Fitness.WORST)) == 6.0


@pytest.mark.parametrize("kind", Fitness)
def test_a_broken_individual_is_the_least_fit(kind):
    config = _config(*MLP)
    generators, discriminators = _records(config, 2)
    generators[1][3] = discriminators[1][3] = np.nan
    arena = _arena(config, generators, discriminators[:1])
    found = fitness(arena.generator_losses_GD, kind)
    assert np.isfinite(found[0])
    assert found[1] == np.inf
    arena = _arena(config, generators[:1], discriminators)
    found = fitness(arena.discriminator_losses_DG, kind)
    assert np.isfinite(found[0])
    assert found[1] == np.inf
