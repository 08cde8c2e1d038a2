"""Open what a trial needs: a run's model, its training pictures, and pictures nobody saw.

A class's held-out pictures lie in the order of a hash. The first third calibrates: it sets the
gate's bounds, and chooses which of two arms is tested. The rest is the test, which no training
and no choice uses; a picture that equals one outside of it is left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manege.config import DataConfig, RunConfig
from manege.data import KNOWN, Dataset, Split, object_name, open_dataset, own_dataset
from manege.errors import ConfigError, DataError, field
from manege.files import user_path
from manege.runs import RunDir
from manege.sampler import Model, open_model, run_config, run_data

EVEN = 0.9
"""Data whose smallest class has this share of the largest have nothing to balance."""

_FEWEST_SEEDS, _MOST_SEEDS = 2, 100
_MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class VerdictOptions:
    """The options of a trial; the defaults are the command's."""

    data: str | None = None
    """Where the run's data are now; where training found them when None."""
    data_root: str | None = None
    seeds: int = 5
    steps: int | None = None
    """Gradient steps of every training; derived from the number of pictures when None."""
    gate: bool = False
    seed: int = 0
    """Seed of the pictures that the model draws."""
    workers: int = 1
    """Trainings at the same time; their number does not change the result."""

    def check(self) -> None:
        """Raise ConfigError if an option is out of range, whatever the run."""
        if not _FEWEST_SEEDS <= self.seeds <= _MOST_SEEDS:
            raise ConfigError(
                f"{field('seeds')} {self.seeds}: expected {_FEWEST_SEEDS} to {_MOST_SEEDS}, since "
                "one alone cannot tell luck from help; choose another number"
            )
        if self.steps is not None and not 1 <= self.steps <= _MOST_STEPS:
            raise ConfigError(
                f"{field('steps')} {self.steps}: expected 1 to {_MOST_STEPS:,}; choose another "
                "number"
            )
        if self.seed < 0:
            raise ConfigError(f"{field('seed')} {self.seed}: expected 0 or more")


@dataclass(frozen=True)
class TrialData:
    """All that a trial needs; each split is a tuple of arrays N×S×S×C, one for each label."""

    rundir: RunDir
    model: Model
    labels: tuple[str, ...]
    train: tuple[np.ndarray, ...]
    calibration: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    mirrored: bool
    """Whether a mirrored picture is as valid as the picture."""
    duplicates: int
    """Held-out pictures left out of the test, since they are training or calibration pictures."""
    name: str
    """Name of the data."""
    rule: str
    """The rule by which the data were split."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of training pictures of each label."""
        return tuple(len(pictures) for pictures in self.train)

    @property
    def largest(self) -> int:
        """Return the number of training pictures of the largest class."""
        return max(self.counts)

    @property
    def lacks(self) -> dict[str, int]:
        """Return how many pictures each class has fewer than the largest."""
        return {
            label: self.largest - count
            for label, count in zip(self.labels, self.counts, strict=True)
        }

    @property
    def short(self) -> tuple[str, ...]:
        """Return the classes that synthetic pictures are added to."""
        return tuple(label for label, number in self.lacks.items() if number)

    @property
    def even(self) -> bool:
        """Return whether the classes are so even that there is nothing to balance."""
        return min(self.counts) >= EVEN * self.largest

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each split: of labels, pictures and their order."""
        return {
            part: _digest(self.labels, pictures)
            for part, pictures in (
                ("train", self.train),
                ("calibration", self.calibration),
                ("test", self.test),
            )
        }


def open_case(run: Path, options: VerdictOptions) -> TrialData:
    """Open the run and its data; refuse other data, and a model that lacks a class."""
    rundir = RunDir.open(run)
    config = run_config(rundir)
    model = open_model(run)
    labels = tuple(run_data(rundir)["classes"])
    require_classes(run, model, labels)
    if len(labels) < 2:
        raise ConfigError(
            f"{run}: trained on one class, expected two or more to tell apart; give another run"
        )
    dataset = open_dataset(_data_config(config, options))
    _require_same_data(run, rundir, dataset)
    train = tuple(dataset.pictures(label, Split.TRAIN) for label in dataset.labels)
    held_out = [dataset.pictures(label, Split.HELD_OUT) for label in dataset.labels]
    calibration = tuple(pictures[: len(pictures) // 3] for pictures in held_out)
    seen = {_name(picture) for part in (*train, *calibration) for picture in part}
    rest = [pictures[len(pictures) // 3 :] for pictures in held_out]
    test = tuple(part[[_name(picture) not in seen for picture in part]] for part in rest)
    for label, pictures in zip(dataset.labels, test, strict=True):
        if not len(pictures):
            raise DataError(
                f"{dataset.name}: class {label!r} has no held-out pictures of its own, expected "
                f"some to test on; add pictures, or train without it ({field('classes')})"
            )
    return TrialData(
        rundir=rundir,
        model=model,
        labels=dataset.labels,
        train=train,
        calibration=calibration,
        test=test,
        mirrored=dataset.flippable or bool(config.training.flip),
        duplicates=sum(map(len, rest)) - sum(map(len, test)),
        name=dataset.name,
        rule=dataset.held_out_rule,
    )


def require_classes(run: Path, model: Model, labels: tuple[str, ...]) -> None:
    """Raise ConfigError for a model that draws points or cannot draw some class."""
    if model.shape.channels == 2:
        raise ConfigError(f"{run}: draws points, expected pictures; give a run on pictures")
    lacking = [] if model.unlabelled else [one for one in labels if one not in model.labels]
    if lacking:
        reasons = [f"{one!r} ({model.missing.get(one, 'not trained')})" for one in lacking]
        raise ConfigError(
            f"{run}: the model is missing class {', '.join(reasons)}; expected every class of the "
            f"data; train them first: manege resume {run}"
        )


def _data_config(config: RunConfig, options: VerdictOptions) -> DataConfig:
    """Return the run's data configuration with its limits, at the place where the data are now."""
    changes: dict[str, str] = {}
    if options.data is not None:
        known = options.data in KNOWN or object_name(options.data) is not None
        own = own_dataset(options.data)
        changes["source"] = options.data if known else own or str(user_path(options.data))
    if options.data_root is not None:
        changes["root"] = options.data_root
    return config.data.model_copy(update=changes)


def _require_same_data(run: Path, rundir: RunDir, dataset: Dataset) -> None:
    """Raise DataError if the training pictures or classes are not those of the run."""
    known = run_data(rundir)["classes"]
    remedy = f"give {field('data')} the pictures it was trained on"
    if tuple(known) != dataset.labels:
        other = sorted({*known} ^ {*dataset.labels})
        raise DataError(
            f"{field('data')} {dataset.name}: its classes are not those of {run} "
            f"({', '.join(map(repr, other[:5]))}); {remedy}"
        )
    for label, entry in known.items():
        if entry.get("train_sha256") != dataset.digest(label, Split.TRAIN):
            raise DataError(
                f"{field('data')} {dataset.name}: the training pictures of class {label!r} are not "
                f"those of {run}, so nobody can say which ones its GAN saw; {remedy}"
            )


def _name(picture: np.ndarray) -> bytes:
    """Return a digest of the picture, the same for equal pictures."""
    return hashlib.blake2b(picture.tobytes(), digest_size=16).digest()


def _digest(labels: tuple[str, ...], parts: tuple[np.ndarray, ...]) -> str:
    digest = hashlib.sha256()
    for label, pictures in zip(labels, parts, strict=True):
        digest.update(repr((label, pictures.shape)).encode())
        digest.update(np.ascontiguousarray(pictures).data)
    return digest.hexdigest()
