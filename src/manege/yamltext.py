"""Read YAML as this package allows it: text, numbers, truth values, lists, mappings, no more.

The one place that calls PyYAML's loader. Refuses tags, aliases and whatever YAML takes for
something that nobody meant; every refusal is a ConfigError of one line with its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from manege.errors import ConfigError, field

MOST_BYTES = 1_000_000

_LONGEST_NUMBER = 100
_DEEPEST = 50
_STANDARD = "tag:yaml.org,2002:"
_NUMBERS = (f"{_STANDARD}int", f"{_STANDARD}float")
_UNMEANT = {
    f"{_STANDARD}timestamp": "a date",
    f"{_STANDARD}merge": "a merge key",
    f"{_STANDARD}value": "a default value",
}


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, as `parse_yaml` reads it; {} if the file is empty."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(
                f"{path}: found {size:,} bytes, expected at most {MOST_BYTES:,}; "
                "is this a configuration file?"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give {field('config')} an existing YAML "
            "file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; expected a YAML file") from None
    tree = parse_yaml(text, where=str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: found a {type(tree).__name__}, expected `key: value` lines; "
            "see `manege train digits --print-config`"
        )
    return tree


def parse_yaml(text: str, *, where: str) -> Any:
    """Return the value of YAML text; raise ConfigError, with the line, if it is not usable YAML."""
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"{where}: found {len(text):,} characters, expected at most {MOST_BYTES:,}"
        )
    try:
        return yaml.load(text, Loader=_PlainLoader)  # A SafeLoader with more refused.
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"character {error.character:#x}: {error.reason}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = error.problem or error.context or "it cannot be understood"
    raise ConfigError(f"{where}: line {line}: not usable YAML ({what})")


class _PlainLoader(yaml.SafeLoader):
    """A loader that refuses what `parse_yaml` does not allow, at the place where it stands."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            # A small file could grow without bound.
            raise _refusal(f"alias *{event.anchor} refused: write the value out", event)
        if event.tag is not None:
            tag = ascii(event.tag)[1:-1].replace(_STANDARD, "!!")
            raise _refusal(f"tag {tag} refused: write the value alone, text in quotes", event)
        if self._depth == _DEEPEST:
            raise _refusal(f"lists and mappings more than {_DEEPEST} deep", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, ArithmeticError):
            raise _refusal(f"{node.value!r} cannot be read as a number", node) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        seen: set[Any] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a list or a mapping as a key, expected text", key)
            # As it is written and as it is read: 1 and '1' may become the same label.
            both = {key.value, self.construct_object(key)}
            if seen & both:
                raise _refusal(f"key {key.value!r} stands twice", key)
            seen |= both
        return super().construct_mapping(node, deep=deep)


def _check_scalar(node: yaml.ScalarNode) -> None:
    if node.tag in _UNMEANT:
        raise _refusal(f"{node.value!r} is {_UNMEANT[node.tag]} to YAML; put it into quotes", node)
    if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
        raise _refusal(
            f"a number of {len(node.value)} characters, expected at most {_LONGEST_NUMBER}", node
        )


def _refusal(what: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=at.start_mark)
