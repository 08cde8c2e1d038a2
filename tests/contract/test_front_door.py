"""The front door: what training returns, own observers, workers and ranks, the examples."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import manege
from manege import api
from manege.errors import CheckpointError, ConfigError, MachineError
from tests.helpers.tiny import TINY

SMALL = {**TINY, "classes": ["3", "8"], "limit_per_class": 40}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> manege.Run:
    return manege.train("digits", out=tmp_path_factory.mktemp("front") / "run", **SMALL)


def test_a_run_draws_tells_its_events_and_opens_again(run):
    drawn = run.sample(6, label="8", seed=3)
    assert set(drawn.labels) == {"8"}
    assert len(drawn) == 6
    assert repr(drawn) == "Samples(6 pictures of 8x8x1)"
    assert [event["event"] for event in run.events()][-1] == "run_finished"
    again = manege.Run.open(run.path)
    assert (again.path, again.config, again.state) == (run.path, run.config, "finished")
    assert again.outcome.rounds == run.outcome.rounds == {"3": 1, "8": 1}
    assert repr(again) == f"Run({str(run.path)!r}, finished)"
    with pytest.raises(CheckpointError):
        manege.Run.open(run.path.parent)


def test_the_verbs_are_methods_of_a_run_too(run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "run")
    copy = manege.Run.open(path)
    assert copy.resume(rounds=2, runtime="inline").outcome.rounds == {"3": 2, "8": 2}
    assert copy.export(tmp_path / "model").labels == ("3", "8")
    assert copy.report().report == path / "report.html"
    assert manege.report([copy, run], tmp_path / "both.html").report.is_file()
    with pytest.raises(ConfigError, match="is named twice"):
        manege.report([copy, path])


def test_verbs_that_packages_are_called_like_can_be_called():
    """Python binds the packages `report` and `verdict` to their names once they are imported."""
    import manege.report.writing
    import manege.verdict.look

    assert callable(manege.report)
    assert callable(manege.verdict)
    assert manege.report.writing.Written is not None
    with pytest.raises(ConfigError, match=r"run: found int|run: found 3"):
        manege.verdict(3)


def test_everything_public_is_there():
    for name in manege.__all__:
        assert getattr(manege, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = manege.nonsense


# Whoever looks on.


def test_events_are_handed_on_and_a_callback_that_breaks_is_named(tmp_path, capsys):
    seen: list[str] = []
    manege.train(
        "digits", out=tmp_path / "a", on_event=lambda event: seen.append(event["event"]), **SMALL
    )
    assert {"run_started", "round", "commit", "run_finished"} <= set(seen)
    done = manege.train("digits", out=tmp_path / "b", on_event=lambda event: 1 / 0, **SMALL)
    assert done.state == "finished"
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert said == ("warning: on_event broke and is left out (ZeroDivisionError: division by zero)")


def test_a_stopper_stops_and_the_run_goes_on(tmp_path):
    stop = manege.Stopper()

    def after_two(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["round"] == 2:
            stop("seen enough")

    more = {**SMALL, "rounds": 100_000}
    run = manege.train("digits", out=tmp_path / "run", on_event=after_two, observers=[stop], **more)
    assert run.state == "stopped"
    assert run.events()[-1]["reason"] == "seen enough"
    most = max(run.outcome.rounds.values())
    assert run.resume(rounds=most + 1, runtime="inline").state == "finished"


def test_odd_observers_and_places_are_refused_by_name(tmp_path):
    for odd, told in (
        ({"observers": [print]}, "observers: found "),
        ({"on_event": 3}, "on_event: found 3, expected a function"),
        ({"workers": 0}, "workers 0: expected a number from 1, or auto"),
        ({"workers": "many"}, "workers many: expected a number from 1, or auto"),
        ({"runtime": "cloud"}, "runtime: found 'cloud', expected one of local, inline, mpi"),
        ({"ranks": 3}, "ranks: only with launch mpiexec"),
        ({"launch": "mpiexec"}, "launch mpiexec: say ranks, how many ranks; at least 2"),
        ({"launch": "mpiexec", "ranks": 1}, "ranks 1: expected a number from 2"),
        ({"launch": "srun", "ranks": 2}, "launch 'srun': expected mpiexec"),
    ):
        with pytest.raises(ConfigError) as refused:
            manege.train("digits", out=tmp_path / "run", **{**SMALL, **odd})
        assert str(refused.value).startswith(told)
    assert not (tmp_path / "run").exists()


# Workers and ranks.

SCRIPT = """
import manege

run = manege.train("digits", preset="paper", networks="mlp", hidden=16, batch=40, rounds=1,
                   classes=["3", "8"], limit_per_class=40, workers=2, out="run")
print(run.state, run.model.digest)
"""


def test_a_script_without_a_guard_trains_with_workers_to_the_same_bits(run, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["finished", run.model.digest]


@pytest.mark.full
def test_ranks_are_launched_followed_and_stopped(run, tmp_path, monkeypatch, capfd):
    pytest.importorskip("mpi4py")
    monkeypatch.chdir(tmp_path)
    job = {"launch": "mpiexec", "ranks": 3}
    small = {key: value for key, value in SMALL.items() if key != "runtime"}
    seen: list[str] = []
    by_ranks = manege.train(
        "digits", on_event=lambda one: seen.append(one["event"]), **small, **job
    )
    assert by_ranks.model.digest == run.model.digest
    assert (seen[0], seen[-1]) == ("run_started", "run_finished")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [by_ranks.path.name]
    with pytest.raises(ConfigError, match=r"^data nothing: no dataset of that name"):
        manege.train("nothing", **small, **job)
    stop = manege.Stopper()
    stopped = by_ranks.resume(rounds=100_000, on_event=lambda one: stop(), observers=[stop], **job)
    assert stopped.state == "stopped"


# Shown in a notebook, and drawn on axes.


def test_what_a_notebook_shows_is_escaped_whole_and_without_scripts(run, tmp_path):
    odd = shutil.copytree(run.path, tmp_path / "<script>alert(1)</script>" / "run")
    shown = [manege.Run.open(odd)._repr_html_(), run.sample(4)._repr_html_()]
    shown.append(manege.evaluate(odd, samples=20, metrics=["kid"])._repr_html_())
    for html in shown:
        assert "<script" not in html
        assert len(html) < 200_000
    assert "&lt;script&gt;" in shown[0]
    assert "finished" in shown[0]
    assert re.search(r'src="data:image/png;base64,[A-Za-z0-9+/=]+"', shown[1])
    assert "4 pictures" in shown[1]
    assert "kid@" in shown[2]


class Axes:
    """Writes down what is drawn, in the place of matplotlib's."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.calls.append(name)


def test_figures_are_drawn_on_the_axes_that_are_given(run):
    ax = Axes()
    assert run.plot(ax) is ax
    assert ax.calls.count("plot") == 2
    assert run.sample(4).plot(ax) is ax
    assert "imshow" in ax.calls
    found = manege.evaluate(run, samples=20, metrics=["kid"])
    assert found.plot(ax) is ax
    assert "errorbar" in ax.calls
    with pytest.raises(ConfigError, match="expected one of kid"):
        found.plot(ax, "fid")
    with pytest.raises(ConfigError, match="measure 'beauty': expected one of score, mixture"):
        run.plot(ax, "beauty")
    with pytest.raises(ConfigError, match="measure score: this run has none"):
        run.plot(ax, "score")


def test_without_matplotlib_one_line_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MachineError, match=r"^plot: .*`pip install matplotlib`$"):
        run.plot()


def test_events_make_a_table_in_one_call(run):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(run.events())
    assert {"event", "cell", "round", "t"} <= set(table.columns)


# The examples.

VERBS = [name for name in api.__all__ if ">>> " in (getattr(api, name).__doc__ or "")]


@pytest.mark.full
@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_in_the_docstrings_run(verb, tmp_path, monkeypatch):
    """As they stand, but that training is small and in this process."""
    monkeypatch.chdir(tmp_path)

    def train(data: str, **settings: Any) -> manege.Run:
        small = {**TINY, "classes": ["3", "8"], **settings}
        return manege.train(data, **{**small, "runtime": "inline"})

    own = {name: getattr(manege, name) for name in manege.__all__} | {"train": train}
    front = SimpleNamespace(**own)
    found = doctest.DocTestFinder(recurse=False).find(
        getattr(api, verb), verb, globs={"manege": front}
    )
    assert found
    for test in found:
        assert test.examples
        assert doctest.DocTestRunner().run(test).failed == 0


def test_every_verb_has_an_example():
    assert set(VERBS) >= {
        *("train", "resume", "sample", "evaluate", "compare", "verdict", "report"),
        *("sweep", "export", "load_model", "save_model"),
    }
