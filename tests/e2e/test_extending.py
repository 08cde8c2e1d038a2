"""The examples of docs/extending.md, which are whole modules, train as the page says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from manege.runs import RunDir
from manege.sampler import run_config
from tests.helpers.command import run_here
from tests.helpers.own_modules import EXAMPLES, PAGE, OwnModules

COMMANDS = re.findall(r"^\$ manege (train .*)$", PAGE.read_text(), re.MULTILINE)
LONGEST = 30
SHORT = "my_method"
"""The example that is trained with always; the others take longer."""
SMALL = (
    *("--rounds", "1", "--batch", "20", "--limit-per-class", "24"),
    *("--set", "training.batches_per_round=2", "--set", "sheets.pictures=4"),
)
PERCEPTRONS = ("--networks", "mlp", "--set", "networks.hidden=8", "--critic", "pixels")
GRID = (
    *("--set", "cellular.fitness_samples=16", "--set", "cellular.mixture.samples=100"),
    *("--set", "cellular.mixture.final_samples=100", "--set", "cellular.mixture.final_steps=5"),
    *("--grid", "2x2"),
)


def _module(command: str) -> str:
    """The name of the module that a command names."""
    return re.findall(r"(my_\w+):", command)[0]


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    found = OwnModules(tmp_path / "modules", monkeypatch)
    for name, text in EXAMPLES.items():
        found.write(name, text)
    yield tmp_path
    found.forget()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    assert len(EXAMPLES[name].splitlines()) < LONGEST


def test_every_example_is_trained_with() -> None:
    assert {_module(command) for command in COMMANDS} == set(EXAMPLES)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, id=_module(one), marks=[] if _module(one) == SHORT else pytest.mark.full)
        for one in COMMANDS
    ],
)
def test_an_example_trains_as_the_page_says(command: str, examples: Path) -> None:
    given = [*shlex.split(command), *SMALL]
    given += [] if _module(command) == "my_pair" else PERCEPTRONS
    given += GRID if "cellular" in command else ()
    given += {"digits": ("--classes", "3,8"), "ring8": ("--classes", "0,1")}.get(given[1], ())
    done = run_here(*given, "--out", "run", cwd=examples)
    assert done.code == 0, done.err
    assert set(run_config(RunDir.open(examples / "run")).plugins) == {_module(command)}
