"""From a run directory to a model, without the dataset: config.yaml, data.json and the commits."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from manege.config import RunConfig, resolve
from manege.errors import CheckpointError
from manege.models import PictureShape, build_generator, named_tensors
from manege.rundir import Checkpoint, RunDir
from manege.sampler.model import Component, Model
from manege.sampler.store import load


def open_model(path: Path) -> Model:
    """The model at a path: a model folder, or a run (its finished model, else its last commits)."""
    if (path / "model.json").is_file():
        return load(path)
    rundir = RunDir.open(path)
    finished = rundir.status()["state"] in ("finished", "failed")
    if finished and (path / "model" / "model.json").is_file():
        return load(path / "model")
    return of_run(rundir)


def of_run(rundir: RunDir) -> Model:
    """The model of a run as it stands: the last commit of every class that did not fail."""
    config = run_config(rundir)
    classes = run_data(rundir)["classes"]
    cells = run_cells(rundir)
    shape = _shape(config)
    components: list[Component] = []
    missing: dict[str, str] = {}
    for label, known in classes.items():
        if cells.get(label, {}).get("state") == "failed":
            missing[label] = f"failed: {cells[label]['reason']}"
            continue
        found = rundir.load(label, identity=config.identity())
        if found is None:
            missing[label] = "not trained yet"
            continue
        best = best_of(found)
        trained = {
            "rounds": found.round_ if best is None else best["round"],
            "weights": _last_weights(found) if best is None else best["weights"],
            "score": None if best is None else {"metric": config.score.metric.value, **best},
            "seed": config.seed,
            "preset": config.preset,
            "loss": config.training.loss.value,
            "constraint": config.training.constraint.kind,
        }
        file = _generator_file(config, found)
        components.append(
            Component(
                label=label,
                weight=float(known["train"]),
                networks=config.networks,
                trained=trained,
                sha256=hashlib.sha256(file).hexdigest(),
                read=partial(_read_again, rundir, label, config),
            )
        )
    if not components:
        raise CheckpointError(
            f"{rundir.path}: no class has a commit yet; continue it: manege resume {rundir.path}"
        )
    return Model(shape, tuple(components), missing)


def _read_again(rundir: RunDir, label: str, config: RunConfig) -> bytes:
    """A label's generator; not kept in memory, for there may be a thousand."""
    found = rundir.load(label, identity=config.identity())
    if found is None:
        raise CheckpointError(f"{rundir.path}: the checkpoints of class {label!r} are gone")
    return _generator_file(config, found)


def _generator_file(config: RunConfig, found: Checkpoint) -> bytes:
    """The generator of a commit as a safetensors file."""
    network = build_generator(config.networks, _shape(config))
    return safetensors.numpy.save(named_tensors(network, _body(found)))


def best_of(found: Checkpoint) -> dict[str, Any] | None:
    """The best score there was up to a commit: round, weights, value, low, high; None without."""
    told = [one for one in (found.meta["best"], found.meta["final"]) if one is not None]
    return min(told, key=lambda one: one["value"]) if told else None


def _body(found: Checkpoint) -> np.ndarray:
    """The weights to draw with: those that scored best, else the average, else the last."""
    best = best_of(found)
    if best is not None and best == found.meta["best"]:
        return found.tensors["best"]
    which = _last_weights(found) if best is None else best["weights"]
    return found.tensors["ema" if which == "ema" else "generator"]


def _last_weights(found: Checkpoint) -> str:
    return "ema" if "ema" in found.tensors else "raw"


def _shape(config: RunConfig) -> PictureShape:
    size, channels = config.data.size, config.data.channels
    if size is None or channels is None:
        raise CheckpointError(
            "config.yaml: data.size or data.channels is null, expected what the run began with"
        )
    return PictureShape(size, channels)


def run_config(rundir: RunDir) -> RunConfig:
    """The configuration a run was made with."""
    return resolve(file=rundir.path / "config.yaml")


def run_cells(rundir: RunDir) -> dict[str, dict[str, Any]]:
    """What each cell of a run has come to, from status.json."""
    cells = rundir.status().get("cells", {})
    if not isinstance(cells, dict) or not all(isinstance(e, dict) for e in cells.values()):
        raise CheckpointError(
            f"{rundir.path / 'status.json'}: damaged (cells); delete it and try again"
        )
    return cells


def run_data(rundir: RunDir) -> dict[str, Any]:
    """What a run's dataset was, from data.json; `classes` maps each label to its counts."""
    path = rundir.path / "data.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not all(int(entry["train"]) > 0 for entry in tree["classes"].values()):
            raise ValueError("a class without training pictures")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: missing or damaged ({error!r}); restore it from a copy of the run"
        ) from None
    return dict(tree)
