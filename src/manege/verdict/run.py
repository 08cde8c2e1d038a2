"""Run the trial: open, draw, look for copies, train every arm and seed, compare, store."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manege import device
from manege.metrics.classifier import examples
from manege.metrics.copies import CopyBound
from manege.report.drawing import png_of
from manege.report.sections.verdict import drawings_of
from manege.verdict.arms import Arm, PicturePool, pool_of
from manege.verdict.case import TrialData, VerdictOptions, open_case
from manege.verdict.copying import Copies, copies_of
from manege.verdict.findings import MOST_LOOKED_AT, counts_of, findings_of, reversed_of, targets_of
from manege.verdict.gate import (
    Drawn,
    Gate,
    LabelClassifier,
    bounds_of,
    draw,
    gate_of,
    gate_space,
    train_looker,
)
from manege.verdict.judging import Recommendation, balanced_sentence
from manege.verdict.kept import Answers, TrialStore, key_of, result_name
from manege.verdict.look import Stopped, TrainingProgress, VerdictObserver
from manege.verdict.training import BATCH, RECIPE, TrainingSpec, probabilities, train
from manege.version import __version__
from manege.view.notebook import html_of_verdict

FORMAT = 1


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run, as in its verdict file."""

    tree: dict[str, Any]
    file: Path
    figure: Path
    pairs: Path | None
    """Picture of the nearest pairs; None where somebody has removed it."""

    @property
    def outcome(self) -> Recommendation:
        """Return the verdict in a word."""
        return Recommendation(self.tree["outcome"])

    @property
    def sentence(self) -> str:
        """Return the verdict in a sentence."""
        return str(self.tree["sentence"])

    def _repr_html_(self) -> str:
        return html_of_verdict(self.tree, self.figure)


def judge(
    run: Path, options: VerdictOptions | None = None, look: VerdictObserver | None = None
) -> Verdict:
    """Decide whether the run's pictures help a classifier; every training that is done is kept."""
    options, look = options or VerdictOptions(), look or VerdictObserver()
    options.check()
    case = open_case(run, options)
    steps = options.steps or examples(sum(case.counts)) // BATCH
    protocol = _protocol(case, options, steps)
    shelf = TrialStore(case.rundir, key_of(protocol))
    if (known := shelf.result(options.seeds)) is not None:
        look.say(f"judged before: {shelf.path(result_name(options.seeds))}")
        return _verdict(shelf, known, options.seeds)
    arms = (Arm.REAL, Arm.SYNTHETIC) if case.even else tuple(Arm)
    if case.even:
        look.say(balanced_sentence(min(case.counts), case.largest))
        look.say("only arms a and f are trained, for the classification accuracy score")
    known_looker = shelf.network(case.model.shape.channels, len(case.labels))
    needs_looker = (options.gate or case.model.unlabelled) and known_looker is None
    todo = sum(
        shelf.answers(arm, seed, counts_of(case, arm)) is None
        for seed in range(options.seeds)
        for arm in arms
    )
    work = TrainingProgress(look, max(1, todo + needs_looker), steps)
    try:
        return _tried(case, options, shelf, work, protocol, arms)
    except KeyboardInterrupt:
        in_all = options.seeds * len(arms)
        kept = in_all - todo + max(0, work.done - needs_looker)
        raise Stopped(
            f"stopped; {kept} of {in_all} trainings are kept, and the same command goes on"
        ) from None


def _tried(
    case: TrialData,
    options: VerdictOptions,
    shelf: TrialStore,
    work: TrainingProgress,
    protocol: Mapping[str, Any],
    arms: Sequence[Arm],
) -> Verdict:
    bounds = bounds_of(case)
    looker = _looker(case, shelf, work) if options.gate or case.model.unlabelled else None
    gate = None
    if options.gate and looker is not None:
        gate = gate_of(case, looker, bounds, work.look.say)
    work.look.say(f"drawing {case.largest:,} pictures of each class")
    drawn = _drawn(case, options.seed, looker, gate, work.look)
    work.look.say("looking for copies")
    copies = _copies(case, options, bounds, drawn, looker, work.look)
    pool = pool_of(case.train, [drawn[label].pictures for label in case.labels])
    # Seed by seed: what a stop leaves behind is paired.
    jobs = [(arm, seed) for seed in range(options.seeds) for arm in arms]
    # Here too, and not in each training alone: they set it for one another.
    with device.threads(1):
        found = work.side_by_side(
            lambda job: _answers(case, shelf, pool, *job, work), jobs, options.workers
        )
    answers = {
        arm: [one for (of, _), one in zip(jobs, found, strict=True) if of is arm] for arm in arms
    }
    tree = {
        "format": FORMAT,
        "manege": __version__,
        "protocol": {**protocol, "seeds": options.seeds},
        "versions": _versions(),
        **findings_of(case, pool, answers, copies),
        "gate": gate.description() if gate else None,
        "drawn": {label: one.record() for label, one in drawn.items()},
        "labelled_by": "classifier" if case.model.unlabelled else "model",
    }
    name = result_name(options.seeds)
    shelf.write("nearest.png", copies.png())
    shelf.write_json(name, tree)
    return _verdict(shelf, tree, options.seeds)


def _verdict(shelf: TrialStore, tree: dict[str, Any], seeds: int) -> Verdict:
    name = result_name(seeds)
    drawn = name.replace(".json", ".png")
    if not shelf.path(drawn).is_file():
        shelf.write(drawn, png_of(drawings_of(tree)))
    pairs = shelf.path("nearest.png")
    return Verdict(tree, shelf.path(name), shelf.path(drawn), pairs if pairs.is_file() else None)


def _protocol(case: TrialData, options: VerdictOptions, steps: int) -> dict[str, Any]:
    """Return all that a training depends on, but for its arm and seed."""

    def counted(parts: Sequence[np.ndarray]) -> dict[str, int]:
        return {label: len(part) for label, part in zip(case.labels, parts, strict=True)}

    space = gate_space(case) if options.gate else None
    return {
        "recipe": RECIPE,
        "model": case.model.digest,
        "data": {
            "name": case.name,
            "rule": case.rule,
            "sha256": case.digests(),
            "train": counted(case.train),
            "calibration": counted(case.calibration),
            "test": counted(case.test),
            "duplicates": case.duplicates,
        },
        "steps": steps,
        "batch": BATCH,
        "mirrored": case.mirrored,
        "gate": options.gate,
        **({} if space is None else {"gate_space": space.name}),
        "sample_seed": options.seed,
        "torch": torch.__version__,
    }


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _looker(case: TrialData, shelf: TrialStore, work: TrainingProgress) -> LabelClassifier:
    found = shelf.network(case.model.shape.channels, len(case.labels))
    if found is not None:
        return LabelClassifier(found)
    looker = train_looker(case, work)
    shelf.keep_network(looker.network)
    return looker


def _drawn(
    case: TrialData,
    seed: int,
    looker: LabelClassifier | None,
    gate: Gate | None,
    look: VerdictObserver,
) -> dict[str, Drawn]:
    """Draw as many of each class as the largest has, or as many as pass, but all that it lacks."""
    wanted = dict.fromkeys(case.labels, case.largest)
    sieve = None if gate is None else gate.sieve(look)
    found = draw(case.model, wanted, seed, sieve=sieve, looker=looker, progress=look.drawn)
    for label, number in case.lacks.items():
        found[label].require(label, max(1, number))
    return found


def _copies(
    case: TrialData,
    options: VerdictOptions,
    bounds: Mapping[str, CopyBound],
    drawn: Mapping[str, Drawn],
    looker: LabelClassifier | None,
    look: VerdictObserver,
) -> Copies:
    """Find near-copies among the pictures that would be added, before any gate.

    Where nothing would be added, search some pictures of each class.
    """
    some = dict.fromkeys(case.labels, min(case.largest, MOST_LOOKED_AT))
    wanted = some if case.even else case.lacks
    if options.gate:
        drawn = draw(case.model, wanted, options.seed, looker=looker, progress=look.drawn)
    judged = {label: drawn[label].pictures[:number] for label, number in wanted.items()}
    return copies_of(case, bounds, judged, look.check)


def _answers(
    case: TrialData,
    shelf: TrialStore,
    pool: PicturePool,
    arm: Arm,
    seed: int,
    work: TrainingProgress,
) -> Answers:
    """Return the labels that the arm's classifier of that seed gives; train it if need be."""
    known = shelf.answers(arm, seed, counts_of(case, arm))
    if known is not None:
        return known
    what = f"{arm} ({arm.words}), seed {seed}"
    lesson = TrainingSpec(
        pool.pictures,
        pool.targets,
        len(case.labels),
        augmented=arm.augmented,
        mirrored=case.mirrored,
        steps=work.steps,
        seed=seed,
    )
    network = train(lesson, pool.rows(arm, seed), partial(work.each, what))
    parts = {"test": case.test, "calibration": case.calibration}
    found = {
        name: np.concatenate([probabilities(network, one).argmax(1) for one in part])
        for name, part in parts.items()
    }
    if arm is Arm.REAL:
        found["synthetic"] = probabilities(network, reversed_of(case, pool)[0]).argmax(1)
    shelf.keep(arm, seed, found)
    right = (found["test"] == targets_of(case.test)).mean()
    work.finished(what, f"{right:.1%} right")
    return found
