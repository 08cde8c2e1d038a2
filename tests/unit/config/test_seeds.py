"""Streams: fixed for ever, and never shared by two different uses."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manege.config import stream

PLACES = st.tuples(
    st.integers(0, 2**63 - 1),
    st.text(max_size=8),
    st.text(max_size=8),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 9),
)


def _first(seed, cell, purpose, round_, step, attempt) -> int:
    rng = stream(seed, cell=cell, purpose=purpose, round_=round_, step=step, attempt=attempt)
    return int(rng.integers(0, 2**63))


def test_streams_never_change_between_versions():
    found = stream(0, cell="3", purpose="golden").standard_normal(3, dtype=np.float32)
    assert found.tolist() == [-0.18452946841716766, -0.21985092759132385, -0.9108780026435852]
    place = {"cell": "a", "purpose": "b", "round_": 2, "step": 3, "attempt": 4}
    found = stream(1, **place).integers(0, 2**63, 2)
    assert found.tolist() == [4512687556790868352, 6554099038345557594]


@given(PLACES, PLACES)
def test_different_places_have_different_streams_and_equal_ones_the_same(one, other):
    assert (_first(*one) == _first(*other)) == (one == other)


def test_neighbouring_texts_do_not_run_together():
    assert _first(0, "ab", "c", 0, 0, 0) != _first(0, "a", "bc", 0, 0, 0)
    assert _first(1, "a", "b", 1, 0, 0) != _first(1, "a", "b", 0, 1, 0)
