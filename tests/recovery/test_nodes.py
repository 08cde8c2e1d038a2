"""Ranks on two machines, as far as they can tell: network namespaces with names of their own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manege.runs import RunDir
from tests.helpers.command import run_here
from tests.helpers.forker import state_of
from tests.helpers.libraries import library
from tests.recovery.test_mpi import GRID

FIRST, SECOND = "manege-1", "manege-2"
ADDRESSES = {FIRST: "10.213.0.1", SECOND: "10.213.0.2"}
BRIDGE = "manege-br"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@pytest.fixture(scope="module")
def agent(tmp_path_factory) -> Iterator[Path]:
    """Two machines, and what mpiexec calls in the place of ssh."""
    library("openmpi")
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        pytest.skip("namespaces take root, ip and unshare")
    script = tmp_path_factory.mktemp("agent") / "in-namespace"
    script.write_text(
        "#!/bin/sh\nshift\n"
        f'exec ip netns exec {SECOND} unshare --uts sh -c "hostname {SECOND}; $*"\n'
    )
    script.chmod(0o755)
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("link", "set", BRIDGE, "up")
        for name, address in ADDRESSES.items():
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", BRIDGE)
            _ip("link", "set", name, "up")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
    except subprocess.CalledProcessError as error:
        _take_down()
        pytest.skip(f"no namespaces here: {error.stderr.decode().strip()}")
    yield script
    _take_down()


def _take_down() -> None:
    for words in (
        *(("netns", "del", name) for name in ADDRESSES),
        *(("link", "del", name) for name in (*ADDRESSES, BRIDGE)),
    ):
        subprocess.run(["ip", *words], check=False, capture_output=True, timeout=10)


def _started(agent: Path, path: Path, *args: str) -> subprocess.Popen[str]:
    """Ranks 0 and 1 on the first machine, rank 2 on the second."""
    hosts = f"{FIRST}:2,{ADDRESSES[SECOND]}:1"
    command = (
        *(sys.executable, "-m", "manege", "train", *args, "--out", str(path)),
        *("--launch", "mpiexec", "-n", "3", "--hosts", hosts),
    )
    return subprocess.Popen(
        [
            *("ip", "netns", "exec", FIRST, "unshare", "--uts", "sh", "-c"),
            f"hostname {FIRST}; exec {shlex.join(command)}",
        ],
        env={**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def _events(path: Path, kind: str) -> list[dict]:
    if not (path / "events.jsonl").exists():
        return []
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


def _ended(job: subprocess.Popen[str]) -> None:
    try:
        _, err = job.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        job.kill()
        raise
    assert job.returncode == 0, err


def _wanted(folder: Path, *args: str) -> dict[str, str]:
    done = run_here("train", *args, "--runtime", "inline", "--out", "wanted", cwd=folder)
    assert done.code == 0, done.err
    return state_of(folder / "wanted")


@pytest.mark.soak
def test_two_machines_are_found_and_give_the_same_bits(agent, tmp_path):
    path = tmp_path / "run"
    _ended(_started(agent, path, *GRID))
    assert state_of(path) == _wanted(tmp_path, *GRID)
    nodes = _events(path, "run_started")[0]["nodes"]
    assert [node["name"] for node in nodes] == [FIRST, SECOND]
    assert {node["cores"] for node in nodes} == {len(os.sched_getaffinity(0))}


@pytest.mark.soak
def test_a_network_that_is_cut_for_half_a_minute_changes_no_bit(agent, tmp_path):
    """Nothing is heard of the second machine: its cells move, and it is fenced when it returns."""
    path, args = tmp_path / "run", list(GRID)
    args[args.index("--rounds") + 1] = "250"
    job = _started(agent, path, *args)
    while not _events(path, "commit") and job.poll() is None:
        time.sleep(0.1)
    _ip("link", "set", SECOND, "nomaster")
    time.sleep(30)
    _ip("link", "set", SECOND, "master", BRIDGE)
    known = len(_events(path, "round"))
    _ended(job)
    assert len(_events(path, "round")) > known, "it was over before the network was back"
    (death,) = _events(path, "trainer_died")
    assert death["how"].startswith("hung: not heard of for")
    assert state_of(path) == _wanted(tmp_path, *args)
