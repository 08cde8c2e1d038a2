"""`manege verdict` and `manege export`: did it help, and what would be added."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manege.cli import model
from manege.cli.flags import SHORT_OUT
from manege.cli.options import DataRoot, Json, RunFolder
from manege.cli.output import emit_json, say
from manege.errors import ConfigError, fields_named

if TYPE_CHECKING:
    from manege.verdict import Balanced, Verdict

Data = Annotated[
    str | None,
    typer.Option(help="The data the run was trained on, if they lie elsewhere now."),
]


def verdict(
    run: RunFolder,
    data: Data = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each arm, paired over the arms.")] = 5,
    steps: Annotated[
        int | None,
        typer.Option(help="Gradient steps of every training; else by the number of pictures."),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="Train on synthetic pictures that pass the gate only."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the pictures drawn.")] = 0,
    workers: Annotated[
        str,
        typer.Option(help="Trainings at the same time: a number, or auto (as many as cores)."),
    ] = "auto",
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """Say whether a run's pictures help a classifier: use it, use it for these classes, or don't.

    Classifiers are trained on (a) the real pictures, (b) oversampled to balance, (c) augmented,
    (b+c) both, (d) real and synthetic ones balanced to the largest class, (e) these augmented, and
    (f) synthetic ones only, in equally many steps, and tested on held-out pictures that
    neither GAN nor gate nor choice saw. Ctrl-C stops; the same command goes on. The run keeps it
    all in verdict/.
    """
    from manege import api
    from manege.stopping import SIGNALS

    found = api.verdict(
        run,
        data,
        seeds=seeds,
        steps=steps,
        gate=gate,
        seed=seed,
        workers=workers,
        data_root=data_root,
        signals=SIGNALS,
    )
    if json_:
        files = {"file": found.file, "figure": found.figure, "pairs": found.pairs}
        told = {name: None if path is None else str(path) for name, path in files.items()}
        emit_json({**found.tree, **told})
    else:
        _print(found)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="A run or a model folder.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The folder to make; an image folder to balance."),
    ],
    format: Annotated[
        str,
        typer.Option(
            help="folder (manege reads it), or what needs no manege: torch (a module and its "
            "weights), safetensors (likewise), torch-export or onnx (programs)."
        ),
    ] = "folder",
    balance_to: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Write pictures instead of the model: as many of each class as its training "
            "pictures lack of N.",
        ),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate", help="Leave out near-copies and what a classifier finds implausible."
        ),
    ] = False,
    data: Data = None,
    seed: Annotated[
        int | None, typer.Option(help="Same seed, same pictures; else 0.", show_default=False)
    ] = None,
    data_root: DataRoot = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the pictures of an earlier export.")
    ] = False,
    json_: Json = False,
) -> None:
    """Write a run's model into a folder that needs nothing else, or pictures that balance its data.

    The README.md in the folder shows how to draw from it. With --balance-to N it is an image folder
    with a manifest: put beside the real training pictures, it gives every class at least N of
    them. With --gate the manifest counts what was left out.
    """
    from manege.picture_files import check_new_folder

    if balance_to is None:
        for option, given in (
            ("--gate", gate),
            ("--data", data),
            ("--seed", seed is not None),
            ("--data-root", data_root),
            ("--force", force),
        ):
            if given:
                raise ConfigError(
                    f"{option}: concerns pictures, expected --balance-to N beside it; add that, or "
                    f"leave {option} out"
                )
        from manege.api import export as export_run

        check_new_folder(out)
        with fields_named(SHORT_OUT):
            exported = export_run(run, out, format)
        model.report(exported, out, as_json=json_)
        return
    if format != "folder":
        raise ConfigError(
            f"--format {format}: concerns the model, --balance-to writes pictures; leave one out"
        )
    if out.suffix.lower() in (".png", ".npz"):
        raise ConfigError(f"-o {out}: found {out.suffix}, expected the name of a folder")
    if out.is_file():
        raise ConfigError(f"-o {out}: a file, expected the name of a folder; choose another name")
    from manege.api import balance

    found = balance(
        run,
        out,
        balance_to,
        data=data,
        gate=gate,
        seed=seed or 0,
        data_root=data_root,
        force=force,
    )
    if json_:
        pictures = len(found.samples.labels)
        recipe = found.model.recipe(seed or 0, "exact")
        emit_json({"out": str(out), "pictures": pictures, **recipe, **found.about})
        return
    _print_balanced(found, out, balance_to)


def _print_balanced(found: Balanced, out: Path, to: int) -> None:
    number = f"{len(found.samples.labels):,} pictures"
    say(f"{number} in {out}; with the real ones at least {to:,} of each class")
    if found.about["labelled_by"] == "classifier":
        say("  the model draws without labels: a classifier of the real pictures gave them")
    for label, one in found.about["classes"].items():
        left_out = ", ".join(f"{number:,} {what}" for what, number in one["left_out"].items())
        said = f"; left out {left_out}" if left_out else ""
        say(f"  {label:20} {one['real']:,} real, {one['kept']:,} synthetic{said}")


def _print(found: Verdict) -> None:
    tree = found.tree
    protocol, share = tree["protocol"], tree["memorisation"]["share"]
    train, test = (protocol["data"][part] for part in ("train", "test"))
    say(
        f"{protocol['data']['name']}: {sum(train.values()):,} training pictures, "
        f"{min(train.values()):,} to {max(train.values()):,} a class; tested on "
        f"{sum(test.values()):,} that neither GAN nor gate nor choice saw"
    )
    say(f"{protocol['seeds']} seeds, {protocol['steps']:,} steps each; in %, with 95 % intervals")
    rows = [("", "", "accuracy", "mean recall")]
    rows += [
        (arm, one["title"], _percent(one["accuracy"]), _percent(one["mean_recall"]))
        for arm, one in tree["arms"].items()
    ]
    _table(rows)
    _print_classes(tree)
    cas = tree["cas"]
    say(f"classification accuracy score: {_percent(cas['synthetic_to_real'])} (synthetic to real)")
    if cas["real_to_synthetic"] is not None:
        say(f"  the reverse: {_percent(cas['real_to_synthetic'])} (real to synthetic)")
    say(
        f"near-copies: {_percent(share)} % of {tree['memorisation']['pictures']:,} pictures; of "
        "real ones 5 %"
    )
    if copied := tree["memorisation"]["copied"]:
        say(f"  copied: {', '.join(copied)}")
    left_out = _left_out(tree)
    if left_out:
        say(f"gate: left out {left_out}")
    say("")
    say(found.sentence)
    for path in filter(None, (found.file, found.figure, found.pairs)):
        say(f"  {shlex.quote(str(path))}")


def _print_classes(tree: Mapping[str, Any]) -> None:
    """Recall of each class: best without synthetic pictures, with them, and the gain."""
    comparison = tree["comparison"]
    if comparison is None:
        return
    over, arm = comparison["over"], comparison["arm"]
    rows = [("class", "pictures", f"recall {over}", f"recall {arm}", "gain over its best")]
    for label, count in tree["protocol"]["data"]["train"].items():
        mark = " *" if label in comparison["helped"] else ""
        rows.append(
            (
                label,
                f"{count:,}",
                _percent(tree["arms"][over]["recall"][label]),
                _percent(tree["arms"][arm]["recall"][label]),
                f"{_percent(comparison['recall'][label], sign='+')}{mark}",
            )
        )
    _table(rows)
    if comparison["helped"]:
        say("  * above 0 with all classes looked at together (Holm)")


def _left_out(tree: Mapping[str, Any]) -> str:
    sums: dict[str, int] = {}
    for one in tree["drawn"].values():
        for what, number in one["left_out"].items():
            sums[what] = sums.get(what, 0) + number
    total = sum(one["drawn"] for one in tree["drawn"].values())
    told = ", ".join(f"{number:,} {what}" for what, number in sums.items())
    return f"{told} of {total:,} drawn" if told else ""


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say(f"  {'  '.join(cells)}".rstrip())


def _percent(estimate: Mapping[str, float], sign: str = "") -> str:
    value, low, high = (100 * estimate[key] for key in ("value", "low", "high"))
    return f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
