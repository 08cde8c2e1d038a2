"""`manege evaluate`: any pictures against any others, the result with its whole protocol.

Opens what is to be judged (a run, a model, a folder, a file, an array) and what it is held against,
and hands two sets of pictures to `metrics`. A run keeps its evaluations.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from manege import pictures
from manege.config import DataConfig, resolve, stream
from manege.data import (
    KNOWN,
    Dataset,
    PictureSet,
    Split,
    has_labels,
    read_set,
    set_of,
    survey,
    toy_of,
)
from manege.errors import CheckpointError, ConfigError, DataError
from manege.files import read_capped
from manege.metrics import (
    MNIST_LOGITS,
    Contest,
    Counting,
    Estimate,
    Results,
    Score,
    Space,
    Telling,
    check_groups,
    classifier_for,
    load_space,
    measure,
    mnist_logits_space,
    random_space,
    save_space,
    scored_data,
    space_for,
    training_digest,
)
from manege.rundir import RunDir
from manege.sampler import Model, Samples, open_model, run_config
from manege.version import __version__

FORMAT = 1
FOLDER = "evaluations"
"""Where a run keeps them."""
MOST, USUAL = 10_000, 1_000
"""Pictures compared when nobody says how many: as many as the reference has, between these."""
FEWEST_OF_CLASS = 100
"""A model's class with fewer pictures among those drawn gets this many of its own."""
LOGITS_FILE = "lipizzaner_mnist_cnn.pkl"

_ACCURATE = 0.95
_CAP_BYTES = 1 << 26

Subject = str | Path | Model | Samples | np.ndarray
"""What can be judged."""


@dataclass(frozen=True)
class Options:
    """How to compare; the defaults are the command's."""

    metrics: tuple[str, ...] | None = None
    """Groups of scores, all that can be had when None."""
    samples: int | None = None
    per_class: bool = False
    features: str = "auto"
    """auto, classifier, random, mnist-logits[=FILE], or a folder with a scorer."""
    classes: tuple[str, ...] | None = None
    size: int | None = None
    channels: int | None = None
    reference: str = Split.HELD_OUT.value
    """The split to hold against: held-out or train."""
    seed: int = 0
    allow_few_samples: bool = False
    data_root: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """Scores with all that they depend on."""

    protocol: dict[str, Any]
    scores: tuple[Score, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    file: Path | None = None
    """Where a run keeps it."""

    def score(self, name: str, label: str | None = None) -> Score:
        """The score of that name, with or without its space; KeyError when there is none."""
        for one in self.scores:
            if name in (one.name, one.full_name) and one.label == label:
                return one
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": FORMAT,
            "manege": __version__,
            "protocol": self.protocol,
            "scores": [score.as_dict() for score in self.scores],
            "left_out": self.left_out,
        }


@dataclass(frozen=True)
class _Judged:
    """What is to be judged, opened."""

    name: str
    digest: str
    model: Model | None = None
    pictures: PictureSet | None = None
    rundir: RunDir | None = None


@dataclass(frozen=True)
class _Against:
    """What it is held against."""

    reference: PictureSet
    other: PictureSet | None = None
    dataset: Dataset | None = None
    scored: Dataset | None = None
    """All classes of the same source: what the feature network is made from."""


def evaluate(
    subject: Subject,
    data: str | Path | np.ndarray | None = None,
    options: Options | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    counting: Counting = lambda verb: None,
) -> Evaluation:
    """Scores of the subject's pictures against the data's.

    Args:
        subject: a run, a model, a folder or .npz of pictures, or an array N×S×S×C of bytes.
        data: a dataset's name, a folder, an .npz or an array; a run's own data when None.
        options: what to compute, and how.
        say: told warnings and what takes long.
        counting: from a verb to a progress display.
    """
    options = options or Options()
    groups = check_groups(options.metrics)
    if options.samples is not None and options.samples < 1:
        raise ConfigError(f"--samples {options.samples}: expected at least 1")
    judged = _open_subject(subject, options)
    against = _open_reference(data, judged, options)
    judged = _restricted(judged, against, options)
    space = _open_space(judged, against, options, say, counting)
    count = _count(judged, against, options)
    protocol = _protocol(judged, against, space, options, count)
    stored = _stored(judged, protocol)
    if stored is not None:
        say(f"evaluated before: {stored.file}")
        return stored
    contest = _contest(judged, against, space, options, count, counting)
    results = measure(contest, groups, counting)
    evaluation = Evaluation(protocol, tuple(results.scores), results.left_out)
    if judged.rundir is None:
        return evaluation
    return _keep(judged.rundir, evaluation, results, space)


def _open_subject(subject: Subject, options: Options) -> _Judged:
    if isinstance(subject, Model):
        return _Judged("model", subject.digest, model=subject)
    if isinstance(subject, Samples):
        made = _set_of_array(subject.pictures, "samples", subject.labels)
        return _Judged(made.name, made.digest, pictures=made)
    if isinstance(subject, np.ndarray):
        made = _set_of_array(subject, "array", None)
        return _Judged(made.name, made.digest, pictures=made)
    path = Path(subject).expanduser()
    if (path / "model.json").is_file():
        model = open_model(path)
        return _Judged(str(path), model.digest, model=model)
    if (path / "config.yaml").is_file():
        model = open_model(path)
        return _Judged(str(path), model.digest, model=model, rundir=RunDir.open(path))
    made = read_set(path, size=options.size, channels=options.channels)
    return _Judged(str(path), made.digest, pictures=made)


def _set_of_array(
    pictures_NSSC: np.ndarray, name: str, labels: tuple[str, ...] | None
) -> PictureSet:
    array = pictures_NSSC[..., np.newaxis] if pictures_NSSC.ndim == 3 else pictures_NSSC
    if array.ndim != 4 or array.dtype != np.uint8 or array.shape[1] != array.shape[2]:
        raise DataError(
            f"array of {array.dtype} {array.shape}: expected uint8, N×S×S×C with square pictures"
        )
    digest = hashlib.sha256(np.ascontiguousarray(array).data)
    digest.update(json.dumps([array.shape, labels]).encode())
    return PictureSet(name, "all", array, labels, digest.hexdigest())


def _open_reference(
    data: str | Path | np.ndarray | None, judged: _Judged, options: Options
) -> _Against:
    if options.reference not in [split.value for split in Split]:
        raise ConfigError(f"--reference {options.reference}: expected held-out or train")
    if isinstance(data, np.ndarray):
        return _Against(_set_of_array(data, "array", None))
    # Pictures of whatever size, without labels, are a reference too.
    if data is not None and str(data) not in KNOWN and not has_labels(Path(data)):
        size, channels = _form(judged, options)
        return _Against(read_set(Path(data), size=size, channels=channels))
    config = _data_config(data, judged, options)
    dataset = survey(config)
    limit = max(MOST, options.samples or 0)
    chosen = Split(options.reference)
    train, held_out = (set_of(dataset, split, limit) for split in Split)
    reference, other = (train, held_out) if chosen is Split.TRAIN else (held_out, train)
    return _Against(reference, other if len(other) else None, dataset, scored_data(config))


def _form(judged: _Judged, options: Options) -> tuple[int | None, int | None]:
    """The size and channels the reference has to have; a model's where there is one."""
    if judged.model is not None:
        return judged.model.shape.size, judged.model.shape.channels
    return options.size, options.channels


def _data_config(data: str | Path | None, judged: _Judged, options: Options) -> DataConfig:
    size, channels = _form(judged, options)
    if data is not None:
        return resolve(
            flags={
                "data.source": str(data),
                "data.root": options.data_root,
                "data.classes": options.classes,
                "data.size": size,
                "data.channels": channels,
                "networks.kind": "mlp",  # The toys want it; nothing is trained here.
            }
        ).data
    if judged.rundir is None:
        raise ConfigError(f"{judged.name}: nothing to compare it with; give --data")
    config = run_config(judged.rundir).data
    changes = {"classes": options.classes or config.classes, "root": options.data_root}
    return config.model_copy(update={k: v for k, v in changes.items() if v is not None})


def _restricted(judged: _Judged, against: _Against, options: Options) -> _Judged:
    """The subject with the classes that count, of the same form as the reference."""
    judged = _with_classes(judged, options.classes)
    form = against.reference.size, against.reference.channels
    if judged.model is not None:
        own = judged.model.shape.size, judged.model.shape.channels
        _require_same_labels(judged, judged.model, against, options)
    else:
        assert judged.pictures is not None
        own = judged.pictures.size, judged.pictures.channels
    if own != form:
        raise DataError(
            f"{judged.name}: pictures of {own[0]}x{own[0]}x{own[1]}, but {against.reference.name} "
            f"has {form[0]}x{form[0]}x{form[1]}; bring both to one form with --size and --channels"
        )
    return judged


def _with_classes(judged: _Judged, classes: tuple[str, ...] | None) -> _Judged:
    if classes is None:
        return judged
    if judged.model is not None:
        if judged.model.unlabelled:
            return judged
        gone = [label for label in judged.model.labels if label not in classes]
        model = judged.model.without(gone) if gone else judged.model
        return replace(judged, model=model, digest=model.digest)
    assert judged.pictures is not None
    own = judged.pictures
    if own.labels is None:
        raise ConfigError(f"--classes: the pictures of {judged.name} have no labels")
    rows = [row for row, label in enumerate(own.labels) if label in classes]
    if not rows:
        raise ConfigError(f"--classes: {judged.name} has no picture of {', '.join(classes)}")
    labels = tuple(own.labels[row] for row in rows)
    kept = replace(
        _set_of_array(own.pictures[rows], own.name, labels), name=own.name, split=own.split
    )
    return replace(judged, pictures=kept, digest=kept.digest)


def _require_same_labels(
    judged: _Judged, model: Model, against: _Against, options: Options
) -> None:
    if against.dataset is None:
        return
    if model.unlabelled:
        return  # One GAN for all the data: its pictures have no labels.
    wanted, have = against.dataset.labels, model.labels
    common = [label for label in wanted if label in have]
    lacking = [label for label in wanted if label not in have]
    beside = [label for label in have if label not in wanted]
    if not lacking and not beside:
        return
    if lacking:
        reason = model.missing.get(lacking[0])
        what = f"the model has no class {lacking[0]!r}" + (f" ({reason})" if reason else "")
    else:
        what = f"the model draws class {beside[0]!r}, which {against.dataset.name} has not"
    remedy = f"leave it out with --classes {','.join(common)}" if common else "give other --data"
    raise ConfigError(f"{judged.name}: {what}; {remedy}")


def _open_space(
    judged: _Judged,
    against: _Against,
    options: Options,
    say: Callable[[str], None],
    counting: Counting,
) -> Space:
    reference, dataset = against.reference, against.scored
    telling = Telling(say, counting("feature network: seen"))
    kind, _, file = options.features.partition("=")
    match kind:
        case "auto":
            if dataset is None:
                return random_space(reference.size, reference.channels)
            return _own_scorer(judged, dataset) or space_for(dataset, telling)
        case "classifier":
            if dataset is None:
                raise ConfigError(
                    f"--features classifier: {reference.name} has no labels; use --features random"
                )
            return classifier_for(dataset, telling)
        case "random":
            if reference.channels == 2:
                raise ConfigError("--features random: points are their own features; leave it out")
            return random_space(reference.size, reference.channels)
        case "mnist-logits":
            return _logits_space(Path(file) if file else None, against, options, say)
    return _given_scorer(Path(options.features).expanduser(), dataset)


def _own_scorer(judged: _Judged, dataset: Dataset) -> Space | None:
    """The scorer a run has stored, when it was made from this data."""
    folder = judged.rundir.path / "scorer" if judged.rundir else None
    if folder is None or not folder.is_dir():
        return None
    space = load_space(folder)
    return space if space.trained_on == training_digest(dataset) else None


def _given_scorer(folder: Path, dataset: Dataset | None) -> Space:
    if not folder.is_dir():
        raise ConfigError(
            f"--features {folder}: expected auto, classifier, random, mnist-logits, "
            "mnist-logits=FILE, or the scorer/ folder of a run"
        )
    space = load_space(folder)
    if space.trained_on is not None and (
        dataset is None or space.trained_on != training_digest(dataset)
    ):
        known = ", ".join(space.labels[:6])
        raise ConfigError(
            f"--features {folder}: a scorer of another dataset (it knows {known}; "
            f"{space.size}x{space.size}x{space.channels}); leave --features out and one is made "
            "for this data"
        )
    return space


def _logits_space(
    path: Path | None, against: _Against, options: Options, say: Callable[[str], None]
) -> Space:
    if path is None:
        root = options.data_root or os.environ.get("MANEGE_DATA")
        if root is None:
            raise ConfigError(
                f"--features {MNIST_LOGITS}: where is {LOGITS_FILE}? give "
                f"--features {MNIST_LOGITS}=FILE, or put it into classifiers/ below --data-root"
            )
        path = Path(root) / "classifiers" / LOGITS_FILE
    space = mnist_logits_space(path)
    reference = against.reference
    if reference.labels is not None and set(reference.labels) <= set(space.labels):
        found = space.labels_of(space.features_of(reference))
        right = np.mean([str(one) for one in found] == np.array(reference.labels))
        if right < _ACCURATE:
            say(
                f"warning: {path.name} is right on {right:.1%} of {reference.name}, not on 99 % "
                "as on MNIST; its logits mean little here"
            )
    return space


def _count(judged: _Judged, against: _Against, options: Options) -> int:
    """How many of the subject's pictures are compared."""
    if judged.model is not None:
        return options.samples or min(MOST, max(USUAL, len(against.reference)))
    assert judged.pictures is not None
    have = len(judged.pictures)
    if options.samples is not None and options.samples > have:
        raise DataError(
            f"{judged.name}: {have} pictures, but --samples {options.samples}; give fewer"
        )
    return options.samples or min(MOST, have)


def _contest(
    judged: _Judged,
    against: _Against,
    space: Space,
    options: Options,
    count: int,
    counting: Counting,
) -> Contest:
    generated = (
        _chosen(judged.pictures, count, options.seed)
        if judged.pictures is not None
        else _drawn(judged, count, options, counting)
    )
    dataset = against.dataset
    return Contest(
        generated=generated,
        reference=against.reference,
        space=space,
        other=against.other,
        # A folder may be called like a toy; its pictures are no points.
        toy=toy_of(dataset.name) if dataset is not None and dataset.channels == 2 else None,
        classes=_classes(judged, generated, dataset, options) if options.per_class else {},
        seed=options.seed,
        allow_few=options.allow_few_samples,
    )


def _drawn(judged: _Judged, count: int, options: Options, counting: Counting) -> PictureSet:
    assert judged.model is not None
    drawn = judged.model.sample(count, seed=options.seed, progress=counting("drawn"))
    labels = None if judged.model.unlabelled else drawn.labels
    return PictureSet(judged.name, "all", drawn.pictures, labels, judged.digest)


def _chosen(own: PictureSet, count: int, seed: int) -> PictureSet:
    """Some of the pictures in random order: a folder's lie there class after class."""
    rows = stream(seed, cell="", purpose="evaluation subject").permutation(len(own))[:count]
    labels = None if own.labels is None else tuple(own.labels[row] for row in rows)
    return replace(own, pictures=own.pictures[rows], labels=labels)


def _classes(
    judged: _Judged, generated: PictureSet, dataset: Dataset | None, options: Options
) -> dict[str, np.ndarray | None]:
    """The classes to score one by one; a model draws more of those it drew few of."""
    if dataset is None or generated.labels is None:
        whose = judged.name if generated.labels is None else "the data"
        raise ConfigError(f"--per-class: {whose} has no labels")
    classes: dict[str, np.ndarray | None] = {}
    for label in dataset.labels:
        few = generated.labels.count(label) < FEWEST_OF_CLASS
        classes[label] = (
            judged.model.pictures_of(label, FEWEST_OF_CLASS, options.seed)
            if few and judged.model is not None
            else None
        )
    return classes


def _protocol(
    judged: _Judged, against: _Against, space: Space, options: Options, count: int
) -> dict[str, Any]:
    """Everything the numbers depend on."""
    reference = against.reference
    return {
        "subject": {"name": judged.name, "digest": judged.digest, "pictures": count},
        "reference": {
            "name": reference.name,
            "split": reference.split,
            "rule": against.dataset.held_out_rule if against.dataset else None,
            "pictures": len(reference),
            "digest": reference.digest,
            "classes": list(against.dataset.labels) if against.dataset else None,
        },
        "space": space.description(),
        "metrics": list(options.metrics) if options.metrics else None,
        "per_class": options.per_class,
        "allow_few_samples": options.allow_few_samples,
        "seed": options.seed,
    }


def _key(protocol: dict[str, Any]) -> str:
    """Names a run's evaluation: what the numbers depend on, but not where the run lies."""
    subject = {k: v for k, v in protocol["subject"].items() if k != "name"}
    spelled = json.dumps([FORMAT, {**protocol, "subject": subject}], sort_keys=True)
    return hashlib.sha256(spelled.encode()).hexdigest()[:12]


def _stored(judged: _Judged, protocol: dict[str, Any]) -> Evaluation | None:
    """What the same command found out before, if the run has kept it."""
    if judged.rundir is None:
        return None
    path = judged.rundir.path / FOLDER / f"{_key(protocol)}.json"
    try:
        tree = json.loads(read_capped(path, _CAP_BYTES))
        scores = tuple(_score(entry) for entry in tree["scores"])
        return Evaluation(tree["protocol"], scores, dict(tree["left_out"]), path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r}); delete it and try again") from None


def _score(entry: dict[str, Any]) -> Score:
    fields = {key: value for key, value in entry.items() if key != "full_name"}
    floor = fields.pop("floor")
    marks = tuple(fields.pop("marks"))
    return Score(**fields, floor=Estimate(**floor) if floor else None, marks=marks)


def _keep(rundir: RunDir, evaluation: Evaluation, results: Results, space: Space) -> Evaluation:
    """Store it in the run, with its feature network and the pictures nearest to training ones."""
    if not (rundir.path / "scorer").exists():
        save_space(space, rundir.path / "scorer")
    key = _key(evaluation.protocol)
    if results.pairs is not None:
        drawn, real = results.pairs
        sheet = pictures.grid(np.concatenate([drawn, real]), columns=len(drawn))
        recipe = {"rows": "generated, nearest training picture", "evaluation": key}
        scale = pictures.viewing_scale(drawn.shape[1])
        rundir.write_bytes(f"{FOLDER}/{key}-nearest.png", pictures.png_bytes(sheet, recipe, scale))
    name = f"{FOLDER}/{key}.json"
    rundir.write_json(name, evaluation.as_dict())
    return replace(evaluation, file=rundir.path / name)


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The whole of it, and where a run keeps it."""
    return {**evaluation.as_dict(), "file": str(evaluation.file) if evaluation.file else None}
