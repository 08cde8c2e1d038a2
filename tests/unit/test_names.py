"""One word for a concept: rules about names that hold over the whole source."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import manege

SOURCE = Path(manege.__file__).parent


def test_no_public_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
