"""Assembles a run's model from config.yaml, data.json and the commits, without the dataset."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from manege.config import OwnNetworks, RunConfig, stored
from manege.errors import CheckpointError
from manege.labels import LABEL, is_label, shown
from manege.methods import ModelPart, method_of
from manege.models import PictureShape, build_generator, named_tensors, with_label
from manege.runs import Checkpoint, RunDir
from manege.sampler.model import Component, Model, require_source
from manege.sampler.store import load


def open_model(path: Path) -> Model:
    """Return the model in a model folder or of a run (its finished one, else its last commits)."""
    if (path / "model.json").is_file():
        return load(path)
    rundir = RunDir.open(path)
    finished = rundir.status()["state"] in ("finished", "failed")
    if finished and (path / "model" / "model.json").is_file():
        return load(path / "model")
    return of_run(rundir)


def of_run(rundir: RunDir) -> Model:
    """Return the model of a run as it stands: the last commit of every cell that it needs."""
    config = run_config(rundir)
    identity = config.identity()
    if isinstance(config.networks, OwnNetworks):
        require_source(str(rundir.path), config.networks, config.plugins)
    counts = {label: int(known["train"]) for label, known in run_data(rundir)["classes"].items()}
    choice = rundir.status().get("mixture")
    parts = method_of(config).components(config, counts, choice, _commits(rundir, identity))
    if not parts:
        raise CheckpointError(
            f"{rundir.path}: no cell has ended a round yet; continue it: "
            f"manege resume {rundir.path}"
        )
    failed = {} if all(part.required for part in parts) else _failed(rundir)
    drawing = Counter(part.label for part in parts)
    components: list[Component] = []
    missing: dict[str, str] = {}
    for cell, own in groupby(parts, key=lambda part: part.cell):
        if not is_label(cell):
            raise CheckpointError(f"{rundir.path}: cell {shown(cell)}, expected {LABEL}; damaged")
        found = None if cell in failed else rundir.load(cell, identity=identity)
        for part in own:
            if found is not None:
                mixed = drawing[part.label] > 1
                components.append(_component(rundir, config, part, found, mixed=mixed))
            elif part.required:
                raise CheckpointError(f"{rundir.path}: the checkpoints of cell {cell!r} are gone")
            else:
                missing[part.label] = failed.get(cell, "not trained yet")
    if not components:
        raise CheckpointError(
            f"{rundir.path}: no class has a commit yet; continue it: manege resume {rundir.path}"
        )
    return Model(_shape(config), tuple(components), missing)


def _commits(rundir: RunDir, identity: str) -> Iterator[tuple[str, Checkpoint]]:
    """Yield every cell that has commits, with its last one."""
    for cell in rundir.cells():
        found = rundir.load(cell, identity=identity)
        if found is not None:
            yield cell, found


def _failed(rundir: RunDir) -> dict[str, str]:
    """Return the cells of a run that failed, each with its reason."""
    return {
        cell: f"failed: {known['reason']}"
        for cell, known in run_cells(rundir).items()
        if known.get("state") == "failed"
    }


def _component(
    rundir: RunDir, config: RunConfig, part: ModelPart, found: Checkpoint, *, mixed: bool
) -> Component:
    """Return a part of the model; `mixed` says whether others draw its label too."""
    trained = method_of(config).trained(config, part, found)
    sha256 = hashlib.sha256(_generator_file(config, part, trained.record)).hexdigest()
    return Component(
        label=part.label,
        weight=part.weight,
        networks=config.networks,
        trained={
            "method": str(config.method),
            "seed": config.seed,
            "preset": config.preset,
            "loss": str(config.training.loss),
            "constraint": config.training.constraint.kind,
            "rounds": trained.rounds,
            "weights": trained.weights,
            "score": trained.score,
            **({"plugins": dict(config.plugins)} if config.plugins else {}),
        },
        sha256=sha256,
        read=partial(_read_again, rundir, part, config, sha256),
        cell=part.cell if mixed else None,
    )


def _read_again(rundir: RunDir, part: ModelPart, config: RunConfig, sha256: str) -> bytes:
    """Return a part's generator, read anew: there may be a thousand, too many to keep in memory."""
    found = rundir.load(part.cell, identity=config.identity())
    if found is None:
        raise CheckpointError(f"{rundir.path}: the checkpoints of cell {part.cell!r} are gone")
    record = method_of(config).trained(config, part, found).record
    content = _generator_file(config, part, record)
    if hashlib.sha256(content).hexdigest() != sha256:
        # What is drawn would bear the name of other weights.
        raise CheckpointError(
            f"{rundir.path}: cell {part.cell!r} has another commit now than at first, expected a "
            "run that rests; wait for its end, or try again"
        )
    return content


def _generator_file(config: RunConfig, part: ModelPart, record: np.ndarray) -> bytes:
    """Return a generator's record as a safetensors file; of a conditional one, for one label."""
    network = build_generator(config.networks, _shape(config), len(part.labels))
    tensors = named_tensors(network, record)
    if part.labels:
        own = {name: torch.from_numpy(array) for name, array in tensors.items()}
        baked = with_label(own, part.labels.index(part.label))
        tensors = {name: tensor.numpy() for name, tensor in baked.items()}
    return bytes(safetensors.numpy.save(tensors))


def _shape(config: RunConfig) -> PictureShape:
    size, channels = config.data.size, config.data.channels
    if size is None or channels is None:
        raise CheckpointError(
            "config.yaml: data.size or data.channels is null, expected what the run began with"
        )
    return PictureShape(size, channels)


def run_config(rundir: RunDir) -> RunConfig:
    """Return the configuration that a run was made with."""
    return stored(rundir.path / "config.yaml")


def run_cells(rundir: RunDir) -> dict[str, dict[str, Any]]:
    """Return what each cell of a run has come to, from status.json."""
    cells = rundir.status().get("cells", {})
    if not isinstance(cells, dict) or not all(isinstance(e, dict) for e in cells.values()):
        raise CheckpointError(
            f"{rundir.path / 'status.json'}: damaged (cells); delete it and try again"
        )
    return cells


def run_data(rundir: RunDir) -> dict[str, Any]:
    """Return a run's description of its dataset: `classes` maps each label to its counts."""
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
