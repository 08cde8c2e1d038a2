"""One tiny trained run for all tests of the command line, and the command itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.command import TINY, Done, run_here, run_process
from tests.helpers.material import write_class
from tests.helpers.tiny import made_once, shared_cache

Command = Callable[..., Done]


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of the session's own: the digits are decoded once, the user's is left alone.

    The tests of scores use the same one, so that the digits' feature networks are trained once.
    """
    with shared_cache(tmp_path_factory) as patch:
        # A server's torch for every command would take longer than all the tests do.
        patch.setenv("MANEGE_RUNTIME", "inline")
        yield


@pytest.fixture
def manege(tmp_path: Path) -> Command:
    """The command in this process, in the test's own folder."""
    return partial(run_here, cwd=tmp_path)


@pytest.fixture
def manege_process(tmp_path: Path) -> Command:
    """The command in a process of its own, in the test's own folder."""
    return partial(run_process, cwd=tmp_path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on three digits; not to be changed."""

    def make(folder: Path) -> None:
        words = ("train", "digits", "--classes", "3,7,8", "--rounds", "2", *TINY)
        done = run_here(*words, "--out", "run", cwd=folder)
        assert done.code == 0, done.err

    return made_once("trained", make, tmp_path_factory) / "run"


@pytest.fixture(scope="session")
def trained_animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and the small image folder it was trained on; not to change."""
    folder = tmp_path_factory.mktemp("animals")
    write_class(folder / "animals" / "cat", 20)
    write_class(folder / "animals" / "dog", 40)
    done = run_here("train", "animals", "--rounds", "1", *TINY, "--out", "run", cwd=folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to damage at will."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run's model, to damage at will."""
    return Path(shutil.copytree(trained / "model", tmp_path / "model"))


@pytest.fixture(scope="session")
def evaluated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with an evaluation and its scorer; not to be changed.

    Whoever asks for it finds the feature network of the three digits in the cache.
    """

    def make(folder: Path) -> None:
        shutil.copytree(trained, folder / "run")
        done = run_here("evaluate", "run", cwd=folder)
        assert done.code == 0, done.err

    return made_once("evaluated", make, tmp_path_factory) / "run"


@pytest.fixture(scope="session")
def scored(evaluated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `trained` again, with scores and an average of the weights; not to be changed."""

    def make(folder: Path) -> None:
        done = run_here(
            *("train", "digits", "--classes", "3,7,8", "--rounds", "2", *TINY, "--out", "run"),
            *("--score", "kid", "--score-every", "1", "--ema", "0.9"),
            cwd=folder,
        )
        assert done.code == 0, done.err

    return made_once("scored", make, tmp_path_factory) / "run"
