"""Draw the pictures that bring every class of a run's data to a given number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manege.errors import ConfigError, field
from manege.metrics.classifier import examples
from manege.runs import RunDir
from manege.sampler import Model, Samples, open_model, require_memory, run_config, run_data
from manege.verdict.case import VerdictOptions, open_case, require_classes
from manege.verdict.gate import Drawn, bounds_of, draw, gate_of, train_looker
from manege.verdict.look import TrainingProgress, VerdictObserver
from manege.verdict.training import BATCH


@dataclass(frozen=True)
class Balanced:
    """Pictures to add to the real ones, and the description that the manifest gives of them."""

    model: Model
    samples: Samples
    about: dict[str, Any]


def balance(
    run: Path, to: int, options: VerdictOptions | None = None, look: VerdictObserver | None = None
) -> Balanced:
    """Draw as many pictures of each class as its training pictures lack of `to`.

    Args:
        run: a run directory.
        to: how many pictures each class is to have, real and synthetic together.
        options: `gate` leaves near-copies and implausible pictures out; `seed`, `data`.
        look: told what is going on.
    """
    options, look = options or VerdictOptions(), look or VerdictObserver()
    options.check()
    rundir = RunDir.open(run)
    model = open_model(run)
    real = _real(rundir)
    require_classes(run, model, tuple(real))
    if to < 1:
        raise ConfigError(f"{field('to')} {to}: expected at least 1; give a larger number")
    wanted = {label: max(0, to - count) for label, count in real.items()}
    if not any(wanted.values()):
        raise ConfigError(
            f"{field('to')} {to}: every class has that many pictures, {min(real.values()):,} to "
            f"{max(real.values()):,}; expected more than the smallest has"
        )
    require_memory(f"{field('to')} {to}", sum(wanted.values()), model.shape)
    gate = looker = None
    if options.gate or model.unlabelled:
        case = open_case(run, options)
        steps = examples(sum(case.counts)) // BATCH
        look.say(f"training a classifier on {case.name}, {steps:,} steps")
        looker = train_looker(case, TrainingProgress(look, 1, steps))
        gate = gate_of(case, looker, bounds_of(case), look.say) if options.gate else None
    elif options.data or options.data_root:
        raise ConfigError(
            f"{field('data' if options.data else 'data_root')}: the real pictures are looked at "
            f"with {field('gate')} alone; leave it out, or add {field('gate')}"
        )
    sieve = None if gate is None else gate.sieve(look)
    found = draw(model, wanted, options.seed, sieve=sieve, looker=looker, progress=look.drawn)
    for label, one in found.items():
        one.require(label, wanted[label], remedy="ask for fewer, ")
    about = {
        "balanced_to": to,
        "labelled_by": "classifier" if model.unlabelled else "model",
        "gate": None if gate is None else gate.description(),
        "classes": {label: {"real": real[label], **one.record()} for label, one in found.items()},
    }
    return Balanced(model, _samples(found), about)


def _real(rundir: RunDir) -> dict[str, int]:
    """Return the number of training pictures of each class."""
    limit = run_config(rundir).data.limit_per_class
    counts = {label: int(known["train"]) for label, known in run_data(rundir)["classes"].items()}
    return {label: min(count, limit or count) for label, count in counts.items()}


def _samples(found: Mapping[str, Drawn]) -> Samples:
    labels = [label for label, one in found.items() for _ in range(len(one.pictures))]
    return Samples(
        np.concatenate([one.pictures for one in found.values()]),
        tuple(labels),
        tuple(int(index) for one in found.values() for index in one.indices),
    )
