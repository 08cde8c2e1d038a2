"""The result of an evaluation, and how a run stores it and finds it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from manege import pictures
from manege.errors import CheckpointError, ConfigError
from manege.files import below, read_capped
from manege.metrics import Results, Score, Space, is_stored, kind_of, save_space
from manege.metrics.controls import told
from manege.runs import RunDir
from manege.version import __version__
from manege.view.notebook import html_of_scores, plot_scores

FORMAT = 3
"""Change it whenever a score's arithmetic changes: stored results are then computed anew."""
FOLDER = "evaluations"
"""Where a run keeps its evaluations."""

CONTROLS = "scorer/controls.json"
"""Where a run records which feature spaces see its data."""

_CAP_BYTES = 1 << 26
_SCORES: TypeAdapter[tuple[Score, ...]] = TypeAdapter(tuple[Score, ...])
_FIELDS = {field.name for field in fields(Score)}
_CONTROLS: TypeAdapter[dict[str, dict[str, Any]]] = TypeAdapter(dict[str, dict[str, Any]])
_REASONS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])


@dataclass(frozen=True)
class Evaluation:
    """The scores of one evaluation, with all that they depend on."""

    protocol: dict[str, Any]
    scores: tuple[Score, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    controls: dict[str, Any] = field(default_factory=dict)
    """By the name of each feature space: whether it sees these data, and what it was tried with."""
    file: Path | None = None
    """The file in which the run keeps it; None when no run does."""

    def score(self, name: str, label: str | None = None) -> Score:
        """Return the score of that name, with or without its space, or raise KeyError."""
        for one in self.scores:
            if name in (one.name, one.full_name) and one.label == label:
                return one
        raise KeyError(name)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return a row of texts for each score: name, value, interval, real pictures, marks."""
        return [
            (
                one.full_name + (f" [{one.label}]" if one.label is not None else ""),
                f"{one.value:.4g}",
                f"{one.low:.4g} to {one.high:.4g}",
                f"{one.floor.value:.4g}" if one.floor is not None else "",
                " ".join(f"({mark})" for mark in one.marks),
            )
            for one in self.scores
        ]

    def plot(self, ax: Any = None, name: str = "kid") -> Any:
        """Draw the scores of one name, of all classes and of each, on matplotlib's axes."""
        chosen = [one for one in self.scores if name in (one.name, one.full_name)]
        if not chosen:
            known = ", ".join(dict.fromkeys(one.name for one in self.scores))
            raise ConfigError(f"{name}: no such score here; expected one of {known}")
        rows = [
            (
                *(one.label or "all", one.value, one.low, one.high),
                None if one.floor is None else one.floor.value,
            )
            for one in chosen
        ]
        return plot_scores(rows, ax, chosen[0].full_name)

    def _repr_html_(self) -> str:
        return html_of_scores(self.protocol, self.rows(), self.blind())

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation as a tree for JSON."""
        return {
            "format": FORMAT,
            "manege": __version__,
            "protocol": self.protocol,
            "scores": [score.as_dict() for score in self.scores],
            "left_out": self.left_out,
            "controls": self.controls,
        }

    def blind(self) -> list[str]:
        """Return a line for each feature space that does not see these data."""
        return [str(one["told"]) for one in self.controls.values() if one["blind"]]


def stored(rundir: RunDir | None, protocol: dict[str, Any]) -> Evaluation | None:
    """Return the evaluation that the run has kept under the same protocol, or None."""
    if rundir is None:
        return None
    path = rundir.path / FOLDER / f"{_key(protocol)}.json"
    try:
        tree = json.loads(read_capped(path, _CAP_BYTES))
        if _key(tree["protocol"]) != _key(protocol):
            raise ValueError("its protocol is not the one its name stands for")
        entries = [{k: v for k, v in one.items() if k != "full_name"} for one in tree["scores"]]
        if any({*one} != _FIELDS for one in entries):
            raise ValueError("a score with other fields")
        scores = _SCORES.validate_json(json.dumps(entries), strict=True)
        left_out = _REASONS.validate_python(tree["left_out"], strict=True)
        # The run may have been moved since: what it is called now counts.
        controls = _CONTROLS.validate_python(tree["controls"], strict=True)
        if any(not {"blind", "told"} <= {*one} for one in controls.values()):
            raise ValueError("a control without its outcome")
        # Whoever kept it may have known the fields by other names.
        for name, one in controls.items():
            one["told"] = told(name, tuple(one["blind"]))
        return Evaluation(protocol, scores, left_out, controls, path)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise _damaged(path, error.errors()[0]["msg"]) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, repr(error)) from None


def keep(rundir: RunDir, evaluation: Evaluation, results: Results, classifier: Space) -> Evaluation:
    """Store the evaluation in the run, with the data's classifier and a sheet of nearest pairs."""
    if classifier.trained_on is not None:
        known = (rundir.path / name for name in ("classifier", "scorer"))
        if not any(is_stored(one) and kind_of(one) == classifier.kind for one in known):
            save_space(classifier, below(rundir.path, "classifier"))
    if evaluation.controls:
        rundir.write_json(CONTROLS, {**_known(rundir), **evaluation.controls})
    key = _key(evaluation.protocol)
    if results.pairs is not None:
        drawn, real = results.pairs
        sheet = pictures.grid(np.concatenate([drawn, real]), columns=len(drawn))
        recipe = {"rows": "generated, nearest training picture", "evaluation": key}
        scale = pictures.viewing_scale(drawn.shape[1])
        rundir.write_bytes(f"{FOLDER}/{key}-nearest.png", pictures.png_bytes(sheet, recipe, scale))
    name = f"{FOLDER}/{key}.json"
    rundir.write_json(name, evaluation.as_dict())
    return replace(evaluation, file=rundir.path / name)


def _known(rundir: RunDir) -> dict[str, Any]:
    """Return what earlier evaluations of the run found about feature spaces."""
    try:
        tree = json.loads(read_capped(rundir.path / CONTROLS, _CAP_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _key(protocol: dict[str, Any]) -> str:
    """Return the key of an evaluation: a digest of its protocol, but not of the run's path."""
    subject = {k: v for k, v in protocol["subject"].items() if k != "name"}
    spelled = json.dumps([FORMAT, {**protocol, "subject": subject}], sort_keys=True)
    return hashlib.sha256(spelled.encode()).hexdigest()[:12]


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: damaged ({reason}); delete it and try again")
