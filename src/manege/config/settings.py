"""Plain names of settings: `batch` for `training.batch`, in a call as on the command line.

A name that only one section of the configuration has stands for its key there. Owns this rule, and
the few names that are shorter than a key's own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from manege import plugins
from manege.config.problems import shown
from manege.config.schema import RunConfig
from manege.errors import ConfigError, field

_SHORTER = {
    "budget": "budget_s",
    "data_root": "data.root",
    "limit": "data.limits",
    "score": "score.metric",
    "score_every": "score.every_rounds",
    "sheet_every": "sheets.every_rounds",
}
_OWN_WORDS = ("grid", "checkpoint_every")
"""Settings whose values say which keys they are for."""
_SELECTS = (".kind", ".metric")
"""The ends of keys that choose for their section, which can be given whole instead."""


def flags_of(settings: Mapping[str, Any], known: Iterable[str] = ()) -> dict[str, Any]:
    """Return dotted keys and values for `resolve`, from plain names or keys with ``__`` for dots.

    Functions, classes and objects with a name in a module become references to them.

    Args:
        settings: what a caller gave; None stands for not given.
        known: other names that the caller could have meant, for the message about an unknown one.
    """
    flags: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        for key, part in _placed(name, value, known):
            if key in flags:
                raise ConfigError(f"{field(name)}: {key} is given twice; name it once")
            flags[key] = referenced(part, field(name))
    return flags


def referenced(value: Any, where: str) -> Any:
    """Return a value with a reference in place of each function, class or `Loss` in it."""
    if isinstance(value, Mapping):
        return {key: referenced(one, f"{where}.{key}") for key, one in value.items()}
    if callable(value) or is_dataclass(value):
        return plugins.reference_to(value, where)
    return value


def _placed(name: str, value: Any, known: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys that a setting is for, each with its value."""
    if name == "grid":
        yield from zip(("cellular.rows", "cellular.columns"), _sides(value), strict=True)
    elif name == "checkpoint_every":
        rounds = isinstance(value, int) or (isinstance(value, str) and value.isdigit())
        yield f"checkpoints.every_{'rounds' if rounds else 's'}", value
    elif "__" in name:
        yield name.replace("__", "."), value
    else:
        key = _key(name, known)
        whole = isinstance(value, Mapping) and key.endswith(_SELECTS)
        yield (key.rpartition(".")[0] if whole else key), value


def _sides(grid: Any) -> tuple[int, int]:
    """Return the rows and columns that `3x4` names, or two numbers."""
    if isinstance(grid, str):
        rows, times, columns = grid.lower().partition("x")
        if times and rows.isdecimal() and columns.isdecimal():
            return int(rows), int(columns)
    elif isinstance(grid, tuple | list) and [type(side) for side in grid] == [int, int]:
        return grid[0], grid[1]
    flag = field("grid")
    example = f"{flag} 3x3" if flag.startswith("-") else f'{flag}="3x3"'
    told = repr(grid) if isinstance(grid, str) else f"found {shown(grid)}"
    raise ConfigError(f"{flag} {told}: expected rows x columns, as in {example}")


def _key(name: str, known: Iterable[str]) -> str:
    """Return the one key that a plain name stands for."""
    keys = _keys().get(name, [])
    near_by = [key for key in keys if _is_near(key)]
    if len(near_by) == 1:
        return near_by[0]
    if keys:
        spelt = " or ".join(key.replace(".", "__") for key in keys)
        raise ConfigError(f"{name}: no setting by itself; write {spelt}")
    names = [*_keys(), *_OWN_WORDS, *known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists them"
    raise ConfigError(f"{name[:80]}: unknown setting; {hint}")


def _is_near(key: str) -> bool:
    """Return whether a key is of a section of its own, or of a rate of learning.

    What lies deeper has names such as `steps`, which would be taken for something else.
    """
    return key.removesuffix(".kind").count(".") < 2 or key.startswith("training.optimiser.")


@cache
def _keys() -> Mapping[str, list[str]]:
    """Return every plain name with the keys that it may stand for."""
    found: dict[str, list[str]] = {}
    for path in _walk(RunConfig, ""):
        name = path.removesuffix(".kind").rpartition(".")[2]
        if path not in found.setdefault(name, []):
            found[name].append(path)
    for name in RunConfig.model_fields:
        found[name] = [key for key in found[name] if key.removesuffix(".kind") == name]
    return found | {name: [key] for name, key in _SHORTER.items()}


def _walk(section: type[BaseModel], before: str) -> Iterator[str]:
    """Yield the keys of a section and of all sections in it."""
    for name, declared in section.model_fields.items():
        if name == "kind":
            continue
        path = before + name
        inside = list(_sections(declared.annotation))
        selected = any("kind" in one.model_fields for one in inside)
        yield f"{path}.kind" if selected else path
        for one in inside:
            yield from _walk(one, f"{path}.")


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a declaration allows, but not those in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) not in (tuple, list, dict):
        for one in get_args(annotation):
            yield from _sections(one)
