"""Turn a sweep's runs into a table with medians and ranges, a plot, and sheets.

A recipe's runs of one seed are joined into one model, so that a pair for each class, one GAN for
all, and a conditional one are measured alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from manege import pictures
from manege.config.schema import TOY_NAMES
from manege.errors import CheckpointError
from manege.evaluation import EvaluationOptions, evaluate
from manege.experiments.sweep.plan import Plan, SweepRun
from manege.experiments.sweep.runs import run_folder, trained_s
from manege.files import below, make_folder, read_capped, write_atomic
from manege.metrics import Counting
from manege.report.charts import WIDE, Curve, Whisker, curves, whiskers
from manege.report.drawing import SERIES, png_of
from manege.report.series import Quantiles
from manege.runs import RunDir
from manege.sampler import Model, open_model

METRICS = ("kid", "fd", "prdc", "labels")
TOY_METRICS = ("kid", "fd", "prdc", "modes")
SHOWN = (
    "kid",
    "fd",
    "precision",
    "recall",
    "density",
    "coverage",
    "agreement",
    "label-tvd",
    "modes",
    "high-quality",
)
_DRAWN = ("kid", "coverage")
_COLUMNS = 16
_CAP_BYTES = 1 << 26
_MOST_NAMED = 10


@dataclass(frozen=True)
class Stage:
    """The scores of all recipes after so much CPU time a class."""

    each_s: float
    rows: list[RecipeRow]
    common: dict[str, Any]
    """The settings and floors that all rows share."""

    def ranked(self) -> list[RecipeRow]:
        """Return the rows, the smallest kernel distance first."""
        return sorted(self.rows, key=lambda row: median(row.values.get("kid") or [np.inf]))


@dataclass
class RecipeRow:
    """One recipe's scores over its seeds."""

    recipe: str
    seeds: list[int] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    """Values of each score, one for each seed; a class's kernel distance is ``kid [label]``."""
    rounds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def cell(self, name: str) -> str:
        """Return a score's median and range, in words."""
        values = self.values.get(name, [])
        if not values:
            return "–"
        if len(values) == 1:
            return f"{values[0]:.4g}"
        return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def measure_all(
    plan: Plan,
    units: Sequence[SweepRun],
    out: Path,
    *,
    each_s: float,
    say: Callable[[str], None],
    counting: Counting = lambda verb: None,
    data_root: str | None = None,
) -> Stage:
    """Return a row for each recipe after `each_s`; runs that went on keep their stored scores."""
    rows = {recipe: RecipeRow(recipe) for recipe in plan.recipes}
    common: dict[str, Any] = {}
    for seed in plan.seeds:
        for recipe, row in rows.items():
            own = [unit for unit in units if (unit.recipe, unit.seed) == (recipe, seed)]
            tree = _measured(plan, own, out, each_s, say, counting, data_root)
            if tree is None:
                row.failed.append(f"seed {seed}")
                continue
            row.seeds.append(seed)
            row.rounds.append(tree["rounds"])
            for score in tree["scores"]:
                label = f" [{score['label']}]" if score["label"] is not None else ""
                row.values.setdefault(score["name"] + label, []).append(score["value"])
            common = dict(tree["protocol"])
            for score in tree["scores"]:
                if score["floor"] is not None and score["label"] is None:
                    common.setdefault("floors", {})[score["name"]] = score["floor"]["value"]
    return Stage(each_s, list(rows.values()), common)


def _measured(
    plan: Plan,
    units: Sequence[SweepRun],
    out: Path,
    each_s: float,
    say: Callable[[str], None],
    counting: Counting,
    data_root: str | None,
) -> dict[str, Any] | None:
    """Return a recipe's scores for a seed, stored or computed now; None when a class is missing."""
    name = f"{units[0].recipe}-seed-{units[0].seed}"
    if len(plan.budget_s) > 1:
        name += f"-{each_s:g}s"
    path = below(out, "scores", f"{name}.json")
    stored = _stored(path, plan)
    if any(trained_s(out, unit) > unit.budget_s(each_s) for unit in units):
        return stored  # None: a class failed then, and was begun again since.
    runs = [run_folder(out, unit) for unit in units]
    models = [open_model(run) for run in runs if _has_model(run)]
    if len(models) < len(runs) or any(model.missing for model in models):
        return None
    model = models[0]
    for other in models[1:]:
        model = model.merged(other)
    if stored is not None and stored["protocol"]["subject"]["digest"] == model.digest:
        return stored
    say(f"measuring {name}")
    first, *others = [
        evaluate(model, plan.data, options, say=say, counting=counting).as_dict()
        for options in _options(plan, model, data_root)
    ]
    scores = list(first["scores"])
    for called, elsewhere in zip(_frechet_elsewhere(plan), others, strict=True):
        scores += [{**score, "name": called} for score in elsewhere["scores"]]
    tree = {
        **first,
        "scores": scores,
        "features": list(plan.features),
        "rounds": _rounds(runs),
    }
    make_folder(path.parent)
    _write_sheet(below(out, "sheets", f"{name}.png"), model, units[0].seed)
    write_atomic(path, json.dumps(tree, indent=1).encode())
    return tree


def _stored(path: Path, plan: Plan) -> dict[str, Any] | None:
    """Return the scores that are stored in a file if they are in the plan's feature spaces."""
    try:
        tree = json.loads(read_capped(path, _CAP_BYTES))
        tree["protocol"]["subject"]["digest"], tree["scores"], tree["rounds"]
        return dict(tree) if tree["features"] == list(plan.features) else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r}); delete it and try again") from None


def _has_model(run: Path) -> bool:
    return (run / "model" / "model.json").is_file()


def _options(plan: Plan, model: Model, data_root: str | None) -> list[EvaluationOptions]:
    """Return options for all scores in the first feature space, the Fréchet distance in others."""
    space = plan.features[0]
    metrics: tuple[str, ...] = TOY_METRICS if plan.data in TOY_NAMES else METRICS
    if space == "random":  # It knows no labels.
        metrics = tuple(name for name in metrics if name != "labels")
    first = EvaluationOptions(
        metrics=metrics,
        features=space,
        samples=plan.samples,
        per_class=not model.unlabelled,
        classes=tuple(plan.classes),
        allow_few_samples=True,
        data_root=data_root,
    )
    return [first] + [
        replace(first, features=features, metrics=("fd",), per_class=False)
        for features in plan.features[1:]
    ]


def _rounds(runs: Sequence[Path]) -> float:
    """Return the rounds that a class was trained for, on average."""
    cells = [entry for run in runs for entry in RunDir.open(run).status()["cells"].values()]
    return float(np.mean([entry["round"] for entry in cells]))


def _write_sheet(path: Path, model: Model, seed: int) -> None:
    make_folder(path.parent)
    rows = 3 if model.unlabelled else len(model.labels)
    drawn = model.sample(_COLUMNS * rows, balanced=True, seed=seed)
    sheet = pictures.grid(drawn.pictures, columns=_COLUMNS)
    recipe = {"model": model.digest, "seed": str(seed), "rows": ", ".join(model.labels)}
    pictures.save_png(path, sheet, recipe, pictures.viewing_scale(model.shape.size))


def write_table(stages: Sequence[Stage], plan: Plan, out: Path) -> list[Path]:
    """Write table.md and table.json, plot.png and, for several times, curve.png; return the paths.

    Where nothing could be measured there are no pictures.
    """
    last = stages[-1]
    table = out / "table.md"
    write_atomic(table, "\n".join(_markdown(stage, plan) for stage in stages).encode())
    trees = [
        {"each_s": stage.each_s, "common": stage.common, "rows": [vars(row) for row in stage.rows]}
        for stage in stages
    ]
    write_atomic(
        out / "table.json", json.dumps({**trees[-1], "on_the_way": trees}, indent=1).encode()
    )
    drawn = [table]
    if any(row.values.get("kid") for row in last.rows):
        write_atomic(out / "plot.png", _plot(last, plan))
        drawn.append(out / "plot.png")
    if len(stages) > 1 and any(row.values.get("kid") for stage in stages for row in stage.rows):
        write_atomic(out / "curve.png", _curve(stages, plan))
        drawn.append(out / "curve.png")
    return drawn


def _frechet_elsewhere(plan: Plan) -> list[str]:
    """Return the names of the Fréchet distance in the further feature spaces."""
    return [f"fd in {features.partition('=')[0]}" for features in plan.features[1:]]


def _markdown(stage: Stage, plan: Plan) -> str:
    rows, common = stage.rows, stage.common
    by_class = [f"kid [{label}]" for label in plan.classes]
    shown = (*SHOWN, *_frechet_elsewhere(plan), *by_class)
    names = [name for name in shown if any(row.values.get(name) for row in rows)]
    lines = [
        f"{plan.data}: {', '.join(plan.classes)}; seeds {', '.join(map(str, plan.seeds))}; "
        f"{stage.each_s:g} s of CPU time a class; median (range) over seeds.",
        "",
        f"| recipe | rounds | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
    ]
    for row in stage.ranked():
        rounds = f"{np.mean(row.rounds):.1f}" if row.rounds else "–"
        failed = f" (failed: {', '.join(row.failed)})" if row.failed else ""
        cells = [row.cell(name) for name in names]
        lines.append(f"| `{row.recipe}`{failed} | {rounds} | {' | '.join(cells)} |")
    floors = common.get("floors", {})
    if floors:
        cells = [f"{floors[name]:.4g}" if name in floors else "–" for name in names]
        lines.append(f"| real pictures | | {' | '.join(cells)} |")
    if common:
        space, reference = common["space"], common["reference"]
        lines += [
            "",
            f"{common['subject']['pictures']:,} pictures against {reference['pictures']:,} "
            f"{reference['split']} ones; features `{space['name']}`.",
        ]
    return "\n".join(lines) + "\n"


def _plot(stage: Stage, plan: Plan) -> bytes:
    """Draw kernel distance and coverage: every seed a ring, the median a dot."""
    shown = [row for row in stage.ranked() if row.values.get("kid")]
    note = f"{_which(plan)}; {stage.each_s:g} CPU s a class; a ring for each seed; dashed: real"
    drawings = []
    for name in _DRAWN:
        floor = stage.common.get("floors", {}).get(name)
        if floor is not None and name == "kid" and floor <= 0:
            floor = None
        rows = [
            Whisker(row.recipe, median(values), min(values), max(values), "c0", floor, values)
            for row in shown
            if (values := row.values.get(name))
        ]
        if rows:
            drawings.append(whiskers(_direction(name), note, rows, width=WIDE, log=name == "kid"))
    return png_of(drawings)


def _curve(stages: Sequence[Stage], plan: Plan) -> bytes:
    """Draw kernel distance and coverage over CPU time: medians, with the range of all seeds."""
    recipes = [row.recipe for row in stages[-1].ranked()]
    drawings = []
    for name in _DRAWN:
        shown = []
        for colour, recipe in zip(cycle(SERIES), recipes, strict=False):
            found = [
                (stage.each_s, row.values[name])
                for stage in stages
                for row in stage.rows
                if row.recipe == recipe and row.values.get(name)
            ]
            if not found:
                continue
            edges = (min, min, median, max, max)
            levels = np.array([[edge(values) for _, values in found] for edge in edges])
            times = np.array([each_s for each_s, _ in found])
            seeds = max(len(values) for _, values in found)
            shown.append(Curve(recipe, Quantiles(times, levels, seeds), colour))
        if shown:
            # One alone has no name beside its end.
            note = _which(plan) + (f"; {recipes[0]}" if len(recipes) == 1 else "")
            title = _direction(name)
            drawings.append(curves(title, note, shown, width=WIDE, along="CPU second"))
    return png_of(drawings)


def _direction(name: str) -> str:
    return f"{name} ({'smaller' if name == 'kid' else 'larger'} is better)"


def _which(plan: Plan) -> str:
    many = len(plan.classes) > _MOST_NAMED
    return f"{plan.data}: {f'{len(plan.classes)} classes' if many else ', '.join(plan.classes)}"
