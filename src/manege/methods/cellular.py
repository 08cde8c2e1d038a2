"""Lipizzaner and Mustangs: a grid of cells, each coevolving with its neighbours' centres.

A round of a cell: its individuals and its neighbours' centres meet (`Arena`); a selection picks
a generator and a discriminator, which are cloned, mutated and trained on the cell's batches; what
comes of them takes the place of the cell's worst individuals; the mixture over the neighbourhood
is weighed anew. Centres come in, a centre goes out: who carries them is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    Mixture,
    MixtureScorer,
    Pair,
    Streams,
    WeightsKind,
    born_in,
    draw_objective,
    evolve,
    fitness,
    new_pair,
    new_state,
    proportions,
    rate_at_batch,
    rate_when_cloned,
    selection_of,
    try_selection,
    uniform,
    update_both,
    update_discriminator,
    update_generator,
)
from manege.config import (
    ALL,
    CustomCells,
    FiveCells,
    Isolated,
    MutationPerBatch,
    NineCells,
    Objective,
    Opponents,
    OwnCells,
    Replacement,
    Ring,
    RunConfig,
    stream,
)
from manege.config import (
    CellularConfig as Grid,
)
from manege.config.cellular import Neighbourhood
from manege.data import Dataset
from manege.device import Devices
from manege.errors import ConfigError, field
from manege.methods.base import BaseMethod
from manege.methods.method import (
    Inbox,
    ModelPart,
    SavedCell,
    Scorers,
    Step,
    Timer,
    TrainedGenerator,
    partition_by,
)
from manege.models import FrozenFeatures, Generator, to_floats
from manege.topology import FIVE, NINE, Schedule, Topology, isolated, own, ring, torus


@dataclass(frozen=True)
class Members:
    """A sub-population: the cell's own individuals, then its neighbours' centres."""

    cells: tuple[str, ...]
    """The cell that each member comes from."""
    generators: tuple[np.ndarray, ...]
    discriminators: tuple[np.ndarray, ...]
    own: int
    """How many of them are the cell's own."""


@dataclass(frozen=True)
class ChosenMixture:
    """The mixture that the model draws with, and the scores it was chosen by."""

    cell: str
    """The cell whose neighbourhood it is."""
    weights: Mapping[str, float]
    """By the cells whose centres draw; those that draw nothing are left out."""
    scores: Mapping[str, Estimated]
    """Of every cell's mixture, on fresh pictures."""

    def to_json(self) -> dict[str, Any]:
        """Return the choice as the run's status keeps it and `Cellular.components` reads it."""
        return {
            "cell": self.cell,
            "weights": dict(self.weights),
            "scores": {
                cell: {"value": score.value, "low": score.low, "high": score.high}
                for cell, score in self.scores.items()
            },
        }


class Cellular(BaseMethod):
    """A grid of generator/discriminator pairs."""

    check_phase = "update_genomes"
    _scorer: MixtureScorer

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        devices: torch.device | Devices,
        timer: Timer,
        scorer: MixtureScorer,
        gauge: Gauge | None = None,
        features: FrozenFeatures | None = None,
    ) -> None:
        super().__init__(config, dataset, devices, timer, scorer, gauge, features)
        self._grid = _grid_of(config)
        self._numbers = {cell: number for number, cell in enumerate(self._shares.labels)}
        self._schedule = schedule_of(self._grid, tuple(self._numbers))
        self._select = selection_of(self._grid)
        self._scratch = self._blank_pair()

    @staticmethod
    def chosen_scorer(scorers: Scorers) -> MixtureScorer:
        """Return what scores mixtures of several cells' generators."""
        return scorers.for_mixtures()

    @classmethod
    def check(cls, config: RunConfig, labels: tuple[str, ...]) -> None:
        """Raise ConfigError for a grid that cannot be trained."""
        if config.cellular is None:
            raise ConfigError(
                f"{config.method}: trains a grid, and the settings have none; use "
                f"{field('preset')} cellular-paper, or another with a grid"
            )
        grid = config.cellular
        schedule = schedule_of(grid, tuple(partition_by(cls.partition, config, labels)))
        heard = {
            len(others)
            for _, topology in schedule.changes
            for others in topology.neighbours.values()
        }
        try_selection(grid, {grid.population + count for count in heard})

    @classmethod
    def draws_labels(cls, config: RunConfig, labels: tuple[str, ...]) -> bool:
        """Return False: every cell learns all labels together."""
        return False

    @classmethod
    def components(
        cls,
        config: RunConfig,
        counts: Mapping[str, int],
        choice: Mapping[str, Any] | None,
        commits: Iterable[tuple[str, SavedCell]],
    ) -> list[ModelPart]:
        """Return the members of the mixture chosen at the end, else of the best one so far."""
        weights: Mapping[str, float]
        if choice is not None:
            weights, score = choice["weights"], dict(choice["scores"][choice["cell"]])
        else:
            weights, score = _best_so_far(commits)
        total = sum(counts.values())
        return [
            ModelPart(ALL, cell, weight * total, score=score, required=True)
            for cell, weight in weights.items()
        ]

    @classmethod
    def trained(cls, config: RunConfig, part: ModelPart, commit: SavedCell) -> TrainedGenerator:
        """Return the generator that the cell last published."""
        record = commit.tensors[f"generator {commit.meta['centre'][1]}"]
        score = {"metric": _grid_of(config).mixture.metric, **(part.score or {})}
        return TrainedGenerator(record, commit.round_, WeightsKind.RAW.value, score)

    def cells(self) -> tuple[str, ...]:
        """Return all cells' keys, row after row."""
        return tuple(self._numbers)

    def links(self) -> dict[str, tuple[str, ...]]:
        """Return for every cell those that it ever hears, and that ever hear it."""
        return self._schedule.around()

    def neighbours(self, cell: str, round_: int) -> tuple[str, ...]:
        """Return the cells whose centres of the round before a cell needs in a round."""
        return self._schedule.at(round_).neighbours[cell]

    def synchronous(self) -> bool:
        """Return whether a round needs its neighbours' centres of the very round before it."""
        return self._grid.exchange == "sync"

    def to(self, devices: Devices) -> Self:
        """Return the same method with its networks on other devices; loaded pictures are shared."""
        other = super().to(devices)
        other._scratch = other._blank_pair()
        return other

    def init(self, cell: str) -> GridState:
        """Return the state of an untrained cell, its centre 0 published."""
        shares = self._shares
        pairs = [
            new_state(
                self._config, _key(cell, k), shares.shape, self._devices, features=shares.features
            )
            for k in range(self._grid.population)
        ]
        for state in pairs:
            for individual in (state.pair.generator, state.pair.discriminator):
                individual.set_header("origin", self._numbers[cell])
        generators = [state.pair.generator.to_numpy().copy() for state in pairs]
        discriminators = [state.pair.discriminator.to_numpy().copy() for state in pairs]
        moments = self._moments(cell, generators[0], 0)
        centre = Centre(0, generators[0], discriminators[0], moments)
        return GridState(pairs[0], generators, discriminators, centre)

    def steps_in_round(self, cell: str) -> int:
        """Return the number of batches in one round."""
        return self._shares.batches_in_round(cell)

    def advance(self, cell: str, state: GridState, inbox: Inbox) -> Iterator[Step]:
        """Train a round, from where `state` stands to its end; again from its start if it fails."""
        # Gather: the cell's individuals and its neighbours' centres of the round before. Both stay
        # the same until the round ends, so that it may begin again from nothing but them.
        members = self._members(cell, state, inbox)
        opponents = self._load_opponents(members)

        # Meet: all against all, on samples that depend on the cell and the round alone. So a round
        # that goes on after a commit comes to the same fitnesses, which the commit does not hold.
        arena = self._meet(cell, state, members)

        def train() -> int:
            # Select and clone at the start of an attempt only: in its middle the offspring is
            # in the state. Another attempt draws other parents, for these came to nothing.
            if state.offspring.step == 0:
                self._clone(cell, state, members, arena)
            return self._train(cell, state, opponents)

        def end(images: int, spread: float) -> Step:
            return self._end_round(cell, state, inbox, arena, images, spread)

        # Train the offspring batch by batch; replace, weigh and publish after the last one.
        yield from self._attempts(cell, state.offspring, self.steps_in_round(cell), train, end)

    def _check_round(self, cell: str, state: CellState, steps: int) -> tuple[float, str | None]:
        """Return the samples' spread after a round's last step, and what has broken or None."""
        # Even where a round has a single attempt: such an offspring must not live in the cell, nor
        # be shown to its neighbours.
        if not state.is_finite():
            return 0.0, "a weight is not finite"
        return super()._check_round(cell, state, steps)

    def _collapse(self, cell: str, state: CellState, spread: float) -> str | None:
        """Return how the samples have collapsed, if the round must begin again for that.

        At the last attempt the cell goes on as it is: its neighbours are the remedy, and a cell
        given up would be none for theirs.
        """
        found = super()._collapse(cell, state, spread)
        if found is not None and state.attempt + 1 >= self._config.training.attempts:
            state.widest = 0.0  # From here on it is measured by what it has now.
            return None
        return found

    def judge(self, cell: str, state: GridState) -> Judgement | None:
        """Return None: mixtures are scored, each round, not generators."""
        return None

    def judges_now(self, state: GridState) -> bool:
        """Return False, for the same reason."""
        return False

    def sheet(self, cell: str, state: GridState) -> np.ndarray:
        """Return pictures of the cell's centre at latents that never change over a run."""
        return self._shares.sheet(cell, self._generator(state.centre.generator))

    def combine(self, states: Iterable[tuple[str, GridState]]) -> ChosenMixture:
        """Weigh every mixture once more, score it on fresh pictures, and choose the best."""
        cells = dict(states)
        mixture = self._grid.mixture
        weights: dict[str, dict[str, float]] = {}
        scores: dict[str, Estimated] = {}
        whole = mixture.final_over == "grid"
        for cell, state in list(cells.items())[: 1 if whole else None]:
            # As in the last round: a change that was to come later has not come.
            last = max(1, state.round_)
            names = tuple(cells) if whole else (cell, *self.neighbours(cell, last))
            members = {one: cells[one].centre for one in names}
            rng = stream(self._config.seed, cell=cell, purpose="last mixture")
            found = self._weigh(state.weights, members, mixture.final_steps, rng)
            weights[cell] = dict(zip(members, found.weights_S.tolist(), strict=True))
            drawn = self._drawn_by_all(members, found.weights_S, cell)
            scores[cell] = self._scorer.measure(drawn)
        best = min(scores, key=lambda cell: (np.isnan(scores[cell].value), scores[cell].value))
        kept = {one: weight for one, weight in weights[best].items() if weight > 0}
        return ChosenMixture(best, kept, scores)

    def _weigh(
        self,
        weights: Mapping[str, float],
        members: Mapping[str, Centre],
        steps: int,
        rng: np.random.Generator,
    ) -> Mixture:
        """Evolve the mixture of some cells' centres on from its last weights.

        Where these are the weights of other cells, it begins with even ones.
        """
        start_S = uniform(len(members))
        if set(weights) == set(members):
            start_S = np.array([weights[cell] for cell in members])
        moments = [centre.moments for centre in members.values()]
        scale = self._grid.mixture.scale
        return evolve(start_S, moments, self._scorer, steps=steps, scale=scale, rng=rng)

    def _drawn_by_all(
        self, members: Mapping[str, Centre], weights_S: np.ndarray, cell: str
    ) -> np.ndarray:
        """Draw fresh pictures from a mixture, in exact proportion."""
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
        """Return the cell's individuals and its neighbours' centres."""
        neighbours = self.neighbours(cell, state.round_ + 1)
        centres = [inbox[one] for one in neighbours]
        own = len(state.generators)
        return Members(
            cells=(cell,) * own + neighbours,
            generators=(*state.generators, *(centre.generator for centre in centres)),
            discriminators=(*state.discriminators, *(centre.discriminator for centre in centres)),
            own=own,
        )

    def _meet(self, cell: str, state: GridState, members: Members) -> Arena:
        """Hold all contests, on samples that depend on the cell and the round alone."""
        with self._timer("update_genomes"):
            rng = stream(self._config.seed, cell=cell, purpose="fitness", round_=state.round_ + 1)
            share, count = self._shares.of(cell), self._grid.fitness_samples
            rows = torch.from_numpy(np.sort(rng.permutation(share.count)[:count]))
            latent = self._scratch.generator.network.latent
            z_NZ = rng.standard_normal((count, latent), dtype=np.float32)
            return Arena(
                self._scratch,
                to_floats(share.pictures[rows].to(self._devices.discriminator)),
                torch.from_numpy(z_NZ).to(self._devices.generator),
                members.generators,
                members.discriminators,
            )

    def _clone(self, cell: str, state: GridState, members: Members, arena: Arena) -> None:
        """Choose the parents, and make the offspring of them."""
        place, grid, optimiser = state.offspring, self._grid, self._config.training.optimiser
        rng = self._shares.streams(cell, place).open("select")
        pair = place.pair
        for child, records, losses, first in (
            (pair.generator, members.generators, arena.generator_losses_GD, optimiser.generator_lr),
            (
                pair.discriminator,
                members.discriminators,
                arena.discriminator_losses_DG,
                optimiser.discriminator_lr,
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
        pair.generator.set_header("loss", number)

    def _parent(
        self, fitness_S: np.ndarray, members: Members, attempt: int, rng: np.random.Generator
    ) -> int:
        """Return whom the selection picks; after a breakdown the fittest of the neighbours."""
        if attempt and len(members.cells) > members.own:
            return members.own + int(np.argmin(fitness_S[members.own :]))
        return self._select(fitness_S, rng)

    def _train(self, cell: str, state: GridState, opponents: list[Pair]) -> int:
        """Train the offspring on one batch, and return how many real pictures that is."""
        training, place = self._config.training, state.offspring
        # A grid's discriminators skip batches: with `skip` 1 they learn from every second one.
        due = place.step % (self._grid.skip + 1) == 0

        # Draw everything random before any update, from streams of this very step: so a step that
        # is taken again after a restart draws the same.
        with self._timer("data"):
            streams = self._shares.streams(cell, place)
            (batch,) = self._shares.reals(cell, place, [place.step], streams)
            rival = self._rivals(place.pair, opponents, streams)
            # A critic on features learns from the pass that its own generator learns from.
            one_pass = due and rival is place.pair and self._shares.features is not None
            noise = [
                self._shares.noise(cell, place, len(batch.pictures), streams)
                for _ in range(1 + (due and not one_pass))
            ]

        # Change the rates now, not when cloned: this mutation belongs to every batch.
        with self._timer("mutate"):
            self._mutate_rates(place.pair, streams)

        # Discriminator first: the generator's gradient must see the updated one. Each learns
        # against its rival, which stays as it is unless it is the offspring itself.
        objective = _objective_of(place.pair.generator)
        with self._timer("train"):
            if one_pass:
                losses = update_both(place.pair, batch, noise[0], training, objective)
                place.loss_sums += torch.stack(losses)
            else:
                if due:
                    pair = Pair(rival.generator, place.pair.discriminator)
                    place.loss_sums[0] += update_discriminator(pair, batch, noise[0], training)
                pair = Pair(place.pair.generator, rival.discriminator)
                loss = update_generator(pair, batch, noise[-1], training, objective)
                place.loss_sums[1] += loss
        place.step += 1
        return len(batch.pictures)

    def _rivals(self, pair: Pair, opponents: list[Pair], streams: Streams) -> Pair:
        """Return whom the networks of a pair learn against in this step."""
        if not opponents:
            return pair
        generator, discriminator = streams.open("opponents").integers(len(opponents), size=2)
        return Pair(opponents[generator].generator, opponents[discriminator].discriminator)

    def _mutate_rates(self, pair: Pair, streams: Streams) -> None:
        """Change the learning rates, where they change with every batch."""
        mutation, optimiser = self._grid.mutation, self._config.training.optimiser
        if not isinstance(mutation, MutationPerBatch):
            return
        rng = streams.open("rates")
        for child, first in (
            (pair.generator, optimiser.generator_lr),
            (pair.discriminator, optimiser.discriminator_lr),
        ):
            child.set_learning_rate(rate_at_batch(child.learning_rate, first, mutation, rng))

    def _end_round(
        self,
        cell: str,
        state: GridState,
        inbox: Inbox,
        arena: Arena,
        images: int,
        spread: float,
    ) -> Step:
        """Replace the worst, weigh the mixture and publish the fittest; return the last step."""
        place, grid = state.offspring, self._grid
        steps, round_ = place.step, place.round_ + 1
        updates = -(-steps // (grid.skip + 1))
        discriminator_loss, generator_loss = place.loss_sums.tolist()

        # Replace: the offspring meets whom its elders met, so that their fitnesses compare.
        with self._timer("update_genomes"):
            generator, discriminator = self._settle(state, arena)
            diversity = arena.diversity()

        # Weigh: over the new centre and the neighbours' of the round before, the newest there are.
        with self._timer("mutate"):
            record = state.generators[generator.best]
            moments = state.centre.moments
            if record is not state.centre.generator:
                moments = self._moments(cell, record, round_)
            centre = Centre(round_, record, state.discriminators[discriminator.best], moments)
            # In the order of the topology: messages may come in any.
            members = {cell: centre} | {one: inbox[one] for one in self.neighbours(cell, round_)}
            rng = stream(self._config.seed, cell=cell, purpose="mixture", round_=round_)
            found = self._weigh(state.weights, members, grid.mixture.steps, rng)
            state.weights = dict(zip(members, found.weights_S.tolist(), strict=True))
            state.score = found.score

        # Publish last: whoever reads the centre now finds a round that is complete.
        state.publish(centre)
        place.end_round(spread)
        return Step(
            round_,
            steps,
            steps,
            images,
            losses={
                "discriminator": discriminator_loss / updates,
                "generator": generator_loss / steps,
            },
            spread=spread or None,
            grid={
                "generator": generator.details | self._lineage(place.pair.generator),
                "discriminator": discriminator.details | self._lineage(place.pair.discriminator),
                "mixture": {"weights": state.weights, "score": state.score},
                "diversity": diversity,
            },
            indices=self._indices(cell, place, lambda: self._generator(centre.generator)),
        )

    def _settle(self, state: GridState, arena: Arena) -> tuple[_Settled, _Settled]:
        """Let both networks of the offspring live in place of the worst, if they may."""
        pair = state.offspring.pair
        return (
            self._replace_worst(
                state.generators,
                pair.generator,
                arena.generator_losses_GD,
                arena.generator_against_all(pair.generator.to_numpy()),
            ),
            self._replace_worst(
                state.discriminators,
                pair.discriminator,
                arena.discriminator_losses_DG,
                arena.discriminator_against_all(pair.discriminator.to_numpy()),
            ),
        )

    def _replace_worst(
        self,
        population: list[np.ndarray],
        child: Individual[Any],
        losses_SO: np.ndarray,
        child_losses_O: np.ndarray,
    ) -> _Settled:
        """Let the child live in place of the worst individual, if it may."""
        fitness_P = fitness(losses_SO, self._grid.fitness)[: len(population)]
        worst = int(np.argmax(fitness_P))
        found = float(fitness(child_losses_O, self._grid.fitness))
        # Alone there is nobody to be compared with: the offspring is the cell's future.
        alone = len(losses_SO) == 1
        fitter = found < fitness_P[worst]
        replaced = bool(alone or fitter or self._grid.replacement is Replacement.ALWAYS)
        details = {"fitness": float(fitness_P[worst]), "offspring": found, "replaced": replaced}
        if replaced:
            population[worst] = child.to_numpy().copy()
            fitness_P[worst] = found
        best = int(np.argmin(fitness_P))
        return _Settled(best, details | {"born": born_in(population[best])})

    def _lineage(self, child: Individual[Any]) -> dict[str, Any]:
        """Return where the offspring comes from, and what it trained with."""
        cells = list(self._numbers)
        objective = _objective_of(child)
        return {
            "from": cells[int(child.header("source"))],
            "parent": {
                "cell": cells[int(child.header("parent_origin"))],
                "round": int(child.header("parent")),
            },
            "rate": child.learning_rate,
            "objective": None if objective is None else objective.value,
        }

    def _load_opponents(self, members: Members) -> list[Pair]:
        """Load the whole sub-population, to train against; it learns nothing from that."""
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
        """Draw with a generator, and return what a mixture's score needs of the pictures."""
        samples = self._grid.mixture.samples
        drawn = self._shares.draw(cell, self._generator(record), "moments", samples, round_=round_)
        return self._scorer.moments(drawn)

    def _generator(self, record: np.ndarray) -> Generator:
        """Return a network with the record's weights; they last until the next call."""
        self._scratch.generator.load(record)
        return self._scratch.generator.network

    def _blank_pair(self) -> Pair:
        """Return a pair to load records into."""
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
    """Return the key of the streams that a cell's individual is drawn from.

    The first individual's is the cell's own, as if it were the only one.
    """
    return cell if number == 0 else f"{cell} {number}"


@dataclass(frozen=True)
class _Settled:
    """A population after its offspring came or did not."""

    best: int
    """The place of the fittest individual."""
    details: dict[str, Any]
    """What the round's event says of it."""


def _objective_of(generator: Individual[Any]) -> Objective | None:
    """Return what a generator minimises in its round; None for the run's own loss."""
    number = int(generator.header("loss"))
    return list(Objective)[number - 1] if number else None


def _grid_of(config: RunConfig) -> Grid:
    """Return the grid's settings, which every cellular configuration has."""
    assert config.cellular is not None
    return config.cellular


def _best_so_far(
    commits: Iterable[tuple[str, SavedCell]],
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Return the weights of the mixture that scores best by the last commits, and its score.

    There are no weights when no cell has ended a round yet.
    """
    best: float | None = None
    weights: dict[str, float] = {}
    for _, commit in commits:
        score = commit.meta["score"]
        if score is not None and (best is None or float(score) < best):
            mixture = {str(one): float(weight) for one, weight in commit.meta["mixture"].items()}
            best, weights = float(score), {one: w for one, w in mixture.items() if w > 0}
    return weights, {"value": best, "low": None, "high": None}


def schedule_of(grid: Grid, cells: tuple[str, ...]) -> Schedule:
    """Return who hears whom, round by round."""
    first = _topology(grid, grid.neighbourhood, cells)
    later = ((one.from_round, _topology(grid, one.neighbourhood, cells)) for one in grid.changes)
    return Schedule(((1, first), *later))


def _topology(grid: Grid, neighbourhood: Neighbourhood, cells: tuple[str, ...]) -> Topology:
    """Return the links of a neighbourhood's kind."""
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
        case OwnCells():
            reference, given = neighbourhood.kind, neighbourhood.parameters
            return own(reference, cells, grid.rows, grid.columns, given)
        case _:
            assert_never(neighbourhood)
