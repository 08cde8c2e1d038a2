"""`manege slurm train …`: a batch script for Slurm, printed or sent."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from manege import plugins
from manege.cli.output import emit_json, say
from manege.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from manege.cli.sbatch import Request
    from manege.config import RunConfig

app = typer.Typer(
    help="""Print a batch script for Slurm, or send it; the job resumes itself.

    Options of the job come before the word train, those of the run after it, as of `manege train`:

    \b
      manege slurm --nodes 2 --time 8h train mnist --method cellular --grid 3x3 --out runs/grid
      manege slurm --array 5 --submit train cifar10 --out runs/cifar

    Both are checked at once, before the queue. The run directory must lie on a disk that all nodes
    see. Shortly before its time is up the job saves, queues up again and goes on.
    """,
    no_args_is_help=True,
)

_SIZE = re.compile(r"[1-9]\d*[KMGT]?", re.ASCII)
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", re.ASCII)
_PLAIN = re.compile(r"""[^\s"'\\#]+""")
_OTHER = re.compile(r"""([a-z][a-z-]*)(=[^\s"'\\#]+)?""", re.ASCII)
_LEAST_S = 300.0
"""A job is told up to 150 s before its end, and begins with preparations."""
_OWN = {
    "array": "--array",
    "nodes": "--nodes",
    "ntasks": "--tasks",
    "cpus-per-task": "--cpus-per-task",
    "mem-per-cpu": "--memory",
    "mem": "--memory",
    "tmp": "--tmp",
    "time": "--time",
    "partition": "--partition",
    "account": "--account",
    "signal": None,
    "requeue": None,
    "no-requeue": None,
    "open-mode": None,
}
"""Options of sbatch that the script has already, and those of ours that set them."""


class _Asked(NamedTuple):
    """The options before the word train."""

    nodes: int | None
    tasks: int | None
    cpus_per_task: int
    memory: str
    tmp: str | None
    time: str
    array: int | None
    others: tuple[str, ...]
    submit: bool
    as_json: bool


@app.callback()
def _options(
    context: typer.Context,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Machines to share the tasks; else as Slurm likes.")
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Ranks of the MPI job; else one for each cell or class, and one that coordinates.",
        ),
    ] = None,
    cpus_per_task: Annotated[int, typer.Option(min=1, help="Cores for each task.")] = 1,
    memory: Annotated[str, typer.Option(help="Memory for each core: 800M, 4G.")] = "2G",
    tmp: Annotated[
        str | None,
        typer.Option(
            help="Ask for so much disk on each node, and keep decoded pictures there: 10G."
        ),
    ] = None,
    time: Annotated[
        str, typer.Option(help="Until it queues up again: 8h, 90m or 1-12:00:00.")
    ] = "4h",
    partition: Annotated[str | None, typer.Option(help="Where to queue up.")] = None,
    account: Annotated[str | None, typer.Option(help="Who is charged.")] = None,
    array: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Per-class without MPI: a job array of so many tasks that share the classes; the "
            "last to end joins their models in RUN/model.",
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Any other option of sbatch; may be repeated."),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Write the script to RUN.sbatch and send it.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="With --submit: print the result as one JSON object.")
    ] = False,
) -> None:
    if json_ and not submit:
        raise ConfigError("--json: only with --submit; else the script itself is printed")
    named = {"partition": partition, "account": account}
    others = [f"{key}={_plain(key, one)}" for key, one in named.items() if one is not None]
    others += map(_other, sbatch or ())
    for option, size in (("--memory", memory), ("--tmp", tmp)):
        if size is not None and not _SIZE.fullmatch(size):
            raise ConfigError(f"{option} {size!r}: expected a size such as 800M or 4G")
    context.obj = _Asked(
        nodes, tasks, cpus_per_task, memory, tmp, time, array, tuple(others), submit, json_
    )


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
)
def train(context: typer.Context) -> None:
    """A script that trains; arguments as of `manege train`, --out among them."""
    from manege.cli import sbatch

    asked: _Asked = context.obj
    args = list(context.args)
    given = _given(context, args, asked)
    run, config = given.out, given.config
    _check_free(run)
    labels = _labels(config)
    shares = _shares(asked, config, labels)
    work = sbatch.BatchJob(
        folder=Path.cwd(),
        command=(sys.executable, "-m", "manege"),
        run=run,
        train=args,
        resume=given.again,
        shares=shares,
        downloads=None if asked.tmp is None else _downloads(config),
    )
    text = sbatch.script(_request(asked, run, config, labels), work)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            "an argument or the folder's name is not UTF-8, as a script has to be; rename it"
        ) from None
    if asked.submit:
        _send(text, run, is_array=bool(shares), as_json=asked.as_json)
    else:
        say(text, end="")


class _Given(NamedTuple):
    """What `manege train` makes of its arguments."""

    out: Path
    config: RunConfig
    again: list[str]
    """Options of `manege resume` that go on in the same manner."""


def _given(context: typer.Context, args: Sequence[str], asked: _Asked) -> _Given:
    """Told by `manege train` itself: it parses them, and prints the configuration."""
    from manege.config import RunConfig

    command: Any = context.find_root().command
    launch = [] if asked.array is not None else ["--launch", "mpiexec", "-n", "2"]
    plain = command.commands["train"].make_context("manege train", [*args])
    said = {
        name
        for name in plain.params
        if (source := plain.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }
    _refuse(said, asked)
    if plain.params["out"] is None:
        raise ConfigError("--out: say where the run is to be, so that the job can go on with it")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        asking = [*args, *launch, "--print-config", "--json"]
        whole = command.commands["train"].make_context("manege train", asking)
        command.commands["train"].invoke(whole)
    config = RunConfig.model_validate(json.loads(printed.getvalue()))
    again = []
    for option in ("workers", "restarts"):
        again += [f"--{option}", str(plain.params[option])] if option in said else []
    again += ["--tensorboard"] if plain.params["tensorboard"] else []
    again += ["--json"] if plain.params["json_"] else []
    return _Given(plain.params["out"], config, again)


def _refuse(said: set[str], asked: _Asked) -> None:
    """Options of `manege train` that the script sets, or that mean nothing in it."""
    why = {
        "launch": ("--launch", "the script does that"),
        "ranks": ("-n", "say --tasks, before the word train"),
        "hosts": ("--hosts", "Slurm chooses them"),
        "runtime": ("--runtime", "the script does that"),
        "print_config": ("--print-config", "that is for `manege train`"),
    }
    if asked.array is not None:
        why["restarts"] = ("--restarts", "a task's trainers are started again anyway")
        why["workers"] = ("--workers", "say --cpus-per-task, before the word train")
    for name, (option, word) in why.items():
        if name in said:
            raise ConfigError(f"{option}: not in a batch script; {word}")


def _labels(config: RunConfig) -> tuple[str, ...]:
    """Those that will be trained, so that a mistake in the data is found before the queue."""
    from manege.data import open_dataset

    return tuple(open_dataset(config.data).labels)


def _shares(asked: _Asked, config: RunConfig, labels: Sequence[str]) -> list[str]:
    """For each task of a job array the classes it trains, as a ``--set``."""
    import yaml

    from manege.config import MethodName

    if asked.array is None:
        return []
    if config.method is not MethodName.PER_CLASS:
        raise ConfigError(
            f"--array: only for --method per-class, found {config.method}; say --tasks"
        )
    for option, value in (("--nodes", asked.nodes), ("--tasks", asked.tasks)):
        if value is not None:
            raise ConfigError(f"{option}: not with --array, whose tasks have a node each; leave it")
    if asked.array > len(labels):
        raise ConfigError(f"--array {asked.array}: there are {len(labels)} classes; say so many")
    ends = [len(labels) * k // asked.array for k in range(asked.array + 1)]
    lists = [[*labels[ends[k] : ends[k + 1]]] for k in range(asked.array)]
    # In ASCII, on one line, and every label a text: YAML has numbers and booleans too.
    return [
        "data.classes="
        + yaml.safe_dump(one, default_style='"', default_flow_style=True, width=math.inf).strip()
        for one in lists
    ]


def _request(asked: _Asked, run: Path, config: RunConfig, labels: Sequence[str]) -> Request:
    from manege.cli.sbatch import Request

    nodes, tasks = asked.nodes, asked.tasks
    if asked.array is not None:
        nodes, tasks = 1, 1
    else:
        cells = len(_partition(config, tuple(labels)))
        tasks = tasks or cells + 1
        if nodes is not None and nodes > tasks:
            raise ConfigError(f"--nodes {nodes}: there are {tasks} tasks; say at most so many")
        if tasks > cells + 1:
            raise ConfigError(f"--tasks {tasks}: {cells + 1} is the most that have something to do")
    return Request(
        name=re.sub(r"[^A-Za-z0-9_.+-]", "_", run.name)[:64],
        nodes=nodes,
        tasks=tasks,
        cpus_per_task=asked.cpus_per_task,
        memory=asked.memory,
        tmp=asked.tmp,
        time_s=_seconds(asked.time),
        others=asked.others,
    )


def _partition(config: RunConfig, labels: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the run's cells; only for a method of one's own is torch imported."""
    from manege.config import partition

    if plugins.is_reference(config.method):
        from manege.methods import partition_of

        return partition_of(config, labels)
    return partition(config, labels)


def _seconds(text: str) -> float:
    """Of manege's durations with a unit, or of Slurm's with colons."""
    from manege.config import parse_duration

    if found := _TIME.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        value = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    else:
        try:
            # A number alone would be seconds to manege, and minutes to Slurm.
            value = float(parse_duration(text if text.lower().endswith(("h", "m", "s")) else ""))
        except ValueError:
            raise ConfigError(f"--time {text!r}: expected 8h, 90m or 1-12:00:00") from None
    if value < _LEAST_S:
        raise ConfigError(f"--time {text}: expected at least 5m: the job needs some to save")
    return value


def _plain(key: str, value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise ConfigError(f"--{key} {value!r}: expected a name without spaces and quotes")
    return value


def _other(text: str) -> str:
    """``qos=long``, if the script has none of that name yet."""
    found = _OTHER.fullmatch(text)
    if found is None:
        raise ConfigError(f"--sbatch {text!r}: expected an option of sbatch, as in qos=long")
    if (key := found[1]) in _OWN:
        what = f"say {_OWN[key]} instead" if _OWN[key] else "the script sets it"
        raise ConfigError(f"--sbatch {text}: {what}")
    return text


def _downloads(config: RunConfig) -> Path | None:
    """Where the data were fetched to, which a job with a cache of its own would not find."""
    from manege.data import list_datasets
    from manege.data.cache import cache_folder

    places = {row["name"]: Path(row["where"]) for row in list_datasets(config.data.root)}
    folder = cache_folder() / "downloads"
    where = places.get(config.data.source)
    return folder if where is not None and where.is_relative_to(folder) else None


def _check_free(run: Path) -> None:
    from manege.runs import RunDir

    RunDir.check_free(run)


def _send(text: str, run: Path, *, is_array: bool, as_json: bool) -> None:
    """Give the script to sbatch, and tell how to follow the job."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise MachineError("--submit: there is no sbatch here; leave it out to print the script")
    path = run.with_name(f"{run.name}.sbatch")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{path}: already exists; send it again with sbatch, or choose another --out"
        ) from None
    done = subprocess.run(
        [sbatch, "--parsable", os.fspath(path)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        path.unlink()
        told = done.stderr.strip().splitlines() or ["no word"]
        raise MachineError(f"--submit: sbatch refused the script ({told[-1]})")
    job = done.stdout.strip().partition(";")[0]
    log = f"slurm-{job}_*.out" if is_array else f"slurm-{job}.out"
    if as_json:
        emit_json({"job": int(job), "script": str(path), "run": str(run), "log": log})
        return
    say(f"job {job}: {path}")
    say(f"  queue   squeue -j {job}")
    if not is_array:
        say(f"  watch   manege watch {shlex.quote(str(run))}")
    say(f"  log     {log}")
    say(f"  stop    scancel --batch --signal=TERM {job}    (saves first; sbatch {path} goes on)")
    say(f"  cancel  scancel {job}")
