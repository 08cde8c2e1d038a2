"""Run an evaluation: open the pictures, draw samples, compute the scores, store them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from manege import plugins
from manege.data import Dataset, PictureSet
from manege.errors import ConfigError, field
from manege.evaluation.checking import checks_of
from manege.evaluation.kept import Evaluation, keep, stored
from manege.evaluation.options import EvaluationOptions
from manege.evaluation.reference import (
    Reference,
    open_digits_space,
    open_labeller,
    open_reference,
    open_space,
    planned_kind,
)
from manege.evaluation.subject import Subject, SubjectPictures, open_subject
from manege.metrics import (
    Counting,
    Preconditions,
    ScoredSets,
    Space,
    check_facts,
    check_groups,
    measure,
    planned_dimensions,
    why_not,
)

FEWEST_OF_CLASS = 100
"""If fewer pictures of a class were drawn, a model draws this many of it for its own scores."""


def evaluate(
    subject: Subject,
    data: str | Path | np.ndarray | None = None,
    options: EvaluationOptions | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    counting: Counting = lambda verb: None,
) -> Evaluation:
    """Score the subject's pictures against the data's.

    Args:
        subject: a run, a model, a folder or .npz of pictures, or an array N×S×S×C of bytes.
        data: a dataset's name, a folder, an .npz or an array; a run's own data when None.
        options: what to compute, and how.
        say: told warnings and what takes long.
        counting: from a verb to a progress display.
    """
    options = options or EvaluationOptions()
    # All that can be refused at once comes before anything that takes long.
    options.check()
    options = replace(options, metrics=check_groups(options.metrics))
    judged = open_subject(subject, options)
    against = open_reference(data, judged, options)
    count = judged.count(len(against.reference), options)
    kind = planned_kind(options, against)
    facts = Preconditions(
        generated=(judged.name, count),
        reference=against.reference,
        other=against.other,
        toy=against.toy,
        stacked=against.stacked,
        kind=kind,
        dimensions=planned_dimensions(kind, against.reference.channels),
        allow_few=options.allow_few_samples,
    )
    check_facts(facts, options.metrics)
    if options.per_class:
        _require_labels(judged, against)
    space = open_space(judged, against, options, say, counting)
    labeller = None
    if options.metrics is None or "labels" in options.metrics:
        labeller = open_labeller(judged, against, space, say, counting)
    facts = facts.within(space, labeller)
    check_facts(facts, options.metrics)
    stacked = None
    if against.stacked and (options.metrics is None or "modes" in options.metrics):
        stacked = open_digits_space(against, say, counting)
    protocol = _protocol(judged, against, space, options, count)
    own = [name for name in options.metrics or () if plugins.is_reference(name)]
    if own:
        protocol["sources"] = {name: plugins.source_digest(name, "metrics") for name in own}
    if labeller is not None:
        protocol["labeller"] = labeller.description()
    if stacked is not None:
        protocol["digits"] = stacked.description()
    if (known := stored(judged.rundir, protocol)) is not None:
        say(f"evaluated before: {known.file}")
        # Whoever kept it may have known the fields by other names.
        left_out = {what: why_not(what, facts) or why for what, why in known.left_out.items()}
        return replace(known, left_out=left_out)
    spaces = {one.name: one for one in (space, labeller) if one is not None}
    controls = checks_of(judged, against, spaces.values())
    generated = judged.drawn(count, options.seed, counting)
    contest = ScoredSets(
        generated=generated,
        reference=against.reference,
        space=space,
        labeller=labeller,
        other=against.other,
        toy=against.toy,
        stacked=stacked,
        classes=_classes(judged, generated, against.dataset, options) if options.per_class else {},
        seed=options.seed,
        allow_few=options.allow_few_samples,
        blind=frozenset(name for name, one in controls.items() if one["blind"]),
    )
    results = measure(contest, options.metrics, counting)
    evaluation = Evaluation(protocol, tuple(results.scores), results.left_out, controls)
    if judged.rundir is None:
        return evaluation
    return keep(judged.rundir, evaluation, results, labeller or space)


def _require_labels(judged: SubjectPictures, against: Reference) -> None:
    for name, labels in ((judged.name, judged.labels), ("the data", against.labels)):
        if labels is None:
            raise ConfigError(
                f"{field('per_class')}: {name} has no labels; leave {field('per_class')} out"
            )


def _classes(
    judged: SubjectPictures,
    generated: PictureSet,
    dataset: Dataset | None,
    options: EvaluationOptions,
) -> dict[str, np.ndarray | None]:
    """Return the classes to score one by one; a model draws more of those it drew few of."""
    assert dataset is not None
    assert generated.labels is not None
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
    judged: SubjectPictures,
    against: Reference,
    space: Space,
    options: EvaluationOptions,
    count: int,
) -> dict[str, Any]:
    """Return everything that the scores depend on, for JSON."""
    reference = against.reference
    return {
        "subject": {"name": judged.name, "digest": judged.digest, "pictures": count},
        "reference": {
            "name": reference.name,
            "split": reference.split,
            "rule": against.dataset.held_out_rule if against.dataset else None,
            "pictures": len(reference),
            "digest": reference.digest,
            "other": against.other.digest if against.other else None,
            "classes": list(against.dataset.labels) if against.dataset else None,
        },
        "space": space.description(),
        "metrics": list(options.metrics) if options.metrics else None,
        "per_class": options.per_class,
        "allow_few_samples": options.allow_few_samples,
        "seed": options.seed,
    }
