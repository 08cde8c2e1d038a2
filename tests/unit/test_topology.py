"""Neighbours written out by hand, where a schedule changes, and what is refused.

A cell is a letter, and a grid its rows. Neighbours come as north, south, east, west.
"""

from __future__ import annotations

import time

import pytest

from manege.topology import FIVE, NINE, Schedule, Topology, isolated, ring, torus


def heard(topology: Topology) -> list[str]:
    """Each cell with its neighbours, as "a: bc"."""
    return [f"{cell}: {''.join(near)}" for cell, near in topology.neighbours.items()]


def grid(*rows: str, offsets=FIVE) -> Topology:
    return torus("".join(rows), len(rows[0]), offsets)


# The torus.


def test_three_by_three():
    assert heard(grid("abc", "def", "ghi")) == [
        "a: gdbc",
        "b: heca",
        "c: ifab",
        "d: agef",
        "e: bhfd",
        "f: cide",
        "g: dahi",
        "h: ebig",
        "i: fcgh",
    ]


def test_three_by_five():
    assert heard(grid("abcde", "fghij", "klmno")) == [
        "a: kfbe",
        "b: lgca",
        "c: mhdb",
        "d: niec",
        "e: ojad",
        "f: akgj",
        "g: blhf",
        "h: cmig",
        "i: dnjh",
        "j: eofi",
        "k: falo",
        "l: gbmk",
        "m: hcnl",
        "n: idom",
        "o: jekn",
    ]


def test_on_two_by_two_north_is_south_and_east_is_west():
    assert heard(grid("ab", "cd")) == ["a: cb", "b: da", "c: ad", "d: bc"]


def test_with_two_rows_only_north_is_south():
    assert heard(grid("abc", "def")) == [
        "a: dbc",
        "b: eca",
        "c: fab",
        "d: aef",
        "e: bfd",
        "f: cde",
    ]


def test_with_two_columns_only_east_is_west():
    assert heard(grid("ab", "cd", "ef")) == [
        "a: ecb",
        "b: fda",
        "c: aed",
        "d: bfc",
        "e: caf",
        "f: dbe",
    ]


def test_a_single_row_has_no_north_and_south():
    assert heard(grid("abcde")) == ["a: be", "b: ca", "c: db", "d: ec", "e: ad"]


def test_a_single_column_has_no_east_and_west():
    assert heard(grid("a", "b", "c", "d", "e")) == ["a: eb", "b: ac", "c: bd", "d: ce", "e: da"]


def test_a_single_cell_is_alone_and_a_pair_hears_each_other():
    assert heard(grid("a")) == ["a: "]
    assert heard(grid("ab")) == ["a: b", "b: a"]
    assert heard(grid("a", "b")) == ["a: b", "b: a"]


def test_cells_come_in_row_major_order_whatever_their_keys():
    assert grid("zax", "yb1").cells == ("z", "a", "x", "y", "b", "1")
    keys = ["0,0", "0,1", "1,0", "1,1"]
    assert torus(keys, 2).neighbours["0,1"] == ("1,1", "0,0")


# Other neighbourhoods.


def test_the_nine_cell_neighbourhood():
    found = grid("abcde", "fghij", "klmno", offsets=NINE).neighbours
    assert "".join(found["h"]) == "cmigdnlb"
    assert "".join(found["a"]) == "kfbelgjo"
    assert "".join(found["o"]) == "jeknfadi"


def test_the_nine_cell_neighbourhood_on_small_grids():
    assert heard(grid("ab", "cd", offsets=NINE)) == ["a: cbd", "b: dac", "c: adb", "d: bca"]
    assert heard(grid("abc", offsets=NINE)) == ["a: bc", "b: ca", "c: ab"]
    assert heard(grid("a", offsets=NINE)) == ["a: "]


def test_custom_offsets_are_rows_down_and_columns_right():
    found = grid("abcde", "fghij", "klmno", offsets=[(1, 2), (-1, -2)]).neighbours
    assert found["a"] == ("h", "n")
    assert found["b"] == ("i", "o")
    assert found["h"] == ("o", "a")
    assert found["o"] == ("b", "h")


def test_offsets_larger_than_the_grid_go_round_it():
    far = grid("abc", "def", offsets=[(3, 0), (-3, 0), (0, 4), (0, -4), (2, 3), (-2, -3)])
    assert heard(far) == heard(grid("abc", "def"))


def test_without_offsets_there_are_no_edges():
    assert grid("abc", "def", offsets=()) == isolated("abcdef")


# Ring and isolated cells.


def test_a_ring_hears_both_sides():
    assert heard(ring("abcde")) == ["a: be", "b: ca", "c: db", "d: ec", "e: ad"]


def test_a_ring_of_radius_two_hears_the_nearest_first():
    assert heard(ring("abcdefg", radius=2)) == [
        "a: bgcf",
        "b: cadg",
        "c: dbea",
        "d: ecfb",
        "e: fdgc",
        "f: gead",
        "g: afbe",
    ]


@pytest.mark.parametrize("radius", [2, 3, 4, 5, 10**12])
def test_a_ring_wider_than_the_circle_hears_everybody_once(radius):
    assert heard(ring("abcde", radius)) == ["a: becd", "b: cade", "c: dbea", "d: ecab", "e: adbc"]
    assert heard(ring("abcd", radius)) == ["a: bdc", "b: cad", "c: dba", "d: acb"]
    assert heard(ring("ab", radius)) == ["a: b", "b: a"]
    assert heard(ring("a", radius)) == ["a: "]


def test_isolated_cells_hear_nobody():
    assert heard(isolated("abc")) == ["a: ", "b: ", "c: "]
    assert isolated("abc").cells == ("a", "b", "c")


# The schedule.


def test_a_schedule_changes_at_its_rounds():
    first, second, third = grid("ab", "cd"), ring("abcd"), isolated("abcd")
    schedule = Schedule(((1, first), (4, second), (5, third)))
    assert [schedule.at(round_) for round_ in range(1, 7)] == [
        first,
        first,
        first,
        second,
        third,
        third,
    ]
    assert schedule.at(10**9) == third


def test_components_of_one_topology():
    assert Schedule(((1, grid("abc", "def")),)).components() == (tuple("abcdef"),)
    assert Schedule(((1, isolated("cab")),)).components() == (("c",), ("a",), ("b",))
    rows = grid("abc", "def", offsets=[(0, 1), (0, -1)])
    assert Schedule(((1, rows),)).components() == (("a", "b", "c"), ("d", "e", "f"))
    columns = grid("abc", "def", offsets=[(1, 0), (-1, 0)])
    assert Schedule(((1, columns),)).components() == (("a", "d"), ("b", "e"), ("c", "f"))


def test_components_join_what_any_round_joins():
    pairs = Topology({"a": ("c",), "b": (), "c": ("a",), "d": ("e",), "e": ("d",)})
    later = Topology({"a": (), "b": ("e",), "c": (), "d": (), "e": ("b",)})
    assert Schedule(((1, pairs),)).components() == (("a", "c"), ("b",), ("d", "e"))
    assert Schedule(((1, pairs), (9, later))).components() == (("a", "c"), ("b", "d", "e"))
    assert Schedule(((1, later), (9, pairs))).components() == (("a", "c"), ("b", "d", "e"))


def evens_first(keys: list[str]) -> Topology:
    """A ring that grows from its even cells: each walk to a root would be longer than the last."""
    neighbours = ring(keys).neighbours
    return Topology({key: neighbours[key] for key in (*keys[::2], *keys[1::2])})


@pytest.mark.parametrize("build", [ring, lambda keys: torus(keys, 100), evens_first])
def test_ten_thousand_cells_are_no_trouble(build):
    topology = build([str(index) for index in range(10_000)])
    start = time.process_time()
    components = Schedule(((1, topology),)).components()
    # Hundredths of a second; a quadratic search takes many seconds.
    assert time.process_time() - start < 2
    assert components == (topology.cells,)


# What is refused.


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ([(0, 1)], "offset (0, 1) alone; expected (0, -1) as well"),
        ([*FIVE, (2, -1)], "offset (2, -1) alone; expected (-2, 1) as well"),
        ([*FIVE, (0, 0)], "offset (0, 0) is the cell itself; expected offsets to others"),
    ],
)
def test_offsets_without_their_opposite_are_refused(offsets, told):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared.
        # East is west here, yet offsets are to be symmetric on every grid.
        torus("abcd", 2, offsets)
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: torus("abcde", 2), "5 cells in 2 columns; expected rows of equal length"),
        (lambda: torus("abc", 4), "3 cells in 4 columns; expected rows of equal length"),
        (lambda: torus("abc", 0), "3 cells in 0 columns; expected rows of equal length"),
        (lambda: torus("abc", -3), "3 cells in -3 columns; expected rows of equal length"),
        (lambda: torus("", 1), "no cells; expected at least one"),
        (lambda: ring(""), "no cells; expected at least one"),
        (lambda: isolated(""), "no cells; expected at least one"),
        (lambda: torus("abcb", 2), "cell 'b' is named 2 times; expected each once"),
        (lambda: ring("aab"), "cell 'a' is named 2 times; expected each once"),
        (lambda: isolated("abbb"), "cell 'b' is named 3 times; expected each once"),
        (lambda: ring("abc", 0), "a ring of radius 0; expected at least 1"),
        (lambda: ring("abc", -1), "a ring of radius -1; expected at least 1"),
        (
            lambda: Topology({"a": ("a",)}),
            "cell 'a' hears ('a',); expected other cells, each once",
        ),
        (
            lambda: Topology({"a": ("b", "b"), "b": ("a",)}),
            "cell 'a' hears ('b', 'b'); expected other cells, each once",
        ),
        (
            lambda: Topology({"a": ("b",), "b": ()}),
            "cell 'a' hears 'b'; expected the reverse as well",
        ),
        (lambda: Topology({"a": ("b",)}), "cell 'a' hears 'b'; expected the reverse as well"),
    ],
)
def test_what_is_no_topology_is_refused(build, told):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared.
        build()
    assert str(error.value) == told


@pytest.mark.parametrize("rounds", [[], [0], [2], [0, 1], [1, 1], [1, 5, 3], [1, 3, 3]])
def test_rounds_that_do_not_rise_from_one_are_refused(rounds):
    changes = tuple((first, ring("abc")) for first in rounds)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared.
        Schedule(changes)
    assert str(error.value) == f"topologies from rounds {rounds}; expected rounds that rise from 1"


@pytest.mark.parametrize("keys", ["abcd", "ab", "acb", "abd"])
def test_a_schedule_keeps_its_cells_and_their_order(keys):
    with pytest.raises(ValueError, match=r"^other cells from round 7; expected those of round 1$"):
        Schedule(((1, ring("abc")), (4, isolated("abc")), (7, ring(keys))))


@pytest.mark.parametrize("round_", [0, -1])
def test_there_is_no_round_before_the_first(round_):
    with pytest.raises(ValueError, match=rf"^round {round_}; expected 1 or more$"):
        Schedule(((1, ring("abc")),)).at(round_)
