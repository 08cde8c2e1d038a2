"""Lipizzaner and Mustangs: a grid of cells, each coevolving with its neighbours' centres.

A round of a cell: its individuals and its neighbours' centres meet (`Arena`); a tournament picks
a generator and a discriminator, which are cloned, mutated and trained on the cell's batches; what
comes of them takes the place of the cell's worst individuals; the mixture over the neighbourhood
is weighed anew. Centres come in, a centre goes out: who carries them is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, assert_never

import numpy as np
import torch

from manege.cell import (
    Arena,
    CellState,
    Centre,
    Estimated,
    Gauge,
    GridState,
    Individual,
    Judgement,
    MixtureScorer,
    Pair,
    born_in,
    collapse,
    draw_objective,
    evolve,
    fitness,
    new_pair,
    new_state,
    proportions,
    rate_at_batch,
    rate_when_cloned,
    round_trouble,
    step_trouble,
    tournament,
    uniform,
    update_both,
    update_discriminator,
    update_generator,
)
from manege.config import (
    CellularConfig as Grid,
)
from manege.config import (
    CustomCells,
    FiveCells,
    Isolated,
    MutationPerBatch,
    NineCells,
    Objective,
    Opponents,
    Replacement,
    Ring,
    RunConfig,
    stream,
)
from manege.config.cellular import Neighbourhood
from manege.data import Dataset
from manege.device import Devices, both
from manege.methods.method import Inbox, Step, Timer
from manege.methods.shares import Shares
from manege.models import FrozenFeatures, Generator, to_floats
from manege.topology import FIVE, NINE, Schedule, Topology, isolated, ring, torus


@dataclass(frozen=True)
class Members:
    """A sub-population: the cell's own individuals, then its neighbours' centres."""

    cells: tuple[str, ...]
    """Where each comes from."""
    generators: tuple[np.ndarray, ...]
    discriminators: tuple[np.ndarray, ...]
    own: int
    """How many are the cell's own."""


@dataclass(frozen=True)
class Reduction:
    """The best neighbourhood's mixture, and what all came to."""

    cell: str
    weights: Mapping[str, float]
    """By the cells whose centres draw; those that draw nothing are left out."""
    scores: Mapping[str, Estimated]
    """Of every cell's mixture, on fresh pictures."""


class Cellular:
    """A grid of generator/discriminator pairs."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        on: torch.device | Devices,
        timer: Timer,
        scorer: MixtureScorer,
        gauge: Gauge | None = None,
        features: FrozenFeatures | None = None,
    ) -> None:
        assert config.cellular is not None
        self._config = config
        self._grid: Grid = config.cellular
        self._devices = both(on)
        self._timer = timer
        self._scorer = scorer
        self._gauge = gauge
        self._shares = Shares(config, dataset, self._devices.discriminator, features)
        self._numbers = {cell: number for number, cell in enumerate(self._shares.labels)}
        self._schedule = schedule_of(self._grid, tuple(self._numbers))
        self._judge = self._blank_pair()

    def cells(self) -> tuple[str, ...]:
        """All cells' keys, row after row."""
        return tuple(self._numbers)

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Cells that hear of each other, now or later."""
        return self._schedule.components()

    def waits(self) -> bool:
        """Not when the exchange is asynchronous."""
        return self._grid.exchange == "sync"

    def around(self) -> dict[str, tuple[str, ...]]:
        """Whom each cell ever hears, and is heard by."""
        return self._schedule.around()

    def neighbours(self, cell: str, round_: int) -> tuple[str, ...]:
        """Whose centres of the round before a cell needs in a round."""
        return self._schedule.at(round_).neighbours[cell]

    def warm(self) -> None:
        """Load the pictures that several cells see."""
        self._shares.warm()

    def moved(self, on: Devices) -> Self:
        """The same with its networks on other devices; what was loaded is shared."""
        other = copy(self)
        other._devices, other._shares = on, self._shares.moved(on.discriminator)
        other._judge = other._blank_pair()
        return other

    def init(self, cell: str) -> GridState:
        """The untrained cell, its centre 0 published."""
        grid = self._grid
        pairs = [
            new_state(
                self._config,
                _key(cell, k),
                self._shares.shape,
                self._devices,
                features=self._shares.features,
            )
            for k in range(grid.population)
        ]
        for state in pairs:
            for individual in (state.pair.generator, state.pair.discriminator):
                individual.set_header("origin", self._numbers[cell])
        generators = [state.pair.generator.to_numpy().copy() for state in pairs]
        discriminators = [state.pair.discriminator.to_numpy().copy() for state in pairs]
        moments = self._moments(cell, generators[0], 0)
        centre = Centre(0, generators[0], discriminators[0], moments)
        return GridState(pairs[0], generators, discriminators, centre)

    def data_digest(self, cell: str) -> str:
        """Digest of the pictures a cell's share is taken from."""
        return self._shares.digest(cell)

    def steps_in_round(self, cell: str) -> int:
        """Batches in one round."""
        return self._shares.batches_in_round(cell)

    def advance(self, cell: str, state: GridState, inbox: Inbox) -> Iterator[Step]:
        """One round, from where `state` stands to its end; again from its start if it fails."""
        members = self._members(cell, state, inbox)
        opponents = self._load_opponents(members)
        steps = self.steps_in_round(cell)
        # A round that goes on, after a commit, meets the same individuals on the same samples.
        arena = self._meet(cell, state, members)
        while True:
            place = state.offspring
            if place.step == 0:
                self._clone(cell, state, members, arena)
            images = self._train(cell, state, opponents)
            done, round_, spread = place.step, place.round_ + 1, 0.0
            trouble = step_trouble(place)
            if trouble is None and done == steps and not place.is_finite():
                trouble = "a weight is not finite"  # It must not live here, nor be shown.
            if trouble is None and done == steps and self._config.training.attempts > 1:
                with self._timer("update_genomes"):
                    spread = self._shares.spread(cell, place.pair.generator.network)
                trouble = round_trouble(place, steps) or self._collapse(cell, place, spread)
            if trouble is not None:
                place.roll_back()
                yield Step(round_, done, steps, images, trouble=trouble)
            elif done < steps:
                yield Step(round_, done, steps, images)
            else:
                updates = -(-steps // (self._grid.skip + 1))
                discriminator, generator = place.loss_sums.tolist()
                told = self._end_round(cell, state, inbox, arena, spread)
                indices = None
                if self._gauge is not None and self._gauge.due(
                    round_, self._shares.images_in_round(cell)
                ):
                    with self._timer("indices"):
                        centre = self._generator(state.centre.generator)
                        indices = self._shares.indices(cell, place, centre, self._gauge)
                yield Step(
                    round_,
                    steps,
                    steps,
                    images,
                    losses={
                        "discriminator": discriminator / updates,
                        "generator": generator / steps,
                    },
                    spread=spread or None,
                    grid=told,
                    indices=indices,
                )
                return

    def _collapse(self, cell: str, place: CellState, spread: float) -> str | None:
        """A collapse for which the round begins again.

        At the last attempt the cell goes on as it is: its neighbours are the remedy, and a cell
        given up would be none for theirs.
        """
        told = collapse(place, spread, self._shares.real_spread(cell))
        if told is not None and place.attempt + 1 >= self._config.training.attempts:
            place.widest = 0.0  # From here on it is measured by what it has now.
            return None
        return told

    def judge(self, cell: str, state: GridState) -> Judgement | None:
        """None: mixtures are scored, each round, not generators."""
        return None

    def judges_now(self, state: GridState) -> bool:
        """Never, for the same reason."""
        return False

    def sheet(self, cell: str, state: GridState) -> np.ndarray:
        """Pictures of the cell's centre at latents that never change over a run."""
        return self._shares.sheet(cell, self._generator(state.centre.generator))

    def reduce(self, states: Mapping[str, GridState]) -> Reduction:
        """Every mixture weighed once more and scored on fresh pictures; the best of them."""
        mixture = self._grid.mixture
        weights: dict[str, dict[str, float]] = {}
        scores: dict[str, Estimated] = {}
        whole = mixture.final_over == "grid"
        for cell, state in list(states.items())[: 1 if whole else None]:
            # As in the last round: a change that was to come later has not come.
            last = max(1, state.round_)
            around = tuple(states) if whole else (cell, *self.neighbours(cell, last))
            members = {one: states[one].centre for one in around}
            found = evolve(
                _start(state.weights, around),
                [centre.moments for centre in members.values()],
                self._scorer,
                steps=mixture.final_steps,
                scale=mixture.scale,
                rng=stream(self._config.seed, cell=cell, purpose="last mixture"),
            )
            weights[cell] = dict(zip(members, found.weights_S.tolist(), strict=True))
            drawn = self._drawn_by_all(members, found.weights_S, cell)
            scores[cell] = self._scorer.measure(drawn)
        best = min(scores, key=lambda cell: (np.isnan(scores[cell].value), scores[cell].value))
        kept = {one: weight for one, weight in weights[best].items() if weight > 0}
        return Reduction(best, kept, scores)

    def _drawn_by_all(
        self, members: Mapping[str, Centre], weights_S: np.ndarray, cell: str
    ) -> np.ndarray:
        """Fresh pictures of a mixture, in exact proportion."""
        order = proportions(weights_S, self._grid.mixture.final_samples)
        parts: dict[int, Iterator[np.ndarray]] = {}
        for number, (one, centre) in enumerate(members.items()):
            count = int((order == number).sum())
            if count:
                generator = self._generator(centre.generator)
                drawn = self._shares.draw(one, generator, f"final score of {cell}", count)
                parts[number] = iter(drawn)
        return np.stack([next(parts[number]) for number in order])

    def _members(self, cell: str, state: GridState, inbox: Inbox) -> Members:
        around = self.neighbours(cell, state.round_ + 1)
        centres = [inbox[one] for one in around]
        own = len(state.generators)
        return Members(
            cells=(cell,) * own + around,
            generators=(*state.generators, *(centre.generator for centre in centres)),
            discriminators=(*state.discriminators, *(centre.discriminator for centre in centres)),
            own=own,
        )

    def _meet(self, cell: str, state: GridState, members: Members) -> Arena:
        """All against all, on samples that belong to the cell and the round."""
        with self._timer("update_genomes"):
            rng = stream(self._config.seed, cell=cell, purpose="fitness", round_=state.round_ + 1)
            share, count = self._shares.of(cell), self._grid.fitness_samples
            rows = torch.from_numpy(np.sort(rng.permutation(share.count)[:count]))
            latent = self._judge.generator.network.latent
            z_NZ = rng.standard_normal((count, latent), dtype=np.float32)
            return Arena(
                self._judge,
                to_floats(share.pictures[rows].to(self._devices.discriminator)),
                torch.from_numpy(z_NZ).to(self._devices.generator),
                members.generators,
                members.discriminators,
            )

    def _clone(self, cell: str, state: GridState, members: Members, arena: Arena) -> None:
        """Pick the parents, and make the offspring of them."""
        training, grid = self._config.training, self._grid
        place = state.offspring
        rng = stream(
            self._config.seed,
            cell=cell,
            purpose="select",
            round_=place.round_ + 1,
            attempt=place.attempt,
        )
        rates = training.optimiser.generator_lr, training.optimiser.discriminator_lr
        for child, records, losses, first in (
            (place.pair.generator, members.generators, arena.generator_losses_GD, rates[0]),
            (
                place.pair.discriminator,
                members.discriminators,
                arena.discriminator_losses_DG,
                rates[1],
            ),
        ):
            with self._timer("update_genomes"):
                parent = self._parent(fitness(losses, grid.fitness), members, place.attempt, rng)
                child.load(records[parent])
            with self._timer("mutate"):
                rate = rate_when_cloned(child.learning_rate, first, grid.mutation, rng)
                if rate != child.learning_rate:
                    child.set_learning_rate(rate)
                child.set_header("parent", child.header("id"))
                child.set_header("parent_origin", child.header("origin"))
                child.set_header("source", self._numbers[members.cells[parent]])
                child.set_header("origin", self._numbers[cell])
                child.set_header("id", place.round_ + 1)
        place.begin()
        objective = draw_objective(grid.objectives, rng)
        number = 0 if objective is None else 1 + list(Objective).index(objective)
        place.pair.generator.set_header("loss", number)

    def _parent(
        self, fitness_S: np.ndarray, members: Members, attempt: int, rng: np.random.Generator
    ) -> int:
        """The tournament's winner; after a breakdown the fittest of the neighbours."""
        if attempt and len(members.cells) > members.own:
            return members.own + int(np.argmin(fitness_S[members.own :]))
        return tournament(fitness_S, min(self._grid.tournament, len(fitness_S)), rng)

    def _train(self, cell: str, state: GridState, opponents: list[Pair]) -> int:
        """One batch: the generator's update and, when it is due, the discriminator's before it."""
        training, grid, place = self._config.training, self._grid, state.offspring
        due = place.step % (grid.skip + 1) == 0
        with self._timer("data"):
            streams = self._shares.streams(cell, place)
            (batch,) = self._shares.reals(cell, place, [place.step], streams)
            rival = self._rivals(cell, state, opponents)
            one_pass = due and rival is place.pair and self._shares.features is not None
            noise = [
                self._shares.noise(cell, place, len(batch.pictures), streams)
                for _ in range(1 + (due and not one_pass))
            ]
        with self._timer("mutate"):
            self._mutate_rates(cell, state)
        number = int(place.pair.generator.header("loss"))
        objective = list(Objective)[number - 1] if number else None
        with self._timer("train"):
            if one_pass:
                losses = update_both(place.pair, batch, noise[0], training, objective)
                place.loss_sums += torch.stack(losses)
                place.step += 1
                return len(batch.pictures)
            if due:
                pair = Pair(rival.generator, place.pair.discriminator)
                place.loss_sums[0] += update_discriminator(pair, batch, noise[0], training)
            pair = Pair(place.pair.generator, rival.discriminator)
            place.loss_sums[1] += update_generator(pair, batch, noise[-1], training, objective)
        place.step += 1
        return len(batch.pictures)

    def _rivals(self, cell: str, state: GridState, opponents: list[Pair]) -> Pair:
        """Whom this batch's updates are made against."""
        if not opponents:
            return state.offspring.pair
        rng = self._stream_of_step("opponents", cell, state)
        generator, discriminator = rng.integers(len(opponents), size=2)
        return Pair(opponents[generator].generator, opponents[discriminator].discriminator)

    def _mutate_rates(self, cell: str, state: GridState) -> None:
        mutation, optimiser = self._grid.mutation, self._config.training.optimiser
        if not isinstance(mutation, MutationPerBatch):
            return
        rng = self._stream_of_step("rates", cell, state)
        pair = state.offspring.pair
        for child, first in (
            (pair.generator, optimiser.generator_lr),
            (pair.discriminator, optimiser.discriminator_lr),
        ):
            child.set_learning_rate(rate_at_batch(child.learning_rate, first, mutation, rng))

    def _stream_of_step(self, purpose: str, cell: str, state: GridState) -> np.random.Generator:
        return stream(
            self._config.seed,
            cell=cell,
            purpose=purpose,
            round_=state.round_ + 1,
            step=state.step,
            attempt=state.attempt,
        )

    def _end_round(
        self, cell: str, state: GridState, inbox: Inbox, arena: Arena, spread: float
    ) -> dict[str, Any]:
        """Replace, weigh the mixture, publish; what there is to tell of it."""
        place = state.offspring
        pair, round_ = place.pair, place.round_ + 1
        with self._timer("update_genomes"):
            # Alone there is nobody to be compared with: the offspring is the cell's future.
            alone = len(arena.generator_losses_GD) == 1
            generator = self._settle(
                state.generators,
                pair.generator,
                arena.generator_losses_GD,
                arena.generator_against_all(pair.generator.to_numpy()),
                alone=alone,
            )
            discriminator = self._settle(
                state.discriminators,
                pair.discriminator,
                arena.discriminator_losses_DG,
                arena.discriminator_against_all(pair.discriminator.to_numpy()),
                alone=alone,
            )
            diversity = arena.diversity()
        with self._timer("mutate"):
            record = state.generators[generator.best]
            moments = state.centre.moments
            if record is not state.centre.generator:
                moments = self._moments(cell, record, round_)
            centre = Centre(round_, record, state.discriminators[discriminator.best], moments)
            # In the order of the topology: messages may come in any.
            around = {cell: centre} | {one: inbox[one] for one in self.neighbours(cell, round_)}
            found = evolve(
                _start(state.weights, tuple(around)),
                [one.moments for one in around.values()],
                self._scorer,
                steps=self._grid.mixture.steps,
                scale=self._grid.mixture.scale,
                rng=stream(self._config.seed, cell=cell, purpose="mixture", round_=round_),
            )
            state.weights = dict(zip(around, found.weights_S.tolist(), strict=True))
            state.score = found.score
        state.publish(centre)
        place.end_round(spread)
        return {
            "generator": generator.told | self._lineage(pair.generator),
            "discriminator": discriminator.told | self._lineage(pair.discriminator),
            "mixture": {"weights": state.weights, "score": state.score},
            "diversity": diversity,
        }

    def _settle(
        self,
        population: list[np.ndarray],
        child: Individual[Any],
        losses_SO: np.ndarray,
        child_losses_O: np.ndarray,
        *,
        alone: bool,
    ) -> _Settled:
        """Let the child live in place of the worst, if it may."""
        fitness_P = fitness(losses_SO, self._grid.fitness)[: len(population)]
        worst = int(np.argmax(fitness_P))
        found = float(fitness(child_losses_O, self._grid.fitness))
        fitter = found < fitness_P[worst]
        replaced = bool(alone or fitter or self._grid.replacement is Replacement.ALWAYS)
        told = {"fitness": float(fitness_P[worst]), "offspring": found, "replaced": replaced}
        if replaced:
            population[worst] = child.to_numpy().copy()
            fitness_P[worst] = found
        best = int(np.argmin(fitness_P))
        return _Settled(best, told | {"born": born_in(population[best])})

    def _lineage(self, child: Individual[Any]) -> dict[str, Any]:
        """Where the offspring comes from, and what it trained with."""
        cells = list(self._numbers)
        number = int(child.header("loss"))
        return {
            "from": cells[int(child.header("source"))],
            "parent": {
                "cell": cells[int(child.header("parent_origin"))],
                "round": int(child.header("parent")),
            },
            "rate": child.learning_rate,
            "objective": list(Objective)[number - 1].value if number else None,
        }

    def _load_opponents(self, members: Members) -> list[Pair]:
        """The whole sub-population, to train against; it learns nothing from that."""
        if self._grid.opponents is Opponents.SELECTED:
            return []
        pairs = []
        for generator, discriminator in zip(
            members.generators, members.discriminators, strict=True
        ):
            pair = self._blank_pair()
            pair.generator.load(generator)
            pair.discriminator.load(discriminator)
            pair.generator.network.eval()
            pair.discriminator.network.eval()
            pairs.append(pair)
        return pairs

    def _moments(self, cell: str, record: np.ndarray, round_: int) -> np.ndarray:
        samples = self._grid.mixture.samples
        drawn = self._shares.draw(cell, self._generator(record), "moments", samples, round_=round_)
        return self._scorer.moments(drawn)

    def _generator(self, record: np.ndarray) -> Generator:
        """A network with the record's weights, until the next is asked for."""
        self._judge.generator.load(record)
        return self._judge.generator.network

    def _blank_pair(self) -> Pair:
        rng = np.random.Generator(np.random.Philox(key=0))  # What it draws is written over.
        config, shares = self._config, self._shares
        return new_pair(
            config.networks,
            shares.shape,
            config.training,
            self._devices,
            rng,
            rng,
            features=shares.features,
        )


def _key(cell: str, number: int) -> str:
    """What the cell's individuals are drawn from; the first is that of a cell with one."""
    return cell if number == 0 else f"{cell} {number}"


@dataclass(frozen=True)
class _Settled:
    """A population after its offspring came or did not."""

    best: int
    told: dict[str, Any]


def _start(weights: Mapping[str, float], around: tuple[str, ...]) -> np.ndarray:
    """The weights of a neighbourhood to go on from; even ones when it has changed."""
    if set(weights) != set(around):
        return uniform(len(around))
    return np.array([weights[cell] for cell in around])


def schedule_of(grid: Grid, cells: tuple[str, ...]) -> Schedule:
    """Who hears whom, round by round."""
    first = _topology(grid, grid.neighbourhood, cells)
    later = ((one.from_round, _topology(grid, one.neighbourhood, cells)) for one in grid.changes)
    return Schedule(((1, first), *later))


def _topology(grid: Grid, neighbourhood: Neighbourhood, cells: tuple[str, ...]) -> Topology:
    match neighbourhood:
        case FiveCells():
            return torus(cells, grid.columns, FIVE)
        case NineCells():
            return torus(cells, grid.columns, NINE)
        case CustomCells():
            return torus(cells, grid.columns, neighbourhood.offsets)
        case Ring():
            return ring(cells, neighbourhood.radius)
        case Isolated():
            return isolated(cells)
        case _:
            assert_never(neighbourhood)
