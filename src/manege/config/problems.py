"""Wording: pydantic's problems with a configuration, told as a user wants to hear them.

Each with its path, what was found, what is accepted and the nearest known name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sized
from datetime import date
from enum import EnumType
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from manege.config.schema import RunConfig
from manege.config.section import OWN, PartName
from manege.labels import printable

Tree = dict[str, Any]

_LONGEST = 120
"""Characters of a text that is shown whole."""
_MOST_ITEMS = 20

_PLAINER = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "union_tag_not_found": "a section of keys",
    "string_too_short": "some text",
    "string_pattern_mismatch": "auto, cpu, cuda or cuda:N, or two of them as in cuda+cuda",
}


def join_problems(where: str, problems: list[str]) -> str:
    """One line for one problem; else a heading and a line for each."""
    if len(problems) == 1:
        return f"{where}: {problems[0]}"
    return f"{where}: {len(problems)} problems:\n" + "\n".join(f"  {p}" for p in problems)


def tell(problem: Any, tree: Tree) -> str:
    """One pydantic problem in our words."""
    loc = tuple(part for part in problem["loc"] if not _is_union_tag(part, problem["loc"], tree))
    path = ".".join(printable(part) for part in loc)
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in ("extra_forbidden", "invalid_key"):
        path = path.removesuffix(".[key]")
        known = _section_at(loc[:-1], tree).model_fields
        return f"{path}: unknown key, {expected_one_of(known, str(loc[-1]))}"
    if kind == "missing":
        return f"{path}: missing, expected a value"
    if kind == "value_error":
        text = str(context["error"])
        whole = isinstance(problem["input"], dict)  # A section's own check names its keys itself.
        return text if whole else f"{path}: found {shown(problem['input'])}, expected {text}"
    if kind in ("enum", "literal_error"):
        found = problem["input"]
        near = found if isinstance(found, str) else ""
        return f"{path}: found {shown(found)}, {expected_one_of(_accepted(loc, tree), near)}"
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        return f"{path}.kind: found {context['tag']!r}, {expected_one_of(tags, context['tag'])}"
    expected = _PLAINER.get(kind) or problem["msg"].removeprefix("Input should be ")
    return f"{path}: found {shown(problem['input'])}, expected {expected}"


def told_parameters(error: ValidationError, path: str, model: type[BaseModel], given: Tree) -> str:
    """Return in one line what is wrong with the parameters of somebody else's part."""
    problems = []
    for problem in error.errors(include_url=False):
        name = ".".join(map(printable, problem["loc"]))
        kind, value = problem["type"], problem["input"]
        if kind == "extra_forbidden":
            known = expected_one_of(model.model_fields, name) if model.model_fields else "none"
            problems.append(f"{path}.{name}: unknown key, {known}")
        elif kind in ("missing", "missing_keyword_only_argument"):
            problems.append(f"{path}.{name}: missing, expected a value")
        else:
            expected = _PLAINER.get(kind) or problem["msg"].removeprefix("Input should be ")
            problems.append(f"{path}.{name}: found {shown(value)}, expected {expected}")
    return "; ".join(problems)


def shown(value: Any) -> str:
    """Return how a message shows what was found: plain and short values whole, others by type.

    From Python anything may come, and an array's numbers help nobody.
    """
    name = type(value).__name__
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]!r}… ({len(value)} characters)"
    if isinstance(getattr(value, "shape", None), tuple):
        return f"{name} of shape {tuple(value.shape)}"
    if _is_plain(value):
        return repr(value)
    return f"{name} of {len(value)}" if isinstance(value, Sized) else name


def _is_plain(value: Any) -> bool:
    """Whether a value, or all that a short list or section holds, is as a file could have it."""
    if isinstance(value, list | tuple | dict):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return len(items) <= _MOST_ITEMS and all(map(_is_plain, items))
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return value is None or isinstance(value, int | float | date | os.PathLike)


def expected_one_of(known: Iterable[Any], found: str) -> str:
    """What would have been accepted, with the nearest of it to what was found."""
    names = [str(name) for name in known]
    near = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"expected {'one of ' if len(names) > 1 else ''}{', '.join(names)}{hint}"


def _is_union_tag(part: Any, loc: tuple[Any, ...], tree: Tree) -> bool:
    """Pydantic names the chosen member of a union in the path, which the user never wrote."""
    before = loc[: loc.index(part)]
    node: Any = tree
    for key in before:
        node = _inside(node, key)
    return isinstance(node, dict) and part in (node.get("kind"), OWN) and part not in node


def _section_at(loc: tuple[Any, ...], tree: Tree) -> type[BaseModel]:
    """The section at a path; of several kinds the one that the tree has chosen."""
    section: Any = RunConfig
    node: Any = tree
    for part in loc:
        node = _inside(node, part)
        members = _members(_declared(section, part))
        section = next(one for one in members if _is_chosen(one, node))
    found: type[BaseModel] = section
    return found


def _is_chosen(member: Any, node: Any) -> bool:
    """Whether the tree's node is of this type; lists and sections without kinds have no choice."""
    if get_origin(member) is tuple or "kind" not in member.model_fields:
        return True
    kind = member.model_fields["kind"].annotation
    return kind is str or node.get("kind") in get_args(kind)


def _declared(section: Any, part: Any) -> Any:
    """The declaration of a section's key, or of a list's items."""
    return get_args(section)[0] if isinstance(part, int) else section.model_fields[part].annotation


def _inside(node: Any, key: Any) -> Any:
    if isinstance(node, dict):
        return node.get(key)
    return node[key] if isinstance(node, list | tuple) and isinstance(key, int) else None


def _accepted(loc: tuple[Any, ...], tree: Tree) -> list[Any]:
    """The values a key takes: of an enumeration, or written out."""
    in_list = isinstance(loc[-1], int)
    *before, key = loc[:-1] if in_list else loc
    section = _section_at(tuple(before), tree)
    declared = _declared(section, key)
    members = _members(get_args(declared)[0] if in_list else declared)
    accepted = [
        value
        for member in members
        for value in (
            [item.value for item in list[Any](member)]
            if isinstance(member, EnumType)
            else get_args(member)
        )
    ]
    own = not in_list and any(
        isinstance(one, PartName) for one in section.model_fields[key].metadata
    )
    return [*accepted, OWN] if own else accepted


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types that a declaration joins with `|`, or the one it is."""
    if get_origin(annotation) not in (Union, UnionType):
        return (annotation,)
    members = (member for member in get_args(annotation) if member is not NoneType)
    return tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in members)
