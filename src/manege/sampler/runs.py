"""From a run directory to a model, without the dataset: config.yaml, data.json and the commits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from manege.config import ALL, MethodName, RunConfig, partition, stored
from manege.errors import CheckpointError
from manege.labels import LABEL, is_label, shown
from manege.models import PictureShape, build_generator, named_tensors, with_label
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
    """The model of a run as it stands: the last commit of every cell that did not fail."""
    config = run_config(rundir)
    if config.method is MethodName.CELLULAR:
        return _of_grid(rundir, config)
    counts = {label: int(known["train"]) for label, known in run_data(rundir)["classes"].items()}
    states = run_cells(rundir)
    components: list[Component] = []
    missing: dict[str, str] = {}
    for cell, labels in partition(config, tuple(counts)).items():
        drawn = (ALL,) if config.method is MethodName.SINGLE else labels
        found = None
        if states.get(cell, {}).get("state") == "failed":
            missing |= dict.fromkeys(drawn, f"failed: {states[cell]['reason']}")
        elif (found := rundir.load(cell, identity=config.identity())) is None:
            missing |= dict.fromkeys(drawn, "not trained yet")
        if found is None:
            continue
        weights = {ALL: sum(counts.values()), **counts}
        components += [
            _component(rundir, config, _Place(cell, label, labels), found, float(weights[label]))
            for label in drawn
        ]
    if not components:
        raise CheckpointError(
            f"{rundir.path}: no class has a commit yet; continue it: manege resume {rundir.path}"
        )
    return Model(_shape(config), tuple(components), missing)


def _of_grid(rundir: RunDir, config: RunConfig) -> Model:
    """The best mixture of a grid: the final one, else the best so far of any cell."""
    final = rundir.status().get("mixture")
    weights: dict[str, float]
    if final is not None:
        weights, scored = dict(final["weights"]), dict(final["scores"][final["cell"]])
    else:
        weights, scored = _best_so_far(rundir, config)
    counts = {label: int(known["train"]) for label, known in run_data(rundir)["classes"].items()}
    components = []
    for cell, weight in weights.items():
        if not is_label(cell):
            raise CheckpointError(f"{rundir.path}: cell {shown(cell)}, expected {LABEL}; damaged")
        found = rundir.load(cell, identity=config.identity())
        if found is None:
            raise CheckpointError(f"{rundir.path}: the checkpoints of cell {cell!r} are gone")
        place = _Place(cell, ALL, tuple(counts))
        trained = _training_of(config) | {"rounds": found.round_, "weights": "raw"}
        trained["score"] = {"metric": _mixture_metric(config), **scored}
        sha256 = hashlib.sha256(_generator_file(config, place, found)).hexdigest()
        components.append(
            Component(
                label=ALL,
                weight=weight * sum(counts.values()),
                networks=config.networks,
                trained=trained,
                sha256=sha256,
                read=partial(_read_again, rundir, place, config, sha256),
                cell=cell if len(weights) > 1 else None,
            )
        )
    return Model(_shape(config), tuple(components), {})


def _best_so_far(
    rundir: RunDir, config: RunConfig
) -> tuple[dict[str, float], dict[str, float | None]]:
    """The weights of the cell whose mixture scores best by its last commit, and that score."""
    best: tuple[float, dict[str, float]] | None = None
    for cell in rundir.cells():
        found = rundir.load(cell, identity=config.identity())
        if found is None or found.meta["score"] is None:
            continue
        score = float(found.meta["score"])
        weights = {str(one): float(weight) for one, weight in found.meta["mixture"].items()}
        if best is None or score < best[0]:
            best = score, {one: weight for one, weight in weights.items() if weight > 0}
    if best is None:
        raise CheckpointError(
            f"{rundir.path}: no cell has ended a round yet; continue it: "
            f"manege resume {rundir.path}"
        )
    return best[1], {"value": best[0], "low": None, "high": None}


def _mixture_metric(config: RunConfig) -> str:
    assert config.cellular is not None
    return config.cellular.mixture.metric


@dataclass(frozen=True)
class _Place:
    """Where a label's generator is to be found."""

    cell: str
    label: str
    labels: tuple[str, ...]
    """All that the cell was trained on, in the order a conditional pair numbers them by."""


def _component(
    rundir: RunDir, config: RunConfig, place: _Place, found: Checkpoint, weight: float
) -> Component:
    best = best_of(found)
    trained = _training_of(config) | {
        "rounds": found.round_ if best is None else best["round"],
        "weights": _last_weights(found) if best is None else best["weights"],
        "score": None if best is None else {"metric": config.score.metric.value, **best},
    }
    sha256 = hashlib.sha256(_generator_file(config, place, found)).hexdigest()
    return Component(
        label=place.label,
        weight=weight,
        networks=config.networks,
        trained=trained,
        sha256=sha256,
        read=partial(_read_again, rundir, place, config, sha256),
    )


def _training_of(config: RunConfig) -> dict[str, Any]:
    return {
        "method": config.method.value,
        "seed": config.seed,
        "preset": config.preset,
        "loss": config.training.loss.value,
        "constraint": config.training.constraint.kind,
    }


def _read_again(rundir: RunDir, place: _Place, config: RunConfig, sha256: str) -> bytes:
    """A label's generator; not kept in memory, for there may be a thousand."""
    found = rundir.load(place.cell, identity=config.identity())
    if found is None:
        raise CheckpointError(f"{rundir.path}: the checkpoints of cell {place.cell!r} are gone")
    content = _generator_file(config, place, found)
    if hashlib.sha256(content).hexdigest() != sha256:
        # What is drawn would bear the name of other weights.
        raise CheckpointError(
            f"{rundir.path}: cell {place.cell!r} has another commit now than at first, expected a "
            "run that rests; wait for its end, or try again"
        )
    return content


def _generator_file(config: RunConfig, place: _Place, found: Checkpoint) -> bytes:
    """The generator of a commit as a safetensors file; of a conditional one, for one label."""
    conditional = config.method is MethodName.CONDITIONAL
    network = build_generator(
        config.networks, _shape(config), len(place.labels) if conditional else 0
    )
    record = _body(found) if config.method is not MethodName.CELLULAR else _centre(found)
    tensors = named_tensors(network, record)
    if conditional:
        own = {name: torch.from_numpy(array) for name, array in tensors.items()}
        baked = with_label(own, place.labels.index(place.label))
        tensors = {name: tensor.numpy() for name, tensor in baked.items()}
    return bytes(safetensors.numpy.save(tensors))


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


def _centre(found: Checkpoint) -> np.ndarray:
    """The generator a grid cell last published."""
    return found.tensors[f"generator {found.meta['centre'][1]}"]


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
    return stored(rundir.path / "config.yaml")


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
        if odd := [label for label in tree["classes"] if not is_label(label)]:
            raise ValueError(f"label {shown(odd[0])}, expected {LABEL}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: missing or damaged ({error!r}); restore it from a copy of the run"
        ) from None
    return dict(tree)
