"""The text of a batch script for Slurm: made from values, read by nobody here.

A script may be started any number of times, by Slurm or by hand: it begins the run, or goes on
with it where it has begun. Whatever comes from a user is quoted.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from manege.errors import EXIT_FAILED_CELL, EXIT_MACHINE, EXIT_STOPPED

WARNING_S = 90
"""How long before its end a job is told; Slurm may be up to a minute early."""


class Request(NamedTuple):
    """What to ask Slurm for."""

    name: str
    nodes: int | None
    tasks: int
    cpus_per_task: int
    memory: str
    """For each CPU."""
    tmp: str | None
    """Disk space on each node."""
    time_s: float
    others: tuple[str, ...]
    """More options of sbatch, such as ``partition=long``."""


class BatchJob(NamedTuple):
    """What the job does."""

    folder: Path
    """Where it was asked for; paths may be relative to it."""
    command: Sequence[str]
    """Starts manege."""
    run: Path
    train: Sequence[str]
    """Arguments that begin the run."""
    resume: Sequence[str]
    """Options that go on with it."""
    shares: Sequence[str] = ()
    """Of a job array: for each task the ``--set`` that names its classes."""
    downloads: Path | None = None
    """Where the data lie, when that is in the cache of the user who asks."""


def script(request: Request, work: BatchJob) -> str:
    """The whole script, of one job or of a job array."""
    local = [] if request.tmp is None else _local_cache(work)
    after = ["clean"] if local else []
    body = _array(work, after) if work.shares else _ranks(work, after)
    cd = f"cd -- {_quoted(work.folder)} || exit {EXIT_MACHINE}"
    parts = (_head(request, work), [cd, f"manege=({_quoted(*work.command)})"], local, body)
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(request: Request, work: BatchJob) -> list[str]:
    options = {
        "job-name": request.name,
        "array": f"0-{len(work.shares) - 1}" if work.shares else None,
        "nodes": request.nodes,
        "ntasks": request.tasks,
        "cpus-per-task": request.cpus_per_task,
        "mem-per-cpu": request.memory,
        "tmp": request.tmp,
        "time": _clock(request.time_s),
        # To the batch shell (B): Slurm would tell steps alone, and mpiexec is not one.
        "signal": f"B:USR2@{WARNING_S}",
        "open-mode": "append",
    }
    lines = [f"{key}={value}" for key, value in options.items() if value is not None]
    return [
        "#!/bin/bash",
        *(f"#SBATCH --{line}" for line in (*lines, "requeue", *request.others)),
        "# Begins the run, or goes on with it: send it again whenever it has ended too early.",
    ]


def _local_cache(work: BatchJob) -> list[str]:
    remove = 'rm -rf -- "$MANEGE_CACHE"'
    if not work.shares:  # A step on every node: the batch shell is on the first alone.
        remove = f'srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 {remove}'
    data = [] if work.downloads is None else [f"export MANEGE_DATA={_quoted(work.downloads)}"]
    return [
        "# Decoded pictures lie on the disk of each node, while the job is there.",
        *data,
        'export MANEGE_CACHE="${TMPDIR:-/tmp}/manege-$SLURM_JOB_ID"',
        f"clean() {{ {remove}; }}",
    ]


def _ranks(work: BatchJob, after: Sequence[str]) -> list[str]:
    return [
        f"run={_quoted(work.run)}",
        *_begin_or_resume(work),
        'set -- "$@" --launch mpiexec -n "$SLURM_NTASKS"',
        "",
        *_watched('"$SLURM_JOB_ID"', after),
        'exit "$code"',
    ]


def _array(work: BatchJob, after: Sequence[str]) -> list[str]:
    """Each task has a run of its own; that which ends last joins the models of all."""
    many = len(work.shares)
    return [
        f"all={_quoted(work.run)}",
        f"shares=({' '.join(_quoted(one) for one in work.shares)})",
        'printf -v run "%s/%03d" "$all" "$SLURM_ARRAY_TASK_ID"',
        'mkdir -p -- "$all"',
        *_begin_or_resume(work, '--out "$run"', '--set "${shares[SLURM_ARRAY_TASK_ID]}"'),
        'set -- "$@" --runtime local --workers "$SLURM_CPUS_PER_TASK"',
        "",
        *_watched('"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"', after),
        f'[ "$code" = 0 ] || [ "$code" = {EXIT_FAILED_CELL} ] || exit "$code"',
        "",
        "parts=()",
        f"for ((task = 0; task < {many}; task++)); do",
        '  printf -v part "%s/%03d" "$all" "$task"',
        '  [ -f "$part/model/model.json" ] || exit "$code"  # Whoever ends last joins them.',
        '  parts+=("$part")',
        "done",
        "# Two that end together make the same model; one gives it its name.",
        'mine="$all/.model-$SLURM_JOB_ID"',
        'if [ ! -e "$all/model" ]; then',
        '  rm -rf -- "$mine"',
        '  "${manege[@]}" model merge -o "$mine" -- "${parts[@]}" || exit',
        '  mv -T -- "$mine" "$all/model" 2> /dev/null || rm -rf -- "$mine"',
        "fi",
        'exit "$code"',
    ]


def _begin_or_resume(work: BatchJob, *more: str) -> list[str]:
    begin = " ".join((_quoted("train", *work.train), *more))
    go_on = " ".join(('resume "$run"', *map(_quoted, work.resume)))
    return [
        'if [ -f "$run/config.yaml" ]; then',
        f"  set -- {go_on}",
        "else",
        f"  set -- {begin}",
        "fi",
    ]


def _watched(job: str, after: Sequence[str]) -> list[str]:
    """Runs manege in the background, so that the shell hears signals; ends with its `code`.

    Args:
        job: what to requeue.
        after: lines for when manege has ended.
    """
    return [
        "# USR2 comes from Slurm, shortly before the time limit: save, and queue up again.",
        "# TERM comes from a user (scancel): save where that can be, and end.",
        "child= asked= heard=0",
        "pass() {",
        "  heard=$((heard + 1))",
        '  [ "$asked" = TERM ] || asked=$1',
        '  [ -z "$child" ] || kill -s "$1" "$child" 2> /dev/null',
        "}",
        "trap 'pass USR2' USR2",
        "trap 'pass TERM' TERM",
        '"${manege[@]}" "$@" &',
        "child=$!",
        '[ -z "$asked" ] || kill -s "$asked" "$child"',
        "while before=$heard; do",
        '  wait "$child"',
        "  code=$?",
        '  [ "$heard" = "$before" ] && break  # Else a signal ended the wait.',
        "done",
        *after,
        f'if [ "$code" = {EXIT_STOPPED} ] && [ "$asked" = USR2 ]; then',
        f"  scontrol requeue {job} && exit {EXIT_STOPPED}",
        "fi",
    ]


def _clock(seconds: float) -> str:
    """Days-hours:minutes:seconds, as Slurm has it."""
    minutes, left_s = divmod(round(seconds), 60)
    hours, left_m = divmod(minutes, 60)
    days, left_h = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{left_h:02}:{left_m:02}:{left_s:02}"


def _quoted(*words: object) -> str:
    return shlex.join(map(str, words))
