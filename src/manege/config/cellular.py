"""The cellular method's part of the configuration; defaults of Table I where it has a value."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from manege.config.section import OWN, Chance, ConfigSection, OwnPart, PartName, Positive
from manege.plugins import reference_named

MOST_CELLS = 10_000


class SelectionName(StrEnum):
    """How a cell picks the individual that it clones."""

    TOURNAMENT = "tournament"
    """The fittest of a few that are drawn at random."""


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


class OwnCells(OwnPart):
    """Whom a function from outside the package says; other keys are its parameters."""

    where = "cellular.neighbourhood"


def _kind_of_cells(value: Any) -> str | None:
    """Return the tag of the neighbourhood that a section means."""
    found = isinstance(value, dict)
    kind = value.get("kind", "") if found else getattr(value, "kind", None)
    if kind is None and not found:
        return None
    if isinstance(kind, str) and kind not in _BUILT_IN_CELLS and reference_named(kind):
        return OWN
    return str(kind)


_BUILT_IN_CELLS = ("five", "nine", "custom", "ring", "isolated")

Neighbourhood = Annotated[
    Annotated[FiveCells, Tag("five")]
    | Annotated[NineCells, Tag("nine")]
    | Annotated[CustomCells, Tag("custom")]
    | Annotated[Ring, Tag("ring")]
    | Annotated[Isolated, Tag("isolated")]
    | Annotated[OwnCells, Tag(OWN)],
    Discriminator(_kind_of_cells),
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
    selection: Annotated[SelectionName | str, PartName(SelectionName)] = SelectionName.TOURNAMENT
    """How the individual to clone is picked: tournament, or the ``module:name`` of a function."""
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
        return keys - {"selection"} if self.selection == SelectionName.TOURNAMENT else keys

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
