"""Plan the measured runs, weak and strong scaling, and validate all before the first begins.

Weak scaling gives each worker the same work: a class of equally many pictures, or nine cells of a
torus three rows high, where every cell hears four others whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from manege.config import MethodName, RunConfig, amended, resolve
from manege.data import Split, open_dataset
from manege.errors import ConfigError, field

Grid = tuple[int, int]
"""Rows and columns."""

WARM_UP, WEAK, STRONG = "warm-up", "weak", "strong"
_SIDE = 3
"""Rows and columns of a worker's part of the torus in weak scaling."""
_EVERY_NUMBER = 10
"""The number up to which weak scaling runs each number of workers; beyond it, numbers double."""
_NEVER = 1_000_000
_OURS = (
    *("method", "preset", "rounds", "budget_s", "budget_clock", "data.source", "data.root"),
    *("cellular.rows", "cellular.columns"),
)
"""Keys that the plan decides, so users may not set them."""


@dataclass(frozen=True)
class Settings:
    """The options of a benchmark."""

    method: str
    runtime: str
    workers: int
    grids: tuple[Grid, ...]
    """Grids of strong scaling; none for classes."""
    rounds: int
    repeats: int
    data: str
    data_root: str | None
    preset: str | None
    sets: tuple[str, ...]

    def __post_init__(self) -> None:
        for text in self.sets:
            key = text.partition("=")[0].strip()
            clashing = [one for one in _OURS if one == key or one.startswith(f"{key}.")]
            if clashing:
                raise ConfigError(
                    f"{field('sets')} {text}: {clashing[0]} is what bench scaling varies or fixes; "
                    "see its own options"
                )


@dataclass(frozen=True)
class MeasuredUnit:
    """One run that is measured."""

    kind: str
    shape: str
    """The size of the run: `3x3`, or `10 classes`."""
    cells: int
    workers: int
    repeat: int
    config: RunConfig

    @property
    def name(self) -> str:
        """A name that no other run has."""
        if self.kind == WARM_UP:
            return self.kind
        return f"{self.kind}-{self.shape.replace(' ', '-')}-{self.workers}-{self.repeat}"

    @property
    def cost(self) -> float:
        """The relative time a run takes, where there is a core for each worker."""
        return self.cells * (self.config.rounds or 1) / min(self.workers, self.cells)


def plan_of(settings: Settings) -> tuple[MeasuredUnit, ...]:
    """Return a warm-up, then all runs, repeat after repeat, so that a part is of use too."""
    on_grid = settings.method == MethodName.CELLULAR
    kinds = list(_on_grids(settings) if on_grid else _on_classes(settings))
    first = min((unit for unit in kinds if unit.kind == STRONG), key=lambda unit: unit.cells)
    # It makes the feature network and the decoded pictures, so that no measured run has to.
    shortest = amended(first.config, {"rounds": 1})
    warm_up = replace(first, kind=WARM_UP, workers=1, config=shortest)
    repeated = [
        replace(unit, repeat=repeat) for repeat in range(1, settings.repeats + 1) for unit in kinds
    ]
    return (warm_up, *repeated)


def worker_counts(most: int) -> tuple[int, ...]:
    """Return the numbers of workers in weak scaling: 1 … most."""
    if most <= _EVERY_NUMBER:
        return tuple(range(1, most + 1))
    doubled = takewhile(lambda count: count < most, (1 << power for power in range(most)))
    return (*doubled, most)


def _on_grids(settings: Settings) -> Iterator[MeasuredUnit]:
    for count in worker_counts(settings.workers):
        yield _grid(settings, WEAK, (_SIDE, _SIDE * count), count)
    for grid in settings.grids:
        for count in (1, settings.workers):
            yield _grid(settings, STRONG, grid, count)


def _grid(settings: Settings, kind: str, grid: Grid, workers: int) -> MeasuredUnit:
    rows, columns = grid
    config = _config(settings, {"cellular.rows": rows, "cellular.columns": columns})
    return MeasuredUnit(kind, f"{rows}x{columns}", rows * columns, workers, 1, config)


def _on_classes(settings: Settings) -> Iterator[MeasuredUnit]:
    data = open_dataset(_config(settings, {}).data)
    if len(data.labels) < settings.workers:
        raise ConfigError(
            f"{field('workers')} {settings.workers}: weak scaling gives each worker a class, and "
            f"{settings.data} has {len(data.labels)}; ask for at most {len(data.labels)}"
        )
    # Equal work: as many pictures of each class as the smallest has.
    limit = min(len(data.names(label, Split.TRAIN)) for label in data.labels)
    for count in worker_counts(settings.workers):
        yield _classes(settings, WEAK, data.labels[:count], limit, count)
    for count in (1, settings.workers):
        yield _classes(settings, STRONG, data.labels, limit, count)


def _classes(
    settings: Settings, kind: str, labels: Sequence[str], limit: int, workers: int
) -> MeasuredUnit:
    flags = {"data.classes": list(labels), "data.limit_per_class": limit}
    sets = tuple(one for one in settings.sets if one.partition("=")[0].strip() not in flags)
    shape = f"{len(labels)} class{'es' if len(labels) > 1 else ''}"
    return MeasuredUnit(kind, shape, len(labels), workers, 1, _config(settings, flags, sets))


def _config(
    settings: Settings, flags: dict[str, Any], sets: tuple[str, ...] | None = None
) -> RunConfig:
    """Return the configuration `manege train` would make; spent_s of its events is CPU time."""
    common = {
        "method": settings.method,
        "rounds": settings.rounds,
        "budget_clock": "cpu",
        "data.source": settings.data,
        "data.root": settings.data_root,
        "sheets.every_rounds": _NEVER,
        "checkpoints.every_s": 600.0,
        "score.metric": "none",
        "stability.every_rounds": _NEVER,
    }
    return resolve(
        preset=settings.preset,
        flags=common | flags,
        sets=settings.sets if sets is None else sets,
    )
