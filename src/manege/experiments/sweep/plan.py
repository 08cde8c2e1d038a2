"""Read a sweep's plan from a YAML file, and validate all of its runs before the first begins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from manege.config import Label, MethodName, RunConfig, Seconds, resolve
from manege.errors import ConfigError, field
from manege.files import blaming, make_folder, write_atomic
from manege.labels import printable
from manege.runs import cell_folder
from manege.yamltext import load_yaml

RECIPE_NAME = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,60}"


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _rising(times: tuple[float, ...]) -> tuple[float, ...]:
    if not times or list(times) != sorted(set(times)):
        raise ValueError("expected a time, or some that rise: [30, 60, 100]")
    return times


Features = Annotated[str, Field(pattern=r"^(auto|classifier|random|mnist-logits(=.+)?)$")]


class Plan(BaseModel):
    """A sweep's plan: what to train, and what to measure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = Field(min_length=1)
    classes: tuple[Label, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    budget_s: Annotated[tuple[Seconds, ...], BeforeValidator(_listed), AfterValidator(_rising)]
    """CPU time for each class; a recipe with one model for all of them gets it for each. With
    several times, scores are taken at each, on the way to the last."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Configuration keys, nested or dotted, of all runs."""
    recipes: dict[str, dict[str, Any]] = Field(min_length=1)
    """Configuration keys of each recipe, over those of `base`."""
    samples: int = Field(default=3000, ge=8)
    """Pictures drawn for the scores of a recipe and seed."""
    features: tuple[Features, ...] = Field(default=("auto",), min_length=1)
    """Feature spaces of the scores, as an evaluation's `features`; in all but the first only the
    Fréchet distance is taken."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    recipe: str
    seed: int
    classes: tuple[str, ...]
    config: RunConfig
    """The run's configuration, with the plan's first budget."""

    def budget_s(self, each_s: float) -> float:
        """Return the run's time, given the time of one class."""
        return each_s * len(self.classes)

    @property
    def name(self) -> str:
        """The run's folder below ``runs/``."""
        part = cell_folder(self.classes[0]) if len(self.classes) == 1 else "all"
        return f"{self.recipe}/seed-{self.seed}/{part}"


def load_plan(
    source: Path | Mapping[str, Any], data_root: str | None = None
) -> tuple[Plan, tuple[SweepRun, ...]]:
    """Return a plan, of a file or a tree, and all its runs.

    They come seed after seed, so that a part of them is of use too.
    """
    path = source if isinstance(source, Path) else Path("plan")
    try:
        plan = Plan.model_validate(load_yaml(source) if isinstance(source, Path) else source)
    except ValidationError as error:
        told = [
            f"{'.'.join(printable(part) for part in problem['loc'])}: {problem['msg'].lower()}"
            for problem in error.errors(include_url=False)
        ]
        raise ConfigError(f"{path}: {'; '.join(told)}; see docs/sweep.md") from None
    for name in plan.recipes:
        if re.fullmatch(RECIPE_NAME, name) is None:
            raise ConfigError(
                f"{path}: recipes: found {name!r}, expected letters, digits and any of _.+-"
            )
    units = tuple(
        unit
        for seed in plan.seeds
        for recipe in plan.recipes
        for unit in _units(path, plan, recipe, seed, data_root)
    )
    names = [unit.name for unit in units]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: a seed or a class stands twice; name each once")
    return plan, units


def keep_plan(plan: Path | Mapping[str, Any], out: Path) -> None:
    """Write the plan beside its results; refuse the folder of another plan."""
    if isinstance(plan, Path):
        content = plan.read_bytes()
    else:
        content = yaml.safe_dump(dict(plan), sort_keys=False, allow_unicode=True).encode()
    with blaming(out):
        make_folder(out)
    kept = out / "plan.yaml"
    if kept.exists() and kept.read_bytes() != content:
        raise ConfigError(
            f"{out}: holds the sweep of another plan ({kept}); choose another {field('out')}, or "
            "continue with that plan"
        )
    if not kept.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: not empty, and not a sweep; choose another {field('out')}")
    write_atomic(kept, content)


def replaced_presets(plan: Plan, units: Sequence[SweepRun]) -> dict[str, tuple[str, str]]:
    """Return each recipe that got another preset than it names: the one named, the one it got."""
    found = {}
    for unit in units:
        asked = {**plan.base, **plan.recipes[unit.recipe]}.get("preset")
        if asked not in (None, unit.config.preset):
            found[unit.recipe] = (str(asked), unit.config.preset)
    return found


def _units(path: Path, plan: Plan, recipe: str, seed: int, data_root: str | None) -> list[SweepRun]:
    flags = {**plan.base, **plan.recipes[recipe]}
    preset = flags.pop("preset", None)
    common = {"data.source": plan.data, "data.root": data_root, "seed": seed, "budget_clock": "cpu"}
    units = []
    for classes in ((label,) for label in plan.classes):
        try:
            config = resolve(
                preset=preset,
                flags={
                    **flags,
                    **common,
                    "data.classes": list(classes),
                    "budget_s": plan.budget_s[0],
                },
            )
        except ConfigError as error:
            raise ConfigError(f"{path}: recipe {recipe}: {error}") from None
        if config.method is MethodName.PER_CLASS:
            units.append(SweepRun(recipe, seed, classes, config))
            continue
        # One model for all classes: all their pictures, and all their time.
        together = resolve(
            preset=preset,
            flags={
                **flags,
                **common,
                "data.classes": list(plan.classes),
                "budget_s": plan.budget_s[0] * len(plan.classes),
            },
        )
        return [SweepRun(recipe, seed, plan.classes, together)]
    return units
