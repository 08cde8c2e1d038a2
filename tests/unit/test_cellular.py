"""The cellular method: what a round does, that it can be broken off anywhere, and how it heals.

A stub scores the mixtures: no feature network is trained here. Whole grids: tests/contract.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.helpers.generators import global_generators_left_alone

from manege.cell import HEADER, Arena, GridState, Pair, fitness, published
from manege.config import (
    ALL,
    DataConfig,
    Fitness,
    Objective,
    RunConfig,
    partition,
    resolve,
)
from manege.data import Dataset, Split, open_dataset
from manege.methods import Cellular, Independent, Step, cellular
from manege.methods.shares import Shares
from manege.models import ALIGN, objective_loss
from manege.runtime.worker.setup import gauge_of
from manege.topology import connected

CPU = torch.device("cpu")
NAN = float("nan")
FIRST = 2e-4
SMALL = (
    *("training.batch=50", "training.batches_per_round=3", "training.attempts=1"),
    "sheets.pictures=4",
)
MLP = ("networks.hidden=8", "networks.latent=8")
GRID = (
    *("cellular.rows=2", "cellular.columns=2", "cellular.fitness_samples=32"),
    *("cellular.mixture.samples=100", "cellular.mixture.steps=5"),
    *("cellular.mixture.final_samples=200", "cellular.mixture.final_steps=5"),
)
ONE_CELL = ("cellular.rows=1", "cellular.columns=1")
PLAIN = ("cellular.mutation.kind=none", "cellular.skip=0")
DCGAN = (
    *("networks.kind=dcgan", "networks.latent=8"),
    *("networks.generator_width=4", "networks.discriminator_width=2"),
)
MUSTANGS = ("cellular.objectives=[minimax, heuristic, least-squares]",)
NEIGHBOURS = ("cellular.opponents=neighbourhood",)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "cellular-cache"))


class Told(NamedTuple):
    value: float
    low: float
    high: float


class Looker:
    """A scorer that likes dark pictures, and keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.asked: list[np.ndarray] = []
        self.measured: list[int] = []
        self.verdicts: list[float] = []
        """What to say of measured pictures, if anything else than how dark they are."""

    def moments(self, pictures_NSSC: np.ndarray) -> np.ndarray:
        self.seen.append(len(pictures_NSSC))
        return pictures_NSSC.reshape(len(pictures_NSSC), -1).mean(0)

    def score(self, weights_S, moments) -> float:
        self.asked.append(weights_S.copy())
        return float(np.square(weights_S @ np.stack(moments)).sum())

    def measure(self, pictures_NSSC: np.ndarray) -> Told:
        self.measured.append(len(pictures_NSSC))
        value = self.verdicts.pop(0) if self.verdicts else float(pictures_NSSC.mean())
        return Told(value, value - 1, value + 1)


THREE = DataConfig(source="digits", classes=("3", "7", "8"))


@cache
def _digits() -> Dataset:
    return open_dataset(THREE)


@cache
def _config(*sets: str) -> RunConfig:
    flags = {"data.source": "digits", "method": "cellular"}
    networks = () if "networks.kind=dcgan" in sets else MLP
    return resolve(flags=flags, sets=[*SMALL, *networks, *GRID, *sets])


def _method(*sets: str, scorer: Looker | None = None) -> Cellular:
    config = _config(*sets)
    gauge = gauge_of(config, _digits(), None)
    return Cellular(config, _digits(), CPU, lambda phase: nullcontext(), scorer or Looker(), gauge)


States = dict[str, GridState]


def _states(method: Cellular) -> States:
    return {cell: method.init(cell) for cell in method.cells()}


def _inbox(method: Cellular, states: States, cell: str) -> dict[str, Any]:
    round_ = states[cell].round_
    return {
        one: published(states[one].centres(), round_) for one in method.neighbours(cell, round_ + 1)
    }


def _first_inbox(method: Cellular, cell: str) -> dict[str, Any]:
    return _inbox(method, _states(method), cell)


def _march(method: Cellular, states: States, rounds: int) -> Iterator[tuple[str, Step]]:
    """Whoever is behind trains a round, as the driver has it; every step with its cell."""
    while (cell := min(states, key=lambda one: states[one].round_)) and (
        states[cell].round_ < rounds
    ):
        inbox = _inbox(method, states, cell)
        for step in method.advance(cell, states[cell], inbox):
            yield cell, step


def _trained(method: Cellular, rounds: int) -> States:
    states = _states(method)
    for _ in _march(method, states, rounds):
        pass
    return states


def _told(method: Cellular, rounds: int) -> dict[tuple[str, int], dict[str, Any]]:
    """What every cell tells at the end of every round."""
    steps = _march(method, _states(method), rounds)
    return {(cell, step.round_): dict(step.grid) for cell, step in steps if step.grid}


def _bits(state: GridState) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.to_arrays().items()}


def _all_bits(states: States) -> dict[str, Any]:
    return {cell: (_bits(state), state.counters()) for cell, state in states.items()}


def _header(record: np.ndarray) -> dict[str, float]:
    return dict(zip(HEADER, record[-ALIGN:].tolist(), strict=False))


def _body(record: np.ndarray) -> np.ndarray:
    """Weights, buffers and Adam's moments."""
    return record[:-ALIGN]


# Cells and their streams.


def test_neighbours_are_one_step_away_on_grids_that_are_not_square():
    method = _method("cellular.rows=3", "cellular.columns=4")
    for cell in method.cells():
        row, column = map(int, cell.split("-"))
        around = {
            f"{(row + down) % 3}-{(column + right) % 4}"
            for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1))
        }
        assert set(method.neighbours(cell, 1)) == around
        assert len(method.neighbours(cell, 1)) == 4
    assert connected(method.links()) == (method.cells(),)
    assert len(_method().neighbours("0-0", 1)) == 2


def _seen(monkeypatch) -> list[tuple[bytes, bytes]]:
    """Real pictures and latents of every generator update, as they come."""
    seen = []
    update = cellular.update_generator

    def look(pair, batch, noise, training, objective=None):
        seen.append((batch.pictures.numpy().tobytes(), noise.z_BZ.numpy().tobytes()))
        return update(pair, batch, noise, training, objective)

    monkeypatch.setattr(cellular, "update_generator", look)
    return seen


def test_every_cell_has_its_own_first_pair_batches_and_latents(monkeypatch):
    seen = _seen(monkeypatch)
    method = _method()
    states = _states(method)
    for kind in ("generator", "discriminator"):
        assert len({getattr(one.centre, kind).tobytes() for one in states.values()}) == 4
    list(_march(method, states, 2))
    assert len(seen) == 2 * 4 * 3
    for drawn in zip(*seen, strict=True):
        assert len(set(drawn)) == len(seen)


def test_individuals_of_one_cell_differ_and_the_first_is_that_of_a_cell_with_one():
    three = _method("cellular.population=3").init("0-1")
    assert len({record.tobytes() for record in three.generators}) == 3
    assert len({record.tobytes() for record in three.discriminators}) == 3
    assert np.array_equal(three.centre.generator, _method().init("0-1").centre.generator)


@pytest.mark.parametrize("cell", ["0-0", "1-1"])
def test_a_cell_is_the_same_in_grids_of_other_sizes(monkeypatch, cell):
    seen = _seen(monkeypatch)
    found = []
    for rows, columns in ((2, 2), (3, 3), (2, 5)):
        seen.clear()
        size = (f"cellular.rows={rows}", f"cellular.columns={columns}")
        method = _method(*size, "cellular.neighbourhood.kind=isolated")
        state = method.init(cell)
        for _ in range(2):
            list(method.advance(cell, state, {}))
        found.append((list(seen), _body(state.centre.generator).tobytes()))
    assert found[0] == found[1] == found[2]


def test_the_seed_decides_everything():
    one, same, other = (_trained(_method(f"seed={seed}"), 1) for seed in (1, 1, 2))
    assert _all_bits(one) == _all_bits(same)
    assert _bits(one["0-0"]) != _bits(other["0-0"])


def test_nothing_draws_from_the_global_generators():
    with global_generators_left_alone():
        for sets in ((), (*DCGAN, *NEIGHBOURS, *MUSTANGS, "cellular.mutation.kind=batch")):
            method = _method(*sets)
            states = _trained(method, 1)
            method.combine(states.items())
            method.sheet("0-0", states["0-0"])


def test_the_order_of_the_inbox_does_not_matter():
    ends = []
    for turned in (False, True):
        method = _method("cellular.mixture.steps=20")
        states = _states(method)
        for cell, state in states.items():
            inbox = _inbox(method, states, cell)
            given = dict(reversed(inbox.items())) if turned else inbox
            list(method.advance(cell, state, given))
        ends.append(_all_bits(states))
    assert ends[0] == ends[1]


# One cell is a plain GAN.


@pytest.mark.parametrize("networks", [MLP, DCGAN], ids=["mlp", "dcgan"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_grid_of_one_cell_is_a_single_gan_bit_for_bit(networks, attempts):
    sets = (*networks, f"training.attempts={attempts}")
    grid = _method(*ONE_CELL, *PLAIN, *sets)
    flags = {"data.source": "digits", "method": "single"}
    config = resolve(preset="cellular-paper", flags=flags, sets=[*SMALL, *sets])
    single = Independent(config, _digits(), CPU, lambda phase: nullcontext())
    assert grid.cells() == single.cells() == (ALL,)
    one, other = grid.init(ALL), single.init(ALL)
    for _ in range(3):
        (*_, last) = grid.advance(ALL, one, {})
        (*_, told) = single.advance(ALL, other)
        assert last.losses == told.losses
        for record, individual in (
            (one.centre.generator, other.pair.generator),
            (one.centre.discriminator, other.pair.discriminator),
        ):
            expected = individual.to_numpy()
            assert np.array_equal(_body(record), _body(expected))
            for field in ("steps", "learning_rate", "loss"):
                assert _header(record)[field] == _header(expected)[field]
    assert np.array_equal(grid.sheet(ALL, one), single.sheet(ALL, other))


# Learning rates.


@pytest.mark.parametrize(
    "mutation",
    ["{kind: round, probability: 1}", "{kind: batch, scale: 3, probability: 1}"],
    ids=["per round", "per batch"],
)
def test_a_mutated_rate_changes_the_very_next_step_by_its_factor(mutation):
    """Adam's first step is the rate times the gradient's sign, or nearly."""
    # Against the gathered, whom no mutation has touched: so the gradients are the same.
    alone = (*ONE_CELL, *NEIGHBOURS, "training.batches_per_round=1")
    moved = {}
    for name in (mutation, "{kind: none}"):
        method = _method(*alone, f"cellular.mutation={name}")
        state = method.init(ALL)
        before = state.centre
        list(method.advance(ALL, state, {}))
        moved[name] = [
            (_body(after) - _body(first), _header(after)["learning_rate"])
            for first, after in (
                (before.generator, state.centre.generator),
                (before.discriminator, state.centre.discriminator),
            )
        ]
    for (step, rate), (plain, first) in zip(moved[mutation], moved["{kind: none}"], strict=True):
        assert first == pytest.approx(FIRST)
        assert abs(np.log(rate / first)) > 0.05, "choose another seed"
        large = np.abs(plain) > 0.9 * FIRST  # Weights, of which there are many, not moments.
        assert large.sum() > 100
        assert np.median(step[large] / plain[large]) == pytest.approx(rate / first, rel=2e-3)


def test_a_rate_is_inherited_and_mutated_from_there():
    sets = ("cellular.mutation={kind: round, probability: 1}", "cellular.replacement=always")
    rates = {}
    for (cell, round_), told in _told(_method(*sets), 4).items():
        rates[cell, round_] = told["generator"]["rate"]
        parent = told["generator"]["parent"]
        before = rates.get((parent["cell"], parent["round"]), FIRST)
        assert told["generator"]["rate"] != pytest.approx(before, rel=1e-6)
    assert len(set(rates.values())) == 16
    assert all(FIRST / 10 * 0.999 <= rate <= FIRST * 5 * 1.001 for rate in rates.values())


def _rates_of_updates(*sets: str) -> list[tuple[float, float]]:
    """Of generator and discriminator, at every batch of a round."""
    rates = []
    train = Cellular._train

    def look(self, cell, state, opponents):
        images = train(self, cell, state, opponents)
        pair = state.offspring.pair
        rates.append((pair.generator.learning_rate, pair.discriminator.learning_rate))
        return images

    method = _method(*sets, "training.batches_per_round=8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cellular, "_train", look)
        list(method.advance("0-0", method.init("0-0"), _first_inbox(method, "0-0")))
    return rates


def test_rates_that_mutate_by_batch_do_and_others_do_not():
    by_batch = "cellular.mutation={kind: batch, scale: 0.2, probability: 1}"
    for drawn in zip(*_rates_of_updates(by_batch), strict=True):
        assert len(set(drawn)) == 8
        assert min(drawn) >= FIRST / 10 * 0.999
    by_round = "cellular.mutation={kind: round, probability: 1}"
    (rates,) = set(_rates_of_updates(by_round))
    assert all(rate != pytest.approx(FIRST) for rate in rates)
    (rates,) = set(_rates_of_updates("cellular.mutation.kind=none"))
    assert rates == pytest.approx((FIRST, FIRST))


# Objectives.


@pytest.mark.parametrize(
    ("objective", "loss", "slope"),
    [
        (Objective.MINIMAX, lambda p: np.log(1 - p), lambda p: -p),
        (Objective.HEURISTIC, lambda p: -np.log(p), lambda p: p - 1),
        (Objective.LEAST_SQUARES, lambda p: (p - 1) ** 2, lambda p: 2 * (p - 1) * p * (1 - p)),
    ],
)
def test_each_objective_is_what_mustangs_says_and_has_its_gradient(objective, loss, slope):
    logits_B = torch.linspace(-6, 6, 13, dtype=torch.float64, requires_grad=True)
    found = objective_loss(objective, logits_B)
    found.backward()
    p_B = 1 / (1 + np.exp(-logits_B.detach().numpy()))
    assert found.item() == pytest.approx(loss(p_B).mean())
    assert logits_B.grad.numpy() == pytest.approx(slope(p_B) / 13)


@pytest.mark.parametrize("objective", Objective)
def test_a_generator_follows_the_gradient_of_the_objective_it_drew(monkeypatch, objective):
    update = cellular.update_generator
    moments = []

    def compare(pair: Pair, batch, noise, training, drawn=None):
        assert drawn is objective
        fakes = pair.generator.network(noise.z_BZ)
        p_B = pair.discriminator.network(fakes, noise.fake_factors_BW).sigmoid()
        loss = {
            Objective.MINIMAX: (1 - p_B).log(),
            Objective.HEURISTIC: -p_B.log(),
            Objective.LEAST_SQUARES: (p_B - 1).square(),
        }[objective].mean()
        wanted = torch.autograd.grad(loss, pair.generator.parameters)
        told = update(pair, batch, noise, training, drawn)
        assert float(told) == pytest.approx(loss.item(), rel=1e-5)
        # After one step the first moment is (1 - beta1) times the gradient.
        weights = len(pair.generator.weights)
        floats = len(pair.generator.body)
        first = pair.generator.to_numpy()[floats : floats + weights] / (1 - 0.5)
        flat = np.concatenate([one.flatten().numpy() for one in wanted])
        moments.append((np.sort(first[first != 0]), np.sort(flat[flat != 0])))
        return told

    monkeypatch.setattr(cellular, "update_generator", compare)
    method = _method(f"cellular.objectives=[{objective}]", "training.batches_per_round=1")
    list(_march(method, _states(method), 1))
    assert len(moments) == 4
    for found, wanted in moments:
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-8)


def test_mustangs_draws_from_round_to_round_and_cell_to_cell():
    told = _told(_method(*MUSTANGS, "training.batches_per_round=1"), 6)
    drawn = {place: one["generator"]["objective"] for place, one in told.items()}
    assert set(drawn.values()) == {"minimax", "heuristic", "least-squares"}
    for cell in ("0-0", "0-1", "1-0", "1-1"):
        assert len({drawn[cell, round_] for round_ in range(1, 7)}) > 1
    assert max(len({drawn[cell, r] for cell, _ in drawn}) for r in range(1, 7)) > 1
    # Discriminators draw none.
    assert {one["discriminator"]["objective"] for one in told.values()} == {None}


def test_an_objective_is_drawn_and_not_inherited():
    """Else a neighbourhood would soon train with the objective of its fittest."""
    told = _told(_method(*MUSTANGS, "cellular.replacement=always"), 5)
    drawn = {place: one["generator"]["objective"] for place, one in told.items()}
    changed = [
        drawn[place] != drawn[parent["cell"], parent["round"]]
        for place, one in told.items()
        if (parent := one["generator"]["parent"])["round"] > 0
    ]
    assert 0.4 < np.mean(changed) < 0.95


def test_without_objectives_the_loss_of_the_run_is_trained_with():
    told = _told(_method(), 1)
    assert {one["generator"]["objective"] for one in told.values()} == {None}
    heuristic = _trained(_method("cellular.objectives=[heuristic]"), 1)
    for cell, state in _trained(_method(), 1).items():  # bce is the same as heuristic.
        assert np.array_equal(
            _body(state.centre.generator), _body(heuristic[cell].centre.generator)
        )


# Fitness.


class Watched(Arena):
    """All arenas there were, with what they were given."""

    all: list[Watched]

    def __init__(self, judge, reals, z_NZ, generators, discriminators) -> None:
        super().__init__(judge, reals, z_NZ, generators, discriminators)
        self.reals, self.z_NZ = reals.numpy().copy(), z_NZ.numpy().copy()
        self.given = list(generators), list(discriminators)
        Watched.all.append(self)

    def fitness_of(self, generators, discriminators) -> tuple[list[float], list[float]]:
        """On the samples of this arena, against those who were gathered."""
        losses = (
            [self.generator_against_all(one) for one in generators],
            [self.discriminator_against_all(one) for one in discriminators],
        )
        found = [fitness(np.array(one), Fitness.AVERAGE).tolist() for one in losses]
        return found[0], found[1]


@pytest.fixture
def arenas(monkeypatch) -> list[Watched]:
    Watched.all = []
    monkeypatch.setattr(cellular, "Arena", Watched)
    return Watched.all


def test_samples_of_fitness_are_the_cell_s_and_the_round_s_and_so_many(arenas):
    list(_march(method := _method(), _states(method), 2))
    assert len(arenas) == 2 * 4  # One a round: offspring meet on the samples of their parents.
    assert {(len(arena.reals), len(arena.z_NZ)) for arena in arenas} == {(32, 32)}
    assert len({arena.reals.tobytes() for arena in arenas}) == 8
    assert len({arena.z_NZ.tobytes() for arena in arenas}) == 8


def test_the_fitness_told_is_that_on_the_common_samples(arenas):
    method = _method()
    states = _states(method)
    for cell, step in _march(method, states, 2):
        if step.grid is None:
            continue
        arena, pair = arenas[-1], states[cell].offspring.pair
        own = arena.given[0][0], arena.given[1][0]
        children = pair.generator.to_numpy().copy(), pair.discriminator.to_numpy().copy()
        for name, before, after in zip(
            ("generator", "discriminator"),
            arena.fitness_of(own[:1], own[1:]),
            arena.fitness_of(children[:1], children[1:]),
            strict=True,
        ):
            assert [step.grid[name]["fitness"], step.grid[name]["offspring"]] == before + after


def test_fitness_is_the_same_whatever_objective_or_loss_is_trained_with():
    found, offspring = [], []
    for sets in (
        ("training.loss=bce",),
        ("training.loss=least-squares",),
        ("training.loss=wasserstein",),
        ("cellular.objectives=[least-squares]",),
        ("cellular.objectives=[minimax]",),
    ):
        told = _told(_method(*sets), 1)
        parts = [one[kind] for one in told.values() for kind in ("generator", "discriminator")]
        found.append([(one["fitness"], one["from"]) for one in parts])
        offspring.append([one["offspring"] for one in parts])
    assert all(one == found[0] for one in found)
    assert len({str(one) for one in offspring}) == 5


@pytest.mark.parametrize("kind", ["average", "best", "worst"])
def test_a_tournament_of_all_is_won_by_the_fittest_of_its_kind(arenas, kind):
    method = _method("cellular.tournament=3", f"cellular.fitness={kind}")
    states = _states(method)
    winners = set()
    for cell, step in _march(method, states, 2):
        if step.grid is None:
            continue
        gathered = (cell, *method.neighbours(cell, step.round_))
        for name, losses in (
            ("generator", arenas[-1].generator_losses_GD),
            ("discriminator", arenas[-1].discriminator_losses_DG),
        ):
            best = gathered[int(np.argmin(fitness(losses, Fitness(kind))))]
            assert step.grid[name]["from"] == best
            winners.add(best == cell)
    assert winners == {True, False}


# Clones.


def _clones(monkeypatch) -> list[tuple[str, Any, np.ndarray, np.ndarray]]:
    """Every clone before its first update: its cell, the members, and its records."""
    made = []
    clone = Cellular._clone

    def look(self, cell, state, members, arena):
        clone(self, cell, state, members, arena)
        pair = state.offspring.pair
        records = pair.generator.to_numpy().copy(), pair.discriminator.to_numpy().copy()
        made.append((cell, members, *records))

    monkeypatch.setattr(Cellular, "_clone", look)
    return made


def test_a_clone_takes_its_parent_s_weights_and_optimiser_with_it(monkeypatch):
    made = _clones(monkeypatch)
    method = _method("cellular.replacement=always", *PLAIN[1:])
    list(_march(method, _states(method), 3))
    names = list(method.cells())
    travelled = 0
    for cell, members, *children in made[4:]:
        for child, parents in zip(
            children, (members.generators, members.discriminators), strict=True
        ):
            source = names[int(_header(child)["source"])]
            parent = parents[members.cells.index(source)]
            assert np.array_equal(_body(child), _body(parent))
            moments = _body(child)[-64:]
            assert np.abs(moments).max() > 0
            assert _header(child)["steps"] == _header(parent)["steps"] > 0
            travelled += source != cell
    assert travelled > 4


def test_adam_counts_on_from_parent_to_child():
    states = _trained(_method("cellular.replacement=always", *PLAIN[1:]), 4)
    for state in states.values():
        assert _header(state.centre.generator)["steps"] == 4 * 3
        assert _header(state.centre.discriminator)["steps"] == 4 * 3


def test_lineage_names_the_parent_and_where_it_was_found():
    method = _method("cellular.replacement=always")
    told = _told(method, 3)
    for (cell, round_), one in told.items():
        for kind in ("generator", "discriminator"):
            parent = one[kind]["parent"]
            assert one[kind]["from"] in (cell, *method.neighbours(cell, round_))
            # With every offspring taken, a centre was born where it is found, the round before.
            assert parent == {"cell": one[kind]["from"], "round": round_ - 1}
            assert one[kind]["born"] == round_


def test_of_a_population_it_is_told_when_the_best_was_born():
    method = _method("cellular.population=3")
    states = _states(method)
    for cell, step in _march(method, states, 4):
        if step.grid and step.round_ == 4:
            for kind in ("generator", "discriminator"):
                centre = getattr(states[cell].centre, kind)
                assert step.grid[kind]["born"] == _header(centre)["id"]


@pytest.mark.parametrize(("skip", "steps"), [(0, 4), (1, 4), (1, 5), (2, 7), (9, 3)])
def test_a_discriminator_skips_batches_and_a_generator_none(skip, steps):
    sets = (f"cellular.skip={skip}", f"training.batches_per_round={steps}")
    method = _method(*sets, "cellular.replacement=always", *ONE_CELL)
    state = method.init(ALL)
    for rounds in (1, 2):
        (*_, last) = method.advance(ALL, state, {})
        assert _header(state.centre.generator)["steps"] == rounds * steps
        assert _header(state.centre.discriminator)["steps"] == rounds * ceil(steps / (skip + 1))
    assert 0.1 < last.losses["discriminator"] < 3  # A mean over its updates, near 2 log 2.


def test_a_discriminator_is_updated_first_and_then_every_so_manieth_time(monkeypatch):
    calls = []
    for name in ("update_generator", "update_discriminator"):
        update = getattr(cellular, name)
        monkeypatch.setattr(
            cellular, name, lambda *args, n=name, u=update: (calls.append(n[7]), u(*args))[1]
        )
    method = _method(*ONE_CELL, "cellular.skip=2", "training.batches_per_round=5")
    list(method.advance(ALL, method.init(ALL), {}))
    assert "".join(calls) == "dgggdgg"


# Opponents.


@pytest.mark.parametrize("networks", [(), DCGAN], ids=["mlp", "dcgan"])
def test_the_gathered_learn_nothing_from_being_opponents(monkeypatch, networks):
    """BatchNorm's statistics are in the record too."""
    loaded: list[Pair] = []
    load = Cellular._load_opponents

    def look(self, members):
        loaded.extend(load(self, members))
        return loaded

    monkeypatch.setattr(Cellular, "_load_opponents", look)
    method = _method(*NEIGHBOURS, *networks)
    states = _trained(method, 1)
    loaded.clear()
    inbox = _inbox(method, states, "0-0")
    centres = [states["0-0"].centre, *inbox.values()]
    before = [(one.generator.copy(), one.discriminator.copy()) for one in centres]
    list(method.advance("0-0", states["0-0"], inbox))
    assert len(loaded) == 3
    for (generator, discriminator), centre, pair in zip(before, centres, loaded, strict=True):
        for found in (centre.generator, pair.generator.to_numpy()):
            assert np.array_equal(found, generator)
        for found in (centre.discriminator, pair.discriminator.to_numpy()):
            assert np.array_equal(found, discriminator)


def test_opponents_are_drawn_from_the_whole_neighbourhood_each_batch(monkeypatch):
    met = []
    for name, kind in (
        ("update_generator", "discriminator"),
        ("update_discriminator", "generator"),
    ):
        update = getattr(cellular, name)

        def look(pair, *rest, kind=kind, update=update):
            met.append((kind, getattr(pair, kind).to_numpy().tobytes()))
            return update(pair, *rest)

        monkeypatch.setattr(cellular, name, look)
    method = _method(*NEIGHBOURS, "training.batches_per_round=20", "cellular.skip=0")
    states = _states(method)
    inbox = _inbox(method, states, "0-0")
    gathered = [states["0-0"].centre, *inbox.values()]
    list(method.advance("0-0", states["0-0"], inbox))
    for kind in ("generator", "discriminator"):
        found = Counter(record for name, record in met if name == kind)
        assert set(found) == {getattr(one, kind).tobytes() for one in gathered}
        assert found.total() == 20


def test_other_opponents_make_other_offspring():
    selected, drawn = (_trained(_method(*sets), 1) for sets in ((), NEIGHBOURS))
    for cell, state in selected.items():
        assert _bits(state) != _bits(drawn[cell])


# Replacement.


def _rounds(method: Cellular, rounds: int) -> Iterator[tuple[GridState, list, list, dict]]:
    """Every round that ends: the state, both populations before it, and what was told."""
    states = _states(method)
    before: dict[str, tuple[list, list]] = {}
    for cell, step in _march(method, states, rounds):
        state = states[cell]
        if step.grid is None:
            before[cell] = list(state.generators), list(state.discriminators)
            continue
        yield state, *before[cell], dict(step.grid)


@pytest.mark.full
@pytest.mark.parametrize("population", [1, 3])
def test_strict_replacement_never_makes_a_cell_less_fit(arenas, population):
    replaced = Counter()
    # A parent drawn by chance, and steps that are far too large: children are often less fit.
    rates = [f"training.optimiser.{kind}_lr=0.5" for kind in ("generator", "discriminator")]
    method = _method(f"cellular.population={population}", "cellular.tournament=1", *rates)
    for state, *before, told in _rounds(method, 4):
        was = arenas[-1].fitness_of(*before)
        now = arenas[-1].fitness_of(state.generators, state.discriminators)
        for old, new, kind in zip(was, now, ("generator", "discriminator"), strict=True):
            replaced[told[kind]["replaced"]] += 1
            assert np.less_equal(sorted(new), sorted(old)).all()
            assert (sorted(new) != sorted(old)) == told[kind]["replaced"]
            assert told[kind]["replaced"] == (told[kind]["offspring"] < max(old))
    assert min(replaced[True], replaced[False]) > 0, replaced


@pytest.mark.full
@pytest.mark.parametrize("replacement", ["strict", "always"])
@pytest.mark.parametrize("population", [1, 3])
def test_the_worst_makes_room_and_the_centre_is_the_fittest(arenas, replacement, population):
    sets = (f"cellular.population={population}", f"cellular.replacement={replacement}")
    changed_centre = 0
    for state, *before, told in _rounds(_method(*sets), 3):
        was = arenas[-1].fitness_of(*before)
        populations = state.generators, state.discriminators
        now = arenas[-1].fitness_of(*populations)
        centre = state.centre.generator, state.centre.discriminator
        for k, kind in enumerate(("generator", "discriminator")):
            changed = [i for i in range(population) if populations[k][i] is not before[k][i]]
            assert told[kind]["fitness"] == max(was[k])
            if replacement == "always":
                assert told[kind]["replaced"]
            assert changed == ([int(np.argmax(was[k]))] if told[kind]["replaced"] else [])
            assert centre[k] is populations[k][int(np.argmin(now[k]))]
            changed_centre += int(np.argmin(now[k])) != 0
    assert population == 1 or changed_centre > 2


def test_whoever_is_alone_is_always_replaced():
    """There is nobody to compare with but an opponent that was trained beside it."""
    method = _method("cellular.neighbourhood.kind=isolated")
    for one in _told(method, 3).values():
        assert one["generator"]["replaced"]
        assert one["discriminator"]["replaced"]


# Mixtures.


def _weights(state: GridState, cells: tuple[str, ...]) -> list[float]:
    return [state.weights[cell] for cell in cells]


def test_mixture_weights_stay_on_the_simplex_and_go_on_from_where_they_were():
    scorer = Looker()
    method = _method("cellular.mixture.scale=0.2", scorer=scorer)
    states = _states(method)
    starts: dict[str, list[np.ndarray]] = {cell: [] for cell in states}
    before: dict[str, dict[str, float]] = {}
    for cell, step in _march(method, states, 4):
        state = states[cell]
        if step.grid is None:
            scorer.asked.clear()
            before[cell] = dict(state.weights)
            continue
        around = (cell, *method.neighbours(cell, step.round_))
        assert set(state.weights) == set(around)
        found = _weights(state, around)
        assert min(found) >= 0
        assert sum(found) == pytest.approx(1, abs=1e-12)
        assert len(scorer.asked) == 1 + 5  # As many as there are to be tried.
        start = sorted(scorer.asked[0].tolist())
        assert start == sorted(before[cell].values() or [1 / 3] * 3)
        assert step.grid["mixture"] == {"weights": state.weights, "score": state.score}
        starts[cell].append(scorer.asked[0])
    assert all(len({tuple(one) for one in all_}) > 1 for all_ in starts.values())


def test_mixture_weights_begin_anew_when_the_neighbourhood_changes():
    scorer = Looker()
    nine_then_five = (
        "cellular.changes=[{from_round: 3, neighbourhood: {kind: nine}},"
        " {from_round: 4, neighbourhood: {kind: isolated}},"
        " {from_round: 5, neighbourhood: {kind: five}}]"
    )
    method = _method(nine_then_five, "cellular.mixture.scale=0.2", scorer=scorer)
    states = _states(method)
    assert connected(method.links()) == (("0-0", "0-1", "1-0", "1-1"),)
    wanted = {1: 3, 3: 4, 4: 1, 5: 3}
    before: dict[str, dict[str, float]] = {}
    carried_on = []
    for cell, step in _march(method, states, 6):
        if step.grid is None:
            scorer.asked.clear()
            before[cell] = dict(states[cell].weights)
            continue
        assert len(step.grid["mixture"]["weights"]) == wanted.get(step.round_, 3)
        start = scorer.asked[0].tolist()
        if step.round_ in wanted:
            assert len(set(start)) == 1, (cell, step.round_)
        else:
            assert sorted(start) == sorted(before[cell].values())
            carried_on.append(len(set(start)) > 1)
    # Where nothing better was found, those of the round before are even, too.
    assert any(carried_on)


@pytest.mark.parametrize(("samples", "final"), [(100, 200), (137, 211), (1000, 960)])
def test_scores_are_of_as_many_pictures_as_were_asked_for(samples, final):
    scorer = Looker()
    sets = (f"cellular.mixture.samples={samples}", f"cellular.mixture.final_samples={final}")
    method = _method(*sets, "cellular.replacement=always", scorer=scorer)
    states = _trained(method, 1)
    assert scorer.seen == [samples] * (4 + 4)  # Of centre 0 and of centre 1.
    scorer.asked.clear()
    method.combine(states.items())
    assert scorer.seen == [samples] * 8
    assert scorer.measured == [final] * 4
    assert len(scorer.asked) == 4 * (1 + 5)


def test_a_generator_that_stays_the_centre_is_not_drawn_from_again():
    scorer = Looker()
    method = _method(scorer=scorer)
    told = _told(method, 3)
    assert len(scorer.seen) == 4 + sum(one["generator"]["replaced"] for one in told.values())


def test_the_reduction_is_the_best_mixture_on_fresh_pictures():
    scorer = Looker()
    method = _method(scorer=scorer)
    states = _trained(method, 1)
    before = _all_bits(states)
    scorer.verdicts = [3.0, NAN, 1.0, 2.0]
    found = method.combine(states.items())
    assert found.cell == "1-0"
    assert [found.scores[cell].value for cell in ("0-0", "1-0", "1-1")] == [3.0, 1.0, 2.0]
    assert set(found.weights) <= {"1-0", *method.neighbours("1-0", 2)}
    assert sum(found.weights.values()) == pytest.approx(1)
    assert all(weight > 0 for weight in found.weights.values())
    assert _all_bits(states) == before
    assert method.combine(states.items()).weights == method.combine(states.items()).weights


def test_the_reduction_over_the_whole_grid_is_one_mixture_of_all():
    scorer = Looker()
    method = _method("cellular.mixture.final_over=grid", scorer=scorer)
    found = method.combine(_trained(method, 1).items())
    assert scorer.measured == [200]
    assert set(found.weights) == set(method.cells())
    assert list(found.scores) == [found.cell]


def test_the_reduction_mixes_the_neighbourhood_that_was_trained_with():
    """A change that was to come later has not come."""
    sets = "cellular.changes=[{from_round: 2, neighbourhood: {kind: isolated}}]"
    method = _method(sets)
    states = _trained(method, 1)
    found = method.combine(states.items())
    assert len(found.weights) == 3
    assert len(method.combine(_trained(_method(sets), 2).items()).weights) == 1


# Data.


def test_no_picture_is_decoded_or_opened_twice(monkeypatch, tmp_path):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path))
    opened, decoded = Counter(), Counter()
    dataset = open_dataset(THREE)
    pictures, decode = Dataset.pictures, type(dataset.source).decode

    def open_(self, label, split):
        opened[label, split] += 1
        return pictures(self, label, split)

    def decode_(self, wanted, *rest):
        decoded.update(list(wanted))
        return decode(self, wanted, *rest)

    monkeypatch.setattr(Dataset, "pictures", open_)
    monkeypatch.setattr(type(dataset.source), "decode", decode_)
    for fraction in (1.0, 0.5):
        opened.clear()
        config = _config(f"cellular.data_fraction={fraction}")
        method = Cellular(config, dataset, CPU, lambda phase: nullcontext(), Looker())
        method.combine(_trained(method, 2).items())
        assert opened == dict.fromkeys(((label, Split.TRAIN) for label in dataset.labels), 1)
    assert decoded == dict.fromkeys(dataset.labels, 1)


def _shares(*sets: str) -> Shares:
    config, dataset = _config(*sets), _digits()
    return Shares(config, dataset, CPU, partition(config, dataset.labels))


def _pictures(shares: Shares, cell: str) -> Counter:
    return Counter(one.numpy().tobytes() for one in shares.of(cell).pictures)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.9])
def test_a_diet_is_drawn_without_replacement_for_each_cell(fraction):
    sets = f"cellular.data_fraction={fraction}"
    shares = _shares(sets)
    every = _pictures(_shares(), "0-0")
    seen = [_pictures(shares, cell) for cell in ("0-0", "0-1", "1-0", "1-1")]
    for one in seen:
        assert one.total() == round(fraction * every.total())
        assert not one - every  # No picture more often than it is there.
    overlaps = [(one & other).total() for one in seen for other in seen if one is not other]
    # Each draws on its own: what two have in common is what chance gives them.
    assert np.mean(overlaps) == pytest.approx(fraction**2 * every.total(), rel=0.1)
    again = _shares(sets, "cellular.rows=3")
    assert [_pictures(again, cell) for cell in ("0-0", "0-1", "1-0", "1-1")] == seen
    assert _pictures(_shares(sets, "seed=1"), "0-0") != seen[0]


def test_a_round_on_a_diet_is_one_pass_over_it():
    sets = ("cellular.data_fraction=0.1", "training.batches_per_round=null")
    shares, method = _shares(*sets), _method(*sets)
    assert method.steps_in_round("0-0") == ceil(shares.of("0-0").count / 50)
    inbox = _first_inbox(method, "0-0")
    steps = list(method.advance("0-0", method.init("0-0"), inbox))
    assert len(steps) == method.steps_in_round("0-0") > 0


def test_without_a_diet_all_cells_have_the_pictures_in_common():
    shares = _shares()
    assert len({shares.of(cell).pictures.data_ptr() for cell in ("0-0", "0-1", "1-1")}) == 1
    assert shares.of("0-0").count == sum(one.train for one in _digits().classes)
    assert set(partition(_config(), _digits().labels)) == set(shares.cells())


# A round broken off and taken up again.

RESUMED = {
    "mlp, strict": ("cellular.skip=2",),
    "mustangs": (*MUSTANGS, "cellular.mutation.kind=batch"),
    "neighbourhood, dcgan": (
        *(*NEIGHBOURS, *DCGAN, "cellular.data_fraction=0.5"),
        "training.batches_per_round=2",
    ),
    "population 2": (
        *("cellular.population=2", "cellular.replacement=always", "cellular.tournament=1"),
        "cellular.mutation={kind: round, probability: 1}",
    ),
    "attempts, a change": (
        "training.attempts=3",
        "cellular.changes=[{from_round: 2, neighbourhood: {kind: nine}}]",
    ),
}
LONG = {"mlp, strict", "neighbourhood, dcgan", "population 2"}


def _apart(states: States) -> dict[str, tuple[dict[str, np.ndarray], str]]:
    """All states as commits hold them."""
    return {
        cell: (
            {name: array.copy() for name, array in state.to_arrays().items()},
            json.dumps(state.counters()),
        )
        for cell, state in states.items()
    }


def _together(method: Cellular, parts: dict) -> States:
    with pytest.MonkeyPatch.context() as patch:  # What it knows of centre 0 is not asked for.
        patch.setattr(Cellular, "_moments", lambda *args: np.zeros(64))
        states = _states(method)
    for cell, (arrays, counters) in parts.items():
        states[cell].restore(arrays, json.loads(counters))
    return states


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.full) if one in LONG else one for one in RESUMED],
)
def test_broken_off_at_any_step_a_grid_goes_on_with_the_same_bits(name):
    sets, rounds = RESUMED[name], 2
    method = _method(*sets)
    states = _states(method)
    kept, told = [_apart(states)], []
    for _, step in _march(method, states, rounds):
        kept.append(_apart(states))
        told.append(step)
    assert len(told) == rounds * 4 * method.steps_in_round("0-0")
    # What is not kept of a first round is not kept of a second either, which keeps more.
    first = 0 if name == "mlp, strict" else len(told) // 2
    for number, parts in enumerate(kept[first:-1], start=first):
        # To the end of the round under way: what follows is broken off there in its turn.
        other = _method(*sets)
        restored = _together(other, parts)
        for place, (_, step) in enumerate(_march(other, restored, rounds), start=number):
            assert step == told[place]
            assert _same(_apart(restored), kept[place + 1])
            if step.losses is not None:
                break


def _same(one: dict, other: dict) -> bool:
    return all(
        counters == other[cell][1]
        and arrays.keys() == other[cell][0].keys()
        and all(np.array_equal(array, other[cell][0][name]) for name, array in arrays.items())
        for cell, (arrays, counters) in one.items()
    )


@pytest.mark.full
def test_a_grid_measures_its_centres_and_trains_as_if_it_did_not():
    # Parents drawn by chance, over six rounds: some of their children are surely less fit.
    sets = ("training.optimiser.generator_lr=0.05", "cellular.tournament=1")
    method, other = _method(*sets), _method(*sets, "stability.every_rounds=null")
    states, left_alone = _states(method), _states(other)
    told: dict[str, list] = {cell: [] for cell in states}
    for cell, step in _march(method, states, 6):
        if step.losses is not None:
            told[cell].append((step.grid["generator"]["replaced"], step.indices))
    assert all(step.indices is None for _, step in _march(other, left_alone, 6))
    for cell, state in states.items():
        bits = {name: one for name, one in _bits(state).items() if name != "trail"}
        assert bits == _bits(left_alone[cell])
        # A centre that stays has not moved; one that was replaced has.
        for replaced, indices in told[cell][1:]:
            assert (indices["moved"] > 1e-9) == replaced
        assert told[cell][-1][1]["cycling"] is not None
    kinds = {replaced for rows in told.values() for replaced, _ in rows[1:]}
    assert kinds == {True, False}  # Else this tells nothing.


def test_the_reduction_of_a_restored_grid_is_that_of_the_first():
    method, other = _method("cellular.population=2"), _method("cellular.population=2")
    states = _trained(method, 2)
    one, again = (
        method.combine(states.items()),
        other.combine(_together(other, _apart(states)).items()),
    )
    assert (one.cell, one.weights, one.scores) == (again.cell, again.weights, again.scores)


# Healing.


def _poison(pair: Pair, kind: str = "generator") -> None:
    with torch.no_grad():
        getattr(pair, kind).weights.fill_(NAN)


@pytest.mark.parametrize("kind", ["generator", "discriminator"])
def test_offspring_that_break_down_are_begun_again_from_the_best_neighbour(arenas, kind):
    """Whether the cell's own would have won or not."""
    method = _method("training.attempts=3", "cellular.tournament=3")
    states = _trained(method, 1)
    own_is_fittest = []
    for after, (cell, state) in zip((1, 2, 1, 2), states.items(), strict=True):
        centre, steps = state.centre, []
        for step in method.advance(cell, state, _inbox(method, states, cell)):
            steps.append((step.step, step.trouble is not None, state.attempt))
            if len(steps) == after:
                _poison(state.offspring.pair, kind)
            if step.trouble is not None:
                assert "loss is not finite" in step.trouble
                assert (state.round_, state.step, state.centre) == (1, 0, centre)
                assert state.is_finite()
        assert steps[after] == (after + 1, True, 1)
        assert steps[after + 1 :] == [(1, False, 1), (2, False, 1), (3, False, 0)]
        around = method.neighbours(cell, 2)
        for name, losses in (
            ("generator", arenas[-1].generator_losses_GD),
            ("discriminator", arenas[-1].discriminator_losses_DG),
        ):
            told = fitness(losses, Fitness.AVERAGE)
            assert step.grid[name]["from"] == around[int(np.argmin(told[1:]))]
            own_is_fittest.append(int(np.argmin(told)) == 0)
        assert state.round_ == 2
    assert any(own_is_fittest), "choose another seed"
    for _ in _march(method, states, 3):
        assert all(one.centre.is_finite() for one in states.values())


def test_whoever_is_alone_begins_again_from_itself():
    method = _method(*ONE_CELL, "training.attempts=3")
    state = method.init(ALL)
    list(method.advance(ALL, state, {}))
    was = state.centre
    troubles = []
    for step in method.advance(ALL, state, {}):
        if state.step == 2 and not troubles:
            _poison(state.offspring.pair)
        troubles += [step.trouble] if step.trouble else []
    assert len(troubles) == 1
    assert step.grid["generator"]["parent"] == {"cell": ALL, "round": 1}
    assert _header(state.centre.generator)["steps"] == _header(was.generator)["steps"] + 3
    assert state.centre.is_finite()


def test_another_attempt_draws_other_numbers_and_is_a_function_of_its_place(monkeypatch):
    seen = _seen(monkeypatch)
    ends = []
    for after in (1, 2):
        method = _method("training.attempts=3")
        states = _states(method)
        seen.clear()
        for number, _ in enumerate(
            method.advance("0-0", states["0-0"], _inbox(method, states, "0-0")), start=1
        ):
            if number == after:
                _poison(states["0-0"].offspring.pair)
        assert len(set(seen)) == len(seen) == after + 1 + 3
        ends.append(_bits(states["0-0"]))
    assert ends[0] == ends[1]


def test_taken_apart_between_two_attempts_it_goes_on_with_the_same_bits():
    sets = ("training.attempts=3", *MUSTANGS)
    method, other = _method(*sets), _method(*sets)
    states = _states(method)
    restored = None
    for step in method.advance("0-0", states["0-0"], _inbox(method, states, "0-0")):
        if step.trouble is not None:
            restored = _together(other, _apart(states))
            assert restored["0-0"].attempt == 1
        elif restored is None:
            _poison(states["0-0"].offspring.pair)
    assert restored is not None
    (*_, last) = other.advance("0-0", restored["0-0"], _inbox(other, restored, "0-0"))
    assert last == step
    assert _all_bits(restored) == _all_bits(states)


def test_offspring_broken_by_the_last_step_are_begun_again_where_there_are_attempts():
    method = _method("training.attempts=2")
    train = Cellular._train

    def broken(self, cell, state, opponents):
        images = train(self, cell, state, opponents)
        if state.step == 3 and state.attempt == 0:
            _poison(state.offspring.pair)
        return images

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cellular, "_train", broken)
        state = method.init("0-0")
        steps = list(method.advance("0-0", state, _first_inbox(method, "0-0")))
    assert [step.trouble for step in steps] == [None, None, "a weight is not finite", *[None] * 3]
    assert state.centre.is_finite()


def test_weights_that_explode_begin_the_round_again_as_in_a_single_gan():
    method = _method("training.attempts=2", "cellular.replacement=always")
    state = method.init("0-0")
    troubles = []
    for step in method.advance("0-0", state, _first_inbox(method, "0-0")):
        if state.step == 1 and state.attempt == 0:
            with torch.no_grad():
                state.offspring.pair.generator.weights.mul_(50)
        troubles += [step.trouble] if step.trouble else []
    assert len(troubles) == 1
    assert "the weights have grown" in troubles[0]


def test_a_cell_that_keeps_collapsing_goes_on_after_its_attempts():
    """Given up it would be lost to its neighbours, which may yet heal it."""
    method = _method("training.attempts=3")
    state = method.init("0-0")
    inbox = _first_inbox(method, "0-0")
    state.offspring.widest = 1e6  # Whatever it draws, it drew wider once.
    steps = list(method.advance("0-0", state, inbox))
    told = [step.trouble is not None and "have collapsed" in step.trouble for step in steps]
    assert told == [False, False, True, False, False, True, False, False, False]
    assert (state.round_, state.attempt) == (1, 0)
    spread = steps[-1].spread
    assert state.offspring.widest == spread > 0
    # And the next round is measured by what it has now.
    again = list(method.advance("0-0", state, inbox))
    assert [step.trouble for step in again] == [None] * 3
