"""A message names the field; the command line makes its flag of it, and nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.command import run_here

import manege
from manege.cli.flags import FLAGS, SHORT_OUT
from manege.config import resolve
from manege.data.named import list_datasets
from manege.errors import ConfigError, FieldNames, MachineError, field, field_names, fields_named
from manege.evaluation import EvaluationOptions
from manege.observer import Observer
from manege.runtime.messages import NewRun
from manege.runtime.transports.local import Server


def test_a_field_has_its_own_name_in_python() -> None:
    for name in ("samples", "per_class", "score.samples"):
        assert field(name) == name


def test_a_field_has_its_flag_on_the_command_line() -> None:
    with fields_named(FLAGS):
        assert field("samples") == "--samples"
        assert field("per_class") == "--per-class"
        assert field("budget_s") == "--budget"
        assert field("count") == "-n"
        assert field("out") == "--out"
    with fields_named(SHORT_OUT):
        assert (field("out"), field("count")) == ("-o", "-n")


def test_names_end_with_what_they_are_for() -> None:
    with fields_named(FLAGS):
        with fields_named(SHORT_OUT), pytest.raises(ConfigError, match=r"^--samples 0: "):
            EvaluationOptions(samples=0).check()
        assert field_names() == FLAGS
    with pytest.raises(ConfigError), fields_named(FLAGS):
        EvaluationOptions(samples=0).check()
    assert field_names() == FieldNames()


def test_names_are_the_same_after_a_journey_to_another_process() -> None:
    assert FieldNames(*json.loads(json.dumps(FLAGS))) == FLAGS


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"samples": 0}, "samples 0: expected at least 1"),
        ({"features": "auto=x"}, "features auto=x: expected auto, lite0, "),
        ({"classes": ["3", "3"]}, "classes: '3' is named twice; name each once"),
        ({"metrics": ["fid"]}, "metrics fid: not known; expected some of "),
        (
            {"metrics": ["fd"], "per_class": True},
            "per_class: of the scores only kid is computed for each class; add it to metrics, or "
            "leave per_class out",
        ),
    ],
)
def test_python_is_told_the_field(options: dict[str, object], told: str) -> None:
    pictures = np.zeros((20, 8, 8, 1), np.uint8)
    with pytest.raises(ConfigError) as raised:
        manege.evaluate(pictures, "digits", **options)
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--samples", "0"), "--samples 0: expected at least 1"),
        (
            ("--metrics", "fd", "--per-class"),
            "--per-class: of the scores only kid is computed for each class; add it to --metrics, "
            "or leave --per-class out",
        ),
    ],
)
def test_the_command_line_is_told_the_flag(
    args: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    done = run_here("evaluate", "pictures", *args, cwd=tmp_path)
    assert (done.code, done.out, done.err) == (2, "", f"manege: {told}\n")
    # And whoever goes on in Python is not.
    with pytest.raises(ConfigError, match=r"^samples 0: "):
        EvaluationOptions(samples=0).check()


def test_a_wrong_key_is_told_by_field_and_by_flag() -> None:
    wrong = {"data.source": "ring8", "data.size": 8, "networks.kind": "mlp"}
    with pytest.raises(ConfigError, match="leave size out"):
        resolve(flags=wrong)
    with fields_named(FLAGS), pytest.raises(ConfigError, match="leave --size out"):
        resolve(flags=wrong)


@pytest.mark.parametrize("names", [FieldNames(), FLAGS])
def test_the_trainer_server_names_fields_as_who_started_it(
    names: FieldNames, tmp_path: Path
) -> None:
    config = resolve(
        flags={"data.source": "digits", "device": "cuda:7", "networks.kind": "mlp", "rounds": 1},
        preset="paper",
    )
    request = NewRun(config, None, tmp_path / "run", "")
    with fields_named(names), Server() as server:
        with pytest.raises(MachineError) as raised:
            server.prepare(request, Observer())
        assert str(raised.value).startswith(f"{field('device')} cuda:7: ")


def test_a_list_of_datasets_names_what_points_need() -> None:
    def told() -> str:
        return next(row["description"] for row in list_datasets(None) if row["name"] == "ring8")

    assert told().endswith(", for networks mlp")
    with fields_named(FLAGS):
        assert told().endswith(", for --networks mlp")
