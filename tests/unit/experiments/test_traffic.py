"""What cells' centres cost between ranks does not grow with the grid."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from manege.errors import MachineError
from manege.experiments.scaling import traffic
from manege.runtime.slots import payload_bytes

CENTRE = (("<f4", 300), ("<f4", 200), ("<f8", 10))
PAYLOAD = 300 * 4 + 200 * 4 + 10 * 8
OPEN = Path("/proc/self/fd")
HEAD = 16
"""A slot's number and the round."""


@pytest.mark.full
def test_traffic_is_the_same_for_every_cell_from_3x3_to_16x16():
    gc.collect()  # Files that other tests left to the collector would be closed meanwhile.
    before = len(list(OPEN.iterdir()))
    found = [traffic.measure_traffic(CENTRE, grid) for grid in traffic.GRIDS]
    assert [one.grid for one in found] == ["3x3", "4x4", "8x8", "16x16"]
    assert {one.letters for one in found} == {4}
    assert {one.sent_bytes for one in found} == {4 * (PAYLOAD + HEAD)}
    assert [one.all_gather_bytes // PAYLOAD for one in found] == [8, 15, 63, 255]
    assert len(list(OPEN.iterdir())) == before


def test_a_small_grid_has_fewer_neighbours_and_sends_less():
    assert traffic.measure_traffic(CENTRE, (2, 2)).letters == 2
    assert traffic.measure_traffic(CENTRE, (1, 2)).letters == 1


def test_long_centres_are_shortened_until_they_fit():
    assert traffic.shortened(CENTRE, 256) == CENTRE
    long = (("<f4", 10**8), ("<f8", 3))
    short = traffic.shortened(long, 256)
    assert 10 * 256 * payload_bytes(short) <= traffic.MEMORY
    assert 20 * 256 * payload_bytes(short) > traffic.MEMORY
    assert short[1][1] >= 1


def test_too_few_open_files_are_told_of_before_anything_is_measured():
    with pytest.raises(MachineError, match=r"open files, and .* are allowed; raise"):
        traffic.check_files([(10_000, 10_000)])
