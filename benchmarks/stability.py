"""Collapse and cycling of a sweep's recipes, and differences over the same seeds.

`python benchmarks/stability.py SWEEP [SWEEP …]`, each the folder of a sweep by a plan in
docs/results/stability/, finished or not. Reads events and scores alone, of the seeds that every
recipe has finished, and prints two tables in Markdown for each; of one seed alone there is no
interval.
"""

from __future__ import annotations

import json
import sys
from math import isnan, nan, sqrt
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t as student

from manege.report.run import RunRecord, read_run

RECIPES = ("per-class-paper", "per-class-paper-dc", "single-paper", "single-paper-dc")
PAIRS = (
    ("per-class-paper", "per-class-paper-dc"),
    ("single-paper", "single-paper-dc"),
    ("per-class-paper", "single-paper"),
    ("per-class-paper-dc", "single-paper-dc"),
    ("per-class-paper", "single-paper-dc"),
)
INDICES = ("collapse", "cycling", "moved")
JOINT = "joint collapse"

Found = dict[str, dict[int, dict[str, float]]]
"""Values by recipe, seed and name."""


def main() -> None:
    """Print the tables."""
    for folder in map(Path, sys.argv[1:]):
        found = {recipe: _seeds(folder, recipe) for recipe in RECIPES}
        seeds = sorted(set.intersection(*(set(one) for one in found.values())))
        print(f"\n{folder.name}, seeds {seeds}\n")
        if seeds:
            kept = [found[recipe][seed] for recipe in RECIPES for seed in seeds]
            names = [name for name in (*INDICES, JOINT) if all(name in one for one in kept)]
            _print_means(found, seeds, names)
            _print_differences(found, seeds, names)


def _seeds(sweep: Path, recipe: str) -> dict[int, dict[str, float]]:
    """What each finished seed of a recipe came to."""
    found = {}
    parts = _parts(sweep, recipe)
    for folder in (sweep / "runs" / recipe).glob("seed-*"):
        runs = [read_run(folder / part) for part in parts if (folder / part).is_dir()]
        if len(runs) == len(parts) and all(run.state == "finished" for run in runs):
            scores = sweep / "scores" / f"{recipe}-{folder.name}.json"
            found[int(folder.name.removeprefix("seed-"))] = _values(runs) | _joint(scores)
    return found


def _parts(sweep: Path, recipe: str) -> list[str]:
    """The folders of a seed's runs: as in the first, which has them all."""
    first = sweep / "runs" / recipe / "seed-0"
    return sorted(path.name for path in first.iterdir()) if first.is_dir() else []


def _values(runs: list[RunRecord]) -> dict[str, float]:
    """Means over the cells of a seed's runs, each over the last half of its rounds."""
    cells = [(run.history, cell) for run in runs for cell in run.history.cells.values()]
    values = {"rounds": mean(cell.last for _, cell in cells)}
    for name in INDICES:
        told = [history.settled(cell, name) for history, cell in cells]
        values[name] = mean(value for value in told if value is not None)
    return values


def _joint(scores: Path) -> dict[str, float]:
    """Collapse of the model that all classes make together, from the sweep's own scores."""
    if not scores.is_file():
        return {}
    (covered,) = (
        score
        for score in json.loads(scores.read_text())["scores"]
        if score["name"] == "coverage" and score["label"] is None
    )
    return {JOINT: 1 - covered["value"] / covered["floor"]["value"]}


def _interval(values: list[float]) -> tuple[float, float]:
    """The mean and half the width of Student's 95 % interval; of one value not a number."""
    if len(values) < 2:
        return mean(values), nan
    reach = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return mean(values), reach


def _print_means(found: Found, seeds: list[int], names: list[str]) -> None:
    """Mean over seeds with its interval."""
    print(f"| | rounds | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for recipe, values in found.items():
        cells = []
        for name in names:
            middle, reach = _interval([values[seed][name] for seed in seeds])
            cells.append(f"{middle:.3g}" if isnan(reach) else f"{middle:.3g} ± {reach:.2g}")
        rounds = mean(values[seed]["rounds"] for seed in seeds)
        print(f"| `{recipe}` | {rounds:.1f} | {' | '.join(cells)} |")


def _print_differences(found: Found, seeds: list[int], names: list[str]) -> None:
    """Differences over the same seeds: mean, interval, and how many are below 0."""
    print(f"\n| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for one, other in PAIRS:
        cells = []
        for name in names:
            apart = [found[one][seed][name] - found[other][seed][name] for seed in seeds]
            middle, reach = _interval(apart)
            if isnan(reach):
                cells.append(f"{middle:+.3g}")
                continue
            less = sum(value < 0 for value in apart)
            cells.append(
                f"{middle:+.3g} [{middle - reach:+.3g}, {middle + reach:+.3g}], "
                f"less in {less} of {len(seeds)}"
            )
        print(f"| `{one}` − `{other}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
