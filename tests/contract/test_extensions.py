"""Runs with parts from outside the package: the same bits everywhere, and what is refused.

The parts are those of docs/extending.md, as they stand there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from manege.runs import RunDir
from manege.sampler import run_config
from tests.helpers.command import Done, run_here, run_process
from tests.helpers.forker import state_of
from tests.helpers.libraries import library
from tests.helpers.own_modules import EXAMPLES, OwnModules

SMALL = ("--networks", "mlp", "--set", "networks.hidden=8", "--batch", "20", "--rounds", "2")
DIGITS = (
    *("digits", "--preset", "paper-dc", "--classes", "3,8", "--limit-per-class", "40"),
    *("--score", "none", *SMALL),
)
POINTS = (
    "ring8",
    "--preset",
    "paper-dc",
    *SMALL,
    "--set",
    "training.batches_per_round=3",
    "--limit-per-class",
    "40",
)
GRID = (
    *("ring8", *SMALL, "--set", "training.batches_per_round=3", "--limit-per-class", "40"),
    *("--method", "cellular", "--grid", "2x2", "--set", "cellular.fitness_samples=16"),
    *("--set", "cellular.mixture.samples=100", "--set", "cellular.mixture.final_samples=100"),
)
STAR = (
    *("--set", "cellular.neighbourhood={kind: 'my_topology:star', hubs: 2}"),
    *("--set", "cellular.selection=my_selection:by_rank"),
)
SQUARES = ("my_data:squares", "--preset", "paper-dc", "--score", "none", *SMALL)
RUNS = {
    "topology and selection": (*GRID, *STAR),
    "method": (*DIGITS, "--method", "my_method:Ensemble"),
    "dataset": SQUARES,
    "score": (
        *(*POINTS, "--classes", "0,1", "--score", "my_score:energy", "--score-every", "1"),
        *("--set", "score.samples=32"),
    ),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "own-cache"))
    monkeypatch.delenv("MANEGE_RUNTIME", raising=False)


@pytest.fixture
def modules(tmp_path, monkeypatch) -> Iterator[OwnModules]:
    found = OwnModules(tmp_path / "modules", monkeypatch)
    for name, text in EXAMPLES.items():
        found.write(name, text)
    yield found
    found.forget()


def _trained(tmp_path: Path, *args: object) -> Done:
    return run_here("train", *args, "--runtime", "inline", "--out", "run", cwd=tmp_path)


@pytest.mark.full
@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("name", RUNS)
def test_two_workers_and_three_ranks_come_to_the_bits_of_one_process(name, tmp_path):
    done = _trained(tmp_path, *RUNS[name])
    assert done.code == 0, done.err
    wanted = state_of(tmp_path / "run")
    mpi = library("openmpi")
    ranks = [mpi.mpiexec, *mpi.options, "-n", "3"]
    for runtime, before, how in (("local", [], ("--workers", "2")), ("mpi", ranks, ())):
        args = ("train", *RUNS[name], *how, "--out", runtime)
        done = run_process(*args, cwd=tmp_path, env=mpi.env, before=before)
        assert done.code == 0, done.err
        assert state_of(tmp_path / runtime) == wanted


@pytest.mark.full
def test_the_same_grid_without_parts_of_one_s_own_is_another_run(modules, tmp_path):
    """So the parts were asked; and a run that does not use a key has no trace of it."""
    done = _trained(tmp_path, *GRID, *STAR)
    assert done.code == 0, done.err
    own, plain = run_config(RunDir.open(tmp_path / "run")), tmp_path / "plain"
    assert set(own.plugins) == {"my_topology", "my_selection"}
    done = run_here("train", *GRID, "--runtime", "inline", "--out", plain, cwd=tmp_path)
    assert done.code == 0, done.err
    other = run_config(RunDir.open(plain))
    assert not other.plugins
    assert other.identity() != own.identity()
    assert state_of(plain) != state_of(tmp_path / "run")


def test_an_ensemble_s_generators_draw_together(modules, tmp_path):
    done = _trained(tmp_path, *DIGITS, "--method", "my_method:Ensemble")
    assert done.code == 0, done.err
    model = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert [one["cell"] for one in model["components"]] == ["gan-0", "gan-1", "gan-2"]
    assert {one["label"] for one in model["components"]} == {"all"}
    assert run_here("sample", "run", "-n", "4", "-o", "s.png", cwd=tmp_path).code == 0


def test_a_dataset_that_has_changed_is_refused_when_the_run_goes_on(modules, tmp_path):
    modules.write(
        "changing",
        """
        from pathlib import Path

        import numpy as np

        def pictures():
            first = int(Path(__file__).with_name("first").read_text())
            rng = np.random.default_rng(first)
            return rng.integers(0, 255, (60, 8, 8), np.uint8), ["one"] * 60
        """,
    )
    (modules.folder / "first").write_text("0")
    assert _trained(tmp_path, "changing:pictures", *SQUARES[1:]).code == 0
    config = run_config(RunDir.open(tmp_path / "run"))
    assert config.data.source == "changing:pictures"
    (modules.folder / "first").write_text("1")
    again = ("resume", "run", "--rounds", "3", "--runtime", "inline")
    done = run_here(*again, cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "the dataset has changed since the run began (class 'one'" in done.err
    (modules.folder / "first").write_text("0")
    assert run_here(*again, cwd=tmp_path).code == 0


@pytest.mark.usefixtures("modules")
def test_an_evaluation_takes_a_score_of_one_s_own_beside_others(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("drawn", "real"):
        images = rng.integers(0, 255, (200, 8, 8), np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.zeros(200, int))
    args = ("drawn.npz", "--data", "real.npz", "--features", "random")
    args += ("--metrics", "kid,my_score:energy")
    done = run_here("evaluate", *args, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    scores = {one["name"]: one for one in done.json["scores"]}
    own = scores["my_score:energy"]
    assert own["low"] < own["value"] < own["high"]
    assert own["definition"].startswith("Return the energy distance of two tables")
    assert set(done.json["protocol"]["sources"]) == {"my_score:energy"}


BAD = {
    "bad_topology": """
        def one_way(keys, rows, columns):
            return {key: keys[:1] if key != keys[0] else () for key in keys}
        """,
    "bad_selection": """
        import numpy as np

        def unseeded(fitnesses, rng):
            return np.random.randint(len(fitnesses))

        def nobody(fitnesses, rng):
            return len(fitnesses)
        """,
    "bad_score": """
        def words(drawn, real):
            return "good"
        """,
    "bad_data": """
        import numpy as np

        def breaks():
            return np.zeros((4, 8, 8), np.uint8)[7]

        def words():
            return "pictures"
        """,
    "bad_method": """
        from manege.methods import Independent

        class Nothing:
            pass

        class Labels(Independent):
            @classmethod
            def partition(cls, config, labels):
                return {"a": ("9",)}

        class Cells(Independent):
            def cells(self):
                return ("7",)

        class Links(Independent):
            def links(self):
                return {"3": ("8",), "8": ()}

        class Late(Independent):
            def advance(self, cell, state, inbox):
                if state.round_ == 1 and cell == "3":
                    raise KeyError("late")
                yield from super().advance(cell, state, inbox)

        class Steps(Independent):
            def advance(self, cell, state, inbox):
                yield 7
        """,
}
REFUSALS = {
    "asymmetric topology": (
        (*GRID, "--neighbourhood", "bad_topology:one_way"),
        "bad_topology:one_way: cell '0-1' hears '0-0'; expected the reverse as well",
    ),
    "missing topology": (
        (*GRID, "--neighbourhood", "bad_topology:star"),
        "module bad_topology (",
    ),
    "parameter": (
        (*GRID, "--set", "cellular.neighbourhood={kind: 'my_topology:star', hub: 2}"),
        "my_topology:star: the topology raised TypeError (star() got an unexpected keyword",
    ),
    "missing module": (
        (*GRID, "--set", "cellular.selection=no_such_module:f"),
        "cellular.selection: there is no module no_such_module here",
    ),
    "unseeded selection": (
        (*GRID, "--set", "cellular.selection=bad_selection:unseeded"),
        "bad_selection:unseeded: picks ",
    ),
    "selection of nobody": (
        (*GRID, "--set", "cellular.selection=bad_selection:nobody"),
        "the selection returned 3, expected a whole number from 0 to 2",
    ),
    "selection without a name": (
        (*GRID, "--set", "cellular.selection=turnament"),
        "expected one of tournament, module:name; did you mean tournament?",
    ),
    "score": (
        (*POINTS, "--score", "bad_score:words"),
        "bad_score:words: the score is 'good', expected a finite number or an Estimate",
    ),
    "dataset that breaks": (
        ("bad_data:breaks", *SMALL),
        "bad_data:breaks: the dataset raised IndexError at bad_data.py:5 (",
    ),
    "dataset that is none": (("bad_data:words", *SMALL), "bad_data:words: "),
    "method that is none": (
        (*DIGITS, "--method", "bad_method:Nothing"),
        "method: bad_method:Nothing lacks advance, build, cells, check; expected a class",
    ),
    "method with other labels": (
        (*DIGITS, "--method", "bad_method:Labels"),
        "bad_method:Labels: partition gives cell 'a' the labels ('9',), expected some of the ",
    ),
    "method with other cells": (
        (*DIGITS, "--method", "bad_method:Cells"),
        "bad_method:Cells: cells gives ('7',), expected the cells of its partition",
    ),
    "method with one-way links": (
        (*DIGITS, "--method", "bad_method:Links"),
        "bad_method:Links: links: cell '3' hears '8'; expected the reverse as well",
    ),
    "grid method without a grid": (
        (*DIGITS, "--method", "manege.methods:Cellular"),
        "manege.methods:Cellular: trains a grid, and the settings have none",
    ),
}


@pytest.mark.parametrize(("args", "told"), REFUSALS.values(), ids=REFUSALS)
def test_a_part_that_makes_no_sense_is_refused_in_one_line(args, told, modules, tmp_path):
    for name, text in BAD.items():
        modules.write(name, text)
    done = _trained(tmp_path, *args)
    assert done.code == 2, done.err
    assert told in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
    assert not [*(tmp_path / "run").rglob("*.safetensors")]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Late", "bad_method:Late: its code raised KeyError at bad_method.py:23 ('late')"),
        ("Steps", "bad_method:Steps: advance gave 7, expected a Step"),
    ],
)
def test_a_method_that_fails_later_is_named_and_the_run_is_saved(name, told, modules, tmp_path):
    for module, text in BAD.items():
        modules.write(module, text)
    done = _trained(tmp_path, *DIGITS, "--method", f"bad_method:{name}")
    assert done.code == 4, done.err
    assert told in done.err
    assert "Traceback" not in done.err
    rundir = RunDir.open(tmp_path / "run")
    assert rundir.status()["state"] == "failed"
    if name == "Late":
        assert rundir.status()["cells"]["8"]["state"] == "finished"


def test_entry_points_names_stand_for_parts(modules, tmp_path):
    folder = modules.folder / "my_parts-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[manege.plugins]\nstar = my_topology:star\nsquares = my_data:squares\n"
        "energy = my_score:energy\ndigits = my_data:squares\n"
    )
    done = _trained(tmp_path, *GRID, "--neighbourhood", "star")
    assert done.code == 0, done.err
    config = run_config(RunDir.open(tmp_path / "run"))
    assert config.cellular is not None
    assert config.cellular.neighbourhood.kind == "my_topology:star"
    assert set(config.plugins) == {"my_topology"}
    done = run_here("train", "squares", *SQUARES[1:], "--runtime", "inline", cwd=tmp_path)
    assert done.code == 0, done.err
    (path,) = (tmp_path / "runs").iterdir()
    config = run_config(RunDir.open(path))
    assert (config.data.source, path.name) == ("my_data:squares", "0001-squares-per-class")
    assert (config.data.size, set(config.plugins)) == (16, {"my_data"})
    # What is built in, and what lies here, goes before an entry point's name.
    assert run_here("data", "check", "digits", cwd=tmp_path).out.startswith("digits")
    os.rename(modules.folder / "my_data.py", modules.folder / "other.py")  # noqa: PTH104
    modules.forget()
    done = run_here("resume", path, "--rounds", "3", "--runtime", "inline", cwd=tmp_path)
    assert done.code == 2
    assert "data.source: there is no module my_data here" in done.err
