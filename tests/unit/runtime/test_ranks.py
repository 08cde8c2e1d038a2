"""Where trainers are started, and what machines tell of themselves."""

from __future__ import annotations

from manege.runtime.transports.ranks import Node, least_loaded

SMALL = Node(0, "small", cores=2, bytes=8 << 30, devices=0)
LARGE = Node(3, "large", cores=8, bytes=64 << 30, devices=0)
GPUS = Node(5, "gpus", cores=64, bytes=256 << 30, devices=2)


def _filled(nodes: dict[int, Node], trainers: int) -> dict[int, int]:
    load = dict.fromkeys(nodes, 0)
    for _ in range(trainers):
        load[least_loaded(load, nodes, dict.fromkeys(nodes, False))] += 1
    return load


def test_trainers_go_where_most_cores_are_free():
    nodes = {1: SMALL, 2: SMALL, 3: LARGE, 4: LARGE}
    assert _filled(nodes, 5) == {1: 1, 2: 0, 3: 2, 4: 2}
    assert _filled(nodes, 10) == {1: 1, 2: 1, 3: 4, 4: 4}


def test_where_there_are_gpus_they_count():
    assert _filled({1: SMALL, 5: GPUS}, 4) == {1: 2, 5: 2}


def test_ranks_of_one_machine_take_turns():
    assert _filled({1: LARGE, 2: LARGE, 3: LARGE}, 7) == {1: 3, 2: 2, 3: 2}


def test_who_is_silent_gets_none_unless_all_are():
    nodes = {1: SMALL, 2: LARGE}
    assert least_loaded({1: 9, 2: 0}, nodes, {1: False, 2: True}) == 1
    assert least_loaded({1: 9, 2: 0}, nodes, {1: True, 2: True}) == 2


def test_a_machine_in_a_line():
    assert LARGE.described(2) == "node large: 8 cores, 64 GB free, 2 worker ranks"
    assert GPUS.described(1) == "node gpus: 64 cores, 256 GB free, 2 GPUs, 1 worker rank"
