"""Devices and threads."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from manege import device
from manege.config import resolve
from manege.device import Devices
from manege.errors import MachineError
from manege.runtime.worker import server


def test_auto_is_the_cpu_where_there_is_no_gpu():
    assert device.resolve("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        assert device.resolve("auto") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_the_machines_fault(name):
    with pytest.raises(MachineError, match=rf"device {name}: .* use device cpu"):
        device.resolve(name)


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with device.threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_keeping_memory_may_be_asked_for_at_any_time():
    device.keep_memory()
    assert torch.ones(3).sum() == 3


def _placed(name: str, local_index: int, gpus: int) -> str:
    generator, discriminator = device.place(name, local_index, gpus)
    return f"{generator} {discriminator}"


@pytest.mark.parametrize(
    ("name", "gpus", "expected"),
    [
        ("cpu", 4, ["cpu cpu"] * 3),
        ("cpu+cpu", 0, ["cpu cpu"] * 3),
        ("auto", 0, ["cpu cpu"] * 3),
        ("auto+auto", 0, ["cpu cpu"] * 3),
        ("auto", 1, ["cuda:0 cuda:0"] * 3),
        ("auto", 2, ["cuda:0 cuda:0", "cuda:1 cuda:1", "cuda:0 cuda:0"]),
        ("cuda", 3, ["cuda:0 cuda:0", "cuda:1 cuda:1", "cuda:2 cuda:2", "cuda:0 cuda:0"]),
        ("cuda:1", 3, ["cuda:1 cuda:1"] * 3),
        ("cuda:01", 3, ["cuda:1 cuda:1"] * 3),
        ("cuda+cuda", 1, ["cuda:0 cuda:0"] * 3),
        ("cuda+cuda", 2, ["cuda:0 cuda:1"] * 3),
        ("cuda+cuda", 3, ["cuda:0 cuda:1", "cuda:2 cuda:0", "cuda:1 cuda:2", "cuda:0 cuda:1"]),
        ("cuda+cuda", 4, ["cuda:0 cuda:1", "cuda:2 cuda:3", "cuda:0 cuda:1"]),
        ("auto+cuda", 4, ["cuda:0 cuda:1", "cuda:2 cuda:3", "cuda:0 cuda:1"]),
        ("cuda:3+cuda:1", 4, ["cuda:3 cuda:1"] * 3),
        ("cuda:2+cuda:2", 4, ["cuda:2 cuda:2"] * 3),
        ("cuda:0+cuda", 4, ["cuda:0 cuda:0", "cuda:0 cuda:1", "cuda:0 cuda:2"]),
        ("cpu+cuda", 2, ["cpu cuda:0", "cpu cuda:1", "cpu cuda:0"]),
        ("cuda+cpu", 2, ["cuda:0 cpu", "cuda:1 cpu", "cuda:0 cpu"]),
        ("auto+cpu", 2, ["cuda:0 cpu", "cuda:1 cpu", "cuda:0 cpu"]),
    ],
)
def test_a_trainers_devices_follow_from_its_local_index(name, gpus, expected):
    assert [_placed(name, local_index, gpus) for local_index in range(len(expected))] == expected


@pytest.mark.parametrize("gpus", [1, 2, 3, 5, 8])
def test_gpus_are_shared_out_evenly(gpus):
    for name in ("cuda", "cuda+cuda"):
        used = [
            one for local_index in range(gpus) for one in set(device.place(name, local_index, gpus))
        ]
        counts = {used.count(one) for one in used}
        assert len(set(used)) == gpus
        assert len(counts) == 1


@pytest.mark.parametrize(
    ("name", "gpus", "says"),
    [
        ("cuda+cpu", 0, "sees no CUDA device here; use device cpu"),
        ("cpu+cuda:0", 0, "sees no CUDA device here"),
        ("auto+cuda", 0, "sees no CUDA device here"),
        ("cuda:2", 2, r"found 2 CUDA device\(s\), numbered from 0; use one of cuda:0 … cuda:1"),
        ("cuda:0+cuda:9999", 2, r"found 2 CUDA device\(s\)"),
    ],
)
def test_gpus_that_are_not_there_are_named(name, gpus, says):
    with pytest.raises(MachineError, match=says):
        device.place(name, 0, gpus)


def test_the_device_is_no_part_of_a_run_s_identity():
    one, other = (
        resolve(flags={"data.source": "digits", "device": name}) for name in ("cpu", "cuda+cuda:3")
    )
    assert one.identity() == other.identity()


@pytest.mark.parametrize("gpus", [0, 3])
def test_gpus_are_counted_in_a_child_where_children_are_to_use_them(monkeypatch, gpus):
    parent, asked = os.getpid(), []

    def count() -> int:
        asked.append(os.getpid())
        assert os.getpid() != parent
        return gpus

    monkeypatch.setattr(torch.cuda, "is_available", lambda: count() > 0)
    monkeypatch.setattr(torch.cuda, "device_count", count)
    assert device.gpus_apart("auto") == device.gpus_apart("cpu+cuda") == gpus
    assert device.gpus_apart("cpu") == device.gpus_apart("cpu+cpu") == 0
    assert not asked


def test_a_count_that_fails_finds_no_gpu(monkeypatch, capfd):
    def broken() -> bool:
        raise RuntimeError("driver")

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    assert device.gpus_apart("auto") == 0


def test_gpus_count_only_where_one_may_be_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert (device.gpus_for("auto"), device.gpus_for("cpu+cpu")) == (4, 0)
    assert device.resolve("cuda:3") == torch.device("cuda:3")
    assert device.resolve("auto") == torch.device("cuda:0")


class _Method:
    """Keeps where it was moved."""

    def __init__(self, on: Devices | None = None) -> None:
        self.on = on

    def to(self, on: Devices) -> _Method:
        return _Method(on)


@pytest.mark.parametrize(
    ("name", "gpus", "moved", "entered"),
    [
        ("cpu", 0, None, []),
        ("auto", 0, None, []),
        ("cpu+cpu", 0, device.CPU, []),
        ("cuda", 2, Devices(torch.device("cuda:1"), torch.device("cuda:1")), ["cuda:1"]),
        ("cuda+cuda", 4, Devices(torch.device("cuda:2"), torch.device("cuda:3")), ["cuda:2"]),
        ("cpu+cuda", 4, Devices(torch.device("cpu"), torch.device("cuda:3")), ["cuda:3"]),
    ],
)
def test_a_trainer_moves_its_method_unless_it_is_where_the_server_has_it(
    monkeypatch, name, gpus, moved, entered
):
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: chosen.append(str(one)))
    config = SimpleNamespace(device=name)
    bound = server.TrainingSetup(config, _Method(), None, None)
    assert server._on_own_devices(bound, 3, gpus).method.on == moved
    assert chosen == entered
