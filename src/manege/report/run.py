"""Read a run directory for a report: whatever is there, and a note for whatever is not.

Only what is no run at all is refused. Nothing is written here, and nothing needs torch.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from manege.errors import ConfigError, ManegeError
from manege.report.events import Tail
from manege.report.history import INDICES, History
from manege.report.records import Settled
from manege.runs import STATES, check_run, is_held
from manege.yamltext import parse_yaml

LIVE = "live.json"
"""The file in which the process that runs the run writes what goes on this second."""

_FRESH_S = 30.0
"""A live file or an event this young shows a run that goes on, also on another machine."""
_LARGEST = 1 << 26


@dataclass
class Kept:
    """An evaluation that the run has kept."""

    key: str
    protocol: dict[str, Any]
    scores: list[dict[str, Any]]
    left_out: dict[str, str]
    made_at: float
    nearest: Path | None
    """The sheet of generated pictures with the training pictures nearest to them."""
    blind: list[str] = field(default_factory=list)
    """A line for each feature space that does not see the data."""

    @property
    def per_class(self) -> dict[str, dict[str, Any]]:
        """Scores of single classes, by their labels."""
        return {str(one["label"]): one for one in self.scores if one.get("label") is not None}

    @property
    def overall(self) -> list[dict[str, Any]]:
        """Scores of all classes together."""
        return [one for one in self.scores if one.get("label") is None]


@dataclass
class VerdictRecord:
    """A verdict that the run has kept."""

    tree: dict[str, Any]
    made_at: float
    nearest: Path | None
    """The sheet of generated pictures with the training pictures nearest to them."""


AnyKept = TypeVar("AnyKept", Kept, VerdictRecord)


@dataclass
class RunRecord:
    """A run directory that was read, and all that a report is drawn from."""

    path: Path
    history: History
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    evaluations: list[Kept] = field(default_factory=list)
    """Evaluations, the newest first."""
    trials: list[VerdictRecord] = field(default_factory=list)
    """Verdicts, the newest first."""
    notes: list[str] = field(default_factory=list)
    """Lines that say what is missing or damaged."""

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.resolve().name

    @property
    def state(self) -> str:
        """The state: running, stopped, interrupted, finished, failed, new or unknown."""
        stored = str(self.status.get("state"))
        if stored not in STATES:
            return "unknown"
        if stored != "running":
            return "new" if not self.history.events and stored == "stopped" else stored
        return "running" if self.going_on() else "interrupted"

    def going_on(self) -> bool:
        """Return whether a process runs it, by its lock or by recent writes of another machine."""
        try:
            if is_held(self.path / "lock"):
                return True
        except (ManegeError, OSError):
            pass
        return time.time() - max(self.history.last_t or 0.0, _age(self.path / LIVE)) < _FRESH_S

    @property
    def classes(self) -> dict[str, dict[str, Any]]:
        """What data.json says of the data's classes, by label."""
        found = self.data.get("classes")
        if not isinstance(found, dict):
            return {}
        return {key: one for key, one in found.items() if isinstance(one, dict)}

    @property
    def labels(self) -> list[str]:
        """The labels of the data's classes."""
        return list(self.classes)

    @property
    def size(self) -> int | None:
        """The side of its pictures in pixels."""
        size = self.data.get("size")
        return size if isinstance(size, int) and size > 0 else None

    @property
    def is_points(self) -> bool:
        """Whether its pictures are points in the plane."""
        return self.size == 1


def read_run(path: Path) -> RunRecord:
    """Read the run in that folder; raise CheckpointError when it is none."""
    check_run(path)
    run = RunRecord(path, History())
    tail = Tail(path / "events.jsonl")
    run.history.see_all(tail.read())
    _read_files(run)
    _note_events(run, tail)
    return run


def _read_files(run: RunRecord) -> None:
    run.config_text = _text(run, "config.yaml")
    try:
        run.config = _tree(parse_yaml(run.config_text, where="config.yaml"))
    except (ConfigError, ValueError) as error:
        run.notes.append(f"config.yaml cannot be read as YAML ({error}); settings are not shown.")
    run.command = _text(run, "command.txt").strip()
    run.environment, run.data = _json(run, "environment.json"), _json(run, "data.json")
    run.status = _json(run, "status.json")
    if not run.history.method and run.config.get("method"):
        run.history.method = str(run.config["method"])
    run.evaluations = _newest_first(
        _whole(run, file, _kept) for file in run.path.glob("evaluations/*.json")
    )
    run.trials = _newest_first(
        # More seeds of a trial hold those before.
        _whole(run, max(files, key=lambda file: (len(file.name), file.name)), _trial)
        for folder in run.path.glob("verdict/*")
        if (files := list(folder.glob("verdict-*-seeds.json")))
    )


def _newest_first(found: Iterable[AnyKept | None]) -> list[AnyKept]:
    whole = [one for one in found if one is not None]
    return sorted(whole, key=lambda one: one.made_at, reverse=True)


def _note_events(run: RunRecord, tail: Tail) -> None:
    if not run.history.events:
        run.notes.append("events.jsonl holds no event yet: nothing has been trained.")
    if tail.damaged:
        first = ", ".join(map(str, tail.damaged[:5]))
        more = " …" if len(tail.damaged) > 5 else ""
        run.notes.append(
            f"events.jsonl: {len(tail.damaged)} damaged line(s) left out (line {first}{more})."
        )
    if tail.torn and run.state != "running":
        run.notes.append("events.jsonl: the last line is half written and was left out.")
    if run.history.unread:
        run.notes.append(
            f"events.jsonl: {run.history.unread} event(s) without the fields they should have."
        )


def mixture_metric(config: Mapping[str, Any]) -> str:
    """Return the name of the metric by which a grid weighs its mixtures."""
    return str(part_of(part_of(config, "cellular"), "mixture").get("metric", "score"))


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the dotted keys in which configurations differ, with each configuration's value."""
    trees = [_flat(config) for config in configs]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    rows = {key: tuple(tree.get(key) for tree in trees) for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


class StabilityProtocol(NamedTuple):
    """How a run measured collapse or cycling; where it is the same, values compare.

    Collapse is that of a generator as it stands: how far it looks back and how long a round is
    does not matter to it, and every how many rounds it is measured only decides which of the last
    half are averaged. Cycling is about the way between rounds, so it depends on all three.
    """

    space: str
    samples: tuple[int, ...]
    within: str
    """`each class` or `all classes`: a cell is measured against the pictures it is to make."""
    data: str
    """Digest of what data.json says of those pictures: their own digests, training and held out.
    A run that wrote none of what it held out is not known to have had the same."""
    compared: tuple[int, ...] = ()
    """For collapse alone: how many generated and held-out pictures were compared; `references`
    counts the training pictures to be covered."""
    references: tuple[int, ...] = ()
    length: str = ""
    """For cycling alone: how much a round trains on, how often it is measured, how far that looks
    back. The last two as the configuration says now: it may have been edited before a resume."""
    every_rounds: str = ""
    window: str = ""

    def parts(self) -> tuple[str, ...]:
        """Return all parts but the space in words; empty where a part does not matter."""
        return (
            f"{spanned(self.samples)} pictures a round",
            f"within {self.within}",
            f"data {self.data[:8]}",
            f"{spanned(self.compared)} compared" if self.compared else "",
            f"{spanned(self.references)} to be covered" if self.references else "",
            f"rounds of {self.length}" if self.length else "",
            f"every {self.every_rounds}" if self.every_rounds else "",
            f"{self.window} rounds back" if self.window else "",
        )


def spanned(counts: Collection[int]) -> str:
    """Format the least and the most of some counts."""
    few, many = min(counts), max(counts)
    return str(few) if few == many else f"{few} to {many}"


def measured_by(run: RunRecord, index: str) -> StabilityProtocol | None:
    """Return how the run measured one of `INDICES`; None when it did not."""
    history = run.history
    if history.index_space is None or not history.index_samples:
        return None
    within = "each class" if history.method == "per-class" else "all classes"
    data = hashlib.sha256(json.dumps(run.data.get("classes"), sort_keys=True).encode()).hexdigest()
    both = StabilityProtocol(
        history.index_space, tuple(sorted(history.index_samples)), within, data
    )
    if index == "collapse":
        return both._replace(
            compared=tuple(sorted(history.index_compared)),
            references=tuple(sorted(history.index_references)),
        )
    stability = part_of(run.config, "stability")
    every = stability.get("every_rounds", "?")
    return both._replace(
        length=_length(run.config),
        every_rounds="round" if every == 1 else f"{every} rounds",
        window=str(stability.get("window", "?")),
    )


def _length(config: Mapping[str, Any]) -> str:
    """Return how much a round trains on, in words.

    A pass over a cell's pictures is one, whatever the batches and however many pictures each class
    has: the data are compared beside it. These settings cannot change on resume.
    """
    training = part_of(config, "training")
    batches, batch = training.get("batches_per_round"), training.get("batch")
    if isinstance(batches, int) and isinstance(batch, int):
        return f"{batches * batch} pictures"
    fraction = part_of(config, "cellular").get("data_fraction", 1)
    return "a pass" if fraction == 1 else f"a pass over {fraction} of the data"


def part_of(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a configuration; an empty one where it is no mapping."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def stability_rows(runs: Sequence[RunRecord]) -> dict[str, tuple[Settled | None, ...]]:
    """Return each run's indices over the last half of its rounds; those in one row compare."""
    rows: dict[str, tuple[Settled | None, ...]] = {}
    for index in INDICES:
        by = [measured_by(run, index) for run in runs]
        kinds = [one for one in dict.fromkeys(by) if one is not None]
        # Named by what they differ in.
        alike = set.intersection(*(set(kind.parts()) for kind in kinds)) if kinds else set()
        for kind in kinds:
            row = tuple(
                run.history.stability(index) if one == kind else None
                for run, one in zip(runs, by, strict=True)
            )
            if any(row):
                rows[_row_name(index, kind, alike, rows)] = row
    return rows


def _row_name(
    index: str, kind: StabilityProtocol, alike: Collection[str], taken: Collection[str]
) -> str:
    """Name a row by its index, its space, and the parts in which it differs from other rows."""
    fewer = bool(kind.compared) and kind.compared != kind.samples
    own = [
        part
        for part in kind.parts()
        if part and (part not in alike or (fewer and part.endswith("compared")))
    ]
    name = ", ".join([f"{index}@{kind.space}", *own])
    # Counts that span the same may still not be the same.
    while name in taken:
        name += " (otherwise)"
    return name


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _text(run: RunRecord, name: str) -> str:
    path = run.path / name
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("too large")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        run.notes.append(f"{name} is missing.")
    except (OSError, ValueError) as error:
        run.notes.append(f"{name} cannot be read ({error}).")
    return ""


def _json(run: RunRecord, name: str) -> dict[str, Any]:
    text = _text(run, name)
    if not text:
        return {}
    try:
        return _tree(json.loads(text))
    except (ValueError, RecursionError):
        run.notes.append(f"{name} is damaged and was left out.")
        return {}


def _tree(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no tree")
    return value


def _whole(
    run: RunRecord, file: Path, read: Callable[[Path, dict[str, Any]], AnyKept]
) -> AnyKept | None:
    """Return the contents of a file that the run has kept; None, and a note, when it is damaged."""
    try:
        return read(file, _tree(json.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        run.notes.append(f"{file.relative_to(run.path)} is damaged and was left out.")
        return None


def _kept(file: Path, tree: dict[str, Any]) -> Kept:
    scores = [one for one in tree["scores"] if isinstance(one["value"], int | float)]
    protocol = _tree(tree["protocol"])
    for key in ("subject", "reference", "space"):
        _tree(protocol[key])
    left_out = {str(key): str(value) for key, value in tree["left_out"].items()}
    # What was kept before spaces were checked has none.
    controls = _tree(tree.get("controls", {})).values()
    blind = [str(one["told"]) for one in controls if one["blind"]]
    nearest = _if_there(file.with_name(f"{file.stem}-nearest.png"))
    made_at = file.stat().st_mtime
    return Kept(file.stem, protocol, scores, left_out, made_at, nearest, blind)


def _trial(file: Path, tree: dict[str, Any]) -> VerdictRecord:
    check_trial(tree)
    return VerdictRecord(tree, file.stat().st_mtime, _if_there(file.with_name("nearest.png")))


def _if_there(file: Path) -> Path | None:
    return file if file.is_file() else None


def check_trial(tree: Mapping[str, Any]) -> None:
    """Raise an error if a verdict's file lacks anything that a report shows of it."""
    for key in ("outcome", "sentence"):
        str(tree[key])
    protocol, comparison = tree["protocol"], tree["comparison"]
    for key in ("seeds", "steps"):
        int(protocol[key])
    for part in ("train", "test"):
        sum(map(int, protocol["data"][part].values()))
    str(protocol["data"]["name"])
    arms = tree["arms"].values()
    estimates = [arm[key] for arm in arms for key in ("accuracy", "mean_recall")]
    estimates += [one for arm in arms for one in arm["recall"].values()]
    if comparison is not None:
        estimates += [comparison["mean_recall"], *comparison["recall"].values()]
        list(comparison["helped"])
    for one in (*estimates, *filter(None, tree["cas"].values())):
        for key in ("value", "low", "high"):
            float(one[key])
    copies = tree["memorisation"]
    for key in ("value", "low", "high"):
        float(copies["share"][key])
    int(copies["pictures"])
    list(copies["copied"])
    for one in tree["drawn"].values():
        int(one["drawn"])
        sum(map(int, one["left_out"].values()))


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
