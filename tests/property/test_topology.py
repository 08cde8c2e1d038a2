"""What holds for every grid: neighbours are where they should be, and hearing is mutual.

Everything expected here comes from coordinates, numpy or scipy, not from the module's arithmetic.
Symmetry alone misses rows taken for columns: distances and directions do not.
"""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from manege.topology import FIVE, NINE, Schedule, Topology, ring, torus

few = settings(deadline=None, derandomize=True, max_examples=40)

SIDES = st.integers(1, 7)
STEPS = st.integers(-9, 9)
OFFSET = st.tuples(STEPS, STEPS).filter(any)


def both_ways(offsets):
    return [signed for down, right in offsets for signed in ((down, right), (-down, -right))]


OFFSETS = st.lists(OFFSET, max_size=3).map(both_ways)


def key(row, column):
    return f"row {row} column {column}"


def places(rows, columns):
    """Each cell's coordinates, in row-major order."""
    return {key(row, column): (row, column) for row in range(rows) for column in range(columns)}


def grid(rows, columns, offsets=FIVE):
    return torus(list(places(rows, columns)), columns, offsets)


def apart(one, other, around):
    """Steps between two places on a circle."""
    return min((one - other) % around, (other - one) % around)


def of_edges(keys, edges):
    return Topology(
        {
            one: tuple(
                other for other in keys if one != other and {(one, other), (other, one)} & edges
            )
            for one in keys
        }
    )


@st.composite
def schedules(draw):
    """Schedules of all kinds of topologies over the same cells, most with few edges."""
    rows, columns = draw(SIDES), draw(SIDES)
    keys = list(places(rows, columns))
    edges = st.sets(st.tuples(st.sampled_from(keys), st.sampled_from(keys)), max_size=len(keys))
    sparse = edges.map(lambda pairs: of_edges(keys, pairs))
    offsets = OFFSETS.map(lambda pairs: torus(keys, columns, pairs))
    topologies = draw(st.lists(sparse | offsets, min_size=1, max_size=3))
    gaps = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    return Schedule(tuple(zip((1, 1 + gaps[0], 1 + sum(gaps)), topologies, strict=False)))


@given(SIDES, SIDES)
@few
def test_the_five_cell_neighbours_are_exactly_the_cells_one_step_away(rows, columns):
    place = places(rows, columns)
    for cell, near in grid(rows, columns).neighbours.items():
        row, column = place[cell]
        one_step = {
            other
            for other, (y, x) in place.items()
            if apart(row, y, rows) + apart(column, x, columns) == 1
        }
        assert set(near) == one_step


@given(SIDES, SIDES)
@few
def test_the_nine_cell_neighbours_are_exactly_the_cells_that_touch(rows, columns):
    place = places(rows, columns)
    for cell, near in grid(rows, columns, NINE).neighbours.items():
        row, column = place[cell]
        touching = {
            other
            for other, (y, x) in place.items()
            if max(apart(row, y, rows), apart(column, x, columns)) == 1
        }
        assert set(near) == touching


@given(SIDES, SIDES, OFFSET)
@few
def test_an_offset_leads_so_many_rows_down_and_columns_right(rows, columns, offset):
    down, right = offset
    table = np.array(list(places(rows, columns))).reshape(rows, columns)
    there = np.roll(table, (-down, -right), axis=(0, 1)).ravel()
    back = np.roll(table, (down, right), axis=(0, 1)).ravel()
    found = grid(rows, columns, both_ways([offset])).neighbours
    for cell, one, other in zip(table.ravel(), there, back, strict=True):
        expected = [one] if one == other else [one, other]
        assert list(found[cell]) == [near for near in expected if near != cell]


@given(SIDES, SIDES)
@few
@example(2, 2)
@example(3, 3)
def test_there_are_two_neighbours_a_direction_from_three_cells_up(rows, columns):
    expected = min(rows - 1, 2) + min(columns - 1, 2)
    sizes = {1 + len(near) for near in grid(rows, columns).neighbours.values()}
    assert sizes == {1 + expected}
    if rows >= 3 and columns >= 3:
        assert sizes == {5}
    if (rows, columns) == (2, 2):
        assert sizes == {3}


@given(SIDES, SIDES, OFFSETS | st.sampled_from([FIVE, NINE]))
@few
def test_hearing_is_mutual_never_of_itself_and_each_once(rows, columns, offsets):
    topology = grid(rows, columns, offsets)
    assert topology.cells == tuple(places(rows, columns))
    for cell, near in topology.neighbours.items():
        assert cell not in near
        assert len(set(near)) == len(near)
        assert all(cell in topology.neighbours[other] for other in near)


@given(SIDES, SIDES, OFFSETS | st.sampled_from([FIVE, NINE]), STEPS, STEPS)
@few
def test_to_shift_a_cell_is_to_shift_its_neighbours(rows, columns, offsets, down, right):
    place = places(rows, columns)
    shifted = {
        cell: key((row + down) % rows, (column + right) % columns)
        for cell, (row, column) in place.items()
    }
    found = grid(rows, columns, offsets).neighbours
    for cell, near in found.items():
        assert found[shifted[cell]] == tuple(shifted[other] for other in near)


@given(st.integers(1, 15), st.integers(1, 20))
@few
def test_a_ring_hears_exactly_the_cells_within_its_radius_nearest_first(count, radius):
    place = {f"cell {index}": index for index in range(count)}
    for cell, near in ring(list(place), radius).neighbours.items():
        distance = {other: apart(place[cell], place[other], count) for other in place}
        assert set(near) == {other for other in place if 1 <= distance[other] <= radius}
        assert len(set(near)) == len(near)
        assert [distance[other] for other in near] == sorted(distance[other] for other in near)


@given(SIDES)
@few
def test_a_ring_is_a_torus_of_one_row(columns):
    assert ring(list(places(1, columns))) == grid(1, columns)


@given(schedules())
@few
def test_every_round_has_the_last_topology_that_began_by_then(schedule):
    for round_ in range(1, 13):
        begun = max(first for first, _ in schedule.changes if first <= round_)
        assert schedule.at(round_) is dict(schedule.changes)[begun]


@given(schedules())
@few
def test_components_are_those_of_all_edges_together_in_row_major_order(schedule):
    cells = schedule.at(1).cells
    components = schedule.components()
    index = {cell: position for position, cell in enumerate(cells)}
    assert sorted(cell for component in components for cell in component) == sorted(cells)
    assert all(list(one) == sorted(one, key=index.get) for one in components)
    assert [one[0] for one in components] == sorted((one[0] for one in components), key=index.get)

    edges = np.zeros((len(cells), len(cells)))
    for _, topology in schedule.changes:
        for cell, near in topology.neighbours.items():
            edges[index[cell], [index[other] for other in near]] = 1
    count, label = connected_components(csr_array(edges), directed=False)
    assert len(components) == count
    assert all(len({label[index[cell]] for cell in one}) == 1 for one in components)
