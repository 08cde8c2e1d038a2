from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manege.data import batch_at, batches_in, round_order

COUNTS = st.integers(1, 300)
BATCHES = st.integers(1, 400)


@given(COUNTS, st.integers(0, 2**63 - 1), st.integers(1, 1000), st.integers(0, 3))
def test_an_order_is_a_permutation(count: int, seed: int, round_: int, attempt: int) -> None:
    order = round_order(count, seed=seed, cell="7", round_=round_, attempt=attempt)
    assert sorted(order.tolist()) == list(range(count))


def test_an_order_is_reproducible_and_differs_by_seed_cell_round_and_attempt() -> None:
    same = [round_order(50, seed=1, cell="a", round_=1).tolist() for _ in range(2)]
    others = [
        round_order(50, seed=2, cell="a", round_=1),
        round_order(50, seed=1, cell="b", round_=1),
        round_order(50, seed=1, cell="a", round_=2),
        round_order(50, seed=1, cell="a", round_=1, attempt=1),
    ]
    spelled = {tuple(order) for order in (same[0], *(other.tolist() for other in others))}
    assert same[0] == same[1]
    assert len(spelled) == 5


def test_an_order_is_the_same_on_every_machine_and_version() -> None:
    order = round_order(8, seed=0, cell="0", round_=1)
    assert order.tolist() == GOLDEN
    assert order.dtype == np.int64


@given(COUNTS, BATCHES)
def test_a_pass_shows_every_picture_and_the_first_n_once(count: int, batch: int) -> None:
    order = round_order(count, seed=0, cell="x", round_=1)
    shown = [batch_at(order, index, batch) for index in range(batches_in(count, batch))]
    flat = np.concatenate(shown).tolist()
    assert flat[:count] == order.tolist()
    assert len(flat) - count < min(batch, count)


@given(COUNTS, BATCHES, st.integers(0, 1000))
def test_every_batch_is_full_and_wraps_round(count: int, batch: int, index: int) -> None:
    order = np.arange(count)
    width = min(batch, count)
    got = batch_at(order, index, batch)
    assert len(got) == width
    assert len(set(got.tolist())) == width
    assert got[0] == index * width % count


@given(COUNTS, BATCHES)
def test_one_batch_fewer_would_leave_a_picture_out(count: int, batch: int) -> None:
    width, passes = min(batch, count), batches_in(count, batch)
    assert (passes - 1) * width < count <= passes * width


GOLDEN = [7, 4, 3, 6, 1, 2, 0, 5]
