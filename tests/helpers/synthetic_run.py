"""Run directories made without training, of any size: what a reader of pictures may meet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from manege.pictures import grid, save_png, viewing_scale

T0 = 1_790_000_000.0
SIDE = 8


def per_class_events(
    classes: list[str], rounds: int, *, score_every: int = 5
) -> Iterator[dict[str, Any]]:
    """Classes one after the other, as one trainer meets them."""
    rng = np.random.default_rng(0)
    t = T0
    yield _event(
        t,
        "run_started",
        method="per-class",
        preset="modern",
        cells=classes,
        rounds=rounds,
        budget_s=None,
    )
    best: dict[str, Any] | None
    for number, cell in enumerate(classes):
        yield _event(t, "cell_started", cell=cell, round=0, step=0)
        best = None
        for round_ in range(1, rounds + 1):
            t += 1.5
            yield _event(
                t,
                "round",
                cell=cell,
                round=round_,
                steps=20,
                images=640,
                losses={
                    "discriminator": 0.6 + rng.normal(0, 0.02),
                    "generator": 1.2 + rng.normal(0, 0.1),
                },
                phases_s={"gather": 0.0, "data": 0.02, "train": 1.4, "watch": 0.01, "overall": 1.5},
                images_per_s=430.0,
                spread=20 + rng.normal(),
                augment=None,
                grid=None,
            )
            if round_ % score_every == 0:
                value = 0.5 * math.exp(-round_ / rounds * 3) + 0.02 * number
                one = {"value": value, "low": value * 0.9, "high": value * 1.1}
                if best is None or value < best["value"]:
                    best = {"round": round_, "weights": "raw", **one}
                yield _event(
                    t,
                    "score",
                    cell=cell,
                    round=round_,
                    metric="kid",
                    space="classifier-00000000",
                    scores={"raw": one},
                    best=best,
                )
        yield _event(t, "commit", cell=cell, round=rounds, step=0, bytes=1000, seconds=0.01)
        yield _event(
            t, "cell_finished", cell=cell, round=rounds, reason="rounds", spent_s=1.5 * rounds
        )
    yield _event(t, "model", file="model/model.json", labels=classes)
    yield _event(t, "run_finished", finished=classes, failed=[], seconds=t - T0)


def grid_events(rows: int, columns: int, rounds: int) -> Iterator[dict[str, Any]]:
    """A torus whose cells take turns."""
    rng = np.random.default_rng(0)
    t = T0
    cells = [f"{row}-{column}" for row in range(rows) for column in range(columns)]
    kinds = ("minimax", "heuristic", "least-squares")
    yield _event(
        t,
        "run_started",
        method="cellular",
        preset="cellular-paper",
        cells=cells,
        rounds=rounds,
        budget_s=None,
    )
    for cell in cells:
        yield _event(t, "cell_started", cell=cell, round=0, step=0)
    for round_ in range(1, rounds + 1):
        for number, cell in enumerate(cells):
            t += 0.5
            other = cells[(number + 1) % len(cells)]
            told = {
                "fitness": 1.0 + rng.normal(0, 0.1),
                "offspring": 0.9,
                "replaced": bool(rng.random() < 0.7),
                "from": other,
                "parent": {"cell": other, "round": round_ - 1},
                "rate": 2e-4 * math.exp(rng.normal(0, 0.1)),
                "objective": kinds[number % 3],
            }
            yield _event(
                t,
                "round",
                cell=cell,
                round=round_,
                steps=10,
                images=1000,
                losses={"discriminator": 1.2, "generator": 0.8 + rng.normal(0, 0.1)},
                phases_s={
                    "gather": 0.01,
                    "data": 0.01,
                    "train": 0.3,
                    "update_genomes": 0.1,
                    "mutate": 0.05,
                    "overall": 0.49,
                },
                images_per_s=3000.0,
                spread=20.0,
                augment=None,
                grid={
                    "generator": told,
                    "discriminator": {**told, "objective": None},
                    "mixture": {
                        "weights": {cell: 0.6, other: 0.4},
                        "score": 60 / round_ + rng.random(),
                    },
                    "diversity": 5.0 + round_,
                },
            )
            yield _event(t, "commit", cell=cell, round=round_, step=0, bytes=1000, seconds=0.01)
    for cell in cells:
        yield _event(
            t, "cell_finished", cell=cell, round=rounds, reason="rounds", spent_s=0.5 * rounds
        )
    scores = {
        cell: {"value": 5.0 + n / 100, "low": 4.9, "high": 5.2} for n, cell in enumerate(cells)
    }
    weights = {cells[0]: 0.7, cells[1 % len(cells)]: 0.3}
    yield _event(
        t, "mixture", space="classifier-00000000", cell=cells[0], weights=weights, scores=scores
    )
    yield _event(t, "model", file="model/model.json", labels=["all"])
    yield _event(t, "run_finished", finished=cells, failed=[], seconds=t - T0)


def measured(
    events: Iterator[dict[str, Any]],
    *,
    space: str = "random-00000000",
    samples: int = 64,
    **more: int,
) -> Iterator[dict[str, Any]]:
    """The same, each round with its collapse and cycling, and what more is told of them."""
    for event in events:
        if event["event"] == "round":
            round_ = event["round"]
            event["indices"] = {
                "collapse": 1 / round_,
                "cycling": None if round_ < 3 else 0.1 * round_,
                "moved": None if round_ < 2 else 0.2,
                "samples": samples,
                "space": space,
                **more,
            }
        yield event


def make_run(
    path: Path,
    events: Iterator[dict[str, Any]],
    *,
    labels: list[str],
    method: str,
    state: str = "finished",
    sheets_every: int = 5,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """A run directory with these events, and sheets where they tell of a round's end.

    `settings` are parts of its configuration, in place of those it would have.
    """
    path.mkdir(parents=True)
    cellular = (
        {"rows": 2, "columns": 2, "mixture": {"metric": "fd"}} if method == "cellular" else None
    )
    config = {
        "method": method,
        "preset": "modern",
        "seed": 0,
        "rounds": 10,
        "budget_s": None,
        "data": {"source": "digits", "classes": labels},
        "training": {"loss": "bce", "batch": 32, "batches_per_round": None},
        "cellular": cellular,
        "stability": {"every_rounds": 1, "samples": None, "window": 10},
        **(settings or {}),
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "command.txt").write_text("manege train digits --out run\n")
    (path / "environment.json").write_text(json.dumps({"manege": "0.1.0", "python": "3.11"}))
    classes = {label: {"train": 100 + n, "held_out": 10} for n, label in enumerate(labels)}
    data = {"name": "digits", "size": SIDE, "channels": 1, "rule": "10 %", "classes": classes}
    (path / "data.json").write_text(json.dumps(data))
    (path / "status.json").write_text(json.dumps({"incarnation": 1, "state": state, "cells": {}}))
    (path / "lock").touch()
    with (path / "events.jsonl").open("w") as file:
        for event in events:
            file.write(json.dumps(event) + "\n")
            if event["event"] == "round" and sheets_every and event["round"] % sheets_every == 0:
                name = f"samples/{event['cell']}/round-{event['round']:06d}.png"
                sheet(path / name, 16, event["round"])
                told = _event(
                    event["t"], "sheet", cell=event["cell"], round=event["round"], file=name
                )
                file.write(json.dumps(told) + "\n")
    rows = 8 if method == "cellular" else len(labels)
    for name in ("real.png", "model.png"):
        sheet(path / "samples" / name, 8 * rows, 1, columns=8)
    return path


def sheet(path: Path, count: int, seed: int, columns: int | None = None) -> None:
    """A sheet of pictures that differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (count, SIDE, SIDE, 1), dtype=np.uint8)
    save_png(path, grid(pictures, columns=columns), {"seed": str(seed)}, viewing_scale(SIDE))


def evaluation(path: Path, *, value: float = 0.1, labels: tuple[str, ...] = ()) -> None:
    """An evaluation kept in the run, as `manege evaluate` writes it."""
    folder = path / "evaluations"
    folder.mkdir(exist_ok=True)
    space = "classifier-00000000"
    floor = {"value": 0.001, "low": -0.01, "high": 0.01}
    base = {"space": space, "definition": "as defined", "interval": "as computed", "marks": []}
    scores = [
        {
            **base,
            "name": "kid",
            "value": value,
            "low": value / 2,
            "high": value * 2,
            "floor": floor,
            "label": None,
        },
        {
            **base,
            "name": "coverage",
            "value": 0.8,
            "low": 0.7,
            "high": 0.9,
            "floor": None,
            "label": None,
        },
        {
            **base,
            "name": "nearer-to-train",
            "value": 0.5,
            "low": 0.4,
            "high": 0.6,
            "floor": None,
            "label": None,
        },
    ]
    scores += [
        {
            **base,
            "name": "kid",
            "value": value,
            "low": 0.0,
            "high": 1.0,
            "floor": floor,
            "label": one,
        }
        for one in labels
    ]
    protocol = {
        "subject": {"name": "run", "digest": "aa", "pictures": 1000},
        "reference": {
            "name": "digits",
            "split": "held-out",
            "pictures": 179,
            "digest": "bb",
            "other": "cc",
        },
        "space": {"name": space, "dimensions": 64},
        "seed": 0,
    }
    tree = {"protocol": protocol, "scores": scores, "left_out": {"fd": "too few pictures"}}
    (folder / "0123456789ab.json").write_text(json.dumps(tree))
    sheet(folder / "0123456789ab-nearest.png", 32, 7, columns=16)


def trial(path: Path, labels: tuple[str, ...]) -> None:
    """A verdict kept in the run, as `manege verdict` writes it."""
    folder = path / "verdict" / "0123456789ab"
    folder.mkdir(parents=True)
    share = {"value": 0.9, "low": 0.88, "high": 0.92}
    gain = {"value": -0.006, "low": -0.028, "high": 0.016}
    arms = {
        arm: {
            "title": title,
            "accuracy": share,
            "mean_recall": share,
            "recall": dict.fromkeys(labels, share),
        }
        for arm, title in (("a", "real"), ("b+c", "real, oversampled and augmented"), ("f", "made"))
    }
    tree = {
        "outcome": "dont",
        "sentence": "Don't: <nothing> gained.",
        "protocol": {
            "seeds": 3,
            "steps": 300,
            "gate": False,
            "data": {
                "name": "digits",
                **{part: dict.fromkeys(labels, 50) for part in ("train", "test")},
            },
        },
        "arms": arms,
        "comparison": {
            "arm": "e",
            "mean_recall": gain,
            "recall": dict.fromkeys(labels, gain),
            "helped": [labels[0]],
        },
        "cas": {"synthetic_to_real": share, "real_to_synthetic": None},
        "memorisation": {
            "share": {"value": 0.014, "low": 0.012, "high": 0.015},
            "pictures": 100,
            "copied": [],
        },
        "drawn": {label: {"kept": 50, "drawn": 50, "left_out": {}} for label in labels},
    }
    (folder / "verdict-3-seeds.json").write_text(json.dumps(tree))
    sheet(folder / "nearest.png", 24, 8, columns=12)


def _event(t: float, event: str, **fields: Any) -> dict[str, Any]:
    return {"t": round(t, 3), "incarnation": 1, "event": event, **fields}
