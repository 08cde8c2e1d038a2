"""Plain names of settings: one rule for the command line's flags and a call's arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.command import run_here

from manege.cli.flags import FLAGS
from manege.config import RunConfig, given_yaml, resolve
from manege.config.settings import flags_of, referenced
from manege.errors import ConfigError, fields_named

PLAIN = {
    "batch": (64, {"training.batch": 64}),
    "size": (32, {"data.size": 32}),
    "classes": (["3"], {"data.classes": ["3"]}),
    "loss": ("hinge", {"training.loss": "hinge"}),
    "seed": (3, {"seed": 3}),
    "networks": ("mlp", {"networks.kind": "mlp"}),
    "critic": ("pixels", {"critic.kind": "pixels"}),
    "constraint": ("r1", {"training.constraint.kind": "r1"}),
    "neighbourhood": ("nine", {"cellular.neighbourhood.kind": "nine"}),
    "budget": ("30m", {"budget_s": "30m"}),
    "score": ("kid", {"score.metric": "kid"}),
    "hidden": (16, {"networks.hidden": 16}),
    "generator_lr": (1e-3, {"training.optimiser.generator_lr": 1e-3}),
    "training__batch": (8, {"training.batch": 8}),
    "grid": ("3x2", {"cellular.rows": 3, "cellular.columns": 2}),
    "checkpoint_every": ("30s", {"checkpoints.every_s": "30s"}),
    "rounds": (None, {}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_name_stands_for_its_key(name: str) -> None:
    value, flags = PLAIN[name]
    assert flags_of({name: value}) == flags


def test_a_part_can_be_given_whole() -> None:
    networks = {"kind": "mlp", "hidden": 16}
    assert flags_of({"networks": networks}) == {"networks": networks}
    assert flags_of({"score": {"metric": "kid", "samples": 99}}) == {
        "score": {"metric": "kid", "samples": 99}
    }
    assert flags_of({"grid": (2, 3)}) == flags_of({"grid": "2x3"})
    assert flags_of({"checkpoint_every": 5}) == {"checkpoints.every_rounds": 5}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"wokers": 2}, "wokers: unknown setting; did you mean workers?"),
        ({"bacth": 2}, "bacth: unknown setting; did you mean batch?"),
        ({"zzzzzz": 2}, "zzzzzz: unknown setting; docs/settings.md lists them"),
        ({"steps": 2}, "steps: no setting by itself; write cellular__mixture__steps"),
        ({"batch": 2, "training__batch": 3}, "training__batch: training.batch is given twice"),
        ({"grid": "3"}, "grid '3': expected rows x columns, as in grid=\"3x3\""),
        ({"grid": np.zeros(3)}, "grid found ndarray of shape (3,): expected rows x columns"),
    ],
)
def test_what_makes_no_sense_is_told_with_the_nearest_name(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        flags_of(settings, known=["workers"])
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)


def test_a_name_of_several_settings_is_refused_with_their_keys() -> None:
    with pytest.raises(ConfigError, match=r"^samples: .*score__samples or stability__samples"):
        flags_of({"samples": 100})


def test_the_command_line_has_the_same_rule(tmp_path: Path) -> None:
    words = ("--grid", "2x3", "--method", "cellular", "--batch", "7", "--neighbourhood", "nine")
    done = run_here("train", "mnist", *words, "--print-config", "--json", cwd=tmp_path)
    here = {"method": "cellular", "grid": "2x3", "batch": 7, "neighbourhood": "nine"}
    config = resolve(flags={"data.source": "mnist"} | flags_of(here))
    assert RunConfig.model_validate(json.loads(done.out)) == config
    with fields_named(FLAGS), pytest.raises(ConfigError, match=r"as in --grid 3x3$"):
        flags_of({"grid": "3"})


def a_loss() -> None:
    """Something that has a name in this module."""


class APart:
    pass


@dataclass(frozen=True)
class AValue:
    """As a `manege.Loss` is one."""


NAMED = AValue()
PICTURES = np.zeros((2, 8, 8), np.uint8)


def test_what_has_a_name_in_a_module_becomes_a_reference() -> None:
    here = __name__
    assert referenced(a_loss, "loss") == f"{here}:a_loss"
    assert referenced({"kind": APart, "width": 3}, "networks") == {
        "kind": f"{here}:APart",
        "width": 3,
    }
    assert referenced(NAMED, "loss") == f"{here}:NAMED"
    # Whatever else has a name, as an array may, the configuration refuses by its type.
    assert referenced(PICTURES, "rounds") is PICTURES
    with pytest.raises(ConfigError, match="has no name at the top of a module"):
        referenced(lambda: None, "loss")


def test_what_was_given_is_resolved_alike_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text("networks: {kind: mlp}\nrounds: 3\n")
    flags = {"data.source": "digits", **flags_of({"batch": 9, "classes": ["3", "8"]})}
    text = given_yaml(preset="paper", file=file, flags=flags)
    (tmp_path / "given.yaml").write_text(text)
    assert resolve(file=tmp_path / "given.yaml") == resolve(preset="paper", file=file, flags=flags)
