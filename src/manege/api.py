"""The verbs of the command line as functions: train, resume, sample, export, and models.

Owns what a verb does; the command line only parses, calls and prints.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manege import machine
from manege.config import RunConfig, resolve_both, shown
from manege.errors import ConfigError
from manege.observer import Observer, Observers
from manege.runtime.driver import Run, drive
from manege.runtime.messages import NewRun, OldRun
from manege.stopping import StopSignals
from manege.view.lines import Lines

if TYPE_CHECKING:
    import numpy as np

    from manege.evaluation import Evaluation, EvaluationOptions, Subject
    from manege.evaluation.comparison import Comparison
    from manege.runtime.mpi import World
    from manege.sampler import Model, Samples

__all__ = [
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


def train(data: str, *, out: str | Path | None = None, **options: Any) -> Run:
    """Train on a dataset and return the run once it ends; Ctrl-C saves it and returns it stopped.

    Args:
        data: a dataset's name, an image folder or an .npz file.
        out: the run directory to make; the next free one below ``runs/`` when None.
        options: ``preset``, ``config`` (a file), or any configuration key with ``__`` for dots:
            ``rounds=50``, ``training__batch=64``, ``data__classes=["3", "8"]``.

    Example:
        >>> run = manege.train("digits", data__classes=["3", "8"], rounds=2)
    """
    preset, file = options.pop("preset", None), options.pop("config", None)
    flags = {"data.source": data} | {key.replace("__", "."): v for key, v in options.items()}
    config, on_pixels = resolve_both(preset=preset, file=_path_if_any("config", file), flags=flags)
    with StopSignals(_CTRL_C) as stop:
        observer = Observers(Lines(), stop)
        out = _path_if_any("out", out)
        return start_run(config, out=out, observer=observer, on_pixels=on_pixels)


def resume(
    run: str | Path, *, rounds: int | None = None, budget_s: float | str | None = None
) -> Run:
    """Go on with a run, to a new total of rounds or time (``"10m"``) when one is given.

    Ctrl-C is as for `train`.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> run = manege.resume(run.path, rounds=4)
    """
    with StopSignals(_CTRL_C) as stop:
        observer = Observers(Lines(), stop)
        return continue_run(_path("run", run), rounds=rounds, budget_s=budget_s, observer=observer)


def sample(model: str | Path | Model, count: int, **options: Any) -> Samples:
    """Draw pictures; options are those of `Model.sample`.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> drawn = manege.sample(run.path, 12, label="8", seed=7)
    """
    from manege.sampler import Model, open_model

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
        options: the fields of `manege.evaluation.EvaluationOptions`: ``metrics``, ``samples``,
            ``per_class``, ``features``, ``classes``, ``reference``, ``seed`` and so on.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> found = manege.evaluate(run.path, samples=200, metrics=["kid"])
    """
    from manege.evaluation import evaluate as evaluate_subject

    return evaluate_subject(subject, data, _options(options))


def compare(runs: Iterable[str | Path], data: str | None = None, **options: Any) -> Comparison:
    """Compare runs side by side: differences, scores, samples; options as for `evaluate`.

    Example:
        >>> runs = [manege.train("digits", rounds=2, seed=seed).path for seed in (1, 2)]
        >>> found = manege.compare(runs, samples=200, metrics=["kid"])
    """
    from manege.evaluation.comparison import compare as compare_runs

    return compare_runs([Path(run) for run in runs], data, _options(options))


def _options(given: Mapping[str, Any]) -> EvaluationOptions:
    from manege.evaluation import EvaluationOptions

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


def export(run: str | Path, out: str | Path, format: str = "folder") -> Model:
    """Write a run's model as it stands to a folder of its own, and return it.

    Args:
        run: a run directory or a model folder.
        out: the folder to make.
        format: ``folder`` (manege reads it), or one that needs no manege: ``torch`` (a module and
            its weights), ``safetensors`` (likewise), ``torch-export`` or ``onnx`` (programs). The
            README.md in the folder shows how to draw from it.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> model = manege.export(run.path, "model")
        >>> model = manege.export(run.path, "plain", format="torch")
    """
    from manege.runs import RunDir
    from manege.sampler import export_model, of_run, open_model

    path = _path("run", run)
    model = open_model(path) if (path / "model.json").is_file() else of_run(RunDir.open(path))
    export_model(model, _path("out", out), format)
    return model


def load_model(path: str | Path) -> Model:
    """Return the model in a model folder or a run directory.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> model = manege.load_model(run.path)
    """
    from manege.sampler import open_model

    return open_model(_path("path", path))


def save_model(model: Model, out: str | Path) -> None:
    """Write a model, also a merged one or one without some labels, to a folder of its own.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> manege.save_model(run.model.without(["3"]), "model")
    """
    from manege.sampler import save

    save(model, _path("out", out))


_CTRL_C = (signal.SIGINT,)
"""The signals that a function handles while it trains: all others stay with the program."""


def _path(name: str, value: Any) -> Path:
    """Return an argument as a path; raise ConfigError for what is none."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}: found {shown(value)}, expected the path of a file or folder")
    return Path(value)


def _path_if_any(name: str, value: Any) -> Path | None:
    """Return an argument that may be left out, or be empty, as a path."""
    return None if value is None or (isinstance(value, str) and not value) else _path(name, value)


def start_run(
    config: RunConfig,
    *,
    out: Path | None = None,
    observer: Observer | None = None,
    command: str | None = None,
    on_pixels: RunConfig | None = None,
    runtime: str = "inline",
    workers: int | None = None,
) -> Run:
    """Begin a run and train until it ends or is stopped.

    Args:
        config: what to train, and on what.
        out: the run directory to make; the next free one below ``runs/`` when None.
        observer: sees the run, and may stop it; plain lines on standard error when None.
        command: kept in the run directory; that of this process when None.
        on_pixels: what to train where discriminators cannot see features.
        runtime: inline (this process), local (processes of this machine) or mpi.
        workers: how many processes train at the same time; None chooses.
    """
    command = command or shlex.join(sys.argv)
    return _driven(NewRun(config, on_pixels, out, command), observer, runtime, workers)


def continue_run(
    path: Path,
    *,
    rounds: int | None = None,
    budget_s: float | str | None = None,
    observer: Observer | None = None,
    runtime: str = "inline",
    workers: int | None = None,
) -> Run:
    """Go on with a run; a new length, in rounds or in time, replaces the old of either kind.

    The other arguments are those of `start_run`.
    """
    most = 1 if runtime == "inline" else workers or _most_workers(runtime)
    return _driven(OldRun(path, rounds, budget_s, most), observer, runtime, workers)


def _driven(
    request: NewRun | OldRun, observer: Observer | None, runtime: str, workers: int | None
) -> Run:
    observers = Observers(observer or Lines())
    if runtime == "mpi":
        from manege.runtime.transports import ranks

        return ranks.run(_world(), request, observers, workers)
    if runtime == "local":
        from manege.runtime.transports import local

        return local.run(request, observers, workers)
    from manege.runtime.transports.inline import Inline

    with Inline(observers) as transport:
        return drive(request, transport, observers)


def _most_workers(runtime: str) -> int:
    """Return how many workers there can be at the same time."""
    return _world().size - 1 if runtime == "mpi" else machine.cores()


def _world() -> World:
    from manege import job

    return job.world()
