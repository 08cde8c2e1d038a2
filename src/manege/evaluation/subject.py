"""Open what is to be scored: a run, a model, a folder or file of pictures, or an array."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from manege.config import stream
from manege.data import PictureSet, read_set
from manege.errors import ConfigError, DataError, field
from manege.evaluation.options import EvaluationOptions
from manege.files import user_path
from manege.metrics import Counting
from manege.runs import RunDir
from manege.sampler import Model, Samples, open_model

MOST, USUAL = 10_000, 1_000
"""By default as many pictures are compared as the reference has, within these bounds."""

Subject = str | Path | Model | Samples | np.ndarray
"""What can be evaluated: a path, a model, samples or an array of pictures."""


@dataclass(frozen=True)
class SubjectPictures:
    """The opened subject of an evaluation: a model that draws, or pictures that exist already."""

    name: str
    digest: str
    model: Model | None = None
    pictures: PictureSet | None = None
    rundir: RunDir | None = None

    @property
    def form(self) -> tuple[int, int]:
        """Return the side and the channels of its pictures."""
        if self.model is not None:
            return self.model.shape.size, self.model.shape.channels
        assert self.pictures is not None
        return self.pictures.size, self.pictures.channels

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Return the labels of its pictures, None when they have none."""
        if self.model is not None:
            return None if self.model.unlabelled else self.model.labels
        assert self.pictures is not None
        return self.pictures.labels

    def count(self, num_references: int, options: EvaluationOptions) -> int:
        """Return how many of its pictures are compared."""
        if self.model is not None:
            return options.samples or min(MOST, max(USUAL, num_references))
        assert self.pictures is not None
        have = len(self.pictures)
        if options.samples is not None and options.samples > have:
            raise DataError(
                f"{self.name}: {have} pictures, but {field('samples')} {options.samples}; "
                "give fewer"
            )
        return options.samples or min(MOST, have)

    def drawn(self, count: int, seed: int, counting: Counting) -> PictureSet:
        """Return that many of its pictures in random order; a folder lists them class by class."""
        if self.model is not None:
            samples = self.model.sample(count, seed=seed, progress=counting("drawn"))
            labels = None if self.model.unlabelled else samples.labels
            return PictureSet(self.name, "all", samples.pictures, labels, self.digest)
        own = self.pictures
        assert own is not None
        rows = stream(seed, cell="", purpose="evaluation subject").permutation(len(own))[:count]
        some = None if own.labels is None else tuple(own.labels[row] for row in rows)
        return replace(own, pictures=own.pictures[rows], labels=some)


def open_subject(subject: Subject, options: EvaluationOptions) -> SubjectPictures:
    """Open the subject, restricted to the classes that the options name."""
    judged = _opened(subject, options)
    if judged.model is not None:
        _check_form(judged, options)
    return judged if options.classes is None else _with_classes(judged, options.classes)


def set_of_array(
    pictures_NSSC: np.ndarray, name: str, labels: tuple[str, ...] | None
) -> PictureSet:
    """Wrap pictures that are in memory already as a PictureSet."""
    array = pictures_NSSC[..., np.newaxis] if pictures_NSSC.ndim == 3 else pictures_NSSC
    if array.ndim != 4 or array.dtype != np.uint8 or array.shape[1] != array.shape[2]:
        raise DataError(
            f"{name} of {array.dtype} {array.shape}: expected uint8, N×S×S×C with square pictures"
        )
    digest = hashlib.sha256(np.ascontiguousarray(array).data)
    digest.update(json.dumps([array.shape, labels]).encode())
    return PictureSet(name, "all", array, labels, digest.hexdigest())


def _opened(subject: Subject, options: EvaluationOptions) -> SubjectPictures:
    if isinstance(subject, Model):
        return SubjectPictures("model", subject.digest, model=subject)
    if isinstance(subject, Samples):
        made = set_of_array(subject.pictures, "samples", subject.labels)
        return SubjectPictures(made.name, made.digest, pictures=made)
    if isinstance(subject, np.ndarray):
        made = set_of_array(subject, "array", None)
        return SubjectPictures(made.name, made.digest, pictures=made)
    path = user_path(subject)
    if (path / "model.json").is_file():
        model = open_model(path)
        return SubjectPictures(str(path), model.digest, model=model)
    if (path / "config.yaml").is_file():
        model = open_model(path)
        return SubjectPictures(str(path), model.digest, model=model, rundir=RunDir.open(path))
    _refuse_folder_of_runs(path)
    made = read_set(path, size=options.size, channels=options.channels)
    return SubjectPictures(str(path), made.digest, pictures=made)


def _refuse_folder_of_runs(path: Path) -> None:
    runs = sorted(path.glob("*/config.yaml")) if path.is_dir() else []
    if runs:
        raise ConfigError(
            f"{path}: a folder of {len(runs)} runs, expected one run; give {runs[-1].parent}"
        )


def _check_form(judged: SubjectPictures, options: EvaluationOptions) -> None:
    size, channels = judged.form
    for name, given, own in (
        ("size", options.size, size),
        ("channels", options.channels, channels),
    ):
        if given is not None and given != own:
            raise ConfigError(
                f"{field(name)} {given}: {judged.name} draws pictures of "
                f"{size}x{size}x{channels}, and is compared as it draws; leave {field(name)} out"
            )


def _with_classes(judged: SubjectPictures, classes: tuple[str, ...]) -> SubjectPictures:
    if judged.model is not None:
        if judged.model.unlabelled:
            return judged
        gone = [label for label in judged.model.labels if label not in classes]
        if len(gone) == len(judged.model.labels):
            return judged  # The data, or the comparison of both, will say what is wrong.
        model = judged.model.without(gone) if gone else judged.model
        return replace(judged, model=model, digest=model.digest)
    own = judged.pictures
    assert own is not None
    if own.labels is None:
        raise ConfigError(
            f"{field('classes')}: the pictures of {judged.name} have no labels; leave it out"
        )
    rows = [row for row, label in enumerate(own.labels) if label in classes]
    if not rows:
        raise ConfigError(
            f"{field('classes')}: {judged.name} has no picture of {', '.join(classes)}"
        )
    labels = tuple(own.labels[row] for row in rows)
    kept = replace(set_of_array(own.pictures[rows], own.name, labels), split=own.split)
    return replace(judged, pictures=kept, digest=kept.digest)
