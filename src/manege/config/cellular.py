"""The cellular method's part of the configuration; by default the cellular paper's Table I."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from manege.config.section import Chance, ConfigSection, Positive

MOST_CELLS = 10_000

TOURNAMENT = "tournament"


class Objective(StrEnum):
    """What Mustangs lets a generator minimise, with p what the discriminator gives its pictures."""

    MINIMAX = "minimax"
    """log(1 - p)."""
    HEURISTIC = "heuristic"
    """-log p."""
    LEAST_SQUARES = "least-squares"
    """(p - 1)²."""


class Fitness(StrEnum):
    """What an individual's losses against all its opponents come to; lower is fitter."""

    AVERAGE = "average"
    BEST = "best"
    WORST = "worst"


class Opponents(StrEnum):
    """Whom the offspring train against."""

    SELECTED = "selected"
    """Each other."""
    NEIGHBOURHOOD = "neighbourhood"
    """Individuals of the sub-population, drawn for each batch."""


class Replacement(StrEnum):
    """When an offspring takes the place of the cell's worst individual."""

    STRICT = "strict"
    """If it is fitter."""
    ALWAYS = "always"


class FiveCells(ConfigSection):
    """North, south, east and west on the torus."""

    kind: Literal["five"] = "five"


class NineCells(ConfigSection):
    """The diagonals too."""

    kind: Literal["nine"] = "nine"


class CustomCells(ConfigSection):
    """Cells at these steps (down, right) on the torus, each with its opposite."""

    kind: Literal["custom"] = "custom"
    offsets: tuple[tuple[int, int], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> CustomCells:
        for down, right in self.offsets:
            if (down, right) == (0, 0):
                raise ValueError("offsets: found [0, 0], the cell itself, which always belongs")
            if (-down, -right) not in self.offsets:
                raise ValueError(
                    f"offsets: found [{down}, {right}] without its opposite [{-down}, {-right}]; "
                    "name both, for cells hear each other"
                )
        return self


class Ring(ConfigSection):
    """All cells in a circle, row after row, so many on each side."""

    kind: Literal["ring"] = "ring"
    radius: int = Field(default=1, ge=1)


class Isolated(ConfigSection):
    """Nobody: the control without which no claim for coevolution stands."""

    kind: Literal["isolated"] = "isolated"


Neighbourhood = Annotated[
    FiveCells | NineCells | CustomCells | Ring | Isolated, Field(discriminator="kind")
]


class Change(ConfigSection):
    """Another neighbourhood from some round on."""

    from_round: int = Field(ge=2)
    neighbourhood: Neighbourhood


class MutationPerRound(ConfigSection):
    """When cloned: with this chance, rate · exp(τ·N(0, 1)), τ = scale / first rate."""

    kind: Literal["round"] = "round"
    scale: Positive = 1e-4
    probability: Chance = 0.5


class MutationPerBatch(ConfigSection):
    """The public implementation's: at each batch, rate + scale · N(-first / 10, first rate)."""

    kind: Literal["batch"] = "batch"
    scale: Positive = 1e-4
    probability: Chance = 0.5


class NoMutation(ConfigSection):
    """Rates stay what they are."""

    kind: Literal["none"] = "none"


RateMutation = Annotated[
    MutationPerRound | MutationPerBatch | NoMutation, Field(discriminator="kind")
]


class MixtureConfig(ConfigSection):
    """How the generators of a neighbourhood are weighed against each other."""

    metric: Literal["fd", "is"] = "fd"
    """Fréchet distance or inception score, in the features of a classifier of the data."""
    samples: int = Field(default=1000, ge=100, le=100_000)
    """Pictures of each generator that its moments come from."""
    scale: Positive = 0.01
    """Of a mutation of the weights."""
    steps: int = Field(default=100, ge=0, le=1_000_000)
    """Mutations tried each round."""
    final_over: Literal["neighbourhood", "grid"] = "neighbourhood"
    """What the final model mixes: the best neighbourhood, or all cells of the grid."""
    final_steps: int = Field(default=1000, ge=0, le=1_000_000)
    """Mutations tried at the end, for each mixture."""
    final_samples: int = Field(default=10_000, ge=100, le=1_000_000)
    """Fresh pictures that each mixture is scored with at the end."""


class CellularConfig(ConfigSection):
    """A grid of cells that coevolve with their neighbours."""

    rows: int = Field(default=3, ge=1, le=MOST_CELLS)
    columns: int = Field(default=3, ge=1, le=MOST_CELLS)
    neighbourhood: Neighbourhood = FiveCells()
    changes: tuple[Change, ...] = ()
    """Later neighbourhoods, in the order of their rounds."""
    population: int = Field(default=1, ge=1, le=100)
    """Individuals of each kind that live in a cell; the fittest is its centre."""
    data_fraction: float = Field(default=1.0, gt=0, le=1)
    """The part of the pictures that a cell sees, drawn for each cell."""
    fitness: Fitness = Fitness.AVERAGE
    fitness_samples: int = Field(default=1000, ge=8, le=100_000)
    """Real pictures, and latents, that fitness is told from."""
    selection: str = TOURNAMENT
    """How the individual to clone is picked: tournament, or a function of one's own."""
    tournament: int = Field(default=2, ge=1, le=1000)
    """Individuals of which the fittest is cloned, where a tournament picks it."""
    mutation: RateMutation = MutationPerRound()
    """Of the learning rates."""
    objectives: tuple[Objective, ...] = ()
    """Generators draw what they minimise from these each round; none: `training.loss`."""
    opponents: Opponents = Opponents.SELECTED
    skip: int = Field(default=1, ge=0, le=1000)
    """Batches without a discriminator update after each one with it."""
    replacement: Replacement = Replacement.STRICT
    exchange: Literal["sync", "async"] = "sync"
    """Whether a round waits for all neighbours' centres of the round before, or takes the newest
    there are: nobody waits, but no two runs are alike."""
    mixture: MixtureConfig = MixtureConfig()

    def identifying(self) -> set[str]:
        """Return the keys that decide a run's bits; a later one counts only where it is set."""
        keys = set(type(self).model_fields)
        return keys - {"selection"} if self.selection == TOURNAMENT else keys

    @model_validator(mode="after")
    def _check(self) -> CellularConfig:
        if self.rows * self.columns > MOST_CELLS:
            raise ValueError(
                f"found {self.rows}x{self.columns} cells, expected at most {MOST_CELLS:,}"
            )
        rounds = [change.from_round for change in self.changes]
        if rounds != sorted(set(rounds)):
            raise ValueError(f"changes: found from_round {rounds}, expected each later than before")
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError("objectives: one is named twice; name each once")
        return self
