"""YAML as it is read: no tags, no aliases, no surprises; whatever is wrong is one line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from manege.config import PRESETS, resolve, to_yaml
from manege.errors import ConfigError
from manege.yamltext import MOST_BYTES, load_yaml, parse_yaml

REFUSED = [
    ("seed: !!int ''", "tag !!int refused"),
    ("seed: !!int 3", "tag !!int refused"),
    ("a: !!bool x", "tag !!bool refused"),
    ("a: !!timestamp x", "tag !!timestamp refused"),
    ("a: !!float ''", "tag !!float refused"),
    ("a: !!str 3", "tag !!str refused"),
    ("a: !!binary x", "tag !!binary refused"),
    ("a: !!set {b}", "tag !!set refused"),
    ("a: !!omap [b: 1]", "tag !!omap refused"),
    ("a: !!python/name:os.system x", "tag !!python/name:os.system refused"),
    ("a: ! 3", "tag ! refused"),
    ("a: !own [1]", "tag !own refused"),
    ("a: !<x%0Ay> 1", r"tag x\ny refused"),
    ("a: !!map {a: 1}", "tag !!map refused"),
    ("? !!str a\n: 1", "tag !!str refused"),
    ("a: !nobody!x 1", "undefined tag handle"),
    ("a: *x", "alias *x refused"),
    ("a: &x [*x]", "alias *x refused"),
    ("<<: {a: 1}", "'<<' is a merge key to YAML; put it into quotes"),
    ("a: =", "'=' is a default value to YAML; put it into quotes"),
    ("a: 2001-99-99", "'2001-99-99' is a date to YAML; put it into quotes"),
    ("a: 2001-01-01", "'2001-01-01' is a date to YAML; put it into quotes"),
    ("a: 2001-01-01T99:99:99Z", "is a date to YAML"),
    ("a: " + "9" * 5000, "a number of 5000 characters, expected at most 100"),
    ("a: 0x" + "f" * 5000, "a number of 5002 characters, expected at most 100"),
    ("a: 1" + ":1" * 5000, "a number of 10001 characters, expected at most 100"),
    ("a: 1" + ":1" * 5000 + ".5", "a number of 10003 characters, expected at most 100"),
    ("a: 0x_", "'0x_' cannot be read as a number"),
    ("a: 0b_", "'0b_' cannot be read as a number"),
    ("? [b, c]\n: 1", "a list or a mapping as a key"),
    ("? {b: c}\n: 1", "a list or a mapping as a key"),
    ("first: 2", "key 'first' stands twice"),
    ("a: {1: 1, '1': 2}", "key '1' stands twice"),
    ("a: {1: 1, 0x1: 2}", "key '0x1' stands twice"),
    ("a: " + "[" * 200, "lists and mappings more than 50 deep"),
    ("a:\n " + "- " * 200, "lists and mappings more than 50 deep"),
    ("? " * 200, "lists and mappings more than 50 deep"),
    ("---", "but found another document"),
    ("a: [1", "expected ',' or ']'"),
    ("a: '\x01'", "character 0x1: special characters are not allowed"),
    ("a: \ud800", "character 0xd800: special characters are not allowed"),
]
"""The second line of a file, and what is said of it."""

ACCEPTED = [
    ("", None),
    ("a: '2001-01-01'", {"a": "2001-01-01"}),
    ("a: '='", {"a": "="}),
    ("'<<': 1", {"<<": 1}),
    ("a: [1, 0x10, 1_000, 1.5, .inf, 1e-3, yes, no, ~, 1:30]", None),
    ("a: " + "9" * 100, {"a": int("9" * 100)}),
    ("a: &x 1", {"a": 1}),
    ("\ufeffa: ä 猫", {"a": "ä 猫"}),
    ("a: " + "[" * 49 + "]" * 49, None),
]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, where="file.yaml")
    return str(caught.value)


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_what_is_refused_is_told_in_one_line_with_its_place(line: str, words: str) -> None:
    told = refusal(f"first: 1\n{line}")
    assert told.startswith("file.yaml: line ")
    assert words in told
    assert "not usable YAML" in told
    assert len(told.splitlines()) == 1
    assert len(told) < 200
    told.encode()
    assert int(told.split()[2].rstrip(":")) in (2, 3)


@pytest.mark.parametrize(("text", "found"), ACCEPTED)
def test_ordinary_yaml_is_read(text: str, found: object) -> None:
    read = parse_yaml(text, where="file.yaml")
    if found is not None:
        assert read == found


def test_a_long_text_is_not_read() -> None:
    assert "expected at most 1,000,000" in refusal("#" * (MOST_BYTES + 1))


def test_a_file_is_read_as_a_text_is(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\nb: !!int ''\n")
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    assert str(caught.value).startswith(f"{path}: line 2: not usable YAML (tag !!int refused")


PIECES = [
    *("!!int ", "!!bool ", "!!timestamp ", "!!float ''", "!!null x", "!!omap [", "!!pairs ", "!x "),
    *("&a ", "*a", "<<", "<<: ", "=", "? ", ": ", "- ", "[", "]", "{", "}", ",", "|", ">", "|+9"),
    *(
        "'",
        '"',
        "\\",
        "\t",
        "\n",
        "\r",
        " ",
        "#",
        "%TAG ! x:\n",
        "%YAML 1.2\n---\n",
        "---\n",
        "...",
    ),
    *("0x", "0x_", "0b_", "08", "1:1:1", "1:1.5", "9" * 120, ".inf", ".nan", "-", "1e999", "~"),
    *(
        "2001-99-99",
        "2001-01-01 1:1:1",
        "null",
        "yes",
        "\x00",
        "\x85",
        "\ufeff",
        "\u2028",
        "ä",
        "猫",
    ),
    *(
        "[" * 60,
        "{a: " * 60,
        "- " * 60,
        "? " * 60,
        "kind: ",
        "method: cellular",
        "preset: ",
        "limits",
    ),
]


def mutant(text: str, draw: random.Random) -> str:
    """Cut, double or move pieces of the text, and put others between."""
    for _ in range(draw.randint(1, 6)):
        start, end = sorted(draw.randint(0, len(text)) for _ in range(2))
        end = min(end, start + draw.choice((0, 1, 3, 40)))
        odd = chr(draw.randint(0, 1 << 16))
        put = draw.choice((draw.choice(PIECES), text[start:end] * 2, "", odd))
        text = text[:start] + put + text[end:]
    return text


@pytest.mark.parametrize("seed", range(4))
def test_mutants_of_a_configuration_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    texts = [to_yaml(resolve(preset=preset, flags={"data.source": "x"})) for preset in PRESETS]
    path = tmp_path / "config.yaml"
    refused = read = 0
    for _ in range(60):
        path.write_text(mutant(draw.choice(texts), draw), encoding="utf-8", errors="replace")
        try:
            resolve(file=path)
        except ConfigError as error:
            refused += str(error).startswith(f"{path}: ")
        else:
            read += 1
    assert refused > 20
    assert refused + read == 60


KEYS = ("seed", "data", "data.classes", "data.limits", "networks", "cellular", "budget_s", "preset")


@pytest.mark.parametrize("seed", range(4))
def test_heaps_of_pieces_are_read_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        text = "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 8)))
        try:
            resolve(flags={"data.source": "x"}, sets=[f"{draw.choice(KEYS)}={text}"])
        except ConfigError as error:
            heading, *lines = str(error).split("\n")
            assert heading.isprintable()
            assert not lines or f": {len(lines)} problems:" in heading
