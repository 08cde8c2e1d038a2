"""One word for a concept: rules about names that hold over the whole source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import manege
from manege.config import MethodName
from manege.methods import METHODS

SOURCE = Path(manege.__file__).parent
TESTS = Path(__file__).resolve().parents[1]


def test_no_public_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_suite_of_tests_imports_from_another() -> None:
    """What two of them need lies in tests/helpers."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        suite = path.relative_to(TESTS).parts[0]
        for line in path.read_text().splitlines():
            named = re.match(r"\s*(?:from|import) tests\.(\w+)", line)
            if named and named[1] not in (suite, "helpers"):
                found.append(f"{path.relative_to(TESTS)}: {line.strip()}")
    assert found == []


def test_nobody_outside_the_methods_asks_which_method_it_is() -> None:
    """What a worker or the sampler must know of a method, the method says."""
    own = {"Cellular", "Independent", "GridState", "CellState"}
    found = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ("methods", "cell")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and own & {one.name for one in node.names}
    ]
    assert found == []


def test_every_method_that_can_be_configured_has_its_class() -> None:
    assert set(METHODS) == set(MethodName)
