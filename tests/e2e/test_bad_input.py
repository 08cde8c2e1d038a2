"""Bad input: one line that names the thing, what was found and what to do; never a traceback."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.helpers.command import TINY, Done, run_here
from tests.helpers.material import IDX, noise, write_class, write_idx

from .conftest import Command


@dataclass(frozen=True)
class Case:
    """A wrong command and what its one line must say."""

    sentence: str
    command: str
    says: tuple[str, ...]
    code: int = 2
    prepare: Callable[[Path], object] = lambda here: None
    env: dict[str, str] = field(default_factory=dict)


# What the cases prepare, each in the folder the command runs in.


def animals(here: Path) -> Path:
    write_class(here / "animals" / "cat", 12)
    write_class(here / "animals" / "dog", 12)
    return here / "animals"


def animals_with(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda here: (animals(here) / "cat" / name).write_bytes(content)


def small_class(here: Path) -> None:
    write_class(here / "animals" / "cat", 12)
    write_class(here / "animals" / "dog", 7)


def loose_pictures(here: Path) -> None:
    write_class(here / "loose", 9)


def table(content: str | bytes) -> Callable[[Path], object]:
    """Nine pictures in one folder, and what is to be their labels.csv."""

    def prepare(here: Path) -> None:
        loose_pictures(here)
        text("loose/labels.csv", content)(here)

    return prepare


def half_jpeg() -> bytes:
    whole = io.BytesIO()
    Image.fromarray(noise(0, 64, 64, 3)).save(whole, format="JPEG")
    return whole.getvalue()[:900]


def idx(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A tiny MNIST with one file changed."""

    def prepare(here: Path) -> None:
        file = write_idx(here / "data" / "mnist") / name
        file.write_bytes(change(file.read_bytes()))

    return prepare


def npz(**arrays: np.ndarray) -> Callable[[Path], object]:
    return lambda here: np.savez(here / "a.npz", **arrays)


def zipped(**members: bytes) -> Callable[[Path], object]:
    """An .npz of these bytes."""

    def prepare(here: Path) -> None:
        with zipfile.ZipFile(here / "a.npz", "w") as archive:
            for name, content in members.items():
                archive.writestr(f"{name}.npy", content)

    return prepare


def encrypted_npz(here: Path) -> None:
    np.savez(here / "a.npz", images=noise(0, 40, 8, 8), labels=np.arange(40) % 2)
    content = (here / "a.npz").read_bytes()
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        head = content.index(mark) + flags
        content = content[:head] + b"\1" + content[head + 1 :]
    (here / "a.npz").write_bytes(content)


def claiming(*shape: int) -> bytes:
    """The header of an array of bytes, and nothing behind it."""
    file = io.BytesIO()
    told = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, told)
    return file.getvalue()


def text(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda here: (here / name).write_bytes(data)


def edited(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A file that is there already, changed."""

    def prepare(here: Path) -> None:
        (here / name).write_bytes(change((here / name).read_bytes()))

    return prepare


def edited_json(name: str, change: Callable[[dict], object]) -> Callable[[Path], object]:
    def prepare(here: Path) -> None:
        tree = json.loads((here / name).read_text())
        change(tree)
        (here / name).write_text(json.dumps(tree))

    return prepare


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def both_generations_damaged(here: Path) -> None:
    # Of the class with most pictures: it is trained first.
    files = sorted((here / "run" / "checkpoints" / "3").glob("*.safetensors"))
    assert files
    for file in files:
        file.write_bytes(flipped(file.read_bytes()))


FORTY = np.repeat(np.array(["a", "b"]), 20)
IMAGES = noise(1, 40, 8, 8)

DATA = [
    Case(
        "a path that does not exist",
        "train nowhere/at/all",
        ("nowhere/at/all", "no such path", "digits, mnist", "image folder"),
    ),
    Case("a misspelt dataset", "train digit", ("data digit", "did you mean digits?")),
    Case(
        "an empty folder",
        "train empty",
        ("empty", "an empty folder", "expected a subfolder"),
        prepare=lambda here: (here / "empty").mkdir(),
    ),
    Case(
        "pictures without class folders",
        "train loose",
        ("loose", "9 pictures but no subfolders", "put each class in its own subfolder"),
        prepare=loose_pictures,
    ),
    Case(
        "a text file named .png",
        "train animals",
        ("cat/zz.png", "not a PNG, JPEG, BMP or WebP picture", "manege data check"),
        prepare=animals_with("zz.png", b"I am no picture\n"),
    ),
    Case(
        "an empty file named .jpg",
        "train animals",
        ("cat/zz.jpg", "an empty file", "mend or remove"),
        prepare=animals_with("zz.jpg", b""),
    ),
    Case(
        "a truncated JPEG",
        "train animals",
        ("cat/zz.jpg", "truncated", "mend or remove"),
        prepare=animals_with("zz.jpg", half_jpeg()),
    ),
    Case(
        "a table without columns",
        "train loose",
        ("loose/labels.csv", "no column for the file among 000.png, a", "file (or filename"),
        prepare=table("000.png,a\n001.png,a\n"),
    ),
    Case(
        "a table of a picture that is not there",
        "train loose",
        ("loose/labels.csv: line 3 lists 9.png, which is not there", "bring the files"),
        prepare=table("file,label\n000.png,a\n9.png,a\n"),
    ),
    Case(
        "a table that leads out of its folder",
        "data check loose",
        ("loose/labels.csv: line 2: ../../etc/x.png, expected a path below the folder", ".."),
        prepare=table("file,label\n../../etc/x.png,a\n"),
    ),
    Case(
        "a table that says two things of a picture",
        "data check loose",
        ("loose/labels.csv: line 3 lists 000.png as 'b', line 2 as 'a'", "keep the line that"),
        prepare=table("file,label\n000.png,a\n000.png,b\n"),
    ),
    Case(
        "a table with an empty label",
        "train loose",
        ("loose/labels.csv: line 2: 000.png has an empty label", "fill it in"),
        prepare=table("file,label\n000.png,\n"),
    ),
    Case(
        "a table of an unknown split",
        "train loose",
        ("loose/labels.csv: line 2: split 'dev', expected train or test, val",),
        prepare=table("file,label,split\n000.png,a,dev\n"),
    ),
    Case(
        "a table that is not UTF-8",
        "evaluate loose --data loose",
        ("loose/labels.csv: byte 19 is not UTF-8", "save the file as UTF-8"),
        prepare=table("file,label\n000.png,é\n".encode("latin-1")),
    ),
    Case(
        "a table with too few of a class",
        "train loose",
        ("too few training pictures", "'b' (1)", "at least 8"),
        prepare=table(
            "file,label\n" + "".join(f"00{n}.png,{'b' if n == 8 else 'a'}\n" for n in range(9))
        ),
    ),
    Case(
        "a class of seven pictures",
        "train animals",
        ("too few training pictures", "'dog' (7)", "at least 8", "--classes"),
        prepare=small_class,
    ),
    Case(
        "a file that is no .npz",
        "train notes.txt",
        ("notes.txt", "a file, but no .npz", "expected an image folder"),
        prepare=text("notes.txt", "hello"),
    ),
    Case(
        "a label that is not there",
        "train digits --classes 3,seven",
        ("classes", "digits has no 'seven'", "choose among 0, 1, 2"),
    ),
    Case(
        "a misspelt label",
        "train animals --classes cst",
        ("animals has no 'cst'", "nearest is 'cat'"),
        prepare=animals,
    ),
    Case("a label twice", "train digits --classes 3,8,3", ("classes", "named twice", "each once")),
    Case("an empty label", "train digits --classes 3,,8", ("--classes '3,,8'", "an empty label")),
    Case(
        "a truncated idx file",
        "train mnist --data-root data",
        (IDX[0], "bytes after the header, expected 78400", "get the file again"),
        prepare=idx(IDX[0], half),
    ),
    Case(
        "an idx file with another magic number",
        "train mnist --data-root data",
        (IDX[0], "magic number 2049, expected 2051"),
        prepare=idx(IDX[0], lambda old: b"\0\0\x08\x01" + old[4:]),
    ),
    Case(
        "an idx file of two bytes",
        "train mnist --data-root data",
        (IDX[1], "too few bytes, expected 2049"),
        prepare=idx(IDX[1], lambda old: old[:2]),
    ),
    Case(
        "fewer labels than pictures",
        "train mnist --data-root data",
        (IDX[1], "99 labels, expected 100", "get both files again"),
        prepare=idx(IDX[1], lambda old: b"\0\0\x08\x01\0\0\0\x63" + old[8:-1]),
    ),
    Case(
        "one of four idx files missing",
        "train mnist --data-root data",
        (f"{IDX[3]} not found", "put all four files there"),
        prepare=lambda here: (write_idx(here / "data" / "mnist") / IDX[3]).unlink(),
    ),
    Case(
        "a data root that does not exist",
        "train mnist --data-root nowhere",
        ("--data-root nowhere", "no such folder", "expected one with data"),
    ),
    Case(
        "mnist with neither files nor network",
        "train mnist",
        ("train-images-idx3-ubyte.gz", "could not be downloaded", "put ", "MANEGE_DATA"),
        env={"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"},
    ),
    Case(
        "an .npz without images",
        "train a.npz",
        ("a.npz", "no array 'images', found labels", "numpy.savez"),
        prepare=npz(labels=FORTY),
    ),
    Case(
        "an .npz without labels",
        "train a.npz",
        ("a.npz", "no array 'labels', found images", "numpy.savez"),
        prepare=npz(images=IMAGES),
    ),
    Case(
        "an .npz with more labels than images",
        "train a.npz",
        ("a.npz", "labels has shape (40,), expected (39,)"),
        prepare=npz(images=IMAGES[1:], labels=FORTY),
    ),
    Case(
        "an .npz with pickled labels",
        "train a.npz",
        ("a.npz", "labels has dtype object, expected integers, or strings"),
        prepare=npz(images=IMAGES, labels=FORTY.astype(object)),
    ),
    Case(
        "an .npz that is encrypted",
        "train a.npz",
        ("a.npz", "array 'images' cannot be read", "encrypted", "as plain data"),
        prepare=encrypted_npz,
    ),
    Case(
        "an .npz with an array of no bytes, to be measured",
        "evaluate a.npz --data digits",
        ("a.npz", "array 'images' cannot be read", "as plain data"),
        prepare=zipped(images=b"", labels=b""),
    ),
    Case(
        "an .npz whose header claims a thousand million pictures",
        "train a.npz",
        ("a.npz", "array 'images' claims 1000000000x28x28 of uint8", "save it again"),
        prepare=zipped(images=claiming(10**9, 28, 28), labels=b""),
    ),
    Case(
        "an .npz with labels of 5,000 digits",
        "train a.npz",
        ("a.npz", "labels has dtype <U5000, expected integers, or strings of at most"),
        prepare=npz(images=IMAGES, labels=np.array(["9" * 5_000] * 40)),
    ),
    Case(
        "an .npz with pickled images",
        "train a.npz",
        ("a.npz", "images has dtype object, expected uint8"),
        prepare=npz(images=IMAGES.astype(object), labels=FORTY),
    ),
    Case(
        "an .npz that is no zip",
        "train a.npz",
        ("a.npz", "not a .npz file", "numpy.savez"),
        prepare=text("a.npz", "hello"),
    ),
    Case(
        "an .npz of floats beyond 1",
        "train a.npz",
        ("a.npz", "floats from", "expected 0 to 1", "scale them"),
        prepare=npz(images=IMAGES.astype(np.float32), labels=FORTY),
    ),
    Case(
        "an .npz of one picture's shape",
        "train a.npz",
        ("a.npz", "images has shape (8, 8), expected (N, H, W)"),
        prepare=npz(images=IMAGES[0], labels=FORTY),
    ),
    Case("checking a path that does not exist", "data check nowhere", ("nowhere", "no such path")),
    Case(
        "checking onto a sheet that exists",
        "data check digits --sheet a.png",
        ("a.png", "already exists", "--force"),
        prepare=text("a.png", "mine"),
    ),
    Case(
        "a sheet that is no PNG",
        "data check digits --sheet a.npz",
        ("--sheet a.npz", "ends in .png"),
    ),
    Case(
        "a sheet below a file",
        "data check digits --sheet file/a.png",
        ("file is not a folder", "another name"),
        prepare=text("file", "mine"),
    ),
    Case(
        "a cache that cannot be written",
        "train digits --classes 3",
        ("/proc/none", "cannot be kept there", "MANEGE_CACHE"),
        code=3,
        env={"MANEGE_CACHE": "/proc/none"},
    ),
]

OPTIONS = [
    Case("no rounds", "train digits --rounds 0", ("rounds: found 0", "greater than or equal to 1")),
    Case("negative rounds", "train digits --rounds -5", ("rounds: found -5", "equal to 1")),
    Case(
        "rounds in words",
        "train digits --rounds many",
        ("--rounds", "a valid integer", "found 'many'", "manege train --help"),
    ),
    Case("an odd budget", "train digits --budget 10x", ("budget_s: found '10x', expected",)),
    Case("a negative budget", "train digits --budget -5m", ("budget_s: found '-5m', expected",)),
    Case("a budget of nothing", "train digits --budget 0s", ("budget_s: found", "expected")),
    Case("a side of 30", "train digits --size 30", ("data.size: found 30", "28 and 32")),
    Case("two channels", "train digits --channels 2", ("data.channels: found 2", "one of 1, 3")),
    Case(
        "a limit below eight",
        "train digits --limit-per-class 3",
        ("data.limit_per_class: found 3", "greater than or equal to 8"),
    ),
    Case("a batch of one", "train digits --batch 1", ("training.batch: found 1", "equal to 2")),
    Case("a negative seed", "train digits --seed -1", ("seed: found -1", "expected")),
    Case(
        "an unknown preset",
        "train digits --preset papr",
        ("preset: found 'papr'", "one of modern, modern-pixels, paper", "did you mean paper?"),
    ),
    Case(
        "an unknown method",
        "train digits --method per-clas",
        ("method: found 'per-clas'", "expected one of per-class"),
    ),
    Case(
        "unknown networks",
        "train digits --networks dcgen",
        ("networks.kind: found 'dcgen'", "dcgan, resnet, pyramid, mlp", "did you mean dcgan?"),
    ),
    Case(
        "an unknown loss",
        "train digits --loss wassertein",
        (
            "training.loss: found 'wassertein'",
            "hinge, relativistic, wasserstein",
            "did you mean wasserstein?",
        ),
    ),
    Case(
        "an unknown constraint",
        "train digits --constraint clap",
        ("training.constraint.kind: found 'clap'", "none, clip", "did you mean clip?"),
    ),
    Case(
        "a device of no kind",
        "train digits --device gpu",
        ("device: found 'gpu'", "auto, cpu, cuda or cuda:N"),
    ),
    Case(
        "odd checkpoint times",
        "train digits --checkpoint-every often",
        ("checkpoints.every_s: found 'often', expected",),
    ),
    Case("sheets never", "train digits --sheet-every 0", ("sheets.every_rounds: found 0",)),
    Case(
        "an unknown key",
        "train digits --set training.bacth=64",
        ("training.bacth: unknown key", "did you mean batch?"),
    ),
    Case("a set without =", "train digits --set training.batch", ("--set", "expected key=value")),
    Case(
        "a set of the wrong type",
        "train digits --set training.batch=many",
        ("training.batch: found 'many', expected a whole number",),
    ),
    Case(
        "a set of a whole section",
        "train digits --set training=5",
        ("training: found 5, expected a section of keys",),
    ),
    Case(
        "a set that is no YAML",
        "train digits --set training.batch=[1",
        ("--set 'training.batch=[1'", "not usable YAML"),
    ),
    Case(
        "a rate of null", "train digits --set rounds=null", ("rounds and budget_s are both null",)
    ),
    Case("an unknown command", "trian digits", ("No such command 'trian'", "manege --help")),
    Case(
        "an unknown option",
        "train digits --round 3",
        ("No such option: --round", "--rounds", "manege train --help"),
    ),
    Case("no data", "train", ("Missing argument 'data'", "manege train --help")),
    Case("no output", "sample run", ("Missing option", "--out", "manege sample --help")),
    Case("an option without its value", "train digits --seed", ("--seed", "argument")),
    Case("one argument too many", "train digits mnist", ("unexpected extra argument", "mnist")),
]

SOFT_LOSSES = ("bce", "minimax", "least-squares", "hinge", "relativistic")
# Were they not refused, they would end soon.
PAPER = "--preset paper --rounds 1 --limit-per-class 8"
NONSENSE = [
    *(
        Case(
            f"clipping with {loss}",
            f"train digits {PAPER} --constraint clip --loss {loss}",
            (
                f"training.constraint: clip bounds a Wasserstein critic, and the loss is {loss}",
                "use r1, gp or spectral",
            ),
        )
        for loss in SOFT_LOSSES
    ),
    *(
        Case(
            f"{constraint} beside BatchNorm",
            f"train digits {PAPER} --constraint {constraint}",
            (
                f"training.constraint: {constraint} penalises each picture's own gradient, which "
                "BatchNorm mixes with its batch's",
                "set networks.discriminator_batchnorm=false",
            ),
        )
        for constraint in ("gp", "r1", "r1r2")
    ),
    Case(
        "spectral norms beside BatchNorm",
        f"train digits {PAPER} --constraint spectral --loss hinge",
        (
            "training.constraint: BatchNorm scales the discriminator up again",
            "set networks.discriminator_batchnorm=false",
        ),
    ),
    *(
        Case(
            f"{what} points",
            f"train {toy} {PAPER} --networks mlp --set training.{key}",
            ("training: points have no pixels to move or to mirror; leave augment and flip out",),
        )
        for what, key in (("augmenting", "augment.kind=adaptive"), ("mirroring", "flip=true"))
        for toy in ("ring8", "grid25")
    ),
]

FILES = [
    Case("a tagged value", "train digits --set seed=!!int", ("'seed=!!int'", "tag !!int refused")),
    Case(
        "a tagged truth value",
        "train digits --set training.flip=!!bool",
        ("'training.flip=!!bool'", "tag !!bool refused"),
    ),
    Case(
        "a key of a thousand parts",
        f"train digits --set seed{'.a' * 1000}=1",
        ("seed.a.a", "found 1001 parts, expected at most 20"),
    ),
    Case(
        "a number too long to be told",
        f"train digits --set seed=0x{'f' * 5000}",
        ("a number of 5002 characters, expected at most 100",),
    ),
    Case(
        "a configuration with a tagged date",
        "train digits --config c.yaml",
        ("c.yaml", "line 2", "tag !!timestamp refused"),
        prepare=text("c.yaml", "rounds: 1\nseed: !!timestamp x\n"),
    ),
    Case(
        "a plan with a tag",
        "sweep plan.yaml -o out",
        ("plan.yaml", "line 1", "tag !!int refused"),
        prepare=text("plan.yaml", "data: !!int ''\n"),
    ),
    Case("no such file", "train digits --config c.yaml", ("c.yaml", "cannot be read", "--config")),
    Case(
        "a folder for a file",
        "train digits --config c.yaml",
        ("c.yaml", "cannot be read", "Is a directory"),
        prepare=lambda here: (here / "c.yaml").mkdir(),
    ),
    Case(
        "no YAML",
        "train digits --config c.yaml",
        ("c.yaml", "line 2", "not usable YAML"),
        prepare=text("c.yaml", "seed: 1\n  rounds: [\n"),
    ),
    Case(
        "a list instead of keys",
        "train digits --config c.yaml",
        ("c.yaml", "found a list, expected `key: value` lines", "--print-config"),
        prepare=text("c.yaml", "- seed\n- rounds\n"),
    ),
    Case(
        "an alias",
        "train digits --config c.yaml",
        ("c.yaml", "line 2", "alias *a refused"),
        prepare=text("c.yaml", "seed: &a 1\nrounds: *a\n"),
    ),
    Case(
        "a file beyond a megabyte",
        "train digits --config c.yaml",
        ("c.yaml", "found 1,200,000 bytes, expected at most 1,000,000"),
        prepare=text("c.yaml", "# hello, world\n" * 80_000),
    ),
    Case(
        "a key twice",
        "train digits --config c.yaml",
        ("c.yaml", "line 3", "'seed' stands twice"),
        prepare=text("c.yaml", "seed: 1\nrounds: 5\nseed: 2\n"),
    ),
    Case(
        "an unknown key in a file",
        "train digits --config c.yaml",
        ("c.yaml", "sede: unknown key", "did you mean seed?"),
        prepare=text("c.yaml", "sede: 1\n"),
    ),
    Case(
        "a file that is not UTF-8",
        "train digits --config c.yaml",
        ("c.yaml", "not UTF-8", "expected a YAML file"),
        prepare=text("c.yaml", "seed: 1 # schön\n".encode("latin-1")),
    ),
    Case(
        "a Python object in YAML",
        "train digits --config c.yaml",
        ("c.yaml", "line 1", "not usable YAML"),
        prepare=text("c.yaml", "seed: !!python/object/apply:os.getpid []\n"),
    ),
    Case(
        "a label YAML takes for a boolean",
        "train digits --config c.yaml",
        ("c.yaml", "data.classes.0", "boolean: quote it"),
        prepare=text("c.yaml", "data: {classes: [no, maybe]}\n"),
    ),
    Case(
        "a list for a key",
        "train digits --config c.yaml",
        ("c.yaml", "not usable YAML"),
        prepare=text("c.yaml", "? [a, b]\n: 1\n"),
    ),
    Case(
        "a number for a key",
        "train digits --config c.yaml",
        ("c.yaml", "1: unknown key"),
        prepare=text("c.yaml", "1: 2\n"),
    ),
    Case(
        "a date that is none",
        "train digits --config c.yaml",
        ("c.yaml", "not usable YAML"),
        prepare=text("c.yaml", "seed: 2026-13-45\n"),
    ),
    Case(
        "a preset that is a list",
        "train digits --config c.yaml",
        ("c.yaml", "preset: found ['paper']", "one of modern, modern-pixels, paper"),
        prepare=text("c.yaml", "preset: [paper]\n"),
    ),
    Case(
        "YAML of a thousand levels",
        "train digits --config c.yaml",
        ("c.yaml", "not usable YAML"),
        prepare=text("c.yaml", "seed: " + "[" * 1000 + "]" * 1000),
    ),
]

RUNS = [
    Case(
        "an output folder that is full",
        "train digits --out full",
        ("full already exists and holds other files", "another --out"),
        prepare=lambda here: write_class(here / "full", 1),
    ),
    Case(
        "a run for an output folder",
        "train digits --out run",
        ("run already exists", "manege resume run", "another --out"),
    ),
    Case(
        "an output folder below a file",
        "train digits --out file/run",
        ("file already exists and is not a folder", "another --out"),
        prepare=text("file", "mine"),
    ),
    Case(
        "an output folder nobody can make",
        "train digits --preset paper --out /proc/none/run",
        ("/proc/none", "no such file or directory;"),
        code=3,
    ),
    Case("resuming nothing", "resume nowhere", ("nowhere", "no such folder", "spelling")),
    Case("resuming a file", "resume file", ("file", "it is a file"), prepare=text("file", "")),
    Case(
        "resuming another folder",
        "resume animals",
        ("animals is not a run directory", "no config.yaml", "manege train"),
        prepare=animals,
    ),
    Case("resuming a model", "resume model", ("model is not a run directory", "it is a model")),
    Case(
        "resuming a folder of runs",
        "resume runs",
        ("it is a folder of 1 runs", "runs/0001-digits-per-class"),
        prepare=lambda here: shutil.copytree(here / "run", here / "runs/0001-digits-per-class"),
    ),
    Case(
        "resuming with half a config.yaml",
        "resume run",
        ("run/config.yaml",),
        prepare=edited("run/config.yaml", lambda text: half(text) + b": ["),
    ),
    Case(
        "resuming with a tag in config.yaml",
        "resume run",
        ("run/config.yaml", "tag !!bool refused"),
        prepare=edited("run/config.yaml", lambda old: old + b"x: !!bool x\n"),
    ),
    Case(
        "resuming with binary for config.yaml",
        "resume run",
        ("run/config.yaml", "not UTF-8"),
        prepare=edited("run/config.yaml", lambda old: b"\xff\xfe" + old),
    ),
    Case(
        "resuming with a damaged status.json",
        "resume run --rounds 3",
        ("run/status.json is damaged", "delete it and try again"),
        prepare=edited("run/status.json", half),
    ),
    Case(
        "resuming with a damaged data.json",
        "resume run --rounds 3",
        ("run/data.json", "damaged"),
        prepare=edited("run/data.json", half),
    ),
    Case(
        "resuming with both generations damaged",
        "resume run --rounds 3",
        ("run/checkpoints/3", "no checkpoint that can be trusted", "restore it from a copy"),
        prepare=both_generations_damaged,
    ),
    Case(
        "resuming with another seed in config.yaml",
        "resume run --rounds 3",
        ("belongs to another run", "expected", "another run directory"),
        prepare=edited("run/config.yaml", lambda old: old.replace(b"seed: 0", b"seed: 5")),
    ),
    Case("resuming for no rounds", "resume run --rounds 0", ("rounds: found 0", "equal to 1")),
    Case("resuming for an odd time", "resume run --budget soon", ("budget_s: found 'soon'",)),
    Case("sampling nothing", "sample nowhere -o a.png", ("nowhere", "no such folder", "spelling")),
    Case(
        "sampling a label that is near",
        "sample animals-run -n 4 --label cta -o a.png",
        ("label 'cta': not in this model", "cat, dog", "did you mean cat?"),
    ),
    Case(
        "sampling a label that is not there",
        "sample run --label 5 -o a.png",
        ("label '5': not in this model", "which has 3, 7, 8"),
    ),
    Case(
        "sampling one label and all",
        "sample run --label 3 --balanced -o a.png",
        ("--label, --balanced and --weights exclude each other",),
    ),
    Case(
        "weights without numbers",
        "sample run --weights 3=1,7 -o a.png",
        ("--weights '3=1,7'", "found '7', expected label=number"),
    ),
    Case(
        "a weight twice",
        "sample run --weights 3=1,3=2 -o a.png",
        ("--weights '3=1,3=2'", "'3'", "twice"),
    ),
    Case(
        "weights of nothing",
        "sample run --weights 3=0,7=0 -o a.png",
        ("--weights: all are 0", "positive weight"),
    ),
    Case(
        "a negative weight",
        "sample run --weights 3=-1,7=2 -o a.png",
        ("--weights 3=-1.0", "expected a number from 0 up"),
    ),
    Case(
        "weights of a label that is not there",
        "sample run --weights 3=1,cat=2 -o a.png",
        ("label 'cat': not in this model",),
    ),
    Case("no samples", "sample run -n 0 -o a.png", ("-n 0: expected at least 1 picture",)),
    Case(
        "samples onto a file that exists",
        "sample run -o a.png",
        ("a.png: already exists", "another name", "--force"),
        prepare=text("a.png", "mine"),
    ),
    Case(
        "samples into a foreign folder",
        "sample run --force -o animals",
        ("animals: a folder that manege did not make", "another name"),
        prepare=animals,
    ),
    Case(
        "samples as JPEG",
        "sample run -o a.jpg",
        ("a.jpg: found .jpg, expected .png, .npz or a folder",),
    ),
    Case(
        "samples below a file",
        "sample run -o file/a.png",
        ("file is not a folder", "another name"),
        prepare=text("file", "mine"),
    ),
    Case(
        "samples on a device of no kind",
        "sample run -o a.png --device gpu",
        ("--device 'gpu'", "auto, cpu, cuda or cuda:N"),
    ),
    Case(
        "sampling half a model.json",
        "sample model -o a.png",
        ("model/model.json", "damaged, or not a manege model"),
        prepare=edited("model/model.json", half),
    ),
    Case(
        "sampling a model of another format",
        "sample model -o a.png",
        ("model/model.json", "model format 99, this manege reads 1"),
        prepare=edited_json("model/model.json", lambda tree: tree.update(format=99)),
    ),
    Case(
        "sampling a model without components",
        "sample model -o a.png",
        ("model/model.json", "no components"),
        prepare=edited_json("model/model.json", lambda tree: tree.update(components=[])),
    ),
    Case(
        "sampling a model of weight nothing",
        "sample model -o a.png",
        ("model/model.json", "weight"),
        prepare=edited_json(
            "model/model.json", lambda tree: [c.update(weight=0) for c in tree["components"]]
        ),
    ),
    Case(
        "sampling a model of odd networks",
        "sample model -o a.png",
        ("model/model.json", "damaged"),
        prepare=edited_json(
            "model/model.json", lambda tree: tree["components"][0]["networks"].update(kind="x")
        ),
    ),
    Case(
        "sampling a truncated component",
        "sample model -o a.png",
        ("model/7.safetensors", "its SHA-256 is", "model.json says", "export the model again"),
        prepare=edited("model/7.safetensors", half),
    ),
    Case(
        "sampling with one bit flipped",
        "sample model -o a.png",
        ("model/7.safetensors", "its SHA-256 is", "damaged"),
        prepare=edited("model/7.safetensors", flipped),
    ),
    Case(
        "sampling with a component missing",
        "sample model -o a.png",
        ("model/7.safetensors", "cannot be read (No such file"),
        prepare=lambda here: (here / "model" / "7.safetensors").unlink(),
    ),
    Case(
        "showing a folder that is no model",
        "model show animals",
        ("animals is not a run directory",),
        prepare=animals,
    ),
    Case("exporting nothing", "export nowhere -o m", ("nowhere", "no such folder")),
    Case(
        "exporting onto a folder",
        "export run -o model",
        ("model: already exists", "another -o"),
    ),
    Case("exporting onto here", "export run -o .", (".: ", "the name of a new folder")),
    Case(
        "exporting to a name too long",
        f"export run -o {'x' * 300}",
        ("file name too long", "choose a shorter name"),
        code=3,
    ),
    Case(
        "exporting below a file",
        "export run -o file/m",
        ("file is not a folder", "another name"),
        prepare=text("file", "mine"),
    ),
    Case(
        "merging a model with itself",
        "model merge model run -o both",
        ("label '3' is in both models", "manege model drop MODEL --class 3"),
    ),
    Case(
        "merging one model",
        "model merge model -o both",
        ("model merge: found 1 model, expected at least two",),
    ),
    Case(
        "merging pictures of two sizes",
        "model merge model big -o both",
        ("models of different pictures: 8x8x1 and 12x12x1", "--size"),
        prepare=lambda here: run_here(
            *("train", "digits", "--classes", "5", "--rounds", "1", "--size", "12", *TINY),
            *("--out", "big"),
            cwd=here,
        ),
    ),
    Case(
        "merging below a file",
        "model merge model model -o file/m",
        ("file is not a folder", "another name"),
        prepare=text("file", "mine"),
    ),
    Case(
        "dropping below a file",
        "model drop model --class 3 -o file/m",
        ("file is not a folder", "another name"),
        prepare=text("file", "mine"),
    ),
    Case(
        "dropping a class that is not there",
        "model drop model --class 5 -o less",
        ("label '5': not in this model",),
    ),
    Case(
        "dropping every class",
        "model drop model --class 3 --class 7 --class 8 -o less",
        ("an empty model", "keep at least one"),
    ),
]


ALL = (*DATA, *OPTIONS, *NONSENSE, *FILES, *RUNS)


def parameter(case: Case) -> object:
    return pytest.param(case, id=case.sentence.replace(" ", "-"))


@pytest.mark.parametrize("case", [parameter(case) for case in ALL])
def test_bad_input_is_refused_in_one_line(
    case: Case, manege: Command, tmp_path: Path, trained: Path, trained_animals: Path
) -> None:
    words = case.command.split()
    if "run" in words or "runs" in words:
        shutil.copytree(trained, tmp_path / "run")
    if "model" in words[1:]:
        shutil.copytree(trained / "model", tmp_path / "model")
    if "animals-run" in words:
        shutil.copytree(trained_animals / "run", tmp_path / "animals-run")
    case.prepare(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    done = manege(*words, env=case.env)
    _assert_refused(done, case.says, case.code)
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "it left something behind"


def _assert_refused(done: Done, says: tuple[str, ...], code: int = 2) -> None:
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1, done.err
    assert done.err.endswith("\n")
    assert done.err.startswith("manege"), done.err
    for fragment in says:
        assert fragment in done.err, done.err


def test_a_gpu_where_there_is_none_is_the_machines_fault(manege: Command, run: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    says = ("--device cuda", "sees no CUDA device", "--device cpu")
    _assert_refused(manege("sample", run, "-o", "a.png", "--device", "cuda"), says, code=3)


def test_training_on_a_gpu_where_there_is_none_leaves_no_run_behind(
    manege: Command, tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = manege("train", "digits", "--classes", "3", "--device", "cuda:1", "--out", "run")
    assert (done.code, done.out) == (3, "")
    assert "--device cuda:1" in done.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_somebody_elses_checkpoint_is_refused(manege: Command, run: Path) -> None:
    other = ("--classes", "3,7,8", "--rounds", "1", "--seed", "5", *TINY, "--out", "other")
    assert manege("train", "digits", *other).code == 0
    shutil.rmtree(run / "checkpoints" / "3")
    shutil.copytree(run.parent / "other" / "checkpoints" / "3", run / "checkpoints" / "3")
    done = manege("resume", "run", "--rounds", "3")
    _assert_refused(done, ("run/checkpoints/3 belongs to another run", "identity", "expected"))


def test_another_class_s_checkpoint_is_refused(manege: Command, run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "3")
    shutil.copytree(run / "checkpoints" / "7", run / "checkpoints" / "3")
    done = manege("resume", "run", "--rounds", "3")
    _assert_refused(done, ("run/checkpoints/3 belongs to another cell", "'7', expected '3'"))


@pytest.fixture
def farm(manege: Command, tmp_path: Path) -> Path:
    """A run on an image folder of the test's own."""
    animals(tmp_path)
    assert manege("train", "animals", "--rounds", "1", *TINY, "--out", "run").code == 0
    return tmp_path / "animals"


def invert(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            picture = 255 - np.asarray(image)
        Image.fromarray(picture).save(path)


def test_a_replaced_picture_is_noticed_on_resume(manege: Command, farm: Path) -> None:
    invert(farm / "cat")
    done = manege("resume", "run", "--rounds", "2")
    _assert_refused(done, ("run: the dataset has changed", "class 'cat'", "put it back"))


def test_a_removed_picture_is_noticed_on_resume(manege: Command, farm: Path) -> None:
    for place in range(3):
        (farm / "cat" / f"{place:03d}.png").unlink()
    done = manege("resume", "run", "--rounds", "2")
    _assert_refused(done, ("run: the dataset has changed", "class 'cat'", "put it back"))


def test_a_dataset_that_is_gone_is_named_on_resume(manege: Command, farm: Path) -> None:
    shutil.rmtree(farm)
    done = manege("resume", "run", "--rounds", "2")
    _assert_refused(done, (str(farm), "no such path"))


def test_a_refused_resume_leaves_a_finished_run_finished(manege: Command, farm: Path) -> None:
    invert(farm / "cat")
    assert manege("resume", "run", "--rounds", "2").code == 2
    status = json.loads((farm.parent / "run" / "status.json").read_text())
    assert status["state"] == "finished"


def test_every_problem_of_a_configuration_is_reported_at_once(
    manege: Command, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(
        "sede: 1\n"
        "rounds: many\n"
        "data: {size: 31}\n"
        "networks: {kind: mlp, hiden: 3}\n"
        "training: {loss: wassertein, optimiser: {beta1: 2}}\n"
    )
    done = manege("train", "digits", "--config", "c.yaml", "--set", "sheets.every_rounds=0")
    assert (done.code, done.out) == (2, "")
    heading, *lines = done.err.splitlines()
    assert heading == "manege: c.yaml: 7 problems:"
    said = {line.strip().split(": ")[0]: line for line in lines}
    expected = {
        "sede": "did you mean seed?",
        "rounds": "found 'many', expected a whole number",
        "data.size": "nearest are 28 and 32",
        "networks.hiden": "did you mean hidden?",
        "training.loss": "did you mean wasserstein?",
        "training.optimiser.beta1": "found 2, expected less than 1",
        "sheets.every_rounds": "found 0, expected",
    }
    assert said.keys() == expected.keys()
    for path, words in expected.items():
        assert words in said[path]


def test_there_are_enough_cases() -> None:
    assert len(ALL) >= 120
