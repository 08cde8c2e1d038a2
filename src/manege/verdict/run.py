"""The trial: open, draw, look for copies, train every arm with every seed, judge, keep."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manege import pictures
from manege.errors import EXIT_STOPPED, ManegeError
from manege.metrics.classifier import examples
from manege.metrics.copies import Bound, nearest_of
from manege.metrics.estimate import Estimate, wilson
from manege.progress import duration
from manege.verdict.arms import WITH, Arm, Pool, pool_of
from manege.verdict.case import Case, Options, open_case
from manege.verdict.figure import figure_of
from manege.verdict.gate import (
    Drawn,
    Gate,
    Looker,
    bounds_of,
    draw,
    gate_of,
    require_all,
    stacked,
    train_looker,
)
from manege.verdict.judging import (
    COPIES,
    Outcome,
    Resampled,
    Trial,
    answered,
    balanced_sentence,
    chosen_arm,
    compare,
    decide,
)
from manege.verdict.kept import Answers, Shelf, key_of, result_name
from manege.verdict.training import BATCH, RECIPE, Lesson, probabilities, train
from manege.version import __version__

FORMAT = 1

_PAIRS = 12
_MOST_JUDGED = 1_000
"""Pictures of a class that are looked at for copies where none would be added."""


class Stopped(ManegeError):
    """A signal came; what is done is kept."""

    exit_code = EXIT_STOPPED


@dataclass(frozen=True)
class Look:
    """Whom to tell what is going on, and whom to ask whether to stop."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[str, float, float], None] = lambda what, done, seconds: None
    """Told what is trained, what part of all is done and the seconds left, at every step."""
    stop: Callable[[], str | None] = lambda: None
    counter: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class Verdict:
    """The whole of it, as in the run's verdict file."""

    tree: dict[str, Any]
    file: Path
    figure: Path
    pairs: Path

    @property
    def outcome(self) -> Outcome:
        """In a word."""
        return Outcome(self.tree["outcome"])

    @property
    def sentence(self) -> str:
        """In a sentence."""
        return str(self.tree["sentence"])


@dataclass
class _Work:
    """How much training there is, and how fast it goes."""

    look: Look
    total: int
    """Trainings to do."""
    steps: int
    done: int = 0
    spent_s: float = 0.0
    """In trainings that are done."""
    began: float = 0.0

    def begin(self) -> None:
        self.began = time.monotonic()

    def each(self, what: str, step: int) -> None:
        done = self.done + step / self.steps
        spent_s = self.spent_s + time.monotonic() - self.began
        self.look.step(what, done / self.total, spent_s / done * (self.total - done))
        self.check()

    def finished(self, what: str, told: str) -> None:
        self.done += 1
        self.spent_s += time.monotonic() - self.began
        left = duration(self.spent_s / self.done * (self.total - self.done))
        self.look.say(f"{what}: {told}; {self.done} of {self.total} trainings, {left} left")

    def check(self) -> None:
        if self.look.stop():
            raise KeyboardInterrupt

    def drawn(self, done: int, total: int) -> None:
        if self.look.counter is not None:
            self.look.counter(done, total)
        self.check()


def judge(run: Path, options: Options | None = None, look: Look | None = None) -> Verdict:
    """Whether the run's pictures help a classifier; every training that is done is kept."""
    options, look = options or Options(), look or Look()
    options.check()
    case = open_case(run, options)
    steps = options.steps or examples(sum(case.counts)) // BATCH
    protocol = _protocol(case, options, steps)
    shelf = Shelf(case.rundir, key_of(protocol))
    if (known := shelf.result(options.seeds)) is not None:
        look.say(f"judged before: {shelf.path(result_name(options.seeds))}")
        return _verdict(shelf, known, options.seeds)
    arms = (Arm.REAL, Arm.SYNTHETIC) if case.even else tuple(Arm)
    if case.even:
        look.say("balanced data: only arms a and f are trained")
    looks = options.gate or case.model.unlabelled
    counts = {arm: _counts(case, arm) for arm in arms}
    todo = [
        (arm, seed)
        for seed in range(options.seeds)
        for arm in arms
        if shelf.answers(arm, seed, counts[arm]) is None
    ]
    needs_looker = looks and shelf.network(case.model.shape.channels, len(case.labels)) is None
    work = _Work(look, max(1, len(todo) + needs_looker), steps)
    try:
        return _tried(case, options, shelf, work, protocol, arms)
    except KeyboardInterrupt:
        in_all = options.seeds * len(arms)
        kept = in_all - len(todo) + max(0, work.done - needs_looker)
        raise Stopped(
            f"stopped; {kept} of {in_all} trainings are kept, and the same command goes on"
        ) from None


def _tried(
    case: Case,
    options: Options,
    shelf: Shelf,
    work: _Work,
    protocol: Mapping[str, Any],
    arms: Sequence[Arm],
) -> Verdict:
    bounds = bounds_of(case)
    looker = _looker(case, shelf, work) if options.gate or case.model.unlabelled else None
    gate = gate_of(case, looker, bounds) if options.gate and looker is not None else None
    work.look.say(f"drawing {case.largest:,} pictures of each class")
    drawn = _drawn(case, options, looker, gate, work)
    copies, pairs = _copies(case, options, bounds, drawn, looker)
    pool = pool_of(case.train, stacked(drawn, case.labels))
    answers: dict[Arm, list[Answers]] = {arm: [] for arm in arms}
    # Seed by seed: what a stop leaves behind is paired.
    for seed in range(options.seeds):
        for arm in arms:
            answers[arm].append(_answers(case, shelf, pool, arm, seed, work))
    tree = {
        "format": FORMAT,
        "manege": __version__,
        "protocol": {**protocol, "seeds": options.seeds},
        "versions": _versions(),
        **_judged(case, pool, answers, copies),
        "memorisation": copies,
        "gate": gate.description() if gate else None,
        "drawn": {label: one.record() for label, one in drawn.items()},
        "labelled_by": "classifier" if case.model.unlabelled else "model",
    }
    name = result_name(options.seeds)
    shelf.write("nearest.png", pairs)
    shelf.write(name.replace(".json", ".png"), figure_of(tree))
    shelf.write_json(name, tree)
    return _verdict(shelf, tree, options.seeds)


def _verdict(shelf: Shelf, tree: dict[str, Any], seeds: int) -> Verdict:
    name = result_name(seeds)
    figure = shelf.path(name.replace(".json", ".png"))
    return Verdict(tree, shelf.path(name), figure, shelf.path("nearest.png"))


def _protocol(case: Case, options: Options, steps: int) -> dict[str, Any]:
    """All that a training depends on, but for its arm and seed."""
    return {
        "recipe": RECIPE,
        "model": case.model.digest,
        "data": {
            "name": case.name,
            "rule": case.rule,
            "sha256": case.digests(),
            "train": dict(zip(case.labels, case.counts, strict=True)),
            "calibration": {
                one: len(part) for one, part in zip(case.labels, case.calibration, strict=True)
            },
            "test": {one: len(part) for one, part in zip(case.labels, case.test, strict=True)},
        },
        "steps": steps,
        "batch": BATCH,
        "mirrored": case.mirrored,
        "gate": options.gate,
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


def _looker(case: Case, shelf: Shelf, work: _Work) -> Looker:
    found = shelf.network(case.model.shape.channels, len(case.labels))
    if found is not None:
        return Looker(found)
    work.begin()
    looker = train_looker(case, work.steps, partial(work.each, "the gate's classifier"))
    shelf.keep_network(looker.network)
    work.finished("the gate's classifier", "trained")
    return looker


def _drawn(
    case: Case, options: Options, looker: Looker | None, gate: Gate | None, work: _Work
) -> dict[str, Drawn]:
    wanted = dict.fromkeys(case.labels, case.largest)
    sieve = None if gate is None else partial(gate.reasons, case)
    found = draw(case.model, wanted, options.seed, sieve=sieve, looker=looker, progress=work.drawn)
    needed = {
        label: max(1, case.largest - count)
        for label, count in zip(case.labels, case.counts, strict=True)
    }
    require_all(found, needed, "the classifier takes the others for other classes")
    return found


def _copies(
    case: Case,
    options: Options,
    bounds: Mapping[str, Bound],
    drawn: Mapping[str, Drawn],
    looker: Looker | None,
) -> tuple[dict[str, Any], bytes]:
    """Near-copies among the pictures that would be added, before any gate; and the nearest pairs.

    Where nothing would be added, among some of each class.
    """
    some = min(case.largest, _MOST_JUDGED)
    wanted = {
        label: some if case.even else case.largest - count
        for label, count in zip(case.labels, case.counts, strict=True)
    }
    if options.gate:
        drawn = draw(case.model, wanted, options.seed, looker=looker)
    classes: dict[str, Any] = {}
    near = total = 0
    shown: list[tuple[float, np.ndarray, np.ndarray]] = []
    for label, training in zip(case.labels, case.train, strict=True):
        judged = drawn[label].pictures[: wanted[label]]
        if not len(judged):
            continue
        bound = bounds[label]
        distance_N, at_N = nearest_of(judged, training, mirrored=case.mirrored)
        own = int((distance_N < bound.distance).sum())
        near, total = near + own, total + len(judged)
        classes[label] = {
            "pictures": len(judged),
            "share": vars(wilson(own, len(judged))),
            "bound": bound.distance,
            "bound_from": "training" if bound.left_out else "held-out",
            "bound_pictures": bound.pictures,
        }
        for row in np.argsort(distance_N, kind="stable")[:_PAIRS]:
            part = float(distance_N[row]) / max(bound.distance, 1e-9)
            shown.append((part, judged[row], training[at_N[row]]))
    shown.sort(key=lambda one: one[0])
    share = wilson(near, total)
    told = {"share": vars(share), "pictures": total, "too_much": COPIES, "classes": classes}
    return told, _pairs_png(shown[:_PAIRS])


def _pairs_png(shown: Sequence[tuple[float, np.ndarray, np.ndarray]]) -> bytes:
    both = np.stack([one for _, one, _ in shown] + [one for _, _, one in shown])
    sheet = pictures.grid(both, columns=len(shown))
    recipe = {
        "rows": "generated, nearest training picture",
        "distance / bound": ", ".join(f"{part:.2f}" for part, _, _ in shown),
    }
    return pictures.png_bytes(sheet, recipe, pictures.viewing_scale(both.shape[1]))


def _counts(case: Case, arm: Arm) -> dict[str, int]:
    """How many answers a training of the arm gives."""
    counts = {
        "test": sum(len(part) for part in case.test),
        "calibration": sum(len(part) for part in case.calibration),
    }
    return counts | ({"synthetic": _num_reversed(case)} if arm is Arm.REAL else {})


def _num_reversed(case: Case) -> int:
    return len(case.labels) * min(case.largest, _MOST_JUDGED)


def _answers(case: Case, shelf: Shelf, pool: Pool, arm: Arm, seed: int, work: _Work) -> Answers:
    """What the arm's classifier of that seed takes the pictures for; trained if it must be."""
    known = shelf.answers(arm, seed, _counts(case, arm))
    if known is not None:
        return known
    what = f"{arm} ({arm.words}), seed {seed}"
    work.begin()
    lesson = Lesson(
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
        found["synthetic"] = probabilities(network, _reversed(case, pool)[0]).argmax(1)
    shelf.keep(arm, seed, found)
    right = (found["test"] == _targets(case.test)).mean()
    work.finished(what, f"{right:.1%} right")
    return found


def _reversed(case: Case, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """Synthetic pictures for a classifier of real ones, and their labels' numbers."""
    each = min(case.largest, _MOST_JUDGED)
    start = sum(pool.real)
    rows, targets = [], []
    for number, count in enumerate(pool.synthetic):
        # A class that the gate left short is shown again from its start.
        rows.append(start + np.arange(each) % count)
        targets.append(np.full(each, number))
        start += count
    return pool.pictures[np.concatenate(rows)], np.concatenate(targets)


def _targets(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _judged(
    case: Case, pool: Pool, answers: Mapping[Arm, list[Answers]], copies: Mapping[str, Any]
) -> dict[str, Any]:
    """Outcome, sentence, and the numbers behind them."""
    targets = _targets(case.test)
    right = {
        arm: np.stack([one["test"] == targets for one in found]) for arm, found in answers.items()
    }
    trial = Trial(right, targets, case.labels)
    share_K = np.bincount(targets) / len(targets)
    arms = {arm.value: _arm(trial.recall(arm), case.labels, share_K, arm) for arm in answers}
    scores = {"arms": arms, "cas": _cas(case, pool, trial, answers, share_K)}
    share = Estimate(**copies["share"])
    copied = [one for one, own in copies["classes"].items() if own["share"]["low"] > COPIES]
    if Arm.ADDED not in answers:
        return {
            "outcome": Outcome.BALANCED.value,
            "classes": [],
            "sentence": balanced_sentence(min(case.counts), case.largest),
            "copied": copied,
            **scores,
            "comparison": None,
        }
    calibrated = _calibrated(case, answers)
    added = [
        label for label, count in zip(case.labels, case.counts, strict=True) if count < case.largest
    ]
    finding = compare(trial, chosen_arm(calibrated), added)
    outcome, classes, sentence = decide(finding, share, copied)
    return {
        "outcome": outcome.value,
        "classes": list(classes),
        "sentence": sentence,
        "copied": copied,
        **scores,
        "comparison": {
            "arm": finding.arm.value,
            "over": finding.over.value,
            "mean_recall": vars(finding.gain),
            "recall": {label: vars(one) for label, one in finding.gains.items()},
            "helped": list(finding.helped),
            "candidates": added,
            "calibration": {arm.value: value for arm, value in calibrated.items()},
        },
    }


def _arm(found: Resampled, labels: Sequence[str], share_K: np.ndarray, arm: Arm) -> dict[str, Any]:
    return {
        "title": arm.words,
        "accuracy": _possible(found.weighted(share_K)),
        "mean_recall": _possible(found.mean),
        "recall": {label: _possible(found.of_class(number)) for number, label in enumerate(labels)},
    }


def _possible(estimate: Estimate) -> dict[str, float]:
    """A share's interval ends at 0 and 1."""
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return {"value": estimate.value, "low": low, "high": high}


def _calibrated(case: Case, answers: Mapping[Arm, list[Answers]]) -> dict[Arm, float]:
    """Mean recall of the arms with synthetic pictures, on the calibration pictures."""
    targets = _targets(case.calibration)
    known = [number for number, part in enumerate(case.calibration) if len(part)]
    found = {}
    for arm in WITH:
        right = np.stack([one["calibration"] == targets for one in answers[arm]]).mean(0)
        recalls = [right[targets == number].mean() for number in known]
        found[arm] = float(np.mean(recalls)) if recalls else 0.0
    return found


def _cas(
    case: Case,
    pool: Pool,
    trial: Trial,
    answers: Mapping[Arm, list[Answers]],
    share_K: np.ndarray,
) -> dict[str, Any]:
    """Classification accuracy scores: trained on synthetic and tested on real, and the reverse."""
    forward = _possible(trial.recall(Arm.SYNTHETIC).weighted(share_K))
    if case.model.unlabelled:
        # A classifier gave these pictures their labels: another one agrees with it, no more.
        return {"synthetic_to_real": forward, "real_to_synthetic": None}
    _, targets = _reversed(case, pool)
    right = np.stack([one["synthetic"] == targets for one in answers[Arm.REAL]])
    found = answered(right, targets, len(case.labels))
    return {"synthetic_to_real": forward, "real_to_synthetic": _possible(found.mean)}
