"""Prepares a run before training: opens the data, settles the configuration, makes the scorer.

Everything that may refuse a run happens here, before a cell is touched.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manege import device, machine, pictures, plugins
from manege.cell import try_parts
from manege.config import (
    DcganNetworks,
    FeatureCritic,
    RunConfig,
    amended,
    stream,
    to_yaml,
)
from manege.data import KNOWN, Dataset, Split, object_name, open_dataset, own_dataset, set_of
from manege.errors import CheckpointError, ConfigError, DataError, ManegeError, field
from manege.failpoints import failpoint
from manege.files import below, user_path
from manege.labels import namesakes
from manege.methods import method_of, partition_of
from manege.metrics import (
    Space,
    Telling,
    classifier_for,
    feature_weights,
    is_stored,
    load_space,
    save_space,
    scored_data,
    space_for,
)
from manege.models import PictureShape
from manege.observer import Observer
from manege.progress import duration
from manege.runs import RunDir, cell_folder
from manege.runtime.messages import NewRun, OldRun
from manege.runtime.worker.cell_run import check_scorer
from manege.runtime.worker.setup import check_scores, features_of
from manege.sampler import run_config, run_data
from manege.version import __version__

_SPEAK_EVERY_S = 2.0
_LARGEST_1X1 = 16
"""The largest side of which four halvings leave one pixel."""

_HELD_OUT_DIGEST = "held_out_sha256"
_DIGESTS = {Split.TRAIN: "train_sha256", Split.HELD_OUT: _HELD_OUT_DIGEST}
"""The names in data.json of the digests of a class's splits."""

_REAL_SHEET = "samples/real.png"
_COLUMNS = 8
_REAL_POINTS = 2_000

CPU_VARIABLES = (
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"),
    *("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"),
)
"""Variables that tell torch's and numpy's libraries which instructions to use.

ATEN_CPU_CAPABILITY is not among them: `cpu_capability` says what came of it.
"""

_BITS_REST_ON = ("manege", "torch", "numpy", "machine", "cpu", "cpu_capability", "cpu_settings")
"""The keys of environment.json that must be the same for a run to end in the same bits."""

Digests = dict[str, dict[Split, str]]
"""SHA-256 of each class's pictures, of the splits that a run looks at."""


class OpenedRun(NamedTuple):
    """A prepared run: its directory, configuration and dataset."""

    rundir: RunDir
    config: RunConfig
    dataset: Dataset


def prepare(request: NewRun | OldRun, observer: Observer) -> OpenedRun:
    """Make or open a run directory."""
    if isinstance(request, OldRun):
        return prepare_resume(
            request.path,
            rounds=request.rounds,
            budget_s=request.budget_s,
            observer=observer,
            workers=request.workers,
        )
    return prepare_new(request.config, request.out, request.command, observer, request.on_pixels)


def prepare_new(
    config: RunConfig,
    out: Path | None,
    command: str,
    observer: Observer,
    on_pixels: RunConfig | None = None,
) -> OpenedRun:
    """Make a new run's directory, with all that it needs to begin.

    `on_pixels` is what to train instead where critics cannot see features, or should not.
    """
    # Refuse before anything is made: a feature network takes minutes.
    device.place(config.device, 0, device.gpus_for(config.device))
    plugins.check_sources(
        config.references(),
        config.plugins,
        "leave plugins out of the configuration to train with the source as it is",
    )
    if out is not None:
        RunDir.check_free(out)
    dataset = open_dataset(config.data)
    config, instead = _fitting(config, on_pixels)
    config = _settled(config, dataset)
    _check_method(config, dataset)
    shape = PictureShape(dataset.size, dataset.channels)
    told = try_parts(config, shape, features_of(config, shape)) if config.references() else []
    digests = _decode(config, dataset, observer)
    space = _space_of(config, dataset, observer)
    rundir = RunDir.create(
        out,
        name=f"{dataset.name}-{plugins.short(config.method)}",
        config=to_yaml(config),
        command=command,
        environment=environment(),
        data=_data_record(dataset, digests),
    )
    observer.say(f"run directory: {rundir.path}")
    for line in told:
        observer.say(line)
    if instead is not None:
        observer.say(instead)
    networks = config.networks
    mixed = isinstance(networks, DcganNetworks) and networks.discriminator_batchnorm
    if mixed and dataset.size <= _LARGEST_1X1:
        observer.say(
            f"warning: {dataset.size}x{dataset.size} pictures are too small for the convolutional "
            "pair: BatchNorm on a 1x1 map hides them from a Wasserstein critic altogether; "
            f"use {field('networks')} mlp, or {field('size')} 32"
        )
    if space is not None:
        save_space(space, rundir.path / "scorer")
    failpoint("real-sheet")
    rundir.write_bytes(_REAL_SHEET, real_sheet(config, dataset))
    return OpenedRun(rundir, config, dataset)


def _fitting(config: RunConfig, on_pixels: RunConfig | None) -> tuple[RunConfig, str | None]:
    """Return the configuration; without weights, the one on pixels and a line that says so."""
    if not isinstance(config.critic, FeatureCritic):
        return config, None
    try:
        feature_weights(config.feature_weights)
    except ManegeError as error:
        if on_pixels is None or config.feature_weights is not None:
            raise ConfigError(f"critic features: {error}") from None
        instead = f"discriminators see pixels instead (preset {on_pixels.preset})"
        return on_pixels, f"warning: {error}; {instead}"
    return config, None


def _check_method(config: RunConfig, dataset: Dataset) -> None:
    """Refuse what the method cannot train, and cells that would share a folder of the run."""
    method_of(config).check(config, dataset.labels)
    cells = partition_of(config, dataset.labels)
    # A folder is named by a short hash.
    if same := namesakes((cell, cell_folder(cell)) for cell in cells):
        one, other, folder = same
        raise DataError(
            f"{dataset.name}: labels {one!r} and {other!r} would share the folder {folder}, "
            "expected one for each; rename one of them"
        )


def real_sheet(config: RunConfig, dataset: Dataset) -> bytes:
    """Return a sheet of training pictures, laid out as samples/model.png to be compared with it."""
    if dataset.channels == 2 or not method_of(config).draws_labels(config, dataset.labels):
        some = set_of(dataset, Split.TRAIN, limit=_REAL_POINTS if dataset.channels == 2 else 64)
        order = stream(config.seed, cell="", purpose="real sheet").permutation(len(some))
        shown, rows = some.pictures[order], "all"
    else:
        # They lie in the order of a hash: the first ones are a fair sample.
        parts = [_first(dataset, label) for label in dataset.labels]
        shown, rows = np.concatenate(parts), ", ".join(dataset.labels)
    recipe = {"rows": rows, "split": Split.TRAIN.value, "columns": str(_COLUMNS)}
    scale = pictures.viewing_scale(dataset.size)
    return pictures.png_bytes(pictures.grid(shown, columns=_COLUMNS), recipe, scale)


def _first(dataset: Dataset, label: str) -> np.ndarray:
    """Return a row of training pictures; a class with fewer shows them again."""
    found = dataset.pictures(label, Split.TRAIN)
    return np.asarray(found[np.arange(_COLUMNS) % len(found)])


def prepare_resume(
    path: Path,
    *,
    rounds: int | None,
    budget_s: float | str | None,
    observer: Observer,
    workers: int = 1,
) -> OpenedRun:
    """Open a run that is there already, with a new length if one is given.

    The configuration is the one to go on with; whoever starts the run writes it down.

    Args:
        path: the run's directory.
        rounds: a new total.
        budget_s: a new total of time.
        observer: sees the progress.
        workers: how many there may be at the same time, each of which has the time.
    """
    rundir = RunDir.open(path)
    config = run_config(rundir)
    plugins.check_sources(
        config.references(),
        config.plugins,
        "put back the source that the run began with, or start a new run",
    )
    if rounds is not None or budget_s is not None:
        before = config
        config = amended(config, {"rounds": rounds, "budget_s": budget_s})
        # What is damaged, or another run's, is told of when the cells are opened.
        with suppress(CheckpointError):
            _check_length(rundir, before, config, workers)
    device.place(config.device, 0, device.gpus_for(config.device))
    dataset = open_dataset(config.data)
    digests = _decode(config, dataset, observer)
    _check_same_data(rundir, _data_record(dataset, digests))
    _prepare_scorer(rundir, config, dataset, observer)
    _warn_of_other_bits(rundir, observer)
    if not (rundir.path / _REAL_SHEET).exists():
        rundir.write_bytes(_REAL_SHEET, real_sheet(config, dataset))
    return OpenedRun(rundir, config, dataset)


def _warn_of_other_bits(rundir: RunDir, observer: Observer) -> None:
    """Warn in a line of what has changed since the run began and may change its bits."""
    began, here = rundir.environment(), environment()
    # A run from before a fact was written down says nothing about it.
    others = [key for key in _BITS_REST_ON if began.get(key, here[key]) != here[key]]
    if others:
        told = "; ".join(f"{key} {began[key]}, here it is {here[key]}" for key in others)
        observer.say(
            f"warning: {rundir.path} began with {told}: it may end in other bits than without the "
            "interruption; for the same bits go on as it began"
        )


def _check_length(rundir: RunDir, before: RunConfig, config: RunConfig, workers: int) -> None:
    """Raise ConfigError if the run has had more rounds or more time than it is to have."""
    # By the commits: the status of a run that was killed lags behind them.
    had = {
        cell: (found.round_, float(found.meta["spent_s"]))
        for cell in rundir.cells()
        if (found := rundir.load(cell, identity=config.identity())) is not None
    }
    if not had:
        return
    cell, (rounds, _) = max(had.items(), key=lambda one: one[1][0])
    if config.rounds is not None and rounds > config.rounds:
        raise ConfigError(
            f"{rundir.path}: {cell!r} has had {rounds} rounds, {field('rounds')} {config.rounds} "
            f"asks for fewer; give {rounds} or more, or leave it out"
        )
    # What was asked for before may be asked for again: a last step goes a little beyond it.
    if config.budget_s is None or config.budget_s >= (before.budget_s or float("inf")):
        return
    spent_s = [spent_s for _, spent_s in had.values()]
    # Every worker has its own wall time, but no cell can have had less than it was trained for.
    each = workers if config.budget_clock == "wall" else 1
    trained_s = max(sum(spent_s) / each, *spent_s)
    if trained_s > config.budget_s:
        raise ConfigError(
            f"{rundir.path}: trained for {duration(trained_s)}, {field('budget_s')} "
            f"{duration(config.budget_s)} asks for less; give a longer one, or leave it out"
        )


def _decode(config: RunConfig, dataset: Dataset, observer: Observer) -> Digests:
    """Decode all that the run looks at into the cache, and return its digests.

    So a broken picture is found before training. Held-out ones are left alone where no stability
    is measured.
    """
    spoke = time.monotonic()
    digests: Digests = {label: {} for label in dataset.labels}
    looked_at = tuple(Split) if config.stability.every_rounds is not None else (Split.TRAIN,)
    for number, label in enumerate(dataset.labels, start=1):
        for split in looked_at:
            if dataset.names(label, split):
                digests[label][split] = dataset.digest(label, split)
        if time.monotonic() - spoke > _SPEAK_EVERY_S:
            spoke = time.monotonic()
            observer.say(f"pictures of {number} of {len(dataset.labels)} classes read: {label}")
        if stopped_by := observer.should_stop():
            raise KeyboardInterrupt(stopped_by)
    return digests


def _space_of(config: RunConfig, dataset: Dataset, observer: Observer) -> Space | None:
    """Return the feature space that scores the run, made if needed; None if it keeps no score."""
    if not config.scored:
        return None

    def progress(done: int, total: int) -> None:
        observer.progress(done, total)
        if stopped_by := observer.should_stop():
            raise KeyboardInterrupt(stopped_by)

    shape, telling = PictureShape(dataset.size, dataset.channels), Telling(observer.say, progress)
    if (
        config.cellular is not None
        and config.cellular.mixture.metric == "is"
        and shape.channels != 2
    ):
        # The inception score of a mixture asks what its pictures show.
        space = classifier_for(scored_data(config.data, shape.size, shape.channels), telling)
    else:
        space = space_for(shape, config.data, telling, config.feature_weights)
    check_scores(config, dataset, space)
    return space


def _prepare_scorer(
    rundir: RunDir, config: RunConfig, dataset: Dataset, observer: Observer
) -> None:
    """Make the run's scorer if it is lost; refuse another than the run was scored with so far."""
    folder = below(rundir.path, "scorer")
    if not config.scored:
        return
    if is_stored(folder):
        space = load_space(folder, config.feature_weights)
    else:
        made = _space_of(config, dataset, observer)
        assert made is not None
        save_space(space := made, folder)
    for cell in rundir.cells()[:1]:
        found = rundir.load(cell, identity=config.identity())
        if found is not None:
            check_scorer(cell, found.meta, space.name)


def environment() -> dict[str, Any]:
    """Return the versions, system and processor that a run is made with."""
    import torch

    settings = [f"{name}={os.environ[name]}" for name in CPU_VARIABLES if name in os.environ]
    return {
        "manege": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": machine.cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_settings": " ".join(settings) or "none",
    }


def _settled(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Return the configuration with what the data decided: size, channels, flips, the full path."""
    source = config.data.source
    if (own := own_dataset(source)) is not None:
        source = own
    elif source not in KNOWN and object_name(source) is None:
        source = str(user_path(source).resolve())  # Resume may start elsewhere.
    flip = config.training.flip
    settled = {
        "data.source": source,
        "data.size": dataset.size,
        "data.channels": dataset.channels,
        "training.flip": dataset.flippable if flip is None else flip,
    }
    if isinstance(config.critic, FeatureCritic):
        settled["critic.weights"] = feature_weights(config.feature_weights).sha256
    config = amended(config, settled)
    return config.model_copy(update={"plugins": plugins.source_digests(config.references())})


def _data_record(dataset: Dataset, digests: Digests) -> dict[str, Any]:
    """Return the content of data.json: enough to recognise the pictures and to build the model."""
    split = dataset.split_record()
    for label, entry in split["classes"].items():
        entry |= {_DIGESTS[part]: digest for part, digest in digests[label].items()}
    return {
        "name": dataset.name,
        "size": dataset.size,
        "channels": dataset.channels,
        **split,
    }


def _check_same_data(rundir: RunDir, record: Mapping[str, Any]) -> None:
    old, new = run_data(rundir), json.loads(json.dumps(record))
    for label in old["classes"].keys() & new["classes"].keys():
        # Nothing to hold against each other where one of the two has not looked at what is held
        # out, for it measures no stability, or is from before the digest was written.
        both = old["classes"][label], new["classes"][label]
        if any(_HELD_OUT_DIGEST not in one for one in both):
            for one in both:
                one.pop(_HELD_OUT_DIGEST, None)
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
