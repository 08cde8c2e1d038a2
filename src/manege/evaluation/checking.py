"""Check with control pictures whether the feature spaces of an evaluation see the data at hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manege import device, pictures
from manege.config import stream
from manege.data import PictureSet, Split, cache, set_of
from manege.errors import DataError
from manege.evaluation.reference import Reference
from manege.evaluation.subject import SubjectPictures
from manege.metrics import Space
from manege.metrics.controls import EARLY_GENERATOR, FRESH_GENERATOR, MOST, RULE, check, told
from manege.models import PictureShape, build_generator, generate, initialise
from manege.runs import RunDir
from manege.sampler import run_config

_KIND = "controls"
_DRAWN = 64
"""Pictures that an untrained generator draws in one batch."""


def checks_of(
    judged: SubjectPictures, against: Reference, spaces: Iterable[Space]
) -> dict[str, Any]:
    """Check each space on the data; return by name the result of each that could be tried."""
    if against.dataset is None:
        return {}
    # Twice as many: where few are held out, training pictures are halved.
    train, held_out = (set_of(against.dataset, split, 2 * MOST) for split in Split)
    drawn = {} if judged.rundir is None else _drawn(judged.rundir, judged.form)
    found = {space.name: _checked(space, train, held_out, drawn) for space in spaces}
    return {name: one for name, one in found.items() if one is not None}


def _checked(
    space: Space, train: PictureSet, held_out: PictureSet, drawn: dict[str, np.ndarray]
) -> dict[str, Any] | None:
    """Check one space, or return the result from the cache when the same was asked before."""
    digests = [hashlib.sha256(one.tobytes()).hexdigest() for one in drawn.values()]
    key = cache.key(
        _KIND, RULE, space.kind, space.sha256, train.digest, held_out.digest, [*drawn], digests
    )
    entry = cache.find(key, kind=_KIND)
    if entry is not None:
        known: dict[str, Any] | None = json.loads(entry.open().tobytes())
        # Whoever asked before may have known the fields by other names.
        return known and {**known, "told": told(space.name, tuple(known["blind"]))}
    found = check(space, train.pictures, held_out.pictures, drawn)
    text = json.dumps(None if found is None else found.as_dict())
    content = np.frombuffer(text.encode(), dtype=np.uint8)
    cache.store(key, content.shape, (), [content], kind=_KIND)
    # As it will be read from the cache: lists, where there were tuples.
    tree: dict[str, Any] | None = json.loads(text)
    return tree


def _drawn(rundir: RunDir, form: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return what the run's generators draw before or early in training, by the control's name."""
    found = {}
    if form[0] > 1:
        sheets = [_sheet(path, form) for path in sorted(rundir.path.glob("samples/*/early.png"))]
        if kept := [one for one in sheets if one is not None]:
            found[EARLY_GENERATOR] = np.concatenate(kept)
    found[FRESH_GENERATOR] = _fresh(rundir, form)
    return found


def _sheet(path: Path, form: tuple[int, int]) -> np.ndarray | None:
    """Return the pictures of a sheet in the run, or None when the file is damaged."""
    try:
        found = pictures.cut_up(path, form[0])
    except DataError:
        return None
    return found if found.shape[3] == form[1] else None


def _fresh(rundir: RunDir, form: tuple[int, int]) -> np.ndarray:
    """Draw pictures from a generator of the run's own kind before any training."""
    config = run_config(rundir)
    network = build_generator(config.networks, PictureShape(*form)).to_empty(device="cpu")
    rng = stream(config.seed, cell="", purpose="fresh generator")
    with device.threads(1), torch.no_grad():
        initialise(network, rng)
        parts = [
            generate(network, rng.standard_normal((_DRAWN, network.latent), dtype=np.float32))
            for _ in range(MOST // _DRAWN)
        ]
    return np.concatenate(parts)
