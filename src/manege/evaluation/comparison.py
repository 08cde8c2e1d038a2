"""`manege compare`: show what runs differ in, how they score and what they draw at one seed.

Every run is evaluated by the same options, or its kept evaluation is used; a score stands in one
row with another's only when space and reference are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manege import pictures
from manege.errors import ConfigError
from manege.evaluation import Evaluation, EvaluationOptions, evaluate
from manege.metrics import Counting, Score
from manege.report.records import Settled
from manege.report.run import differences, read_run, stability_rows
from manege.runs import RunDir
from manege.sampler import open_model, run_config

COLUMNS = 8
MOST_LABELS = 20
"""Rows of a run's sheet at most; of more labels the first are shown."""


@dataclass(frozen=True)
class Comparison:
    """The differences, scores and pictures of several runs, side by side."""

    runs: tuple[str, ...]
    differences: dict[str, tuple[Any, ...]]
    """Keys of the configuration that are not the same everywhere, with each run's value."""
    evaluations: tuple[Evaluation, ...]
    stability: dict[str, tuple[Settled | None, ...]]
    """Each run's collapse and cycling over the last half of its rounds; in one row only where
    all that they depend on is the same."""
    sheet: pictures.Picture
    """A block for each run, a row for each label, all at the same seed."""

    def rows(self) -> dict[str, tuple[Score | None, ...]]:
        """Return, for each score that any run has, the scores of all runs (None where missing)."""
        shared = len({_reference_digest(one) for one in self.evaluations}) == 1
        found = [
            {_row_name(score, one, shared=shared): score for score in one.scores}
            for one in self.evaluations
        ]
        names = dict.fromkeys(name for scores in found for name in scores)
        return {name: tuple(scores.get(name) for scores in found) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a tree for JSON."""
        return {
            "runs": list(self.runs),
            "differences": {key: list(values) for key, values in self.differences.items()},
            "scores": {
                name: [score.as_dict() if score else None for score in row]
                for name, row in self.rows().items()
            },
            "stability": {
                name: [one._asdict() if one else None for one in row]
                for name, row in self.stability.items()
            },
            "left_out": [one.left_out for one in self.evaluations],
            "controls": [one.controls for one in self.evaluations],
            "evaluations": [str(one.file) if one.file else None for one in self.evaluations],
        }


def compare(
    runs: Sequence[Path],
    data: str | None = None,
    options: EvaluationOptions | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    counting: Counting = lambda verb: None,
) -> Comparison:
    """Evaluate and compare the runs; each keeps its evaluation and its sheet at the seed."""
    places = [run.resolve() for run in runs]
    if len(set(places)) < 2:
        raise ConfigError("compare: expected at least two different runs; for one, use evaluate")
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigError(f"compare: {runs[number]} is named twice; name each run once")
    options = options or EvaluationOptions()
    opened = [RunDir.open(run) for run in runs]
    configs = [run_config(rundir).model_dump(mode="json") for rundir in opened]
    evaluations = tuple(evaluate(run, data, options, say=say, counting=counting) for run in runs)
    names = tuple(str(run) for run in runs)
    sheets = [_sheet(rundir, options.seed) for rundir in opened]
    return Comparison(
        names,
        differences(configs),
        evaluations,
        stability_rows([read_run(run) for run in runs]),
        pictures.side_by_side(names, sheets),
    )


def _row_name(score: Score, evaluation: Evaluation, *, shared: bool) -> str:
    label = f" [{score.label}]" if score.label is not None else ""
    name = evaluation.protocol["reference"]["name"]
    against = "" if shared else f" vs {name}-{_reference_digest(evaluation)[:8]}"
    return f"{score.full_name}{label}{against}"


def _reference_digest(evaluation: Evaluation) -> str:
    """Return a digest of both splits: the other one decides the floors and who is nearest."""
    reference = evaluation.protocol["reference"]
    both = f"{reference['digest']} {reference['other']}"
    return hashlib.sha256(both.encode()).hexdigest()


def _sheet(rundir: RunDir, seed: int) -> pictures.Picture:
    """Draw some pictures of each label, keep the sheet in the run and return it enlarged."""
    model = open_model(rundir.path)
    if len(model.labels) > MOST_LABELS:
        model = model.without(model.labels[MOST_LABELS:])
    drawn = model.sample(COLUMNS * len(model.labels), balanced=True, seed=seed)
    sheet = pictures.grid(drawn.pictures, columns=COLUMNS)
    scale = pictures.viewing_scale(model.shape.size)
    recipe = {"model": model.digest, "seed": str(seed), "rows": ", ".join(model.labels)}
    rundir.write_bytes(f"samples/seed-{seed}.png", pictures.png_bytes(sheet, recipe, scale))
    return pictures.enlarge(sheet, scale)
