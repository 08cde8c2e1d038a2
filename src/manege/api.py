"""The verbs of the command line as functions: train, resume, sample, export, and models.

Owns what a verb does; the command line only parses, calls and prints.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from manege import device
from manege.comparison import Comparison
from manege.comparison import compare as compare_runs
from manege.config import (
    DcganNetworks,
    RunConfig,
    amended,
    resolve,
    to_yaml,
)
from manege.data import KNOWN, Dataset, Split, open_dataset
from manege.errors import ConfigError
from manege.evaluation import Evaluation, Options, Subject
from manege.evaluation import evaluate as evaluate_subject
from manege.metrics import (
    Space,
    Telling,
    is_stored,
    load_space,
    save_space,
    scored_data,
    space_for,
)
from manege.progress import Lines, counter
from manege.rundir import RunDir
from manege.sampler import Model, Samples, of_run, open_model, run_config, run_data, save
from manege.trainer import Outcome, Watcher, check_scorer, check_space, run
from manege.version import __version__

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

_SPEAK_EVERY_S = 2.0
_LARGEST_1X1 = 16
"""The largest side of which four halvings leave one pixel."""


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
    """Train on a dataset and wait for the end.

    Args:
        data: a dataset's name, an image folder or an .npz file.
        out: the run directory to make; the next free one below ``runs/`` when None.
        options: ``preset``, ``config`` (a file), or any configuration key with ``__`` for dots:
            ``rounds=50``, ``training__batch=64``, ``data__classes=["3", "8"]``.
    """
    preset, file = options.pop("preset", None), options.pop("config", None)
    flags = {"data.source": data} | {key.replace("__", "."): v for key, v in options.items()}
    config = resolve(preset=preset, file=Path(file) if file else None, flags=flags)
    return start_run(config, out=Path(out) if out else None)


def resume(
    run: str | Path, *, rounds: int | None = None, budget_s: float | str | None = None
) -> Run:
    """Go on with a run, to a new total of rounds or time (``"10m"``) when one is given."""
    return continue_run(Path(run), rounds=rounds, budget_s=budget_s)


def sample(model: str | Path | Model, count: int, **options: Any) -> Samples:
    """Draw pictures; options are those of `Model.sample`."""
    opened = model if isinstance(model, Model) else open_model(Path(model))
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


def _options(given: Mapping[str, Any]) -> Options:
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            raise ConfigError(f"{name}: no such option; expected some of {', '.join(known)}")
    ready: dict[str, Any] = dict(given)
    for name in ("metrics", "classes"):
        if ready.get(name) is not None:
            ready[name] = tuple(ready[name])
    return Options(**ready)


def export(run: str | Path, out: str | Path) -> Model:
    """Write a run's model as it stands into a folder of its own."""
    path = Path(run)
    model = open_model(path) if (path / "model.json").is_file() else of_run(RunDir.open(path))
    save_model(model, out)
    return model


def load_model(path: str | Path) -> Model:
    """The model in a model folder or a run directory."""
    return open_model(Path(path))


def save_model(model: Model, out: str | Path) -> None:
    """Write a model, merged or thinned as it may be, into a folder of its own."""
    save(model, Path(out))


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
) -> Run:
    """A new run, from opening the data to the combined model."""
    # Refuse before anything is made: a feature network takes minutes.
    device.resolve(config.device)
    if out is not None:
        RunDir.check_free(out)
    dataset = open_dataset(config.data)
    config = _settled(config, dataset)
    decode(dataset, say, stop)
    space = _space_of(config, dataset, say, stop)
    rundir = RunDir.create(
        out,
        name=f"{dataset.name}-{config.method.value}",
        config=to_yaml(config),
        command=command or shlex.join(sys.argv),
        environment=environment(),
        data=_data_record(dataset),
    )
    say(f"run directory: {rundir.path}")
    networks = config.networks
    mixed = isinstance(networks, DcganNetworks) and networks.discriminator_batchnorm
    if mixed and dataset.size <= _LARGEST_1X1:
        say(
            f"warning: {dataset.size}x{dataset.size} pictures are too small for the convolutional "
            "pair: BatchNorm on a 1x1 map hides them from a Wasserstein critic altogether; "
            "use --networks mlp, or --size 32"
        )
    if space is not None:
        save_space(space, rundir.path / "scorer")
    with rundir.start():
        outcome = run(config, rundir, dataset, watcher=watcher or Lines(), stop=stop)
    return Run(rundir.path, config, outcome)


def continue_run(
    path: Path,
    *,
    rounds: int | None = None,
    budget_s: float | str | None = None,
    watcher: Watcher | None = None,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], str | None] = _never,
) -> Run:
    """Go on with a run; a new length replaces the old, of either kind."""
    rundir = RunDir.open(path)
    config = run_config(rundir)
    if rounds is not None or budget_s is not None:
        config = amended(config, {"rounds": rounds, "budget_s": budget_s})
    # All that may refuse comes before the start, which marks the run as running.
    device.resolve(config.device)
    dataset = open_dataset(config.data)
    decode(dataset, say, stop)
    _check_same_data(rundir, dataset)
    _prepare_scorer(rundir, config, dataset, say, stop)
    with rundir.start():
        rundir.write_config(to_yaml(config))
        outcome = run(config, rundir, dataset, watcher=watcher or Lines(), stop=stop)
    return Run(path, config, outcome)


def decode(dataset: Dataset, say: Callable[[str], None], stop: Callable[[], str | None]) -> None:
    """Bring every class into the cache now, so that a broken picture is found before training."""
    spoke = time.monotonic()
    for number, label in enumerate(dataset.labels, start=1):
        dataset.digest(label, Split.TRAIN)
        if time.monotonic() - spoke > _SPEAK_EVERY_S:
            spoke = time.monotonic()
            say(f"pictures of {number} of {len(dataset.labels)} classes read: {label}")
        if stopped_by := stop():
            raise KeyboardInterrupt(stopped_by)


def _space_of(
    config: RunConfig,
    dataset: Dataset,
    say: Callable[[str], None],
    stop: Callable[[], str | None],
) -> Space | None:
    """The feature space training scores in, made now if it must be; None when it keeps no score."""
    if not config.scored:
        return None
    show = counter("feature network: seen")

    def progress(done: int, total: int) -> None:
        if show is not None:
            show(done, total)
        if stopped_by := stop():
            raise KeyboardInterrupt(stopped_by)

    scored = scored_data(config.data, dataset.size, dataset.channels)
    space = space_for(scored, Telling(say, progress))
    check_space(config, dataset, space)
    return space


def _prepare_scorer(
    rundir: RunDir,
    config: RunConfig,
    dataset: Dataset,
    say: Callable[[str], None],
    stop: Callable[[], str | None],
) -> None:
    """See to it that the run has its scorer, and that it is the one it was scored with so far."""
    folder = rundir.path / "scorer"
    if not config.scored:
        return
    if is_stored(folder):
        space = load_space(folder)
    else:
        made = _space_of(config, dataset, say, stop)
        assert made is not None
        save_space(space := made, folder)
    for cell in rundir.cells()[:1]:
        found = rundir.load(cell, identity=config.identity())
        if found is not None:
            check_scorer(cell, found.meta, space.name)


def environment() -> dict[str, Any]:
    """What the run was made with."""
    import torch

    return {
        "manege": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _settled(config: RunConfig, dataset: Dataset) -> RunConfig:
    """The configuration with what the data decided: size, channels, where a path lies."""
    source = config.data.source
    if source not in KNOWN:
        source = str(Path(source).expanduser().resolve())  # Resume may start elsewhere.
    flip = config.training.flip
    settled = {
        "data.source": source,
        "data.size": dataset.size,
        "data.channels": dataset.channels,
        "training.flip": dataset.flippable if flip is None else flip,
    }
    return amended(config, settled)


def _data_record(dataset: Dataset) -> Mapping[str, Any]:
    """What data.json holds: enough to know the pictures again, and to build the model without."""
    split = dataset.split_record()
    for label, entry in split["classes"].items():
        entry["train_sha256"] = dataset.digest(label, Split.TRAIN)
    return {
        "name": dataset.name,
        "size": dataset.size,
        "channels": dataset.channels,
        **split,
    }


def _check_same_data(rundir: RunDir, dataset: Dataset) -> None:
    old, new = run_data(rundir), json.loads(json.dumps(_data_record(dataset)))
    if old != new:
        changed = sorted(_differences(old, new))
        raise ConfigError(
            f"{rundir.path}: the dataset has changed since the run began "
            f"({', '.join(changed[:3])}); put it back, or start a new run"
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    for key in {*old, *new}:
        if key == "classes":
            classes_old, classes_new = old.get(key, {}), new[key]
            yield from (
                f"class {label!r}"
                for label in {*classes_old, *classes_new}
                if classes_old.get(label) != classes_new.get(label)
            )
        elif old.get(key) != new.get(key):
            yield key
