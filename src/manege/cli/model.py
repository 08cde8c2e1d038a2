"""`manege model …`: look into models, join them, take classes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manege.cli.flags import SHORT_OUT
from manege.cli.options import Json
from manege.cli.output import emit_json, say
from manege.errors import fields_named

if TYPE_CHECKING:
    from manege.sampler import Component, Model

app = typer.Typer(help="Look into models, join them, take classes out.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", "-o", help="The model folder to make.")]


@app.command()
def show(
    source: Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="A run or a model folder.")],
    json_: Json = False,
) -> None:
    """List a model's classes, their share and how they were trained."""
    from manege.api import load_model

    report(load_model(source), source, as_json=json_)


@app.command()
def merge(
    models: Annotated[list[Path], typer.Argument(metavar="A B …", help="Models or runs.")],
    out: Out,
    json_: Json = False,
) -> None:
    """Make one model of several; every class keeps drawing the very same pictures."""
    from manege.api import load_model, save_model
    from manege.errors import ConfigError
    from manege.picture_files import check_new_folder

    check_new_folder(out)
    if len(models) < 2:
        raise ConfigError(f"model merge: found {len(models)} model, expected at least two")
    merged = load_model(models[0])
    for path in models[1:]:
        merged = merged.merged(load_model(path))
    with fields_named(SHORT_OUT):
        save_model(merged, out)
    report(merged, out, as_json=json_)


@app.command()
def drop(
    source: Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="A run or a model folder.")],
    labels: Annotated[list[str], typer.Option("--class", help="Take out; may be repeated.")],
    out: Out,
    json_: Json = False,
) -> None:
    """Make a model without some classes; the others keep drawing the very same pictures."""
    from manege.api import load_model, save_model
    from manege.picture_files import check_new_folder

    check_new_folder(out)
    smaller = load_model(source).without(labels)
    with fields_named(SHORT_OUT):
        save_model(smaller, out)
    report(smaller, out, as_json=json_)


def report(model: Model, path: Path, *, as_json: bool) -> None:
    """Print what a model is."""
    labels = [
        {"label": label, "p": p, **_origin(model.components_of(label))}
        for label, p in model.probabilities.items()
    ]
    if as_json:
        emit_json(
            {
                "model": str(path),
                "digest": model.digest,
                "size": model.shape.size,
                "channels": model.shape.channels,
                "labels": labels,
                "missing": dict(model.missing),
            }
        )
        return
    say(f"{path}: {len(model.labels)} classes, {model.shape.size}x{model.shape.size}, ", end="")
    say(f"{'grey' if model.shape.channels == 1 else 'colour'}, digest {model.digest}")
    for entry in labels:
        mixture = entry.get("mixture", [])
        what = f"a mixture of {len(mixture)}" if mixture else _training(entry["trained"])
        say(f"  {entry['label']:20} p {entry['p']:.4f}  {what}")
        for one in mixture:
            say(f"    cell {one['cell']:13} w {one['weight']:.4f}  {_training(one['trained'])}")
    for label, reason in model.missing.items():
        say(f"  {label:20} missing: {reason}")


def _origin(components: Sequence[Component]) -> dict[str, Any]:
    """How a label's generator was trained; of a mixture, each one's cell and weight too."""
    if components[0].cell is None:
        return {"trained": dict(components[0].trained)}
    total = sum(component.weight for component in components)
    return {
        "mixture": [
            {"cell": one.cell, "weight": one.weight / total, "trained": dict(one.trained)}
            for one in components
        ]
    }


def _training(trained: Mapping[str, Any]) -> str:
    return f"{trained.get('rounds', '?')} rounds, preset {trained.get('preset', '?')}"
