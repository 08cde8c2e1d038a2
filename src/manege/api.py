"""The verbs of the command line as functions: train, resume, sample, export, and models.

Owns what a verb does; the command line only parses, calls and prints.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from manege.comparison import Comparison
from manege.comparison import compare as compare_runs
from manege.config import RunConfig, resolve_both, shown, to_yaml
from manege.errors import ConfigError
from manege.evaluation import Evaluation, EvaluationOptions, Subject
from manege.evaluation import evaluate as evaluate_subject
from manege.progress import counter
from manege.rundir import RunDir
from manege.runtime.orders import Outcome, Watcher
from manege.runtime.screen import Guarded, Nobody, Screen
from manege.sampler import Model, Samples, of_run, open_model, save
from manege.stopping import StopSignals
from manege.trainer import Look, prepare_new, prepare_resume, run
from manege.view.lines import Lines

__all__ = [
    "Comparison",
    "Evaluation",
    "Run",
    "compare",
    "continue_run",
    "evaluate",
    "export",
    "load_model",
    "resume",
    "sample",
    "save_model",
    "start_run",
    "train",
]


@dataclass(frozen=True)
class Run:
    """A run that has come to an end, or to a stop."""

    path: Path
    config: RunConfig
    outcome: Outcome

    @property
    def model(self) -> Model:
        """The combined sampler as it stands."""
        return open_model(self.path)


def train(data: str, *, out: str | Path | None = None, **options: Any) -> Run:
    """Train on a dataset and wait for the end; Ctrl-C saves, and the run that returns is stopped.

    Args:
        data: a dataset's name, an image folder or an .npz file.
        out: the run directory to make; the next free one below ``runs/`` when None.
        options: ``preset``, ``config`` (a file), or any configuration key with ``__`` for dots:
            ``rounds=50``, ``training__batch=64``, ``data__classes=["3", "8"]``.
    """
    preset, file = options.pop("preset", None), options.pop("config", None)
    flags = {"data.source": data} | {key.replace("__", "."): v for key, v in options.items()}
    config, on_pixels = resolve_both(preset=preset, file=_path_if_any("config", file), flags=flags)
    with StopSignals(_CTRL_C) as stop:
        return start_run(config, out=_path_if_any("out", out), stop=stop, on_pixels=on_pixels)


def resume(
    run: str | Path, *, rounds: int | None = None, budget_s: float | str | None = None
) -> Run:
    """Go on with a run, to a new total of rounds or time (``"10m"``) when one is given.

    Ctrl-C is as for `train`.
    """
    with StopSignals(_CTRL_C) as stop:
        return continue_run(_path("run", run), rounds=rounds, budget_s=budget_s, stop=stop)


def sample(model: str | Path | Model, count: int, **options: Any) -> Samples:
    """Draw pictures; options are those of `Model.sample`."""
    opened = model if isinstance(model, Model) else open_model(_path("model", model))
    return opened.sample(count, **options)


def evaluate(
    subject: Subject, data: str | Path | np.ndarray | None = None, **options: Any
) -> Evaluation:
    """Score pictures against real ones, each number with its interval.

    Args:
        subject: a run, a model, a folder or .npz file of pictures, `Samples`, or an array of
            bytes N×S×S×C.
        data: a dataset's name, a folder, an .npz file or an array; a run's own data when None.
        options: the fields of `manege.evaluation.Options`: ``metrics``, ``samples``,
            ``per_class``, ``features``, ``classes``, ``reference``, ``seed`` and so on.
    """
    return evaluate_subject(subject, data, _options(options))


def compare(runs: Iterable[str | Path], data: str | None = None, **options: Any) -> Comparison:
    """Runs side by side: differences, scores, samples; options as for `evaluate`."""
    return compare_runs([Path(run) for run in runs], data, _options(options))


def _options(given: Mapping[str, Any]) -> EvaluationOptions:
    known = [field.name for field in fields(EvaluationOptions)]
    for name in given:
        if name not in known:
            raise ConfigError(f"{name}: no such option; expected some of {', '.join(known)}")
    ready: dict[str, Any] = dict(given)
    for name in ("metrics", "classes"):
        if ready.get(name) is not None:
            ready[name] = tuple(ready[name])
    for name in ("inception_weights", "feature_weights"):
        if ready.get(name) is not None:
            ready[name] = Path(ready[name])
    return EvaluationOptions(**ready)


def export(run: str | Path, out: str | Path) -> Model:
    """Write a run's model as it stands into a folder of its own."""
    path = _path("run", run)
    model = open_model(path) if (path / "model.json").is_file() else of_run(RunDir.open(path))
    save_model(model, out)
    return model


def load_model(path: str | Path) -> Model:
    """The model in a model folder or a run directory."""
    return open_model(_path("path", path))


def save_model(model: Model, out: str | Path) -> None:
    """Write a model, merged or thinned as it may be, into a folder of its own."""
    save(model, _path("out", out))


_CTRL_C = (signal.SIGINT,)
"""What a function takes over while it trains: a program's other signals are its own."""


def _path(name: str, value: Any) -> Path:
    """Return an argument as a path; raise ConfigError for what is none."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}: found {shown(value)}, expected the path of a file or folder")
    return Path(value)


def _path_if_any(name: str, value: Any) -> Path | None:
    """Return an argument that may be left out, or be empty, as a path."""
    return None if value is None or (isinstance(value, str) and not value) else _path(name, value)


def _never() -> str | None:
    return None


def start_run(
    config: RunConfig,
    *,
    out: Path | None = None,
    watcher: Watcher | None = None,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], str | None] = _never,
    command: str | None = None,
    screen: Screen | None = None,
    on_pixels: RunConfig | None = None,
) -> Run:
    """A new run in this process, from opening the data to the combined model."""
    look = Look(say, counter("feature network: seen"), stop)
    rundir, config, dataset = prepare_new(
        config, out, command or shlex.join(sys.argv), look, on_pixels
    )
    with rundir.start():
        by = _looked_at_by(watcher, screen, rundir.path)
        outcome = run(config, rundir, dataset, watcher=by, stop=stop, screen=by)
    return Run(rundir.path, config, outcome)


def continue_run(
    path: Path,
    *,
    rounds: int | None = None,
    budget_s: float | str | None = None,
    watcher: Watcher | None = None,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], str | None] = _never,
    screen: Screen | None = None,
) -> Run:
    """Go on with a run in this process; a new length replaces the old, of either kind."""
    look = Look(say, counter("feature network: seen"), stop)
    rundir, config, dataset = prepare_resume(path, rounds=rounds, budget_s=budget_s, look=look)
    with rundir.start():
        by = _looked_at_by(watcher, screen, rundir.path)
        rundir.write_config(to_yaml(config))
        outcome = run(config, rundir, dataset, watcher=by, stop=stop, screen=by)
    return Run(path, config, outcome)


def _looked_at_by(watcher: Watcher | None, screen: Screen | None, path: Path) -> Guarded:
    """Who looks on, and cannot hurt the run; plain lines when nobody was named."""
    lines = Lines()
    guarded = Guarded(watcher or lines, screen or (lines if watcher is None else Nobody()))
    guarded.opened(path)
    return guarded
