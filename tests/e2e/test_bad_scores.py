"""Bad input to the commands that score: one line that names the thing and what to do about it."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.command import TINY, Done
from tests.helpers.material import noise, write_class, write_colour, write_logits

from .conftest import Command

ROUND = " ".join(("--classes 3,7,8 --rounds 1", *TINY))
DIGITS = "--data digits --classes 3,7,8"
TWENTY = noise(1, 20, 8, 8)
LABELS = np.repeat(np.array(["3", "7"]), 10)


@dataclass(frozen=True)
class Case:
    """A wrong command and what its one line must say."""

    sentence: str
    command: str
    """In it, `mine` and `real` are folders of pictures, `run` and `other` runs on three digits,
    `model` a model and `scored` a run with scores."""
    says: tuple[str, ...]
    code: int = 2
    prepare: Callable[[Path], object] = lambda here: None
    env: dict[str, str] = field(default_factory=dict)


# What the cases prepare, each in the folder the command runs in.


def pictures(name: str, count: int, *, side: int = 8) -> Callable[[Path], object]:
    return lambda here: write_class(here / name, count, side=side)


def animals(here: Path) -> None:
    write_class(here / "animals" / "cat", 20)
    write_class(here / "animals" / "dog", 20)


def differing(here: Path) -> None:
    write_class(here / "two", 9)
    Image.fromarray(noise(1, 12, 12)).save(here / "two" / "zz.png")


def half_loose(here: Path) -> None:
    animals(here)
    Image.fromarray(noise(1, 8, 8)).save(here / "animals" / "zz.png")


def broken_picture(here: Path) -> None:
    write_class(here / "bad", 9)
    whole = (here / "bad" / "000.png").read_bytes()
    (here / "bad" / "zz.png").write_bytes(whole[: len(whole) // 2])


def npz(**arrays: np.ndarray) -> Callable[[Path], object]:
    return lambda here: np.savez(here / "a.npz", **arrays)


def damaged_npz(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def prepare(here: Path) -> None:
        np.savez(here / "a.npz", images=TWENTY)
        (here / "a.npz").write_bytes(change((here / "a.npz").read_bytes()))

    return prepare


def text(name: str, content: str = "mine") -> Callable[[Path], object]:
    return lambda here: (here / name).write_text(content)


def edited(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda here: (here / name).write_bytes(change((here / name).read_bytes()))


Change = Callable[[dict[str, Any]], object]
"""Changes a JSON object in place."""


def edited_json(pattern: str, change: Change) -> Callable[[Path], object]:
    """The one JSON file of that pattern, changed."""

    def prepare(here: Path) -> None:
        [path] = here.glob(pattern)
        tree = json.loads(path.read_text())
        change(tree)
        path.write_text(json.dumps(tree))

    return prepare


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def stopped_and_damaged(here: Path) -> None:
    """A run that has to be read from its checkpoints, none of which is whole."""
    edited_json("run/status.json", lambda tree: tree.update(state="stopped"))(here)
    for file in (here / "run" / "checkpoints" / "3").glob("*.safetensors"):
        file.write_bytes(flipped(file.read_bytes()))


def without_commits(here: Path) -> None:
    shutil.rmtree(here / "run" / "checkpoints")
    shutil.rmtree(here / "run" / "model")


class Malice:
    """Somebody's file that writes one of its own when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("owned"), "by them")


def malicious(here: Path) -> None:
    (here / "a.pkl").write_bytes(pickle.dumps({"conv1.weight": Malice()}))


SUBJECTS = [
    Case(
        "three pictures",
        "evaluate three --data real",
        ("three", "3 generated pictures", "expected at least 8", "give more"),
        prepare=pictures("three", 3),
    ),
    Case(
        "an empty folder",
        "evaluate empty --data real",
        ("empty: no file", "expected PNG", "a subfolder of them for each class"),
        prepare=lambda here: (here / "empty").mkdir(),
    ),
    Case(
        "a folder without pictures",
        "evaluate notes --data real",
        ("notes: 1 files, none a picture", "expected PNG"),
        prepare=lambda here: ((here / "notes").mkdir(), text("notes/a.txt")(here)),
    ),
    Case(
        "a path that does not exist",
        "evaluate nowhere --data real",
        ("nowhere: no such file or folder", "expected"),
    ),
    Case(
        "a text file",
        "evaluate notes.txt --data real",
        ("notes.txt: a file, but no .npz", "expected a folder of pictures or an .npz"),
        prepare=text("notes.txt"),
    ),
    Case(
        "a folder of runs",
        "evaluate runs --data real",
        ("runs", "a folder of 1 runs", "runs/0001-digits-per-class"),
        prepare=lambda here: shutil.copytree(here / "run", here / "runs/0001-digits-per-class"),
    ),
    Case(
        "differing sizes in a folder",
        "evaluate two --data real",
        ("two: pictures of differing sizes", "9 are 8x8 and 1 are 12x12", "--size"),
        prepare=differing,
    ),
    Case(
        "another size than the data's",
        "evaluate large --data real",
        ("large: pictures of 12x12x1", "real has 8x8x1", "--size"),
        prepare=pictures("large", 12, side=12),
    ),
    Case(
        "another size than a named dataset's",
        "evaluate large --data digits --features random",
        ("large: pictures of 12x12x1", "digits has 8x8x1", "--size"),
        prepare=pictures("large", 12, side=12),
    ),
    Case(
        "colour against grey",
        "evaluate colour --data real",
        ("colour: pictures of 8x8x3", "real has 8x8x1", "--channels"),
        prepare=lambda here: write_colour(here / "colour", 12),
    ),
    Case(
        "oblong pictures",
        "evaluate a.npz --data real",
        ("a.npz: pictures of 6x8", "expected squares", "--size"),
        prepare=npz(images=TWENTY[:, :, :6]),
    ),
    Case(
        "a broken picture",
        "evaluate bad --data real",
        ("bad/zz.png", "truncated", "mend or remove"),
        prepare=broken_picture,
    ),
    Case(
        "pictures beside class folders",
        "evaluate animals --data real",
        ("animals: 1 pictures are in no class folder", "zz.png", "move them away"),
        prepare=half_loose,
    ),
    Case(
        "an .npz that is no zip",
        "evaluate a.npz --data real",
        ("a.npz: not a .npz file", "numpy.savez"),
        prepare=text("a.npz"),
    ),
    Case(
        "half an .npz",
        "evaluate a.npz --data real",
        ("a.npz: not a .npz file", "numpy.savez"),
        prepare=damaged_npz(half),
    ),
    Case(
        "an .npz with one bit flipped",
        "evaluate a.npz --data real",
        ("a.npz: array 'images' cannot be read", "CRC", "save it again"),
        prepare=damaged_npz(flipped),
    ),
    Case(
        "an .npz without images",
        "evaluate a.npz --data real",
        ("a.npz: no array 'images', found pictures", "numpy.savez"),
        prepare=npz(pictures=TWENTY),
    ),
    Case(
        "an .npz of integers",
        "evaluate a.npz --data real",
        ("a.npz: images has dtype int64, expected uint8",),
        prepare=npz(images=TWENTY.astype(np.int64)),
    ),
    Case(
        "an .npz of rows",
        "evaluate a.npz --data real",
        ("a.npz: images has shape (20, 64), expected (N, H, W)",),
        prepare=npz(images=TWENTY.reshape(20, 64)),
    ),
    Case(
        "an .npz with more labels than images",
        "evaluate a.npz --data real",
        ("a.npz: labels has shape (20,), expected (12,)",),
        prepare=npz(images=TWENTY[:12], labels=LABELS),
    ),
    Case(
        "a model and no data",
        "evaluate model",
        ("model: nothing to compare it with", "--data"),
    ),
    Case("a folder and no data", "evaluate mine", ("mine: nothing to compare it with", "--data")),
    Case(
        "a stopped run with a damaged checkpoint",
        "evaluate run",
        ("run/checkpoints/3", "no checkpoint that can be trusted", "restore it from a copy"),
        prepare=stopped_and_damaged,
    ),
    Case(
        "a finished run with a damaged model",
        "evaluate run --seed 1",
        ("run/model/7.safetensors", "its SHA-256 is", "export the model again"),
        prepare=edited("run/model/7.safetensors", half),
    ),
    Case(
        "a run without a commit",
        "evaluate run",
        ("run: no class has a commit yet", "manege resume run"),
        prepare=without_commits,
    ),
    Case(
        "half a config.yaml",
        "evaluate run",
        ("run/config.yaml",),
        prepare=edited("run/config.yaml", lambda text: half(text) + b": ["),
    ),
]

DATA = [
    Case(
        "a misspelt dataset",
        "evaluate mine --data digit",
        ("digit", "did you mean digits?"),
    ),
    Case("data that do not exist", "evaluate mine --data nowhere", ("nowhere", "no such")),
    Case(
        "an empty folder of data",
        "evaluate mine --data empty",
        ("empty: no file", "expected PNG"),
        prepare=lambda here: (here / "empty").mkdir(),
    ),
    Case(
        "a text file for data",
        "evaluate mine --data notes.txt",
        ("notes.txt: a file, but no .npz",),
        prepare=text("notes.txt"),
    ),
    Case(
        "three pictures of data",
        "evaluate mine --data three",
        ("three: 3 reference pictures", "expected at least 8", "give more"),
        prepare=pictures("three", 3),
    ),
    Case(
        "nothing held out",
        "evaluate mine --data animals --features random",
        ("animals: 4 reference pictures (held-out)", "expected at least 8", "--reference"),
        prepare=animals,
    ),
    Case(
        "a class that the model has not",
        "evaluate model --data digits",
        ("model: the model has no class '0'", "--classes 3,7,8"),
    ),
    Case(
        "a class that the data have not",
        "evaluate run --data a.npz",
        ("run: the model draws class '8', which a has not", "--classes 3,7"),
        prepare=npz(images=TWENTY, labels=LABELS),
    ),
    Case(
        "no class in common",
        "evaluate run --data animals",
        ("run: the model has no class 'cat'", "give other --data"),
        prepare=animals,
    ),
    Case(
        "a data root that does not exist",
        "evaluate mine --data mnist --data-root nowhere",
        ("--data-root nowhere", "no such folder"),
    ),
    Case(
        "an unknown split",
        "evaluate run --reference test",
        ("--reference test", "expected held-out or train"),
    ),
    Case(
        "a split of what has none",
        "evaluate mine --data real --reference train",
        ("--reference", "real"),
    ),
]

OPTIONS = [
    Case(
        "an unknown score",
        "evaluate run --metrics kid,fid",
        (
            "--metrics fid: not known",
            "kid, fd, is, prdc, labels, nearest, modes",
            "FID is fd with --features inception",
        ),
    ),
    Case(
        "no score",
        "evaluate run --metrics=",
        ("--metrics: empty", "kid, fd, is, prdc, labels, nearest, modes"),
    ),
    Case(
        "a comma too many",
        "evaluate run --metrics kid,",
        ("--metrics 'kid,'", "kid, fd, is, prdc, labels, nearest, modes"),
    ),
    Case(
        "a Fréchet distance on few pictures",
        "evaluate run --metrics fd",
        (
            "--metrics fd: 53 reference pictures are too few",
            "128 dimensions",
            "kid",
            "--allow-few-samples",
        ),
    ),
    Case(
        "labels of unlabelled pictures",
        "evaluate mine --data real --metrics labels",
        ("--metrics labels", "needs labelled reference data"),
    ),
    Case(
        "labels in a space that knows none",
        f"evaluate model {DIGITS} --features random --metrics labels",
        ("--metrics labels", "a feature network that knows labels"),
    ),
    Case(
        "modes of pictures",
        "evaluate run --metrics modes",
        ("--metrics modes", "only the toys ring8 and grid25"),
    ),
    Case(
        "nearest pictures without held-out ones",
        "evaluate mine --data real --metrics kid,nearest",
        ("--metrics nearest", "needs data with training and held-out pictures"),
    ),
    Case(
        "classes of unlabelled pictures one by one",
        "evaluate mine --data digits --features random --per-class",
        ("--per-class: mine has no labels",),
    ),
    Case(
        "classes of unlabelled data one by one",
        "evaluate run --data real --per-class",
        ("--per-class: the data has no labels",),
    ),
    Case("no samples", "evaluate run --samples 0", ("--samples 0: expected at least 1",)),
    Case("fewer than none", "evaluate run --samples -5", ("--samples -5: expected at least 1",)),
    Case(
        "samples in words",
        "evaluate run --samples many",
        ("--samples", "a valid integer", "found 'many'", "manege evaluate --help"),
    ),
    Case(
        "more samples than there are",
        "evaluate mine --data real --samples 13",
        ("mine: 12 pictures, but --samples 13", "give fewer"),
    ),
    Case(
        "too few samples to say anything",
        "evaluate run --samples 7",
        ("run: 7 generated pictures", "expected at least 8", "give more"),
    ),
    Case(
        "an unknown label",
        "evaluate run --classes 3,seven",
        ("classes: digits has no 'seven'", "choose among 0, 1, 2"),
    ),
    Case(
        "a label the run has not learned",
        "evaluate run --classes 3,9",
        ("run: the model has no class '9'", "--classes 3"),
    ),
    Case(
        "a label the pictures have not",
        "evaluate a.npz --data digits --classes 8",
        ("--classes: a.npz has no picture of 8",),
        prepare=npz(images=TWENTY, labels=LABELS),
    ),
    Case(
        "labels for an unlabelled folder",
        "evaluate mine --data digits --classes 3",
        ("--classes: the pictures of mine have no labels",),
    ),
    Case(
        "labels for unlabelled data",
        "evaluate model --data real --classes 3",
        ("--classes", "real", "no labels"),
    ),
    Case(
        "an unknown label for unlabelled data",
        "evaluate model --data real --classes seven",
        ("--classes", "seven"),
    ),
    Case("an empty label", "evaluate run --classes 3,,8", ("--classes '3,,8'", "an empty label")),
    Case(
        "a label twice",
        "evaluate model --data digits --classes 3,8,3",
        ("classes", "twice", "each once"),
    ),
    Case(
        "a label twice for a run's own data",
        "evaluate run --classes 3,8,3 --features random",
        ("classes", "twice", "each once"),
    ),
    Case("a side of 3", "evaluate mine --data real --size 3", ("--size 3", "4 to 1024")),
    Case("a side of 5000", "evaluate mine --data real --size 5000", ("--size 5000", "4 to 1024")),
    Case(
        "a side of 3 for a run",
        "evaluate run --size 3",
        ("--size 3",),
    ),
    Case("two channels", "evaluate mine --data real --channels 2", ("--channels 2", "1 (grey)")),
    Case(
        "two channels for a run",
        "evaluate run --channels 2",
        ("--channels 2",),
    ),
    Case("an unknown option", "evaluate run --metric kid", ("No such option: --metric", "--help")),
    Case("nothing to judge", "evaluate", ("Missing argument", "manege evaluate --help")),
]

FEATURES = [
    Case(
        "an unknown space",
        "evaluate run --features vgg",
        ("--features vgg: expected auto, lite0, classifier, random", "the scorer/ folder of a run"),
    ),
    Case(
        "a file for a space that takes none",
        "evaluate run --features random=a.pkl",
        ("--features random=a.pkl", "expected auto, lite0, classifier, random"),
    ),
    Case(
        "a classifier of unlabelled data",
        "evaluate mine --data real --features classifier",
        ("--features classifier: real has no labels", "--features lite0"),
    ),
    Case(
        "a classifier of one class",
        "evaluate mine --data one --features classifier",
        ("--features classifier: one has one class", "--features lite0"),
        prepare=pictures("one/cat", 100),
    ),
    Case(
        "a folder without a scorer",
        "evaluate run --features mine",
        ("mine: no scorer there", "expected scorer.json and space.safetensors"),
    ),
    Case(
        "a scorer of another dataset",
        "evaluate mine --data animals --reference train --features run/classifier",
        ("--features run/classifier: a scorer of another dataset", "it knows 0, 1, 2", "leave"),
        prepare=animals,
    ),
    Case(
        "a scorer of labelled data for unlabelled",
        "evaluate mine --data real --features run/classifier",
        ("--features run/classifier: a scorer of another dataset", "it knows 0, 1, 2", "leave"),
    ),
    Case(
        "a scorer whose weights are cut",
        "evaluate model --data digits --classes 3,7,8 --features run/classifier",
        ("run/classifier/scorer.json: damaged", "SHA-256 of space.safetensors differs", "delete"),
        prepare=edited("run/classifier/space.safetensors", half),
    ),
    Case(
        "a run's own scorer with one bit flipped",
        "evaluate run",
        ("run/classifier/scorer.json: damaged", "SHA-256", "delete the folder run/classifier"),
        prepare=edited("run/classifier/space.safetensors", flipped),
    ),
    Case(
        "half a scorer.json",
        "evaluate run",
        ("run/classifier/scorer.json: damaged", "delete the folder run/classifier"),
        prepare=edited("run/classifier/scorer.json", half),
    ),
    Case(
        "a list for a scorer.json",
        "evaluate run",
        ("run/classifier/scorer.json: damaged", "delete the folder run/classifier"),
        prepare=text("run/classifier/scorer.json", "[]"),
    ),
    Case(
        "a scorer with a label too many",
        "evaluate run",
        ("run/classifier/scorer.json: damaged", "delete the folder run/classifier"),
        prepare=edited_json("run/classifier/scorer.json", lambda tree: tree["labels"].append("9")),
    ),
    Case(
        "a scorer of another size than it says",
        "evaluate run",
        ("run/classifier", "8x8x1", "28x28x1"),
        prepare=edited_json("run/classifier/scorer.json", lambda tree: tree.update(size=28)),
    ),
    Case(
        "a scorer of another kind than it says",
        "evaluate run --seed 1",
        ("run/classifier/scorer.json: damaged", "delete the folder run/classifier"),
        prepare=edited_json("run/classifier/scorer.json", lambda tree: tree.update(kind="points")),
    ),
    Case(
        "a scorer with words for its accuracy",
        "evaluate run --seed 1",
        ("run/classifier/scorer.json: damaged", "delete the folder run/classifier"),
        prepare=edited_json(
            "run/classifier/scorer.json", lambda tree: tree["accuracy"].update(value="high")
        ),
    ),
    Case(
        "a scorer of another format",
        "evaluate run",
        ("run/classifier/scorer.json: scorer format 99, this manege reads 1",),
        prepare=edited_json("run/classifier/scorer.json", lambda tree: tree.update(format=99)),
    ),
    Case(
        "Lipizzaner's classifier from nowhere",
        "evaluate run --features mnist-logits",
        ("--features mnist-logits: where is", "mnist-logits=FILE", "--data-root"),
    ),
    Case(
        "Lipizzaner's classifier not below MANEGE_DATA",
        "evaluate run --features mnist-logits",
        ("data/classifiers/lipizzaner_mnist_cnn.pkl: cannot be read", "mnist-logits=FILE"),
        env={"MANEGE_DATA": "data"},
    ),
    Case(
        "Lipizzaner's classifier missing",
        "evaluate run --features mnist-logits=a.pkl",
        ("a.pkl: cannot be read (No such file or directory)", "mnist-logits=FILE"),
    ),
    Case(
        "a text for Lipizzaner's classifier",
        "evaluate run --features mnist-logits=a.pkl",
        ("a.pkl: not the MNIST classifier of Lipizzaner", "expected its state dict"),
        prepare=text("a.pkl"),
    ),
    Case(
        "a list for Lipizzaner's classifier",
        "evaluate run --features mnist-logits=a.pkl",
        ("a.pkl: not the MNIST classifier of Lipizzaner", "expected its state dict"),
        prepare=lambda here: torch.save([torch.zeros(3)], here / "a.pkl"),
    ),
    Case(
        "another network for Lipizzaner's classifier",
        "evaluate run --features mnist-logits=a.pkl",
        ("a.pkl: not the MNIST classifier of Lipizzaner", "expected its state dict"),
        prepare=lambda here: torch.save(torch.nn.Linear(2, 2).state_dict(), here / "a.pkl"),
    ),
    Case(
        "a file that means harm for Lipizzaner's classifier",
        "evaluate run --features mnist-logits=a.pkl",
        ("a.pkl: not the MNIST classifier of Lipizzaner", "expected its state dict"),
        prepare=malicious,
    ),
    Case(
        "Lipizzaner's classifier gone wrong",
        "evaluate mine --data real --size 28 --features mnist-logits=a.pkl",
        ("a.pkl", "finite"),
        prepare=lambda here: write_logits(here / "a.pkl", value=float("nan")),
    ),
    Case(
        "Lipizzaner's classifier for pictures of another size",
        "evaluate mine --data real --features mnist-logits=a.pkl",
        ("pictures of 8x8x1", "mnist-logits", "28x28x1", "--size"),
        prepare=lambda here: write_logits(here / "a.pkl"),
    ),
]


def told(change: Change) -> Callable[[Path], object]:
    """The run's evaluation, changed."""
    return edited_json("run/evaluations/*.json", change)


def first(**fields: object) -> Callable[[Path], object]:
    return told(lambda tree: tree["scores"][0].update(fields))


DAMAGED = ("run/evaluations/", ".json: damaged", "delete it and try again")

KEPT = [
    Case(
        "half an evaluation",
        "evaluate run",
        DAMAGED,
        prepare=lambda here: [
            path.write_bytes(half(path.read_bytes()))
            for path in (here / "run" / "evaluations").glob("*.json")
        ],
    ),
    Case(
        "an evaluation without scores",
        "evaluate run",
        DAMAGED,
        prepare=told(lambda tree: tree.pop("scores")),
    ),
    Case(
        "a score without a value",
        "evaluate run",
        DAMAGED,
        prepare=told(lambda tree: tree["scores"][0].pop("value")),
    ),
    Case("a score with a field too many", "evaluate run", DAMAGED, prepare=first(colour="red")),
    Case("a score in words", "evaluate run", DAMAGED, prepare=first(value="low")),
    Case("a score without an end", "evaluate run", DAMAGED, prepare=first(low=None)),
    Case(
        "a score in words as JSON",
        "evaluate run --json",
        DAMAGED,
        prepare=first(value="low"),
    ),
    Case("a number for a name", "evaluate run --json", DAMAGED, prepare=first(name=5)),
    Case(
        "real pictures in words",
        "evaluate run",
        DAMAGED,
        prepare=first(floor={"value": "low", "low": 0, "high": 1}),
    ),
    Case(
        "an evaluation without a protocol",
        "evaluate run",
        DAMAGED,
        prepare=told(lambda tree: tree.update(protocol={})),
    ),
    Case(
        "an evaluation without a space",
        "evaluate run",
        DAMAGED,
        prepare=told(lambda tree: tree["protocol"].update(space=None)),
    ),
]

COMPARE = [
    Case("comparing nothing", "compare", ("Missing argument", "manege compare --help")),
    Case(
        "comparing one run",
        "compare run",
        ("compare: expected at least two different runs", "use evaluate"),
    ),
    Case(
        "comparing a run with itself",
        "compare run run",
        ("compare: expected at least two different runs",),
    ),
    Case(
        "comparing a run with itself by another name",
        "compare run ./other/../run",
        ("compare: expected at least two different runs",),
    ),
    Case(
        "comparing a run twice with another",
        "compare run other run",
        ("compare", "run", "twice"),
    ),
    Case(
        "comparing a run with a model",
        "compare run model",
        ("model is not a run directory", "it is a model"),
    ),
    Case(
        "comparing a run with pictures",
        "compare run mine",
        ("mine is not a run directory", "no config.yaml"),
    ),
    Case(
        "comparing a run with nothing",
        "compare run nowhere",
        ("nowhere is not a run directory", "no such folder", "spelling"),
    ),
    Case(
        "comparing into a file of another kind",
        "compare run other -o a.npz",
        ("-o a.npz", "ends in .png"),
    ),
    Case(
        "comparing onto a file that exists",
        "compare run other -o a.png",
        ("a.png: already exists", "another name", "--force"),
        prepare=text("a.png"),
    ),
    Case(
        "comparing onto a file that exists and was not named",
        "compare run other",
        ("comparison.png: already exists", "--force"),
        prepare=text("comparison.png"),
    ),
    Case(
        "comparing below a file",
        "compare run other -o file/a.png",
        ("file is not a folder", "another name"),
        prepare=text("file"),
    ),
    Case(
        "comparing by an unknown score",
        "compare run other --metrics fid",
        ("--metrics fid: not known",),
    ),
    Case(
        "comparing with misspelt data",
        "compare run other --data digit",
        ("digit", "did you mean digits?"),
    ),
]

TRAINING = [
    Case(
        "training by an unknown score",
        f"train digits {ROUND} --score kit",
        ("score.metric: found 'kit'", "one of none, kid, fd", "did you mean kid?"),
    ),
    Case(
        "training by a Fréchet distance on few pictures",
        f"train digits {ROUND} --score fd",
        ("--score fd", "pictures, too few for a Fréchet distance", "--score kid"),
    ),
    Case(
        "scoring never",
        f"train digits {ROUND} --score kid --score-every 0",
        ("score.every_rounds: found 0", "greater than or equal to 1"),
    ),
    Case("an average of one", f"train digits {ROUND} --ema 1", ("training.ema: found 1.0", "less")),
    Case("an average below none", f"train digits {ROUND} --ema -1", ("training.ema: found -1.0",)),
    Case("an average of nothing", f"train digits {ROUND} --ema nan", ("training.ema: found nan",)),
    Case(
        "a score of one picture",
        f"train digits {ROUND} --score kid --set score.samples=1",
        ("score.samples: found 1", "greater than or equal to 8"),
    ),
    Case(
        "resuming with other weights than the run was scored with",
        "resume scored --rounds 3",
        ("scored/scorer/scorer.json: found weights that make lite0-64-128-", "give back that file"),
        prepare=edited_json("scored/scorer/scorer.json", lambda tree: tree.update(sha256="0" * 64)),
    ),
    Case(
        "resuming with weights that are none",
        "resume scored --rounds 3",
        ("MANEGE_FEATURE_WEIGHTS=a.pth", "not the weights of EfficientNet-Lite0", "expected"),
        prepare=text("a.pth", "no weights"),
        env={"MANEGE_FEATURE_WEIGHTS": "a.pth"},
    ),
    Case(
        "a space whose weights are not there",
        "evaluate run --features lite0",
        ("MANEGE_FEATURE_WEIGHTS=gone.pth: cannot be read", "expected efficientnet-lite0"),
        env={"MANEGE_FEATURE_WEIGHTS": "gone.pth"},
    ),
    Case(
        "resuming with half a scorer.json",
        "resume scored --rounds 3",
        ("scored/scorer/scorer.json: damaged", "delete the folder scored/scorer"),
        prepare=edited("scored/scorer/scorer.json", half),
    ),
    Case(
        "resuming with another's scorer",
        "resume scored --rounds 3",
        ("scored with the feature network lite0-", "scorer/ holds random-", "put the old one"),
        prepare=lambda here: (
            shutil.rmtree(here / "scored" / "scorer"),
            shutil.copytree(here / "random", here / "scored" / "scorer"),
        ),
    ),
]

ALL = (*SUBJECTS, *DATA, *OPTIONS, *FEATURES, *KEPT, *COMPARE, *TRAINING)


def parameter(case: Case) -> object:
    return pytest.param(case, id=case.sentence.replace(" ", "-"))


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def assert_refused(done: Done, says: tuple[str, ...], code: int = 2) -> None:
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1, done.err
    assert done.err.endswith("\n")
    assert done.err.startswith("manege"), done.err
    for fragment in says:
        assert fragment in done.err, done.err


@pytest.fixture(scope="module")
def random_scorer(evaluated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scorer that knows nothing."""
    from manege.metrics import random_space, save_space

    folder = tmp_path_factory.mktemp("random")
    save_space(random_space(8, 1), folder / "scorer")
    return folder / "scorer"


@pytest.fixture
def stage(
    tmp_path: Path, evaluated: Path, trained: Path, scored: Path, random_scorer: Path
) -> Callable[[str], None]:
    """Puts what a command speaks of into the test's folder."""

    def put(command: str) -> None:
        words = {part for word in command.split() for part in word.split("/")}
        for name, source in {
            "run": evaluated,
            "runs": evaluated,
            "other": trained,
            "model": evaluated / "model",
            "scored": scored,
        }.items():
            if name in words:
                shutil.copytree(source, tmp_path / name.removesuffix("s"), dirs_exist_ok=True)
        for name in ("mine", "real"):
            if name in words:
                write_class(tmp_path / name, 12)
        if "scored" in words:
            shutil.copytree(random_scorer, tmp_path / "random")

    return put


@pytest.mark.parametrize("case", [parameter(case) for case in ALL])
def test_bad_input_is_refused_in_one_line_and_changes_nothing(
    case: Case, manege: Command, stage: Callable[[str], None], tmp_path: Path
) -> None:
    stage(case.command)
    case.prepare(tmp_path)
    before = files(tmp_path)
    done = manege(*case.command.split(), env=case.env)
    assert_refused(done, case.says, case.code)
    assert files(tmp_path) == before, "it wrote something"


@pytest.mark.full
@pytest.mark.parametrize("damage", ["cut", "another's"])
def test_a_resume_refused_for_its_scorer_says_why_and_can_be_mended(
    damage: str, manege: Command, scored: Path, random_scorer: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(scored, tmp_path / "run"))
    if damage == "cut":
        edited("run/scorer/scorer.json", half)(tmp_path)
    else:
        shutil.copytree(random_scorer, run / "scorer", dirs_exist_ok=True)
    assert_refused(manege("resume", "run", "--rounds", "3"), ("scorer",))
    shutil.rmtree(run / "scorer")
    assert manege("resume", "run", "--rounds", "3").code == 0


def test_a_damaged_evaluation_can_be_mended_as_it_says(
    manege: Command, evaluated: Path, tmp_path: Path
) -> None:
    shutil.copytree(evaluated, tmp_path / "run")
    [kept] = (tmp_path / "run" / "evaluations").glob("*.json")
    whole = json.loads(kept.read_text())
    kept.write_text("{")
    assert manege("evaluate", "run").code == 2
    kept.unlink()
    assert manege("evaluate", "run").code == 0
    assert json.loads(kept.read_text())["scores"] == whole["scores"]


def test_a_damaged_classifier_can_be_mended_as_it_says(
    manege: Command, evaluated: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(evaluated, tmp_path / "run"))
    edited("run/classifier/space.safetensors", half)(tmp_path)
    assert manege("evaluate", "run").code == 2
    shutil.rmtree(run / "classifier")
    assert manege("evaluate", "run", "--seed", "1").code == 0
    assert files(run / "classifier") == files(evaluated / "classifier")


def test_data_that_are_gone_are_named(manege: Command, tmp_path: Path) -> None:
    animals(tmp_path)
    assert manege("train", "animals", "--rounds", "1", *TINY, "--out", "run").code == 0
    shutil.rmtree(tmp_path / "animals")
    done = manege("evaluate", "run")
    assert_refused(done, (str(tmp_path / "animals"), "no such path"))


@pytest.mark.parametrize(
    "words",
    [
        ("three", "--data", "animals"),
        ("mine", "--data", "animals", "--samples", "13"),
        ("mine", "--data", "animals", "--per-class"),
        ("mine", "--data", "animals", "--metrics", "modes"),
        ("mine", "--data", "animals"),
        ("mine", "--data", "digits", "--metrics", "fd"),
        ("mine", "--data", "digits", "--metrics", "fd", "--features", "inception"),
        ("mine", "--data", "digits", "--metrics", "is", "--features", "inception"),
    ],
    ids=["few-pictures", "samples", "per-class", "modes", "few-held-out", "fd", "fid", "is"],
)
def test_what_can_be_refused_at_once_is_refused_before_a_feature_network_is_trained(
    words: tuple[str, ...],
    manege: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(*args: object) -> None:
        pytest.fail("trained a feature network first")

    monkeypatch.setattr("manege.metrics.classifier.train", train)
    monkeypatch.setattr("manege.evaluation.reference.load_weights", train)
    animals(tmp_path)
    write_class(tmp_path / "mine", 12)
    write_class(tmp_path / "three", 3)
    assert_refused(manege("evaluate", *words), ())


def test_training_by_a_score_it_cannot_have_leaves_no_run_behind(
    manege: Command, tmp_path: Path, evaluated: Path
) -> None:
    done = manege("train", "digits", *ROUND.split(), "--score", "fd", "--out", "run")
    assert_refused(done, ("--score fd",))
    assert list(tmp_path.iterdir()) == []


def test_there_are_enough_cases() -> None:
    assert len(ALL) >= 110
