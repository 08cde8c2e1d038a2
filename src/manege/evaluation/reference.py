"""Open the data that pictures are compared with, and the feature space to do it in."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manege.config import DataConfig, resolve
from manege.config.schema import TOY_NAMES
from manege.data import (
    KNOWN,
    STACKED,
    Dataset,
    PictureSet,
    Toy,
    has_labels,
    read_set,
    set_of,
    survey_measured,
    toy_of,
)
from manege.data import Split as DataSplit
from manege.errors import ConfigError, DataError, MachineError, field
from manege.evaluation.options import SPACES, EvaluationOptions
from manege.evaluation.subject import MOST, SubjectPictures, set_of_array
from manege.files import user_path
from manege.metrics import (
    CLASSIFIER,
    CLEAN,
    INCEPTION,
    LITE0,
    MNIST_LOGITS,
    POINTS,
    RANDOM,
    Counting,
    Space,
    Telling,
    classifier_for,
    feature_weights,
    inception_space,
    is_stored,
    kind_of,
    lite0_space,
    load_space,
    load_weights,
    mnist_logits_space,
    random_space,
    scored_data,
    space_for,
    training_digest,
)
from manege.models import PictureShape
from manege.sampler import run_config

LOGITS_FILE = "lipizzaner_mnist_cnn.pkl"

_ACCURATE = 0.95


@dataclass(frozen=True)
class Reference:
    """The pictures that the subject is compared with, and the data they are from."""

    reference: PictureSet
    other: PictureSet | None = None
    """The other split of the same data."""
    dataset: Dataset | None = None
    """The labelled data they are from; None for pictures without labels."""
    config: DataConfig | None = None

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Return the data's labels, None when it has none."""
        return None if self.dataset is None else self.dataset.labels

    @property
    def stacked(self) -> bool:
        """Return whether its pictures are three digits stacked."""
        named = self.config is not None and self.config.source == STACKED
        return named and self.reference.channels == 3

    @property
    def toy(self) -> Toy | None:
        """Return the toy data it is, with the modes of the chosen classes only, or None."""
        # A folder may be called like a toy; its pictures are no points.
        if self.dataset is None or self.dataset.channels != 2:
            return None
        toy = toy_of(self.dataset.name)
        return None if toy is None else toy.restricted(self.dataset.labels)


def open_reference(
    data: str | Path | np.ndarray | None, judged: SubjectPictures, options: EvaluationOptions
) -> Reference:
    """Open the data to compare with, in the size and channels of the subject's pictures."""
    if isinstance(data, np.ndarray):
        _require_no_labels_wanted("the array", options)
        against = Reference(set_of_array(data, "array", None))
    else:
        _require_same_kind(data, judged)
        against = _opened(data, judged, options)
    _require_same_form(judged, against)
    if judged.model is not None and not judged.model.unlabelled:
        _require_same_labels(judged, against)
    return against


def _opened(
    data: str | Path | None, judged: SubjectPictures, options: EvaluationOptions
) -> Reference:
    size, channels = judged.form if judged.model is not None else (options.size, options.channels)
    # Pictures of whatever side, without labels, are a reference too.
    path = None if data is None or str(data) in KNOWN else user_path(data)
    if path is not None and path.exists() and not has_labels(path):
        _require_no_labels_wanted(str(path), options)
        return Reference(read_set(path, size=size, channels=channels))
    config = _data_config(data, judged, options)
    dataset = survey_measured(config, size, channels)
    limit = max(MOST, options.samples or 0)
    train, held_out = (set_of(dataset, split, limit) for split in DataSplit)
    reference, other = (train, held_out) if options.split is DataSplit.TRAIN else (held_out, train)
    return Reference(reference, other if len(other) else None, dataset, config)


def _data_config(
    data: str | Path | None, judged: SubjectPictures, options: EvaluationOptions
) -> DataConfig:
    if data is not None:
        return resolve(
            flags={
                "data.source": str(data),
                "data.root": options.data_root,
                "data.classes": options.classes,
                "networks.kind": "mlp",  # The toys want it; nothing is trained here.
            }
        ).data
    if judged.rundir is None:
        raise ConfigError(f"{judged.name}: nothing to compare it with; give {field('data')}")
    config = run_config(judged.rundir).data
    changes = {"classes": options.classes, "root": options.data_root}
    return config.model_copy(update={k: v for k, v in changes.items() if v is not None})


def _require_no_labels_wanted(name: str, options: EvaluationOptions) -> None:
    classes = None if options.classes is None else ",".join(options.classes)
    for name_of, given in (("reference", options.reference), ("classes", classes)):
        if given is not None:
            raise ConfigError(
                f"{field(name_of)} {given}: {name} has no labels and no split of its own; leave "
                f"{field(name_of)} out"
            )


def _require_same_kind(data: str | Path | None, judged: SubjectPictures) -> None:
    """Raise ConfigError when points would be compared with pictures."""
    if judged.model is None or data is None:
        return
    points, wanted = judged.form == (1, 2), str(data) in TOY_NAMES
    if points and not wanted and (str(data) in KNOWN or not str(data).endswith(".npz")):
        toys = " or ".join(TOY_NAMES)
        raise ConfigError(
            f"{judged.name}: draws points, {data} holds pictures; give {field('data')} {toys}"
        )
    if wanted and not points:
        raise ConfigError(
            f"{judged.name}: draws pictures, {data} holds points; give the {field('data')} it was "
            "trained on"
        )


def _require_same_form(judged: SubjectPictures, against: Reference) -> None:
    own, form = judged.form, (against.reference.size, against.reference.channels)
    if own == form:
        return
    remedy = "compare points with points, pictures with pictures"
    if (1, 2) not in (own, form):
        remedy = f"bring both to one form with {field('size')} and {field('channels')}"
    raise DataError(
        f"{judged.name}: pictures of {own[0]}x{own[0]}x{own[1]}, but {against.reference.name} has "
        f"{form[0]}x{form[0]}x{form[1]}; {remedy}"
    )


def _require_same_labels(judged: SubjectPictures, against: Reference) -> None:
    model = judged.model
    if against.dataset is None or model is None:
        return
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
    remedy = f"give other {field('data')}"
    if common:
        remedy = f"leave it out with {field('classes')} {','.join(common)}"
    raise ConfigError(f"{judged.name}: {what}; {remedy}")


def planned_kind(options: EvaluationOptions, against: Reference) -> str:
    """Return the kind of feature space that the options mean, as far as known before opening it."""
    kind = options.features.partition("=")[0]
    if kind != "auto":
        return kind
    if against.reference.channels == 2:
        return POINTS
    try:
        feature_weights(options.feature_weights)
    except MachineError:
        return kind
    return LITE0


def open_space(
    judged: SubjectPictures,
    against: Reference,
    options: EvaluationOptions,
    say: Callable[[str], None],
    counting: Counting,
) -> Space:
    """Open the feature space that the options name; train its network if there is none yet."""
    reference = against.reference
    shape = PictureShape(reference.size, reference.channels)
    kind, _, file = options.features.partition("=")
    if kind in (CLASSIFIER, RANDOM, INCEPTION, CLEAN, LITE0) and shape.channels == 2:
        raise ConfigError(
            f"{field('features')} {kind}: points are their own features; leave it out"
        )
    telling = Telling(say, counting("feature network: seen"))
    match kind:
        case "auto":
            return space_for(shape, against.config, telling, options.feature_weights)
        case "lite0":
            weights = feature_weights(options.feature_weights)
            return lite0_space(shape.size, shape.channels, weights)
        case "inception" | "inception-clean":
            published = load_weights(options.inception_weights)
            return inception_space(published, kind, shape.size, shape.channels)
        case "classifier":
            if against.config is None:
                raise ConfigError(
                    f"{field('features')} classifier: {reference.name} has no labels; use "
                    f"{field('features')} lite0"
                )
            return _classifier(judged, against, telling)
        case "random":
            return random_space(shape.size, shape.channels)
        case "mnist-logits":
            return _logits_space(user_path(file) if file else None, against, options, say)
    return _given_scorer(user_path(options.features), against, options)


def open_labeller(
    judged: SubjectPictures,
    against: Reference,
    space: Space,
    say: Callable[[str], None],
    counting: Counting,
) -> Space | None:
    """Return the data's classifier, which labels pictures where Lite0 is the space, or None."""
    dataset = against.dataset
    if space.kind != LITE0 or against.config is None or dataset is None or len(dataset.labels) < 2:
        return None
    return _classifier(judged, against, Telling(say, counting("feature network: seen")))


def _classifier(judged: SubjectPictures, against: Reference, telling: Telling) -> Space:
    """Return the data's classifier, from the run if it has kept one."""
    assert against.config is not None
    reference = against.reference
    scored = scored_data(against.config, reference.size, reference.channels)
    return _kept_classifier(judged, scored) or classifier_for(scored, telling)


def open_digits_space(against: Reference, say: Callable[[str], None], counting: Counting) -> Space:
    """Return MNIST's classifier, which tells the digits of stacked pictures."""
    assert against.config is not None
    digits = DataConfig(source="mnist", root=against.config.root)
    telling = Telling(say, counting("feature network: seen"))
    return classifier_for(scored_data(digits, against.reference.size, 1), telling)


def _kept_classifier(judged: SubjectPictures, scored: Dataset) -> Space | None:
    """Return the classifier that the run has stored, if it was trained on this data."""
    if judged.rundir is None:
        return None
    for name in ("classifier", "scorer"):
        folder = judged.rundir.path / name
        if not is_stored(folder) or (name == "scorer" and kind_of(folder) != CLASSIFIER):
            continue
        space = load_space(folder)
        if space.trained_on != training_digest(scored):
            continue
        if (space.size, space.channels) != (scored.size, scored.channels):
            raise DataError(
                f"{folder}: made for pictures of {space.size}x{space.size}x{space.channels}, these "
                f"are {scored.size}x{scored.size}x{scored.channels}; delete the folder and it is "
                "made again"
            )
        return space
    return None


def _given_scorer(folder: Path, against: Reference, options: EvaluationOptions) -> Space:
    if not folder.is_dir():
        raise ConfigError(f"{field('features')} {folder}: expected {SPACES}")
    space = load_space(folder, options.feature_weights)
    reference = against.reference
    if space.trained_on is not None and (
        against.config is None
        or space.trained_on
        != training_digest(scored_data(against.config, reference.size, reference.channels))
    ):
        known = ", ".join(space.labels[:6])
        raise ConfigError(
            f"{field('features')} {folder}: a scorer of another dataset (it knows {known}; "
            f"{space.size}x{space.size}x{space.channels}); leave {field('features')} out and one "
            "is made for this data"
        )
    return space


def _logits_space(
    path: Path | None, against: Reference, options: EvaluationOptions, say: Callable[[str], None]
) -> Space:
    if path is None:
        root = options.data_root or os.environ.get("MANEGE_DATA")
        if root is None:
            raise ConfigError(
                f"{field('features')} {MNIST_LOGITS}: where is {LOGITS_FILE}? give "
                f"{field('features')} {MNIST_LOGITS}=FILE, or put it into classifiers/ below "
                f"{field('data_root')}"
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
