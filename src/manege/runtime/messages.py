"""Every message between the coordinator, workers, the worker server and MPI ranks.

Each kind is a frozen dataclass. `encode` turns one into what JSON can hold, `decode` back into the
dataclass, with every field checked. Nothing else in the package knows how a message is spelt.

docs/decisions/0007-coordinator-and-hosts.md lists them; `python -m manege.runtime.messages` prints
that table, and a test compares the two.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from manege.config import RunConfig
from manege.errors import (
    EXIT_MACHINE,
    EXIT_STOPPED,
    CheckpointError,
    ConfigError,
    DataError,
    MachineError,
    ManegeError,
)
from manege.observer import Asks

T = TypeVar("T")

KINDS: dict[str, type] = {}
"""The dataclass of each kind of message, by the name it has on the wire."""
_NAMES: dict[type, str] = {}


@dataclass_transform(frozen_default=True)
def _message(kind: str) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass that travels under this name."""

    def declare(cls: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True)(cls)
        made.__pydantic_config__ = {"extra": "forbid"}
        KINDS[kind], _NAMES[made] = made, kind
        return made  # type: ignore[no-any-return]

    return declare


def encode(message: Any) -> dict[str, Any]:
    """Return a message as JSON can hold it."""
    return {"is": _NAMES[type(message)], **{key: _plain(v) for key, v in vars(message).items()}}


def decode(received: Mapping[str, Any]) -> Any:
    """Return the message that was received; raise ValueError for what is none."""
    fields = dict(received)
    kind = fields.pop("is", None)
    if kind not in KINDS:
        raise ValueError(f"a message of the kind {kind!r}, which nobody sends")
    try:
        return _adapter(kind).validate_python(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"a message {kind!r}: {where}: {problem['msg'].lower()}") from None


@functools.cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind])


def _plain(value: Any) -> Any:
    if type(value) in _NAMES:
        return encode(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value):
        return vars(value)
    return value


Nested = Annotated[Any, BeforeValidator(lambda value: decode(value))]
"""A message within another."""


# What is asked of the worker server, or of the runtime in its place, before a run begins.


@_message("new-run")
class NewRun:
    """Make a run directory."""

    config: RunConfig
    on_pixels: RunConfig | None
    """What to train instead where critics cannot see features."""
    out: Path | None
    command: str


@_message("old-run")
class OldRun:
    """Open a run directory, to go on with the run."""

    path: Path
    rounds: int | None
    """A new total."""
    budget_s: float | str | None
    """A new total of time."""
    workers: int
    """How many there may be at most."""


@_message("load")
class Load:
    """Load what all workers of a run have in common."""

    path: Path
    config: RunConfig


@_message("fork")
class ForkWorker:
    """Start a worker, which talks over the file that comes with this."""

    worker: int
    local_index: int
    """Its number among the workers of its machine: it decides which GPU it uses."""


# What the server answers.


@_message("say")
class Say:
    """A line for people."""

    text: str


@_message("count")
class Count:
    """How far a feature network's training is."""

    done: int
    total: int


@_message("prepared")
class Prepared:
    """The run directory is there."""

    path: Path
    config: RunConfig


@dataclass(frozen=True)
class Task:
    """What is to be done, known before the first worker starts."""

    cells: tuple[str, ...]
    """The longest work first."""
    groups: tuple[tuple[str, ...], ...]
    """Cells that ever hear of each other."""
    links: Mapping[str, tuple[str, ...]]
    """Whom a cell ever hears, and who hears it."""
    rounds: int | None
    budget_s: float | None
    wall: bool
    """Whether the budget is one of wall time, of which every worker has its own."""
    synchronous: bool
    """Whether cells that hear each other wait for each other's last round."""
    record: Mapping[str, Any]
    """What the event that the run has started holds besides."""


@_message("loaded")
class Loaded:
    """What all workers have in common is loaded."""

    task: Task
    bytes_each: int
    """Memory that a worker starts with."""
    devices: int
    """GPUs that workers may use."""


@_message("forked")
class Forked:
    """A worker has started."""

    worker: int
    pid: int


@_message("dead")
class Died:
    """A worker is dead."""

    worker: int
    how: str


@_message("refused")
class Refused:
    """Bad input, or a machine that refuses: the exit code, the line to say, the error's class."""

    code: int
    text: str
    kind: str = ""

    @classmethod
    def of(cls, error: ManegeError) -> Refused:
        """Return the message that hands an error on."""
        return cls(error.exit_code, str(error), type(error).__name__)

    def error(self) -> BaseException:
        """Return the error that the command ends with."""
        if self.code == EXIT_STOPPED:
            return KeyboardInterrupt(self.text)
        if self.code == EXIT_MACHINE:
            return MachineError(self.text)
        kinds = {one.__name__: one for one in (CheckpointError, DataError)}
        return kinds.get(self.kind, ConfigError)(self.text)


# What the coordinator tells a worker.


@_message("host")
class TakeCell:
    """Train a cell, from its last commit."""

    cell: str
    share_s: float | None
    """Time that the cell, or its whole group, may take."""
    cells: int
    """How many cells share that time."""
    until: int | None
    """The round that it may go on to; None: no limit."""
    quiet: bool
    """It has failed: show its centre, train nothing."""
    elsewhere: bool
    """Other workers may have its neighbours: show its centres to them too."""
    watched: bool
    """A worker died over it: tell of every step."""


@_message("until")
class RunUntil:
    """Go on to this round."""

    cell: str
    round: int


@_message("finish")
class Finish:
    """End a cell: score, commit, draw."""

    cell: str
    reason: str


@_message("release")
class Release:
    """Give a cell away, at the end of its round."""

    cell: str


@_message("adopted")
class Adopted:
    """A checkpoint written aside is now the cell's newest commit."""

    cell: str


@_message("slot")
class SlotShown:
    """A cell elsewhere shows its centres in the file that comes with this."""

    cell: str


@_message("centre")
class CentreShown:
    """A cell elsewhere has shown its centre of a round."""

    cell: str
    round: int


@_message("frozen")
class CellFrozen:
    """A cell elsewhere has failed, and shows no other centre any more."""

    cell: str


@_message("combine")
class Combine:
    """Write the combined model."""


@_message("noted")
class Noted:
    """The mixture is in the run directory: the model can be made of it."""


@_message("asked")
class Asked:
    """Do what somebody who watches asked for."""

    what: Asks


@_message("stop")
class Stop:
    """Commit every cell and let it go."""

    reason: str


@_message("quit")
class Quit:
    """End."""


# What a worker tells the coordinator.


@_message("opened")
class Opened:
    """A cell is taken up; a file that shows its centres may come with this."""

    cell: str
    round: int
    step: int
    spent_s: float
    verified: Mapping[str, Any] | None = None
    """The commit it goes on from, once its files were hashed."""


@_message("event")
class Emitted:
    """A line for events.jsonl."""

    event: str
    fields: Mapping[str, Any]


@_message("step")
class Stepped:
    """A step is done."""

    cell: str
    round: int
    step: int
    steps: int
    fraction: float
    """Of the cell's work."""


@_message("commit")
class CommitWritten:
    """A checkpoint is written aside, and waits for its name."""

    cell: str
    round: int
    step: int
    spent_s: float
    seconds: float
    pending: Mapping[str, Any]


@_message("file")
class FileWritten:
    """A file is written aside, and waits for its name."""

    aside: str
    path: str


@_message("round")
class RoundDone:
    """A round is done, committed and shown."""

    cell: str
    round: int
    spent_s: float
    seconds: float


@_message("over")
class TimeUp:
    """A cell has used up its time, within a round."""

    cell: str
    spent_s: float


@_message("released")
class Released:
    """A cell is given away."""

    cell: str
    round: int
    spent_s: float


@_message("finished")
class CellFinished:
    """A cell has come to its end."""

    cell: str
    round: int
    spent_s: float
    reason: str


@_message("stopped")
class CellsStopped:
    """All cells are committed and let go: the round of each, and its time."""

    cells: Mapping[str, tuple[int, float]]


@_message("failed")
class GaveUp:
    """A cell cannot go on; the others can."""

    cell: str
    round: int
    spent_s: float
    reason: str


@_message("crashed")
class Crashed:
    """The worker will die of an error."""

    cell: str | None
    round: int
    step: int
    text: str
    traceback: str


@_message("mixture")
class MixtureChosen:
    """The best mixture of a grid."""

    record: Mapping[str, Any]


@_message("combined")
class Combined:
    """The model is written."""


@_message("beat")
class Beat:
    """The worker lives."""

    age_s: float
    """How long its step has taken so far."""
    longest_s: float
    """The longest step it has taken."""
    working: str | None
    """The cell in training."""


# What the coordinator orders, whoever carries it out; over MPI these travel as they are.


@_message("send")
class Send:
    """Give a worker a message, with files (over MPI: the numbers of slots)."""

    worker: int
    message: Nested
    files: tuple[int, ...] = ()


@_message("start")
class Start:
    """Start a worker, under this number."""

    worker: int


@_message("kill")
class Kill:
    """Make sure that a worker is dead, and listen to it no more."""

    worker: int


@_message("forget")
class Close:
    """Nobody needs this file any more."""

    file: int


@_message("said")
class Said:
    """What a worker said; the files are the hearer's to close."""

    worker: int
    message: Nested
    files: tuple[int, ...] = ()


# What MPI ranks tell each other besides.


@_message("node")
class NodeLoaded:
    """A rank has loaded the run, on a machine with so much room."""

    rank: int
    loaded: Nested
    number: int
    """The machine's first rank."""
    name: str
    cores: int
    free_bytes: int


@_message("signal")
class Signalled:
    """A rank was sent a signal."""

    name: str


@_message("alive")
class RankAlive:
    """A rank lives."""


@_message("end")
class EndJob:
    """The job ends, with this exit code."""

    code: int


@_message("follow")
class Follow:
    """Send what a slot shows, from now on."""

    slot: int


@_message("unfollow")
class Unfollow:
    """Send no more of it."""

    slot: int


@_message("holds")
class SlotHolds:
    """The arrays that a slot shows: kind and length of each."""

    slot: int
    lengths: tuple[tuple[str, int], ...]


@_message("filled")
class SlotFilled:
    """All that a slot held at first is sent."""

    slot: int


Order = Send | Start | Kill | Close
Request = NewRun | OldRun


def table() -> str:
    """Return every message, its fields and what it means, as a table in Markdown."""
    rows = ["| message | fields | meaning |", "|---|---|---|"]
    for kind, cls in KINDS.items():
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(cls))
        meaning = " ".join((cls.__doc__ or "").split())
        rows.append(f"| `{kind}` ({cls.__name__}) | {fields} | {meaning} |")
    return "\n".join(rows)


if __name__ == "__main__":
    import sys

    sys.stdout.write(table() + "\n")
