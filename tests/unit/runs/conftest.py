"""Real run directories and real processes for the tests of the run directory."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from manege import failpoints
from manege.runs import RunDir

IDENTITY = "run-a"


class Cell:
    """One cell of a run, whose state number n is known exactly."""

    def __init__(self, path: Path, key: str = "digit-7") -> None:
        self.path = path
        self.key = key
        self.folder = path / "checkpoints" / key

    @staticmethod
    def state(number: int) -> dict[str, np.ndarray]:
        return {
            "weights": np.arange(4, dtype=np.float32) + number,
            "steps": np.array(number, dtype=np.int64),
            "none": np.zeros((0, 2), dtype=np.uint8),
        }

    def commit(self, number: int, place: tuple[int, int] | None = None) -> None:
        round_, step = place or (number, 10 * number)
        RunDir.open(self.path).commit(
            self.key,
            identity=IDENTITY,
            round_=round_,
            step=step,
            tensors=self.state(number),
            meta={"number": number},
        )

    def loaded(self) -> tuple[int | None, tuple[str, ...]]:
        """The number of the state that loads, checked bit for bit, and the warnings."""
        found = RunDir.open(self.path).load(self.key, identity=IDENTITY)
        if found is None:
            return None, ()
        number = found.meta["number"]
        expected = self.state(number)
        assert found.meta == {"number": number}
        assert list(found.tensors) == sorted(expected)
        for name, array in expected.items():
            assert found.tensors[name].dtype == array.dtype
            assert found.tensors[name].shape == array.shape
            assert found.tensors[name].tobytes() == array.tobytes()
        return number, found.warnings

    def files(self) -> set[str]:
        return {entry.name for entry in self.folder.iterdir()}


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[[], RunDir]:
    def make() -> RunDir:
        return RunDir.create(
            None,
            parent=tmp_path / "runs",
            name="mnist-per-class",
            config="seed: 1\n",
            command="manege train",
            environment={"python": "3"},
            data={},
        )

    return make


@pytest.fixture
def run(new_run: Callable[[], RunDir]) -> RunDir:
    return new_run()


@pytest.fixture
def cell(run: RunDir) -> Cell:
    return Cell(run.path)


@pytest.fixture
def fork() -> Callable[[Callable[[], object]], int]:
    """Starts a real process that does the work and exits with 0, or 1 after a traceback."""

    def start(work: Callable[[], object]) -> int:
        with warnings.catch_warnings():
            # Newer Pythons warn that threads (numpy's) do not survive a fork; none are used.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    return start


@pytest.fixture
def end_of(fork: Callable[[Callable[[], object]], int]) -> Callable[[Callable[[], object]], int]:
    """The exit code of a process doing the work; minus the signal that killed it."""

    def wait(work: Callable[[], object]) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1])

    return wait


@pytest.fixture
def killed_at(
    end_of: Callable[[Callable[[], object]], int],
) -> Callable[[str, Callable[[], object]], int]:
    """The exit code of a process doing the work with a failpoint armed."""

    def wait(point: str, work: Callable[[], object]) -> int:
        def armed() -> None:
            os.environ[failpoints.VARIABLE] = point
            failpoints.reset()
            work()

        return end_of(armed)

    return wait


@pytest.fixture
def holder(run: RunDir) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the run until it is killed."""
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom manege.runs import RunDir\n"
        "with RunDir.open(Path(sys.argv[1])).start() as run:\n"
        "    run.append('started')\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()
