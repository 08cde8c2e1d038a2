"""docs/fidelity.md says what is there: its code exists, its values are the presets'."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import manege
from manege.config import PRESETS, RunConfig, resolve
from manege.config.section import ConfigSection

SOURCE = Path(manege.__file__).parent
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fidelity.md").read_text(encoding="utf-8")
STATUSES = {"stated", "contradictory", "assumed"}
CITED = re.compile(r"`([a-z0-9_/]+\.py)(?::([A-Za-z_][\w.]*))?`")
PUBLISHED = ("paper", "paper-dc", "cellular-paper", "cellular-mustangs", "cellular-reference")

Row = dict[str, str]


def tables(text: str) -> list[list[Row]]:
    """The tables of a page: rows, by the heads of their columns."""
    found: list[list[Row]] = []
    lines = [line for line in text.splitlines() if line.startswith("|") or not line.strip()]
    for block in "\n".join(lines).split("\n\n"):
        head, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in block.splitlines()
            if line.startswith("|")
        ] or [[]]
        # Under the heads comes the line of dashes.
        found.append([dict(zip(head, row, strict=True)) for row in rows[1:]])
    return [table for table in found if table]


def entries() -> list[Row]:
    """What the papers have, one after the other."""
    return [row for table in tables(PAGE) for row in table if "status" in row]


def values() -> Iterator[tuple[str, str, str]]:
    """Preset, key and value, as the page has them."""
    for table in tables(PAGE):
        for row in table:
            if not (key := row.get("key", "").strip("`")):
                continue
            for preset in (name.strip("`") for name in row):
                if preset in PRESETS and row[f"`{preset}`"]:
                    yield preset, key, row[f"`{preset}`"]


def value_of(config: RunConfig, key: str) -> Any:
    """What a key has in a configuration, as YAML would write it."""
    found: Any = config
    for part in key.split("."):
        assert isinstance(found, ConfigSection), key
        assert part in type(found).model_fields, f"{key}: {part} is no key"
        found = getattr(found, part)
    plain = list(found) if isinstance(found, tuple) else found
    return yaml.safe_load(yaml.safe_dump(_text(plain)))


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(one) for one in value]
    return str(value) if isinstance(value, str) else value


def names_in(path: Path) -> set[str]:
    """Every name that a module defines, inside of a class with the class's before it."""
    return set(_defined(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def _defined(body: list[ast.stmt], before: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef(name=name):
                yield before + name
                yield from _defined(node.body, f"{before}{name}.")
            case ast.FunctionDef(name=name):
                yield before + name
            case ast.Assign(targets=targets):
                yield from (before + one.id for one in targets if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield before + name


def test_every_entry_has_a_status_and_its_place_in_the_code():
    assert len(entries()) > 100
    for row in entries():
        assert row["status"] in STATUSES, row
        assert CITED.search(row["code"]), row


def test_all_code_that_the_page_names_exists():
    cited = set(CITED.findall(PAGE))
    assert len(cited) > 50
    for path, name in sorted(cited):
        assert (SOURCE / path).is_file(), path
        if name:
            # A value of an enumeration goes by its own name.
            known = names_in(SOURCE / path)
            last = {one.rpartition(".")[2] for one in known if name.isupper()}
            assert name in known | last, f"{path}: {name}"


@pytest.mark.parametrize("preset", PUBLISHED)
def test_every_value_on_the_page_is_its_presets(preset):
    config = resolve(preset=preset, flags={"data.source": "digits"})
    told = [(key, text) for name, key, text in values() if name == preset]
    assert len(told) > 15
    for key, text in told:
        assert value_of(config, key) == yaml.safe_load(text), f"{preset}: {key}"


def test_no_published_preset_sets_a_key_that_the_page_does_not_have():
    on_page: dict[str, set[str]] = {}
    for preset, key, _ in values():
        on_page.setdefault(preset, set()).add(key)
    for preset in PUBLISHED:
        assert set(_leaves(PRESETS[preset][1])) <= on_page[preset], preset


def _leaves(tree: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def test_the_counts_of_parameters_on_the_page_are_those_of_the_networks():
    from manege.config import DcganNetworks, MlpNetworks
    from manege.models import PictureShape, build_discriminator, build_generator

    colour, mnist = PictureShape(32, 3), PictureShape(28, 1)
    networks = (
        build_generator(DcganNetworks(), colour),
        build_discriminator(DcganNetworks(), colour),
        build_discriminator(DcganNetworks(last_stride=1), colour),
        build_generator(MlpNetworks(), mnist),
        build_discriminator(MlpNetworks(), mnist),
    )
    for network in networks:
        count = sum(parameter.numel() for parameter in network.parameters())
        assert f"{count:,}" in PAGE
