"""Wording: pydantic's problems with a configuration, told as a user wants to hear them.

Each with its path, what was found, what is accepted and the nearest known name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import EnumType
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from manege.config.schema import RunConfig

Tree = dict[str, Any]

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
    "string_too_short": "some text",
    "string_pattern_mismatch": "auto, cpu, cuda or cuda:N",
}


def join_problems(where: str, problems: list[str]) -> str:
    """One line for one problem; else a heading and a line for each."""
    if len(problems) == 1:
        return f"{where}: {problems[0]}"
    return f"{where}: {len(problems)} problems:\n" + "\n".join(f"  {p}" for p in problems)


def tell(problem: Any, tree: Tree) -> str:
    """One pydantic problem in our words."""
    loc = tuple(part for part in problem["loc"] if not _is_union_tag(part, problem["loc"], tree))
    path = ".".join(str(part) for part in loc)
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in ("extra_forbidden", "invalid_key"):
        path = path.removesuffix(".[key]")
        known = _known_keys(loc[:-1], tree)
        return f"{path}: unknown key, {expected_one_of(known, str(loc[-1]))}"
    if kind == "missing":
        return f"{path}: missing, expected a value"
    if kind == "value_error":
        text = str(context["error"])
        whole = isinstance(problem["input"], dict)  # A section's own check names its keys itself.
        return text if whole else f"{path}: found {problem['input']!r}, expected {text}"
    if kind in ("enum", "literal_error"):
        found = problem["input"]
        return f"{path}: found {found!r}, {expected_one_of(_accepted(loc, tree), str(found))}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = [tag.strip(" '") for tag in context.get("expected_tags", "").split(",")]
        tags = tags if tags != [""] else [str(k) for k in _accepted((*loc, "kind"), tree)]
        found = context.get("tag", "no kind")
        return f"{path}.kind: found {found!r}, {expected_one_of(tags, str(found))}"
    expected = _PLAINER.get(kind) or problem["msg"].removeprefix("Input should be ")
    return f"{path}: found {problem['input']!r}, expected {expected}"


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
        node = node.get(key) if isinstance(node, dict) else None
    return isinstance(node, dict) and node.get("kind") == part and part not in node


def _annotation_at(loc: tuple[Any, ...], tree: Tree) -> Any:
    """The type declared at a path, following the `kind` the tree chose where types are unions."""
    here: Any = RunConfig
    node: Any = tree
    for part in loc:
        model = _model(here, node)
        if model is None or part not in model.model_fields:
            return here if isinstance(part, int) else None
        here = model.model_fields[part].annotation
        node = node.get(part) if isinstance(node, dict) else None
    return here


def _model(annotation: Any, node: Any) -> type[BaseModel] | None:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        kind = node.get("kind") if isinstance(node, dict) else None
        for member in get_args(annotation):
            if isinstance(member, type) and issubclass(member, BaseModel):
                field = member.model_fields.get("kind")
                if field is None or kind is None or kind in get_args(field.annotation):
                    return member
    return None


def _known_keys(loc: tuple[Any, ...], tree: Tree) -> list[str]:
    node: Any = tree
    for part in loc:
        node = node.get(part) if isinstance(node, dict) else None
    model = _model(_annotation_at(loc, tree), node)
    return list(model.model_fields) if model else []


def _accepted(loc: tuple[Any, ...], tree: Tree) -> list[Any]:
    annotation = _annotation_at(loc, tree)
    values: list[Any] = []
    for member in (annotation, *get_args(annotation)):
        if isinstance(member, EnumType):
            values += [item.value for item in list[Any](member)]
        else:
            values += [arg for arg in get_args(member) if isinstance(arg, str | int)]
    return list(dict.fromkeys(values))
