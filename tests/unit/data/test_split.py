from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manege.config import SMALLEST_CLASS
from manege.data import Split
from manege.data.split import by_hash, divide, held_out_count

NAMES = st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=60)


@given(NAMES)
def test_the_parts_are_disjoint_and_cover_the_class(names: set[str]) -> None:
    parts = divide(names)
    train, held_out = set(parts[Split.TRAIN]), set(parts[Split.HELD_OUT])
    assert train | held_out == names
    assert not train & held_out
    assert len(held_out) == held_out_count(len(names))


@given(NAMES, st.randoms())
def test_the_order_of_a_listing_does_not_matter(names: set[str], rng: random.Random) -> None:
    shuffled = list(names)
    rng.shuffle(shuffled)
    assert divide(shuffled) == divide(sorted(names))


@given(NAMES, st.integers(0, 60))
def test_a_larger_limit_contains_a_smaller_one(names: set[str], limit: int) -> None:
    assert set(by_hash(names)[:limit]) <= set(by_hash(names)[: limit + 1])


@given(st.integers(0, 10_000))
def test_a_tenth_is_held_out_and_what_is_left_can_be_trained(count: int) -> None:
    held_out = held_out_count(count)
    assert abs(held_out - count / 10) <= 0.9
    assert count < SMALLEST_CLASS or count - held_out >= SMALLEST_CLASS


@pytest.mark.parametrize(("count", "expected"), [(8, 0), (9, 1), (14, 1), (15, 2), (25, 3)])
def test_held_out_counts_at_the_edges(count: int, expected: int) -> None:
    assert held_out_count(count) == expected


def test_the_split_of_known_names_never_changes() -> None:
    parts = divide(f"{number}.png" for number in range(20))
    assert parts[Split.HELD_OUT] == HELD_OUT


def test_names_that_are_not_unicode_have_a_place() -> None:
    assert set(by_hash(["a", "\udcff.png"])) == {"a", "\udcff.png"}


HELD_OUT = ("2.png", "13.png")
