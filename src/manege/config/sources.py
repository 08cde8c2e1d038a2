"""From preset, file, flags and single keys to one validated configuration, and back to YAML.

All problems are found in one go; `problems` words them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from manege.config.cellular import CellularConfig
from manege.config.presets import (
    DEFAULT_CELLULAR_PRESET,
    DEFAULT_PRESET,
    ON_PIXELS,
    PRESETS,
)
from manege.config.problems import expected_one_of, join_problems, shown, tell
from manege.config.schema import (
    BUILT_IN_NETWORKS,
    TOY_NAMES,
    DataConfig,
    MethodName,
    PixelCritic,
    RunConfig,
)
from manege.errors import ConfigError, field
from manege.plugins import reference_named
from manege.yamltext import load_yaml, parse_yaml

_SHOWN = 80
_DEEPEST = 20
"""Parts of a dotted key; the deepest that means anything has four."""

Tree = dict[str, Any]


def resolve(
    *,
    preset: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
) -> RunConfig:
    """The configuration made of all sources, each overriding the ones before it.

    Args:
        preset: its name; else the one the file names, else the default of the method.
        file: a YAML file.
        flags: dotted keys to values; those that are None were not given.
        sets: ``dotted.key=value`` texts, the value read as YAML.
    """
    return _Sources(preset, file, flags or {}, sets).config()


def resolve_both(
    *,
    preset: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
) -> tuple[RunConfig, RunConfig | None]:
    """What `resolve` gives, and what is to be trained where its critic cannot see features.

    The second is None where the critic sees pixels anyway, or anything was said of the critic: a
    key of a critic on features is a wish for one.
    """
    sources = _Sources(preset, file, flags or {}, sets)
    config = sources.config()
    other = ON_PIXELS.get(config.preset)
    if other is None or _section(sources.given, "critic") or isinstance(config.critic, PixelCritic):
        return config, None
    return config, sources.config(other)


def given_yaml(*, preset: str | None, file: Path | None, flags: Mapping[str, Any]) -> str:
    """Return what was given, as the YAML of a file with which another process resolves the same."""
    tree = dict(_Sources(preset, file, flags, ()).given)
    if preset is not None:
        tree["preset"] = preset
    return yaml.safe_dump(json.loads(json.dumps(tree)), sort_keys=False, allow_unicode=True)


class _Sources:
    """All that was given, and the preset that it goes over."""

    def __init__(
        self,
        preset: str | None,
        file: Path | None,
        flags: Mapping[str, Any],
        sets: Iterable[str],
    ) -> None:
        self._file = file
        from_file = load_yaml(file) if file else {}
        over: Tree = {}
        self._problems: list[str] = []
        for key, value in flags.items():
            if value is not None:
                _place(over, key, value)
        for text in sets:
            try:
                key, value = _parse_set(text)
                _place(over, key, value)
            except ConfigError as error:
                self._problems.append(str(error))
        self.given = _merge(from_file, over)
        on_grid = _is_cellular(self.given)
        default = DEFAULT_CELLULAR_PRESET if on_grid else DEFAULT_PRESET
        named = (preset, over.pop("preset", None), from_file.get("preset"), default)
        name = next(one for one in named if one is not None)
        if not isinstance(name, str) or name not in PRESETS:
            near = name if isinstance(name, str) else ""
            told = f"preset: found {shown(name)}, {expected_one_of(PRESETS, near)}"
            self._problems.append(told)
            name = default
        self._name = self._suited(name)

    def config(self, preset: str | None = None) -> RunConfig:
        """The whole of it, over another preset where one is named."""
        name, given = preset or self._name, self.given
        chosen = _merge(PRESETS[name][1], {**given, "preset": name})
        merged = _merge(_defaults(on_grid=chosen.get("cellular") is not None), chosen)
        if not _may_have_grid(merged) and "cellular" not in given:
            merged["cellular"] = None  # A control of a grid: its preset without the grid.
        if given.get("budget_s") is not None and "rounds" not in given:
            merged["rounds"] = None  # The preset's length must not cut a budget the user asked for.
        where = str(self._file) if self._file else "configuration"
        return _validate(merged, list(self._problems), where=where)

    def _suited(self, name: str) -> str:
        """The preset, or the one like it whose critic sees pixels, where that is known to suit."""
        critic = _section(self.given, "critic").get("kind")
        source = _section(self.given, "data").get("source")
        if not isinstance(source, str) or not isinstance(critic, str | None):
            return name  # From Python anything may come; it is refused later.
        if critic == "pixels" or (critic is None and (source in TOY_NAMES or self._own_networks())):
            return ON_PIXELS.get(name, name)
        return name

    def _own_networks(self) -> bool:
        """Whether networks come from outside the package: their discriminator sees pixels."""
        kind = _section(self.given, "networks").get("kind")
        if not isinstance(kind, str) or kind in BUILT_IN_NETWORKS:
            return False
        return reference_named(kind) is not None


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of what was given; empty where there is none, or something else."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def _is_cellular(tree: Tree) -> bool:
    # From Python anything may come, and an array cannot be compared.
    method = tree.get("method")
    return isinstance(method, str) and method == MethodName.CELLULAR


def _may_have_grid(tree: Tree) -> bool:
    method = tree.get("method")
    own = isinstance(method, str) and reference_named(method) is not None
    return _is_cellular(tree) or (own and method not in list(MethodName))


def amended(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The configuration with some dotted keys set anew, None included, validated again."""
    tree = config.model_dump(mode="json")
    for key, value in changes.items():
        _place(tree, key, value)
    return _validate(tree, [], where="configuration")


def stored(path: Path) -> RunConfig:
    """The configuration that a run keeps, which is whole: no preset has a say in it.

    What it does not name did not exist when it was written, and has the schema's default.
    """
    tree = load_yaml(path)
    defaults = _defaults(on_grid=tree.get("cellular") is not None)
    return _validate(_merge(defaults, tree), [], where=str(path))


def to_yaml(config: RunConfig) -> str:
    """The full configuration as YAML that `resolve(file=…)` turns into the same one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _parse_set(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"{field('sets')} {text!r:.{_SHOWN}}: expected key=value, as in "
            f"{field('sets')} training.batch=64"
        )
    return key.strip(), parse_yaml(value, where=f"{field('sets')} {text!r:.{_SHOWN}}")


def _place(tree: Tree, dotted: str, value: Any) -> None:
    """Put value at a dotted key, as one more source over what the tree holds."""
    parts = dotted.split(".")
    if len(parts) > _DEEPEST:
        raise ConfigError(
            f"{dotted[:_SHOWN]}…: found {len(parts)} parts, expected at most {_DEEPEST}; "
            "see `manege train digits --print-config` for the keys"
        )
    nested: Any = value
    for part in reversed(parts):
        nested = {part: nested}
    merged = _merge(tree, nested)
    tree.clear()
    tree.update(merged)


def _defaults(*, on_grid: bool) -> Tree:
    """Every value the schema has a default for, the grid's too where there is one."""
    tree = RunConfig(preset="", rounds=1, data=DataConfig(source="-")).model_dump(mode="json")
    del tree["preset"], tree["rounds"], tree["data"]["source"]
    return tree | {"cellular": CellularConfig().model_dump(mode="json") if on_grid else None}


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Both trees, `over` winning; another `kind` replaces the section it stands in."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            other_kind = "kind" in value and value["kind"] != old.get("kind", value["kind"])
            merged[key] = value if other_kind else _merge(old, value)
        else:
            merged[key] = value
    return merged


def _validate(tree: Tree, problems: list[str], *, where: str) -> RunConfig:
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems += [tell(problem, tree) for problem in error.errors(include_url=False)]
    else:
        if not problems:
            return config
    raise ConfigError(join_problems(where, problems))
