"""Collapse and cycling of a sweep's recipes, and differences over the same seeds.

`python benchmarks/stability.py SWEEP [SWEEP …]`, each the folder of a sweep by a plan in
docs/results/stability/. Reads events and scores alone, of the seeds that every recipe has finished,
and prints two tables in Markdown for each.
"""

from __future__ import annotations

import json
import sys
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t as student

from manege.report.run import read_run

PAIRS = (
    ("per-class-paper", "per-class-paper-dc"),
    ("single-paper", "single-paper-dc"),
    ("per-class-paper", "single-paper"),
    ("per-class-paper-dc", "single-paper-dc"),
    ("per-class-paper", "single-paper-dc"),
)
NAMES = ("collapse", "joint collapse", "cycling", "moved")


def main() -> None:
    """Print the tables."""
    for folder in map(Path, sys.argv[1:]):
        found = {path.name: seeds_of(path, folder) for path in sorted((folder / "runs").iterdir())}
        seeds = sorted(set.intersection(*(set(one) for one in found.values())))
        print(f"\n{folder.name}, seeds {seeds}\n")
        if len(seeds) >= 2:
            print_means(found, seeds)
            print_differences(found, seeds)


def seeds_of(recipe: Path, sweep: Path) -> dict[int, dict[str, float]]:
    """What each finished seed of a recipe came to."""
    found = {}
    for folder in sorted(recipe.glob("seed-*")):
        runs = [read_run(path) for path in sorted(folder.iterdir()) if path.is_dir()]
        scores = sweep / "scores" / f"{recipe.name}-{folder.name}.json"
        if not scores.is_file() or not all(run.state == "finished" for run in runs):
            continue
        values = {}
        for name in ("collapse", "cycling", "moved"):
            histories = [run.history for run in runs]
            told = [one.settled(cell, name) for one in histories for cell in one.cells.values()]
            values[name] = mean(value for value in told if value is not None)
        (covered,) = (
            score
            for score in json.loads(scores.read_text())["scores"]
            if score["name"] == "coverage" and score["label"] is None
        )
        values["joint collapse"] = 1 - covered["value"] / covered["floor"]["value"]
        values["rounds"] = mean(cell.last for run in runs for cell in run.history.cells.values())
        found[int(folder.name.removeprefix("seed-"))] = values
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """The mean and half the width of Student's 95 % interval."""
    reach = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return mean(values), reach


def print_means(found: dict[str, dict[int, dict[str, float]]], seeds: list[int]) -> None:
    """Mean over seeds with its interval."""
    print(f"| | rounds | {' | '.join(NAMES)} |\n|---|---|{'---|' * len(NAMES)}")
    for recipe, values in found.items():
        cells = []
        for name in NAMES:
            middle, reach = interval([values[seed][name] for seed in seeds])
            cells.append(f"{middle:.3g} ± {reach:.2g}")
        rounds = mean(values[seed]["rounds"] for seed in seeds)
        print(f"| `{recipe}` | {rounds:.1f} | {' | '.join(cells)} |")


def print_differences(found: dict[str, dict[int, dict[str, float]]], seeds: list[int]) -> None:
    """Differences over the same seeds: mean, interval, and how many are below 0."""
    print(f"\n| | {' | '.join(NAMES)} |\n|---|{'---|' * len(NAMES)}")
    for one, other in PAIRS:
        cells = []
        for name in NAMES:
            apart = [found[one][seed][name] - found[other][seed][name] for seed in seeds]
            middle, reach = interval(apart)
            less = sum(value < 0 for value in apart)
            cells.append(
                f"{middle:+.3g} [{middle - reach:+.3g}, {middle + reach:+.3g}], "
                f"less in {less} of {len(seeds)}"
            )
        print(f"| `{one}` − `{other}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
