"""Which cells exchange centres: a torus, a ring, no edges or one's own, and their schedule.

Cells are keys in row-major order. It knows no ranks, tensors, processes or configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manege import plugins
from manege.errors import ConfigError

Offset = tuple[int, int]
"""Rows down and columns right."""

FIVE: tuple[Offset, ...] = ((-1, 0), (1, 0), (0, 1), (0, -1))
"""North, south, east, west: the five-cell neighbourhood, the cell itself not counted."""

NINE: tuple[Offset, ...] = (*FIVE, (-1, 1), (1, 1), (1, -1), (-1, -1))
"""The nine-cell neighbourhood: then north-east, south-east, south-west, north-west."""


@dataclass(frozen=True)
class Topology:
    """The neighbours of every cell in a round; each is a neighbour of its neighbours."""

    neighbours: Mapping[str, tuple[str, ...]]
    """For every cell in row-major order, whose centres it receives: never its own, each once."""

    def __post_init__(self) -> None:
        hears = {cell: set(heard) for cell, heard in self.neighbours.items()}
        for cell, heard in self.neighbours.items():
            if cell in hears[cell] or len(hears[cell]) < len(heard):
                raise ValueError(f"cell {cell!r} hears {heard}; expected other cells, each once")
            for other in heard:
                if cell not in hears.get(other, ()):
                    raise ValueError(f"cell {cell!r} hears {other!r}; expected the reverse as well")

    @property
    def cells(self) -> tuple[str, ...]:
        """All cells in row-major order."""
        return tuple(self.neighbours)


def torus(keys: Sequence[str], columns: int, offsets: Sequence[Offset] = FIVE) -> Topology:
    """Return a grid whose opposite edges meet; neighbours are in the order of `offsets`.

    Each offset needs its opposite. On small grids, several that lead to one cell count once.
    """
    _check(keys, columns, offsets)
    grid = [keys[start : start + columns] for start in range(0, len(keys), columns)]
    rows = len(grid)
    neighbours = {}
    for row, line in enumerate(grid):
        for column, key in enumerate(line):
            heard = [
                grid[(row + down) % rows][(column + right) % columns] for down, right in offsets
            ]
            neighbours[key] = tuple(dict.fromkeys(other for other in heard if other != key))
    return Topology(neighbours)


def ring(keys: Sequence[str], radius: int = 1) -> Topology:
    """Return a circle in which cells have `radius` neighbours on each side, the nearest first."""
    if radius < 1:
        raise ValueError(f"a ring of radius {radius}; expected at least 1")
    distances = range(1, min(radius, len(keys) // 2) + 1)  # Half the circle each way is all of it.
    return torus(keys, len(keys), [(0, side * far) for far in distances for side in (1, -1)])


def isolated(keys: Sequence[str]) -> Topology:
    """Return cells without neighbours."""
    return torus(keys, len(keys), ())


def own(
    reference: str, keys: Sequence[str], rows: int, columns: int, params: Mapping[str, Any]
) -> Topology:
    """Return the topology that a function from outside the package makes for a grid.

    The function is given the keys, rows, columns and its own parameters, and returns a `Topology`
    or a mapping from each cell to those it hears. Raise ConfigError for anything else.
    """
    where = "cellular.neighbourhood"
    make = plugins.load(reference, where)
    if not callable(make):
        raise ConfigError(f"{where}: {reference} is no function, expected one that gives links")

    def made() -> Topology:
        with plugins.blamed(reference, "the topology"):
            found = make(tuple(keys), rows, columns, **params)
        return _own_links(reference, found, keys)

    topology = made()
    if dict(made().neighbours) != dict(topology.neighbours):
        raise ConfigError(
            f"{reference}: the topology differs from call to call, expected one that follows from "
            "the cells alone; draw from a generator with a fixed seed"
        )
    return topology


def _own_links(reference: str, found: object, keys: Sequence[str]) -> Topology:
    """Return what a function gave as a topology of these cells, in their order."""
    links = found.neighbours if isinstance(found, Topology) else found
    if not isinstance(links, Mapping):
        raise ConfigError(
            f"{reference}: the topology is {type(found).__name__}, expected a Topology or a "
            "mapping from each cell to those it hears"
        )
    if set(links) != set(keys):
        odd = sorted(map(str, set(links) ^ set(keys)))
        raise ConfigError(
            f"{reference}: the topology has {len(links)} cells, expected the {len(keys)} of the "
            f"grid; look at {', '.join(odd[:3])}"
        )
    for cell, heard in links.items():
        # A set's order is another in each process, and the order of centres decides bits.
        if not isinstance(heard, tuple | list) or not set(map(type, heard)) <= {str}:
            raise ConfigError(
                f"{reference}: cell {cell!r} hears {type(heard).__name__}, expected a tuple of "
                "other cells' keys"
            )
    try:
        return Topology({cell: tuple(links[cell]) for cell in keys})
    except ValueError as error:
        raise ConfigError(f"{reference}: {error}") from None


@dataclass(frozen=True)
class Schedule:
    """A topology for each round; it may change between rounds."""

    changes: tuple[tuple[int, Topology], ...]
    """First rounds with their topologies, rising from 1; all of the same cells in one order."""

    def __post_init__(self) -> None:
        rounds = [first for first, _ in self.changes]
        if rounds[:1] != [1] or rounds != sorted(set(rounds)):
            raise ValueError(f"topologies from rounds {rounds}; expected rounds that rise from 1")
        for first, topology in self.changes:
            if topology.cells != self.changes[0][1].cells:
                raise ValueError(f"other cells from round {first}; expected those of round 1")

    def at(self, round_: int) -> Topology:
        """Return the topology of a round; rounds start at 1."""
        if round_ < 1:
            raise ValueError(f"round {round_}; expected 1 or more")
        return [topology for first, topology in self.changes if first <= round_][-1]

    def around(self) -> dict[str, tuple[str, ...]]:
        """Return, for every cell, the cells that are its neighbours in any round."""
        heard: dict[str, dict[str, None]] = {cell: {} for cell in self.changes[0][1].cells}
        for _, topology in self.changes:
            for cell, others in topology.neighbours.items():
                heard[cell] |= dict.fromkeys(others)
        return {cell: tuple(others) for cell, others in heard.items()}

    def components(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of cells that are connected in any round, also through others."""
        return connected(self.around())


def connected(links: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of cells that links connect, also through others; all in their order."""
    parent = {cell: cell for cell in links}

    def root(cell: str) -> str:
        while parent[cell] != cell:
            # Each walk halves the path for the next one.
            parent[cell] = parent[parent[cell]]
            cell = parent[cell]
        return cell

    for cell, others in links.items():
        for other in others:
            parent[root(other)] = root(cell)
    found: dict[str, list[str]] = {}
    for cell in parent:
        found.setdefault(root(cell), []).append(cell)
    return tuple(tuple(group) for group in found.values())


def _check(keys: Sequence[str], columns: int, offsets: Sequence[Offset]) -> None:
    if not keys:
        raise ValueError("no cells; expected at least one")
    key, count = Counter(keys).most_common(1)[0]
    if count > 1:
        raise ValueError(f"cell {key!r} is named {count} times; expected each once")
    if columns < 1 or len(keys) % columns:
        raise ValueError(f"{len(keys)} cells in {columns} columns; expected rows of equal length")
    if (0, 0) in offsets:
        raise ValueError("offset (0, 0) is the cell itself; expected offsets to others")
    for down, right in offsets:
        if (-down, -right) not in offsets:
            raise ValueError(f"offset {down, right} alone; expected {-down, -right} as well")
