"""The one codec of the runtime's messages."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import manege
from manege.config import resolve
from manege.runtime import messages
from manege.runtime.messages import KINDS, decode, encode

SRC = Path(manege.__file__).parent
TASK = messages.Task(("a", "b"), (("a",), ("b",)), {"a": (), "b": ()}, 3, None, False, True, {})
LOADED = messages.Loaded(TASK, 10, 0)
VALUES = {
    "config": resolve(flags={"data.source": "digits"}),
    "out": Path("r\udcffn"),  # A name that is not UTF-8.
    "path": Path("run"),
    "task": TASK,
    "message": messages.Opened("3", 1, 2, 0.5, {"sha256": "ab"}),
    "loaded": LOADED,
    "lengths": (("f", 5), ("i", 2)),
    "what": "pause",
    "files": (7,),
}
BY_TYPE = {"str": "x", "int": 7, "float": 2.5, "bool": True, "Mapping[str, Any]": {"a": 1}}
ODD = {("host", "cells"): 4, ("stopped", "cells"): {"a": (1, 2.5)}, ("file", "path"): "3.png"}


def made(kind: str) -> object:
    """A message of a kind, with something in every field."""
    values = {}
    for field in dataclasses.fields(KINDS[kind]):
        usual = VALUES.get(field.name, BY_TYPE.get(str(field.type).removesuffix(" | None")))
        values[field.name] = ODD.get((kind, field.name), usual)
    return KINDS[kind](**values)


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_is_the_same_after_a_journey(kind):
    message = made(kind)
    assert decode(json.loads(json.dumps(encode(message)))) == message


@pytest.mark.parametrize(
    ("received", "said"),
    [
        ({}, "a message of the kind None, which nobody sends"),
        ({"is": "praise"}, "a message of the kind 'praise', which nobody sends"),
        ({"is": "adopted"}, "a message 'adopted': cell: field required"),
        ({"is": "adopted", "cell": 3}, "a message 'adopted': cell: input should be a valid string"),
        ({"is": "quit", "now": True}, "a message 'quit': now: unexpected keyword argument"),
        ({"is": "said", "worker": 1, "message": {"is": "?"}}, r"of the kind '\?', which nobody"),
    ],
)
def test_what_is_no_message_is_refused(received, said):
    with pytest.raises(ValueError, match=said):
        decode(received)


def test_nobody_but_the_codec_knows_how_a_message_is_spelt():
    spelt = re.compile(r'message\["|message\.get\(|\{"is":')
    found = [path.relative_to(SRC) for path in SRC.rglob("*.py") if spelt.search(path.read_text())]
    assert found == [Path("runtime/messages.py")]


def test_the_decision_lists_every_message():
    page = SRC.parents[1] / "docs" / "decisions" / "0007-coordinator-and-hosts.md"
    assert messages.table() in page.read_text()
