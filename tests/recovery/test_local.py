"""The local runtime: real processes, real signals, and the bits of a run that nothing disturbed."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from manege.config import resolve
from manege.errors import MachineError
from manege.failpoints import TRAINER, VARIABLE
from manege.runs import RunDir
from manege.runtime.messages import NewRun
from manege.runtime.policies import DEATHS_AT_ONE_STEP
from manege.runtime.transports.local import Server
from tests.helpers.command import run_here
from tests.helpers.forker import Silent, state_of
from tests.helpers.material import write_class

PER_CLASS = (
    *("digits", "--preset", "paper-dc", "--networks", "mlp", "--classes", "3,7,8"),
    *("--limit-per-class", "40", "--batch", "20", "--sheet-every", "100", "--score", "none"),
    *("--set", "stability.every_rounds=20"),
    *("--set", "networks.hidden=32", "--set", "checkpoints.every_s=0.3", "--rounds", "400"),
)
GRID = (
    *("ring8", "--method", "cellular", "--grid", "2x2", "--batch", "50", "--rounds", "12"),
    *("--set", "training.batches_per_round=20", "--sheet-every", "6"),
    *("--set", "networks.hidden=32", "--set", "networks.latent=8"),
    *("--set", "cellular.fitness_samples=64", "--set", "cellular.mixture.samples=200"),
    *("--set", "cellular.mixture.final_samples=400", "--set", "cellular.mixture.steps=100"),
    *("--set", "cellular.mixture.final_steps=1000"),
)
METHODS = {"per-class": PER_CLASS, "grid": GRID}
LONG = {"per-class": (*PER_CLASS, "--rounds", "1600"), "grid": (*GRID, "--rounds", "60")}
"""Long enough to be killed ten times, on a fast machine too."""
soak = partial(pytest.param, marks=pytest.mark.soak)
"""What `make soak` tries besides."""
full = partial(pytest.param, marks=pytest.mark.full)
"""What `make test-all` tries besides."""
BACK_AT_WORK_S = 5.0


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        yield


@pytest.fixture(params=METHODS)
def method(request) -> str:
    return request.param


@pytest.fixture
def wanted(method, undisturbed) -> dict[str, str]:
    return undisturbed(*METHODS[method])


class Running:
    """A command under way."""

    def __init__(self, *args: object, env: dict[str, str] | None = None) -> None:
        # A pipe that nobody reads would hold up a run of many rounds.
        self._err = os.memfd_create("stderr")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "manege", *map(str, args)],
            stdout=subprocess.DEVNULL,
            stderr=self._err,
            env={**os.environ, **(env or {})},
        )

    def server(self) -> int:
        return _until(lambda: next(iter(_children(self.process.pid)), None), "a server")

    def trainers(self) -> list[int]:
        return [one for server in _children(self.process.pid) for one in _children(server)]

    def family(self) -> list[int]:
        server = self.server()
        return [server, *_children(server)]

    def end(self) -> tuple[int, str]:
        self.process.wait(timeout=120)
        os.lseek(self._err, 0, os.SEEK_SET)
        with os.fdopen(self._err) as file:
            err = file.read()
        assert "Traceback" not in err, err
        return self.process.returncode, err


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(look, what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError(f"no {what} within {timeout_s} s")


def _events(path: Path, kind: str) -> list[dict]:
    if not (path / "events.jsonl").exists():
        return []
    return [event for event in RunDir.open(path).events() if event["event"] == kind]


def _at_work(path: Path, commits: int = 1) -> None:
    _until(lambda: len(_events(path, "commit")) >= commits, f"{commits} commits")


def _all_at_work(path: Path, commits: int) -> None:
    """Until every cell has so many."""

    def there() -> bool:
        events = list(_events(path, "run_started"))
        counts = Counter(event["cell"] for event in _events(path, "commit"))
        return bool(events) and all(counts[cell] >= commits for cell in events[0]["cells"])

    _until(there, f"{commits} commits of every cell")


def _more_than(path: Path, known: int) -> int | None:
    found = len(_events(path, "trainer_died"))
    return found if found > known else None


def _back_at_work(path: Path) -> Iterator[float]:
    """Seconds from each death to the moment its cells are taken up again."""
    events = list(RunDir.open(path).events())
    for number, event in enumerate(events):
        if event["event"] == "trainer_died":
            for cell in event["cells"]:
                later = (
                    one["t"]
                    for one in events[number:]
                    if one["event"] in ("cell_started", "cell_failed") and one["cell"] == cell
                )
                yield next(later) - event["t"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "workers"),
    [
        ("per-class", 4),
        ("grid", 2),
        *(soak(*one) for one in (("per-class", 1), ("per-class", 2), ("grid", 1), ("grid", 4))),
    ],
    indirect=["method"],
)
def test_any_number_of_trainers_gives_the_same_bits(method, wanted, workers, tmp_path):
    path = tmp_path / "run"
    code, err = Running("train", *METHODS[method], "--workers", workers, "--out", path).end()
    assert code == 0, err
    assert state_of(path) == wanted
    assert not _events(path, "trainer_died")


def _is_suspected(path: Path) -> bool:
    """Whether a third death without a commit in between might be blamed on a cell's step.

    On a busy machine one cell may not get on between three kills while others do.
    """
    deaths: Counter[str] = Counter()
    for event in RunDir.open(path).events():
        if event["event"] == "trainer_died":
            deaths.update(event["cells"])
        elif event["event"] in ("commit", "cell_finished"):
            deaths.pop(event["cell"], None)
    return max(deaths.values(), default=0) >= DEATHS_AT_ONE_STEP - 1


def _killed_at_random(args: tuple[str, ...], path: Path, seed: int, kills: int) -> list[dict]:
    """A run that finished although its trainers were killed so often; their deaths."""
    rng, done = random.Random(seed), 0
    running = Running("train", *args, "--workers", 2, "--out", path)
    _at_work(path)
    while running.process.poll() is None and done < kills:
        if _is_suspected(path):
            time.sleep(0.02)
            continue
        known = len(_events(path, "round"))
        if trainers := running.trainers():
            os.kill(rng.choice(trainers), signal.SIGKILL)
            done += 1
        while len(_events(path, "round")) == known and running.process.poll() is None:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.05, 0.5))
    code, err = running.end()
    assert code == 0, err
    assert done == kills, "the run is too short to be killed so often"
    deaths = _events(path, "trainer_died")
    assert all(event["how"] == "killed by SIGKILL" for event in deaths)
    assert 1 <= len(deaths) <= kills
    assert max(_back_at_work(path)) < BACK_AT_WORK_S
    return deaths


@pytest.fixture(params=LONG)
def long(request) -> tuple[str, ...]:
    return LONG[request.param]


@pytest.mark.full
def test_trainers_killed_at_random_moments_cost_nothing_but_time(long, undisturbed, tmp_path):
    _killed_at_random(long, tmp_path / "run", seed=5, kills=10)
    assert state_of(tmp_path / "run") == undisturbed(*long)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_hundreds_of_kills(seed, long, undisturbed, tmp_path):
    _killed_at_random(long, tmp_path / "run", seed=100 + seed, kills=10)
    assert state_of(tmp_path / "run") == undisturbed(*long)


@pytest.mark.soak
def test_half_an_hour_with_a_kill_every_twenty_seconds_uses_no_more_of_anything(tmp_path):
    duration_s, pause_s = float(os.environ.get("MANEGE_SOAK_S", "1800")), 20.0
    path, rng = tmp_path / "run", random.Random(9)
    args = list(GRID)
    del args[args.index("--rounds") : args.index("--rounds") + 2]
    running = Running(
        "train", *args, "--budget", f"{duration_s:.0f}s", "--workers", 2, "--out", path
    )
    _at_work(path, 8)
    seen = []
    while running.process.poll() is None:
        time.sleep(pause_s)
        trainers = running.trainers()
        if len(trainers) < 2:
            continue  # It is at its end.
        os.kill(rng.choice(trainers), signal.SIGKILL)
        time.sleep(1.0)
        processes = [running.process.pid, *_children(running.process.pid)]
        if running.process.poll() is not None or len(processes) < 2:
            break
        seen.append(
            (
                sum(_resident(pid) for pid in processes),
                sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in processes),
                sum(f.stat().st_size for f in (path / "checkpoints").rglob("*") if f.is_file()),
            )
        )
    code, err = running.end()
    assert code == 0, err
    assert len(seen) >= duration_s / pause_s / 3
    half = len(seen) // 2
    for what, early, late in zip(
        ("memory", "open files", "disk"),
        (max(column) for column in zip(*seen[:half], strict=True)),
        (max(column) for column in zip(*seen[half:], strict=True)),
        strict=True,
    ):
        sys.stdout.write(f"{len(seen)} kills, {what}: at most {early} at first, then {late}\n")
        assert late <= 1.05 * early, f"{what} grew from {early} to {late}"


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


@pytest.mark.parametrize(
    ("method", "waves"), [full("per-class", 1), ("grid", 2)], indirect=["method"]
)
def test_trainers_that_hang_are_replaced(method, waves, wanted, tmp_path):
    """All at once, and their successors too: eleven in all."""
    path = tmp_path / "run"
    running = Running("train", *METHODS[method], "--workers", 4, "--out", path)
    wanted_deaths = 0
    for wave in range(waves):
        _all_at_work(path, 4 * wave + 1)
        stopped = running.trainers()
        assert len(stopped) == {"per-class": 3, "grid": 4}[method]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        wanted_deaths += len(stopped)
        _until(lambda most=wanted_deaths: _more_than(path, most - 1), "deaths")
        _until(lambda stopped=stopped: not any(map(_lives, stopped)), "end of them")
    deaths = _events(path, "trainer_died")
    assert len(deaths) == wanted_deaths
    assert all(one["how"].startswith("hung: not heard of for ") for one in deaths)
    code, err = running.end()
    assert code == 0, err
    assert state_of(path) == wanted
    assert max(_back_at_work(path)) < BACK_AT_WORK_S


@pytest.mark.full
def test_a_finished_trainer_that_is_slow_to_exit_is_not_mistaken_for_a_dead_one(tmp_path):
    path = tmp_path / "run"
    write_class(tmp_path / "data" / "long", 300)
    write_class(tmp_path / "data" / "short", 20)
    running = Running(
        *("train", tmp_path / "data", "--preset", "paper-dc", "--networks", "mlp", "--batch", "10"),
        *("--rounds", "30", "--score", "none", "--workers", "2", "--out", path),
    )
    (done,) = _until(lambda: _events(path, "cell_finished"), "end of the short one")
    assert done["cell"] == "short"
    # The longest work was given out first.
    os.kill(max(running.trainers()), signal.SIGSTOP)
    code, err = running.end()
    assert code == 0, err
    assert Counter(one["cell"] for one in _events(path, "cell_started")) == {"long": 1, "short": 1}
    assert all(one["cells"] == [] for one in _events(path, "trainer_died"))


KILL = signal.SIGKILL
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        soak("per-class", (KILL, STOPS[0], STOPS[1], KILL, STOPS[2], STOPS[0], STOPS[1])),
        ("grid", (STOPS[2], KILL, STOPS[0], KILL, STOPS[1], STOPS[2])),
    ],
    indirect=["method"],
)
def test_a_command_that_is_killed_or_stopped_again_and_again_is_resumed(
    numbers, method, wanted, tmp_path
):
    """Its trainers end with it and write no more, and another number of them goes on."""
    path, rng, order = tmp_path / "run", random.Random(2), ("train", *METHODS[method])
    for turn, number in enumerate(numbers):
        begun = len(_events(path, "cell_started"))
        where = ("--out", path) if turn == 0 else ()
        running = Running(*order, *where, "--workers", 1 + turn % 4)
        _until(lambda begun=begun: len(_events(path, "cell_started")) > begun, "start")
        family = running.family()
        time.sleep(rng.uniform(0.0, 0.2))
        running.process.send_signal(number)
        if number is KILL:
            running.process.communicate()
            _until(lambda family=family: not any(map(_lives, family)), "end of the orphans", 5.0)
            before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
            time.sleep(0.3)
            assert before == {file: file.stat().st_mtime_ns for file in path.rglob("*")}
        else:
            sent = time.monotonic()
            code, err = running.end()
            assert code == 75, err
            assert time.monotonic() - sent < 10
            assert json.loads((path / "status.json").read_text())["state"] == "stopped"
            assert _events(path, "run_stopped")[-1]["reason"] == number.name
        order = ("resume", path)
    done = run_here("resume", str(path), "--runtime", "inline", cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(path) == wanted


@pytest.mark.soak
@pytest.mark.parametrize("method", ["grid"], indirect=True)
def test_a_slow_trainers_cells_go_to_a_fast_one(method, wanted, tmp_path):
    path = tmp_path / "run"
    running = Running("train", *METHODS[method], "--workers", 2, "--out", path)
    _all_at_work(path, 1)
    slow = min(running.trainers())
    while running.process.poll() is None and _lives(slow):
        # A tenth of the time is its own.
        os.kill(slow, signal.SIGSTOP)
        time.sleep(0.27)
        os.kill(slow, signal.SIGCONT)
        time.sleep(0.03)
    code, err = running.end()
    assert code == 0, err
    assert state_of(path) == wanted
    moved = _events(path, "cell_moved")
    assert moved
    assert {event["trainer"] for event in moved} == {1}


@pytest.mark.full
def test_a_run_begun_in_one_process_goes_on_with_trainers(method, wanted, tmp_path):
    path = tmp_path / "run"
    rounds = METHODS[method][METHODS[method].index("--rounds") + 1]
    args = ["3" if one == rounds else one for one in METHODS[method]]
    done = run_here("train", *args, "--runtime", "inline", "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    code, err = Running("resume", path, "--rounds", rounds, "--workers", 3).end()
    assert code == 0, err
    # A run made longer has judged and drawn at its first end as well.
    found = state_of(path)
    assert {key: value for key, value in found.items() if key in wanted} == wanted


@pytest.mark.parametrize(
    ("method", "point"),
    [
        full("per-class", "commit:written"),
        soak("per-class", "step"),
        ("grid", "commit:before"),
        soak("grid", "commit:written"),
    ],
    indirect=["method"],
)
def test_a_trainer_killed_inside_a_commit_is_started_again(point, method, wanted, tmp_path):
    path = tmp_path / "run"
    env = {VARIABLE: f"{point}@2", TRAINER: "1"}
    code, err = Running("train", *METHODS[method], "--workers", 2, "--out", path, env=env).end()
    assert code == 0, err
    assert state_of(path) == wanted
    (death,) = _events(path, "trainer_died")
    assert death["trainer"] == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "point"),
    [
        ("per-class", "commit:manifest-aside"),
        ("grid", "commit:renamed"),
        soak("grid", "commit:manifest-written"),
        soak("grid", "commit:manifest-aside"),
        ("grid", "commit:done"),
        soak("grid", "commit:cleaned"),
    ],
    indirect=["method"],
)
def test_a_command_killed_inside_a_commit_is_resumed(point, method, wanted, tmp_path):
    path = tmp_path / "run"
    running = Running(
        "train", *METHODS[method], "--workers", 2, "--out", path, env={VARIABLE: f"{point}@3"}
    )
    code, _ = running.end()
    assert code == -signal.SIGKILL
    done = run_here("resume", str(path), "--runtime", "inline", cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(path) == wanted


@pytest.mark.parametrize("method", [soak("per-class"), "grid"], indirect=True)
def test_a_killed_server_is_replaced(method, wanted, tmp_path):
    path = tmp_path / "run"
    running = Running("train", *METHODS[method], "--workers", 2, "--out", path)
    _at_work(path)
    os.kill(running.server(), signal.SIGKILL)
    code, err = running.end()
    assert code == 0, err
    assert state_of(path) == wanted
    assert _events(path, "trainer_died")


@pytest.mark.full
@pytest.mark.parametrize("point", ["server:prepared", "server:bind"])
def test_a_server_killed_before_training_is_one_line_and_resume_goes_on(point, tmp_path):
    path = tmp_path / "run"
    args = [*PER_CLASS, "--rounds", "2", "--workers", "2", "--out", path]
    code, err = Running("train", *args, env={VARIABLE: point}).end()
    assert code == 3, err
    said = f"the trainer server died while loading the run; .*`manege resume {path}`"
    assert re.fullmatch(f"manege: {said}", err.splitlines()[-1]), err
    code, err = Running("resume", path, "--workers", "1").end()
    assert code == 0, err


@pytest.mark.full
def test_a_server_that_is_dead_already_is_one_line_too(tmp_path):
    """In the test above it may be dying when it is asked."""
    config = resolve(preset="paper", flags={"data.source": "digits", "data.classes": ["3"]})
    asked = NewRun(config, None, tmp_path / "run", "test")
    with Server() as server:
        prepared = server.prepare(asked, Silent())
        server.kill()
        assert server.channel.wait(60)
        # An agent hears of it before it is asked to load anything.
        with pytest.raises(MachineError, match="trainer server died while loading the run"):
            server.answers()
        with pytest.raises(MachineError, match="trainer server died while loading the run"):
            server.load(prepared, Silent())
    with Server() as server:
        server.kill()
        assert server.channel.wait(60)
        with pytest.raises(MachineError, match="trainer server died while preparing the run"):
            server.prepare(asked, Silent())


@pytest.mark.full
def test_trainers_without_memory_are_started_again(undisturbed, tmp_path):
    path = tmp_path / "run"
    # Nothing is measured besides: a matrix product that gets no room for its copies is computed in
    # another way. Of eighty float32 shapes tried under this limit the five of 512 by 512 came out
    # otherwise in their last bits, without an error; that is the shape of the indices' distances.
    args = (*PER_CLASS, "--set", "stability.every_rounds=null")
    wanted = undisturbed(*args)
    running = Running("train", *args, "--workers", 2, "--out", path)
    _at_work(path)
    # Whoever goes on within what it has meets its limit when it reads everything at the end.
    for victim in running.trainers():
        resource.prlimit(victim, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    code, err = running.end()
    assert code == 0, err
    assert state_of(path) == wanted
    assert {event["how"] for event in _events(path, "trainer_died")} == {"exit code 70"}
    assert _out_of_memory(path / "logs" / "trainers.log")


def _out_of_memory(log: Path) -> bool:
    text = log.read_text()
    return "MemoryError" in text or "Cannot allocate memory" in text


@pytest.mark.full
@pytest.mark.parametrize(
    ("point", "words"),
    [("step@42", "killed by SIGKILL"), ("step@42!", "RuntimeError: failpoint step")],
)
def test_a_step_that_kills_its_trainer_each_time_fails_its_class_alone(point, words, tmp_path):
    path = tmp_path / "run"
    args = list(PER_CLASS)
    args[args.index("--limit-per-class") + 1] = "1000"
    args[args.index("--rounds") + 1] = "1"
    args[args.index("checkpoints.every_s=0.3")] = "checkpoints.every_s=60"
    # Of digits 3, 7 and 8 only the first has so many pictures.
    code, err = Running(
        *("train", *args, "--workers", 1, "--batch", 4, "--out", path),
        env={VARIABLE: point, TRAINER: "any"},
    ).end()
    status = json.loads((path / "status.json").read_text())["cells"]
    steps = {event["cell"]: event["steps"] for event in _events(path, "round")}
    assert code == 4, (err, status, steps)
    states = sorted(entry["state"] for entry in status.values())
    assert states == ["failed", "finished", "finished"], status
    assert status["3"]["reason"] == f"its trainer died 3 times in round 1: {words}"
    log = path / "logs" / "3.log"
    assert log.exists() == ("!" in point)
    if log.exists():
        assert log.read_text().count("Traceback") == 3


@pytest.mark.full
def test_an_asynchronous_grid_finishes_whatever_dies(tmp_path):
    """Which centres a cell meets depends on timing; that it gets to its end does not."""
    path = tmp_path / "run"
    _killed_at_random((*GRID, "--exchange", "async"), path, seed=3, kills=3)
    status = json.loads((path / "status.json").read_text())
    assert {entry["round"] for entry in status["cells"].values()} == {12}
    rounds = [(event["cell"], event["round"]) for event in _events(path, "round")]
    assert len(set(rounds)) == 4 * 12
